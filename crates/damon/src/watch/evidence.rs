//! What windows add up to: hits, exposure, and when to believe that a pattern changed.
//!
//! Hits and exposure grow with each window by the share of its pages that were hit and by its length, however many pages those
//! are: of how many observations a cell's evidence is counts where it is drawn ([`super::shown`]). Both are forgotten at one
//! pace, so that the rate stands on about the last [`Tuning::most_hits`] hits. A window, or a row of them, that can hardly
//! come from the rate so far is a change of pattern, and evidence starts anew with it.

use super::places::ln;
use super::shown::Shown;
use super::tuning::Tuning;

/// Of 64 pages all but half a one: where all were accessed, it was no less.
const MOST_OF_REST: f32 = 1.0 - 0.5 / 64.0;

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Evidence {
    pub hits: f32,
    /// In sampling intervals.
    pub exposure: f32,
    /// Intervals since the last hit.
    pub idle: f32,
    /// How probable the windows hit in a row were.
    pub luck: f32,
    /// All that is known of the rate is that it is no less: an access was found after a window too long to tell more. Of a stretch, most
    /// of what is known.
    pub floor: bool,
    /// When it last came in.
    pub last: u64,
}

/// What a window was, seen from what was known before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Expected,
    /// A change of pattern: accessed.
    Surprise,
    /// A change of pattern: not accessed any more.
    Silent,
}

impl Evidence {
    /// `hits` in `exposure` intervals.
    pub fn of(hits: f32, exposure: f32, floor: bool, last: u64) -> Self {
        Self { hits, exposure, floor, last, ..Self::default() }
    }

    /// Access probability an interval; 0 when nothing is known.
    pub fn rate(&self) -> f32 {
        if self.exposure > 0.0 { (self.hits / self.exposure).min(1.0) } else { 0.0 }
    }

    /// Whether it is evidence of about this rate. Of a bound, whether the rate is no less.
    pub fn is_like(&self, rate: f32, tuning: &Tuning) -> bool {
        let own = self.rate();
        if self.floor { own <= rate } else { own <= rate * tuning.like && rate <= own * tuning.like }
    }

    /// Whether it may be of memory of this rate. A bound may be up to [`Tuning::like`] times above it, too: the window that it is of
    /// was met sooner than most by chance.
    pub fn may_be(&self, rate: f32, tuning: &Tuning) -> bool {
        self.is_like(rate, tuning) || self.floor && self.rate() <= rate * tuning.like
    }

    /// Length of the next window, in intervals.
    pub fn window_length(&self, tuning: &Tuning, longest: u64) -> u64 {
        let rate = self.rate();
        if rate <= 0.0 {
            return longest;
        }
        // Also where all that is known is a bound: of windows that shrink at once to where a hit would be luck, some are hit, and
        // where there is a sweep a second that luck would be told as the rate for seconds.
        let wanted = ((tuning.window_hits / rate) as u64).max(1);
        // A power of two: few different lengths, so that many windows end in one wake-up.
        (1 << wanted.ilog2()).min(longest)
    }

    /// Intervals until idleness will be telling.
    pub fn until_silent(&self, tuning: &Tuning, longest: u64) -> u64 {
        let rate = self.rate();
        if rate <= 0.0 {
            return longest;
        }
        ((tuning.surprise_idle / rate - self.idle) as u64).saturating_add(1).min(longest)
    }

    /// Takes in a window of `length` intervals. One that does not count, because it
    /// was not chosen without regard to what it would show, can only be a change of pattern.
    pub fn take(&mut self, shown: Shown, length: f32, counts: bool, now: u64, tuning: &Tuning) -> Verdict {
        if shown.share > 0.0 {
            self.hit(shown, length, counts, now, tuning)
        } else {
            self.miss(length, counts, now, tuning)
        }
    }

