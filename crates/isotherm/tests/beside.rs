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

/// The first is there before and after the second: what that one cleared is lost to it all the same. Files that began after
/// it had ended lost nothing.
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
    let tells = |spots: &[String]| spots.iter().any(|spot| spot.contains(&told));
    // What the end of a file says; nothing where it has none as yet.
    let end_says = |path: &std::path::Path| {
        read(path)?.iter().find_map(|item| match item {
            isotherm_record::Item::End(end) => Some(tells(&end.blind_spots)),
            _ => None,
        })
    };
    let header_says = |path: &std::path::Path| {
        read(path).unwrap().iter().any(
            |item| matches!(item, isotherm_record::Item::Header(header) if tells(&header.backend.blind_spots)),
        )
    };
    let says = |path: &std::path::Path| end_says(path) == Some(true);
    wait_until("the first notices the second", || files().iter().any(|path| says(path)));
    second.signal(Signal::INT);
    second.end().ok();
    let then = files().len();
    // A look stands for a while, so the file after may still say so.
    wait_until("a file that knows nothing of the second", || {
        files()[then..].iter().any(|path| end_says(path) == Some(false))
    });
    let before = files().len();
    wait_until("another file", || files().len() > before);
    first.signal(Signal::INT);
    first.end().ok();
    let all = files();
    assert!(all.iter().any(|path| says(path)), "{told}");
    let last = all.last().unwrap();
    assert_eq!(end_says(last), Some(false), "{told}");
    assert!(!header_says(last), "{told}");
}
