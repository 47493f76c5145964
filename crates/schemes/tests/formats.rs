//! The formats: what is printed elsewhere is read, and what is written comes back.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{by_share, entry};
use isotherm_damon::TargetId;
use isotherm_damon::schemes::*;
use isotherm_schemes::{Entry, Format, Source, explain, parse, presets, write};
use proptest::prelude::*;
use std::time::Duration;

/// As the patches print them (v6 and v10), comments, alignment and all.
const PRINTED: &str = "\
    # ethp: Use huge pages if a region >2MB shows >5% access rate, use regular
    # pages if a region >2MB shows <5% access rate for >1 second
    2M null    5 null    null null    hugepage
    2M null    null 5    1s null      nohugepage

    # prcl: If a region >4KB shows <5% access rate for >5 seconds, page out.
    4K null    null 5    5s null      pageout
";

fn schemes(text: &str) -> Vec<Scheme> {
    parse(text, None).unwrap().entries.into_iter().map(|entry| entry.scheme).collect()
}

fn printed() -> [Scheme; 3] {
    let large = AccessPattern::ANY.size(2 << 20, u64::MAX);
    let second = Duration::from_secs(1);
    [
        Scheme::new(large.share(500, 10_000), Action::Hugepage),
        Scheme::new(large.share(0, 500).age(second, Duration::MAX), Action::Nohugepage),
        Scheme::new(
            AccessPattern::ANY.size(4096, u64::MAX).share(0, 500).age(5 * second, Duration::MAX),
            Action::Pageout,
        ),
    ]
}

#[test]
fn the_printed_schemes_are_read_verbatim() {
    assert_eq!(schemes(PRINTED), printed());
    // The later one, and looser: tabs, units with bytes, signs, a comment behind.
    let loose = "4KB\tmax   min 5%  500ms null pageout # quickly";
    let quick =
        AccessPattern::ANY.size(4096, u64::MAX).share(0, 500).age(Duration::from_millis(500), Duration::MAX);
    assert_eq!(schemes(loose), [Scheme::new(quick, Action::Pageout)]);
    assert_eq!(parse(PRINTED, None).unwrap().entries[2].line, Some(7));
}

#[test]
fn presets_are_the_printed_ones_and_the_modules() {
    let named = |text: &str| -> Vec<Scheme> {
        presets::preset(text).unwrap().into_iter().map(|e| e.scheme).collect()
    };
    assert_eq!(named("ethp"), printed()[..2]);
    assert_eq!(named("prcl"), printed()[2..]);
    assert_eq!(
        named("prcl:min_age=500ms")[0].pattern.age,
        Age::Time(Bounds::new(Duration::from_millis(500), Duration::MAX))
    );
    let reclaim = &named("reclaim")[0];
    assert_eq!(reclaim.quota.bytes, Some(128 << 20));
    assert_eq!(reclaim.quota.time, Some(Duration::from_millis(10)));
    assert_eq!(reclaim.pattern.age, Age::Time(Bounds::new(Duration::from_secs(120), Duration::MAX)));
    assert_eq!(reclaim.watermarks.map(|m| (m.high, m.mid, m.low)), Some((500, 400, 200)));
    // The kernel's own units, or people's.
    assert_eq!(
        named("reclaim:min_age=300000000,quota_sz=1073741824"),
        named("reclaim:min_age=5m,quota_sz=1G")
    );
    let anon = named("reclaim:skip_anon=Y,quota_mem_pressure_us=10000");
    assert_eq!(anon[0].filters.ops, [Filter::reject(PageKind::Anon)]);
    assert_eq!(
        anon[0].quota.goals,
        [Goal { metric: GoalMetric::SomeMemPsiUs { cgroup: None }, target: 10_000 }]
    );
    let sort = named("lru_sort:active_mem_bp=40%");
    assert_eq!(sort.iter().map(|s| s.action).collect::<Vec<_>>(), [Action::LruPrio, Action::LruDeprio]);
    assert_eq!(sort[0].quota.time, Some(Duration::from_millis(5)));
    assert_eq!(sort[1].quota.goals, [Goal { metric: GoalMetric::InactiveMemBp, target: 6002 }]);
    assert_eq!(named("stat")[0].action, Action::Stat);
    for (text, part) in [
        ("recliam", "did you mean reclaim?"),
        ("reclaim:min_aeg=1s", "did you mean min_age?"),
        ("reclaim:min_age=1x", "min_age"),
        ("reclaim:sample_interval=5000", "no parameter of the schemes"),
        ("reclaim:wmarks_high=120%", "more than 100 %"),
        ("reclaim:wmarks_high=10%", "must be ordered"),
        ("prcl:min_age", "min_age=2m"),
    ] {
        let error = presets::preset(text).unwrap_err().to_string();
        assert!(error.contains(part), "{text}: {error}");
    }
}

