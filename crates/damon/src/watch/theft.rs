//! Accessed bits that others cleared. An access leaves its bit set until somebody clears it, so a bit that was left set and is
//! found clear was cleared by another: a kdamond, the kernel's reclaim, a profiler. What it takes, it takes also of memory that
//! is watched, and an access before that does not show at the look that ends the window.
//!
//! How often a page's bit is taken is estimated for each target, from what is looked at anyway. A page that is accessed at a rate
//! r and whose bit is taken at a rate t is found clear, `gap` intervals after it was found set, with a probability of
//! t / (t + r) x (1 - exp(-(t + r) gap)). Of pages in a few classes by r ([`CLASSES`]) it is counted how many were found clear; t is
//! what explains their number best, of those that are hot or of those that are idle, whichever says more. A window then shows what was accessed since the last time that its bits were taken, which is
//! (1 - exp(-t L)) / t of its length L: that much counts ([`Theft::covered`]).
//!
//! Of memory whose rate is not known nothing is known but that t is no less than if it were idle.

use super::evidence::kept;
use super::rescale::Rescale;
use super::tuning::Tuning;

/// Rates up to which pages are of the classes but the last, an interval: idle, and three of hot memory.
const CLASSES: [f32; 4] = [0.0, 0.05, 0.3, 1.0];

/// So many of what is thought to be hot may be found clear: beyond that it is likelier that it is hot no more.
const MOST_OF_HOT: f32 = 0.9;

/// So many of a group must be: others that clear bits do so everywhere.
const LEAST_SHARE: f32 = 0.02;

/// How often others take the bits of a target's pages.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Theft {
    classes: [Seen; CLASSES.len()],
    /// Of those whose rate is not known.
    unknown: Seen,
    /// What explains it.
    rate: f32,
    /// When it was last found out that there is somebody, or that it is several times as much; 0: never.
    noticed: u64,
    /// Pages since they were last told: left set, and found clear.
    untold: (u64, u64),
    /// When all of it last faded.
    faded: u64,
}

/// Pages that were left set: how many, those of them that were found clear, and sums of their gaps and rates.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Seen {
    left: f32,
    taken: f32,
    gaps: f32,
    rates: f32,
}

impl Seen {
    /// How many are to be found clear of bits that are taken at this rate.
    fn expected(&self, theft: f32) -> f32 {
        let (gap, rate) = (self.gaps / self.left.max(1.0), self.rates / self.left.max(1.0));
        self.left * theft * within(theft + rate, gap)
    }

    fn values(&mut self) -> [&mut f32; 4] {
        [&mut self.left, &mut self.taken, &mut self.gaps, &mut self.rates]
    }
}

impl Theft {
    /// Takes in that `taken` of `left` pages, which had been left set, were found clear `gap` intervals later. `rate`: of their
    /// accesses, if known.
    pub fn saw(&mut self, left: u32, taken: u32, gap: f32, rate: Option<f32>) {
        self.untold = (self.untold.0 + u64::from(left), self.untold.1 + u64::from(taken));
        let class = rate.and_then(|rate| {
            let class = CLASSES.iter().position(|most| rate <= *most)?;
            self.classes.get_mut(class)
        });
        let seen = class.unwrap_or(&mut self.unknown);
        seen.left += left as f32;
        seen.taken += taken as f32;
        seen.gaps += gap * left as f32;
        seen.rates += rate.unwrap_or(0.0) * left as f32;
    }

    /// Somebody began to take bits: from now on windows are judged by that, and what ended before it was seen is doubtful.
    pub fn notice(&mut self, now: u64, tuning: &Tuning) {
        // Also where others took some before: it may be far more now.
        if self.untold.1 as f32 >= tuning.few_taken {
            self.explain(now, tuning);
        }
    }

    /// Whether what was seen until `now` may have been judged before it was known that somebody takes bits.
    pub fn is_new(&self, now: u64, longest: u64) -> bool {
        self.noticed != 0 && now <= self.noticed + longest
    }

    fn explain(&mut self, now: u64, tuning: &Tuning) {
        let before = self.rate;
        // Each group says no less than that: what is taken for idle may be in use, and not show it for being taken.
        let (idle, hot) = self.classes.split_at(1);
        let of = |group: &[Seen], most| explaining(group, most, tuning);
        self.rate = of(hot, MOST_OF_HOT).max(of(idle, 1.0)).max(of(&[self.unknown], 1.0));
        if self.rate > 4.0 * before {
            self.noticed = now;
        }
    }

    /// An aggregation is over: what was seen long ago counts less, and the rate is what explains the rest.
    pub fn conclude(&mut self, now: u64, tuning: &Tuning) {
        let kept = kept(now.saturating_sub(self.faded), tuning);
        self.faded = now;
        let all = self.classes.iter_mut().chain([&mut self.unknown]);
        all.flat_map(Seen::values).for_each(|value| *value *= kept);
        self.explain(now, tuning);
    }

