//! The regions of a moment, or of a stretch of time: where, how large, how hot, for how long.

mod pattern;
mod text;

pub use pattern::{Pattern, SortKey};
pub use text::write_text;

use crate::Accumulate;
use crate::names::NameBook;
use crate::provenance::Provenance;
use crate::rate::{RateScale, interval_ns};
use crate::segments::{self, Segment};
use crate::units::SECOND_NS;
use isotherm_damon::{AddrRange, Snapshot, TargetId};
use isotherm_record::Item;
use serde::Serialize;
use std::time::Duration;

/// Segments an aggregate is reduced to; above it, neighbours of similar rate are joined.
const MAX_SEGMENTS: usize = 4096;

/// Which snapshots to report. Times are distances from the recording's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Selection {
    /// The last snapshot.
    #[default]
    Last,
    /// The snapshot of this moment; where there is none, the one before it (or the first).
    At(Duration),
    /// The mean over all snapshots that overlap this time, each in proportion.
    Between(Duration, Duration),
}

/// What to report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AccessOptions {
    /// Which snapshots.
    pub selection: Selection,
    /// Which of their regions.
    pub pattern: Pattern,
    /// Order within a target; [`SortKey::Address`] unless said otherwise.
    pub sort: SortKey,
    /// Largest first.
    pub descending: bool,
}

/// A region with what is known about it.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AccessRegion {
    /// Target id.
    pub target: u64,
    /// First address.
    pub start: u64,
    /// First address past it.
    pub end: u64,
    /// Bytes.
    pub size: u64,
    /// Name of the mapping that covers most of it; `null` where none is known.
    pub mapping: Option<String>,
    /// Accesses counted in the aggregation; `null` in an aggregate of several snapshots.
    pub nr_accesses: Option<u32>,
    /// Access rate, Hz.
    pub rate_hz: f64,
    /// Share of the highest rate that could be seen, 0..=1; `null` when the recording does not tell.
    pub rate_share: Option<f64>,
    /// For how long it has kept about this rate, ns.
    pub age_ns: u64,
}

/// Regions within some range of rates.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RateClass {
    /// Rates above this share of the ceiling (the class of 0 Hz: including it), 0..=1.
    pub above_share: f64,
    /// Rates up to this share of the ceiling, 0..=1.
    pub up_to_share: f64,
    /// Number of regions.
    pub regions: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Sums over regions.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Totals {
    /// Number of regions.
    pub regions: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Size-weighted mean access rate, Hz; 0 without regions.
    pub rate_hz: f64,
    /// By rate, coldest first.
    pub classes: Vec<RateClass>,
}

/// The regions of one target.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TargetAccess {
    /// Target id.
    pub target: u64,
    /// Its name and pid, as far as known.
    pub name: String,
    /// Its regions that fit the pattern, in the order asked for.
    pub regions: Vec<AccessRegion>,
    /// Sums over them.
    pub totals: Totals,
}

/// The regions of a moment or of a stretch of time.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AccessReport {
    /// Where it comes from.
    pub provenance: Provenance,
    /// The time that the regions stand for: from, ns.
    pub start_ns: u64,
    /// To, ns.
    pub end_ns: u64,
    /// The time called 0, ns.
    pub origin_ns: u64,
    /// How many snapshots went into it.
    pub snapshots: u64,
    /// What shares of a rate refer to, Hz: the highest rate that could be seen or, where the recording does not tell,
    /// that was seen.
    pub ceiling_hz: f64,
    /// Regions that do not fit the pattern.
    pub hidden_regions: u64,
    /// Their bytes.
    pub hidden_bytes: u64,
    /// A group a target.
    pub targets: Vec<TargetAccess>,
    /// Sums over all shown.
    pub totals: Totals,
}

/// Keeps the regions of the selected time.
#[derive(Clone, Debug)]
pub struct AccessAnalysis {
    options: AccessOptions,
    provenance: Provenance,
    names: NameBook,
    held: Snapshot,
    segments: Vec<Segment>,
    spare: (Vec<Segment>, Vec<Segment>),
    /// Time covered and number of the snapshots selected.
    covered: Option<(u64, u64)>,
    snapshots: u64,
    ceiling_hz: Option<f64>,
}

