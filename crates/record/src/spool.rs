//! Turns a foreign file inside out: from the order it is written in to the order of time.
//!
//! damo's own writers put one target after another, each from beginning to end; where several targets were monitored,
//! time jumps back between them. The start of a target's first snapshot, in formats that hold only ends, follows from
//! the mean distance of all its snapshots. Both are known only at the end of the file, so what a parser finds goes into
//! an unnamed temporary file in our own format (a hundredth of the JSON's size) and comes out merged by time. Memory
//! does not depend on the length of the file. Parsers, in turn, simply push what they find.

use crate::rec::{self, MAX_REGIONS};
use crate::{
    Backend, End, Error, Format, Header, Item, ItemReader, ItemWriter, RecordedAttrs, TargetInfo, Warning,
};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use std::collections::{HashMap, HashSet, VecDeque};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most runs merged at a time; beyond, the order of time is not restored. Each takes some 300 KB.
const MAX_OPEN: usize = 128;

/// What a file says of a whole run of snapshots, perhaps only behind them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunInfo {
    /// Whose snapshots these are, where the snapshots do not say.
    pub(crate) target: Option<u64>,
    /// Intervals, for snapshots without; zero where unknown.
    pub(crate) intervals: RecordedAttrs,
}

/// A run of snapshots in order of time: a stretch of the temporary file, with the section of the input it came from.
struct Run {
    from: u64,
    to: u64,
    section: usize,
}

/// Takes the snapshots a parser finds.
pub(crate) struct Spool {
    file: Arc<File>,
    /// Name of the input, and its format, for messages.
    input: String,
    format: Format,
    writer: rec::Writer<Arc<File>>,
    written: u64,
    runs: Vec<Run>,
    /// Of the sections before the one at hand.
    sections: Vec<RunInfo>,
    /// The facts of the section at hand; they may become known behind its snapshots.
    pub(crate) section: RunInfo,
    last_ns: u64,
    started: HashMap<u64, Ends>,
    /// Targets in the order they were met.
    targets: Vec<u64>,
    pub(crate) warnings: Vec<Warning>,
    skipped: Vec<(&'static str, u64)>,
    snapshot: Snapshot,
}

/// The ends of a target's snapshots.
#[derive(Clone, Copy, Debug)]
struct Ends {
    first_ns: u64,
    last_ns: u64,
    count: u64,
}

impl Ends {
    /// The mean distance between two, if there are two.
    fn mean(self) -> Option<u64> {
        self.last_ns.saturating_sub(self.first_ns).checked_div(self.count - 1).filter(|&gap| gap > 0)
    }
}

impl Spool {
    pub(crate) fn new(input: String, format: Format, info: RunInfo) -> Result<Self, Error> {
        let name = temporary(&input);
        let file = tempfile::tempfile().map_err(|e| Error::io("create", &name, e))?;
        let file = Arc::new(file);
        Ok(Self {
            writer: rec::Writer::new(Arc::clone(&file), name)?,
            file,
            input,
            format,
            written: 0,
            runs: Vec::new(),
            sections: Vec::new(),
            section: info,
            last_ns: 0,
            started: HashMap::new(),
            targets: Vec::new(),
            warnings: Vec::new(),
            skipped: Vec::new(),
            snapshot: Snapshot::default(),
        })
    }

    /// Ends the section at hand; the next one has facts of its own.
    pub(crate) fn end_section(&mut self) -> Result<(), Error> {
        self.end_run()?;
        self.sections.push(std::mem::take(&mut self.section));
        Ok(())
    }

    /// Takes a snapshot.
    pub(crate) fn push(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        if snapshot.end_ns < self.last_ns {
            self.end_run()?;
        }
        self.last_ns = snapshot.end_ns;
        self.writer.write_snapshot(snapshot)
    }

