//! Keeps the monitor's own CPU time under a ceiling.
//!
//! A token bucket: every second of wall time earns a little less than `share` seconds of CPU time, what the monitor's thread
//! really used is taken out, whatever it was spent on. From what is left and the measured price of a look and of a clear follows
//! what the next sampling interval may spend; when nothing is left, intervals are skipped, but for those, of many targets, in which
//! looks at what was cleared are due.

use crate::clock;
use isotherm_damon::{Allowance, Attrs, Tally};
use line::Line;
use std::time::Duration;

/// Seconds of earnings the bucket can hold: bursts (a target's first clears, a change of pattern) borrow from quiet
/// times so long past, and are paid back as fast.
const HOLDS: f64 = 1.0;
/// Seconds of earnings that are waited for once nothing is left, so that waking up is worth it: a monitor that wakes up
/// as soon as it can pay for waking up does nothing else. With many targets, an aggregation's end and the wake-up for its looks cost
/// as much as all there is to do for one of them: several are done at once.
const RECOVERS: (f64, f64) = (0.02, 0.1);
/// ... and the least that is worth it: looks at a few hundred blocks, ns.
const WORTH_WAKING: f64 = 250_000.0;
/// Part of what can be saved up that looks at what was cleared may take beyond what there is: they were promised with the clear.
const PROMISED: f64 = 0.1;
/// Looks that are due of many targets which a tick may make whatever was spent, and the calls for them.
const LEAST_LOOKS: (usize, usize) = (32, 4);
/// What others take all the time (observers of many targets take a third of a ceiling of 1 %) is put aside as it is earned, by their
/// mean over so many seconds: paid back afterwards, it was above the ceiling for most of a minute. What they take once, as when all
/// targets are described at the start, is nothing to put aside for: of three seconds that in the middle counts.
const BESIDE_S: f64 = 5.0;
/// ... up to this share of the earnings: monitoring goes on with the rest.
const MOST_BESIDE: f64 = 0.6;
/// Share of the earnings that pays back what one step overspent, beyond the bucket's size (a system call may have to
/// wait, spinning, for a lock that the target holds): monitoring goes on with the rest.
const PAID_BACK: f64 = 0.25;
/// ... and of what starting cost: that is when most is to be found out. At a ceiling of 1 %, 15 ms are made good in 13 s.
const START_PAID_BACK: f64 = 0.12;
/// Seconds of earnings that the deficit is at most: from then on all that comes in pays back, or ticks that are each dearer than the
/// bucket would never be paid for.
const MOST_DEFICIT: f64 = 10.0;
/// Share of the budget for waking up, as far as a sampler can choose.
const WAKE_UPS: f64 = 0.6;
/// Share of the budget for asking targets whether they ran.
const ASKING: f64 = 0.08;
/// From how many targets on a share of the budget is for clears alone: looks show little of what was not cleared, but with
/// many targets there are always some to be made. As much as can be saved up of it may wait. With few targets, looks at what
/// was cleared would be short of it: F1 of `hotspot` fell from .86 to .60, and once to 0.
const CLEARING: (usize, f64) = (16, 0.25);
/// Ticks whose price is kept for looks at what is cleared: after 1, 2, 4 and 8 intervals.
const KEPT: f64 = 4.0;
/// ... and the part of what can be saved up that this is at most.
const MOST_KEPT: f64 = 0.06;
/// Part of what can be saved up that is left when what others spent is taken off, which is made good later: two ends of aggregations
/// of large targets. With less, reading two lists of 65,000 mappings at the start kept 17 to 34 sampling intervals waiting.
const KEPT_FOR_ENDS: f64 = 0.2;
/// A tick that takes more than this part of what can be saved up even if it does nothing (there are a thousand targets) waits until
/// so many of them could be paid: or all went into finding out that there is nothing to spend.
const DEAR: (f64, f64) = (0.03, 3.0);
/// A tick is never waited for longer, ns.
const LONGEST_WAIT: u64 = 5_000_000_000;
/// Part of an aggregation that one tick may take, whatever was saved up: 5 ms by default, a sampling interval.
const LONGEST_TICK: f64 = 0.05;
/// Looks a call from which on their price is learnt, and the call's of fewer.
const MANY_A_CALL: f64 = 24.0;
/// Looks, and calls that make them, up to which they are part of a tick's own price.
const FEW_LOOKS: (u64, f64) = (32, 2.0);
/// How many times as dear as usual a step may be to be learnt from as it is.
const OUTLIER: f64 = 3.0;
/// Seconds of the ceiling that may be spent at once at the start.
const AT_START: f64 = 0.9;
/// Part of the ceiling that is earned: what may be spent at once at the start comes on top, and is made good within 23 s.
const EARNED: f64 = 0.96;

