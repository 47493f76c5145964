//! Reading recordings for people: a file that is damaged is read as far as it goes, and they are told.

mod window;

use crate::Misuse;
use crate::args::InputArgs;
use anyhow::bail;
use isotherm_damon::TargetId;
use isotherm_record::{
    Error, Format, Item, ItemReader, ReadOptions, RecordedAttrs, Warning, is_own, open_joined, printable,
};
use isotherm_report::Accumulate;
use isotherm_report::access::Selection;
use isotherm_report::provenance::Reading;
use isotherm_report::units::format_time;
use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use window::{When, Window};

/// A recording to read, maybe several times.
pub struct Recording {
    /// Its files, most often one.
    files: Vec<PathBuf>,
    /// What to call it.
    path: PathBuf,
    /// What was found in the directories that were named, a sentence each.
    taken: Vec<String>,
    options: ReadOptions,
    when: When,
    told: bool,
    may_be_empty: bool,
}

/// What became of reading it.
pub struct Ended {
    /// What reports say of that.
    pub reading: Reading,
    /// The format it was read as.
    pub format: Format,
    /// What is wrong with it and what was assumed, a sentence each.
    pub remarks: Vec<String>,
}

impl Recording {
    /// The recording that the arguments name.
    pub fn new(args: &InputArgs) -> Self {
        Self::of(&args.input, args.foreign.read_options())
    }

    /// The recording that these files, or directories of a series, are.
    pub fn of(input: &[PathBuf], options: ReadOptions) -> Self {
        let files: Vec<PathBuf> = input.iter().flat_map(|path| files_of(path)).collect();
        let taken = input.iter().flat_map(|path| taken_from(path)).collect();
        let path = match files.as_slice() {
            [only] => only.clone(),
            [first, more @ ..] if !more.is_empty() => {
                format!("{} and {} more", first.display(), more.len()).into()
            }
            _ => input.first().cloned().unwrap_or_default(),
        };
        Self { files, path, taken, options, when: When::Always, told: false, may_be_empty: false }
    }

    /// The recording at `path`, which was just written: its flaws were told already.
    pub fn just_written(path: &Path) -> Self {
        Self::of_these(vec![path.to_owned()])
    }

