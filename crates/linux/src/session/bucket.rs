//! What work beside sampling may take of the overhead budget: a token bucket of CPU time.

use std::time::Duration;

/// Longest step, a fifth of the usual sampling interval. Shorter ones are dearer: with 0.5 ms, a process took 27 us to open,
/// with 2 ms 19, and 9 in one go, as a processor's caches are cold after each sleep.
pub(super) const STEP: Duration = Duration::from_millis(1);

/// Seconds of the whole overhead budget that may be spent at once at the start, when nothing is known and sampling has
/// nothing to do.
const START: f64 = 0.4;

/// Seconds of the share that may be saved up.
const HOLDS: f64 = 1.0;

/// Seconds of the share that the deficit is at most.
const MOST_DEFICIT: f64 = 1.0;

/// A token bucket of CPU time.
#[derive(Debug)]
pub(super) struct Bucket {
    /// CPU seconds a second; `None`: no ceiling.
    share: Option<f64>,
    tokens_ns: f64,
    last_ns: u64,
}

impl Bucket {
    /// A part of an overhead of `overhead` CPU seconds a second; 0 or less: no ceiling.
    pub(super) fn new(overhead: f64, part: f64, now_ns: u64) -> Self {
        let share = (overhead > 0.0).then_some(overhead * part);
        Self { share, tokens_ns: overhead.max(0.0) * START * 1e9, last_ns: now_ns }
    }

    /// Changes what it earns from now on. A deficit takes as long to be made good as one of the new share may take at most.
    pub(super) fn set_part(&mut self, overhead: f64, part: f64) {
        self.share = (overhead > 0.0).then_some(overhead * part);
        if let Some(share) = self.share {
            self.tokens_ns = self.tokens_ns.max(-share * MOST_DEFICIT * 1e9);
        }
    }

    /// What a step may take now, at most [`STEP`]; none when too little is left.
    pub(super) fn allowance(&mut self, now_ns: u64) -> Option<Duration> {
        let Some(share) = self.share else { return Some(STEP) };
        let earned = now_ns.saturating_sub(self.last_ns) as f64 * share;
        self.last_ns = now_ns;
        // Never takes away what the start brought with it.
        let most = self.tokens_ns.max(share * HOLDS * 1e9);
        self.tokens_ns = (self.tokens_ns + earned).min(most);
        // Half a step at least, so that waking up for it is worth it.
        let step = STEP.as_nanos() as f64;
        (self.tokens_ns >= step / 2.0).then(|| Duration::from_nanos(self.tokens_ns.min(step) as u64))
    }

    /// How long `cpu` must be made to last so that it is no more than the part `part` of the share.
    pub(super) fn lasts_ns(&self, cpu: Duration, part: f64) -> u64 {
        self.share.map_or(0, |share| (cpu.as_nanos() as f64 / (share * part)) as u64)
    }

    pub(super) fn spend(&mut self, cpu: Duration) {
        if let Some(share) = self.share {
            // One step may cost far more than it was given (the machine stood still, a lock was held). Sampling makes that
            // good, as all that this thread spends counts against the whole budget; what waits here must not starve.
            self.tokens_ns = (self.tokens_ns - cpu.as_nanos() as f64).max(-share * MOST_DEFICIT * 1e9);
        }
    }

    /// When the next step can be paid for.
    pub(super) fn due_ns(&self, now_ns: u64) -> u64 {
        let Some(share) = self.share else { return now_ns };
        let missing = STEP.as_nanos() as f64 / 2.0 - self.tokens_ns;
        now_ns.saturating_add((missing.max(0.0) / share) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn a_bucket_pays_its_share_over_time_and_more_at_the_start() {
        let mut bucket = Bucket::new(0.01, 0.5, 0);
        let spend = |bucket: &mut Bucket, until: u64| {
            let (mut now, mut spent) = (bucket.last_ns, Duration::ZERO);
            while now < until {
                match bucket.allowance(now) {
                    Some(cpu) => {
                        assert!(cpu <= STEP && cpu >= STEP / 2);
                        bucket.spend(cpu);
                        spent += cpu;
                        now += 1_000_000;
                    }
                    None => {
                        let due = bucket.due_ns(now);
                        assert!(due > now);
                        now = due;
                    }
                }
            }
            spent.as_secs_f64()
        };
        let first = spend(&mut bucket, SECOND);
        assert!((0.008..0.010).contains(&first), "4 ms at once and 5 ms earned: {first}");
        let ten = spend(&mut bucket, 11 * SECOND);
        assert!((0.048..0.052).contains(&ten), "{ten}");
    }

    #[test]
    fn what_is_saved_up_is_bounded() {
        let mut bucket = Bucket::new(0.01, 0.5, 0);
        bucket.spend(Duration::from_millis(10));
        assert!(bucket.allowance(0).is_none());
        assert!(bucket.allowance(1000 * SECOND).is_some());
        let mut steps = 0;
        while bucket.allowance(1000 * SECOND).is_some() {
            bucket.spend(STEP);
            steps += 1;
        }
        assert_eq!(steps, 5, "5 ms");
    }

    #[test]
    fn one_dear_step_holds_up_what_waits_for_no_longer_than_a_second() {
        let mut bucket = Bucket::new(0.01, 0.5, 0);
        bucket.spend(Duration::from_secs(4));
        let due = bucket.due_ns(0);
        assert!(due <= 2 * SECOND, "{due}");
        assert!(bucket.allowance(due).is_some());
    }

    #[test]
    fn without_a_ceiling_there_is_always_a_step() {
        let mut bucket = Bucket::new(0.0, 0.5, 0);
        bucket.spend(Duration::from_secs(100));
        assert_eq!((bucket.allowance(1), bucket.due_ns(7)), (Some(STEP), 7));
    }
}
