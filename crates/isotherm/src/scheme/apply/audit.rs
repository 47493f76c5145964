//! The audit log: a line for each action, written by a thread of its own, since actions wait for no disk.

use isotherm_linux::actions::{Applied, Audit};
use serde_json::{Map, Value, json};
use std::fs::{File, Metadata};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::MetadataExt;
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
    writer: JoinHandle<io::Result<()>>,
    lost: Arc<AtomicU64>,
    reopen: Arc<AtomicBool>,
    path: PathBuf,
}

fn open(path: &Path) -> io::Result<BufWriter<File>> {
    Ok(BufWriter::new(File::options().append(true).create(true).open(path)?))
}

impl Log {
    /// Opens it. What hears of actions is to be given to the engine; the log ends when that is dropped.
    ///
    /// # Errors
    /// When the file cannot be opened, or the system gives no thread.
    pub fn open(path: &Path, names: Names) -> io::Result<(Self, Audit)> {
        let out = open(path)?;
        let (sender, receiver): (SyncSender<Applied>, _) = sync_channel(WAITING);
        let (lost, reopen) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (path, again) = (path.to_owned(), Arc::clone(&reopen));
        let own = path.clone();
        let writer = std::thread::Builder::new()
            .name("isotherm-log".into())
            .spawn(move || write(out, &own, &receiver, &names, &again))?;
        let missed = Arc::clone(&lost);
        let audit: Audit = Box::new(move |applied| {
            if sender.try_send(applied.clone()).is_err() {
                missed.fetch_add(1, Ordering::Relaxed);
            }
        });
        Ok((Self { writer, lost, reopen, path }, audit))
    }

    /// To be set to have the file opened anew, when it was moved away.
    pub fn reopener(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.reopen)
    }

    /// Waits until all is written, and says what is missing.
    pub fn finish(self) {
        let path = self.path.display();
        match self.writer.join() {
            Ok(Ok(())) => {}
            Ok(Err(error)) => say!("isotherm: {path} ends early: {error}"),
            Err(panic) => std::panic::resume_unwind(panic),
        }
        let lost = self.lost.load(Ordering::Relaxed);
        if lost > 0 {
            say!("isotherm: {lost} actions are not in {path}: they came faster than it could be written");
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

fn write(
    mut out: BufWriter<File>,
    path: &Path,
    actions: &Receiver<Applied>,
    names: &Names,
    reopen: &AtomicBool,
) -> io::Result<()> {
    let unix = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let unix = u64::try_from(unix.as_nanos()).unwrap_or(0);
    let offset = unix.saturating_sub(isotherm_linux::monotonic_ns());
    let (mut looked, mut said) = (Instant::now(), false);
    loop {
        match actions.recv_timeout(LATENCY) {
            Ok(applied) => {
                isotherm_report::json::to_writer(&mut out, &line(&applied, names, offset))?;
                out.write_all(b"\n")?;
            }
            Err(RecvTimeoutError::Timeout) => out.flush()?,
            Err(RecvTimeoutError::Disconnected) => return out.flush(),
        }
        let due = looked.elapsed() >= LATENCY;
        if due {
            looked = Instant::now();
        }
        if reopen.swap(false, Ordering::Relaxed) || due && is_elsewhere(out.get_ref(), path) {
            out.flush()?;
            match open(path) {
                Ok(anew) => (out, said) = (anew, false),
                // What was moved away is better than nothing, and it is tried again.
                Err(error) if !std::mem::replace(&mut said, true) => {
                    say!("isotherm: {} cannot be opened anew: {error}", path.display());
                }
                Err(_) => {}
            }
        }
    }
}

fn line(applied: &Applied, names: &Names, offset: u64) -> Value {
    let names = names.lock().unwrap_or_else(PoisonError::into_inner);
    let name = names.get(applied.scheme).cloned().unwrap_or_default();
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
    })
}
