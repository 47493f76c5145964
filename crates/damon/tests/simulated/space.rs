//! An address space whose access rates are known page by page, and operations on it that count.

use isotherm_damon::*;
use std::collections::HashMap;

/// Ranges of one rate each, accesses per page and sampling interval.
#[derive(Clone, Debug)]
pub struct Pattern {
    pub ranges: Vec<AddrRange>,
    /// What is accessed.
    pub hot: Vec<(AddrRange, f64)>,
    /// What is judged: all that the program has mapped, with the rate of each.
    pub areas: Vec<(AddrRange, f64)>,
    /// Bytes that share an Accessed bit.
    pub unit: u64,
    pub kind: Kind,
}

/// How the accesses of a range are spread in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each page sees a Poisson process of its own.
    Random,
    /// Each page at even distances, each with a phase of its own.
    Periodic,
    /// The whole range within a moment, again and again at even distances: what a loop over an array does.
    Sweep,
}

impl Pattern {
    /// Whether the page is accessed in sampling intervals `from..to`.
    fn accessed(&self, page: u64, from: u64, to: u64) -> bool {
        let Some((range, rate)) = self.hot.iter().find(|(r, _)| r.contains(page)) else { return false };
        let own = match self.kind {
            Kind::Random => {
                let p = 1.0 - (-rate).exp();
                return (from..to).any(|t| (hash(page ^ (t << 40)) % 1_000_000) as f64 / 1e6 < p);
            }
            Kind::Periodic => hash(page),
            Kind::Sweep => hash(range.start),
        };
        // Programs keep time to within a tenth of a period or so.
        let period = 1.0 / rate;
        let phase = (own % 1000) as f64 / 1000.0;
        let jitter = |k: u64| (hash(own ^ (k << 20)) % 1000) as f64 / 5000.0 - 0.1;
        let near = ((from as f64 / period) as u64).saturating_sub(2);
        (near..near + 6 + ((to - from) as f64 / period) as u64).any(|k| {
            let at = (k as f64 + phase + jitter(k)) * period;
            (from as f64..to as f64).contains(&at)
        })
    }
}

impl Simulated {
    pub fn new(pattern: Pattern) -> Self {
        Self { pattern, now: 0, cleared: HashMap::new(), clears: 0 }
    }
}

fn hash(x: u64) -> u64 {
    let mut x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x ^= x >> 29;
    x = x.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// Operations over a [`Pattern`] that counts what it is asked.
pub struct Simulated {
    pub pattern: Pattern,
    pub now: u64,
    /// Target and unit -> interval in which it was cleared.
    cleared: HashMap<(TargetId, u64), u64>,
    pub clears: u64,
}

impl Operations for Simulated {
    fn ranges(&mut self, _target: TargetId) -> Vec<AddrRange> {
        self.pattern.ranges.clone()
    }

    fn prepare(&mut self, checks: &mut [Check]) {
        for check in checks {
            self.clears += 1;
            check.unit = self.pattern.unit;
            check.seen = Seen::Idle;
            self.cleared.insert((check.target, check.addr / check.unit), self.now);
        }
    }

    fn check(&mut self, checks: &mut [Check]) {
        for check in checks {
            check.unit = self.pattern.unit;
            let unit = check.addr / check.unit;
            check.seen = match self.cleared.get(&(check.target, unit)) {
                None => Seen::Accessed,
                Some(&at) => {
                    let page = unit * check.unit;
                    if self.pattern.accessed(page, at, self.now) { Seen::Accessed } else { Seen::Idle }
                }
            };
        }
    }

    fn is_alive(&mut self, _target: TargetId) -> bool {
        true
    }
}
