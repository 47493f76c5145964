//! What is asked of several reports is answered by one rule: moments and spans, filters that leave nothing, recordings that are cut.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{made_up, run};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{Format, Header, Item, Mapping, Mappings, RecordedAttrs, TargetInfo, create};
use serde_json::Value;
use std::path::Path;
use tempfile::tempdir;

const SECOND: u64 = 1_000_000_000;
const MIB: u64 = 1 << 20;

fn region(start: u64, end: u64, nr: u32) -> RegionSnapshot {
    RegionSnapshot {
        range: AddrRange::new(start, end),
        nr_accesses: nr,
        nr_accesses_bp: nr * 10_000,
        resident: Some(end - start),
        ..RegionSnapshot::default()
    }
}

/// A recording of aggregations of a second from 10 s on, `[heap]` and a library of a process; of the heap so many MiB are in use.
fn recording(dir: &Path, name: &str, used: &[u64]) {
    let mut writer = create(&dir.join(name), Format::Rec).unwrap();
    let attrs = RecordedAttrs { sample_us: 50_000, aggr_us: 1_000_000, ..RecordedAttrs::default() };
    let map = |start, end, name: &str, inode| Mapping {
        start,
        end,
        // Of a file nobody writes to.
        perms: if inode > 0 { "r-xp" } else { "rw-p" }.into(),
        inode,
        name: name.into(),
        ..Mapping::default()
    };
    let maps = [map(64 * MIB, 96 * MIB, "[heap]", 0), map(128 * MIB, 129 * MIB, "/lib/libc.so.6", 7)].into();
    for item in [
        Item::Header(Header { started_ns: 10 * SECOND, attrs, ..Header::default() }),
        Item::Target(TargetInfo { id: 1, pid: 7, comm: "sh".to_owned(), ..TargetInfo::default() }),
        Item::Mappings(Mappings { target: 1, time_ns: 10 * SECOND, maps, partial: false }),
    ] {
        writer.write(&item).unwrap();
    }
    for (i, used) in used.iter().enumerate() {
        let start_ns = (10 + i as u64) * SECOND;
        let edge = (64 + used) * MIB;
        let mut regions =
            vec![region(64 * MIB, edge, 20), region(edge, 96 * MIB, 0), region(128 * MIB, 129 * MIB, 0)];
        regions.retain(|region| !region.range.is_empty());
        let snapshot = Snapshot {
            start_ns,
            end_ns: start_ns + SECOND,
            sample_ns: SECOND / 20,
            max_nr_accesses: 20,
            targets: vec![TargetSnapshot::new(TargetId(1), regions)],
        };
        writer.write(&Item::Snapshot(snapshot)).unwrap();
    }
    let end = isotherm_record::End { time_ns: (10 + used.len() as u64) * SECOND, ..Default::default() };
    writer.write(&Item::End(end)).unwrap();
    writer.finish().unwrap();
}

#[test]
fn a_moment_is_of_one_snapshot_in_all_reports() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    // The heap's use tells which snapshot it is.
    recording(dir, "isotherm.rec", &[1, 2, 3, 4, 5]);
    let json = |args: &[&str]| run(dir, &[&["report"], args, &["--json"]].concat()).json();
    for (time, used) in [
        ("0s", 1),
        ("0", 1),
        ("1ns", 1),
        ("1s", 1),
        ("1001ms", 2),
        ("2500ms", 3),
        ("5s", 5),
        ("5500ms", 5),
        ("last", 5),
    ] {
        let span = if time == "last" { time.to_owned() } else { format!("{time}..{time}") };
        for when in [time, span.as_str()] {
            let access = json(&["access", "--rate", "100%", "--time", when]);
            assert_eq!(access["totals"]["bytes"], used * MIB, "access {when}");
            let wss = json(&["wss", "--damo", "--time", when]);
            assert_eq!(wss["mean"].as_f64(), Some((used * MIB) as f64), "wss {when}: {wss}");
            assert_eq!(json(&["regions", "--time", when])["provenance"]["snapshots"], 1, "regions {when}");
            let map = json(&["heatmap", "--area", "heap", "--time", when]);
            assert_eq!(map["provenance"]["snapshots"], 1, "heatmap {when}");
            let raw = run(dir, &["report", "raw", "--time", when]).ok();
            let hot: Vec<&str> = raw.lines().filter(|line| line.contains(" 20.000 ")).collect();
            let size = format!(" {} ", used * MIB);
            assert!(hot.len() == 1 && hot[0].contains(&size), "raw {when}: {raw}");
        }
        let summary = json(&["summary", "--at", time]);
        assert_eq!(summary["totals"]["ws_1s"], used * MIB, "summary {time}: {}", summary["totals"]);
    }
    // Beyond the ends, by more than a snapshot takes, there was nothing: by one sentence and status.
    for args in [&["access", "--time", "7s"][..], &["wss", "--time", "7s"], &["summary", "--at", "7s"]] {
        run(dir, &[&["report"], args].concat())
            .fails(1, &["nothing was recorded at 7 s: it spans 0 s to 5 s"]);
    }
}

