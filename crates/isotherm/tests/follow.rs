//! Recordings that go on: lines of summaries, series of files, and several files read as one.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{
    Group, ISOTHERM, Running, isotherm, pte_works, read, run, skip, sleeper, snapshots, wait_until,
};
use isotherm_record::Item;
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::tempdir;

/// The files of the series `isotherm-*.rec`, in order of time.
fn series(dir: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| {
            let name = path.file_name().unwrap().to_str().unwrap();
            name.starts_with("isotherm-") && name.ends_with(".rec")
        })
        .collect();
    files.sort();
    files
}

#[test]
fn a_line_an_interval_tells_how_things_stand() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let workload = ["workload", "hotspot", "--set", "total=64M", "--set", "spot=4M", "--set", "phase=60s"];
    let mut command = Command::new(ISOTHERM);
    command.args(workload).args(["--truth", "/dev/null"]).current_dir(dir.path());
    let target = Running::start(command);
    let pid = target.pid();
    let mut record = isotherm(
        dir.path(),
        &["record", "--follow=500ms", "--quiet", "-o", "x.rec", "--pid", &pid.to_string()],
    );
    let mut monitor = Running::start({
        record.stdout(Stdio::piped()).stderr(Stdio::piped());
        record
    });
    let mut lines = BufReader::new(monitor.0.stdout.take().unwrap()).lines();
    let mut next = || -> Value { serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap() };
    let first = next();
    let time = first["time"].as_str().unwrap();
    assert!(time.len() == 24 && time.starts_with("20") && time.ends_with('Z'), "{time}");
    let process =
        |line: &Value| line["processes"].as_array().unwrap().iter().find(|p| p["pid"] == pid).cloned();
    // It takes a moment until all of it is known.
    let mut line = first;
    let known = |line: &Value| {
        let process = process(line)?;
        let mapped = process["mapped"].as_u64()?;
        let working = process["ws_1s"].as_u64()?;
        (mapped > 60 << 20 && working > 3 << 20 && process["hot"].as_u64()? > 0).then_some(())
    };
    let mut elapsed = 0.0;
    for _ in 0..200 {
        let before = std::mem::replace(&mut elapsed, line["elapsed_s"].as_f64().unwrap());
        assert!(elapsed > before, "{line}");
        if known(&line).is_some() {
            break;
        }
        line = next();
    }
    assert!(known(&line).is_some(), "{line}");
    assert!(line["totals"]["ws_1s"].as_u64().unwrap() > 3 << 20, "{line}");
    for key in ["resident", "cold_10s", "unknown"] {
        assert!(line["totals"].get(key).is_some(), "{key} in {line}");
    }
    // Costs are told once a second, the lines twice, and at a machine's leisure.
    for _ in 0..200 {
        if line["cost"]["cpu_share"].is_number() {
            break;
        }
        assert!(line["cost"].is_null(), "what was not told is no cost of nothing: {line}");
        line = next();
    }
    assert!(line["cost"]["cpu_share"].as_f64().is_some_and(|share| share > 0.0), "{line}");
    assert!(line["seen"].as_u64() == Some(1) && line.get("too_short").is_some(), "{line}");
    monitor.signal(Signal::INT);
    // Its last lines are read by nobody: that keeps it no longer than it should.
    assert!(monitor.end().status.success());
    assert!(snapshots(&read(&dir.path().join("x.rec")).unwrap()) > 0, "and it was recorded");
}

