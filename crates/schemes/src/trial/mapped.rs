//! What targets have mapped, and what of it others map as well: actions leave that alone, as it is not the target's own.
//!
//! A recording does not say which pages several processes map, but what each target has mapped, and how much of that is in its page
//! table. Taken to be shared is
//! - a part of a file, or of shared memory, as far as another target has it in its page table;
//! - private memory that a child has from its parent, likewise, as long as both live and have it mapped; a child of which no
//!   mappings are known is taken to have its parent's. What either has written to
//!   since is its own; a recording does not say what that is, and it is what is in use and stays anyway;
//! - a library (`.so`), and what the kernel maps into every process (`[vdso]`): some other process has it.

use isotherm_damon::{AddrRange, Snapshot, TargetId};
use isotherm_record::{Mapping, Mappings, ObjectId, TargetInfo};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The targets' mappings.
#[derive(Debug, Default)]
pub(super) struct Mapped {
    targets: BTreeMap<u64, Known>,
    stale: bool,
}

#[derive(Debug, Default)]
struct Known {
    parent: Option<u64>,
    maps: Arc<[Mapping]>,
    /// What it had from its parent when it was first seen.
    inherited: Option<Vec<AddrRange>>,
    /// What others map as well, sorted.
    shared: Vec<Shared>,
}

/// Memory of a target that others map as well.
#[derive(Debug)]
struct Shared {
    range: AddrRange,
    /// By which targets, and what of it: its address there, and its address here.
    others: Vec<(u64, u64, AddrRange)>,
    /// Also by processes that are no targets.
    by_strangers: bool,
}

/// So many others are asked for a mapping's pages; a thousand processes map a server's program.
const MOST_OTHERS: usize = 8;

impl Mapped {
    /// A target appears.
    pub fn target(&mut self, info: &TargetInfo) {
        self.targets.entry(info.id).or_default().parent = info.parent;
        self.stale = true;
    }

    /// Whose child a target is.
    pub fn parent(&self, target: TargetId) -> Option<TargetId> {
        self.targets.get(&target.0)?.parent.map(TargetId)
    }

    /// These are a target's mappings now.
    pub fn mappings(&mut self, mappings: Mappings) {
        self.targets.entry(mappings.target).or_default().maps = mappings.maps;
        self.stale = true;
    }

    /// A target is gone.
    pub fn gone(&mut self, target: u64) {
        self.targets.remove(&target);
        self.stale = true;
    }

    /// Bytes of `range` that a target has mapped; all of it, if nothing is known of its mappings.
    pub fn bytes(&self, target: TargetId, range: AddrRange) -> u64 {
        let known = self.targets.get(&target.0).map(|known| &*known.maps);
        bytes_of(known.unwrap_or_default(), range)
    }

    /// Share of what a target has in `range` that is its own at a snapshot, 0..=1.
    pub fn own_share(&mut self, snapshot: &Snapshot, target: TargetId, range: AddrRange) -> f64 {
        if std::mem::take(&mut self.stale) {
            self.find_shared();
        }
        let there = self.present(snapshot, target.0, range);
        let Some(known) = self.targets.get(&target.0).filter(|_| there > 0.0) else { return 1.0 };
        let first = known.shared.partition_point(|shared| shared.range.end <= range.start);
        let touching = known.shared.iter().skip(first).take_while(|shared| shared.range.start < range.end);
        let shared: f64 = touching.map(|shared| self.common(snapshot, target.0, shared, range)).sum();
        (1.0 - shared / there).max(0.0)
    }

    /// Bytes of `range` that a target and others have in their page tables. Taken to be as many as can be, since what a child has from its
    /// parent, or a server's processes of a file, is the same pages.
    fn common(&self, snapshot: &Snapshot, target: u64, shared: &Shared, range: AddrRange) -> f64 {
        let part = shared.range.intersection(range);
        let here = self.present(snapshot, target, part);
        if shared.by_strangers {
            return here;
        }
        let mut most: f64 = 0.0;
        for (other, there, range) in &shared.others {
            let common = range.intersection(part);
            if most >= here {
                break;
            }
            if !common.is_empty() {
                let at = there + (common.start - range.start);
                most = most.max(self.present(snapshot, *other, AddrRange::new(at, at + common.size())));
            }
        }
        most.min(here)
    }

