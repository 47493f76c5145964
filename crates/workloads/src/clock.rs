//! The clock of all times in the truth.

use rustix::thread::{ClockId, clock_nanosleep_absolute};
use rustix::time::{Timespec, clock_gettime};

fn to_ns(time: Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

/// CLOCK_MONOTONIC in nanoseconds.
pub fn now_ns() -> u64 {
    to_ns(clock_gettime(ClockId::Monotonic))
}

/// CPU time of the whole process in nanoseconds, and of its children that have ended and were waited for.
pub(crate) fn cpu_ns() -> u64 {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the pointer is valid for writing for the call, and an all-zero rusage is a valid value.
    let usage = unsafe {
        libc::getrusage(libc::RUSAGE_CHILDREN, usage.as_mut_ptr());
        usage.assume_init()
    };
    let ns = |t: libc::timeval| {
        let (seconds, micros) = (u64::try_from(t.tv_sec), u64::try_from(t.tv_usec));
        seconds.unwrap_or(0).saturating_mul(1_000_000_000) + micros.unwrap_or(0) * 1000
    };
    to_ns(clock_gettime(ClockId::ProcessCPUTime)) + ns(usage.ru_utime) + ns(usage.ru_stime)
}

/// CPU time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    to_ns(clock_gettime(ClockId::ThreadCPUTime))
}

/// Sleeps until `time_ns` of CLOCK_MONOTONIC; a signal ends the sleep early.
pub(crate) fn sleep_until(time_ns: u64) {
    let seconds = i64::try_from(time_ns / 1_000_000_000).unwrap_or(i64::MAX);
    let request = Timespec { tv_sec: seconds, tv_nsec: (time_ns % 1_000_000_000) as _ };
    // The only failure for a valid time is EINTR, and callers look at the clock again anyway.
    let _ = clock_nanosleep_absolute(ClockId::Monotonic, &request);
}
