//! `isotherm lab fork`, as its users run it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Done, as_nobody, interrupted, isotherm, run, skip};
use serde_json::Value;
use std::fs::File;
use std::path::Path;
use std::process::Stdio;

const LAYOUTS: [(&str, &str); 4] =
    [("order0", "order 0"), ("order9", "order 9, PTEs"), ("mixed", "16K, 64K, 2M"), ("pmd", "order 9, PMDs")];
const OPERATIONS: [&str; 4] = ["fork", "exit", "harvest", "zap"];

fn quick(dir: &Path, more: &[&str]) -> Done {
    run(dir, &[&["lab", "fork", "--size", "6"], more].concat())
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("{value} is no number"))
}

#[test]
fn the_table_shows_every_layout_in_every_operation_and_the_bars() {
    let dir = tempfile::tempdir().unwrap();
    let done = quick(dir.path(), &["--runs", "6"]);
    let told = done.err.clone();
    let text = done.ok();
    let tables: Vec<&str> = text.split("\n\n").collect();
    let [fork, exit, harvest, zap, notes, bars] = tables[..] else { panic!("{text}") };
    let (bars, _size) = bars.split_once("The bars are for").unwrap();
    for (table, name) in [(fork, "fork"), (exit, "exit"), (harvest, "young harvest"), (zap, "zap")] {
        assert!(table.starts_with(name), "{table}");
        for heading in [
            "layout",
            "per page",
            "batched",
            "stdev",
            "median",
            "relative",
            "95 % interval",
            "typical",
            "TLB ops",
        ] {
            assert!(table.lines().next().unwrap().contains(heading), "{heading} in {table}");
        }
        for (_, layout) in LAYOUTS {
            let ours = |line: &&str| line.contains(layout) && line.contains(" ms ") && line.contains("]  ");
            assert_eq!(table.lines().filter(ours).count(), 3, "three formats, {layout} in {table}");
            let linux = table.lines().any(|line| line.starts_with("Linux") && line.contains(layout));
            let skipped = notes.contains(&format!("Linux: {layout}: skipped: "));
            assert_eq!(linux, !skipped && name != "young harvest", "{layout}: {text}");
        }
    }
    assert!(notes.contains("less a fork without that memory"), "{notes}");
    assert!(bars.starts_with("bar ") && bars.lines().count() > 6, "{bars}");
    for bar in bars.lines().skip(1) {
        assert!(["met", "missed", "cannot be told"].iter().any(|verdict| bar.contains(verdict)), "{bar}");
        assert!(bar.contains("= 1") || bar.contains("<= 0"), "a limit in {bar}");
    }
    // Progress is for whoever waits, not for whoever reads the table.
    assert!(told.contains("run 6 of 6") && told.contains("Linux ..."), "{told}");
    assert!(!text.contains("run 6 of 6"));
}

#[test]
fn json_has_all_that_the_table_has() {
    let dir = tempfile::tempdir().unwrap();
    let report = quick(dir.path(), &["--runs", "6", "--json"]).json();
    assert_eq!((&report["setup"]["runs"], &report["setup"]["mib"]), (&6.into(), &6.into()));
    // The bars hold for 1 GiB.
    assert_eq!((&report["ok"], &report["interrupted"]), (&Value::Null, &false.into()));
    let ours = report["ours"].as_array().unwrap();
    for (layout, _) in LAYOUTS {
        for operation in OPERATIONS {
            let of = |one: &&Value| one["layout"] == layout && one["operation"] == operation;
            let rows: Vec<&Value> = ours.iter().filter(of).collect();
            assert_eq!(rows.len(), 3, "{layout} {operation}");
            let formats: std::collections::HashSet<_> =
                rows.iter().map(|row| row["format"].as_str()).collect();
            assert_eq!(formats.len(), 3, "{layout} {operation}");
            for row in rows {
                for way in ["batched", "per_page"] {
                    let time = &row[way];
                    assert_eq!(time["count"], 6);
                    assert!(
                        0.0 < number(&time["min"]) && number(&time["median"]) <= number(&time["max"]),
                        "{row}"
                    );
                    assert!(number(&time["mean"]) > 0.0 && number(&time["stdev"]) >= 0.0, "{row}");
                }
                assert!(row["typical"]["median"].is_f64(), "{row}");
                let interval = &row["relative"]["median_ci95"];
                let median = number(&row["relative"]["median"]);
                assert!(number(&interval[0]) <= median && median <= number(&interval[1]), "{row}");
                for count in ["tlb_batched", "tlb_per_page", "unfolds_batched", "page_faults"] {
                    assert!(row[count].is_u64(), "{count} in {row}");
                }
                if operation == "fork" {
                    assert_eq!((&row["tlb_batched"], &row["unfolds_batched"]), (&1.into(), &0.into()));
                }
            }
        }
    }
    let linux = report["linux"].as_array().unwrap();
    assert_eq!(
        linux.iter().map(|one| one["layout"].as_str().unwrap()).collect::<Vec<_>>(),
        LAYOUTS.map(|(name, _)| name)
    );
    for one in linux {
        let skipped = one["skipped"].as_str();
        for time in ["fork", "exit", "zap"] {
            assert_eq!(one[time]["count"] == 6, skipped.is_none(), "{one}");
        }
        assert_eq!(one["empty"].is_array(), skipped.is_none(), "{one}");
    }
    // Memory without huge pages is to be had anywhere.
    assert_eq!(linux[0]["skipped"], Value::Null);
    for bar in report["bars"].as_array().unwrap() {
        assert!(!bar["what"].as_str().unwrap().is_empty() && bar["met"].is_boolean(), "{bar}");
        let (measured, interval) = (number(&bar["measured"]), &bar["interval"]);
        assert!(number(&interval[0]) <= measured && measured <= number(&interval[1]), "{bar}");
        let words = if bar["met"] == true { "met" } else { "missed|cannot be told" };
        assert!(words.split('|').any(|word| bar["verdict"].as_str().unwrap().starts_with(word)), "{bar}");
    }
}

