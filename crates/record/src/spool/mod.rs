//! Turns a foreign file inside out: from the order it is written in to the order of time.
//!
//! damo's own writers put one target after another, each from beginning to end; where several targets were monitored,
//! time jumps back between them. The start of a target's first snapshot, in formats that hold only ends, follows from
//! the mean distance of all its snapshots. And a file may hold several *records* of the same memory, one a scheme, of
//! which mostly one is wanted. All of that is known only at the end of the file, so what a parser finds goes into
//! an unnamed temporary file in our own format (a hundredth of the JSON's size) and comes out merged by time (module
//! `merge`). Memory does not depend on the length of the file, but for the list of its targets. Parsers, in turn, simply
//! push what they find.
//!
//! In the temporary file a target's id is the number of its *stream*: one target of one record.

mod merge;
mod reader;
mod record;

pub(crate) use reader::SpoolReader;
pub(crate) use record::Record;
pub use record::RecordChoice;

use crate::rec::{self, MAX_REGIONS};
use crate::{Error, Format, ItemWriter, ReadOptions, RecordedAttrs, Warning};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use std::collections::HashMap;
use std::fs::File;
use std::sync::Arc;

/// Most streams of a file: some 100 bytes are kept of each.
const MAX_STREAMS: usize = MAX_REGIONS;

/// Most records of a file.
const MAX_RECORDS: usize = 1024;

/// Regions and targets held back to be sorted by time before they are written.
const HELD: usize = 64 << 10;

/// A stretch of the temporary file with snapshots in order of time.
#[derive(Debug)]
struct Run {
    from: u64,
    to: u64,
    /// Regions and targets of its largest snapshot.
    weight: usize,
}

/// A target of a record.
#[derive(Clone, Copy, Debug)]
struct Stream {
    /// Index into the spool's records, and intervals.
    record: u32,
    intervals: u32,
    target: u64,
    /// Highest `nr_accesses` in it.
    highest: u32,
    /// Some of its snapshots do not say the sampling interval.
    no_interval: bool,
    snapshots: u64,
    /// Where snapshots say from when to when they were taken.
    lengths: Lengths,
    /// Where the file holds only ends: the first, the last, and how many there were.
    ends: Option<Ends>,
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

/// The lengths of snapshots that say from when to when they were taken, ns.
#[derive(Clone, Copy, Debug, Default)]
struct Lengths {
    shortest_ns: u64,
    sum_ns: u128,
    count: u64,
}

impl Lengths {
    fn add(&mut self, ns: u64) {
        self.shortest_ns = if self.count == 0 { ns } else { self.shortest_ns.min(ns) };
        self.sum_ns += u128::from(ns);
        self.count += 1;
    }

    /// The mean, if there is any.
    fn mean(self) -> Option<u64> {
        let mean = self.sum_ns.checked_div(u128::from(self.count))?;
        u64::try_from(mean).ok().filter(|&ns| ns > 0)
    }
}

/// Takes the snapshots a parser finds.
pub(crate) struct Spool {
    file: Arc<File>,
    /// Name of the input, and its format, for messages.
    input: String,
    format: Format,
    options: ReadOptions,
    writer: rec::Writer<Arc<File>>,
    written: u64,
    runs: Vec<Run>,
    /// End of the last snapshot of the run that is being written, and its largest snapshot.
    last_ns: u64,
    weight: usize,
    /// Snapshots not written yet, and what they weigh.
    held: Vec<Snapshot>,
    held_weight: usize,
    records: Vec<Record>,
    record_index: HashMap<Record, u32>,
    intervals: Vec<RecordedAttrs>,
    streams: Vec<Stream>,
    stream_index: HashMap<(u32, u64), u32>,
    pub(crate) warnings: Vec<Warning>,
    skipped: Vec<(&'static str, u64)>,
}

impl Spool {
    pub(crate) fn new(input: String, format: Format, options: &ReadOptions) -> Result<Self, Error> {
        let name = temporary(&input);
        let file = tempfile::tempfile().map_err(|e| Error::io("create", &name, e))?;
        let file = Arc::new(file);
        Ok(Self {
            writer: rec::Writer::new(Arc::clone(&file), name)?,
            file,
            input,
            format,
            options: *options,
            written: 0,
            runs: Vec::new(),
            last_ns: 0,
            weight: 0,
            held: Vec::new(),
            held_weight: 0,
            records: Vec::new(),
            record_index: HashMap::new(),
            intervals: vec![options.intervals],
            streams: Vec::new(),
            stream_index: HashMap::new(),
            warnings: Vec::new(),
            skipped: Vec::new(),
        })
    }

