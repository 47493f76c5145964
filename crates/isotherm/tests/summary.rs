//! `isotherm report summary`, `info` and `diff` as scripts and people use them.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Done, ISOTHERM, made_up, pte_works, run};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{
    Backend, Cost, End, Format, Header, Item, Mapping, Mappings, RecordedAttrs, TargetEnd, TargetInfo, create,
};
use std::path::Path;
use tempfile::tempdir;

const DEFAULT: &str = "isotherm.rec";
const MIB: u64 = 1 << 20;

/// A server with a cache of 64 MiB, of which `hot` MiB are in use, and two workers that share a segment with it; one of
/// them ends after a second. `seed` draws the addresses.
fn server(path: &Path, seed: u64, hot: f64, seconds: u64) {
    let mut writer = create(path, Format::Rec).unwrap();
    let attrs = RecordedAttrs { sample_us: 5000, aggr_us: 100_000, ..RecordedAttrs::default() };
    let backend =
        Backend { name: "pte".to_owned(), coarse: false, blind_spots: vec!["mlocked: 1 %".to_owned()] };
    writer
        .write(&Item::Header(Header {
            producer: "isotherm test".to_owned(),
            host: "box".to_owned(),
            kernel: "6.1.0".to_owned(),
            started_unix_ns: 1_700_000_000_000_000_000,
            attrs,
            backend,
            ..Header::default()
        }))
        .unwrap();
    let at = |target: u64| (target << 36) + (seed << 28);
    for target in [1, 2, 3] {
        let comm = if target == 1 { "server".to_owned() } else { format!("worker-{target}, \"w\"") };
        let info = TargetInfo { id: target, pid: 100 + target as u32, comm, ..TargetInfo::default() };
        writer.write(&Item::Target(info)).unwrap();
        let map = |from: u64, size: u64, perms: &'static str, name: &str, inode: u64| Mapping {
            start: at(target) + from * MIB,
            end: at(target) + (from + size) * MIB,
            perms: perms.into(),
            name: name.into(),
            inode,
            ..Mapping::default()
        };
        let maps = [
            map(0, 64, "rw-p", "", 0),
            map(80, 8, "rw-p", "[heap]", 0),
            map(90, 16, "rw-s", "/dev/shm/segment", 7),
        ]
        .into();
        writer.write(&Item::Mappings(Mappings { target, maps, ..Mappings::default() })).unwrap();
    }
    for i in 0..seconds * 10 {
        let region = |target: u64, from: f64, to: f64, nr: u32| RegionSnapshot {
            range: AddrRange::new(
                (at(target) + (from * MIB as f64) as u64) & !4095,
                (at(target) + (to * MIB as f64) as u64) & !4095,
            ),
            nr_accesses: nr,
            nr_accesses_bp: nr * 10_000,
            resident: Some(((to - from) * MIB as f64) as u64),
            ..RegionSnapshot::default()
        };
        // A little noise, the same in no two snapshots.
        let used = hot * (1.0 + ((i * 7 + seed * 3) % 11) as f64 / 500.0);
        let of = |target: u64| {
            let own = if target == 1 { used } else { 1.0 };
            let mut unknown = region(target, 80.0, 88.0, 0);
            unknown.seen_bp = if target == 1 { 0 } else { 10_000 };
            vec![
                region(target, 0.0, own, 20),
                region(target, own, 64.0, 0),
                unknown,
                region(target, 90.0, 106.0, if target == 1 { 20 } else { 0 }),
            ]
        };
        if i == 10 {
            let end = TargetEnd { target: 3, reason: "exited".to_owned(), ..TargetEnd::default() };
            writer.write(&Item::TargetEnd(end)).unwrap();
        }
        let targets = [1, 2, 3].into_iter().filter(|t| i < 10 || *t < 3);
        writer
            .write_snapshot(&Snapshot {
                start_ns: i * 100_000_000,
                end_ns: (i + 1) * 100_000_000,
                sample_ns: 5_000_000,
                max_nr_accesses: 20,
                targets: targets.map(|t| TargetSnapshot::new(TargetId(t), of(t))).collect(),
            })
            .unwrap();
    }
    let cost = Cost { wall_ns: seconds * 1_000_000_000, cpu_ns: seconds * 5_000_000, ..Cost::default() };
    writer.write(&Item::Cost(cost)).unwrap();
    writer.write(&Item::End(End { reason: "duration reached".to_owned(), ..End::default() })).unwrap();
    writer.finish().unwrap();
}

