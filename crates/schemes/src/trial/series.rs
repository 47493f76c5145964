//! Sums over time in a bounded number of steps.

use serde::Serialize;

/// Steps that are kept at most.
const MOST: usize = 256;

/// What happened in a step of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Step {
    /// Start, seconds from the recording's first snapshot.
    pub start_s: f64,
    /// End.
    pub end_s: f64,
    /// Bytes on which an action took effect.
    pub applied_bytes: f64,
    /// Bytes accessed again of those that were as an action left them.
    pub accessed_again_bytes: f64,
    /// Bytes paged out and not accessed since, the mean over the step.
    pub out_bytes: f64,
}

/// Steps of equal numbers of snapshots: when there are too many, two become one.
#[derive(Clone, Debug)]
pub(super) struct Series {
    steps: Vec<Step>,
    each: usize,
    filled: usize,
}

impl Series {
    pub fn new() -> Self {
        Self { steps: Vec::new(), each: 1, filled: 0 }
    }

    pub fn add(&mut self, step: Step) {
        match self.steps.last_mut().filter(|_| self.filled < self.each) {
            Some(last) => {
                join(last, &step);
                self.filled += 1;
            }
            None => {
                if self.steps.len() == MOST {
                    self.steps = self.steps.chunks(2).map(joined).collect();
                    self.each *= 2;
                }
                self.steps.push(step);
                self.filled = 1;
            }
        }
    }

    pub fn finish(self) -> Vec<Step> {
        self.steps
    }
}

fn join(left: &mut Step, right: &Step) {
    let (l, r) = (left.end_s - left.start_s, right.end_s - right.start_s);
    left.out_bytes = (left.out_bytes * l + right.out_bytes * r) / (l + r).max(f64::MIN_POSITIVE);
    left.applied_bytes += right.applied_bytes;
    left.accessed_again_bytes += right.accessed_again_bytes;
    left.end_s = right.end_s;
}

fn joined(steps: &[Step]) -> Step {
    let mut sum = steps.first().copied().unwrap_or_default();
    steps.iter().skip(1).for_each(|step| join(&mut sum, step));
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_time_has_few_steps_and_the_same_sums() {
        let mut series = Series::new();
        for at in 0..10_000u32 {
            let start_s = f64::from(at);
            series.add(Step {
                start_s,
                end_s: start_s + 1.0,
                applied_bytes: 1.0,
                accessed_again_bytes: 2.0,
                out_bytes: 3.0,
            });
        }
        let steps = series.finish();
        assert!(steps.len() <= MOST && steps.len() > MOST / 3, "{}", steps.len());
        assert_eq!(steps.iter().map(|s| s.applied_bytes).sum::<f64>(), 10_000.0);
        assert!(steps.iter().all(|s| (s.out_bytes - 3.0).abs() < 1e-9));
        assert!(steps.windows(2).all(|pair| pair[0].end_s == pair[1].start_s));
    }
}
