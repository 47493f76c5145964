//! DAMON as a library: data access monitoring with bounded overhead.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod adapt;
mod attrs;
mod callbacks;
mod classic;
mod monitor;
mod operations;
mod range;
mod ranges;
mod region;
mod rng;
mod sampler;
mod snapshot;
mod tuning;
mod watch;

pub use attrs::{Attrs, AttrsError};
pub use callbacks::Callbacks;
pub use classic::Classic;
pub use monitor::{Monitor, MonitorError, PAGE_SIZE};
pub use operations::{Check, Operations, Seen};
pub use range::AddrRange;
pub use ranges::three_regions;
pub use region::{Region, Target};
pub use rng::Rng;
pub use sampler::{Allowance, Sampler, Step, Tally};
pub use snapshot::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
pub use tuning::IntervalsGoal;
pub use watch::Watch;
