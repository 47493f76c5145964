use super::*;

use super::super::tuning::AT_5_MS as T;

fn at(now: u64) -> Moment {
    Moment { now, at: now * 1000 }
}

fn seen(moment: Moment, gap: u64, longest: u64) -> Look<'static> {
    Look { moment, gap, longest, theft: Theft::default(), beside: 0, tuning: &T }
}

/// Rate after windows of the cell's own choosing over pages that are all accessed at the intervals `accessed` says.
fn settle(accessed: impl Fn(u64, u64) -> bool, windows: u64) -> f32 {
    let mut cell = Cell { present: u64::MAX, state: State::Unseen, ..Cell::default() };
    let mut now = 1000;
    let (mut sum, mut rng) = (0.0, crate::Rng::new(5));
    for index in 0..windows {
        cell.open(u64::MAX, true, at(now), 20, &T);
        let State::Watching { since, due, .. } = cell.state else { panic!("not watching") };
        let young = if accessed(since, due) { u64::MAX } else { 0 };
        cell.looked(u64::MAX, young, &seen(at(due), 1, 20));
        // Windows begin anywhere in an aggregation.
        now = due + rng.below(23);
        sum += if index >= windows / 4 { cell.rate() } else { 0.0 };
    }
    sum / (windows - windows / 4) as f32
}

#[test]
fn periodic_and_random_accesses_give_the_same_rate() {
    for period in [4u64, 10, 20] {
        let periodic = settle(|from, to| (from / 1000..to).any(|t| t % period == 0), 400);
        let want = 1.0 / period as f32;
        assert!((periodic / want - 1.0).abs() < 0.35, "every {period}: {periodic} instead of {want}");
        let random = settle(
            |from, to| {
                (from / 1000..to).any(|t| {
                    let hash = t.wrapping_mul(0x9e37_79b9_7f4a_7c15);
                    (hash ^ hash >> 31).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 33 & 0xffff < 65536 / period
                })
            },
            400,
        );
        assert!((random / want - 1.0).abs() < 0.35, "at random, 1 in {period}: {random} instead of {want}");
    }
}

#[test]
fn what_is_first_found_accessed_after_too_long_is_to_be_seen_anew_once() {
    let closed = |cell: &mut Cell, from: u64, length: u64| {
        cell.open(u64::MAX, true, at(from), 20, &T);
        cell.looked(u64::MAX, u64::MAX, &seen(at(from + length), 1, 20));
        cell.state
    };
    let unseen = Cell { present: u64::MAX, state: State::Unseen, ..Cell::default() };
    let mut in_time = unseen;
    assert_eq!(closed(&mut in_time, 1000, 40), State::Lit);
    let mut late = unseen;
    assert_eq!(closed(&mut late, 1000, 41), State::Unseen);
    assert!(late.evidence.floor && late.rate() > 0.0, "that it was accessed is known");
    assert_eq!(closed(&mut late, 1100, 100), State::Lit, "not for ever");
}

#[test]
fn what_is_left_of_a_window_and_never_accessed_shows_which_pages_are() {
    let hot = 0x0101_0101_0101_0101;
    let mut cell = Cell { present: u64::MAX, state: State::Unseen, ..Cell::default() };
    cell.open(u64::MAX, true, at(1000), 20, &T);
    let mut now = 1020;
    while now < 10_000 && matches!(cell.state, State::Watching { .. }) {
        // Half of them within the first 20 intervals, the others soon after.
        let young = if now == 1020 { hot & u64::from(u32::MAX) } else { hot };
        cell.looked(u64::MAX, young, &seen(at(now), 1, 20));
        now += 20;
    }
    assert_eq!((cell.state, cell.focus.known()), (State::Unseen, Some(hot)), "to be cleared again");
    let rate = cell.rate();
    assert!(rate > 0.004 && cell.evidence.floor, "{rate}: all of those were accessed within a second");
    // Cleared again and idle, they fell silent as well.
    cell.open(hot, true, at(now), 20, &T);
    for after in 1..=100 {
        cell.looked(u64::MAX, hot & !cell.window, &seen(at(now + after * 20), 1, 20));
    }
    assert_eq!((cell.rate(), cell.focus.known()), (0.0, None));
}

