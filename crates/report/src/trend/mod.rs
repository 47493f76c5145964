//! One figure a snapshot (the working-set size, the number of regions): its distribution, and how it moves.

mod chart;
mod distribution;
mod series;
mod text;

pub use chart::{ChartOptions, write_png, write_svg};
pub use distribution::{PERCENTILES, Percentile, Step};
pub use series::Bucket;
pub use text::{TextOptions, write_text};

use crate::Accumulate;
use crate::provenance::{Provenance, Reading};
use crate::rate::{BP, RateScale, interval_ns, share_accessed, share_accessed_by_rate, share_in_use};
use crate::space::{Space, accessible_of, unknown_beside};
use crate::units::{self, Rate, format_rate, format_share, format_size, format_size_tick, significant};
use distribution::Distribution;
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId};
use isotherm_record::Item;
use serde::Serialize;
use series::Series;
use std::time::Duration;

/// From when on memory belongs to the working set.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// At least so many accesses in an aggregation (`nr_accesses`).
    Accesses(u32),
    /// At least this access rate.
    Rate(Rate),
}

impl Default for Threshold {
    /// One access in an aggregation.
    fn default() -> Self {
        Self::Accesses(1)
    }
}

impl std::fmt::Display for Threshold {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Accesses(1) => f.write_str("at least 1 access an aggregation"),
            Self::Accesses(n) => write!(f, "at least {n} accesses an aggregation"),
            Self::Rate(Rate::Hz(hz)) => write!(f, "at least {}", format_rate(*hz)),
            Self::Rate(Rate::Share(share)) => {
                write!(f, "at least {} of the highest rate", format_share(*share))
            }
        }
    }
}

/// What a working set is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Definition {
    /// The bytes accessed at least once within a window of this length (P. J. Denning, "The Working Set Model for Program
    /// Behavior", 1968), estimated from rates: of a region that is accessed in a share `p` of the sampling intervals, a
    /// window of `n` of them meets `1 - (1 - p)^n`, and no more than its resident bytes where these are known: a page that is
    /// not there is not accessed. Not the same as the window's pages counted: accesses are taken to
    /// come independently of each other.
    Window(Duration),
    /// The bytes of the regions that reach a threshold in an aggregation, as far as they are mapped and were seen.
    Threshold(Threshold),
    /// As damo's reports have it: all bytes of the regions with `nr_accesses` of 1 and more, as they were recorded. Gaps
    /// between mappings are in it, what could not be seen of a region too, and what several targets map counts for each.
    /// So a recording and its conversions to damo's formats, which know nothing of these, say the same.
    Damo,
}

impl Default for Definition {
    /// A window of a second.
    fn default() -> Self {
        Self::Window(Duration::from_secs(1))
    }
}

/// For a heading: `Denning: accessed at least once within 1 s`.
impl std::fmt::Display for Definition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Window(window) => {
                let ns = u64::try_from(window.as_nanos()).unwrap_or(u64::MAX);
                write!(f, "Denning: accessed at least once within {}", units::format_time(ns))
            }
            Self::Threshold(threshold) => write!(f, "regions with {threshold}"),
            Self::Damo => write!(f, "damo: regions with {}, all their bytes", Threshold::default()),
        }
    }
}

/// Rates of which it is remembered what share they access. A guess: recordings with counts have 21.
const SHARES: usize = 64;

