//! Recordings of other programs, as they come and as somebody made them.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{ISOTHERM, run};
use tempfile::tempdir;

/// damo's record of a 64 MiB range, seen by four schemes.
const FOUR: [&str; 4] = ["[]", "[{\"filter_type\":\"anon\",\"matching\":true,\"allow\":true}]", "[]", "[]"];

fn four_records() -> String {
    let records: Vec<String> = (0..4)
        .map(|scheme| {
            format!(
                "{{\"kdamond_idx\":0,\"context_idx\":0,\"scheme_idx\":{scheme},\"target_id\":null,\"intervals\":null,\
                 \"scheme_filters\":{},\"snapshots\":[{{\"start_time\":0,\"end_time\":100000000,\"damos_stats\":null,\
                 \"regions\":[{{\"start\":0,\"end\":67108864,\"nr_accesses\":{{\"samples\":20}},\
                 \"age\":{{\"aggr_intervals\":1}},\"sz_filter_passed\":\"4 MiB\"}},\
                 {{\"start\":67108864,\"end\":134217728,\"nr_accesses\":{{\"samples\":1}},\
                 \"age\":{{\"aggr_intervals\":1}}}}]}}]}}",
                FOUR[scheme]
            )
        })
        .collect();
    format!("[{}]", records.join(","))
}

#[test]
fn records_of_several_schemes_are_not_added_up() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("four.json"), four_records()).unwrap();
    let wss = |options: &[&str]| {
        let done =
            run(dir, &[&["report", "wss", "--damo", "--json", "-i", "four.json"][..], options].concat());
        let told = done.err.clone();
        let report: serde_json::Value = serde_json::from_str(&done.ok()).unwrap();
        (report["mean"].as_f64().unwrap() / f64::from(1 << 20), told)
    };
    let (mib, told) = wss(&[]);
    assert_eq!(mib, 128.0);
    for part in
        ["4 records", "1: context 0, scheme 0, 1 target, 1 snapshot", "allow anon", "record 1", "--record N"]
    {
        assert!(told.replace("several", "4").contains(part), "{part}: {told}");
    }
    // What a recording has no place for.
    assert!(told.contains("4 sizes of what of a region passed") && told.contains("scheme_filters"), "{told}");
    assert_eq!(wss(&["--record", "2"]).0, 128.0);
    assert_eq!(wss(&["--record", "all"]).0, 512.0);
    run(dir, &["report", "wss", "-i", "four.json", "--record", "5"])
        .fails(1, &["no record 5", "4: context 0, scheme 3"]);
    run(dir, &["report", "wss", "-i", "four.json", "--record", "0"]).fails(2, &["from 1"]);
}

/// Reports are printed, mailed, put beside each other: what standard error said is not there any more.
#[test]
fn what_was_left_out_is_said_in_the_report_and_in_what_is_converted() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("four.json"), four_records()).unwrap();
    // Of the second snapshot one region's event is lost.
    let event = |time: &str, nr: u32, at: u32| {
        format!(
            "k 1 [000] 100.{time}: damon:damon_aggregated: target_id=0 nr_regions={nr} {at}-{}: 1 1\n",
            at + 4096
        )
    };
    let lines =
        [event("0", 2, 0), event("0", 2, 4096), event("1", 3, 0), event("2", 2, 0), event("2", 2, 4096)];
    std::fs::write(dir.join("lost.txt"), lines.concat()).unwrap();
    for (file, sentences) in [
        (
            "four.json",
            &["it holds several records", "record 1 is read", "4 sizes of what of a region passed"][..],
        ),
        ("lost.txt", &["left out: 1 of the snapshots of which events are missing"]),
    ] {
        let converted = format!("{file}.rec");
        run(dir, &["convert", "-q", file, &converted]).ok();
        for file in [file, &converted] {
            let all = |text: &str, of: &str| {
                let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
                for sentence in sentences {
                    assert!(flat.contains(sentence), "{of} of {file}: {sentence}: {text}");
                }
            };
            for report in
                [&["access"][..], &["heatmap"], &["wss"], &["regions"], &["summary"], &["raw"], &["info"]]
            {
                let run = |more: &[&str]| run(dir, &[&["report"], report, &["-i", file], more].concat()).ok();
                all(&run(&[]), report[0]);
                if report != ["raw"] {
                    let json: serde_json::Value = serde_json::from_str(&run(&["--json"])).unwrap();
                    all(&json["provenance"].to_string(), &format!("{report:?} --json"));
                } else {
                    all(&run(&["--json"]), "raw --json");
                }
            }
            for (report, name) in [("heatmap", "heat.svg"), ("wss", "ws.svg"), ("html", "page.html")] {
                run(dir, &["report", report, "-i", file, "-o", name]).ok();
                let drawn = std::fs::read_to_string(dir.join(name)).unwrap();
                // Notes are wrapped into lines of text.
                let text: Vec<&str> =
                    drawn.split('<').filter_map(|part| part.split_once('>')).map(|p| p.1).collect();
                all(&text.join(" "), name);
            }
            let diff = run(dir, &["report", "diff", file, file]).ok();
            all(&diff, "diff");
        }
    }
}