#[test]
fn a_page_that_appears_was_accessed_and_is_unknown_later() {
    let mut cell = Cell::default();
    assert_eq!(cell.looked(0, 0, &seen(at(10), 10, 20)), Told::Nothing);
    assert_eq!(cell.looked(0xff, 0xff, &seen(at(20), 10, 20)), Told::Appeared);
    // Of a cell of which an eighth appeared, an eighth is accessed within a second, and not all of it as often as that makes on the mean.
    let second = T.appeared as i32;
    let within_a_second = |(hits, exposure): (f32, f32)| 1.0 - (1.0 - hits / exposure).powi(second);
    let told = |cell: &Cell, now| (within_a_second(cell.known(now, &T)), cell.known(now, &T).1);
    let is_about = |(share, exposure): (f32, f32), wanted: f32, since: f32| {
        assert!((share - wanted).abs() < 0.02 * wanted && exposure == since, "{share} in {exposure}");
    };
    is_about(told(&cell, 20), 0.125, 10.0);
    is_about(told(&cell, 30), 0.125, 10.0 + 10.0 / T.new_fades);
    assert_eq!(cell.looked(0xff_ffff, 0xff_ffff, &seen(at(40), 20, 20)), Told::Appeared);
    is_about(told(&cell, 41), 0.375, 30.0 + 1.0 / T.new_fades);
    let mut cell = Cell::default();
    assert_eq!(cell.looked(0, 0, &seen(at(10), 10, 20)), Told::Nothing);
    assert_eq!(cell.looked(u64::MAX, u64::MAX, &seen(at(20), 10, 20)), Told::Appeared);
    assert_eq!(cell.known(30, &T), (1.0, 10.0 + 10.0 / T.new_fades));
    assert_eq!(cell.known(20 + T.appeared + 1, &T), (0.0, 0.0), "unknown, not cold");
}

#[test]
fn what_was_written_once_counts_as_accessed_for_a_while_also_if_it_is_idle_since() {
    let mut cell = Cell::default();
    cell.looked(0, 0, &seen(at(10), 10, 20));
    cell.looked(u64::MAX, u64::MAX, &seen(at(20), 10, 20));
    cell.open(u64::MAX, true, at(25), 20, &T);
    cell.looked(u64::MAX, 0, &seen(at(45), 20, 20));
    assert_eq!(cell.known(46, &T), (1.0, 10.0 + 26.0 / T.new_fades));
    let (hits, exposure) = cell.known(20 + T.appeared + 1, &T);
    assert_eq!(hits, 0.0);
    assert!(exposure >= 20.0, "what was seen since counts from then on: {exposure}");
}

#[test]
fn what_was_there_at_the_first_look_was_not_seen_to_appear() {
    let mut cell = Cell::default();
    assert_eq!(cell.looked(0xff, 0xff, &seen(at(20), 0, 20)), Told::Changed);
    assert_eq!(cell.known(20, &T), (0.0, 0.0));
}

/// What a single clear shows of pages that are each accessed at random, at `rate` an interval.
fn after_one_clear(rate: f32, shared: bool) -> (f32, u64) {
    let (mut sum, mut until) = (0.0, 0);
    for seed in 0..50 {
        let mut rng = crate::Rng::new(seed * 77 + 1);
        let mut young_from = [0.0f32; 64];
        young_from.iter_mut().for_each(|at| {
            let uniform = (rng.below(1_000_000) + 1) as f32 / 1_000_001.0;
            // -ln(x), by its series in (1 - x) / (1 + x).
            let mut x = uniform;
            let mut ln = 0.0;
            while x < 0.5 {
                (x, ln) = (x * 2.0, ln + core::f32::consts::LN_2);
            }
            let y = (1.0 - x) / (1.0 + x);
            *at = (ln + 2.0 * (y + y * y * y / 3.0 + y * y * y * y * y / 5.0)) / rate;
        });
        let mut cell = Cell { present: u64::MAX, state: State::Unseen, shared, ..Cell::default() };
        cell.open(u64::MAX, true, at(0), 20, &T);
        let mut now = 0;
        while let (State::Watching { due, .. }, true) = (cell.state, now < 2000) {
            now = due;
            let young = (0..64).filter(|i| young_from[*i] <= now as f32).fold(0, |all, i| all | 1 << i);
            cell.looked(u64::MAX, young, &seen(at(now), 1, 20));
        }
        sum += cell.rate();
        until += now;
    }
    (sum / 50.0, until / 50)
}

