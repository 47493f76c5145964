//! Reading damo's JSON.

use super::figures::{self, Figure};
use super::keys;
use crate::entry::{Entry, METRICS, check, metric};
use crate::error::{Errors, FileError, Problem, Sink};
use crate::values::Why;
use crate::words::meant;
use isotherm_damon::schemes::{
    AccessPattern, Action, Age, Bounds, CoreKind, FailCharge, Filter, Filters, Frequency, Goal, GoalTuner,
    Node, PageKind, Quota, Scheme, WatermarkMetric, Watermarks, Weights,
};
use isotherm_damon::{AddrRange, TargetId};
use serde_json::{Map, Value};
use std::num::NonZeroU32;
use std::time::Duration;

/// What a reader of one scheme works with: the targets of its context, and where it says what is wrong.
struct Reader<'a> {
    /// Pids of the context's targets, in order; `None` where the file is only of schemes.
    targets: Option<Vec<Option<u64>>>,
    title: String,
    sink: &'a mut Sink,
    remarks: &'a mut Vec<String>,
}

type Object = Map<String, Value>;

/// The schemes of a file, and what of it was not read, a sentence each.
pub(crate) fn read(text: &str) -> Result<(Vec<Entry>, Vec<String>), Errors> {
    let document: Value = serde_json::from_str(text).map_err(|error| {
        let problem = Problem::Syntax(format!("this is not JSON: {error}"));
        Errors(vec![FileError { line: Some(error.line()), scheme: None, field: String::new(), problem }])
    })?;
    let (mut entries, mut sink, mut remarks) = (Vec::new(), Sink::default(), Vec::new());
    let contexts = contexts(&document);
    let setup = document.get("kdamonds").is_some() || document.get("contexts").is_some();
    if setup {
        remarks.push(
            "only schemes are read: intervals, regions and targets are given where schemes are applied"
                .to_owned(),
        );
    }
    let with_schemes = contexts.iter().filter(|context| !schemes(context).is_empty()).count();
    if with_schemes > 1 {
        remarks.push(format!(
            "the schemes of {with_schemes} contexts become one list, for all targets that they are applied to"
        ));
    }
    for context in &contexts {
        let targets = context.get("targets").and_then(Value::as_array);
        let pid = |target: &Value| target.get("pid").and_then(|pid| figures::count(pid, u64::MAX).ok());
        let mut targets = targets.map(|targets| targets.iter().map(pid).collect());
        if context.get("ops").and_then(Value::as_str) == Some("paddr") {
            remarks.push(
                "a context is of physical addresses; here schemes act on those of processes".to_owned(),
            );
        }
        for scheme in schemes(context) {
            let title = (entries.len() + 1).to_string();
            let mut reader = Reader { targets, title, sink: &mut sink, remarks: &mut remarks };
            match scheme.as_object() {
                Some(object) => entries.push(Entry::new(reader.scheme(object))),
                None => reader.wrong("", Problem::Value("a scheme is a JSON object".to_owned())),
            }
            targets = reader.targets;
        }
    }
    if entries.is_empty() && sink.errors.is_empty() {
        sink.add(
            None,
            None,
            "",
            Problem::Invalid(
                "there is no scheme in the file, which would have an action and an access_pattern".to_owned(),
            ),
        );
    }
    if sink.errors.is_empty() {
        check(&entries, &mut sink);
    }
    remarks.dedup();
    sink.finish((entries, remarks))
}

/// What has schemes in it: contexts, or the document itself.
fn contexts(document: &Value) -> Vec<&Value> {
    let kdamonds = document.get("kdamonds").and_then(Value::as_array);
    match kdamonds {
        Some(kdamonds) => {
            kdamonds.iter().filter_map(|k| k.get("contexts").and_then(Value::as_array)).flatten().collect()
        }
        None => match document.get("contexts").and_then(Value::as_array) {
            Some(contexts) => contexts.iter().collect(),
            None => vec![document],
        },
    }
}