/// All that the TOML format has.
const TOML: &str = r#"
# Idle memory of the batch jobs.
[[scheme]]
name = "batch"
action = "pageout"
size = "4K..max"
access = "..5%"
min_age = "2m"
apply_interval = "1s"
quota.size = "100M/s"
quota.time = "10ms"
quota.weights = { access = 1, age = 3 }
quota.tuner = "temporal"
quota.fail_charge = "1/4"
quota.goals = [
    { metric = "some_mem_psi_us", target = "10ms", cgroup = "/batch" },
    { metric = "user_input", target = 10000, command = ["/usr/bin/score", "-q"] },
    { metric = "node_mem_free_bp", target = "30%", node = 0 },
]
watermarks = { high = "50%", mid = "40%", low = "20%", interval = "5s" }
filters = [
    { allow = "target", pid = 1234 },
    { reject = "addr", addresses = "0x7f0000000000-0x7f0000200000" },
    { reject = "not anon" },
    { reject = "hugepage-size", size = "2M.." },
    { allow = "memcg", path = "/batch" },
]
max_nr_snapshots = 1000
unknown = true
max_refault_rate = "10%"
max_psi = "5%"

[[scheme]]
action = "migrate-hot"
access = "15..20 samples"
age = "30 aggregations.."
nodes = [1, { id = 2, weight = 3 }]
"#;

#[test]
fn toml_says_everything() {
    let file = parse(TOML, None).unwrap();
    assert_eq!(file.format, Format::Toml);
    let [batch, hot] = &file.entries[..] else { panic!("{}", file.entries.len()) };
    assert_eq!((batch.name.as_deref(), batch.line, hot.line), (Some("batch"), Some(3), Some(33)));
    let scheme = &batch.scheme;
    let pattern =
        AccessPattern::ANY.size(4096, u64::MAX).share(0, 500).age(Duration::from_secs(120), Duration::MAX);
    assert_eq!((scheme.pattern, scheme.action), (pattern, Action::Pageout));
    assert_eq!((scheme.quota.bytes, scheme.quota.reset_interval), (Some(100 << 20), Duration::from_secs(1)));
    assert_eq!(scheme.quota.weights, Weights { size: 0, frequency: 1, age: 3 });
    assert_eq!(scheme.quota.goals.iter().map(|g| g.target).collect::<Vec<_>>(), [10_000, 10_000, 3000]);
    assert_eq!(batch.sources[&1], Source::Command(vec!["/usr/bin/score".to_owned(), "-q".to_owned()]));
    assert_eq!(scheme.filters.core[0], Filter::allow(CoreKind::Target(TargetId(1234))));
    assert_eq!(scheme.filters.ops[0], Filter { kind: PageKind::Anon, matching: false, allow: false });
    assert_eq!((batch.guard.max_refault_bp, batch.guard.max_psi_bp), (Some(1000), Some(500)));
    assert_eq!(hot.scheme.pattern, AccessPattern::ANY.nr_accesses(15, 20).aggregations(30, u32::MAX));
    assert_eq!(hot.scheme.nodes, [Node { id: 1, weight: 1 }, Node { id: 2, weight: 3 }]);
    let again = parse(&write(&file.entries, Format::Toml).0, None).unwrap();
    assert_eq!(without_lines(again.entries), without_lines(file.entries));
}

fn without_lines(entries: Vec<Entry>) -> Vec<Entry> {
    entries.into_iter().map(|entry| Entry { line: None, ..entry }).collect()
}

