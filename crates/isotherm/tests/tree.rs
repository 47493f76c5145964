//! `isotherm lab tree`, as its users run it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{interrupted, run};

const QUICK: [&str; 8] = ["lab", "tree", "--ranges", "100,300", "--rounds", "1", "--slice", "1ms"];

#[test]
fn every_map_is_measured_in_every_operation() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), &[&QUICK[..], &["--only", "operations", "--json"]].concat()).json();
    let all = report["latency"].as_array().unwrap();
    assert_eq!(all.len(), 2 * 6);
    for one in all {
        let times = one["times"].as_array().unwrap();
        let rivals: Vec<_> = times.iter().map(|time| time["rival"].as_str().unwrap()).collect();
        assert_eq!(rivals, ["maple", "rangemap", "btree", "btree_gaps", "skiplist"]);
        assert!(times.iter().all(|time| time["ns"]["median"].as_f64().unwrap() > 0.0), "{one}");
    }
    assert!(
        report["ok"].is_null() && report["bars"].as_array().unwrap().is_empty(),
        "not what the bars are for"
    );
}

#[test]
fn readers_are_measured_alone_and_beside_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let told = run(dir.path(), &[&QUICK[..], &["--only", "readers"]].concat()).ok();
    for word in ["beside a writer", "skip list", "BTreeMap, gaps"] {
        assert!(told.contains(word), "{told}");
    }
}

#[test]
fn it_ends_on_request_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let done =
        interrupted(dir.path(), &["lab", "tree", "--rounds", "100000", "--ranges", "100"], "lab tree: ");
    done.fails(130, &["interrupted"]);
}

#[test]
fn numbers_of_ranges_are_checked() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["lab", "tree", "--ranges", "100,99"]).fails(2, &["from 100 to 10000000"]);
}
