//! Keeps the monitor's own CPU time under a ceiling.
//!
//! A token bucket: every second of wall time earns `share` seconds of CPU time, what the monitor's thread really used
//! is taken out, whatever it was spent on. From what is left and the measured price of a look and of a clear follows
//! what the next sampling interval may spend; when nothing is left, intervals are skipped.

use crate::clock;
use isotherm_damon::{Allowance, Attrs, Tally};
use std::time::Duration;

/// Seconds of earnings the bucket can hold: bursts (a target's first clears, a change of pattern) borrow from quiet
/// times so long past, and are paid back as fast.
const HOLDS: f64 = 1.0;
/// Seconds of earnings that are waited for once nothing is left, so that waking up is worth it: a monitor that wakes up
/// as soon as it can pay for waking up does nothing else.
const RECOVERS: f64 = 0.05;
/// Share of the earnings that pays back what one step overspent, beyond the bucket's size (a system call may have to
/// wait, spinning, for a lock that the target holds): monitoring goes on with the rest.
const PAID_BACK: f64 = 0.25;
/// Seconds of earnings that are owed at most: from then on all that comes in pays back, or ticks that are each dearer than the
/// bucket would never be paid for.
const OWES: f64 = 10.0;
/// Share of the budget for waking up, as far as a sampler can choose.
const WAKE_UPS: f64 = 0.3;
/// Part of an aggregation that one tick may take, whatever was saved up: 5 ms by default, a sampling interval.
const LONGEST_TICK: f64 = 0.05;
/// How many times as dear as usual a step may be to be learnt from as it is.
const OUTLIER: f64 = 3.0;
/// Part of the ceiling that is earned: the burst at the start (14 ms, and a second of earnings that may be spent at once) comes on
/// top, and is made good within half a minute.
const EARNED: f64 = 0.92;

/// CPU seconds a second that this thread earns under a ceiling of `share`.
fn earned(share: f64) -> f64 {
    share * EARNED
}

/// What is owed at most, ns.
fn most_owed(share: f64) -> f64 {
    share * 1e9 * OWES
}

/// The token bucket.
#[derive(Debug)]
pub(crate) struct Governor {
    /// CPU seconds a second; `None`: no ceiling.
    share: Option<f64>,
    /// CPU time that may be spent, ns.
    tokens: f64,
    /// What was overspent and is paid back slowly, ns.
    debt: f64,
    last_wall_ns: u64,
    last_cpu: Duration,
    /// Measured prices, ns.
    check_ns: f64,
    prepare_ns: f64,
    swept_page_ns: f64,
    tick_ns: f64,
    /// What waking up and everything but looks and clears cost, ns a second.
    base_ns: f64,
    /// ... and a tick.
    wake_up_ns: f64,
    /// Spent on looks and clears since the account was settled, ns.
    worked: f64,
    /// Spent on ticks as a whole since then, ns.
    ticked: f64,
}

impl Governor {
    /// A ceiling of `share` CPU seconds a second (0.01 = 1 %); 0 or less: none.
    pub(crate) fn new(share: f64) -> Self {
        let share = (share > 0.0).then_some(share);
        Self {
            share,
            tokens: share.unwrap_or(0.0) * 1e9 * HOLDS,
            debt: 0.0,
            last_wall_ns: 0,
            last_cpu: clock::of_this_thread(),
            check_ns: 1_000.0,
            prepare_ns: 10_000.0,
            swept_page_ns: 60.0,
            tick_ns: 8_000.0,
            base_ns: 1_000_000.0,
            wake_up_ns: 40_000.0,
            worked: 0.0,
            ticked: 0.0,
        }
    }

    /// Settles the account at `now_ns`. Called before each tick, so that all the thread did since is paid for.
    pub(crate) fn settle(&mut self, now_ns: u64) {
        self.settle_at(now_ns, clock::of_this_thread());
    }

    fn settle_at(&mut self, now_ns: u64, cpu: Duration) {
        let Some(share) = self.share else { return };
        let wall = if self.last_wall_ns == 0 { 0 } else { now_ns.saturating_sub(self.last_wall_ns) };
        let spent = cpu.saturating_sub(self.last_cpu).as_nanos() as f64;
        // An average over about a second.
        let weight = (wall as f64 / 1e9).min(1.0);
        if wall > 0 {
            let base = (spent - self.worked).max(0.0) / (wall as f64 / 1e9);
            self.base_ns += (base - self.base_ns) * weight;
            // What is left when a tick's own work is taken off: sleeping, waking up, and the loop around it.
            let around = (spent - self.ticked).clamp(5_000.0, 100_000.0);
            self.wake_up_ns += (around - self.wake_up_ns) / 32.0;
        }
        (self.worked, self.ticked) = (0.0, 0.0);
        let mut income = wall as f64 * earned(share);
        let paid = (income * PAID_BACK).min(self.debt);
        self.debt -= paid;
        income -= paid;
        let holds = share * 1e9 * HOLDS;
        self.tokens = (self.tokens + income).min(holds) - spent;
        let most = -holds * RECOVERS;
        if self.tokens < most {
            self.debt += most - self.tokens;
            self.tokens = most;
        }
        self.last_wall_ns = now_ns;
        self.last_cpu = cpu;
    }