#[test]
fn damo_prints_what_is_read() {
    let file = parse(include_str!("data/kdamonds.json"), None).unwrap();
    assert_eq!(file.format, Format::Damo);
    assert!(file.remarks[0].contains("only schemes are read"), "{:?}", file.remarks);
    let [Entry { scheme, .. }] = &file.entries[..] else { panic!() };
    let pattern =
        AccessPattern::ANY.size(4096, u64::MAX).share(0, 500).age(Duration::from_secs(120), Duration::MAX);
    assert_eq!((scheme.pattern, scheme.action), (pattern, Action::Pageout));
    assert_eq!(scheme.apply_interval, Some(Duration::from_secs(1)));
    let quota = &scheme.quota;
    assert_eq!((quota.bytes, quota.time), (Some(128 << 20), Some(Duration::from_millis(10))));
    assert_eq!((quota.tuner, quota.weights.age), (GoalTuner::Temporal, 1000));
    assert_eq!(quota.fail_charge.map(|f| (f.num, f.denom.get())), Some((1, 4)));
    let memcg = GoalMetric::NodeMemcgFreeBp { node: 0, cgroup: "/a/b".to_owned() };
    assert_eq!(
        quota.goals[1..],
        [
            Goal { metric: GoalMetric::UserInput(Some(5000)), target: 10_000 },
            Goal { metric: memcg, target: 3000 }
        ]
    );
    assert_eq!(
        scheme.watermarks.map(|m| (m.interval, m.high, m.low)),
        Some((Duration::from_secs(5), 500, 200))
    );
    assert_eq!(scheme.filters.ops, [Filter::allow(PageKind::Memcg("/a/b".to_owned()))]);

    let filters = schemes(include_str!("data/filters.json"));
    let page = |kind, matching| Filter { kind, matching, allow: false };
    assert_eq!(filters[0].filters.core[1], Filter::allow(CoreKind::Target(TargetId(1234))));
    assert_eq!(
        filters[0].filters.ops,
        [
            page(PageKind::Anon, false),
            page(PageKind::HugepageSize { min: 2 << 20, max: 4 << 20 }, true),
            page(PageKind::Young, true)
        ]
    );
    assert_eq!(filters[1].nodes, [Node { id: 1, weight: 1 }]);
    assert_eq!(filters[2].nodes, [Node { id: 1, weight: 3 }, Node { id: 2, weight: 1 }]);
    assert_eq!(filters[2].pattern.frequency, Frequency::Share(Bounds::new(5000, 10_000)));
}

#[test]
fn what_is_lost_is_said_by_scheme_and_field() {
    let entries = parse(TOML, None).unwrap().entries;
    let lost = |format| -> Vec<String> {
        write(&entries, format).1.iter().map(|l| format!("{} {}", l.scheme, l.field)).collect()
    };
    assert_eq!(lost(Format::Toml), [""; 0]);
    let text = lost(Format::Text);
    for field in [
        "apply_interval",
        "quota",
        "watermarks",
        "filters",
        "max_nr_snapshots",
        "unknown",
        "max_refault_rate",
        "max_psi",
    ] {
        assert!(text.contains(&format!("batch {field}")), "{field}: {text:?}");
    }
    assert!(
        text.contains(&"2 (migrate_hot) access".to_owned())
            && text.contains(&"2 (migrate_hot) age".to_owned()),
        "{text:?}"
    );
    let damo = lost(Format::Damo);
    for part in ["batch quota.goals[0]", "batch filters", "batch max_psi", "batch name"] {
        assert!(damo.contains(&part.to_owned()), "{part}: {damo:?}");
    }
    assert!(!damo.iter().any(|lost| lost.contains("watermarks") || lost.starts_with('2')), "{damo:?}");
}

