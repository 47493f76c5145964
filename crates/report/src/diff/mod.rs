//! What differs between recordings of one program: working sets, and what got hotter or colder.
//!
//! Each recording is collected by a [`Profile`]; [`compare`] matches their mappings and tests each for a
//! difference. What is tested is the mean over time of the working set of a second, and of the access rate of what
//! is in it; how, and what noise is, tells the module `statistics`. A difference is significant when it is
//! improbable as noise *and* as large as asked for *and* not explained by memory that is unknown in one recording
//! and known in the other.

mod areas;
mod change;
mod draft;
mod matching;
mod motion;
mod profile;
mod run;
mod statistics;
mod text;

pub use profile::Profile;
pub use text::write_text;

use crate::names::printable;
use crate::provenance::Provenance;
use crate::units::{counted, format_share, format_time};
use draft::{Draft, InMotion, all_of, row, unknown_of};
use matching::matched;
use run::RunProfile;
use serde::Serialize;
use statistics::{Prior, holm};
use std::collections::{BTreeSet, HashMap};

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

/// What is in motion of a working set, times this, is how uncertain it is, all of it at most: Java had .08 to .12 in motion, and its working
/// sets scattered by .17; compilers had .4 to .6, and .35. Of 42 pairs of recordings of Java, compilers, Node, sorts, SQLite and zlib, each of
/// 12 s, 10 were taken for different without this, and of 60 such pairs on a busy machine 7; with it none.
const MOVING_SETS: f64 = 2.0;

/// What is taken to be in motion where a recording is too short to tell, as a share: about as much as of Java.
const UNMEASURED: f64 = 0.1;

/// What share is in motion, times this, is how uncertain rates are, as a share: memory is seen for too short a time. Rates of a loop
/// over memory that changes every four seconds are off by .4 on the mean, and up to 2.7 times too high.
const MOVING_RATES: f64 = 8.0;

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
    /// Share of its working set that gave way to other memory within two seconds, beyond what steady working sets show; `null`: too short,
    /// or with too little in use, to tell.
    pub motion: Option<f64>,
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
    /// In which way the two sides are not of the same, or were recorded otherwise, in words: what was seen of the same accesses may
    /// differ then.
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
    let [with_a, with_b] = sides.map(|side| side.join(", "));
    let recorded = (!with_a.is_empty()).then(|| format!("A was recorded with {with_a}, B with {with_b}"));
    let said: Vec<String> = other_programs(a, b).into_iter().chain(recorded).collect();
    (!said.is_empty()).then(|| said.join("; "))
}

/// That no program of one side is on the other.
fn other_programs(a: &[Compared], b: &[Compared]) -> Option<String> {
    /// So many are named.
    const FEW: usize = 3;
    let [a, b] = [a, b].map(|side| {
        let targets = side.iter().flat_map(|one| &one.provenance.targets);
        targets.map(|target| target.comm.as_str()).filter(|comm| !comm.is_empty()).collect::<BTreeSet<_>>()
    });
    if a.is_empty() || b.is_empty() || !a.is_disjoint(&b) {
        return None;
    }
    let named = |programs: BTreeSet<&str>| {
        let more = programs.len().saturating_sub(FEW);
        let named = programs.into_iter().take(FEW).map(printable).collect::<Vec<_>>().join(", ");
        if more > 0 { format!("{named} and {more} more") } else { named }
    };
    Some(format!("A is of {}, B of {}, which are other programs", named(a), named(b)))
}

/// Compares recordings, each with the name of its file. Neither side may be empty.
pub fn compare(a: Vec<(String, Profile)>, b: Vec<(String, Profile)>, options: &DiffOptions) -> DiffReport {
    let nr_a = a.len();
    let files: Vec<String> = a.iter().chain(&b).map(|(file, _)| file.clone()).collect();
    let runs: Vec<RunProfile> =
        a.into_iter().chain(b).map(|(_, profile)| profile.finish(options.settle_s)).collect();
    let list = matched(&runs);
    let moving: Vec<InMotion<'_>> = runs.iter().map(InMotion::of).collect();
    let mut all = all_of(&runs, &moving, nr_a);
    for (run, unknown) in all.ws.a.iter_mut().chain(&mut all.ws.b).zip(unknown_of(&list, &runs)) {
        run.unknown = unknown;
    }
    let mut rows = vec![all];
    rows.extend(list.iter().map(|one| row(one, &runs, &moving, nr_a)));
    let motion: Vec<Option<f64>> = moving.iter().map(|run| run.all).collect();
    find_made_up_for(&mut rows, options.min_change);
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
        .zip(motion)
        .map(|((file, run), motion)| Compared {
            file,
            missed: missed(&run.provenance),
            motion,
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

/// Finds the rows for whose change others of the program's anonymous memory make up: more than half of what one lacks the others have
/// more. Where one may have been taken for another that may be no difference. A change below `least`, a share, is none to make up for.
fn find_made_up_for(rows: &mut [Draft], least: f64) {
    let change = |row: &Draft| row.ws.means().1 - row.ws.means().0;
    let mut of_program: HashMap<String, f64> = HashMap::new();
    for row in rows.iter().filter(|row| row.mistakable) {
        *of_program.entry(row.program().to_owned()).or_default() += change(row);
    }
    for row in rows.iter_mut().filter(|row| row.mistakable) {
        let (a, b) = row.ws.means();
        let all = of_program.get(row.program()).copied().unwrap_or(0.0);
        let is_large = (b - a).abs() >= least * a.max(b);
        row.made_up_for = is_large && all * (b - a).signum() < (b - a).abs() / 2.0;
    }
}

/// Share of its sampling intervals that the monitor missed because it came late.
fn missed(from: &Provenance) -> f64 {
    let sample_ns = from.attrs.sample_us as f64 * 1000.0;
    let all = if sample_ns > 0.0 { from.length_ns() as f64 / sample_ns } else { 0.0 };
    if all > 0.0 { (from.cost.samples_missed as f64 / all).min(1.0) } else { 0.0 }
}

#[cfg(test)]
mod tests;
