//! The summary that a recording ends with, made while it is written: by a thread of its own that reads the file behind the
//! recorder, so that what is left at the end takes less than half a second. A short one is read at the end alone.
//!
//! What it reads is what everybody will read, so its figures are those of a report on the file. It takes no memory for what
//! it has not read yet, and keeps to a share of the CPU time that recording may cost, of which it is part: of more than that it
//! reads the rest at the end.

use isotherm_record::{Format, ReadOptions, open_from};
use isotherm_report::Accumulate;
use isotherm_report::summary::SummaryAnalysis;
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The share of the recorder's CPU ceiling that goes into the summary before the end. A guess: the rest is for what it is
/// about.
const SHARE: f64 = 0.1;

/// The share of a CPU where there is no ceiling. A guess.
const WITHOUT_CEILING: f64 = 0.1;

/// What is left for the end in any case, bytes: it takes less than half a second then, and of a short recording nothing is
/// taken from what it is about.
const LEFT: u64 = 1 << 20;

/// Bytes that are read at once, so that it keeps to its share: some 8 ms' worth.
const PIECE: u64 = 16 << 10;

/// The longest pause.
const MOST: Duration = Duration::from_secs(86_400);

/// How often it is looked whether somebody has lost patience.
const LOOK: Duration = Duration::from_millis(20);

/// The thread at work.
pub struct Digest {
    state: Arc<State>,
    made: Receiver<anyhow::Result<SummaryAnalysis>>,
    /// What it was told last: a block is written about once a second.
    told: Cell<u64>,
}

#[derive(Default)]
struct State {
    written: Mutex<Written>,
    changed: Condvar,
    /// CPU time of the thread until it last waited, ns.
    cpu_ns: AtomicU64,
}

#[derive(Clone, Copy, Default)]
struct Written {
    bytes: u64,
    /// No more will come.
    all: bool,
    /// Nobody wants it any more.
    unwanted: bool,
}

