//! Watermarks: a scheme works only while a figure of the system lies between two values.

use core::time::Duration;

/// What watermarks go by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum WatermarkMetric {
    /// Free memory of the machine, in permil of all of it.
    FreeMemRate,
}

/// When a scheme is active (kernel design document, "Watermarks"): not while the metric is above `high` or below `low`, and
/// after that not before it is below `mid`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watermarks {
    /// What is compared.
    pub metric: WatermarkMetric,
    /// How often to look while inactive.
    pub interval: Duration,
    /// Above this there is nothing to do.
    pub high: u32,
    /// Below this there is something to do again.
    pub mid: u32,
    /// Below this the scheme would do harm.
    pub low: u32,
}

impl Watermarks {
    pub(super) const fn is_ordered(self) -> bool {
        self.high >= self.mid && self.mid >= self.low
    }

    /// Whether a scheme that was active or not is so now. A metric that cannot be read says that nothing is known, and then
    /// nothing is done.
    pub fn is_active(self, was_active: bool, metric: Option<u64>) -> bool {
        let Some(metric) = metric else { return false };
        let (high, mid, low) = (u64::from(self.high), u64::from(self.mid), u64::from(self.low));
        if metric > high || metric < low {
            return false;
        }
        was_active || metric < mid
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn active_between_low_and_mid_and_until_high() {
        let marks = Watermarks {
            metric: WatermarkMetric::FreeMemRate,
            interval: Duration::from_secs(5),
            high: 500,
            mid: 400,
            low: 200,
        };
        // DAMON_RECLAIM's values, and what follows one after another.
        let mut active = true;
        let course = [
            (Some(450), true),
            (Some(500), true),
            (Some(501), false),
            (Some(450), false),
            (Some(400), false),
            (Some(399), true),
            (Some(200), true),
            (Some(199), false),
            (Some(200), true),
            (None, false),
            (Some(450), false),
            (Some(300), true),
        ];
        for (metric, want) in course {
            active = marks.is_active(active, metric);
            assert_eq!(active, want, "at {metric:?}");
        }
    }
}