    /// Pages that were left set, and those of them that were found clear, since that was last asked.
    pub fn take_counts(&mut self) -> (u64, u64) {
        core::mem::take(&mut self.untold)
    }

    /// How much of a window's length shows at its end.
    pub fn covered(&self, length: f32) -> f32 {
        if self.rate > 0.0 { within(self.rate, length) } else { length }
    }

    /// The sampling interval is another one.
    pub fn rescale(&mut self, by: Rescale) {
        for seen in self.classes.iter_mut().chain([&mut self.unknown]) {
            by.length(&mut seen.gaps);
            by.each(&mut seen.rates);
        }
        by.each(&mut self.rate);
        by.time(&mut self.faded);
        by.time(&mut self.noticed);
    }
}

/// The rate at which as many bits would be taken as were, but for those that are more than a share.
fn explaining(seen: &[Seen], most: f32, tuning: &Tuning) -> f32 {
    let left: f32 = seen.iter().map(|seen| seen.left).sum();
    let taken = seen.iter().map(|seen| seen.taken).sum::<f32>().min(left * most);
    // Few may be pages that went and others that came in their place, or what the target itself has let go.
    if taken < tuning.few_taken || taken < left * LEAST_SHARE {
        return 0.0;
    }
    // More often than that, nothing can be seen at all; less often than that, nothing is lost.
    let (mut low, mut high) = (1e-6_f32, 16.0_f32);
    for _ in 0..24 {
        let middle = (low + high) / if high > 4.0 * low { 4.0 } else { 2.0 };
        let expected: f32 = seen.iter().map(|seen| seen.expected(middle)).sum();
        if expected < taken { low = middle } else { high = middle }
    }
    low
}

/// (1 - exp(-rate x length)) / rate, to within a hundredth.
pub(super) fn within(rate: f32, length: f32) -> f32 {
    let x = rate * length;
    let over = if x < 3.0 { 1.0 + x / 2.0 + x * x / 12.0 - x * x * x * x / 720.0 } else { x + 1.4 / (x * x) };
    length / over
}

#[cfg(test)]
mod tests {
    use super::super::tuning::AT_5_MS as T;
    use super::*;

    #[test]
    fn what_is_covered_is_as_the_exponential_says() {
        for (x, over) in
            [(0.0, 1.0), (0.1, 1.0508), (1.0, 1.5820), (2.0, 2.3130), (4.0, 4.0746), (50.0, 50.0)]
        {
            let found = 10.0 / within(x / 10.0, 10.0);
            assert!((found / over - 1.0_f32).abs() < 0.01, "{found} instead of {over} at {x}");
        }
    }

    fn seen_for(aggregations: u64, theft: &mut Theft, left: u32, taken: u32, rate: Option<f32>) {
        for _ in 0..aggregations {
            theft.saw(left, taken, 20.0, rate);
            theft.conclude(theft.faded + 20, &T);
        }
    }

    #[test]
    fn thieves_are_found_out_by_what_they_leave() {
        // Bits taken every 4 intervals on average, of memory that is accessed every 5 or so, looked at every 20: t / (t + r) are clear.
        let share = |rate: f32| if rate > 0.0 { 0.25 / (0.25 + rate) } else { 0.9933 };
        for rates in [&[0.2][..], &[0.0], &[1.0], &[0.04, 0.2, 1.0], &[0.05, 1.0]] {
            let mut theft = Theft::default();
            for now in 1..30 {
                for rate in rates {
                    theft.saw(1000, (1000.0 * share(*rate)) as u32, 20.0, Some(*rate));
                }
                theft.conclude(20 * now, &T);
            }
            // Of idle memory nearly all is gone by then, however often it is taken.
            let most = if rates == [0.0] { 0.2 } else { 0.1 };
            assert!(
                (theft.rate / 0.25 - 1.0).abs() < most,
                "{} instead of 0.25 beside {rates:?}",
                theft.rate
            );
            assert!((theft.covered(20.0) - 4.0).abs() < 4.0 * most);
        }
        assert_eq!(Theft::default().covered(20.0), 20.0);
    }

    #[test]
    fn a_few_pages_are_no_thief_and_one_who_left_is_forgotten() {
        let mut theft = Theft::default();
        seen_for(1, &mut theft, 1000, 5, None);
        assert_eq!(theft.rate, 0.0);
        seen_for(1, &mut theft, 1000, 900, None);
        assert!(theft.rate > 0.02, "{}", theft.rate);
        seen_for(200, &mut theft, 1000, 0, None);
        assert_eq!(theft.rate, 0.0);
    }
}
