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

/// The first is there before and after the second: what that one cleared is lost to it all the same.
#[test]
fn an_isotherm_that_came_later_and_has_gone_is_recorded_too() {
    if !pte_works() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let target = sleeper();
    let pid = target.pid().to_string();
    let first =
        Running::start(isotherm(dir, &["record", "-q", "--pid", &pid, "--every", "1s", "-o", "first.rec"]));
    let files = || {
        let all = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path());
        let mut all: Vec<_> = all.filter(|path| path.display().to_string().contains("first-")).collect();
        all.sort();
        all
    };
    wait_until("the first records", || !files().is_empty());
    let second = Running::start(isotherm(dir, &["record", "-q", "--pid", &pid, "-o", "second.rec"]));
    let told = format!("another isotherm, pid {}, that watches 1 process", second.pid());
    let says = |path: &std::path::Path| {
        let Some(items) = read(path) else { return false };
        items.iter().any(|item| match item {
            isotherm_record::Item::End(end) => end.blind_spots.iter().any(|spot| spot.contains(&told)),
            _ => false,
        })
    };
    wait_until("the first notices the second", || files().iter().any(|path| says(path)));
    second.signal(Signal::INT);
    second.end().ok();
    let then = files().len();
    // More than one file later none has seen the second itself.
    wait_until("more files", || files().len() > then + 2);
    first.signal(Signal::INT);
    first.end().ok();
    assert!(says(files().last().unwrap()), "{told}");
}
