//! Memory that is acted on in units, as large folios are: none in part, none starved, no window exceeded.

use crate::*;
use proptest::prelude::*;

/// Memory in units of pages, some of them absent, which pages out whole units only.
struct Folios {
    /// For each page the pages of its unit.
    units: Vec<std::ops::Range<u64>>,
    present: Vec<bool>,
    /// Units can be divided, and are where there is no room around.
    divides: bool,
    ns_a_page: u64,
    /// What was tried since this was last looked at, and how long it took.
    tried: u64,
    took_ns: u64,
}

impl Folios {
    /// Units of 2^order pages each, one after another; of order 9 and more: absent pages.
    fn new(orders: &[u32], ns_a_page: u64) -> Self {
        let (mut units, mut present) = (Vec::new(), Vec::new());
        for &order in orders {
            let (start, len) = (units.len() as u64, if order < 9 { 1 << order } else { 8 });
            for page in start..start + len {
                units.push(if order < 9 { start..start + len } else { page..page + 1 });
                present.push(order < 9);
            }
        }
        Self { units, present, divides: false, ns_a_page, tried: 0, took_ns: 0 }
    }

    fn left(&self) -> Vec<u64> {
        (0..self.units.len() as u64).filter(|&page| self.present[page as usize]).collect()
    }
}

impl Actions for Folios {
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        let pages = |range: AddrRange| range.start / PAGE..range.end / PAGE;
        let (range, around) = (pages(request.range), pages(request.matches));
        let (mut outcome, mut at) = (Outcome::default(), range.start);
        while at < range.end {
            let unit = self.units[at as usize].clone();
            let end = unit.end.min(range.end);
            let bytes = (end - at) * PAGE;
            if !self.present[at as usize] {
                outcome.skipped += bytes;
            } else if range.start <= unit.start && unit.end <= range.end {
                (at..end).for_each(|page| self.present[page as usize] = false);
                outcome.applied += bytes;
            } else if around.start <= unit.start
                && unit.end <= around.end
                && !(self.divides && !self.present[unit.start as usize])
            {
                if unit.start >= range.start {
                    outcome.cut = Some(AddrRange::new(unit.start * PAGE, unit.end * PAGE));
                    outcome.divides = self.divides;
                    break;
                }
                outcome.skipped += bytes;
            } else if self.divides {
                (at..end).for_each(|page| self.present[page as usize] = false);
                outcome.applied += bytes;
            }
            at = end;
        }
        outcome.passed = outcome.applied;
        outcome.took_ns = outcome.applied / PAGE * self.ns_a_page;
        self.tried += (at - range.start) * PAGE - outcome.skipped;
        self.took_ns += outcome.took_ns;
        Ok(outcome)
    }
}

fn regions(total: u64, borders: &[u64], ages: &[u32]) -> Vec<Region> {
    let mut list = Vec::new();
    let (mut at, mut ages) = (0, ages.iter().cycle());
    for border in borders.iter().copied().chain([total]) {
        let end = (at + border.max(1)).min(total);
        if at < end {
            list.push(region(at, end - at, 0, *ages.next().unwrap()));
        }
        at = end;
    }
    if at < total {
        list.push(region(at, total - at, 0, 9));
    }
    list
}

