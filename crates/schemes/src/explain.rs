//! Schemes in plain words.

use crate::entry::Entry;
use crate::values::{show_percent, show_permil};
use isotherm_damon::schemes::{
    Action, Age, Bounds, CoreKind, Frequency, GoalMetric, GoalTuner, PageKind, Quota, Scheme,
};
use isotherm_report::units::{format_size_tick, format_time};
use std::time::Duration;

fn time(time: Duration) -> String {
    format_time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

const fn what(action: Action) -> &'static str {
    match action {
        Action::Willneed => "read in",
        Action::Cold => "let be reclaimed sooner",
        Action::Pageout => "page out",
        Action::Hugepage => "give huge pages to",
        Action::Nohugepage => "take huge pages from",
        Action::Collapse => "make huge pages of",
        Action::LruPrio => "move to the hot end of their LRU lists",
        Action::LruDeprio => "move to the cold end of their LRU lists",
        Action::MigrateHot | Action::MigrateCold => "move to other NUMA nodes",
        _ => "count, and leave as they are,",
    }
}

/// What a scheme does, in a sentence.
pub fn explain(entry: &Entry) -> String {
    let scheme = &entry.scheme;
    let mut text = format!("{} {}", capitalised(what(scheme.action)), regions(scheme));
    if !scheme.nodes.is_empty() {
        let total: u64 = scheme.nodes.iter().map(|node| u64::from(node.weight)).sum();
        let nodes = scheme.nodes.iter().map(|node| {
            let share = u64::from(node.weight) * 10_000 / total.max(1);
            if scheme.nodes.len() == 1 {
                format!("node {}", node.id)
            } else {
                format!("node {} ({} %)", node.id, show_percent(share as u32, 2))
            }
        });
        text.push_str(&format!(", to {}", nodes.collect::<Vec<_>>().join(" and ")));
    }
    let every = scheme.apply_interval.map_or_else(
        || "at the end of each aggregation".to_owned(),
        |every| format!("every {}", time(every)),
    );
    text.push_str(&format!("; look {every}"));
    text.extend(quota(scheme).map(|quota| format!("; {quota}")));
    if let Some(marks) = scheme.watermarks {
        let mark = |permil| show_permil(permil).replace('%', " %");
        text.push_str(&format!(
            "; only from when free memory falls below {} until it is above {} or below {}",
            mark(marks.mid),
            mark(marks.high),
            mark(marks.low)
        ));
    }
    let filters = filters(scheme);
    if !filters.is_empty() {
        text.push_str(&format!("; of that {}", filters.join(", then ")));
    }
    if let Some(most) = scheme.max_nr_snapshots {
        text.push_str(&format!("; no more after {most} snapshots"));
    }
    if scheme.unknown {
        text.push_str("; also memory of which nothing is known, as if it were idle");
    }
    if let Some(bp) = entry.guard.max_refault_bp {
        text.push_str(&format!(
            "; suspended when more than {} % of what was paged out comes back too soon",
            show_percent(bp, 2)
        ));
    }
    if let Some(bp) = entry.guard.max_psi_bp {
        text.push_str(&format!("; suspended while memory pressure is above {} %", show_percent(bp, 2)));
    }
    text.push('.');
    text
}

fn capitalised(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or_else(String::new, |first| first.to_uppercase().chain(chars).collect())
}

/// "at least 4 KiB", "4 KiB to 2 MiB"; nothing where both ends are open.
fn between<T: PartialEq>(bounds: Bounds<T>, open: (&T, &T), show: impl Fn(&T) -> String) -> Option<String> {
    match (bounds.min == *open.0, bounds.max == *open.1) {
        (true, true) => None,
        (false, true) => Some(format!("at least {}", show(&bounds.min))),
        (true, false) => Some(format!("at most {}", show(&bounds.max))),
        (false, false) if bounds.min == bounds.max => Some(format!("exactly {}", show(&bounds.min))),
        (false, false) => Some(format!("{} to {}", show(&bounds.min), show(&bounds.max))),
    }
}

fn regions(scheme: &Scheme) -> String {
    let pattern = scheme.pattern;
    let size = between(pattern.size, (&0, &u64::MAX), |bytes| format_size_tick(*bytes));
    let mut text = size.map_or_else(|| "regions of any size".to_owned(), |size| format!("regions of {size}"));
    let percent = |bp: &u32| format!("{} %", show_percent(*bp, 2));
    let access = match pattern.frequency {
        Frequency::Share(Bounds { max: 0, .. }) | Frequency::Samples(Bounds { max: 0, .. }) => {
            Some("that are not accessed at all".to_owned())
        }
        Frequency::Share(bounds) => between(bounds, (&0, &10_000), percent)
            .map(|share| format!("that are accessed in {share} of the sampling intervals")),
        Frequency::Samples(bounds) => between(bounds, (&0, &u32::MAX), u32::to_string)
            .map(|count| format!("that are accessed in {count} sampling intervals of an aggregation")),
    };
    let age = match pattern.age {
        Age::Time(bounds) => between(bounds, (&Duration::ZERO, &Duration::MAX), |age| time(*age)),
        Age::Aggregations(bounds) => {
            between(bounds, (&0, &u32::MAX), u32::to_string).map(|count| format!("{count} aggregations"))
        }
    };
    match (&access, &age) {
        (Some(access), Some(age)) => text.push_str(&format!(" {access}, and have been so for {age}")),
        (Some(access), None) => text.push_str(&format!(" {access}")),
        (None, Some(age)) => text.push_str(&format!(" that have been accessed about as often for {age}")),
        (None, None) => text.push_str(", however they are accessed"),
    }
    text
}