#[test]
fn who_reads_the_lines_may_go_or_stand_still() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    let mut record = isotherm(dir.path(), &["record", "--follow=100ms", "--pid", &pid]);
    let mut monitor = Running::start({
        record.stdout(Stdio::piped()).stderr(Stdio::piped());
        record
    });
    let mut line = [0; 10];
    monitor.0.stdout.take().unwrap().read_exact(&mut line).unwrap();
    // That was the reader. The recording ends, as it should.
    let done = monitor.end();
    assert!(done.status.success(), "{}", done.err);
    let items = read(&dir.path().join("isotherm.rec")).unwrap();
    assert!(
        matches!(items.last(), Some(Item::End(end)) if end.reason.contains("nobody reads")),
        "{:?}",
        items.last()
    );

    // A reader that never reads: lines are lost, which is told; not the recording, and Ctrl-C ends it.
    let options = ["--sample", "1ms", "--aggr", "5ms", "--follow=5ms", "-o", "stuck.rec"];
    let mut record = isotherm(dir.path(), &[&["record", "--pid", &pid], &options[..]].concat());
    let mut monitor = Running::start({
        record.stdout(Stdio::piped()).stderr(Stdio::piped());
        record
    });
    let unread = monitor.0.stdout.take().unwrap();
    let file = dir.path().join("stuck.rec");
    // More than a pipe holds.
    wait_until("many snapshots", || file.exists() && read(&file).is_some_and(|i| snapshots(&i) > 600));
    monitor.signal(Signal::INT);
    let done = monitor.end();
    assert_eq!(done.status.code(), Some(1));
    assert!(done.err.contains("nobody read them"), "{}", done.err);
    drop(unread);
    assert!(matches!(read(&file).unwrap().last(), Some(Item::End(end)) if end.reason == "interrupted"));
}

#[test]
fn a_series_is_complete_file_by_file_and_one_recording_together() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    let mut record = isotherm(dir.path(), &["record", "--every", "1s", "--pid", &pid]);
    let mut monitor = Running::start({
        record.stdout(Stdio::null()).stderr(Stdio::piped());
        record
    });
    wait_until("four files", || series(dir.path()).len() >= 4);
    // Closed ones are whole while it goes on.
    let closed = read(&series(dir.path())[0]).unwrap();
    assert!(matches!(closed.last(), Some(Item::End(end)) if end.reason.contains("goes on")));
    monitor.signal(Signal::INT);
    let mut told = String::new();
    monitor.0.stderr.take().unwrap().read_to_string(&mut told).unwrap();
    assert!(monitor.0.wait().unwrap().success(), "{told}");
    let files = series(dir.path());
    assert!(told.contains(&format!("wrote {} files, isotherm-20", files.len())), "{told}");
    // The summary is one of all of them, and stands above.
    let (summary, _) = told.split_once("isotherm: wrote ").unwrap();
    let snapshots: usize = files.iter().map(|file| snapshots(&read(file).unwrap())).sum();
    assert!(summary.contains(&format!(" in {snapshots} snapshots, ")), "{told}");
    assert!(summary.contains("-working set--") && summary.contains("total at "), "{told}");
    assert!(!dir.path().join("isotherm.rec").exists());
    let (mut sum, mut last) = (0, 0);
    let mut runs = BTreeSet::new();
    for (part, file) in files.iter().enumerate() {
        let items = read(file).unwrap();
        let Item::Header(header) = &items[0] else { panic!("{file:?}") };
        runs.insert((header.boot.clone(), header.run.clone()));
        // It is named after the time that it begins at, to the second.
        let clock = file.file_stem().unwrap().to_str().unwrap().split('T').nth(1).unwrap();
        let clock: u64 = clock.get(..6).unwrap().parse().unwrap();
        let second = header.started_unix_ns / 1_000_000_000 % 86_400;
        assert_eq!(clock, second / 3600 * 10_000 + second / 60 % 60 * 100 + second % 60, "{file:?}");
        assert!(
            header.part == part as u64 && !header.boot.is_empty() && !header.run.is_empty(),
            "{header:?}"
        );
        let started = |item: &Item| matches!(item, Item::Target(t) if t.started_ticks > 0);
        assert!(items.iter().any(started), "when the process was started");
        assert!(
            matches!(&items[0], Item::Header(header) if header.started_unix_ns > 0 && !header.host.is_empty())
        );
        // All that is known of the target is in each of them, and its regions from the first snapshot on.
        assert!(
            items
                .iter()
                .any(|item| matches!(item, Item::Target(t) if t.comm == "sleep" && !t.cmdline.is_empty()))
        );
        assert!(items.iter().any(|item| matches!(item, Item::Mappings(m) if m.maps.len() > 5)), "{file:?}");
        let mut all =
            items.iter().filter_map(|item| if let Item::Snapshot(s) = item { Some(s) } else { None });
        let first = all.next().unwrap();
        assert!(first.nr_regions() > 0 && first.start_ns >= last, "{file:?}");
        last = first.start_ns;
        sum += 1 + all.count();
        run(dir.path(), &["report", "wss", "-i", file.to_str().unwrap()]).ok();
    }
    assert_eq!(runs.len(), 1, "{runs:?}");
    // Nothing between two files is lost, and all of them are one recording, in whatever order.
    let names: Vec<&str> = files.iter().rev().map(|file| file.to_str().unwrap()).collect();
    for input in [names, vec!["."]] {
        let args = [&["report", "wss", "--json", "-i"][..], &input].concat();
        let report = run(dir.path(), &args).json();
        assert_eq!(report["provenance"]["snapshots"].as_u64(), Some(sum as u64), "{args:?}");
        assert_eq!(report["provenance"]["nr_targets"].as_u64(), Some(1));
        assert_eq!(report["provenance"]["end"], "interrupted");
        assert!(report["provenance"]["truncated"].is_null(), "{}", report["provenance"]);
    }
    let first = files[0].to_str().unwrap();
    run(dir.path(), &["report", "wss", "-i", first, "-i", "-"]).fails(2, &["alone"]);
    run(dir.path(), &["report", "wss", "-i", first, first]).fails(1, &["the same part of its run"]);
}

