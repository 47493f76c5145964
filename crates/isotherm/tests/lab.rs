//! `isotherm lab`, as its users run it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{ISOTHERM, Running, isotherm, pte_works, run};
use rustix::process::Signal;
use std::process::Stdio;
use std::time::Duration;

const QUICK: [&str; 9] =
    ["lab", "overhead", "--slice", "500ms", "--settle", "1s", "--warm-up", "0", "--json"];

#[test]
fn overhead_without_a_monitor_shows_the_machine_alone_and_skips_what_has_no_room() {
    let dir = tempfile::tempdir().unwrap();
    let args =
        QUICK.iter().chain(&["--null", "--sizes", "4M,60000T", "--pairs", "2"]).copied().collect::<Vec<_>>();
    let report = run(dir.path(), &args).json();
    let result = &report["results"][0];
    assert_eq!((&result["bytes"], &result["null"]), (&(4 << 20).into(), &true.into()));
    assert_eq!(result["pairs"].as_array().unwrap().len(), 2);
    assert_eq!((&result["cost"]["checks"], &result["starts"]["count"]), (&0.into(), &0.into()));
    assert!(result["pieces"].as_u64().unwrap() > 0);
    assert!(report["skipped"][0]["reason"].as_str().unwrap().contains("--sizes"));
}

#[test]
fn overhead_tells_what_the_monitor_did() {
    if !pte_works() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Costs are recorded once a second, later on a busy machine: a slice is to hold some whole seconds.
    let args = QUICK.map(|word| if word == "500ms" { "4s" } else { word });
    let args = args.iter().chain(&["--sizes", "16M", "--pairs", "1"]).copied().collect::<Vec<_>>();
    let report = run(dir.path(), &args).json();
    let result = &report["results"][0];
    assert_eq!((&result["backend"], &result["checks_bounded"]), (&"pte".into(), &true.into()));
    assert!(result["cost"]["checks"].as_u64().unwrap() > 0);
    assert!(result["cost"]["resident_pages"].as_u64().unwrap() >= 4096);
    assert!(result["cpu_share"].as_f64().unwrap() > 0.0);
    assert!(result["starts"]["once_cpu_ns"].as_u64().unwrap() > 0);
}

#[test]
fn overhead_ends_on_request_with_its_children() {
    let dir = tempfile::tempdir().unwrap();
    let mut command =
        isotherm(dir.path(), &["lab", "overhead", "--null", "--sizes", "4M", "--slice", "100s"]);
    command.env("TMPDIR", dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::start(command);
    let children = format!("/proc/{0}/task/{0}/children", running.pid());
    let mut child = String::new();
    common::wait_until("the workload", || {
        child = std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
        !child.is_empty()
    });
    std::thread::sleep(Duration::from_millis(100));
    running.signal(Signal::INT);
    running.end().fails(130, &["interrupted"]);
    assert!(!std::path::Path::new("/proc").join(&child).exists(), "{ISOTHERM} left {child} behind");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "recordings left behind");
}

#[test]
fn overhead_refuses_what_would_tell_nothing() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["lab", "overhead", "--slice", "10ms"]).fails(2, &["--slice 10 ms", "500 ms"]);
    run(dir.path(), &["lab", "overhead", "--pairs", "0"]).fails(2, &["--pairs"]);
}

#[test]
fn accuracy_judges_all_processes_of_a_pattern() {
    if !pte_works() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let sets = ["--set", "workers=2", "--set", "heap=1M", "--set", "hot=1M", "--set", "phase=2500ms"];
    let args = [&["lab", "accuracy", "prefork", "--pages", "4k", "--json"], &sets[..]].concat();
    let report = run(dir.path(), &args).json();
    let run = &report[0];
    assert_eq!((&run["pattern"], &run["processes"]), (&"prefork".into(), &3.into()));
    assert_eq!(run["found"]["hot"], 2);
    assert!(run["windows"]["judged"].as_u64().unwrap() > 0);
    // 2 MiB are hot, and each child writes to 64 KiB a second.
    let truth = run["second"]["truth"]["p50"].as_f64().unwrap();
    assert!((f64::from(2 << 20)..f64::from(3 << 20)).contains(&truth), "{truth}");
    assert!(run["cpu_share"].as_f64().unwrap() > 0.0);
}

