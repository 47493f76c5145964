//! Under a standing quota every region has its turn.

use crate::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn scheme(action: Action, pages: u64, weights: Weights) -> Scheme {
    let quota = Quota { bytes: Some(pages * PAGE), weights, ..Quota::default() };
    Scheme { quota, ..Scheme::new(AccessPattern::ANY, action) }
}

/// `total` pages, cut into regions of `size`, the first one of another.
fn cut(total: u64, size: u64, first: u64, nr_accesses: u32) -> Vec<Region> {
    let (mut list, mut at, mut next) = (Vec::new(), 0, first);
    while at < total {
        let end = (at + next.max(1)).min(total);
        list.push(region(at, end - at, nr_accesses, 9));
        (at, next) = (end, size);
    }
    list
}

/// Which pages of which targets were acted on since.
fn pages(recorder: &mut Recorder) -> BTreeSet<(u64, u64)> {
    let calls = recorder.calls.drain(..);
    calls.flat_map(|c| (c.range.start / PAGE..c.range.end / PAGE).map(move |p| (c.target.0, p))).collect()
}

proptest! {
    #[test]
    fn regions_of_one_score_take_turns_whatever_becomes_of_their_borders(
        total in 1u64..400,
        quota in 1u64..500,
        sizes in prop::collection::vec((1u64..90, 1u64..90), 8),
        by_weight in any::<bool>(),
        skipped in 0u64..4,
    ) {
        // Hot ones that stay hot: acting on them changes their age, which has no weight.
        let weights = Weights { size: 0, frequency: u32::from(by_weight), age: 0 };
        let mut all = schemes(vec![scheme(Action::LruPrio, quota, weights)]);
        let mut recorder = Recorder::default();
        let windows = (2 * total).div_ceil(quota);
        let mut now = 0;
        let mut next = |all: &mut Schemes, recorder: &mut Recorder| {
            let (size, first) = sizes[now as usize % sizes.len()];
            let mut targets = [target(1, cut(total, size, first, 17)), target(2, cut(total, first, size, 17))];
            pass(all, &mut targets, now * 1000 * MS, recorder);
            now += 1;
        };
        // From anywhere on, each has its turn in as many windows as all take.
        for _ in 0..skipped {
            next(&mut all, &mut recorder);
        }
        recorder.calls.clear();
        for _ in 0..windows {
            next(&mut all, &mut recorder);
        }
        prop_assert_eq!(pages(&mut recorder).len() as u64, 2 * total);
    }

    #[test]
    fn memory_that_is_acted_on_becomes_young_and_lets_others_pass(
        total in 20u64..300,
        quota in 5u64..40,
        size in 4u64..30,
    ) {
        // Cold memory of one age: what is paged out is younger than what is not.
        let mut all = schemes(vec![scheme(Action::Pageout, quota, Weights { size: 0, frequency: 1, age: 1 })]);
        let mut recorder = Recorder::default();
        let mut targets = [target(1, cut(total, size, size, 0))];
        targets[0].regions.iter_mut().for_each(|r| r.age = 3000);
        for window in 0..total.div_ceil(quota) {
            pass(&mut all, &mut targets, window * 1000 * MS, &mut recorder);
            targets[0].regions.iter_mut().for_each(|r| r.age += 10);
        }
        prop_assert_eq!(pages(&mut recorder).len() as u64, total);
    }
}

#[test]
fn turns_go_on_when_targets_come_and_go() {
    let mut all = schemes(vec![scheme(Action::Stat, 10, Weights::default())]);
    let (mut recorder, mut seen) = (Recorder::default(), Vec::new());
    let mut targets: Vec<Target> = (1..=4).map(|id| target(id, cut(10, 10, 10, 0))).collect();
    for window in 0..8 {
        pass(&mut all, &mut targets, window * 1000 * MS, &mut recorder);
        seen.push(all.tried_regions(0)[0].target.0);
        match window {
            // The one that was served last goes, and one before the next.
            1 => drop(targets.remove(1)),
            4 => targets.insert(0, target(9, cut(10, 10, 10, 0))),
            _ => {}
        }
    }
    assert_eq!(seen, [1, 2, 3, 4, 1, 3, 4, 9]);
}

#[test]
fn scores_that_rule_by_turns_do_not_lose_their_places() {
    // One half is hotter by turns; each, at a score of its own, goes on where it stopped.
    let mut all = schemes(vec![scheme(Action::LruPrio, 10, Weights { size: 0, frequency: 1, age: 0 })]);
    let mut recorder = Recorder::default();
    for window in 0..8 {
        let hot = if window % 2 == 0 { (20, 5) } else { (5, 15) };
        let mut targets = [target(1, vec![region(0, 40, hot.0, 9), region(40, 40, hot.1, 9)])];
        pass(&mut all, &mut targets, window * 1000 * MS, &mut recorder);
    }
    assert_eq!(pages(&mut recorder).len(), 80);
}
