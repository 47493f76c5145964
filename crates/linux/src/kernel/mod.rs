//! The `kernel` backend: DAMON in the kernel, for virtual address spaces, in a kdamond of its own.
//!
//! The kernel samples; this side sets it up through sysfs ([`kdamond`]) and reads what it traces at the end of each
//! aggregation ([`trace`]). Where a kdamond exists already this backend stands back, as making one would destroy it.

mod files;
mod kdamond;
mod trace;

pub use kdamond::KernelPaths;

use crate::proc_file;
use crate::process::{Process, raw};
use crate::source::{Counters, Source, SourceError};
use files::{Files, KernelFiles};
use isotherm_damon::{AddrRange, Attrs, Snapshot, TargetId, TargetSnapshot};
use kdamond::Kdamond;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;
use trace::{Aggregation, Assembler};

/// The `kernel` backend at work.
pub struct Kernel {
    inner: Driver<KernelFiles>,
}

struct Driver<F: Files> {
    // The stream is dropped before the kdamond: an instance with an open pipe cannot be removed.
    stream: Option<Tail>,
    kdamond: Kdamond<F>,
    attrs: Attrs,
    /// In the order of the kernel's targets, whose places are the ids in its trace.
    slots: Vec<Slot>,
    /// How many of the slots the kernel knows.
    committed: usize,
    assembler: Assembler,
    last_end_ns: Option<u64>,
    restarts: u64,
    counters: Counters,
    chunk: Vec<u8>,
    began_ns: Option<u64>,
    now_ns: u64,
    last_news_ns: u64,
}

struct Slot {
    id: TargetId,
    process: Arc<Process>,
    removed: bool,
}

const CHUNK: usize = 64 << 10;
/// Most read in a tick; the kernel's buffer holds little more.
const MOST_READS: usize = 4096;

/// Whether DAMON in the kernel can be used here, as far as can be told without setting it up.
///
/// # Errors
/// The reason and the remedy.
pub fn look_at_kernel(paths: &KernelPaths) -> Result<(), SourceError> {
    kdamond::look(&KernelFiles, paths)
}

impl Kernel {
    /// Sets up a kdamond; it runs from the first target on. Everything is undone when this is dropped, and what a
    /// killed monitor left is removed first.
    ///
    /// # Errors
    /// When the kernel lacks something, its files may not be used, or there is a kdamond of somebody else's.
    pub fn start(attrs: Attrs, paths: KernelPaths) -> Result<Self, SourceError> {
        Ok(Self { inner: Driver::start(KernelFiles, attrs, paths)? })
    }
}

impl<F: Files> Driver<F> {
    fn start(files: F, attrs: Attrs, paths: KernelPaths) -> Result<Self, SourceError> {
        attrs.validate().map_err(|error| SourceError::Unavailable {
            what: "kernel".to_owned(),
            reason: error.to_string(),
            remedy: "choose other intervals or numbers of regions".to_owned(),
        })?;
        Ok(Self {
            stream: None,
            kdamond: Kdamond::make(files, paths, &attrs)?,
            assembler: Assembler::new(as_ns(attrs.aggr) / 2),
            attrs,
            slots: Vec::new(),
            committed: 0,
            last_end_ns: None,
            restarts: 0,
            counters: Counters::default(),
            chunk: vec![0; CHUNK],
            began_ns: None,
            now_ns: 0,
            last_news_ns: 0,
        })
    }

    fn add(&mut self, id: TargetId, process: Arc<Process>) {
        self.slots.push(Slot { id, process, removed: false });
    }

    /// Makes the kernel's targets those of the slots.
    fn settle(&mut self) -> Result<(), SourceError> {
        if self.committed == self.slots.len() {
            return Ok(());
        }
        let gone = |slot: &Slot| slot.removed || !slot.process.is_alive();
        // Committed targets keep their regions by their place. Without the dead, which the kernel would not take,
        // places shift, and a process would be given another's regions: then all begin anew.
        let append = self.committed > 0 && !self.slots.iter().any(gone) && self.kdamond.is_running();
        let appended = append && {
            let pids = self.pids();
            self.kdamond.commit(&pids).is_ok()
        };
        if !appended {
            self.restarts += u64::from(self.committed > 0);
            self.kdamond.stop();
            // Events of the old places must not be taken for the new.
            self.drain();
            loop {
                self.slots.retain(|slot| !gone(slot));
                let pids = self.pids();
                if pids.is_empty() {
                    break;
                }
                match self.kdamond.start(&pids) {
                    Ok(()) => break,
                    // One that ended just now is why it would not start; without it, it may.
                    Err(_) if self.slots.iter().any(gone) => {}
                    Err(error) => return Err(error),
                }
            }
            if self.stream.is_none() && !self.slots.is_empty() {
                self.stream = Some(Tail::new(self.kdamond.open_trace()?));
            }
        }
        self.committed = self.slots.len();
        self.assembler.expected = self.slots.len() as u64;
        Ok(())
    }

