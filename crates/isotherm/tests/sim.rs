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
        let done = run(dir.path(), &["lab", "sim", "--costs", "costs.json", "--json", "--seed", seed]);
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
    let done = run(dir.path(), &["lab", "sim", "--costs", "none.json"]);
    assert!(!done.status.success() && done.err.contains("no costs"), "{}", done.err);
}
