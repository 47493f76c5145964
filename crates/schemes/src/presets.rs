//! Schemes by name: those of the seeds, and what the kernel's modules DAMON_RECLAIM, DAMON_LRU_SORT and DAMON_STAT do, with
//! their parameters and defaults.
//!
//! A preset is named like `reclaim`, or with parameters of its own: `reclaim:min_age=5m,quota_sz=1G`. A value without a unit has
//! the unit that the kernel's parameter has, so that `min_age=120000000` and `min_age=2m` are the same.

use crate::entry::{Entry, checked};
use crate::error::{Errors, FileError, Problem};
use crate::values::{self, Why};
use crate::words::meant;
use isotherm_damon::schemes::{
    AccessPattern, Action, Filter, Goal, GoalMetric, PageKind, Quota, Scheme, WatermarkMetric, Watermarks,
    Weights,
};
use std::time::Duration;

/// What a parameter is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Us,
    Ms,
    Bytes,
    Permil,
    Bp,
    Count,
    Flag,
}

/// A parameter of a preset.
#[derive(Clone, Copy, Debug)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    kind: Kind,
    /// Its default, in the kernel's unit.
    default: u64,
    /// What it is.
    pub about: &'static str,
}

/// A named set of schemes.
#[derive(Clone, Copy, Debug)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// What it does, a sentence.
    pub about: &'static str,
    /// What can be set.
    pub parameters: &'static [Parameter],
    make: fn(&Values) -> Vec<Entry>,
}

impl Parameter {
    /// Its default, with a unit.
    pub fn default_text(&self) -> String {
        match self.kind {
            Kind::Us => values::show_time(Duration::from_micros(self.default)),
            Kind::Ms => values::show_time(Duration::from_millis(self.default)),
            Kind::Bytes => values::show_size(self.default),
            Kind::Permil => values::show_permil(self.default as u32),
            Kind::Bp => values::show_share(self.default as u32),
            Kind::Count => self.default.to_string(),
            Kind::Flag => if self.default == 0 { "N" } else { "Y" }.to_owned(),
        }
    }

    fn read(&self, text: &str) -> Result<u64, Why> {
        let text = text.trim();
        let plain: Option<u64> = text.parse().ok();
        let units = |time: Duration, ns: u128| {
            let units = time.as_nanos() / ns;
            if !time.as_nanos().is_multiple_of(ns) {
                return Err(format!("{text:?} is finer than the parameter's unit"));
            }
            u64::try_from(units).map_err(|_| format!("{text:?} is too long"))
        };
        let bounded = |value: u64, most: u32| {
            u32::try_from(value)
                .ok()
                .filter(|value| *value <= most)
                .ok_or_else(|| format!("{text} is more than 100 %, the most there can be"))
        };
        match (self.kind, plain) {
            (Kind::Us | Kind::Ms | Kind::Bytes | Kind::Count, Some(plain)) => Ok(plain),
            (Kind::Us, None) => units(values::time(text)?, 1000),
            (Kind::Ms, None) => units(values::time(text)?, 1_000_000),
            (Kind::Bytes, None) => values::size(text),
            (Kind::Permil, Some(plain)) => bounded(plain, 1000).map(u64::from),
            (Kind::Permil, None) => values::permil(text).map(u64::from),
            (Kind::Bp, Some(plain)) => bounded(plain, 10_000).map(u64::from),
            (Kind::Bp, None) => values::share(text).map(u64::from),
            (Kind::Count, None) => Err(format!("{text:?} is not a whole number")),
            (Kind::Flag, _) => match text {
                "Y" | "y" | "1" | "yes" | "true" => Ok(1),
                "N" | "n" | "0" | "no" | "false" => Ok(0),
                _ => Err(format!("{text:?} is neither Y nor N")),
            },
        }
    }
}

/// Parameters of the kernel's modules that are the monitor's, and its switches.
const MONITORS: [&str; 14] = [
    "sample_interval",
    "aggr_interval",
    "min_nr_regions",
    "max_nr_regions",
    "monitor_region_start",
    "monitor_region_end",
    "addr_unit",
    "autotune_monitoring_intervals",
    "enabled",
    "commit_inputs",
    "kdamond_pid",
    "estimated_memory_bandwidth",
    "memory_idle_ms_percentiles",
    "aggr_interval_us",
];

