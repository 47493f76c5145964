//! What differs between recordings of one program: working sets, and what got hotter or colder.
//!
//! Each recording is collected by a [`Profile`]; [`compare`] matches their mappings and tests each for a
//! difference. What is tested is the mean over time of the working set of a second, and of the access rate of what
//! is in it; how, and what noise is, tells the module `statistics`. A difference is significant when it is
//! improbable as noise *and* as large as asked for *and* not explained by memory that is unknown in one recording
//! and known in the other.

mod areas;
mod matching;
mod profile;
mod statistics;
mod text;

pub use profile::Profile;
pub use text::write_text;

use crate::provenance::Provenance;
use crate::units::{counted, format_rate, format_share, format_size, format_time, significant};
use matching::{Matched, matched};
use profile::{RunProfile, Sums};
use serde::Serialize;
use statistics::{Prior, Run, Test, centre, holm, test};
use std::collections::BTreeSet;

/// Recordings of one steady program differ in their working sets by so much (standard deviation), measured by
/// `ci/diff-noise.sh` and rounded up; the absolute part is what a few regions more or less make.
const WS_NOISE: Prior = Prior { relative: 0.015, absolute: 256.0 * 1024.0, freedom: 20.0 };

/// The same of the mean access rates of working sets, which are estimated from less. In Hz.
const RATE_NOISE: Prior = Prior { relative: 0.1, absolute: 1.0, freedom: 20.0 };

/// A machine that is busy makes the monitor late, and the program too, when more than this share of the sampling intervals was
/// missed. Measured with an SQLite database in Python beside compilers: with 1 % to 10 % missed its working set was 60 to 77 MiB,
/// as far as it came in a second.
const MISSED: f64 = 0.02;

/// What is missed beyond that, times this, is how uncertain the program's speed is, and with it a working set, as far as that
/// moves with speed. What is accessed many times a second does not: of 20 recordings of such memory with 3 to 14 % missed the
/// working sets scattered as those of others do.
const LATE_SPEED: f64 = 2.0;

/// The same of what was lost by looking late.
const LATE_LOOKS: f64 = 0.125;

/// The same of rates, which move with speed by themselves.
const LATE_RATES: f64 = 0.5;

/// What part of the level goes to working sets; the rest to rates. So it is one level over all, and the many rates, of which
/// only great changes count, take little from what can be seen of working sets.
const WS_PART: f64 = 0.8;

/// A comparison that could not have seen a change of so many times the smallest that counts cannot say that there is none.
const BLIND: f64 = 2.0;

/// Where noise would hide as much of all memory's working set, nothing was compared: a program twice as large would look the same.
const HOPELESS: f64 = 1.0;

/// A change of rate below this is none, as a share: what [`RATE_NOISE`] leaves room for.
const MIN_RATE_CHANGE: f64 = 0.25;

/// Where so much more is unknown on one side, as a share of the working set, its rates are not compared. Measured with
/// recordings of 10 s whose budget was cut: with 14 % unknown the rates of one program read 27 and 50 Hz.
const RATED_UNKNOWN: f64 = 0.05;

/// So much of what more is unknown on the side that has less may be what it lacks: all of it, and as much again for what is
/// unknown is not known exactly either.
const LACKED: f64 = 2.0;

/// What is tested holds at least so much of the working set of a side, bytes and as a share. In smaller ones a page or two of
/// a library decide.
const TESTED: (f64, f64) = (1024.0 * 1024.0, 0.05);

/// What a difference has to be to be one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DiffOptions {
    /// Left out at the start of each recording, seconds (of short ones at most a fifth): until the monitor has seen most.
    pub settle_s: f64,
    /// Smallest change of a working set, as a share.
    pub min_change: f64,
    /// Highest probability of calling noise a difference, over all mappings together, working sets and rates.
    pub level: f64,
}

impl Default for DiffOptions {
    /// 3 s, 5 %, 1 %.
    fn default() -> Self {
        Self { settle_s: 3.0, min_change: 0.05, level: 0.01 }
    }
}

/// What a comparison came to.
#[derive(Clone, Copy, Debug, Eq, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    /// No significant difference.
    Same,
    /// It may differ or not: too much is unknown, or the noise is too great to say.
    Unclear,
    /// A significant difference.
    Different,
}

