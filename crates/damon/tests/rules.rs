//! DAMON's published rules and examples, seen from outside (notes: kernel unit tests, design document, seeds).
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use isotherm_damon::*;
use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
use std::time::Duration;

const PAGE: u64 = 4096;

/// An address space whose pages in `hot` are always accessed.
#[derive(Clone, Default)]
struct Fixed {
    ranges: Vec<AddrRange>,
    hot: Vec<AddrRange>,
    prepared: u64,
    age: Option<Duration>,
}

impl Operations for Fixed {
    fn ranges(&mut self, _target: TargetId) -> Vec<AddrRange> {
        self.ranges.clone()
    }
    fn take_changed(&mut self) -> Vec<TargetId> {
        (1..=2).map(TargetId).collect()
    }
    fn prepare(&mut self, checks: &mut [Check]) {
        self.prepared += checks.len() as u64;
        checks.iter_mut().for_each(|c| c.seen = Seen::Idle);
    }
    fn check(&mut self, checks: &mut [Check]) {
        for check in checks {
            check.unit = PAGE;
            let hot = self.hot.iter().any(|r| r.contains(check.addr));
            check.seen = if hot { Seen::Accessed } else { Seen::Idle };
        }
    }
    fn is_alive(&mut self, _target: TargetId) -> bool {
        true
    }
}

impl BlockOperations for Fixed {
    fn survey(&mut self, _target: TargetId, blocks: &mut Vec<u64>) -> bool {
        blocks.clear();
        for range in &self.ranges {
            let first = range.start / BLOCK_SIZE;
            blocks.extend((first..range.end.div_ceil(BLOCK_SIZE)).map(|b| b * BLOCK_SIZE));
        }
        blocks.dedup();
        true
    }
    fn look(&mut self, _target: TargetId, blocks: &mut [BlockLook]) -> bool {
        for look in blocks {
            look.mapped = Mapped::Table;
            for page in 0..BLOCK_PAGES {
                let addr = look.addr + page as u64 * PAGE;
                if self.ranges.iter().any(|r| r.contains(addr)) {
                    look.present.insert(page);
                    if self.hot.iter().any(|r| r.contains(addr)) {
                        look.young.insert(page);
                    }
                }
            }
        }
        true
    }
    fn clear(&mut self, _target: TargetId, ranges: &mut [RangeClear]) {
        self.prepared += ranges.len() as u64;
        ranges.iter_mut().for_each(|r| r.cleared = Cleared::Done);
    }
    fn ownership(&mut self, _target: TargetId, addrs: &[u64], found: &mut Vec<Ownership>) {
        found.clear();
        found.resize(addrs.len(), Ownership::Exclusive);
    }
    fn sweep(&mut self, _target: TargetId, _kind: Sweep) -> bool {
        false
    }
    fn age(&mut self, _target: TargetId) -> Option<Duration> {
        self.age
    }
}

fn pages(start: u64, count: u64) -> AddrRange {
    AddrRange::new(start * PAGE, (start + count) * PAGE)
}

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// Runs `ticks` sampling intervals on the grid.
fn run<S: Sampler<Fixed>>(
    monitor: &mut Monitor<Fixed, S>,
    from: &mut u64,
    ticks: u64,
    callbacks: &mut impl Callbacks,
) {
    let end = *from + ticks;
    while *from < end {
        let sample = monitor.attrs().sample.as_nanos() as u64;
        *from += monitor.tick(*from * sample, Allowance::UNLIMITED, callbacks);
    }
}

#[test]
fn attributes_are_validated_as_the_kernels_unit_tests_do() {
    let valid = Attrs::default();
    assert_eq!(valid.validate(), Ok(()));
    assert_eq!((valid.sample, valid.aggr, valid.update), (ms(5), ms(100), ms(1000)));
    assert_eq!((valid.min_nr_regions, valid.max_nr_regions, valid.max_nr_accesses()), (10, 1000, 20));
    assert_eq!(Attrs { min_nr_regions: 2, ..valid }.validate(), Err(AttrsError::MinTooSmall(2)));
    assert_eq!(Attrs { min_nr_regions: 3, ..valid }.validate(), Ok(()));
    assert_eq!(
        Attrs { min_nr_regions: 10, max_nr_regions: 9, ..valid }.validate(),
        Err(AttrsError::MaxBelowMin { min: 10, max: 9 })
    );
    let short = Attrs { sample: ms(6), aggr: ms(5), ..valid };
    assert_eq!(short.validate(), Err(AttrsError::AggrBelowSample { sample: ms(6), aggr: ms(5) }));
    assert!(Attrs { sample: Duration::ZERO, ..valid }.validate().is_err());
}

