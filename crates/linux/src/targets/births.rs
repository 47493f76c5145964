//! Which processes came to be since the last look, without looking at all the others.
//!
//! The kernel gives out pids in turn and tells the last one it gave (the last field of `/proc/loadavg`). While that
//! stands still no process was made, and one small read tells so; once it moved, only the pids it passed need a look.

use crate::proc_file::{Reopened, parse_number, read_text};
use std::collections::VecDeque;

/// The kernel starts again from here when it has given out the highest pid (RESERVED_PIDS).
const FIRST_PID_OF_A_NEW_ROUND: u32 = 300;

/// Most pids waiting for a look. Past that they are forgotten and the children of all targets looked up instead.
const MOST_WAITING: u32 = 4096;

/// The pids given out since the last look.
#[derive(Debug, Default)]
pub(super) struct Births {
    loadavg: Option<Reopened>,
    last: Option<u32>,
    waiting: VecDeque<u32>,
    lost: u64,
}

impl Births {
    pub(super) fn new() -> Self {
        let mut births = Self { loadavg: Reopened::open("/proc/loadavg").ok(), ..Self::default() };
        births.last = births.last_pid();
        births
    }

    /// Notes what was born since. False if that is not known: too many, or the kernel does not tell.
    pub(super) fn look(&mut self) -> bool {
        let now = self.last_pid();
        let before = std::mem::replace(&mut self.last, now);
        let (Some(before), Some(now)) = (before, now) else { return false };
        if before == now {
            return true;
        }
        self.note(before, now, || {
            let text = read_text("/proc/sys/kernel/pid_max").unwrap_or_default();
            parse_number(text.as_bytes()).and_then(|n| u32::try_from(n).ok()).unwrap_or(u32::MAX)
        })
    }

    fn note(&mut self, before: u32, now: u32, pid_max: impl FnOnce() -> u32) -> bool {
        let (first, second) = if before < now {
            (before + 1..now + 1, 0..0)
        } else {
            (before.saturating_add(1)..pid_max(), FIRST_PID_OF_A_NEW_ROUND.min(now)..now + 1)
        };
        // Ranges of u32 below 2^22, so that the sum cannot overflow; pid_max unknown makes it too many.
        let born = first.len().saturating_add(second.len());
        if born.saturating_add(self.waiting.len()) > MOST_WAITING as usize {
            self.lost += born as u64 + self.waiting.len() as u64;
            self.waiting.clear();
            return false;
        }
        self.waiting.extend(first.chain(second));
        true
    }

    /// The next pid to look at, parents before their children.
    pub(super) fn next(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }

    /// Those that wait.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = u32> {
        self.waiting.iter().copied()
    }

    /// Forgets those that need no look.
    pub(super) fn forget(&mut self, needs_none: impl Fn(u32) -> bool) {
        self.waiting.retain(|pid| !needs_none(*pid));
    }

    /// Whether any wait.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Pids that were forgotten because too many waited.
    pub(super) const fn lost(&self) -> u64 {
        self.lost
    }

    /// Adds pids to look at, found in another way.
    pub(super) fn expect(&mut self, pids: impl IntoIterator<Item = u32>) {
        self.waiting.extend(pids);
    }

    fn last_pid(&self) -> Option<u32> {
        let mut buf = [0; 128];
        let text = self.loadavg.as_ref()?.read(&mut buf).ok()?;
        let last = text.trim_ascii_end().rsplit(|&b| b == b' ').next().and_then(parse_number)?;
        // Sandboxes that emulate /proc show 0, as does a namespace without any process.
        u32::try_from(last).ok().filter(|&pid| pid != 0 && pid < u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn noted(before: u32, now: u32, pid_max: u32) -> Option<Vec<u32>> {
        let mut births = Births::default();
        births.note(before, now, || pid_max).then(|| births.waiting.into())
    }

    #[test]
    fn the_pids_passed_are_looked_at_in_their_order() {
        assert_eq!(noted(1000, 1003, 32768), Some(vec![1001, 1002, 1003]));
    }

    #[test]
    fn the_highest_pid_is_followed_by_the_first_free_one() {
        assert_eq!(noted(32765, 301, 32768), Some(vec![32766, 32767, 300, 301]));
        assert_eq!(noted(32767, 5, 32768), Some(vec![5]));
    }

    #[test]
    fn too_many_are_not_queued() {
        assert_eq!(noted(1, 100_000, 4_194_304), None);
        assert_eq!(noted(100, 50, u32::MAX), None);
        assert_eq!(noted(u32::MAX - 1, 50, 10), Some((50..51).collect()));
        let mut births = Births::default();
        assert!(births.note(1000, 1000 + MOST_WAITING, || 0));
        assert!(!births.note(1000 + MOST_WAITING, 1001 + MOST_WAITING, || 0));
        assert_eq!(births.next(), None);
        assert_eq!(births.lost(), u64::from(MOST_WAITING) + 1);
    }

    #[test]
    fn a_process_made_since_is_among_them() {
        let mut births = Births::new();
        let mut child = std::process::Command::new("true").spawn().unwrap();
        assert!(births.look());
        assert!(std::iter::from_fn(|| births.next()).any(|pid| pid == child.id()));
        child.wait().unwrap();
    }
}
