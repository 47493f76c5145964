//! `isotherm record` on real processes.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{
    Done, Group, ISOTHERM, LONG_ENOUGH, Running, as_nobody, isotherm, pte_works, read, run, skip, snapshots,
    wait_for_snapshots, wait_until,
};
use isotherm_record::{Item, TargetInfo};
use isotherm_report::Accumulate;
use isotherm_report::colour::ColourMode;
use isotherm_report::heatmap::{Scale, TerminalOptions};
use isotherm_report::summary::{SummaryAnalysis, write_text};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::tempdir;

/// `isotherm record` with pipes, started.
fn start(dir: &Path, args: &[impl AsRef<OsStr>]) -> Running {
    let mut command = isotherm(dir, &["record"]);
    command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped());
    Running::start(command)
}

fn sleeper(seconds: &str) -> Running {
    let mut command = Command::new("sleep");
    command.arg(seconds);
    Running::start(command)
}

fn targets(items: &[Item]) -> Vec<&TargetInfo> {
    items.iter().filter_map(|i| if let Item::Target(t) = i { Some(t) } else { None }).collect()
}

/// Why each target and the recording ended.
fn ends(items: &[Item]) -> (Vec<&str>, Option<&str>) {
    let targets =
        items.iter().filter_map(|i| if let Item::TargetEnd(e) = i { Some(e.reason.as_str()) } else { None });
    let end = items.iter().find_map(|i| if let Item::End(e) = i { Some(e.reason.as_str()) } else { None });
    (targets.collect(), end)
}

/// The summary of a recording, in the words that `record` ends with where there is no terminal.
fn summary_of(path: &Path) -> String {
    let mut analysis = SummaryAnalysis::default();
    common::read(path).unwrap().iter().for_each(|item| analysis.item(item));
    let options = TerminalOptions { width: 100, lines: 12, mode: ColourMode::Plain, scale: Scale::Auto };
    let mut out = Vec::new();
    write_text(&analysis.finish(&options), &options, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

#[test]
fn a_workloads_hot_memory_is_where_the_record_says() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let workload = ["workload", "hotspot", "--set", "total=64M", "--set", "offset=32M", "--set", "spot=4M"];
    let mut command = isotherm(dir.path(), &["record", "--backend", "pte", "--", ISOTHERM]);
    let done: Done =
        command.args(workload).args(["--set", "phase=5s", "--truth", "truth"]).output().unwrap().into();
    for part in
        ["working set", "cost of monitoring", "of a CPU (ceiling 1 %)", "time (s)", "isotherm report heatmap"]
    {
        assert!(done.err.contains(part), "{part} in {}", done.err);
    }
    // What was summed up meanwhile is what the file says.
    let told = summary_of(&dir.path().join("isotherm.rec"));
    assert!(done.err.contains(&told), "{told}\n{}", done.err);
    assert_eq!(done.ok(), "", "standard output is the command's");
    let truth = fs::read_to_string(dir.path().join("truth")).unwrap();
    let area: serde_json::Value = truth
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .find(|line| line["kind"] == "area")
        .unwrap();
    let hot = area["start"].as_u64().unwrap() + (32 << 20);
    let hot = (hot, hot + (4 << 20));
    let report = run(dir.path(), &["report", "access", "--time", "2s..4s", "--json"]).json();
    let (mut inside, mut all) = (0.0, 0.0);
    for region in report["targets"].as_array().unwrap().iter().flat_map(|t| t["regions"].as_array().unwrap())
    {
        let (start, end) = (region["start"].as_u64().unwrap(), region["end"].as_u64().unwrap());
        // Null: unknown, which is no heat.
        let rate = region["rate_hz"].as_f64().unwrap_or(0.0);
        all += rate * (end - start) as f64;
        inside += rate * end.min(hot.1).saturating_sub(start.max(hot.0)) as f64;
    }
    assert!(inside > 0.8 * all, "{inside} of {all} is inside of {hot:x?}");
    let wss = run(dir.path(), &["report", "wss", "--time", "2s..4s", "--json"]).json();
    let median = wss["percentiles"].as_array().unwrap().iter().find(|p| p["percent"] == 50).unwrap();
    let median = median["value"].as_u64().unwrap();
    assert!((2 << 20..8 << 20).contains(&median), "working set {median}");
}

#[test]
fn the_commands_output_and_status_are_passed_on() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    for (script, code) in [
        (format!("echo hello; sleep {LONG_ENOUGH}"), 0),
        (format!("sleep {LONG_ENOUGH}; exit 3"), 3),
        (format!("sleep {LONG_ENOUGH}; kill -KILL $$"), 137),
        ("exit 4".to_owned(), 4),
    ] {
        if code == 4 {
            // Of which nothing is recorded, and so nothing replaced.
            fs::remove_file(dir.path().join("isotherm.rec")).unwrap();
        }
        let done = run(dir.path(), &["record", "--quiet", "--", "sh", "-c", &script]);
        assert_eq!(done.status.code(), Some(code), "{script}: {}", done.err);
        assert_eq!(done.out, if code == 0 { "hello\n" } else { "" });
        if code == 3 {
            let items = read(&dir.path().join("isotherm.rec")).unwrap();
            let (targets, _) = ends(&items);
            assert!(targets.contains(&"exited with status 3"), "{targets:?}");
        }
        if code != 4 {
            assert_eq!(done.err, "", "quiet");
        }
    }
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    // It may end before it can be observed: then there is no target whose end could be told.
    let (targets, reason) = ends(&items);
    assert!(targets.is_empty() || targets == ["exited with status 4"], "{targets:?}");
    assert_eq!(reason, Some("all targets ended"));
    let Some(Item::Header(header)) = items.first() else { panic!("no header") };
    assert_eq!(header.command, ["sh", "-c", "exit 4"]);
}

