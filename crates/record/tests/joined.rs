//! Several files read as one recording: which process is which, what comes after what.
#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml allows it in the tests only

use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{
    Backend, End, Error, Format, Header, Item, ReadOptions, TargetEnd, TargetInfo, Warning, create,
    open_joined,
};
use std::path::{Path, PathBuf};

const SECOND: u64 = 1_000_000_000;

/// A file of two seconds.
struct File<'a> {
    boot: &'a str,
    run: &'a str,
    part: u64,
    unix_s: u64,
    mono_s: u64,
    /// Id, pid, and when it was started.
    targets: &'a [(u64, u32, u64)],
}

fn write(dir: &Path, name: &str, file: &File<'_>) -> PathBuf {
    let path = dir.join(name);
    let mut writer = create(&path, Format::Rec).unwrap();
    let began = file.mono_s * SECOND;
    let header = Header {
        boot: file.boot.to_owned(),
        run: file.run.to_owned(),
        part: file.part,
        started_unix_ns: file.unix_s * SECOND,
        started_ns: began,
        ..Header::default()
    };
    writer.write(&Item::Header(header)).unwrap();
    for &(id, pid, started_ticks) in file.targets {
        // A child of the first.
        let parent = (id != file.targets[0].0).then_some(file.targets[0].0);
        let info = TargetInfo { id, pid, parent, started_ticks, time_ns: began, ..TargetInfo::default() };
        writer.write(&Item::Target(info)).unwrap();
    }
    for second in 0..2 {
        let region = RegionSnapshot { range: AddrRange::new(4096, 8192), ..RegionSnapshot::default() };
        let target = |&(id, ..): &(u64, u32, u64)| TargetSnapshot::new(TargetId(id), vec![region]);
        let snapshot = Snapshot {
            start_ns: began + second * SECOND,
            end_ns: began + (second + 1) * SECOND,
            targets: file.targets.iter().map(target).collect(),
            ..Snapshot::default()
        };
        writer.write(&Item::Snapshot(snapshot)).unwrap();
    }
    writer.finish().unwrap();
    path
}

/// What is read: start, seconds, and targets of each snapshot; pid and id of each target as it is told; what is remarked.
#[derive(Debug, Default)]
struct Read {
    snapshots: Vec<(u64, Vec<u64>)>,
    targets: Vec<(u32, u64, Option<u64>)>,
    remarks: Vec<String>,
}

impl Read {
    fn starts(&self) -> Vec<u64> {
        self.snapshots.iter().map(|(start, _)| *start).collect()
    }
}

fn read(paths: &[PathBuf]) -> Result<Read, Error> {
    let mut reader = open_joined(paths, &ReadOptions::default())?;
    let mut read = Read::default();
    while let Some(item) = reader.next_ref()? {
        match item {
            Item::Snapshot(s) => {
                let ids = s.targets.iter().map(|t| t.id.0).collect();
                read.snapshots.push((s.start_ns / SECOND, ids));
            }
            Item::Target(t) => read.targets.push((t.pid, t.id, t.parent)),
            _ => {}
        }
    }
    // None of the files has an end.
    let remarks = reader.warnings().iter().filter(|w| !matches!(w, Warning::Unfinished { .. }));
    read.remarks = remarks.map(Warning::to_string).collect();
    Ok(read)
}

#[test]
fn files_of_a_boot_are_read_by_its_clock_whatever_was_done_to_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, part, mono_s, unix_s| {
        let targets = &[(7, 7, 100)];
        write(dir.path(), name, &File { boot: "b", run: "r", part, unix_s, mono_s, targets })
    };
    // The clock was set back by an hour, and forward by a day.
    let paths = [file("c", 2, 24, 90_000), file("b", 1, 22, 1_400), file("a", 0, 20, 5_000)];
    let read = read(&paths).unwrap();
    assert_eq!(read.starts(), [20, 21, 22, 23, 24, 25]);
    assert!(read.snapshots.iter().all(|(_, ids)| ids == &[7]) && read.remarks.is_empty(), "{read:?}");
}

