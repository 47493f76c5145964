//! Writing scheme files in TOML. What is read of them is what was written.

use crate::entry::{Entry, Source, metric_name, place_of, tuner_name, usual_tuner};
use crate::values::{quoted, show_permil, show_share, show_size, show_time};
use isotherm_damon::schemes::{
    Age, CoreFilter, CoreKind, Frequency, Goal, GoalMetric, OpsFilter, PageKind, Quota, Scheme,
};
use std::fmt::Write;
use std::time::Duration;

/// The schemes as a file.
pub(crate) fn write(entries: &[Entry]) -> String {
    let mut out = String::new();
    for entry in entries {
        if !out.is_empty() {
            out.push('\n');
        }
        scheme(entry, &mut out);
    }
    out
}

fn line(out: &mut String, key: &str, value: &str) {
    // Writing to a string cannot fail.
    let _ = writeln!(out, "{key} = {value}");
}

fn text(out: &mut String, key: &str, value: &str) {
    line(out, key, &quoted(value));
}

fn scheme(entry: &Entry, out: &mut String) {
    let Entry { name, scheme, guard, .. } = entry;
    out.push_str("[[scheme]]\n");
    if let Some(name) = name {
        text(out, "name", name);
    }
    text(out, "action", scheme.action.name());
    pattern(scheme, out);
    if let Some(interval) = scheme.apply_interval {
        text(out, "apply_interval", &show_time(interval));
    }
    quota(entry, out);
    if let Some(marks) = scheme.watermarks {
        let mark = |permil| quoted(&show_permil(permil));
        let value = format!(
            "{{ metric = \"free_mem_rate\", high = {}, mid = {}, low = {}, interval = {} }}",
            mark(marks.high),
            mark(marks.mid),
            mark(marks.low),
            quoted(&show_time(marks.interval))
        );
        line(out, "watermarks", &value);
    }
    let core = scheme.filters.core.iter().map(core_filter);
    let filters: Vec<String> = core.chain(scheme.filters.ops.iter().map(ops_filter)).collect();
    list(out, "filters", &filters);
    let node = |node: &isotherm_damon::schemes::Node| match node.weight {
        1 => node.id.to_string(),
        weight => format!("{{ id = {}, weight = {weight} }}", node.id),
    };
    let nodes: Vec<String> = scheme.nodes.iter().map(node).collect();
    if !nodes.is_empty() {
        line(out, "nodes", &format!("[{}]", nodes.join(", ")));
    }
    if let Some(most) = scheme.max_nr_snapshots {
        line(out, "max_nr_snapshots", &most.to_string());
    }
    if scheme.unknown {
        line(out, "unknown", "true");
    }
    if let Some(bp) = guard.max_refault_bp {
        text(out, "max_refault_rate", &show_share(bp));
    }
    if let Some(bp) = guard.max_psi_bp {
        text(out, "max_psi", &show_share(bp));
    }
}

fn pattern(scheme: &Scheme, out: &mut String) {
    let pattern = scheme.pattern;
    if pattern.size.min > 0 {
        text(out, "min_size", &show_size(pattern.size.min));
    }
    if pattern.size.max < u64::MAX {
        text(out, "max_size", &show_size(pattern.size.max));
    }
    match pattern.frequency {
        Frequency::Share(bounds) => {
            if bounds.min > 0 {
                text(out, "min_access", &show_share(bounds.min));
            }
            if bounds.max != 10_000 {
                text(out, "max_access", &show_share(bounds.max));
            }
        }
        Frequency::Samples(bounds) => {
            // The unit has to be said at one end at least.
            text(out, "min_access", &format!("{} samples", bounds.min));
            if bounds.max < u32::MAX {
                text(out, "max_access", &format!("{} samples", bounds.max));
            }
        }
    }
    match pattern.age {
        Age::Time(bounds) => {
            if !bounds.min.is_zero() {
                text(out, "min_age", &show_time(bounds.min));
            }
            if bounds.max < Duration::MAX {
                text(out, "max_age", &show_time(bounds.max));
            }
        }
        Age::Aggregations(bounds) => {
            text(out, "min_age", &format!("{} aggregations", bounds.min));
            if bounds.max < u32::MAX {
                text(out, "max_age", &format!("{} aggregations", bounds.max));
            }
        }
    }
}

