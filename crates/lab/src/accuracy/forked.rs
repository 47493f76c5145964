//! What a record says of a process's hot memory while a child that it forked shares that memory, and afterwards: second by
//! second, by the truth's own log.
//!
//! Memory counts as hot in a snapshot if it was accessed at the pattern's hot rate or more over the second before the
//! snapshot's end, and at least once in the snapshot's own window. So what a busy machine kept the program from doing is asked
//! of nobody. Memory that no region covers counts as cold, as everywhere here.

use super::overlay::overlay;
use super::second::SECOND_NS;
use super::table::percent_of;
use crate::table::{Table, percent};
use isotherm_damon::{RegionSnapshot, Snapshot};
use isotherm_workloads::truth::{Segment, Truth};
use serde::Serialize;
use std::collections::BTreeMap;

/// Share of the hot memory that must be neither unknown nor cold for all of it to count as seen. The rest is left for the
/// borders of regions.
const SEEN: f64 = 0.95;
/// A rate that is less than this share of the real one reads cold to whoever looks for cold memory: 1 Hz where it is 20 Hz. What
/// lies above is a matter of how exact rates are, which others judge.
const COLD: f64 = 0.05;
/// A rate that is at least this share of the real one reads hot.
const HOT: f64 = 0.5;
/// Time after a child's end, and snapshots of the default attributes, after which all hot memory is to be seen again.
const SOON: (u64, u64) = (2 * SECOND_NS, 20);
/// Seconds before a fork that are told.
const BEFORE_NS: u64 = 3 * SECOND_NS;

/// Hot memory by what the record called it: mean bytes over some snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Told {
    /// At half its real rate or more.
    pub hot: f64,
    /// In between.
    pub lukewarm: f64,
    /// At less than a twentieth of its real rate, mostly at 0 Hz: reads cold, and is not.
    pub cold: f64,
    /// Not known.
    pub unknown: f64,
}

impl Told {
    fn all(&self) -> f64 {
        self.hot + self.lukewarm + self.cold + self.unknown
    }

    fn share(&self, part: f64) -> f64 {
        if self.all() > 0.0 { part / self.all() } else { 0.0 }
    }

    fn add(&mut self, other: &Self) {
        self.hot += other.hot;
        self.lukewarm += other.lukewarm;
        self.cold += other.cold;
        self.unknown += other.unknown;
    }

    fn scaled(&self, by: f64) -> Self {
        Self {
            hot: self.hot * by,
            lukewarm: self.lukewarm * by,
            cold: self.cold * by,
            unknown: self.unknown * by,
        }
    }
}

/// When a second lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum When {
    /// Before the fork; counted backwards from it: -1 is the last.
    Before,
    /// While the child lives; counted from the fork.
    During,
    /// Counted from the child's end.
    After,
}

/// One second of what was told.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ForkedSecond {
    /// On which side of the fork and of the child's end.
    pub when: When,
    /// Which second there.
    pub second: i64,
    /// Snapshots that ended in it and had hot memory to judge.
    pub snapshots: u64,
    /// Mean over them.
    #[serde(flatten)]
    pub told: Told,
}

/// One child and what was told around its life.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Forked {
    /// The child's name in the pattern.
    pub child: String,
    /// How long it lived, ms.
    pub lived_ms: f64,
    /// Whether the hot memory was seen, so neither unknown nor cold, when it was forked. If not, what follows says little.
    pub seen_before: bool,
    /// Second by second, from three seconds before the fork to the next fork, or the end.
    pub seconds: Vec<ForkedSecond>,
    /// Share of the hot memory that read cold, in the worst snapshot of those seconds.
    pub worst_cold_share: f64,
    /// When that was: ms from the fork.
    pub worst_cold_at_ms: f64,
    /// Share of the hot memory that was unknown, in the worst snapshot.
    pub worst_unknown_share: f64,
    /// Time from the child's end to the end of the first snapshot from which on all hot memory was seen for a second, ms; `None`:
    /// there was none before the next fork, or the end.
    pub seen_after_ms: Option<f64>,
    /// The same in snapshots with hot memory to judge, that one included: a machine that holds the monitor up makes them longer.
    pub seen_after_snapshots: Option<u64>,
    /// Share of the hot memory that was unknown or cold in the worst snapshot from the second second after the child's end on, and the
    /// twentieth snapshot; `None`: there is none.
    pub worst_unseen_later: Option<f64>,
}

