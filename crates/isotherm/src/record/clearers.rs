//! Who else clears Accessed bits, as of lately, and which other isotherms did since the file began.

use isotherm_linux::probe::{AccessedBitClearers, Among};
use isotherm_linux::thread_cpu;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What was found, and when.
pub struct Clearers {
    began: Instant,
    /// When it was looked the last time, and what was found.
    latest: Option<(Instant, AccessedBitClearers)>,
    /// What the latest look took; before it, what one is going to take, about.
    takes: Duration,
    /// Whether others say at whom to look, and when.
    is_told: bool,
    /// Other isotherms found while the present file was written.
    met: AccessedBitClearers,
}

/// The processes that are recorded.
pub struct Recorded {
    pub pids: BTreeSet<u32>,
    /// Those of them that are no isotherms themselves, as their names say.
    pub others: BTreeSet<u32>,
}

/// How often that is looked for at most: another isotherm that is there for less may be missed. A guess.
const LOOK_PERIOD: Duration = Duration::from_secs(2);

/// So many times as long as a look took it stands, so that looking takes a thousandth of a CPU at most: on a machine with a
/// thousand processes a look is some milliseconds.
const LOOK_SHARE: u32 = 1000;

/// What a look takes for each task of the machine, about.
const LOOK_A_TASK: Duration = Duration::from_micros(15);

/// What a look takes, by what `/proc/loadavg` says.
fn look_takes(loadavg: &str) -> Duration {
    let tasks = loadavg.split_whitespace().nth(3).and_then(|running| running.split_once('/'));
    let tasks = tasks.and_then(|(_, all)| all.parse::<u32>().ok()).unwrap_or(0);
    LOOK_A_TASK.saturating_mul(tasks)
}

impl Clearers {
    /// Nothing found yet; `loadavg` is the text of `/proc/loadavg`.
    pub fn new(loadavg: &str) -> Self {
        Self {
            began: Instant::now(),
            takes: look_takes(loadavg),
            latest: None,
            is_told: false,
            met: AccessedBitClearers::default(),
        }
    }

    /// Whether it is late enough for the first look: the start is when there is most else to do. Nobody need look who is told
    /// where.
    pub fn may_look(&self) -> bool {
        !self.is_told && self.began.elapsed() >= self.stands()
    }

    /// What a look takes, about.
    pub const fn look_takes(&self) -> Duration {
        self.takes
    }

    fn stands(&self) -> Duration {
        LOOK_PERIOD.max(self.takes.saturating_mul(LOOK_SHARE))
    }

    /// Looks who clears the bits of those recorded now, unless the latest look still stands: then they are not asked for.
    pub fn look(&mut self, recorded: impl FnOnce() -> Recorded) {
        if !self.is_told && self.latest.as_ref().is_none_or(|(at, _)| at.elapsed() >= self.stands()) {
            self.look_now(&recorded());
        }
    }

    /// The same, whether or not the latest look stands.
    pub fn look_now(&mut self, recorded: &Recorded) {
        // Of CPU time: where it has to wait for locks, nothing else is kept from its work.
        let start = thread_cpu();
        let found = AccessedBitClearers::look(Among::All { but: &recorded.others });
        self.takes = thread_cpu().saturating_sub(start);
        self.take(found, &recorded.pids);
    }

    /// The same, at those alone that it may be by their names; of the processes of these pids.
    pub fn look_among(&mut self, suspects: &[u32], pids: &BTreeSet<u32>) {
        let start = thread_cpu();
        let found = AccessedBitClearers::look(Among::Those(suspects));
        (self.takes, self.is_told) = (thread_cpu().saturating_sub(start), true);
        self.take(found, pids);
    }

    fn take(&mut self, found: AccessedBitClearers, pids: &BTreeSet<u32>) {
        self.met.add_isotherms_of(&found.clone().of(pids));
        self.latest = Some((Instant::now(), found));
    }

    /// Those of the latest look that clear the bits of the processes of these pids.
    fn now(&self, pids: &BTreeSet<u32>) -> AccessedBitClearers {
        self.latest.as_ref().map(|(_, found)| found.clone().of(pids)).unwrap_or_default()
    }

    /// The same, and the isotherms that were met since the file began.
    pub fn so_far(&self, pids: &BTreeSet<u32>) -> AccessedBitClearers {
        let mut all = self.now(pids);
        all.add_isotherms_of(&self.met);
        all
    }

    /// Another file begins: of what was met only that is true of it which the latest look found.
    pub fn begin_file(&mut self, pids: &BTreeSet<u32>) {
        let now = self.now(pids);
        self.met = AccessedBitClearers::default();
        self.met.add_isotherms_of(&now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_linux::probe::AccessedBitClearer;

    #[test]
    fn a_file_says_nothing_of_isotherms_that_ended_before_it_began() {
        let ours = BTreeSet::from([7]);
        let found = |pids: &[u32]| AccessedBitClearers {
            found: pids
                .iter()
                .map(|&pid| AccessedBitClearer::Isotherm { pid, targets: ours.clone() })
                .collect(),
            ..AccessedBitClearers::default()
        };
        let told = |clearers: &Clearers| -> Vec<u32> {
            clearers.so_far(&ours).isotherms().map(|(pid, _)| pid).collect()
        };
        let mut clearers = Clearers::new("");
        clearers.take(found(&[100]), &ours);
        clearers.take(found(&[200]), &ours);
        assert_eq!(told(&clearers), [200, 100], "what one that has ended cleared is lost all the same");
        clearers.begin_file(&ours);
        assert_eq!(told(&clearers), [200]);
        clearers.take(found(&[]), &ours);
        assert_eq!(told(&clearers), [200]);
        clearers.begin_file(&ours);
        assert!(told(&clearers).is_empty());
    }

    #[test]
    fn the_more_tasks_there_are_the_later_comes_the_first_look() {
        let first_look = |loadavg| Clearers::new(loadavg).stands();
        assert_eq!(first_look("0.20 0.18 0.12 1/80 11206\n"), LOOK_PERIOD);
        assert_eq!(first_look("0.20 0.18 0.12 1/2000 11206\n"), Duration::from_secs(30));
        assert_eq!(first_look(""), LOOK_PERIOD);
    }

    #[test]
    fn pids_are_listed_only_when_it_is_looked() {
        let mut clearers = Clearers::new("");
        let mut asked = 0;
        for _ in 0..3 {
            clearers.look(|| {
                asked += 1;
                Recorded { pids: BTreeSet::new(), others: BTreeSet::new() }
            });
        }
        assert_eq!(asked, 1);
    }
}