impl Definition {
    /// Bytes of the working set in `snapshot`, whose regions are cut to mapped memory and have no byte twice, and the
    /// bytes of which nothing is known. `highest_bp`: the highest rate of the recording so far, for recordings that do not
    /// say what the highest possible is.
    fn bytes(self, snapshot: &Snapshot, highest_bp: u64) -> (u64, u64) {
        let scale = RateScale::of(snapshot);
        let max_bp = match snapshot.max_nr_accesses {
            0 => highest_bp as f64,
            max => f64::from(max) * BP,
        };
        let (mut known, mut unknown) = (0.0, 0.0);
        // There are few different rates, and powers take time.
        let mut shares = [((0, 0), 0.0); SHARES];
        for region in snapshot.targets.iter().flat_map(|t| &t.regions) {
            let size = region.range.size() as f64;
            let (seen, present, not_seen) = accessible_of(region);
            unknown += size * not_seen;
            if region.accesses_bp() == 0 && self != Self::Threshold(Threshold::Accesses(0)) {
                continue;
            }
            let share = match self {
                // Of the regions as recorded, which these are not: `damo_bytes`.
                Self::Damo => 0.0,
                Self::Window(window) if snapshot.sample_ns > 0 && max_bp > 0.0 => {
                    let said = (region.accesses_bp(), region.idle_bp);
                    let spread = said.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
                    let known = &mut shares[spread as usize % SHARES];
                    if known.0 != said {
                        let intervals = window.as_nanos() as f64 / snapshot.sample_ns as f64;
                        *known = (said, share_accessed(region, max_bp, intervals));
                    }
                    known.1
                }
                // Without intervals only the rate is known; this is the limit of the above for short intervals.
                Self::Window(window) => {
                    share_accessed_by_rate(region, scale.hz(region), window.as_secs_f64())
                }
                Self::Threshold(Threshold::Accesses(least)) => {
                    f64::from(u8::from(region.nr_accesses >= least && !region.is_unknown()))
                }
                Self::Threshold(Threshold::Rate(rate)) => {
                    let least_bp = match rate {
                        Rate::Hz(hz) => hz / scale.hz_per_bp(),
                        Rate::Share(share) => share * max_bp,
                    };
                    // A rate asked for in decimals must not miss the count it is meant to name.
                    let least_bp = least_bp * (1.0 - 1e-9);
                    // By the rate of those of its pages that are in use, and they are what counts.
                    let in_use = share_in_use(region);
                    if region.accesses_bp() as f64 / in_use >= least_bp { in_use } else { 0.0 }
                }
            };
            known += size
                * match self {
                    Self::Window(_) => (seen * share).min(present * share_in_use(region)),
                    _ => seen * share,
                };
        }
        (known.round() as u64, unknown.round() as u64)
    }
}

/// Bytes of the regions of `snapshot` that damo counts, of the targets wanted.
fn damo_bytes(snapshot: &Snapshot, wanted: impl Fn(TargetId) -> bool) -> u64 {
    let regions = snapshot.targets.iter().filter(|t| wanted(t.id)).flat_map(|t| &t.regions);
    let accessed = regions.filter(|r| r.nr_accesses >= 1);
    accessed.fold(0, |sum, region| sum.saturating_add(region.range.size()))
}

/// What is counted in a snapshot.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Measure {
    /// Bytes of the working set, all targets together; what several of them map counts once.
    WorkingSet(Definition),
    /// Number of regions, all targets together.
    Regions,
}

impl Measure {
    /// A figure of this measure with its unit.
    pub fn format(self, value: f64) -> String {
        match self {
            Self::WorkingSet(_) => format_size(value.round().max(0.0) as u64),
            Self::Regions => significant(value, 4),
        }
    }

    /// The same for an axis, where values are round.
    fn format_tick(self, value: f64) -> String {
        match self {
            Self::WorkingSet(_) => format_size_tick(value.round().max(0.0) as u64),
            Self::Regions => significant(value, 4),
        }
    }

    /// Length of the window within which accesses count, ns.
    fn window_ns(self) -> Option<u64> {
        match self {
            Self::WorkingSet(Definition::Window(window)) => {
                Some(u64::try_from(window.as_nanos()).unwrap_or(u64::MAX))
            }
            _ => None,
        }
    }

    /// What it is, a clause.
    pub fn describe(self) -> String {
        match self {
            Self::WorkingSet(definition) => format!("working-set size ({definition})"),
            Self::Regions => "number of regions".to_owned(),
        }
    }
}

/// What to analyse.
#[derive(Clone, Debug, PartialEq)]
pub struct TrendOptions {
    /// What is counted.
    pub measure: Measure,
    /// Targets counted; empty: all.
    pub targets: Vec<TargetId>,
    /// Most buckets of time, 2..=65536.
    pub buckets: usize,
}

impl TrendOptions {
    /// All targets, 256 buckets.
    pub fn new(measure: Measure) -> Self {
        Self { measure, targets: Vec::new(), buckets: 256 }
    }
}

