//! The bars, from the issue that the memory manager was built by.

use super::{Results, Way};
use crate::experiment::{Bar, Figure};

/// Times as many faults beside a mapper, by two threads.
const TIMES: f64 = 3.0;
/// %, of one thread alone.
const ONE_THREAD: f64 = 1.0;
/// %, of a start storm.
const SHORTER: f64 = 20.0;
/// %, of the faults of a storm.
const UNDER_VMA_LOCK: f64 = 99.0;

impl Results {
    /// The bars of what was measured. Per-VMA locks are the series', which are the memory manager's default.
    #[must_use]
    pub fn bars(&self) -> Vec<Bar> {
        let mut bars = Vec::new();
        let ratio = |threads, mapper| {
            let is =
                |one: &&super::Faults| (one.threads, one.mapper, one.one_vma) == (threads, mapper, false);
            self.faults.iter().find(is)?.of(Way::Sequence)?.ratio.as_ref().map(Figure::median)
        };
        if let Some(one) = ratio(1, true) {
            let what = "two threads, of which one maps: faults under per-VMA locks beside mmap_lock, >= 3";
            bars.push(Bar::at_least(what, one, TIMES));
        }
        // With fewer CPUs the mapper takes turns with those who fault, and they go on while it is out, in any way.
        if let Some(two) = ratio(2, true).filter(|_| self.cpus > 2) {
            let what = "two threads beside a mapper: faults under per-VMA locks beside mmap_lock, >= 3";
            bars.push(Bar::at_least(what, two, TIMES));
        }
        if let Some(one) = ratio(1, false) {
            let slower = one.map(|ratio| (1.0 / ratio - 1.0) * 100.0);
            bars.push(Bar::at_most("one thread alone: slower by per-VMA locks, %, <= 1", slower, ONE_THREAD));
        }
        self.storm_bars(&mut bars);
        for price in &self.prices {
            let what = format!("{}: beside Linux, {}, <= 1", price.operation, price.beside);
            bars.push(Bar::at_most(what, Figure::median(&price.ratio), 1.0));
        }
        let spaces = self.faults.iter().map(|one| one.resident_exact);
        let wrong =
            spaces.chain(self.storm.iter().map(|storm| storm.resident_exact)).filter(|exact| !exact).count();
        if !self.faults.is_empty() || self.storm.is_some() {
            bars.push(Bar::at_most(
                "counts of resident pages that are wrong, <= 0",
                exactly(wrong as f64),
                0.0,
            ));
        }
        bars
    }

    fn storm_bars(&self, bars: &mut Vec<Bar>) {
        let Some(storm) = &self.storm else { return };
        let Some(one) = storm.ways.iter().find(|one| one.way == Way::Sequence) else { return };
        if let Some(shorter) = &one.shorter {
            let shorter = Figure::median(shorter).map(|share| share * 100.0);
            bars.push(Bar::at_least("start storm: shorter by per-VMA locks, %, >= 20", shorter, SHORTER));
        }
        let Some(lookups) = one.lookups else { return };
        if let Some(share) = lookups.share() {
            let what = "start storm: faults under the VMA's lock, %, >= 99";
            bars.push(Bar::at_least(what, exactly(share * 100.0), UNDER_VMA_LOCK));
        }
        let lost =
            storm.ways.iter().filter_map(|one| one.lookups).filter(|lookups| !lookups.adds_up()).count();
        bars.push(Bar::at_most(
            "start storm: counts of reasons that do not add up, <= 0",
            exactly(lost as f64),
            0.0,
        ));
    }
}

/// A count.
const fn exactly(value: f64) -> Figure {
    Figure { value, interval: None }
}

#[cfg(test)]
mod tests {
    use super::super::{Faults, Lookups, Price, Rate, Storm, Stormed};
    use super::*;
    use crate::Estimate;

    fn estimate(value: f64) -> Estimate {
        Estimate::of(&[value]).expect("a figure")
    }

    fn faults(threads: usize, mapper: bool, ratio: f64) -> Faults {
        let rate = Rate {
            way: Way::Sequence,
            faults: estimate(1.0),
            ratio: Some(estimate(ratio)),
            mapped: None,
            lookups: None,
        };
        Faults { threads, mapper, one_vma: false, ways: vec![rate], ceiling: None, resident_exact: true }
    }

    fn storm(shorter: f64, success: u64) -> Storm {
        let lookups = Lookups { faults: 1000, success, no_anon: 1000 - success, ..Lookups::default() };
        let sequence = Stormed {
            way: Way::Sequence,
            ms: estimate(1.0),
            shorter: Some(estimate(shorter)),
            lookups: Some(lookups),
        };
        Storm { threads: 100, pages: 10, ways: vec![sequence], resident_exact: true }
    }

    #[test]
    fn bars_are_those_of_the_issue_and_only_of_what_was_measured() {
        let met = |all: &Results| all.bars().into_iter().map(|bar| bar.met).collect::<Vec<_>>();
        let mut all = Results::default();
        assert!(met(&all).is_empty());
        all.faults = vec![faults(1, false, 0.98), faults(1, true, 3.1), faults(2, true, 2.9)];
        assert_eq!(met(&all), [true, false, true]);
        all.cpus = 3;
        assert_eq!(met(&all), [true, false, false, true]);
        all.faults = vec![faults(1, false, 0.995), faults(1, true, 2.9)];
        all.faults[0].resident_exact = false;
        assert_eq!(met(&all), [false, true, false]);
        all.faults.clear();
        all.storm = Some(storm(0.21, 995));
        assert_eq!(met(&all), [true, true, true, true]);
        all.storm = Some(storm(0.19, 985));
        assert_eq!(met(&all), [false, false, true, true]);
        all.storm = None;
        let price = |ratio| Price {
            operation: "fault",
            beside: "Linux",
            here: estimate(1.0),
            linux: estimate(1.0),
            ratio: estimate(ratio),
        };
        all.prices = vec![price(0.9), price(1.1)];
        assert_eq!(met(&all), [true, false]);
    }
}