    /// Takes a snapshot of one target whose start is not known: it starts where the target's previous one ended.
    pub(crate) fn push_ended(
        &mut self,
        end_ns: u64,
        sample_ns: u64,
        targets: &[TargetSnapshot],
    ) -> Result<(), Error> {
        let mut snapshot = std::mem::take(&mut self.snapshot);
        let mut start_ns = end_ns;
        for target in targets {
            if let Some(ends) = self.started.get(&target.id.0) {
                start_ns = start_ns.min(ends.last_ns);
            }
            self.note_end(target.id.0, end_ns);
        }
        snapshot.start_ns = start_ns;
        snapshot.end_ns = end_ns;
        snapshot.sample_ns = sample_ns;
        snapshot.targets.clear();
        snapshot.targets.extend_from_slice(targets);
        let pushed = self.push(&snapshot);
        self.snapshot = snapshot;
        pushed
    }

    /// Takes note that a target's snapshot ended then.
    pub(crate) fn note_end(&mut self, target: u64, end_ns: u64) {
        let ends = self.started.entry(target).or_insert(Ends { first_ns: end_ns, last_ns: end_ns, count: 0 });
        ends.last_ns = end_ns;
        ends.count += 1;
    }

    /// Takes note of a target.
    pub(crate) fn note_target(&mut self, target: u64) {
        // Files name the same target over and over.
        if self.targets.last() != Some(&target) {
            self.targets.push(target);
        }
        if self.targets.len() > 4096 {
            self.unique_targets();
        }
    }

    fn unique_targets(&mut self) {
        let mut seen = HashSet::new();
        self.targets.retain(|&t| seen.insert(t));
    }

    /// Counts something that was left out; `what` is plural.
    pub(crate) fn skip(&mut self, what: &'static str) {
        match self.skipped.iter_mut().find(|s| s.0 == what) {
            Some((_, count)) => *count += 1,
            None => self.skipped.push((what, 1)),
        }
    }

    fn end_run(&mut self) -> Result<(), Error> {
        self.last_ns = 0;
        if self.writer.is_empty() {
            return Ok(());
        }
        self.writer.finish()?;
        let from = self.written;
        self.written += self.writer.bytes_written();
        self.runs.push(Run { from, to: self.written, section: self.sections.len() });
        self.writer = rec::Writer::new(Arc::clone(&self.file), temporary(&self.input))?;
        Ok(())
    }

