//! Filters: which memory of a matching region the action is for, by what the monitor does not know.
//!
//! There are two layers. The core's filters go by addresses and targets; memory they exclude is not tried. The operations'
//! filters go by the kind of page; the caller evaluates them page by page, and what they exclude counts as tried.
//!
//! All filters of a scheme are one list, the core's before the operations'. The first that matches decides: it allows or
//! rejects, and none after it is asked; so memory that a filter of the core allows passes the operations' filters too. What
//! matches none gets the opposite of what the last filter does: if the last one allows, only what was allowed was wanted. The
//! last filter of the core decides only where there are none of the operations (kernel design document, "Filters").

use super::error::{Field, Reason, SchemeError};
use crate::{AddrRange, TargetId};
use alloc::string::String;
use alloc::vec::Vec;

/// One filter, of kind `K`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter<K> {
    /// Which memory it is about.
    pub kind: K,
    /// Whether it matches that memory, or all other.
    pub matching: bool,
    /// Whether it allows what it matches, or rejects it.
    pub allow: bool,
}

impl<K> Filter<K> {
    /// A filter that allows memory of the kind.
    pub const fn allow(kind: K) -> Self {
        Self { kind, matching: true, allow: true }
    }

    /// A filter that rejects memory of the kind.
    pub const fn reject(kind: K) -> Self {
        Self { kind, matching: true, allow: false }
    }
}

/// What the core's filters go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CoreKind {
    /// Addresses. Borders are moved to multiples of the least region, so that nothing is touched which the filter as written
    /// keeps out (the kernel rounds both down).
    Addr(AddrRange),
    /// A target. The kernel names it by its index, which shifts when targets go.
    Target(TargetId),
}

/// What the operations' filters go by. Which of them an address space can tell is the caller's affair.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PageKind {
    /// Not of a file.
    Anon,
    /// On an active LRU list.
    Active,
    /// Accessed since the last check.
    Young,
    /// Mapped by no process.
    Unmapped,
    /// Part of a folio whose size, in bytes, lies within both bounds.
    HugepageSize {
        /// The least size.
        min: u64,
        /// The greatest size.
        max: u64,
    },
    /// Charged to the memory cgroup of this path, and not to one below it.
    Memcg(String),
    /// Of a file whose path matches this pattern. Not a filter of the kernel's.
    File(String),
}

/// A filter of the core.
pub type CoreFilter = Filter<CoreKind>;

/// A filter of the operations.
pub type OpsFilter = Filter<PageKind>;

/// The filters of a scheme, in both layers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filters {
    /// Those of the core, asked first.
    pub core: Vec<CoreFilter>,
    /// Those of the operations.
    pub ops: Vec<OpsFilter>,
}

/// What becomes of memory that no filter of the list matches.
fn otherwise<K>(filters: &[Filter<K>]) -> bool {
    filters.last().is_none_or(|filter| !filter.allow)
}

/// Whether a page passes the operations' filters; `is` says of which kinds it is. For implementations of
/// [`Actions`](super::Actions).
///
/// ```
/// use isotherm_damon::schemes::{Filter, PageKind, passes};
/// // The kernel document's example: anonymous pages, and of the others those that are not young.
/// let filters = [Filter::allow(PageKind::Anon), Filter::reject(PageKind::Young)];
/// let page = |anon, young| passes(&filters, |kind| if *kind == PageKind::Anon { anon } else { young });
/// assert!(page(true, true) && page(true, false) && page(false, false) && !page(false, true));
/// ```
pub fn passes(filters: &[OpsFilter], mut is: impl FnMut(&PageKind) -> bool) -> bool {
    let first = filters.iter().find(|filter| is(&filter.kind) == filter.matching);
    first.map_or_else(|| otherwise(filters), |filter| filter.allow)
}

/// What the core's filters say of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// No action, and not tried.
    Rejected,
    /// A filter allows it: the operations' filters are not asked.
    Allowed,
    /// The operations' filters decide.
    Undecided,
}

impl Filters {
    fn verdict(&self, target: TargetId, addr: u64, min_region: u64) -> Verdict {
        // A filter of addresses is rounded by what it does, so each is asked whole.
        let matches = |filter: &&CoreFilter| match filter.kind {
            CoreKind::Target(id) => (id == target) == filter.matching,
            CoreKind::Addr(_) => filter.covered(min_region).contains(addr) == filter.matching,
        };
        match self.core.iter().find(matches).map(|filter| filter.allow) {
            Some(true) => Verdict::Allowed,
            Some(false) => Verdict::Rejected,
            None if !self.ops.is_empty() || otherwise(&self.core) => Verdict::Undecided,
            None => Verdict::Rejected,
        }
    }

    /// Calls `each` with the parts of a region that the core's filters leave, in order, and whether the operations' filters
    /// are to be asked.
    pub(super) fn divide(
        &self,
        target: TargetId,
        range: AddrRange,
        min_region: u64,
        mut each: impl FnMut(AddrRange, bool),
    ) {
        let mut part = AddrRange::new(range.start, range.start);
        let mut of_part = Verdict::Rejected;
        let mut give = |part: AddrRange, verdict| {
            if !part.is_empty() && verdict != Verdict::Rejected {
                each(part, verdict == Verdict::Undecided);
            }
        };
        while part.end < range.end {
            let at = part.end;
            let verdict = self.verdict(target, at, min_region);
            let borders = self.core.iter().filter_map(|filter| match filter.kind {
                CoreKind::Addr(_) => Some(filter.covered(min_region)),
                CoreKind::Target(_) => None,
            });
            let next = borders
                .flat_map(|covered| [covered.start, covered.end])
                .filter(|border| *border > at)
                .fold(range.end, u64::min);
            if verdict != of_part {
                give(part, of_part);
                part.start = at;
            }
            (part.end, of_part) = (next, verdict);
        }
        give(part, of_part);
    }

    /// What is wrong with them.
    pub(super) fn problems(&self) -> impl Iterator<Item = SchemeError> {
        let core = self.core.iter().enumerate().filter_map(|(index, filter)| match filter.kind {
            CoreKind::Addr(range) if range.end < range.start => {
                let reason = Reason::Reversed { min: range.start, max: range.end };
                Some(SchemeError { field: Field::CoreFilter(index), reason })
            }
            _ => None,
        });
        let ops = self.ops.iter().enumerate().filter_map(|(index, filter)| match filter.kind {
            PageKind::HugepageSize { min, max } if min > max => {
                let reason = Reason::Reversed { min, max };
                Some(SchemeError { field: Field::OpsFilter(index), reason })
            }
            _ => None,
        });
        core.chain(ops)
    }
}

impl CoreFilter {
    /// The addresses of its range, borders moved to multiples of `min_region`: outwards where more of the range means that
    /// less is allowed, else inwards.
    fn covered(&self, min_region: u64) -> AddrRange {
        let CoreKind::Addr(range) = self.kind else { return AddrRange::default() };
        if range.is_empty() {
            return AddrRange::default();
        }
        let mask = min_region.max(1) - 1;
        let down = |addr: u64| addr & !mask;
        // The last least region of the address space ends with it.
        let up = |addr: u64| addr.checked_add(mask).map_or(u64::MAX, |addr| addr & !mask);
        if self.matching == self.allow {
            AddrRange::new(up(range.start), down(range.end).max(up(range.start)))
        } else {
            AddrRange::new(down(range.start), up(range.end))
        }
    }
}
