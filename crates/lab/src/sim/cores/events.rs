//! A discrete-event model of cores that share cache lines and locks.
//!
//! Each core runs its program, a loop of [`Step`]s, in virtual time. What cores share costs what it costs, and serves one
//! at a time:
//!
//! - a **cache line** that another core wrote last comes over first; then it is written to. Who comes meanwhile waits.
//! - a **lock for many readers or one writer**, as `mmap_lock` is: its word is a cache line, written to at each lock and unlock.
//!   It is the standard library's, which is what is measured: who has to wait spins for a while and then sleeps. A writer
//!   takes the lock whenever it is free; a reader not while others sleep for it. An unlock wakes a writer that sleeps, or else all
//!   readers, which takes a while; who comes meanwhile may be faster.
//! - a **mutex** is such a lock that is only taken for writing.
//!
//! Nothing is random but the length of work, within a tenth: or all cores would march in step. The same seed is the same run.

use isotherm_workloads::Rng;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// ns.
pub(super) type Time = f64;

/// What a core does next.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Step {
    /// Its own work for so long, on average.
    Work(Time),
    /// A read-modify-write of a cache line.
    Write(usize),
    /// Takes a lock.
    Lock(usize, Mode),
    /// Gives it back.
    Unlock(usize, Mode),
    /// The steps until the matching number further on are done once in so many rounds.
    Seldom {
        /// In so many.
        once_in: u32,
        /// How many steps are left out else.
        steps: usize,
    },
    /// One is done.
    Done,
}

/// How a lock is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Read,
    Write,
}

/// What steps cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Prices {
    /// A read-modify-write of a line that this core wrote last.
    pub(super) local: Time,
    /// The same of a line that another core wrote last.
    pub(super) transfer: Time,
    /// For how long who waits for a lock spins.
    pub(super) spin: Time,
    /// From the unlock until a sleeper runs and tries again.
    pub(super) wake: Time,
}

#[derive(Clone, Copy, Debug, Default)]
struct Line {
    owner: Option<usize>,
    free: Time,
}

#[derive(Clone, Debug, Default)]
struct Lock {
    word: Line,
    readers: u32,
    writer: bool,
    /// Who spins, in order, and until when.
    spinning: VecDeque<(usize, Mode, Time)>,
    /// Who sleeps.
    sleeping: Vec<(usize, Mode)>,
}

impl Lock {
    fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Read => !self.writer && self.sleeping.is_empty(),
            Mode::Write => !self.writer && self.readers == 0,
        }
    }

    fn take(&mut self, mode: Mode) {
        match mode {
            Mode::Read => self.readers += 1,
            Mode::Write => self.writer = true,
        }
    }

    /// Who is woken: a writer, or else all readers.
    fn wake(&mut self) -> Vec<usize> {
        match self.sleeping.iter().position(|&(_, mode)| mode == Mode::Write) {
            Some(writer) => vec![self.sleeping.remove(writer).0],
            None => self.sleeping.drain(..).map(|(core, _)| core).collect(),
        }
    }
}

struct Core {
    program: usize,
    at: usize,
    round: u32,
    done: u64,
    rng: Rng,
}

/// The cores and what they share.
pub(super) struct World<'p> {
    prices: Prices,
    programs: &'p [Vec<Step>],
    cores: Vec<Core>,
    lines: Vec<Line>,
    locks: Vec<Lock>,
    /// Who goes on when: the earliest first, of those the one that was put in first.
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    order: u64,
}

/// Virtual time in the queue, where it is compared: a thousandth of a ns.
const PARTS: f64 = 1000.0;

impl<'p> World<'p> {
    /// Core `n` runs the program `which[n]`.
    pub(super) fn new(
        prices: Prices,
        programs: &'p [Vec<Step>],
        which: &[usize],
        (lines, locks): (usize, usize),
        seed: u64,
    ) -> Self {
        let core = |(n, &program): (usize, &usize)| Core {
            program,
            at: 0,
            round: 0,
            done: 0,
            rng: Rng::new(seed, n as u64),
        };
        Self {
            prices,
            programs,
            cores: which.iter().enumerate().map(core).collect(),
            lines: vec![Line::default(); lines],
            locks: vec![Lock::default(); locks],
            queue: BinaryHeap::new(),
            order: 0,
        }
    }

    fn at(&mut self, time: Time, core: usize) {
        self.order += 1;
        self.queue.push(Reverse(((time * PARTS) as u64, self.order, core)));
    }

    /// Runs for so long; how much each core has done.
    pub(super) fn run(mut self, until: Time) -> Vec<u64> {
        for core in 0..self.cores.len() {
            self.at(0.0, core);
        }
        while let Some(Reverse((time, _, core))) = self.queue.pop() {
            let now = time as f64 / PARTS;
            if now > until {
                break;
            }
            if let Some(next) = self.step(core, now) {
                self.at(next, core);
            }
        }
        self.cores.into_iter().map(|core| core.done).collect()
    }

    /// Does a core's next step; when it goes on, unless somebody else says so.
    fn step(&mut self, index: usize, now: Time) -> Option<Time> {
        let core = self.cores.get_mut(index)?;
        let program = self.programs.get(core.program)?;
        if core.at == program.len() {
            core.at = 0;
            core.round = core.round.wrapping_add(1);
        }
        let step = *program.get(core.at)?;
        core.at += 1;
        match step {
            Step::Work(time) => Some(now + time * (0.9 + 0.2 * core.rng.unit())),
            Step::Seldom { once_in, steps } => {
                if core.round % once_in != index as u32 % once_in {
                    core.at += steps;
                }
                Some(now)
            }
            Step::Done => {
                core.done += 1;
                Some(now)
            }
            Step::Write(line) => Some(write(self.lines.get_mut(line)?, &self.prices, index, now)),
            Step::Lock(lock, mode) => self.lock(lock, mode, index, now),
            Step::Unlock(lock, mode) => self.unlock(lock, mode, index, now),
        }
    }