/// What one run alone tells has no spread, and no bar claims one.
#[test]
fn a_single_run_has_no_interval() {
    let dir = tempfile::tempdir().unwrap();
    let report = quick(dir.path(), &["--runs", "1", "--json"]).json();
    assert_eq!(report["ours"][0]["batched"]["stdev"], Value::Null);
    assert!(report["bars"].as_array().unwrap().iter().all(|bar| bar["interval"].is_null()));
    let text = quick(dir.path(), &["--runs", "1"]).ok();
    assert!(text.contains(" -") && text.contains("no interval, for which it takes six runs"), "{text}");
}

#[test]
fn bars_of_another_size_say_so() {
    let dir = tempfile::tempdir().unwrap();
    let text = quick(dir.path(), &["--runs", "6"]).ok();
    assert!(text.ends_with("The bars are for 1024 MiB; these are figures of 6 MiB.\n"), "{text}");
}

#[test]
fn a_report_that_cannot_be_written_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    for more in [&[][..], &["--json"]] {
        let mut command =
            isotherm(dir.path(), &[&["lab", "fork", "--size", "2", "--runs", "1"], more].concat());
        command.stdout(File::create("/dev/full").unwrap()).stderr(Stdio::piped());
        let done = command.output().unwrap();
        let told = String::from_utf8(done.stderr).unwrap();
        assert_eq!(done.status.code(), Some(1), "{told}");
        assert!(told.contains("cannot print the report: No space left on device"), "{told}");
    }
}

/// Root sees of which folios memory is. What it cannot have is skipped with the reason, in the table, in JSON and at once.
#[test]
fn linux_forks_what_was_asked_for_or_says_why_not() {
    let dir = tempfile::tempdir().unwrap();
    let done = quick(dir.path(), &["--runs", "2", "--json"]);
    let told = done.err.clone();
    let report = done.json();
    let must = std::env::var("CI").is_ok_and(|ci| ci == "true") && rustix::process::geteuid().is_root();
    for one in report["linux"].as_array().unwrap() {
        match one["skipped"].as_str() {
            None if must => assert!(number(&one["of_order"]) >= 0.9, "{one}"),
            None => {}
            Some(why) => {
                skip(&format!("{}: {why}", one["layout"]));
                assert!(told.contains(&format!("skipped: {why}")), "{told}");
                assert_ne!(one["layout"], "order0");
                let limits = ["locked down", "since 6.10", "transparent_hugepage/enabled", "CONFIG_", "root"];
                assert!(limits.iter().any(|limit| why.contains(limit)), "{why}");
                assert!(!must || !why.contains("root (CAP_SYS_ADMIN)"), "{why}");
            }
        }
    }
}

#[test]
fn whoever_is_not_root_is_told_what_that_costs() {
    let dir = tempfile::tempdir().unwrap();
    let Some(as_nobody) = as_nobody(dir.path()) else { return };
    let report = as_nobody(&["lab", "fork", "--size", "6", "--runs", "1", "--json"]).json();
    let linux = report["linux"].as_array().unwrap();
    assert!(linux[0]["fork"].is_object() && linux[0]["of_order"].is_null(), "{}", linux[0]);
    let why = linux[2]["skipped"].as_str().unwrap();
    assert!(why.contains("run it as root") || why.contains("since 6.10") || why.contains("CONFIG_"), "{why}");
    let text = as_nobody(&["lab", "fork", "--size", "6", "--runs", "1"]).ok();
    assert!(text.contains("order 0: of which folios, only root can see") && text.contains(why), "{text}");
}