    /// Hands out what was taken, in order of time.
    ///
    /// # Errors
    /// [`Error::Malformed`] when nothing was taken and reading `stopped`; [`Error::Io`] from the temporary file.
    pub(crate) fn into_reader(mut self, stopped: Option<Warning>) -> Result<SpoolReader, Error> {
        self.end_section()?;
        if self.runs.is_empty()
            && let Some(stopped) = stopped
        {
            let why = match stopped {
                Warning::Stopped { why } => why,
                other => other.to_string(),
            };
            return Err(Error::Malformed { file: self.input, format: self.format, why });
        }
        self.unique_targets();
        self.warnings.extend(self.skipped.drain(..).map(|(what, count)| Warning::Skipped { count, what }));
        self.warnings.extend(stopped);

        let known = self.sections.iter().map(|s| s.intervals).find(|i| *i != RecordedAttrs::default());
        let mut attrs = known.unwrap_or_default();
        if attrs.aggr_us == 0 {
            let gaps = self.started.values().filter_map(|e| e.mean());
            attrs.aggr_us = gaps.min().unwrap_or(0) / 1000;
        }
        let mut backend = Backend { name: format!("imported from {}", self.format), ..Backend::default() };
        if attrs.sample_us == 0 {
            backend
                .blind_spots
                .push("the file does not say the sampling interval: no rates in Hz".to_owned());
        }
        let header = Header { attrs, backend, ..Header::default() };
        if self.runs.len() > MAX_OPEN {
            let what = format!(
                "the file goes back in time {} times; its snapshots are not quite in order of time",
                self.runs.len() - 1
            );
            self.warnings.push(Warning::Assumed { what });
        }

        let mut opening = VecDeque::from([Item::Header(header)]);
        opening.extend(self.targets.iter().map(|&id| {
            // Kernel addresses stand for targets in old traces; they are no pids.
            let pid = u32::try_from(id).ok().filter(|&p| i32::try_from(p).is_ok()).unwrap_or(0);
            Item::Target(TargetInfo { id, pid, ..TargetInfo::default() })
        }));
        let mut reader = SpoolReader {
            file: self.file,
            name: temporary(&self.input),
            format: self.format,
            waiting: self.runs.into(),
            open: Vec::new(),
            sections: self.sections,
            first_starts: first_starts(&self.started, attrs),
            opening,
            other: Item::Header(Header::default()),
            current: Item::Snapshot(Snapshot::default()),
            last_ns: 0,
            whole: !self
                .warnings
                .iter()
                .any(|w| matches!(w, Warning::Truncated { .. } | Warning::Stopped { .. })),
            warnings: self.warnings,
        };
        reader.open_runs()?;
        Ok(reader)
    }
}

/// Start of the first snapshot of each target whose starts the file does not say. Targets that were first seen at the
/// same moment started at the same moment too, also when the file ends before one of them was seen again.
fn first_starts(started: &HashMap<u64, Ends>, attrs: RecordedAttrs) -> HashMap<u64, u64> {
    let mut longest: HashMap<u64, Ends> = HashMap::new();
    for ends in started.values() {
        let known = longest.entry(ends.first_ns).or_insert(*ends);
        if (ends.count, ends.last_ns) > (known.count, known.last_ns) {
            *known = *ends;
        }
    }
    let start = |ends: &Ends| {
        let length = longest.get(&ends.first_ns).and_then(|e| e.mean());
        ends.first_ns.saturating_sub(length.unwrap_or(attrs.aggr_us.saturating_mul(1000)))
    };
    started.iter().map(|(&target, ends)| (target, start(ends))).collect()
}

fn temporary(input: &str) -> String {
    format!("a temporary file in {} (for {input})", std::env::temp_dir().display())
}

/// A stretch of a file that others read too.
struct Section {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for Section {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end - self.at).unwrap_or(usize::MAX);
        let len = buffer.len().min(left);
        let read = self.file.read_at(buffer.get_mut(..len).unwrap_or_default(), self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

struct OpenRun {
    reader: rec::Reader<Section>,
    section: usize,
    head: Snapshot,
}

/// Hands out what a [`Spool`] took.
pub(crate) struct SpoolReader {
    file: Arc<File>,
    name: String,
    format: Format,
    waiting: VecDeque<Run>,
    open: Vec<OpenRun>,
    sections: Vec<RunInfo>,
    first_starts: HashMap<u64, u64>,
    opening: VecDeque<Item>,
    other: Item,
    current: Item,
    last_ns: u64,
    /// The input was read to its end, and that was not handed out yet.
    whole: bool,
    warnings: Vec<Warning>,
}

impl SpoolReader {
    fn open_runs(&mut self) -> Result<(), Error> {
        while self.open.len() < MAX_OPEN {
            let Some(run) = self.waiting.pop_front() else { break };
            let section = Section { file: Arc::clone(&self.file), at: run.from, end: run.to };
            let reader = rec::Reader::new(section, self.name.as_str())?;
            let mut open = OpenRun { reader, section: run.section, head: Snapshot::default() };
            if self.advance(&mut open)? {
                self.open.push(open);
            }
        }
        Ok(())
    }

    /// Loads the run's next snapshot, completed by what its section says. False at its end.
    fn advance(&mut self, run: &mut OpenRun) -> Result<bool, Error> {
        loop {
            match run.reader.next_ref()? {
                Some(Item::Snapshot(snapshot)) => {
                    run.head.clone_from(snapshot);
                    break;
                }
                Some(_) => {}
                None => return Ok(false),
            }
        }
        let info = self.sections.get(run.section).copied().unwrap_or_default();
        let head = &mut run.head;
        for target in &mut head.targets {
            if let Some(id) = info.target {
                target.id = TargetId(id);
            }
            if let Some(start) = self.first_starts.remove(&target.id.0) {
                head.start_ns = head.start_ns.min(start);
            }
        }
        let intervals = info.intervals;
        if head.sample_ns == 0 {
            head.sample_ns = intervals.sample_us.saturating_mul(1000);
        }
        if head.max_nr_accesses == 0 && head.sample_ns > 0 {
            let length = match intervals.aggr_us {
                0 => head.end_ns.saturating_sub(head.start_ns),
                us => us.saturating_mul(1000),
            };
            // The intervals of a file are not always those of each snapshot; counts beyond the maximum make no sense.
            let seen = head.targets.iter().flat_map(|t| &t.regions).map(|r| r.nr_accesses).max();
            let max = u32::try_from(length / head.sample_ns).unwrap_or(u32::MAX);
            head.max_nr_accesses = max.max(1).max(seen.unwrap_or(0));
        }
        Ok(true)
    }

    /// Moves the earliest snapshot into `current`, joined with those of other targets of the same time.
    fn merge_next(&mut self) -> Result<bool, Error> {
        let earliest = |runs: &[OpenRun]| {
            runs.iter().enumerate().min_by_key(|(_, r)| (r.head.end_ns, r.head.start_ns)).map(|(i, _)| i)
        };
        let mut merged: Option<Snapshot> = None;
        let mut joined = false;
        while let Some(at) = earliest(&self.open) {
            let head = &mut self.open[at].head;
            match &mut merged {
                None => merged = Some(std::mem::take(head)),
                Some(whole) if joins(whole, head) => {
                    whole.targets.append(&mut head.targets);
                    joined = true;
                }
                Some(_) => break,
            }
            let mut run = self.open.swap_remove(at);
            if self.advance(&mut run)? {
                self.open.push(run);
            } else {
                self.open_runs()?;
            }
        }
        let Some(mut snapshot) = merged else { return Ok(false) };
        if joined {
            snapshot.targets.sort_by_key(|t| t.id);
        }
        self.last_ns = self.last_ns.max(snapshot.end_ns);
        self.current = Item::Snapshot(snapshot);
        Ok(true)
    }
}

/// Whether two snapshots are the same moment of different targets.
fn joins(whole: &Snapshot, part: &Snapshot) -> bool {
    (whole.start_ns, whole.end_ns, whole.sample_ns, whole.max_nr_accesses)
        == (part.start_ns, part.end_ns, part.sample_ns, part.max_nr_accesses)
        && whole.nr_regions() + part.nr_regions() <= MAX_REGIONS
        && !part.targets.iter().any(|p| whole.targets.iter().any(|w| w.id == p.id))
}

impl ItemReader for SpoolReader {
    fn next_ref(&mut self) -> Result<Option<&Item>, Error> {
        if let Some(item) = self.opening.pop_front() {
            self.other = item;
            return Ok(Some(&self.other));
        }
        if self.merge_next()? {
            return Ok(Some(&self.current));
        }
        if !std::mem::take(&mut self.whole) {
            return Ok(None);
        }
        let reason = "end of the imported file".to_owned();
        self.other = Item::End(End { time_ns: self.last_ns, reason, blind_spots: Vec::new() });
        Ok(Some(&self.other))
    }

    fn format(&self) -> Format {
        self.format
    }

    fn warnings(&self) -> &[Warning] {
        &self.warnings
    }
}

/// A region of a format without fractions of an access.
pub(crate) fn counted(start: u64, end: u64, nr_accesses: u32, age: u32) -> RegionSnapshot {
    RegionSnapshot {
        range: isotherm_damon::AddrRange::new(start, end),
        nr_accesses,
        nr_accesses_bp: nr_accesses.saturating_mul(10_000),
        age,
        ..RegionSnapshot::default()
    }
}