#[test]
fn the_moving_sum_fills_up_with_the_last_aggregation() {
    let mut region = Region::new(pages(0, 1));
    (region.nr_accesses, region.last_nr_accesses) = (3, 10);
    assert_eq!(region.moving_sum(5_000), 8);
    assert_eq!(region.moving_sum(10_000), 3);
    assert_eq!(region.moving_sum(0), 13);
}

#[test]
fn changed_intervals_rescale_ages_and_counts() {
    let ops = Fixed { ranges: vec![pages(0, 10)], hot: vec![pages(0, 10)], ..Fixed::default() };
    let mut monitor = Monitor::new(Attrs::default(), ops, Classic::new(), 1).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let mut now = 0;
    run(&mut monitor, &mut now, 20 * 20 + 1, &mut ());
    let before = monitor.targets()[0].regions[0];
    assert_eq!((before.last_nr_accesses, before.age >= 18), (20, true), "{before:?}");
    // Aggregation twice as long: half the age. Twice the highest count: twice the counts.
    monitor.set_attrs(Attrs { aggr: ms(200), ..Attrs::default() }).unwrap();
    let after = monitor.targets()[0].regions[0];
    assert_eq!((after.last_nr_accesses, after.age), (40, before.age / 2));
    let error = monitor.set_attrs(Attrs { min_nr_regions: 0, ..Attrs::default() });
    assert_eq!(error, Err(AttrsError::MinTooSmall(0)));
    assert_eq!(monitor.attrs().aggr, ms(200), "a refused change changes nothing");
}

/// Writes down which callback came when.
#[derive(Default)]
struct Journal {
    steps: Vec<&'static str>,
    snapshots: Vec<Snapshot>,
    counts: Vec<u32>,
}

impl Callbacks for Journal {
    fn before_start(&mut self, _targets: &[Target]) {
        self.steps.push("start");
    }
    fn after_sampling(&mut self, _targets: &[Target]) {
        self.steps.push("sampling");
    }
    fn after_aggregation(&mut self, targets: &mut [Target], snapshot: &Snapshot) {
        self.steps.push("aggregation");
        self.counts.extend(targets.iter().flat_map(|t| &t.regions).map(|r| r.nr_accesses));
        self.snapshots.push(snapshot.clone());
    }
    fn after_update(&mut self, _targets: &[Target]) {
        self.steps.push("update");
    }
    fn attrs_changed(&mut self, _attrs: &Attrs) {
        self.steps.push("attrs");
    }
    fn before_terminate(&mut self, _targets: &[Target]) {
        self.steps.push("terminate");
    }
}

#[test]
fn callbacks_come_at_each_step_in_order() {
    let ops = Fixed { ranges: vec![pages(0, 100)], hot: vec![pages(0, 100)], ..Fixed::default() };
    let attrs = Attrs { aggr: ms(15), update: ms(30), ..Attrs::default() };
    let mut monitor = Monitor::new(attrs, ops, Classic::new(), 1).unwrap();
    monitor.add_target(TargetId(7)).unwrap();
    assert_eq!(monitor.add_target(TargetId(7)), Err(MonitorError::TargetExists(7)));
    let mut journal = Journal::default();
    run(&mut monitor, &mut 0, 7, &mut journal);
    monitor.terminate(&mut journal);
    assert_eq!(
        journal.steps.join(" "),
        "start sampling sampling sampling aggregation sampling sampling sampling aggregation update terminate"
    );
    assert!(journal.counts.iter().all(|c| *c == 3), "counted, not yet reset: {:?}", journal.counts);
    let windows: Vec<_> = journal.snapshots.iter().map(|s| (s.start_ns, s.end_ns)).collect();
    assert_eq!(windows, [(0, 15_000_000), (15_000_000, 30_000_000)]);
    assert_eq!(journal.snapshots[0].max_nr_accesses, 3);
}

