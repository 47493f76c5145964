//! Reading scheme files in TOML. All that is wrong is found at once, each with its line.

use super::table::{Lines, Report, Table, whole};
use crate::entry::{Entry, Guard, METRICS, Source, check, metric};
use crate::error::{Errors, FileError, Problem, Sink, invalid, key_of};
use crate::values::{self, Access, Why};
use isotherm_damon::TargetId;
use isotherm_damon::schemes::{
    AccessPattern, Action, Bounds, CoreKind, FailCharge, Filter, Filters, Goal, GoalTuner, Node, PageKind,
    Quota, Scheme, WatermarkMetric, Watermarks, Weights,
};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;
use toml::de::{DeTable, DeValue};

/// Keys of a scheme.
pub(crate) const KEYS: [&str; 20] = [
    "name",
    "action",
    "size",
    "min_size",
    "max_size",
    "access",
    "min_access",
    "max_access",
    "age",
    "min_age",
    "max_age",
    "apply_interval",
    "quota",
    "watermarks",
    "filters",
    "nodes",
    "max_nr_snapshots",
    "unknown",
    "max_refault_rate",
    "max_psi",
];

/// The schemes of a file.
///
/// # Errors
/// All that is wrong with it.
pub(crate) fn read(text: &str) -> Result<Vec<Entry>, Errors> {
    let lines = Lines::of(text);
    let document = DeTable::parse(text).map_err(|error| {
        let line = error.span().map(|span| lines.at(span.start));
        let problem = Problem::Syntax(format!("this is not TOML: {}", error.message()));
        Errors(vec![FileError { line, scheme: None, field: String::new(), problem }])
    })?;
    let report = Report { lines: &lines, sink: RefCell::new(Sink::default()), scheme: RefCell::new(None) };
    let root = Table { table: document.get_ref(), path: String::new(), span: 0..0, report: &report };
    root.only(&["scheme"]);
    let mut entries = Vec::new();
    match root.get("scheme").map(|value| value.get_ref()) {
        Some(DeValue::Array(_)) => {
            for (index, table) in root.tables("scheme").into_iter().enumerate() {
                entries.extend(entry(Table { path: String::new(), ..table }, index));
            }
        }
        Some(DeValue::Table(_)) => {
            root.wrong(
                "scheme",
                Problem::Value("schemes are a list: write [[scheme]], with two brackets".to_owned()),
            );
        }
        Some(_) => root.wrong("scheme", Problem::Value("schemes are tables: write [[scheme]]".to_owned())),
        None => {}
    }
    let mut sink = report.sink.into_inner();
    if entries.is_empty() && sink.errors.is_empty() {
        sink.add(
            None,
            None,
            "",
            Problem::Invalid("there is no scheme in the file; one begins with [[scheme]]".to_owned()),
        );
    }
    // What could not be read must not be complained about twice.
    if sink.errors.is_empty() {
        check(&entries, &mut sink);
    }
    sink.errors.sort_by_key(|error| error.line);
    sink.finish(entries)
}

/// One scheme, unless it is not even known what it is to do.
fn entry(table: Table<'_, '_>, index: usize) -> Option<Entry> {
    let name = table.get("name").and_then(|_| table.value("name", "a name in quotes", name));
    *table.report.scheme.borrow_mut() = Some(name.clone().unwrap_or_else(|| (index + 1).to_string()));
    let before = table.report.count();
    table.only(&KEYS);
    let names: Vec<&str> = Action::ALL.into_iter().map(Action::name).collect();
    if table.get("action").is_none() {
        table.wrong("action", Problem::Missing("what is to be done, like action = \"pageout\""));
    }
    let action = table.word("action", &names).and_then(Action::from_name);
    let pattern = pattern(&table);
    let (quota, sources) = table.table("quota").map(|table| quota(&table)).unwrap_or_default();
    let nr_snapshots = table.number("max_nr_snapshots", u64::MAX);
    if nr_snapshots == Some(0) {
        table.wrong(
            "max_nr_snapshots",
            Problem::Invalid("must be more than zero; leave it out for no end".to_owned()),
        );
    }
    let scheme = Scheme {
        apply_interval: table.value("apply_interval", "a time, like \"1s\"", values::time),
        quota,
        watermarks: table.table("watermarks").and_then(|table| watermarks(&table)),
        filters: filters(&table),
        nodes: nodes(&table),
        max_nr_snapshots: nr_snapshots.and_then(NonZeroU64::new),
        unknown: table.flag("unknown").unwrap_or_default(),
        ..Scheme::new(pattern, action.unwrap_or(Action::Stat))
    };
    if !scheme.nodes.is_empty() && action.is_some() && !scheme.migrates() {
        let why = "only migrate_hot and migrate_cold move memory to nodes; leave it out".to_owned();
        table.wrong("nodes", Problem::Conflict(why));
    }
    // Of what could not be read nothing else is said.
    if table.report.count() == before {
        for error in scheme.problems() {
            wrong_at(&table, &key_of(error.field), invalid(&scheme.pattern, error));
        }
    }
    let guard = Guard {
        max_refault_bp: table.value("max_refault_rate", "a share, like \"10%\"", values::share),
        max_psi_bp: table.value("max_psi", "a share, like \"5%\"", values::share),
    };
    let line = Some(table.report.lines.at(table.span.start));
    *table.report.scheme.borrow_mut() = None;
    action.map(|_| Entry { name, line, scheme, guard, sources })
}