    /// A new stream, of which record and target become known later. `None` when there are too many.
    pub(crate) fn new_stream(&mut self) -> Option<TargetId> {
        if self.streams.len() >= MAX_STREAMS {
            return None;
        }
        self.streams.push(Stream {
            record: 0,
            intervals: 0,
            target: 0,
            highest: 0,
            no_interval: false,
            snapshots: 0,
            lengths: Lengths::default(),
            ends: None,
        });
        Some(TargetId(self.streams.len() as u64 - 1))
    }

    /// What a stream is. `None` when the file has too many records.
    pub(crate) fn identify(
        &mut self,
        stream: TargetId,
        target: u64,
        record: Record,
        intervals: RecordedAttrs,
    ) -> Option<()> {
        let record = match self.record_index.get(&record) {
            Some(&known) => known,
            None if self.records.len() >= MAX_RECORDS => return None,
            None => {
                let index = u32::try_from(self.records.len()).ok()?;
                self.records.push(record.clone());
                self.record_index.insert(record, index);
                index
            }
        };
        if self.intervals.last() != Some(&intervals) {
            self.intervals.push(intervals);
        }
        let intervals = u32::try_from(self.intervals.len() - 1).ok()?;
        let stream = self.streams.get_mut(usize::try_from(stream.0).ok()?)?;
        *stream = Stream { record, intervals, target, ..*stream };
        Some(())
    }

    /// The stream of a target in a record, where both are known beforehand. `None` when there are too many.
    pub(crate) fn stream(&mut self, record: &Record, target: u64) -> Option<TargetId> {
        if let Some(&record) = self.record_index.get(record)
            && let Some(&known) = self.stream_index.get(&(record, target))
        {
            return Some(TargetId(u64::from(known)));
        }
        let id = self.new_stream()?;
        self.identify(id, target, record.clone(), self.options.intervals)?;
        let stream = self.streams.last()?;
        self.stream_index.insert((stream.record, target), u32::try_from(id.0).ok()?);
        Some(id)
    }

    /// Intervals as the file has them, completed by what the user says.
    pub(crate) fn completed(&self, intervals: RecordedAttrs) -> RecordedAttrs {
        let told = self.options.intervals;
        let or = |own: u64, told: u64| if own == 0 { told } else { own };
        RecordedAttrs {
            sample_us: or(intervals.sample_us, told.sample_us),
            aggr_us: or(intervals.aggr_us, told.aggr_us),
            ..intervals
        }
    }

    /// Takes a snapshot; its targets' ids are streams.
    pub(crate) fn push(&mut self, mut snapshot: Snapshot) -> Result<(), Error> {
        let before = snapshot.nr_regions();
        snapshot.targets.iter_mut().for_each(|target| target.regions.retain(|r| !r.range.is_empty()));
        self.skip_many((before - snapshot.nr_regions()) as u64, "regions that do not end past their start");
        for target in &snapshot.targets {
            let stream = usize::try_from(target.id.0).ok().and_then(|at| self.streams.get_mut(at));
            let Some(stream) = stream else { continue };
            let highest = target.regions.iter().map(|r| r.nr_accesses).max().unwrap_or(0);
            stream.highest = stream.highest.max(highest);
            stream.no_interval |= snapshot.sample_ns == 0;
            stream.snapshots += 1;
            if stream.ends.is_none() && snapshot.start_ns < snapshot.end_ns {
                stream.lengths.add(snapshot.end_ns - snapshot.start_ns);
            }
        }
        self.held_weight += weight(&snapshot);
        self.held.push(snapshot);
        if self.held_weight >= HELD { self.spill() } else { Ok(()) }
    }

