//! Where a report comes from: every report says which backend saw the accesses, what it could not see, what the
//! overhead budget cut, and whether the recording is whole.

use crate::columns::{self, elided};
use crate::names::printable;
use crate::rate::interval_ns;
use crate::units::{counted, format_share, format_size, format_time};
use isotherm_damon::{Snapshot, TargetId};
use isotherm_record::{Backend, Cost, Header, Item, Processes, RecordedAttrs, SchemeAction, TargetInfo};
use serde::Serialize;
use std::collections::{HashSet, VecDeque};

/// Targets described by name; more are counted only.
const MAX_TARGETS: usize = 1024;
/// Of those counted only, so many that ended are still known: one that leaves a control group may come back.
const MAX_ENDED: usize = 1 << 16;
/// From this share of missed sampling intervals on, reports say what to do about it. A guess.
const MANY_MISSED: f64 = 0.1;
/// Most characters of a report's first line where no width is given.
const TITLE: usize = 160;

/// Sums of the [`Cost`] items of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CostTotals {
    /// Wall time covered, ns.
    pub wall_ns: u64,
    /// CPU time of the monitor, ns.
    pub cpu_ns: u64,
    /// Access checks done.
    pub checks: u64,
    /// Most checks in one sampling interval.
    pub max_checks_per_sample: u64,
    /// Pages cleared.
    pub clears: u64,
    /// Checks the overhead budget cut.
    pub checks_cut: u64,
    /// Clears the overhead budget cut.
    pub clears_cut: u64,
    /// Sampling intervals missed because the monitor came late.
    pub samples_missed: u64,
    /// Snapshots an observer lost because it was slow.
    pub snapshots_lost: u64,
    /// Checks that a scan of every resident page in every sampling interval would have done.
    pub full_scan_checks: f64,
    /// Processes that became targets, and those that should have; `waiting` is what was left at the end. `null` where the
    /// recording does not say.
    pub processes: Option<Processes>,
}

impl CostTotals {
    fn add(&mut self, cost: &Cost, sample_us: u64) {
        self.wall_ns = self.wall_ns.saturating_add(cost.wall_ns);
        self.cpu_ns = self.cpu_ns.saturating_add(cost.cpu_ns);
        self.checks = self.checks.saturating_add(cost.checks);
        self.max_checks_per_sample = self.max_checks_per_sample.max(cost.max_checks_per_sample);
        self.clears = self.clears.saturating_add(cost.clears);
        self.checks_cut = self.checks_cut.saturating_add(cost.checks_cut);
        self.clears_cut = self.clears_cut.saturating_add(cost.clears_cut);
        self.samples_missed = self.samples_missed.saturating_add(cost.samples_missed);
        self.snapshots_lost = self.snapshots_lost.saturating_add(cost.snapshots_lost);
        if let Some(more) = cost.processes {
            let none = Processes { too_short: Some(0), ..Processes::default() };
            let so_far = self.processes.unwrap_or(none);
            self.processes = Some(Processes {
                seen: so_far.seen.saturating_add(more.seen),
                too_short: so_far.too_short.zip(more.too_short).map(|(a, b)| a.saturating_add(b)),
                at_most: so_far.at_most.saturating_add(more.at_most),
                unreached: so_far.unreached.saturating_add(more.unreached),
                longest_wait_ns: so_far.longest_wait_ns.max(more.longest_wait_ns),
                waiting: more.waiting,
            });
        }
        if sample_us > 0 {
            let samples = cost.wall_ns as f64 / (sample_us as f64 * 1e3);
            self.full_scan_checks += cost.resident_pages as f64 * samples;
        }
    }

    /// CPU time of the monitor as a share of one CPU; `None` when nothing was measured.
    pub fn cpu_share(&self) -> Option<f64> {
        (self.wall_ns > 0).then(|| self.cpu_ns as f64 / self.wall_ns as f64)
    }
}

/// Actions of a scheme, summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct ActionTotals {
    /// Name of the scheme.
    pub scheme: String,
    /// What it did.
    pub action: String,
    /// How often.
    pub count: u64,
    /// Bytes that it was tried on.
    pub tried: u64,
    /// Bytes on which it took effect.
    pub applied: u64,
}

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

