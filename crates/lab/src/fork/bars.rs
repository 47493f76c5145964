//! What the page tables are to reach, for 1 GiB.

use super::{Fork, Layout, Linux, Operation, Ours};
use crate::experiment::{Bar, Figure};

/// How many times batches are to be faster.
const FASTER: f64 = 10.0;
/// Percent of order 0 that an interval may leave open: less than the 3.5 % and more that the series cost arm64, which was
/// the argument against it.
const NEGLIGIBLE: f64 = 2.0;
/// ms for the young harvest of order 0.
const HARVEST: f64 = 1.0;

impl Fork {
    /// The bars of what was measured, by medians: those of batches beside page by page by the median of the ratios of
    /// runs that follow each other. Their limits are for 1 GiB.
    #[must_use]
    pub fn bars(&self) -> Vec<Bar> {
        self.ours
            .iter()
            .flat_map(|ours| beside_per_page(ours).into_iter().chain(self.beside_linux(ours)))
            .collect()
    }

    fn beside_linux(&self, ours: &Ours) -> Option<Bar> {
        let (most, share) = match ours.layout {
            Layout::Order0 => (1.0 / 4.0, "1/4"),
            Layout::Order9 => (1.0 / 20.0, "1/20"),
            Layout::Pmd => (1.0 / 5.0, "1/5"),
            Layout::Mixed => return None,
        };
        let of = |linux: &&Linux| linux.layout == ours.layout && ours.operation == Operation::Fork;
        let linux = self.linux.iter().find(of)?.fork.as_ref()?;
        // Of little memory, what is left after the empty fork is subtracted may be nothing.
        let figure = Figure::median(&ours.batched).over(Figure::median(linux))?;
        Some(Bar::at_most(format!("{}, share of Linux', <= {share}", name(ours)), figure, most))
    }
}

fn name(ours: &Ours) -> String {
    format!("{}: {}: {}", ours.format, ours.layout.name(), ours.operation.name())
}

fn beside_per_page(ours: &Ours) -> Option<Bar> {
    let name = name(ours);
    let relative = Figure::median(&ours.relative);
    Some(match (ours.layout, ours.operation) {
        // A zap gives back the folios too, one way as the other, so what batches save is less of it.
        (Layout::Order9, Operation::Fork) => {
            let times = relative.map(|relative| 1.0 / (1.0 + relative));
            Bar::at_least(format!("{name}, times faster than page by page, >= {FASTER}"), times, FASTER)
        }
        (Layout::Order0, Operation::Fork) => {
            let slower = relative.map(|relative| relative * 100.0);
            Bar::not_above(format!("{name}, slower than page by page, %, <= 0"), slower, 0.0, NEGLIGIBLE)
        }
        (Layout::Order0, Operation::Harvest) => {
            Bar::at_most(format!("{name}, ms, <= {HARVEST}"), Figure::median(&ours.batched), HARVEST)
        }
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Estimate;

    fn ours(layout: Layout, operation: Operation, batched: f64, relative: f64) -> Ours {
        let estimate = |value: f64| Estimate::of(&[value; 6]).unwrap();
        let (batched, per_page) = (estimate(batched), estimate(batched / (1.0 + relative)));
        let relative = estimate(relative);
        Ours {
            layout,
            format: "F",
            operation,
            batched,
            per_page,
            relative,
            typical: relative,
            tlb_batched: 1,
            tlb_per_page: 1,
            unfolds_batched: 0,
            page_faults: 0,
        }
    }

    fn linux(layout: Layout, ms: f64) -> Linux {
        let fork = Estimate::of(&[ms; 6]);
        Linux { layout, fork, exit: None, zap: None, empty: None, of_order: None, skipped: None }
    }

    #[test]
    fn bars_are_those_of_the_page_tables_and_only_of_what_was_measured() {
        assert!(Fork::default().bars().is_empty());
        let mut fork = Fork::default();
        for layout in Layout::ALL {
            for operation in Operation::ALL {
                fork.ours.push(ours(layout, operation, 0.5, -0.92));
            }
        }
        let told = |fork: &Fork| -> Vec<_> {
            fork.bars()
                .into_iter()
                .map(|bar| (bar.what, (bar.measured * 1e6).round() / 1e6, bar.met))
                .collect()
        };
        let own = [
            ("F: order 0: fork, slower than page by page, %, <= 0", -92.0, true),
            ("F: order 0: young harvest, ms, <= 1", 0.5, true),
            ("F: order 9, PTEs: fork, times faster than page by page, >= 10", 12.5, true),
        ];
        assert_eq!(told(&fork), own.map(|(what, measured, met)| (what.to_owned(), measured, met)));
        // Beside Linux, which was 4 ms throughout: an eighth.
        fork.linux = Layout::ALL.map(|layout| linux(layout, 4.0)).into();
        let beside: Vec<_> = told(&fork).into_iter().filter(|(what, ..)| what.contains("Linux")).collect();
        let expected = [
            ("F: order 0: fork, share of Linux', <= 1/4", 0.125, true),
            ("F: order 9, PTEs: fork, share of Linux', <= 1/20", 0.125, false),
            ("F: order 9, PMDs: fork, share of Linux', <= 1/5", 0.125, true),
        ];
        assert_eq!(beside, expected.map(|(what, measured, met)| (what.to_owned(), measured, met)));
        // Beside nothing there is nothing to tell.
        fork.linux = Layout::ALL.map(|layout| linux(layout, -0.1)).into();
        assert_eq!(told(&fork).len(), own.len());
    }

    #[test]
    fn slower_page_by_page_is_missed_however_little_if_it_is_certain() {
        let fork = Fork { ours: vec![ours(Layout::Order0, Operation::Fork, 1.0, 0.001)], linux: Vec::new() };
        let bar = &fork.bars()[0];
        assert_eq!((bar.met, bar.verdict), (false, "missed"));
    }
}
