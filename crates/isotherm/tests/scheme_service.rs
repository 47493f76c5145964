//! `isotherm scheme apply` as a service: what it leaves in recordings and logs, and what it says to the service manager.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{Running, isotherm, pte_works, read, run, skip_but_in_ci, wait_until};
use isotherm_record::Item;
use rustix::process::Signal;
use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// Needs no swap, and finds something to do as long as its target lives.
const COLD: &str = "\
[[scheme]]
name = \"all\"
action = \"cold\"
apply_interval = \"200ms\"
";

fn can_act() -> bool {
    let can = pte_works();
    if !can {
        skip_but_in_ci("the pte backend does not work here");
    }
    can
}

/// The command that applies [`COLD`] to `target`, with its log in `log`.
fn apply(dir: &Path, target: &Running, more: &[&str]) -> std::process::Command {
    fs::write(dir.join("cold.toml"), COLD).unwrap();
    let pid = target.pid().to_string();
    let args = [&["scheme", "apply", "cold.toml", "--pid", &pid, "--log", "log", "-q"], more].concat();
    let mut command = isotherm(dir, &args);
    command.stdout(fs::File::create(dir.join("out")).unwrap());
    command.stderr(fs::File::create(dir.join("errors")).unwrap());
    command
}

fn workload(dir: &Path) -> Running {
    let args = ["workload", "stairs", "--set", "size=4M", "--set", "steps=4", "--set", "phase=30s"];
    let mut command = isotherm(dir, &args);
    command.stdout(fs::File::create(dir.join("workload")).unwrap());
    Running::start(command)
}

fn lines(path: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn actions_are_in_the_recording_and_its_reports() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();
    let target = workload(dir);
    let running = Running::start(apply(dir, &target, &["-o", "run.rec"]));
    wait_until("actions", || {
        lines(&dir.join("log")).iter().filter(|line| line["applied"].as_u64() > Some(0)).count() > 5
    });
    running.signal(Signal::INT);
    running.end().ok();

    // The recording says what the log says.
    let items = read(&dir.join("run.rec")).unwrap();
    let recorded: Vec<(u64, u64, u64, u64)> = items
        .iter()
        .filter_map(|item| match item {
            Item::Action(a) if a.scheme == "all" && a.action == "cold" => {
                assert_eq!(a.target, u64::from(target.pid()));
                assert!(a.applied <= a.tried && a.tried <= a.end - a.start);
                Some((a.time_ns, a.start, a.end, a.applied))
            }
            _ => None,
        })
        .collect();
    let number = |line: &serde_json::Value, name: &str| line[name].as_u64().unwrap();
    let logged: Vec<(u64, u64, u64, u64)> = lines(&dir.join("log"))
        .iter()
        .map(|l| (number(l, "time_ns"), number(l, "start"), number(l, "end"), number(l, "applied")))
        .collect();
    assert_eq!(recorded, logged);

    let info = run(dir, &["report", "info", "-i", "run.rec"]).ok();
    assert!(info.contains(&format!("actions      {} of cold by all", logged.len())), "{info}");
    let applied: u64 = logged.iter().map(|(.., applied)| applied).sum();
    let json = run(dir, &["report", "info", "-i", "run.rec", "--json"]).json();
    assert_eq!(json["provenance"]["actions"][0]["applied"].as_u64(), Some(applied), "{json}");
    let map = run(dir, &["report", "heatmap", "-i", "run.rec"]).ok();
    assert!(map.contains("x: an action of a scheme took effect there"), "{map}");
    let raw = run(dir, &["report", "raw", "-i", "run.rec", "--json"]).ok();
    assert_eq!(raw.lines().filter(|line| line.contains("\"type\":\"action\"")).count(), logged.len());
    run(dir, &["report", "html", "-i", "run.rec", "-o", "run.html"]).ok();
    assert!(fs::read_to_string(dir.join("run.html")).unwrap().contains("of cold by all"));
    let told = run(dir, &["convert", "run.rec", "run.json"]);
    assert!(told.err.contains("actions of schemes"), "{}", told.err);
    run(dir, &["convert", "run.rec", "run.parquet"]).ok();
    let again = run(dir, &["report", "info", "-i", "run.parquet"]).ok();
    assert!(again.contains("of cold by all"), "{again}");
}

