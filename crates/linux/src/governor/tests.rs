//! The account against what a thread of its kind spends.

use super::*;

const SAMPLE_NS: u64 = 5_000_000;

/// Ticks for `seconds`; each costs `cost` of its wait since the last. Gives the number of ticks and the CPU spent.
fn run(
    governor: &mut Governor,
    seconds: u64,
    now: &mut u64,
    cpu: &mut Duration,
    cost: Duration,
) -> (u64, Duration) {
    let (mut ticks, before, end) = (0, *cpu, *now + seconds * 1_000_000_000);
    while *now < end {
        governor.settle_at(*now, *cpu);
        let wait = governor.must_wait(*now, true);
        if wait == 0 {
            ticks += 1;
            *cpu += cost;
        } else {
            // Finding out that nothing can be done costs a wake-up, too.
            *cpu += Duration::from_micros(20);
        }
        *now += wait.div_ceil(SAMPLE_NS).max(1) * SAMPLE_NS;
    }
    (ticks, *cpu - before)
}

fn governor() -> (Governor, u64, Duration) {
    governor_of(0.01)
}

fn governor_of(share: f64) -> (Governor, u64, Duration) {
    let mut governor = Governor::new(share);
    governor.last_cpu = Duration::ZERO;
    governor.settle_at(1, Duration::ZERO);
    (governor, 1, Duration::ZERO)
}

#[test]
fn ticks_too_dear_for_the_ceiling_are_skipped() {
    let (mut governor, mut now, mut cpu) = governor();
    run(&mut governor, 10, &mut now, &mut cpu, Duration::from_micros(300));
    let (ticks, spent) = run(&mut governor, 100, &mut now, &mut cpu, Duration::from_micros(300));
    let share = spent.as_secs_f64() / 100.0;
    assert!((0.007..=0.01).contains(&share), "{share}");
    // What is spent goes into ticks, not into finding out that there is nothing to spend.
    assert!(ticks as f64 * 300e-6 > 0.85 * spent.as_secs_f64(), "{ticks} ticks in {spent:?}");
}

#[test]
fn ticks_that_are_dearer_than_what_can_be_saved_up_go_on_all_the_same() {
    let (mut governor, mut now, mut cpu) = governor();
    governor.tick_ns = 20e6;
    let (ticks, spent) = run(&mut governor, 100, &mut now, &mut cpu, Duration::from_millis(20));
    assert!(ticks >= 20 && spent.as_secs_f64() < 1.1, "{ticks} ticks in {spent:?}");
}

#[test]
fn one_dear_step_does_not_stop_monitoring_and_is_made_good() {
    let (mut governor, mut now, mut cpu) = governor();
    run(&mut governor, 10, &mut now, &mut cpu, Duration::from_micros(60));
    cpu += Duration::from_millis(60);
    let (ticks, spent) = run(&mut governor, 2, &mut now, &mut cpu, Duration::from_micros(60));
    assert!(ticks > 50, "{ticks} ticks in the two seconds after");
    // Of 20 ms that the ceiling allows, a quarter pays back.
    assert!(spent < Duration::from_millis(15), "{spent:?}");
    let (_, spent) = run(&mut governor, 28, &mut now, &mut cpu, Duration::from_micros(60));
    let share = (spent.as_secs_f64() + 0.060 + 0.016) / 30.0;
    assert!(share < 0.0105, "{share}");
}

#[test]
fn what_starting_cost_is_made_good() {
    let (mut governor, mut now, mut cpu) = governor();
    governor.spent_before(clock::of_this_thread() + Duration::from_millis(14));
    assert!((13e6..15e6).contains(&governor.start_deficit), "{}", governor.start_deficit);
    let (ticks, spent) = run(&mut governor, 1, &mut now, &mut cpu, Duration::from_micros(100));
    assert!(
        ticks > 100 && spent > Duration::from_millis(12),
        "what may be spent at once is there: {ticks}, {spent:?}"
    );
    let (_, spent) = run(&mut governor, 14, &mut now, &mut cpu, Duration::from_micros(100));
    assert!(spent < Duration::from_millis(14 * 96 / 10 - 10), "{spent:?}");
    assert!(governor.start_deficit < 1.0, "{}", governor.start_deficit);
}

