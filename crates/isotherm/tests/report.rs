//! `isotherm report` as scripts and people use it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{isotherm, made_up, run};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{Format, Header, Item, Mapping, Mappings, RecordedAttrs, TargetInfo, create};
use std::path::Path;
use tempfile::tempdir;

const DEFAULT: &str = "isotherm.rec";

#[test]
fn every_report_reads_the_default_file_and_gives_json() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    made_up(dir, DEFAULT, Format::Rec);
    for report in ["access", "heatmap", "wss", "regions"] {
        let text = run(dir, &["report", report]).ok();
        assert!(text.contains("snapshots") && text.lines().count() > 10, "{report}: {text}");
        let json = run(dir, &["report", report, "--json"]).json();
        assert!(json["provenance"]["snapshots"].as_u64().unwrap() > 10, "{report}: {json}");
    }
    let lines = run(dir, &["report", "raw", "--json"]).ok();
    let types: Vec<String> = lines
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap())
        .map(|line| line["type"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(types.first().map(String::as_str), Some("header"));
    let regions = types.iter().filter(|t| *t == "region").count();
    let raw = run(dir, &["report", "raw"]).ok();
    assert_eq!(raw.lines().filter(|l| !l.starts_with('#')).count(), regions);
}

#[test]
fn filters_and_order_of_access_hold_for_every_row() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), DEFAULT, Format::Rec);
    let rows = |args: &[&str]| {
        let json = run(dir.path(), &[&["report", "access", "--json"], args].concat()).json();
        let targets = json["targets"].as_array().unwrap().clone();
        targets.iter().flat_map(|t| t["regions"].as_array().unwrap().clone()).collect::<Vec<_>>()
    };
    let number = |row: &serde_json::Value, key: &str| row[key].as_f64().unwrap();
    let all = rows(&[]);
    let hot = rows(&["--rate", "10%.."]);
    let cold = rows(&["--rate", "..9.9%"]);
    assert!(!hot.is_empty() && !cold.is_empty() && hot.len() + cold.len() <= all.len());
    assert!(hot.iter().all(|r| number(r, "rate_share") >= 0.1));
    let large = rows(&["--size", "64K.."]);
    assert!(large.len() < all.len() && large.iter().all(|r| number(r, "size") >= 65536.0));
    let target = all[0]["target"].as_u64().unwrap().to_string();
    let one = rows(&["--target", &target, "--sort", "size"]);
    assert!(!one.is_empty() && one.iter().all(|r| r["target"].as_u64().unwrap().to_string() == target));
    assert!(one.windows(2).all(|w| number(&w[0], "size") >= number(&w[1], "size")));
    let reversed = rows(&["--target", &target, "--sort", "size", "--reverse"]);
    assert!(reversed.windows(2).all(|w| number(&w[0], "size") <= number(&w[1], "size")));
    let start = number(&all[0], "start") as u64;
    let there = rows(&["--address", &format!("{start:#x}+4K")]);
    assert!(!there.is_empty() && there.len() < all.len());
}

/// Two processes on one segment of shared memory, of which a part could not be observed; each has a heap in a wide gap.
fn two_on_one_segment(dir: &Path) {
    two_who_know(dir, [0, 0]);
}

