//! Snapshots from the tracepoint `damon:damon_aggregated`, as text from `trace_pipe`. Pure.
//!
//! At the end of an aggregation the kdamond traces every region of its first target, then of the second, and so on:
//!
//! ```text
//!  kdamond.0-77  [001] .....  12.345678: damon_aggregated: target_id=0 nr_regions=2 4096-8192: 0 5
//! ```
//!
//! `target_id` is the target's place in its context, the last two numbers are `nr_accesses` and `age` (the latter from
//! Linux 5.17). The clock is set to CLOCK_MONOTONIC. Nothing marks the end of an aggregation; it is over when every
//! target that is expected is complete, when a target begins anew, or when nothing more has come for a while.

use crate::proc_file::parse_number;
use isotherm_damon::{AddrRange, RegionSnapshot};

/// One line: a region of a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub time_ns: u64,
    pub target: u64,
    pub nr_regions: u64,
    pub region: RegionSnapshot,
}

/// Parses a line of `trace_pipe`; `None` if it is no whole event of this kind.
pub(super) fn event(line: &[u8]) -> Option<Event> {
    const MARK: &[u8] = b": damon_aggregated: ";
    let mark = line.windows(MARK.len()).position(|w| w == MARK)?;
    let time = line.get(..mark)?.rsplit(|&b| b == b' ').next()?;
    let mut tokens = line.get(mark + MARK.len()..)?.split(|&b| b == b' ').filter(|t| !t.is_empty());
    let (mut target, mut nr_regions) = (None, None);
    let range = loop {
        let token = tokens.next()?;
        if let Some(value) = token.strip_prefix(b"target_id=") {
            target = parse_number(value);
        } else if let Some(value) = token.strip_prefix(b"nr_regions=") {
            nr_regions = parse_number(value);
        } else if let Some(range) = token.strip_suffix(b":") {
            break range;
        }
    };
    let dash = range.iter().position(|&b| b == b'-')?;
    let range = AddrRange::new(parse_number(range.get(..dash)?)?, parse_number(range.get(dash + 1..)?)?);
    let number = |token: Option<&[u8]>| token.and_then(parse_number).and_then(|n| u32::try_from(n).ok());
    let nr_accesses = number(tokens.next())?;
    let age = number(tokens.next()).unwrap_or(0);
    if range.is_empty() {
        return None;
    }
    let nr_accesses_bp = nr_accesses.saturating_mul(10_000);
    Some(Event {
        time_ns: seconds_to_ns(time)?,
        target: target?,
        nr_regions: nr_regions?,
        region: RegionSnapshot { range, nr_accesses, nr_accesses_bp, age, ..RegionSnapshot::default() },
    })
}

/// Whether a line says that events were lost: `CPU:1 [LOST 12 EVENTS]`.
pub(super) fn tells_of_loss(line: &[u8]) -> bool {
    line.starts_with(b"CPU:") && line.windows(5).any(|w| w == b"[LOST")
}

fn seconds_to_ns(text: &[u8]) -> Option<u64> {
    let dot = text.iter().position(|&b| b == b'.')?;
    let fraction = text.get(dot + 1..)?;
    let digits = u32::try_from(fraction.len()).ok().filter(|digits| (1..=9).contains(digits))?;
    let fraction = parse_number(fraction)?.checked_mul(10_u64.pow(9 - digits))?;
    parse_number(text.get(..dot)?)?.checked_mul(1_000_000_000)?.checked_add(fraction)
}

/// All regions of an aggregation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Aggregation {
    /// When the last of it was traced.
    pub time_ns: u64,
    /// The complete targets: place in the context, regions.
    pub targets: Vec<(u64, Vec<RegionSnapshot>)>,
}

/// Puts aggregations together from events.
#[derive(Debug, Default)]
pub(super) struct Assembler {
    /// Targets in the context: the last of them ends an aggregation.
    pub expected: u64,
    /// No two events of an aggregation are that far apart, in ns: half an aggregation interval.
    gap_ns: u64,
    targets: Vec<(u64, u64, Vec<RegionSnapshot>)>,
    time_ns: u64,
    /// Set when events were lost: what is under way is not whole.
    spoilt: bool,
    /// Aggregations of which events were lost.
    pub lost: u64,
}

impl Assembler {
    /// One that takes events more than `gap_ns` apart for those of two aggregations.
    pub(super) fn new(gap_ns: u64) -> Self {
        Self { gap_ns, ..Self::default() }
    }

