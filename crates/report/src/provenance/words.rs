//! What reports say of a recording: its name, its head, and at the foot what it could not see and what it cost.

use super::{ActionTotals, Provenance};
use crate::columns::{self, elided, wrapped};
use crate::names::printable;
use crate::space::UNKNOWN_MAPPING;
use crate::units::{counted, format_share, format_size, format_time};
use isotherm_damon::TargetId;
use isotherm_record::{Processes, command_line};

/// From this share of missed sampling intervals on, reports say what to do about it. A guess.
const MANY_MISSED: f64 = 0.1;
/// Most characters of a report's first line where no width is given.
const TITLE: usize = 160;

impl ActionTotals {
    /// `12 of pageout by prcl: 4 MiB of 8 MiB tried`.
    fn sentence(&self) -> String {
        format!(
            "{} of {} by {}: took effect on {} of {}",
            self.count,
            printable(&self.action),
            printable(&self.scheme),
            format_size(self.applied),
            format_size(self.tried)
        )
    }
}

impl Provenance {
    /// What schemes did, a sentence each.
    pub fn actions_in_words(&self) -> Vec<String> {
        self.actions.iter().map(ActionTotals::sentence).collect()
    }

    /// What to call a target: `redis-server (pid 1234)`, or `target 7` when nothing is known about it.
    pub fn target_name(&self, id: TargetId) -> String {
        match self.targets.iter().find(|t| t.id == id.0) {
            Some(t) if !t.comm.is_empty() => format!("{} (pid {})", printable(&t.comm), t.pid),
            Some(t) if t.pid != 0 => format!("pid {}", t.pid),
            _ => format!("target {}", id.0),
        }
    }

    /// What names a target on a command line: its pid, where it is the only one that had it, and else its id.
    pub fn target_word(&self, id: TargetId) -> u64 {
        let pid = self.targets.iter().find(|t| t.id == id.0).map_or(0, |t| t.pid);
        let with_pid = self.targets.iter().filter(|t| t.pid == pid).count();
        if pid != 0 && with_pid == 1 { u64::from(pid) } else { id.0 }
    }

    /// The first line of a report, in at most `width` characters as far as the figures at its end leave room: what was
    /// recorded, for how long. A long command loses its middle.
    pub fn title(&self, width: usize) -> String {
        let what = match (self.command.is_empty(), self.targets.first()) {
            (false, _) => command_line(&self.command),
            (true, Some(first)) => self.target_name(TargetId(first.id)),
            (true, None) => "unnamed targets".to_owned(),
        };
        let more = match self.nr_targets {
            0 | 1 => String::new(),
            n => format!(" and {} more", n - 1),
        };
        let figures = format!(
            "{more}: {} in {}, {}",
            format_time(self.length_ns()),
            counted(self.snapshots, "snapshot"),
            counted(self.regions, "region")
        );
        elided(&what, width.saturating_sub(columns::width(&figures)).max(20)) + &figures
    }

    /// The head of a report: what was recorded where, and by which backend. A line each.
    pub fn head(&self) -> Vec<String> {
        self.head_within(TITLE)
    }

    /// The same within so many columns: the title as [`Self::title`] cuts it, and all broken at spaces.
    pub fn head_within(&self, width: usize) -> Vec<String> {
        let mut lines = wrapped(&self.title(width), width);
        let backend = if self.backend.name.is_empty() { "unknown" } else { self.backend.name.as_str() };
        let mut how = vec![format!("backend {}", printable(backend))];
        if self.backend.coarse {
            how.push(format!("{}: whole mappings only", printable(backend)));
        }
        if self.attrs.sample_us > 0 {
            how.push(format!(
                "sampling {}, aggregation {}{}",
                format_time(self.attrs.sample_us.saturating_mul(1000)),
                format_time(self.attrs.aggr_us.saturating_mul(1000)),
                if self.attrs_changed { " (changed on the way)" } else { "" }
            ));
        }
        if !self.kernel.is_empty() {
            how.push(
                format!("Linux {} {}", printable(&self.kernel), printable(&self.machine))
                    .trim_end()
                    .to_owned(),
            );
        }
        if !self.host.is_empty() {
            how.push(format!("on {}", printable(&self.host)));
        }
        lines.extend(wrapped(&how.join(", "), width));
        lines
    }

    /// The highest rate that can be seen, an access in each sampling interval, Hz; `None` where the interval is not known, or
    /// changed.
    pub fn highest_hz(&self) -> Option<f64> {
        (self.attrs.sample_us > 0 && !self.attrs_changed).then(|| 1e6 / self.attrs.sample_us as f64)
    }

