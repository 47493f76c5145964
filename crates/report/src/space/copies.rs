//! Copies of snapshots in which what several targets map, or none, is told apart.

use super::shared::Shares;
use super::{Space, join, object_id};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};

/// Snapshots of more regions than this are copied piece by piece, of which each has so many, and no memory of that size is kept: what
/// a reader needs for a million of them is 120 MB. A guess: ten monitors at their defaults have no more.
pub(crate) const WIDE: usize = 1 << 16;

impl Space {
    /// Replaces `out` by the regions of `target`, cut to what is mapped of them.
    pub fn clip(&self, target: &TargetSnapshot, out: &mut TargetSnapshot) {
        out.id = target.id;
        out.steady = false;
        out.regions.clear();
        if !self.cuts(target.id) {
            out.regions.extend_from_slice(&target.regions);
            return;
        }
        let mut cutter = self.cutter(target.id);
        for region in &target.regions {
            let first = out.regions.len();
            cutter.parts(region, |part, _| match out.regions.get_mut(first..).and_then(|r| r.last_mut()) {
                Some(last) if last.range.end == part.range.start => join(last, &part),
                _ => out.regions.push(part),
            });
        }
    }

    /// Replaces `out` by `snapshot`, cut to what is mapped.
    pub fn by_target(&self, snapshot: &Snapshot, wanted: impl Fn(TargetId) -> bool, out: &mut Snapshot) {
        let mut targets = std::mem::take(&mut out.targets);
        let chosen = || snapshot.targets.iter().filter(|t| wanted(t.id));
        targets.resize_with(chosen().count(), TargetSnapshot::default);
        for (from, to) in chosen().zip(&mut targets) {
            self.clip(from, to);
        }
        *out = Snapshot { targets, ..*snapshot };
    }

    /// Calls `each` with `snapshot`, cut to what is mapped: in pieces where it is very large, which is for who adds them up.
    pub fn each_by_target(
        &self,
        snapshot: &Snapshot,
        wanted: impl Fn(TargetId) -> bool,
        out: &mut Snapshot,
        mut each: impl FnMut(&Snapshot),
    ) {
        if snapshot.nr_regions() <= WIDE {
            self.by_target(snapshot, wanted, out);
            return each(out);
        }
        let mut piece = TargetSnapshot::default();
        for target in snapshot.targets.iter().filter(|target| wanted(target.id)) {
            for regions in target.regions.chunks(WIDE) {
                piece.id = target.id;
                piece.regions.clear();
                piece.regions.extend_from_slice(regions);
                let mut targets = std::mem::take(&mut out.targets);
                targets.resize_with(1, TargetSnapshot::default);
                self.clip(&piece, &mut targets[0]);
                *out = Snapshot { targets, ..*snapshot };
                each(out);
            }
        }
    }

    /// Calls `each` with `snapshot` as [`Self::by_object`] has it: in pieces where it is very large, which is for who adds them up.
    pub fn each_by_object(
        &mut self,
        snapshot: &Snapshot,
        wanted: impl Fn(TargetId) -> bool,
        out: &mut Snapshot,
        mut each: impl FnMut(&Snapshot),
    ) {
        let most = if snapshot.nr_regions() > WIDE { WIDE } else { usize::MAX };
        self.put_by_object(snapshot, wanted, (out, most), |out| {
            each(out);
            // The memory of one is used again.
            out.targets.truncate(1);
        });
        each(out);
    }

    /// Replaces `out` by `snapshot` in which every mapped byte counts once: each target has only the memory of its own,
    /// and behind them each object is a target whose addresses are offsets in it ([`Self::object`]).
    pub fn by_object(&mut self, snapshot: &Snapshot, wanted: impl Fn(TargetId) -> bool, out: &mut Snapshot) {
        self.put_by_object(snapshot, wanted, (out, usize::MAX), |_| {});
    }

    /// Hands out what is the targets' own to `own`, in pieces where that is very much; then what there is of each object, in order
    /// and each byte once, with the share of it that is in the working set of a window of `window_s` seconds, as far as intervals
    /// are known. An object is in use as far as any of those who map it uses it (the module `shared`): of one region of one
    /// rate, as [`Self::by_object`] makes it, that cannot be told.
    pub fn each_in_use(
        &mut self,
        snapshot: &Snapshot,
        wanted: impl Fn(TargetId) -> bool,
        (out, window_s): (&mut Snapshot, f64),
        mut own: impl FnMut(&Snapshot),
        mut object: impl FnMut(TargetId, &RegionSnapshot, f64),
    ) {
        let most = if snapshot.nr_regions() > WIDE { WIDE } else { usize::MAX };
        let mut shares = self.gather(snapshot, wanted, (out, most, window_s), |out| {
            own(out);
            out.targets.truncate(1);
        });
        own(out);
        shares.each(
            |index| self.is_same_for_all(index),
            |index, region, share| object(object_id(index), &region, share),
        );
        self.shares = shares;
    }

    /// The same as [`Self::by_object`]; whenever so many regions were looked at, `piece` is handed what came of them, and what is
    /// left comes behind.
    fn put_by_object(
        &mut self,
        snapshot: &Snapshot,
        wanted: impl Fn(TargetId) -> bool,
        (out, most): (&mut Snapshot, usize),
        piece: impl FnMut(&mut Snapshot),
    ) {
        let mut shares = self.gather(snapshot, wanted, (out, most, 1.0), piece);
        shares.add_up(
            |object| self.is_same_for_all(object),
            |object, regions| out.targets.push(TargetSnapshot::new(object_id(object), regions)),
        );
        self.shares = shares;
    }

    /// Replaces `out` by what is the targets' own, all or what `piece` was not handed; what belongs to objects is returned.
    fn gather(
        &mut self,
        snapshot: &Snapshot,
        wanted: impl Fn(TargetId) -> bool,
        (out, most, window_s): (&mut Snapshot, usize, f64),
        mut piece: impl FnMut(&mut Snapshot),
    ) -> Shares {
        let targets = std::mem::take(&mut out.targets);
        *out = Snapshot { targets, ..*snapshot };
        let mut shares = std::mem::take(&mut self.shares);
        shares.begin(snapshot.max_nr_accesses, snapshot.sample_ns, window_s);
        let (mut used, mut so_far) = (0, 0);
        for from in snapshot.targets.iter().filter(|t| wanted(t.id)) {
            let mut cutter = self.cutter(from.id);
            for regions in from.regions.chunks(most).chain(from.regions.is_empty().then_some(&[][..])) {
                if used == out.targets.len() {
                    out.targets.push(TargetSnapshot::default());
                }
                let Some(to) = out.targets.get_mut(used) else { continue };
                used += 1;
                to.id = from.id;
                to.steady = false;
                to.regions.clear();
                for region in regions {
                    let first = to.regions.len();
                    cutter.parts(region, |part, object| match object {
                        Some((object, offset)) => shares.add(object, offset, &part),
                        None => match to.regions.get_mut(first..).and_then(|r| r.last_mut()) {
                            Some(last) if last.range.end == part.range.start => join(last, &part),
                            _ => to.regions.push(part),
                        },
                    });
                }
                so_far += regions.len();
                if so_far >= most {
                    out.targets.truncate(used);
                    piece(out);
                    (used, so_far) = (0, 0);
                }
            }
        }
        out.targets.truncate(used);
        shares
    }
}
