//! Foreign formats: what they can carry comes back, whoever wrote it and however sloppily.
#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml allows it in the tests only

mod common;

use common::{items_of, small, snapshots};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use isotherm_damon::{RegionSnapshot, Snapshot};
use isotherm_record::{
    Error, Format, Header, Item, ReadOptions, RecordedAttrs, Warning, convert, create, open, open_with,
};
use proptest::prelude::*;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const DAMO: [Format; 6] = [
    Format::JsonCompressed,
    Format::Json,
    Format::PerfScript,
    Format::RecordV0,
    Format::RecordV1,
    Format::RecordV2,
];

fn write(path: &Path, format: Format, items: &[Item]) {
    let mut writer = create(path, format).unwrap();
    items.iter().for_each(|item| writer.write(item).unwrap());
    writer.finish().unwrap();
}

fn defaults() -> RecordedAttrs {
    RecordedAttrs { sample_us: 5000, aggr_us: 100_000, ..RecordedAttrs::default() }
}

/// The items of a file with this content, and the warnings.
fn read_bytes(content: &[u8], intervals: RecordedAttrs) -> Result<(Vec<Item>, Vec<Warning>), Error> {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(content).unwrap();
    let mut reader = open_with(file.path(), &ReadOptions { intervals, ..ReadOptions::default() })?;
    let items = items_of(&mut *reader);
    Ok((items, reader.warnings().to_vec()))
}

fn read_text(content: &str) -> (Vec<Snapshot>, Vec<Warning>) {
    let (items, warnings) = read_bytes(content.as_bytes(), RecordedAttrs::default()).unwrap();
    (snapshots(&items), warnings)
}

fn region(start: u64, end: u64, nr_accesses: u32, age: u32) -> RegionSnapshot {
    let range = isotherm_damon::AddrRange::new(start, end);
    RegionSnapshot {
        range,
        nr_accesses,
        nr_accesses_bp: nr_accesses * 10_000,
        age,
        ..RegionSnapshot::default()
    }
}

fn header(items: &[Item]) -> &Header {
    let Some(Item::Header(header)) = items.first() else { panic!("no header") };
    header
}

/// The snapshots as a format keeps them.
fn carried(format: Format, snapshots: &[Snapshot]) -> Vec<Snapshot> {
    let mut carried = snapshots.to_vec();
    if matches!(format, Format::JsonCompressed | Format::Json) {
        return carried;
    }
    let micros = format == Format::PerfScript;
    for s in &mut carried {
        if micros {
            s.end_ns = (s.end_ns + 500) / 1000 * 1000;
        } else {
            s.targets.iter_mut().flat_map(|t| &mut t.regions).for_each(|r| r.age = 0);
        }
    }
    let (first, last) = (carried[0].end_ns, carried[carried.len() - 1].end_ns);
    let mut start = first - (last - first) / (carried.len() as u64 - 1);
    for s in &mut carried {
        s.start_ns = std::mem::replace(&mut start, s.end_ns);
    }
    carried
}

#[test]
fn every_format_brings_back_what_it_can_carry() {
    let items = small();
    let dir = tempfile::tempdir().unwrap();
    for format in DAMO {
        let path = dir.path().join(format.name());
        write(&path, format, &items);
        assert_eq!(Format::detect(&fs::read(&path).unwrap()), Some(format));
        let options = ReadOptions { intervals: defaults(), ..ReadOptions::default() };
        let mut reader = open_with(&path, &options).unwrap();
        assert_eq!(reader.format(), format);
        let read = items_of(&mut *reader);
        assert_eq!(reader.warnings(), [], "{format}");
        assert_eq!(snapshots(&read), carried(format, &snapshots(&items)), "{format}");
        assert_eq!(header(&read).attrs.aggr_us, 100_000, "{format}");
        let ids: Vec<u64> = read
            .iter()
            .filter_map(|i| match i {
                Item::Target(t) => Some(t.id),
                _ => None,
            })
            .collect();
        assert_eq!(ids, [4001, 4002], "{format}");
        assert!(matches!(read.last(), Some(Item::End(_))), "{format}");
    }
}

