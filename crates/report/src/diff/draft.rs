//! Rows in the making: the figures of all recordings side by side, and what their tests found.

use super::change::{Found, Limits, percent};
use super::matching::Matched;
use super::motion::BySlot;
use super::profile::Sums;
use super::run::RunProfile;
use super::statistics::{Prior, Run, Test, centre, test};
use super::{Change, DiffOptions, DiffRow};
use super::{LACKED, LATE_LOOKS, LATE_RATES, LATE_SPEED, MIN_RATE_CHANGE, MISSED, RATED_UNKNOWN, WS_PART};
use super::{MOVING_RATES, MOVING_SETS, UNMEASURED};
use crate::units::{format_rate, format_size};
use std::collections::HashMap;

/// A figure in all recordings.
pub(super) struct Sides {
    pub(super) a: Vec<Run>,
    pub(super) b: Vec<Run>,
}

impl Sides {
    pub(super) fn means(&self) -> (f64, f64) {
        (centre(&self.a), centre(&self.b))
    }

    pub(super) fn test(&self, prior: &Prior) -> Test {
        test(&self.a, &self.b, prior)
    }
}

/// A row in the making.
pub(super) struct Draft {
    program: String,
    object: bool,
    mapping: String,
    sizes: (u64, u64),
    pub(super) ws: Sides,
    pub(super) rate: Sides,
    unknown: (f64, f64),
    /// It is told apart by order and size alone, and another may have been taken for it.
    pub(super) mistakable: bool,
    /// Others for which it may have been taken make up for its change.
    pub(super) made_up_for: bool,
    /// The tests, and where their p-values stand; `None`: not tested.
    pub(super) ws_test: Option<(Test, usize)>,
    pub(super) rate_test: Option<(Test, usize)>,
}

/// What is in motion in a recording.
pub(super) struct InMotion<'a> {
    run: &'a RunProfile,
    /// Of all memory, as a share.
    pub(super) all: Option<f64>,
    /// Of the memory of each program's processes, as a share, and bytes.
    of_program: HashMap<&'a str, (f64, f64)>,
}

impl<'a> InMotion<'a> {
    pub(super) fn of(run: &'a RunProfile) -> Self {
        let share = |moved: &BySlot| moved.sum(&run.motion.slots).share();
        let mut bytes: HashMap<&str, f64> = HashMap::new();
        for area in run.areas.iter().filter(|area| !area.object) {
            *bytes.entry(&area.program).or_default() += middle_of(&area.blocks, |s| s.ws);
        }
        let of_program = run.motion.of_program.iter().filter_map(|(name, moved)| {
            let share = share(moved)?;
            Some((&**name, (share, share * bytes.get(&**name).copied().unwrap_or(0.0))))
        });
        Self { run, all: share(&run.motion.all), of_program: of_program.collect() }
    }

    /// All of it.
    fn of_all(&self) -> Moving {
        Moving { share: self.all.unwrap_or(UNMEASURED), most: 0.0 }
    }

    fn of_area(&self, one: &Matched, at: usize) -> Moving {
        let all = self.all.unwrap_or(UNMEASURED);
        let area = one.of_run[at].map(|i| &self.run.areas[i]);
        let own = area.and_then(|area| area.motion.sum(&self.run.motion.slots).share()).unwrap_or(all);
        let (of_program, bytes) = self.of_program.get(&*one.program).copied().unwrap_or((all, 0.0));
        match area {
            // What is shared is in use as those who map it come and go.
            _ if one.object => Moving { share: own.max(all), most: 0.0 },
            Some(area) if !area.of_one => Moving { share: own.max(of_program), most: 0.0 },
            // Which of its anonymous memory a program uses next is a matter of chance: one has what in another run any other has.
            _ if one.anonymous => Moving { share: own, most: bytes },
            _ => Moving { share: own, most: 0.0 },
        }
    }
}

/// What of a working set is in motion.
struct Moving {
    share: f64,
    /// Bytes that may be in it by chance, where that is more.
    most: f64,
}

fn middle_of(blocks: &[Sums], of: fn(&Sums) -> f64) -> f64 {
    Run { blocks: blocks.iter().map(of).collect(), ..Run::default() }.mean()
}