    /// Bytes of a range that a target has in its page table, as its regions have them by what is mapped; all that is mapped, if that is not
    /// known.
    fn present(&self, snapshot: &Snapshot, target: u64, range: AddrRange) -> f64 {
        let maps = self.maps_of(target);
        let Some(target) = snapshot.targets.iter().find(|one| one.id.0 == target) else {
            return bytes_of(maps, range) as f64;
        };
        let first = target.regions.partition_point(|region| region.range.end <= range.start);
        let touching = target.regions.iter().skip(first).take_while(|region| region.range.start < range.end);
        let there = touching.map(|region| {
            let part = bytes_of(maps, region.range.intersection(range)) as f64;
            let mapped = bytes_of(maps, region.range).max(1) as f64;
            region.resident.map_or(part, |resident| part * (resident as f64 / mapped).min(1.0))
        });
        there.sum()
    }

    /// A target's mappings; those of its parent, where nothing is known of its own.
    fn maps_of(&self, id: u64) -> &[Mapping] {
        let known = self.targets.get(&id);
        let parent = known.and_then(|known| self.targets.get(&known.parent?));
        let own = known.filter(|known| !known.maps.is_empty());
        own.or(parent).map(|known| &*known.maps).unwrap_or_default()
    }

    /// What targets have from their parents, of which that is not settled yet.
    fn inherited(&self) -> BTreeMap<u64, Vec<AddrRange>> {
        let unsettled = self.targets.iter().filter(|(_, known)| known.inherited.is_none());
        let inherited = unsettled.filter_map(|(id, known)| {
            let parent = self.targets.get(&known.parent?).filter(|parent| !parent.maps.is_empty())?;
            Some((*id, common(&own_ranges(self.maps_of(*id)), &own_ranges(&parent.maps))))
        });
        inherited.collect()
    }

    fn find_shared(&mut self) {
        let inherited = self.inherited();
        for (id, ranges) in &inherited {
            if let Some(known) = self.targets.get_mut(id).filter(|known| !known.maps.is_empty()) {
                known.inherited = Some(ranges.clone());
            }
        }
        let mut shared: BTreeMap<u64, Vec<Shared>> = BTreeMap::new();
        let mut objects: BTreeMap<ObjectId, Vec<(u64, &Mapping)>> = BTreeMap::new();
        for (id, known) in &self.targets {
            let maps = self.maps_of(*id);
            for mapping in maps {
                if is_everybodys(mapping) {
                    let of = Shared { range: mapping.range(), others: Vec::new(), by_strangers: true };
                    shared.entry(*id).or_default().push(of);
                } else if let Some(object) = mapping.object() {
                    objects.entry(object).or_default().push((*id, mapping));
                }
            }
            let parent = known.parent.and_then(|parent| Some((parent, self.targets.get(&parent)?)));
            let inherited = known.inherited.as_ref().or_else(|| inherited.get(id));
            if let (Some((parent, of_parent)), Some(inherited)) = (parent, inherited) {
                let still = common(inherited, &own_ranges(maps));
                for range in common(&still, &own_ranges(&of_parent.maps)) {
                    for (of, other) in [(parent, *id), (*id, parent)] {
                        let found = shared.entry(of).or_default();
                        let of =
                            Shared { range, others: vec![(other, range.start, range)], by_strangers: false };
                        // Another child has the same of it, mostly.
                        match found
                            .iter_mut()
                            .rev()
                            .find(|before| before.range == range && !before.by_strangers)
                        {
                            Some(before) if before.others.len() < MOST_OTHERS => {
                                before.others.extend(of.others)
                            }
                            Some(_) => {}
                            None => found.push(of),
                        }
                    }
                }
            }
        }
        for users in objects.into_values().filter(|users| users.len() > 1) {
            for (id, mapping) in &users {
                let others = others_of(*id, mapping, &users);
                if !others.is_empty() {
                    let of = Shared { range: mapping.range(), others, by_strangers: false };
                    shared.entry(*id).or_default().push(of);
                }
            }
        }
        for (id, known) in &mut self.targets {
            known.shared = shared.remove(id).unwrap_or_default();
            known.shared.sort_unstable_by_key(|shared| shared.range.start);
        }
    }
}