/// Collects one figure a snapshot.
#[derive(Clone, Debug)]
pub struct TrendAnalysis {
    options: TrendOptions,
    provenance: Provenance,
    space: Space,
    mapped: Snapshot,
    /// Highest rate so far, in 1/10000 of an access.
    highest_bp: u64,
    counted: Counted,
    /// What was counted before as much had been observed as the window is long; of shorter recordings that is all there is.
    early: Counted,
    /// Figure of the snapshots that ended last, and the unknown bytes beside it: foreign recordings may hold one snapshot
    /// a target for one moment.
    pending: Option<Pending>,
    /// Time that was observed, ns.
    observed_ns: u64,
}

/// What the snapshots that ended last hold together.
#[derive(Clone, Copy, Debug)]
struct Pending {
    start: u64,
    end: u64,
    /// The figure, and the unknown bytes beside it.
    figures: (u64, u64),
    /// Something was known of some memory.
    is_known: bool,
}

/// A figure, and what is unknown beside it.
#[derive(Clone, Debug)]
struct Counted {
    distribution: Distribution,
    unknown: Distribution,
    series: Series,
    unknown_series: Series,
    /// Time in which nothing was known of any memory, ns.
    unknown_ns: u64,
}

impl Counted {
    fn new(buckets: usize) -> Self {
        let series = || Series::new(buckets);
        Self {
            distribution: Distribution::default(),
            unknown: Distribution::default(),
            series: series(),
            unknown_series: series(),
            unknown_ns: 0,
        }
    }

    fn add(&mut self, Pending { start, end, figures: (value, unknown), is_known }: Pending) {
        if is_known {
            self.distribution.add(value, end - start);
        } else {
            // No working set of nothing: nobody knows what it was.
            self.unknown_ns = self.unknown_ns.saturating_add(end - start);
        }
        self.unknown.add(unknown, end - start);
        self.series.add(is_known.then_some(value), start, end);
        self.unknown_series.add(Some(unknown), start, end);
    }
}

/// Windows up to this are counted from the first snapshot on: rates look back for about as long.
const FIRST_WINDOW_NS: u64 = 1_000_000_000;

/// Whether `observed` ns are as long as `window` ns. The last aggregation ends a little before or after its time.
fn is_as_long(observed: u64, window: u64) -> bool {
    observed.saturating_add(observed / 20) >= window
}

/// The distribution of a figure, and how it moved.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TrendReport {
    /// Where it comes from.
    pub provenance: Provenance,
    /// What was counted, in words.
    pub what: String,
    /// `bytes` or `regions`.
    pub unit: &'static str,
    /// What was counted.
    #[serde(skip)]
    pub measure: Measure,
    /// Mean over time; `null` without snapshots.
    pub mean: Option<f64>,
    /// Percentiles by time; empty without snapshots.
    pub percentiles: Vec<Percentile>,
    /// All of the distribution, in steps of rising value; empty without snapshots.
    #[serde(skip)]
    pub distribution: Vec<Step>,
    /// Beside a working set: the bytes of which nothing is known. They are not in it, and may belong to it. Percentiles by
    /// time; empty for other figures.
    pub unknown_bytes: Vec<Percentile>,
    /// What has to be said about the figures, a sentence each: a window longer than what was recorded.
    pub remarks: Vec<String>,
    /// How far percentiles 1 to 99 may be off, as a share of themselves; 0: exact.
    pub relative_error: f64,
    /// The time called 0, ns.
    pub origin_ns: u64,
    /// The figure over time; where nothing was known of any memory there is none.
    pub over_time: Vec<Bucket>,
    /// The unknown bytes beside a working set, over the same stretches of time; empty for other figures.
    pub unknown_over_time: Vec<Bucket>,
}

impl TrendReport {
    /// A percentile; `None` when it is none of [`PERCENTILES`] or there are no snapshots.
    pub fn percentile(&self, percent: u8) -> Option<u64> {
        self.percentiles.iter().find(|p| p.percent == percent).map(|p| p.value)
    }

    /// What has to be said beside a working set when there is memory of which nothing is known.
    pub fn unknown_remark(&self) -> Option<String> {
        let value = |percent| self.unknown_bytes.iter().find(|p| p.percent == percent).map(|p| p.value);
        let (median, highest) = (value(50)?, value(100)?);
        (highest > 0).then(|| {
            format!(
                "and {} of which nothing is known, not counted above (median; highest {})",
                format_size(median),
                format_size(highest)
            )
        })
    }