    fn pids(&self) -> Vec<u32> {
        self.slots.iter().map(|slot| raw(slot.process.pid())).collect()
    }

    fn drain(&mut self) {
        if let Some(stream) = &mut self.stream {
            let _ = stream.read(&mut self.chunk, |_| {});
        }
        self.assembler.forget();
    }

    fn tick(&mut self, now_ns: u64, sink: &mut dyn FnMut(&Snapshot)) -> Result<u64, SourceError> {
        if self.began_ns.is_none() {
            (self.began_ns, self.last_news_ns) = (Some(now_ns), now_ns);
        }
        self.now_ns = now_ns;
        self.settle()?;
        let mut ended = Vec::new();
        if let Some(stream) = &mut self.stream {
            let assembler = &mut self.assembler;
            stream
                .read(&mut self.chunk, |line| ended.extend(assembler.line(line)))
                .map_err(|source| SourceError::Io { what: "to read DAMON's trace".to_owned(), source })?;
        }
        ended.extend(self.assembler.idle(now_ns));
        if !ended.is_empty() {
            self.last_news_ns = now_ns;
        }
        self.look_after_kdamond(now_ns)?;
        for aggregation in ended {
            let snapshot = self.snapshot(aggregation);
            sink(&snapshot);
        }
        // Often enough that a snapshot is not told late.
        Ok(now_ns.saturating_add((as_ns(self.attrs.aggr) / 2).max(1_000_000)))
    }

    /// Notices when somebody else turned the kdamond off: nothing would ever come any more.
    fn look_after_kdamond(&mut self, now_ns: u64) -> Result<(), SourceError> {
        let patience = as_ns(self.attrs.aggr).saturating_mul(10).max(1_000_000_000);
        if self.committed == 0 || now_ns.saturating_sub(self.last_news_ns) < patience {
            return Ok(());
        }
        self.last_news_ns = now_ns;
        let alive = self.slots.iter().any(|slot| !slot.removed && slot.process.is_alive());
        if !alive || self.kdamond.is_running() {
            return Ok(());
        }
        Err(SourceError::Unavailable {
            what: "kernel".to_owned(),
            reason: "DAMON was turned off by somebody else".to_owned(),
            remedy: "look who else uses /sys/kernel/mm/damon, and start again".to_owned(),
        })
    }

    fn snapshot(&mut self, aggregation: Aggregation) -> Snapshot {
        let aggr_ns = as_ns(self.attrs.aggr);
        let end_ns = aggregation.time_ns;
        // Where snapshots were lost the last end is long ago; an aggregation is never much longer than it should.
        let start_ns = self
            .last_end_ns
            .filter(|last| end_ns.saturating_sub(*last) < aggr_ns.saturating_mul(2))
            .unwrap_or_else(|| end_ns.saturating_sub(aggr_ns));
        self.last_end_ns = Some(end_ns);
        let targets = aggregation.targets.into_iter().filter_map(|(place, regions)| {
            let slot = self.slots.get(usize::try_from(place).ok()?).filter(|slot| !slot.removed)?;
            Some(TargetSnapshot::new(slot.id, regions))
        });
        let snapshot = Snapshot {
            start_ns: start_ns.min(end_ns),
            end_ns,
            sample_ns: as_ns(self.attrs.sample),
            max_nr_accesses: self.attrs.max_nr_accesses(),
            targets: targets.collect(),
        };
        // DAMON checks and clears a page of each region in each sampling interval.
        let regions = snapshot.nr_regions() as u64;
        let checks = regions.saturating_mul(u64::from(snapshot.max_nr_accesses));
        self.counters.checks += checks;
        self.counters.clears += checks;
        self.counters.max_checks_per_sample = self.counters.max_checks_per_sample.max(regions);
        snapshot
    }