/// Sums for one child.
#[derive(Clone, Debug)]
struct Life {
    child: String,
    fork_ns: u64,
    /// From here on it is gone for certain.
    gone_ns: u64,
    seconds: BTreeMap<(When, i64), (u64, Told)>,
    last_before: Option<f64>,
    worst_cold: (f64, i64),
    worst_unknown: f64,
    /// Snapshots since it is gone.
    after: u64,
    /// Since when all was seen in each snapshot, and in which that began.
    since: Option<(u64, u64)>,
    seen: Option<(u64, u64)>,
    worst_later: Option<f64>,
}

/// Takes snapshots in time order.
#[derive(Clone, Debug, Default)]
pub(super) struct Lives(Vec<Life>);

impl Lives {
    pub(super) fn of(truth: &Truth) -> Self {
        let life = |process: &isotherm_workloads::truth::ProcessLine| {
            let index = truth.phases.iter().position(|p| Some(p.index) == process.phase)?;
            let phase = truth.phases.get(index)?;
            // It was waited for before the next phase began.
            let gone_ns = truth.phases.get(index + 1).map_or(phase.end_ns, |next| next.start_ns);
            Some(Life {
                child: process.name.clone(),
                fork_ns: phase.start_ns,
                gone_ns,
                seconds: BTreeMap::new(),
                last_before: None,
                worst_cold: (0.0, 0),
                worst_unknown: 0.0,
                after: 0,
                since: None,
                seen: None,
                worst_later: None,
            })
        };
        Self(truth.processes.iter().filter_map(life).collect())
    }

    /// Judges what `regions`, those of the process that forks, say in `snapshot`.
    pub(super) fn add(&mut self, truth: &Truth, regions: &[RegionSnapshot], snapshot: &Snapshot) {
        let end = snapshot.end_ns;
        let last = self.0.partition_point(|life| life.fork_ns.saturating_sub(BEFORE_NS) < end);
        let Some(life) = last.checked_sub(1).and_then(|i| self.0.get_mut(i)) else { return };
        // A second that ends with the snapshot and lies in phases.
        let first = truth.phases.first().map_or(u64::MAX, |p| p.start_ns);
        let since = end.saturating_sub(SECOND_NS);
        if since < first || truth.phases.last().is_none_or(|p| p.end_ns < end) || snapshot.start_ns >= end {
            return;
        }
        let told = told(truth, since..end, regions, snapshot);
        if told.all() > 0.0 {
            life.add(end, &told);
        }
    }

    pub(super) fn verdict(&self) -> Vec<Forked> {
        self.0.iter().map(Life::verdict).collect()
    }
}

/// The hot memory in this snapshot, by what it is called.
fn told(
    truth: &Truth,
    second: std::ops::Range<u64>,
    regions: &[RegionSnapshot],
    snapshot: &Snapshot,
) -> Told {
    let pid = truth.workload.pid;
    let window = truth.coverage(snapshot.start_ns..snapshot.end_ns);
    let touched: Vec<Segment> = window.of(pid).iter().filter(|s| s.accessed >= 1.0).copied().collect();
    let second = truth.coverage(second);
    let hot = second.of(pid).iter().filter(|s| s.hz >= truth.workload.hot_hz);
    let mut pieces: Vec<Segment> = Vec::new();
    for segment in hot {
        let first = touched.partition_point(|t| t.end <= segment.start);
        let inside = touched.iter().skip(first).take_while(|t| t.start < segment.end);
        pieces.extend(inside.map(|t| Segment {
            start: t.start.max(segment.start),
            end: t.end.min(segment.end),
            ..*segment
        }));
    }
    let mut told = Told::default();
    overlay(&pieces, regions, |piece, region, part| {
        let bytes = part.size() as f64;
        let hz = region.map_or(0.0, |r| r.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses));
        let sum = if region.is_some_and(RegionSnapshot::is_unknown) {
            &mut told.unknown
        } else if hz >= piece.hz * HOT {
            &mut told.hot
        } else if hz >= piece.hz * COLD {
            &mut told.lukewarm
        } else {
            &mut told.cold
        };
        *sum += bytes;
    });
    told
}