    /// Takes a snapshot whose start is not known: it starts where its targets' previous one ended.
    pub(crate) fn push_ended(
        &mut self,
        end_ns: u64,
        sample_ns: u64,
        targets: Vec<TargetSnapshot>,
    ) -> Result<(), Error> {
        let mut start_ns = end_ns;
        for target in &targets {
            if let Some(last_ns) = self.note_end(target.id, end_ns) {
                start_ns = start_ns.min(last_ns);
            }
        }
        self.push(Snapshot { start_ns, end_ns, sample_ns, max_nr_accesses: 0, targets })
    }

    /// Takes note that a stream's snapshot ended then, and returns the end of the one before.
    pub(crate) fn note_end(&mut self, stream: TargetId, end_ns: u64) -> Option<u64> {
        let stream = self.streams.get_mut(usize::try_from(stream.0).ok()?)?;
        let before = stream.ends.map(|ends| ends.last_ns);
        let ends = stream.ends.get_or_insert(Ends { first_ns: end_ns, last_ns: end_ns, count: 0 });
        ends.last_ns = end_ns;
        ends.count += 1;
        before
    }

    /// Counts things that were left out; `what` is plural.
    pub(crate) fn skip_many(&mut self, count: u64, what: &'static str) {
        if count == 0 {
            return;
        }
        match self.skipped.iter_mut().find(|s| s.0 == what) {
            Some((_, total)) => *total += count,
            None => self.skipped.push((what, count)),
        }
    }

    /// Counts something that was left out; `what` is plural.
    pub(crate) fn skip(&mut self, what: &'static str) {
        self.skip_many(1, what);
    }

    /// Writes what is held, in order of time: behind the run at hand where that order allows it, else as a new one.
    fn spill(&mut self) -> Result<(), Error> {
        let mut held = std::mem::take(&mut self.held);
        held.sort_by_key(|s| (s.end_ns, s.start_ns));
        if held.first().is_some_and(|s| s.end_ns < self.last_ns) {
            self.end_run()?;
        }
        for snapshot in held.drain(..) {
            self.last_ns = snapshot.end_ns;
            self.weight = self.weight.max(weight(&snapshot));
            self.writer.write_snapshot(&snapshot)?;
        }
        self.held = held;
        self.held_weight = 0;
        Ok(())
    }

    fn end_run(&mut self) -> Result<(), Error> {
        self.last_ns = 0;
        let weight = std::mem::take(&mut self.weight);
        if self.writer.is_empty() {
            return Ok(());
        }
        self.writer.finish()?;
        let from = self.written;
        self.written += self.writer.bytes_written();
        self.runs.push(Run { from, to: self.written, weight });
        self.writer = rec::Writer::new(Arc::clone(&self.file), temporary(&self.input))?;
        Ok(())
    }

    /// Hands out what was taken, in order of time.
    ///
    /// # Errors
    /// [`Error::Malformed`] when nothing was taken and reading `stopped`; [`Error::Io`] from the temporary file.
    pub(crate) fn into_reader(mut self, stopped: Option<Warning>) -> Result<SpoolReader, Error> {
        self.spill()?;
        self.end_run()?;
        self.held = Vec::new();
        if self.runs.is_empty()
            && let Some(stopped) = stopped
        {
            let why = match stopped {
                Warning::Stopped { why, .. } => why,
                Warning::Truncated { offset, .. } => {
                    format!("it is cut off at byte {offset}, before the end of its first snapshot")
                }
                other => other.to_string(),
            };
            return Err(Error::Malformed { file: self.input, format: self.format, why });
        }
        self.warnings.extend(self.skipped.drain(..).map(|(what, count)| Warning::Skipped { count, what }));
        self.warnings.extend(stopped);
        SpoolReader::new(self)
    }
}

/// What a snapshot takes in memory, in regions.
fn weight(snapshot: &Snapshot) -> usize {
    1 + snapshot.targets.len() + snapshot.nr_regions()
}

fn temporary(input: &str) -> String {
    format!("a temporary file in {} (for {input})", std::env::temp_dir().display())
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