#[test]
fn any_format_converts_to_any_other() {
    let items = small();
    let dir = tempfile::tempdir().unwrap();
    for from in DAMO {
        let original = dir.path().join(from.name());
        write(&original, from, &items);
        for to in DAMO {
            let converted = dir.path().join("converted");
            let done = convert(&original, &converted, &ReadOptions::default(), Some(to)).unwrap();
            assert_eq!(done.regions, snapshots(&items).iter().map(|s| s.nr_regions() as u64).sum::<u64>());
            assert_eq!(done.lost, to.losses_from(from));
            let read = |path: &PathBuf| snapshots(&items_of(&mut *open(path).unwrap()));
            let (before, after) = (read(&original), read(&converted));
            assert_eq!(before.len(), after.len(), "{from} to {to}");
            for (a, b) in before.iter().zip(&after) {
                assert!(a.end_ns.abs_diff(b.end_ns) <= 500, "{from} to {to}");
                let ranges = |s: &Snapshot| -> Vec<_> {
                    s.targets.iter().flat_map(|t| &t.regions).map(|r| (r.range, r.nr_accesses)).collect()
                };
                assert_eq!(ranges(a), ranges(b), "{from} to {to}");
            }
        }
    }
}

#[test]
fn what_the_input_could_not_hold_is_not_lost() {
    for to in DAMO {
        assert_eq!(to.losses_from(Format::Rec), to.losses());
        assert_eq!(to.losses_from(to), [""; 0], "{to}");
        assert_eq!(Format::Rec.losses_from(to), [""; 0], "{to}");
    }
    let binary = Format::RecordV2;
    let (no_attrs, no_starts) =
        ("the monitoring attributes", "start times of snapshots (taken from the end of the one before)");
    assert_eq!(binary.losses_from(Format::Json), [no_attrs, no_starts, "ages of regions"]);
    assert_eq!(binary.losses_from(Format::PerfScript), ["ages of regions"]);
    // A trace says nothing of attributes, so no detail of them is lost.
    assert_eq!(Format::Json.losses_from(Format::PerfScript), [""; 0]);
}

#[test]
fn json_may_be_written_for_people() {
    let (snapshots, warnings) = read_text(
        r#"{"damo_reocrd_ver": 1, "damon_records": {"kdamonds": [{}], "record_list": [{
            "snapshots": [{
                "start_time": "1.5 s", "end_time": "1,600,000,000",
                "regions": [
                    {"start": "4,096", "end": "1 M", "nr_accesses": {"samples": "3"}, "age": {"usec": "200 ms"}},
                    {"start": 1048576.0, "end": "max", "nr_accesses": {"samples": null, "percent": "50 %"}},
                    {"start": "8K", "nr_accesses": 2},
                    {"start": 0, "end": 4096, "nr_accesses": 7, "age": 9, "probe_hits": [1]}
                ]
            }, {"regions": []}],
            "target_id": "42"
        }]}}"#,
    );
    let [snapshot] = &snapshots[..] else { panic!("{snapshots:?}") };
    assert_eq!((snapshot.start_ns, snapshot.end_ns), (1_500_000_000, 1_600_000_000));
    assert_eq!(snapshot.targets[0].id.0, 42);
    // Without intervals a percentage says nothing.
    let starts: Vec<u64> = snapshot.targets[0].regions.iter().map(|r| r.range.start).collect();
    assert_eq!(starts, [0, 4096]);
    assert_eq!(snapshot.targets[0].regions[0], region(0, 4096, 7, 9));
    assert!(warnings.contains(&Warning::Skipped { count: 1, what: "snapshots without a time" }));
    let what = "regions without addresses, or without accesses";
    assert!(warnings.contains(&Warning::Skipped { count: 2, what }), "{warnings:?}");
}