/// The same, where each sees so much of that part, and no access.
fn two_who_know(dir: &Path, seen: [u16; 2]) {
    const MIB: u64 = 1 << 20;
    let mut writer = create(&dir.join(DEFAULT), Format::Rec).unwrap();
    let attrs = RecordedAttrs { sample_us: 5000, aggr_us: 100_000, ..RecordedAttrs::default() };
    writer.write(&Item::Header(Header { attrs, ..Header::default() })).unwrap();
    let map = |start, end, perms: &str, name: &str, inode| Mapping {
        start,
        end,
        perms: perms.to_owned().into(),
        name: name.into(),
        inode,
        ..Mapping::default()
    };
    for target in [11, 12] {
        let comm = format!("worker-{target}");
        writer
            .write(&Item::Target(TargetInfo { id: target, pid: 7, comm, ..TargetInfo::default() }))
            .unwrap();
        let maps = [
            map(MIB, 2 * MIB, "rw-p", "[heap]", 0),
            map(1024 * MIB, 1124 * MIB, "rw-s", "/dev/shm/pool", 99),
        ]
        .into();
        writer.write(&Item::Mappings(Mappings { target, maps, ..Mappings::default() })).unwrap();
    }
    let region = |start, end, nr: u32, seen_bp| RegionSnapshot {
        range: AddrRange::new(start, end),
        nr_accesses: nr,
        nr_accesses_bp: nr * 10_000,
        seen_bp,
        exposure: u32::from(seen_bp),
        ..RegionSnapshot::default()
    };
    for i in 0..30 {
        let target = |id, seen| {
            let regions = vec![
                region(0, 512 * MIB, 0, 10_000),
                region(1024 * MIB, 1064 * MIB, 20, 10_000),
                region(1064 * MIB, 1124 * MIB, 0, seen),
            ];
            TargetSnapshot { id: TargetId(id), regions, steady: i > 0 }
        };
        let snapshot = Snapshot {
            start_ns: i * 100_000_000,
            end_ns: (i + 1) * 100_000_000,
            sample_ns: 5_000_000,
            max_nr_accesses: 20,
            targets: vec![target(11, seen[0]), target(12, seen[1])],
        };
        writer.write_snapshot(&snapshot.changes()).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn unknown_is_shown_and_never_taken_for_cold() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    two_on_one_segment(dir);
    let text = run(dir, &["report", "access"]).ok();
    let rows = text.lines().filter(|l| l.contains("unknown") && l.contains("pool")).count();
    assert_eq!(rows, 2, "{text}");
    let sizes = |args: &[&str]| {
        let json = run(dir, &[&["report", "access", "--json", "--rate", "0"], args].concat()).json();
        let targets = json["targets"].as_array().unwrap().clone();
        let regions = targets.iter().flat_map(|t| t["regions"].as_array().unwrap().clone());
        regions.map(|r| r["size"].as_u64().unwrap() >> 20).collect::<Vec<_>>()
    };
    assert_eq!(sizes(&[]), [1, 1], "the heaps have the size of their mappings");
    assert_eq!(sizes(&["--unknown"]), [1, 60, 1, 60]);
    run(dir, &["report", "access", "--unknown"]).fails(2, &["--rate"]);
    let plain = run(dir, &["report", "heatmap", "--area", "pool", "--width", "80"]).ok();
    assert!(plain.contains("????") && plain.contains("?: unknown"), "{plain}");
    let raw = run(dir, &["report", "raw"]).ok();
    assert!(raw.lines().any(|l| l.ends_with(" ? 0 0.0000 0 -")), "{raw}");
}

/// What one does not use, the other may be using, of whom that is not known.
#[test]
fn an_object_is_idle_only_where_all_who_map_it_are_known_to_be() {
    for (seen, unknown) in
        [([10_000, 0], 60_u32), ([0, 10_000], 60), ([10_000, 2000], 48), ([10_000, 10_000], 0)]
    {
        let dir = tempdir().unwrap();
        let dir = dir.path();
        two_who_know(dir, seen);
        for time in [&[][..], &["--time", "..2s"]] {
            let args = [&["report", "access", "--by", "object", "--json", "--rate", "0"], time].concat();
            let cold = run(dir, &args).json();
            let rows = cold["targets"].as_array().unwrap().iter();
            let rows = rows.flat_map(|t| t["regions"].as_array().unwrap());
            let pool: Vec<_> = rows.filter(|r| r["size"].as_u64().unwrap() >> 20 == 60).collect();
            assert_eq!(pool.len(), usize::from(unknown < 60), "{seen:?} {time:?}: {cold}");
            let known = 1.0 - f64::from(unknown) / 60.0;
            let right = pool.iter().all(|r| (r["seen"].as_f64().unwrap() - known).abs() < 1e-4);
            assert!(right, "{seen:?} {time:?}: {cold}");
        }
        let wss = run(dir, &["report", "wss"]).ok();
        let said = format!("and {unknown}.0 MiB of which nothing is known");
        assert_eq!(wss.contains(&said), unknown > 0, "{seen:?}: {wss}");
        assert!(wss.lines().any(|l| l.contains(" 50 ") && l.contains("40.0 MiB")), "{wss}");
        let totals = run(dir, &["report", "summary", "--json"]).json()["totals"].clone();
        assert_eq!(totals["unknown"].as_u64(), Some(u64::from(unknown) << 20), "{seen:?}: {totals}");
        let map = run(dir, &["report", "heatmap", "--object", "pool", "--width", "80"]).ok();
        assert!(unknown == 48 || map.contains("????") == (unknown == 60), "{seen:?}: {map}");
    }
}

#[test]
fn every_working_set_names_its_definition() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    two_on_one_segment(dir);
    for (args, name) in [
        (&[][..], "Denning: accessed at least once within 1 s"),
        (&["--window", "200ms"], "Denning: accessed at least once within 200 ms"),
        (&["--threshold", "1"], "regions with at least 1 access an aggregation"),
        (&["--threshold", "10Hz"], "at least 10 Hz"),
    ] {
        let text = run(dir, &[&["report", "wss"], args].concat()).ok();
        assert!(text.contains(name), "{name}: {text}");
        // The hot part of the segment, once; and once what is not known of it.
        assert!(text.lines().any(|l| l.contains(" 50 ") && l.contains("40.0 MiB")), "{text}");
        assert!(text.contains("and 60.0 MiB of which nothing is known"), "{text}");
    }
    let damo = run(dir, &["report", "wss", "--damo"]).ok();
    assert!(damo.contains("damo: regions with at least 1 access an aggregation, all their bytes"), "{damo}");
    assert!(damo.lines().any(|l| l.contains(" 50 ") && l.contains("80.0 MiB")), "of each process: {damo}");
    let long = run(dir, &["report", "wss", "--window", "1000h"]).ok();
    assert!(long.contains("shorter than the window: 3 s of 41d 16h were observed"), "{long}");
    run(dir, &["report", "wss", "--damo", "--window", "2s"]).fails(2, &["--window"]);
    run(dir, &["report", "wss", "--window", "0s"]).fails(2, &["1s"]);
    let help = run(dir, &["report", "wss", "--help"]).ok();
    assert!(help.contains("Denning") && help.contains("1 - (1 - p)^n"), "{help}");
}