#[test]
fn the_summary_fits_80_columns_and_says_what_its_json_says() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    server(&dir.join(DEFAULT), 1, 32.0, 70);
    let text = run(dir, &["report", "summary", "--width", "80"]).ok();
    let table: Vec<&str> = text.lines().skip(2).take_while(|l| !l.starts_with("-:")).collect();
    assert!(table.iter().all(|l| l.chars().count() <= 80), "{text}");
    let line = |name: &str| table.iter().find(|l| l.starts_with(name)).unwrap().to_string();
    let cells = |name: &str| line(name).split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    // mapped, resident, working sets, hot, cold, unknown
    assert_eq!(
        cells("server 101")[2..],
        ["88M", "88M", "48M", "49M", "49M", "49M", "31M", "31M", "-", "8.0M"],
        "{text}"
    );
    assert!(line("  segment").contains("16M") && line("  anon").contains("64M"), "{text}");
    assert!(line("worker-3").contains("103*") && text.contains("*: ended before"), "{text}");
    let json = run(dir, &["report", "summary", "--json"]).json();
    assert_eq!(json["processes"].as_array().unwrap().len(), 3);
    assert_eq!(json["processes"][0]["name"], "server");
    // What two map counts once, what ended not at all.
    assert_eq!(json["totals"]["mapped"].as_u64(), Some(160 * MIB));
    assert_eq!(json["totals"]["unknown"].as_u64(), Some(8 * MIB));
    assert_eq!(json["processes"][0]["figures"]["cold_5m"], serde_json::Value::Null);
    let wss = run(dir, &["report", "wss", "--json", "--time", "69950ms.."]).json();
    let (ws, last) = (json["totals"]["ws_1s"].as_f64().unwrap(), wss["mean"].as_f64().unwrap());
    assert!((ws - last).abs() <= 1.0, "the working set of report wss: {ws} {last}");
    assert!(text.contains("blind spot: mlocked"), "provenance: {text}");
}

#[test]
fn on_a_narrow_terminal_a_figure_is_whole_or_not_there() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    server(&dir.join(DEFAULT), 1, 32.0, 12);
    let figures = |width: &str| {
        let text = run(dir, &["report", "summary", "--width", width]).ok();
        let table = || text.lines().skip(2).take_while(|l| !l.starts_with("observed"));
        let columns: usize = width.parse().unwrap();
        assert!(table().all(|l| l.chars().count() <= columns), "{text}");
        let line = table().find(|l| l.starts_with("server 101")).unwrap();
        let cells = line.split_whitespace().skip(2).map(str::to_owned).collect::<Vec<_>>();
        (cells, text)
    };
    let (all, text) = figures("80");
    // Less than a minute was observed.
    assert_eq!(all[4], "-", "{text}");
    assert!(text.contains("the working set of 60 s is not known") && !text.contains("no room"), "{text}");
    assert!(text.contains("hot: accessed in a tenth") && !text.contains("only the sum is known"), "{text}");
    // What is not known of a minute goes first; the working set of a second stays, and what is unknown.
    for (width, columns) in [("40", [1, 2, 5, 9].as_slice()), ("60", &[0, 1, 2, 3, 5, 6, 9])] {
        let (some, text) = figures(width);
        let expected: Vec<_> = columns.iter().map(|c| all[*c].clone()).collect();
        assert_eq!(some, expected, "{text}");
        assert!(text.contains("no room for ") && text.contains("unkn."), "{text}");
    }
    run(dir, &["report", "summary", "--width", "39"]).fails(2, &["--width"]);
    let csv = run(dir, &["report", "summary", "--csv"]).ok();
    let total: Vec<&str> = csv.lines().find(|l| l.starts_with("total,")).unwrap().split(',').collect();
    assert!(!total[12].is_empty() && total[13].is_empty(), "60 s were not observed: {csv}");
}

