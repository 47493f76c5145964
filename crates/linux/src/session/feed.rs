//! Bounded queues from the sampling thread to observers.
//!
//! The sampling thread only ever puts references into a queue that takes no lock, or counts what does not fit. What an
//! observer loses it can make good: after a snapshot was lost the next is a full one; mappings that did not fit are
//! offered again; and one so slow that it missed targets' comings and goings gets no snapshots until it was told of
//! them, from what the session knows then.

use super::observer::{Cost, Observer, SessionEvent};
use crate::clock;
use crate::maps::MapList;
use crate::process::Process;
use crate::targets::EndReason;
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// How much may wait in a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedLimits {
    /// Snapshots; 0: none are wanted. At the default attributes 256 are 25 s.
    pub snapshots: usize,
    /// Bytes of snapshots and mappings, as if nothing were shared. One alone may be larger. 0: no mappings are wanted.
    pub bytes: usize,
    /// Other events. Those of targets hold a file descriptor each.
    pub events: usize,
}

impl Default for FeedLimits {
    fn default() -> Self {
        Self { snapshots: 256, bytes: 32 << 20, events: 4096 }
    }
}

#[derive(Debug, Default)]
struct Shared {
    snapshots: AtomicUsize,
    bytes: AtomicUsize,
    events: AtomicUsize,
    /// CPU time of the thread that takes events out, ns.
    cpu_ns: AtomicU64,
    /// Rung when the session is over.
    bell: Bell,
}

/// Something to sleep by.
#[derive(Debug, Default)]
struct Bell {
    rung: Mutex<bool>,
    rings: Condvar,
}

impl Bell {
    fn ring(&self) {
        *self.rung.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.rings.notify_all();
    }

    fn wait(&self, at_most: Duration) {
        let rung = self.rung.lock().unwrap_or_else(PoisonError::into_inner);
        // Whatever ends it, the queue tells what there is.
        let _ = self.rings.wait_timeout_while(rung, at_most, |rung| !*rung);
    }
}

#[derive(Debug)]
struct Message {
    event: SessionEvent,
    bytes: usize,
}

/// An observer's end of a queue.
#[derive(Debug)]
pub struct Feed {
    queue: Receiver<Message>,
    shared: Arc<Shared>,
}

/// After this long without anything, [`Observer::idle`] is called.
const IDLE: Duration = Duration::from_secs(1);

/// How long what was told may wait for [`Feed::run`], which takes out all there is at once: waking up a thread costs both
/// threads more than most events do.
const LATENCY: Duration = Duration::from_millis(500);

impl Feed {
    /// The next event; waits for it at most `timeout`. `Err(true)`: the session is over.
    ///
    /// # Errors
    /// When there is none: none came in time, or none can come any more.
    pub fn next(&mut self, timeout: Duration) -> Result<SessionEvent, bool> {
        match self.queue.recv_timeout(timeout) {
            Ok(Message { event, bytes }) => {
                let kind = match event {
                    SessionEvent::Snapshot(_) => &self.shared.snapshots,
                    _ => &self.shared.events,
                };
                kind.fetch_sub(1, Ordering::Relaxed);
                self.shared.bytes.fetch_sub(bytes, Ordering::Relaxed);
                Ok(event)
            }
            Err(RecvTimeoutError::Timeout) => Err(false),
            Err(RecvTimeoutError::Disconnected) => Err(true),
        }
    }

    /// Tells `observer` of every event until the session is over. To be run on a thread of its own, whose CPU time is
    /// taken from what the session has to spend, and with it what the observer says of others of its own.
    pub fn run(mut self, observer: &mut dyn Observer) {
        let mut idle = Duration::ZERO;
        loop {
            match self.next(Duration::ZERO) {
                Ok(event) => {
                    event.tell(observer);
                    idle = Duration::ZERO;
                    continue;
                }
                Err(true) => return,
                Err(false) if idle >= IDLE => {
                    observer.idle();
                    idle = Duration::ZERO;
                }
                Err(false) => {}
            }
            self.shared.bell.wait(LATENCY);
            idle += LATENCY;
            let cpu = clock::of_this_thread().saturating_add(observer.beside());
            let cpu = u64::try_from(cpu.as_nanos()).unwrap_or(u64::MAX);
            self.shared.cpu_ns.store(cpu, Ordering::Relaxed);
        }
    }
}

