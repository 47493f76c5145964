//! What an aggregation hands out: the regions of every target, by value.

use crate::AddrRange;
use alloc::vec::Vec;

/// Names a target within a context. For a live process it is its pid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TargetId(pub u64);

/// One region as it stood at the end of an aggregation.
///
/// **Unknown is not cold.** A region none of whose pages could be observed, or observed for long enough, has
/// [`seen_bp`](Self::seen_bp) 0: its `nr_accesses` is 0 then, and says nothing ([`Self::is_unknown`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSnapshot {
    /// Addresses of the region.
    pub range: AddrRange,
    /// Sampling intervals of the aggregation in which the region was seen accessed,
    /// 0..=[`Snapshot::max_nr_accesses`].
    pub nr_accesses: u32,
    /// The same in 1/10000 of an access (the kernel's `nr_accesses_bp`). Backends that estimate rates finer
    /// than one access an aggregation put them here; others put `nr_accesses * 10_000`. It saturates, at 429,496 accesses
    /// (1 us sampled over 1 s has a million): rates are read by [`Self::accesses_bp`].
    pub nr_accesses_bp: u32,
    /// Aggregation intervals for which the region kept about its `nr_accesses`.
    pub age: u32,
    /// Share of the region that could be observed, of what was tried, in basis points; the rate is that of this share.
    /// 0: the rate is unknown.
    pub seen_bp: u16,
    /// How much evidence stands behind the rate: sampling intervals through which a page of the region was observed.
    /// [`Self::COUNTED`] where a backend counts and keeps no such account.
    pub exposure: u32,
    /// Bytes of the region present in memory; `None` where that is not known.
    pub resident: Option<u64>,
    /// Share of what is present that is known to be idle, in basis points, below 10000: the accesses of the region are those of
    /// the rest, and its rate is the mean of both. So a region of hot pages that lie apart, each where its own would be too many.
    /// 0: as far as is known its pages are accessed alike.
    pub idle_bp: u16,
}

/// An empty region whose rate of 0 counts as known: what literals start from that come from formats without the notion
/// of evidence.
impl Default for RegionSnapshot {
    fn default() -> Self {
        Self {
            range: AddrRange::default(),
            nr_accesses: 0,
            nr_accesses_bp: 0,
            age: 0,
            seen_bp: 10_000,
            exposure: Self::COUNTED,
            resident: None,
            idle_bp: 0,
        }
    }
}

/// Appends regions to others, in pieces: glibc has the processor copy what is longer than 2 kB (`rep movsb`), and on some that takes
/// ten times as long where the two do not lie alike: it was a quarter of all time that reports took.
pub fn append_regions(from: &[RegionSnapshot], to: &mut Vec<RegionSnapshot>) {
    const PIECE: usize = 1536 / size_of::<RegionSnapshot>();
    to.reserve(from.len());
    from.chunks(PIECE).for_each(|piece| to.extend_from_slice(piece));
}

/// The regions of one target: sorted by address, disjoint.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TargetSnapshot {
    /// The target.
    pub id: TargetId,
    /// Its regions.
    pub regions: Vec<RegionSnapshot>,
    /// Nothing but ages, which all rose by one, differs from the target's regions in the snapshot before. Of a thousand
    /// targets few change in an aggregation, and who hands snapshots on can leave the others' regions out
    /// ([`Snapshot::changes`]).
    pub steady: bool,
}

impl TargetSnapshot {
    /// The regions of a target, of which nothing is said about the snapshot before.
    pub const fn new(id: TargetId, regions: Vec<RegionSnapshot>) -> Self {
        Self { id, regions, steady: false }
    }
}

impl Clone for TargetSnapshot {
    fn clone(&self) -> Self {
        let mut clone = Self::default();
        clone.clone_from(self);
        clone
    }

    /// Into the memory that is there already.
    fn clone_from(&mut self, source: &Self) {
        let Self { id, regions, steady } = source;
        (self.id, self.steady) = (*id, *steady);
        self.regions.clear();
        append_regions(regions, &mut self.regions);
    }
}

/// The state of a context at the end of an aggregation.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// When the aggregation began: nanoseconds of the caller's clock (CLOCK_MONOTONIC for live targets).
    pub start_ns: u64,
    /// When it ended.
    pub end_ns: u64,
    /// Sampling interval in force, nanoseconds.
    pub sample_ns: u64,
    /// Highest possible `nr_accesses` of this snapshot (aggregation / sampling).
    pub max_nr_accesses: u32,
    /// One entry a target.
    pub targets: Vec<TargetSnapshot>,
}

impl Clone for Snapshot {
    fn clone(&self) -> Self {
        Self { targets: self.targets.clone(), ..*self }
    }

    /// Into the memory that is there already.
    fn clone_from(&mut self, source: &Self) {
        let mut targets = core::mem::take(&mut self.targets);
        targets.clone_from(&source.targets);
        *self = Self { targets, ..*source };
    }
}

/// Accesses in 1/10000 of one, of their whole number and of the fine one, which saturates.
pub(crate) const fn accesses_bp(whole: u32, fine: u32) -> u64 {
    match fine {
        u32::MAX => {
            let whole = whole as u64 * 10_000;
            // What saturated was no less.
            if whole > u32::MAX as u64 { whole } else { u32::MAX as u64 }
        }
        fine => fine as u64,
    }
}

impl RegionSnapshot {
    /// An exposure that is not accounted for: the backend counts accesses, as the kernel's DAMON does.
    pub const COUNTED: u32 = u32::MAX;

    /// Whether nothing is known of the region's rate. Such a region is neither hot nor cold: it belongs into no working
    /// set and no selection by rate, and no scheme acts on it unless asked to.
    pub const fn is_unknown(&self) -> bool {
        self.seen_bp == 0
    }

    /// Accesses in 1/10000 of one, of which no sampling and aggregation interval has too many: [`Self::nr_accesses_bp`]
    /// where that holds them, else the whole accesses.
    pub const fn accesses_bp(&self) -> u64 {
        accesses_bp(self.nr_accesses, self.nr_accesses_bp)
    }

    /// Probability that a page of the region is accessed in a sampling interval, 0..=1.
    pub fn probability(&self, max_nr_accesses: u32) -> f64 {
        if max_nr_accesses == 0 {
            return 0.0;
        }
        self.accesses_bp() as f64 / 10_000.0 / f64::from(max_nr_accesses)
    }

    /// Access rate in Hz given the highest possible count and the sampling interval: the share of sampling
    /// intervals with an access, times sampling intervals a second.
    pub fn rate_hz(&self, sample_ns: u64, max_nr_accesses: u32) -> f64 {
        if sample_ns == 0 {
            return 0.0;
        }
        self.probability(max_nr_accesses) * 1e9 / sample_ns as f64
    }
}

impl Snapshot {
    /// A copy in which steady targets have no regions: what a queue carries. Who gets it must have the one before.
    pub fn changes(&self) -> Self {
        let targets = self.targets.iter();
        let targets = targets.map(|t| TargetSnapshot {
            id: t.id,
            regions: if t.steady { Vec::new() } else { t.regions.clone() },
            steady: t.steady,
        });
        Self { targets: targets.collect(), ..*self }
    }

    /// Number of regions over all targets.
    pub fn nr_regions(&self) -> usize {
        self.targets.iter().map(|t| t.regions.len()).sum()
    }
}