#[test]
fn what_is_asked_for_by_name_and_is_not_there_is_an_error_and_what_no_value_fits_an_answer() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    recording(dir, "isotherm.rec", &[1, 2, 3, 4, 5]);
    let report = |args: &[&str]| run(dir, &[&["report"], args].concat());
    let no_mapping = "no mapping that was monitored in the time reported has \"nosuch\" in its name; there are [heap], libc.so.6";
    for args in [
        &["access", "--mapping", "nosuch"][..],
        &["access", "--mapping", "nosuch", "--json"],
        &["access", "--mapping", "nosuch", "--time", ".."],
        &["access", "--mapping", "nosuch", "--rate", "0"],
        &["summary", "--mapping", "nosuch"],
        &["summary", "--mapping", "nosuch", "--json"],
        &["summary", "--mapping", "nosuch", "--by", "mapping", "--csv"],
        &["summary", "--mapping", "nosuch", "--min-size", "1G"],
    ] {
        report(args).fails(1, &[no_mapping]);
    }
    for args in [&["heatmap", "--area", "nosuch"][..], &["html", "-o", "x.html", "--area", "nosuch"]] {
        report(args)
            .fails(1, &["no mapping that was monitored in the time reported has \"nosuch\" in its name"]);
    }
    let no_object =
        "no file or shared memory that was monitored in the time reported is \"nosuch\"; there are libc.so.6";
    report(&["summary", "--by", "object", "--mapping", "nosuch"]).fails(1, &[no_object]);
    report(&["heatmap", "--object", "nosuch"]).fails(1, &[no_object]);
    for args in [&["access", "--address"][..], &["heatmap", "--address"]] {
        report(&[args, &["0x1000+4K"]].concat())
            .fails(1, &["no target has memory in 0x1000-0x2000 in the time reported; monitored are "]);
    }
    for report in ["access", "summary", "heatmap", "wss", "regions", "raw"] {
        run(dir, &["report", report, "--target", "nosuch"])
            .fails(1, &["no target nosuch; there are sh (pid 7)"]);
    }
    // How much of it there is may be nothing.
    for args in [
        &["access", "--rate", "50%..90%"][..],
        &["access", "--age", "10h..", "--mapping", "heap"],
        &["access", "--size", "1T..", "--address", "0x4000000+4K"],
        &["summary", "--min-size", "1T"],
        &["summary", "--min-size", "1T", "--by", "object", "--mapping", "libc"],
    ] {
        let text = report(args).ok();
        assert!(text.contains("nothing is left: none fits all filters"), "{args:?}: {text}");
        if args[0] == "access" {
            assert!(text.contains("which the filters exclude"), "{args:?}: {text}");
        }
    }
    let rows = report(&["access", "--rate", "50%..90%", "--json"]).json();
    assert_eq!(rows["targets"], serde_json::json!([]));
}