/// The monitor takes in, and waits for, what lost its parent; the command is waited for by whoever started it.
#[test]
fn a_commands_status_comes_through_beside_other_targets() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let other = sleeper("300");
    let pid = other.pid().to_string();
    for (script, code) in
        [("exit 5", 5), ("sleep 0.7; exit 6", 6), ("sleep 0.7", 0), ("(sleep 0.5 &) & exit 7", 7)]
    {
        let args = ["record", "--quiet", "--duration", "1500ms", "--pid", &pid, "--", "sh", "-c", script];
        let done = run(dir.path(), &args);
        assert_eq!(done.status.code(), Some(code), "{script}: {}", done.err);
        assert_eq!(done.err, "", "{script}");
        let items = read(&dir.path().join("isotherm.rec")).unwrap();
        assert_eq!(ends(&items).1, Some("duration reached"), "{script}");
        assert!(other.is_running());
    }
    let args = ["record", "--duration", "1500ms", "--pid", &pid, "--", "sh", "-c", "exit 8"];
    let done = run(dir.path(), &args);
    assert_eq!(done.status.code(), Some(8), "{}", done.err);
    assert!(
        done.err.contains("cost of monitoring") && done.err.contains("wrote isotherm.rec"),
        "{}",
        done.err
    );
}

#[test]
fn a_command_that_cannot_run_has_the_status_a_shell_gives() {
    let dir = tempdir().unwrap();
    run(dir.path(), &["record", "--", "no-such-program"]).fails(127, &["no-such-program", "check the name"]);
    run(dir.path(), &["record", "--", "./no-such"]).fails(127, &["./no-such"]);
    fs::write(dir.path().join("notes"), "no program").unwrap();
    run(dir.path(), &["record", "--", "./notes"]).fails(126, &["./notes", "execute bit"]);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1, "nothing is left behind");
}

#[test]
fn signals_end_a_recording_properly() {
    if !pte_works() {
        return;
    }
    // Ctrl-C is how one ends a recording that has no end of its own.
    for (signal, code) in [(Signal::INT, 0), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let dir = tempdir().unwrap();
        let file = dir.path().join("isotherm.rec");
        let target = sleeper("300");
        let monitor = start(dir.path(), &["--pid", &target.pid().to_string()]);
        wait_for_snapshots(&file, 3);
        monitor.signal(signal);
        let done = monitor.end();
        assert!(done.err.contains("cost of monitoring"), "{}", done.err);
        assert_eq!(done.status.code(), Some(code), "{}", done.err);
        let items = read(&file).unwrap();
        assert_eq!(ends(&items), (vec![], Some("interrupted")));
        assert!(matches!(items.last(), Some(Item::End(_))));
        assert!(target.is_running());
    }
}

