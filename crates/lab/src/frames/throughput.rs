//! How many pairs of get and put a second.

use super::pattern::{ORDERS, Pattern, Run};
use super::rivals::{OfBuddySystem, OfMalloc, OfZone, Rival};
use super::{Error, Setup};
use crate::machine::pin;
use crate::{Estimate, Watch};
use isotherm_frames::Order;
use serde::Serialize;

/// One allocator in one pattern.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// Which.
    pub rival: Rival,
    /// Pairs a second, of all threads together, a round each.
    pub pairs: Estimate,
    /// The zone's rate in the same round divided by this one's; `None` of the zone itself.
    pub slower_by: Option<Estimate>,
}

/// All allocators in one pattern.
#[derive(Clone, Debug, Serialize)]
pub struct Throughput {
    /// The pattern.
    pub pattern: Pattern,
    /// The order of the blocks.
    pub order: u8,
    /// How many threads do it at once, each on a CPU of its own.
    pub threads: usize,
    /// Each allocator's rate.
    pub rates: Vec<Rate>,
    /// The zone's rate divided by that of one thread in the same round; `None` of one thread.
    pub scaling: Option<Estimate>,
}

impl Throughput {
    /// The pattern, the order and the threads.
    #[must_use]
    pub fn name(&self) -> String {
        let threads = if self.threads == 1 { "1 thread".into() } else { format!("{} threads", self.threads) };
        format!("{}, order {}, {threads}", self.pattern.name(), self.order)
    }

    /// The rate of one of them.
    #[must_use]
    pub fn rate(&self, rival: Rival) -> Option<&Rate> {
        self.rates.iter().find(|rate| rate.rival == rival)
    }

    /// Measures all patterns with orders 0, 1, 4 and 9 and up to `threads` (1 or 2) threads.
    ///
    /// # Errors
    /// Interrupted.
    pub fn measure(threads: usize, setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Self>, Error> {
        let mut metadata = [OfZone::metadata(), OfZone::metadata()];
        let [first, second] = &mut metadata;
        let (Ok(zone), Ok(global)) = (OfZone::new(2, first), OfZone::new(0, second)) else {
            return Ok(Vec::new());
        };
        let buddy = OfBuddySystem::new();
        let mut cells = Vec::new();
        for pattern in Pattern::ALL {
            for order in ORDERS.into_iter().filter_map(Order::new) {
                cells.push((pattern, order, vec![[const { Vec::new() }; Rival::ALL.len()]; threads]));
            }
        }
        // A round of everything, then the next: whatever else the machine does for a while spoils one round of some things,
        // not all rounds of one. One thread and two follow each other, as the speed of processors changes by the second.
        for round in 1..=setup.rounds {
            (watch.progress)(&format!("pairs of get and put, round {round} of {} ...", setup.rounds));
            for (pattern, order, rates) in &mut cells {
                for (at, rival) in Rival::ALL.into_iter().enumerate() {
                    for (threads, rates) in (1..).zip(rates.iter_mut()) {
                        watch.go_on()?;
                        let run = Run { pattern: *pattern, order: *order, threads, slice: setup.slice };
                        rates[at].push(match rival {
                            Rival::Zone => run.on(&zone, pin),
                            Rival::BuddySystem => run.on(&buddy, pin),
                            Rival::GlobalLock => run.on(&global, pin),
                            Rival::Malloc => run.on(&OfMalloc, pin),
                        });
                    }
                }
            }
        }
        let judged = cells.into_iter().flat_map(|(pattern, order, rates)| {
            let order = order.get();
            let cell = |(threads, of): (usize, &Rates)| {
                let scaling = if threads == 1 { None } else { Estimate::of(&ratios(&of[0], &rates[0][0])) };
                Self { pattern, order, threads, rates: judge(of), scaling }
            };
            (1..).zip(&rates).map(cell).collect::<Vec<_>>()
        });
        Ok(judged.collect())
    }
}

/// Rates of each rival by round, the zone's first.
type Rates = [Vec<f64>; Rival::ALL.len()];

/// By round.
fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

/// Estimates, and ratios of the same round.
fn judge(rates: &Rates) -> Vec<Rate> {
    let [zone, ..] = rates;
    let rate = |(rival, rates): (Rival, &Vec<f64>)| {
        let slower_by = if rival == Rival::Zone { None } else { Estimate::of(&ratios(zone, rates)) };
        Some(Rate { rival, pairs: Estimate::of(rates)?, slower_by })
    };
    Rival::ALL.into_iter().zip(rates).filter_map(rate).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::frames::pattern::Allocator as _;
    use std::time::Duration;

    #[test]
    fn ratios_are_of_the_same_round() {
        let rates = judge(&[vec![10.0, 40.0], vec![5.0, 10.0], vec![1.0, 1.0], vec![1.0, 2.0]]);
        let ratio = |at: usize| rates[at].slower_by.map(|ratio| (ratio.min, ratio.max));
        assert_eq!((ratio(0), ratio(1), ratio(2)), (None, Some((2.0, 4.0)), Some((10.0, 40.0))));
    }

    #[test]
    fn every_pattern_makes_pairs_and_leaves_nothing_allocated() {
        let mut metadata = OfZone::metadata();
        let zone = OfZone::new(2, &mut metadata).unwrap();
        for pattern in Pattern::ALL {
            for order in ORDERS.into_iter().filter_map(Order::new) {
                let run = Run { pattern, order, threads: 2, slice: Duration::from_millis(1) };
                assert!(run.on(&zone, pin) > 0.0 && run.on(&OfMalloc, pin) > 0.0, "{pattern:?} {order}");
            }
        }
        // All 8 GiB can be had.
        let blocks: Vec<_> = std::iter::from_fn(|| zone.get(0, Order::MAX)).collect();
        assert_eq!(blocks.len(), 2048);
    }
}
