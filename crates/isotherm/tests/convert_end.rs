//! A conversion that the user ends: at once, whatever it is at, and nothing of it is left.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Running, isotherm, wait_until};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{Format, Header, Item, create};
use rustix::process::Signal;
use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::tempdir;

/// A recording of which damo's JSON has a record that fits into a buffer, and one of many megabytes that is written when all
/// has been read: the last step of the conversion.
fn with_a_long_end(path: &Path) {
    let mut writer = create(path, Format::Rec).unwrap();
    writer.write(&Item::Header(Header::default())).unwrap();
    let region = |at: u64| RegionSnapshot {
        range: AddrRange::new(at * 4096, (at + 1) * 4096),
        age: (at % 7) as u32,
        ..RegionSnapshot::default()
    };
    for i in 0..200 {
        let target = |id, regions| TargetSnapshot::new(TargetId(id), (0..regions).map(region).collect());
        let snapshot = Snapshot {
            start_ns: i * 100_000_000,
            end_ns: (i + 1) * 100_000_000,
            sample_ns: 5_000_000,
            max_nr_accesses: 20,
            targets: vec![target(1, 1), target(2, 2000)],
        };
        writer.write_snapshot(&snapshot).unwrap();
    }
    writer.finish().unwrap();
}

fn convert(dir: &Path, to: &str) -> Running {
    let mut command = isotherm(dir, &["convert", "--to", "json", "long.rec", to]);
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    Running::start(command)
}

#[test]
fn ctrl_c_is_heard_while_what_reads_the_output_stands_still() {
    let dir = tempdir().unwrap();
    with_a_long_end(&dir.path().join("long.rec"));
    let pipe = dir.path().join("pipe");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for reads in [true, false] {
        // Both ends: nobody waits for the other one.
        let there = reads.then(|| File::options().read(true).write(true).open(&pipe).unwrap());
        let mut running = convert(dir.path(), "pipe");
        match &there {
            Some(pipe) => wait_until("a full pipe", || rustix::io::ioctl_fionread(pipe).unwrap() >= 60_000),
            // It waits for a reader.
            None => wait_until("its thread", || {
                let tasks = fs::read_dir(format!("/proc/{}/task", running.pid())).unwrap();
                tasks.count() > 1
            }),
        }
        running.signal(Signal::INT);
        wait_until("its end", || running.0.try_wait().unwrap().is_some());
        running.end().fails(130, &["interrupted; what pipe got is incomplete"]);
    }
}

#[test]
fn of_a_conversion_that_is_interrupted_in_its_last_step_nothing_is_left() {
    let dir = tempdir().unwrap();
    with_a_long_end(&dir.path().join("long.rec"));
    let left = || {
        let names = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name != "long.rec").collect::<Vec<_>>()
    };
    // It may be through before the signal comes.
    let interrupted = (0..20).any(|_| {
        let _ = fs::remove_file(dir.path().join("out.json"));
        let mut running = convert(dir.path(), "out.json");
        // What it writes has no name yet.
        let fds = format!("/proc/{}/fd", running.pid());
        let is_output = |fd: &Path| {
            let leads_to = fs::read_link(fd).unwrap_or_default();
            let here = leads_to.starts_with(dir.path()) && !leads_to.ends_with("long.rec");
            here && fd.metadata().is_ok_and(|m| m.len() > 0)
        };
        let begun = || {
            let open = fs::read_dir(&fds).into_iter().flatten().flatten();
            open.map(|fd| fd.path()).any(|fd| is_output(&fd)) || dir.path().join("out.json").exists()
        };
        wait_until("the last step", begun);
        running.signal(Signal::INT);
        wait_until("its end", || running.0.try_wait().unwrap().is_some());
        let done = running.end();
        let interrupted = done.status.code() == Some(130);
        match interrupted {
            true => assert!(left().is_empty() && done.err.contains("interrupted"), "{:?} {done:?}", left()),
            false => {
                assert_eq!((done.status.code(), left()), (Some(0), vec!["out.json".to_owned()]), "{done:?}")
            }
        }
        interrupted
    });
    assert!(interrupted, "twenty times too late");
}