#[test]
fn of_a_file_of_which_all_is_left_out_that_is_said() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let region = "{\"start\":0,\"end\":4096,\"nr_accesses\":{\"samples\":1},\"age\":{\"aggr_intervals\":1}}";
    let record = format!("[{{\"target_id\":1,\"snapshots\":[{{\"regions\":[{region}]}}]}}]");
    std::fs::write(dir.join("timeless.json"), record).unwrap();
    let done = run(dir, &["report", "heatmap", "-i", "timeless.json"]);
    assert!(!done.err.contains("before the first"), "{}", done.err);
    done.fails(1, &["holds no snapshot that can be used (left out: 1 of the snapshots without a time)"]);
}

#[test]
fn a_share_of_the_highest_rate_needs_no_sampling_interval() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("four.json"), four_records()).unwrap();
    let wss = |options: &[&str]| {
        let fixed = ["report", "wss", "--threshold", "50%", "--json", "-i", "four.json"];
        let report: serde_json::Value =
            serde_json::from_str(&run(dir, &[&fixed[..], options].concat()).ok()).unwrap();
        (report["mean"].as_f64().unwrap() / f64::from(1 << 20), report["provenance"].clone())
    };
    let (mib, provenance) = wss(&[]);
    assert_eq!(mib, 64.0, "one of two regions reaches half of the highest rate");
    let spots = provenance["backend"]["blind_spots"].to_string();
    assert!(spots.contains("highest count in it, 20") && !spots.contains("no rates in Hz"), "{spots}");
    // Said by the user, they are the recording's.
    let (mib, provenance) = wss(&["--sample", "1ms", "--aggr", "100ms"]);
    assert_eq!(mib, 0.0, "20 of 100");
    assert_eq!(
        (&provenance["attrs"]["sample_us"], &provenance["attrs"]["aggr_us"]),
        (&1000.into(), &100_000.into())
    );
    assert_eq!(provenance["backend"]["blind_spots"], serde_json::json!(isotherm_record::NOT_TOLD));
}

#[test]
fn an_aggregation_interval_that_does_not_fit_the_snapshots_is_doubted() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    common::made_up(dir, "isotherm.rec", isotherm_record::Format::Rec);
    run(dir, &["convert", "-q", "isotherm.rec", "trace.txt"]).ok();
    for report in ["wss", "access", "heatmap"] {
        let said = |told: &[&str]| {
            let told = [&["report", report, "-i", "trace.txt"], told].concat();
            let text = run(dir, &told).ok();
            text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
        };
        let short = said(&["--sample", "1ms", "--aggr", "20ms"]);
        assert!(short.contains("its snapshots are 100 ms apart, and --aggr says 20 ms"), "{short}");
        assert!(short.contains("rates are up to 5.0 times too high"), "{short}");
        let long = said(&["--sample", "5ms", "--aggr", "1s"]);
        assert!(long.contains("rates are up to 10.0 times too low"), "{long}");
        for right in [&["--sample", "5ms", "--aggr", "100ms"][..], &["--sample", "5ms"], &[]] {
            assert!(!said(right).contains("apart"), "{right:?}");
        }
    }
}

