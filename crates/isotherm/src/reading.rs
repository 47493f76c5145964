//! Reading recordings for people: a file that is damaged is read as far as it goes, and they are told.

use crate::Misuse;
use crate::args::InputArgs;
use anyhow::bail;
use isotherm_damon::TargetId;
use isotherm_record::{Error, Format, Item, ReadOptions, Warning, open_joined};
use isotherm_report::Accumulate;
use isotherm_report::rate::interval_ns;
use isotherm_report::units::{Bounds, format_time};
use std::collections::BTreeSet;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A recording to read, maybe several times.
pub struct Recording {
    /// Its files, most often one.
    files: Vec<PathBuf>,
    /// What to call it.
    path: PathBuf,
    options: ReadOptions,
    when: When,
    told: bool,
    may_be_empty: bool,
}

/// Which part of a recording is asked for. Times are distances from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum When {
    #[default]
    Always,
    /// The snapshots that overlap this time; the others are left out.
    Within(Bounds<Duration>),
    /// All are handed on; who asks takes the one of this moment.
    At(Duration),
}

/// What became of reading it.
pub struct Ended {
    /// In what way it is incomplete, a clause.
    pub truncated: Option<String>,
    /// The format it was read as.
    pub format: Format,
    /// What is wrong with it and what was assumed, a sentence each.
    pub remarks: Vec<String>,
}

impl Recording {
    /// The recording that the arguments name.
    pub fn new(args: &InputArgs) -> Self {
        let files: Vec<PathBuf> = args.input.iter().flat_map(|path| files_of(path)).collect();
        let path = match files.as_slice() {
            [first, more @ ..] if !more.is_empty() => {
                format!("{} and {} more", first.display(), more.len()).into()
            }
            _ => args.input.first().cloned().unwrap_or_default(),
        };
        Self {
            files,
            path,
            options: args.foreign.read_options(),
            when: When::Always,
            told: false,
            may_be_empty: false,
        }
    }

    /// The recording at `path`, which was just written: its flaws were told already.
    pub fn just_written(path: &Path) -> Self {
        let options = ReadOptions { format: Some(Format::Rec), ..ReadOptions::default() };
        Self {
            files: vec![path.to_owned()],
            path: path.to_owned(),
            options,
            when: When::Always,
            told: true,
            may_be_empty: false,
        }
    }

    /// Tells no flaws: another reading of the same file does.
    pub fn silent(mut self) -> Self {
        self.told = true;
        self
    }

    /// Without a snapshot it is read as well.
    pub fn or_empty(mut self) -> Self {
        self.may_be_empty = true;
        self
    }

    /// Leaves out the snapshots outside of `window`, from the recording's start.
    pub fn within(mut self, window: Option<Bounds<Duration>>) -> Self {
        self.when = window.filter(|w| !w.is_open()).map_or(When::Always, When::Within);
        self
    }

    /// Leaves nothing out, but there must be a snapshot of this moment, or next to it.
    pub fn at(mut self, moment: Duration) -> Self {
        self.when = When::At(moment);
        self
    }

    /// Its files, those of directories one by one.
    pub fn files(&self) -> &[PathBuf] {
        &self.files
    }

    /// Whether it can be read only once.
    pub fn is_stream(&self) -> bool {
        self.files.iter().any(|path| path.as_os_str() == "-" || !path.metadata().is_ok_and(|m| m.is_file()))
    }

    /// Reads from its start to its end. The first time, what is wrong with it is told on standard error.
    ///
    /// # Errors
    /// When it cannot be read at all, or nothing was recorded in the time asked for, with what to do; those of `sink`.
    pub fn read(&mut self, sink: &mut dyn FnMut(&Item) -> io::Result<()>) -> anyhow::Result<Ended> {
        let mut reader = open_joined(&self.files, &self.options).map_err(|error| self.explain(error))?;
        let mut window = Window::new(self.when);
        while let Some(item) = reader.next_ref()? {
            window.item(item, sink)?;
        }
        window.release(sink)?;
        let warnings = reader.warnings();
        check_content(&self.path, window.snapshots, warnings)?;
        if !self.told {
            self.told = true;
            tell(&self.path, warnings);
        }
        if let Some(why) = window.nothing().filter(|_| !self.may_be_empty) {
            bail!("{}: {why}", self.path.display());
        }
        let flaws: Vec<String> = warnings.iter().filter(|w| is_flaw(w)).map(Warning::to_string).collect();
        Ok(Ended {
            truncated: (!flaws.is_empty()).then(|| flaws.join("; ")),
            format: reader.format(),
            remarks: warnings.iter().map(Warning::to_string).collect(),
        })
    }