proptest! {
    #[test]
    fn units_go_whole_and_none_is_starved(
        orders in prop::collection::vec(0u32..11, 1..60),
        quota in 8u64..200,
        borders in prop::collection::vec(prop::collection::vec(1u64..90, 0..20), 8),
        ages in prop::collection::vec(3u32..2000, 8),
    ) {
        let mut memory = Folios::new(&orders, 0);
        let total = memory.units.len() as u64;
        // Without weights all are equal, and go by turns, whatever becomes of borders.
        let weights = Weights::default();
        let quota_of = |bytes| Quota { bytes: Some(bytes), weights, ..Quota::default() };
        let mut all = schemes(vec![Scheme { quota: quota_of(quota * PAGE), ..Scheme::new(AccessPattern::ANY, Action::Pageout) }]);
        for window in 0..2 * total {
            let borders = &borders[window as usize % borders.len()];
            let mut targets = [target(1, regions(total, borders, &ages))];
            let mut moment = Moment::new(&mut targets, Attrs::default(), window * 1000 * MS, 1);
            all.apply(&mut moment, &mut memory, &mut ());
            let tried = std::mem::take(&mut memory.tried);
            prop_assert!(tried <= quota * PAGE, "{} tried", tried);
        }
        let left: Vec<u64> = memory.left();
        let fit = left.iter().filter(|&&page| {
            let unit = &memory.units[page as usize];
            unit.end - unit.start <= quota
        });
        prop_assert_eq!(fit.count(), 0, "what fits into a window goes: {:?} of {}", left, total);
        prop_assert_eq!(all.stats(0).unwrap().sz_applied, (memory.present.iter().filter(|p| !**p).count() as u64
            - orders.iter().filter(|o| **o >= 9).count() as u64 * 8) * PAGE);
    }

    #[test]
    fn borders_of_regions_do_not_keep_a_unit_for_ever(
        orders in prop::collection::vec(0u32..9, 1..40),
        borders in prop::collection::vec(1u64..300, 0..30),
        quota in 256u64..2000,
        ns_a_page in 0u64..2000,
    ) {
        let mut memory = Folios::new(&orders, ns_a_page);
        let total = memory.units.len() as u64;
        let pattern = AccessPattern { age: Age::Aggregations(Bounds::new(5, u32::MAX)), ..AccessPattern::ANY };
        let quota_of = Quota { bytes: Some(quota * PAGE), ..Quota::default() };
        let mut all = schemes(vec![Scheme { quota: quota_of, ..Scheme::new(pattern, Action::Pageout) }]);
        // All of it is as cold for as long; what was tried is young again.
        let mut targets = [target(1, regions(total, &borders, &[9]))];
        let windows = total.div_ceil(quota - 255) + 1;
        for window in 0..windows {
            let mut moment = Moment::new(&mut targets, Attrs::default(), window * 1000 * MS, 1);
            all.apply(&mut moment, &mut memory, &mut ());
        }
        prop_assert_eq!(memory.left(), Vec::<u64>::new());
    }

    #[test]
    fn what_is_too_large_for_a_window_lets_others_pass(
        orders in prop::collection::vec(0u32..9, 1..40),
        borders in prop::collection::vec(1u64..300, 0..30),
        ages in prop::collection::vec(3u32..2000, 8),
        quota in 8u64..200,
    ) {
        let mut memory = Folios::new(&orders, 0);
        let total = memory.units.len() as u64;
        let weights = Weights { size: 0, frequency: 0, age: 1 };
        let quota_of = Quota { bytes: Some(quota * PAGE), weights, ..Quota::default() };
        let mut all = schemes(vec![Scheme { quota: quota_of, ..Scheme::new(AccessPattern::ANY, Action::Pageout) }]);
        let mut targets = [target(1, regions(total, &borders, &ages))];
        for window in 0..3 * total {
            let mut moment = Moment::new(&mut targets, Attrs::default(), window * 1000 * MS, 1);
            all.apply(&mut moment, &mut memory, &mut ());
            prop_assert!(std::mem::take(&mut memory.tried) <= quota * PAGE);
            targets[0].regions.iter_mut().for_each(|r| r.age += 10);
        }
        let left = memory.left();
        let fit = left.iter().filter(|&&page| {
            let unit = &memory.units[page as usize];
            unit.end - unit.start <= quota
        });
        prop_assert_eq!(fit.count(), 0, "{:?} of {}", left, total);
    }

    #[test]
    fn a_quota_of_time_holds_for_units(
        orders in prop::collection::vec(0u32..9, 1..60),
        ns_a_page in 1u64..2000,
        millis in 1u64..4,
    ) {
        let mut memory = Folios::new(&orders, ns_a_page);
        let total = memory.units.len() as u64;
        let quota = Quota { time: Some(core::time::Duration::from_millis(millis)), ..Quota::default() };
        let mut all = schemes(vec![Scheme { quota, ..Scheme::new(AccessPattern::ANY, Action::Pageout) }]);
        for window in 0..total {
            let mut targets = [target(1, regions(total, &[], &[9]))];
            let mut moment = Moment::new(&mut targets, Attrs::default(), window * 1000 * MS, 1);
            all.apply(&mut moment, &mut memory, &mut ());
            let took = std::mem::take(&mut memory.took_ns);
            prop_assert!(took <= millis * MS, "{} ns", took);
        }
        // 256 pages take half a millisecond at the most.
        prop_assert_eq!(memory.left(), Vec::<u64>::new());
    }
}

#[test]
fn what_can_be_divided_leaves_no_window_half_empty() {
    // Bytes tried in each window, in pages, of six units of eight pages.
    let windows = |quota: u64, divides| {
        let mut memory = Folios { divides, ..Folios::new(&[3; 6], 0) };
        let quota = Quota { bytes: Some(quota * PAGE), ..Quota::default() };
        let scheme = Scheme { quota, ..Scheme::new(AccessPattern::ANY, Action::Pageout) };
        let mut all = schemes(vec![scheme]);
        let mut targets = [target(1, vec![region(0, 48, 0, 9)])];
        let window = |window: u64| {
            let mut moment = Moment::new(&mut targets, Attrs::default(), window * 1000 * MS, 1);
            all.apply(&mut moment, &mut memory, &mut ());
            std::mem::take(&mut memory.tried) / PAGE
        };
        (0..6).map(window).collect::<Vec<_>>()
    };
    assert_eq!(windows(12, false), [8, 8, 8, 8, 8, 8]);
    assert_eq!(windows(12, true)[..4], [12, 12, 12, 12]);
    assert_eq!(windows(6, true)[..4], [6, 6, 6, 6], "units larger than a window");
    assert_eq!(windows(18, true)[..3], [16, 16, 16], "a ninth may stay unused");
}
