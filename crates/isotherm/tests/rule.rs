//! Targets by a rule: processes that come, change and go, as the recording and standard error tell of them.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{Running, isotherm, pte_works, read, run, skip_but_in_ci, wait_until};
use isotherm_record::Item;
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;

const COLD: &str = "[[scheme]]\nname = \"all\"\naction = \"cold\"\napply_interval = \"200ms\"\n";

/// Applies a scheme to what a rule matches, with the recording in `run.rec`.
fn apply(dir: &Path, rule: &[&str]) -> Running {
    fs::write(dir.join("cold.toml"), COLD).unwrap();
    let args = [&["scheme", "apply", "cold.toml", "--update", "100ms", "-o", "run.rec", "-q"], rule].concat();
    let mut command = isotherm(dir, &args);
    command.stdout(fs::File::create(dir.join("out")).unwrap());
    command.stderr(fs::File::create(dir.join("errors")).unwrap());
    Running::start(command)
}

/// A shell that runs `script`.
fn shell(dir: &Path, script: &str) -> Running {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(dir);
    Running::start(command)
}

fn waits(dir: &Path) {
    let said = || fs::read_to_string(dir.join("errors")).unwrap_or_default();
    wait_until("that nothing matches is told", || said().contains("no process matches"));
}

/// Pids that became targets and those that ceased to be, with the reason.
fn told(dir: &Path) -> (Vec<u32>, Vec<String>) {
    let items = read(&dir.join("run.rec")).unwrap_or_default();
    let (mut seen, mut ended) = (Vec::new(), Vec::new());
    for item in items {
        match item {
            Item::Target(target) => seen.push(target.pid),
            Item::TargetEnd(end) => ended.push(end.reason),
            _ => {}
        }
    }
    (seen, ended)
}

fn can_act() -> bool {
    let can = pte_works();
    if !can {
        skip_but_in_ci("the pte backend does not work here");
    }
    can
}

#[test]
fn a_process_that_comes_to_match_is_a_target_until_it_does_not() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();
    let user = rustix::process::geteuid().as_raw().to_string();
    let before = shell(dir, "while ! test -e go; do sleep 0.05; done; exec sleep 1234.51");
    let running = apply(dir, &["--comm", "sleep", "--cmdline", "sleep 1234.5?", "--user", &user]);
    waits(dir);
    // One that is there turns into one that matches; another one is born as such.
    fs::write(dir.join("go"), "").unwrap();
    let mut command = Command::new("sleep");
    command.arg("1234.52");
    let later = Running::start(command);
    wait_until("both are targets", || {
        let seen = told(dir).0;
        seen.contains(&before.pid()) && seen.contains(&later.pid())
    });
    running.signal(Signal::INT);
    running.end().ok();
    assert_eq!(told(dir).0.len(), 2, "and nobody else");
}

#[test]
fn one_that_runs_another_program_ceases_to_be_a_target() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();
    // A program has the name by which it is called.
    std::os::unix::fs::symlink("/bin/sh", dir.join("isotherm-rule")).unwrap();
    let mut command = Command::new(dir.join("isotherm-rule"));
    command.args(["-c", "while ! test -e go; do sleep 0.05; done; exec sleep 300"]).current_dir(dir);
    let renamed = Running::start(command);
    let running = apply(dir, &["--comm", "isotherm-rule"]);
    wait_until("it is a target", || told(dir).0.contains(&renamed.pid()));
    fs::write(dir.join("go"), "").unwrap();
    wait_until("it is one no more", || told(dir).1.iter().any(|why| why == "matches the rule no more"));
    running.signal(Signal::INT);
    running.end().ok();
}

#[test]
fn processes_of_another_user_are_found_once_they_are_that() {
    if !can_act() {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skip_but_in_ci("only root may change its user");
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();
    // A number that nobody has.
    let running = apply(dir, &["--user", "64321"]);
    waits(dir);
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "64321", "--clear-groups", "sleep", "300"]);
    let other = Running::start(command);
    wait_until("it is a target", || told(dir).0 == [other.pid()]);
    running.signal(Signal::INT);
    running.end().ok();
}

#[test]
fn what_cannot_be_a_rule_is_refused() {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();
    let tries = |rule: &[&str], parts: &[&str]| {
        run(dir, &[&["scheme", "apply", "reclaim"], rule].concat()).fails(2, parts);
        run(dir, &[&["record", "-o", "x.rec"], rule].concat()).fails(2, parts);
    };
    tries(&["--comm", ""], &["--comm", "empty pattern"]);
    tries(&["--cmdline", ""], &["--cmdline", "empty pattern"]);
    tries(&["--user", "no such user"], &["no user \"no such user\"", "number"]);
    tries(&["--user", ""], &["no user"]);
    tries(&["--comm", "x", "--all"], &["--all", "--comm"]);
    // Told before anything else goes wrong.
    tries(
        &["--comm", "a-name-longer-than-that", "--user", "none at all"],
        &["15 bytes", "\"a-name-longer-t\""],
    );
}