/// A figure on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Mean over the recordings of the first side; of four and more over the middle half of them.
    pub a: f64,
    /// Of the second side.
    pub b: f64,
    /// How much more the second has, as a share of the first; `null` where that has nothing.
    pub change: Option<f64>,
    /// Probability that noise makes as large a difference somewhere among all that was compared; `null`: too little to
    /// be compared.
    pub p: Option<f64>,
    /// Smallest change that could have been told from noise, as a share of the first side, as `change` is; `null`: not compared,
    /// or the first side has nothing.
    pub detectable: Option<f64>,
    /// Whether it is a difference.
    pub significant: bool,
    /// The same, and whether it is unclear.
    pub outcome: Outcome,
    /// In words: `grew by 10.2 % (p = 0.004)`, `no significant difference`.
    pub verdict: String,
    /// Nothing seems to have changed, whatever else may be.
    #[serde(skip)]
    alike: bool,
}

/// Memory on both sides.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffRow {
    /// Name of the program; empty for what several processes can map, and where each side has only one process.
    pub program: String,
    /// Whether it is a file or shared memory: each byte once, with the accesses of all who map it.
    pub object: bool,
    /// Name of the mapping or object; `anon 2`: the second run of anonymous memory.
    pub mapping: String,
    /// Largest size, bytes, of the first side.
    pub size_a: u64,
    /// Of the second side.
    pub size_b: u64,
    /// Working set of a second, bytes.
    pub working_set: Change,
    /// Mean access rate of the working set, Hz.
    pub rate_hz: Change,
    /// Mean bytes of which nothing was known, of the first side.
    pub unknown_a: f64,
    /// Of the second side.
    pub unknown_b: f64,
}

impl DiffRow {
    /// Whether it seems to have changed, and nobody can say. What of a mapping is unknown while it seems the same is a matter of
    /// its own line: whether it is much is seen of all memory.
    fn is_in_doubt(&self) -> bool {
        self.working_set.outcome == Outcome::Unclear && !self.working_set.alike
    }
}

/// A recording that was compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Its file.
    pub file: String,
    /// Where it comes from.
    pub provenance: Provenance,
    /// Seconds left out at its start.
    pub settled_s: f64,
    /// Length of each block, seconds.
    pub blocks_s: Vec<f64>,
    /// Share of the sampling intervals that the monitor missed: how busy the machine was.
    pub missed: f64,
}

/// What differs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct DiffReport {
    /// Recordings of the first side.
    pub a: Vec<Compared>,
    /// Of the second side.
    pub b: Vec<Compared>,
    /// Smallest change of a working set that counts, as a share.
    pub min_change: f64,
    /// Highest probability of calling noise a difference.
    pub level: f64,
    /// All memory.
    pub total: DiffRow,
    /// By mapping and object, largest working set first.
    pub rows: Vec<DiffRow>,
    /// Whether anything differs.
    pub significant: bool,
    /// The same, and whether it is unclear.
    pub outcome: Outcome,
    /// In words.
    pub verdict: String,
    /// In which way the two sides were recorded otherwise, in words: what was seen of the same accesses may differ then.
    pub unlike: Option<String>,
}

/// In which way two sides were recorded otherwise.
fn unlike(a: &[Compared], b: &[Compared]) -> Option<String> {
    let is_imported = |p: &Provenance| p.backend.name.starts_with(isotherm_record::IMPORTED);
    let ceiling = |p: &Provenance| match p.overhead_limit {
        _ if is_imported(p) => None,
        0.0 => Some("no ceiling".to_owned()),
        share => Some(format!("a ceiling of {}", format_share(share))),
    };
    let backend =
        |p: &Provenance| (!p.backend.name.is_empty()).then(|| format!("backend {}", p.backend.name));
    let interval = |us: u64| (us > 0).then(|| format_time(us.saturating_mul(1000)));
    let sampling = |p: &Provenance| interval(p.attrs.sample_us).map(|time| format!("sampling every {time}"));
    let aggregation =
        |p: &Provenance| interval(p.attrs.aggr_us).map(|time| format!("aggregations of {time}"));
    let ways = |one: &Compared| {
        let p = &one.provenance;
        [ceiling(p), backend(p), sampling(p), aggregation(p)]
    };
    let [of_a, of_b] = [a, b].map(|side| side.iter().map(ways).collect::<Vec<_>>());
    let mut sides = [Vec::new(), Vec::new()];
    for way in 0..4 {
        let of = |side: &[[Option<String>; 4]]| -> Option<BTreeSet<String>> {
            side.iter().map(|ways| ways[way].clone()).collect()
        };
        // What a recording does not tell is no difference.
        let (Some(of_a), Some(of_b)) = (of(&of_a), of(&of_b)) else { continue };
        if of_a != of_b {
            for (side, of) in sides.iter_mut().zip([of_a, of_b]) {
                side.push(of.into_iter().collect::<Vec<_>>().join(" or "));
            }
        }
    }
    let [a, b] = sides.map(|side| side.join(", "));
    (!a.is_empty()).then(|| format!("A was recorded with {a}, B with {b}"))
}