#[test]
fn a_log_that_was_moved_away_is_opened_anew() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();
    let target = workload(dir);
    let running = Running::start(apply(dir, &target, &["-o", "run.rec"]));
    let log = dir.join("log");
    wait_until("a log", || !lines(&log).is_empty());
    // Without a signal, and with the one that log rotation sends.
    fs::rename(&log, dir.join("log.1")).unwrap();
    wait_until("a log after it was moved", || !lines(&log).is_empty());
    fs::rename(&log, dir.join("log.2")).unwrap();
    running.signal(Signal::HUP);
    wait_until("a log after SIGHUP", || !lines(&log).is_empty());
    fs::remove_file(&log).unwrap();
    wait_until("a log after it was removed", || !lines(&log).is_empty());
    fs::rename(&log, dir.join("log.3")).unwrap();
    running.signal(Signal::INT);
    running.end().ok();
    let moved = |n| fs::read_to_string(dir.join(format!("log.{n}"))).unwrap();
    for n in 1..=3 {
        assert!(moved(n).ends_with('\n'), "whole lines");
        assert_eq!(moved(n).lines().count(), lines(&dir.join(format!("log.{n}"))).len());
    }
}

/// Messages that came so far.
fn heard(socket: &UnixDatagram, so_far: &mut Vec<String>) {
    let mut buffer = [0; 4096];
    while let Ok(len) = socket.recv(&mut buffer) {
        so_far.push(String::from_utf8_lossy(&buffer[..len]).into_owned());
    }
}

fn what_the_service_manager_hears(socket: &UnixDatagram, name: &str) {
    socket.set_read_timeout(Some(Duration::from_millis(10))).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();
    let target = workload(dir);
    let mut command = apply(dir, &target, &[]);
    command.env("NOTIFY_SOCKET", name).env("WATCHDOG_USEC", "400000").env_remove("WATCHDOG_PID");
    let running = Running::start(command);
    let mut messages: Vec<String> = Vec::new();
    let mut until = |what: &str, so: &dyn Fn(&[String]) -> bool| {
        wait_until(what, || {
            heard(socket, &mut messages);
            so(&messages)
        });
        messages.clone()
    };
    let count = |messages: &[String], text: &str| messages.iter().filter(|m| m.starts_with(text)).count();
    let all = until("ready, alive, and how things stand", &|m| {
        count(m, "WATCHDOG=1") >= 3 && count(m, "STATUS=") >= 1
    });
    assert_eq!((all[0].as_str(), count(&all, "READY=1")), ("READY=1", 1), "{all:?}");
    let status = all.iter().find(|m| m.starts_with("STATUS=")).unwrap();
    assert!(status.contains("1 process"), "{status}");
    running.signal(Signal::HUP);
    let all = until("ready again", &|m| count(m, "READY=1") == 2);
    let reloading = all.iter().position(|m| m.starts_with("RELOADING=1\nMONOTONIC_USEC=")).unwrap();
    assert!(all[reloading + 1..].iter().any(|m| m == "READY=1"), "{all:?}");
    running.signal(Signal::TERM);
    let all = until("stopping", &|m| count(m, "STOPPING=1") == 1);
    assert_eq!(count(&all, "RELOADING=1"), 1, "{all:?}");
    assert_eq!(running.end().status.code(), Some(143));
}

#[test]
fn the_service_manager_hears_how_it_goes() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("notify");
    what_the_service_manager_hears(&UnixDatagram::bind(&path).unwrap(), path.to_str().unwrap());
    let name = format!("isotherm-test-{}", std::process::id());
    let address = SocketAddr::from_abstract_name(&name).unwrap();
    what_the_service_manager_hears(&UnixDatagram::bind_addr(&address).unwrap(), &format!("@{name}"));
}

#[test]
fn a_service_manager_that_is_gone_holds_up_nothing() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();
    let target = workload(dir);
    let mut command = apply(dir, &target, &["--duration", "500ms"]);
    command.env("NOTIFY_SOCKET", dir.join("nobody")).env("WATCHDOG_USEC", "1");
    Running::start(command).end().ok();
}