#[test]
fn a_recording_and_its_conversions_have_one_working_set_by_damos_count() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    // Shared memory, gaps, parts that could not be seen, fractions of an access.
    two_on_one_segment(dir);
    made_up(dir, "made-up.rec", Format::Rec);
    for recording in ["isotherm.rec", "made-up.rec"] {
        let count = |file: &str| {
            let report = run(dir, &["report", "wss", "--damo", "--json", "-i", file]).json();
            let values = report["percentiles"].as_array().unwrap();
            (report["mean"].as_f64().unwrap(), values.iter().map(|p| p["value"].clone()).collect::<Vec<_>>())
        };
        let (mean, percentiles) = count(recording);
        assert!(mean > 0.0);
        for file in ["x.parquet", "x.json_compressed", "x.json", "x.txt", "x.damon"] {
            run(dir, &["convert", "-q", recording, file]).ok();
            let (found, values) = count(file);
            // Times in microseconds weigh the snapshots a little differently.
            assert!((found - mean).abs() < 1e-3 * mean, "{recording} {file}: {found} {mean}");
            assert_eq!(values, percentiles, "{recording} {file}");
        }
    }
}

#[test]
fn what_two_processes_share_is_reported_once() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    two_on_one_segment(dir);
    let json = run(dir, &["report", "access", "--by", "object", "--json"]).json();
    let groups = json["targets"].as_array().unwrap();
    assert_eq!(groups.len(), 3, "{json}");
    assert_eq!(groups[2]["object"], "0:0:99");
    assert_eq!(groups[2]["regions"][0]["start"], 0, "offsets, not addresses");
    let id = groups[2]["regions"][0]["target"].as_u64().unwrap();
    assert!(id < 1 << 53 && groups[..2].iter().all(|g| g["regions"][0]["target"] != id), "{json}");
    assert_eq!(json["totals"]["bytes"], 102_u64 << 20);
    assert_eq!(run(dir, &["report", "access", "--json"]).json()["totals"]["bytes"], 102_u64 << 20);
    let text = run(dir, &["report", "access", "--by", "object"]).ok();
    assert!(text.contains("pool (device 0:0, inode 99), mapped by 2 targets"), "{text}");
    for object in ["shm/pool", "0:0:99"] {
        let text = run(dir, &["report", "heatmap", "--object", object, "--width", "80"]).ok();
        assert!(text.contains("mapped by 2 targets: 100.0 MiB"), "{text}");
        assert!(text.contains("999") && text.contains("???"), "{text}");
    }
    run(dir, &["report", "heatmap", "--object", "nothing"]).fails(1, &["nothing", "pool (0:0:99)"]);
    run(dir, &["report", "access", "--mapping", "nothing"])
        .fails(1, &["has \"nothing\" in its name; there are pool"]);
    run(dir, &["report", "access", "--by", "colour"]).fails(2, &["target or object"]);
}