    /// Takes off what other threads spent on what this one made.
    pub(crate) fn charge(&mut self, cpu: Duration) {
        if self.share.is_some() {
            self.tokens -= cpu.as_nanos() as f64;
        }
    }

    /// How long to sleep until the next tick can be afforded, ns; 0: it can be now. Waking up just to find that it
    /// cannot would cost as much as a tick.
    pub(crate) fn must_wait(&self) -> u64 {
        match self.share {
            // A tick that can pay for itself alone would do nothing.
            Some(share) if self.tokens < self.dear_tick(share) => {
                ((self.dear_tick(share) - self.tokens) / earned(share) + RECOVERS * 1e9) as u64
            }
            Some(share) if self.debt > most_owed(share) => {
                ((self.debt - most_owed(share)) / earned(share) + RECOVERS * 1e9) as u64
            }
            _ => 0,
        }
    }

    /// What a tick costs without doing anything, but no more than half of what can be saved up: there must be ticks.
    fn dear_tick(&self, share: f64) -> f64 {
        self.tick_ns.min(share * 1e9 * HOLDS / 2.0)
    }

    /// What the coming tick may spend.
    pub(crate) fn allowance(&self, attrs: &Attrs) -> Allowance {
        let Some(share) = self.share else { return Allowance::UNLIMITED };
        let aggr_ns = attrs.aggr.as_nanos() as f64;
        // Windows as short as an interval are closed by the next tick: it must come in time.
        let left = (self.tokens - self.tick_ns).clamp(0.0, aggr_ns * LONGEST_TICK);
        // The cost of being awake comes first; never plan with less than a fifth for actual work.
        let income =
            aggr_ns * if self.debt > 0.0 { earned(share) * (1.0 - PAID_BACK) } else { earned(share) };
        let plannable = (income - self.base_ns * aggr_ns / 1e9).max(income * 0.3);
        Allowance {
            checks: (left / self.check_ns) as usize,
            prepares: (left * 0.75 / self.prepare_ns) as usize,
            checks_per_aggr: (plannable * 0.3 / self.check_ns) as usize,
            prepares_per_aggr: (plannable * 0.6 / self.prepare_ns) as usize,
            swept_a_prepare: (self.prepare_ns / self.swept_page_ns) as usize,
            wake_ups_per_aggr: (income * WAKE_UPS / self.wake_up_ns) as usize,
        }
    }

    /// Learns prices from what a tick did (`before` and `after` it) and cost.
    pub(crate) fn learn(
        &mut self,
        before: &Tally,
        after: &Tally,
        spent_checking: Duration,
        spent_preparing: Duration,
        spent_sweeping: Duration,
        spent: Duration,
    ) {
        // One call that took a hundred times as long (the machine stood still, a lock was held) says nothing of the next.
        let blend = |old: &mut f64, new: f64| *old += (new.min(*old * OUTLIER) - *old) / 16.0;
        let checks = after.checks - before.checks;
        let of_sweeps = after.prepares_of_sweeps - before.prepares_of_sweeps;
        let prepares = (after.prepares - before.prepares).saturating_sub(of_sweeps);
        let swept = after.entries_swept - before.entries_swept;
        // A handful of looks costs mostly the call itself.
        if checks >= 4 {
            blend(&mut self.check_ns, (spent_checking.as_nanos() as f64 / checks as f64).max(20.0));
        }
        if prepares > 0 {
            blend(&mut self.prepare_ns, (spent_preparing.as_nanos() as f64 / prepares as f64).max(200.0));
        }
        if swept > 0 {
            let price = spent_sweeping.as_nanos() as f64 / swept as f64;
            blend(&mut self.swept_page_ns, price.max(5.0));
        }
        self.worked += (spent_checking + spent_preparing + spent_sweeping).as_nanos() as f64;
        self.ticked += spent.as_nanos() as f64;
        let rest = spent.saturating_sub(spent_checking + spent_preparing + spent_sweeping);
        blend(
            &mut self.tick_ns,
            rest.as_nanos() as f64 + if checks < 32 { spent_checking.as_nanos() as f64 } else { 0.0 },
        );
    }
}

#[cfg(test)]
mod tests {
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
            let wait = governor.must_wait();
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
        let mut governor = Governor::new(0.01);
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
}