/// What is known about a recording besides its snapshots.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Provenance {
    /// Program that made the recording.
    pub producer: String,
    /// Host name.
    pub host: String,
    /// Kernel release.
    pub kernel: String,
    /// Machine.
    pub machine: String,
    /// The command that was started for the recording.
    pub command: Vec<String>,
    /// Wall-clock time of the start, ns since 1970.
    pub started_unix_ns: u64,
    /// The clock of all other times at the start, ns.
    pub started_ns: u64,
    /// Attributes last in force.
    pub attrs: RecordedAttrs,
    /// Whether they changed while recording.
    pub attrs_changed: bool,
    /// Ceiling of the monitor's CPU time as a share of one CPU; 0: none.
    pub overhead_limit: f64,
    /// Who saw the accesses, and what it could not see.
    pub backend: Backend,
    /// Targets, in order of appearance; the first 1024.
    pub targets: Vec<TargetInfo>,
    /// How many targets there were.
    pub nr_targets: u64,
    /// Those that are counted only.
    #[serde(skip)]
    counted: Counted,
    /// Snapshots read.
    pub snapshots: u64,
    /// Regions read, all snapshots and targets.
    pub regions: u64,
    /// Start of the first snapshot, ns.
    pub first_ns: u64,
    /// End of the last snapshot, ns.
    pub last_ns: u64,
    /// What monitoring cost.
    pub cost: CostTotals,
    /// What schemes did while it was recorded, a line a scheme and action.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub actions: Vec<ActionTotals>,
    /// Why the recording ended; `None` when it has no end.
    pub end: Option<String>,
    /// In what way the recording is incomplete, a clause; `None` when it is whole.
    pub truncated: Option<String>,
}

/// Ids of targets that are not described, so that each counts once.
#[derive(Clone, Debug, Default, PartialEq)]
struct Counted {
    ids: HashSet<u64>,
    /// Of those, the ones that ended, the oldest first.
    ended: VecDeque<u64>,
}

impl Counted {
    /// Whether it is a new one.
    fn add(&mut self, id: u64) -> bool {
        self.ids.insert(id)
    }

    fn end(&mut self, id: u64) {
        if self.ids.contains(&id) {
            self.ended.push_back(id);
        }
        if self.ended.len() > MAX_ENDED
            && let Some(oldest) = self.ended.pop_front()
        {
            self.ids.remove(&oldest);
        }
    }
}

impl Provenance {
    /// Takes what an item says about the recording.
    pub fn item(&mut self, item: &Item) {
        match item {
            Item::Snapshot(snapshot) => self.snapshot(snapshot),
            other => self.note(other),
        }
    }

    /// Counts a snapshot.
    pub fn snapshot(&mut self, snapshot: &Snapshot) {
        self.standing(snapshot, interval_ns(snapshot));
    }

    /// Counts a snapshot that stands for the time from `start` to `end`, ns.
    pub(crate) fn standing(&mut self, snapshot: &Snapshot, (start, end): (u64, u64)) {
        self.first_ns = if self.snapshots == 0 { start } else { self.first_ns.min(start) };
        self.last_ns = self.last_ns.max(end);
        self.snapshots += 1;
        self.regions += snapshot.nr_regions() as u64;
    }

    /// Takes an item other than a snapshot.
    pub fn note(&mut self, item: &Item) {
        match item {
            Item::Header(header) => self.header(header),
            Item::Target(info) => self.target(info),
            Item::Attrs { attrs, .. } => {
                self.attrs_changed |= self.attrs != *attrs;
                self.attrs = *attrs;
            }
            Item::Cost(cost) => self.cost.add(cost, self.attrs.sample_us),
            Item::Action(action) => self.action(action),
            Item::End(end) => {
                self.end = Some(end.reason.clone());
                if !end.blind_spots.is_empty() {
                    self.backend.blind_spots.clone_from(&end.blind_spots);
                }
            }
            Item::TargetEnd(end) => self.counted.end(end.target),
            Item::Mappings(_) | Item::Snapshot(_) => {}
        }
    }

    fn target(&mut self, info: &TargetInfo) {
        if let Some(known) = self.targets.iter_mut().find(|t| t.id == info.id) {
            // It runs another program now.
            known.clone_from(info);
        } else if self.targets.len() < MAX_TARGETS {
            self.nr_targets += 1;
            self.targets.push(info.clone());
        } else {
            self.nr_targets += u64::from(self.counted.add(info.id));
        }
    }

    fn action(&mut self, action: &SchemeAction) {
        let same = |t: &ActionTotals| t.scheme == action.scheme && t.action == action.action;
        let at = self.actions.iter().position(same).or_else(|| {
            // No more schemes run at once; of those that a file brought later only the first are told apart.
            (self.actions.len() < MAX_TARGETS).then(|| {
                let (scheme, action) = (action.scheme.clone(), action.action.clone());
                self.actions.push(ActionTotals { scheme, action, ..ActionTotals::default() });
                self.actions.len() - 1
            })
        });
        if let Some(totals) = at.and_then(|at| self.actions.get_mut(at)) {
            totals.count += 1;
            totals.tried = totals.tried.saturating_add(action.tried);
            totals.applied = totals.applied.saturating_add(action.applied);
        }
    }

