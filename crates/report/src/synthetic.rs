//! Recordings with known answers, for tests.

use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{Item, Mapping, Mappings};
use proptest::prelude::*;

pub const MIB: u64 = 1 << 20;
pub const AGGR_NS: u64 = 100_000_000;

/// A region of `nr` accesses.
pub fn region(start: u64, end: u64, nr: u32) -> RegionSnapshot {
    RegionSnapshot {
        range: AddrRange::new(start, end),
        nr_accesses: nr,
        nr_accesses_bp: nr * 10_000,
        age: 3,
        ..RegionSnapshot::default()
    }
}

/// A snapshot of one target with DAMON's default intervals (5 ms, 100 ms, at most 20 accesses), the `index`th.
pub fn snapshot(index: u64, target: u64, regions: Vec<RegionSnapshot>) -> Snapshot {
    Snapshot {
        start_ns: index * AGGR_NS,
        end_ns: (index + 1) * AGGR_NS,
        sample_ns: 5_000_000,
        max_nr_accesses: 20,
        targets: vec![TargetSnapshot::new(TargetId(target), regions)],
    }
}

/// A mapping of an object with this inode (0: none) from this offset on.
pub fn mapping(start: u64, end: u64, perms: &str, name: &str, inode: u64, offset: u64) -> Mapping {
    let device = if inode > 0 { (0, 8) } else { (0, 0) };
    Mapping { start, end, perms: perms.to_owned().into(), name: name.into(), device, inode, offset }
}

/// The mappings of a target from the start.
pub fn mappings(target: u64, maps: Vec<Mapping>) -> Item {
    Item::Mappings(Mappings { target, maps: maps.into(), ..Mappings::default() })
}

/// A region of which nothing is known.
pub fn unknown(start: u64, end: u64) -> RegionSnapshot {
    RegionSnapshot { seen_bp: 0, exposure: 0, ..region(start, end, 0) }
}

/// Heat of snapshots inside `range` (all targets): Hz x bytes x seconds, and byte-seconds monitored.
pub fn heat(snapshots: &[Snapshot], range: AddrRange) -> (f64, f64) {
    let (mut heat, mut seen) = (0.0, 0.0);
    for snapshot in snapshots {
        let seconds = (snapshot.end_ns - snapshot.start_ns) as f64 / 1e9;
        for region in snapshot.targets.iter().flat_map(|t| &t.regions) {
            let bytes = region.range.intersection(range).size() as f64;
            heat += region.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses) * bytes * seconds;
            seen += bytes * seconds;
        }
    }
    (heat, seen)
}

/// Stairs: ten steps of 10 MiB in a mapping of 100 MiB at `base`, one hot at a time, `each` snapshots long.
pub fn stairs(base: u64, each: u64) -> Vec<Snapshot> {
    let step = 10 * MIB;
    (0..10 * each)
        .map(|i| {
            let hot = i / each;
            let regions = (0..10)
                .map(|s| region(base + s * step, base + (s + 1) * step, if s == hot { 20 } else { 0 }));
            snapshot(i, 1, regions.collect())
        })
        .collect()
}

/// Snapshots with gaps, changing intervals and any boundaries, in 0..4096 bytes and a few seconds.
pub fn any_snapshots() -> impl Strategy<Value = Vec<Snapshot>> {
    let regions = proptest::collection::vec((0u64..40, 1u64..300, 0u32..=20), 0..14);
    let snapshot = (0u64..50_000_000, 1u64..300_000_000, 1u64..10_000_000, regions);
    proptest::collection::vec(snapshot, 1..12).prop_map(|list| {
        let mut now = 0;
        list.into_iter()
            .map(|(pause, length, sample_ns, pieces)| {
                let start_ns = now + pause;
                now = start_ns + length;
                let mut at = 0;
                let mut regions = Vec::new();
                for (gap, size, nr) in pieces {
                    regions.push(region(at + gap, at + gap + size, nr));
                    at += gap + size;
                }
                let targets = vec![TargetSnapshot::new(TargetId(1), regions)];
                Snapshot { start_ns, end_ns: now, sample_ns, max_nr_accesses: 20, targets }
            })
            .collect()
    })
}