impl Running {
    fn is_running(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid())).unwrap();
        !stat.contains(") Z ")
    }
}

#[test]
fn what_asks_the_monitor_to_end_reaches_the_command() {
    if !pte_works() {
        return;
    }
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
        let dir = tempdir().unwrap();
        let file = dir.path().join("isotherm.rec");
        let monitor = start(dir.path(), &["--", "sleep", "300"]);
        wait_for_snapshots(&file, 3);
        monitor.signal(signal);
        assert_eq!(monitor.end().status.code(), Some(code));
        assert_eq!(ends(&read(&file).unwrap()).1, Some("interrupted"));
    }
}

#[test]
fn a_second_ctrl_c_leaves_a_command_that_does_not_heed_the_first() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let file = dir.path().join("isotherm.rec");
    let script = "trap '' INT; sleep 1; while [ ! -e stop ]; do sleep 0.1; done; touch stopped";
    let told = dir.path().join("told");
    let mut command = isotherm(dir.path(), &["record", "--", "sh", "-c", script]);
    command.stderr(fs::File::create(&told).unwrap());
    let monitor = Running::start(command);
    wait_for_snapshots(&file, 3);
    monitor.signal(Signal::INT);
    wait_until("the recording's end", || ends(&read(&file).unwrap()).1 == Some("interrupted"));
    // It waits, as it should for one that is cleaning up.
    std::thread::sleep(std::time::Duration::from_millis(700));
    assert!(monitor.is_running());
    monitor.signal(Signal::INT);
    // Not its pipes: the command has them too.
    let mut monitor = monitor;
    let mut status = None;
    wait_until("the monitor's end", || {
        status = monitor.0.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(130));
    // The recording is complete, and where it is is told as ever.
    let told = fs::read_to_string(told).unwrap();
    for part in ["it runs on", "cost of monitoring", "wrote isotherm.rec"] {
        assert!(told.contains(part), "{part} in {told}");
    }
    assert!(!dir.path().join("stopped").exists());
    fs::write(dir.path().join("stop"), "").unwrap();
    wait_until("the command's own end", || dir.path().join("stopped").exists());
}

#[test]
fn the_command_is_waited_for_when_the_time_is_over() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let told = dir.path().join("told");
    let script = "while [ ! -e stop ]; do sleep 0.1; done; exit 9";
    let mut command = isotherm(dir.path(), &["record", "--duration", "300ms", "--", "sh", "-c", script]);
    command.stderr(fs::File::create(&told).unwrap());
    let monitor = Running::start(command);
    wait_until("word of the command", || {
        fs::read_to_string(&told).unwrap().contains("waiting for the command")
    });
    fs::write(dir.path().join("stop"), "").unwrap();
    assert_eq!(monitor.end().status.code(), Some(9));
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    assert_eq!(ends(&items).1, Some("duration reached"));
}

#[test]
fn the_death_of_the_target_ends_the_record_with_its_status() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "read line; exit 5"]).stdin(Stdio::piped());
    let mut target = Running::start(command);
    let monitor = start(dir.path(), &["--no-children", "--pid", &target.pid().to_string()]);
    wait_for_snapshots(&dir.path().join("isotherm.rec"), 4);
    drop(target.0.stdin.take());
    monitor.end().ok();
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    assert_eq!(ends(&items), (vec!["exited with status 5"], Some("all targets ended")));
    assert!(snapshots(&items) > 3);
}

#[test]
fn children_are_followed_unless_that_is_turned_off() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let family = ["--update", "100ms", "--", "sh", "-c", "sleep 3 & sh -c 'sleep 3; :' & wait"];
    run(dir.path(), &[&["record"], &family[..]].concat()).ok();
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    // Told again when it runs another program: the last word counts.
    let all: BTreeMap<u64, &TargetInfo> = targets(&items).into_iter().map(|t| (t.id, t)).collect();
    let mut comms: Vec<&str> = all.values().map(|t| t.comm.as_str()).collect();
    comms.sort_unstable();
    assert_eq!(comms, ["sh", "sh", "sleep", "sleep"]);
    assert_eq!(all.values().filter(|t| t.parent.is_none()).count(), 1);
    let head = run(dir.path(), &["report", "wss"]).ok();
    assert!(head.lines().next().is_some_and(|l| l.contains("and 3 more")), "{head}");
    run(dir.path(), &[&["record", "--no-children"], &family[..]].concat()).ok();
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    assert!(targets(&items).iter().all(|t| t.comm == "sh" && t.parent.is_none()));
}