    /// What has to be said of a window that is longer than the `recorded` time, ns.
    fn window_remark(&self, recorded: u64) -> Option<String> {
        let window = self.measure.window_ns()?;
        let shorter = self.provenance.snapshots > 0 && !is_as_long(recorded, window);
        shorter.then(|| {
            format!(
                "the recording is shorter than the window: {} of {} were observed. The rest is extrapolated, as if every rate \
                 seen had gone on for all of the window",
                units::format_time(recorded),
                units::format_time(window)
            )
        })
    }

    /// What has to be said of a threshold that nothing can reach.
    fn threshold_remark(&self) -> Option<String> {
        match self.measure {
            Measure::WorkingSet(Definition::Threshold(Threshold::Rate(Rate::Hz(hz)))) => {
                let highest = self.provenance.highest_hz().filter(|highest| hz > *highest)?;
                Some(format!(
                    "no rate can be that high: the highest that can be seen is {}, an access in each sampling interval",
                    format_rate(highest)
                ))
            }
            Measure::WorkingSet(Definition::Threshold(Threshold::Accesses(least))) => {
                let attrs = self.provenance.attrs;
                let most =
                    attrs.aggr_us.checked_div(attrs.sample_us).filter(|_| !self.provenance.attrs_changed)?;
                (most > 0 && u64::from(least) > most).then(|| {
                    format!("no region can have so many: the most in an aggregation is {most}, one in each sampling interval")
                })
            }
            _ => None,
        }
    }

    fn seconds(&self, ns: u64) -> f64 {
        (ns as f64 - self.origin_ns as f64) / units::SECOND_NS
    }
}

impl TrendAnalysis {
    /// An analysis of nothing yet.
    pub fn new(options: TrendOptions) -> Self {
        let counted = || Counted::new(options.buckets);
        let (counted, early) = (counted(), counted());
        Self {
            options,
            provenance: Provenance::default(),
            space: Space::default(),
            mapped: Snapshot::default(),
            highest_bp: 0,
            counted,
            early,
            pending: None,
            observed_ns: 0,
        }
    }

    /// Has reports say what became of reading the recording.
    pub fn set_reading(&mut self, reading: Reading) {
        self.provenance.set_reading(reading);
    }

    fn flush(&mut self) {
        if let Some(pending) = self.pending.take() {
            self.observed_ns = self.observed_ns.saturating_add(pending.end - pending.start);
            let is_early = self
                .options
                .measure
                .window_ns()
                .is_some_and(|window| window > FIRST_WINDOW_NS && self.observed_ns <= window);
            if is_early { &mut self.early } else { &mut self.counted }.add(pending);
        }
    }

    /// The report.
    pub fn finish(mut self) -> TrendReport {
        self.flush();
        let early_ns =
            self.options.measure.window_ns().filter(|window| *window > FIRST_WINDOW_NS).unwrap_or(0);
        // A few snapshots behind as many as make a window are no distribution.
        let enough = early_ns == 0 || self.observed_ns >= early_ns.saturating_add(FIRST_WINDOW_NS);
        let left_out = enough && early_ns > 0;
        let Counted { distribution, unknown, series, unknown_series, unknown_ns } =
            if enough { self.counted } else { self.early };
        let (mean, relative_error) = (distribution.mean(), distribution.relative_error());
        let (percentiles, distribution) = distribution.finish();
        let mut report = TrendReport {
            remarks: Vec::new(),
            what: self.options.measure.describe(),
            unit: match self.options.measure {
                Measure::WorkingSet(_) => "bytes",
                Measure::Regions => "regions",
            },
            measure: self.options.measure,
            unknown_bytes: match self.options.measure {
                Measure::WorkingSet(_) => unknown.finish().0,
                Measure::Regions => Vec::new(),
            },
            mean,
            relative_error,
            percentiles,
            distribution,
            origin_ns: self.provenance.origin_ns(),
            over_time: series.buckets(),
            unknown_over_time: match self.options.measure {
                Measure::WorkingSet(_) => unknown_series.buckets(),
                Measure::Regions => Vec::new(),
            },
            provenance: self.provenance,
        };
        report.remarks.extend(report.window_remark(self.observed_ns));
        report.remarks.extend(report.measure.window_ns().filter(|_| left_out).map(|window| {
            format!(
                "the first {} are not counted: until then less was observed than the window is long",
                units::format_time(window)
            )
        }));
        let hardly = early_ns > 0 && !enough && self.observed_ns > early_ns;
        report.remarks.extend(report.measure.window_ns().filter(|_| hardly).map(|window| {
            format!(
                "the recording is hardly longer than the window: what is shown is of its first {}, while less had been observed than that, \
                 and extrapolated",
                units::format_time(window)
            )
        }));
        report.remarks.extend((unknown_ns > 0).then(|| {
            format!(
                "{} are not counted: nothing was known of any memory then",
                units::format_time(unknown_ns)
            )
        }));
        report.remarks.extend(report.threshold_remark());
        report
    }
}