    /// The same, into an analysis.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn read_into(&mut self, analysis: &mut impl Accumulate) -> anyhow::Result<Ended> {
        self.read(&mut |item| {
            analysis.item(item);
            Ok(())
        })
    }

    /// The ids of the targets that `words` name: by id, by pid, or by the name of the program.
    ///
    /// # Errors
    /// When one names none, with the targets that there are.
    pub fn targets(&mut self, words: &[String]) -> anyhow::Result<Vec<TargetId>> {
        if words.is_empty() {
            return Ok(Vec::new());
        }
        if self.is_stream() {
            let ids = words.iter().map(|w| w.parse().map(TargetId)).collect::<Result<_, _>>();
            return ids.or_else(|_| {
                misuse!(
                    "--target {}: name a target by its pid when the recording is a stream",
                    words.join(" ")
                )
            });
        }
        let mut known: Vec<(u64, u32, String)> = Vec::new();
        let mut seen: BTreeSet<u64> = BTreeSet::new();
        let mut reader = open_joined(&self.files, &self.options).map_err(|error| self.explain(error))?;
        while let Some(item) = reader.next_ref()? {
            match item {
                Item::Target(t) => known.push((t.id, t.pid, t.comm.clone())),
                Item::Snapshot(s) => seen.extend(s.targets.iter().map(|t| t.id.0)),
                _ => {}
            }
        }
        let mut ids = BTreeSet::new();
        for word in words {
            let number: Option<u64> = word.parse().ok();
            let fits = |(_, pid, comm): &&(u64, u32, String)| number == Some(u64::from(*pid)) || comm == word;
            let mut named: Vec<u64> = known.iter().filter(fits).map(|(id, ..)| *id).collect();
            if named.is_empty() {
                // Targets may be numbered in another way than by pid; where both fit, people mean the pid.
                named.extend(number.filter(|id| seen.contains(id)));
            }
            if named.is_empty() {
                bail!("the recording has no target {word}; {}", list(&known, &seen));
            }
            ids.extend(named);
        }
        Ok(ids.into_iter().map(TargetId).collect())
    }

    fn explain(&self, error: Error) -> anyhow::Error {
        match &error {
            Error::Io { doing: "open", source, .. } if source.kind() == io::ErrorKind::NotFound => {
                anyhow::anyhow!(
                    "there is no recording {}: make one with `isotherm record -- COMMAND` or \
                     `isotherm record --pid PID`, or name one with -i",
                    self.path.display()
                )
            }
            Error::Unsupported { .. } if self.files.len() > 1 && self.is_stream() => {
                Misuse(error.to_string()).into()
            }
            Error::Io { source, .. } if source.kind() == io::ErrorKind::IsADirectory => anyhow::anyhow!(
                "{} is a directory without a recording in it; name a file, or the directory of a series",
                self.path.display()
            ),
            _ => error.into(),
        }
    }
}

/// The recordings in a directory (of Isotherm's own format: other files may look like others by chance); of a file, itself.
fn files_of(path: &Path) -> Vec<PathBuf> {
    let is_recording = |path: &PathBuf| {
        let mut head = Vec::new();
        let file = path.metadata().is_ok_and(|m| m.is_file()).then(|| std::fs::File::open(path));
        let read = file.and_then(Result::ok).map(|file| file.take(16).read_to_end(&mut head));
        read.is_some_and(|read| read.is_ok()) && Format::detect(&head) == Some(Format::Rec)
    };
    let Ok(entries) = std::fs::read_dir(path) else { return vec![path.to_owned()] };
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_recording).collect();
    if files.is_empty() {
        return vec![path.to_owned()];
    }
    files.sort();
    files
}