/// The values of a preset's parameters.
struct Values {
    parameters: &'static [Parameter],
    values: Vec<u64>,
}

impl Values {
    fn get(&self, name: &str) -> u64 {
        let at = self.parameters.iter().position(|parameter| parameter.name == name);
        at.and_then(|at| self.values.get(at)).copied().unwrap_or(0)
    }

    fn us(&self, name: &str) -> Duration {
        Duration::from_micros(self.get(name))
    }

    fn watermarks(&self) -> Watermarks {
        Watermarks {
            metric: WatermarkMetric::FreeMemRate,
            interval: self.us("wmarks_interval"),
            high: self.get("wmarks_high") as u32,
            mid: self.get("wmarks_mid") as u32,
            low: self.get("wmarks_low") as u32,
        }
    }
}

const fn parameter(name: &'static str, kind: Kind, default: u64, about: &'static str) -> Parameter {
    Parameter { name, kind, default, about }
}

const PAGE: u64 = 4096;

/// All presets.
pub const PRESETS: [Preset; 5] = [
    Preset {
        name: "prcl",
        about: "the seeds' proactive reclamation: page out what is hardly accessed",
        parameters: &[
            parameter("min_size", Kind::Bytes, PAGE, "least size of a region"),
            parameter(
                "max_access",
                Kind::Bp,
                500,
                "most sampling intervals with an access (basis points, or %)",
            ),
            parameter("min_age", Kind::Us, 5_000_000, "for how long at least"),
        ],
        make: prcl,
    },
    Preset {
        name: "ethp",
        about: "the seeds' huge pages where they pay: for large regions that are accessed, and no longer where they are not",
        parameters: &[
            parameter("min_size", Kind::Bytes, 2 << 20, "least size of a region"),
            parameter(
                "access",
                Kind::Bp,
                500,
                "at this share of sampling intervals and above they pay (basis points, or %)",
            ),
            parameter("min_age", Kind::Us, 1_000_000, "for how long a region must be below it to lose them"),
        ],
        make: ethp,
    },
    Preset {
        name: "reclaim",
        about: "what the kernel's DAMON_RECLAIM does: page out idle memory, coldest first, while memory is scarce",
        parameters: &[
            parameter("min_age", Kind::Us, 120_000_000, "idle for how long at least"),
            parameter("quota_ms", Kind::Ms, 10, "time for it in each quota window; 0: no limit"),
            parameter("quota_sz", Kind::Bytes, 128 << 20, "bytes in each quota window; 0: no limit"),
            parameter("quota_reset_interval_ms", Kind::Ms, 1000, "length of a quota window"),
            parameter(
                "quota_mem_pressure_us",
                Kind::Us,
                0,
                "memory pressure stall to aim at in a window; 0: no aim",
            ),
            parameter(
                "quota_autotune_feedback",
                Kind::Count,
                0,
                "the user's own score, of which 10000 is aimed at; 0: no aim",
            ),
            parameter(
                "wmarks_interval",
                Kind::Us,
                5_000_000,
                "how often to look at free memory while inactive",
            ),
            parameter(
                "wmarks_high",
                Kind::Permil,
                500,
                "inactive above this share of free memory (permil, or %)",
            ),
            parameter("wmarks_mid", Kind::Permil, 400, "active again below this one"),
            parameter("wmarks_low", Kind::Permil, 200, "inactive below this one"),
            parameter("skip_anon", Kind::Flag, 0, "leave anonymous memory alone"),
        ],
        make: reclaim,
    },
    Preset {
        name: "lru-sort",
        about: "what the kernel's DAMON_LRU_SORT does: hot memory to the hot end of its LRU list, idle memory to the cold end",
        parameters: &[
            parameter(
                "hot_thres_access_freq",
                Kind::Permil,
                500,
                "hot at this share of sampling intervals and above (permil, or %)",
            ),
            parameter("cold_min_age", Kind::Us, 120_000_000, "idle for how long at least"),
            parameter(
                "quota_ms",
                Kind::Ms,
                10,
                "time for both in each quota window, half of it each; 0: no limit",
            ),
            parameter("quota_reset_interval_ms", Kind::Ms, 1000, "length of a quota window"),
            parameter(
                "wmarks_interval",
                Kind::Us,
                5_000_000,
                "how often to look at free memory while inactive",
            ),
            parameter(
                "wmarks_high",
                Kind::Permil,
                200,
                "inactive above this share of free memory (permil, or %)",
            ),
            parameter("wmarks_mid", Kind::Permil, 150, "active again below this one"),
            parameter("wmarks_low", Kind::Permil, 50, "inactive below this one"),
            parameter(
                "active_mem_bp",
                Kind::Bp,
                0,
                "share of active memory to aim at (basis points, or %); 0: no aim",
            ),
            parameter(
                "filter_young_pages",
                Kind::Flag,
                0,
                "of hot regions only young pages, of cold ones only others",
            ),
        ],
        make: lru_sort,
    },
    Preset {
        name: "stat",
        about: "nothing but statistics of all memory",
        parameters: &[],
        make: |_| vec![Entry::new(Scheme::new(AccessPattern::ANY, Action::Stat)).named("stat")],
    },
];

