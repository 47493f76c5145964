//! Which regions to show, and in which order.

use super::AccessRegion;
use crate::heatmap::UnknownWord;
use crate::units::{Bounds, Rate};
use isotherm_damon::AddrRange;
use std::cmp::Ordering;
use std::str::FromStr;
use std::time::Duration;

/// An access pattern: bounds for size, rate and age as a scheme has them, and where to look. The default takes all.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pattern {
    /// Bytes mapped.
    pub size: Bounds<u64>,
    /// Bytes present in memory; where that is not known it may be all.
    pub resident: Bounds<u64>,
    /// Lowest rate.
    pub min_rate: Option<Rate>,
    /// Highest rate.
    pub max_rate: Option<Rate>,
    /// Age.
    pub age: Bounds<Duration>,
    /// Only regions that share an address with one of these; empty: all.
    pub addresses: Vec<AddrRange>,
    /// Only these target ids; empty: all.
    pub targets: Vec<u64>,
    /// Only regions over a mapping with this in its name or path; empty: all. [`Self::matches`] knows the name only by which the region is
    /// called.
    pub mapping: String,
    /// Bounds of the rate take in regions whose rate is unknown, too.
    pub unknown: bool,
    /// What is accessed no more often than this, Hz, fits where nothing but 0 Hz does. For means over a stretch of time
    /// (`not_once_in`); 0 for those of a snapshot.
    pub seldom_hz: f64,
}

/// A region with fewer accesses of a page than this in a stretch of time is taken for one that was not accessed in it, though up to two
/// fifths of its pages may have been, once. With fewer, the guesses of a recording's first second would hide what was idle from
/// then on.
const NOT_ONCE: f64 = 0.5;

impl Pattern {
    /// For means over so many seconds. A rate that was estimated in each snapshot from what was seen until then is seldom 0 at
    /// first, nor is a mean that has such rates in it: what it comes to in all of the time is what counts.
    pub(super) fn not_once_in(&mut self, seconds: f64) {
        self.seldom_hz = if seconds > 0.0 { NOT_ONCE / seconds } else { 0.0 };
    }

    fn bounds_rate(&self) -> bool {
        self.min_rate.is_some() || self.max_rate.is_some()
    }

    /// Whether it is a target, or object, that was asked for.
    pub(super) fn wants(&self, target: u64) -> bool {
        self.targets.is_empty() || self.targets.contains(&target)
    }

    /// Whether `region` fits; shares of a rate refer to `ceiling_hz`.
    pub fn matches(&self, region: &AccessRegion, ceiling_hz: f64) -> bool {
        let hz = |rate: Rate| match rate {
            Rate::Hz(hz) => hz,
            Rate::Share(share) => share * ceiling_hz,
        };
        let rate_fits = match region.rate_hz {
            // Rounding must not exclude a rate that a bound names.
            Some(rate) => {
                let slack = 1e-9 * rate.max(1.0);
                let none = self.max_rate.is_some_and(|max| hz(max) <= 0.0) && rate <= self.seldom_hz;
                self.min_rate.is_none_or(|min| hz(min) <= rate + slack)
                    && (none || self.max_rate.is_none_or(|max| rate - slack <= hz(max)))
            }
            None => self.unknown || !self.bounds_rate(),
        };
        // What is not there is not cold memory.
        let rate_fits = rate_fits && !(self.bounds_rate() && region.is_absent());
        let range = AddrRange::new(region.start, region.end);
        self.size.contains(&region.size)
            && self.resident.contains(&region.resident.unwrap_or(region.size))
            && rate_fits
            && self.age.contains(&Duration::from_nanos(region.age_ns))
            && (self.addresses.is_empty() || self.addresses.iter().any(|a| a.intersects(range)))
            && self.wants(region.target)
            && (self.mapping.is_empty() || region.mapping.as_ref().is_some_and(|m| m.contains(&self.mapping)))
    }
}

