//! Monitoring attributes: the knobs of a context, and what makes a set of them valid.

use core::time::Duration;

/// Monitoring attributes of a context (kernel design document, "Monitoring").
///
/// The defaults are DAMON's: sampling 5 ms, aggregation 100 ms, regions update 1 s, 10 to 1000 regions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attrs {
    /// Sampling interval: one access check a region in each.
    pub sample: Duration,
    /// Aggregation interval: how long accesses are counted before a snapshot is taken.
    pub aggr: Duration,
    /// Regions update interval: how often the target's mappings are read again.
    pub update: Duration,
    /// Lower bound of the number of regions; at least 3.
    pub min_nr_regions: usize,
    /// Upper bound of the number of regions, and so of the checks in a sampling interval.
    pub max_nr_regions: usize,
}

impl Default for Attrs {
    fn default() -> Self {
        Self {
            sample: Duration::from_millis(5),
            aggr: Duration::from_millis(100),
            update: Duration::from_secs(1),
            min_nr_regions: 10,
            max_nr_regions: 1000,
        }
    }
}

/// Why a set of [`Attrs`] is not valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttrsError {
    /// The sampling interval is zero.
    #[error("the sampling interval is zero; it must be at least 1 us")]
    ZeroSample,
    /// Fewer than three regions: heap, mmap area and stack need one each.
    #[error("min_nr_regions is {0}; it must be at least 3 (heap, mmap area and stack)")]
    MinTooSmall(usize),
    /// `max_nr_regions < min_nr_regions`.
    #[error("max_nr_regions ({max}) is less than min_nr_regions ({min})")]
    MaxBelowMin {
        /// The lower bound asked for.
        min: usize,
        /// The upper bound asked for.
        max: usize,
    },
    /// The aggregation interval is shorter than the sampling interval.
    #[error("the aggregation interval ({aggr:?}) is shorter than the sampling interval ({sample:?})")]
    AggrBelowSample {
        /// The sampling interval asked for.
        sample: Duration,
        /// The aggregation interval asked for.
        aggr: Duration,
    },
}

impl Attrs {
    /// Checks the rules of the kernel's unit tests: `min_nr_regions >= 3`, `max >= min`, aggregation >= sampling.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), AttrsError> {
        if self.sample.as_micros() == 0 {
            return Err(AttrsError::ZeroSample);
        }
        if self.min_nr_regions < 3 {
            return Err(AttrsError::MinTooSmall(self.min_nr_regions));
        }
        if self.max_nr_regions < self.min_nr_regions {
            return Err(AttrsError::MaxBelowMin { min: self.min_nr_regions, max: self.max_nr_regions });
        }
        if self.aggr < self.sample {
            return Err(AttrsError::AggrBelowSample { sample: self.sample, aggr: self.aggr });
        }
        Ok(())
    }

    /// Samples in an aggregation, which is also the highest possible `nr_accesses`. At least 1.
    pub fn max_nr_accesses(&self) -> u32 {
        let sample = self.sample.as_micros().max(1);
        u32::try_from(self.aggr.as_micros() / sample).unwrap_or(u32::MAX).max(1)
    }
}