/// Refuses a file that only has the name of a recording.
///
/// # Errors
/// When neither a header nor a snapshot was found in it.
pub fn check_content(path: &Path, snapshots: u64, warnings: &[Warning]) -> anyhow::Result<()> {
    if snapshots == 0 && warnings.contains(&Warning::HeaderLost) {
        bail!(
            "{} is not a recording, or nothing of it is left; check the path, or name the format with --from",
            path.display()
        );
    }
    Ok(())
}

/// Says what is wrong with a file, and what was chosen from it.
pub fn tell(path: &Path, warnings: &[Warning]) {
    for warning in warnings {
        let path = path.display();
        match warning {
            Warning::Records { used: Some(_), .. } => {
                say!("isotherm: {path}: {warning} (--record N reads another, --record all all of them)");
            }
            other => say!("isotherm: {path}: {other}"),
        }
    }
}

/// Whether something is missing, as opposed to worked out or chosen.
fn is_flaw(warning: &Warning) -> bool {
    !matches!(warning, Warning::Assumed { .. } | Warning::Skipped { .. } | Warning::Records { .. })
}

fn list(known: &[(u64, u32, String)], seen: &BTreeSet<u64>) -> String {
    const MOST: usize = 20;
    let mut names: Vec<String> = known.iter().map(|(_, pid, comm)| format!("{comm} (pid {pid})")).collect();
    if names.is_empty() {
        names = seen.iter().map(u64::to_string).collect();
    }
    if names.is_empty() {
        return "it has none at all".to_owned();
    }
    let more = names.len().saturating_sub(MOST);
    names.truncate(MOST);
    if more > 0 {
        names.push(format!("{more} more"));
    }
    format!("there are {}", names.join(", "))
}

/// Lets pass what lies in a stretch of time.
struct Window {
    when: When,
    /// Start of the recording, once known.
    origin_ns: Option<u64>,
    /// What came before the first snapshot of a recording that does not say when it was started.
    held: Vec<Item>,
    /// Snapshots read, and handed on.
    snapshots: u64,
    passed: u64,
    /// From the start of the first to the end of the last, ns.
    span: (u64, u64),
    /// Length of the longest, ns.
    longest: u64,
}

impl Window {
    fn new(when: When) -> Self {
        Self {
            when,
            origin_ns: None,
            held: Vec::new(),
            snapshots: 0,
            passed: 0,
            span: (u64::MAX, 0),
            longest: 0,
        }
    }

    fn item(&mut self, item: &Item, sink: &mut dyn FnMut(&Item) -> io::Result<()>) -> io::Result<()> {
        match item {
            Item::Header(header) if header.started_ns > 0 => self.origin_ns = Some(header.started_ns),
            Item::Snapshot(snapshot) => {
                let origin = match self.origin_ns {
                    Some(origin) => origin,
                    None => {
                        self.origin_ns = Some(snapshot.start_ns);
                        self.release(sink)?;
                        snapshot.start_ns
                    }
                };
                let (start, end) = interval_ns(snapshot);
                self.snapshots += 1;
                self.span = (self.span.0.min(start), self.span.1.max(end));
                self.longest = self.longest.max(end - start);
                if self.overlaps(origin, start, end) {
                    self.passed += 1;
                    return sink(item);
                }
                return Ok(());
            }
            other if self.origin_ns.is_none() && matches!(self.when, When::Within(_)) => {
                self.held.push(other.clone());
                return Ok(());
            }
            _ => {}
        }
        sink(item)
    }

    /// Hands on what was held. Its header now says when the recording began, or times would count from the window's
    /// start.
    fn release(&mut self, sink: &mut dyn FnMut(&Item) -> io::Result<()>) -> io::Result<()> {
        for mut item in self.held.drain(..) {
            if let (Item::Header(header), Some(origin)) = (&mut item, self.origin_ns) {
                header.started_ns = origin;
            }
            sink(&item)?;
        }
        Ok(())
    }