#[test]
fn accuracy_compares_any_process_with_a_scan() {
    if !pte_works() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut workload =
        isotherm(dir.path(), &["workload", "hotspot", "--set", "total=64M", "--set", "offset=0"]);
    workload.args(["--set", "step=0", "--set", "spot=8M"]).stdout(Stdio::null());
    let workload = Running::start(workload);
    std::thread::sleep(Duration::from_secs(1));
    let pid = workload.pid().to_string();
    let args = ["lab", "accuracy", "--against", "scan", "-p", &pid, "--settle", "1s", "--duration", "2s"];
    let report = run(dir.path(), &[&args[..], &["--json"]].concat()).json();
    let text = run(dir.path(), &[&args[..], &["--pass", "500ms"]].concat()).ok();
    workload.signal(Signal::TERM);
    workload.end();
    let anonymous =
        report["objects"].as_array().unwrap().iter().find(|o| o["name"] == "anonymous").unwrap().clone();
    // The spot, and what its thread needs besides.
    let scanned = anonymous["scanned"].as_f64().unwrap() / f64::from(1 << 20);
    assert!((8.0..9.0).contains(&scanned), "{scanned} MiB");
    assert_eq!((&report["processes"], &report["backend"]), (&1.into(), &"pte".into()));
    assert!(report["passes"].as_u64().unwrap() >= 1);
    assert!(text.contains("anonymous") && text.contains("pass of 0.5"), "{text}");
}

#[test]
fn accuracy_refuses_what_does_not_go_together() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["lab", "accuracy", "--against", "scan"]).fails(2, &["--pid"]);
    run(dir.path(), &["lab", "accuracy", "rates", "--against", "scan", "-p", "1"])
        .fails(2, &["cannot be used"]);
    run(dir.path(), &["lab", "accuracy", "-p", "1"]).fails(2, &["--against"]);
    run(dir.path(), &["lab", "accuracy", "--against", "scan", "-p", "999999999"]).fails(1, &["999999999"]);
    run(dir.path(), &["lab", "accuracy", "no-such-pattern"]).fails(2, &["no pattern is called"]);
}

#[test]
fn schemes_are_run_in_pairs_and_drawn() {
    if !pte_works() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let args =
        ["lab", "schemes", "--scheme", "stat", "--pairs", "1", "--set", "total=64M", "--set", "part=6M"];
    let args =
        [&args[..], &["--set", "offset=20M", "--set", "passes=3000", "--predict", "--json", "-o", "x.svg"]];
    let report = run(dir.path(), &args.concat()).json();
    let runs = &report["runs"][0];
    let [without, with] = [&runs["pairs"][0][0], &runs["pairs"][0][1]];
    assert_eq!((&without["under"], &with["under"]), (&"nothing".into(), &"schemes".into()));
    assert!(without["monitor_cpu_ns"].is_null() && with["monitor_cpu_ns"].as_u64().unwrap() > 0);
    for run in [without, with] {
        assert!(run["touches"].as_u64().unwrap() >= 3000 * (6 << 20) / 64, "each line of it, each pass");
        let looks = run["looks"].as_array().unwrap();
        assert!(looks.iter().any(|look| look["resident"].as_u64().unwrap() >= 64 << 20));
    }
    // Statistics save nothing: it is seen that they do not.
    assert!(runs["saved_last_phase"]["mean"].as_f64().unwrap().abs() < 0.05, "{}", runs["saved_last_phase"]);
    assert_eq!(runs["predicted"][0]["schemes"][0]["action"], "stat");
    let svg = std::fs::read_to_string(dir.path().join("x.svg")).unwrap();
    assert!(svg.contains(">without<") && svg.contains("Resident memory of build, 4k pages"));
}

#[test]
fn schemes_that_have_nowhere_to_page_out_to_are_refused_before_any_run() {
    let swapless = std::fs::read_to_string("/proc/swaps").unwrap_or_default().lines().count() < 2;
    if !swapless || !rustix::process::geteuid().is_root() {
        common::skip_but_in_ci("needs root, and a machine without swap");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["lab", "schemes"]).fails(2, &["no swap", "--swap 2G"]);
    run(dir.path(), &["lab", "schemes", "--scheme", "none.toml"]).fails(1, &["none.toml", "presets are"]);
    run(dir.path(), &["lab", "schemes", "nothing-like-it", "--scheme", "stat"])
        .fails(2, &["nothing-like-it"]);
}
