//! Where memory was accessed, as far as whoever cleared its Accessed bits could see: the monitor, and schemes.
//!
//! That a bit is clear says that a page was not accessed since it was cleared. What is checked often is cleared often, so of memory
//! that a program passes over once a second some pages always look idle, a moment after a check. What a clear found set tells
//! those apart from pages that are idle: they were accessed at most so long ago.

use super::Acting;
use crate::clock::monotonic_ns;
use crate::pte::{Inspected, MOST_SIGHTINGS as MOST, Sightings};
use isotherm_damon::schemes::{Action, Request};
use isotherm_damon::{AddrRange, PAGE_SIZE, TargetId};
use std::collections::{HashMap, VecDeque};

/// So long it is kept, ns. A guess: the age of what is idle for longer is the region's affair, which a hit lets begin anew.
const KEPT_NS: u64 = 60_000_000_000;

/// Ranges of one target that are kept, the most; of all, as many as may be said between two looks.
const MOST_OF_ONE: usize = 8192;

/// What was accessed up to a moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Sighting {
    at_ns: u64,
    range: AddrRange,
}

/// What they said.
#[derive(Debug, Default)]
pub(super) struct Seen {
    inbox: Sightings,
    targets: HashMap<TargetId, VecDeque<Sighting>>,
    count: usize,
}

impl Seen {
    pub fn inbox(&self) -> &Sightings {
        &self.inbox
    }

    /// Takes in what was said since the last call, and forgets what is old.
    pub fn take_in(&mut self, now_ns: u64) {
        for (target, at_ns, range) in self.inbox.take() {
            let of_target = self.targets.entry(target).or_default();
            of_target.push_back(Sighting { at_ns, range });
            self.count += 1;
            if of_target.len() > MOST_OF_ONE || self.count > MOST {
                of_target.pop_front();
                self.count -= 1;
            }
        }
        for of_target in self.targets.values_mut() {
            while of_target.front().is_some_and(|one| one.at_ns.saturating_add(KEPT_NS) < now_ns) {
                of_target.pop_front();
                self.count -= 1;
            }
        }
        self.targets.retain(|_, of_target| !of_target.is_empty());
    }

    pub fn forget(&mut self, target: TargetId) {
        self.count -= self.targets.remove(&target).map_or(0, |of_target| of_target.len());
    }

    /// What of a range was seen to be accessed after `since_ns`; ranges may meet and overlap.
    pub fn since(
        &self,
        target: TargetId,
        range: AddrRange,
        since_ns: u64,
    ) -> impl Iterator<Item = AddrRange> {
        let of_target = self.targets.get(&target).into_iter().flat_map(|all| all.iter().rev());
        let late = of_target.take_while(move |one| one.at_ns > since_ns);
        late.map(move |one| one.range.intersection(range)).filter(|range| !range.is_empty())
    }
}

/// The turn of memory comes again when the scheme's least age has passed since the last, by so small a part of it sooner: an
/// aggregation interval is never quite as long as the one before. A guess.
const EARLY: u64 = 8;

impl Acting {
    /// Marks the pages of a range that were seen to be accessed within the scheme's least age, where those stay: whether a check came
    /// between an access and the scheme's turn is chance, and decides nothing. A scheme that asks for memory in use takes them.
    pub(super) fn mark_seen(&self, request: &Request<'_>, range: AddrRange, pages: &mut [Inspected]) {
        if !self.spare_young || request.action != Action::Pageout {
            return;
        }
        let spared_for_ns = self.accounts.get(request.scheme).map_or(0, |account| account.spared_for_ns);
        if spared_for_ns == 0 {
            return;
        }
        let since = monotonic_ns().saturating_sub(spared_for_ns - spared_for_ns / EARLY);
        let index = |addr: u64| ((addr - range.start) / PAGE_SIZE) as usize;
        for seen in self.seen.since(request.target, range, since) {
            let pages = pages.get_mut(index(seen.start)..index(seen.end)).unwrap_or_default();
            pages.iter_mut().for_each(|page| page.was_young = true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: TargetId = TargetId(1);

    fn found(seen: &Seen, range: AddrRange, since_ns: u64) -> Vec<(u64, u64)> {
        seen.since(ONE, range, since_ns).map(|range| (range.start, range.end)).collect()
    }

    #[test]
    fn what_was_seen_lately_is_told_by_range_and_time() {
        let mut seen = Seen::default();
        let inbox = seen.inbox().clone();
        inbox.add(ONE, 10, [AddrRange::new(0, 4), AddrRange::new(8, 12)]);
        inbox.add(TargetId(2), 11, [AddrRange::new(0, 100)]);
        inbox.add(ONE, 20, [AddrRange::new(2, 6)]);
        assert_eq!(found(&seen, AddrRange::new(0, 100), 0), [], "not taken in yet");
        seen.take_in(20);
        assert_eq!(found(&seen, AddrRange::new(0, 10), 0), [(2, 6), (8, 10), (0, 4)]);
        assert_eq!(found(&seen, AddrRange::new(0, 10), 10), [(2, 6)]);
        seen.take_in(KEPT_NS + 11);
        assert_eq!(found(&seen, AddrRange::new(0, 100), 0), [(2, 6)], "the rest is old");
        seen.forget(ONE);
        assert_eq!((found(&seen, AddrRange::new(0, 100), 0), seen.count), (vec![], 1));
    }

    #[test]
    fn there_are_never_more_than_so_many() {
        let mut seen = Seen::default();
        for target in 0..40 {
            for at in 0..2 * MOST_OF_ONE as u64 {
                seen.inbox().add(TargetId(target), at, [AddrRange::new(at, at + 1)]);
            }
            seen.take_in(0);
            assert!(seen.targets.values().all(|one| one.len() <= MOST_OF_ONE));
        }
        assert_eq!(seen.count, seen.targets.values().map(VecDeque::len).sum::<usize>());
        assert!(seen.count <= MOST);
        // Of one target the last ones are kept.
        let last = found(&seen, AddrRange::new(0, u64::MAX), 0).first().map(|range| range.0);
        assert_eq!(last, Some(2 * MOST_OF_ONE as u64 - 1));
    }
}
