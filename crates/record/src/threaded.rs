//! Writing a recording beside the thread that samples.
//!
//! The sampling thread hands its snapshots to a writer thread and never waits: when the disk is so slow that
//! [`QUEUE`] snapshots are waiting, further ones are dropped and counted. Everything else is rare and small and is never
//! dropped. The writer thread also brings out what has gathered when nothing came for a second, so that the file is
//! never more than about a second behind.
//!
//! Of targets that stood still ([`isotherm_damon::TargetSnapshot::steady`]) nothing but their ids is copied. So when
//! snapshots are dropped, what changed in them is kept until the next one that is not: it goes along with that.

use crate::files::create_file;
use crate::{Error, Item, ItemWriter, rec};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetSnapshot};
use std::cell::RefCell;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

/// Snapshots that may wait for the disk. At the default attributes this is 25 s; at 1000 regions it is 8 MB.
const QUEUE: usize = 256;

/// After this long without anything new, what has gathered is written.
const IDLE: Duration = Duration::from_secs(1);

/// Writes Isotherm's own format from a thread of its own.
#[derive(Debug)]
pub struct ThreadedWriter {
    // Both are `None` once finished.
    queue: Option<Sender<Message>>,
    thread: Option<JoinHandle<()>>,
    used: Receiver<Snapshot>,
    shared: Arc<Shared>,
    handed: RefCell<Handed>,
}

/// What the writer thread knows of the targets, and what it does not.
#[derive(Debug, Default)]
struct Handed {
    /// Targets of the last snapshot that was queued, in its order.
    targets: Vec<u64>,
    /// Snapshots dropped since.
    dropped: u32,
    /// Targets that changed in those: their regions, and how often they stood still since.
    changed: HashMap<u64, (Vec<RegionSnapshot>, u32)>,
}

#[derive(Debug)]
enum Message {
    /// A snapshot, and how many before it were dropped.
    Snapshot(Snapshot, u32),
    Other(Box<Item>),
}

#[derive(Debug, Default)]
struct Shared {
    waiting: AtomicUsize,
    lost: AtomicU64,
    bytes: AtomicU64,
    error: OnceLock<Error>,
}

/// What became of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Size of the recording, bytes.
    pub bytes: u64,
    /// Snapshots dropped because the disk was too slow.
    pub snapshots_lost: u64,
}

impl ThreadedWriter {
    /// Creates a recording; `-` is standard output. A file that exists is replaced when it is a recording or empty.
    ///
    /// # Errors
    /// [`Error::WouldClobber`]; [`Error::Io`] when the file cannot be created or there can be no further thread.
    pub fn create(path: &Path) -> Result<Self, Error> {
        let (file, name) = create_file(path)?;
        let sync = file.try_clone().ok().filter(|f| f.metadata().is_ok_and(|m| m.is_file()));
        Self::start(file, name, sync)
    }

    /// Writes to `output`, called `file` in messages.
    ///
    /// # Errors
    /// [`Error::Io`] when there can be no further thread.
    pub fn new(output: impl Write + Send + 'static, file: impl Into<String>) -> Result<Self, Error> {
        Self::start(output, file.into(), None)
    }

    fn start(output: impl Write + Send + 'static, file: String, sync: Option<File>) -> Result<Self, Error> {
        let writer = rec::Writer::new(output, file.as_str())?;
        let shared = Arc::new(Shared::default());
        let (queue, messages) = channel();
        let (give_back, used) = channel();
        let task =
            Task { writer, messages, give_back, shared: Arc::clone(&shared), sync, file: file.clone() };
        let thread = std::thread::Builder::new()
            .name("isotherm-record".to_owned())
            .spawn(move || task.run())
            .map_err(|e| Error::io("start a thread to write", &file, e))?;
        Ok(Self { queue: Some(queue), thread: Some(thread), used, shared, handed: RefCell::default() })
    }

    /// Queues a copy of a snapshot. False: it was dropped, because too many are waiting or writing has failed. Whole
    /// snapshots are taken, and those that hold only what changed ([`Snapshot::changes`]); every snapshot of the
    /// context must come here, or "the snapshot before" means another one to the writer.
    pub fn try_send(&self, snapshot: &Snapshot) -> bool {
        let mut handed = self.handed.borrow_mut();
        let failed = self.shared.error.get().is_some();
        if failed || self.shared.waiting.load(Ordering::Relaxed) >= QUEUE {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            if !failed {
                handed.drop(snapshot);
            }
            return false;
        }
        // A snapshot that was written lends its memory to the next.
        let mut copy = self.used.try_recv().unwrap_or_default();
        let dropped = handed.copy_into(snapshot, &mut copy);
        self.shared.waiting.fetch_add(1, Ordering::Relaxed);
        self.queue.as_ref().is_some_and(|q| q.send(Message::Snapshot(copy, dropped)).is_ok())
    }

    /// Queues any item; only snapshots may be dropped, as by [`Self::try_send`].
    pub fn send(&self, item: Item) {
        match item {
            Item::Snapshot(snapshot) => {
                self.try_send(&snapshot);
            }
            item => {
                if let Some(queue) = &self.queue {
                    // The receiver lives as long as the sender does; it stops writing after an error, not receiving.
                    let _ = queue.send(Message::Other(Box::new(item)));
                }
            }
        }
    }

    /// Snapshots dropped so far.
    pub fn snapshots_lost(&self) -> u64 {
        self.shared.lost.load(Ordering::Relaxed)
    }

    /// Bytes written so far.
    pub fn bytes_written(&self) -> u64 {
        self.shared.bytes.load(Ordering::Relaxed)
    }