    /// What schemes did, a sentence each.
    pub fn actions_in_words(&self) -> Vec<String> {
        self.actions.iter().map(ActionTotals::sentence).collect()
    }

    fn header(&mut self, header: &Header) {
        self.producer.clone_from(&header.producer);
        self.host.clone_from(&header.host);
        self.kernel.clone_from(&header.kernel);
        self.machine.clone_from(&header.machine);
        self.command.clone_from(&header.command);
        self.started_unix_ns = header.started_unix_ns;
        self.started_ns = header.started_ns;
        self.attrs = header.attrs;
        self.overhead_limit = header.overhead_limit;
        self.backend = header.backend.clone();
    }

    /// The time that reports call 0: the start of the recording, or of the first snapshot where that is unknown or
    /// later than it.
    pub fn origin_ns(&self) -> u64 {
        match self.started_ns {
            0 => self.first_ns,
            started if self.snapshots > 0 => started.min(self.first_ns),
            started => started,
        }
    }

    /// Time covered by the snapshots, ns.
    pub fn length_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
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
            (false, _) => printable(&self.command.join(" ")).into_owned(),
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

    /// The same, its first line as [`Self::title`] cuts it to `width`.
    pub fn head_within(&self, width: usize) -> Vec<String> {
        let mut lines = vec![self.title(width)];
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
        lines.push(how.join(", "));
        lines
    }