    /// What has to be said of processes that came and went without being observed.
    fn unseen(&self, processes: Processes) -> Option<String> {
        let Processes { seen, too_short, at_most, unreached, longest_wait_ns, waiting } = processes;
        let more = match too_short {
            Some(0) => None,
            Some(count) => Some(format!("{count} more ended too soon to be")),
            None => Some(format!(
                "how many more ended too soon to be is not known with {}: at most {at_most}, threads and processes of others \
                 among them",
                printable(&self.backend.name)
            )),
        };
        let waiting = (waiting > 0).then(|| format!("{waiting} more still waited for it at the end"));
        let unreached = (unreached > 0).then(|| {
            let wait = format_time(longest_wait_ns);
            let budget = match self.overhead_limit > 0.0 {
                true => ": the overhead budget did not reach them, a higher --overhead reaches more",
                false => "",
            };
            format!("{unreached} more ended while they waited for it, for up to {wait}{budget}")
        });
        let parts: Vec<String> = more.into_iter().chain(waiting).chain(unreached).collect();
        // Some of them may have ended before anything was known of them.
        let targets = if seen == 1 { "was a target" } else { "were targets" };
        (!parts.is_empty()).then(|| format!("processes: {seen} {targets}, {}", parts.join(", ")))
    }

    /// What has to be said of lists of mappings that were not read to their end.
    fn unlisted(&self) -> Option<String> {
        let (of, rest) = match self.incomplete_mappings {
            0 => return None,
            1 => ("one process", "it maps"),
            _ => ("processes", "they map"),
        };
        let nr = if self.incomplete_mappings == 1 {
            String::new()
        } else {
            format!("{} ", self.incomplete_mappings)
        };
        let more = if self.overhead_limit > 0.0 { ", and a higher --overhead sooner" } else { "" };
        Some(format!(
            "the mappings of {nr}{of} are not known to the end of the list: what {rest} beyond is `{UNKNOWN_MAPPING}`. Long lists \
             are read in parts: a longer recording reads on{more}"
        ))
    }

    /// What has to be said of sampling intervals that the monitor missed, and what to do where they were many.
    fn late(&self) -> String {
        let missed = self.cost.samples_missed;
        let share = self.missed_share();
        let all = (missed as f64 / share.max(f64::MIN_POSITIVE)).round();
        let mut line = match share > 0.0 && share < 1.0 {
            true => format!("the monitor came late: {missed} of {all:.0} sampling intervals missed"),
            false => format!("the monitor came late: {} missed", counted(missed, "sampling interval")),
        };
        if share >= MANY_MISSED {
            line.push_str(
                ". Accesses in them were seen later, several as one, so high rates read too low. Unless the \
                 recorder was stopped or the machine suspended, a sampling interval is too short for what is to be looked at in \
                 it, or the machine too busy: record with a longer --sample (and --aggr), fewer --max-regions, or a higher \
                 --overhead",
            );
        }
        line
    }

    /// Share of the sampling intervals that the monitor missed because it came late, 0..=1; 0 where the recording does not
    /// say how many there were.
    pub(crate) fn missed_share(&self) -> f64 {
        let all = self.cost.wall_ns as f64 / (self.attrs.sample_us as f64 * 1e3);
        if all.is_finite() && all > 0.0 { (self.cost.samples_missed as f64 / all).min(1.0) } else { 0.0 }
    }

    /// The foot of a report, as [`Self::foot`] has it, in lines of at most so many columns.
    pub fn foot_within(&self, width: usize) -> Vec<String> {
        self.foot().iter().flat_map(|line| wrapped(line, width)).collect()
    }

    /// The foot of a report: everything that limits what it says. Empty when nothing does.
    pub fn foot(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if self.backend.coarse {
            lines.push(format!(
                "coarse: {} sees whole mappings only, so every region of a mapping shows the mapping's rate",
                printable(&self.backend.name)
            ));
        }
        for spot in &self.backend.blind_spots {
            lines.push(format!("blind spot: {}", printable(spot)));
        }
        let cost = &self.cost;
        if cost.checks_cut > 0 || cost.clears_cut > 0 {
            // A header that is lost does not say how much that was.
            let limit = match self.overhead_limit {
                limit if limit > 0.0 => format!(" ({} of a CPU)", format_share(limit)),
                _ => String::new(),
            };
            lines.push(format!(
                "cut by the overhead budget{limit}: {}, {}",
                counted(cost.checks_cut, "check"),
                counted(cost.clears_cut, "clear")
            ));
        }
        if cost.samples_missed > 0 {
            lines.push(self.late());
        }
        if cost.snapshots_lost > 0 {
            lines.push(format!("a slow observer lost {}", counted(cost.snapshots_lost, "snapshot")));
        }
        lines.extend(self.cost.processes.and_then(|processes| self.unseen(processes)));
        lines.extend(self.unlisted());
        if let Some(truncated) = &self.truncated {
            lines.push(format!("incomplete recording: {}", printable(truncated)));
        }
        lines.extend(self.remarks.iter().map(|remark| format!("as read: {}", printable(remark))));
        lines
    }
}
