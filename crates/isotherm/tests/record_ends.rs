//! When a recording ends, and what is said of it then.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::*;
use isotherm_record::{Item, Processes};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use tempfile::tempdir;

/// Of a crowd most are not taken in before they end: nobody waits for their turn then.
#[test]
fn a_recording_ends_with_the_last_process_also_of_a_crowd_that_nobody_looked_at() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let script = "i=0; while [ $i -lt 300 ]; do sleep 3 & i=$((i+1)); done; wait";
    run(dir.path(), &["record", "-q", "--", "sh", "-c", script]).ok();
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    let last = items.iter().rposition(|item| matches!(item, Item::TargetEnd(_))).unwrap();
    let tail = items[last..].iter().filter(|item| matches!(item, Item::Snapshot(_))).count();
    assert!(tail < 10, "{tail} snapshots of nothing after the end of the last process");
    let mut sum = Processes { too_short: Some(0), ..Processes::default() };
    for met in items.iter().filter_map(|i| if let Item::Cost(cost) = i { cost.processes } else { None }) {
        sum.seen += met.seen;
        sum.unreached += met.unreached;
        sum.too_short = sum.too_short.zip(met.too_short).map(|(a, b)| a + b);
        sum.waiting = met.waiting;
    }
    let Some(too_short) = sum.too_short else { return skip("processes cannot be counted here") };
    assert_eq!((sum.seen + sum.unreached + too_short, sum.waiting), (301, 0), "{sum:?}");
    if sum.unreached > 0 {
        let wss = run(dir.path(), &["report", "wss"]).ok();
        let told = format!("{} more ended while they waited for it", sum.unreached);
        assert!(wss.contains(&told) && wss.contains("a higher --overhead"), "{wss}");
    }
    // What they did last is what `access` shows, not that they were gone.
    assert!(!run(dir.path(), &["report", "access"]).ok().contains("total 0 B"));
}

#[test]
fn a_recording_is_as_long_as_was_asked() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    let of = |options: &[&str]| {
        run(dir.path(), &[&["record", "-q", "--overhead", "0", "--pid", &pid][..], options].concat()).ok();
        snapshots(&read(&dir.path().join("isotherm.rec")).unwrap())
    };
    // One aggregation: before, it was never over when the time was.
    assert!(of(&["-d", "100ms"]) >= 1);
    let ten = of(&["-d", "1s"]);
    assert!((9..=10).contains(&ten), "{ten}: 10, but one where looks came late");
    // Two would be longer than was asked.
    assert_eq!(of(&["-d", "1700ms", "--aggr", "1s", "--sample", "50ms"]), 1);
}

#[test]
fn why_nothing_is_recorded_any_more_is_said_while_the_command_runs() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let told = dir.path().join("told");
    let mut command = isotherm(dir.path(), &["record", "-o", "/dev/full", "--", "sleep", "300"]);
    command.stderr(File::create(&told).unwrap()).process_group(0);
    let mut running = Running::start(command);
    wait_until("the error", || fs::read_to_string(&told).unwrap().contains("No space left"));
    assert!(running.0.try_wait().unwrap().is_none(), "the command is still waited for");
    wait_until("what is waited for", || {
        fs::read_to_string(&told).unwrap().contains("nothing is recorded any more; waiting for the command")
    });
    running.signal(Signal::TERM);
    let done = running.end();
    assert_eq!(done.status.code(), Some(143), "{done:?}");
    let said = fs::read_to_string(&told).unwrap();
    assert_eq!(said.matches("No space left").count(), 1, "{said}");
}

/// Programs give back what they hold before they end, and what they held is what people ask for.
#[test]
fn what_a_program_held_is_told_as_it_was_before_it_gave_it_back() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let program = r#"my $x; vec($x, 64 << 20, 8) = 1; select(undef, undef, undef, 2); undef $x; select(undef, undef, undef, 0.4)"#;
    let record = run(dir.path(), &["record", "--overhead", "0", "--", "perl", "-e", program]);
    assert_eq!(record.status.code(), Some(0), "{record:?}");
    assert!(record.err.contains("then it gave up memory, and ended with"), "{}", record.err);
    let least = 64 << 20;
    let summary = run(dir.path(), &["report", "summary", "--json"]).json();
    let held = &summary["processes"][0]["figures"]["resident"];
    assert!(held.as_u64().unwrap() >= least, "{summary}");
    assert_eq!(summary["totals"]["resident"], *held);
    let left = summary["gave_up"][0]["left"].as_f64().unwrap();
    assert!((0.01..0.5).contains(&left), "{left}");
    let access = run(dir.path(), &["report", "access", "--json"]).json();
    assert!(access["totals"]["resident"].as_u64().unwrap() >= least, "{access}");
    assert_eq!(access["gave_up"], summary["gave_up"]);
    // Whoever asks for the end sees it.
    let last = summary["gave_up"][0]["time_ns"].as_u64().unwrap() - summary["origin_ns"].as_u64().unwrap();
    let after = format!("{}ms", last / 1_000_000 + 250);
    let after = run(dir.path(), &["report", "access", "--json", "--time", &after]).json();
    assert!(after["totals"]["resident"].as_u64().unwrap() < least / 2, "{after}");
}

/// A shell that waited for it has little, and ends with it: the moment that is shown is one in which both were whole.
#[test]
fn what_a_program_below_another_held_is_told_too() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let program = r#"perl -e 'my $x; vec($x, 64 << 20, 8) = 1; select(undef, undef, undef, 2); undef $x;
        select(undef, undef, undef, 0.4)'; :"#;
    let record = run(dir.path(), &["record", "--overhead", "0", "--", "sh", "-c", program]);
    assert_eq!(record.status.code(), Some(0), "{record:?}");
    let least = 64 << 20;
    let access = run(dir.path(), &["report", "access", "--json"]).json();
    assert!(access["totals"]["resident"].as_u64().unwrap() >= least, "{access}");
    assert_eq!(access["targets"].as_array().unwrap().len(), 2);
    assert!(run(dir.path(), &["report", "access"]).ok().contains("then it gave up memory"));
    // Its line is as of then, and so are the figures called so: at the end there is the shell alone.
    let summary = run(dir.path(), &["report", "summary", "--json"]).json();
    let of = |name: &str| {
        let processes = summary["processes"].as_array().unwrap();
        processes.iter().find(|process| process["name"] == name).unwrap().clone()
    };
    assert!(of("perl")["figures"]["resident"].as_u64().unwrap() >= least, "{summary}");
    assert!(of("perl")["ended"].is_string() && of("sh")["ended"].is_null(), "{summary}");
    assert!(summary["totals"]["resident"].as_u64().unwrap() < least / 2, "{summary}");
    assert!(summary["highest"]["figures"]["resident"].as_u64().unwrap() >= least, "{summary}");
}

/// It is another program's memory that is gone.
#[test]
fn a_program_that_executes_another_gives_up_nothing() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let program = r#"my $x; vec($x, 64 << 20, 8) = 1; select(undef, undef, undef, 1); exec "sleep", "1""#;
    let record = run(dir.path(), &["record", "--overhead", "0", "--", "perl", "-e", program]);
    assert!(!record.err.contains("gave up memory"), "{}", record.err);
    let summary = run(dir.path(), &["report", "summary", "--json"]).json();
    assert_eq!(summary["processes"][0]["name"], "sleep");
    assert!(summary["totals"]["resident"].as_u64().unwrap() < 32 << 20, "{summary}");
}