    /// Why writing has stopped, if it has. Look at it now and then: a recording on a full disk need not go on.
    pub fn error(&self) -> Option<&Error> {
        self.shared.error.get()
    }

    /// Waits until everything is written and on the disk.
    ///
    /// # Errors
    /// The first error of writing; what was written before it is readable.
    pub fn finish(mut self) -> Result<Written, Error> {
        let panicked = self.join();
        let written = Written { bytes: self.bytes_written(), snapshots_lost: self.snapshots_lost() };
        // The thread, which held the other reference, is gone.
        let shared = std::mem::take(&mut self.shared);
        let error = Arc::into_inner(shared).and_then(|s| s.error.into_inner());
        match error {
            Some(error) => Err(error),
            None if panicked => {
                Err(Error::io("write", "the recording", io::Error::other("the writer thread panicked")))
            }
            None => Ok(written),
        }
    }

    /// Ends the queue and waits for the thread. True: it panicked.
    fn join(&mut self) -> bool {
        drop(self.queue.take());
        self.thread.take().is_some_and(|thread| thread.join().is_err())
    }
}

impl Drop for ThreadedWriter {
    fn drop(&mut self) {
        self.join();
    }
}

impl Handed {
    /// Keeps what changed in a snapshot that is not queued.
    fn drop(&mut self, snapshot: &Snapshot) {
        self.dropped = self.dropped.saturating_add(1);
        let mut before = std::mem::take(&mut self.changed);
        let mut expected = 0;
        for target in &snapshot.targets {
            let known = self.knows(target.id.0, &mut expected);
            let kept = before.remove(&target.id.0);
            let kept = match kept {
                Some((regions, stood)) if target.steady => (regions, stood.saturating_add(1)),
                _ if target.steady && known => continue,
                kept => {
                    let mut regions = kept.map(|k| k.0).unwrap_or_default();
                    regions.clone_from(&target.regions);
                    (regions, 0)
                }
            };
            self.changed.insert(target.id.0, kept);
        }
    }

    /// Copies what the writer thread does not know, keeping the memory of the old copy. Returns how many snapshots were
    /// dropped before this one.
    fn copy_into(&mut self, from: &Snapshot, to: &mut Snapshot) -> u32 {
        to.targets.resize_with(from.targets.len(), TargetSnapshot::default);
        let mut expected = 0;
        for (from, to) in from.targets.iter().zip(&mut to.targets) {
            let known = self.knows(from.id.0, &mut expected);
            to.id = from.id;
            to.steady = false;
            match self.changed.remove(&from.id.0) {
                Some((mut regions, stood)) if from.steady => {
                    let older = stood.saturating_add(1);
                    regions.iter_mut().for_each(|r| r.age = r.age.saturating_add(older));
                    to.regions = regions;
                }
                _ if from.steady && known => {
                    to.regions.clear();
                    to.steady = true;
                }
                _ => to.regions.clone_from(&from.regions),
            }
        }
        self.targets.clear();
        self.targets.extend(from.targets.iter().map(|t| t.id.0));
        self.changed.clear();
        let targets = std::mem::take(&mut to.targets);
        *to = Snapshot { targets, ..*from };
        std::mem::take(&mut self.dropped)
    }

    /// Whether the last snapshot queued had the target. `expected`: where it probably stood.
    fn knows(&self, id: u64, expected: &mut usize) -> bool {
        if self.targets.get(*expected) != Some(&id) {
            let Some(at) = self.targets.iter().position(|&t| t == id) else { return false };
            *expected = at;
        }
        *expected += 1;
        true
    }
}

/// What the writer thread owns.
struct Task<W: Write> {
    writer: rec::Writer<W>,
    messages: Receiver<Message>,
    give_back: Sender<Snapshot>,
    shared: Arc<Shared>,
    sync: Option<File>,
    file: String,
}

impl<W: Write + Send> Task<W> {
    fn run(mut self) {
        loop {
            let written = match self.messages.recv_timeout(IDLE) {
                Ok(Message::Snapshot(snapshot, dropped)) => {
                    self.writer.missed(dropped);
                    let written = self.write_snapshot(&snapshot);
                    self.shared.waiting.fetch_sub(1, Ordering::Relaxed);
                    // Nobody to lend it to: finish() was called.
                    let _ = self.give_back.send(snapshot);
                    written
                }
                Ok(Message::Other(item)) => self.attempt(|w| w.write(&item)),
                Err(RecvTimeoutError::Timeout) => self.attempt(rec::Writer::flush),
                Err(RecvTimeoutError::Disconnected) => break,
            };
            self.note(written);
        }
        let finished = self.attempt(ItemWriter::finish);
        self.note(finished);
        if let Some(file) = &self.sync {
            // A full disk may show only now.
            let synced = file.sync_data().map_err(|e| Error::io("write", &self.file, e));
            self.note(synced);
        }
    }

    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let written = self.attempt(|w| w.write_snapshot(snapshot));
        if self.shared.error.get().is_some() || written.is_err() {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
        }
        written
    }

    /// Writes, unless an earlier attempt failed.
    fn attempt(&mut self, write: impl FnOnce(&mut rec::Writer<W>) -> Result<(), Error>) -> Result<(), Error> {
        if self.shared.error.get().is_some() { Ok(()) } else { write(&mut self.writer) }
    }

    fn note(&self, result: Result<(), Error>) {
        self.shared.bytes.store(self.writer.bytes_written(), Ordering::Relaxed);
        if let Err(error) = result {
            // Only the first is kept: it says why.
            let _ = self.shared.error.set(error);
        }
    }
}
