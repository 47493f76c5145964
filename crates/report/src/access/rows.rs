//! Regions as they are met with: which are shown, and what all of them add up to. A snapshot may have a million, so that no more is
//! kept of one than is shown of it, and that once.

use super::AccessRegion;
use super::pattern::Pattern;
use super::totals::Sum;
use crate::names::RangeName;
use crate::space::{Space, is_object};
use isotherm_damon::{RegionSnapshot, TargetId, TargetSnapshot};
use std::collections::{BTreeMap, HashMap};

/// How many names are told of where none is what was asked for.
const MAX_NAMES: usize = 8;

/// Regions by whether they fit a pattern.
pub(super) struct Rows {
    pattern: Pattern,
    /// What shares of a rate refer to, Hz.
    pub ceiling_hz: f64,
    /// Those that fit.
    pub shown: Vec<AccessRegion>,
    /// Sums over the others.
    pub hidden: Adding,
    /// Sums over those that fit, by target.
    pub groups: BTreeMap<u64, Adding>,
    /// Bytes by name, as long as none is what was asked for.
    sizes: Option<HashMap<String, u64>>,
}

impl Rows {
    pub(super) fn new(pattern: Pattern) -> Self {
        let sizes = (!pattern.mapping.is_empty()).then(HashMap::new);
        let (shown, hidden, groups) = (Vec::new(), Adding::new(0.0), BTreeMap::new());
        Self { pattern, ceiling_hz: 0.0, shown, hidden, groups, sizes }
    }

    /// Shares of a rate refer to this. To be called before the first region is taken.
    pub(super) fn ceilings(&mut self, hz: f64) {
        self.ceiling_hz = hz;
        self.hidden = Adding::new(hz);
    }

    /// Takes a region, and the same as a snapshot has it; those of a target in the order of their addresses.
    pub(super) fn take(&mut self, row: AccessRegion, region: &RegionSnapshot, space: &Space) {
        if let (Some(sizes), Some(name)) = (&mut self.sizes, &row.mapping) {
            if name.contains(&self.pattern.mapping) {
                self.sizes = None;
            } else {
                // What other names it covers is not what to ask for.
                *sizes.entry(RangeName::main_of(name).to_owned()).or_default() += row.size;
            }
        }
        if !self.pattern.matches(&row, self.ceiling_hz) {
            self.hidden.push(&row, region, space);
            return;
        }
        let group = self.groups.entry(row.target).or_insert_with(|| Adding::new(self.ceiling_hz));
        group.push(&row, region, space);
        self.shown.push(row);
    }

    /// What the largest mappings are called, if none has the name that was asked for.
    pub(super) fn called_otherwise(&mut self) -> Vec<String> {
        let sizes = self.sizes.take().unwrap_or_default();
        let mut names: Vec<(u64, String)> = sizes.into_iter().map(|(name, size)| (size, name)).collect();
        names.sort_unstable_by(|a, b| b.0.cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        names.into_iter().take(MAX_NAMES).map(|(_, name)| name).collect()
    }
}

/// Rows that are added up: regions of targets in the order of their addresses, and the sums of what needs not be put together.
pub(super) struct Adding {
    pub sum: Sum,
    pub targets: Vec<TargetSnapshot>,
}

impl Adding {
    pub(super) fn new(ceiling_hz: f64) -> Self {
        Self { sum: Sum::new(ceiling_hz), targets: Vec::new() }
    }

    pub(super) fn push(&mut self, row: &AccessRegion, region: &RegionSnapshot, space: &Space) {
        self.sum.count(row);
        let target = TargetId(row.target);
        // In a group of its own there is nothing to put together; nor where mappings changed since.
        if is_object(target) || space.mapped(target, region).is_none() {
            self.sum.add(row.size, row.rate_hz.unwrap_or(0.0), row.seen, region.resident);
            return;
        }
        match self.targets.last_mut() {
            Some(last) if last.id == target => last.regions.push(*region),
            _ => self.targets.push(TargetSnapshot::new(target, vec![*region])),
        }
    }
}
