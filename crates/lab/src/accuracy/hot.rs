//! Hot or cold: of the truth, and of a recorded region.

use super::{Options, Threshold};
use isotherm_damon::{RegionSnapshot, Snapshot};
use isotherm_workloads::truth::Segment;

/// What memory was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Class {
    Hot,
    Cold,
    /// Too near the threshold, or in motion.
    Ambiguous,
}

/// What the record calls it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    Hot,
    Cold,
    /// Neither: it could not be observed.
    Unknown,
}

/// What is hot in a snapshot.
pub(super) struct Heat {
    threshold: Threshold,
    hz: f64,
    margin: f64,
    sample_ns: u64,
    max_nr_accesses: u32,
}

impl Heat {
    pub(super) fn new(options: &Options, snapshot: &Snapshot) -> Self {
        let (sample_ns, max_nr_accesses) = (snapshot.sample_ns, snapshot.max_nr_accesses);
        let hz = match options.threshold {
            Threshold::Hz(hz) => hz,
            Threshold::Samples(n) => {
                f64::from(n) * 1e9 / (sample_ns as f64 * f64::from(max_nr_accesses)).max(1.0)
            }
        };
        Self { threshold: options.threshold, hz, margin: options.margin, sample_ns, max_nr_accesses }
    }

    pub(super) fn of_truth(&self, segment: &Segment) -> Class {
        if segment.moving {
            Class::Ambiguous
        } else if segment.hz >= self.hz * self.margin {
            Class::Hot
        } else if segment.hz <= 0.0 || segment.hz <= self.hz / self.margin {
            Class::Cold
        } else {
            Class::Ambiguous
        }
    }

    pub(super) fn of_region(&self, region: &RegionSnapshot) -> Recorded {
        let hot = match self.threshold {
            _ if region.is_unknown() => return Recorded::Unknown,
            Threshold::Samples(n) => region.nr_accesses >= n,
            // A count of whole samples that stands for just this rate must not miss it by a rounding error.
            Threshold::Hz(hz) => region.rate_hz(self.sample_ns, self.max_nr_accesses) >= hz * (1.0 - 1e-9),
        };
        if hot { Recorded::Hot } else { Recorded::Cold }
    }
}
