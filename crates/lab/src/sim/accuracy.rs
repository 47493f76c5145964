//! How true it is what DAMON says on the model machine: the judgement of `lab accuracy`, without noise.

use super::machine::Error;
use super::monitor::Sampling;
use super::patterns::{Configuration, Setup, Subject, run};
use crate::accuracy::{Accuracy, Judge, Options};
use crate::experiment::Watch;
use isotherm_workloads::Plan;
use serde::Serialize;
use std::sync::Arc;

/// Least F1 of hot bytes of patterns whose memory stays hot for a phase, and of bytes accessed within a second of those in motion:
/// the bars of the live side.
const HOT: (&[&str], f64) = (&["stairs", "zigzag", "hotspot", "heap", "threads"], 0.98);
const MOTION: (&[&str], f64) = (&["front", "sweep", "zipf"], 0.9);

/// Most regions, and so most checks of the classic sampler in an interval: DAMON's default.
const MOST_CHECKS: u64 = 1000;

/// A pattern, judged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Checked {
    /// Who watched.
    pub sampling: Sampling,
    /// The verdict.
    #[serde(flatten)]
    pub accuracy: Accuracy,
    /// CPU time of the monitor as a share of one CPU.
    pub monitor_share: f64,
    /// Most checks in a sampling interval.
    pub max_checks: u64,
    /// Checks in an interval on average.
    pub mean_checks: f64,
}

impl Checked {
    /// What is judged of it, what it is, and its bar, if it has one.
    #[must_use]
    pub fn judged(&self) -> (&'static str, Option<f64>, Option<f64>) {
        let is = |names: &[&str]| names.contains(&self.accuracy.pattern.as_str());
        if is(MOTION.0) {
            let second = self.accuracy.second.and_then(|second| second.f1);
            return ("accessed within 1 s", second, Some(MOTION.1));
        }
        ("hot", self.accuracy.score.f1, is(HOT.0).then_some(HOT.1))
    }

    /// Whether it reaches its bar with as many checks as it may do; `None` without a bar. The classic sampler has none for memory
    /// in motion: a region of its own for what moves is more than it can draw.
    #[must_use]
    pub fn met(&self) -> Option<bool> {
        let (_, f1, least) = self.judged();
        let least = least.filter(|_| self.sampling == Sampling::Blocks)?;
        Some(f1.is_some_and(|f1| f1 >= least) && self.max_checks <= MOST_CHECKS)
    }
}

/// Patterns, judged.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Accuracies {
    /// Each once a sampler.
    pub checked: Vec<Checked>,
}

impl Accuracies {
    /// Runs and judges all.
    ///
    /// # Errors
    /// [`Error`]; what was judged until then stays.
    pub fn measure(&mut self, setup: &Setup, plans: &[Plan], watch: &mut Watch<'_>) -> Result<(), Error> {
        let stop = Arc::clone(&watch.stop);
        for plan in plans {
            for &sampling in &setup.samplers {
                (watch.progress)(&format!("{}, {} ...", plan.pattern, sampling.name()));
                let (configuration, prcl, seed) = (Configuration::Rec, setup.prcl.as_str(), setup.seed);
                let subject = Subject { plan, configuration, sampling, prcl, seed };
                let (done, truth, snapshots, tally) = run(&subject, &*stop)?;
                let mut judge = Judge::new(&truth, None, Options::default())?;
                snapshots.iter().for_each(|snapshot| judge.add(snapshot));
                let intervals = (done.wall_ns / 5_000_000).max(1);
                self.checked.push(Checked {
                    sampling,
                    accuracy: judge.finish(),
                    monitor_share: done.monitor_share,
                    max_checks: done.max_checks,
                    mean_checks: tally.checks as f64 / intervals as f64,
                });
            }
        }
        Ok(())
    }

    /// Whether all bars are met; `None` without one.
    #[must_use]
    pub fn ok(&self) -> Option<bool> {
        let mut bars = self.checked.iter().filter_map(Checked::met).peekable();
        bars.peek()?;
        Some(bars.all(|met| met))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_damon_says_is_true_and_the_same_twice() {
        let setup = Setup {
            patterns: Vec::new(),
            set: vec!["steps=3".into(), "size=10M".into(), "phase=3s".into(), "rate=100Hz".into()],
            scale_time: None,
            seed: 1,
            prcl: "prcl".to_owned(),
            samplers: Sampling::ALL.to_vec(),
        };
        let plan = setup.plan("stairs").expect("it can be carried out");
        let judged = || {
            let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| {} };
            let mut all = Accuracies::default();
            all.measure(&setup, std::slice::from_ref(&plan), &mut watch).expect("nothing fails");
            all.checked
        };
        let first = judged();
        assert_eq!(first, judged());
        for checked in &first {
            // Of three phases of 3 s each, in which a change is seen after some tenths of a second.
            assert!(
                checked.accuracy.score.f1 > Some(0.9),
                "{:?}: {:?}",
                checked.sampling,
                checked.accuracy.score
            );
            assert!(checked.max_checks <= MOST_CHECKS && checked.mean_checks > 1.0, "{checked:?}");
        }
    }
}