#[test]
fn a_title_says_how_much_of_the_addresses_is_memory() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    two_on_one_segment(dir);
    let all = ["report", "heatmap", "--target", "11", "--address", "0x0-0xffffffffffffffff"];
    let said = "101.0 MiB in 16.0 EiB of addresses";
    assert!(run(dir, &all).ok().contains(said));
    let json = run(dir, &[&all[..], &["--json"]].concat()).json();
    assert_eq!(json["panels"][0]["mapped"], 101_u64 << 20, "{}", json["panels"][0]["name"]);
    run(dir, &[&all[..], &["-o", "all.svg"]].concat()).ok();
    assert!(std::fs::read_to_string(dir.join("all.svg")).unwrap().contains(said));
    // Where all of it is, there is nothing to say.
    let text = run(dir, &["report", "heatmap", "--area", "pool"]).ok();
    assert!(text.contains(": 100.0 MiB, ") && !text.contains("of addresses"), "{text}");
}

#[test]
fn a_window_of_time_leaves_out_the_rest() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), DEFAULT, Format::Rec);
    let snapshots = |args: &[&str]| {
        let json = run(dir.path(), &[&["report", "wss", "--json"], args].concat()).json();
        json["provenance"]["snapshots"].as_u64().unwrap()
    };
    let all = snapshots(&[]);
    let (before, after) = (snapshots(&["--time", "..500ms"]), snapshots(&["--time", "500ms.."]));
    assert!(before > 0 && after > 0 && before < all && after < all);
    // The one under way at half a second is in both.
    assert!((all..=all + 1).contains(&(before + after)), "{before} {after} {all}");
}

/// What is wrong with a `--time` is said in the same words, and with the same status, by every report.
#[test]
fn a_time_in_which_nothing_was_recorded_is_the_same_error_in_every_report() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    two_on_one_segment(dir);
    let empty = dir.join("empty.rec");
    let mut writer = create(&empty, Format::Rec).unwrap();
    writer.write(&Item::Header(Header { started_ns: 1, ..Header::default() })).unwrap();
    writer.finish().unwrap();
    let reports = ["access", "heatmap", "wss", "regions", "raw"];
    let said = |args: &[&str], code| {
        let all: Vec<String> = reports
            .iter()
            .map(|report| {
                let done = run(dir, &[&["report", report], args].concat());
                assert_eq!(done.status.code(), Some(code), "{report} {args:?}: {}{}", done.out, done.err);
                let usage = |line: &&str| !line.contains("report") && !line.is_empty();
                done.err.lines().filter(usage).collect::<Vec<_>>().join("\n").replace("<WHEN>", "<RANGE>")
            })
            .collect();
        assert!(all.windows(2).all(|w| w[0] == w[1]), "{args:?}: {all:#?}");
        all[0].clone()
    };
    let late = said(&["--time", "100s.."], 1);
    let sentence =
        "isotherm.rec: nothing was recorded from 1m 40s on: it spans 0 s to 3 s; choose a time within";
    assert!(late.contains(sentence), "{late}");
    assert!(said(&["--time", "100s..200s"], 1).contains("from 1m 40s to 3m 20s"));
    assert!(said(&["--time", "4s"], 1).contains("at 4 s: it spans"));
    assert!(said(&["--time", "..0s"], 1).contains("before 0 s: it spans"));
    assert!(said(&["--time", "2s..1s"], 2).contains("the minimum is above the maximum"));
    let nothing = said(&["-i", "empty.rec"], 1);
    assert!(nothing.contains("empty.rec: it holds no snapshot"), "{nothing}");
    assert_eq!(said(&["-i", "empty.rec", "--time", "1s.."], 1), nothing);
    run(dir, &["report", "access", "-i", "empty.rec", "--time", "last"]).fails(1, &["it holds no snapshot"]);
    // A moment between two snapshots, or at the edge, is none of these.
    for time in ["0s", "1s", "3s", "2950ms", "2s..", "..1s"] {
        assert!(!said(&["--time", time], 0).contains("nothing was recorded"), "{time}");
    }
}

