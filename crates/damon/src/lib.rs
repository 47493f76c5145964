//! DAMON as a library: data access monitoring with bounded overhead.
//!
//! A [`Monitor`] watches the address spaces of its targets through [`Operations`], which know how to look at a page
//! and how to make it look untouched ([`BlockOperations`]: a page table as a whole). It divides each address space into regions of pages that are accessed alike, and
//! after every aggregation interval hands out a [`Snapshot`]: for each region in how many sampling intervals it was
//! seen accessed (`nr_accesses`), and for how many aggregations that has been so (`age`). However large the targets,
//! no sampling interval looks at more than [`Attrs::max_nr_regions`] pages.
//!
//! It is a state machine: no threads, no clock, no input or output, no allocation but `alloc`. The caller gives it the
//! time, a seed, and, in each call of [`Monitor::tick`], what the interval may cost ([`Allowance`]). What to do about memory by
//! how it is accessed is said in [`schemes`], which act between merging and the snapshot.
//!
//! | rule | file |
//! |---|---|
//! | the order of things, what a tick is | `monitor.rs` |
//! | merging, splitting, ages | `adapt.rs` |
//! | three regions, the start, the regions update | `ranges.rs` |
//! | DAMON's estimator: a random page a region | `classic.rs` ([`Classic`]) |
//! | ours, for when clearing a page is dear | `watch/mod.rs` ([`Watch`]) |
//! | interval auto-tuning | `tuning.rs` ([`IntervalsGoal`]) |
//! | acting on regions: quotas, goals, filters | [`schemes`] |
//!
//! ```
//! use isotherm_damon::*;
//!
//! /// 64 MiB of which the second quarter is in use all the time.
//! struct Memory;
//! impl Operations for Memory {
//!     fn ranges(&mut self, _: TargetId) -> Vec<AddrRange> {
//!         vec![AddrRange::new(0, 64 << 20)]
//!     }
//!     fn take_changed(&mut self) -> Vec<TargetId> {
//!         Vec::new()
//!     }
//!     fn prepare(&mut self, checks: &mut [Check]) {
//!         checks.iter_mut().for_each(|c| c.seen = Seen::Idle);
//!     }
//!     fn check(&mut self, checks: &mut [Check]) {
//!         for c in checks {
//!             c.unit = PAGE_SIZE;
//!             c.seen = if c.addr >> 24 == 1 { Seen::Accessed } else { Seen::Idle };
//!         }
//!     }
//!     fn is_alive(&mut self, _: TargetId) -> bool {
//!         true
//!     }
//! }
//!
//! /// Keeps how many bytes the last aggregation found accessed.
//! struct Hot(u64);
//! impl Callbacks for Hot {
//!     fn after_aggregation(&mut self, _: &mut [Target], snapshot: &Snapshot) {
//!         let hot = snapshot.targets[0].regions.iter().filter(|r| r.nr_accesses > 0);
//!         self.0 = hot.map(|r| r.range.size()).sum();
//!     }
//! }
//!
//! let mut monitor = Monitor::new(Attrs::default(), Memory, Classic::new(), 42)?;
//! monitor.add_target(TargetId(1))?;
//! let (mut interval, mut hot) = (0, Hot(0));
//! while interval < 50 * 20 {
//!     interval += monitor.tick(interval * 5_000_000, Allowance::UNLIMITED, &mut hot);
//! }
//! assert!(hot.0.abs_diff(16 << 20) < 1 << 20);
//! # Ok::<(), MonitorError>(())
//! ```
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod adapt;
mod attrs;
mod blocks;
mod callbacks;
mod classic;
mod moment;
mod monitor;
mod operations;
mod range;
mod ranges;
mod region;
mod rng;
mod sampler;
pub mod schemes;
mod snapshot;
mod tuning;
mod watch;

pub use attrs::{Attrs, AttrsError};
pub use blocks::{
    BLOCK_PAGES, BLOCK_SIZE, BlockLook, BlockOperations, Cleared, Mapped, Ownership, Pages, Ran, RangeClear,
    Sweep,
};
pub use callbacks::Callbacks;
pub use classic::Classic;
pub use moment::Moment;
pub use monitor::{Monitor, MonitorError, PAGE_SIZE};
pub use operations::{Check, Operations, Seen};
pub use range::AddrRange;
pub use ranges::{three_regions, without_gaps};
pub use region::{Region, Target};
pub use rng::Rng;
pub use sampler::{Allowance, Sampler, Step, Tally};
pub use snapshot::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot, append_regions};
pub use tuning::IntervalsGoal;
pub use watch::{Constant, Tuning, Watch};