#[test]
fn json_intervals_give_rates_and_ages_their_unit() {
    let (snapshots, warnings) = read_text(
        r#"[{"intervals": {"sample_us": "5 ms", "aggr_us": 100000, "ops_update_us": "1 s"}, "target_id": 7,
            "snapshots": [{"start_time": 0, "end_time": 100000000, "sample_interval_us": 10000, "regions": [
                {"start": 0, "end": 4096, "nr_accesses": {"percent": 25}, "age": {"usec": 300000}}]}]}]"#,
    );
    assert_eq!(warnings, []);
    assert_eq!(snapshots[0].targets[0].regions, [region(0, 4096, 5, 3)]);
    assert_eq!((snapshots[0].sample_ns, snapshots[0].max_nr_accesses), (10_000_000, 10));
}

/// damo 3.4.3 writes 5 ms as `"sample_interval_us": "5000000"`.
#[test]
fn a_sampling_interval_in_the_wrong_unit_is_seen_through() {
    let (snapshots, _) = read_text(
        r#"[{"intervals": {"sample_us": "5000", "aggr_us": "100000", "ops_update_us": "1000000"}, "target_id": 7,
            "snapshots": [{"start_time": "0", "end_time": "100000000", "sample_interval_us": "5000000", "regions": []},
                          {"start_time": "0", "end_time": "100000000", "sample_interval_us": "5000", "regions": []}]}]"#,
    );
    for snapshot in &snapshots {
        assert_eq!((snapshot.sample_ns, snapshot.max_nr_accesses), (5_000_000, 20));
    }
}

/// Snapshots of a file of damo's, of so many sampling intervals of their own (0: not said) and lengths, in ms, beside what it
/// says of all: 5 ms and 100 ms.
fn taken(snapshots: &[(u64, u64)]) -> (Vec<(u64, u32)>, Vec<String>) {
    let mut end = 0;
    let mut one = |(sample, length): &(u64, u64)| {
        let start = end;
        end += length * 1_000_000;
        let sample = if *sample == 0 { "null".to_owned() } else { format!("\"{}\"", sample * 1000) };
        let region =
            r#"{"start": 0, "end": 4096, "nr_accesses": {"samples": 3}, "age": {"aggr_intervals": 1}}"#;
        format!(
            r#"{{"start_time": {start}, "end_time": {end}, "sample_interval_us": {sample}, "regions": [{region}]}}"#
        )
    };
    let list: Vec<String> = snapshots.iter().map(&mut one).collect();
    let text = format!(
        r#"[{{"intervals": {{"sample_us": 5000, "aggr_us": 100000}}, "target_id": 7, "snapshots": [{}]}}]"#,
        list.join(",")
    );
    let (mut found, mut spots) = (Vec::new(), Vec::new());
    for item in read_bytes(text.as_bytes(), RecordedAttrs::default()).unwrap().0 {
        match item {
            Item::Snapshot(s) => found.push((s.sample_ns / 1_000_000, s.max_nr_accesses)),
            Item::Header(header) => {
                // What goes for all such files comes last.
                spots = header.backend.blind_spots;
                assert_eq!(spots.split_off(spots.len() - 2), isotherm_record::NOT_TOLD);
            }
            _ => {}
        }
    }
    (found, spots)
}

