//! What a recording says of memory some time later: where a monitor did not look, or was late, that is what was so before.

use super::returning::{Evidence, accessed};
use isotherm_damon::{AddrRange, Snapshot, TargetId};
use std::sync::Arc;

/// How far ahead it is looked, ns, and in how many snapshots at most. A monitor with a budget of 1 % of a CPU looked at a
/// program of 1 GiB all of which had been written every 2.4 s (`isotherm lab schemes`, pattern `build`), and at what was in use for a
/// moment, as its windows double, again after 7 s (`now and then` of the tests of predictions).
pub(super) const AHEAD_NS: u64 = 10_000_000_000;
pub(super) const AHEAD: usize = 128;

/// How long a monitor may take to see that memory is in use which it took to be idle, ns: what it found after that is not taken for
/// what was so before. A guess.
const SOON_NS: u64 = 500_000_000;

/// Snapshots after one.
#[derive(Clone, Debug)]
pub(super) struct Later {
    /// Shortly after it, and each about twice as long after it as the one before.
    snapshots: Vec<Arc<Snapshot>>,
    ahead: Arc<Snapshot>,
    /// Sampling intervals for which memory is to be idle.
    idle_for: f64,
}

impl Later {
    /// After `snapshot`, of those `read` since, of which `last` is the last.
    pub fn new<'a, I: Iterator<Item = &'a Arc<Snapshot>>>(
        snapshot: &Arc<Snapshot>,
        read: impl Fn() -> I,
        last: &Arc<Snapshot>,
        idle_for: f64,
    ) -> Self {
        let mut snapshots = Vec::new();
        let mut within = SOON_NS;
        while within <= AHEAD_NS {
            let is_within = |later: &&Arc<Snapshot>| later.end_ns.saturating_sub(snapshot.end_ns) <= within;
            snapshots.push(Arc::clone(read().take_while(is_within).last().unwrap_or(snapshot)));
            within *= 2;
        }
        snapshots.push(Arc::clone(last));
        Self { snapshots, ahead: Arc::clone(last), idle_for }
    }

    /// What is known to be accessed of a range soon after, as a probability; `None`: nothing is said of it. `index` is where the
    /// target was.
    fn soon(&self, target: TargetId, index: usize, range: AddrRange) -> Option<f64> {
        self.accessed_at(self.snapshots.first()?, target, index, range)
    }

    /// The same as far ahead as it is looked.
    fn ahead(&self, target: TargetId, index: usize, range: AddrRange) -> Option<f64> {
        self.accessed_at(&self.ahead, target, index, range)
    }

    /// What is known of it soon, if that is more than `rate`: the monitor was late.
    pub fn more(&self, target: TargetId, index: usize, range: AddrRange, rate: f64) -> Option<f64> {
        self.soon(target, index, range).filter(|soon| *soon > rate)
    }

    /// What the next looks found, if that is less than `rate`, and no access was seen soon: those that `rate` stands for were before.
    pub fn less(&self, target: TargetId, index: usize, range: AddrRange, rate: f64) -> Option<f64> {
        let nothing_seen = self.soon(target, index, range).is_none_or(|soon| soon <= rate);
        self.ahead(target, index, range).filter(|ahead| nothing_seen && *ahead < rate)
    }

    /// What is known to be accessed of it when that is known first.
    pub fn known(&self, target: TargetId, index: usize, range: AddrRange) -> Option<f64> {
        self.snapshots.iter().find_map(|snapshot| self.accessed_at(snapshot, target, index, range))
    }

    fn accessed_at(
        &self,
        snapshot: &Snapshot,
        target: TargetId,
        index: usize,
        range: AddrRange,
    ) -> Option<f64> {
        let same_place = snapshot.targets.get(index).filter(|one| one.id == target);
        let target = same_place.or_else(|| snapshot.targets.iter().find(|one| one.id == target))?;
        let first = target.regions.partition_point(|region| region.range.end <= range.start);
        let touching = target.regions.iter().skip(first).take_while(|region| region.range.start < range.end);
        let (mut sum, mut bytes) = (0.0, 0.0);
        let evidence = Evidence::of_idle_for(self.idle_for, snapshot.max_nr_accesses);
        for region in touching.filter(|region| !region.is_unknown()) {
            let common = region.range.intersection(range).size() as f64;
            sum += accessed(region, evidence) * common;
            bytes += common;
        }
        (bytes > 0.0).then(|| sum / bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::{RegionSnapshot, TargetSnapshot};

    #[test]
    fn what_nobody_looked_at_is_what_is_found_first() {
        let range = AddrRange::new(0, 1 << 20);
        let at = |end_ns: u64, rate: Option<u32>| {
            let region = RegionSnapshot {
                range,
                nr_accesses_bp: rate.unwrap_or(0),
                seen_bp: if rate.is_some() { 10_000 } else { 0 },
                exposure: RegionSnapshot::COUNTED,
                ..RegionSnapshot::default()
            };
            let target =
                TargetSnapshot { id: TargetId(7), regions: vec![region], ..TargetSnapshot::default() };
            Arc::new(Snapshot { end_ns, max_nr_accesses: 1, targets: vec![target], ..Snapshot::default() })
        };
        const MS: u64 = 1_000_000;
        let read =
            [at(100 * MS, None), at(900 * MS, Some(5000)), at(2000 * MS, Some(1000)), at(3000 * MS, None)];
        let later = Later::new(&at(0, None), || read.iter(), &read[3], 0.0);
        assert_eq!(later.known(TargetId(7), 0, range), Some(0.5));
        // The target may have moved in the list.
        assert_eq!(later.known(TargetId(7), 9, range), Some(0.5));
        assert_eq!((later.soon(TargetId(7), 0, range), later.ahead(TargetId(7), 0, range)), (None, None));
        let later = Later::new(&at(0, Some(3000)), || read[..3].iter(), &read[2], 0.0);
        assert_eq!(later.less(TargetId(7), 0, range, 0.3), Some(0.1));
        let read = [at(400 * MS, Some(3500)), at(2000 * MS, Some(1000))];
        let later = Later::new(&at(0, Some(3000)), || read.iter(), &read[1], 0.0);
        assert_eq!(later.less(TargetId(7), 0, range, 0.3), None, "it was seen to be accessed more");
        assert_eq!(later.more(TargetId(7), 0, range, 0.3), Some(0.35));
        assert_eq!(later.known(TargetId(8), 0, range), None);
    }
}