impl State {
    fn change(&self, change: impl FnOnce(&mut Written)) {
        change(&mut self.written.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl Digest {
    /// Begins to read the file at `path`, whose recorder may cost `ceiling` CPUs; 0: as much as it takes. `None` where that
    /// is not possible: then the file is to be read at the end.
    pub fn start(path: &Path, ceiling: f64) -> Option<Self> {
        Self::start_leaving(LEFT, path, ceiling)
    }

    fn start_leaving(left: u64, path: &Path, ceiling: f64) -> Option<Self> {
        // To open a pipe would wait for its reader.
        let file = path.metadata().is_ok_and(|m| m.is_file()).then(|| File::open(path).ok())??;
        let share = if ceiling > 0.0 { ceiling * SHARE } else { WITHOUT_CEILING };
        let state = Arc::new(State::default());
        let tail = Tail { file, at: 0, state: Arc::clone(&state), share, left, began: Instant::now() };
        let name = path.display().to_string();
        let (made, receiver) = channel();
        let work = move || {
            // Whoever waited may have left.
            let _ = made.send(read(tail, &name));
        };
        std::thread::Builder::new().name("isotherm-digest".to_owned()).spawn(work).ok()?;
        Some(Self { state, made: receiver, told: Cell::new(0) })
    }

    /// So many bytes stand in the file by now.
    pub fn written(&self, bytes: u64) {
        if self.told.replace(bytes) != bytes {
            self.state.change(|written| written.bytes = bytes);
        }
    }

    /// CPU time that the thread took until it last waited.
    pub fn cpu(&self) -> Duration {
        Duration::from_nanos(self.state.cpu_ns.load(Ordering::Relaxed))
    }

    /// The file is complete: waits for what there is in it. `None` when the user interrupts that.
    ///
    /// # Errors
    /// It cannot be read back.
    pub fn finish(self, is_interrupted: impl Fn() -> bool) -> Option<anyhow::Result<SummaryAnalysis>> {
        self.state.change(|written| written.all = true);
        loop {
            match self.made.recv_timeout(LOOK) {
                Ok(made) => return Some(made),
                Err(RecvTimeoutError::Timeout) if is_interrupted() => return None,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    return Some(Err(anyhow::anyhow!("the thread that reads it back failed")));
                }
            }
        }
    }
}

impl Drop for Digest {
    fn drop(&mut self) {
        self.state.change(|written| written.unwanted = true);
    }
}

fn read(tail: Tail, name: &str) -> anyhow::Result<SummaryAnalysis> {
    let options = ReadOptions { format: Some(Format::Rec), ..ReadOptions::default() };
    let mut reader = open_from(tail, name, &options)?;
    let mut analysis = SummaryAnalysis::default();
    while let Some(item) = reader.next_ref()? {
        analysis.item(item);
    }
    Ok(analysis)
}

/// A file that is being written: ends where it is complete.
struct Tail {
    file: File,
    at: u64,
    state: Arc<State>,
    /// CPU time that this thread may take, until the file is complete.
    share: f64,
    /// What it is to leave for the end, bytes.
    left: u64,
    began: Instant,
}

impl Tail {
    /// Waits until there is something to read, and time to do it. How much there is.
    fn wait(&self) -> io::Result<u64> {
        // Counted once: each wake-up costs something, too, so that to wait for that as well would never end.
        let due = self.to_wait().map(|wait| Instant::now() + wait);
        let mut written = self.state.written.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let Written { bytes, all, unwanted } = *written;
            if unwanted {
                return Err(io::Error::other("nobody wants it any more"));
            }
            if all {
                return Ok(u64::MAX);
            }
            let left = due.map_or(Duration::ZERO, |due| due.saturating_duration_since(Instant::now()));
            written = if bytes <= self.at.saturating_add(self.left) {
                self.state.changed.wait(written).unwrap_or_else(PoisonError::into_inner)
            } else if left.is_zero() {
                return Ok((bytes - self.at).min(PIECE));
            } else {
                let waited = self.state.changed.wait_timeout(written, left);
                waited.unwrap_or_else(PoisonError::into_inner).0
            };
        }
    }

    /// For how long it has to pause to keep to its share.
    fn to_wait(&self) -> Option<Duration> {
        let cpu = clock_gettime(ClockId::ThreadCPUTime);
        let spent = Duration::new(cpu.tv_sec.unsigned_abs(), u32::try_from(cpu.tv_nsec).unwrap_or(0));
        self.state.cpu_ns.store(u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
        // A day, should it be longer than can be said.
        let due = Duration::try_from_secs_f64(spent.as_secs_f64() / self.share).unwrap_or(MOST);
        due.min(MOST).checked_sub(self.began.elapsed()).filter(|wait| !wait.is_zero())
    }
}

impl Read for Tail {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let there = usize::try_from(self.wait()?).unwrap_or(usize::MAX);
        let most = buf.len().min(there);
        let read = self.file.read_at(&mut buf[..most], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_record::synthetic::{Shape, Synthetic};
    use isotherm_record::{Item, ItemReader, ItemWriter, open};
    use isotherm_report::heatmap::TerminalOptions;

    fn summary(analysis: SummaryAnalysis) -> isotherm_report::summary::Summary {
        analysis.finish(&TerminalOptions { width: 100, lines: 12, ..TerminalOptions::default() })
    }

    /// Writes a recording, and reads it behind its writer with a share of so much.
    fn followed(share: f64) -> (Digest, tempfile::TempDir) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.rec");
        let mut writer = isotherm_record::rec::Writer::new(File::create(&path).unwrap(), "x").unwrap();
        let digest = Digest::start_leaving(0, &path, share / SHARE).unwrap();
        let mut made_up = Synthetic::new(Shape { nr_regions: 60_000, nr_targets: 2, ..Shape::default() });
        let mut bytes = 0;
        while let Some(item) = made_up.next_ref().unwrap() {
            writer.write(item).unwrap();
            if writer.bytes_written() > bytes {
                bytes = writer.bytes_written();
                digest.written(bytes);
            }
        }
        writer.write(&Item::End(isotherm_record::End::default())).unwrap();
        writer.finish().unwrap();
        digest.written(writer.bytes_written());
        (digest, dir)
    }

    #[test]
    fn its_figures_are_those_of_the_file_however_much_it_was_behind() {
        // One that keeps up, and one that may take a millionth of a CPU.
        for share in [1e9, 1e-6] {
            let (digest, dir) = followed(share);
            let made = digest.finish(|| false).unwrap().unwrap();
            let mut whole = SummaryAnalysis::default();
            let mut reader = open(&dir.path().join("x.rec")).unwrap();
            while let Some(item) = reader.next_ref().unwrap() {
                whole.item(item);
            }
            let (made, whole) = (summary(made), summary(whole));
            assert!(made == whole && made.provenance.snapshots > 20, "{made:#?}\n{whole:#?}");
        }
    }

    #[test]
    fn with_time_enough_nothing_is_left_for_the_end() {
        let (digest, dir) = followed(1e9);
        let bytes = dir.path().join("x.rec").metadata().unwrap().len();
        // It waits for more where the file ends by now.
        let mut rest = vec![0; 1 << 20];
        let mut tail = Tail {
            file: File::open(dir.path().join("x.rec")).unwrap(),
            at: 0,
            state: Arc::clone(&digest.state),
            share: 1e9,
            left: 0,
            began: Instant::now(),
        };
        while tail.at < bytes {
            assert!(tail.read(&mut rest).unwrap() > 0);
        }
        assert_eq!(tail.at, bytes);
        drop(digest);
        assert!(tail.read(&mut rest).is_err(), "nobody wants more");
    }

    #[test]
    fn what_takes_no_time_at_the_end_is_left_for_it() {
        let (digest, dir) = followed(1e9);
        let path = dir.path().join("x.rec");
        let bytes = path.metadata().unwrap().len();
        let state = Arc::new(State::default());
        let mut tail = Tail {
            file: File::open(&path).unwrap(),
            at: 0,
            state: Arc::clone(&state),
            share: 1e9,
            left: bytes - 10,
            began: Instant::now(),
        };
        state.change(|written| written.bytes = bytes);
        let mut rest = vec![0; 1 << 20];
        assert_eq!(tail.read(&mut rest[..10]).unwrap(), 10);
        let reads_on = std::thread::spawn(move || (tail.read(&mut rest).unwrap(), tail.at));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!reads_on.is_finished(), "it waits for the end");
        state.change(|written| written.all = true);
        let (read, at) = reads_on.join().unwrap();
        assert_eq!(read as u64 + 10, at);
        drop(digest);
    }

    #[test]
    fn it_keeps_to_its_share() {
        let (digest, dir) = followed(1e-9);
        let tail = Tail {
            file: File::open(dir.path().join("x.rec")).unwrap(),
            at: 0,
            state: Arc::clone(&digest.state),
            share: 1e-9,
            left: 0,
            began: Instant::now(),
        };
        // Any CPU time at all is more than a billionth.
        assert!(tail.to_wait().is_some_and(|wait| wait > Duration::from_secs(1)));
        assert!(Tail { share: 1e9, ..tail }.to_wait().is_none());
    }
}