#[test]
fn what_the_next_format_has_no_place_for_is_said_of_imports_too() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let snapshot = |at: u32, regions: &str| {
        format!("{{\"start_time\":{at}00000000,\"end_time\":{}00000000,\"regions\":[{regions}]}}", at + 1)
    };
    let region = "{\"start\":0,\"end\":4096,\"nr_accesses\":{\"samples\":1},\"age\":{\"aggr_intervals\":1}}";
    let record = format!("[{{\"target_id\":1,\"snapshots\":[{},{}]}}]", snapshot(1, region), snapshot(2, ""));
    std::fs::write(dir.join("two.json"), record).unwrap();
    let done = run(dir, &["convert", "two.json", "two.txt"]);
    assert!(done.err.contains("perf-script has no place for: the monitoring attributes"), "{}", done.err);
    assert!(done.err.contains("snapshots without a region"), "{}", done.err);
    // Of what JSON had no place for nothing is lost here.
    assert!(!done.err.contains("mappings"), "{}", done.err);
    let same = run(dir, &["convert", "two.json", "two.json_compressed"]);
    assert!(!same.err.contains("no place"), "{}", same.err);
}

/// Under half a gigabyte of address space, and with what would take more than that if it was believed.
#[test]
fn a_file_made_to_harm_takes_no_memory() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let zlib = |name: &str, begin: &str, again: &str, times: usize| {
        let mut file = flate2::write::ZlibEncoder::new(
            std::fs::File::create(dir.join(name)).unwrap(),
            flate2::Compression::fast(),
        );
        let again = again.repeat(1 << 10);
        std::io::Write::write_all(&mut file, begin.as_bytes()).unwrap();
        (0..times).for_each(|_| std::io::Write::write_all(&mut file, again.as_bytes()).unwrap());
        file.finish().unwrap();
    };
    zlib("string", "[{\"target_id\": \"", "11111111", 50 << 10);
    zlib("key", "[{\"", "11111111", 50 << 10);
    zlib("nesting", "", "[", 10 << 10);
    zlib("records", "[{}", ",{}", 3 << 10);
    let region = ",{\"start\":1,\"end\":2,\"nr_accesses\":1}";
    zlib("regions", "[{\"snapshots\":[{\"end_time\":1,\"regions\":[{}", region, 3 << 10);
    for name in ["string", "key", "nesting", "records", "regions"] {
        let limited = format!("ulimit -v 524288; exec {ISOTHERM} convert {name} out.rec");
        let done = std::process::Command::new("sh").args(["-c", &limited]).current_dir(dir).output().unwrap();
        let told = String::from_utf8_lossy(&done.stderr).into_owned();
        // Refused or read, but by the program, which ends by itself.
        assert!(done.status.code().is_some_and(|code| code < 2), "{name}: {:?} {told}", done.status);
        if name == "string" {
            assert!(told.contains("a string longer than 262144 bytes"), "{told}");
        }
    }
}

