//! The audit log: a line for each action, written by a thread of its own, since actions wait for no disk.

use isotherm_linux::actions::{Applied, Audit};
use serde_json::{Map, Value, json};
use std::fs::{File, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Actions that may wait to be written.
const WAITING: usize = 16_384;
/// How long a line may stay unwritten.
const LATENCY: Duration = Duration::from_millis(500);

/// Names of the schemes, as of now.
pub type Names = Arc<Mutex<Vec<String>>>;

/// The log, open.
pub struct Log {
    writer: JoinHandle<()>,
    lost: Arc<AtomicU64>,
    reopen: Arc<AtomicBool>,
    path: PathBuf,
}

impl Log {
    /// Opens it. What hears of actions is to be given to the engine; the log ends when that is dropped.
    ///
    /// # Errors
    /// When the file cannot be opened, or the system gives no thread.
    pub fn open(path: &Path, names: Names) -> io::Result<(Self, Audit)> {
        let (sender, receiver): (SyncSender<(Applied, String)>, _) = sync_channel(WAITING);
        let (lost, reopen) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let mut sheet = Sheet::open(path, Arc::clone(&lost))?;
        let again = Arc::clone(&reopen);
        let writer = std::thread::Builder::new()
            .name("isotherm-log".into())
            .spawn(move || sheet.write_all(&receiver, &again))?;
        let missed = Arc::clone(&lost);
        let audit: Audit = Box::new(move |applied| {
            // Schemes may have other names by the time it is written.
            let name = names.lock().unwrap_or_else(PoisonError::into_inner).get(applied.scheme).cloned();
            if sender.try_send((applied.clone(), name.unwrap_or_default())).is_err() {
                missed.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok((Self { writer, lost, reopen, path: path.to_owned() }, audit))
    }

    /// To be set to have the file opened anew, when it was moved away.
    pub fn reopener(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.reopen)
    }

    /// Waits until all is written, and says what is missing.
    pub fn finish(self) {
        if let Err(panic) = self.writer.join() {
            std::panic::resume_unwind(panic);
        }
        let (lost, path) = (self.lost.load(Ordering::Relaxed), self.path.display());
        if lost > 0 {
            say!(
                "isotherm: {lost} actions are not in {path}: it could not be written, or not as fast as they came"
            );
        }
    }
}

/// Whether `path` names another file than `open` by now, or none: the log was moved away.
fn is_elsewhere(open: &File, path: &Path) -> bool {
    let same = |a: &Metadata, b: &Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    // A pipe or terminal is nowhere else.
    let Ok(own) = open.metadata() else { return false };
    own.is_file() && !path.metadata().is_ok_and(|there| same(&own, &there))
}

/// The file, and the lines that are to be written to it at once.
struct Sheet {
    file: File,
    path: PathBuf,
    lines: Vec<u8>,
    count: u64,
    lost: Arc<AtomicU64>,
    /// The last line may have been written in part.
    torn: bool,
    /// It was said that it cannot be written, or opened.
    said: bool,
}

/// Lines are written when they are so many bytes.
const MOST_UNWRITTEN: usize = 64 << 10;

impl Sheet {
    fn open(path: &Path, lost: Arc<AtomicU64>) -> io::Result<Self> {
        let (lines, path) = (Vec::new(), path.to_owned());
        Ok(Self { file: open(&path)?, path, lines, count: 0, lost, torn: false, said: false })
    }

    fn write_all(&mut self, actions: &Receiver<(Applied, String)>, reopen: &AtomicBool) {
        let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let unix = u64::try_from(unix.as_nanos()).unwrap_or(0);
        let offset = unix.saturating_sub(isotherm_linux::monotonic_ns());
        let mut looked = Instant::now();
        loop {
            match actions.recv_timeout(LATENCY) {
                Ok((applied, name)) => {
                    // Into memory, where nothing fails.
                    if isotherm_report::json::to_writer(&mut self.lines, &line(&applied, &name, offset))
                        .is_ok()
                    {
                        self.lines.push(b'\n');
                        self.count += 1;
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.flush(),
            }
            let due = looked.elapsed() >= LATENCY;
            if due {
                looked = Instant::now();
            }
            if due || self.lines.len() >= MOST_UNWRITTEN {
                self.flush();
            }
            if reopen.swap(false, Ordering::Relaxed) || due && is_elsewhere(&self.file, &self.path) {
                self.flush();
                match open(&self.path) {
                    Ok(anew) => (self.file, self.torn, self.said) = (anew, false, false),
                    // What was moved away is better than nothing, and it is tried again.
                    Err(error) => self.say(&format!("cannot be opened anew: {error}")),
                }
            }
        }
    }

    /// Writes what there is. What cannot be written is lost, and counted: a disk that is full for a while does not end the log.
    fn flush(&mut self) {
        if self.lines.is_empty() {
            return;
        }
        let end = if self.torn { self.file.write_all(b"\n") } else { Ok(()) };
        match end.and_then(|()| self.file.write_all(&self.lines)) {
            Ok(()) => (self.torn, self.said) = (false, false),
            Err(error) => {
                self.torn = true;
                self.lost.fetch_add(self.count, Ordering::Relaxed);
                self.say(&format!("cannot be written: {error}; what is done meanwhile is not in it"));
            }
        }
        (self.lines, self.count) = (Vec::new(), 0);
    }

    /// Once, until it goes well again.
    fn say(&mut self, what: &str) {
        if !std::mem::replace(&mut self.said, true) {
            say!("isotherm: {} {what}", self.path.display());
        }
    }
}

/// A pipe that nobody reads is an error, and not waited for; one that is read too slowly loses lines.
fn open(path: &Path) -> io::Result<File> {
    File::options().append(true).create(true).custom_flags(libc::O_NONBLOCK).open(path).map_err(|error| {
        match error.raw_os_error() {
            Some(libc::ENXIO) => io::Error::new(error.kind(), "it is a pipe that nobody reads"),
            _ => error,
        }
    })
}

fn line(applied: &Applied, name: &str, offset: u64) -> Value {
    let left: Map<String, Value> =
        applied.left.iter().map(|(reason, bytes)| (reason.name().to_owned(), bytes.into())).collect();
    json!({
        "unix_ns": applied.time_ns.saturating_add(offset),
        "time_ns": applied.time_ns,
        "scheme": name,
        "action": applied.action.name(),
        "pid": applied.pid,
        "start": applied.range.start,
        "end": applied.range.end,
        "nr_accesses": f64::from(applied.nr_accesses_bp) / 10_000.0,
        "age_aggregations": applied.age,
        "window_ns": applied.window_ns,
        "tried": applied.tried,
        "applied": applied.applied,
        "left": left,
        "latency_us": u64::try_from(applied.latency.as_micros()).unwrap_or(u64::MAX),
        "waited_us": u64::try_from(applied.waited.as_micros()).unwrap_or(u64::MAX),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_that_nobody_reads_is_not_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
        let error = Sheet::open(&path, Arc::default()).err().unwrap();
        assert_eq!(error.to_string(), "it is a pipe that nobody reads");
    }

    #[test]
    fn a_disk_that_is_full_for_a_while_does_not_end_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("actions.jsonl");
        std::os::unix::fs::symlink("/dev/full", &path).unwrap();
        let lost = Arc::<AtomicU64>::default();
        let mut sheet = Sheet::open(&path, Arc::clone(&lost)).unwrap();
        let write = |sheet: &mut Sheet, lines: &str| {
            (sheet.lines, sheet.count) = (lines.as_bytes().to_vec(), lines.lines().count() as u64);
            sheet.flush();
            lost.load(Ordering::Relaxed)
        };
        assert_eq!((write(&mut sheet, "{1}\n{2}\n"), sheet.said), (2, true));
        assert_eq!(write(&mut sheet, "{3}\n"), 3);
        // There is room again: what was written in part is no line.
        std::fs::remove_file(&path).unwrap();
        sheet.file = open(&path).unwrap();
        assert_eq!((write(&mut sheet, "{4}\n"), sheet.said), (3, false));
        assert_eq!(write(&mut sheet, "{5}\n"), 3);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "\n{4}\n{5}\n");
    }
}
