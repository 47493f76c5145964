//! `isotherm lab frames`, as its users run it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{interrupted, run};

const QUICK: [&str; 6] = ["lab", "frames", "--rounds", "1", "--slice", "1ms"];

#[test]
fn every_allocator_is_measured_in_every_pattern() {
    let dir = tempfile::tempdir().unwrap();
    let report = run(dir.path(), &[&QUICK[..], &["--only", "throughput", "--json"]].concat()).json();
    let threads = std::thread::available_parallelism().unwrap().get().min(2);
    let all = report["throughput"].as_array().unwrap();
    assert_eq!(all.len(), 3 * 4 * threads);
    for one in all {
        let rates = one["rates"].as_array().unwrap();
        let rivals: Vec<_> = rates.iter().map(|rate| rate["rival"].as_str().unwrap()).collect();
        assert_eq!(rivals, ["zone", "buddy_system", "global_lock", "malloc"]);
        assert!(rates.iter().all(|rate| rate["pairs"]["median"].as_f64().unwrap() > 0.0), "{one}");
    }
    assert!(report["ok"].is_null(), "parts were left out");
}

#[test]
fn giving_back_is_measured_with_a_conclusion() {
    let dir = tempfile::tempdir().unwrap();
    let told = run(dir.path(), &[&QUICK[..], &["--only", "sinks"]].concat()).ok();
    for word in ["MADV_DONTNEED", "MADV_FREE", "hole in a memfd", "Memory that is given back"] {
        assert!(told.contains(word), "{told}");
    }
}

/// On a busy machine the thread that reports may get no turn in slices as short as these: then longer ones follow.
#[test]
fn the_loop_s_memory_is_reported_while_it_is_timed() {
    let dir = tempfile::tempdir().unwrap();
    let of_slices = |slice| {
        run(dir.path(), &[&QUICK[..4], &["--slice", slice, "--only", "cost", "--json"]].concat()).json()
    };
    let of_both = |report: &serde_json::Value, told: fn(&serde_json::Value) -> &serde_json::Value| {
        ["bookkeeping", "with_host"].iter().all(|part| told(&report["cost"][part]).as_f64().unwrap() > 0.0)
    };
    let mut report = of_slices("50ms");
    for slice in ["500ms", "5s"] {
        if !of_both(&report, |touching| &touching["reported_per_1000"]) {
            report = of_slices(slice);
        }
    }
    assert!(of_both(&report, |touching| &touching["reported_per_1000"]), "{report}");
    assert!(of_both(&report, |touching| &touching["without_ns"]["median"]), "{report}");
    assert!(report["cost"]["host_ns"].as_f64().unwrap() > 0.0);
}

#[test]
fn it_ends_on_request_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let done = interrupted(dir.path(), &["lab", "frames", "--rounds", "100000"], "lab frames: ");
    done.fails(130, &["interrupted"]);
}
