//! The identity map: every byte of RAM at its own address, and nothing at address 0. `boot.s` has made all of it.

use super::boot::GIGABYTES;
use isotherm_guest::ram::{RamMap, Range};

/// The most that this program maps.
pub const REACH: u64 = GIGABYTES << 30;
/// The first address that is not mapped from the start.
pub const MAPPED: u64 = REACH;

/// Bytes of tables that RAM needs on top: none.
pub fn tables_needed(_ram: &RamMap) -> u64 {
    0
}

/// Completes what `boot.s` began: nothing is left to do.
pub fn complete(_ram: &RamMap, _tables: Range) {}