/// What ends in the middle of a line, or of a snapshot, is no whole recording, whatever its format.
#[test]
fn a_cut_recording_is_said_to_be_cut_in_every_report() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let whole: String = (0..20_u32)
        .flat_map(|i| (0..4_u32).map(move |r| (i, r)))
        .map(|(i, r)| {
            let (start, end) = ((r + 1) << 20, (r + 2) << 20);
            format!(
                "kdamond.0 9 [000] 10.{i:02}0000: damon:damon_aggregated: target_id=1 nr_regions=4 {start}-{end}: {} 3\n",
                12 + r
            )
        })
        .collect();
    let line = whole.len() / 80;
    for (what, left, is_whole) in [
        ("all", whole.len(), true),
        ("no line break", whole.len() - 1, true),
        ("no age", whole.len() - 3, false),
        ("a number", whole.len() - 4, false),
        ("a line", whole.len() - line / 2, false),
        ("a region", whole.len() - line, false),
        ("three regions", whole.len() - 3 * line, false),
        ("a snapshot", whole.len() - 4 * line, true),
    ] {
        std::fs::write(dir.join("trace.txt"), &whole[..left]).unwrap();
        let report = |args: &[&str]| run(dir, &[&["report"], args, &["-i", "trace.txt"]].concat());
        let info = report(&["info", "--json"]).json();
        assert_eq!(info["file"]["complete"], is_whole, "{what}: {info}");
        assert_eq!(report(&["info"]).ok().contains("complete     no:"), !is_whole, "{what}");
        for args in [&["access"][..], &["heatmap"], &["wss"], &["summary"], &["raw"]] {
            let done = report(args);
            assert_eq!(
                done.err.contains("the recording is cut off"),
                !is_whole,
                "{what}: {args:?} {}",
                done.err
            );
            let text = done.ok();
            assert_eq!(
                text.contains("incomplete recording: the recording is cut"),
                !is_whole,
                "{what} {args:?}"
            );
        }
        let wss = report(&["wss", "--json"]).json();
        assert_eq!(wss["provenance"]["truncated"].is_string(), !is_whole, "{what}");
        // Nothing of what was cut is taken for a figure.
        let raw = report(&["raw"]).ok();
        let snapshots = if is_whole && what != "a snapshot" { 20 } else { 19 };
        assert_eq!(raw.lines().filter(|line| line.contains(" 12 ")).count(), snapshots, "{what}: {raw}");
    }
    std::fs::write(dir.join("trace.txt"), &whole[..line]).unwrap();
    run(dir, &["report", "wss", "-i", "trace.txt"])
        .fails(1, &["cut off at byte 0, before the end of its first snapshot"]);
}

#[test]
fn what_could_not_be_compared_is_unclear_to_scripts_too() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    recording(dir, "a.rec", &[0; 12]);
    recording(dir, "b.rec", &[0; 11]);
    recording(dir, "c.rec", &[16; 12]);
    recording(dir, "d.rec", &[16; 11]);
    let diff = |a: &str, b: &str, code: i32| {
        let done = run(dir, &["report", "diff", "--exit-code", a, b]);
        assert_eq!(done.status.code(), Some(code), "{}{}", done.out, done.err);
        done.out.lines().last().unwrap().to_owned()
    };
    let said = diff("a.rec", "b.rec", 3);
    assert!(said.starts_with("unclear") && said.ends_with("is too little to be compared"), "{said}");
    assert_eq!(diff("c.rec", "d.rec", 0), "no significant difference");
    assert!(diff("a.rec", "c.rec", 1).starts_with("the working set"));
    let json = run(dir, &["report", "diff", "--json", "a.rec", "b.rec"]).json();
    assert_eq!((&json["outcome"], &json["significant"]), (&Value::from("unclear"), &Value::from(false)));
}

