//! A goal of memory pressure under each tuner, against a model of what is controlled: memory in areas that are accessed at
//! different rates and change places, of which what was paged out comes back at its area's rate, and each page that does
//! stalls for a time that is noisy and changes with time. The same pattern as `ci/schemes.sh psi` makes on a machine.

use crate::*;
use proptest::prelude::*;
use std::time::Duration;

/// A region of an area.
struct Part {
    area: usize,
    /// Pages that are out.
    out: f64,
    age: u32,
    /// Seconds since it had its turn: pages accessed since then are left alone.
    since: f64,
}

struct Plant {
    /// Accesses a second of each page, by area.
    rates: Vec<f64>,
    parts: Vec<Part>,
    /// Microseconds for which a page that comes back stalls.
    cost: f64,
    /// All stall, and pages that came back.
    stalled: f64,
    returned: f64,
    random: u64,
}

/// Aggregations a second, and those in a window.
const AGGREGATIONS: u64 = 10;
const STEP: f64 = 0.1;
const WINDOW: u64 = 5;
const PHASE: u64 = 40;
const PART: u64 = 1536;
const AREA: u64 = 8 * PART;
/// The goal, in microseconds a window and a second.
const TARGET: u64 = 2500;
const A_SECOND: f64 = 5000.0;

impl Plant {
    fn new(rates: &[f64], cost: f64, seed: u64) -> Self {
        let part = |n| Part { area: n / 8, out: 0.0, age: 0, since: 0.0 };
        let parts = (0..rates.len() * 8).map(part).collect();
        Self { rates: rates.to_vec(), parts, cost, stalled: 0.0, returned: 0.0, random: seed }
    }

    /// From 0 to 2, 1 on average: the mean of four numbers, a standard deviation of 0.29.
    fn noise(&mut self) -> f64 {
        let mut draw = || {
            self.random =
                self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (self.random >> 33) as f64 / f64::from(1u32 << 30)
        };
        (draw() + draw() + draw() + draw()) / 4.0
    }

    fn rate(&self, part: &Part) -> f64 {
        self.rates[part.area]
    }

    /// An aggregation goes by.
    fn step(&mut self) {
        let mut returned = 0.0;
        for part in &mut self.parts {
            let back = part.out * (self.rates[part.area] * STEP).min(1.0);
            part.out -= back;
            returned += back;
            part.age += 1;
            part.since += STEP;
        }
        self.returned += returned;
        self.stalled += returned * self.cost * self.noise();
    }

    fn out_mib(&self) -> f64 {
        self.parts.iter().map(|part| part.out).sum::<f64>() / 256.0
    }

    fn targets(&self) -> [Target; 1] {
        let regions = self.parts.iter().zip(0..).map(|(part, at)| {
            // Of 20 samples of 5 ms, and as finely as the estimator for page tables knows it.
            let accesses = (self.rate(part) * STEP).min(20.0);
            Region {
                nr_accesses_bp: (accesses * 10_000.0) as u32,
                ..region(at * PART, PART, accesses as u32, part.age)
            }
        });
        [target(1, regions.collect())]
    }
}

impl Actions for Plant {
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        let mut applied = 0;
        for (part, at) in self.parts.iter_mut().zip(0..) {
            let whole = AddrRange::new(at * PART * PAGE, (at + 1) * PART * PAGE);
            let inside = request.range.intersection(whole).size();
            if inside == 0 {
                continue;
            }
            let share = inside as f64 / whole.size() as f64;
            let idle = (1.0 - self.rates[part.area] * part.since).max(0.0);
            let pages = ((PART as f64 - part.out) * share * idle) as u64;
            part.out += pages as f64;
            applied += pages * PAGE;
            if inside == whole.size() || request.range.end == whole.end {
                (part.age, part.since) = (0, 0.0);
            }
        }
        let size = request.range.size();
        Ok(Outcome { applied, passed: applied, skipped: size - applied, took_ns: 1000, ..Outcome::default() })
    }
}

struct Stall(u64);

impl Metrics for Stall {
    fn goal(&mut self, _scheme: usize, _metric: &GoalMetric) -> Option<u64> {
        Some(self.0)
    }
}

struct Loop {
    plant: Plant,
    schemes: Schemes,
    aggregation: u64,
}