const BY_PRESSURE: &str = "[[scheme]]
action = \"pageout\"
quota.goals = [{ metric = \"some_mem_psi_us\", target = \"10ms\" }]
";

#[test]
fn a_goal_of_pressure_has_the_tuner_pi_in_isotherms_own_files_only() {
    let tuner = |text: &str| parse(text, None).unwrap().entries[0].scheme.quota.tuner;
    assert_eq!(tuner(BY_PRESSURE), GoalTuner::Pi);
    for (name, named) in
        [("consist", GoalTuner::Consist), ("temporal", GoalTuner::Temporal), ("pi", GoalTuner::Pi)]
    {
        let text = format!("{BY_PRESSURE}quota.tuner = \"{name}\"\n");
        assert_eq!(tuner(&text), named);
        // Also when it is written again.
        assert_eq!(tuner(&write(&parse(&text, None).unwrap().entries, Format::Toml).0), named);
    }
    let others = BY_PRESSURE.replace("some_mem_psi_us\", target = \"10ms", "active_mem_bp\", target = \"40%");
    assert_eq!(tuner(&others), GoalTuner::Consist);
    // What means the kernel's schemes means its tuner.
    let (damo, losses) = write(&parse(BY_PRESSURE, None).unwrap().entries, Format::Damo);
    assert_eq!(tuner(&damo), GoalTuner::Consist);
    assert!(
        losses.iter().any(|loss| loss.field == "quota.tuner" && loss.what.contains("consist")),
        "{losses:?}"
    );
    assert_eq!(tuner(&write(&parse(&damo, None).unwrap().entries, Format::Toml).0), GoalTuner::Consist);
    assert!(parse(&damo.replace("\"consist\"", "\"pi\""), None).is_err(), "damo has no such tuner");
    assert_eq!(
        presets::preset("reclaim:quota_mem_pressure_us=10000").unwrap()[0].scheme.quota.tuner,
        GoalTuner::Consist
    );
    assert!(explain(&parse(BY_PRESSURE, None).unwrap().entries[0]).contains("proportional-integral control"));
}

#[test]
fn schemes_are_explained_in_a_sentence() {
    let said: Vec<String> = parse(PRINTED, None).unwrap().entries.iter().map(explain).collect();
    assert_eq!(
        said,
        [
            "Give huge pages to regions of at least 2 MiB that are accessed in at least 5 % of the sampling intervals; look at the \
             end of each aggregation.",
            "Take huge pages from regions of at least 2 MiB that are accessed in at most 5 % of the sampling intervals, and have \
             been so for at least 1 s; look at the end of each aggregation.",
            "Page out regions of at least 4 KiB that are accessed in at most 5 % of the sampling intervals, and have been so for at \
             least 5 s; look at the end of each aggregation.",
        ]
    );
    let all = explain(&parse(TOML, None).unwrap().entries[0]);
    for part in [
        "100 MiB and 10 ms of work in 1 s",
        "coldest first",
        "leave out all but anonymous pages",
        "falls below 40 %",
        "10 %",
    ] {
        assert!(all.contains(part), "{part}: {all}");
    }
}

proptest! {
    #[test]
    fn toml_comes_back(entry in entry()) {
        let (text, losses) = write(std::slice::from_ref(&entry), Format::Toml);
        prop_assert!(losses.is_empty());
        let read = parse(&text, Some(Format::Toml));
        prop_assert!(read.is_ok(), "{}\n{:?}", text, read);
        prop_assert_eq!(without_lines(read.unwrap().entries), vec![entry], "{}", text);
        prop_assert_eq!(Format::detect(&text), Format::Toml);
    }

    #[test]
    fn text_comes_back(pattern in by_share(), action in 0..Action::ALL.len()) {
        let action = Action::ALL[action];
        prop_assume!(!matches!(action, Action::MigrateHot | Action::MigrateCold));
        let entry = Entry::new(Scheme::new(pattern, action));
        let (text, losses) = write(std::slice::from_ref(&entry), Format::Text);
        prop_assert!(losses.is_empty(), "{:?}", losses);
        prop_assert_eq!(without_lines(parse(&text, None).unwrap().entries), vec![entry], "{}", text);
    }

    #[test]
    fn damo_comes_back_but_for_what_was_said(entry in entry()) {
        let (text, losses) = write(std::slice::from_ref(&entry), Format::Damo);
        let read = parse(&text, None);
        prop_assert!(read.is_ok(), "{}\n{:?}", text, read);
        let read = read.unwrap().entries.remove(0);
        let lost = |field: &str| losses.iter().any(|loss| loss.field.starts_with(field));
        prop_assert_eq!(read.scheme.pattern, entry.scheme.pattern);
        prop_assert_eq!(read.scheme.watermarks, entry.scheme.watermarks);
        prop_assert_eq!(read.scheme.apply_interval, entry.scheme.apply_interval);
        if !lost("quota") {
            prop_assert_eq!(&read.scheme.quota, &entry.scheme.quota);
        }
        if !lost("filters") {
            prop_assert_eq!(&read.scheme.filters, &entry.scheme.filters);
        }
        if losses.iter().all(|loss| loss.field == "name") {
            let nodes = if entry.scheme.nodes.len() > 1 { entry.scheme.nodes.clone() } else { read.scheme.nodes.clone() };
            prop_assert_eq!(read.scheme, Scheme { nodes, ..entry.scheme });
        }
    }
}