    fn blind_spots(&self) -> Vec<String> {
        let mut spots = vec![
            "pages whose translation stays in a CPU's TLB seem idle: DAMON flushes no TLB".to_owned(),
            self.kdamond_share().map_or_else(
                || "the kernel's own thread is not held to the overhead ceiling".to_owned(),
                |share| {
                    format!(
                        "the kernel's own thread is not held to the overhead ceiling; it took {:.2} %",
                        share * 100.0
                    )
                },
            ),
        ];
        if self.restarts > 0 {
            spots.push(format!(
                "regions and ages began anew {} times as targets came and went",
                self.restarts
            ));
        }
        if self.assembler.lost > 0 {
            spots.push(format!(
                "snapshots lost in part, as they were not read in time: {}",
                self.assembler.lost
            ));
        }
        spots
    }

    /// CPU time of the kdamond since the first tick, as a share of one CPU.
    fn kdamond_share(&self) -> Option<f64> {
        let text = proc_file::read_text(format!("/proc/{}/schedstat", self.kdamond.pid()?)).ok()?;
        let run_ns: u64 = text.split_whitespace().next()?.parse().ok()?;
        let wall_ns = self.now_ns.checked_sub(self.began_ns?).filter(|&ns| ns > 0)?;
        Some(run_ns as f64 / wall_ns as f64)
    }
}

/// A stream of lines that come now and then; keeps what of a line has come already.
struct Tail {
    stream: Box<dyn Read>,
    partial: Vec<u8>,
}

/// Longest start of a line that is kept; the kernel's lines are far shorter.
const LONGEST_PARTIAL: usize = 4096;

impl Tail {
    fn new(stream: Box<dyn Read>) -> Self {
        Self { stream, partial: Vec::new() }
    }

    fn read(&mut self, chunk: &mut [u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
        for _ in 0..MOST_READS {
            let len = match self.stream.read(chunk) {
                Ok(0) => break,
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let read = chunk.get(..len).unwrap_or_default();
            let Some(end) = read.iter().rposition(|&b| b == b'\n') else {
                self.keep(read);
                continue;
            };
            let (lines, rest) = read.split_at(end + 1);
            let mut lines = lines.split(|&b| b == b'\n');
            if !self.partial.is_empty() {
                self.partial.extend_from_slice(lines.next().unwrap_or_default());
                each(&std::mem::take(&mut self.partial));
            }
            lines.filter(|line| !line.is_empty()).for_each(&mut each);
            self.keep(rest);
        }
        Ok(())
    }

    fn keep(&mut self, start: &[u8]) {
        if self.partial.len() + start.len() <= LONGEST_PARTIAL {
            self.partial.extend_from_slice(start);
        } else {
            self.partial.clear();
        }
    }
}

impl Source for Kernel {
    fn name(&self) -> &'static str {
        "kernel"
    }

    fn add_target(&mut self, id: TargetId, process: &Arc<Process>) -> Result<(), SourceError> {
        process.still_alive()?;
        self.inner.add(id, Arc::clone(process));
        Ok(())
    }

    /// The kernel looks at the mappings itself.
    fn set_ranges(&mut self, _id: TargetId, _ranges: &[AddrRange]) {}

    /// The kernel's target is the process, whatever it runs; its regions follow at the kernel's regions update.
    fn execed(&mut self, _id: TargetId) {}

    fn remove_target(&mut self, id: TargetId) {
        // The kernel keeps it till the next change: taking it out at once would make all regions begin anew.
        self.inner.slots.iter_mut().filter(|slot| slot.id == id).for_each(|slot| slot.removed = true);
    }

    fn tick(&mut self, now_ns: u64, sink: &mut dyn FnMut(&Snapshot)) -> Result<u64, SourceError> {
        self.inner.tick(now_ns, sink)
    }

    fn attrs(&self) -> Attrs {
        self.inner.attrs
    }

    fn counters(&self) -> Counters {
        self.inner.counters
    }

    fn blind_spots(&mut self) -> Vec<String> {
        self.inner.blind_spots()
    }
}

fn as_ns(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests;