fn quota(scheme: &Scheme) -> Option<String> {
    let quota = &scheme.quota;
    if !quota.is_limited() {
        return None;
    }
    let size = quota.bytes.map(format_size_tick);
    let limits: Vec<String> =
        size.into_iter().chain(quota.time.map(|t| format!("{} of work", time(t)))).collect();
    let mut parts = Vec::new();
    let every = match quota.reset_interval {
        Duration::ZERO => "each time".to_owned(),
        every if every == Duration::MAX => "in all".to_owned(),
        every => format!("in {}", time(every)),
    };
    if !limits.is_empty() {
        parts.push(format!("at most {} {every}", limits.join(" and ")));
    }
    parts.extend(goals(quota));
    parts.extend(first(scheme));
    Some(parts.join(", "))
}

fn goals(quota: &Quota) -> Option<String> {
    let goal = |goal: &isotherm_damon::schemes::Goal| {
        let share = format!("{} %", show_percent(u32::try_from(goal.target).unwrap_or(u32::MAX), 2));
        match &goal.metric {
            GoalMetric::SomeMemPsiUs { cgroup } => {
                let of = cgroup.as_ref().map(|cgroup| format!(" in {cgroup}")).unwrap_or_default();
                format!(
                    "tasks wait for memory{of} for {} in that time",
                    format_time(goal.target.saturating_mul(1000))
                )
            }
            GoalMetric::NodeMemUsedBp(node) => format!("{share} of node {node} is used"),
            GoalMetric::NodeMemFreeBp(node) => format!("{share} of node {node} is free"),
            GoalMetric::NodeMemcgUsedBp { node, cgroup } => format!("{cgroup} uses {share} of node {node}"),
            GoalMetric::NodeMemcgFreeBp { node, cgroup } => format!("{cgroup} leaves {share} of node {node}"),
            GoalMetric::ActiveMemBp => format!("{share} of memory is active"),
            GoalMetric::InactiveMemBp => format!("{share} of memory is inactive"),
            GoalMetric::NodeEligibleMemBp(node) => format!("{share} of what matches is on node {node}"),
            _ => format!("the user's value is {}", goal.target),
        }
    };
    let goals: Vec<String> = quota.goals.iter().map(goal).collect();
    let how = match quota.tuner {
        GoalTuner::Temporal => "and that only until",
        GoalTuner::Pi => "and only as much, by proportional-integral control, as it takes that",
        _ => "and only as much as it takes that",
    };
    (!goals.is_empty()).then(|| format!("{how} {}", goals.join(" or ")))
}

fn first(scheme: &Scheme) -> Option<String> {
    let weights = scheme.quota.weights;
    let heat = weights.frequency > 0 || weights.age > 0;
    let temperature = match scheme.action {
        Action::Pageout | Action::LruDeprio | Action::MigrateCold => "coldest",
        Action::LruPrio | Action::MigrateHot => "hottest",
        _ => return None,
    };
    match (heat, weights.size > 0) {
        (true, false) => Some(format!("{temperature} first")),
        (true, true) => Some(format!("{temperature} and largest first")),
        (false, true) => Some("largest first".to_owned()),
        (false, false) => None,
    }
}

fn filters(scheme: &Scheme) -> Vec<String> {
    let verb = |allow, matching| {
        let verb = if allow { "take" } else { "leave out" };
        if matching { verb.to_owned() } else { format!("{verb} all but") }
    };
    let core = scheme.filters.core.iter().map(|filter| {
        let kind = match filter.kind {
            CoreKind::Addr(range) => format!("addresses {:#x} to {:#x}", range.start, range.end),
            CoreKind::Target(id) => format!("process {}", id.0),
            _ => "other memory".to_owned(),
        };
        format!("{} {kind}", verb(filter.allow, filter.matching))
    });
    let ops = scheme.filters.ops.iter().map(|filter| {
        let kind = match &filter.kind {
            PageKind::Anon => "anonymous pages".to_owned(),
            PageKind::Active => "active pages".to_owned(),
            PageKind::Young => "pages accessed since the last look".to_owned(),
            PageKind::Unmapped => "pages that nobody maps".to_owned(),
            PageKind::HugepageSize { min, max } => {
                let size =
                    between(Bounds::new(*min, *max), (&0, &u64::MAX), |bytes| format_size_tick(*bytes));
                format!("folios of {}", size.unwrap_or_else(|| "any size".to_owned()))
            }
            PageKind::Memcg(path) => format!("memory of cgroup {path}"),
            PageKind::File(path) => format!("files {path}"),
            _ => "other pages".to_owned(),
        };
        format!("{} {kind}", verb(filter.allow, filter.matching))
    });
    core.chain(ops).collect()
}