#[test]
fn the_lowest_ceilings_slow_monitoring_down_and_never_end_it() {
    for share in [0.0001, 0.0005, 0.001, 0.003] {
        let (mut governor, mut now, mut cpu) = governor_of(share);
        let wake_up = Duration::from_micros(40);
        let cost = |ticked: bool| wake_up + if ticked { Duration::from_micros(20) } else { Duration::ZERO };
        let (mut late, mut spent) = (0, Duration::ZERO);
        while now < 300_000_000_000 {
            governor.settle_at(now, cpu);
            let wait = governor.must_wait(now, true);
            late += u32::from(wait == 0 && now > 200_000_000_000);
            cpu += cost(wait == 0);
            spent += cost(wait == 0);
            // Chores of the session wake it up, too.
            now += wait.div_ceil(SAMPLE_NS).clamp(1, 20) * SAMPLE_NS;
        }
        assert!(late > 2, "{share}: {late} ticks in the last 100 s");
    }
}

#[test]
fn with_many_targets_clears_have_their_share_whatever_looks_take() {
    let attrs = Attrs::default();
    for (targets, has_share) in [(4, false), (100, true)] {
        let (mut governor, mut now, mut cpu) = governor();
        governor.set_targets(targets);
        // All that is free goes into other things.
        run(&mut governor, 20, &mut now, &mut cpu, Duration::from_micros(300));
        let allowance = governor.allowance(&attrs, true);
        assert_eq!(allowance.prepares >= 10, has_share, "{targets} targets: {allowance:?}");
        assert!(allowance.by_turns <= allowance.checks, "{allowance:?}");
        let (_, spent) = run(&mut governor, 60, &mut now, &mut cpu, Duration::from_micros(300));
        assert!(spent.as_secs_f64() / 60.0 > 0.008, "once it is full, all goes to the rest: {spent:?}");
    }
}

#[test]
fn what_observers_spend_keeps_within_the_ceiling() {
    let (mut governor, mut now, mut cpu) = governor();
    let (mut spent, mut ticks) = (Duration::ZERO, 0);
    for _ in 0..60 {
        let (ticked, took) = run(&mut governor, 1, &mut now, &mut cpu, Duration::from_micros(60));
        governor.charge(Duration::from_millis(4));
        (ticks, spent) = (ticks + ticked, spent + took + Duration::from_millis(4));
    }
    let share = spent.as_secs_f64() / 60.0;
    assert!(share < 0.0101, "{share}");
    assert!(ticks > 60 * 20, "{ticks} ticks");
    // What is no longer taken goes into monitoring.
    for _ in 0..20 {
        run(&mut governor, 1, &mut now, &mut cpu, Duration::from_micros(60));
        governor.charge(Duration::ZERO);
    }
    let (_, spent) = run(&mut governor, 20, &mut now, &mut cpu, Duration::from_micros(60));
    assert!((0.0092..0.0101).contains(&(spent.as_secs_f64() / 20.0)), "{spent:?}");
}

/// What observers took to describe 33 processes, once, was put aside for every second that followed: nothing was sampled for 4.6 s.
#[test]
fn what_observers_spend_once_is_not_put_aside_for_the_next_seconds() {
    let ticks_after = |burst: Duration| {
        let (mut governor, mut now, mut cpu) = governor();
        governor.set_targets(33);
        let mut ticks = 0;
        for second in 0..8 {
            let (ticked, _) = run(&mut governor, 1, &mut now, &mut cpu, Duration::from_micros(60));
            governor.charge(if second == 1 { burst } else { Duration::from_micros(300) });
            ticks += if second > 1 { ticked } else { 0 };
        }
        ticks
    };
    let (with, without) = (ticks_after(Duration::from_millis(10)), ticks_after(Duration::from_micros(300)));
    // Ten of the sixty milliseconds are gone, and little more than as much again.
    assert!(5 * with > 4 * without, "{with} ticks, {without} without it");
}

