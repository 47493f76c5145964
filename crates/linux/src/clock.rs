//! Clocks: what time it is, and what the monitor's work costs, which is the CPU time of the thread that does it.

use rustix::time::{ClockId, Timespec, clock_gettime};
use std::time::Duration;

/// CLOCK_MONOTONIC in nanoseconds.
pub fn monotonic_ns() -> u64 {
    to_ns(clock_gettime(ClockId::Monotonic))
}

/// Nanoseconds since boot, those in which the machine was suspended too: the clock of processes' start times.
pub fn boottime_ns() -> u64 {
    to_ns(clock_gettime(ClockId::Boottime))
}

pub(crate) fn to_ns(time: Timespec) -> u64 {
    let (s, ns) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    s * 1_000_000_000 + ns
}

/// CPU time the calling thread has used so far, in user space and in the kernel.
pub fn of_this_thread() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    // The kernel gives neither negative seconds nor nanoseconds out of range; a clock that did would say zero.
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), u32::try_from(time.tv_nsec).unwrap_or(0))
}

/// CPU time of the calling thread that a piece of work may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// By the thread's clock; `None`: without end.
    until: Option<Duration>,
}

impl Budget {
    /// `cpu` from now on; [`Duration::MAX`] is no limit.
    pub(crate) fn of(cpu: Duration) -> Self {
        Self { until: if cpu == Duration::MAX { None } else { of_this_thread().checked_add(cpu) } }
    }

    pub(crate) fn is_spent(self) -> bool {
        self.until.is_some_and(|until| of_this_thread() >= until)
    }
}