    fn hit(
        &mut self,
        Shown { share, pages, runs }: Shown,
        length: f32,
        counts: bool,
        now: u64,
        tuning: &Tuning,
    ) -> Verdict {
        let expected = self.rate() * length;
        let told = Hits::of(share, length, runs, tuning);
        let row = if self.idle > 0.0 || self.luck <= 0.0 { 1.0 } else { self.luck };
        (self.idle, self.last) = (0.0, now);
        if !counts {
            return Verdict::Expected;
        }
        // Of pages each accessed for itself some are in every window.
        self.luck = if share < 0.97 { 1.0 } else { row * expected.min(1.0) };
        // After so long a time without a hit, several pages of which each speaks for itself are no chance.
        let late = length / (self.exposure + length);
        let is_first = self.hits < tuning.next_to_none && self.exposure > 0.0;
        // Of little there is not much to lose.
        let enough = if self.exposure <= length { tuning.first_short } else { tuning.first };
        if is_first && (0..runs).fold(1.0, |chance, _| chance * late) < enough {
            self.begin_with(told, length, now, tuning);
            // When in the window they began is not known.
            let kept = (tuning.began / self.exposure).min(1.0);
            (self.hits, self.exposure) = (self.hits * kept, self.exposure * kept);
            return Verdict::Surprise;
        }
        // Where some of many pages are hit, each speaks for itself, and a share so different is no chance, unless they are few.
        let likely = expected.min(1.0);
        // By the spread of what was expected: a rise from next to nothing is no chance.
        let chance = likely.max(1.0 / pages) / pages;
        let apart = share < 0.97
            && (share > tuning.apart * expected || share * tuning.apart < expected.min(0.6))
            && (share - likely) * (share - likely) > tuning.no_chance * chance;
        if self.exposure > 0.0 && apart && expected > 0.0 {
            self.begin_with(told, length, now, tuning);
            return Verdict::Surprise;
        }
        // Where there were hardly any hits, most of the exposure is from before they began.
        let surprising =
            if self.hits < tuning.begins_hits { tuning.begins_chance } else { tuning.surprise_hit };
        if self.exposure > 0.0 && self.luck < surprising {
            self.begin_with(told, length, now, tuning);
            return Verdict::Surprise;
        }
        self.add_with(told, share, length, now, tuning);
        Verdict::Expected
    }

    /// Evidence starts anew with this window.
    pub fn begin(&mut self, share: f32, length: f32, now: u64, tuning: &Tuning) {
        self.begin_with(Hits::together(share, length), length, now, tuning);
    }

    fn begin_with(&mut self, told: Hits, length: f32, now: u64, tuning: &Tuning) {
        let floor = told.is_bound && length > 1.5;
        // What is only a bound soon gives way to what is measured.
        let weight = match floor {
            true if length >= tuning.bound_long => tuning.bound_long_weight,
            true => tuning.bound,
            false => 1.0,
        };
        *self = Self { luck: 1.0, ..Self::of(told.hits * weight, length * weight, floor, now) };
    }

    /// It is taken to be of other pages: the same accesses are more of fewer. `floor`: no window told more than that all of
    /// them are accessed.
    pub fn refocus(&mut self, from: u64, to: u64, floor: bool) {
        let ratio = from.count_ones() as f32 / to.count_ones().max(1) as f32;
        self.hits = (self.hits * ratio).min(self.exposure);
        self.floor = floor;
    }

    /// A hit after so long was expected sooner.
    pub fn is_late(&self, length: f32) -> bool {
        self.rate() * length > 1.0
    }

    /// Takes in such a hit for half: not before the window ended, at least as far as could be seen.
    pub fn take_late(&mut self, share: f32, length: f32, now: u64, tuning: &Tuning) {
        (self.idle, self.luck, self.floor, self.last) = (0.0, 1.0, false, now);
        self.hits += share * tuning.late;
        self.exposure += length * tuning.late;
        self.forget_beyond(tuning);
    }