impl AccessAnalysis {
    /// An analysis of nothing yet.
    pub fn new(options: AccessOptions) -> Self {
        Self {
            options,
            provenance: Provenance::default(),
            names: NameBook::default(),
            held: Snapshot::default(),
            segments: Vec::new(),
            spare: (Vec::new(), Vec::new()),
            covered: None,
            snapshots: 0,
            ceiling_hz: None,
        }
    }

    /// For reports on a recording that was cut: in what way, a clause.
    pub fn set_truncated(&mut self, how: String) {
        self.provenance.truncated = Some(how);
    }

    fn absolute(&self, time: Duration) -> u64 {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.provenance.origin_ns().saturating_add(ns)
    }

    /// Keeps a copy of the snapshot; beside the held one when both are of the same moment (recordings with one target
    /// a snapshot).
    fn hold(&mut self, snapshot: &Snapshot) {
        if self.snapshots > 0 && self.held.end_ns == snapshot.end_ns {
            self.held.targets.extend(snapshot.targets.iter().cloned());
            self.snapshots += 1;
            return;
        }
        let Snapshot { start_ns, end_ns, sample_ns, max_nr_accesses, targets } = snapshot;
        self.held.start_ns = *start_ns;
        self.held.end_ns = *end_ns;
        self.held.sample_ns = *sample_ns;
        self.held.max_nr_accesses = *max_nr_accesses;
        self.held.targets.clone_from(targets);
        self.snapshots = 1;
    }

    fn add(&mut self, snapshot: &Snapshot, from: u64, to: u64) {
        let (start, end) = interval_ns(snapshot);
        let (shared_start, shared_end) = (start.max(from), end.min(to));
        if shared_start >= shared_end {
            return;
        }
        let weight = (shared_end - shared_start) as f64 / (end - start) as f64;
        segments::of_snapshot(snapshot, weight, |_| true, &mut self.spare.0);
        segments::overlay(&self.segments, &self.spare.0, &mut self.spare.1);
        std::mem::swap(&mut self.segments, &mut self.spare.1);
        if self.segments.len() > 4 * MAX_SEGMENTS {
            segments::reduce(&mut self.segments, 2 * MAX_SEGMENTS);
        }
        let (a, b) = self.covered.unwrap_or((shared_start, shared_end));
        self.covered = Some((a.min(shared_start), b.max(shared_end)));
        self.snapshots += 1;
        if let Some(hz) = RateScale::of(snapshot).max_hz() {
            self.ceiling_hz = Some(self.ceiling_hz.map_or(hz, |c: f64| c.max(hz)));
        }
    }

    /// The report. Without a snapshot in the selected time it has no targets.
    pub fn finish(mut self) -> AccessReport {
        let (start_ns, end_ns, regions) = match self.options.selection {
            Selection::Between(..) => {
                segments::reduce(&mut self.segments, MAX_SEGMENTS);
                let (start, end) = self.covered.unwrap_or((0, 0));
                (start, end, self.aggregate())
            }
            _ if self.snapshots == 0 => (0, 0, Vec::new()),
            _ => {
                let (start, end) = interval_ns(&self.held);
                (start, end, self.moment())
            }
        };
        let highest = regions.iter().map(|r| r.rate_hz).fold(0.0, f64::max);
        let ceiling_hz = self.ceiling_hz.unwrap_or(highest);
        let (shown, hidden): (Vec<AccessRegion>, Vec<AccessRegion>) =
            regions.into_iter().partition(|r| self.options.pattern.matches(r, ceiling_hz));
        let mut report = AccessReport {
            start_ns,
            end_ns,
            origin_ns: self.provenance.origin_ns(),
            snapshots: self.snapshots,
            ceiling_hz,
            hidden_regions: hidden.len() as u64,
            hidden_bytes: hidden.iter().fold(0, |sum, r| sum.saturating_add(r.size)),
            totals: totals(&shown, ceiling_hz),
            targets: Vec::new(),
            provenance: self.provenance,
        };
        let mut shown = shown;
        self.options.sort.sort(&mut shown, self.options.descending);
        for regions in shown.chunk_by(|a, b| a.target == b.target) {
            let Some(first) = regions.first() else { continue };
            report.targets.push(TargetAccess {
                target: first.target,
                name: report.provenance.target_name(TargetId(first.target)),
                totals: totals(regions, ceiling_hz),
                regions: regions.to_vec(),
            });
        }
        report
    }

    fn name(&self, target: TargetId, range: AddrRange) -> Option<String> {
        self.names.name(target, range).map(|name| name.to_string())
    }

