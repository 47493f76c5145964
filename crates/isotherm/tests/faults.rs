//! `isotherm lab faults`, as its users run it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{interrupted, run};

fn report(args: &[&str]) -> serde_json::Value {
    let dir = tempfile::tempdir().unwrap();
    let quick = [&["lab", "faults", "--rounds", "1", "--slice", "5ms", "--json"], args].concat();
    // Whether the bars are met, which the status says, is not the matter here.
    serde_json::from_str(&run(dir.path(), &quick).out).unwrap()
}

#[test]
fn all_ways_are_measured_alone_and_beside_a_mapper_in_a_storm_and_beside_linux() {
    let report = report(&[]);
    let threads = std::thread::available_parallelism().unwrap().get().min(2);
    let all = report["faults"].as_array().unwrap();
    assert!(all.len() >= 2 * threads);
    for one in all {
        assert_eq!(one["ways"].as_array().unwrap().len(), 4, "{one}");
        assert_eq!(one["resident_exact"], true, "{one}");
    }
    assert_eq!(report["storm"]["resident_exact"], true, "{report}");
    assert_eq!(report["storm"]["threads"], 100);
    for price in report["prices"].as_array().unwrap() {
        assert!(price["here"]["median"].as_f64().unwrap() > 0.0, "{price}");
    }
    let sequences: std::collections::BTreeSet<&str> =
        report["beside"].as_array().unwrap().iter().map(|one| one["sequence"].as_str().unwrap()).collect();
    assert_eq!(sequences, ["brk1", "mmap1", "page_fault1", "page_fault2", "page_fault3"].into());
}

#[test]
fn a_part_alone_is_not_judged() {
    let report = report(&["--only", "price"]);
    assert_eq!((&report["ok"], &report["storm"]), (&serde_json::Value::Null, &serde_json::Value::Null));
    assert_eq!(report["prices"].as_array().unwrap().len(), 2);
}

#[test]
fn it_ends_on_request_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let done = interrupted(dir.path(), &["lab", "faults", "--rounds", "100000"], "lab faults: ");
    done.fails(130, &["interrupted"]);
}