    /// Whether memory that could not be observed is told from idle memory: the formats of other programs have no place for it.
    pub fn tells_unknown(&self) -> bool {
        !self.backend.name.starts_with(isotherm_record::IMPORTED)
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
        let were = if seen == 1 { "was" } else { "were" };
        (!parts.is_empty())
            .then(|| format!("processes: {seen} {were} found and observed, {}", parts.join(", ")))
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
        if let Some(truncated) = &self.truncated {
            lines.push(format!("incomplete recording: {}", printable(truncated)));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_record::{End, TargetEnd};

    fn recorded() -> Provenance {
        let mut provenance = Provenance::default();
        provenance.note(&Item::Header(Header {
            host: "box".to_owned(),
            kernel: "6.1.0".to_owned(),
            machine: "x86_64".to_owned(),
            command: vec!["redis-server".to_owned(), "--save\u{7}".to_owned()],
            started_ns: 1_000,
            attrs: RecordedAttrs { sample_us: 5_000, aggr_us: 100_000, ..RecordedAttrs::default() },
            backend: Backend { name: "refs".to_owned(), coarse: true, blind_spots: vec!["guess".to_owned()] },
            overhead_limit: 0.01,
            ..Header::default()
        }));
        provenance
    }

    #[test]
    fn head_and_foot_say_who_saw_it_and_what_it_could_not_see() {
        let mut provenance = recorded();
        provenance.note(&Item::Cost(Cost { clears_cut: 7, wall_ns: 1_000_000_000, ..Cost::default() }));
        provenance.truncated = Some("cut after 3 s".to_owned());
        let head = provenance.head().join("\n");
        assert!(head.contains("refs: whole mappings only") && head.contains("sampling 5 ms"), "{head}");
        assert!(head.contains("redis-server --save?"), "{head}");
        let foot = provenance.foot().join("\n");
        for part in ["coarse", "blind spot: guess", "1 % of a CPU", "7 clears", "cut after 3 s"] {
            assert!(foot.contains(part), "{part} in {foot}");
        }
    }

    #[test]
    fn the_end_replaces_blind_spots_only_when_it_knows_better() {
        let mut provenance = recorded();
        provenance.note(&Item::End(End { reason: "interrupted".to_owned(), ..End::default() }));
        assert_eq!(provenance.backend.blind_spots, ["guess"]);
        provenance.note(&Item::End(End { blind_spots: vec!["measured".to_owned()], ..End::default() }));
        assert_eq!(provenance.backend.blind_spots, ["measured"]);
    }

    #[test]
    fn a_target_that_runs_another_program_is_still_one() {
        let mut provenance = recorded();
        for comm in ["sh", "sleep"] {
            let info = TargetInfo { id: 7, pid: 7, comm: comm.to_owned(), ..TargetInfo::default() };
            provenance.note(&Item::Target(info));
        }
        assert_eq!(provenance.nr_targets, 1);
        assert_eq!(provenance.target_name(TargetId(7)), "sleep (pid 7)");
    }

    #[test]
    fn each_of_many_targets_counts_once_however_often_it_runs_another_program() {
        let mut provenance = recorded();
        for comm in ["sh", "make", "cc"] {
            for id in 0..3_000 {
                let info = TargetInfo { id, comm: comm.to_owned(), ..TargetInfo::default() };
                provenance.note(&Item::Target(info));
            }
        }
        assert_eq!((provenance.nr_targets, provenance.targets.len()), (3_000, MAX_TARGETS));
        // One that leaves a control group and comes back is the same, and what ended long ago takes no memory.
        let end = |target| Item::TargetEnd(TargetEnd { target, ..TargetEnd::default() });
        provenance.note(&end(2_999));
        provenance.note(&Item::Target(TargetInfo { id: 2_999, ..TargetInfo::default() }));
        assert_eq!(provenance.nr_targets, 3_000);
        for id in 3_000..3_000 + 2 * MAX_ENDED as u64 {
            provenance.note(&Item::Target(TargetInfo { id, ..TargetInfo::default() }));
            provenance.note(&end(id));
        }
        assert_eq!(provenance.nr_targets, 3_000 + 2 * MAX_ENDED as u64);
        assert!(provenance.counted.ids.len() < 3_000 + MAX_ENDED);
    }

    #[test]
    fn processes_that_were_not_seen_are_told_and_unknown_is_not_none() {
        let foot = |costs: &[(u64, Option<u64>, u64)]| {
            let mut provenance = recorded();
            for &(seen, too_short, waiting) in costs {
                let at_most = too_short.unwrap_or(50);
                let processes = Some(Processes { seen, too_short, at_most, waiting, ..Processes::default() });
                provenance.note(&Item::Cost(Cost { processes, ..Cost::default() }));
            }
            provenance.foot().into_iter().find(|line| line.starts_with("processes"))
        };
        assert_eq!(foot(&[]), None, "a recording that does not say");
        assert_eq!(foot(&[(3, Some(0), 2), (1, Some(0), 0)]), None);
        let said = foot(&[(3, Some(1900), 7), (1, Some(98), 2)]).unwrap();
        assert!(
            said.contains("4 were found and observed, 1998 more") && said.contains("2 more still waited"),
            "{said}"
        );
        let said = foot(&[(3, Some(1), 0), (1, None, 0)]).unwrap();
        assert!(said.contains("not known with refs: at most 51"), "{said}");
        let mut provenance = recorded();
        let too_short = Some(2);
        let late = Processes {
            seen: 9,
            too_short,
            unreached: 148,
            longest_wait_ns: 2_900_000_000,
            ..Processes::default()
        };
        provenance.note(&Item::Cost(Cost { processes: Some(late), ..Cost::default() }));
        let said = provenance.foot().join("\n");
        for part in [
            "2 more ended too soon to be",
            "148 more ended while they waited for it, for up to 2.9 s",
            "--overhead",
        ] {
            assert!(said.contains(part), "{part} in {said}");
        }
    }

    #[test]
    fn many_missed_intervals_come_with_advice_and_few_without() {
        let foot = |missed| {
            let mut provenance = recorded();
            provenance.note(&Item::Cost(Cost {
                wall_ns: 13_000_000_000,
                samples_missed: missed,
                snapshots_lost: 1,
                ..Cost::default()
            }));
            provenance.foot().join("\n")
        };
        let many = foot(1952);
        for part in ["1952 of 2600 sampling intervals missed", "--sample", "--overhead", "1 snapshot"] {
            assert!(many.contains(part) && !many.contains("1 snapshots"), "{part} in {many}");
        }
        assert!(foot(26).contains("26 of 2600") && !foot(26).contains("--sample"), "{}", foot(26));
    }

    #[test]
    fn costs_add_up() {
        let mut provenance = recorded();
        let cost = Cost {
            wall_ns: 1_000_000_000,
            cpu_ns: 5_000_000,
            checks: 10,
            resident_pages: 100,
            ..Cost::default()
        };
        provenance.note(&Item::Cost(cost));
        provenance.note(&Item::Cost(Cost { max_checks_per_sample: 9, ..cost }));
        assert_eq!(provenance.cost.cpu_share(), Some(0.005));
        assert_eq!(provenance.cost.max_checks_per_sample, 9);
        // 100 pages, 200 samples a second, 2 s.
        assert!((provenance.cost.full_scan_checks - 40_000.0).abs() < 1e-6);
    }
}