/// Of one process a heap and a file of 8 MiB each under one region, all of which is there and half in use.
fn under_one_region(path: &Path, seconds: u64) {
    let mut writer = create(path, Format::Rec).unwrap();
    let attrs = RecordedAttrs { sample_us: 5000, aggr_us: 100_000, ..RecordedAttrs::default() };
    let backend = Backend { name: "pte".to_owned(), ..Backend::default() };
    writer.write(&Item::Header(Header { attrs, backend, ..Header::default() })).unwrap();
    let comm = "server".to_owned();
    writer.write(&Item::Target(TargetInfo { id: 1, pid: 101, comm, ..TargetInfo::default() })).unwrap();
    let at = 1 << 36;
    let map = |from: u64, perms: &'static str, name: &str, inode: u64| Mapping {
        start: at + from * MIB,
        end: at + (from + 8) * MIB,
        perms: perms.into(),
        name: name.into(),
        inode,
        ..Mapping::default()
    };
    let maps = [map(0, "rw-p", "[heap]", 0), map(8, "rw-s", "/dev/shm/segment", 7)].into();
    writer.write(&Item::Mappings(Mappings { target: 1, maps, ..Mappings::default() })).unwrap();
    for i in 0..seconds * 10 {
        let region = RegionSnapshot {
            range: AddrRange::new(at, at + 16 * MIB),
            nr_accesses: 10,
            nr_accesses_bp: 100_000,
            idle_bp: 5000,
            resident: Some(16 * MIB),
            ..RegionSnapshot::default()
        };
        writer
            .write_snapshot(&Snapshot {
                start_ns: i * 100_000_000,
                end_ns: (i + 1) * 100_000_000,
                sample_ns: 5_000_000,
                max_nr_accesses: 20,
                targets: vec![TargetSnapshot::new(TargetId(1), vec![region])],
            })
            .unwrap();
    }
    writer.write(&Item::End(End { reason: "duration reached".to_owned(), ..End::default() })).unwrap();
    writer.finish().unwrap();
}

#[test]
fn shares_of_a_region_over_several_mappings_are_marked() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    under_one_region(&dir.join(DEFAULT), 12);
    for width in ["40", "60", "80"] {
        let text = run(dir, &["report", "summary", "--by", "mapping", "--width", width]).ok();
        let columns: usize = width.parse().unwrap();
        assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
        assert!(text.replace('\n', " ").contains("only the sum is known"), "{text}");
        let heap = text.lines().find(|line| line.contains("[heap]")).unwrap();
        assert!(heap.contains(" 8.0M") && heap.contains(" <8M"), "what is there was measured: {text}");
        let total = text.lines().find(|line| line.starts_with("total")).unwrap();
        assert!(total.contains(" 8.0M") && !total.contains(['<', '~']), "so was the sum: {text}");
    }
}

