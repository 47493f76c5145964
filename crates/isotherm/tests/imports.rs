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
    assert_eq!(provenance["backend"]["blind_spots"], serde_json::json!([]));
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