    /// The recording that these files are, which were just written.
    pub fn of_these(files: Vec<PathBuf>) -> Self {
        let path = files.first().cloned().unwrap_or_default();
        let options = ReadOptions { format: Some(Format::Rec), ..ReadOptions::default() };
        Self { files, path, taken: Vec::new(), options, when: When::Always, told: true, may_be_empty: false }
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

    /// Leaves out the snapshots outside of `time`, from the recording's start; of a moment all but one.
    pub fn within(mut self, time: Option<Selection>) -> Self {
        self.when = time.map_or(When::Always, When::selected);
        self
    }

    /// Leaves out the snapshots that begin at `moment` or later, but for the first, and what was learned then; there must be one
    /// next to it.
    pub fn until(mut self, moment: Option<Duration>) -> Self {
        self.when = moment.map_or(When::Always, When::Until);
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

    /// What to call it.
    pub fn name(&self) -> &Path {
        &self.path
    }

    /// Opens it, to read it item by item.
    ///
    /// # Errors
    /// When it cannot be read, with what to do.
    pub fn open(&self) -> anyhow::Result<Box<dyn ItemReader>> {
        let RecordedAttrs { sample_us, aggr_us, .. } = self.options.intervals;
        if aggr_us > 0 && sample_us > aggr_us {
            let shown = |us: u64| format_time(us.saturating_mul(1000));
            misuse!(
                "--aggr {} is shorter than --sample {}; an aggregation takes at least one sampling interval",
                shown(aggr_us),
                shown(sample_us)
            );
        }
        open_joined(&self.files, &self.options).map_err(|error| self.explain(error))
    }

    /// Whether it can be read only once.
    pub fn is_stream(&self) -> bool {
        self.files.iter().any(|path| path.as_os_str() == "-" || path.metadata().is_ok_and(|m| !m.is_file()))
    }

    /// Reads from its start to its end. The first time, what is wrong with it is told on standard error.
    ///
    /// # Errors
    /// When it cannot be read at all, or nothing was recorded in the time asked for, with what to do; those of `sink`.
    pub fn read(&mut self, sink: &mut dyn FnMut(&Item) -> io::Result<()>) -> anyhow::Result<Ended> {
        if !self.told {
            self.taken.drain(..).for_each(|taken| say!("isotherm: {taken}"));
        }
        let mut reader = self.open()?;
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
        let flaws: Vec<String> = warnings.iter().filter(|w| is_flaw(w)).map(Warning::to_string).collect();
        let left_out = |w: &&Warning| matches!(w, Warning::Skipped { .. });
        let nothing = match warnings.iter().find(left_out) {
            // The file does have some.
            Some(warning) if window.snapshots == 0 => {
                Some(format!("it holds no snapshot that can be used ({warning})"))
            }
            _ => window.nothing(flaws.is_empty()),
        };
        if let Some(why) = nothing.filter(|_| !self.may_be_empty) {
            bail!("{}: {why}", self.path.display());
        }
        let others = warnings.iter().filter(|w| !is_flaw(w)).map(Warning::to_string);
        Ok(Ended {
            reading: Reading {
                truncated: (!flaws.is_empty()).then(|| flaws.join("; ")),
                remarks: others.collect(),
            },
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
        let mut reader = self.open()?;
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
    let Ok(entries) = std::fs::read_dir(path) else { return vec![path.to_owned()] };
    let mut files: Vec<PathBuf> =
        entries.flatten().map(|entry| entry.path()).filter(|path| is_own(path)).collect();
    if files.is_empty() {
        return vec![path.to_owned()];
    }
    files.sort();
    files
}

/// Which recordings stand for a directory, and what in it only has the name of one; nothing for a file, and where there is none.
fn taken_from(path: &Path) -> Vec<String> {
    /// So many are named.
    const FEW: usize = 5;
    let files = files_of(path);
    let name = |file: &Path| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut said = match files.as_slice() {
        [first] if first == path => return Vec::new(),
        [only] => vec![format!("{}: {} is read", path.display(), name(only))],
        [first, .., last] => {
            let (first, last) = (name(first), name(last));
            vec![format!(
                "{}: {} files, {first} to {last}, are read as one recording",
                path.display(),
                files.len()
            )]
        }
        [] => return Vec::new(),
    };
    // The file of a series whose beginning is damaged, or that was emptied, would else be missed by nobody.
    let others = std::fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut others: Vec<PathBuf> = others
        .filter(|other| other.extension().is_some_and(|ending| ending == "rec"))
        .filter(|other| other.is_file() && !files.contains(other))
        .collect();
    others.sort();
    for other in others.iter().take(FEW) {
        let what = match other.metadata() {
            Ok(metadata) if metadata.len() == 0 => "is empty",
            _ => "does not begin as a recording of isotherm's does, or cannot be read,",
        };
        said.push(format!("{}: {} {what} and is left out", path.display(), name(other)));
    }
    if let Some(more) = others.len().checked_sub(FEW).filter(|more| *more > 0) {
        said.push(format!("{}: {more} more are left out like that", path.display()));
    }
    said
}

/// Refuses a file that only has the name of a recording.
///
/// # Errors
/// When neither a header nor a snapshot was found in it.
pub fn check_content(path: &Path, snapshots: u64, warnings: &[Warning]) -> anyhow::Result<()> {
    if snapshots == 0 && warnings.contains(&Warning::HeaderLost) {
        return Err(NoRecording(path.to_owned()).into());
    }
    Ok(())
}

/// A file that only has the name of a recording.
#[derive(Debug)]
pub struct NoRecording(PathBuf);

impl std::fmt::Display for NoRecording {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} is not a recording, or nothing of it is left; check the path, or name the format with --from",
            self.0.display()
        )
    }
}

impl std::error::Error for NoRecording {}

/// Whether part of a recording that was read is lost.
static LOST: AtomicBool = AtomicBool::new(false);

/// Whether part of any recording that was read so far is lost, beyond what a file that was cut lacks at its end. What is made of
/// the rest is made, and the status is that of a failure.
pub fn is_lost() -> bool {
    LOST.load(Ordering::Relaxed)
}

/// Whether something is lost that was recorded. A file that was cut, or whose recorder still runs, is whole up to its end.
fn is_loss(warning: &Warning) -> bool {
    matches!(
        warning,
        Warning::Damaged { .. } | Warning::Missing { .. } | Warning::Stopped { .. } | Warning::HeaderLost
    )
}

/// Says what is wrong with a file, and what was chosen from it.
pub fn tell(path: &Path, warnings: &[Warning]) {
    if warnings.iter().any(is_loss) {
        LOST.store(true, Ordering::Relaxed);
    }
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
pub fn is_flaw(warning: &Warning) -> bool {
    !matches!(warning, Warning::Assumed { .. } | Warning::Skipped { .. } | Warning::Records { .. })
}

fn list(known: &[(u64, u32, String)], seen: &BTreeSet<u64>) -> String {
    const MOST: usize = 20;
    let mut names: Vec<String> =
        known.iter().map(|(_, pid, comm)| format!("{} (pid {pid})", printable(comm))).collect();
    // One that ran another program, or came back, is told once a name.
    let mut told = BTreeSet::new();
    names.retain(|name| told.insert(name.clone()));
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