    /// Adds a window as what it is, without looking for a change of pattern in it.
    pub fn add(&mut self, share: f32, length: f32, now: u64, tuning: &Tuning) {
        self.add_with(Hits::together(share, length), share, length, now, tuning);
    }

    fn add_with(&mut self, told: Hits, share: f32, length: f32, now: u64, tuning: &Tuning) {
        let expected = self.rate() * length;
        let whole = told.is_bound;
        if share > 0.0 && self.exposure <= 0.0 || self.floor && whole && expected < 0.99 {
            // The first that is known of this rate, or a higher bound than so far: windows shrink until one shows no hit.
            self.begin_with(told, length, now, tuning);
            return;
        }
        self.floor &= whole;
        self.last = now;
        // Looked at too late, it tells nothing but that it is still accessed.
        if expected <= 1.0 || !whole {
            self.hits += told.hits;
            self.exposure += length;
            self.forget_beyond(tuning);
        }
    }

    /// The same, but for that a row of hits that is too good to be chance is a change of pattern.
    pub fn add_in_a_row(&mut self, share: f32, length: f32, now: u64, tuning: &Tuning) -> Verdict {
        let expected = (self.rate() * length).min(1.0);
        self.luck = if share < 0.97 {
            1.0
        } else if self.luck > 0.0 {
            self.luck * expected
        } else {
            expected
        };
        if self.exposure > 0.0 && self.luck < tuning.surprise_row {
            self.begin(share, length, now, tuning);
            return Verdict::Surprise;
        }
        self.add(share, length, now, tuning);
        Verdict::Expected
    }

    fn miss(&mut self, length: f32, counts: bool, now: u64, tuning: &Tuning) -> Verdict {
        self.idle += length;
        if self.hits > 0.0 && self.idle * self.rate() > tuning.surprise_idle {
            *self = Self { idle: self.idle, ..Self::of(0.0, self.idle, false, now) };
            self.forget_beyond(tuning);
            return Verdict::Silent;
        }
        if counts {
            (self.last, self.floor) = (now, false);
            self.exposure += length;
            self.forget_beyond(tuning);
        }
        Verdict::Expected
    }

    /// Takes in a window over the pages that the one before did not find accessed. The rate is that of all pages of their cell,
    /// so neither that fewer of these are accessed is a change of pattern, nor that none is. Only a `part` of the window counts.
    pub fn take_rest(&mut self, share: f32, length: f32, part: f32, now: u64, tuning: &Tuning) {
        if share > 0.0 {
            self.idle = 0.0;
        }
        // Each goes by itself, as where they were left alone, so of those that are left the same share is accessed in each moment.
        self.hits += -ln(1.0 - share.min(MOST_OF_REST)) * part;
        self.exposure += length * part;
        (self.last, self.floor) = (now, false);
        self.forget_beyond(tuning);
    }

    /// The same long after the clear. Where pages differ, those that are left are the less accessed the longer ago that is: they
    /// tell no rate any more, only whether all fell silent.
    pub fn take_late_rest(&mut self, share: f32, length: f32, now: u64, tuning: &Tuning) -> Verdict {
        if share > 0.0 {
            (self.idle, self.last) = (0.0, now);
            return Verdict::Expected;
        }
        self.miss(length, false, now, tuning)
    }

    /// Takes in all that a window and what was left of it have shown until now, together: so few pages of so many, in so long, that what was
    /// known is of a time that is over. Each part of it alone could be chance.
    pub fn judge_window(&mut self, share: f32, pages: f32, length: f32, now: u64, tuning: &Tuning) {
        // A loop comes to all of them in its period, and to some of them at once.
        if self.rate() * length < 1.0 {
            return;
        }
        // Of pages accessed at random 63 % are in that time.
        let likely = 0.6;
        let chance = likely / pages;
        let off = likely - share;
        if share > 0.0 && share * tuning.apart < likely && off * off > tuning.no_chance * chance {
            // What it told after its first second tells no rate.
            let counted = length.min(tuning.rest_counts as f32);
            *self = Self { idle: self.idle, luck: 1.0, ..Self::of(-ln(1.0 - share), counted, false, now) };
        }
    }

