//! `isotherm lab sim`, as its users run it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::run;

#[test]
fn the_same_costs_and_seed_are_the_same_report() {
    let dir = tempfile::tempdir().unwrap();
    let costs = r#"{"costs": {"fault": 250, "apart": 260, "local": 6, "transfer": 80, "hold": 1500, "between": 500,
        "refill": 1500, "spin": 1000, "wake": 8000}}"#;
    std::fs::write(dir.path().join("costs.json"), costs).unwrap();
    let simulate = |seed| {
        let done =
            run(dir.path(), &["lab", "sim", "--cores", "--costs", "costs.json", "--json", "--seed", seed]);
        assert!(done.status.success(), "{}", done.err);
        done.out
    };
    let first = simulate("1");
    assert_eq!(first, simulate("1"));
    assert_ne!(first, simulate("2"));
    let report: serde_json::Value = serde_json::from_str(&first).unwrap();
    assert_eq!(report["costs"]["transfer"], 80.0);
    let scale = report["scale"].as_array().unwrap();
    assert_eq!(scale.len(), 9);
    assert_eq!(scale[0]["faults"][6][0], 64);
}

#[test]
fn costs_that_are_none_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("none.json"), "{}").unwrap();
    let done = run(dir.path(), &["lab", "sim", "--cores", "--costs", "none.json"]);
    assert!(!done.status.success() && done.err.contains("no costs"), "{}", done.err);
}

#[test]
fn a_pattern_is_run_under_all_configurations_and_the_same_twice() {
    let dir = tempfile::tempdir().unwrap();
    let args = |more: &[&'static str]| {
        let common = ["lab", "sim", "stairs", "--set", "size=2M", "--set", "steps=2", "--set", "phase=1s"];
        [&common[..], more].concat()
    };
    let done = run(dir.path(), &args(&["--min-age", "300ms", "--json"]));
    assert!(done.status.success(), "{}", done.err);
    assert_eq!(done.out, run(dir.path(), &args(&["--min-age", "300ms", "--json"])).out);
    let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let runs = report["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 8);
    assert_eq!(runs[0]["configuration"], "orig");
    let table = run(dir.path(), &args(&["--sampler", "blocks"])).out;
    for part in ["runtime", "orig", "prcl", "stairs, blocks", "refaults"] {
        assert!(table.contains(part), "{table}");
    }
    let judged = run(dir.path(), &args(&["--accuracy", "--sampler", "classic"]));
    assert!(
        judged.status.success() && judged.out.contains("stairs, classic"),
        "{}{}",
        judged.out,
        judged.err
    );
}

#[test]
fn what_cannot_be_run_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for args in [
        &["lab", "sim", "nothing"][..],
        &["lab", "sim", "stairs", "--cores"],
        &["lab", "sim", "--costs", "x"],
        &["lab", "sim", "stairs", "--set", "nothing=1"],
    ] {
        let done = run(dir.path(), args);
        assert_eq!(done.status.code(), Some(2), "{args:?}: {}", done.err);
    }
}
