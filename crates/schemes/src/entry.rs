//! One scheme of a file: the core's, and what only whoever applies it needs.

use crate::error::{FileError, Problem, Sink, invalid, key_of};
use isotherm_damon::schemes::{
    AccessPattern, Action, Age, Frequency, Goal, GoalMetric, GoalTuner, Quota, Scheme,
};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Where the present value of a `user_input` goal comes from while a scheme is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The first number in this file, read anew for each quota window.
    File(PathBuf),
    /// The first number that this command prints; the program first, no shell in between.
    Command(Vec<String>),
}

/// Limits beyond which a scheme is suspended, because it does harm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guard {
    /// Most of the bytes paged out that may come back before they were out for as long as the scheme's minimum age, in basis
    /// points of the bytes paged out.
    pub max_refault_bp: Option<u32>,
    /// Highest memory pressure (`some`, mean of 10 s) in basis points of the time.
    pub max_psi_bp: Option<u32>,
}

/// A scheme as a file says it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name, where the file gives it one.
    pub name: Option<String>,
    /// Line of the file on which it begins, from 1, where the format has lines.
    pub line: Option<usize>,
    /// What the core applies.
    pub scheme: Scheme,
    /// When it is to be suspended.
    pub guard: Guard,
    /// Where the values of `user_input` goals come from, by the index of the goal.
    pub sources: BTreeMap<usize, Source>,
}

impl Entry {
    /// A scheme without a name.
    pub fn new(scheme: Scheme) -> Self {
        Self { name: None, line: None, scheme, guard: Guard::default(), sources: BTreeMap::new() }
    }

    /// With this name.
    #[must_use]
    pub fn named(self, name: &str) -> Self {
        Self { name: Some(name.to_owned()), ..self }
    }

    /// What to call it in messages: its name, or its number (`index` from 0) and action.
    pub fn title(&self, index: usize) -> String {
        self.name.clone().unwrap_or_else(|| format!("{} ({})", index + 1, self.scheme.action))
    }
}

/// Each scheme is compared with all others.
const MOST: usize = 1000;

/// Schemes that are valid one by one, and do not undo each other's work.
pub(crate) fn check(entries: &[Entry], sink: &mut Sink) {
    if entries.len() > MOST {
        let why = format!(
            "there are {} schemes, and more than {MOST} nobody can want: each looks at every region",
            entries.len()
        );
        return sink.add(None, None, "", Problem::Invalid(why));
    }
    for (index, entry) in entries.iter().enumerate() {
        let title = entry.title(index);
        for error in entry.scheme.problems() {
            sink.add(entry.line, Some(&title), &key_of(error.field), invalid(&entry.scheme.pattern, error));
        }
        let earlier = || entries.iter().enumerate().take(index);
        if let Some((_, other)) =
            earlier().find(|(_, other)| entry.name.is_some() && other.name == entry.name)
        {
            let at = other.line.map(|line| format!(" in line {line}")).unwrap_or_default();
            let problem = Problem::Conflict(format!("another scheme has this name{at}"));
            sink.add(entry.line, Some(&title), "name", problem);
        }
        let undone = earlier().find(|(_, other)| contradict(&entry.scheme, &other.scheme));
        if let Some((at, other)) = undone {
            let problem = Problem::Contradicts {
                other: other.title(at),
                action: entry.scheme.action.name(),
                undoes: other.scheme.action.name(),
            };
            sink.add(entry.line, Some(&title), "action", problem);
        }
    }
}

/// The errors of schemes that come from no file.
pub(crate) fn checked(entries: Vec<Entry>) -> Result<Vec<Entry>, crate::Errors> {
    let mut sink = Sink::default();
    check(&entries, &mut sink);
    sink.finish(entries)
}

/// Whether one action undoes the other.
const fn opposite(a: Action, b: Action) -> bool {
    use Action::{
        Cold, Collapse, Hugepage, LruDeprio, LruPrio, MigrateCold, MigrateHot, Nohugepage, Pageout, Willneed,
    };
    matches!(
        (a, b),
        (Hugepage | Collapse, Nohugepage)
            | (Nohugepage, Hugepage | Collapse)
            | (Willneed, Pageout | Cold)
            | (Pageout | Cold, Willneed)
            | (LruPrio, LruDeprio | Cold | Pageout)
            | (LruDeprio | Cold | Pageout, LruPrio)
            | (MigrateHot, MigrateCold)
            | (MigrateCold, MigrateHot)
    )
}

/// Whether two schemes undo each other's work on memory that both match, as far as their patterns alone say so. What has
/// filters may be kept apart by them; and a bound that both have in common, such as the 5 % below which one acts and above
/// which the other does, is no overlap.
fn contradict(a: &Scheme, b: &Scheme) -> bool {
    let filtered = |scheme: &Scheme| !scheme.filters.core.is_empty() || !scheme.filters.ops.is_empty();
    if !opposite(a.action, b.action) || (filtered(a) || filtered(b)) && a.filters != b.filters {
        return false;
    }
    overlap((a.pattern.size.min, a.pattern.size.max), (b.pattern.size.min, b.pattern.size.max))
        && frequencies_overlap(a.pattern, b.pattern)
        && ages_overlap(a.pattern, b.pattern)
}

fn overlap<T: Ord + Copy>(a: (T, T), b: (T, T)) -> bool {
    let (low, high) = (a.0.max(b.0), a.1.min(b.1));
    let is_point = a.0 == a.1 || b.0 == b.1;
    low < high || is_point && low == high
}