#[test]
fn pages_that_were_not_accessed_go_on_being_watched_when_others_were() {
    // 0.2, 0.4 and 1 Hz: a window of 20 intervals finds 1, 2 and 6 of 64 pages accessed.
    for (rate, shared) in [(0.001, false), (0.002, false), (0.002, true), (0.005, true)] {
        let (found, until) = after_one_clear(rate, shared);
        assert!((found / rate - 1.0).abs() < 0.25, "{found} instead of {rate}");
        // A quarter of the pages: after -ln(3/4) / rate.
        assert!(until as f32 > 0.2 / rate, "watched for {until} intervals only");
    }
}

#[test]
fn pages_that_vanish_are_no_access() {
    let mut cell = Cell { present: u64::MAX, state: State::Unseen, ..Cell::default() };
    cell.open(u64::MAX, true, at(0), 20, &T);
    cell.looked(u64::MAX >> 30, 0, &seen(at(20), 20, 20));
    assert!(matches!(cell.state, State::Watching { .. }), "{:?}", cell.state);
    assert_eq!((cell.shown, cell.is_rest, cell.evidence.hits), (0, false, 0.0));
    cell.looked(u64::MAX, !(u64::MAX >> 30), &seen(at(30), 10, 20));
    assert!(!cell.is_rest, "what appears before the window ends is no hit of an earlier one");
}

#[test]
fn what_was_accessed_is_cleared_again_although_the_rest_is_watched() {
    let mut cell = Cell { present: u64::MAX, state: State::Unseen, ..Cell::default() };
    cell.open(u64::MAX, true, at(0), 20, &T);
    cell.looked(u64::MAX, 0b11, &seen(at(20), 20, 20));
    assert!(cell.is_rest && !cell.wants_clear(21, &T));
    for now in (40..200).step_by(20) {
        cell.looked(u64::MAX, 0b11, &seen(at(now), 20, 20));
    }
    assert!(cell.wants_clear(200, &T));
    let mut cell = Cell { window: 0b11, opened: 0b111, is_rest: true, ..cell };
    cell.looked(0b100, 0, &seen(at(200), 20, 20));
    assert_eq!(cell.state, State::Lit, "all that was watched is gone, what is left was accessed");
}

#[test]
fn what_was_known_before_a_cell_was_lost_is_forgotten() {
    let evidence = Evidence::of(10.0, 10.0, false, 100);
    let mut cell = Cell { present: 1, state: State::Lit, evidence, ..Cell::default() };
    cell.blind(Blind::Shared, 110);
    cell.recover();
    assert_eq!(cell.known(111, &T), (0.0, 0.0));
}

fn verdict(told: Told) -> Verdict {
    let Told::Closed(window) = told else { panic!("{told:?}") };
    window.verdict
}

#[test]
fn changes_of_pattern_start_evidence_anew() {
    let mut cell = Cell { present: 1, state: State::Unseen, ..Cell::default() };
    cell.open(1, true, at(0), 20, &T);
    for now in (20..400).step_by(20) {
        assert_eq!(verdict(cell.looked(1, 0, &seen(at(now), 20, 20))), Verdict::Expected);
    }
    assert_eq!(verdict(cell.looked(1, 1, &seen(at(400), 20, 20))), Verdict::Surprise);
    assert!(cell.rate() > 0.04, "{}", cell.rate());
    for now in 401..410 {
        cell.open(1, true, at(now - 1), 20, &T);
        let State::Watching { due, .. } = cell.state else { panic!("not watching") };
        cell.looked(1, 1, &seen(at(due), 1, 20));
    }
    assert!(cell.rate() > 0.9, "{}", cell.rate());
    cell.open(1, true, at(1000), 20, &T);
    let mut now = 1000;
    while cell.rate() > 0.0 {
        now += 1;
        cell.looked(1, 0, &seen(at(now), 1, 20));
    }
    assert!(now < 1010, "it took {} idle intervals", now - 1000);
}

#[test]
fn idle_after_a_sweep_does_not_count_while_translations_may_be_held() {
    let evidence = Evidence::of(10.0, 10.0, false, 100);
    let mut cell = Cell { present: 1, state: State::Lit, evidence, ..Cell::default() };
    cell.open(1, false, at(100), 20, &T);
    assert_eq!(cell.looked(1, 0, &seen(at(110), 10, 20)), Told::Nothing);
    assert!(cell.rate() > 0.9);
    assert_eq!(verdict(cell.looked(1, 0, &seen(at(100 + T.stale), 10, 20))), Verdict::Silent);
}