/// A column to sort by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SortKey {
    /// First address.
    #[default]
    Address,
    /// Bytes mapped.
    Size,
    /// Bytes present in memory; not known comes first.
    Resident,
    /// Access rate.
    Rate,
    /// Age.
    Age,
    /// Target id.
    Target,
    /// Name of the mapping.
    Mapping,
}

impl SortKey {
    /// Sorts, target by target; equal ones by address. `descending` is about the key only, and about the order of
    /// targets when the key is the target. A rate that is unknown comes before 0 Hz.
    pub fn sort(self, regions: &mut [AccessRegion], descending: bool) {
        self.sort_by(regions, descending, |region| region);
    }

    /// Whether groups of regions too come in this order, by the first of each: what is the hottest of all, or the largest, is on top.
    pub(super) const fn sorts_groups(self) -> bool {
        matches!(self, Self::Size | Self::Resident | Self::Rate | Self::Age)
    }

    /// By the key alone.
    pub(super) fn compare(self, a: &AccessRegion, b: &AccessRegion) -> Ordering {
        match self {
            Self::Address => a.start.cmp(&b.start),
            Self::Size => a.size.cmp(&b.size),
            Self::Resident => a.resident.cmp(&b.resident),
            Self::Rate => a.rate_hz.unwrap_or(-1.0).total_cmp(&b.rate_hz.unwrap_or(-1.0)),
            Self::Age => a.age_ns.cmp(&b.age_ns),
            Self::Target => Ordering::Equal,
            Self::Mapping => a.mapping.cmp(&b.mapping),
        }
    }

    /// The same for what holds regions.
    pub(super) fn sort_by<T>(self, list: &mut [T], descending: bool, of: impl Fn(&T) -> &AccessRegion) {
        let turned = |order: Ordering, turn: bool| if turn { order.reverse() } else { order };
        list.sort_by(|a, b| {
            let (a, b) = (of(a), of(b));
            turned(a.target.cmp(&b.target), descending && self == Self::Target)
                .then(turned(self.compare(a, b), descending))
                .then(a.start.cmp(&b.start))
        });
    }
}

impl FromStr for SortKey {
    type Err = UnknownWord;

