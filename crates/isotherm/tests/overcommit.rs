//! `isotherm lab overcommit`, as its users run it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Running, isotherm, run, wait_until};
use rustix::process::Signal;
use std::path::Path;
use std::process::Stdio;

#[test]
fn what_cannot_be_done_is_refused_before_anything_boots() {
    let dir = tempfile::tempdir().unwrap();
    let fails = |status: i32, args: &[&str], told: &[&str]| {
        let args = [&["lab", "overcommit", "--guest", "/dev/null"], args].concat();
        run(dir.path(), &args).fails(status, told);
    };
    fails(2, &["--scale", "0"], &["--scale 0"]);
    fails(2, &["--scale", "inf"], &["--scale inf"]);
    fails(2, &["--scale", "1000"], &["too small", "64"]);
    fails(1, &["--scale", "0.001"], &["MiB are available", "--scale"]);
    fails(2, &["--scale", "1e-300"], &["cannot touch"]);
    fails(2, &["--scale", "40", "--touch", "1G"], &["cannot touch 1024 MiB"]);
    fails(1, &["--scale", "40", "--qemu", "/dev/null/qemu"], &["/dev/null/qemu", "qemu-system-x86"]);
}

#[test]
fn without_the_guest_program_it_tells_how_to_build_it() {
    let dir = tempfile::tempdir().unwrap();
    run(dir.path(), &["lab", "overcommit", "--scale", "40", "--guest", "missing"])
        .fails(1, &["missing", "cargo xtask guest --build"]);
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn it_ends_on_request_with_its_guests() {
    let guest = std::env::var("ISOTHERM_GUEST").expect("ISOTHERM_GUEST names the guest program");
    let dir = tempfile::tempdir().unwrap();
    let mut command =
        isotherm(dir.path(), &["lab", "overcommit", "--scale", "40", "--guest", &guest, "--json"]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let running = Running::start(command);
    let children = format!("/proc/{0}/task/{0}/children", running.pid());
    let mut guests = Vec::new();
    wait_until("the second guest", || {
        let pids = std::fs::read_to_string(&children).unwrap_or_default();
        guests = pids.split_ascii_whitespace().map(|pid| format!("/proc/{pid}")).collect::<Vec<_>>();
        guests.len() >= 2
    });
    running.signal(Signal::INT);
    let done = running.end();
    let report: serde_json::Value = serde_json::from_str(&done.out).unwrap();
    assert_eq!((&report["interrupted"], &report["ok"]), (&true.into(), &serde_json::Value::Null));
    done.fails(130, &["interrupted"]);
    for guest in guests {
        assert!(!Path::new(&guest).exists(), "{guest} was left behind");
    }
}
