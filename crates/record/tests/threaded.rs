//! Writing beside the sampling thread: it never waits, loses only snapshots, and counts those.
#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml allows it in the tests only

mod common;

use common::{items_of, small, snapshots};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::rec::Reader;
use isotherm_record::{Cost, Item, ThreadedWriter, open};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A file in memory that both sides see.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk that answers only when it is told to, and tells when it is asked.
struct Stuck {
    disk: Shared,
    asked: Sender<()>,
    go: Receiver<()>,
}

impl Write for Stuck {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Either end may be gone: then it is a disk like any other.
        let _ = self.asked.send(());
        let _ = self.go.recv();
        self.disk.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A disk that is full after so many bytes.
struct Small {
    disk: Shared,
    left: usize,
}

impl Write for Small {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let len = bytes.len().min(self.left);
        self.left -= len;
        self.disk.write(&bytes[..len])
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn everything_arrives_in_order() {
    let items = small();
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.rec");
    let writer = ThreadedWriter::create(&path).unwrap();
    items.iter().cloned().for_each(|item| writer.send(item));
    let written = writer.finish().unwrap();
    assert_eq!(written.bytes, path.metadata().unwrap().len());
    assert_eq!(written.snapshots_lost, 0);
    assert_eq!(items_of(&mut *open(&path).unwrap()), items);
}

#[test]
fn a_stuck_disk_loses_counted_snapshots_and_nothing_else() {
    let items = small();
    let disk = Shared::default();
    let (asked, was_asked) = channel();
    let (go, may_go) = channel();
    let writer = ThreadedWriter::new(Stuck { disk: disk.clone(), asked, go: may_go }, "stuck").unwrap();
    writer.send(items[0].clone());
    was_asked.recv().unwrap();
    // The disk hangs in the header from here on.
    let all = snapshots(&items);
    let mut taken = Vec::new();
    for round in 0..50_u64 {
        taken.extend(all.iter().filter(|s| writer.try_send(s)).cloned());
        writer.send(Item::Cost(Cost { time_ns: round, ..Cost::default() }));
    }
    let lost = all.len() as u64 * 50 - taken.len() as u64;
    assert!(lost > 0 && !taken.is_empty());
    assert_eq!(writer.snapshots_lost(), lost);
    drop(go);
    assert_eq!(writer.finish().unwrap().snapshots_lost, lost);

    let file = disk.0.lock().unwrap().clone();
    let read = items_of(&mut Reader::new(&file[..], "stuck").unwrap());
    assert_eq!(snapshots(&read), taken);
    let costs: Vec<u64> = read
        .iter()
        .filter_map(|i| match i {
            Item::Cost(c) => Some(c.time_ns),
            _ => None,
        })
        .collect();
    assert_eq!(costs, (0..50).collect::<Vec<_>>());
}

/// What changed in the snapshots that were dropped comes with the next, whether the monitor hands over whole snapshots
/// or what changed.
#[test]
fn what_stood_still_is_right_also_behind_lost_snapshots() {
    let snapshot = |index: u64| {
        let target = |id: u64| {
            // The first target changes every 7th snapshot, the second every 97th, the third never.
            let period = [7, 97, u64::MAX][id as usize - 1];
            let region = RegionSnapshot {
                range: AddrRange::new(index / period * 4096, (index / period + 9) * 4096),
                age: (index % period) as u32,
                ..RegionSnapshot::default()
            };
            TargetSnapshot { id: TargetId(id), regions: vec![region], steady: !index.is_multiple_of(period) }
        };
        Snapshot {
            start_ns: index * 100_000_000,
            end_ns: (index + 1) * 100_000_000,
            targets: [1, 2, 3].map(target).into(),
            ..Snapshot::default()
        }
    };
    for changes in [false, true] {
        let disk = Shared::default();
        let (asked, was_asked) = channel();
        let (go, may_go) = channel();
        let writer = ThreadedWriter::new(Stuck { disk: disk.clone(), asked, go: may_go }, "stuck").unwrap();
        let mut taken = Vec::new();
        for index in 0..2000 {
            let whole = snapshot(index);
            if writer.try_send(&if changes { whole.changes() } else { whole.clone() }) {
                taken.push(whole);
            }
            // The disk hangs, writes a block now and then, hangs again.
            if index % 400 == 399 {
                was_asked.recv().unwrap();
                go.send(()).unwrap();
                was_asked.recv().unwrap();
                go.send(()).unwrap();
            }
        }
        drop((go, was_asked));
        assert!(writer.finish().unwrap().snapshots_lost > 100);
        let file = disk.0.lock().unwrap().clone();
        let read = snapshots(&items_of(&mut Reader::new(&file[..], "stuck").unwrap()));
        assert_eq!(read.len(), taken.len());
        for (read, taken) in read.iter().zip(&taken) {
            assert_eq!(read.end_ns, taken.end_ns);
            for (read, taken) in read.targets.iter().zip(&taken.targets) {
                assert_eq!(read.regions, taken.regions, "target {}, {changes}", taken.id.0);
            }
        }
    }
}

#[test]
fn a_full_disk_ends_in_an_error_and_keeps_what_was_saved() {
    let items = small();
    let disk = Shared::default();
    let writer = ThreadedWriter::new(Small { disk: disk.clone(), left: 5000 }, "/small/x.rec").unwrap();
    items.iter().cloned().for_each(|item| writer.send(item));
    let error = writer.finish().unwrap_err().to_string();
    assert!(error.contains("/small/x.rec") && error.contains("stays readable"), "{error}");
    let file = disk.0.lock().unwrap().clone();
    assert_eq!(file.len(), 5000);
    let read = items_of(&mut Reader::new(&file[..], "small").unwrap());
    assert!(snapshots(&read).len() > 5);
    assert_eq!(read, items[..read.len()]);
}

#[test]
fn what_has_gathered_goes_out_when_nothing_more_comes() {
    let items = small();
    let (asked, was_asked) = channel();
    let (go, may_go) = channel();
    drop(go);
    let disk = Shared::default();
    let writer = ThreadedWriter::new(Stuck { disk: disk.clone(), asked, go: may_go }, "slow").unwrap();
    // Header, two targets with mappings, one snapshot: far less than a second.
    items.iter().take(6).cloned().for_each(|item| writer.send(item));
    // One write for the header, one for the rest; a minute is only there so that a failure ends.
    was_asked.recv_timeout(Duration::from_secs(60)).unwrap();
    was_asked.recv_timeout(Duration::from_secs(60)).unwrap();
    drop(writer);
    let file = disk.0.lock().unwrap().clone();
    assert_eq!(items_of(&mut Reader::new(&file[..], "slow").unwrap()), items[..6]);
}
