//! What `isotherm record` prints while it records: the progress line, and what is not recorded. It has a thread of its own,
//! as a terminal may be stopped.

use isotherm_damon::{Snapshot, TargetId};
use isotherm_linux::process::Process;
use isotherm_linux::targets::EndReason;
use isotherm_linux::{Cost, FeedLimits, Observer, Refusals};
use isotherm_report::units::{counted, format_size, noun};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Prints.
pub struct Teller {
    progress: bool,
    started_ns: u64,
    /// Targets with the numbers of their regions and the bytes accessed, as of the last snapshot.
    targets: BTreeMap<TargetId, (usize, u64)>,
    refusals_told: u32,
    /// Refusals past those that were told one by one.
    more_refused: u64,
}

/// Lines about refusals, after which further ones are counted and told at the end: a server that keeps starting
/// processes of another user must not fill the screen.
const MOST_REFUSALS_TOLD: u32 = 5;

impl Teller {
    /// `progress`: also keeps a line about what is going on.
    pub fn new(progress: bool) -> Self {
        Self {
            progress,
            started_ns: isotherm_linux::monotonic_ns(),
            targets: BTreeMap::new(),
            refusals_told: 0,
            more_refused: 0,
        }
    }

    /// What it wants to be told.
    pub fn limits(&self) -> FeedLimits {
        // A progress line that is a second late is not worth keeping snapshots for.
        FeedLimits { snapshots: if self.progress { 16 } else { 0 }, bytes: 0, ..FeedLimits::default() }
    }

    /// The last words.
    pub fn finish(&mut self) {
        self.clear();
        if self.more_refused > 0 {
            let more = self.more_refused;
            say!("isotherm: not recorded: {more} more {}, which may not be watched", noun(more, "process"));
        }
    }

    fn clear(&self) {
        if self.progress {
            say_on_the_line!("\r\x1b[K");
        }
    }

    fn tell_progress(&self, cost: &Cost) {
        let seconds = cost.time_ns.saturating_sub(self.started_ns) / 1_000_000_000;
        let (regions, hot) =
            self.targets.values().fold((0, 0), |(r, h), (regions, hot)| (r + regions, h + hot));
        let cpu = cost.cpu_ns as f64 / cost.wall_ns.max(1) as f64 * 100.0;
        let parts = [
            format!("recording {seconds} s"),
            format!("working set {}", format_size(hot)),
            format!("monitor {cpu:.1} % of a CPU"),
            counted(self.targets.len() as u64, "process"),
            counted(regions as u64, "region"),
        ];
        say_on_the_line!("\r\x1b[K{}", crate::terminal::progress(&parts, "(Ctrl-C ends it)"));
    }
}

impl Observer for Teller {
    fn target(&mut self, id: TargetId, _: &Arc<Process>, _: Option<TargetId>, _is_copy: bool, _time_ns: u64) {
        self.targets.insert(id, (0, 0));
    }

    fn target_end(&mut self, id: TargetId, _reason: EndReason, _time_ns: u64) {
        self.targets.remove(&id);
    }

    fn snapshot(&mut self, snapshot: &Snapshot) {
        for target in snapshot.targets.iter().filter(|target| !target.steady) {
            if let Some(known) = self.targets.get_mut(&target.id) {
                let hot = target.regions.iter().filter(|r| r.nr_accesses > 0);
                *known = (target.regions.len(), hot.map(|r| r.range.size()).sum());
            }
        }
    }

    fn refused(&mut self, refusals: &Refusals) {
        if self.refusals_told >= MOST_REFUSALS_TOLD {
            self.more_refused += refusals.count;
            return;
        }
        self.refusals_told += 1;
        self.clear();
        let Refusals { count, why, .. } = refusals;
        match count {
            1 => say!("isotherm: not recorded: {why}"),
            _ => say!("isotherm: not recorded: {count} processes; the first: {why}"),
        }
    }

    fn cost(&mut self, cost: &Cost) {
        if self.progress {
            self.tell_progress(cost);
        }
    }
}