/// What the core finds wrong is said where its key stands: that of the upper bound where a property has two.
fn wrong_at(table: &Table<'_, '_>, key: &str, problem: Problem) {
    let quota = table.table("quota");
    let (inner, last) = match (key.strip_prefix("quota."), &quota) {
        (Some(rest), Some(quota)) => (quota, rest),
        _ => (table, key),
    };
    let last = last.split('[').next().unwrap_or(last);
    let keys = [last.to_owned(), format!("max_{last}"), format!("min_{last}")];
    let value = keys.iter().find_map(|key| inner.get(key));
    let span = value.map_or_else(|| inner.span.clone(), |value| value.span());
    table.report.add(&span, key, problem);
}

/// Names are short, and can be written on a command line.
fn name(text: &str) -> Result<String, Why> {
    let fits = |c: char| c.is_alphanumeric() || "-_. ".contains(c);
    if text.is_empty() || text.chars().count() > 60 || !text.chars().all(fits) {
        let why = "a name has 1 to 60 letters, digits, spaces, and - _ .";
        return Err(why.to_owned());
    }
    Ok(text.to_owned())
}

/// Both bounds of a property: `size = "4K..2M"`, or `min_size` and `max_size`.
fn bounds<T>(
    table: &Table<'_, '_>,
    key: &str,
    example: &str,
    parse: impl Fn(&str) -> Result<T, Why>,
) -> (Option<T>, Option<T>) {
    let ends = [format!("min_{key}"), format!("max_{key}")];
    if table.get(key).is_some() {
        for end in ends.iter().filter(|end| table.get(end).is_some()) {
            table.wrong(end, Problem::Conflict(format!("{key} says that already; write one of them")));
        }
        let both = table.value(key, "a range in quotes", |text| {
            let (min, max) = range_or_none(key, text)?;
            let of = |text: Option<String>| text.map(|text| parse(&text)).transpose();
            Ok((of(min)?, of(max)?))
        });
        return both.unwrap_or((None, None));
    }
    let end = |key: &str| table.value(key, example, &parse);
    (end(&ends[0]), end(&ends[1]))
}

/// A range; of accesses also a single value, as `0%`: exactly that.
fn range_or_none(key: &str, text: &str) -> Result<(Option<String>, Option<String>), Why> {
    if key == "access" && !text.contains("..") {
        return Ok((Some(text.to_owned()), Some(text.to_owned())));
    }
    values::range(text)
}

fn pattern(table: &Table<'_, '_>) -> AccessPattern {
    let (min, max) = bounds(table, "size", "a size, like \"4K\"", values::size);
    let any = AccessPattern::ANY;
    let size = Bounds::new(min.unwrap_or(any.size.min), max.unwrap_or(any.size.max));
    let (min, max): (Option<Access>, Option<Access>) =
        bounds(table, "access", "a share, like \"5%\"", values::access);
    let key = |name: &str| if table.get(name).is_some() { name.to_owned() } else { format!("min_{name}") };
    let unit = |name: &str, why: Why| table.wrong(&key(name), Problem::Conflict(why));
    let frequency = values::frequency(min, max).map_err(|why| unit("access", why)).unwrap_or(any.frequency);
    let (min, max) = bounds(table, "age", "a time, like \"5s\"", values::span);
    let age = values::age(min, max).map_err(|why| unit("age", why)).unwrap_or(any.age);
    AccessPattern { size, frequency, age }
}