/// What comes every other second lasts, too.
#[test]
fn what_observers_spend_by_turns_is_put_aside_for() {
    let (mut governor, mut now, mut cpu) = governor();
    for second in 0..40 {
        run(&mut governor, 1, &mut now, &mut cpu, Duration::from_micros(60));
        governor.charge(Duration::from_millis(if second % 2 == 0 { 6 } else { 0 }));
    }
    assert!((2e6..4e6).contains(&governor.beside), "{} ns a second", governor.beside);
}

#[test]
fn of_many_targets_looks_that_are_due_come_in_time_and_the_ceiling_holds() {
    let attrs = Attrs::default();
    let (mut governor, mut now, mut cpu) = governor();
    governor.set_targets(128);
    let mut late = 0;
    let end = 100_000_000_000;
    while now < end {
        governor.settle_at(now, cpu);
        let wait = governor.must_wait(now, true);
        cpu += Duration::from_micros(20);
        if wait > 0 {
            now += wait.div_ceil(SAMPLE_NS).max(1) * SAMPLE_NS;
            continue;
        }
        // It clears, for more than there is, and looks in the next intervals.
        cpu += Duration::from_micros(1500);
        for _ in 0..3 {
            now += SAMPLE_NS;
            governor.settle_at(now, cpu);
            late += u32::from(governor.must_wait(now, false) > 0);
            assert!(
                governor.allowance(&attrs, false).checks
                    > LEAST_LOOKS.0 + governor.allowance(&attrs, false).checks_a_call
            );
            cpu += Duration::from_micros(100);
        }
        now += SAMPLE_NS;
    }
    assert_eq!(late, 0);
    let share = cpu.as_secs_f64() / 100.0;
    assert!((0.008..=0.0105).contains(&share), "{share}");
}

#[test]
fn past_the_largest_deficit_even_looks_that_are_due_wait() {
    let (mut governor, now, _) = governor();
    governor.set_targets(128);
    governor.deficit = most_deficit(0.01) + 1e6;
    assert!(governor.must_wait(now, false) > 0);
    // Where starting is not paid back yet either, nothing is left of what comes in.
    (governor.start_deficit, governor.tokens) = (1e6, -1e6);
    assert_eq!(governor.must_wait(now, true), LONGEST_WAIT);
}

#[test]
fn what_calls_and_what_each_clear_costs_are_told_apart() {
    let mut line = Line::new(35_000.0, 25_000.0);
    // Of twice the price, in calls of a few and of many.
    for each in (0..400).map(|i| [2.0, 3.0, 3.0, 4.0, 20.0][i % 5]) {
        line.learn(1.0, each, 70_000.0 + each * 10_000.0);
    }
    assert!(
        (line.call_ns - 70_000.0).abs() < 5_000.0 && (line.each_ns - 10_000.0).abs() < 1_000.0,
        "{line:?}"
    );
    // All alike: what they cost together.
    for _ in 0..2000 {
        line.learn(1.0, 3.0, 50_000.0);
    }
    assert!((line.call_ns + 3.0 * line.each_ns - 50_000.0).abs() < 2_500.0, "{line:?}");
    assert!(line.call_ns >= 0.0 && line.each_ns >= 200.0, "{line:?}");
    // Where it is by pages alone there are no calls.
    (0..2000).for_each(|_| line.learn(0.0, 5.0, 5_000.0));
    assert!((line.each_ns - 1_000.0).abs() < 50.0, "{line:?}");
    // Where it never was anything else, as with pages of `idle`.
    let mut pages = Line::new(35_000.0, 25_000.0);
    (0..400).for_each(|_| pages.learn(0.0, 5.0, 1_500.0));
    assert!((pages.each_ns - 300.0).abs() < 15.0, "{pages:?}");
    // One that took a hundred times as long.
    line.learn(0.0, 5.0, 500_000.0);
    assert!(line.each_ns < 1_100.0, "{line:?}");
}
