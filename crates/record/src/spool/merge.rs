//! Merges runs by time, in memory that depends neither on how many there are nor on what they hold.

use super::{Run, temporary, weight};
use crate::rec::{self, MAX_REGIONS};
use crate::{Error, Item, ItemReader, ItemWriter};
use isotherm_damon::Snapshot;
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// Most runs read at a time. Each takes some 300 KB, and its largest snapshot thrice.
const MAX_OPEN: usize = 64;

/// Most regions that their largest snapshots may have together.
const MAX_WEIGHT: usize = MAX_REGIONS / 2;

/// How many of the first runs may be read at a time: two at least, or they would never become one.
fn together(runs: &VecDeque<Run>) -> usize {
    let mut total = 0_usize;
    let fit = runs.iter().take(MAX_OPEN).take_while(|run| {
        total = total.saturating_add(run.weight);
        total <= MAX_WEIGHT
    });
    fit.count().max(2).min(runs.len())
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
    head: Snapshot,
}

impl OpenRun {
    fn open(file: &Arc<File>, run: &Run, name: &str) -> Result<Self, Error> {
        let section = Section { file: Arc::clone(file), at: run.from, end: run.to };
        Ok(Self { reader: rec::Reader::new(section, name)?, head: Snapshot::default() })
    }

    /// Loads the run's next snapshot. False at its end.
    fn advance(&mut self) -> Result<bool, Error> {
        loop {
            match self.reader.next_ref()? {
                Some(Item::Snapshot(_)) => {
                    self.reader.swap_snapshot(&mut self.head);
                    return Ok(true);
                }
                Some(_) => {}
                None => return Ok(false),
            }
        }
    }
}

/// Snapshots of several runs in order of time.
pub(super) struct Merge {
    open: Vec<OpenRun>,
}

impl Merge {
    /// Of runs that lie in `file`, whatever their number; what does not fit is merged beforehand, and written behind
    /// `end`.
    pub(super) fn new(file: &Arc<File>, input: &str, runs: Vec<Run>, mut end: u64) -> Result<Self, Error> {
        let mut runs = VecDeque::from(runs);
        while together(&runs) < runs.len() {
            let mut merged = VecDeque::new();
            while !runs.is_empty() {
                let batch: Vec<Run> = runs.drain(..together(&runs)).collect();
                match <[Run; 1]>::try_from(batch) {
                    Ok([alone]) => merged.push_back(alone),
                    Err(batch) => {
                        let run = merge_into_one(file, input, &batch, end)?;
                        end = run.to;
                        merged.push_back(run);
                    }
                }
            }
            runs = merged;
        }
        Self::of(file, input, runs.make_contiguous())
    }

    fn of(file: &Arc<File>, input: &str, runs: &[Run]) -> Result<Self, Error> {
        let name = temporary(input);
        let mut open = Vec::with_capacity(runs.len());
        for run in runs {
            let mut run = OpenRun::open(file, run, &name)?;
            if run.advance()? {
                open.push(run);
            }
        }
        Ok(Self { open })
    }

    /// Moves the earliest snapshot into `into`, whose memory is used again. False when there is none left.
    pub(super) fn next(&mut self, into: &mut Snapshot) -> Result<bool, Error> {
        let Some(at) = self.earliest() else { return Ok(false) };
        let run = &mut self.open[at];
        std::mem::swap(&mut run.head, into);
        if !run.advance()? {
            // The order of the others decides among snapshots of the same time.
            self.open.remove(at);
        }
        Ok(true)
    }

    fn earliest(&self) -> Option<usize> {
        let heads = self.open.iter().enumerate();
        heads.min_by_key(|(_, run)| (run.head.end_ns, run.head.start_ns)).map(|(at, _)| at)
    }
}

fn merge_into_one(file: &Arc<File>, input: &str, runs: &[Run], end: u64) -> Result<Run, Error> {
    let mut merge = Merge::of(file, input, runs)?;
    let mut writer = rec::Writer::new(Behind { file: Arc::clone(file), at: end }, temporary(input))?;
    let mut snapshot = Snapshot::default();
    let mut largest = 0;
    while merge.next(&mut snapshot)? {
        largest = largest.max(weight(&snapshot));
        writer.write_snapshot(&snapshot)?;
    }
    writer.finish()?;
    Ok(Run { from: end, to: end + writer.bytes_written(), weight: largest })
}

/// Writes to a place of its own in a file that is read meanwhile.
struct Behind {
    file: Arc<File>,
    at: u64,
}

impl io::Write for Behind {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write_at(bytes, self.at)?;
        self.at += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
