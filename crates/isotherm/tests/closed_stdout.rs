//! `isotherm ... | head -1`: who reads standard output leaves, and the program ends soon, quietly, with all that it has to put
//! away in its place.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Running, isotherm, made_up, pte_works, read, sleeper, wait_until};
use isotherm_record::{Format, Item};
use std::fs;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use tempfile::tempdir;

/// As shells call a program that SIGPIPE ended.
const LEFT: i32 = 128 + libc::SIGPIPE;

/// Starts it, reads what it prints up to the first `bytes`, and leaves once it is `time` to. How it ended, and what it said.
fn left_alone(dir: &Path, args: &[&str], bytes: usize, time: impl FnMut() -> bool) -> (ExitStatus, String) {
    let mut command = isotherm(dir, args);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::start(command);
    let mut out = running.0.stdout.take().unwrap();
    out.read_exact(&mut vec![0; bytes]).unwrap();
    wait_until("time to leave", time);
    drop(out);
    let mut said = String::new();
    running.0.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (running.0.wait().unwrap(), said)
}

fn reason(file: &Path) -> String {
    match read(file).unwrap().pop() {
        Some(Item::End(end)) => end.reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_prints_and_ends_is_ended_at_its_next_line() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), "isotherm.rec", Format::Rec);
    for args in [&["report", "raw"][..], &["report", "raw", "--json"]] {
        let (status, said) = left_alone(dir.path(), args, 1, || true);
        assert_eq!((status.signal(), said.as_str()), (Some(libc::SIGPIPE), ""), "{args:?}");
    }
}

/// The next line would come in an hour.
#[test]
fn a_recording_whose_lines_nobody_reads_is_complete_at_once() {
    if !pte_works() {
        return;
    }
    let (dir, target) = (tempdir().unwrap(), sleeper());
    let (pid, file) = (target.pid().to_string(), dir.path().join("isotherm.rec"));
    let args = ["record", "--quiet", "--follow=1h", "--pid", &pid];
    let (status, said) = left_alone(dir.path(), &args, 0, || file.exists());
    assert_eq!((status.code(), said.as_str()), (Some(0), ""));
    assert_eq!(reason(&file), "nobody reads standard output any more");
}

#[test]
fn a_recording_that_is_no_longer_read_ends_without_a_word() {
    if !pte_works() {
        return;
    }
    let (dir, target) = (tempdir().unwrap(), sleeper());
    let pid = target.pid().to_string();
    let (status, said) = left_alone(dir.path(), &["record", "-o", "-", "--pid", &pid], 100, || true);
    assert_eq!((status.code(), said.as_str()), (Some(LEFT), ""));
}

#[test]
fn schemes_end_as_they_do_when_asked_to() {
    if !pte_works() {
        return;
    }
    let (dir, target) = (tempdir().unwrap(), sleeper());
    let (pid, file) = (target.pid().to_string(), dir.path().join("run.rec"));
    let args = ["scheme", "apply", "stat", "--pid", &pid, "-o", "run.rec", "--log", "log.jsonl"];
    let (status, said) = left_alone(dir.path(), &args, 0, || file.exists());
    assert_eq!(status.code(), Some(0), "{said}");
    assert_eq!(reason(&file), "nobody reads standard output any more");
    assert!(!said.contains("Broken pipe") && fs::metadata(dir.path().join("log.jsonl")).is_ok(), "{said}");
}

/// It takes minutes.
#[test]
fn an_experiment_does_not_go_on_for_nobody() {
    let dir = tempdir().unwrap();
    let (status, said) = left_alone(dir.path(), &["lab", "ablate"], 0, || true);
    assert_eq!(status.code(), Some(LEFT), "{said}");
    assert!(!said.contains("panicked") && !said.contains("cannot print"), "{said}");
}

/// `isotherm ... >&-`: what was to be printed is lost, so the command fails, as others do. One that prints nothing does not.
#[test]
fn what_cannot_be_printed_since_it_is_closed_fails() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), "isotherm.rec", Format::Rec);
    let closed = |args: &str, redirect: &str| {
        let mut shell = std::process::Command::new("sh");
        shell.current_dir(dir.path()).arg("-c").arg(format!("\"$0\" {args} {redirect}"));
        let done = shell.arg(env!("CARGO_BIN_EXE_isotherm")).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap(), done.stdout.len())
    };
    let all = "summary info access heatmap wss regions raw";
    let reports =
        all.split(' ').flat_map(|report| [format!("report {report}"), format!("report {report} --json")]);
    let others = [
        "report html -o -",
        "convert isotherm.rec -",
        "--help",
        "report --help",
        "--version",
        "man",
        "doctor",
    ];
    for args in reports.chain(others.map(str::to_owned)).chain(["completions bash".to_owned()]) {
        let (status, said, _) = closed(&args, ">&-");
        assert_eq!(status, Some(1), "{args}: {said}");
        assert!(said.contains("it was closed") && !said.contains("panicked"), "{args}: {said}");
        let (_, said, printed) = closed(&args, "<&-");
        assert!(printed > 0 && !said.contains("it was closed"), "{args}: {said}");
        assert_eq!(closed(&args, ">/dev/full").0, Some(1), "{args}");
    }
    for args in ["report wss -o x.svg", "convert isotherm.rec x.parquet", "report html -o x.html"] {
        let (status, said, _) = closed(args, ">&-");
        assert_eq!(status, Some(0), "{args}: {said}");
    }
    assert_eq!(closed("report nosuch", ">&-").0, Some(2));
}
