//! DAMON as a library: data access monitoring with bounded overhead.
//!
//! (essay to be completed with the monitor)
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

mod attrs;
mod operations;
mod range;
mod snapshot;

pub use attrs::{Attrs, AttrsError};
pub use operations::{Check, Operations, Seen};
pub use range::AddrRange;
pub use snapshot::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