    fn overlaps(&self, origin_ns: u64, start: u64, end: u64) -> bool {
        let When::Within(bounds) = self.when else { return true };
        let (min, max) = (bounds.min.map(|t| at(origin_ns, t)), bounds.max.map(|t| at(origin_ns, t)));
        if let (Some(moment), true) = (min, min == max) {
            return start <= moment && moment <= end;
        }
        min.is_none_or(|min| end > min) && max.is_none_or(|max| start < max)
    }

    /// Why there is nothing to report, a sentence.
    fn nothing(&self) -> Option<String> {
        if self.snapshots == 0 {
            let why =
                "it holds no snapshot: the recording ended before the first aggregation interval was over";
            return Some(why.to_owned());
        }
        let origin = self.origin_ns.unwrap_or(self.span.0);
        let (first, last) = self.span;
        let asked = match self.when {
            // A moment may lie between two snapshots, or as far from the first or the last.
            When::At(moment)
                if at(origin, moment) > last.saturating_add(self.longest)
                    || at(origin, moment) < first.saturating_sub(self.longest) =>
            {
                format!("at {}", shown(moment))
            }
            When::Within(bounds) if self.passed == 0 => match (bounds.min, bounds.max) {
                (Some(min), Some(max)) if min == max => format!("at {}", shown(min)),
                (Some(min), Some(max)) => format!("from {} to {}", shown(min), shown(max)),
                (Some(min), None) => format!("from {} on", shown(min)),
                (None, max) => format!("before {}", shown(max.unwrap_or_default())),
            },
            _ => return None,
        };
        let distance = |ns: u64| format_time(ns.saturating_sub(origin));
        let (from, to) = (distance(first), distance(last));
        Some(format!("nothing was recorded {asked}: it spans {from} to {to}; choose a --time within"))
    }
}

/// The moment `time` after `origin_ns`, ns.
fn at(origin_ns: u64, time: Duration) -> u64 {
    origin_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn shown(time: Duration) -> String {
    format_time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::Snapshot;
    use isotherm_record::Header;
    use isotherm_report::units::{parse_bounds, parse_time};

    fn passed(window: &str, started_ns: u64) -> (u64, Vec<u64>) {
        let bounds = parse_bounds(window, parse_time).unwrap();
        let mut window = Window::new(When::Within(bounds));
        let mut items = vec![Item::Header(Header { started_ns, ..Header::default() })];
        items.extend((10..20).map(|second| {
            let ns = second * 1_000_000_000;
            Item::Snapshot(Snapshot { start_ns: ns, end_ns: ns + 1_000_000_000, ..Snapshot::default() })
        }));
        let (mut started, mut seconds) = (0, Vec::new());
        for item in &items {
            window
                .item(item, &mut |item| {
                    match item {
                        Item::Header(h) => started = h.started_ns,
                        Item::Snapshot(s) => seconds.push(s.start_ns / 1_000_000_000),
                        _ => {}
                    }
                    Ok(())
                })
                .unwrap();
        }
        (started, seconds)
    }

    #[test]
    fn a_window_counts_from_the_recordings_start() {
        assert_eq!(passed("2s..4s", 9_000_000_000), (9_000_000_000, vec![11, 12]));
        assert_eq!(passed("8500ms..", 9_000_000_000).1, [17, 18, 19]);
        assert_eq!(passed("..1ns", 10_000_000_000).1, [10]);
    }

    #[test]
    fn a_moment_has_the_snapshots_that_touch_it() {
        assert_eq!(passed("2s", 10_000_000_000).1, [11, 12]);
        assert_eq!(passed("2500ms", 10_000_000_000).1, [12]);
    }

    #[test]
    fn a_recording_that_does_not_say_when_it_began_began_with_its_first_snapshot() {
        assert_eq!(passed("2s..4s", 0), (10_000_000_000, vec![12, 13]));
    }
}
