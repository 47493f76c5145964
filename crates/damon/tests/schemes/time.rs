//! Quotas of time, against an action that is slow and whose speed varies from call to call.

use crate::*;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pages memory out in least calls of so many pages; looks at the clock after each, as far as it does.
struct Slow {
    least: u64,
    /// Nanoseconds a page: of the first least call, the second, ... and round again.
    speeds: Vec<u64>,
    /// It stops when its time is over.
    stops: bool,
    /// By window: time, and the longest of what cannot be interrupted.
    windows: BTreeMap<u64, (u64, u64)>,
    done: usize,
    pages: Vec<bool>,
}

impl Slow {
    fn new(least: u64, speeds: Vec<u64>, stops: bool, pages: u64) -> Self {
        Self { least, speeds, stops, windows: BTreeMap::new(), done: 0, pages: vec![true; pages as usize] }
    }

    fn out(&self) -> u64 {
        self.pages.iter().filter(|present| !**present).count() as u64
    }
}

impl Actions for Slow {
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        let (left, window) = (request.time_left_ns.unwrap(), request.window_ns.unwrap());
        assert!(left > 0, "asked for when no time was left");
        let (mut at, end) = (request.range.start / PAGE, request.range.end / PAGE);
        let (mut outcome, mut longest) = (Outcome::default(), 0);
        while at < end {
            if self.stops && outcome.took_ns >= left {
                outcome.until = Some(at * PAGE);
                break;
            }
            let until = (at + self.least).min(end);
            let mut took = 0;
            for page in &mut self.pages[at as usize..until as usize] {
                if std::mem::take(page) {
                    took += self.speeds[self.done % self.speeds.len()];
                    outcome.applied += PAGE;
                } else {
                    outcome.skipped += PAGE;
                }
            }
            self.done += 1;
            outcome.took_ns += took;
            longest = longest.max(took);
            at = until;
        }
        let (sum, most) = self.windows.entry(window).or_default();
        let longest = if self.stops { longest } else { outcome.took_ns };
        (*sum, *most) = (*sum + outcome.took_ns, (*most).max(longest));
        Ok(outcome)
    }
}

/// Lets a scheme act at these times (ms), on memory all of which is as cold.
fn run(slow: &mut Slow, quota: Quota, passes: impl Iterator<Item = u64>) {
    let mut all = schemes(vec![Scheme { quota, ..Scheme::new(AccessPattern::ANY, Action::Pageout) }]);
    for at in passes {
        let mut targets = [target(1, vec![region(0, slow.pages.len() as u64, 0, 9)])];
        let mut moment = Moment::new(&mut targets, Attrs::default(), at * MS, 1);
        all.apply(&mut moment, slow, &mut ());
    }
}

#[test]
fn an_action_that_slows_down_a_hundred_times_is_stopped_in_time() {
    let quota = Quota { time: Some(Duration::from_millis(100)), ..Quota::default() };
    // 2 us a page, and from the 200th call on 200 us: half of the time left at the old speed would be ten seconds.
    let speeds = (0..100_000).map(|call| if call < 200 { 2000 } else { 200_000 }).collect();
    let mut slow = Slow::new(16, speeds, true, 1 << 18);
    run(&mut slow, quota, (0..100).map(|pass| pass * 100));
    assert!(slow.windows.len() == 10, "{:?}", slow.windows);
    for (time, _) in slow.windows.values() {
        assert!(*time <= 100 * MS + 16 * 200_000, "{:?}", slow.windows);
        assert!(*time >= 90 * MS, "the time there is is used: {:?}", slow.windows);
    }
}

#[test]
fn what_takes_longer_than_a_window_gets_on_and_is_made_up_for() {
    let quota = Quota { time: Some(Duration::from_millis(1)), ..Quota::default() };
    let mut slow = Slow::new(1, vec![5 * MS], true, 1 << 10);
    run(&mut slow, quota, (0..100).map(|pass| pass * 1000));
    assert_eq!(slow.out(), 20, "one page in five windows");
}

#[test]
fn one_call_that_was_slow_by_chance_is_soon_forgotten() {
    let quota = Quota { time: Some(Duration::from_millis(10)), ..Quota::default() };
    // The tenth call meets with something that takes 10 ms.
    let speeds = (0..100_000).map(|call| if call == 10 { 10 * MS / 16 } else { 2000 }).collect();
    let mut slow = Slow::new(16, speeds, true, 1 << 18);
    run(&mut slow, quota, (0..20).map(|pass| pass * 1000));
    let times: Vec<u64> = slow.windows.values().map(|(time, _)| *time).collect();
    assert!(times.iter().skip(6).all(|time| *time >= 9 * MS * 95 / 100), "{times:?}");
}

#[test]
fn a_call_that_is_kept_waiting_does_not_take_its_window_over_its_time() {
    let quota = Quota { time: Some(Duration::from_millis(10)), ..Quota::default() };
    // Every 50th call waits for 0.9 ms in all, the last one of many a window among them.
    let speeds = (0..100_000).map(|call| if call % 50 == 49 { 900_000 / 16 } else { 2000 }).collect();
    let mut slow = Slow::new(16, speeds, true, 1 << 18);
    run(&mut slow, quota, (0..60).map(|pass| pass * 1000));
    for (time, _) in slow.windows.values() {
        assert!(*time <= 10 * MS, "{:?}", slow.windows);
    }
}

proptest! {
    #[test]
    fn no_window_takes_longer_than_its_time_and_one_least_call(
        millis in 1u64..100,
        least in 1u64..64,
        speeds in prop::collection::vec(prop_oneof![0u64..500, 1000u64..50_000, 100_000u64..3_000_000], 1..40),
        stops in any::<bool>(),
        bytes in prop::option::of(1u64..2000),
        steps in prop::collection::vec(5u64..1500, 1..60),
        reset_ms in 100u64..1000,
    ) {
        let quota = Quota {
            time: Some(Duration::from_millis(millis)),
            bytes: bytes.map(|pages| pages * PAGE),
            reset_interval: Duration::from_millis(reset_ms),
            ..Quota::default()
        };
        let mut slow = Slow::new(least, speeds, stops, 20_000);
        let mut now = 0;
        run(&mut slow, quota, steps.into_iter().map(|step| { now += step; now }));
        let windows: Vec<(u64, u64, u64)> = slow.windows.iter().map(|(at, w)| (*at, w.0, w.1)).collect();
        for (first, (start, _, _)) in windows.iter().enumerate() {
            let (mut in_all, mut longest) = (0, 0);
            for (at, took, least) in &windows[first..] {
                (in_all, longest) = (in_all + took, longest.max(*least));
                let passed = 1 + (at - start) / (reset_ms * MS);
                prop_assert!(
                    in_all <= passed * millis * MS + longest,
                    "{in_all} ns in {passed} windows of {millis} ms; the longest call was of {longest} ns"
                );
            }
        }
    }
}
