//! What each scheme of a dry run has come to.

use super::report::WITHIN_S;
use crate::Entry;
use isotherm_damon::Attrs;
use isotherm_damon::schemes::{Action, Age, Frequency};

/// What a scheme has come to.
#[derive(Clone, Debug, Default)]
pub(super) struct Account {
    pub applied: f64,
    pub again: f64,
    pub again_within_min_age: f64,
    pub within: [f64; WITHIN_S.len()],
    pub min_age_ns: f64,
    /// It pages out.
    pub is_pageout: bool,
    /// What was accessed stays as the action left it: huge pages stay, memory on another node stays there.
    pub is_lasting: bool,
    pub action: Option<Action>,
    /// Bytes that it gets tried in a second of its quota's time.
    pub bytes_per_s: u64,
    /// What was seen to be accessed so long ago, or later, stays, ns.
    pub spared_for_ns: u64,
}

impl Account {
    pub fn of(entry: &Entry) -> Self {
        let scheme = &entry.scheme;
        let min_age_ns = match scheme.pattern.age {
            Age::Time(bounds) => bounds.min.as_nanos() as f64,
            Age::Aggregations(bounds) => f64::from(bounds.min) * Attrs::default().aggr.as_nanos() as f64,
        };
        // The turn of memory comes again a little sooner than that, as live. Who asks for memory in use gets it.
        let takes_idle = match scheme.pattern.frequency {
            Frequency::Share(bounds) => bounds.min == 0,
            Frequency::Samples(bounds) => bounds.min == 0,
        };
        let spared_for_ns = if takes_idle { (min_age_ns * 7.0 / 8.0) as u64 } else { 0 };
        Self {
            spared_for_ns,
            min_age_ns,
            is_pageout: scheme.action == Action::Pageout,
            is_lasting: !matches!(
                scheme.action,
                Action::Pageout | Action::Cold | Action::LruDeprio | Action::MigrateCold
            ),
            action: Some(scheme.action),
            ..Self::default()
        }
    }

    pub fn accessed_again(&mut self, bytes: f64, after_ns: f64) {
        self.again += bytes;
        if after_ns < self.min_age_ns {
            self.again_within_min_age += bytes;
        }
        for (limit, sum) in WITHIN_S.iter().zip(&mut self.within) {
            if after_ns <= *limit as f64 * 1e9 {
                *sum += bytes;
            }
        }
    }
}