impl Life {
    fn add(&mut self, end: u64, told: &Told) {
        let seconds = |from: u64| (end.saturating_sub(from) / SECOND_NS) as i64;
        let from_fork = end as i64 - self.fork_ns as i64;
        let key = if end <= self.fork_ns {
            (When::Before, -1 - ((self.fork_ns - end) / SECOND_NS) as i64)
        } else if end <= self.gone_ns {
            (When::During, seconds(self.fork_ns))
        } else {
            (When::After, seconds(self.gone_ns))
        };
        let (count, sum) = self.seconds.entry(key).or_default();
        *count += 1;
        sum.add(told);
        let (seen, cold) = (told.share(told.hot + told.lukewarm), told.share(told.cold));
        if cold > self.worst_cold.0 {
            self.worst_cold = (cold, from_fork);
        }
        self.worst_unknown = self.worst_unknown.max(told.share(told.unknown));
        match key.0 {
            When::Before => self.last_before = Some(seen),
            When::During => {}
            When::After => {
                self.after += 1;
                self.since = (seen >= SEEN).then(|| self.since.unwrap_or((end, self.after)));
                if let Some((first, snapshots)) = self.since.filter(|(first, _)| end - first >= SECOND_NS)
                    && self.seen.is_none()
                {
                    self.seen = Some((first - self.gone_ns, snapshots));
                }
                if end - self.gone_ns > SOON.0 && self.after > SOON.1 {
                    self.worst_later = Some(self.worst_later.unwrap_or(0.0).max(1.0 - seen));
                }
            }
        }
    }

    fn verdict(&self) -> Forked {
        let second = |(&(when, second), &(snapshots, sum)): (&(When, i64), &(u64, Told))| ForkedSecond {
            when,
            second,
            snapshots,
            told: sum.scaled(1.0 / snapshots.max(1) as f64),
        };
        Forked {
            child: self.child.clone(),
            lived_ms: (self.gone_ns - self.fork_ns) as f64 / 1e6,
            seen_before: self.last_before.is_some_and(|seen| seen >= SEEN),
            seconds: self.seconds.iter().map(second).collect(),
            worst_cold_share: self.worst_cold.0,
            worst_cold_at_ms: self.worst_cold.1 as f64 / 1e6,
            worst_unknown_share: self.worst_unknown,
            seen_after_ms: self.seen.map(|(ns, _)| ns as f64 / 1e6),
            seen_after_snapshots: self.seen.map(|(_, snapshots)| snapshots),
            worst_unseen_later: self.worst_later,
        }
    }
}

impl Forked {
    /// One line of it.
    pub fn summary(&self) -> String {
        let after = self.seen_after_ms.map_or_else(
            || "not all of it seen again".to_owned(),
            |ms| format!("all of it seen again {ms:.0} ms after its end"),
        );
        format!(
            "{} lived {:.1} s; of hot memory at most {} read cold ({:.1} s from the fork) and {} unknown; {after}; from 2 s on at most {} not seen",
            self.child,
            self.lived_ms / 1e3,
            percent_of(self.worst_cold_share),
            self.worst_cold_at_ms / 1e3,
            percent_of(self.worst_unknown_share),
            percent(self.worst_unseen_later, 1),
        )
    }

    /// Second by second, for people.
    pub fn details(&self) -> String {
        let mut table =
            Table::new(&["second", "snapshots", "hot memory", "hot", "lukewarm", "cold", "unknown"]);
        for second in &self.seconds {
            let told = &second.told;
            let label = match second.when {
                When::Before => format!("fork {}", second.second),
                When::During => format!("fork +{}", second.second),
                When::After => format!("end +{}", second.second),
            };
            let share = |part| percent_of(told.share(part));
            table.row([
                label,
                second.snapshots.to_string(),
                crate::table::mib(told.all() as u64),
                share(told.hot),
                share(told.lukewarm),
                share(told.cold),
                share(told.unknown),
            ]);
        }
        format!("{}\n{}", self.summary(), table.render())
    }
}

#[cfg(test)]
mod tests;