/// Compares recordings, each with the name of its file. Neither side may be empty.
pub fn compare(a: Vec<(String, Profile)>, b: Vec<(String, Profile)>, options: &DiffOptions) -> DiffReport {
    let nr_a = a.len();
    let files: Vec<String> = a.iter().chain(&b).map(|(file, _)| file.clone()).collect();
    let runs: Vec<RunProfile> =
        a.into_iter().chain(b).map(|(_, profile)| profile.finish(options.settle_s)).collect();
    let list = matched(&runs);
    let mut all = all_of(&runs, nr_a);
    for (run, unknown) in all.ws.a.iter_mut().chain(&mut all.ws.b).zip(unknown_of(&list, &runs)) {
        run.unknown = unknown;
    }
    let mut rows = vec![all];
    rows.extend(list.iter().map(|one| row(one, &runs, nr_a)));
    let least = TESTED.0.max(TESTED.1 * rows[0].ws.means().0.max(rows[0].ws.means().1));
    let (mut ws, mut rates) = (Vec::new(), Vec::new());
    for row in &mut rows {
        let (a, b) = row.ws.means();
        if a.max(b) < least {
            continue;
        }
        let test = row.ws.test(&WS_NOISE);
        row.ws_test = Some((test, ws.len()));
        ws.push(test.p);
        // Of what is hardly in use on a side there is no rate to speak of.
        if a.min(b) >= least {
            let test = row.rate.test(&RATE_NOISE);
            row.rate_test = Some((test, rates.len()));
            rates.push(test.p);
        }
    }
    // The level is that of the whole report, split between the two kinds. Tests of all memory and of its parts depend on each
    // other, which Holm's correction allows.
    let corrected = |p: &[f64], part: f64| holm(p).iter().map(|p| (p / part).min(1.0)).collect::<Vec<f64>>();
    let corrected = [corrected(&ws, WS_PART), corrected(&rates, 1.0 - WS_PART)];
    let mut done: Vec<DiffRow> = rows.into_iter().map(|row| row.finish(&corrected, options)).collect();
    let mut total = done.remove(0);
    total.working_set.proves_nothing();
    done.retain(|row| row.working_set.a + row.working_set.b > 0.0 || row.unknown_a + row.unknown_b > 0.0);
    done.sort_by(|x, y| {
        let of = |row: &DiffRow| row.working_set.a.max(row.working_set.b);
        of(y).total_cmp(&of(x))
    });
    let mut compared: Vec<Compared> = files
        .into_iter()
        .zip(runs)
        .map(|(file, run)| Compared {
            file,
            missed: missed(&run.provenance),
            provenance: run.provenance,
            settled_s: run.settled_s,
            blocks_s: run.blocks_s,
        })
        .collect();
    let b = compared.split_off(nr_a);
    let differs = |row: &DiffRow| row.working_set.significant || row.rate_hz.significant;
    let significant = differs(&total) || done.iter().any(differs);
    let unclear = total.working_set.outcome == Outcome::Unclear || done.iter().any(DiffRow::is_in_doubt);
    let outcome = match (significant, unclear) {
        (true, _) => Outcome::Different,
        (false, true) => Outcome::Unclear,
        (false, false) => Outcome::Same,
    };
    DiffReport {
        verdict: verdict(&total, &done),
        unlike: unlike(&compared, &b),
        significant,
        outcome,
        a: compared,
        b,
        min_change: options.min_change,
        level: options.level,
        total,
        rows: done,
    }
}

/// What is said of a figure that has not changed.
const NONE: &str = "no significant difference";