/// 1 us sampled over 1 s, and over 10 s: more accesses than the fine count of a region has room for.
#[test]
fn a_million_samples_an_aggregation_are_told_from_half_of_them() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    // 1 MiB at every sample, one at half of them, one at none; aggregations of so many seconds.
    for (file, seconds) in [("fine.txt", 1), ("long.txt", 10)] {
        let line = |at: u32, range: &str, nr: u32| {
            let event = "damon:damon_aggregated: target_id=1 nr_regions=3";
            format!("kdamond.0 0 [000] {at}.000000: {event} {range}: {nr} 3\n")
        };
        let all = 1_000_000 * seconds;
        let lines = |i: u32| {
            let at = 100 + i * seconds;
            let (first, second) = (line(at, "1048576-2097152", all), line(at, "2097152-3145728", all / 2));
            [first, second, line(at, "3145728-4194304", 0)].concat()
        };
        std::fs::write(dir.join(file), (0..12).map(lines).collect::<String>()).unwrap();
    }
    let report = |args: &[&str]| {
        let input = ["-i", "fine.txt", "--sample", "1us", "--aggr", "1s"];
        run(dir, &[&["report"], args, &input[..]].concat())
    };
    let near = |found: f64, wanted: f64| (found - wanted).abs() <= wanted * 1e-3;

    let raw = report(&["raw", "--json"]).ok();
    let lines: Vec<serde_json::Value> = raw.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let regions: Vec<_> = lines.iter().filter(|l| l["type"] == "region").collect();
    let field = |name: &str| regions.iter().take(2).map(|r| r[name].as_f64().unwrap()).collect::<Vec<_>>();
    assert!(field("rate_hz").into_iter().zip([1e6, 5e5]).all(|(a, b)| near(a, b)), "{raw}");
    assert_eq!(field("nr_accesses_bp"), [1e10, 5e9]);
    let text = report(&["raw"]).ok();
    assert!(text.contains(" 1000000.000 ") && text.contains(" 500000.000 "), "{text}");

    for time in [&[][..], &["--time", "3s..9s"]] {
        let json = report(&[&["access", "--json"], time].concat()).json();
        let rows = json["targets"][0]["regions"].as_array().unwrap().clone();
        let rates: Vec<f64> = rows.iter().map(|r| r["rate_hz"].as_f64().unwrap()).collect();
        assert!(near(rates[0], 1e6) && near(rates[1], 5e5) && rates[2] == 0.0, "{time:?}: {rates:?}");
        assert!(near(rows[0]["rate_share"].as_f64().unwrap(), 1.0), "{rows:?}");
        assert!(near(json["targets"][0]["totals"]["rate_hz"].as_f64().unwrap(), 5e5), "{time:?}: {json}");
    }

    // A window of one sample meets what is accessed in it: all of one, half of the other.
    let wss = report(&["wss", "--window", "1us", "--json"]).json();
    assert!(near(wss["mean"].as_f64().unwrap(), 1.5 * 1_048_576.0), "{}", wss["mean"]);
    let wss = report(&["wss", "--threshold", "90%", "--json"]).json();
    assert_eq!(wss["mean"].as_f64(), Some(1_048_576.0));

    let map = report(&["heatmap", "--json"]).json();
    assert!(near(map["highest_hz"].as_f64().unwrap(), 1e6), "{}", map["highest_hz"]);
    let rows = map["panels"][0]["rates_hz"].as_array().unwrap();
    for hz in [1e6, 5e5, 0.0] {
        let of = |row: &&serde_json::Value| near(row[0].as_f64().unwrap(), hz);
        let found = rows.iter().filter(of).count();
        assert!(found.abs_diff(rows.len() / 3) <= 1, "{hz} Hz in {found} of {} rows", rows.len());
    }

    // Half of 10,000,000 samples are more than a tenth of them; what has room in the fine count is not.
    let long = ["report", "summary", "--json", "-i", "long.txt", "--sample", "1us", "--aggr", "10s"];
    let summary = run(dir, &long).json();
    assert_eq!(summary["totals"]["hot"].as_f64(), Some(2.0 * 1_048_576.0), "{}", summary["totals"]);
}

/// One snapshot of a format without start times: for how long its accesses were counted nothing tells. Of a nanosecond, as it once
/// was, seven of them are 7 GHz.
#[test]
fn a_lone_snapshot_of_unknown_length_is_told_to_be_taken_for_an_aggregation() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let mut file = b"damon_recfmt_ver".to_vec();
    file.extend(2_i32.to_le_bytes());
    file.extend([100_i64, 0].iter().flat_map(|n| n.to_le_bytes()));
    file.extend(1_u32.to_le_bytes());
    file.extend(7_u64.to_le_bytes());
    file.extend(1_u32.to_le_bytes());
    file.extend([0x10_0000_u64, 0x20_0000].iter().flat_map(|n| n.to_le_bytes()));
    file.extend(7_u32.to_le_bytes());
    std::fs::write(dir.join("lone.damon"), &file).unwrap();
    let access = |more: &[&str]| {
        let done = run(dir, &[&["report", "access", "-i", "lone.damon", "--json"], more].concat());
        (done.err.contains("100 ms is assumed"), done.json()["targets"][0]["regions"][0]["rate_hz"].clone())
    };
    assert_eq!(access(&[]), (true, 70.0.into()));
    assert_eq!(access(&["--aggr", "1s"]), (false, 7.0.into()));
    assert_eq!(access(&["--sample", "5ms", "--aggr", "100ms"]), (false, 70.0.into()));
}
