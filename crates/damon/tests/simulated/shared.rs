//! Memory that others map too, which cannot be cleared alone.

use super::*;

/// Runs for so many aggregations.
fn go(monitor: &mut Monitor<Simulated, Watch>, keep: &mut Keep, now: &mut u64, aggregations: u64) {
    let end = *now + aggregations * 20;
    while *now < end {
        *now += monitor.tick(*now * 5_000_000, Allowance::UNLIMITED, keep);
        monitor.ops().now = *now;
    }
}

/// Share of a range that is known in the last snapshot.
fn seen(snapshots: &[Snapshot], range: AddrRange) -> f64 {
    let regions = &snapshots.last().unwrap().targets[0].regions;
    let known = regions.iter().map(|r| r.range.intersection(range).size() as f64 * f64::from(r.seen_bp));
    known.sum::<f64>() / 10_000.0 / range.size() as f64
}

/// A monitor without sweeps, and memory of its target that another maps too.
fn sharing() -> (Monitor<Simulated, Watch>, AddrRange) {
    let pattern = process(16, &[(0, 16 * 1024, 0.5)]);
    let heap = pattern.ranges[1];
    let mut ops = Simulated::new(pattern);
    ops.shared.push(heap);
    let mut sampler = Watch::new();
    sampler.set_sweeps(false);
    let mut monitor = Monitor::new(Attrs::default(), ops, sampler, 7).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    (monitor, heap)
}

#[test]
fn pages_shared_with_a_child_are_counted_as_unseen_and_seen_again_after_its_end() {
    let (mut monitor, heap) = sharing();
    let (mut keep, mut now) = (Keep::default(), 0);
    go(&mut monitor, &mut keep, &mut now, 20);
    assert!(seen(&keep.0, heap) < 0.01, "{} of shared memory was seen", seen(&keep.0, heap));
    assert!(monitor.tally().blind_shared >= heap.size() / PAGE, "{:?}", monitor.tally());
    assert_eq!(monitor.tally().blind_locked + monitor.tally().blind_split, 0);

    // The child ends: within two seconds, the time to the next try, and one to see it.
    monitor.ops().shared.clear();
    go(&mut monitor, &mut keep, &mut now, 30);
    assert!(seen(&keep.0, heap) > 0.99, "{} is seen afterwards", seen(&keep.0, heap));
}

#[test]
fn what_a_child_shared_is_tried_again_as_soon_as_it_ends() {
    let (mut monitor, heap) = sharing();
    monitor.add_target(TargetId(2)).unwrap();
    let (mut keep, mut now) = (Keep::default(), 0);
    // Tried in vain just before.
    go(&mut monitor, &mut keep, &mut now, 23);
    monitor.ops().shared.clear();
    monitor.remove_target(TargetId(2));
    go(&mut monitor, &mut keep, &mut now, 6);
    assert!(seen(&keep.0, heap) > 0.99, "{} is seen after 0.6 s", seen(&keep.0, heap));
}

#[test]
fn what_was_found_accessed_by_a_sweep_and_turns_out_to_be_shared_is_swept_again() {
    // A parent that goes over all of its memory 20 times a second; of most of it a child has a mapping too.
    let pattern = process(100, &[(0, 100 * 1024, 0.1)]);
    let heap = pattern.ranges[1];
    let mut ops = Simulated::new(pattern.clone());
    ops.shared.push(AddrRange::new(heap.start, heap.start + 60 * MIB));
    let run = run_on(ops, Watch::new(), &[(pattern, 70)], 4);
    let known = seen(&run.snapshots, heap);
    assert!(known > 0.9, "after 7 s {known} of it is known, {:?}", run.tally);
}