fn prcl(values: &Values) -> Vec<Entry> {
    let pattern = AccessPattern::ANY
        .size(values.get("min_size"), u64::MAX)
        .share(0, values.get("max_access") as u32)
        .age(values.us("min_age"), Duration::MAX);
    vec![Entry::new(Scheme::new(pattern, Action::Pageout)).named("prcl")]
}

fn ethp(values: &Values) -> Vec<Entry> {
    let large = AccessPattern::ANY.size(values.get("min_size"), u64::MAX);
    let access = values.get("access") as u32;
    let idle = large.share(0, access).age(values.us("min_age"), Duration::MAX);
    vec![
        Entry::new(Scheme::new(large.share(access, 10_000), Action::Hugepage)).named("ethp-promote"),
        Entry::new(Scheme::new(idle, Action::Nohugepage)).named("ethp-demote"),
    ]
}

fn limited(bytes: u64, ms: Duration, every_ms: u64, weights: Weights) -> Quota {
    Quota {
        bytes: (bytes > 0).then_some(bytes),
        time: (!ms.is_zero()).then_some(ms),
        reset_interval: Duration::from_millis(every_ms),
        weights,
        ..Quota::default()
    }
}

fn reclaim(values: &Values) -> Vec<Entry> {
    let pattern =
        AccessPattern::ANY.size(PAGE, u64::MAX).share(0, 0).age(values.us("min_age"), Duration::MAX);
    let weights = Weights { size: 0, frequency: 0, age: 1 };
    let time = Duration::from_millis(values.get("quota_ms"));
    let mut quota = limited(values.get("quota_sz"), time, values.get("quota_reset_interval_ms"), weights);
    let (pressure, feedback) = (values.get("quota_mem_pressure_us"), values.get("quota_autotune_feedback"));
    if pressure > 0 {
        quota.goals.push(Goal { metric: GoalMetric::SomeMemPsiUs { cgroup: None }, target: pressure });
    }
    if feedback > 0 {
        quota.goals.push(Goal { metric: GoalMetric::UserInput(Some(feedback)), target: 10_000 });
    }
    let mut scheme = Scheme::new(pattern, Action::Pageout);
    scheme.quota = quota;
    scheme.watermarks = Some(values.watermarks());
    if values.get("skip_anon") > 0 {
        scheme.filters.ops.push(Filter::reject(PageKind::Anon));
    }
    vec![Entry::new(scheme).named("reclaim")]
}

