//! Two isotherms that watch one process spoil each other's figures, and say so.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::*;
use rustix::process::Signal;

#[test]
fn another_isotherm_that_watches_the_same_process_is_told_and_recorded() {
    if !pte_works() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let target = sleeper();
    let pid = target.pid().to_string();
    let record = |name: &str, pid: &str| isotherm(dir, &["record", "--pid", pid, "-o", name]);
    let first = Running::start(record("first.rec", &pid));
    wait_until("the first records", || dir.join("first.rec").exists());
    let first_pid = first.pid();

    let second = run(dir, &["record", "--pid", &pid, "--duration", "500ms", "-o", "second.rec"]);
    let told = format!("1 process of these is watched by another isotherm, pid {first_pid}, too");
    assert!(second.err.contains(&told), "{}", second.err);
    let info = run(dir, &["report", "info", "-i", "second.rec"]).ok();
    let unwrapped = info.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        unwrapped.contains(&format!("another isotherm, pid {first_pid}, that watches 1 process")),
        "{info}"
    );
    let doctor = run(dir, &["doctor"]).ok();
    assert!(doctor.contains(&format!("another isotherm, pid {first_pid}")), "{doctor}");

    // Who watches something else is nobody's trouble.
    let other = sleeper();
    let third =
        run(dir, &["record", "--pid", &other.pid().to_string(), "--duration", "200ms", "-o", "third.rec"]);
    assert!(!third.err.contains("another isotherm"), "{}", third.err);
    first.signal(Signal::INT);
    first.end().ok();
}