#[test]
fn nothing_is_left_mounted_and_no_setting_changed() {
    const SETTINGS: [&str; 3] = [
        "/proc/self/mountinfo",
        "/sys/kernel/mm/transparent_hugepage/enabled",
        "/sys/kernel/mm/transparent_hugepage/hugepages-64kB/enabled",
    ];
    let state = || SETTINGS.map(|file| std::fs::read_to_string(file).unwrap_or_default());
    let dir = tempfile::tempdir().unwrap();
    let before = state();
    quick(dir.path(), &["--runs", "1"]).ok();
    assert_eq!(before, state());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
}

#[test]
fn the_help_teaches() {
    let dir = tempfile::tempdir().unwrap();
    let help = run(dir.path(), &["lab", "fork", "--help"]).ok();
    let parts = [
        "--runs <N>",
        "[default: 30]",
        "--size <MIB>",
        "[default: 1024]",
        "--json",
        "Examples:",
        "jq .bars",
        "order 0",
        "interval",
        "root",
        "130 after Ctrl-C",
    ];
    for part in parts {
        assert!(help.contains(part), "{part:?} in {help}");
    }
    assert!(help.lines().all(|line| line.chars().count() <= 120), "{help}");
    // Paragraphs are broken once: a line ends where the next word has no room.
    let ragged = |pair: &[&str]| match pair {
        [line, next] => {
            let word = next.split(' ').next().unwrap_or_default();
            !next.is_empty() && line.chars().count() + 1 + word.chars().count() <= 80
        }
        _ => false,
    };
    let (_, paragraphs) = help.split_once("jq .bars\n").unwrap();
    let lines: Vec<&str> = paragraphs.lines().collect();
    let ragged = lines.windows(2).find(|pair| !pair[0].is_empty() && ragged(pair));
    assert_eq!(ragged, None, "{help}");
    assert!(run(dir.path(), &["lab", "--help"]).ok().contains("fork"));
}

#[test]
fn what_makes_no_sense_is_refused_with_what_would() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |option: &str, value: &str, told: &[&str]| {
        let option = format!("{option}={value}");
        run(dir.path(), &["lab", "fork", &option]).fails(2, &[&[value], told].concat());
    };
    for runs in ["0", "10001", "-1", "4294967296", "many", ""] {
        fails("--runs", runs, &["--runs <N>"]);
    }
    for size in ["0", "1", "7", "65538", "-2", "18446744073709551616", "1G", "2.0", ""] {
        fails("--size", size, &["--size <MIB>", "even number of MiB, from 2 to 65536"]);
    }
    run(dir.path(), &["lab", "fork", "--runs"]).fails(2, &["--runs <N>"]);
    run(dir.path(), &["lab", "fork", "order-9"]).fails(2, &["order-9"]);
}

#[test]
fn more_than_the_machine_has_is_refused_before_anything_is_touched() {
    let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
    let available = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:")).unwrap();
    let mib: u64 = available.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024;
    if mib > 66_000 {
        return skip("this machine has memory for the largest size there is");
    }
    let dir = tempfile::tempdir().unwrap();
    let told = ["forking 65536 MiB", "are available", "smaller --size"];
    run(dir.path(), &["lab", "fork", "--size", "65536"]).fails(1, &told);
}

#[test]
fn it_ends_on_request_with_what_was_measured_until_then() {
    let dir = tempfile::tempdir().unwrap();
    let done =
        interrupted(dir.path(), &["lab", "fork", "--runs", "10000", "--size", "6", "--json"], "run 8 of");
    let report: Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&report["interrupted"], &report["ok"]), (&true.into(), &Value::Null));
    assert!(number(&report["ours"][0]["batched"]["count"]) >= 7.0, "{}", report["ours"][0]);
    assert_eq!(report["linux"], Value::Array(Vec::new()));
    done.fails(130, &["interrupted; what was measured until then is all there is"]);
}

#[test]
fn it_ends_on_request_while_linux_forks() {
    let dir = tempfile::tempdir().unwrap();
    let done =
        interrupted(dir.path(), &["lab", "fork", "--runs", "400", "--size", "2"], "order 0: Linux ...");
    assert!(done.out.contains("young harvest") && done.out.contains("bar "), "{}", done.out);
    done.fails(130, &["interrupted; what was measured until then is all there is"]);
}
