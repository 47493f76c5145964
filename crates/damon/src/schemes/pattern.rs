//! Which regions a scheme is interested in.

use super::error::{Field, Reason, SchemeError};
use crate::{Moment, Region};
use core::time::Duration;

/// A range of values, both ends included, as all bounds of DAMON's access patterns are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds<T> {
    /// The least value that lies within.
    pub min: T,
    /// The greatest value that lies within.
    pub max: T,
}

impl<T: Ord + Copy> Bounds<T> {
    /// `min..=max`.
    pub const fn new(min: T, max: T) -> Self {
        Self { min, max }
    }

    /// Whether `value` lies within.
    pub fn contains(&self, value: T) -> bool {
        self.min <= value && value <= self.max
    }
}

/// How often a region is accessed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frequency {
    /// Bounds of `nr_accesses`: sampling intervals of an aggregation with an access. They mean another rate when the
    /// intervals change.
    Samples(Bounds<u32>),
    /// Bounds of the share of sampling intervals with an access, in basis points (0..=10000), whatever the intervals. The
    /// seeds' percentages.
    Share(Bounds<u32>),
}

/// For how long a region has been accessed about as often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Age {
    /// In aggregation intervals.
    Aggregations(Bounds<u32>),
    /// In time, whatever the aggregation interval.
    Time(Bounds<Duration>),
}

/// The regions of a scheme's interest: all three properties must lie within their bounds (kernel design document, "Target
/// Access Pattern").
///
/// ```
/// use isotherm_damon::schemes::AccessPattern;
/// use core::time::Duration;
/// // The seeds' prcl: 4K null, null 5, 500ms null.
/// let prcl = AccessPattern::ANY.size(4096, u64::MAX).share(0, 500).age(Duration::from_millis(500), Duration::MAX);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AccessPattern {
    /// Size of the region, in bytes.
    pub size: Bounds<u64>,
    /// How often it is accessed.
    pub frequency: Frequency,
    /// For how long that has been so.
    pub age: Age,
}

impl AccessPattern {
    /// Every region.
    pub const ANY: Self = Self {
        size: Bounds::new(0, u64::MAX),
        frequency: Frequency::Share(Bounds::new(0, 10_000)),
        age: Age::Time(Bounds::new(Duration::ZERO, Duration::MAX)),
    };

    /// With these bounds of the size, in bytes.
    #[must_use]
    pub const fn size(self, min: u64, max: u64) -> Self {
        Self { size: Bounds::new(min, max), ..self }
    }

    /// With these bounds of `nr_accesses`.
    #[must_use]
    pub const fn nr_accesses(self, min: u32, max: u32) -> Self {
        Self { frequency: Frequency::Samples(Bounds::new(min, max)), ..self }
    }

    /// With these bounds of the share of sampling intervals with an access, in basis points.
    #[must_use]
    pub const fn share(self, min_bp: u32, max_bp: u32) -> Self {
        Self { frequency: Frequency::Share(Bounds::new(min_bp, max_bp)), ..self }
    }

    /// With these bounds of the age.
    #[must_use]
    pub const fn age(self, min: Duration, max: Duration) -> Self {
        Self { age: Age::Time(Bounds::new(min, max)), ..self }
    }

    /// With these bounds of the age, in aggregation intervals.
    #[must_use]
    pub const fn aggregations(self, min: u32, max: u32) -> Self {
        Self { age: Age::Aggregations(Bounds::new(min, max)), ..self }
    }

    /// Whether the region matches as it stands. One whose rate is unknown counts as not accessed here; whether such a one may
    /// be acted on is not a question of its pattern.
    pub(super) fn matches(&self, moment: &Moment<'_>, region: &Region) -> bool {
        self.size.contains(region.range.size())
            && match self.frequency {
                Frequency::Samples(bounds) => bounds.contains(moment.nr_accesses(region)),
                Frequency::Share(bounds) => {
                    // In 1/10000 of an access on both sides, so that nothing is rounded.
                    let of = |bp: u32| u64::from(bp) * u64::from(moment.attrs.max_nr_accesses());
                    let accesses = moment.nr_accesses_bp(region);
                    of(bounds.min) <= accesses && accesses <= of(bounds.max)
                }
            }
            && match self.age {
                Age::Aggregations(bounds) => bounds.contains(region.age),
                Age::Time(bounds) => {
                    let age = moment.attrs.aggr.as_nanos() * u128::from(region.age);
                    bounds.min.as_nanos() <= age && age <= bounds.max.as_nanos()
                }
            }
    }

    /// What is wrong with it.
    pub(super) fn problems(&self) -> impl Iterator<Item = SchemeError> {
        let reversed =
            |field, min: u64, max: u64| (min > max).then_some((field, Reason::Reversed { min, max }));
        let us = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let above = match self.frequency {
            Frequency::Share(b) if b.max > 10_000 && b.min <= b.max => {
                Some((Field::Frequency, Reason::Above { value: u64::from(b.max), limit: 10_000 }))
            }
            _ => None,
        };
        let frequency = match self.frequency {
            Frequency::Samples(b) => reversed(Field::Frequency, u64::from(b.min), u64::from(b.max)),
            Frequency::Share(b) => reversed(Field::Frequency, u64::from(b.min), u64::from(b.max)),
        };
        let age = match self.age {
            Age::Aggregations(b) => reversed(Field::Age, u64::from(b.min), u64::from(b.max)),
            Age::Time(b) => reversed(Field::Age, us(b.min), us(b.max)),
        };
        let all = [reversed(Field::Size, self.size.min, self.size.max), frequency, above, age];
        all.into_iter().flatten().map(|(field, reason)| SchemeError { field, reason })
    }
}