/// What is known of a target to whoever has to be told of it.
pub(super) struct Known<'a> {
    pub id: TargetId,
    pub process: &'a Arc<Process>,
    pub parent: Option<TargetId>,
    pub maps: &'a Arc<MapList>,
}

/// The session's end of a queue.
#[derive(Debug)]
struct Outlet {
    queue: Sender<Message>,
    shared: Arc<Shared>,
    limits: FeedLimits,
    /// Whether the next snapshot must be a full one.
    needs_full: bool,
    lost: u64,
    lost_told: u64,
    /// Targets it knows of.
    told: BTreeSet<TargetId>,
    /// Targets whose mappings it has not got.
    owed: BTreeSet<TargetId>,
    /// The blind spots that it was told of.
    spots: Arc<[String]>,
    /// Whether it missed comings and goings.
    behind: bool,
    cpu_taken_ns: u64,
    /// Nobody listens any more.
    closed: bool,
}

impl Drop for Outlet {
    fn drop(&mut self) {
        self.shared.bell.ring();
    }
}

impl Outlet {
    fn send(&mut self, event: SessionEvent, bytes: usize) -> bool {
        let kind = match event {
            SessionEvent::Snapshot(_) => &self.shared.snapshots,
            _ => &self.shared.events,
        };
        kind.fetch_add(1, Ordering::Relaxed);
        self.shared.bytes.fetch_add(bytes, Ordering::Relaxed);
        self.closed |= self.queue.send(Message { event, bytes }).is_err();
        !self.closed
    }

    fn has_room(&self, bytes: usize) -> bool {
        let waiting = self.shared.bytes.load(Ordering::Relaxed);
        waiting == 0 || waiting.saturating_add(bytes) <= self.limits.bytes
    }

    /// Whether there was room for it, or no need to tell it.
    fn offer(&mut self, event: &SessionEvent) -> bool {
        if self.behind || self.shared.events.load(Ordering::Relaxed) >= self.limits.events {
            // What is no coming or going is not missed by those who cannot keep up.
            self.behind |= matches!(event, SessionEvent::Target { .. } | SessionEvent::TargetEnd { .. });
            return false;
        }
        match event {
            SessionEvent::Target { id, .. } => {
                self.told.insert(*id);
            }
            SessionEvent::TargetEnd { id, .. } => {
                self.owed.remove(id);
                if !self.told.remove(id) {
                    return true;
                }
            }
            _ => {}
        }
        self.send(event.clone(), 0)
    }

    fn offer_mappings(&mut self, id: TargetId, maps: &Arc<MapList>, time_ns: u64) {
        if self.limits.bytes == 0 {
            return;
        }
        let bytes = maps.memory();
        let full = self.shared.events.load(Ordering::Relaxed) >= self.limits.events;
        if self.behind || full || !self.told.contains(&id) || !self.has_room(bytes) {
            self.owed.insert(id);
            return;
        }
        self.owed.remove(&id);
        self.send(SessionEvent::Mappings { id, maps: Arc::clone(maps), time_ns }, bytes);
    }

    fn takes_snapshot(&self, bytes: usize) -> bool {
        !self.behind
            && self.shared.snapshots.load(Ordering::Relaxed) < self.limits.snapshots
            && self.has_room(bytes)
    }

    /// Makes good what was missed, as far as there is room.
    fn catch_up<'a>(&mut self, known: impl Iterator<Item = Known<'a>> + Clone, time_ns: u64) {
        if self.behind && self.shared.events.load(Ordering::Relaxed) <= self.limits.events / 2 {
            self.behind = false;
            let present: BTreeSet<TargetId> = known.clone().map(|k| k.id).collect();
            for id in self.told.difference(&present).copied().collect::<Vec<_>>() {
                self.offer(&SessionEvent::TargetEnd { id, reason: EndReason::Exited(None), time_ns });
            }
            for Known { id, process, parent, .. } in known.clone() {
                if !self.told.contains(&id) {
                    let process = Arc::clone(process);
                    self.offer(&SessionEvent::Target { id, process, parent, is_copy: false, time_ns });
                    self.owed.insert(id);
                }
            }
        }
        if !self.behind && !self.owed.is_empty() {
            for Known { id, maps, .. } in known {
                if self.owed.contains(&id) {
                    self.offer_mappings(id, maps, time_ns);
                }
            }
        }
    }
}

/// All observers of a session.
#[derive(Debug, Default)]
pub(super) struct Outlets(Vec<Outlet>);

