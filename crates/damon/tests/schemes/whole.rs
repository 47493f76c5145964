//! Whole runs: a program with a build phase and a long phase that uses a tenth of its memory, some of which nobody can
//! observe, and the seeds' proactive reclaim.

use crate::*;
use isotherm_simulated::{Kind, Pattern, Simulated};
use std::time::Duration;

const BASE: u64 = 1 << 40;

/// Memory of which a part cannot be cleared, as if it were locked; its Accessed bits are set from before.
struct Locked {
    memory: Simulated,
    locked: AddrRange,
}

impl Operations for Locked {
    fn ranges(&mut self, target: TargetId) -> Vec<AddrRange> {
        self.memory.ranges(target)
    }
    fn take_changed(&mut self) -> Vec<TargetId> {
        self.memory.take_changed()
    }
    fn prepare(&mut self, checks: &mut [Check]) {
        for check in checks {
            if self.locked.contains(check.addr) {
                check.seen = Seen::Blind;
            } else {
                self.memory.prepare(std::slice::from_mut(check));
            }
        }
    }
    fn check(&mut self, checks: &mut [Check]) {
        self.memory.check(checks);
    }
    fn is_alive(&mut self, _target: TargetId) -> bool {
        true
    }
}

impl BlockOperations for Locked {
    fn survey(&mut self, target: TargetId, blocks: &mut Vec<u64>) -> bool {
        self.memory.survey(target, blocks)
    }
    fn look(&mut self, target: TargetId, blocks: &mut [BlockLook]) -> bool {
        self.memory.look(target, blocks)
    }
    fn clear(&mut self, target: TargetId, ranges: &mut [RangeClear]) {
        for range in ranges {
            if self.locked.intersects(range.range) {
                range.cleared = Cleared::Refused;
            } else {
                self.memory.clear(target, std::slice::from_mut(range));
            }
        }
    }
    fn ownership(&mut self, target: TargetId, addrs: &[u64], found: &mut Vec<Ownership>) {
        self.memory.ownership(target, addrs, found);
        for (addr, owner) in addrs.iter().zip(found) {
            if self.locked.contains(*addr) {
                *owner = Ownership::Unclearable;
            }
        }
    }
    fn sweep(&mut self, _target: TargetId, _kind: Sweep) -> bool {
        false
    }
}

/// Keeps what regions there were, and looks whether they are what they should be.
#[derive(Default)]
struct Keep {
    last: Snapshot,
    most: usize,
}

impl Callbacks for Keep {
    fn after_aggregation(&mut self, targets: &mut [Target], snapshot: &Snapshot) {
        let regions = &snapshot.targets[0].regions;
        self.most = self.most.max(regions.len());
        assert!(regions.windows(2).all(|p| p[0].range.end <= p[1].range.start));
        assert!(regions.iter().all(|r| r.range.start % PAGE == 0 && !r.range.is_empty()));
        assert_eq!(regions.iter().map(|r| r.range.size()).sum::<u64>(), 300 * MIB);
        assert!(regions.iter().all(|r| r.resident.is_none_or(|bytes| bytes <= r.range.size())));
        // What is handed out is what there is after the schemes acted.
        assert!(regions.iter().zip(&targets[0].regions).all(|(s, r)| *s == r.snapshot()));
        if snapshot.targets[0].steady {
            // Who leaves out what is steady makes it up from the snapshot before.
            let before = &self.last.targets[0].regions;
            assert!(before.len() == regions.len());
            assert!(before.iter().zip(regions).all(|(b, r)| RegionSnapshot { age: b.age + 1, ..*b } == *r));
        }
        self.last = snapshot.clone();
    }
}

struct Run {
    recorder: Recorder,
    stats: Stats,
    most_regions: usize,
}

fn mib(start: u64, end: u64) -> AddrRange {
    AddrRange::new(BASE + start * MIB, BASE + end * MIB)
}

/// Where the locked part lies, and what the long phase uses.
const LOCKED: (u64, u64) = (200, 220);
const NOTHING: AddrRange = AddrRange::new(0, 0);
const USED: (u64, u64) = (60, 90);