    fn forget_beyond(&mut self, tuning: &Tuning) {
        let over = (self.hits / tuning.most_hits).max(self.exposure / tuning.most_exposure);
        if over > 1.0 {
            self.hits /= over;
            self.exposure /= over;
        }
    }

    /// Whether it is no chance that in so many intervals, the last of its exposure, there was no hit, of a rate that stands on few hits
    /// itself: of `n` hits in `e` intervals, none in `m` more has the probability (e / (e + m))^n. To compare `m` with the rate of all
    /// of them would never end it, where there are few: the rate falls with each miss. What is accessed many times a second is known
    /// to be silent by its checks.
    pub fn is_over(&self, missed: f32, tuning: &Tuning) -> bool {
        let before = self.exposure - missed;
        // Of less than was missed nothing is known: it was drawn anew, of other cells.
        before > self.hits
            && self.rate() < tuning.fast
            && self.hits * -ln(before / self.exposure) > tuning.over
    }

    /// Of a mean of many cells, each of which counts little: as much stands behind it as behind what was known of all of them
    /// together before, up to [`Tuning::deep_hits`], if that was about the same rate. Of what is accessed many times a second enough
    /// does as it is.
    pub fn deepen(&mut self, before: &Self, now: u64, tuning: &Tuning) {
        // A mean does not say when it last came in.
        self.last = before.last;
        let (hits, exposure) = before.faded(now, tuning);
        if self.floor || before.floor || hits <= 0.0 || self.hits <= 0.0 || exposure <= self.exposure {
            return;
        }
        if self.rate() < tuning.fast && before.is_like(self.rate(), tuning) {
            let times = (exposure / self.exposure).min(tuning.deep_hits / self.hits);
            if times > 1.0 {
                (self.hits, self.exposure) = (self.hits * times, self.exposure * times);
            }
        }
    }

    /// What is left of it when nothing renewed it: hits and exposure.
    pub fn faded(&self, now: u64, tuning: &Tuning) -> (f32, f32) {
        let kept = kept(now.saturating_sub(self.last), tuning);
        (self.hits * kept, self.exposure * kept)
    }
}

/// Whether so much is enough for a cell to count as seen: less is a page or two of a window, or what has faded.
pub(super) fn tells(hits: f32, exposure: f32) -> bool {
    exposure > 0.0 && (hits > 0.1 || exposure > 1.0)
}

/// The part of what was known so many intervals ago that still counts: half after each half-life, near enough.
pub(super) fn kept(intervals: u64, tuning: &Tuning) -> f32 {
    let halvings = intervals as f32 / tuning.half_life;
    // 2^-x.
    1.0 / (1.0 + halvings * (0.7 + halvings * 0.45))
}

/// What a share of a window's pages comes to.
#[derive(Clone, Copy, Debug)]
struct Hits {
    hits: f32,
    /// The rate is no less, that is all.
    is_bound: bool,
}

impl Hits {
    /// Of pages that may be accessed together.
    fn together(share: f32, length: f32) -> Self {
        Self { hits: hits_of(share, length), is_bound: share > 0.5 }
    }

    /// By how many runs those that were accessed make.
    fn of(share: f32, length: f32, runs: u32, tuning: &Tuning) -> Self {
        if runs < tuning.run || length <= 1.5 {
            return Self::together(share, length);
        }
        let at_random = -ln(1.0 - share.min(MOST_OF_REST));
        Self { hits: share + (at_random - share) * 0.75, is_bound: share > 0.9 }
    }
}

