//! Which pages of a cell are accessed, where it is the same ones each time.
//!
//! A cell is 64 pages, and what is hot may be fewer: 64 KiB of a heap, every eighth page. Of such a cell a quarter of the pages
//! shows in each window, and as a rate of all of them that would be a quarter of theirs: too little to stand out of idle memory
//! around it, and in the next window no news. So the pages that were accessed in windows over all of a cell are gathered. Were any
//! page as likely as any other, others would come each time; where the same ones come instead, and that is no chance, they are the
//! cell's *focus*: its evidence is theirs alone, they are what is checked, and what lies before and behind them is drawn as idle.
//!
//! Where each page goes by itself, a second window of which no page is new, where chance would have many, tells it.
//!
//! What a loop's front has come to is a part of a cell, too, but another one each time, and soon all of it.
//!
//! Pages outside of the focus were not accessed for as long as their bits stay clear; those that do not are *strays*, and if those
//! are many all of the cell is seen again.

use super::shown::Shown;

/// See the module's essay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Focus {
    /// The pages; none: not known to be fewer than all.
    pages: u64,
    /// Pages that were accessed in the last windows, how many windows those are, and the sum of the pages of each.
    seen: u64,
    windows: u8,
    hits: u16,
    /// Of the pages that later windows showed, those that none before had; as many as chance would have, and the variance of that, in
    /// sixteenths.
    new: u16,
    due: u16,
    variance: u16,
    /// Pages outside of it that were accessed since.
    strays: u64,
}

/// Windows after which gathering begins anew, so that what is not accessed any more is forgotten.
const GENERATION: u8 = 16;
/// Runs of neighbours from which on pages are accessed each for itself.
const EACH_FOR_ITSELF: u32 = 4;
/// Standard deviations that are no chance.
const DEVIATIONS: f32 = 3.0;

impl Focus {
    /// Those of some pages that count: all of them, unless fewer are known to be accessed.
    pub fn of(&self, pages: u64) -> u64 {
        match self.pages & pages {
            0 => pages,
            some => some,
        }
    }

    /// Its pages, if they are known to be fewer than all.
    pub fn known(&self) -> Option<u64> {
        (self.pages != 0).then_some(self.pages)
    }

    /// Those of the pages that are there that are accessed, if enough windows told: all of them where it was others each time.
    pub fn sorted(&self, present: u64) -> Option<u64> {
        match self.known() {
            None => {
                (self.windows > 2 || self.windows > 0 && self.seen & present == present).then_some(present)
            }
            Some(pages) => Some(pages & present),
        }
    }

    /// Some of the pages that are there were accessed and others were not, too few times yet to tell whether it is always the same
    /// ones.
    pub fn is_open(&self, present: u64) -> bool {
        self.pages == 0 && self.windows > 0 && self.seen & present != present
    }

    /// It takes another window or two.
    pub fn is_young(&self) -> bool {
        self.windows < 3
    }

    /// It is these: others were watched for long and never accessed.
    pub fn settle(&mut self, pages: u64) {
        let windows = 3;
        let hits = u16::from(windows) * pages.count_ones() as u16;
        *self = Self { pages, seen: pages, windows, hits, ..Self::default() };
    }

    /// Takes in a window over all of a cell, `shown` of whose pages were accessed. True if it is another one now.
    pub fn add(&mut self, window: u64, shown: u64) -> bool {
        if self.windows >= GENERATION {
            *self = Self { pages: self.pages, ..Self::default() };
        }
        self.count_new(window, shown);
        self.seen |= shown;
        self.windows += 1;
        self.hits += shown.count_ones() as u16;
        self.strays = 0;
        let before = self.pages;
        let of = self.of(window);
        let beside = self.seen & window & !of;
        if 8 * beside.count_ones() <= of.count_ones().max(8) {
            // The same pages, or of them the same again; one that is new is another of them.
            self.pages = match before | beside {
                _ if self.is_no_chance(of) || before == 0 && self.are_the_same() => self.seen,
                _ if before == 0 => 0,
                all => all,
            };
        } else if self.is_no_chance(window) {
            self.pages = self.seen;
        } else if self.windows > 2 {
            self.pages = 0;
        }
        // Nearly all are as good as all, and pages that are accessed more and less often would come and go.
        if 8 * (self.pages & window).count_ones() > 7 * window.count_ones() {
            self.pages = 0;
        }
        self.pages != before
    }

