//! Which probes of accessed memory to check next.
//!
//! A check is dear: it clears the page, and it wakes the monitor up. Every hot region gets one in its turn, so that
//! none is believed hot for long when it is not any more. What remains goes where least is known: to cold memory that
//! was just found accessed, and to pages of hot regions that were never checked.

use super::estimate::rate;
use super::probe::{Probe, State};
use crate::{AddrRange, Region, Rng};
use alloc::vec::Vec;

/// Trials up to which a probe has said next to nothing.
const WEAK: f32 = 1.5;
/// Share of the checks that go by turn among the hot regions.
const BY_TURN: usize = 3;

/// A probe that could be checked.
pub(super) struct Candidate {
    pub addr: u64,
    /// Its region, and the access probability an interval that is expected there.
    pub region: AddrRange,
    pub rate: f32,
    /// More than a word is known of it.
    pub known: bool,
    /// When it was last checked.
    chosen: u64,
    /// Decides between equals.
    random: u64,
    /// For the one of a hot region that is checked first: when that region was last checked.
    turn: Option<u64>,
}

impl Candidate {
    /// A page of cold memory that was accessed. Is it hot now, or was this one of few accesses?
    pub fn of_cold(region: &Region, probe: &Probe, rng: &mut Rng) -> Self {
        Self {
            addr: probe.addr,
            region: region.range,
            rate: 1.0,
            known: false,
            chosen: probe.chosen,
            random: rng.below(1 << 30),
            turn: None,
        }
    }

    fn order(&self) -> (bool, u64, u64) {
        (self.known, self.chosen, self.random)
    }
}

/// Adds the probes of a hot region.
pub(super) fn of_hot(region: &Region, probes: &[Probe], rng: &mut Rng, all: &mut Vec<Candidate>) {
    let last = probes.iter().map(|p| p.chosen).max().unwrap_or(0);
    let start = all.len();
    for probe in probes.iter().filter(|p| p.run_end == 0 && p.state != State::Blind) {
        all.push(Candidate {
            addr: probe.addr,
            region: region.range,
            rate: rate(region),
            known: probe.past.weight() > WEAK,
            chosen: probe.chosen,
            random: rng.below(1 << 30),
            turn: None,
        });
    }
    let first = all.get_mut(start..).unwrap_or_default().iter_mut().min_by_key(|c| c.order());
    if let Some(first) = first {
        first.turn = Some(last);
    }
}

/// Chooses `most` of the candidates, and beyond that as many of those of which nothing is known as `saved` can pay
/// for.
pub(super) fn choose(mut all: Vec<Candidate>, most: usize, saved: usize) -> Vec<Candidate> {
    all.sort_unstable_by_key(|c| (c.turn.is_none(), c.turn, c.random));
    let regions = all.partition_point(|c| c.turn.is_some());
    let by_turn = regions.min(most.div_ceil(BY_TURN));
    let rest = all.get_mut(by_turn..).unwrap_or_default();
    rest.sort_unstable_by_key(|c| c.order());
    let unknown = rest.partition_point(|c| !c.known);
    all.truncate(most.max((by_turn + unknown).min(saved)));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn hot(start: u64, chosen: &[u64], known: bool, all: &mut Vec<Candidate>, rng: &mut Rng) {
        let mut region = Region::new(AddrRange::new(start, start + 100 * 4096));
        (region.hits, region.watched) = (10.0, 10.0);
        let mut probes = vec![];
        for (index, at) in chosen.iter().enumerate() {
            let mut probe = Probe::new(start + index as u64 * 4096, 4096);
            probe.chosen = *at;
            probe.past.tried = if known { 10.0 } else { 0.0 };
            probes.push(probe);
        }
        of_hot(&region, &probes, rng, all);
    }

    #[test]
    fn the_region_last_checked_longest_ago_comes_first() {
        let (mut all, mut rng) = (vec![], Rng::new(1));
        hot(0, &[50, 40], true, &mut all, &mut rng);
        hot(1 << 30, &[30, 45], true, &mut all, &mut rng);
        hot(2 << 30, &[60, 10], true, &mut all, &mut rng);
        let chosen: Vec<u64> = choose(all, 2, 0).iter().map(|c| c.addr).collect();
        assert_eq!(chosen[0], 1 << 30, "its last check was at 45, the others' at 50 and 60");
        assert_eq!(chosen[1], (2 << 30) + 4096, "then the page whose check is longest ago");
    }

    #[test]
    fn savings_are_for_what_is_not_known() {
        let (mut all, mut rng) = (vec![], Rng::new(1));
        hot(0, &[1; 20], true, &mut all, &mut rng);
        assert_eq!(choose(all, 3, 15).len(), 3);
        let mut all = vec![];
        hot(0, &[1; 20], false, &mut all, &mut rng);
        assert_eq!(choose(all, 3, 15).len(), 15);
    }
}
