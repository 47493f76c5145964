//! `isotherm doctor` tells the truth about this machine.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{LONG_ENOUGH, pte_works, run};
use std::fs;
use tempfile::tempdir;

#[test]
fn everything_missing_comes_with_a_reason_and_a_remedy() {
    let dir = tempdir().unwrap();
    let done = run(dir.path(), &["doctor", "--json"]);
    let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    let capabilities = report["capabilities"].as_array().unwrap();
    let backends: Vec<&serde_json::Value> = capabilities.iter().filter(|c| c["kind"] == "backend").collect();
    let names: Vec<&str> = backends.iter().map(|c| c["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["pte", "idle", "kernel", "refs"]);
    for capability in capabilities {
        let available = capability["available"].as_bool().unwrap();
        assert_eq!(available, capability["reason"].is_null(), "{capability}");
        assert_eq!(available, capability["remedy"].is_null(), "{capability}");
    }
    let any = backends.iter().any(|c| c["available"] == true);
    assert_eq!(done.status.code(), Some(if any { 0 } else { 1 }));
    let text = run(dir.path(), &["doctor"]).out;
    for capability in capabilities {
        assert!(text.contains(capability["name"].as_str().unwrap()), "{text}");
    }
}

/// What it says works does, and what it says does not, does not.
#[test]
fn record_agrees_with_the_doctor() {
    let dir = tempdir().unwrap();
    let report: serde_json::Value =
        serde_json::from_str(&run(dir.path(), &["doctor", "--json"]).out).unwrap();
    let available = |name: &str| {
        let of = |c: &&serde_json::Value| c["kind"] == "backend" && c["name"] == name;
        report["capabilities"].as_array().unwrap().iter().find(of).unwrap()["available"].as_bool().unwrap()
    };
    // Trying `kernel` out would set up a kdamond, which the guests of the QEMU tests do instead.
    for name in ["pte", "idle", "refs"] {
        let done = run(dir.path(), &["record", "--backend", name, "--", "sleep", LONG_ENOUGH]);
        if available(name) {
            done.ok();
        } else {
            done.fails(1, &[name, "isotherm doctor"]);
        }
    }
    if pte_works() {
        assert!(available("pte"));
    }
}

#[test]
fn looking_changes_nothing() {
    let state = || {
        ["/sys/kernel/mm/transparent_hugepage/enabled", "/proc/swaps", "/proc/sys/kernel/yama/ptrace_scope"]
            .map(|file| fs::read_to_string(file).unwrap_or_default())
    };
    let before = state();
    let dir = tempdir().unwrap();
    run(dir.path(), &["doctor"]);
    assert_eq!(state(), before);
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
}

/// The kernel's threads called kdamond are at work for somebody, who is named as far as this user may know.
#[test]
fn whoever_else_clears_accessed_bits_is_named() {
    let dir = tempdir().unwrap();
    let report: serde_json::Value =
        serde_json::from_str(&run(dir.path(), &["doctor", "--json"]).out).unwrap();
    // Other tests' monitors come and go between the two runs: `beside` asks for those by pid.
    let mut found = report["accessed_bit_clearers"]["found"].as_array().unwrap().clone();
    found.retain(|one| one["kind"] != "isotherm");
    let text = run(dir.path(), &["doctor"]).out;
    let (_, section) = text.split_once("\nWho else clears Accessed bits").expect("a section of its own");
    for one in &found {
        let name = match one["kind"].as_str().unwrap() {
            "module" => one["module"].as_str().unwrap(),
            "sysfs" | "kdamond" => "kdamond",
            "lru_gen" => "MGLRU",
            "page_idle" => "page_idle",
            other => panic!("{other}"),
        };
        assert!(section.contains(name), "{name} in {section}");
    }
    assert!(section.matches("remedy: ").count() >= found.len(), "{section}");
}