impl Loop {
    fn new(tuner: GoalTuner, plant: Plant) -> Self {
        let goals = vec![Goal { metric: GoalMetric::SomeMemPsiUs { cgroup: None }, target: TARGET }];
        let quota = Quota {
            bytes: Some(128 * MIB),
            reset_interval: Duration::from_millis(500),
            weights: Weights { size: 0, frequency: 1, age: 1 },
            goals,
            tuner,
            ..Quota::default()
        };
        let pattern = AccessPattern::ANY.age(Duration::from_millis(500), Duration::MAX);
        let schemes = schemes(vec![Scheme { quota, ..Scheme::new(pattern, Action::Pageout) }]);
        Self { plant, schemes, aggregation: 0 }
    }

    /// An aggregation, in which others stall for so many microseconds besides.
    fn aggregation(&mut self, others: f64) {
        self.plant.step();
        self.plant.stalled += others;
        let stall = self.plant.stalled as u64;
        let mut targets = self.plant.targets();
        let now_ns = self.aggregation * 100 * MS;
        let mut moment = Moment::new(&mut targets, Attrs::default(), now_ns, self.aggregation + 1);
        self.schemes.apply(&mut moment, &mut self.plant, &mut Stall(stall));
        self.aggregation += 1;
    }

    fn window(&mut self, others: f64) -> u64 {
        for _ in 0..WINDOW {
            self.aggregation(others / WINDOW as f64);
        }
        self.schemes.effective_bytes(0)
    }
}

const RATES: [f64; 8] = [0.0, 0.05, 0.1, 0.2, 0.5, 2.0, 10.0, 50.0];

/// What a run of 150 s came to, of which the first 30 s are left out.
#[derive(Debug)]
struct Course {
    /// Mean stall by the goal's.
    stall: f64,
    /// Mean of what is out by what an oracle keeps out, which knows each area's rate, pages out the slowest at once and again
    /// whenever it comes back, as much as the stall aimed at pays for.
    out: f64,
}

/// `dearer` is how many times as much a page costs in the end.
fn course(tuner: GoalTuner, cost: f64, dearer: f64, seed: u64) -> Course {
    let mut run = Loop::new(tuner, Plant::new(&RATES, cost, seed));
    let (mut stalled, mut returned, mut out) = (0.0, 0.0, 0.0);
    let (from, until) = (30 * AGGREGATIONS, 150 * AGGREGATIONS);
    for at in 0..until {
        if at % (PHASE * AGGREGATIONS) == 0 && at > 0 {
            run.plant.rates.reverse();
        }
        run.plant.cost = cost * (1.0 + (dearer - 1.0) * at as f64 / until as f64);
        run.aggregation(0.0);
        if at == from {
            (stalled, returned) = (run.plant.stalled, run.plant.returned);
        }
        if at >= from {
            out += run.plant.out_mib();
        }
    }
    let seconds = (until - from) as f64 / AGGREGATIONS as f64;
    let (stalled, returned) = (run.plant.stalled - stalled, run.plant.returned - returned);
    // Pages that may come back in a phase. When areas change places all that is out does, but what is slow again.
    let mut left = A_SECOND * returned / stalled * PHASE as f64;
    let mut oracle = 0.0;
    for (rate, then) in RATES.iter().zip(RATES.iter().rev()) {
        let each = rate * PHASE as f64 + if then > rate { 1.0 } else { 0.0 };
        let pages = (left / each).min(AREA as f64);
        left -= pages * each;
        oracle += pages / 256.0;
    }
    Course { stall: stalled / seconds / A_SECOND, out: out / (until - from) as f64 / oracle }
}

/// What a page costs, and how many times as much in the end.
const COSTS: [(f64, f64); 5] = [(2.0, 1.0), (1.0, 3.0), (1.0, 5.0), (3.0, 0.33), (5.0, 0.2)];

#[test]
fn pi_holds_a_goal_of_pressure_while_the_pattern_changes_and_reclaims_what_that_pays_for() {
    for (cost, dearer) in COSTS {
        for seed in 0..5 {
            let course = course(GoalTuner::Pi, cost, dearer, seed);
            assert!((0.7..=1.3).contains(&course.stall), "{cost} us to {dearer} times: {course:?}");
            assert!(course.out >= 0.85, "{cost} us to {dearer} times: {course:?}");
        }
    }
}

