//! Our side: the same code in batches and page by page.

use super::{Error, Layout, Operation, Setup, Watch};
use crate::Estimate;
use isotherm_pagetable::host::{Counts, HostMachine};
use isotherm_pagetable::{
    AddressSpace, Arm64Hafdbs, Attributes, Batched, Batching, Folio, FolioKind, ForkRule, Format, Level,
    PageRange, PerPage, Sharing, Slot, VirtAddr, X86_64,
};
use serde::Serialize;
use std::time::Instant;

/// One operation on one layout in one format, in ms.
#[derive(Clone, Debug, Serialize)]
pub struct Ours {
    /// The layout.
    pub layout: Layout,
    /// The page-table format.
    pub format: &'static str,
    /// What was timed.
    pub operation: Operation,
    /// In batches, ms.
    pub batched: Estimate,
    /// Page by page, ms.
    pub per_page: Estimate,
    /// How much slower batches are than page by page, of each pair of runs: -0.9 is ten times faster.
    pub relative: Estimate,
    /// TLB operations of one run in batches: invalidations of pages, ranges and spaces.
    pub tlb_batched: u64,
    /// The same, page by page.
    pub tlb_per_page: u64,
    /// Contiguous blocks unfolded in one run in batches.
    pub unfolds_batched: u64,
    /// The same, page by page.
    pub unfolds_per_page: u64,
}

/// What one run took, ms, and what it asked of the machine.
type Run = [(f64, Counts); 4];

/// Pages of a MiB.
const MIB: u64 = 256;

impl Ours {
    pub(super) fn measure(layout: Layout, setup: &Setup, watch: &mut Watch<'_>) -> Result<Vec<Ours>, Error> {
        let mut all = Self::of_format::<X86_64>(layout, setup, watch)?;
        all.extend(Self::of_format::<Arm64Hafdbs>(layout, setup, watch)?);
        Ok(all)
    }

    fn of_format<F: Format>(
        layout: Layout,
        setup: &Setup,
        watch: &mut Watch<'_>,
    ) -> Result<Vec<Ours>, Error> {
        let pages = setup.mib * MIB;
        // One each, so that both see the same frames in the same order. Room for tables, and for blocks that they split.
        let machines = [HostMachine::new(2 * pages + 8192), HostMachine::new(2 * pages + 8192)];
        if (watch.stop)() {
            return Err(Error::Interrupted);
        }
        let (mut batched, mut per_page): (Vec<Run>, Vec<Run>) = (Vec::new(), Vec::new());
        // Once unmeasured, so that the system has given all of the memory before.
        once::<F, Batched>(&machines[0], layout, pages)?;
        once::<F, PerPage>(&machines[1], layout, pages)?;
        for run in 0..setup.runs as usize {
            if (watch.stop)() {
                return Err(Error::Interrupted);
            }
            // They take turns at being first.
            for turn in [run % 2, 1 - run % 2] {
                match turn {
                    0 => batched.push(once::<F, Batched>(&machines[0], layout, pages)?),
                    _ => per_page.push(once::<F, PerPage>(&machines[1], layout, pages)?),
                }
            }
        }
        let rows = Operation::ALL.iter().enumerate().filter_map(|(n, &operation)| {
            let ms = |runs: &[Run]| runs.iter().map(|run| run[n].0).collect::<Vec<f64>>();
            let (many, single) = (ms(&batched), ms(&per_page));
            let relative: Vec<f64> =
                many.iter().zip(&single).map(|(many, single)| many / single - 1.0).collect();
            let tlb = |counts: &Counts| counts.tlb_pages + counts.tlb_ranges + counts.tlb_spaces;
            let (batched, per_page) = (batched.last()?[n].1, per_page.last()?[n].1);
            Some(Ours {
                layout,
                format: F::NAME,
                operation,
                batched: Estimate::of(&many)?,
                per_page: Estimate::of(&single)?,
                relative: Estimate::of(&relative)?,
                tlb_batched: tlb(&batched),
                tlb_per_page: tlb(&per_page),
                unfolds_batched: batched.unfolds,
                unfolds_per_page: per_page.unfolds,
            })
        });
        Ok(rows.collect())
    }
}

/// Fork, exit of the child, harvest and zap of the parent, each timed.
fn once<F: Format, B: Batching>(machine: &HostMachine, layout: Layout, pages: u64) -> Result<Run, Error> {
    let parent = AddressSpace::<F, HostMachine, B>::new(machine, 1)?;
    populate(&parent, layout, pages)?;
    let all = PageRange::with_pages(VirtAddr(0), pages)?;
    let mut slots = vec![Slot::default(); 512];
    let mut bitmap = vec![0; pages.div_ceil(64) as usize];
    let mut child = AddressSpace::<F, HostMachine, B>::new(machine, 2)?;
    let fork = timed(machine, || {
        let mut gather = parent.gather(&mut slots);
        parent.copy_range(&mut child, all, ForkRule::Copy(Sharing::Private), &mut gather)
    });
    fork.2?;
    let exit = timed(machine, || child.exit(&mut slots));
    let harvest = timed(machine, || parent.harvest_young(all, &mut bitmap));
    harvest.2?;
    let zap = timed(machine, || parent.zap(all, &mut parent.gather(&mut slots)));
    zap.2?;
    Ok([(fork.0, fork.1), (exit.0, exit.1), (harvest.0, harvest.1), (zap.0, zap.1)])
}

fn timed<T>(machine: &HostMachine, work: impl FnOnce() -> T) -> (f64, Counts, T) {
    machine.reset_counts();
    let start = Instant::now();
    let result = work();
    (start.elapsed().as_secs_f64() * 1e3, machine.counts(), result)
}

fn populate<F: Format, B: Batching>(
    space: &AddressSpace<'_, F, HostMachine, B>,
    layout: Layout,
    pages: u64,
) -> Result<(), Error> {
    let machine = space.machine();
    let largest = if layout == Layout::Pmd { Level::Pmd } else { Level::Pte };
    let mut page = 0;
    while page < pages {
        let order = layout.order_at(page);
        let head = machine.take(order).ok_or(Error::NoFrames)?;
        let folio = Folio::prepare(machine, head, order, FolioKind::Anon)?;
        let range = PageRange::with_pages(VirtAddr::of_page(page), 1 << order)?;
        let mapped = space.map(range, head, Attributes::anonymous(), largest);
        folio.put(machine);
        mapped?;
        page += 1 << order;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_in_batches_asks_for_one_flush_and_unfolds_nothing() {
        let setup = Setup { runs: 2, mib: 8 };
        let mut watch = Watch { stop: &|| false, progress: &mut |_| () };
        for layout in Layout::ALL {
            let all = Ours::measure(layout, &setup, &mut watch).unwrap();
            assert_eq!(all.len(), 8);
            for ours in all.iter().filter(|ours| ours.operation == Operation::Fork) {
                assert_eq!((ours.tlb_batched, ours.unfolds_batched), (1, 0), "{ours:?}");
            }
        }
    }

    #[test]
    fn whoever_asks_to_stop_is_heard() {
        let mut watch = Watch { stop: &|| true, progress: &mut |_| () };
        let result = Ours::measure(Layout::Pmd, &Setup { runs: 1, mib: 2 }, &mut watch);
        assert!(matches!(result, Err(Error::Interrupted)));
    }
}
