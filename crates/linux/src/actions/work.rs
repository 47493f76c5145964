//! How long an action takes: by the clock, less the time in which the thread could have gone on and others had the CPU. A quota of time
//! limits what acting costs; how busy a machine is otherwise nobody knows before, and it would be charged for nothing.

use crate::clock::monotonic_ns;
use rustix::thread::{Pid, gettid};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// The clock of a thread's work, and that of the wall.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct At {
    /// ns of CLOCK_MONOTONIC.
    pub wall: u64,
    /// The same, less all that the thread ever waited for a CPU.
    pub work: u64,
}

/// Reads them; on whichever thread, though it is meant for one.
#[derive(Debug, Default)]
pub(super) struct WorkClock {
    /// `schedstat` of a thread; none where the kernel has no such file (CONFIG_SCHED_INFO): all time is work then.
    file: Option<(Pid, Option<File>)>,
}

/// So often it is tried to read both clocks without being preempted in between.
const ATTEMPTS: u32 = 3;

impl WorkClock {
    pub fn now(&mut self) -> At {
        let mut waited = self.waited_ns();
        let mut wall = monotonic_ns();
        for _ in 1..ATTEMPTS {
            let again = self.waited_ns();
            if again == waited {
                break;
            }
            (waited, wall) = (again, monotonic_ns());
        }
        At { wall, work: wall.saturating_sub(waited) }
    }

    /// What this thread waited for a CPU since it began.
    fn waited_ns(&mut self) -> u64 {
        let own = gettid();
        if self.file.as_ref().is_none_or(|(thread, _)| *thread != own) {
            self.file = Some((own, File::open("/proc/thread-self/schedstat").ok()));
        }
        let file = self.file.as_ref().and_then(|(_, file)| file.as_ref());
        let mut text = [0; 96];
        let len = file.and_then(|file| file.read_at(&mut text, 0).ok()).unwrap_or(0);
        waited_of(text.get(..len).unwrap_or_default()).unwrap_or(0)
    }
}

/// The second of `schedstat`'s figures (kernel: scheduler/sched-stats): ns spent runnable and not running.
fn waited_of(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sleeping_is_work_as_waiting_for_a_device_is() {
        assert_eq!(
            (waited_of(b"502185 84596 1\n"), waited_of(b"x"), waited_of(b"")),
            (Some(84_596), None, None)
        );
        let mut clock = WorkClock::default();
        let before = clock.now();
        std::thread::sleep(std::time::Duration::from_millis(2));
        let after = clock.now();
        assert!(after.wall - before.wall >= 2_000_000);
        // On a busy machine it waited for a CPU as well.
        assert!(after.work > before.work && after.work - before.work <= after.wall - before.wall);
    }
}