#[test]
fn intervals_that_do_not_fit_together_are_refused_for_imports_as_for_recordings() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    made_up(dir, "isotherm.rec", Format::Rec);
    run(dir, &["convert", "-q", "isotherm.rec", "trace.txt"]).ok();
    let sentence =
        "--aggr 100 ms is shorter than --sample 200 ms; an aggregation takes at least one sampling interval";
    let told = ["--sample", "200ms", "--aggr", "100ms"];
    run(dir, &[&["record"], &told[..], &["--", "true"]].concat()).fails(2, &[sentence]);
    for command in [
        &["report", "wss", "-i", "trace.txt"][..],
        &["report", "info", "-i", "trace.txt"],
        &["convert", "trace.txt", "x.rec"],
    ] {
        run(dir, &[command, &told[..]].concat()).fails(2, &[sentence]);
        // The snapshots are 100 ms apart.
        run(dir, &[command, &["--sample", "200ms"]].concat())
            .fails(1, &["--sample 200 ms is longer than the 100 ms that an aggregation of it takes"]);
        for none in ["0", "999ns"] {
            run(dir, &[command, &["--sample", none]].concat()).fails(2, &["the least is 1 us"]);
        }
    }
    assert!(!dir.join("x.rec").exists());
    run(dir, &["report", "wss", "-i", "trace.txt", "--sample", "100ms"]).ok();
    for short in ["1ns", "0", "999us"] {
        run(dir, &["record", "--update", short, "--", "true"]).fails(2, &["--update", "the least is 1 ms"]);
    }
}

/// Reports are read without what was said when the file was made.
#[test]
fn what_damos_formats_do_to_working_sets_is_said_when_converting_and_in_all_reports() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    recording(dir, "isotherm.rec", &[1, 2, 3]);
    for name in ["damon.data", "x.json", "x.txt", "x.damon"] {
        let done = run(dir, &["convert", "isotherm.rec", name]);
        assert!(done.err.contains("may say several times other working sets"), "{name}: {}", done.err);
        for report in ["access", "heatmap", "wss", "regions", "summary", "raw", "info"] {
            let text = run(dir, &["report", report, "-i", name]).ok();
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            for part in
                ["counts accesses in whole numbers", "does not tell memory that could not be observed"]
            {
                assert_eq!(text.matches(part).count(), 1, "{report} of {name}: {part}: {text}");
            }
            let json = run(dir, &["report", report, "-i", name, "--json"]).ok();
            assert!(json.contains("counts accesses in whole numbers"), "{report} of {name}: {json}");
        }
        // Nothing more is lost by the next step.
        let done = run(dir, &["convert", name, "again.rec"]);
        assert!(!done.err.contains("working sets"), "{name}: {}", done.err);
        assert!(run(dir, &["report", "wss", "-i", "again.rec"]).ok().contains("whole numbers"), "{name}");
        std::fs::remove_file(dir.join("again.rec")).unwrap();
    }
    for name in ["x.parquet", "y.rec"] {
        let done = run(dir, &["convert", "isotherm.rec", name]);
        assert!(!done.err.contains("working sets"), "{name}: {}", done.err);
        assert!(!run(dir, &["report", "wss", "-i", name]).ok().contains("whole numbers"), "{name}");
    }
}

#[test]
fn a_name_that_stands_for_another_format_is_said_to() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    recording(dir, "isotherm.rec", &[1, 2, 3]);
    let convert = |name: &str, to: &str| run(dir, &["convert", "isotherm.rec", name, "--to", to]);
    for (name, to, named) in [
        ("z.parquet", "json", "parquet"),
        ("damon.data", "json", "json_compressed"),
        ("y.txt", "rec", "perf-script"),
    ] {
        let done = convert(name, to);
        let sentence = format!("{name} holds {to}, as --to says, though its name stands for {named}");
        assert!(done.err.contains(&sentence), "{}", done.err);
        done.ok();
    }
    // Nor is a recording made under such a name, which takes its time.
    for name in ["x.json", "damon.data", "dir/x.txt", "x.parquet", "x.damon"] {
        run(dir, &["record", "-o", name, "--", "true"])
            .fails(2, &[name, "its name stands for", "end it in .rec"]);
    }
    for (name, to) in
        [("z2.parquet", "parquet"), ("x.damon", "record-v1"), ("any.thing", "json"), ("plain", "json")]
    {
        assert!(!convert(name, to).err.contains("stands for"), "{name} {to}");
    }
}