/// `moving`: what is in motion in each run.
pub(super) fn row(one: &Matched, runs: &[RunProfile], moving: &[InMotion<'_>], nr_a: usize) -> Draft {
    let area = |at: usize| one.of_run[at].map(|i| &runs[at].areas[i]);
    let blocks: Vec<Vec<Sums>> = (0..runs.len())
        .map(|at| {
            area(at).map_or_else(|| vec![Sums::default(); runs[at].blocks_s.len()], |a| a.blocks.clone())
        })
        .collect();
    let size = |from: usize, to: usize| (from..to).filter_map(area).map(|a| a.size).max().unwrap_or(0);
    let moving: Vec<Moving> = moving.iter().enumerate().map(|(at, run)| run.of_area(one, at)).collect();
    let name = if one.nr > 0 { format!("{} {}", one.name, one.nr) } else { one.name.clone() };
    Draft {
        program: one.program.clone(),
        object: one.object,
        mapping: name,
        sizes: (size(0, nr_a), size(nr_a, runs.len())),
        mistakable: one.is_mistakable,
        ..draft(&blocks, runs, &moving, nr_a)
    }
}

/// What is unknown in each recording of memory that was seen in some. What none can see (locked memory, say) is in no working set
/// that is compared.
pub(super) fn unknown_of(list: &[Matched], runs: &[RunProfile]) -> Vec<f64> {
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
pub(super) fn all_of(runs: &[RunProfile], moving: &[InMotion<'_>], nr_a: usize) -> Draft {
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
    let moving: Vec<Moving> = moving.iter().map(InMotion::of_all).collect();
    draft(&blocks, runs, &moving, nr_a)
}

const fn rate(sums: &Sums) -> f64 {
    if sums.ws > 0.0 { sums.heat / sums.ws } else { 0.0 }
}

fn draft(blocks: &[Vec<Sums>], runs: &[RunProfile], moving: &[Moving], nr_a: usize) -> Draft {
    // Of what is all in motion nothing more is known than how much it is about.
    let in_motion = |at: usize| {
        let ws = middle_of(&blocks[at], |s| s.ws);
        f64::max((MOVING_SETS * moving[at].share).min(1.0) * ws, MOVING_SETS * moving[at].most)
    };
    let ws_late = |blocks: &[Sums]| {
        let (ws, slope) = (middle_of(blocks, |s| s.ws), middle_of(blocks, |s| s.slope));
        LATE_LOOKS + LATE_SPEED * if ws > 0.0 { slope / ws } else { 0.0 }
    };
    type Of<'a> = &'a dyn Fn(&[Sums]) -> f64;
    let sides = |of: fn(&Sums) -> f64, late: Of<'_>, unknown: Of<'_>, motion: &dyn Fn(usize) -> f64| {
        let mut a: Vec<Run> = blocks
            .iter()
            .zip(runs)
            .enumerate()
            .map(|(at, (blocks, run))| Run {
                blocks: blocks.iter().map(of).collect(),
                late: (run.missed - MISSED).max(0.0) * late(blocks),
                unknown: unknown(blocks),
                motion: motion(at),
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
        ws: sides(|s| s.ws, &ws_late, &|blocks| middle_of(blocks, |s| s.unknown), &in_motion),
        rate: sides(rate, &|_| LATE_RATES, &|_| 0.0, &|at| {
            MOVING_RATES * moving[at].share * middle_of(&blocks[at], rate)
        }),
        unknown: sides(|s| s.unknown, &|_| 0.0, &|_| 0.0, &|_| 0.0).means(),
        mistakable: false,
        made_up_for: false,
        ws_test: None,
        rate_test: None,
    }
}

impl Draft {
    pub(super) fn program(&self) -> &str {
        &self.program
    }

    pub(super) fn finish(self, corrected: &[Vec<f64>; 2], options: &DiffOptions) -> DiffRow {
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
        let mistaken = || {
            Err("unclear: others of its anonymous memory make up for it, and it may have been taken for one of them".to_owned())
        };
        let working_set = Change::of(ws_a, ws_b, ws_found, &limits, ws_unit, |c| {
            if self.made_up_for {
                return mistaken();
            }
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
            if self.made_up_for {
                return mistaken();
            }
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