    fn from_str(word: &str) -> Result<Self, UnknownWord> {
        Ok(match word {
            "address" => Self::Address,
            "size" => Self::Size,
            "resident" => Self::Resident,
            "rate" => Self::Rate,
            "age" => Self::Age,
            "target" => Self::Target,
            "mapping" => Self::Mapping,
            _ => {
                let expected = "a column: address, size, resident, rate, age, target or mapping";
                return Err(UnknownWord { word: word.to_owned(), expected });
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{parse_bounds, parse_size, parse_time};

    fn region(target: u64, start: u64, size: u64, rate_hz: f64, age_ms: u64) -> AccessRegion {
        AccessRegion {
            target,
            start,
            end: start + size,
            size,
            mapping: Some(format!("map{start}").into()),
            nr_accesses: None,
            resident: None,
            rate_hz: Some(rate_hz),
            rate_share: None,
            seen: 1.0,
            exposure: None,
            age_ns: age_ms * 1_000_000,
        }
    }

    #[test]
    fn each_bound_excludes_what_lies_outside() {
        let region = region(7, 0x1000, 8192, 10.0, 500);
        let all = Pattern::default();
        assert!(all.matches(&region, 200.0));
        let fits = |pattern: Pattern| pattern.matches(&region, 200.0);
        for (size, age, fit) in
            [("8K..8K", "500ms..", true), ("9K..", "..1s", false), ("4K..", "..499ms", false)]
        {
            let pattern = Pattern {
                size: parse_bounds(size, parse_size).unwrap(),
                age: parse_bounds(age, parse_time).unwrap(),
                ..all.clone()
            };
            assert_eq!(fits(pattern), fit, "{size} {age}");
        }
        assert!(fits(Pattern {
            min_rate: Some(Rate::Share(0.05)),
            max_rate: Some(Rate::Hz(10.0)),
            ..all.clone()
        }));
        assert!(!fits(Pattern { min_rate: Some(Rate::Share(0.051)), ..all.clone() }));
        assert!(!fits(Pattern { max_rate: Some(Rate::Hz(9.9)), ..all.clone() }));
        assert!(fits(Pattern { addresses: vec![AddrRange::new(0, 0x1001)], ..all.clone() }));
        assert!(!fits(Pattern { addresses: vec![AddrRange::new(0, 0x1000)], ..all.clone() }));
        assert!(!fits(Pattern { targets: vec![8], ..all.clone() }));
        assert!(!fits(Pattern { mapping: "heap".to_owned(), ..all }));
    }

    #[test]
    fn not_once_in_all_of_the_time_is_0_hz() {
        let idle = |seconds| {
            let mut idle = Pattern { max_rate: Some(Rate::Share(0.0)), ..Pattern::default() };
            idle.not_once_in(seconds);
            idle
        };
        // Guessed at 10 Hz for its first 50 ms.
        let guessed = region(1, 0, 4096, 10.0 * 0.05 / 60.0, 0);
        assert!(idle(60.0).matches(&guessed, 200.0));
        assert!(!idle(600.0).matches(&guessed, 200.0), "that often for ten minutes is five times");
        assert!(!idle(60.0).matches(&region(1, 0, 4096, 1.0 / 60.0, 0), 200.0), "once");
        assert!(!idle(0.0).matches(&guessed, 200.0), "the rate of a moment");
        let seldom = Pattern { max_rate: Some(Rate::Hz(0.001)), ..idle(60.0) };
        assert!(!seldom.matches(&guessed, 200.0), "who gives a rate means it");
        let at_least = Pattern { min_rate: Some(Rate::Hz(0.0)), ..idle(60.0) };
        assert!(at_least.matches(&guessed, 200.0));
    }

    #[test]
    fn what_is_not_in_memory_has_no_rate_and_is_small() {
        let there = |resident, rate_hz| AccessRegion { resident, rate_hz, ..region(7, 0, 8192, 0.0, 500) };
        let idle = Pattern { max_rate: Some(Rate::Hz(0.0)), unknown: true, ..Pattern::default() };
        for (resident, fit) in [(Some(0), false), (Some(1), true), (None, true)] {
            assert_eq!(idle.matches(&there(resident, Some(0.0)), 200.0), fit, "{resident:?}");
            assert_eq!(idle.matches(&there(resident, None), 200.0), fit, "{resident:?}");
        }
        assert!(Pattern::default().matches(&there(Some(0), None), 200.0), "shown where no rate is asked for");
        let much = Pattern { resident: parse_bounds("4K..", parse_size).unwrap(), ..Pattern::default() };
        for (resident, fit) in [(Some(4095), false), (Some(4096), true), (None, true)] {
            assert_eq!(much.matches(&there(resident, Some(1.0)), 200.0), fit, "{resident:?}");
        }
    }

    #[test]
    fn every_column_sorts_both_ways_and_targets_stay_together() {
        let mut list = vec![
            region(2, 0, 10, 5.0, 1),
            region(1, 30, 30, 1.0, 2),
            region(1, 10, 20, 9.0, 3),
            region(1, 20, 10, 9.0, 1),
        ];
        let mut starts = |word: &str, descending| {
            word.parse::<SortKey>().unwrap().sort(&mut list, descending);
            list.iter().map(|r| r.start).collect::<Vec<_>>()
        };
        assert_eq!(starts("address", false), [10, 20, 30, 0]);
        assert_eq!(starts("address", true), [30, 20, 10, 0]);
        assert_eq!(starts("size", false), [20, 10, 30, 0]);
        assert_eq!(starts("rate", true), [10, 20, 30, 0]);
        assert_eq!(starts("age", true), [10, 30, 20, 0]);
        assert_eq!(starts("target", true), [0, 10, 20, 30]);
        assert_eq!(starts("mapping", true), [30, 20, 10, 0]);
        assert!("heat".parse::<SortKey>().is_err());
    }
}
