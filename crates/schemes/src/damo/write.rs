//! Writing schemes as damo's JSON.

use crate::convert::{Loss, beyond_damo};
use crate::entry::{Entry, metric_name, normal, place_of, tuner_name};
use crate::values::{show_percent, show_size, show_time};
use isotherm_damon::schemes::{
    Action, Age, CoreKind, Frequency, Goal, GoalMetric, GoalTuner, PageKind, Quota, Scheme,
};
use serde_json::{Value, json};
use std::time::Duration;

/// The schemes as a list that `damo --schemes` takes, and what of them damo cannot say.
pub(crate) fn write(entries: &[Entry]) -> (String, Vec<Loss>) {
    let mut losses = Vec::new();
    let mut schemes = Vec::new();
    for (index, entry) in entries.iter().enumerate() {
        let title = entry.title(index);
        let mut lose = |field: &str, what: String| losses.push(Loss::new(&title, field, what));
        if entry.name.is_some() {
            lose("name", "left out".to_owned());
        }
        schemes.push(scheme(&entry.scheme, &mut lose));
        beyond_damo(entry, &mut lose);
    }
    let text = serde_json::to_string_pretty(&Value::Array(schemes)).unwrap_or_default();
    (text + "\n", losses)
}

fn size(bytes: u64) -> String {
    if bytes == u64::MAX { "max".to_owned() } else { show_size(bytes) }
}

fn time(time: Duration) -> String {
    if time == Duration::MAX { "max".to_owned() } else { show_time(time) }
}

fn scheme(scheme: &Scheme, lose: &mut dyn FnMut(&str, String)) -> Value {
    let pattern = scheme.pattern;
    let accesses = match pattern.frequency {
        Frequency::Share(b) => {
            json!({"min": format!("{} %", show_percent(b.min, 2)), "max": format!("{} %", show_percent(b.max, 2))})
        }
        Frequency::Samples(b) => {
            json!({"min": format!("{} samples", b.min), "max": format!("{} samples", b.max)})
        }
    };
    let age = match pattern.age {
        Age::Time(b) => json!({"min": time(b.min), "max": time(b.max)}),
        Age::Aggregations(b) => {
            json!({"min": format!("{} aggr_intervals", b.min), "max": format!("{} aggr_intervals", b.max)})
        }
    };
    let nodes = &scheme.nodes;
    let dests: Vec<Value> = nodes.iter().map(|node| json!({"id": node.id, "weight": node.weight})).collect();
    let mut value = json!({
        "action": scheme.action.name(),
        "dests": if nodes.len() > 1 { dests } else { Vec::new() },
        "access_pattern": {
            "sz_bytes": {"min": size(pattern.size.min), "max": size(pattern.size.max)},
            "nr_accesses": accesses,
            "age": age,
        },
        "apply_interval_us": time(scheme.apply_interval.unwrap_or_default()),
        "quotas": quota(&scheme.quota, lose),
        "watermarks": watermarks(scheme),
        "filters": filters(scheme, lose),
    });
    if matches!(scheme.action, Action::MigrateHot | Action::MigrateCold)
        && let Some(object) = value.as_object_mut()
    {
        let one = nodes.first().filter(|_| nodes.len() == 1).map(|node| node.id);
        object.insert("target_nid".to_owned(), json!(one));
    }
    value
}