fn quota(table: &Table<'_, '_>) -> (Quota, BTreeMap<usize, Source>) {
    table.only(&["size", "time", "reset_interval", "weights", "goals", "tuner", "fail_charge"]);
    let rated = |key: &str, what: &str| {
        table.value(key, what, |text| values::rate(text).map(|(v, every)| (v.to_owned(), every)))
    };
    let (size, of_size) = rated("size", "a size, like \"100M/s\"").unzip();
    let (time, of_time) = rated("time", "a time, like \"10ms/s\"").unzip();
    let wrong = |key: &str, why: Why| table.wrong(key, Problem::Value(why));
    let bytes = size.and_then(|text| values::size(&text).map_err(|why| wrong("size", why)).ok());
    let time = time.and_then(|text| values::time(&text).map_err(|why| wrong("time", why)).ok());
    let own = table.value("reset_interval", "a time, like \"1s\"", values::time);
    let mut reset_interval = None;
    for (key, every) in [("size", of_size.flatten()), ("time", of_time.flatten()), ("reset_interval", own)] {
        let Some(every) = every else { continue };
        if *reset_interval.get_or_insert(every) != every {
            let why = "a quota has one reset interval, and another was said before".to_owned();
            table.wrong(key, Problem::Conflict(why));
        }
    }
    let weights = table.table("weights").map(|table| {
        table.only(&["size", "access", "age"]);
        let weight = |key: &str| table.number(key, u64::from(u32::MAX)).unwrap_or(0) as u32;
        Weights { size: weight("size"), frequency: weight("access"), age: weight("age") }
    });
    let (mut goals, mut sources) = (Vec::new(), BTreeMap::new());
    for goal_table in table.tables("goals") {
        let Some((goal, source)) = goal(&goal_table) else { continue };
        sources.extend(source.map(|source| (goals.len(), source)));
        goals.push(goal);
    }
    let tuner = match table.word("tuner", &["consist", "temporal", "pi"]) {
        Some("temporal") => GoalTuner::Temporal,
        Some("pi") => GoalTuner::Pi,
        Some(_) => GoalTuner::Consist,
        None => crate::entry::usual_tuner(&goals),
    };
    let quota = Quota {
        bytes,
        time,
        reset_interval: reset_interval.unwrap_or(Quota::default().reset_interval),
        weights: weights.unwrap_or_default(),
        goals,
        tuner,
        fail_charge: table.value("fail_charge", "a fraction, like \"1/4\"", fraction),
    };
    (quota, sources)
}

fn fraction(text: &str) -> Result<FailCharge, Why> {
    let wrong = || format!("{text:?} is not a fraction; write it like 1/4");
    let (num, denom) = text.split_once('/').ok_or_else(wrong)?;
    let num: u32 = num.trim().parse().map_err(|_| wrong())?;
    let denom: NonZeroU32 = denom.trim().parse().map_err(|_| wrong())?;
    Ok(FailCharge { num, denom })
}