/// Hits of a window of which `share` of the pages were accessed. Of pages that are accessed at random, fewer are hit than
/// rate x length: some twice. Of pages each at even distances that is not so, nor of pages accessed together, of which all
/// are hit or none. Between the two, then.
pub(super) fn hits_of(share: f32, length: f32) -> f32 {
    if length > 1.5 && share < 0.97 { share * (1.0 + share * 0.25) } else { share }
}

#[cfg(test)]
mod tests {
    use super::*;

    use super::super::tuning::AT_5_MS as T;

    fn after(mut evidence: Evidence, shown: Shown, length: f32) -> (Verdict, f32) {
        let verdict = evidence.take(shown, length, true, 1000, &T);
        (verdict, evidence.rate())
    }

    #[test]
    fn pages_that_each_begin_to_be_accessed_are_a_new_pattern_however_long_it_was_idle_before() {
        for idle in [200.0, 2000.0] {
            let idle = Evidence::of(0.0, idle, false, 1);
            // 4 of 64 pages in an aggregation: 0.6 Hz.
            let (verdict, rate) = after(idle, Shown { share: 4.0 / 64.0, pages: 64.0, runs: 4 }, 20.0);
            assert_eq!(verdict, Verdict::Surprise);
            assert!((rate * 200.0 - 0.625).abs() < 0.05, "{} Hz", rate * 200.0);
            // The same in one run may be a loop that comes around once in a long time.
            let (verdict, rate) = after(idle, Shown { share: 4.0 / 64.0, pages: 64.0, runs: 1 }, 20.0);
            assert_eq!(verdict, Verdict::Expected);
            assert!(rate * 200.0 < 0.1, "{} Hz", rate * 200.0);
        }
        // What is hardly known of was never idle for long.
        let fresh = Evidence::of(0.0, 20.0, false, 1);
        let (verdict, _) = after(fresh, Shown { share: 4.0 / 64.0, pages: 64.0, runs: 4 }, 20.0);
        assert_eq!(verdict, Verdict::Expected);
    }

    #[test]
    fn few_pages_of_a_check_differ_by_chance() {
        let hot = Evidence::of(8.0, 40.0, false, 1);
        // 6 of 32 are expected: one in a hundred checks shows 1.
        let (verdict, _) = after(hot, Shown { share: 1.0 / 32.0, pages: 32.0, runs: 1 }, 1.0);
        assert_eq!(verdict, Verdict::Expected);
        // 38 of 64 are.
        let (verdict, _) = after(hot, Shown { share: 1.0 / 64.0, pages: 64.0, runs: 1 }, 3.0);
        assert_eq!(verdict, Verdict::Surprise);
    }

    #[test]
    fn few_hits_end_as_many_do_if_later() {
        // At 2 Hz, what is known by 16 passes, 8, and 2.
        let ends_after = |hits: f32| {
            let missed = |missed: &u32| {
                Evidence::of(hits, hits / 0.01 + *missed as f32, false, 1).is_over(*missed as f32, &T)
            };
            (0..10_000).find(missed)
        };
        let [many, some, few] = [16.0, 8.0, 2.0].map(ends_after);
        assert!(matches!(many, Some(500..=540)) && matches!(some, Some(580..=620)), "{many:?} {some:?}");
        assert!(matches!(few, Some(1650..=1750)), "{few:?}");
        assert!(!Evidence::of(0.0, 1000.0, false, 1).is_over(500.0, &T), "nothing has no end");
    }

    #[test]
    fn one_stray_access_does_not_hide_that_pages_begin_to_be_accessed() {
        let stray = Evidence::of(1.0 / 64.0, 2000.0, false, 1);
        let (verdict, rate) = after(stray, Shown { share: 6.0 / 64.0, pages: 64.0, runs: 1 }, 20.0);
        assert_eq!(verdict, Verdict::Surprise);
        assert!((rate * 200.0 - 0.94).abs() < 0.05, "{} Hz", rate * 200.0);
    }
}
