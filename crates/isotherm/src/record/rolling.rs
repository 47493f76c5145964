//! What a recorder keeps in mind to begin another file at any time: one that is complete in itself says again what the files
//! before said.

use super::series::Series;
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record as rec;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The state of a series of files.
pub struct Rolling {
    pub series: Series,
    every_ns: u64,
    began_ns: u64,
    /// The regions of each target in its last snapshot that had any, and how many ago that was.
    regions: BTreeMap<TargetId, (Vec<RegionSnapshot>, u32)>,
    /// The mappings of each target.
    maps: BTreeMap<TargetId, rec::Mappings>,
    /// What became of the files so far.
    pub done: Done,
}

/// Files that have their names.
#[derive(Clone, Debug, Default)]
pub struct Done {
    /// How many.
    pub files: u64,
    /// Bytes of those that are closed.
    pub bytes: u64,
    /// The first and the last of them.
    pub first: PathBuf,
    pub last: PathBuf,
    /// Those of this run that are there.
    pub kept: Vec<PathBuf>,
    /// How many were removed, to keep what was asked for.
    pub removed: usize,
}

impl Rolling {
    /// A new file every `every_ns`, the first of which began at `began_ns`.
    pub fn new(series: Series, every_ns: u64, began_ns: u64) -> Self {
        let (regions, maps) = (BTreeMap::new(), BTreeMap::new());
        Self { series, every_ns, began_ns, regions, maps, done: Done::default() }
    }

    /// Keeps in mind what the file to come has to begin with.
    pub fn remember(&mut self, snapshot: &Snapshot) {
        for target in &snapshot.targets {
            let (regions, ago) = self.regions.entry(target.id).or_default();
            if target.steady && target.regions.is_empty() {
                *ago = ago.saturating_add(1);
            } else {
                regions.clone_from(&target.regions);
                *ago = 0;
            }
        }
    }

    pub fn remember_mappings(&mut self, maps: &rec::Mappings) {
        self.maps.insert(TargetId(maps.target), maps.clone());
    }

    pub fn forget(&mut self, id: TargetId) {
        self.regions.remove(&id);
        self.maps.remove(&id);
    }

    /// Whether `snapshot` is to be the first of another file, which then has begun.
    pub fn is_due(&mut self, snapshot: &Snapshot) -> bool {
        let due = snapshot.start_ns.saturating_sub(self.began_ns) >= self.every_ns;
        if due {
            self.began_ns = snapshot.start_ns;
        }
        due
    }

    /// The mappings to begin a file with.
    pub fn mappings(&self, time_ns: u64) -> Vec<rec::Mappings> {
        self.maps.values().map(|maps| rec::Mappings { time_ns, ..maps.clone() }).collect()
    }

    /// `snapshot`, which was remembered, with the regions of all targets.
    pub fn whole(&self, snapshot: &Snapshot) -> Snapshot {
        let whole = |target: &TargetSnapshot| {
            let Some((regions, ago)) = self.regions.get(&target.id) else { return target.clone() };
            let aged = |r: &RegionSnapshot| RegionSnapshot { age: r.age.saturating_add(*ago), ..*r };
            TargetSnapshot::new(target.id, regions.iter().map(aged).collect())
        };
        Snapshot { targets: snapshot.targets.iter().map(whole).collect(), ..*snapshot }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what fails here fails the test")]
mod tests {
    use super::*;
    use crate::record::Keep;
    use isotherm_damon::AddrRange;
    use std::path::Path;

    #[test]
    fn a_file_begins_with_all_regions_whoever_stood_still() {
        let series = Series::new(Path::new("x.rec"), Keep::Files(1)).unwrap();
        let mut rolling = Rolling::new(series, 10, 100);
        let region =
            |age| RegionSnapshot { range: AddrRange::new(0, 4096), age, ..RegionSnapshot::default() };
        let snapshot =
            |start_ns, targets| Snapshot { start_ns, end_ns: start_ns + 5, targets, ..Snapshot::default() };
        let steady = |id| TargetSnapshot { id: TargetId(id), regions: Vec::new(), steady: true };
        let new = |id, age| TargetSnapshot::new(TargetId(id), vec![region(age)]);
        rolling.remember(&snapshot(100, vec![new(1, 7), new(2, 0)]));
        rolling.remember(&snapshot(105, vec![steady(1), new(2, 1)]));
        let last = snapshot(110, vec![steady(1), steady(2)]);
        rolling.remember(&last);
        assert!(rolling.is_due(&last) && !rolling.is_due(&last));
        let whole = rolling.whole(&last);
        assert_eq!(whole.targets, [new(1, 9), new(2, 2)]);
        rolling.forget(TargetId(1));
        assert!(rolling.whole(&last).targets[0].regions.is_empty());
    }
}