    /// What was seen of some pages is so much less than any of them would be that it is the same ones.
    fn is_no_chance(&self, of: u64) -> bool {
        let (count, seen) = (of.count_ones() as f32, (self.seen & of).count_ones() as f32);
        let (windows, hits) = (f32::from(self.windows), f32::from(self.hits));
        // Those beside them were accessed about once.
        let hits = hits - (self.seen & !of).count_ones() as f32;
        if windows < 2.0 || seen >= count {
            return false;
        }
        let missed = (1.0 - hits / (windows * count)).max(0.0);
        let expected = (0..self.windows).fold(count, |all, _| all * missed);
        let beyond = |is: f32, chance: f32| {
            is > chance && (is - chance) * (is - chance) >= DEVIATIONS * DEVIATIONS * (chance + 1.0)
        };
        // Pages that came more than once, or pages that never came. Of a loop's front two windows may meet the same part.
        beyond(hits - seen, hits - (count - expected)) || windows > 2.0 && beyond(count - seen, expected)
    }

    /// Where each goes by itself, of so many pages some are new, were it any of the window's.
    fn count_new(&mut self, window: u64, shown: u64) {
        let (all, hits) = (window.count_ones() as f32, (shown & window).count_ones() as f32);
        let known = (self.seen & window).count_ones() as f32 / all.max(1.0);
        // A loop's front may be met at one place twice.
        if self.windows == 0 || Shown::runs(window, shown) < EACH_FOR_ITSELF {
            return;
        }
        let sixteenths = |of: f32| (of * 16.0) as u16;
        self.new += 16 * (shown & window & !self.seen).count_ones() as u16;
        self.due += sixteenths(hits * (1.0 - known));
        self.variance += sixteenths(hits * known * (1.0 - known) * (all - hits) / (all - 1.0).max(1.0));
    }

    /// None was, where chance would have had many. That far fewer were is not enough: beside pages that are accessed often there may be
    /// others that are now and then.
    fn are_the_same(&self) -> bool {
        let missing = f32::from(self.due) / 16.0;
        self.new == 0
            && missing * missing >= DEVIATIONS * DEVIATIONS * (f32::from(self.variance) / 16.0 + 1.0)
    }

