//! What is asked for by mistake is refused, with what to do; nothing else is done instead.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::*;
use isotherm_record::{Format, Item};
use std::fs;
use tempfile::tempdir;

#[test]
fn a_comparison_with_nothing_is_refused() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), "a.rec", Format::Rec);
    for side in [",", ",,"] {
        let args = ["report", "diff", "--exit-code", "a.rec", side];
        run(dir.path(), &args).fails(2, &["no file named"]);
        run(dir.path(), &["report", "diff", side, "a.rec"]).fails(2, &["no file named"]);
    }
    run(dir.path(), &["report", "diff", "a.rec,", "a.rec"])
        .fails(2, &["\"a.rec,\"", "no file named", "comma"]);
    // One recording is no two: nor is a copy, or one in another format.
    fs::copy(dir.path().join("a.rec"), dir.path().join("b.rec")).unwrap();
    run(dir.path(), &["convert", "-q", "a.rec", "c.parquet"]).ok();
    for other in ["a.rec", "b.rec", "c.parquet"] {
        run(dir.path(), &["report", "diff", "a.rec", &format!("a.rec,{other}")])
            .fails(2, &[other, "the same recording as a.rec", "once"]);
    }
    run(dir.path(), &["report", "diff", "a.rec", "b.rec"]).ok();
    // A name with a comma that is a file is one.
    fs::rename(dir.path().join("a.rec"), dir.path().join("a,")).unwrap();
    run(dir.path(), &["report", "diff", "a,", "a,"]).ok();
}

#[test]
fn a_format_that_is_not_known_is_not_taken_for_another() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), "a.rec", Format::Rec);
    run(dir.path(), &["convert", "a.rec", "out.csv"]).fails(2, &["out.csv", ".parquet", "--to"]);
    assert!(!dir.path().join("out.csv").exists());
    run(dir.path(), &["convert", "-q", "a.rec", "out.csv", "--to", "rec"]).ok();
    run(dir.path(), &["convert", "-q", "a.rec", "plain"]).ok();
    for name in ["out.csv", "plain"] {
        assert!(snapshots(&read(&dir.path().join(name)).unwrap()) > 0, "{name}");
    }
}

#[test]
fn rates_that_nothing_can_have_are_refused() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), "isotherm.rec", Format::Rec);
    run(dir.path(), &["report", "access", "--rate", "50%..20%"]).fails(2, &["50%..20%", "above the maximum"]);
    run(dir.path(), &["report", "access", "--rate", "20%..50%"]).ok();
    // Of what can be asked for, but not seen with these intervals, it is said.
    let done = run(dir.path(), &["report", "access", "--rate", "90000Hz.."]);
    assert!(done.err.contains("the highest rate that can be seen"), "{done:?}");
    let wss = run(dir.path(), &["report", "wss", "--threshold", "90000Hz"]).ok();
    assert!(wss.contains("no rate can be that high"), "{wss}");
    let wss = run(dir.path(), &["report", "wss", "--threshold", "90000"]).ok();
    assert!(wss.contains("no region can have so many"), "{wss}");
}

#[test]
fn files_that_are_not_one_recording_are_an_error_of_info_too() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), "a.rec", Format::Rec);
    let done = run(dir.path(), &["report", "info", "-i", "a.rec", "a.rec"]);
    assert!(done.out.contains("not one recording"), "{done:?}");
    done.fails(1, &["no parts of one run"]);
    let json = run(dir.path(), &["report", "info", "--json", "-i", "a.rec", "a.rec"]);
    assert!(serde_json::from_str::<serde_json::Value>(&json.out).unwrap()["not_one"].is_string());
    json.fails(1, &["no parts of one run"]);
}

#[test]
fn info_tells_of_a_stump_in_a_directory_and_describes_the_rest() {
    let dir = tempdir().unwrap();
    std::fs::create_dir(dir.path().join("series")).unwrap();
    made_up(dir.path(), "series/a.rec", Format::Rec);
    let whole = std::fs::read(dir.path().join("series/a.rec")).unwrap();
    std::fs::write(dir.path().join("series/b.rec"), &whole[..10]).unwrap();
    let done = run(dir.path(), &["report", "info", "-i", "series"]);
    assert!(done.err.contains("series/b.rec is not a recording, or nothing of it is left"), "{done:?}");
    assert!(done.out.contains("snapshots") && done.out.contains("series/a.rec"), "{done:?}");
    done.ok();
    let json = run(dir.path(), &["report", "info", "--json", "-i", "series"]).json();
    assert!(json["unreadable"][0].as_str().unwrap().contains("series/b.rec"), "{json}");
    // What is named is to be read.
    run(dir.path(), &["report", "info", "-i", "series/a.rec", "series/b.rec"]).fails(1, &["series/b.rec"]);
    run(dir.path(), &["report", "info", "-i", "series/a.rec", "missing"])
        .fails(1, &["there is no recording"]);
    // Where nothing else is there, it is an error.
    std::fs::remove_file(dir.path().join("series/a.rec")).unwrap();
    run(dir.path(), &["report", "info", "-i", "series"]).fails(1, &["b.rec", "nothing of it is left"]);
}

