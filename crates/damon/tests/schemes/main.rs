//! Schemes: quotas, priorities, filters and commits over made-up regions, against naive models; and the kernel selftests'
//! properties and whole runs, with a monitor over simulated address spaces.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod commits;
mod filters;
mod passes;
mod plant;
mod quotas;
mod selftests;
mod starvation;
mod time;
mod units;
mod whole;

use isotherm_damon::schemes::*;
use isotherm_damon::*;

const PAGE: u64 = PAGE_SIZE;
const MIB: u64 = 1 << 20;
const MS: u64 = 1_000_000;

/// A call of `Actions::apply`.
#[derive(Clone, Debug, PartialEq)]
struct Call {
    scheme: usize,
    action: Action,
    target: TargetId,
    range: AddrRange,
    known: RegionSnapshot,
    filters: usize,
    took_ns: u64,
}

/// Applies everything, and writes it down.
#[derive(Clone, Debug, Default)]
struct Recorder {
    calls: Vec<Call>,
    /// Nanoseconds a page.
    ns_a_page: u64,
    /// Of each call, this share in percent fails.
    fails: u64,
    /// What is refused.
    refuses: Option<(AddrRange, Refusal)>,
}

impl Recorder {
    fn bytes(&self) -> u64 {
        self.calls.iter().map(|call| call.range.size()).sum()
    }
}

impl Actions for Recorder {
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        if let Some((_, refusal)) = self.refuses.filter(|(range, _)| range.intersects(request.range)) {
            return Err(refusal);
        }
        let size = request.range.size();
        let took_ns = size / PAGE * self.ns_a_page;
        self.calls.push(Call {
            scheme: request.scheme,
            action: request.action,
            target: request.target,
            range: request.range,
            known: *request.region,
            filters: request.filters.len(),
            took_ns,
        });
        Ok(Outcome { applied: size - size * self.fails / 100, passed: size, took_ns, ..Outcome::default() })
    }
}

/// A region of so many pages; its rate is known.
fn region(start: u64, pages: u64, nr_accesses: u32, age: u32) -> Region {
    Region {
        nr_accesses,
        nr_accesses_bp: nr_accesses * 10_000,
        last_nr_accesses: nr_accesses,
        age,
        seen_bp: 10_000,
        exposure: 100,
        ..Region::new(AddrRange::new(start * PAGE, (start + pages) * PAGE))
    }
}

fn target(id: u64, regions: Vec<Region>) -> Target {
    Target::new(TargetId(id), regions)
}

/// The schemes given, in force.
fn schemes(list: Vec<Scheme>) -> Schemes {
    let mut schemes = Schemes::new();
    schemes.commit(list).unwrap();
    schemes
}

/// One pass at the end of an aggregation.
fn pass(schemes: &mut Schemes, targets: &mut [Target], now_ns: u64, actions: &mut Recorder) {
    schemes.apply(&mut Moment::new(targets, Attrs::default(), now_ns, 1), actions, &mut ());
}
