//! A scheme: what is done to which memory, how often, under which limits.

use super::error::{Field, Reason, SchemeError};
use super::{AccessPattern, Filters, Quota, Watermarks};
use alloc::vec::Vec;
use core::fmt;
use core::num::NonZeroU64;
use core::time::Duration;

/// What is done to a region (kernel design document, "Operation Action"). How, and whether it can be, is the caller's
/// affair ([`Actions`](super::Actions)).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Action {
    /// Read it in: `MADV_WILLNEED`.
    Willneed,
    /// Let it be reclaimed sooner: `MADV_COLD`.
    Cold,
    /// Reclaim it.
    Pageout,
    /// Let it have huge pages: `MADV_HUGEPAGE`.
    Hugepage,
    /// Let it have none: `MADV_NOHUGEPAGE`.
    Nohugepage,
    /// Make huge pages of it now: `MADV_COLLAPSE`.
    Collapse,
    /// Move it to the hot end of its LRU list.
    LruPrio,
    /// Move it to the cold end of its LRU list.
    LruDeprio,
    /// Move it to other NUMA nodes, hotter memory first.
    MigrateHot,
    /// Move it to other NUMA nodes, colder memory first.
    MigrateCold,
    /// Do nothing but count.
    Stat,
}

impl Action {
    /// All actions, in the order of the kernel's list.
    pub const ALL: [Self; 11] = [
        Self::Willneed,
        Self::Cold,
        Self::Pageout,
        Self::Hugepage,
        Self::Nohugepage,
        Self::Collapse,
        Self::LruPrio,
        Self::LruDeprio,
        Self::MigrateHot,
        Self::MigrateCold,
        Self::Stat,
    ];

    /// The kernel's keyword for it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Willneed => "willneed",
            Self::Cold => "cold",
            Self::Pageout => "pageout",
            Self::Hugepage => "hugepage",
            Self::Nohugepage => "nohugepage",
            Self::Collapse => "collapse",
            Self::LruPrio => "lru_prio",
            Self::LruDeprio => "lru_deprio",
            Self::MigrateHot => "migrate_hot",
            Self::MigrateCold => "migrate_cold",
            Self::Stat => "stat",
        }
    }

    /// The action of a keyword.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|action| action.name() == name)
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A NUMA node to migrate to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// Its number.
    pub id: u32,
    /// Its share of what is migrated: weight by the sum of all weights.
    pub weight: u32,
}

impl Node {
    /// The node to which something with this index is to go, so that each gets its share of all indices, and the same index always
    /// goes to the same. `None` if the nodes weigh nothing.
    #[must_use]
    pub fn of(nodes: &[Self], index: u64) -> Option<u32> {
        let total: u64 = nodes.iter().map(|node| u64::from(node.weight)).sum();
        let mut at = index.checked_rem(total)?;
        for node in nodes {
            match at.checked_sub(u64::from(node.weight)) {
                None => return Some(node.id),
                Some(rest) => at = rest,
            }
        }
        None
    }
}

/// A DAMON-based operation scheme. It says what is to be done; what was done of it is kept in [`Schemes`](super::Schemes).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scheme {
    /// Which regions.
    pub pattern: AccessPattern,
    /// What is done to them.
    pub action: Action,
    /// How often: in whole sampling intervals, at least one. `None`: at the end of each aggregation.
    pub apply_interval: Option<Duration>,
    /// How much of it, at most.
    pub quota: Quota,
    /// Under which conditions of the system.
    pub watermarks: Option<Watermarks>,
    /// To which memory of the regions.
    pub filters: Filters,
    /// Where [`Action::MigrateHot`] and [`Action::MigrateCold`] migrate to.
    pub nodes: Vec<Node>,
    /// Do nothing any more after so many snapshots ([`Stats::nr_snapshots`](super::Stats::nr_snapshots)).
    pub max_nr_snapshots: Option<NonZeroU64>,
    /// Act also on memory whose rate is unknown, as if it were not accessed. Otherwise such memory is left alone, and how
    /// much of it is in the statistics.
    pub unknown: bool,
}

impl Scheme {
    /// A scheme without limits, filters or conditions, applied at the end of each aggregation.
    pub fn new(pattern: AccessPattern, action: Action) -> Self {
        Self {
            pattern,
            action,
            apply_interval: None,
            quota: Quota::default(),
            watermarks: None,
            filters: Filters::default(),
            nodes: Vec::new(),
            max_nr_snapshots: None,
            unknown: false,
        }
    }

    /// Whether it moves memory to its [`nodes`](Self::nodes).
    pub const fn migrates(&self) -> bool {
        matches!(self.action, Action::MigrateHot | Action::MigrateCold)
    }

    /// Checks every field.
    ///
    /// # Errors
    /// The first field that is not valid, and why.
    pub fn validate(&self) -> Result<(), SchemeError> {
        self.problems().next().map_or(Ok(()), Err)
    }

    /// All that is wrong with it, field by field.
    pub fn problems(&self) -> impl Iterator<Item = SchemeError> {
        let migrates = self.migrates();
        let interval = self.apply_interval.is_some_and(|interval| interval.is_zero());
        let interval = interval.then(|| SchemeError::zero(Field::ApplyInterval));
        let unordered = self.watermarks.is_some_and(|marks| !marks.is_ordered());
        let watermarks =
            unordered.then_some(SchemeError { field: Field::Watermarks, reason: Reason::Unordered });
        let nodes = match self.nodes.as_slice() {
            [] if migrates => Some(SchemeError { field: Field::Nodes, reason: Reason::Missing }),
            nodes if migrates && nodes.iter().all(|node| node.weight == 0) => {
                Some(SchemeError::zero(Field::Nodes))
            }
            _ => None,
        };
        let before = self.pattern.problems().chain(interval).chain(self.quota.problems());
        before.chain(watermarks).chain(self.filters.problems()).chain(nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_get_their_shares() {
        let nodes = [Node { id: 0, weight: 1 }, Node { id: 3, weight: 2 }, Node { id: 5, weight: 0 }];
        let got: Vec<u32> = (0..6).filter_map(|index| Node::of(&nodes, index)).collect();
        assert_eq!(got, [0, 3, 3, 0, 3, 3]);
        assert_eq!((Node::of(&[], 1), Node::of(&nodes[2..], 1)), (None, None));
    }
}