#[test]
fn a_process_has_one_id_in_all_files_and_no_other_process_has_it() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, part, mono_s, targets: &[(u64, u32, u64)]| {
        let unix_s = 1000 + mono_s;
        write(dir.path(), name, &File { boot: "b", run: name, part, unix_s, mono_s, targets })
    };
    let paths = [
        file("a", 0, 20, &[(7, 7, 100), (9, 9, 150)]),
        // The pid came back as another process, whose child has no name that was another's.
        file("b", 0, 22, &[(7, 7, 2100), (8, 8, 2150)]),
        // Both are gone, and 9 is another by now.
        file("c", 0, 24, &[(9, 9, 2400)]),
        // What was renamed in b is the same here, under the id that another run of the recorder gave it.
        file("d", 0, 26, &[(30, 7, 2100), (8, 8, 2150), (9, 9, 2400)]),
    ];
    let read = read(&paths).unwrap();
    let ids: Vec<&[u64]> = read.snapshots.iter().step_by(2).map(|(_, ids)| &ids[..]).collect();
    let (renamed, other) = (ids[1][0], ids[2][0]);
    assert_eq!(ids, [&[7, 9][..], &[renamed, 8], &[other], &[renamed, 8, other]]);
    assert!(renamed > 1 << 40 && other > 1 << 40 && renamed != other, "{ids:?}");
    assert_eq!(read.targets[3], (8, 8, Some(renamed)), "parents are those of the recording");
    assert_eq!(read.remarks, ["the files are of 4 runs of the recorder, read one after the other"]);
}

#[test]
fn commands_are_compared_whole_and_shown_short_in_quotes() {
    let dir = tempfile::tempdir().unwrap();
    let remark = |commands: &[&[&str]]| {
        let file = |(at, command): (usize, &&[&str])| {
            let path = dir.path().join(format!("{at}.rec"));
            let mut writer = create(&path, Format::Rec).unwrap();
            let command = command.iter().map(|word| (*word).to_owned()).collect();
            let (run, started_ns) = (at.to_string(), (at as u64 + 1) * 1_000_000_000);
            let header = Header { boot: "b".to_owned(), run, command, started_ns, ..Header::default() };
            writer.write(&Item::Header(header)).unwrap();
            writer.finish().unwrap();
            path
        };
        let paths: Vec<_> = commands.iter().enumerate().map(file).collect();
        read(&paths).unwrap().remarks.join("\n")
    };
    let long = "x".repeat(70);
    assert!(!remark(&[&["server", &long, "a"], &["server", &long, "a"]]).contains("different"));
    let told = remark(&[&["server", &long, "a"], &["server", &long, "b"]]);
    let shown = format!("`server {}...`", "x".repeat(53));
    assert!(told.contains(&format!("different commands ({shown}, {shown}), so")), "{told}");
    let told = remark(&[&["sh", "-c", "a; b"], &[], &["c"], &["d"]]);
    assert!(told.contains("(processes that ran already, `c`, `d`, others)"), "{told}");
}

#[test]
fn a_process_that_ended_is_another_than_the_one_that_has_its_pid() {
    let dir = tempfile::tempdir().unwrap();
    let header = |part, mono_s: u64| Header {
        boot: "b".to_owned(),
        run: "r".to_owned(),
        part,
        started_ns: mono_s * SECOND,
        started_unix_ns: (1000 + mono_s) * SECOND,
        ..Header::default()
    };
    let paths: Vec<PathBuf> = (0..2)
        .map(|part| {
            let path = dir.path().join(part.to_string());
            let mut writer = create(&path, Format::Rec).unwrap();
            writer.write(&Item::Header(header(part, 10 + part))).unwrap();
            let info = TargetInfo { id: 7, pid: 7, started_ticks: 100 + part, ..TargetInfo::default() };
            writer.write(&Item::Target(info)).unwrap();
            writer.write(&Item::TargetEnd(TargetEnd { target: 7, ..TargetEnd::default() })).unwrap();
            writer.finish().unwrap();
            path
        })
        .collect();
    let read = read(&paths).unwrap();
    assert_ne!(read.targets[0].1, read.targets[1].1, "{read:?}");
}

#[test]
fn of_two_boots_the_later_follows_wherever_its_clock_stood() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, boot, mono_s, unix_s| {
        let targets = &[(7, 7, 100)];
        write(dir.path(), name, &File { boot, run: name, part: 0, unix_s, mono_s, targets })
    };
    let (first, second) = (file("a", "x", 500, 1000), file("b", "y", 3, 1100));
    let apart = read(&[second, first.clone()]).unwrap();
    assert_eq!(apart.starts(), [500, 501, 600, 601]);
    let ids: Vec<u64> = apart.targets.iter().map(|(_, id, _)| *id).collect();
    assert!(ids[0] == 7 && ids[1] != 7, "no process outlives the boot: {ids:?}");
    // Both clocks say that the boots differ by less than the ten seconds that two clocks may.
    let quick = file("c", "z", 502, 1003);
    assert_eq!(read(&[first.clone(), quick]).unwrap().starts(), [500, 501, 503, 504]);
    // By the wall clock it began while the other was running.
    let early = file("d", "y", 3, 1001);
    let early = read(&[first, early]).unwrap();
    assert_eq!(early.starts(), [500, 501, 502, 503]);
    assert!(early.remarks.iter().any(|r| r.contains("which was set")), "{early:?}");
}