/// What a snapshot may count is what fits into the time that it took: else reports take the rest of it for a stop of the recorder.
#[test]
fn snapshots_longer_than_the_file_says_are_aggregations_of_their_own_length() {
    // Tuned by the kernel while recording: both intervals grow alike.
    let (found, spots) = taken(&[(5, 100), (5, 103), (250, 5000), (250, 5010)]);
    assert_eq!((found, spots), (vec![(5, 20), (5, 20), (250, 20), (250, 20)], vec![]));
    // One is late, or others before it are missing: then what the file says holds.
    let (found, spots) = taken(&[(0, 100), (0, 5000), (0, 100)]);
    assert_eq!((found, spots), (vec![(5, 20); 3], vec![]));
    // Not one of them is as short as the file says.
    for own in [0, 5] {
        let (found, spots) = taken(&[(own, 5000), (own, 4000), (own, 6000)]);
        assert_eq!(found, [(5, 1000), (5, 800), (5, 1200)]);
        assert!(
            spots[0].contains("takes 100 ms") && spots[0].contains("4000 ms and more, 5000 ms"),
            "{spots:?}"
        );
    }
    // Where the file does not say, --aggr does, and is doubted.
    let text = r#"[{"target_id": 7, "snapshots": [{"start_time": 0, "end_time": 5000000000, "regions": []},
                                                  {"start_time": 5000000000, "end_time": 10000000000, "regions": []}]}]"#;
    let (items, _) = read_bytes(text.as_bytes(), defaults()).unwrap();
    let Some(Item::Header(header)) = items.first() else { panic!("{items:?}") };
    assert!(header.backend.blind_spots[0].contains("5000 ms apart, and --aggr says 100 ms"), "{header:?}");
}