    /// The regions of the held snapshot.
    fn moment(&mut self) -> Vec<AccessRegion> {
        let scale = RateScale::of(&self.held);
        self.ceiling_hz = scale.max_hz();
        let (start, end) = interval_ns(&self.held);
        let aggr_ns = match self.held.sample_ns.saturating_mul(u64::from(self.held.max_nr_accesses)) {
            0 => end - start,
            ns => ns,
        };
        let targets = self.held.targets.iter();
        targets
            .flat_map(|target| target.regions.iter().map(move |region| (target.id, region)))
            .filter(|(_, region)| !region.range.is_empty())
            .map(|(target, region)| AccessRegion {
                target: target.0,
                start: region.range.start,
                end: region.range.end,
                size: region.range.size(),
                mapping: self.name(target, region.range),
                nr_accesses: Some(region.nr_accesses),
                rate_hz: scale.hz(region),
                rate_share: scale.max_hz().map(|max| scale.hz(region) / max),
                age_ns: u64::from(region.age).saturating_mul(aggr_ns),
            })
            .collect()
    }

    /// The segments of the selected time.
    fn aggregate(&self) -> Vec<AccessRegion> {
        let region = |s: &Segment| AccessRegion {
            target: s.target.0,
            start: s.range.start,
            end: s.range.end,
            size: s.range.size(),
            mapping: self.name(s.target, s.range),
            nr_accesses: None,
            rate_hz: s.rate_hz(),
            rate_share: self.ceiling_hz.map(|max| s.rate_hz() / max),
            age_ns: (s.age_s() * SECOND_NS).round() as u64,
        };
        self.segments.iter().map(region).collect()
    }
}

impl Accumulate for AccessAnalysis {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.provenance.snapshot(snapshot);
        match self.options.selection {
            Selection::Last => self.hold(snapshot),
            Selection::At(time) => {
                if self.snapshots == 0 || interval_ns(snapshot).0 <= self.absolute(time) {
                    self.hold(snapshot);
                }
            }
            Selection::Between(from, to) => self.add(snapshot, self.absolute(from), self.absolute(to)),
        }
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
        let limit = match self.options.selection {
            Selection::Last => u64::MAX,
            Selection::At(time) | Selection::Between(_, time) => self.absolute(time),
        };
        // The names of then, not of later.
        match item {
            Item::Mappings(m) if m.time_ns > limit && self.names.time_ns(TargetId(m.target)).is_some() => {}
            other => self.names.note(other),
        }
    }
}

/// Upper ends of the rate classes as shares of the highest rate; 5 % is where the seeds' schemes draw their line.
const CLASSES: [f64; 5] = [0.0, 0.05, 0.25, 0.75, 1.0];

