//! Regions as they are met with: which are shown, and what all of them add up to. A snapshot may have a million, so that no more is
//! kept of one than is shown of it, and that once.

use super::AccessRegion;
use super::pattern::Pattern;
use super::totals::Sum;
use crate::heatmap::AreaError;
use crate::names::{RangeName, Sought};
use crate::space::{Space, is_object};
use crate::units::format_address_range;
use isotherm_damon::{AddrRange, RegionSnapshot, TargetId, TargetSnapshot};
use std::collections::BTreeMap;

/// How many stretches of addresses are told of where none is what was asked for.
const MAX_STRETCHES: usize = 6;

/// Regions by whether they fit a pattern.
pub(super) struct Rows {
    pattern: Pattern,
    /// What shares of a rate refer to, Hz.
    pub ceiling_hz: f64,
    /// All are of one target, so that nothing is to be put together and no region kept for that.
    pub alone: bool,
    /// Those that fit.
    pub shown: Vec<AccessRegion>,
    /// Sums over the others.
    pub hidden: Adding,
    /// Sums over those that fit, by target.
    pub groups: BTreeMap<u64, Adding>,
    sought: Sought,
    /// From the lowest to the highest address of each target, as long as none is where it was asked for.
    stretches: Option<BTreeMap<u64, AddrRange>>,
}

impl Rows {
    pub(super) fn new(pattern: Pattern) -> Self {
        let sought = Sought::new(&pattern.mapping);
        let stretches = (!pattern.addresses.is_empty()).then(BTreeMap::new);
        let (shown, hidden, groups) = (Vec::new(), Adding::new(0.0), BTreeMap::new());
        Self { pattern, ceiling_hz: 0.0, alone: false, shown, hidden, groups, sought, stretches }
    }

    /// Shares of a rate refer to this. To be called before the first region is taken.
    pub(super) fn ceilings(&mut self, hz: f64) {
        self.ceiling_hz = hz;
        self.hidden = Adding::new(hz);
    }

    /// Takes a region, and the same as a snapshot has it; those of a target in the order of their addresses.
    pub(super) fn take(&mut self, row: AccessRegion, region: &RegionSnapshot, space: &Space) {
        if self.pattern.wants(row.target) {
            let name = row.mapping.as_deref();
            let fits = name.is_some_and(|name| name.contains(&self.pattern.mapping));
            // What other names it covers is not what to ask for.
            self.sought.look(name.map(RangeName::main_of), row.size, fits);
            self.look_where(&row);
        }
        if !self.pattern.matches(&row, self.ceiling_hz) {
            self.hidden.push(&row, (!self.alone).then_some((region, space)));
            return;
        }
        let group = self.groups.entry(row.target).or_insert_with(|| Adding::new(self.ceiling_hz));
        group.push(&row, (!self.alone).then_some((region, space)));
        self.shown.push(row);
    }

    fn look_where(&mut self, row: &AccessRegion) {
        let range = AddrRange::new(row.start, row.end);
        let Some(stretches) = &mut self.stretches else { return };
        if self.pattern.addresses.iter().any(|address| address.intersects(range)) {
            self.stretches = None;
            return;
        }
        let stretch = stretches.entry(row.target).or_insert(range);
        *stretch = AddrRange::new(stretch.start.min(range.start), stretch.end.max(range.end));
    }

    /// The name that was asked for and nothing has, or the addresses at which nothing is.
    pub(super) fn missing(&mut self) -> Option<AreaError> {
        if let Some((part, known)) = std::mem::take(&mut self.sought).missing() {
            return Some(AreaError::NoName { part, known });
        }
        let stretches = self.stretches.take().filter(|stretches| !stretches.is_empty())?;
        let list = |ranges: &mut dyn Iterator<Item = AddrRange>| {
            ranges.take(MAX_STRETCHES).map(format_address_range).collect::<Vec<_>>().join(", ")
        };
        let asked = list(&mut self.pattern.addresses.iter().copied());
        Some(AreaError::NoArea(asked, list(&mut stretches.into_values())))
    }
}

/// Rows that are added up: as they are, and for the sums over several targets, where what these share counts once: regions of
/// targets in the order of their addresses, and the sums of what needs not be put together.
pub(super) struct Adding {
    pub plain: Sum,
    pub sum: Sum,
    pub targets: Vec<TargetSnapshot>,
}

impl Adding {
    pub(super) fn new(ceiling_hz: f64) -> Self {
        Self { plain: Sum::new(ceiling_hz), sum: Sum::new(ceiling_hz), targets: Vec::new() }
    }

    /// Adds a row; `shared`: its region, where others may map the same memory.
    pub(super) fn push(&mut self, row: &AccessRegion, shared: Option<(&RegionSnapshot, &Space)>) {
        self.sum.count(row);
        self.plain.count(row);
        self.plain.add(
            row.size,
            row.rate_hz.unwrap_or(0.0),
            row.seen,
            row.resident.map(|bytes| bytes.min(row.size)),
        );
        let Some((region, space)) = shared else { return };
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