#[test]
fn heatmaps_are_drawn_as_asked() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    made_up(dir, DEFAULT, Format::Rec);
    let plain = run(dir, &["report", "heatmap", "--width", "80"]).ok();
    assert!(!plain.contains('\x1b'), "a pipe is no terminal");
    assert!(plain.lines().all(|l| l.chars().count() <= 200));
    let coloured = isotherm(dir, &["report", "heatmap", "--color", "always"])
        .env("COLORTERM", "truecolor")
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&coloured.stdout).contains(";2;"));
    for (file, magic) in [("h.png", &b"\x89PNG"[..]), ("h.svg", b"<svg"), ("w.png", b"\x89PNG")] {
        let report = if file.starts_with('h') { "heatmap" } else { "wss" };
        run(dir, &["report", report, "-o", file]).ok();
        let picture = std::fs::read(dir.join(file)).unwrap();
        assert!(picture.windows(magic.len()).take(200).any(|w| w == magic), "{file}");
    }
    run(dir, &["report", "heatmap", "-o", "h.pdf"]).fails(2, &["h.pdf", ".png or .svg"]);
    run(dir, &["report", "heatmap", "--area", "no-such-mapping"]).fails(1, &["no-such-mapping", "there are"]);
}

/// Memory that is accessed once in twenty seconds is not drawn like memory that works: the scale does not end below a hertz.
#[test]
fn a_program_that_sleeps_is_drawn_as_one() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let mut writer = create(&dir.join(DEFAULT), Format::Rec).unwrap();
    let attrs = RecordedAttrs { sample_us: 5000, aggr_us: 100_000, ..RecordedAttrs::default() };
    writer.write(&Item::Header(Header { attrs, ..Header::default() })).unwrap();
    for i in 0..40 {
        let region = |start, bp| RegionSnapshot {
            range: AddrRange::new(start, start + (8 << 20)),
            nr_accesses_bp: bp,
            ..RegionSnapshot::default()
        };
        let regions = vec![region(0, 0), region(8 << 20, 50)];
        let snapshot = Snapshot {
            start_ns: i * 100_000_000,
            end_ns: (i + 1) * 100_000_000,
            sample_ns: 5_000_000,
            max_nr_accesses: 20,
            targets: vec![TargetSnapshot::new(TargetId(7), regions)],
        };
        writer.write_snapshot(&snapshot).unwrap();
    }
    writer.finish().unwrap();
    let text = run(dir, &["report", "heatmap", "--scale", "linear"]).ok();
    let is_row = |word: &&str| word.len() > 20 && word.chars().all(|c| c.is_ascii_digit() || c == '?');
    let rows: Vec<&str> = text.split_whitespace().filter(is_row).collect();
    assert!(!rows.is_empty() && rows.iter().all(|row| !row.contains('9')), "{text}");
    assert!(text.contains("9 up to 1 Hz"), "{text}");
    assert_eq!(run(dir, &["report", "heatmap", "--json"]).json()["highest_hz"], 1.0);
}