fn quota(quota: &Quota, lose: &mut dyn FnMut(&str, String)) -> Value {
    let quota = normal(quota.clone());
    let goals: Vec<Value> = quota.goals.iter().enumerate().map(|(index, g)| goal(g, index, lose)).collect();
    // damo's default where nothing is limited.
    let every = if quota.is_limited() { time(quota.reset_interval) } else { "max".to_owned() };
    let mut tuner = quota.tuner;
    if tuner == GoalTuner::Pi {
        tuner = GoalTuner::Consist;
        lose("quota.tuner", "pi becomes consist: the kernel has no other that looks for a quota".to_owned());
    }
    let mut weight = |name: &str, weight: u32| {
        if weight > 1000 {
            lose("quota.weights", format!("{name} = {weight} becomes 1000, the most in permil"));
        }
        weight.min(1000)
    };
    json!({
        "time_ms": time(quota.time.unwrap_or_default()),
        "sz_bytes": size(quota.bytes.unwrap_or(0)),
        "reset_interval_ms": every,
        "fail_charge_num": quota.fail_charge.map_or(0, |charge| charge.num),
        "fail_charge_denom": quota.fail_charge.map_or(0, |charge| charge.denom.get()),
        "goals": goals,
        "goal_tuner": tuner_name(tuner),
        "weights": {
            "sz_permil": weight("size", quota.weights.size),
            "nr_accesses_permil": weight("access", quota.weights.frequency),
            "age_permil": weight("age", quota.weights.age),
        },
    })
}

fn goal(goal: &Goal, index: usize, lose: &mut dyn FnMut(&str, String)) -> Value {
    let (node, cgroup) = place_of(&goal.metric);
    let mut cgroup = cgroup.cloned();
    if let GoalMetric::SomeMemPsiUs { cgroup: Some(path) } = &goal.metric {
        lose(
            &format!("quota.goals[{index}]"),
            format!("the pressure is that of the machine, not of the cgroup {path}"),
        );
        cgroup = None;
    }
    let value = if let GoalMetric::UserInput(value) = goal.metric { value } else { Some(0) };
    if value.is_none() {
        lose(&format!("quota.goals[{index}]"), "a value that is not known yet becomes 0".to_owned());
    }
    json!({
        "metric": metric_name(&goal.metric),
        "nid": node,
        "memcg_path": cgroup,
        "target_value": goal.target,
        "current_value": value.unwrap_or(0),
    })
}

fn watermarks(scheme: &Scheme) -> Value {
    let marks = scheme.watermarks;
    let percent = |permil: u32| format!("{} %", show_percent(permil, 1));
    json!({
        "metric": if marks.is_some() { "free_mem_rate" } else { "none" },
        "interval_us": time(marks.map_or(Duration::ZERO, |marks| marks.interval)),
        "high_permil": percent(marks.map_or(0, |marks| marks.high)),
        "mid_permil": percent(marks.map_or(0, |marks| marks.mid)),
        "low_permil": percent(marks.map_or(0, |marks| marks.low)),
    })
}

fn filters(scheme: &Scheme, lose: &mut dyn FnMut(&str, String)) -> Vec<Value> {
    let mut values = Vec::new();
    for filter in &scheme.filters.core {
        let CoreKind::Addr(range) = filter.kind else {
            let what = "left out: damo names a target by its number in the setup, not by its pid";
            lose("filters", format!("the filter of a target is {what}"));
            continue;
        };
        values.push(json!({
            "filter_type": "addr",
            "matching": filter.matching,
            "allow": filter.allow,
            "address_range": {"start": range.start, "end": range.end},
        }));
    }
    for filter in &scheme.filters.ops {
        let (kind, key, what) = match &filter.kind {
            PageKind::Anon => ("anon", "", Value::Null),
            PageKind::Active => ("active", "", Value::Null),
            PageKind::Young => ("young", "", Value::Null),
            PageKind::Unmapped => ("unmapped", "", Value::Null),
            PageKind::HugepageSize { min, max } => {
                ("hugepage_size", "hugepage_size", json!([size(*min), size(*max)]))
            }
            PageKind::Memcg(path) => ("memcg", "memcg_path", json!(path)),
            other => {
                lose("filters", format!("left out: damo has no filter of {other:?}"));
                continue;
            }
        };
        let mut value = json!({"filter_type": kind, "matching": filter.matching, "allow": filter.allow});
        if let Some(object) = value.as_object_mut().filter(|_| !key.is_empty()) {
            object.insert(key.to_owned(), what);
        }
        values.push(value);
    }
    values
}
