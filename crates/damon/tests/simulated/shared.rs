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
fn seen(keep: &Keep, range: AddrRange) -> f64 {
    let regions = &keep.0.last().unwrap().targets[0].regions;
    let known = regions.iter().map(|r| r.range.intersection(range).size() as f64 * f64::from(r.seen_bp));
    known.sum::<f64>() / 10_000.0 / range.size() as f64
}

#[test]
fn pages_shared_with_a_child_are_counted_as_unseen_and_seen_again_after_its_end() {
    let pattern = process(16, &[(0, 16 * 1024, 0.5)]);
    let heap = pattern.ranges[1];
    let mut ops = Simulated::new(pattern);
    ops.shared.push(heap);
    let mut sampler = Watch::new();
    sampler.set_sweeps(false);
    let mut monitor = Monitor::new(Attrs::default(), ops, sampler, 7).unwrap();
    monitor.add_target(TargetId(1)).unwrap();
    let (mut keep, mut now) = (Keep::default(), 0);
    go(&mut monitor, &mut keep, &mut now, 20);
    assert!(seen(&keep, heap) < 0.01, "{} of shared memory was seen", seen(&keep, heap));
    assert!(monitor.tally().blind_shared >= heap.size() / PAGE, "{:?}", monitor.tally());
    assert_eq!(monitor.tally().blind_locked + monitor.tally().blind_split, 0);

    // The child ends: within two seconds, the time to the next try, and one to see it.
    monitor.ops().shared.clear();
    go(&mut monitor, &mut keep, &mut now, 30);
    assert!(seen(&keep, heap) > 0.99, "{} is seen afterwards", seen(&keep, heap));
}