#[test]
fn a_late_caller_stretches_the_classic_aggregation() {
    // Ended by the number of samples, not by the clock (kernel design document, 6.7).
    let ops = Fixed { ranges: vec![pages(0, 100)], ..Fixed::default() };
    let mut monitor = Monitor::new(Attrs::default(), ops, Classic::new(), 1).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let mut journal = Journal::default();
    for tick in 0..=20u64 {
        monitor.tick(tick * 7_000_000, Allowance::UNLIMITED, &mut journal);
    }
    assert_eq!(journal.snapshots.len(), 1);
    assert_eq!(journal.snapshots[0].end_ns - journal.snapshots[0].start_ns, 140_000_000);
}

#[test]
fn auto_tuning_stretches_intervals_where_nothing_happens() {
    let ops = Fixed { ranges: vec![pages(0, 100)], ..Fixed::default() };
    let mut monitor = Monitor::new(Attrs::default(), ops, Classic::new(), 1).unwrap();
    monitor.set_intervals_goal(Some(IntervalsGoal::default()));
    monitor.add_target(TargetId(1)).unwrap();
    let mut journal = Journal::default();
    for tick in 0..=60u64 {
        monitor.tick(tick * 5_000_000, Allowance::UNLIMITED, &mut journal);
    }
    assert_eq!(journal.steps.iter().filter(|s| **s == "attrs").count(), 1);
    assert_eq!((monitor.attrs().sample, monitor.attrs().aggr), (ms(10), ms(200)));
}

#[test]
fn a_target_can_go_and_its_regions_with_it() {
    let ops = Fixed { ranges: vec![pages(0, 100)], ..Fixed::default() };
    let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 1).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    monitor.add_target(TargetId(2)).unwrap();
    let mut journal = Journal::default();
    let mut now = 0;
    run(&mut monitor, &mut now, 25, &mut journal);
    monitor.remove_target(TargetId(1));
    run(&mut monitor, &mut now, 40, &mut journal);
    let ids = |s: &Snapshot| s.targets.iter().map(|t| t.id.0).collect::<Vec<_>>();
    assert_eq!(ids(&journal.snapshots[0]), [1, 2]);
    assert_eq!(ids(journal.snapshots.last().unwrap()), [2]);
}

#[test]
fn an_empty_address_space_is_no_error() {
    for watch in [false, true] {
        let mut journal = Journal::default();
        if watch {
            let mut monitor = Monitor::new(Attrs::default(), Fixed::default(), Watch::new(), 1).unwrap();
            monitor.add_target(TargetId(1)).unwrap();
            run(&mut monitor, &mut 0, 50, &mut journal);
        } else {
            let mut monitor = Monitor::new(Attrs::default(), Fixed::default(), Classic::new(), 1).unwrap();
            monitor.add_target(TargetId(1)).unwrap();
            run(&mut monitor, &mut 0, 50, &mut journal);
        }
        assert!(journal.snapshots.iter().all(|s| s.nr_regions() == 0) && journal.snapshots.len() >= 2);
    }
}

