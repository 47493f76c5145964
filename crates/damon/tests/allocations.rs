//! Schemes allocate for as many regions as there ever were, and then no more. A test binary of its own: it counts all
//! allocations of the process.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

use isotherm_damon::schemes::*;
use isotherm_damon::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: hands everything on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps to the contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct Nothing;

impl Actions for Nothing {
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal> {
        Ok(Outcome { applied: request.range.size(), took_ns: request.range.size() / 4, ..Outcome::default() })
    }
}

#[test]
fn passes_allocate_nothing_once_they_have_seen_as_many_regions() {
    let region = |i: u64| Region {
        nr_accesses: (i % 20) as u32,
        seen_bp: if i.is_multiple_of(7) { 0 } else { 10_000 },
        ..Region::new(AddrRange::new(i * 16 * PAGE_SIZE, (i + 1) * 16 * PAGE_SIZE))
    };
    let mut targets: Vec<Target> =
        (0..20).map(|id| Target::new(TargetId(id), (0..50).map(region).collect())).collect();
    let time = Some(core::time::Duration::from_millis(1));
    let weights = Weights { size: 1, frequency: 1, age: 1 };
    let quota = Quota { bytes: Some(100 * PAGE_SIZE), time, weights, ..Quota::default() };
    let limited = Scheme { quota, ..Scheme::new(AccessPattern::ANY, Action::Pageout) };
    let free = Scheme::new(AccessPattern::ANY, Action::Stat);
    let mut schemes = Schemes::new();
    schemes.commit(vec![limited, free]).unwrap();
    let attrs = Attrs { max_nr_regions: 1000, ..Attrs::default() };
    let mut run = |from: u64, to: u64| {
        let before = ALLOCATIONS.load(Ordering::Relaxed);
        for second in from..to {
            let mut moment = Moment::new(&mut targets, attrs, second * 1_000_000_000, second);
            schemes.apply(&mut moment, &mut Nothing, &mut ());
        }
        ALLOCATIONS.load(Ordering::Relaxed) - before
    };
    assert!(run(0, 100) > 0, "it counts");
    // A scheduled test harness may allocate a little of its own meanwhile; a thousand passes would a thousand times.
    let more = run(100, 1100);
    assert!(more < 50, "{more} allocations");
}