fn lru_sort(values: &Values) -> Vec<Entry> {
    let weights = Weights { size: 0, frequency: 1, age: 1 };
    let half = Duration::from_micros(values.get("quota_ms").saturating_mul(500));
    let quota = limited(0, half, values.get("quota_reset_interval_ms"), weights);
    // Kernel: `hot_thres_access_freq` is permil, shares are basis points.
    let hot = AccessPattern::ANY
        .size(PAGE, u64::MAX)
        .share(values.get("hot_thres_access_freq") as u32 * 10, 10_000);
    let cold =
        AccessPattern::ANY.size(PAGE, u64::MAX).share(0, 0).age(values.us("cold_min_age"), Duration::MAX);
    let make = |pattern, action, young: Filter<PageKind>, goal: Option<Goal>| {
        let mut scheme = Scheme { quota: quota.clone(), ..Scheme::new(pattern, action) };
        scheme.quota.goals.extend(goal);
        scheme.watermarks = Some(values.watermarks());
        if values.get("filter_young_pages") > 0 {
            scheme.filters.ops.push(young);
        }
        scheme
    };
    let active = values.get("active_mem_bp");
    let goal = |metric, target: u64| (active > 0).then_some(Goal { metric, target });
    // What is active and what is inactive are all there is; the kernel leaves 0.02 % between its two aims.
    let not_young = Filter { kind: PageKind::Young, matching: false, allow: false };
    let hot = make(hot, Action::LruPrio, not_young, goal(GoalMetric::ActiveMemBp, active));
    let inactive = goal(GoalMetric::InactiveMemBp, 10_002u64.saturating_sub(active));
    let cold = make(cold, Action::LruDeprio, Filter::reject(PageKind::Young), inactive);
    vec![Entry::new(hot).named("lru-sort-hot"), Entry::new(cold).named("lru-sort-cold")]
}

/// The preset of a name, with hyphens or underscores.
pub fn find(name: &str) -> Option<&'static Preset> {
    let name = name.replace('_', "-");
    PRESETS.iter().find(|preset| preset.name == name)
}

/// Whether `text` names a preset, maybe with parameters; a file of that name is another matter.
pub fn is_preset(text: &str) -> bool {
    find(text.split(':').next().unwrap_or_default()).is_some()
}

/// The schemes of a preset, `NAME` or `NAME:param=value,param=value`.
///
/// # Errors
/// No such preset, no such parameter of it, or a value that it cannot have.
pub fn preset(text: &str) -> Result<Vec<Entry>, Errors> {
    let (name, given) = text.split_once(':').unwrap_or((text, ""));
    let names = || PRESETS.iter().map(|preset| preset.name);
    let Some(preset) = find(name) else {
        let known = names().collect::<Vec<_>>().join(", ");
        let word = name.chars().take(60).collect();
        return Err(Errors::one("", Problem::UnknownWord { word, meant: meant(name, names()), known }));
    };
    let wrong = |field: &str, problem| Errors(vec![FileError::of(preset.name, field, problem)]);
    let parameters = preset.parameters;
    let mut values: Vec<u64> = parameters.iter().map(|parameter| parameter.default).collect();
    let mut named = vec![false; parameters.len()];
    for part in given.split(',').map(str::trim).filter(|part| !part.is_empty()) {
        let shown: String = part.chars().take(60).collect();
        let Some((key, value)) = part.split_once('=') else {
            return Err(wrong(&shown, Problem::Value("a parameter is written like min_age=2m".to_owned())));
        };
        let key = key.trim();
        let Some(at) = parameters.iter().position(|parameter| parameter.name == key) else {
            if MONITORS.contains(&key) {
                let why = "it is no parameter of the schemes; the monitor's are options of the command (--sample, --aggr, ...)";
                return Err(wrong(key, Problem::Unsupported(why.to_owned())));
            }
            let names = || parameters.iter().map(|parameter| parameter.name);
            let known = if parameters.is_empty() {
                "none".to_owned()
            } else {
                names().collect::<Vec<_>>().join(", ")
            };
            let problem = Problem::UnknownKey { meant: meant(key, names()), known };
            return Err(wrong(&key.chars().take(60).collect::<String>(), problem));
        };
        if std::mem::replace(&mut named[at], true) {
            return Err(wrong(key, Problem::Conflict("it is given twice".to_owned())));
        }
        values[at] = parameters[at].read(value).map_err(|why| wrong(key, Problem::Value(why)))?;
    }
    checked((preset.make)(&Values { parameters, values }))
}