fn frequencies_overlap(a: AccessPattern, b: AccessPattern) -> bool {
    match (a.frequency, b.frequency) {
        (Frequency::Share(a), Frequency::Share(b)) | (Frequency::Samples(a), Frequency::Samples(b)) => {
            overlap((a.min, a.max), (b.min, b.max))
        }
        // How much a sample is depends on the intervals; none is none in any case.
        (Frequency::Share(a), Frequency::Samples(b)) | (Frequency::Samples(b), Frequency::Share(a)) => {
            a.max == 0 && b.min == 0 || b.max == 0 && a.min == 0
        }
    }
}

fn ages_overlap(a: AccessPattern, b: AccessPattern) -> bool {
    match (a.age, b.age) {
        (Age::Time(a), Age::Time(b)) => overlap((a.min, a.max), (b.min, b.max)),
        (Age::Aggregations(a), Age::Aggregations(b)) => overlap((a.min, a.max), (b.min, b.max)),
        (Age::Time(time), Age::Aggregations(count)) | (Age::Aggregations(count), Age::Time(time)) => {
            // As above: only what is without an upper end meets whatever the interval is.
            time.max == std::time::Duration::MAX && count.max == u32::MAX
        }
    }
}

/// What is the default anyway, so that nothing is lost where it cannot be said: windows of a quota that limits nothing.
pub(crate) fn normal(quota: Quota) -> Quota {
    if quota.is_limited() { quota } else { Quota::default() }
}

/// The tuner of a scheme in a TOML file that names none: the kernel's, but Isotherm's own for pressure, which shows what was
/// done late and noisily.
pub(crate) fn usual_tuner(goals: &[Goal]) -> GoalTuner {
    let by_pressure = goals.iter().any(|goal| matches!(goal.metric, GoalMetric::SomeMemPsiUs { .. }));
    if by_pressure { GoalTuner::Pi } else { GoalTuner::Consist }
}

/// A tuner's name: the kernel's where it has it.
pub(crate) const fn tuner_name(tuner: GoalTuner) -> &'static str {
    match tuner {
        GoalTuner::Temporal => "temporal",
        GoalTuner::Pi => "pi",
        _ => "consist",
    }
}

/// The kernel's name of a goal's metric.
pub(crate) const fn metric_name(metric: &GoalMetric) -> &'static str {
    match metric {
        GoalMetric::SomeMemPsiUs { .. } => "some_mem_psi_us",
        GoalMetric::NodeMemUsedBp(_) => "node_mem_used_bp",
        GoalMetric::NodeMemFreeBp(_) => "node_mem_free_bp",
        GoalMetric::NodeMemcgUsedBp { .. } => "node_memcg_used_bp",
        GoalMetric::NodeMemcgFreeBp { .. } => "node_memcg_free_bp",
        GoalMetric::ActiveMemBp => "active_mem_bp",
        GoalMetric::InactiveMemBp => "inactive_mem_bp",
        GoalMetric::NodeEligibleMemBp(_) => "node_eligible_mem_bp",
        _ => "user_input",
    }
}

/// Names of all metrics.
pub(crate) const METRICS: [&str; 9] = [
    "user_input",
    "some_mem_psi_us",
    "node_mem_used_bp",
    "node_mem_free_bp",
    "node_memcg_used_bp",
    "node_memcg_free_bp",
    "active_mem_bp",
    "inactive_mem_bp",
    "node_eligible_mem_bp",
];

/// The metric of a name, if it is one. Where it needs a node or a cgroup and none is given: which.
pub(crate) fn metric(
    name: &str,
    node: Option<u32>,
    cgroup: Option<String>,
    value: Option<u64>,
) -> Option<Result<GoalMetric, &'static str>> {
    let with_node = |make: fn(u32) -> GoalMetric| node.map(make).ok_or("node");
    let with_both = |make: fn(u32, String) -> GoalMetric| match (node, cgroup.clone()) {
        (None, _) => Err("node"),
        (_, None) => Err("cgroup"),
        (Some(node), Some(cgroup)) => Ok(make(node, cgroup)),
    };
    Some(match name {
        "user_input" => Ok(GoalMetric::UserInput(value)),
        "some_mem_psi_us" => Ok(GoalMetric::SomeMemPsiUs { cgroup }),
        "node_mem_used_bp" => with_node(GoalMetric::NodeMemUsedBp),
        "node_mem_free_bp" => with_node(GoalMetric::NodeMemFreeBp),
        "node_memcg_used_bp" => with_both(|node, cgroup| GoalMetric::NodeMemcgUsedBp { node, cgroup }),
        "node_memcg_free_bp" => with_both(|node, cgroup| GoalMetric::NodeMemcgFreeBp { node, cgroup }),
        "active_mem_bp" => Ok(GoalMetric::ActiveMemBp),
        "inactive_mem_bp" => Ok(GoalMetric::InactiveMemBp),
        "node_eligible_mem_bp" => with_node(GoalMetric::NodeEligibleMemBp),
        _ => return None,
    })
}

/// The node and the cgroup of a metric.
pub(crate) fn place_of(metric: &GoalMetric) -> (Option<u32>, Option<&String>) {
    match metric {
        GoalMetric::SomeMemPsiUs { cgroup } => (None, cgroup.as_ref()),
        GoalMetric::NodeMemUsedBp(node)
        | GoalMetric::NodeMemFreeBp(node)
        | GoalMetric::NodeEligibleMemBp(node) => (Some(*node), None),
        GoalMetric::NodeMemcgUsedBp { node, cgroup } | GoalMetric::NodeMemcgFreeBp { node, cgroup } => {
            (Some(*node), Some(cgroup))
        }
        _ => (None, None),
    }
}

impl FileError {
    /// Of the scheme of a command line.
    pub(crate) fn of(scheme: &str, field: &str, problem: Problem) -> Self {
        Self { line: None, scheme: Some(scheme.to_owned()), field: field.to_owned(), problem }
    }
}