/// damo writes one target after another; what happened at the same time belongs together.
#[test]
fn targets_that_come_one_after_another_are_merged_by_time() {
    let record = |target: u64, times: &[u64]| {
        let snapshot = |t: &u64| format!(r#"{{"start_time":{},"end_time":{t},"regions":[]}}"#, t - 10);
        let snapshots: Vec<String> = times.iter().map(snapshot).collect();
        format!(r#"{{"target_id":{target},"snapshots":[{}]}}"#, snapshots.join(","))
    };
    let text = format!("[{},{}]", record(9, &[20, 30, 40]), record(3, &[25, 30, 50]));
    let (snapshots, _) = read_text(&text);
    let order: Vec<(u64, Vec<u64>)> =
        snapshots.iter().map(|s| (s.end_ns, s.targets.iter().map(|t| t.id.0).collect())).collect();
    let expected = [(20, vec![9]), (25, vec![3]), (30, vec![3, 9]), (40, vec![9]), (50, vec![3])];
    assert_eq!(order, expected);
}

#[test]
fn perf_script_text_in_all_its_variants() {
    let (read, warnings) = read_text(
        "# a comment\n\n\
         kdamond.0  4452 [000] 10.100000: damon:damon_aggregated: target_id=1 nr_regions=2 4096-8192: 3 7\n\
         kdamond.0  4452 [000] 10.100003: damon:damon_aggregated: target_id=1 nr_regions=2 8192-12288: 0 8\n\
         bash: a b  17 10.150000: sched:sched_switch: prev=x\n\
         kdamond: 0  4452 10.150000: damon:damon_monitor_intervals_tune: sample_us=5000\n\
         my cmd: x  4452 10.200000: damon_aggregated: target_id=1 nr_regions=1 4096-8192: 4\n\
         kdamond.0  4452 [000] 10.300000: damon:damon_aggregated: target_id=1 nr_regions=2 4096-8192: 5 1\n\
         kdamond.0  4452 [000] 10.400000: damon:damon_aggregated: target_id=1 nr_regions=1 4096-8192: 6 2\n\
         kdamond.0  4452 [000] 10.500000: damon:damon_aggregated: target_id=1 nr_regions=3 4096-8192: 6 2\n",
    );
    let times: Vec<(u64, u64)> = read.iter().map(|s| (s.start_ns, s.end_ns)).collect();
    let ms = 1_000_000;
    assert_eq!(times, [(9950 * ms, 10_100 * ms), (10_100 * ms, 10_200 * ms), (10_200 * ms, 10_400 * ms)]);
    assert_eq!(read[0].targets[0].regions, [region(4096, 8192, 3, 7), region(8192, 12_288, 0, 8)]);
    assert_eq!(read[1].targets[0].regions, [region(4096, 8192, 4, 0)]);
    assert_eq!(read.iter().map(|s| s.sample_ns).collect::<Vec<_>>(), [0, 5 * ms, 5 * ms]);
    assert!(warnings.contains(&Warning::Skipped { count: 1, what: "snapshots of which events are missing" }));
    let what = "lines that are no damon_aggregated or damos_before_apply event";
    assert!(warnings.contains(&Warning::Skipped { count: 1, what }));
    assert!(matches!(warnings.last(), Some(Warning::Truncated { lost_bytes: 97, .. })), "{warnings:?}");
}

/// damo marks the end of a lone snapshot with a region 0-0, for want of a start time.
#[test]
fn a_lone_snapshot_starts_where_damos_mark_says() {
    let (read, warnings) = read_text(
        "kdamond.x xxxx xxxx 10.100000: damon:damon_aggregated: target_id=1 nr_regions=1 4096-8192: 3 7\n\
         kdamond.x xxxx xxxx 10.150000: damon:damon_aggregated: target_id=1 nr_regions=1 0-0: -1 -1\n",
    );
    assert_eq!(warnings, []);
    assert_eq!(
        read.iter().map(|s| (s.start_ns, s.end_ns)).collect::<Vec<_>>(),
        [(10_050_000_000, 10_100_000_000)]
    );
}

/// The layout, byte by byte, as damo's documentation has it.
#[test]
fn binary_records_are_laid_out_as_damo_laid_them_out() {
    let snapshot = |secs: i64, id: &[u8], accesses: u32| {
        [
            &secs.to_le_bytes()[..],
            &500_i64.to_le_bytes(),
            &1_u32.to_le_bytes(),
            id,
            &1_u32.to_le_bytes(),
            &4096_u64.to_le_bytes(),
            &8192_u64.to_le_bytes(),
            &accesses.to_le_bytes(),
        ]
        .concat()
    };
    let file = |version: Option<i32>, id: &[u8]| {
        let version = version.map(|v| [&b"damon_recfmt_ver"[..], &v.to_le_bytes()].concat());
        [version.unwrap_or_default(), snapshot(100, id, 5), snapshot(102, id, 6)].concat()
    };
    for (format, content) in [
        (Format::RecordV0, file(None, &77_u64.to_le_bytes())),
        (Format::RecordV1, file(Some(1), &77_i32.to_le_bytes())),
        (Format::RecordV2, file(Some(2), &77_u64.to_le_bytes())),
    ] {
        let (items, warnings) = read_bytes(&content, RecordedAttrs::default()).unwrap();
        assert_eq!(warnings, [], "{format}");
        let read = snapshots(&items);
        let times: Vec<(u64, u64)> = read.iter().map(|s| (s.start_ns, s.end_ns)).collect();
        assert_eq!(times, [(98_000_000_500, 100_000_000_500), (100_000_000_500, 102_000_000_500)]);
        assert_eq!(read[0].targets[0].id.0, 77);
        assert_eq!(read[1].targets[0].regions, [region(4096, 8192, 6, 0)]);

        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        write(&path, format, &items);
        assert_eq!(fs::read(&path).unwrap(), content, "{format}");
    }
}

#[test]
fn a_target_id_too_large_for_the_format_is_refused() {
    let mut items = small();
    for item in &mut items {
        if let Item::Snapshot(s) = item {
            s.targets[0].id.0 = u64::MAX;
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let mut writer = create(&dir.path().join("out"), Format::RecordV1).unwrap();
    let error = items.iter().find_map(|i| writer.write(i).err()).unwrap();
    assert!(error.to_string().contains("use record-v2"), "{error}");
}

/// Whether the last snapshot of what `perf script` printed is whole, its last line but for the line break and digits of the age.
fn is_whole(text: &[u8]) -> bool {
    let text = std::str::from_utf8(text).unwrap();
    let last = text.trim_end().lines().last().unwrap();
    let fields: Vec<&str> = last.split_whitespace().collect();
    // comm, pid, cpu, time, event, target, number, addresses, accesses, age
    let (Some(time), Some(of), 10) = (fields.get(3), fields.get(6), fields.len()) else { return false };
    let target = fields[5];
    let here =
        text.lines().filter(|line| line.contains(time) && line.split_whitespace().any(|f| f == target));
    here.count() == of.strip_prefix("nr_regions=").unwrap().parse::<usize>().unwrap()
}

/// Cut anywhere, a foreign file gives what came before the cut.
#[test]
fn cut_foreign_files_are_read_up_to_the_cut() {
    let items: Vec<Item> = small().into_iter().take(12).collect();
    let whole = snapshots(&items);
    let dir = tempfile::tempdir().unwrap();
    for format in [Format::JsonCompressed, Format::Json, Format::PerfScript, Format::RecordV2] {
        let path = dir.path().join("whole");
        write(&path, format, &items);
        let content = fs::read(&path).unwrap();
        let mut most = 0;
        for cut in (1..content.len()).step_by(1 + content.len() / 500) {
            let Ok((items, warnings)) = read_bytes(&content[..cut], defaults()) else { continue };
            let read = snapshots(&items);
            // The JSON holds one target after another.
            for (r, w) in read.iter().zip(&whole) {
                for target in &r.targets {
                    let original = w.targets.iter().find(|t| t.id == target.id).unwrap();
                    let ranges = |rs: &[RegionSnapshot]| rs.iter().map(|r| r.range).collect::<Vec<_>>();
                    assert_eq!(ranges(&target.regions), ranges(&original.regions), "{format} cut at {cut}");
                }
            }
            if cut + 16 < content.len() {
                let told = warnings.iter().any(|w| matches!(w, Warning::Truncated { .. }));
                // At the end of a snapshot, where the format has no end of its own.
                let between = match format {
                    Format::RecordV2 => !read.is_empty() && warnings.is_empty(),
                    Format::PerfScript => is_whole(&content[..cut]),
                    _ => false,
                };
                assert!(told || between, "{format} cut at {cut}: {warnings:?}");
            }
            most = most.max(read.len());
        }
        assert!(most + 1 >= whole.len(), "{format}: {most} of {}", whole.len());
    }
}

#[test]
fn junk_behind_readable_json_costs_only_the_junk() {
    let (read, warnings) = read_text(
        r#"[{"target_id":1,"snapshots":[{"start_time":1,"end_time":2,"regions":[]}]}, {"oops" 5}]"#,
    );
    assert_eq!(read.len(), 1);
    assert!(matches!(&warnings[..], [Warning::Stopped { .. }]), "{warnings:?}");
}

/// A few kilobytes of zlib that are gigabytes of brackets where a value is passed over: the parser would keep each of them.
#[test]
fn json_nested_without_end_is_refused() {
    for start in [
        r#"[{"x":"#,
        r#"{"x":"#,
        r#"[{"scheme_filters":"#,
        r#"[{"snapshots":[{"x":"#,
        r#"[{"snapshots":[{"start_time":1,"end_time":2,"regions":[{"x":"#,
    ] {
        let mut bomb = ZlibEncoder::new(Vec::new(), Compression::fast());
        bomb.write_all(start.as_bytes()).unwrap();
        for _ in 0..64 {
            bomb.write_all(&[b'['; 1 << 20]).unwrap();
        }
        let error = read_bytes(&bomb.finish().unwrap(), RecordedAttrs::default()).unwrap_err().to_string();
        assert!(error.contains("nested deeper than 128"), "{start}: {error}");
    }
}

#[test]
fn what_is_no_recording_is_refused_with_a_reason() {
    for (content, says) in [
        ("", "is empty"),
        ("hello world\n", "not a recording in any format"),
        ("{\"a\": 1}", "cannot be read as json"),
        ("PAR1", "it is cut off"),
        ("PERFILE2\u{68}", "perf script -i FILE > perf.txt"),
        ("\u{17}\u{8}Dtracing6", "trace-cmd report -i FILE"),
        (
            "[{\"target_id\": 1, \"snapshots\": [{\"start",
            "cut off at byte 39, before the end of its first snapshot",
        ),
        ("\u{1}\u{2}", "not a recording in any format"),
    ] {
        let error = read_bytes(content.as_bytes(), RecordedAttrs::default()).unwrap_err().to_string();
        assert!(error.contains(says), "{content:?}: {error}");
    }
    let missing = tempfile::tempdir().unwrap().path().join("file.rec");
    let error = open(&missing).err().unwrap().to_string();
    assert!(error.contains(missing.to_str().unwrap()) && error.contains("check the path"), "{error}");
}

#[test]
fn only_recordings_are_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let letter = dir.path().join("letter.txt");
    fs::write(&letter, "dear all").unwrap();
    let error = create(&letter, Format::Rec).err().unwrap();
    assert!(matches!(error, Error::WouldClobber { .. }), "{error}");
    assert_eq!(fs::read(&letter).unwrap(), b"dear all");

    let old = dir.path().join("old.rec");
    write(&old, Format::RecordV2, &small());
    write(&old, Format::Rec, &small());
    assert_eq!(items_of(&mut *open(&old).unwrap()), small());

    let error = convert(&old, &old, &ReadOptions::default(), None).unwrap_err().to_string();
    assert!(error.contains("the same file"), "{error}");
    assert_eq!(items_of(&mut *open(&old).unwrap()), small());
}

#[test]
fn a_full_disk_is_told_with_the_path_and_a_remedy() {
    let full = Path::new("/dev/full");
    for format in Format::ALL {
        let mut writer = create(full, format).unwrap();
        let written: Result<(), Error> = small().iter().try_for_each(|i| writer.write(i));
        let error = written.and_then(|()| writer.finish()).unwrap_err().to_string();
        assert!(error.contains("/dev/full") && error.contains("free some space"), "{format}: {error}");
    }
}

#[test]
fn names_and_extensions() {
    for format in Format::ALL {
        assert_eq!(format.name().parse(), Ok(format));
        assert_eq!(format.name().replace('-', "_").to_uppercase().parse(), Ok(format));
    }
    assert!("jason".parse::<Format>().unwrap_err().to_string().contains("json_compressed"));
    for (path, format) in [
        ("a/isotherm.rec", Some(Format::Rec)),
        ("damon.data", Some(Format::JsonCompressed)),
        ("x.json_compressed", Some(Format::JsonCompressed)),
        ("x.JSON", Some(Format::Json)),
        ("x.perf.txt", Some(Format::PerfScript)),
        ("x.damon", Some(Format::RecordV2)),
        ("x.parquet", Some(Format::Parquet)),
        ("x", None),
    ] {
        assert_eq!(Format::from_path(Path::new(path)), format, "{path}");
    }
    // Names are bytes.
    let name = std::os::unix::ffi::OsStrExt::from_bytes(b"\xff.json");
    assert_eq!(Format::from_path(Path::new::<std::ffi::OsStr>(name)), Some(Format::Json));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever follows a convincing beginning, a reader ends, in items or in an error.
    #[test]
    fn any_bytes_end_in_items_or_an_error(
        start in 0..6_usize,
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        compress: bool,
    ) {
        let starts: [&[u8]; 6] = [
            b"",
            b"damon_recfmt_ver\x01\0\0\0",
            b"damon_recfmt_ver\x02\0\0\0\x05\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0\x01\0\0\0",
            b"[{\"target_id\":1,\"snapshots\":[{\"start_time\":1,\"end_time\":2,\"regions\":[",
            b"k 1 [0] 1.5: damon:damon_aggregated: target_id=1 nr_regions=2 1-2: 3 4\nk 1 [0] 1.5: damon_aggregated: ",
            b"\x89ITH\r\n\x1a\n",
        ];
        let mut content = [starts[start], &bytes].concat();
        if compress {
            let mut encoder = ZlibEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(&content).unwrap();
            content = encoder.finish().unwrap();
        }
        let _ = read_bytes(&content, RecordedAttrs::default());
    }
}
