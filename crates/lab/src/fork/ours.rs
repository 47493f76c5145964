//! Our side: the page tables in batches, and the loop page by page.

use super::bench::{Bench, Run, Timed};
use super::{Error, Layout, Operation, Setup};
use crate::{Estimate, Watch};
use isotherm_pagetable::host::Counts;
use isotherm_pagetable::{Arm64Hafdbs, Format, RiscV, Sv48, X86_64};
use serde::Serialize;

/// One operation on one layout in one format, in ms: of each run the shortest time, since a run
/// repeats it.
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
    /// The same ratio with the median of the repetitions in place of the shortest, the machine's noise included.
    pub typical: Estimate,
    /// TLB operations of one run in batches: invalidations of pages, ranges and spaces.
    pub tlb_batched: u64,
    /// The same, page by page.
    pub tlb_per_page: u64,
    /// Contiguous blocks unfolded in one run in batches.
    pub unfolds_batched: u64,
    /// Page faults of this program while the clock ran, of all runs: none, unless the system had taken memory back.
    pub page_faults: u64,
}

/// How many formats are measured.
const FORMATS: usize = 3;

/// The runs of one layout in one format.
struct Series {
    layout: Layout,
    format: &'static str,
    run: fn(&mut Bench, &Watch<'_>) -> Result<Run, Error>,
    runs: Vec<Run>,
}

impl Series {
    fn of<F: Format>(layout: Layout) -> Series {
        Series { layout, format: F::NAME, run: Bench::run::<F>, runs: Vec::new() }
    }

    fn judge(&self) -> impl Iterator<Item = Ours> {
        let each = Operation::ALL.into_iter().enumerate();
        each.filter_map(|(n, operation)| {
            let pair = |run: &Run| Some((*run.batched.get(n)?, *run.per_page.get(n)?));
            Ours::judge(self, operation, &self.runs.iter().filter_map(pair).collect::<Vec<_>>())
        })
    }
}

impl Ours {
    /// Measures all layouts; adds to `all` what was measured, also if it ends before its time.
    pub(super) fn measure(
        layouts: &[Layout],
        setup: &Setup,
        watch: &mut Watch<'_>,
        all: &mut Vec<Ours>,
    ) -> Result<(), Error> {
        let mut series = Vec::new();
        let outcome = Self::rounds(layouts, setup, watch, &mut series);
        all.extend(series.iter().flat_map(|(_, formats)| formats).flat_map(Series::judge));
        outcome
    }

    fn rounds(
        layouts: &[Layout],
        setup: &Setup,
        watch: &mut Watch<'_>,
        series: &mut Vec<(Bench, [Series; FORMATS])>,
    ) -> Result<(), Error> {
        for &layout in layouts {
            let formats = [
                Series::of::<X86_64>(layout),
                Series::of::<Arm64Hafdbs>(layout),
                Series::of::<RiscV<Sv48>>(layout),
            ];
            series.push((Bench::new(layout, setup, watch)?, formats));
        }
        // A run of everything, then the next: what else the machine does for a while spoils some runs of all, not all runs
        // of some.
        for run in 1..=setup.runs {
            (watch.progress)(&format!("ours, run {run} of {} ...", setup.runs));
            for (bench, formats) in &mut *series {
                for one in formats {
                    one.runs.push((one.run)(bench, watch)?);
                }
            }
        }
        Ok(())
    }

    fn judge(series: &Series, operation: Operation, runs: &[(Timed, Timed)]) -> Option<Ours> {
        let estimate =
            |of: fn(&(Timed, Timed)) -> f64| Estimate::of(&runs.iter().map(of).collect::<Vec<_>>());
        let tlb = |counts: &Counts| counts.tlb_pages + counts.tlb_ranges + counts.tlb_spaces;
        let (batched, per_page) = runs.last().map(|(batched, per_page)| (batched.counts, per_page.counts))?;
        Some(Ours {
            layout: series.layout,
            format: series.format,
            operation,
            batched: estimate(|(batched, _)| batched.ms)?,
            per_page: estimate(|(_, per_page)| per_page.ms)?,
            relative: estimate(|(batched, per_page)| batched.ms / per_page.ms - 1.0)?,
            typical: estimate(|(batched, per_page)| batched.typical_ms / per_page.typical_ms - 1.0)?,
            tlb_batched: tlb(&batched),
            tlb_per_page: tlb(&per_page),
            unfolds_batched: batched.unfolds,
            page_faults: runs
                .iter()
                .map(|(batched, per_page)| batched.page_faults + per_page.page_faults)
                .sum(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    fn measure(layouts: &[Layout], runs: u32, mib: u64) -> Vec<Ours> {
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| () };
        let mut all = Vec::new();
        Ours::measure(layouts, &Setup { runs, mib }, &mut watch, &mut all).unwrap();
        all
    }

    #[test]
    fn a_fork_in_batches_asks_for_one_flush_and_unfolds_nothing() {
        let all = measure(&Layout::ALL, 3, 8);
        assert_eq!(all.len(), 4 * FORMATS * 4);
        for ours in all {
            assert_eq!((ours.batched.count, ours.per_page.count, ours.relative.count), (3, 3, 3));
            assert!(ours.batched.min > 0.0 && ours.per_page.min > 0.0, "{ours:?}");
            if ours.operation == Operation::Fork {
                assert_eq!((ours.tlb_batched, ours.unfolds_batched), (1, 0), "{ours:?}");
            }
        }
    }

    /// Of 64 MiB a child's tables are 32 frames: were they fresh, there would be as many faults in each run.
    #[test]
    fn the_memory_that_is_timed_was_in_use_before() {
        for ours in measure(&Layout::ALL, 2, 64) {
            assert!(ours.page_faults < 16, "{ours:?}");
        }
    }

    #[test]
    fn whoever_asks_to_stop_is_heard_and_told_what_there_is() {
        let asked = std::sync::atomic::AtomicUsize::new(0);
        let stop = move || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 500;
        let mut watch = Watch { stop: Arc::new(stop), progress: &mut |_| () };
        let mut all = Vec::new();
        let setup = Setup { runs: 1_000_000, mib: 2 };
        let result = Ours::measure(&[Layout::Order0], &setup, &mut watch, &mut all);
        assert!(matches!(result, Err(Error::Interrupted(_))));
        assert_eq!(all.len(), FORMATS * 4);
        assert!(all.iter().all(|ours| ours.batched.count > 10));
    }
}