#[test]
fn each_file_of_a_series_says_what_it_could_not_see_and_so_do_all_together() {
    let dir = tempdir().unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    // Whoever runs this, and on whatever machine: this backend sees whole mappings only, and says so.
    let args = ["record", "--quiet", "--backend", "refs", "--every", "1s", "--pid", &pid];
    let mut monitor = Running::start(isotherm(dir.path(), &args));
    wait_until("three files", || series(dir.path()).len() >= 3);
    // The last file has no end then.
    monitor.0.kill().unwrap();
    monitor.0.wait().unwrap();
    let files = series(dir.path());
    let spots = |input: &[&str]| {
        let report = run(dir.path(), &[&["report", "wss", "--json", "-i"], input].concat()).json();
        let spots = report["provenance"]["backend"]["blind_spots"].as_array().unwrap().clone();
        spots.into_iter().map(|spot| spot.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let names: Vec<&str> = files.iter().map(|file| file.to_str().unwrap()).collect();
    for input in [&names[..1], &names[1..2], &names[2..3], &names] {
        let spots = spots(input);
        let coarse = spots.iter().filter(|spot| spot.contains("whole mappings only")).count();
        assert_eq!(coarse, 1, "{input:?}: {spots:?}");
        let how_often = spots.iter().filter(|spot| spot.contains("accesses were counted over")).count();
        assert!(how_often <= 1, "figures of a run are its last: {spots:?}");
    }
}

#[test]
fn of_a_series_so_much_is_kept_and_a_killed_recorder_leaves_it_readable() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    // Of a former recording, and of somebody else.
    fs::copy(
        common::made_up(dir.path(), "old.rec", isotherm_record::Format::Rec),
        dir.path().join("isotherm-20200101T000000Z.rec"),
    )
    .unwrap();
    fs::write(dir.path().join("isotherm-20200102T000000Z.rec"), "diary").unwrap();
    let mut monitor = Running::start(isotherm(
        dir.path(),
        &["record", "--quiet", "--every", "1s", "--keep", "2", "--pid", &pid],
    ));
    let first = || series(dir.path()).into_iter().find(|path| !path.to_str().unwrap().contains("-2020"));
    wait_until("a file", || first().is_some());
    let oldest = first().unwrap();
    wait_until("its end", || !oldest.exists());
    let own = || series(dir.path()).iter().filter(|path| !path.to_str().unwrap().contains("-2020")).count();
    wait_until("two of them", || own() == 2);
    monitor.0.kill().unwrap();
    monitor.0.wait().unwrap();
    let files = series(dir.path());
    let names: Vec<&str> = files.iter().map(|file| file.file_name().unwrap().to_str().unwrap()).collect();
    assert!(names.contains(&"isotherm-20200102T000000Z.rec"), "no recording: {names:?}");
    assert!(!names.contains(&"isotherm-20200101T000000Z.rec"), "{names:?}");
    let own: Vec<&PathBuf> = files.iter().filter(|path| !path.to_str().unwrap().contains("-2020")).collect();
    // It may have been killed between the name of a new one and the end of an old one.
    assert!(matches!(own.len(), 2 | 3), "{names:?}");
    for file in own {
        assert!(snapshots(&read(file).unwrap()) > 0);
    }
}

#[test]
fn what_cannot_go_together_is_told() {
    let dir = tempdir().unwrap();
    let record = |args: &[&str]| run(dir.path(), &[&["record"], args].concat());
    record(&["--follow", "--", "true"]).fails(2, &["--follow", "standard output", "--pid"]);
    record(&["--follow", "-o", "-", "--pid", "1"]).fails(2, &["--follow", "name a file"]);
    record(&["--follow=1ms", "--pid", "1"]).fails(2, &["--follow", "100 ms"]);
    record(&["--every", "1ms", "--pid", "1"]).fails(2, &["--every", "1 s"]);
    record(&["--every", "1s", "-o", "-", "--pid", "1"]).fails(2, &["--every", "name them"]);
    record(&["--every", "1s", "-o", "/dev/null", "--pid", "1"]).fails(2, &["--every", "name them"]);
    record(&["--every", "1s", "--keep", "0", "--pid", "1"]).fails(2, &["--keep", "1G"]);
    assert!(fs::read_dir(dir.path()).unwrap().next().is_none());
}

#[test]
fn lines_that_cannot_be_written_are_told_and_the_recording_is_complete() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    let args = ["record", "--follow=100ms", "--quiet", "--duration", "1s", "-o", "x.rec", "--pid", &pid];
    let mut command = isotherm(dir.path(), &args);
    command.stdout(fs::OpenOptions::new().write(true).open("/dev/full").unwrap());
    let done = command.output().unwrap();
    let told = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(1), "{told}");
    assert!(told.contains("--follow") && told.contains("No space left"), "{told}");
    let items = read(&dir.path().join("x.rec")).unwrap();
    let end = items.iter().find_map(|item| if let Item::End(end) = item { Some(&end.reason) } else { None });
    assert_eq!(end.map(String::as_str), Some("duration reached"));
    assert!(snapshots(&items) > 5);
}

#[test]
fn what_happens_before_the_first_file_has_anything_is_in_it() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let Some(group) = Group::new("series") else { return skip("no cgroup hierarchy lets a group be made") };
    let args =
        ["record", "--every", "1s", "--quiet", "-o", "isotherm.rec", "--cgroup", group.0.to_str().unwrap()];
    let monitor = Running::start(isotherm(dir.path(), &args));
    // Files whose time is over before there is anything in them.
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert!(series(dir.path()).is_empty());
    let target = sleeper();
    group.add(target.pid());
    wait_until("two files", || series(dir.path()).len() >= 2);
    monitor.signal(Signal::INT);
    monitor.end().ok();
    let parts: Vec<u64> = series(dir.path())
        .iter()
        .map(|file| match &read(file).unwrap()[0] {
            Item::Header(header) => header.part,
            item => panic!("{item:?}"),
        })
        .collect();
    let counted: Vec<u64> = (0..parts.len() as u64).collect();
    assert_eq!(parts, counted, "no number is missing");
    let first = read(&series(dir.path())[0]).unwrap();
    let costs = first.iter().filter(|item| matches!(item, Item::Cost(_))).count();
    assert!(costs >= 2, "what watching nothing cost is not lost: {costs}");
}