/// Which other targets have mapped what of a mapping of an object.
fn others_of(id: u64, mapping: &Mapping, users: &[(u64, &Mapping)]) -> Vec<(u64, u64, AddrRange)> {
    let part = |mapping: &Mapping| {
        AddrRange::new(mapping.offset, mapping.offset.saturating_add(mapping.range().size()))
    };
    let others = users.iter().filter(|(other, _)| *other != id).filter_map(|(other, theirs)| {
        let common = part(mapping).intersection(part(theirs));
        let here = mapping.start + common.start.saturating_sub(mapping.offset);
        let there = theirs.start + common.start.saturating_sub(theirs.offset);
        (!common.is_empty()).then(|| (*other, there, AddrRange::new(here, here + common.size())))
    });
    others.take(MOST_OTHERS).collect()
}

fn bytes_of(maps: &[Mapping], range: AddrRange) -> u64 {
    if maps.is_empty() {
        return range.size();
    }
    touching(maps, range).map(|mapping| mapping.range().intersection(range).size()).sum()
}

fn touching(maps: &[Mapping], range: AddrRange) -> impl Iterator<Item = &Mapping> {
    let first = maps.partition_point(|mapping| mapping.end <= range.start);
    maps.iter().skip(first).take_while(move |mapping| mapping.start < range.end)
}

/// What is private and may be written, as it is copied by fork.
fn own_ranges(maps: &[Mapping]) -> Vec<AddrRange> {
    maps.iter()
        .filter(|mapping| mapping.object().is_none() && !is_everybodys(mapping))
        .map(Mapping::range)
        .collect()
}

fn is_everybodys(mapping: &Mapping) -> bool {
    let name = mapping.name.rsplit('/').next().unwrap_or_default();
    let is_library = name.ends_with(".so") || name.contains(".so.");
    mapping.name.starts_with("[v") || is_library && mapping.object().is_some()
}

