//! What `isotherm scheme apply` shows while it runs, on a terminal and elsewhere.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;
mod tty;

use common::{applying, ended, isotherm, pte_works, skip_but_in_ci, sleeper, wait_until};
use std::fs;
use tty::Tty;

const IDLE: &str = "\
[[scheme]]
name = \"idle\"
action = \"cold\"
max_access = \"5%\"
min_age = \"1s\"
quota.size = \"8M/s\"
";

fn can_act() -> bool {
    let can = pte_works();
    if !can {
        skip_but_in_ci("the pte backend does not work here");
    }
    can
}

#[test]
fn statistics_are_one_screen_of_a_terminal_that_says_all_and_is_written_over() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("idle.toml"), IDLE).unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    let args = ["scheme", "apply", "idle.toml", "--pid", &pid, "--stats-every", "100ms"];
    let mut tty = Tty::start(isotherm(dir.path(), &args), 80, 24);
    let text = |tty: &Tty| tty.lines().join("\n");
    // In 80 columns, where a table has no room.
    tty.wait_until("a screen", |tty| text(tty).contains("of CPU time") && text(tty).contains("idle: active"));
    tty.wait_until("the next ones", |tty| {
        tty.raw.windows(9).filter(|w| *w == b"SIGHUP re".as_slice()).count() > 5
    });
    tty.wait_until("one screen", |tty| text(tty).matches("monitoring").count() == 1);
    // What is said stays, and the screen below goes on.
    fs::write(dir.path().join("idle.toml"), IDLE.replace("5%", "105%")).unwrap();
    tty.wait_for("the schemes go on as they were");
    let before = tty.raw.len();
    tty.wait_until("the next one", |tty| {
        tty.raw.len() > before + 2000 && text(tty).matches("monitoring").count() == 1
    });
    assert!(tty.has("the schemes go on as they were"), "{:#?}", tty.lines());
    // With room for it, a table.
    tty.resize(160, 24);
    tty.wait_until("a table", |tty| tty.has("latency 50, 99 %") && tty.has("active"));
    tty.child.signal(rustix::process::Signal::INT);
    assert!(tty.end().success());
}

#[test]
fn elsewhere_statistics_are_a_line_each_time() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("idle.toml"), IDLE.to_owned() + "\n" + &IDLE.replace("\"idle\"", "\"too\""))
        .unwrap();
    let target = sleeper();
    let running = applying(dir.path(), "idle.toml", target.pid(), &["--stats-every", "100ms"]);
    let read = || fs::read_to_string(dir.path().join("out")).unwrap();
    // The first may come before there is a target.
    wait_until("some lines", || read().lines().filter(|line| line.contains("1 process ")).count() > 3);
    for line in read().lines().take(4) {
        assert!(
            ["monitoring", "idle: active", "too: active"].iter().all(|part| line.contains(part)),
            "{line}"
        );
    }
    ended(running).ok();
}
