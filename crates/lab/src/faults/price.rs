//! Single operations here and in Linux, less what only a system call costs: a fault beside `MADV_POPULATE_WRITE`, and a page
//! that is mapped and unmapped.

use super::linux::{self, Mapping};
use super::machine::{Member, ThreadRcu, set_cpu};
use super::space::{Experiment, PAGE, Space, on_a_machine, quiet, read_write};
use super::{Error, Setup, Way};
use crate::machine::pin;
use crate::{Estimate, Watch};
use isotherm_mm::Access;
use serde::Serialize;
use std::time::{Duration, Instant};

/// Pages that are faulted in before they are given back.
const PAGES: u64 = 4096;
/// Calls between two looks at the clock.
const CALLS: u64 = 64;

/// What one operation takes here and in Linux.
#[derive(Clone, Debug, Serialize)]
pub struct Price {
    /// Which.
    pub operation: &'static str,
    /// What Linux' figure is of.
    pub beside: &'static str,
    /// ns here.
    pub here: Estimate,
    /// ns in Linux.
    pub linux: Estimate,
    /// The one divided by the other, of the same round.
    pub ratio: Estimate,
}

/// ns of a fault, and of a page mapped and unmapped.
type Times = [f64; 2];

const NAMES: [[&str; 2]; 2] = [
    ["fault, a page of zeros", "MADV_POPULATE_WRITE, a page"],
    ["mmap and munmap of a page", "both system calls, less two empty ones"],
];

struct Here(Duration);

impl Price {
    /// Measures both, on one thread, in turn.
    ///
    /// # Errors
    /// [`Error`].
    pub fn measure(setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Self>, Error> {
        let mut times: [Vec<Times>; 2] = [Vec::new(), Vec::new()];
        for round in 0..setup.rounds {
            (watch.progress)(&format!("prices, round {} of {} ...", round + 1, setup.rounds));
            for side in super::in_turn(round, 2) {
                watch.go_on()?;
                let measured = if side == 0 {
                    on_a_machine(&Here(setup.slice), Way::Sequence, PAGES, 0)?
                } else {
                    on_a_thread(|| in_linux(setup.slice))?
                };
                times[side].push(measured);
            }
        }
        let [here, linux] = &times;
        let judged = NAMES.into_iter().enumerate().filter_map(|(n, [operation, beside])| {
            let of = |all: &[Times]| all.iter().map(|times| times[n]).collect::<Vec<_>>();
            let ratios: Vec<f64> = here.iter().zip(linux).map(|(here, linux)| here[n] / linux[n]).collect();
            let (here, linux) = (Estimate::of(&of(here))?, Estimate::of(&of(linux))?);
            Some(Self { operation, beside, here, linux, ratio: Estimate::of(&ratios)? })
        });
        Ok(judged.collect())
    }
}

/// On a thread that stays on its CPU.
fn on_a_thread<R: Send>(act: impl FnOnce() -> Result<R, Error> + Send) -> Result<R, Error> {
    std::thread::scope(|scope| {
        let worker = scope.spawn(|| {
            pin(0);
            set_cpu(0);
            act()
        });
        worker.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// ns of one of the calls that `act` makes as many of as it returns, for the slice. Only `act` is timed.
fn timed(
    slice: Duration,
    mut before: impl FnMut() -> Result<(), Error>,
    mut act: impl FnMut() -> Result<u64, Error>,
) -> Result<f64, Error> {
    let (mut spent, mut calls) = (Duration::ZERO, 0);
    while spent < slice || calls == 0 {
        before()?;
        let start = Instant::now();
        calls += act()?;
        spent += start.elapsed();
    }
    Ok(spent.as_nanos() as f64 / calls as f64)
}

fn in_linux(slice: Duration) -> Result<Times, Error> {
    let mapping = Mapping::new(PAGES, libc::MAP_PRIVATE, None)?;
    mapping.small_pages();
    let give_back = || {
        mapping.advise(libc::MADV_DONTNEED);
        Ok(())
    };
    let fault = timed(slice, give_back, || {
        if mapping.advise(libc::MADV_POPULATE_WRITE) { Ok(PAGES) } else { Err(Error::Populate) }
    })?;
    let nothing = || Ok(());
    let pair = timed(slice / 2, nothing, || {
        for _ in 0..CALLS {
            drop(Mapping::new(1, libc::MAP_PRIVATE, None)?);
        }
        Ok(CALLS)
    })?;
    let empty = timed(slice / 2, nothing, || {
        (0..CALLS).for_each(|_| linux::empty());
        Ok(CALLS)
    })?;
    Ok([fault, pair - 2.0 * empty])
}

impl Experiment for Here {
    type Outcome = Times;

    fn run<'w>(
        &self,
        [space, _]: [&Space<'w, '_>; 2],
        rcu: &'w ThreadRcu,
        _: &mut Member<'w>,
    ) -> Result<Times, Error> {
        linux::for_own_maps(|request| space.mmap(&request).map(drop))?;
        let at = space.mmap(&read_write(PAGES))?;
        on_a_thread(|| {
            let _joined = rcu.join().map_err(|_| Error::Memory)?;
            let give_back = || {
                rcu.quiescent();
                Ok(space.discard(at, PAGES * PAGE)?)
            };
            let fault = timed(self.0, give_back, || {
                for page in 0..PAGES {
                    space.fault(at + page * PAGE, Access::Write)?;
                    quiet(rcu, page);
                }
                Ok(PAGES)
            })?;
            // What is freed later is paid for here.
            let pair = timed(
                self.0,
                || Ok(()),
                || {
                    for _ in 0..CALLS {
                        let at = space.mmap(&read_write(1))?;
                        space.munmap(at, PAGE)?;
                    }
                    rcu.quiescent();
                    rcu.advance(usize::MAX);
                    Ok(CALLS)
                },
            )?;
            Ok([fault, pair])
        })
    }
}