fn goal(table: &Table<'_, '_>) -> Option<(Goal, Option<Source>)> {
    table.only(&["metric", "target", "node", "cgroup", "value", "file", "command"]);
    if table.get("metric").is_none() {
        table.wrong("metric", Problem::Missing("what the goal goes by, like metric = \"some_mem_psi_us\""));
    }
    let name = table.word("metric", &METRICS)?;
    let node = table.number("node", u64::from(u32::MAX)).map(|node| node as u32);
    let cgroup = table.value("cgroup", "a path in quotes", |text| Ok(text.to_owned()));
    let value = table.number("value", u64::MAX);
    let unused = |key: &str, used: bool| {
        if table.get(key).is_some() && !used {
            table.wrong(key, Problem::Conflict(format!("the metric {name} has none")));
        }
    };
    unused("node", name.starts_with("node_"));
    unused("cgroup", name.contains("memcg") || name == "some_mem_psi_us");
    ["value", "file", "command"].iter().for_each(|key| unused(key, name == "user_input"));
    let file = table.value("file", "a path in quotes", |text| Ok(Source::File(text.into())));
    let command = table.strings("command");
    if command.as_ref().is_some_and(|command| command.first().is_none_or(String::is_empty)) {
        table.wrong("command", Problem::Invalid("there is no program in it".to_owned()));
    }
    if file.is_some() && command.is_some() {
        table.wrong("command", Problem::Conflict("file says already where the value comes from".to_owned()));
    }
    let source = file.or(command.map(Source::Command));
    let metric = match metric(name, node, cgroup, value)? {
        Ok(metric) => metric,
        Err(key) => {
            let what = if key == "node" {
                "the number of a NUMA node"
            } else {
                "the path of a cgroup, like cgroup = \"/a/b\""
            };
            table.wrong(key, Problem::Missing(what));
            return None;
        }
    };
    if table.get("target").is_none() {
        table.wrong("target", Problem::Missing("what the metric should be"));
    }
    let target = match name {
        "user_input" => table.number("target", u64::MAX),
        "some_mem_psi_us" => table.value("target", "a time, like \"10ms\"", micros),
        _ => table.value("target", "a share, like \"30%\"", values::share).map(u64::from),
    }?;
    Some((Goal { metric, target }, source))
}

fn micros(text: &str) -> Result<u64, Why> {
    let time = values::time(text)?;
    if time.subsec_nanos() % 1000 != 0 {
        return Err(format!("{text:?} is not a whole number of microseconds"));
    }
    u64::try_from(time.as_micros()).map_err(|_| format!("{text:?} is too long"))
}

fn watermarks(table: &Table<'_, '_>) -> Option<Watermarks> {
    table.only(&["metric", "interval", "high", "mid", "low"]);
    table.word("metric", &["free_mem_rate"]);
    let mark = |key: &str| {
        if table.get(key).is_none() {
            table.wrong(key, Problem::Missing("a share of free memory, like \"40%\""));
        }
        table.value(key, "a share, like \"40%\"", values::permil)
    };
    let (high, mid, low) = (mark("high"), mark("mid"), mark("low"));
    let interval =
        table.value("interval", "a time, like \"5s\"", values::time).unwrap_or(Duration::from_secs(5));
    if interval.is_zero() {
        table.wrong("interval", Problem::Invalid("must be more than zero".to_owned()));
    }
    Some(Watermarks { metric: WatermarkMetric::FreeMemRate, interval, high: high?, mid: mid?, low: low? })
}

fn nodes(table: &Table<'_, '_>) -> Vec<Node> {
    let mut nodes = Vec::new();
    for (index, value) in table.array("nodes").iter().enumerate() {
        let name = format!("nodes[{index}]");
        let (most, count) = (u64::from(u32::MAX), nodes.len());
        match (whole(value), value.get_ref()) {
            (Some(id), _) if id <= most => nodes.push(Node { id: id as u32, weight: 1 }),
            (_, DeValue::Table(inner)) => {
                let node = Table {
                    table: inner,
                    path: format!("{name}."),
                    span: value.span(),
                    report: table.report,
                };
                node.only(&["id", "weight"]);
                if node.get("id").is_none() {
                    node.wrong("id", Problem::Missing("the number of a NUMA node"));
                }
                let weight = if node.get("weight").is_some() { node.number("weight", most) } else { Some(1) };
                if let (Some(id), Some(weight)) = (node.number("id", most), weight) {
                    nodes.push(Node { id: id as u32, weight: weight as u32 });
                }
            }
            _ => {
                let what = "it must be the number of a NUMA node, or { id = NUMBER, weight = NUMBER }";
                table.report.add(&value.span(), &name, Problem::Value(what.to_owned()));
            }
        }
        if let Some((last, before)) = nodes.split_last()
            && nodes.len() > count
            && before.iter().any(|node| node.id == last.id)
        {
            let why = format!("node {} was named before; give it a weight instead", last.id);
            table.report.add(&value.span(), &name, Problem::Conflict(why));
        }
    }
    nodes
}

/// What filters can go by.
pub(crate) const KINDS: [&str; 9] =
    ["addr", "target", "anon", "active", "young", "unmapped", "hugepage_size", "memcg", "file"];

