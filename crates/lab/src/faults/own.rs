//! Threads that fault, each in a VMA of its own or all in one, perhaps beside one that maps.

use super::run::{Outcome, Run};
use super::{Error, Lookups, Setup, Way};
use crate::{Estimate, Watch};
use serde::Serialize;

/// Faults under one kind of lock.
#[derive(Clone, Debug, Serialize)]
pub struct Rate {
    /// Which.
    pub way: Way,
    /// Faults a second, of all threads together.
    pub faults: Estimate,
    /// Times as many as under `mmap_lock` alone, in the same round.
    pub ratio: Option<Estimate>,
    /// Rounds of the mapper a second.
    pub mapped: Option<Estimate>,
    /// How faults found their VMA, if not under `mmap_lock` alone. The mapper's are counted too: one in each of its rounds.
    pub lookups: Option<Lookups>,
}

/// Faults under per-VMA locks while the mapper maps in another space, so that they share no lock: nothing that a space does can
/// be better. Where two CPUs are threads of one core, they slow each other down also then; under `mmap_lock` alone, who waits
/// leaves the core to the other.
#[derive(Clone, Debug, Serialize)]
pub struct Ceiling {
    /// Faults a second, of all threads together.
    pub faults: Estimate,
    /// The share of what as many threads do without a mapper, in the same round.
    pub of_alone: Estimate,
    /// Times as many as under `mmap_lock` alone with the mapper in the same space, in the same round.
    pub ratio: Estimate,
    /// The share of it that is reached with the mapper in the same space, in the same round.
    pub reached: Estimate,
}

/// Faults of some threads.
#[derive(Clone, Debug, Serialize)]
pub struct Faults {
    /// How many threads fault.
    pub threads: usize,
    /// Whether another maps, protects and unmaps meanwhile.
    pub mapper: bool,
    /// Whether all fault in one VMA.
    pub one_vma: bool,
    /// Under each kind of lock.
    pub ways: Vec<Rate>,
    /// Beside a mapper: what this machine allows.
    pub ceiling: Option<Ceiling>,
    /// Whether the count of pages was right after each run.
    pub resident_exact: bool,
}

impl Ceiling {
    /// Of the runs with the mapper in another space, in the same one, and without; `None` if there are none.
    fn of(
        apart: &[f64],
        [off, sequence, ..]: &[Vec<Outcome>; Way::ALL.len()],
        [_, alone, ..]: &[Vec<Outcome>; Way::ALL.len()],
    ) -> Option<Self> {
        let beside = |others: &[Outcome], ratio: fn(f64, f64) -> f64| {
            let ratios = apart.iter().zip(others).map(|(&apart, other)| ratio(apart, other.faults));
            Estimate::of(&ratios.collect::<Vec<_>>())
        };
        Some(Self {
            faults: Estimate::of(apart)?,
            of_alone: beside(alone, |apart, alone| apart / alone)?,
            ratio: beside(off, |apart, off| apart / off)?,
            reached: beside(sequence, |apart, on| on / apart)?,
        })
    }
}

#[derive(Clone, Copy)]
struct Cell {
    threads: usize,
    mapper: bool,
    one_vma: bool,
}

/// 1, 2, 4 and so on, and as many as there are.
fn counts(threads: usize) -> Vec<usize> {
    let powers = std::iter::successors(Some(1), |count| Some(count * 2));
    let mut counts: Vec<usize> = powers.take_while(|&count| count < threads).collect();
    counts.push(threads.max(1));
    counts
}

fn cells(threads: usize) -> Vec<Cell> {
    let own = counts(threads)
        .into_iter()
        .flat_map(|threads| [false, true].map(|mapper| Cell { threads, mapper, one_vma: false }));
    // That one thread has a VMA to itself is what was measured above.
    let one = (threads > 1).then_some(Cell { threads, mapper: false, one_vma: true });
    own.chain(one).collect()
}

