//! What recordings say of the monitor's own cost.

use crate::overhead::Cleared;
use isotherm_record::Cost;

/// The sum of the costs that a recording states about once a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CostSum {
    /// Sums; `max_checks_per_sample` is the greatest of all, the time and the resident pages are not used.
    pub(crate) total: Cost,
    /// How many were added.
    pub(crate) count: u64,
    resident_sum: u64,
}

impl CostSum {
    pub(crate) fn add(&mut self, cost: &Cost) {
        let total = &mut self.total;
        total.wall_ns += cost.wall_ns;
        total.cpu_ns += cost.cpu_ns;
        total.checks += cost.checks;
        total.max_checks_per_sample = total.max_checks_per_sample.max(cost.max_checks_per_sample);
        total.clears += cost.clears;
        total.flushes += cost.flushes;
        total.sweeps += cost.sweeps;
        total.pages_swept += cost.pages_swept;
        total.checks_cut += cost.checks_cut;
        total.clears_cut += cost.clears_cut;
        total.samples_missed += cost.samples_missed;
        total.snapshots_lost += cost.snapshots_lost;
        self.count += 1;
        self.resident_sum += cost.resident_pages;
    }

    pub(crate) fn merge(&mut self, other: &Self) {
        let (count, resident_sum) = (self.count + other.count, self.resident_sum + other.resident_sum);
        self.add(&other.total);
        (self.count, self.resident_sum) = (count, resident_sum);
    }

    /// Share of one CPU.
    pub(crate) fn cpu_share(&self) -> f64 {
        self.total.cpu_ns as f64 / self.total.wall_ns.max(1) as f64
    }

    /// What was cleared.
    pub(crate) fn cleared(&self) -> Cleared {
        Cleared { flushes: self.total.flushes, pages: self.total.clears, swept: self.total.pages_swept }
    }

    /// Pages cleared a second.
    pub(crate) fn clears_per_second(&self) -> f64 {
        self.total.clears as f64 * 1e9 / self.total.wall_ns.max(1) as f64
    }

    /// Pages of the targets that were resident, mean.
    pub(crate) fn resident_pages(&self) -> u64 {
        self.resident_sum.checked_div(self.count).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_of_sums_are_sums() {
        let cost = |wall_ns, most, resident_pages| Cost {
            wall_ns,
            cpu_ns: wall_ns / 100,
            max_checks_per_sample: most,
            clears: 500,
            resident_pages,
            ..Cost::default()
        };
        let costs = [cost(1_000_000_000, 9, 10), cost(2_000_000_000, 7, 40), cost(1_000_000_000, 8, 10)];
        let mut all = CostSum::default();
        costs.iter().for_each(|c| all.add(c));
        let (mut first, mut rest) = (CostSum::default(), CostSum::default());
        first.add(&costs[0]);
        costs[1..].iter().for_each(|c| rest.add(c));
        first.merge(&rest);
        assert_eq!(first, all);
        assert_eq!((all.count, all.total.max_checks_per_sample, all.resident_pages()), (3, 9, 20));
        assert!((all.cpu_share() - 0.01).abs() < 1e-9 && (all.clears_per_second() - 375.0).abs() < 1e-9);
    }
}