impl Accumulate for TrendAnalysis {
    fn snapshot(&mut self, snapshot: &Snapshot) {
        self.provenance.snapshot(snapshot);
        let ids = &self.options.targets;
        let wanted = |id: TargetId| ids.is_empty() || ids.contains(&id);
        // A time without targets is no time in which they had a working set of nothing: before one began, after all had ended.
        if !snapshot.targets.iter().any(|target| wanted(target.id)) {
            return;
        }
        let value = match self.options.measure {
            Measure::Regions => {
                let targets = snapshot.targets.iter().filter(|t| wanted(t.id));
                (targets.map(|t| t.regions.len() as u64).sum::<u64>(), 0)
            }
            Measure::WorkingSet(definition) => {
                let (mut known, mut unknown) = (0_u64, 0_u64);
                let highest = |mapped: &Snapshot| {
                    let regions = mapped.targets.iter().flat_map(|t| &t.regions);
                    regions.map(RegionSnapshot::accesses_bp).max().unwrap_or(0)
                };
                let (highest_bp, mapped) = (&mut self.highest_bp, &mut self.mapped);
                if snapshot.max_nr_accesses == 0 {
                    // Shares are of the highest rate so far, this snapshot's included.
                    self.space.by_object(snapshot, wanted, mapped);
                    *highest_bp = highest(mapped).max(*highest_bp);
                    (known, unknown) = definition.bytes(mapped, *highest_bp);
                } else {
                    let add = |mapped: &Snapshot| {
                        let bytes = definition.bytes(mapped, 0);
                        known = known.saturating_add(bytes.0);
                        unknown = unknown.saturating_add(bytes.1);
                    };
                    match definition {
                        Definition::Window(window) if snapshot.sample_ns > 0 => {
                            let out = (mapped, window.as_secs_f64());
                            let (mut used, mut not_known) = (0.0, 0.0);
                            self.space.each_in_use(snapshot, wanted, out, add, |_, region, share| {
                                let size = region.range.size() as f64;
                                used += size * share;
                                not_known += size * unknown_beside(region, share);
                            });
                            known = known.saturating_add(used.round() as u64);
                            unknown = unknown.saturating_add(not_known.round() as u64);
                        }
                        _ => self.space.each_by_object(snapshot, wanted, mapped, add),
                    }
                }
                match definition {
                    Definition::Damo => (damo_bytes(snapshot, wanted), unknown),
                    _ => (known, unknown),
                }
            }
        };
        let (start, end) = interval_ns(snapshot);
        let mut regions = snapshot.targets.iter().filter(|t| wanted(t.id)).flat_map(|t| &t.regions);
        let is_known = match self.options.measure {
            Measure::Regions | Measure::WorkingSet(Definition::Damo) => true,
            Measure::WorkingSet(_) => {
                value.1 == 0 || regions.any(|r| !r.is_unknown() && r.resident != Some(0))
            }
        };
        match &mut self.pending {
            Some(pending) if pending.end == end => {
                let total = &mut pending.figures;
                *total = (total.0.saturating_add(value.0), total.1.saturating_add(value.1));
                pending.is_known |= is_known;
            }
            _ => {
                self.flush();
                self.pending = Some(Pending { start, end, figures: value, is_known });
            }
        }
    }

    fn note(&mut self, item: &Item) {
        self.provenance.note(item);
        self.space.note(item);
    }
}

#[cfg(test)]
mod tests;
