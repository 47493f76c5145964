//! Memory that others map too, which cannot be cleared alone.

use super::*;
use isotherm_simulated::{Purse, areas, tick};

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

#[test]
fn what_is_accessed_again_before_a_sweep_is_looked_at_is_known_to_be_hot() {
    // The program runs while the monitor waits for a processor, so after each sweep all that is hot is set again.
    let pattern = process(64, &[(0, 32 * 1024, 0.5)]);
    let (heap, hot) = (pattern.ranges[1], pattern.hot[0].0);
    let mut ops = Simulated::new(pattern.clone());
    ops.shared.push(heap);
    ops.sweeps_wait = 10;
    let run = run_on(ops, Watch::new(), &[(pattern, 60)], 40);
    for snapshot in run.snapshots.iter().skip(40) {
        let regions = snapshot.targets.iter().flat_map(|target| &target.regions);
        let told = |is_hot: bool| {
            let told = regions.clone().filter(|r| !r.is_unknown() && (r.nr_accesses > 0) == is_hot);
            told.map(|r| r.range.intersection(hot).size()).sum::<u64>()
        };
        assert!(
            told(true) > 30 * MIB,
            "{} of 32 MiB at {} s",
            told(true) / MIB,
            snapshot.end_ns / 1_000_000_000
        );
        assert_eq!(told(false) / MIB, 0, "told idle");
    }
}

#[test]
fn of_pages_that_differ_within_each_cell_a_working_set_is_told_also_where_looks_come_late() {
    // As a database's buffers: of 64 neighbours two are hot, eight in use, the others seldom.
    let kinds = [(8, 20.0), (32, 1.5), (216, 0.19)];
    let list: Vec<_> =
        (0..512).flat_map(|i| kinds.map(|(kib, hz)| (u64::from(i == 0 && kib == 8) * 8, kib, hz))).collect();
    let pattern = Pattern { kind: Kind::Random, ..areas(&list) };
    let buffers = AddrRange::new(pattern.areas[0].0.start, pattern.areas.last().unwrap().0.end);
    let within_a_second = |hz: f64| 1.0 - (-hz).exp();
    let truth = kinds.iter().map(|(kib, hz)| *kib as f64 / 256.0 * within_a_second(*hz)).sum::<f64>();
    // The last beside one who clears all bits once a second, as a scan of all pages does.
    for (share, thief) in [(0.01, None), (0.004, None), (0.002, None), (0.004, Some(200)), (0.002, Some(200))]
    {
        let mut ops = Simulated::new(pattern.clone());
        ops.thief = thief;
        ops.shared.push(buffers);
        let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 3).unwrap();
        for id in 1..=4 {
            monitor.add_target(TargetId(id)).unwrap();
        }
        let (mut now, mut purse, mut keep) = (0, Purse::full(4).with_share(share), Keep::default());
        while now < 20 * 100 {
            tick(&mut monitor, &mut now, &mut purse, &mut keep);
        }
        let (mut known, mut used) = (0.0, 0.0);
        for snapshot in keep.0.iter().filter(|s| s.end_ns > 3_000_000_000) {
            for region in snapshot.targets.iter().flat_map(|t| &t.regions).filter(|r| !r.is_unknown()) {
                let bytes = region.range.intersection(buffers).size() as f64;
                known += bytes;
                used += bytes * within_a_second(region.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses));
            }
        }
        let told = used / known;
        println!("{told:.3}, with {share} of a CPU and thief {thief:?}, true {truth:.3}");
        let most = if thief.is_none() { 0.1 } else { 0.2 };
        assert!(
            (told / truth - 1.0).abs() < most,
            "with {share} of a CPU and thief {thief:?} {told:.3}, true {truth:.3}"
        );
    }
}

#[test]
fn of_memory_that_is_mapped_around_what_is_accessed_the_rest_is_not_told_as_accessed() {
    // A database's new process: of buffers that others have filled it maps what it reads, 16 pages with each fault.
    let pattern = Pattern { kind: Kind::Random, ..areas(&[(0, 128 << 10, 0.2)]) };
    let buffers = AddrRange::new(pattern.areas[0].0.start, pattern.areas[0].0.end);
    let truth = 1.0 - (-0.2_f64).exp();
    for share in [0.01, 0.002] {
        let mut ops = Simulated::new(pattern.clone());
        ops.shared.push(buffers);
        ops.mapped_around.push(buffers);
        let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 3).unwrap();
        monitor.add_target(TargetId(1)).unwrap();
        let (mut now, mut purse, mut keep) = (0, Purse::full(1).with_share(share), Keep::default());
        while now < 12 * 200 {
            tick(&mut monitor, &mut now, &mut purse, &mut keep);
        }
        for second in 0..12 {
            let (mut known, mut used) = (0.0, 0.0);
            for snapshot in keep.0.iter().filter(|s| s.end_ns / 1_000_000_000 == second) {
                let regions = snapshot.targets.iter().flat_map(|t| &t.regions);
                for region in regions.filter(|r| !r.is_unknown()) {
                    let bytes = region.range.intersection(buffers).size() as f64;
                    let hz = region.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses);
                    known += bytes;
                    used += bytes * (1.0 - (-hz).exp());
                }
            }
            let told = used / f64::max(known, 1.0);
            println!("second {second}: {told:.3}, true {truth:.3}");
            assert!(
                told < truth * 1.3,
                "{told:.3} in second {second} with {share} of a CPU, true {truth:.3}"
            );
            assert!(second < 8 || told > truth * 0.7, "{told:.3} in second {second} with {share} of a CPU");
        }
    }
}