fn quota(entry: &Entry, out: &mut String) {
    let quota = &entry.scheme.quota;
    if *quota == Quota::default() {
        return;
    }
    if let Some(bytes) = quota.bytes {
        text(out, "quota.size", &show_size(bytes));
    }
    if let Some(time) = quota.time {
        text(out, "quota.time", &show_time(time));
    }
    text(out, "quota.reset_interval", &show_time(quota.reset_interval));
    let weights = quota.weights;
    if weights.size | weights.frequency | weights.age != 0 {
        let value =
            format!("{{ size = {}, access = {}, age = {} }}", weights.size, weights.frequency, weights.age);
        line(out, "quota.weights", &value);
    }
    if let Some(charge) = quota.fail_charge {
        text(out, "quota.fail_charge", &format!("{}/{}", charge.num, charge.denom));
    }
    if quota.tuner != usual_tuner(&quota.goals) {
        text(out, "quota.tuner", tuner_name(quota.tuner));
    }
    let goals: Vec<String> =
        quota.goals.iter().enumerate().map(|(at, g)| goal(g, entry.sources.get(&at))).collect();
    list(out, "quota.goals", &goals);
}

/// A list of tables, a line each.
fn list(out: &mut String, key: &str, items: &[String]) {
    if !items.is_empty() {
        let _ = writeln!(out, "{key} = [\n    {},\n]", items.join(",\n    "));
    }
}

fn goal(goal: &Goal, source: Option<&Source>) -> String {
    let target = match goal.metric {
        GoalMetric::UserInput(_) => goal.target.to_string(),
        // Microseconds; more of them than a time has nanoseconds for are no target that anything meets.
        GoalMetric::SomeMemPsiUs { .. } => {
            quoted(&show_time(Duration::from_nanos(goal.target.min(u64::MAX / 1000).saturating_mul(1000))))
        }
        _ => quoted(&show_share(u32::try_from(goal.target).unwrap_or(u32::MAX))),
    };
    let mut parts = vec![format!("metric = \"{}\"", metric_name(&goal.metric)), format!("target = {target}")];
    let (node, cgroup) = place_of(&goal.metric);
    parts.extend(node.map(|node| format!("node = {node}")));
    parts.extend(cgroup.map(|cgroup| format!("cgroup = {}", quoted(cgroup))));
    if let GoalMetric::UserInput(Some(value)) = goal.metric {
        parts.push(format!("value = {value}"));
    }
    match source {
        Some(Source::File(path)) => parts.push(format!("file = {}", quoted(&path.to_string_lossy()))),
        Some(Source::Command(words)) => {
            let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
            parts.push(format!("command = [{}]", words.join(", ")));
        }
        None => {}
    }
    format!("{{ {} }}", parts.join(", "))
}

fn head(matching: bool, allow: bool, kind: &str) -> String {
    format!("{} = \"{}{kind}\"", if allow { "allow" } else { "reject" }, if matching { "" } else { "not " })
}

fn core_filter(filter: &CoreFilter) -> String {
    let (kind, rest) = match filter.kind {
        CoreKind::Addr(range) => ("addr", format!("addresses = \"{:#x}-{:#x}\"", range.start, range.end)),
        CoreKind::Target(id) => ("target", format!("pid = {}", id.0)),
        // The core may come to know more kinds than there are words for.
        _ => ("addr", String::new()),
    };
    format!("{{ {}, {rest} }}", head(filter.matching, filter.allow, kind))
}

fn ops_filter(filter: &OpsFilter) -> String {
    let (kind, rest) = page_kind(&filter.kind);
    format!("{{ {}{rest} }}", head(filter.matching, filter.allow, kind))
}

fn page_kind(kind: &PageKind) -> (&'static str, String) {
    match kind {
        PageKind::Active => ("active", String::new()),
        PageKind::Young => ("young", String::new()),
        PageKind::Unmapped => ("unmapped", String::new()),
        PageKind::HugepageSize { min, max } => {
            let max = if *max == u64::MAX { String::new() } else { show_size(*max) };
            ("hugepage_size", format!(", size = \"{}..{max}\"", show_size(*min)))
        }
        PageKind::Memcg(path) => ("memcg", format!(", path = {}", quoted(path))),
        PageKind::File(path) => ("file", format!(", path = {}", quoted(path))),
        _ => ("anon", String::new()),
    }
}