#[test]
fn the_summary_is_sorted_filtered_and_by_mapping_or_object() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    server(&dir.join(DEFAULT), 1, 32.0, 20);
    let summary = |args: &[&str]| run(dir, &[&["report", "summary", "--json"], args].concat()).json();
    let names = |json: &serde_json::Value, list: &str| {
        let list = json[list].as_array().unwrap().iter();
        list.map(|r| r["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    let cold = summary(&["--by", "mapping", "--sort", "cold-10s"]);
    let figures: Vec<u64> = cold["mappings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["figures"]["cold_10s"].as_u64().unwrap())
        .collect();
    assert!(figures.len() == 6 && figures.is_sorted_by(|a, b| a >= b), "{figures:?}");
    let reversed = summary(&["--by", "mapping", "--sort", "cold-10s", "--reverse"]);
    assert_eq!(reversed["mappings"][0]["figures"]["cold_10s"], *figures.last().unwrap());
    assert_eq!(names(&summary(&["--by", "mapping", "--mapping", "heap"]), "mappings"), ["[heap]", "[heap]"]);
    assert_eq!(names(&summary(&["--by", "mapping", "--min-size", "60M"]), "mappings"), ["anon", "anon"]);
    let objects = summary(&["--by", "object"]);
    assert_eq!(names(&objects, "objects"), ["segment"]);
    assert_eq!(objects["objects"][0]["mappers"], 2);
    assert_eq!(objects["objects"][0]["figures"]["mapped"], 16 * MIB);
    assert_eq!(objects["objects"][0]["figures"]["hot"], 16 * MIB);
    let own: u64 = objects["processes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| p["figures"]["mapped"].as_u64().unwrap())
        .sum();
    assert_eq!(own + 16 * MIB, objects["totals"]["mapped"]);
    let one = summary(&["--target", "102"]);
    assert_eq!(one["totals"]["mapped"], 88 * MIB);
    assert_eq!(summary(&["-n", "1"])["hidden"], 2);
    // As things stood before the worker ended.
    let early = summary(&["--at", "900ms"]);
    assert!(early["processes"].as_array().unwrap().iter().all(|p| p["ended"].is_null()), "{early}");
    assert_eq!(early["totals"]["mapped"], 232 * MIB);
    run(dir, &["report", "summary", "--at", "100s"])
        .fails(1, &["nothing was recorded at 1m 40s: it spans 0 s to 20 s"]);
    let csv = run(dir, &["report", "summary", "--csv"]).ok();
    let columns = csv.lines().next().unwrap().split(',').count();
    assert!(
        csv.starts_with("kind,target,pid,process,name,path,start,end,ended,mapped,resident,ws_1s,"),
        "{csv}"
    );
    let server = csv.lines().find(|l| l.starts_with("process,1,101,server")).unwrap();
    assert_eq!(server.split(',').count(), columns);
    assert!(csv.contains("\"worker-2, \"\"w\"\"\""), "{csv}");
    // The sums come last: how things stand, and how they stood when most was in use.
    let first_of = |line: &str| line.split(',').next().unwrap_or_default().to_owned();
    let last: Vec<String> = csv.lines().rev().take(2).map(first_of).collect();
    assert_eq!(last, ["highest", "total"], "{csv}");
    run(dir, &["report", "summary", "--sort", "colour"]).fails(2, &["colour", "ws-10s"]);
    run(dir, &["report", "summary", "--json", "--csv"]).fails(2, &["cannot be used with"]);
}

/// A shell that executes a program with other memory after two seconds.
#[test]
fn a_summary_of_a_moment_has_the_names_and_mappings_of_then() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let mut writer = create(&dir.join(DEFAULT), Format::Rec).unwrap();
    let second = 1_000_000_000;
    let mut write = |item: Item| writer.write(&item).unwrap();
    write(Item::Header(Header { started_ns: 10 * second, ..Header::default() }));
    let named = |comm: &str, time_ns| {
        Item::Target(TargetInfo { id: 1, pid: 7, comm: comm.to_owned(), time_ns, ..TargetInfo::default() })
    };
    let mapped = |name: &str, time_ns| {
        let maps = [Mapping { start: MIB, end: 2 * MIB, name: name.into(), ..Mapping::default() }].into();
        Item::Mappings(Mappings { target: 1, time_ns, maps, ..Mappings::default() })
    };
    write(named("sh", 10 * second));
    write(mapped("[heap]", 10 * second));
    for i in 0..40 {
        let start_ns = 10 * second + i * second / 10;
        if i == 20 {
            write(named("server", start_ns));
            write(mapped("/srv/cache", start_ns));
        }
        let region = RegionSnapshot { range: AddrRange::new(MIB, 2 * MIB), ..RegionSnapshot::default() };
        write(Item::Snapshot(Snapshot {
            start_ns,
            end_ns: start_ns + second / 10,
            sample_ns: 5_000_000,
            max_nr_accesses: 20,
            targets: vec![TargetSnapshot::new(TargetId(1), vec![region])],
        }));
    }
    let end = TargetEnd { target: 1, time_ns: 14 * second, reason: "exited".to_owned() };
    write(Item::TargetEnd(end));
    writer.finish().unwrap();
    let at = |args: &[&str]| {
        let json = run(dir, &[&["report", "summary", "--json"], args].concat()).json();
        let process = &json["processes"][0];
        let of = |name: &serde_json::Value| name.as_str().unwrap().to_owned();
        (of(&process["name"]), of(&process["mappings"][0]["name"]))
    };
    let (before, after) = (("sh", "[heap]"), ("server", "cache"));
    for (args, names) in
        [(&["--at", "1s"][..], before), (&["--at", "2s"], before), (&["--at", "3s"], after), (&[], after)]
    {
        assert_eq!(at(args), (names.0.to_owned(), names.1.to_owned()), "{args:?}");
    }
}

/// A process of which the list of mappings was read in part only when the recording ended.
#[test]
fn reports_say_whose_mappings_are_not_known_to_the_end() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let recording = |partial| {
        let mut writer = create(&dir.join(DEFAULT), Format::Rec).unwrap();
        let mut write = |item: Item| writer.write(&item).unwrap();
        write(Item::Header(Header { overhead_limit: 0.01, ..Header::default() }));
        write(Item::Target(TargetInfo { id: 1, pid: 7, comm: "server".to_owned(), ..TargetInfo::default() }));
        let maps = [Mapping { start: MIB, end: 2 * MIB, name: "[heap]".into(), ..Mapping::default() }].into();
        write(Item::Mappings(Mappings { target: 1, maps, partial, ..Mappings::default() }));
        let region = |from: u64, to: u64| RegionSnapshot {
            range: AddrRange::new(from * MIB, to * MIB),
            nr_accesses: 20,
            nr_accesses_bp: 200_000,
            resident: Some((to - from) * MIB),
            ..RegionSnapshot::default()
        };
        for i in 0..20 {
            write(Item::Snapshot(Snapshot {
                start_ns: i * 100_000_000,
                end_ns: (i + 1) * 100_000_000,
                sample_ns: 5_000_000,
                max_nr_accesses: 20,
                targets: vec![TargetSnapshot::new(TargetId(1), vec![region(1, 2), region(10, 14)])],
            }));
        }
        writer.finish().unwrap();
    };
    let told = "the mappings of one process are not known to the end of the list";
    let reports = [["report", "info"], ["report", "summary"], ["report", "access"], ["report", "heatmap"]];
    recording(true);
    for args in reports {
        let text = run(dir, &args).ok();
        assert!(text.contains(told) && text.contains("--overhead"), "{args:?}: {text}");
    }
    let json = run(dir, &["report", "summary", "--json"]).json();
    assert_eq!(json["provenance"]["incomplete_mappings"], 1);
    assert_eq!(json["totals"]["mapped"], 5 * MIB, "what is there beyond counts, gaps do not");
    recording(false);
    for args in reports {
        assert!(!run(dir, &args).ok().contains("the mappings of"), "{args:?}");
    }
}

#[test]
fn info_tells_what_a_file_of_any_format_holds() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    server(&dir.join(DEFAULT), 1, 32.0, 2);
    let text = run(dir, &["report", "info", "--targets"]).ok();
    for part in [
        "rec, version 1.",
        "isotherm test",
        "box",
        "2023-11-14T22:13:20Z",
        "yes; ended: duration reached",
        "0.5 % of a CPU",
        "blind spot: mlocked",
        "bytes a region",
        "worker-3",
        "exited",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
    let json = run(dir, &["report", "info", "--json"]).json();
    assert_eq!((&json["nr_targets"], &json["mappings"]), (&3.into(), &9.into()));
    assert_eq!(json["provenance"]["snapshots"], 20);
    assert_eq!(json["duration_ns"], 2_000_000_000_u64);
    assert_eq!(json["targets"][2]["snapshots"], 10);
    let size = std::fs::metadata(dir.join(DEFAULT)).unwrap().len();
    assert_eq!(json["file"]["bytes"], size);
    for format in Format::ALL {
        let name = format!("made-up.{format}");
        made_up(dir, &name, format);
        // Where others began to read Parquet, it is a format like the others.
        let read = isotherm_record::open(&dir.join(&name)).is_ok();
        let done: Done = run(dir, &["report", "info", "-i", &name, "--json"]);
        if read {
            let json = done.json();
            assert_eq!(json["file"]["format"], format.to_string(), "{json}");
            assert!(json["provenance"]["snapshots"].as_u64().unwrap() > 10, "{json}");
        }
    }
    // Cut in the middle, and without a snapshot.
    let whole = std::fs::read(dir.join(DEFAULT)).unwrap();
    std::fs::write(dir.join("cut.rec"), &whole[..whole.len() * 2 / 3]).unwrap();
    let cut = run(dir, &["report", "info", "-i", "cut.rec"]).ok();
    assert!(cut.contains("no: see the remarks below") && cut.contains("remark"), "{cut}");
    let mut writer = create(&dir.join("empty.rec"), Format::Rec).unwrap();
    writer.write(&Item::Header(Header { host: "box".to_owned(), ..Header::default() })).unwrap();
    writer.finish().unwrap();
    let empty = run(dir, &["report", "info", "-i", "empty.rec"]).ok();
    assert!(empty.contains("box") && empty.contains("snapshots    0"), "{empty}");
    std::fs::write(dir.join("notes.txt"), "to do: buy milk").unwrap();
    run(dir, &["report", "info", "-i", "notes.txt"]).fails(1, &["notes.txt"]);
}

#[test]
fn info_tells_of_several_files_each_and_together() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    for name in ["a.rec", "b.rec"] {
        server(&dir.join(name), 1, 32.0, 2);
    }
    let whole = std::fs::read(dir.join("b.rec")).unwrap();
    std::fs::write(dir.join("b.rec"), &whole[..whole.len() * 2 / 3]).unwrap();
    let text = run(dir, &["report", "info", "-i", "a.rec", "b.rec"]).out;
    let row = |name: &str| text.lines().find(|l| l.ends_with(name)).unwrap().to_owned();
    assert!(row("a.rec").contains("2 s") && row("a.rec").contains(" yes "), "{text}");
    assert!(row("b.rec").contains(" no "), "{text}");
    assert!(text.contains("not one recording") && text.contains("no parts of one run"), "{text}");
    let json = run(dir, &["report", "info", "--json", "-i", "a.rec", "b.rec"]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["files"].as_array().unwrap().len(), 2);
    assert!(json["together"].is_null() && json["not_one"].as_str().unwrap().contains("b.rec"), "{json}");
    // Two that belong together, a second apart.
    let part = |name: &str, from: u64| {
        let mut writer = create(&dir.join(name), Format::Rec).unwrap();
        let started = 1_700_000_000_000_000_000 + from * 1_000_000_000;
        let header = Header {
            host: "box".to_owned(),
            started_unix_ns: started,
            started_ns: from * 1_000_000_000,
            ..Header::default()
        };
        writer.write(&Item::Header(header)).unwrap();
        for i in 0..20 {
            let start_ns = from * 1_000_000_000 + i * 100_000_000;
            let regions = vec![RegionSnapshot { range: AddrRange::new(0, MIB), ..RegionSnapshot::default() }];
            let targets = vec![TargetSnapshot::new(TargetId(1), regions)];
            let end_ns = start_ns + 100_000_000;
            let snapshot = Snapshot { start_ns, end_ns, sample_ns: 5_000_000, max_nr_accesses: 20, targets };
            writer.write_snapshot(&snapshot).unwrap();
        }
        writer.finish().unwrap();
    };
    part("1.rec", 0);
    part("2.rec", 3);
    let text = run(dir, &["report", "info", "-i", "2.rec", "1.rec"]).ok();
    assert!(text.contains("2 files, read as one") && text.contains("duration     5 s"), "{text}");
    let rows: Vec<&str> = text.lines().filter(|l| l.ends_with("1.rec") || l.ends_with("2.rec")).collect();
    assert!(rows[0].ends_with("1.rec") && rows[1].ends_with("2.rec"), "{text}");
    let json = run(dir, &["report", "info", "--json", "-i", "1.rec", "2.rec"]).json();
    let sum = |of: &serde_json::Value| of["file"]["bytes"].as_u64().unwrap();
    assert_eq!(sum(&json["together"]), sum(&json["files"][0]) + sum(&json["files"][1]));
    // A single one is as ever.
    assert_eq!(run(dir, &["report", "info", "--json", "-i", "a.rec"]).json()["file"]["path"], "a.rec");
    run(dir, &["report", "info", "-i", "a.rec", "-"]).fails(2, &["stream"]);
}

#[test]
fn diff_finds_what_grew_and_nothing_else() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    for (name, seed, hot) in [("a1", 1, 32.0), ("a2", 5, 32.0), ("b1", 3, 35.2), ("b2", 7, 35.2)] {
        server(&dir.join(format!("{name}.rec")), seed, hot, 15);
    }
    let diff = |args: &[&str]| run(dir, &[&["report", "diff"], args].concat());
    let same = diff(&["--exit-code", "a1.rec", "a2.rec"]).ok();
    assert_eq!(same.lines().last(), Some("no significant difference"), "{same}");
    let json = diff(&["--json", "a1.rec", "a2.rec"]).json();
    assert_eq!(json["significant"], false);
    let grew = diff(&["--exit-code", "a1.rec", "b1.rec"]);
    assert_eq!(grew.status.code(), Some(1), "{grew:?}");
    assert!(grew.out.contains("grew by 10 % (p "), "{}", grew.out);
    // Without the option a difference is no failure.
    let json = diff(&["--json", "a1.rec,a2.rec", "b1.rec,b2.rec"]).json();
    assert_eq!(json["a"].as_array().unwrap().len(), 2);
    let rows = json["rows"].as_array().unwrap();
    let differing: Vec<_> = rows.iter().filter(|r| r["working_set"]["significant"] == true).collect();
    assert_eq!(differing.len(), 1, "{json}");
    assert_eq!((&differing[0]["program"], &differing[0]["mapping"]), (&"server".into(), &"anon".into()));
    assert_eq!(differing[0]["size_a"], 64 * MIB);
    // Smaller than asked for.
    assert!(diff(&["--min-change", "20%", "a1.rec", "b1.rec"]).ok().contains("no significant difference"));
    // What went wrong is not a difference.
    diff(&["--exit-code", "a1.rec", "missing.rec"]).fails(2, &["missing.rec"]);
    diff(&["a1.rec", "missing.rec"]).fails(1, &["missing.rec"]);
}