impl Outlets {
    pub(super) fn add(&mut self, limits: FeedLimits) -> Feed {
        let (queue, receiver) = channel();
        let shared = Arc::new(Shared::default());
        self.0.push(Outlet {
            queue,
            shared: Arc::clone(&shared),
            limits,
            needs_full: true,
            lost: 0,
            lost_told: 0,
            told: BTreeSet::new(),
            owed: BTreeSet::new(),
            spots: Arc::default(),
            // One that comes late is told of what there is.
            behind: true,
            cpu_taken_ns: 0,
            closed: false,
        });
        Feed { queue: receiver, shared }
    }

    pub(super) fn tell(&mut self, event: &SessionEvent) {
        for outlet in &mut self.0 {
            outlet.offer(event);
        }
    }

    /// What cannot be seen, to those who know other blind spots.
    pub(super) fn blind_spots(&mut self, spots: Vec<String>) {
        let spots: Arc<[String]> = spots.into();
        for outlet in self.0.iter_mut().filter(|outlet| outlet.spots != spots) {
            if outlet.offer(&SessionEvent::BlindSpots(Arc::clone(&spots))) {
                outlet.spots = Arc::clone(&spots);
            }
        }
    }

    pub(super) fn mappings(&mut self, id: TargetId, maps: &Arc<MapList>, time_ns: u64) {
        self.0.iter_mut().for_each(|outlet| outlet.offer_mappings(id, maps, time_ns));
    }

    pub(super) fn cost(&mut self, cost: Cost) {
        for outlet in &mut self.0 {
            let snapshots_lost = outlet.lost - outlet.lost_told;
            outlet.lost_told = outlet.lost;
            outlet.offer(&SessionEvent::Cost(Cost { snapshots_lost, ..cost }));
        }
    }

    /// Hands on a snapshot without the targets that are `gone`.
    pub(super) fn snapshot(&mut self, snapshot: &Snapshot, gone: &BTreeSet<TargetId>) {
        let (mut changes, mut full) = (None, None);
        for outlet in self.0.iter_mut().filter(|outlet| outlet.limits.snapshots > 0) {
            let shared = if outlet.needs_full {
                full.get_or_insert_with(|| weighed(copy(snapshot, gone, true)))
            } else {
                changes.get_or_insert_with(|| weighed(copy(snapshot, gone, false)))
            };
            let (copy, bytes) = (&shared.0, shared.1);
            if copy.targets.is_empty() && !snapshot.targets.is_empty() {
                continue;
            }
            if outlet.takes_snapshot(bytes) {
                outlet.needs_full = false;
                outlet.send(SessionEvent::Snapshot(Arc::clone(copy)), bytes);
            } else {
                outlet.needs_full = true;
                outlet.lost += 1;
            }
        }
    }

    pub(super) fn catch_up<'a>(&mut self, known: impl Iterator<Item = Known<'a>> + Clone, time_ns: u64) {
        self.0.retain(|outlet| !outlet.closed);
        self.0.iter_mut().for_each(|outlet| outlet.catch_up(known.clone(), time_ns));
    }

    /// CPU time of the observers' threads since the last call.
    pub(super) fn take_cpu(&mut self) -> Duration {
        let mut sum = 0;
        for outlet in &mut self.0 {
            let now = outlet.shared.cpu_ns.load(Ordering::Relaxed);
            sum += now.saturating_sub(outlet.cpu_taken_ns);
            outlet.cpu_taken_ns = now;
        }
        Duration::from_nanos(sum)
    }
}

fn copy(snapshot: &Snapshot, gone: &BTreeSet<TargetId>, full: bool) -> Snapshot {
    let targets = snapshot.targets.iter().filter(|t| !gone.contains(&t.id)).map(|t| TargetSnapshot {
        id: t.id,
        regions: if t.steady && !full { Vec::new() } else { t.regions.clone() },
        steady: t.steady && !full,
    });
    Snapshot { targets: targets.collect(), ..*snapshot }
}

/// With the bytes it takes.
fn weighed(snapshot: Snapshot) -> (Arc<Snapshot>, usize) {
    let bytes = size_of::<Snapshot>()
        + snapshot.targets.len() * size_of::<TargetSnapshot>()
        + snapshot.nr_regions() * size_of::<RegionSnapshot>();
    (Arc::new(snapshot), bytes)
}