fn filters(table: &Table<'_, '_>) -> Filters {
    let mut filters = Filters::default();
    for filter in table.tables("filters") {
        let Some((kind, matching, allow)) = filter_head(&filter) else { continue };
        match filter_kind(&filter, kind) {
            Some(Kind::Core(kind)) if filters.ops.is_empty() => {
                filters.core.push(Filter { kind, matching, allow })
            }
            Some(Kind::Core(_)) => {
                let key = if allow { "allow" } else { "reject" };
                let why = "filters of addr and target come first: they are asked before all others, wherever they stand";
                filter.wrong(key, Problem::Conflict(why.to_owned()));
            }
            Some(Kind::Page(kind)) => filters.ops.push(Filter { kind, matching, allow }),
            None => {}
        }
    }
    filters
}

/// `allow` or `reject`, of what, and whether of what is *not* so.
fn filter_head(table: &Table<'_, '_>) -> Option<(&'static str, bool, bool)> {
    table.only(&["allow", "reject", "addresses", "pid", "size", "path"]);
    let allow = match (table.get("allow"), table.get("reject")) {
        (Some(_), None) => true,
        (None, Some(_)) => false,
        (None, None) => {
            table.wrong(
                "",
                Problem::Missing("what the filter does, like allow = \"anon\" or reject = \"not young\""),
            );
            return None;
        }
        (Some(_), Some(_)) => {
            table.wrong(
                "reject",
                Problem::Conflict("a filter allows or rejects; make two of them".to_owned()),
            );
            return None;
        }
    };
    let key = if allow { "allow" } else { "reject" };
    let text = table.text(key, "a kind of memory in quotes")?;
    let (matching, word) =
        text.strip_prefix("not ").map_or((true, text.as_str()), |rest| (false, rest.trim()));
    let word = word.replace('-', "_");
    let kind = KINDS.into_iter().find(|kind| *kind == word);
    if kind.is_none() {
        let meant = crate::words::meant(&word, KINDS);
        let problem =
            Problem::UnknownWord { word: text.chars().take(60).collect(), meant, known: KINDS.join(", ") };
        table.wrong(key, problem);
    }
    Some((kind?, matching, allow))
}

enum Kind {
    Core(CoreKind),
    Page(PageKind),
}

fn filter_kind(table: &Table<'_, '_>, kind: &str) -> Option<Kind> {
    let needs = match kind {
        "addr" => Some(("addresses", "like addresses = \"0x7f0000000000-0x7f0000200000\"")),
        "target" => Some(("pid", "the pid of a target")),
        "hugepage_size" => Some(("size", "a range of sizes, like size = \"2M..\"")),
        "memcg" => Some(("path", "the path of a cgroup, like path = \"/system.slice\"")),
        "file" => Some(("path", "a pattern of paths, like path = \"*.so\"")),
        _ => None,
    };
    for key in ["addresses", "pid", "size", "path"] {
        let wanted = needs.is_some_and(|(needed, _)| needed == key);
        if table.get(key).is_some() && !wanted {
            table.wrong(key, Problem::Conflict(format!("a filter of {kind} has none")));
        } else if table.get(key).is_none() && wanted {
            table.wrong(key, Problem::Missing(needs.map_or("", |(_, what)| what)));
        }
    }
    let path = || table.value("path", "a path in quotes", |text| Ok(text.to_owned()));
    Some(match kind {
        "addr" => {
            Kind::Core(CoreKind::Addr(table.value("addresses", "a range in quotes", values::addresses)?))
        }
        "target" => Kind::Core(CoreKind::Target(TargetId(table.number("pid", u64::MAX)?))),
        "anon" => Kind::Page(PageKind::Anon),
        "active" => Kind::Page(PageKind::Active),
        "young" => Kind::Page(PageKind::Young),
        "unmapped" => Kind::Page(PageKind::Unmapped),
        "hugepage_size" => {
            let (min, max) = table.value("size", "a range in quotes", |text| {
                let (min, max) = values::range(text)?;
                let of = |text: Option<String>| text.map(|text| values::size(&text)).transpose();
                Ok((of(min)?, of(max)?))
            })?;
            Kind::Page(PageKind::HugepageSize { min: min.unwrap_or(0), max: max.unwrap_or(u64::MAX) })
        }
        "memcg" => Kind::Page(PageKind::Memcg(path()?)),
        _ => Kind::Page(PageKind::File(path()?)),
    })
}