fn verdict(total: &DiffRow, rows: &[DiffRow]) -> String {
    let mut parts = Vec::new();
    if total.working_set.significant {
        parts.push(format!("the working set {}", total.working_set.verdict));
    }
    let count = |of: fn(&DiffRow) -> &Change| rows.iter().filter(|row| of(row).significant).count();
    let number = |n: usize| counted(n as u64, "mapping");
    match count(|row| &row.working_set) {
        0 => {}
        n => parts.push(format!("the working set of {} differs", number(n))),
    }
    match count(|row| &row.rate_hz) {
        0 if total.rate_hz.significant => parts.push(format!("all of it {}", total.rate_hz.verdict)),
        0 => {}
        n => parts.push(format!("{} got hotter or colder", number(n))),
    }
    if !parts.is_empty() {
        return parts.join("; ");
    }
    if total.working_set.outcome == Outcome::Unclear {
        let why = total.working_set.verdict.trim_start_matches("unclear: ");
        return format!("unclear whether the working set differs: {why}");
    }
    match rows.iter().filter(|row| row.is_in_doubt()).count() {
        0 => total.working_set.none(),
        n => format!("unclear whether the working set of {} differs", number(n)),
    }
}

/// Share of its sampling intervals that the monitor missed because it came late.
fn missed(from: &Provenance) -> f64 {
    let sample_ns = from.attrs.sample_us as f64 * 1000.0;
    let all = if sample_ns > 0.0 { from.length_ns() as f64 / sample_ns } else { 0.0 };
    if all > 0.0 { (from.cost.samples_missed as f64 / all).min(1.0) } else { 0.0 }
}

/// A figure in all recordings.
struct Sides {
    a: Vec<Run>,
    b: Vec<Run>,
}

impl Sides {
    fn means(&self) -> (f64, f64) {
        (centre(&self.a), centre(&self.b))
    }

    fn test(&self, prior: &Prior) -> Test {
        test(&self.a, &self.b, prior)
    }
}

/// A row in the making.
struct Draft {
    program: String,
    object: bool,
    mapping: String,
    sizes: (u64, u64),
    ws: Sides,
    rate: Sides,
    unknown: (f64, f64),
    /// The tests, and where their p-values stand; `None`: not tested.
    ws_test: Option<(Test, usize)>,
    rate_test: Option<(Test, usize)>,
}

fn row(one: &Matched, runs: &[RunProfile], nr_a: usize) -> Draft {
    let area = |at: usize| one.of_run[at].map(|i| &runs[at].areas[i]);
    let blocks: Vec<Vec<Sums>> = (0..runs.len())
        .map(|at| {
            area(at).map_or_else(|| vec![Sums::default(); runs[at].blocks_s.len()], |a| a.blocks.clone())
        })
        .collect();
    let size = |from: usize, to: usize| (from..to).filter_map(area).map(|a| a.size).max().unwrap_or(0);
    let name = if one.nr > 0 { format!("{} {}", one.name, one.nr) } else { one.name.clone() };
    Draft {
        program: one.program.clone(),
        object: one.object,
        mapping: name,
        sizes: (size(0, nr_a), size(nr_a, runs.len())),
        ..draft(&blocks, runs, nr_a)
    }
}

/// What is unknown in each recording of memory that was seen in some. What none can see (locked memory, say) is in no working set
/// that is compared.
fn unknown_of(list: &[Matched], runs: &[RunProfile]) -> Vec<f64> {
    let areas = |one: &Matched, at: usize| one.of_run[at].map(|i| &runs[at].areas[i]);
    let is_seen = |one: &&Matched| {
        (0..runs.len()).filter_map(|at| areas(one, at)).flat_map(|a| &a.blocks).any(|b| b.seen > 0.0)
    };
    let seen: Vec<&Matched> = list.iter().filter(is_seen).collect();
    let mean = |blocks: &[Sums]| blocks.iter().map(|b| b.unknown).sum::<f64>() / blocks.len().max(1) as f64;
    let of_run = |at| seen.iter().filter_map(|one| areas(one, at)).map(|a| mean(&a.blocks)).sum();
    (0..runs.len()).map(of_run).collect()
}

/// All memory of each recording.
fn all_of(runs: &[RunProfile], nr_a: usize) -> Draft {
    let blocks: Vec<Vec<Sums>> = runs
        .iter()
        .map(|run| {
            let mut sums = vec![Sums::default(); run.blocks_s.len()];
            for area in &run.areas {
                sums.iter_mut().zip(&area.blocks).for_each(|(sum, more)| sum.add(more));
            }
            sums
        })
        .collect();
    draft(&blocks, runs, nr_a)
}

