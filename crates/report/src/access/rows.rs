//! Regions as they are met with: which are shown, and what all of them add up to. A snapshot may have a million, so that no more is
//! kept of one than is shown of it, and that once.

use super::AccessRegion;
use super::pattern::Pattern;
use super::totals::Sum;
use crate::heatmap::AreaError;
use crate::names::{NameBook, Sought};
use crate::space::{Space, is_object};
use crate::units::format_address_range;
use isotherm_damon::{AddrRange, RegionSnapshot, TargetId, TargetSnapshot};
use std::collections::BTreeMap;

/// How many stretches of addresses are told of where none is what was asked for.
const MAX_STRETCHES: usize = 6;

/// Regions by whether they fit a pattern.
pub(super) struct Rows {
    /// But for the name of the mapping.
    pattern: Pattern,
    /// What is in the name of a mapping, or object; empty: anything.
    part: String,
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
    pub(super) fn new(mut pattern: Pattern) -> Self {
        let part = std::mem::take(&mut pattern.mapping);
        let sought = Sought::new(&part);
        let stretches = (!pattern.addresses.is_empty()).then(BTreeMap::new);
        let (shown, hidden, groups) = (Vec::new(), Adding::new(0.0), BTreeMap::new());
        Self { pattern, part, ceiling_hz: 0.0, alone: false, shown, hidden, groups, sought, stretches }
    }

    /// Shares of a rate refer to this. To be called before the first region is taken.
    pub(super) fn ceilings(&mut self, hz: f64) {
        self.ceiling_hz = hz;
        self.hidden = Adding::new(hz);
    }

    /// Takes a region, and the same as a snapshot has it; those of a target in the order of their addresses.
    pub(super) fn take(
        &mut self,
        mut row: AccessRegion,
        region: &RegionSnapshot,
        (space, names): (&Space, &NameBook),
    ) {
        let wanted = self.pattern.wants(row.target);
        let is_called = self.part.is_empty() || self.find_name(&mut row, wanted, space, names);
        if wanted {
            self.look_where(&row);
        }
        if !is_called || !self.pattern.matches(&row, self.ceiling_hz) {
            self.hidden.push(&row, (!self.alone).then_some((region, space)));
            return;
        }
        let group = self.groups.entry(row.target).or_insert_with(|| Adding::new(self.ceiling_hz));
        group.push(&row, (!self.alone).then_some((region, space)));
        self.shown.push(row);
    }

    /// Whether it covers a mapping that has the part in its name or path: then it is called by that. What may be asked for instead is
    /// noted.
    fn find_name(&mut self, row: &mut AccessRegion, wanted: bool, space: &Space, names: &NameBook) -> bool {
        let (target, range) = (TargetId(row.target), AddrRange::new(row.start, row.end));
        let sought = &mut self.sought;
        let mut look = |name: Option<&str>, bytes, fits| {
            if wanted {
                sought.look(name, bytes, fits);
            }
        };
        if let Some(object) = space.object(target) {
            let fits = object.is_called(&self.part) || object.name.contains(&self.part);
            look(Some(&object.name), row.size, fits);
            return fits;
        }
        look(None, row.size, false);
        let found =
            names.name_with(target, range, &self.part, |name, bytes, fits| look(Some(name), bytes, fits));
        if let Some(name) = &found {
            row.mapping = Some(name.to_string().into());
        }
        found.is_some()
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