/// CPU seconds a second that this thread earns under a ceiling of `share`.
fn earned(share: f64) -> f64 {
    share * EARNED
}

/// The largest deficit, ns.
fn most_deficit(share: f64) -> f64 {
    share * 1e9 * MOST_DEFICIT
}

/// CPU time of a tick, and of what it did with its operations.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spent {
    pub checking: Duration,
    pub preparing: Duration,
    pub sweeping: Duration,
    pub asking: Duration,
    /// All of it.
    pub whole: Duration,
}

impl Spent {
    /// As parts of a tick that took `whole`. Of looks it is known only how much time passed: they took no more than the others left.
    pub(crate) fn within(self, whole: Duration) -> Self {
        let others = self.preparing + self.sweeping + self.asking;
        Self { checking: self.checking.min(whole.saturating_sub(others)), whole, ..self }
    }
}

/// The token bucket.
#[derive(Debug)]
pub(crate) struct Governor {
    /// CPU seconds a second; `None`: no ceiling.
    share: Option<f64>,
    /// CPU time that may be spent, ns.
    tokens: f64,
    /// Share of the budget that is for clears alone.
    clearing: f64,
    /// The part of the tokens that is for clears.
    for_clears: f64,
    /// What others take on the mean, ns a second; for how long that is known, seconds; and what is put aside for it, ns.
    beside: f64,
    beside_s: f64,
    put_aside: f64,
    /// What they took the last two times they were charged, ns a second.
    beside_before: [f64; 2],
    /// Up to when what others took is paid.
    charged_ns: u64,
    /// What was charged since and not counted yet, ns.
    uncounted: f64,
    /// What was overspent and is paid back slowly, ns.
    deficit: f64,
    /// What starting cost and is paid back more slowly, ns.
    start_deficit: f64,
    last_wall_ns: u64,
    /// When there was last enough for a tick.
    ticked_ns: u64,
    last_cpu: Duration,
    /// Measured prices, ns.
    check_ns: f64,
    /// ... of a call that makes some.
    call_ns: f64,
    clears: Line,
    swept_page_ns: f64,
    /// ... of asking a target whether it ran.
    ask_ns: f64,
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
            tokens: share.unwrap_or(0.0) * 1e9 * AT_START,
            clearing: 0.0,
            for_clears: 0.0,
            beside: 0.0,
            beside_s: 0.0,
            put_aside: 0.0,
            beside_before: [0.0; 2],
            charged_ns: 0,
            uncounted: 0.0,
            deficit: 0.0,
            start_deficit: 0.0,
            last_wall_ns: 0,
            ticked_ns: 0,
            last_cpu: clock::of_this_thread(),
            check_ns: 1_000.0,
            call_ns: 20_000.0,
            clears: Line::new(35_000.0, 25_000.0),
            swept_page_ns: 60.0,
            ask_ns: 1_500.0,
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
        let mut budget = wall as f64 * earned(share);
        let aside = (wall as f64 / 1e9 * self.beside).min(budget * MOST_BESIDE);
        // What is not asked for in a while is given back.
        let kept = (self.put_aside + aside).min(self.beside * BESIDE_S);
        budget -= kept - self.put_aside;
        self.put_aside = kept;
        let paid = (budget * self.paid_back()).min(self.deficit);
        let of_start = (budget * START_PAID_BACK).min(self.start_deficit);
        self.deficit -= paid;
        self.start_deficit -= of_start;
        budget -= paid + of_start;
        let holds = share * 1e9 * HOLDS;
        self.tokens = (self.tokens + budget).min(holds) - spent;
        self.for_clears =
            (self.for_clears + budget * self.clearing).min(holds * self.clearing).min(self.tokens.max(0.0));
        let most = -(holds * RECOVERS.0).max(self.promised(share));
        if self.tokens < most {
            self.deficit += most - self.tokens;
            self.tokens = most;
        }
        self.last_wall_ns = now_ns;
        self.last_cpu = cpu;
    }

    /// Takes off what other threads spent on what this one made. What that leaves too little for the next ticks adds to the deficit.
    /// It is learnt how much that is all the time.
    pub(crate) fn charge(&mut self, cpu: Duration) {
        if self.share.is_some() {
            let seconds = self.last_wall_ns.saturating_sub(self.charged_ns) as f64 / 1e9;
            let whole = self.uncounted + cpu.as_nanos() as f64;
            if self.charged_ns > 0 && seconds > 0.0 {
                self.beside_s = (self.beside_s + seconds).min(BESIDE_S.max(seconds));
                let rate = whole / seconds;
                let [last, first] = self.beside_before;
                self.beside_before = [rate, last];
                let lasting = rate.min(last).max(rate.max(last).min(first));
                self.beside += (lasting - self.beside) * seconds / self.beside_s;
            }
            // Of two at one moment the second one counts with the next.
            self.uncounted = if self.charged_ns > 0 && seconds <= 0.0 { whole } else { 0.0 };
            self.charged_ns = self.last_wall_ns;
        }
        self.charge_once(cpu);
    }

    /// The same for what need not come again.
    pub(crate) fn charge_once(&mut self, cpu: Duration) {
        if self.share.is_some() {
            let kept =
                self.tokens.min(self.kept().max(self.share.unwrap_or(0.0) * 1e9 * HOLDS * KEPT_FOR_ENDS));
            let cpu = cpu.as_nanos() as f64;
            let covered = cpu.min(self.put_aside);
            self.put_aside -= covered;
            self.tokens -= cpu - covered;
            self.deficit += (kept - self.tokens).max(0.0);
            self.tokens = self.tokens.max(kept);
        }
    }

    /// This thread spent CPU time that has a budget of its own.
    pub(crate) fn leave_out(&mut self, cpu: Duration) {
        self.last_cpu += cpu;
    }

    /// What may be spent on anything, ns.
    fn free(&self) -> f64 {
        self.tokens - self.for_clears
    }

    /// What is kept for looks at what is cleared, ns.
    fn kept(&self) -> f64 {
        let most = self.share.unwrap_or(0.0) * 1e9 * HOLDS * MOST_KEPT;
        (KEPT * (self.tick_ns + self.wake_up_ns)).min(most)
    }

    /// What was spent to get here, on this thread's account or not, is paid back slowly.
    pub(crate) fn spent_before(&mut self, cpu: Duration) {
        if self.share.is_some() {
            // What this thread spent since is settled with the first tick.
            let counted = clock::of_this_thread().saturating_sub(self.last_cpu);
            self.start_deficit += cpu.saturating_sub(counted).as_nanos() as f64;
        }
    }

    /// How many targets there are.
    pub(crate) fn set_targets(&mut self, count: usize) {
        self.clearing = if count >= CLEARING.0 { CLEARING.1 } else { 0.0 };
    }

    /// How long to sleep until the next tick can be paid, ns; 0: it can be now. Waking up just to find that it
    /// cannot would cost as much as a tick. Of many targets, ticks that do not conclude an aggregation are there for looks at what was
    /// cleared, which tell how hot it is only if they come in time: they wait for nothing but a deficit past what may be.
    pub(crate) fn must_wait(&mut self, now_ns: u64, concludes: bool) -> u64 {
        let promised = self.has_many() && !concludes;
        let wait = if promised { self.wait_for_deficit() } else { self.wait_for_earnings() };
        // Where the ceiling is below what sleeping costs, nothing would ever be saved up.
        if wait == 0 || now_ns.saturating_sub(self.ticked_ns) >= LONGEST_WAIT {
            self.ticked_ns = now_ns;
            return 0;
        }
        wait.min(LONGEST_WAIT)
    }

    /// There are so many targets that each has its turn now and then.
    pub(crate) fn has_many(&self) -> bool {
        self.clearing > 0.0
    }

    /// What looks that are due may take beyond what there is, ns.
    fn promised(&self, share: f64) -> f64 {
        if self.has_many() { share * 1e9 * HOLDS * PROMISED } else { 0.0 }
    }

    fn wait_for_deficit(&self) -> u64 {
        let Some(share) = self.share else { return 0 };
        ((self.deficit - most_deficit(share)).max(0.0) / earned(share)).ceil() as u64
    }

    fn wait_for_earnings(&self) -> u64 {
        let Some(share) = self.share else { return 0 };
        let dear = self.dear_tick(share);
        if self.free() >= dear {
            return self.wait_for_deficit();
        }
        // The wake-up that ends the wait is paid for, too, or it would be followed by another, for ever where the ceiling is low.
        let worth = (share * 1e9 * if self.has_many() { RECOVERS.1 } else { RECOVERS.0 }).max(WORTH_WAKING);
        let wanted = dear + self.wake_up_ns.max(worth.min(share * 1e9 * HOLDS / 4.0));
        // As long as clears' share is not full, it takes its part.
        let full = self.for_clears >= share * 1e9 * HOLDS * self.clearing;
        let part = if full { 1.0 } else { 1.0 - self.clearing };
        let missing = (wanted - self.free()) / self.kept_of_budget() / part;
        // Past the largest deficit nothing is kept.
        ((missing / earned(share)) as u64).saturating_add(1)
    }

    /// Part of the budget that does not pay back.
    fn kept_of_budget(&self) -> f64 {
        let of_start = if self.start_deficit > 0.0 { START_PAID_BACK } else { 0.0 };
        (1.0 - self.paid_back() - of_start) * (1.0 - self.part_beside())
    }

    /// ... and part of it that is put aside for what others take, first.
    fn part_beside(&self) -> f64 {
        let Some(share) = self.share.filter(|_| self.put_aside < self.beside * BESIDE_S) else { return 0.0 };
        (self.beside / (earned(share) * 1e9)).min(MOST_BESIDE)
    }

    /// Part of the budget that pays back what was overspent: the more that is, the more, and all of it past what may be.
    fn paid_back(&self) -> f64 {
        let Some(share) = self.share.filter(|_| self.deficit > 0.0) else { return 0.0 };
        let part = self.deficit / most_deficit(share);
        if part >= 1.0 { 1.0 - START_PAID_BACK } else { part.clamp(PAID_BACK, 1.0 - 2.0 * START_PAID_BACK) }
    }

    /// What a tick costs without doing anything, but no more than half of what can be saved up: there must be ticks.
    fn dear_tick(&self, share: f64) -> f64 {
        let holds = share * 1e9 * HOLDS;
        let times = if self.tick_ns > holds * DEAR.0 { DEAR.1 } else { 1.0 };
        (self.tick_ns * times).min(holds / 2.0)
    }

    /// What the coming tick may spend.
    pub(crate) fn allowance(&self, attrs: &Attrs, concludes: bool) -> Allowance {
        let Some(share) = self.share else { return Allowance::UNLIMITED };
        let aggr_ns = attrs.aggr.as_nanos() as f64;
        // Windows as short as an interval are closed by the next tick: it must come in time.
        let longest = aggr_ns * LONGEST_TICK;
        // What is promised is for those looks, not for what makes others necessary.
        let promised = if concludes { 0.0 } else { self.promised(share) };
        let left = (self.tokens + promised - self.tick_ns).clamp(0.0, longest);
        let a_call = (self.call_ns / self.check_ns) as usize;
        let least =
            if self.has_many() && !concludes { LEAST_LOOKS.0 + LEAST_LOOKS.1 * (a_call + 1) } else { 0 };
        let by_turns = (self.free() - self.tick_ns).clamp(0.0, longest);
        // What is cleared is to be looked at: that must be paid for when its time comes.
        let to_clear = (self.free() - self.tick_ns - self.kept()).max(self.for_clears).clamp(0.0, longest);
        // The cost of being awake comes first; never plan with less than three tenths for actual work.
        let budget = aggr_ns * earned(share) * self.kept_of_budget();
        let plannable = (budget - self.base_ns * aggr_ns / 1e9).max(budget * 0.3);
        Allowance {
            checks: ((left / self.check_ns) as usize).max(least),
            by_turns: (by_turns / self.check_ns) as usize,
            checks_a_call: a_call,
            prepares: (to_clear * 0.75 / self.clears.each_ns) as usize,
            prepares_a_call: (self.clears.call_ns / self.clears.each_ns) as usize,
            checks_per_aggr: (plannable * 0.3 / self.check_ns) as usize,
            prepares_per_aggr: (plannable * 0.6 / self.clears.each_ns) as usize,
            swept_a_prepare: (self.clears.each_ns / self.swept_page_ns) as usize,
            asked_per_aggr: (budget * ASKING / self.ask_ns) as usize,
            wake_ups_per_aggr: (budget * WAKE_UPS / (self.wake_up_ns + self.tick_ns)) as usize,
        }
    }

    /// Learns prices from what a tick did (`before` and `after` it) and cost.
    pub(crate) fn learn(&mut self, before: &Tally, after: &Tally, spent: &Spent) {
        // One call that took a hundred times as long (the machine stood still, a lock was held) says nothing of the next.
        let blend = |old: &mut f64, new: f64| *old += (new.min(*old * OUTLIER) - *old) / 16.0;
        let checks = after.checks - before.checks;
        let of_sweeps = after.prepares_of_sweeps - before.prepares_of_sweeps;
        let prepares = (after.prepares - before.prepares).saturating_sub(of_sweeps);
        let swept = after.entries_swept - before.entries_swept;
        // A handful of looks costs mostly the call itself.
        let calls = (after.calls - before.calls) as f64;
        let (checked, took) = (checks as f64, spent.checking.as_nanos() as f64);
        if checked >= MANY_A_CALL * calls && calls > 0.0 {
            blend(&mut self.check_ns, ((took - calls * self.call_ns) / checked).max(100.0));
        } else if calls > 0.0 {
            blend(&mut self.call_ns, ((took - checked * self.check_ns) / calls).max(1_000.0));
        }
        if prepares > 0 {
            let calls = (after.clear_calls - before.clear_calls) as f64;
            self.clears.learn(calls, prepares as f64, spent.preparing.as_nanos() as f64);
        }
        if swept > 0 {
            let price = spent.sweeping.as_nanos() as f64 / swept as f64;
            blend(&mut self.swept_page_ns, price.max(5.0));
        }
        let asked = after.asked - before.asked;
        if asked > 0 {
            blend(&mut self.ask_ns, (spent.asking.as_nanos() as f64 / asked as f64).max(50.0));
        }
        self.for_clears = (self.for_clears - (spent.preparing + spent.sweeping).as_nanos() as f64).max(0.0);
        self.worked += (spent.checking + spent.preparing + spent.sweeping).as_nanos() as f64;
        self.ticked += spent.whole.as_nanos() as f64;
        let rest =
            spent.whole.saturating_sub(spent.checking + spent.preparing + spent.sweeping + spent.asking);
        // A few looks in a call or two are what waking up is for; those of many targets, a call each, have their price.
        let few = checks < FEW_LOOKS.0 && calls <= FEW_LOOKS.1;
        blend(
            &mut self.tick_ns,
            (rest + if few { spent.checking } else { Duration::ZERO }).as_nanos() as f64,
        );
    }
}

mod line;
#[cfg(test)]
mod tests;