#[test]
fn diff_has_a_status_of_its_own_for_what_it_cannot_tell() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    // Recordings of one side that differ among each other more than the sides do.
    for (name, seed, hot) in [("a1", 1, 24.0), ("a2", 2, 40.0), ("b1", 4, 27.0), ("b2", 5, 45.0)] {
        server(&dir.join(format!("{name}.rec")), seed, hot, 15);
    }
    let unclear = run(dir, &["report", "diff", "--exit-code", "a1.rec,a2.rec", "b1.rec,b2.rec"]);
    assert_eq!(unclear.status.code(), Some(3), "{unclear:?}");
    let verdict = unclear.out.lines().last().unwrap();
    assert!(verdict.starts_with("unclear whether the working set differs: noise hides"), "{verdict}");
    assert_eq!(verdict.matches("unclear").count(), 1, "{verdict}");
    // Without the option that is no failure.
    let json = run(dir, &["report", "diff", "--json", "a1.rec,a2.rec", "b1.rec,b2.rec"]).json();
    assert_eq!((&json["outcome"], &json["significant"]), (&"unclear".into(), &false.into()));
}

#[test]
fn what_a_program_maps_at_its_start_is_in_the_summary_of_its_first_seconds() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    // Its mappings are read when it begins, and the next regular time is past the recording's end.
    let workload = [
        "--",
        ISOTHERM,
        "workload",
        "hotspot",
        "--set",
        "total=64M",
        "--set",
        "offset=32M",
        "--set",
        "phase=5s",
    ];
    let record = [&["record", "-d", "4s", "--update", "60s"][..], &workload].concat();
    run(dir.path(), &record).ok();
    let json = run(dir.path(), &["report", "summary", "--json"]).json();
    let mapped = json["totals"]["mapped"].as_u64().unwrap();
    assert!(mapped >= 64 * MIB, "{mapped}");
}