fn draft(blocks: &[Vec<Sums>], runs: &[RunProfile], nr_a: usize) -> Draft {
    let middle_of = |blocks: &[Sums], of: fn(&Sums) -> f64| {
        Run { blocks: blocks.iter().map(of).collect(), ..Run::default() }.mean()
    };
    let ws_late = |blocks: &[Sums]| {
        let (ws, slope) = (middle_of(blocks, |s| s.ws), middle_of(blocks, |s| s.slope));
        LATE_LOOKS + LATE_SPEED * if ws > 0.0 { slope / ws } else { 0.0 }
    };
    let sides = |of: fn(&Sums) -> f64, late: &dyn Fn(&[Sums]) -> f64, unknown: &dyn Fn(&[Sums]) -> f64| {
        let mut a: Vec<Run> = blocks
            .iter()
            .zip(runs)
            .map(|(blocks, run)| Run {
                blocks: blocks.iter().map(of).collect(),
                late: (run.missed - MISSED).max(0.0) * late(blocks),
                unknown: unknown(blocks),
            })
            .collect();
        let b = a.split_off(nr_a);
        Sides { a, b }
    };
    Draft {
        program: String::new(),
        object: false,
        mapping: String::new(),
        sizes: (0, 0),
        ws: sides(|s| s.ws, &ws_late, &|blocks| middle_of(blocks, |s| s.unknown)),
        rate: sides(|s| if s.ws > 0.0 { s.heat / s.ws } else { 0.0 }, &|_| LATE_RATES, &|_| 0.0),
        unknown: sides(|s| s.unknown, &|_| 0.0, &|_| 0.0).means(),
        ws_test: None,
        rate_test: None,
    }
}

impl Draft {
    fn finish(self, corrected: &[Vec<f64>; 2], options: &DiffOptions) -> DiffRow {
        // What one test alone would need among all: Bonferroni's, the hardest of Holm's steps.
        let found = |test: Option<(Test, usize)>, corrected: &[f64], part: f64| {
            test.map(|(test, at)| Found {
                p: corrected[at],
                detectable: test.detectable(part * options.level / corrected.len() as f64),
                by_unknown: test.by_unknown,
            })
        };
        let ws_found = found(self.ws_test, &corrected[0], WS_PART);
        let rate_found = found(self.rate_test, &corrected[1], 1.0 - WS_PART);
        let (ws_a, ws_b) = self.ws.means();
        let ws_unit = |bytes: f64| format_size(bytes.round() as u64);
        let more_unknown =
            |bytes: f64| Err(format!("unclear: {} more unknown on one side", format_size(bytes as u64)));
        // What is unknown on the side that has less may be what it lacks.
        let (of_less, of_more) = if ws_a < ws_b { self.unknown } else { (self.unknown.1, self.unknown.0) };
        let most = self.unknown.0.max(self.unknown.1);
        let limits = Limits { level: options.level, least: options.min_change, unknown: most };
        let working_set = Change::of(ws_a, ws_b, ws_found, &limits, ws_unit, |c| {
            if LACKED * (of_less - of_more) >= (ws_a - ws_b).abs() {
                return more_unknown(of_less - of_more);
            }
            Ok(match c {
                Some(share) if share >= 0.0 => format!("grew by {}", percent(share)),
                Some(share) => format!("shrank by {}", percent(-share)),
                None => "only in B".to_owned(),
            })
        });
        let (rate_a, rate_b) = self.rate.means();
        let limits = Limits { least: MIN_RATE_CHANGE, ..limits };
        let rate_hz = Change::of(rate_a, rate_b, rate_found, &limits, format_rate, |c| {
            // A monitor that lost sight of part of it looked at the rest less often, too.
            let more = (of_less - of_more).abs();
            if more >= RATED_UNKNOWN * ws_a.max(ws_b) {
                return more_unknown(more);
            }
            let word = if rate_b > rate_a { "hotter" } else { "colder" };
            let by = c.map_or_else(String::new, |share| format!(" by {}", percent(share.abs())));
            Ok(format!("got {word}{by}, {} to {}", format_rate(rate_a), format_rate(rate_b)))
        });
        DiffRow {
            program: self.program,
            object: self.object,
            mapping: self.mapping,
            size_a: self.sizes.0,
            size_b: self.sizes.1,
            working_set,
            rate_hz,
            unknown_a: self.unknown.0,
            unknown_b: self.unknown.1,
        }
    }
}