/// 300 MiB, of which 20 cannot be observed: 3 s of use of all of it, then 20 s of use of 30 MiB.
fn run<S: Sampler<Locked>>(sampler: S, scheme: Scheme, locked: AddrRange, seed: u64) -> Run {
    let memory = |hot| Pattern {
        ranges: vec![mib(0, 300)],
        hot: vec![(hot, 1.0)],
        areas: Vec::new(),
        front: None,
        unit: PAGE,
        kind: Kind::Random,
    };
    let ops = Locked { memory: Simulated::new(memory(mib(0, 300))), locked };
    let mut monitor = Monitor::new(Attrs::default(), ops, sampler, seed).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let mut all = schemes(vec![scheme]);
    let (mut now, mut recorder, mut keep) = (0u64, Recorder::default(), Keep::default());
    let allowance =
        Allowance { checks: 4000, wake_ups_per_aggr: 7, asked_per_aggr: 64, ..Allowance::UNLIMITED };
    for (end, hot) in [(600, mib(0, 300)), (4600, mib(USED.0, USED.1))] {
        monitor.ops().memory.change(memory(hot));
        while now < end {
            now += monitor.tick(now * 5 * MS, allowance, &mut all.driver(&mut recorder, &mut (), &mut keep));
            monitor.ops().memory.now = now;
        }
        if end == 600 && !all.schemes()[0].unknown {
            assert_eq!(recorder.bytes(), 0, "nothing is idle while all is built");
        }
    }
    Run { recorder, stats: all.stats(0).unwrap().clone(), most_regions: keep.most }
}

fn prcl() -> Scheme {
    let idle = AccessPattern::ANY.size(PAGE, u64::MAX).share(0, 500);
    Scheme::new(idle.age(Duration::from_millis(500), Duration::MAX), Action::Pageout)
}

/// Bytes of a range that were acted on, each counted once.
fn touched(recorder: &Recorder, range: AddrRange) -> u64 {
    let mut calls: Vec<AddrRange> = recorder.calls.iter().map(|c| c.range.intersection(range)).collect();
    calls.sort_unstable();
    let (mut bytes, mut at) = (0, 0);
    for call in calls {
        bytes += call.end.saturating_sub(call.start.max(at));
        at = at.max(call.end);
    }
    bytes
}

fn check(run: &Run, locked: AddrRange, least_percent: u64, name: &str) {
    let used = mib(USED.0, USED.1);
    let rest = 270 * MIB - locked.size();
    let cold = touched(&run.recorder, mib(0, 300)) - touched(&run.recorder, used);
    let hot = touched(&run.recorder, used);
    println!(
        "{name}: {} of {} cold MiB paged out, {} KiB of the 30 MiB in use, at most {} regions, {} MiB left alone",
        cold / MIB,
        rest / MIB,
        hot / 1024,
        run.most_regions,
        run.stats.sz_unknown_last / MIB
    );
    assert!(cold >= rest * least_percent / 100, "{name}: {} MiB", cold / MIB);
    assert!(hot <= 30 * MIB / 100, "{name}: {} KiB of what is in use", hot / 1024);
    assert_eq!(touched(&run.recorder, locked), 0, "{name}: what is unknown");
    assert!(run.recorder.calls.iter().all(|c| !c.known.is_unknown()), "{name}");
    assert_eq!(run.stats.sz_unknown_last > 0, !locked.is_empty(), "{name}");
    assert!(run.stats.sz_unknown_last <= locked.size(), "{name}");
    assert!(run.most_regions <= 1000, "{name}: {} regions", run.most_regions);
}

#[test]
fn prcl_pages_out_what_is_cold_and_never_what_is_unknown() {
    let locked = mib(LOCKED.0, LOCKED.1);
    // When nearly all of it falls silent at once, what does not is a tenth: mostly no check meets it. It was told idle with the rest, and
    // paged out, with half of the seeds.
    for seed in 7..15 {
        check(&run(Watch::new(), prcl(), locked, seed), locked, 99, "watch");
    }
}

#[test]
fn so_it_does_with_the_kernels_sampler() {
    check(&run(Classic::new(), prcl(), NOTHING, 7), NOTHING, 97, "classic");
}

#[test]
fn a_quota_that_splits_regions_does_not_make_ever_more_of_them() {
    // 3 MiB every 50 ms, in the middle of aggregations too.
    let quota = Quota {
        bytes: Some(3 * MIB),
        reset_interval: Duration::from_millis(50),
        weights: Weights { size: 0, frequency: 1, age: 1 },
        ..Quota::default()
    };
    let scheme =
        || Scheme { quota: quota.clone(), apply_interval: Some(Duration::from_millis(50)), ..prcl() };
    let locked = mib(LOCKED.0, LOCKED.1);
    let watched = run(Watch::new(), scheme(), locked, 7);
    check(&watched, locked, 99, "watch, quota");
    assert!(watched.stats.qt_exceeds > 70, "{}", watched.stats.qt_exceeds);
    // Regions that were split are merged again, so that some have their turn twice before others have their first.
    check(&run(Classic::new(), scheme(), NOTHING, 7), NOTHING, 80, "classic, quota");
}

#[test]
fn unknown_memory_is_touched_if_the_scheme_says_so() {
    let locked = mib(LOCKED.0, LOCKED.1);
    let run = run(Watch::new(), Scheme { unknown: true, ..prcl() }, locked, 7);
    assert!(touched(&run.recorder, locked) >= 18 * MIB);
    assert_eq!(run.stats.sz_unknown, 0);
}
