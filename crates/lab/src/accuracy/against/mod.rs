//! Any process as its own reference: a recording against a slow, full look at what was accessed over the same seconds.
//!
//! A [`Reference`] says, pass after pass of about a second, which pages were accessed at least once. The recording made
//! meanwhile says for each region at which rate, and so with what probability a page of it was accessed in the length of a
//! pass. Both are compared by object: a file or a shared segment counts once, with the accesses of all processes that map
//! it; private memory is each process's own, put together by its kind.

mod compare;
mod live;
mod scan;
mod table;

pub use compare::{Against, Comparison, ObjectScore};
pub use live::{AgainstRun, Watched};
pub use scan::Scan;
pub use table::against_table;

use isotherm_damon::AddrRange;
use std::sync::Arc;

/// What knows, at whatever cost, which pages were accessed.
pub trait Reference {
    /// Begins a pass: from now on accesses count.
    ///
    /// # Errors
    /// When that cannot be known at all. A process that has ended is left out instead.
    fn begin(&mut self) -> anyhow::Result<()>;

    /// Notes what has been accessed so far. Called several times a pass, since others clear Accessed bits too, the monitor
    /// itself among them.
    ///
    /// # Errors
    /// As [`Reference::begin`].
    fn look(&mut self) -> anyhow::Result<()>;

    /// Ends the pass: what was accessed in it, up to the last look.
    fn end(&mut self) -> Vec<Seen>;
}

/// What a pass saw of a process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Seen {
    /// The process.
    pub pid: u32,
    /// Its mappings, sorted by address.
    pub mappings: Vec<SeenMapping>,
    /// Pages that were accessed at least once: sorted, disjoint.
    pub accessed: Vec<AddrRange>,
}

/// A mapping of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenMapping {
    /// Its addresses.
    pub range: AddrRange,
    /// What it is called in the comparison.
    pub name: Arc<str>,
    /// Device, inode, and offset of the first byte, if several processes can map the same bytes: it is shared, or it is of a
    /// file and nobody may write to it.
    pub object: Option<((u32, u32), u64, u64)>,
}

/// A pass.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Pass {
    /// First moment, CLOCK_MONOTONIC ns.
    pub start_ns: u64,
    /// The last look.
    pub end_ns: u64,
    /// What was seen.
    pub processes: Vec<Seen>,
}
