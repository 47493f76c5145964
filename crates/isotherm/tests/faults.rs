//! `isotherm lab faults`, as its users run it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{interrupted, run};

#[test]
fn both_ways_are_measured_alone_and_beside_a_mapper() {
    let dir = tempfile::tempdir().unwrap();
    let quick = ["lab", "faults", "--rounds", "1", "--slice", "5ms", "--json"];
    // Whether the bars are met, which the status says, is not the matter here.
    let report: serde_json::Value = serde_json::from_str(&run(dir.path(), &quick).out).unwrap();
    let threads = std::thread::available_parallelism().unwrap().get().min(2);
    let all = report["faults"].as_array().unwrap();
    assert_eq!(all.len(), 2 * threads);
    for one in all {
        assert!(one["on"]["median"].as_f64().unwrap() > 0.0, "{one}");
        assert!(one["off"]["median"].as_f64().unwrap() > 0.0, "{one}");
        assert_eq!(one["resident_exact"], true, "{one}");
    }
}

#[test]
fn it_ends_on_request_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let done = interrupted(dir.path(), &["lab", "faults", "--rounds", "100000"], "lab faults: ");
    done.fails(130, &["interrupted"]);
}