/// What two sorted lists have in common.
fn common(a: &[AddrRange], b: &[AddrRange]) -> Vec<AddrRange> {
    let (mut common, mut at) = (Vec::new(), 0);
    for range in a {
        at += b.iter().skip(at).take_while(|other| other.end <= range.start).count();
        let touching = b.iter().skip(at).take_while(|other| other.start < range.end);
        common.extend(touching.map(|other| other.intersection(*range)));
    }
    common
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::{RegionSnapshot, TargetSnapshot};

    fn mapping(start: u64, end: u64, perms: &'static str, name: &str, inode: u64, offset: u64) -> Mapping {
        let (perms, name) = (perms.into(), name.into());
        Mapping { start, end, perms, name, inode, offset, ..Mapping::default() }
    }

    fn add(mapped: &mut Mapped, id: u64, parent: Option<u64>, maps: Vec<Mapping>) {
        mapped.target(&TargetInfo { id, parent, ..TargetInfo::default() });
        mapped.mappings(Mappings { target: id, maps: maps.into(), ..Mappings::default() });
    }

    fn own(mapped: &mut Mapped, target: u64, start: u64, end: u64) -> f64 {
        own_of(mapped, &Snapshot::default(), target, start, end)
    }

    fn own_of(mapped: &mut Mapped, snapshot: &Snapshot, target: u64, start: u64, end: u64) -> f64 {
        mapped.own_share(snapshot, TargetId(target), AddrRange::new(start, end))
    }

    #[test]
    fn what_another_target_has_of_an_object_is_not_ones_own() {
        let mut mapped = Mapped::default();
        add(&mut mapped, 1, None, vec![mapping(1000, 1100, "rw-s", "/dev/shm/x", 7, 0)]);
        assert_eq!(own(&mut mapped, 1, 1000, 1100), 1.0, "nobody else does");
        // The last quarter, elsewhere; and private memory of the same file that may be written.
        let other = mapping(5000, 5050, "r--s", "/dev/shm/x", 7, 75);
        add(&mut mapped, 2, None, vec![other, mapping(9000, 9100, "rw-p", "/dev/shm/x", 7, 0)]);
        assert_eq!(own(&mut mapped, 1, 1000, 1100), 0.75);
        assert_eq!(own(&mut mapped, 1, 1000, 1050), 1.0);
        assert_eq!(own(&mut mapped, 2, 5000, 5050), 0.5);
        assert_eq!(own(&mut mapped, 2, 9000, 9100), 1.0);
        // It has a fifth of that in its page table.
        let region = RegionSnapshot {
            range: AddrRange::new(5000, 5050),
            resident: Some(10),
            ..RegionSnapshot::default()
        };
        let target = TargetSnapshot { id: TargetId(2), regions: vec![region], ..TargetSnapshot::default() };
        let snapshot = Snapshot { targets: vec![target], ..Snapshot::default() };
        assert!((own_of(&mut mapped, &snapshot, 1, 1000, 1100) - 0.95).abs() < 1e-9);
        mapped.gone(2);
        assert_eq!(own(&mut mapped, 1, 1000, 1100), 1.0);
    }

    #[test]
    fn libraries_are_everybodys_and_unknown_mappings_ones_own() {
        let mut mapped = Mapped::default();
        let maps = vec![
            mapping(0, 100, "r-xp", "/usr/bin/program", 3, 0),
            mapping(200, 300, "r-xp", "/usr/lib/libc.so.6", 4, 0),
            mapping(300, 400, "rw-p", "/usr/lib/libc.so.6", 4, 100),
            mapping(500, 600, "r-xp", "[vdso]", 0, 0),
        ];
        add(&mut mapped, 1, None, maps);
        assert_eq!([0, 200, 300, 500].map(|at| own(&mut mapped, 1, at, at + 100)), [1.0, 0.0, 1.0, 0.0]);
        assert_eq!(own(&mut mapped, 1, 100, 200), 1.0, "nothing is mapped");
        assert_eq!(own(&mut mapped, 2, 0, 100), 1.0, "nothing is known");
        let bytes = |target, range| mapped.bytes(TargetId(target), range);
        assert_eq!((bytes(1, AddrRange::new(50, 250)), bytes(2, AddrRange::new(0, 9))), (100, 9));
    }

    #[test]
    fn a_child_shares_what_it_has_from_its_parent_and_no_more() {
        let mut mapped = Mapped::default();
        let heap = |end| mapping(0, end, "rw-p", "[heap]", 0, 0);
        let later = || mapping(200, 300, "rw-p", "", 0, 0);
        // What both mapped later lies at the same addresses.
        add(&mut mapped, 1, None, vec![heap(100)]);
        add(&mut mapped, 2, Some(1), vec![heap(100), later()]);
        add(&mut mapped, 3, Some(1), vec![heap(100), later()]);
        for target in 1..=3 {
            assert_eq!(
                (own(&mut mapped, target, 0, 100), own(&mut mapped, target, 200, 300)),
                (0.0, 1.0),
                "{target}"
            );
        }
        let maps = vec![heap(100), later()];
        mapped.mappings(Mappings { target: 1, maps: maps.into(), ..Mappings::default() });
        assert_eq!(own(&mut mapped, 2, 200, 300), 1.0);
        // Of one nothing is known yet.
        mapped.target(&TargetInfo { id: 4, parent: Some(1), ..TargetInfo::default() });
        assert_eq!((own(&mut mapped, 4, 0, 100), own(&mut mapped, 4, 400, 500)), (0.0, 1.0));
        mapped.gone(4);
        // One gives a part of it back, the other ends.
        mapped.mappings(Mappings { target: 2, maps: [heap(50)].into(), ..Mappings::default() });
        mapped.gone(3);
        assert_eq!((own(&mut mapped, 2, 0, 50), own(&mut mapped, 1, 0, 100)), (0.0, 0.5));
        mapped.gone(2);
        assert_eq!(own(&mut mapped, 1, 0, 100), 1.0);
    }
}