    /// Forgets what is under way.
    pub(super) fn forget(&mut self) {
        self.targets.clear();
        self.spoilt = false;
    }

    /// Takes a line. Gives the aggregation that it ends, if it does.
    pub(super) fn line(&mut self, line: &[u8]) -> Option<Aggregation> {
        if tells_of_loss(line) {
            self.spoilt = true;
            return None;
        }
        self.event(event(line)?)
    }

    fn event(&mut self, event: Event) -> Option<Aggregation> {
        let begins_anew = match self.targets.last() {
            None => false,
            Some((last, nr_regions, regions)) => {
                event.target < *last
                    || (event.target == *last && regions.len() as u64 >= *nr_regions)
                    || event.time_ns.saturating_sub(self.time_ns) > self.gap_ns
            }
        };
        let ended = if begins_anew { self.end() } else { None };
        self.time_ns = event.time_ns;
        match self.targets.last_mut() {
            Some((target, _, regions)) if *target == event.target => regions.push(event.region),
            // The count is the kernel's, but a bound keeps a torn line from reserving memory.
            _ => self.targets.push((event.target, event.nr_regions, vec![event.region])),
        }
        let whole = self.targets.last().is_some_and(|(target, nr_regions, regions)| {
            target + 1 >= self.expected && regions.len() as u64 >= *nr_regions
        });
        // Both only if a lone region is a whole aggregation: then what it ended is told, and itself with the next.
        if ended.is_none() && whole { self.end() } else { ended }
    }

    /// Gives what is under way if nothing more came for half an aggregation until `now_ns`.
    pub(super) fn idle(&mut self, now_ns: u64) -> Option<Aggregation> {
        if now_ns.saturating_sub(self.time_ns) > self.gap_ns { self.end() } else { None }
    }

    fn end(&mut self) -> Option<Aggregation> {
        let targets = std::mem::take(&mut self.targets);
        if targets.is_empty() {
            return None;
        }
        let spoilt = std::mem::take(&mut self.spoilt);
        let total = targets.len();
        let whole =
            targets.into_iter().filter(|(_, nr, regions)| regions.len() as u64 == *nr && is_sorted(regions));
        let targets: Vec<_> = whole.map(|(target, _, regions)| (target, regions)).collect();
        self.lost += u64::from(spoilt || targets.len() < total);
        (!targets.is_empty()).then_some(Aggregation { time_ns: self.time_ns, targets })
    }
}