/// What must hold of every snapshot, whatever the sampler and the pattern.
fn check_snapshots(
    journal: &Journal,
    tally: &Tally,
    ranges: &[AddrRange],
    attrs: &Attrs,
) -> Result<(), String> {
    let total: u64 = ranges.iter().map(|r| r.size()).sum();
    if tally.max_checks_per_sample > attrs.max_nr_regions as u64 {
        return Err(format!("{} checks in one interval", tally.max_checks_per_sample));
    }
    for snapshot in &journal.snapshots {
        let regions = &snapshot.targets[0].regions;
        // What the minimum needs apart: ranges that do not touch cannot share a region.
        if regions.len() > attrs.max_nr_regions.max(attrs.min_nr_regions + ranges.len()) {
            return Err(format!("{} regions", regions.len()));
        }
        let sorted = regions.windows(2).all(|p| p[0].range.end <= p[1].range.start);
        let aligned = regions.iter().all(|r| r.range.start % PAGE == 0 && r.range.end % PAGE == 0);
        let inside = regions.iter().all(|r| ranges.iter().any(|t| t.intersection(r.range) == r.range));
        let bytes: u64 = regions.iter().map(|r| r.range.size()).sum();
        let counted = regions.iter().all(|r| r.nr_accesses <= attrs.max_nr_accesses());
        if !(sorted && aligned && inside && bytes == total && counted) {
            return Err(format!(
                "sorted {sorted} aligned {aligned} inside {inside} counted {counted}, {bytes} of {total} bytes"
            ));
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(proptest::prelude::ProptestConfig::with_cases(48))]

    #[test]
    fn snapshots_are_well_formed(
        sizes in proptest::collection::vec((1u64..400, 1u64..5000), 1..4),
        hot in proptest::collection::vec((0u64..12_000, 1u64..600), 0..5),
        min in 3usize..30,
        more in 0usize..200,
        seed: u64,
        watch: bool,
    ) {
        let mut at = 0;
        let ranges: Vec<AddrRange> = sizes
            .iter()
            .map(|&(gap, size)| {
                at += gap + size;
                pages(at - size, size)
            })
            .collect();
        let hot = hot.into_iter().map(|(start, size)| pages(start, size)).collect();
        let attrs = Attrs { min_nr_regions: min, max_nr_regions: min + more, update: ms(50), ..Attrs::default() };
        let ops = Fixed { ranges: ranges.clone(), hot, ..Fixed::default() };
        let mut journal = Journal::default();
        let tally = if watch {
            let mut monitor = Monitor::new(attrs, ops, Watch::new(), seed).unwrap();
            monitor.add_target(TargetId(1)).unwrap();
            run(&mut monitor, &mut 0, 400, &mut journal);
            *monitor.tally()
        } else {
            let mut monitor = Monitor::new(attrs, ops, Classic::new(), seed).unwrap();
            monitor.add_target(TargetId(1)).unwrap();
            run(&mut monitor, &mut 0, 400, &mut journal);
            *monitor.tally()
        };
        prop_assert!(journal.snapshots.len() >= 15);
        prop_assert_eq!(check_snapshots(&journal, &tally, &ranges, &attrs), Ok(()));
    }
}

/// The upper half cannot be cleared, and its bits are set from before.
struct HalfBlind;

impl Operations for HalfBlind {
    fn ranges(&mut self, _: TargetId) -> Vec<AddrRange> {
        vec![AddrRange::new(0, 512 * PAGE_SIZE)]
    }
    fn take_changed(&mut self) -> Vec<TargetId> {
        Vec::new()
    }
    fn prepare(&mut self, checks: &mut [Check]) {
        for check in checks {
            check.seen = if check.addr < 256 * PAGE_SIZE { Seen::Idle } else { Seen::Blind };
        }
    }
    fn check(&mut self, checks: &mut [Check]) {
        for check in checks {
            check.unit = PAGE_SIZE;
            check.seen = if check.addr < 256 * PAGE_SIZE { Seen::Idle } else { Seen::Accessed };
        }
    }
    fn is_alive(&mut self, _: TargetId) -> bool {
        true
    }
}

#[test]
fn classic_counts_no_access_to_what_it_could_not_clear() {
    struct Last(Snapshot);
    impl Callbacks for Last {
        fn after_aggregation(&mut self, _: &mut [Target], snapshot: &Snapshot) {
            self.0 = snapshot.clone();
        }
    }
    let mut monitor = Monitor::new(Attrs::default(), HalfBlind, Classic::new(), 3).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let (mut last, mut now) = (Last(Snapshot::default()), 0);
    while now < 200 {
        now += monitor.tick(now * 5_000_000, Allowance::UNLIMITED, &mut last);
    }
    let regions = &last.0.targets[0].regions;
    assert!(regions.iter().all(|r| r.nr_accesses == 0), "{regions:?}");
    assert!(regions.iter().any(|r| r.seen_bp > 0), "{regions:?}");
    assert!(regions.iter().any(|r| r.seen_bp < 10_000), "{regions:?}");
}

/// Memory whose page tables cannot be read.
struct Blind(Fixed);

impl Operations for Blind {
    fn ranges(&mut self, target: TargetId) -> Vec<AddrRange> {
        self.0.ranges(target)
    }
    fn take_changed(&mut self) -> Vec<TargetId> {
        self.0.take_changed()
    }
    fn prepare(&mut self, checks: &mut [Check]) {
        self.0.prepare(checks);
    }
    fn check(&mut self, checks: &mut [Check]) {
        self.0.check(checks);
    }
    fn is_alive(&mut self, _target: TargetId) -> bool {
        true
    }
}

impl BlockOperations for Blind {
    fn survey(&mut self, _target: TargetId, _blocks: &mut Vec<u64>) -> bool {
        false
    }
    fn look(&mut self, _target: TargetId, _blocks: &mut [BlockLook]) -> bool {
        false
    }
    fn clear(&mut self, target: TargetId, ranges: &mut [RangeClear]) {
        self.0.clear(target, ranges);
    }
    fn ownership(&mut self, target: TargetId, addrs: &[u64], found: &mut Vec<Ownership>) {
        self.0.ownership(target, addrs, found);
    }
    fn sweep(&mut self, _target: TargetId, _kind: Sweep) -> bool {
        false
    }
}

#[test]
fn memory_whose_page_tables_cannot_be_read_is_unknown_not_absent() {
    let fixed = Fixed { ranges: vec![pages(0, 4096)], hot: vec![pages(0, 512)], prepared: 0, age: None };
    let mut monitor = Monitor::new(Attrs::default(), Blind(fixed), Watch::new(), 1).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let mut last = Last::default();
    for at in 0..200u64 {
        monitor.tick(at * 5_000_000, Allowance::UNLIMITED, &mut last);
        for region in &last.0 {
            assert!(region.is_unknown(), "{region:?} after {at} intervals");
            assert_eq!(region.resident, None, "{region:?} after {at} intervals");
        }
    }
    assert!(!last.0.is_empty());
}

#[test]
fn what_a_young_address_space_is_found_to_have_accessed_was_so_just_now() {
    // Bytes of each half that are known, and of those that are accessed, without a single clear.
    let found = |age: Option<Duration>| {
        let (touched, copied) = (pages(0, 4096), pages(4096, 4096));
        let fixed = Fixed { ranges: vec![pages(0, 8192)], hot: vec![touched], age, ..Fixed::default() };
        let mut monitor = Monitor::new(Attrs::default(), fixed, Watch::new(), 1).unwrap();
        monitor.add_target(TargetId(1)).unwrap();
        let mut last = Last::default();
        let allowance = Allowance { prepares: 0, ..Allowance::UNLIMITED };
        for at in 0..60u64 {
            monitor.tick(at * 5_000_000, allowance, &mut last);
        }
        [touched, copied].map(|half| {
            let known = last.0.iter().filter(|r| !r.is_unknown());
            let inside =
                |r: &RegionSnapshot| r.range.end.min(half.end).saturating_sub(r.range.start.max(half.start));
            let hot = known.clone().filter(|r| r.nr_accesses_bp > 0).map(inside).sum::<u64>();
            (known.map(inside).sum::<u64>() / PAGE, hot / PAGE)
        })
    };
    assert_eq!(found(Some(ms(100))), [(4096, 4096), (0, 0)], "what nobody touched since may be a copy");
    assert_eq!(found(Some(ms(3000))), [(0, 0); 2], "whenever that was");
    assert_eq!(found(None), [(0, 0); 2]);
}

/// The regions of the last snapshot.
#[derive(Default)]
struct Last(Vec<RegionSnapshot>);

impl Callbacks for Last {
    fn after_aggregation(&mut self, _targets: &mut [Target], snapshot: &Snapshot) {
        self.0 = snapshot.targets.iter().flat_map(|target| target.regions.iter().copied()).collect();
    }
}

#[test]
fn what_a_tick_would_end_is_told_before() {
    let ops = Fixed { ranges: vec![AddrRange::new(0, 64 * PAGE)], ..Fixed::default() };
    let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 1).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let ms = |ms: u64| 1_000_000_000 + ms * 1_000_000;
    assert!(monitor.concludes_at(ms(0)), "the first plans what comes");
    for (at, ends) in
        [(0, true), (10, false), (50, false), (95, false), (100, true), (105, false), (200, true)]
    {
        if at > 0 {
            assert_eq!(monitor.concludes_at(ms(at)), ends, "at {at} ms");
        }
        let mut snapshots = Count(0);
        monitor.tick(ms(at), Allowance::UNLIMITED, &mut snapshots);
        assert_eq!(snapshots.0, usize::from(ends && at > 0), "at {at} ms");
    }
    // One that comes late ends what it should have ended.
    assert!(monitor.concludes_at(ms(5000)));
}

/// Counts snapshots.
struct Count(usize);

impl Callbacks for Count {
    fn after_aggregation(&mut self, _targets: &mut [Target], _snapshot: &Snapshot) {
        self.0 += 1;
    }
}