#[test]
fn the_kernels_tuners_either_reclaim_too_little_of_the_same_memory_or_too_much() {
    for seed in 0..5 {
        let consist = course(GoalTuner::Consist, 2.0, 1.0, seed);
        let temporal = course(GoalTuner::Temporal, 2.0, 1.0, seed);
        assert!(consist.out < 0.7 && temporal.stall > 1.3, "{consist:?}, {temporal:?}");
    }
}

#[test]
fn after_a_burst_of_others_pi_is_back_in_seconds() {
    let mut run = Loop::new(GoalTuner::Pi, Plant::new(&RATES, 2.0, 7));
    let sizes: Vec<u64> = (0..70).map(|_| run.window(0.0)).collect();
    let before = sizes.iter().rev().take(20).sum::<u64>() / 20;
    let out = run.plant.out_mib();
    // Twenty times the target for a second, which is not the scheme's doing.
    let burst = [run.window(50_000.0), run.window(50_000.0), run.window(0.0)];
    assert!(burst[2] < before / 4, "{before}, then {burst:?}");
    let after: Vec<u64> = (0..20).map(|_| run.window(0.0)).collect();
    assert!(after.iter().max() >= Some(&(before / 4 * 3)), "{before}, then {after:?}");
    assert!(run.plant.out_mib() > out * 0.8, "{out} MiB, then {}", run.plant.out_mib());
}

#[test]
fn a_time_with_nothing_to_reclaim_does_not_wind_pi_up() {
    let mut run = Loop::new(GoalTuner::Pi, Plant::new(&[50.0; 8], 2.0, 7));
    let sizes: Vec<u64> = (0..600).map(|_| run.window(0.0)).collect();
    assert!(sizes[599] <= sizes[20] / 4 * 5, "{} and {}", sizes[20], sizes[599]);
    // Five minutes later there is something.
    run.plant.rates = RATES.to_vec();
    let mut most = 0.0f64;
    for _ in 0..60 {
        let before = run.plant.stalled;
        for _ in 0..10 {
            run.window(0.0);
        }
        most = most.max((run.plant.stalled - before) / 5.0 / A_SECOND);
    }
    assert!(most < 2.0, "{most} times the target over five seconds");
}

/// Any machine: what it says has nothing to do with what is done.
fn sizes(quota: Quota, totals: &[u64]) -> Vec<u64> {
    let mut all = schemes(vec![Scheme { quota, ..Scheme::new(AccessPattern::ANY, Action::Stat) }]);
    let mut next = |(total, at): (&u64, u64)| {
        let mut targets = [target(1, vec![region(0, 100_000, 0, 9)])];
        let mut moment = Moment::new(&mut targets, Attrs::default(), at * 1000 * MS, 1);
        all.apply(&mut moment, &mut Recorder::default(), &mut Stall(*total));
        all.effective_bytes(0)
    };
    totals.iter().zip(0..).map(&mut next).collect()
}

proptest! {
    #[test]
    fn what_pi_tunes_is_never_above_the_standing_quota_and_moves_in_bounded_steps(
        bytes in prop::option::of(1u64..1 << 32),
        stalls in prop::collection::vec(prop_oneof![Just(0), 0..2 * TARGET, any::<u32>().prop_map(u64::from)], 1..200),
    ) {
        let goals = vec![Goal { metric: GoalMetric::SomeMemPsiUs { cgroup: None }, target: TARGET }];
        let quota = Quota { bytes, goals, tuner: GoalTuner::Pi, ..Quota::default() };
        let mut total = 0;
        let totals: Vec<u64> = stalls.iter().map(|stall| { total += stall; total }).collect();
        let most = bytes.unwrap_or(u64::MAX).min(100_000 * PAGE);
        let sizes = sizes(quota, &totals);
        prop_assert!(sizes.iter().all(|size| *size <= most), "{:?} of {}", sizes, most);
        for pair in sizes.windows(2) {
            prop_assert!(pair[1] <= pair[0].max(PAGE) * 4 && pair[1] >= pair[0] / 4, "{:?}", pair);
        }
    }
}
