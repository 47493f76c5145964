//! `isotherm lab ablate`, as its users run it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{interrupted, run};

#[test]
fn a_constant_is_tried_at_half_and_double_in_the_patterns_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let args = ["lab", "ablate", "window_hits", "--pattern", "stairs,threads", "--seeds", "2"];
    let report = run(dir.path(), &[&args[..], &["--json"]].concat()).json();
    assert_eq!((&report["ok"], &report["interrupted"]), (&serde_json::Value::Null, &false.into()));
    let names: Vec<_> = report["defaults"].as_array().unwrap().iter().map(|d| d["pattern"].clone()).collect();
    assert_eq!(names, ["stairs", "threads"]);
    let all = report["ablations"].as_array().unwrap();
    let values: Vec<f64> = all.iter().map(|a| (a["value"].as_f64().unwrap() * 10.0).round()).collect();
    assert_eq!(values, [2.0, 8.0]);
    for ablation in all {
        assert_eq!(ablation["constant"], "window_hits");
        assert_ne!(ablation["effect"], "unused", "every window is as long as it says");
        assert_eq!(ablation["patterns"][0]["figures"].as_array().unwrap().len(), 2);
    }
    let told = run(dir.path(), &args).ok();
    assert!(told.contains("constants as they are") && told.contains("window_hits, 0.2"), "{told}");
    assert!(!told.contains('\x1b'), "{told}");
    assert_eq!(told, run(dir.path(), &args).ok(), "the same seeds, the same figures");
}

#[test]
fn what_never_comes_into_play_is_marked() {
    let dir = tempfile::tempdir().unwrap();
    let told = run(dir.path(), &["lab", "ablate", "crowded", "--pattern", "stairs", "--seeds", "2"]).ok();
    assert!(told.contains("= unused"), "{told}");
    assert!(told.contains("Never came into play in these patterns: crowded"), "{told}");
}

#[test]
fn the_list_tells_defaults_and_reasons_and_simulates_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let told = run(dir.path(), &["lab", "ablate", "--list"]).ok();
    for word in
        ["surprise_row = 1e-4 (without: 0)", "retry = 2000 ms", "2 s, the time in which all must be seen"]
    {
        assert!(told.contains(word), "{told}");
    }
    let one = run(dir.path(), &["lab", "ablate", "--list", "price"]).ok();
    assert_eq!(one.lines().count(), 2, "{one}");
}

#[test]
fn unknown_names_are_refused_with_the_nearest() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["lab", "ablate", "surprise_rwo"])
        .fails(2, &["\"surprise_rwo\"", "surprise_row", "--list"]);
    run(dir.path(), &["lab", "ablate", "--pattern", "zipff"]).fails(2, &["\"zipff\"", "zipf"]);
    run(dir.path(), &["lab", "ablate", "--factor", "1"]).fails(2, &["1.01"]);
}

#[test]
fn it_ends_on_request_and_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let done = interrupted(dir.path(), &["lab", "ablate", "--seeds", "1000"], "lab ablate: ");
    done.fails(130, &["interrupted"]);
}