fn schemes(context: &Value) -> Vec<&Value> {
    match (context, context.get("schemes").and_then(Value::as_array)) {
        (_, Some(schemes)) => schemes.iter().collect(),
        (Value::Array(schemes), None) => schemes.iter().collect(),
        (Value::Object(object), None)
            if object.contains_key("action") || object.contains_key("access_pattern") =>
        {
            vec![context]
        }
        _ => Vec::new(),
    }
}

impl Reader<'_> {
    fn wrong(&mut self, field: &str, problem: Problem) {
        self.sink.add(None, Some(&self.title), field, problem);
    }

    /// Refuses keys that may be slips, and says which others are not known.
    fn only(&mut self, object: &Object, path: &str, known: &[&str], strict: bool) {
        for unknown in keys::unknown(object, known, strict) {
            let key = if path.is_empty() { unknown.key } else { format!("{path}.{}", unknown.key) };
            match unknown.refused {
                Some(problem) => self.wrong(&key, problem),
                None => self
                    .remarks
                    .push(format!("scheme {}: the key {key} is not known, and was not heeded", self.title)),
            }
        }
    }

    /// The value of a key; `None` also where it cannot be understood, which was said then.
    fn value<T>(
        &mut self,
        object: &Object,
        path: &str,
        key: &str,
        parse: impl FnOnce(&Value) -> Result<T, Why>,
    ) -> Option<T> {
        let value = object.get(key).filter(|value| !value.is_null())?;
        let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        parse(value).map_err(|why| self.wrong(&path, Problem::Value(why))).ok()
    }

    fn object<'o>(&mut self, object: &'o Object, key: &str) -> Option<&'o Object> {
        let value = object.get(key).filter(|value| !value.is_null())?;
        if value.as_object().is_none() {
            self.wrong(key, Problem::Value("it must be a JSON object".to_owned()));
        }
        value.as_object()
    }

    fn objects<'o>(&mut self, object: &'o Object, path: &str, key: &str) -> Vec<&'o Object> {
        let Some(value) = object.get(key).filter(|value| !value.is_null()) else { return Vec::new() };
        let items: Option<Vec<&Object>> =
            value.as_array().and_then(|items| items.iter().map(Value::as_object).collect());
        let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        items.unwrap_or_else(|| {
            self.wrong(&path, Problem::Value("it must be a list of JSON objects".to_owned()));
            Vec::new()
        })
    }

    fn word<'w>(&mut self, object: &Object, path: &str, key: &str, known: &[&'w str]) -> Option<&'w str> {
        let word = self.value(object, path, key, figures::string)?;
        let found = known.iter().copied().find(|known| *known == word);
        if found.is_none() {
            let meant = meant(&word, known.iter().copied());
            let path = if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
            let word = word.chars().take(60).collect();
            self.wrong(&path, Problem::UnknownWord { word, meant, known: known.join(", ") });
        }
        found
    }

    fn scheme(&mut self, object: &Object) -> Scheme {
        self.only(object, "", &keys::SCHEME, false);
        let names: Vec<&str> = Action::ALL.into_iter().map(Action::name).collect();
        // As damo: without an action nothing but statistics.
        let action =
            self.word(object, "", "action", &names).and_then(Action::from_name).unwrap_or(Action::Stat);
        let interval = self.value(object, "", "apply_interval_us", |value| figures::time(value, 1000));
        Scheme {
            apply_interval: interval.filter(|interval| !interval.is_zero()),
            quota: self.quota(object),
            watermarks: self.watermarks(object),
            filters: self.filters(object),
            nodes: self.nodes(object, action),
            ..Scheme::new(self.pattern(object), action)
        }
    }

    fn pattern(&mut self, object: &Object) -> AccessPattern {
        let any = AccessPattern::ANY;
        let Some(object) = self.object(object, "access_pattern") else { return any };
        self.only(object, "access_pattern", &keys::PATTERN, true);
        let empty = Object::new();
        let sizes = self.object(object, "sz_bytes").unwrap_or(&empty);
        let path = "access_pattern.sz_bytes";
        self.only(sizes, path, &keys::BOUNDS, true);
        let size = Bounds::new(
            self.value(sizes, path, "min", figures::bytes).unwrap_or(any.size.min),
            self.value(sizes, path, "max", figures::bytes).unwrap_or(any.size.max),
        );
        let accesses = self.object(object, "nr_accesses").unwrap_or(&empty);
        let ages = self.object(object, "age").unwrap_or(&empty);
        AccessPattern { size, frequency: self.frequency(accesses), age: self.age(ages) }
    }

    fn frequency(&mut self, object: &Object) -> Frequency {
        let path = "access_pattern.nr_accesses";
        self.only(object, path, &keys::BOUNDS, true);
        let samples = |key: &str| object.get(key).and_then(|value| figures::count_of(value, "samples"));
        if let (Some(min), Some(max)) = (samples("min"), samples("max")) {
            let mut end = |key: &str, read: Result<u32, Why>| {
                read.map_err(|why| self.wrong(&format!("{path}.{key}"), Problem::Value(why))).unwrap_or(0)
            };
            return Frequency::Samples(Bounds::new(end("min", min), end("max", max)));
        }
        let mut end = |key: &str, open: u32| {
            let share = self.value(object, path, key, |value| match figures::share(value, 10_000, 100) {
                Err(_) if samples(key).is_some() => {
                    Err("one bound is in samples, and the other is not".to_owned())
                }
                other => other,
            });
            match share {
                Some(Figure::Is(bp)) => bp,
                Some(Figure::Most) => 10_000,
                None => open,
            }
        };
        Frequency::Share(Bounds::new(end("min", 0), end("max", 10_000)))
    }

    fn age(&mut self, object: &Object) -> Age {
        let path = "access_pattern.age";
        self.only(object, path, &keys::BOUNDS, true);
        let count = |key: &str| object.get(key).and_then(|value| figures::count_of(value, "aggr_intervals"));
        if let (Some(min), Some(max)) = (count("min"), count("max")) {
            let mut end = |key: &str, read: Result<u32, Why>| {
                read.map_err(|why| self.wrong(&format!("{path}.{key}"), Problem::Value(why))).unwrap_or(0)
            };
            return Age::Aggregations(Bounds::new(end("min", min), end("max", max)));
        }
        let mut end = |key: &str, open: Duration| {
            let time = self.value(object, path, key, |value| match figures::time(value, 1000) {
                Err(_) if count(key).is_some() => {
                    Err("one bound is in aggr_intervals, and the other is not".to_owned())
                }
                other => other,
            });
            time.unwrap_or(open)
        };
        Age::Time(Bounds::new(end("min", Duration::ZERO), end("max", Duration::MAX)))
    }

    fn quota(&mut self, object: &Object) -> Quota {
        let Some(object) = self.object(object, "quotas") else { return Quota::default() };
        let path = "quotas";
        self.only(object, path, &keys::QUOTA, false);
        let ms = |value: &Value| figures::time(value, 1_000_000);
        let time = self.value(object, path, "time_ms", ms).filter(|time| !time.is_zero());
        let bytes = self.value(object, path, "sz_bytes", figures::bytes).filter(|bytes| *bytes > 0);
        let every = self.value(object, path, "reset_interval_ms", ms);
        let weights = object.get("weights").and_then(Value::as_object).map(|weights| {
            self.only(weights, "quotas.weights", &keys::WEIGHTS, false);
            let mut weight = |key: &str| match self
                .value(weights, "quotas.weights", key, |v| figures::share(v, 1000, 1))
            {
                Some(Figure::Is(permil)) => permil,
                Some(Figure::Most) => u32::MAX,
                None => 0,
            };
            Weights {
                size: weight("sz_permil"),
                frequency: weight("nr_accesses_permil"),
                age: weight("age_permil"),
            }
        });
        let tuner = self.word(object, path, "goal_tuner", &["consist", "temporal"]);
        let most = u64::from(u32::MAX);
        let num =
            self.value(object, path, "fail_charge_num", |v| figures::count(v, most)).unwrap_or(0) as u32;
        let denom =
            self.value(object, path, "fail_charge_denom", |v| figures::count(v, most)).unwrap_or(0) as u32;
        let goals = self.objects(object, path, "goals");
        let goals = goals.iter().enumerate().filter_map(|(index, goal)| self.goal(goal, index)).collect();
        let quota = Quota {
            bytes,
            time,
            reset_interval: every.unwrap_or(Quota::default().reset_interval),
            weights: weights.unwrap_or_default(),
            goals,
            tuner: if tuner == Some("temporal") { GoalTuner::Temporal } else { GoalTuner::Consist },
            fail_charge: NonZeroU32::new(denom).map(|denom| FailCharge { num, denom }),
        };
        crate::entry::normal(quota)
    }

    fn goal(&mut self, object: &Object, index: usize) -> Option<Goal> {
        let path = format!("quotas.goals[{index}]");
        self.only(object, &path, &keys::GOAL, false);
        if self.value(object, &path, "complement", figures::flag) == Some(true) {
            let why = "Isotherm has no complement of a metric; take the opposite metric (used for free), or the target's rest";
            self.wrong(&format!("{path}.complement"), Problem::Unsupported(why.to_owned()));
            return None;
        }
        let name = if object.contains_key("metric") {
            self.word(object, &path, "metric", &METRICS)?
        } else {
            "user_input"
        };
        let node = self
            .value(object, &path, "nid", |v| figures::count(v, u64::from(u32::MAX)))
            .map(|node| node as u32);
        let cgroup =
            self.value(object, &path, "memcg_path", figures::string).filter(|_| name.contains("memcg"));
        let value = self.value(object, &path, "current_value", |v| figures::count(v, u64::MAX));
        let target = self.value(object, &path, "target_value", |value| match name {
            "some_mem_psi_us" => {
                figures::time(value, 1000).map(|time| u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
            }
            name if name.ends_with("_bp") => figures::share(value, 10_000, 1).map(|share| match share {
                Figure::Is(bp) => u64::from(bp),
                Figure::Most => 10_000,
            }),
            _ => figures::count(value, u64::MAX),
        });
        match metric(name, node, cgroup, value)? {
            // The kernel drops goals of 0; so does this.
            Ok(metric) => target.filter(|target| *target > 0).map(|target| Goal { metric, target }),
            Err(key) => {
                let key = if key == "node" { "nid" } else { "memcg_path" };
                self.wrong(&format!("{path}.{key}"), Problem::Missing("the metric needs it"));
                None
            }
        }
    }

    fn watermarks(&mut self, object: &Object) -> Option<Watermarks> {
        let object = self.object(object, "watermarks")?;
        let path = "watermarks";
        self.only(object, path, &keys::WATERMARKS, false);
        let metric = self.word(object, path, "metric", &["none", "free_mem_rate"])?;
        let interval =
            self.value(object, path, "interval_us", |value| figures::time(value, 1000)).unwrap_or_default();
        let mut mark = |key: &str| match self.value(object, path, key, |value| figures::share(value, 1000, 1))
        {
            Some(Figure::Is(permil)) => permil,
            Some(Figure::Most) => 1000,
            None => 0,
        };
        let (high, mid, low) = (mark("high_permil"), mark("mid_permil"), mark("low_permil"));
        let metric = (metric == "free_mem_rate").then_some(WatermarkMetric::FreeMemRate)?;
        if interval.is_zero() {
            self.wrong("watermarks.interval_us", Problem::Invalid("must be more than zero".to_owned()));
        }
        Some(Watermarks { metric, interval, high, mid, low })
    }

    fn nodes(&mut self, object: &Object, action: Action) -> Vec<Node> {
        let most = u64::from(u32::MAX);
        let mut nodes = Vec::new();
        for (index, dest) in self.objects(object, "", "dests").into_iter().enumerate() {
            let path = format!("dests[{index}]");
            let mut number = |key: &str| {
                self.value(dest, &path, key, |value| figures::count(value, most)).unwrap_or(0) as u32
            };
            let (id, weight) = (number("id"), number("weight"));
            match nodes.iter_mut().find(|node: &&mut Node| node.id == id) {
                Some(node) => node.weight = node.weight.saturating_add(weight),
                None => nodes.push(Node { id, weight }),
            }
        }
        let migrates = matches!(action, Action::MigrateHot | Action::MigrateCold);
        if !nodes.is_empty() && !migrates {
            self.remarks.push(format!(
                "scheme {}: its dests are left out, for {action} moves memory to no nodes",
                self.title
            ));
            nodes.clear();
        }
        if nodes.is_empty() && migrates {
            let id = self.value(object, "", "target_nid", |value| figures::count(value, most));
            nodes.extend(id.map(|id| Node { id: id as u32, weight: 1 }));
        }
        nodes
    }

    fn filters(&mut self, object: &Object) -> Filters {
        const TYPES: [&str; 8] =
            ["anon", "active", "memcg", "young", "hugepage_size", "unmapped", "addr", "target"];
        let mut filters = Filters::default();
        for (index, filter) in self.objects(object, "", "filters").into_iter().enumerate() {
            let path = format!("filters[{index}]");
            self.only(filter, &path, &keys::FILTER, true);
            let Some(kind) = self.word(filter, &path, "filter_type", &TYPES) else { continue };
            let matching = self.value(filter, &path, "matching", figures::flag).unwrap_or(false);
            let key = if filter.contains_key("allow") { "allow" } else { "filter_pass" };
            let allow = self.value(filter, &path, key, figures::flag).unwrap_or(false);
            let page = match kind {
                "addr" | "target" => {
                    if let Some(kind) = self.core_kind(filter, &path, kind) {
                        filters.core.push(Filter { kind, matching, allow });
                    }
                    continue;
                }
                "anon" => PageKind::Anon,
                "active" => PageKind::Active,
                "young" => PageKind::Young,
                "unmapped" => PageKind::Unmapped,
                "memcg" => match self.value(filter, &path, "memcg_path", figures::string) {
                    Some(cgroup) => PageKind::Memcg(cgroup),
                    None => {
                        self.wrong(&format!("{path}.memcg_path"), Problem::Missing("the path of a cgroup"));
                        continue;
                    }
                },
                _ => {
                    let sizes = filter.get("hugepage_size").and_then(Value::as_array);
                    let sizes: Option<Vec<u64>> =
                        sizes.and_then(|s| s.iter().map(|v| figures::bytes(v).ok()).collect());
                    let Some([min, max]) = sizes.as_deref() else {
                        let what = "the least and the greatest size, like [\"2 MiB\", \"1 GiB\"]";
                        self.wrong(&format!("{path}.hugepage_size"), Problem::Missing(what));
                        continue;
                    };
                    PageKind::HugepageSize { min: *min, max: *max }
                }
            };
            filters.ops.push(Filter { kind: page, matching, allow });
        }
        filters
    }

    fn core_kind(&mut self, filter: &Object, path: &str, kind: &str) -> Option<CoreKind> {
        if kind == "addr" {
            let empty = Object::new();
            let range = filter.get("address_range").and_then(Value::as_object).unwrap_or(&empty);
            let path = format!("{path}.address_range");
            let ends = (
                self.value(range, &path, "start", figures::bytes),
                self.value(range, &path, "end", figures::bytes),
            );
            let (Some(start), Some(end)) = ends else {
                self.wrong(&path, Problem::Missing("its start and its end"));
                return None;
            };
            if start >= end {
                self.wrong(&path, Problem::Value("its end does not lie past its start".to_owned()));
                return None;
            }
            return Some(CoreKind::Addr(AddrRange { start, end }));
        }
        let index = self.value(filter, path, "damon_target_idx", |value| figures::count(value, u64::MAX))?;
        let targets = self.targets.as_deref();
        let pid = targets
            .and_then(|targets| usize::try_from(index).ok().and_then(|at| targets.get(at)))
            .copied()
            .flatten();
        if pid.is_none() {
            let why = format!(
                "the filter names a target by its number in the setup ({index}), of which the file does not say the pid; Isotherm \
                 goes by pids"
            );
            self.wrong(&format!("{path}.damon_target_idx"), Problem::Unsupported(why));
        }
        pid.map(|pid| CoreKind::Target(TargetId(pid)))
    }
}