#[test]
fn a_series_is_converted_as_one() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    fs::create_dir(dir.path().join("ser")).unwrap();
    let series = ["record", "-q", "--pid", &pid, "--every", "1s", "-d", "3s", "-o", "ser/a.rec"];
    run(dir.path(), &series).ok();
    let mut files: Vec<String> = fs::read_dir(dir.path().join("ser"))
        .unwrap()
        .map(|entry| entry.unwrap().path().display().to_string())
        .collect();
    files.sort();
    let count = |name: &str| snapshots(&read(&dir.path().join(name)).unwrap());
    let all: usize = files.iter().map(|file| count(file)).sum();
    assert!(files.len() > 1, "{files:?}");
    run(dir.path(), &["convert", "-q", "ser", "whole.rec"]).ok();
    let mut args = vec!["convert", "-q"];
    args.extend(files.iter().map(String::as_str));
    args.push("files.rec");
    run(dir.path(), &args).ok();
    assert_eq!((count("whole.rec"), count("files.rec")), (all, all));
    let headers = |name: &str| {
        let items = read(&dir.path().join(name)).unwrap();
        items.iter().filter(|item| matches!(item, Item::Header(_))).count()
    };
    assert_eq!(headers("whole.rec"), 1);
    run(dir.path(), &["convert", "ser", &files[0]]).fails(2, &["the same file"]);
    // The output forgotten, the last of the series stands in its place.
    let last = files.last().unwrap();
    let held = fs::read(last).unwrap();
    let all: Vec<&str> = std::iter::once("convert").chain(files.iter().map(String::as_str)).collect();
    run(dir.path(), &all).fails(2, &[last, "another part of the recording"]);
    run(dir.path(), &["convert", &files[0], last]).fails(2, &[last, "another part of the recording"]);
    assert_eq!(fs::read(last).unwrap(), held);
    run(dir.path(), &["convert", "-q", "ser", "whole.rec"]).ok();
}

/// It is not looked through to its end, which would take hours.
#[test]
fn zeros_are_no_recording_whatever_their_name() {
    let dir = tempdir().unwrap();
    fs::File::create(dir.path().join("big.rec")).unwrap().set_len(1 << 42).unwrap();
    for report in ["info", "wss"] {
        run(dir.path(), &["report", report, "-i", "big.rec"])
            .fails(1, &["big.rec", "begins with zeros", "--from rec"]);
    }
    // Of one whose beginning is lost what is left is still found, if it is asked for.
    made_up(dir.path(), "a.rec", Format::Rec);
    let mut bytes = vec![0; 1 << 16];
    bytes.extend(fs::read(dir.path().join("a.rec")).unwrap());
    fs::write(dir.path().join("late.rec"), bytes).unwrap();
    run(dir.path(), &["report", "info", "-i", "late.rec"]).fails(1, &["begins with zeros"]);
    let late = run(dir.path(), &["report", "info", "-i", "late.rec", "--from", "rec"]);
    assert!(
        late.out.contains("snapshots") && late.status.code() == Some(1),
        "what is lost is missed: {late:?}"
    );
}

#[test]
fn of_recordings_of_different_commands_it_is_said_that_they_are() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    for (name, program) in [("a.rec", "true"), ("b.rec", "false"), ("c.rec", "true")] {
        let script = format!("sleep {LONG_ENOUGH}; {program}");
        run(dir.path(), &["record", "-q", "-o", name, "--", "sh", "-c", &script]);
    }
    let told = |files: [&str; 2]| run(dir.path(), &["report", "wss", "-i", files[0], files[1]]).err;
    let different = told(["a.rec", "b.rec"]);
    assert!(
        different.contains("different commands (`sh -c 'sleep 2; false'`, `sh -c 'sleep 2; true'`)"),
        "{different}"
    );
    let same = told(["a.rec", "c.rec"]);
    assert!(same.contains("2 runs of the recorder") && !same.contains("different"), "{same}");
}

#[test]
fn a_command_that_is_below_another_is_named_whole() {
    let dir = tempdir().unwrap();
    run(dir.path(), &["wss"]).fails(2, &["`isotherm report wss`"]);
    run(dir.path(), &["accuracy"]).fails(2, &["`isotherm lab accuracy`"]);
    let done = run(dir.path(), &["nonsense"]);
    assert!(!done.err.contains("there is"), "{done:?}");
}

#[test]
fn figures_that_make_no_sense_are_refused_in_words() {
    let dir = tempdir().unwrap();
    run(dir.path(), &["report", "summary", "-n", "x"]).fails(2, &["'x'", "a whole number"]);
    run(dir.path(), &["report", "summary", "--mappings=-1"]).fails(2, &["'-1'", "a whole number"]);
    if pte_works() {
        let done = run(dir.path(), &["record", "-o", ".", "--", "true"]);
        done.fails(1, &["Is a directory", "name a file in it"]);
    }
    run(dir.path(), &["record", "--overhead", "1e9%", "--pid", "1"])
        .fails(2, &["1e9%", "100%", "0 is no ceiling"]);
}