/// What became of the processes that a recording should have observed.
fn processes(items: &[Item]) -> isotherm_record::Processes {
    let mut sum = isotherm_record::Processes { too_short: Some(0), ..Default::default() };
    for cost in items.iter().filter_map(|i| if let Item::Cost(cost) = i { cost.processes } else { None }) {
        sum.seen += cost.seen;
        sum.too_short = sum.too_short.zip(cost.too_short).map(|(a, b)| a + b);
        sum.unreached += cost.unreached;
        sum.waiting = cost.waiting;
    }
    sum
}

#[test]
fn children_too_short_to_be_seen_are_counted_to_the_last() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let script = "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done; sleep 1";
    let done = run(dir.path(), &["record", "--", "sh", "-c", script]);
    let told = done.err.clone();
    done.ok();
    let sum = processes(&read(&dir.path().join("isotherm.rec")).unwrap());
    // In a pid namespace they have other numbers, and how many there were is not known.
    let initial = fs::read_link("/proc/self/ns/pid").is_ok_and(|ns| ns.as_os_str() == "pid:[4026531836]");
    let Some(too_short) = sum.too_short else {
        assert!(!initial && told.contains("is not known with pte"), "{told}");
        return;
    };
    // The shell, its thousands and the last sleep.
    assert_eq!(sum.seen + too_short + sum.unreached + sum.waiting, 2002, "{sum:?}");
    assert!(too_short > 1000, "{sum:?}");
    let targets = if sum.seen == 1 { "was a target" } else { "were targets" };
    let line = format!("processes: {} {targets}, {too_short} more ended too soon to be", sum.seen);
    assert!(told.contains(&line), "{line} in {told}");
    let report = run(dir.path(), &["report", "wss"]).ok();
    assert!(report.contains(&line), "{line} in {report}");
}

#[test]
fn members_of_a_cgroup_come_and_go() {
    if !pte_works() {
        return;
    }
    let Some(group) = Group::new("members") else { return skip("no cgroup hierarchy lets a group be made") };
    let dir = tempdir().unwrap();
    let file = dir.path().join("isotherm.rec");
    let first = sleeper("300");
    group.add(first.pid());
    let monitor = start(
        dir.path(),
        &[OsStr::new("--update"), "50ms".as_ref(), "--cgroup".as_ref(), group.0.as_os_str()],
    );
    wait_for_snapshots(&file, 3);
    let second = sleeper("300");
    group.add(second.pid());
    let seen = |pid: u32| read(&file).is_some_and(|items| targets(&items).iter().any(|t| t.pid == pid));
    wait_until("the second member in the record", || seen(second.pid()));
    let (first_pid, second_pid) = (first.pid(), second.pid());
    drop(first);
    wait_until("the first member's end in the record", || {
        ends(&read(&file).unwrap()).0 == ["killed by signal 9 (SIGKILL)"]
    });
    monitor.signal(Signal::INT);
    monitor.end().ok();
    drop(second);
    let items = read(&file).unwrap();
    let pids: Vec<u32> = targets(&items).iter().map(|t| t.pid).collect();
    assert_eq!(pids, [first_pid, second_pid]);
}

#[test]
fn a_recording_streams_to_standard_output() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper("300");
    let pid = target.pid().to_string();
    let mut record = isotherm(dir.path(), &["record", "--duration", "1s", "-o", "-", "--pid", &pid]);
    let mut monitor = Running::start({
        record.stdout(Stdio::piped()).stderr(Stdio::null());
        record
    });
    let stream = monitor.0.stdout.take().unwrap();
    let report = isotherm(dir.path(), &["report", "raw", "-i", "-"]).stdin(stream).output().unwrap();
    let text = Done::from(report).ok();
    assert!(text.lines().filter(|l| !l.starts_with('#')).count() > 10, "{text}");
    assert!(text.contains("# end: duration reached"), "{text}");
    monitor.end().ok();
    run(dir.path(), &["record", "-o", "-", "--", "true"])
        .fails(2, &["standard output", "name a file with -o"]);
}