    /// Takes in pages that were accessed, whether they belong to it or not. True if those that do not are many: the next window is to
    /// be over all.
    pub fn strayed(&mut self, accessed: u64) -> bool {
        if self.pages == 0 {
            return false;
        }
        self.strays |= accessed & !self.pages;
        let many = 4 * self.strays.count_ones() > self.pages.count_ones().max(8);
        if many {
            self.strays = 0;
        }
        many
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rng;

    fn random(rng: &mut Rng, percent: u64, of: u64) -> u64 {
        (0..64).fold(0, |set, page| set | u64::from(rng.below(100) < percent) << page) & of
    }

    #[test]
    fn two_windows_tell_that_it_is_every_second_page() {
        let even = 0x5555_5555_5555_5555;
        // Of pages at even distances, a window of their period shows all, one of two fifths of it twelve.
        let twelve = 0x0404_1111_0045_4044;
        let mut focus = Focus::default();
        assert!(!focus.add(u64::MAX, even));
        assert!(focus.add(u64::MAX, twelve) && focus.known() == Some(even));
        // Half of the twelve are others.
        let mut focus = Focus::default();
        assert!(!focus.add(u64::MAX, even) && !focus.add(u64::MAX, 0x0a04_1010_00a5_4088));
        // A loop's front that is met at one place twice.
        let mut focus = Focus::default();
        assert!(!focus.add(u64::MAX, 0xffff_ffff) && !focus.add(u64::MAX, 0xfff));
    }

    #[test]
    fn pages_beside_them_that_are_accessed_now_and_then_are_seldom_left_out() {
        let mut rng = Rng::new(11);
        let often = 0x5555_5555_5555_5555;
        for (percent, most) in [(6, 200), (12, 40)] {
            let found = (0..1000).filter(|_| {
                let mut focus = Focus::default();
                (0..2).for_each(|_| {
                    let shown = random(&mut rng, 63, often) | random(&mut rng, percent, !often);
                    focus.add(u64::MAX, shown);
                });
                focus.known().is_some()
            });
            let found = found.count();
            assert!(found < most, "{percent} % a window: {found} of 1000");
        }
    }

    #[test]
    fn the_same_pages_twice_are_a_focus() {
        for pages in [0xffff_u64, 0xffff << 20, 0xffff_ffff << 16, 0x0101_0101_0101_0101, 0xf << 60] {
            let mut focus = Focus::default();
            assert!(!focus.add(u64::MAX, pages));
            assert!(focus.add(u64::MAX, pages), "{pages:x}");
            assert_eq!((focus.known(), focus.of(u64::MAX)), (Some(pages), pages));
        }
    }

    #[test]
    fn pages_that_are_each_accessed_now_and_then_are_one_after_a_few_windows() {
        let mut rng = Rng::new(3);
        for size in [8, 16, 32, 48] {
            let all = (1u64 << size) - 1;
            let found = (0..200).filter(|_| {
                let mut focus = Focus::default();
                (0..5).for_each(|_| _ = focus.add(u64::MAX, random(&mut rng, 63, all)));
                focus.known().is_some_and(|pages| pages.count_ones() >= size * 3 / 4)
            });
            let found = found.count();
            assert!(found > 180, "{size} pages: {found} of 200");
        }
    }

    #[test]
    fn pages_at_random_are_none() {
        let mut rng = Rng::new(5);
        for percent in [2, 5, 10, 25, 50, 75, 95] {
            let mut focus = Focus::default();
            let known = (0..2000).filter(|_| {
                focus.add(u64::MAX, random(&mut rng, percent, u64::MAX));
                focus.known().is_some()
            });
            let known = known.count();
            assert!(known < 60, "{percent} %: {known} of 2000");
        }
    }

    #[test]
    fn where_a_loops_front_stands_is_seldom_one() {
        let mut rng = Rng::new(7);
        let mut focus = Focus::default();
        let known = (0..2000).filter(|_| {
            let at = rng.below(64);
            let shown = if rng.below(2) == 0 { u64::MAX << at } else { (1 << at) - 1 };
            focus.add(u64::MAX, shown);
            focus.known().is_some()
        });
        let known = known.count();
        assert!(known < 200, "{known} of 2000");
    }

    #[test]
    fn it_moves_with_what_is_accessed() {
        let mut focus = Focus::default();
        (0..20).for_each(|_| _ = focus.add(u64::MAX, 0xffff));
        (0..20).for_each(|_| _ = focus.add(u64::MAX, 0xffff << 32));
        assert_eq!(focus.known(), Some(0xffff << 32));
        (0..4).for_each(|_| _ = focus.add(u64::MAX, u64::MAX));
        assert_eq!(focus.known(), None);
    }

    #[test]
    fn a_few_strays_are_borne() {
        let mut focus = Focus::default();
        (0..2).for_each(|_| _ = focus.add(u64::MAX, 0xffff));
        assert!(!focus.strayed(0xfff) && !focus.strayed(1 << 40) && !focus.strayed(1 << 41));
        assert!(focus.strayed(0xff << 40), "many");
        assert!(!focus.strayed(1 << 50), "told once");
    }
}