impl Faults {
    /// Measures one thread, two, and so on up to `threads`, alone and beside a mapper.
    ///
    /// # Errors
    /// [`Error`].
    pub fn measure(threads: usize, setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Self>, Error> {
        let cells = cells(threads);
        let mut outcomes: Vec<[Vec<Outcome>; Way::ALL.len()]> =
            cells.iter().map(|_| Way::ALL.map(|_| Vec::new())).collect();
        let mut apart: Vec<Vec<f64>> = cells.iter().map(|_| Vec::new()).collect();
        for round in 0..setup.rounds {
            (watch.progress)(&format!("faults, round {} of {} ...", round + 1, setup.rounds));
            for ((cell, outcomes), apart) in cells.iter().zip(&mut outcomes).zip(&mut apart) {
                let Cell { threads, mapper, one_vma } = *cell;
                let run = Run { threads, mapper, one_vma, ..Run::alone(setup.slice) };
                for way in super::in_turn(round, Way::ALL.len()) {
                    watch.go_on()?;
                    outcomes[way].push(Run { way: Way::ALL[way], ..run }.go()?);
                }
                if mapper {
                    watch.go_on()?;
                    apart.push(Run { mapper_apart: true, ..run }.go()?.faults);
                }
            }
        }
        let measured = cells.iter().zip(outcomes.iter().zip(&apart));
        let alone = |threads| {
            let is = |cell: &Cell| cell.threads == threads && !cell.mapper && !cell.one_vma;
            cells.iter().position(is).and_then(|at| outcomes.get(at))
        };
        let judge = |(&cell, (outcomes, apart)): (&Cell, (_, &Vec<f64>))| {
            let mut judged = judge(cell, outcomes)?;
            judged.ceiling = Ceiling::of(apart, outcomes, alone(cell.threads)?);
            Some(judged)
        };
        Ok(measured.filter_map(judge).collect())
    }

    /// Of one kind of lock.
    #[must_use]
    pub fn of(&self, way: Way) -> Option<&Rate> {
        self.ways.iter().find(|one| one.way == way)
    }
}

/// `None` if there are no figures.
fn judge(cell: Cell, outcomes: &[Vec<Outcome>; Way::ALL.len()]) -> Option<Faults> {
    let Cell { threads, mapper, one_vma } = cell;
    let [off, ..] = outcomes;
    let mut ways = Vec::new();
    for (way, outcomes) in Way::ALL.into_iter().zip(outcomes) {
        let of = |figure: fn(&Outcome) -> f64| Estimate::of(&outcomes.iter().map(figure).collect::<Vec<_>>());
        let ratios: Vec<f64> = outcomes.iter().zip(off).map(|(on, off)| on.faults / off.faults).collect();
        let mut lookups = Lookups::default();
        outcomes.iter().for_each(|one| lookups.add(one.calls, one.stats));
        let locks = way != Way::MmapLock;
        ways.push(Rate {
            way,
            faults: of(|one| one.faults)?,
            ratio: Estimate::of(&ratios).filter(|_| locks),
            mapped: of(|one| one.mapped).filter(|_| mapper),
            lookups: locks.then_some(lookups),
        });
    }
    let resident_exact = outcomes.iter().flatten().all(|one| one.resident.0 == one.resident.1);
    Some(Faults { threads, mapper, one_vma, ways, ceiling: None, resident_exact })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::time::Duration;

    #[test]
    fn a_run_counts_faults_and_pages_exactly() {
        let setup = Setup { rounds: 1, slice: Duration::from_millis(10) };
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| {} };
        let all = Faults::measure(2, &setup, &mut watch).expect("there is memory");
        let cells: Vec<_> = all.iter().map(|one| (one.threads, one.mapper, one.one_vma)).collect();
        let expected =
            [(1, false, false), (1, true, false), (2, false, false), (2, true, false), (2, false, true)];
        assert_eq!(cells, expected);
        for one in &all {
            assert!(one.resident_exact, "{one:?}");
            assert_eq!(one.ceiling.is_some(), one.mapper, "{one:?}");
            for rate in &one.ways {
                assert!(rate.faults.median > 0.0, "{one:?}");
                assert_eq!(rate.mapped.is_some(), one.mapper, "{one:?}");
                assert!(rate.lookups.is_none_or(|lookups| lookups.adds_up()), "{rate:?}");
            }
        }
    }

    #[test]
    fn threads_double_up_to_all_of_them() {
        assert_eq!([1, 2, 6, 8].map(counts), [vec![1], vec![1, 2], vec![1, 2, 4, 6], vec![1, 2, 4, 8]]);
    }
}