    fn lock(&mut self, lock: usize, mode: Mode, core: usize, now: Time) -> Option<Time> {
        let prices = self.prices;
        let lock = self.locks.get_mut(lock)?;
        let then = write(&mut lock.word, &prices, core, now);
        if lock.admits(mode) {
            lock.take(mode);
            return Some(then);
        }
        lock.spinning.push_back((core, mode, then + prices.spin));
        None
    }

    fn unlock(&mut self, lock: usize, mode: Mode, core: usize, now: Time) -> Option<Time> {
        let prices = self.prices;
        let lock = self.locks.get_mut(lock)?;
        let then = write(&mut lock.word, &prices, core, now);
        match mode {
            Mode::Read => lock.readers -= 1,
            Mode::Write => lock.writer = false,
        }
        let mut go_on = Vec::new();
        // Whose time is over has gone to sleep meanwhile.
        while let Some(&(next, mode, until)) = lock.spinning.front() {
            if until < then {
                lock.sleeping.push((next, mode));
            } else if lock.admits(mode) {
                lock.take(mode);
                go_on.push((write(&mut lock.word, &prices, next, then), next));
            } else {
                break;
            }
            lock.spinning.pop_front();
        }
        if !lock.writer && lock.readers == 0 {
            for next in lock.wake() {
                // It tries again, like one who comes.
                if let Some(core) = self.cores.get_mut(next) {
                    core.at -= 1;
                }
                go_on.push((then + prices.wake, next));
            }
        }
        for (time, next) in go_on {
            self.at(time, next);
        }
        Some(then)
    }
}

/// When a core has written to a line that it wants to write to now.
fn write(line: &mut Line, prices: &Prices, core: usize, now: Time) -> Time {
    let cost = if line.owner.is_none_or(|owner| owner == core) { prices.local } else { prices.transfer };
    line.owner = Some(core);
    line.free = line.free.max(now) + cost;
    line.free
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRICES: Prices = Prices { local: 10.0, transfer: 100.0, spin: 1000.0, wake: 5000.0 };

    fn run(program: Vec<Step>, cores: usize, shared: (usize, usize)) -> u64 {
        World::new(PRICES, &[program], &vec![0; cores], shared, 1).run(1e6).iter().sum()
    }

    #[test]
    fn work_that_shares_nothing_scales() {
        let one = run(vec![Step::Work(100.0), Step::Done], 1, (0, 0));
        let many = run(vec![Step::Work(100.0), Step::Done], 8, (0, 0));
        assert!((9_900..10_100).contains(&one), "{one}");
        assert!((one * 8).abs_diff(many) < one / 10, "{one} {many}");
    }

    #[test]
    fn a_line_that_all_write_to_serves_one_at_a_time() {
        let program = vec![Step::Work(100.0), Step::Write(0), Step::Done];
        // Alone it is there; of several each waits until it has come over.
        assert!((9_000..9_200).contains(&run(program.clone(), 1, (1, 0))));
        assert!((9_900..10_100).contains(&run(program, 8, (1, 0))));
    }

    #[test]
    fn readers_of_a_lock_go_together_and_writers_alone() {
        let hold = |mode| vec![Step::Lock(0, mode), Step::Work(5000.0), Step::Unlock(0, mode), Step::Done];
        let readers = run(hold(Mode::Read), 4, (0, 1));
        let writers = run(hold(Mode::Write), 4, (0, 1));
        assert!((700..800).contains(&readers), "{readers}");
        // One after the other. Who unlocks has the lock again before a sleeper is awake.
        assert!((180..200).contains(&writers), "{writers}");
        // Short waits are spun through.
        let short = vec![
            Step::Lock(0, Mode::Write),
            Step::Work(200.0),
            Step::Unlock(0, Mode::Write),
            Step::Work(500.0),
            Step::Done,
        ];
        let spun = run(short, 2, (0, 1));
        assert!(spun > 1_500, "{spun}");
    }

    #[test]
    fn what_is_seldom_is_done_once_in_so_many_rounds() {
        let seldom = |once_in| {
            let program =
                vec![Step::Seldom { once_in, steps: 1 }, Step::Work(900.0), Step::Work(100.0), Step::Done];
            run(program, 1, (0, 0))
        };
        assert!((990..1_010).contains(&seldom(1)));
        assert!((5_200..5_300).contains(&seldom(10)), "{}", seldom(10));
    }

    #[test]
    fn the_same_seed_is_the_same_run_and_all_is_done_by_someone() {
        let program = vec![
            Step::Lock(0, Mode::Read),
            Step::Work(50.0),
            Step::Unlock(0, Mode::Read),
            Step::Write(0),
            Step::Done,
        ];
        let mapper = vec![
            Step::Lock(0, Mode::Write),
            Step::Work(300.0),
            Step::Unlock(0, Mode::Write),
            Step::Work(2000.0),
            Step::Done,
        ];
        let programs = [program, mapper];
        let run = |seed| World::new(PRICES, &programs, &[0, 0, 0, 1], (1, 1), seed).run(1e6);
        assert_eq!(run(3), run(3));
        assert_ne!(run(3), run(4));
        assert!(run(3).iter().all(|&done| done > 10), "{:?}", run(3));
    }
}
