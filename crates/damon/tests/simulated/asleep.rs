//! Of a machine's processes nearly all sleep: the price of one that does, and what is known of it.

use crate::process;
use isotherm_damon::*;
use isotherm_simulated::{Keep, MIB, Pattern, Purse, Simulated, tick, worker};

const ALL: u64 = 1000;

fn hot_bytes(target: &TargetSnapshot) -> u64 {
    target.regions.iter().filter(|r| r.nr_accesses > 0).map(|r| r.range.size()).sum()
}

fn monitor(targets: u64) -> Monitor<Simulated, Watch> {
    monitor_of(worker(), targets)
}

fn monitor_of(pattern: Pattern, targets: u64) -> Monitor<Simulated, Watch> {
    let mut ops = Simulated::new(pattern);
    ops.tells_who_runs = true;
    let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 5).unwrap();
    for id in 1..=targets {
        monitor.add_target(TargetId(id)).unwrap();
    }
    monitor
}

/// Goes on until sampling interval `end` within the default ceiling; the last snapshot.
fn run(monitor: &mut Monitor<Simulated, Watch>, now: &mut u64, end: u64, purse: &mut Purse) -> Snapshot {
    let mut last = None;
    while *now < end {
        let mut keep = Keep::default();
        tick(monitor, now, purse, &mut keep);
        last = keep.0.pop().or(last);
    }
    last.unwrap()
}

#[test]
fn ten_of_a_thousand_that_run_are_found() {
    let mut monitor = monitor(ALL);
    let runs = |id: u64| id.is_multiple_of(100);
    monitor.ops().asleep = (1..=ALL).filter(|id| !runs(*id)).map(|id| (TargetId(id), 0)).collect();
    let (mut now, mut purse) = (0, Purse::full(1));
    let last = run(&mut monitor, &mut now, 200 * 8, &mut purse);
    for target in &last.targets {
        let (bytes, id) = (hot_bytes(target), target.id);
        let wanted = if runs(id.0) { 4 * MIB } else { 0 };
        assert!(bytes.abs_diff(wanted) <= MIB / 2, "target {id:?}: {bytes} bytes hot, {wanted} are");
    }
}

#[test]
fn what_a_sleeper_has_is_idle_and_known_to_be_without_a_clear() {
    let mut monitor = monitor(1);
    monitor.ops().asleep.insert(TargetId(1), 0);
    let (mut now, mut purse) = (0, Purse::full(1));
    let last = run(&mut monitor, &mut now, 200 * 4, &mut purse);
    let tally = *monitor.tally();
    // One clear or sweep may come before it is known that it sleeps.
    assert!(tally.ranges_cleared + tally.pages_swept <= 4000, "{tally:?}");
    let resident = |r: &&RegionSnapshot| r.resident.is_none_or(|bytes| bytes > 0);
    for region in last.targets[0].regions.iter().filter(resident) {
        assert!(region.seen_bp > 0 && region.nr_accesses == 0 && region.exposure >= 100, "{region:?}");
    }
    assert!(monitor.tally().checks < 400, "looks at what cannot change: {:?}", monitor.tally());
}

#[test]
fn one_that_falls_asleep_is_idle_at_once_and_hot_again_when_it_wakes() {
    let mut monitor = monitor(1);
    let id = TargetId(1);
    let (mut now, mut purse) = (0, Purse::full(1));
    let last = run(&mut monitor, &mut now, 200 * 4, &mut purse);
    assert!(hot_bytes(&last.targets[0]).abs_diff(4 * MIB) < MIB, "{}", hot_bytes(&last.targets[0]));
    monitor.ops().asleep.insert(id, now);
    let last = run(&mut monitor, &mut now, 200 * 6, &mut purse);
    assert_eq!(hot_bytes(&last.targets[0]), 0, "two seconds after it fell asleep");
    // It sleeps for a minute, and nothing of it is forgotten.
    let last = run(&mut monitor, &mut now, 200 * 66, &mut purse);
    assert!(last.targets[0].regions.iter().all(|r| r.seen_bp > 0), "{:?}", last.targets[0].regions);
    monitor.ops().asleep.remove(&id);
    let last = run(&mut monitor, &mut now, 200 * 69, &mut purse);
    assert!(hot_bytes(&last.targets[0]).abs_diff(4 * MIB) < MIB, "{}", hot_bytes(&last.targets[0]));
}

#[test]
fn one_too_large_for_a_look_at_all_of_it_at_once_is_idle_soon_after_it_fell_asleep() {
    let mut monitor = monitor_of(process(1400, &[(300 * 1024, 100 * 1024, 5.0)]), 1);
    let (mut now, mut purse) = (0, Purse::full(1));
    let last = run(&mut monitor, &mut now, 200 * 8, &mut purse);
    assert!(hot_bytes(&last.targets[0]) > 60 * MIB, "{}", hot_bytes(&last.targets[0]));
    monitor.ops().asleep.insert(TargetId(1), now);
    let last = run(&mut monitor, &mut now, 200 * 13, &mut purse);
    assert_eq!(hot_bytes(&last.targets[0]), 0, "five seconds after it fell asleep");
}

#[test]
fn one_that_runs_for_a_moment_every_second_has_a_rate_of_one_hertz() {
    // 4 MiB that are accessed once a second, in 10 MiB; it sleeps but for 20 ms of each second.
    let mut pattern = worker();
    for (_, rate) in pattern.areas.iter_mut().chain(&mut pattern.hot).filter(|(_, rate)| *rate > 0.0) {
        *rate = 1.0 / 200.0;
    }
    let area = pattern.hot[0].0;
    let mut monitor = monitor_of(pattern, 1);
    let (mut now, mut purse) = (0, Purse::full(1));
    let mut rates = Vec::new();
    while now < 200 * 40 {
        if now % 200 < 4 {
            monitor.ops().asleep.clear();
        } else {
            monitor.ops().asleep.entry(TargetId(1)).or_insert(now);
        }
        let mut keep = Keep::default();
        // It wakes up when it wants to, not when the monitor does.
        let wakes = now.next_multiple_of(200).max(now + 1);
        tick(&mut monitor, &mut now, &mut purse, &mut keep);
        now = now.min(wakes);
        for snapshot in keep.0 {
            let regions = snapshot.targets[0].regions.iter().filter(|r| r.range.intersects(area));
            let hz = |r: &RegionSnapshot| r.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses);
            let highest = regions.clone().map(hz).fold(0.0, f64::max);
            assert!(highest <= 30.0, "{highest} Hz at {now}");
            let heat = |r: &RegionSnapshot| r.range.intersection(area).size() as f64 * hz(r);
            rates.push(regions.map(heat).sum::<f64>() / area.size() as f64);
        }
    }
    let late = &rates[rates.len() / 2..];
    let mean = late.iter().sum::<f64>() / late.len() as f64;
    assert!((0.4..2.5).contains(&mean), "{mean} Hz");
}