#[test]
fn what_is_missing_is_said_and_what_is_there_twice_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, run, part, mono_s| {
        let (unix_s, targets) = (1000 + mono_s, &[(7, 7, 100)]);
        write(dir.path(), name, &File { boot: "b", run, part, unix_s, mono_s, targets })
    };
    let (two, three, six) = (file("2", "r", 2, 20), file("3", "r", 3, 22), file("6", "r", 6, 30));
    let read_all = read(&[two.clone(), three.clone(), six]).unwrap();
    assert_eq!(read_all.starts(), [20, 21, 22, 23, 30, 31]);
    let [began, remark] = &read_all.remarks[..] else { panic!("{read_all:?}") };
    assert!(remark.starts_with("of the run, 2 files between") && remark.ends_with("are missing"), "{remark}");
    assert!(began.contains("began earlier: the 2 files before") && began.ends_with("are missing"), "{began}");
    let copy = dir.path().join("copy");
    std::fs::copy(&two, &copy).unwrap();
    let twice = read(&[two.clone(), three, copy]).unwrap_err().to_string();
    assert!(twice.contains("the same part of its run"), "{twice}");
    // Two recorders at once.
    let other = file("o", "q", 0, 21);
    let at_once = read(&[two, other]).unwrap_err().to_string();
    assert!(at_once.contains("no parts of one run"), "{at_once}");
}

#[test]
fn what_one_of_the_files_cannot_see_is_said_of_all() {
    let spots = |of: &[&str]| of.iter().map(|spot| (*spot).to_owned()).collect::<Vec<_>>();
    let fine = Backend { name: "pte".to_owned(), coarse: false, blind_spots: spots(&["shared"]) };
    let coarse = Backend { name: "refs".to_owned(), coarse: true, blind_spots: spots(&["writes", "shared"]) };
    for of in [[&fine, &coarse], [&coarse, &fine]] {
        let dir = tempfile::tempdir().unwrap();
        let mut paths = Vec::new();
        for (at, backend) in of.into_iter().enumerate() {
            let path = dir.path().join(format!("{at}.rec"));
            let began = (1 + 10 * at as u64) * SECOND;
            let mut writer = create(&path, Format::Rec).unwrap();
            let header = Header {
                boot: "boot".to_owned(),
                backend: backend.clone(),
                started_ns: began,
                started_unix_ns: began,
                ..Header::default()
            };
            writer.write(&Item::Header(header)).unwrap();
            let snapshot = Snapshot { start_ns: began, end_ns: began + SECOND, ..Snapshot::default() };
            writer.write(&Item::Snapshot(snapshot)).unwrap();
            // The fine one found out more while it ran.
            let found = if backend.coarse { Vec::new() } else { spots(&["found later"]) };
            writer
                .write(&Item::End(End {
                    time_ns: began + SECOND,
                    reason: "interrupted".to_owned(),
                    blind_spots: found,
                }))
                .unwrap();
            writer.finish().unwrap();
            paths.push(path);
        }
        let mut reader = open_joined(&paths, &ReadOptions::default()).unwrap();
        let (mut headers, mut ends) = (Vec::new(), Vec::new());
        while let Some(item) = reader.next_item().unwrap() {
            match item {
                Item::Header(header) => headers.push(header.backend),
                Item::End(end) => ends.push(end.blind_spots),
                _ => {}
            }
        }
        let names = format!("{}, {}", of[0].name, of[1].name);
        assert_eq!((headers.len(), &headers[0].name, headers[0].coarse), (1, &names, true));
        let (mut said, mut at_end) = (headers.remove(0).blind_spots, ends.remove(0));
        said.sort_unstable();
        at_end.sort_unstable();
        assert_eq!(
            (said, at_end, ends.len()),
            (spots(&["shared", "writes"]), spots(&["found later", "shared", "writes"]), 0)
        );
    }
}