fn is_sorted(regions: &[RegionSnapshot]) -> bool {
    regions.is_sorted_by(|a, b| a.range.end <= b.range.start)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(time_ms: u64, target: u64, nr: u64, start: u64) -> String {
        let (s, us) = (time_ms / 1000, time_ms % 1000 * 1000);
        let end = start + 4096;
        format!(
            "       kdamond.0-77      [001] .....  {s}.{us:06}: damon_aggregated: target_id={target} \
             nr_regions={nr} {start}-{end}: 3 5"
        )
    }

    fn assembler(expected: u64) -> Assembler {
        Assembler { expected, gap_ns: 50_000_000, ..Assembler::default() }
    }

    fn starts(aggregation: &Aggregation) -> Vec<(u64, Vec<u64>)> {
        let starts = |regions: &[RegionSnapshot]| regions.iter().map(|r| r.range.start).collect();
        aggregation.targets.iter().map(|(target, regions)| (*target, starts(regions))).collect()
    }

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let event = event(text(12_345, 1, 10, 4096).as_bytes()).unwrap();
        assert_eq!((event.time_ns, event.target, event.nr_regions), (12_345_000_000, 1, 10));
        assert_eq!(event.region.range, AddrRange::new(4096, 8192));
        assert_eq!((event.region.nr_accesses, event.region.nr_accesses_bp, event.region.age), (3, 30_000, 5));
        // Without an age, as before 5.17; with a field more, as may come.
        let old =
            super::event(b"k-1 [0] ... 1.5: damon_aggregated: target_id=0 nr_regions=1 0-4096: 7").unwrap();
        assert_eq!((old.time_ns, old.region.age), (1_500_000_000, 0));
        let new = b"k-1 [0] ... 1.5: damon_aggregated: context_id=0 target_id=2 nr_regions=1 0-4096: 7 1";
        assert_eq!(super::event(new).unwrap().target, 2);
        for line in [
            "",
            "CPU:0 [LOST 3 EVENTS]",
            "k-1 [0] ... 1.5: damon_aggregated: target_id=0 nr_regions=1 0-4096:",
        ] {
            assert_eq!(super::event(line.as_bytes()), None, "{line}");
        }
        assert!(tells_of_loss(b"CPU:0 [LOST 3 EVENTS]"));
        assert!(!tells_of_loss(text(1, 0, 1, 0).as_bytes()));
    }

    #[test]
    fn an_aggregation_ends_with_the_last_region_of_the_last_target() {
        let mut assembler = assembler(2);
        for line in [text(100, 0, 2, 0), text(100, 0, 2, 8192), text(101, 1, 2, 0)] {
            assert_eq!(assembler.line(line.as_bytes()), None);
        }
        let whole = assembler.line(text(101, 1, 2, 4096).as_bytes()).unwrap();
        assert_eq!(starts(&whole), [(0, vec![0, 8192]), (1, vec![0, 4096])]);
        assert_eq!(whole.time_ns, 101_000_000);
        assert_eq!(assembler.idle(u64::MAX), None);
    }

    #[test]
    fn a_target_without_regions_does_not_hold_up_the_others() {
        let mut assembler = assembler(3);
        assert_eq!(assembler.line(text(100, 1, 1, 0).as_bytes()), None);
        assert_eq!(assembler.idle(120_000_000), None);
        assert_eq!(starts(&assembler.idle(151_000_000).unwrap()), [(1, vec![0])]);
        // Or the next aggregation ends it.
        assert_eq!(assembler.line(text(200, 1, 1, 0).as_bytes()), None);
        assert!(assembler.line(text(300, 1, 1, 4096).as_bytes()).is_some());
        assert_eq!(starts(&assembler.idle(u64::MAX).unwrap()), [(1, vec![4096])]);
        assert_eq!(assembler.lost, 0);
    }

    #[test]
    fn what_is_not_whole_is_left_out_and_counted() {
        let mut assembler = assembler(2);
        assembler.line(text(100, 0, 3, 0).as_bytes());
        assembler.line(b"CPU:1 [LOST 2 EVENTS]");
        let rest = assembler.line(text(100, 1, 1, 0).as_bytes()).unwrap();
        assert_eq!(starts(&rest), [(1, vec![0])]);
        assert!(assembler.lost > 0);
        // Regions out of order cannot be of one aggregation.
        let mut assembler = self::assembler(1);
        assembler.line(text(100, 0, 2, 8192).as_bytes());
        assert_eq!(assembler.line(text(100, 0, 2, 0).as_bytes()), None);
        assert_eq!(assembler.lost, 1);
    }

    proptest! {
        #[test]
        fn every_whole_aggregation_comes_out_as_it_was_traced(
            counts in proptest::collection::vec(proptest::collection::vec(1_u64..6, 1..4), 1..10),
        ) {
            let mut assembler = assembler(0);
            let (mut told, mut expected) = (Vec::new(), Vec::new());
            for (i, targets) in counts.iter().enumerate() {
                let time = 1000 + i as u64 * 100;
                assembler.expected = targets.len() as u64;
                for (target, &nr) in targets.iter().enumerate() {
                    for r in 0..nr {
                        told.extend(assembler.line(text(time, target as u64, nr, r * 4096).as_bytes()));
                    }
                }
                let regions = |nr| (0..nr).map(|r| r * 4096).collect::<Vec<u64>>();
                expected.push(targets.iter().enumerate().map(|(t, &nr)| (t as u64, regions(nr))).collect::<Vec<_>>());
            }
            told.extend(assembler.idle(u64::MAX));
            prop_assert_eq!(told.iter().map(starts).collect::<Vec<_>>(), expected);
            prop_assert_eq!(assembler.lost, 0);
        }

        #[test]
        fn rubbish_never_panics(lines in proptest::collection::vec(
            prop_oneof![
                "[ -~]{0,60}",
                (0_u64..300, 0_u64..4, 0_u64..4, 0_u64..9).prop_map(|(t, id, nr, s)| text(t, id, nr, s * 4096)),
            ], 0..60,
        )) {
            let mut assembler = assembler(2);
            for line in &lines {
                if let Some(aggregation) = assembler.line(line.as_bytes()) {
                    prop_assert!(aggregation.targets.iter().all(|(_, regions)| is_sorted(regions)));
                }
            }
        }
    }
}