fn percent(share: f64) -> String {
    format!("{} %", significant(share * 100.0, 3))
}

/// What came out for one figure among all.
#[derive(Clone, Copy)]
struct Found {
    /// Probability, corrected.
    p: f64,
    /// The smallest difference that would have been one.
    detectable: f64,
    /// How much of what hides smaller ones is memory that is unknown, as a share.
    by_unknown: f64,
}

/// What a difference has to be.
struct Limits {
    level: f64,
    /// As a share.
    least: f64,
    /// Bytes unknown on the side with more of them.
    unknown: f64,
}

impl Change {
    /// `unit` puts a difference into words where it is no share of the first side; `say` what differs, or why it is none.
    fn of(
        a: f64,
        b: f64,
        found: Option<Found>,
        limits: &Limits,
        unit: impl Fn(f64) -> String,
        say: impl FnOnce(Option<f64>) -> Result<String, String>,
    ) -> Self {
        let change = (a > 0.0).then(|| b / a - 1.0);
        let mean = f64::midpoint(a, b);
        let Limits { level, least, unknown } = *limits;
        let difference = found.map(|found| found.detectable);
        // On the scale of what stands beside it.
        let detectable = difference.filter(|_| a > 0.0).map(|difference| difference / a);
        // A share of the larger, so that it does not matter which side is which.
        let small = (a - b).abs() < least / (1.0 + least) * a.max(b);
        let same = |verdict: &str| (Outcome::Same, verdict.to_owned());
        let blind = difference.filter(|difference| *difference > BLIND * least * mean);
        let hidden = |difference| detectable.map_or_else(|| unit(difference), percent);
        // That figures are alike says nothing of what was not seen.
        let unseen = found.is_some_and(|found| found.by_unknown > 0.5);
        let by_unknown = |difference| {
            let all = format_size(unknown as u64);
            (Outcome::Unclear, format!("unclear: {all} unknown hide what is below {}", hidden(difference)))
        };
        let (outcome, verdict) = match found {
            None => same("too little to compare"),
            // Nothing seems to have changed; how much might have all the same is said with it.
            Some(_) if small => match blind {
                Some(difference) if unseen => by_unknown(difference),
                Some(difference) => {
                    same(&format!("{NONE} (noise hides what is below {})", hidden(difference)))
                }
                None => same(NONE),
            },
            Some(found) if found.p >= level => match blind {
                Some(difference) if unseen => by_unknown(difference),
                Some(difference) => {
                    (Outcome::Unclear, format!("unclear: noise hides what is below {}", hidden(difference)))
                }
                None => same(NONE),
            },
            Some(found) => match say(change) {
                Ok(verdict) => (Outcome::Different, format!("{verdict} ({})", p_text(found.p))),
                Err(why) => (Outcome::Unclear, why),
            },
        };
        let significant = outcome == Outcome::Different;
        Self { a, b, change, p: found.map(|f| f.p), detectable, significant, outcome, verdict, alike: small }
    }

    /// Of all memory: that no difference was found says something only where one could have been.
    fn proves_nothing(&mut self) {
        if self.outcome != Outcome::Same {
            return;
        }
        let why = match (self.p, self.detectable) {
            (None, _) => "what is known to be in use is too little to be compared".to_owned(),
            (Some(_), Some(share)) if share > HOPELESS => {
                format!("noise hides what is below {}", percent(share))
            }
            _ => return,
        };
        (self.outcome, self.verdict) = (Outcome::Unclear, format!("unclear: {why}"));
    }

    /// That there is no difference: with what noise may hide, where that is much.
    pub(crate) fn none(&self) -> String {
        match (self.outcome, self.p) {
            (Outcome::Same, Some(_)) => self.verdict.clone(),
            // Unclear, or too little to compare: of that the whole says no more.
            _ => NONE.to_owned(),
        }
    }
}

fn p_text(p: f64) -> String {
    if p < 0.001 { "p < 0.001".to_owned() } else { format!("p = {}", significant(p, 1)) }
}

#[cfg(test)]
mod tests;