fn totals(regions: &[AccessRegion], ceiling_hz: f64) -> Totals {
    let mut totals = Totals::default();
    let mut above = 0.0;
    for up_to in CLASSES {
        totals.classes.push(RateClass { above_share: above, up_to_share: up_to, ..RateClass::default() });
        above = up_to;
    }
    let mut heat = 0.0;
    for region in regions {
        totals.regions += 1;
        totals.bytes = totals.bytes.saturating_add(region.size);
        heat += region.rate_hz * region.size as f64;
        let share = if ceiling_hz > 0.0 { region.rate_hz / ceiling_hz } else { 0.0 };
        let last = totals.classes.len() - 1;
        // Rounding must not push a rate over the edge that it names.
        let index = CLASSES.iter().position(|up_to| share <= up_to * (1.0 + 1e-9)).unwrap_or(last);
        let class = &mut totals.classes[index];
        class.regions += 1;
        class.bytes = class.bytes.saturating_add(region.size);
    }
    totals.rate_hz = if totals.bytes > 0 { heat / totals.bytes as f64 } else { 0.0 };
    totals
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{MIB, any_snapshots, heat, region, snapshot, stairs};
    use isotherm_record::{Mapping, Mappings};
    use proptest::prelude::*;

    fn report(options: AccessOptions, list: &[Snapshot]) -> AccessReport {
        let mut analysis = AccessAnalysis::new(options);
        list.iter().for_each(|s| analysis.snapshot(s));
        analysis.finish()
    }

    fn select(selection: Selection) -> AccessOptions {
        AccessOptions { selection, ..AccessOptions::default() }
    }

    /// Start of the hottest region, in steps of the stairs.
    fn hot_step(report: &AccessReport) -> u64 {
        let regions = report.targets[0].regions.iter();
        regions.max_by(|a, b| a.rate_hz.total_cmp(&b.rate_hz)).unwrap().start / (10 * MIB)
    }

    #[test]
    fn a_moment_is_the_snapshot_it_lies_in() {
        let list = stairs(0, 10);
        assert_eq!(hot_step(&report(select(Selection::Last), &list)), 9);
        for (at, step) in [(0.0, 0), (3.45, 3), (100.0, 9)] {
            assert_eq!(hot_step(&report(select(Selection::At(Duration::from_secs_f64(at))), &list)), step);
        }
        let last = report(select(Selection::Last), &list);
        let hot = &last.targets[0].regions[9];
        assert_eq!((hot.rate_hz, hot.rate_share, hot.nr_accesses), (200.0, Some(1.0), Some(20)));
        assert_eq!((hot.age_ns, last.totals.rate_hz), (300_000_000, 20.0));
    }

    #[test]
    fn an_aggregate_is_the_mean_over_its_time() {
        let between = Selection::Between(Duration::from_millis(500), Duration::from_millis(2500));
        let report = report(select(between), &stairs(0, 10));
        assert_eq!((report.start_ns, report.end_ns, report.snapshots), (500_000_000, 2_500_000_000, 20));
        let rates: Vec<f64> = report.targets[0].regions.iter().map(|r| r.rate_hz.round()).collect();
        assert_eq!(rates[..3], [50.0, 100.0, 50.0]);
        assert!(rates[3..].iter().all(|hz| *hz == 0.0));
    }

    proptest! {
        #[test]
        fn an_aggregate_keeps_the_mean_rate_of_every_byte(list in any_snapshots(), from in 0u64..2000, size in 1u64..3000) {
            let report = report(select(Selection::Between(Duration::ZERO, Duration::from_secs(100))), &list);
            let range = AddrRange::new(from, from + size);
            for region in report.targets.iter().flat_map(|t| &t.regions) {
                let own = AddrRange::new(region.start, region.end);
                let (heat, seen) = heat(&list, own.intersection(range));
                // Segments are cut at every boundary, so each byte of one has the segment's rate.
                if seen > 0.0 {
                    prop_assert!((region.rate_hz - heat / seen).abs() < 1e-6 * region.rate_hz.max(1.0));
                }
            }
        }
    }

    #[test]
    fn names_are_those_of_the_selected_time() {
        let map = |time_ns, name: &str| {
            let maps =
                vec![Mapping { start: 0, end: 100 * MIB, perms: String::new(), name: name.to_owned() }];
            Item::Mappings(Mappings { target: 1, time_ns, maps })
        };
        let mut analysis = AccessAnalysis::new(select(Selection::At(Duration::from_secs(2))));
        analysis.note(&map(0, "/before"));
        for (i, snapshot) in stairs(0, 10).iter().enumerate() {
            if i == 50 {
                analysis.note(&map(5_000_000_000, "/after"));
            }
            analysis.snapshot(snapshot);
        }
        assert_eq!(analysis.finish().targets[0].regions[0].mapping.as_deref(), Some("before"));
    }

    #[test]
    fn targets_are_grouped_and_totals_add_up() {
        let list: Vec<Snapshot> =
            [1, 2].map(|t| snapshot(0, t, vec![region(0, 4096, 20), region(4096, 8192 * t, 1)])).into();
        let report = report(
            AccessOptions { sort: SortKey::Rate, descending: true, ..AccessOptions::default() },
            &list,
        );
        assert_eq!(report.targets.iter().map(|t| t.target).collect::<Vec<_>>(), [1, 2]);
        assert_eq!((report.totals.regions, report.totals.bytes), (4, 3 * 8192));
        assert_eq!(report.totals.classes[4].bytes, 8192);
        // One access of twenty is 5 %, which is not above 5 %.
        assert_eq!(report.totals.classes[1].bytes, 16384);
        let by_group: u64 = report.targets.iter().map(|t| t.totals.bytes).sum();
        assert_eq!(by_group, report.totals.bytes);
    }

    #[test]
    fn nothing_recorded_is_an_empty_report() {
        for selection in [Selection::Last, Selection::Between(Duration::ZERO, Duration::MAX)] {
            assert!(report(select(selection), &[]).targets.is_empty());
        }
    }
}