#[test]
fn the_recording_that_was_there_is_kept() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    run(dir.path(), &["record", "--", "sleep", LONG_ENOUGH]).ok();
    let first = fs::read(dir.path().join("isotherm.rec")).unwrap();
    let done = run(dir.path(), &["record", "--", "sleep", "2.1"]);
    assert!(done.err.contains("isotherm.rec.old"), "{}", done.err);
    done.ok();
    assert_eq!(fs::read(dir.path().join("isotherm.rec.old")).unwrap(), first);
    assert_ne!(fs::read(dir.path().join("isotherm.rec")).unwrap(), first);
}

#[test]
fn a_user_without_privileges_records_coarsely_and_is_told() {
    if !Path::new("/proc/self/clear_refs").exists() {
        return skip("the kernel lacks /proc/PID/clear_refs (CONFIG_PROC_PAGE_MONITOR)");
    }
    let dir = tempdir().unwrap();
    let Some(as_nobody) = as_nobody(dir.path()) else { return };
    let done = as_nobody(&["record", "--", "sleep", LONG_ENOUGH]);
    assert!(done.err.contains("using the backend refs") && done.err.contains("pte: "), "{}", done.err);
    assert!(done.err.contains("whole mappings only"), "{}", done.err);
    done.ok();
    let report = as_nobody(&["report", "wss"]).ok();
    assert!(report.contains("coarse"), "{report}");
    let own = std::process::id().to_string();
    as_nobody(&["record", "-o", "b.rec", "--pid", &own]).fails(1, &[&own, "not allowed", "as root"]);
    as_nobody(&["record", "-o", "/etc/b.rec", "--", "sleep", "1"]).fails(1, &["/etc/b.rec", "choose a path"]);
    as_nobody(&["record", "--backend", "pte", "--", "sleep", "1"]).fails(1, &["pte", "isotherm doctor"]);
}

#[test]
fn a_recording_goes_on_when_nobody_reads_its_messages() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let mut monitor = start(dir.path(), &["--", "sh", "-c", "sleep 1; exit 6"]);
    drop(monitor.0.stderr.take());
    assert_eq!(monitor.end().status.code(), Some(6));
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    assert_eq!(ends(&items).1, Some("all targets ended"));
}

#[test]
fn all_processes_of_the_machine_are_recorded_but_isotherm_itself() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let (file, target) = (dir.path().join("isotherm.rec"), sleeper("300"));
    let monitor = start(dir.path(), &["--all"]);
    let seen = |pid: u32| read(&file).is_some_and(|items| targets(&items).iter().any(|t| t.pid == pid));
    wait_until("a process that was there", || seen(target.pid()));
    let later = sleeper("300");
    wait_until("a process that came later", || seen(later.pid()));
    let own = monitor.pid();
    monitor.signal(Signal::INT);
    monitor.end().ok();
    let items = read(&file).unwrap();
    let pids: Vec<u32> = targets(&items).iter().map(|t| t.pid).collect();
    assert!(!pids.contains(&own) && !pids.contains(&2), "{pids:?}");
    assert!(pids.contains(&std::process::id()), "what started it is a process like any other");
    run(dir.path(), &["record", "--all", "--pid", "1"]).fails(2, &["--all", "--pid"]);
}

#[test]
fn intervals_that_tune_themselves_are_recorded() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper("300");
    let pid = target.pid().to_string();
    // A process asleep shows nothing, so that the intervals grow.
    let options =
        ["--auto-intervals=4%,1,1ms,40ms", "--sampler", "classic", "--duration", "3s", "--overhead", "0"];
    run(dir.path(), &[&["record", "--pid", &pid], &options[..]].concat()).ok();
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    let samples: Vec<u64> = items
        .iter()
        .filter_map(|i| if let Item::Attrs { attrs, .. } = i { Some(attrs.sample_us) } else { None })
        .collect();
    assert!(
        samples.last().is_some_and(|&last| last > 5000) && samples.iter().all(|&s| s <= 40_000),
        "{samples:?}"
    );
    run(dir.path(), &["record", "--auto-intervals=4%", "--pid", &pid]).fails(2, &["SHARE,AGGRS"]);
    run(dir.path(), &["record", "--auto-intervals", "--backend", "refs", "--pid", &pid])
        .fails(2, &["auto-intervals"]);
}
