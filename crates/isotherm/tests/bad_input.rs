//! What cannot work says why in a sentence, with the remedy, and breaks nothing.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{isotherm, made_up, pte_works, run, sleeper, with_own_mounts};
use isotherm_record::{Format, ItemWriter};
use std::fs;
use tempfile::tempdir;

/// Arguments of `record`, and what its complaint must name.
const CASES: [(&[&str], i32, &[&str]); 31] = [
    (&[], 2, &["nothing to record", "--pid", "--cgroup"]),
    (&["--pid", "0"], 1, &["process 0", "no such process", "ps -e"]),
    (&["--pid", "4194303"], 1, &["process 4194303", "no such process", "ps -e"]),
    (&["--pid", "4294967295"], 1, &["no such process"]),
    (&["--pid", "self"], 2, &["--pid", "a pid is the number of a process"]),
    (&["--pid", "-1"], 2, &["--pid", "-1", "a pid is the number of a process"]),
    (&["-p", "-1", "--all"], 2, &["-1", "a pid is the number of a process"]),
    (&["--cgroup", "no/such/group"], 1, &["no cgroup no/such/group", "/proc/PID/cgroup"]),
    (
        &["--min-regions", "20", "--max-regions", "10", "--pid", "1"],
        2,
        &["--max-regions 10", "--min-regions 20"],
    ),
    (&["--min-regions", "2", "--pid", "1"], 2, &["--min-regions 2", "at least 3"]),
    (&["--sample", "200ms", "--pid", "1"], 2, &["--aggr 100 ms", "--sample 200 ms"]),
    (&["--sample", "0", "--pid", "1"], 2, &["--sample", "1 us"]),
    (&["--min-regions", "0", "--pid", "1"], 2, &["--min-regions 0", "at least 3"]),
    (&["--max-regions", "0", "--pid", "1"], 2, &["--max-regions 0", "--min-regions 10"]),
    (&["--min-regions", "-3", "--pid", "1"], 2, &["--min-regions", "not a whole number", "3 to 1000000"]),
    (&["--max-regions", "many", "--pid", "1"], 2, &["--max-regions", "not a whole number", "3 to 1000000"]),
    (&["--max-regions", "1000001", "--pid", "1"], 2, &["--max-regions", "too many", "3 to 1000000"]),
    (&["--max-regions", "99999999999999999999999", "--pid", "1"], 2, &["too many", "3 to 1000000"]),
    (&["--keep", "1G", "--pid", "1"], 2, &["--every"]),
    (
        &["--sample", "2s", "--aggr", "1.000000001s", "--pid", "1"],
        2,
        &["--aggr 1.000000001 s is shorter than --sample 2 s"],
    ),
    (
        &["--every", "1s", "--aggr", "1.000000001s", "--pid", "1"],
        2,
        &["--every 1 s is too short; the least is 1.000000001 s"],
    ),
    (&["--every", "900ms", "--pid", "1"], 2, &["--every 900 ms is too short; the least is 1 s"]),
    (&["--sampler", "classic", "--backend", "kernel", "--pid", "1"], 2, &["leave --sampler out"]),
    (&["--sampler", "watch", "--backend", "idle", "--pid", "1"], 2, &["--sampler classic"]),
    (&["--sample", "5", "--pid", "1"], 2, &["unit"]),
    (&["--sample", "-5ms", "--pid", "1"], 2, &["-5"]),
    (&["--overhead", "0.3", "--pid", "1"], 2, &["no % sign", "0.3%"]),
    (&["--overhead", "-1%", "--pid", "1"], 2, &["-1%", "negative"]),
    (&["--backend", "magic", "--pid", "1"], 2, &["magic", "pte", "refs"]),
    (&["--duration", "1ms", "--pid", "1"], 2, &["--duration 1 ms", "(100 ms)"]),
    (
        &["-o", "no/such/dir/x.rec", "--duration", "1s", "--", "sleep", "1"],
        1,
        &["no/such/dir/x.rec", "check the path"],
    ),
];

#[test]
fn every_complaint_names_the_thing_and_the_remedy() {
    let can_open = pte_works();
    for (args, code, parts) in CASES {
        if args.contains(&"-o") && !can_open {
            continue;
        }
        let dir = tempdir().unwrap();
        let done = run(dir.path(), &[&["record"], args].concat());
        // Arguments that cannot be parsed come with a hint at --help.
        assert!(done.err.contains("--help") || done.err.lines().count() == 1, "{args:?}: {}", done.err);
        done.fails(code, parts);
        assert!(fs::read_dir(dir.path()).unwrap().next().is_none(), "{args:?} left something behind");
    }
}

#[test]
fn a_kernel_thread_is_no_process_to_record() {
    let comm = fs::read_to_string("/proc/2/comm").unwrap_or_default();
    if comm.trim() != "kthreadd" {
        return println!("skipped: process 2 is no kernel thread here (a pid namespace)");
    }
    let dir = tempdir().unwrap();
    run(dir.path(), &["record", "--pid", "2"])
        .fails(1, &["kthreadd", "kernel thread", "name a user process"]);
}

#[test]
fn a_target_that_ends_at_once_is_told_and_fails() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    // However late it is let run, that is no aggregation.
    let aggr = ["--sample", "100ms", "--aggr", "1m"];
    run(dir.path(), &[&["record"], &aggr[..], &["--", "true"]].concat())
        .fails(1, &["nothing was recorded", "--aggr"]);
    for report in ["access", "heatmap", "wss", "regions", "raw"] {
        run(dir.path(), &["report", report]).fails(1, &["isotherm.rec: it holds no snapshot"]);
    }
}

#[test]
fn a_ceiling_that_pays_for_no_snapshot_is_what_is_named() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let sleeper = common::sleeper();
    let pid = sleeper.pid().to_string();
    let done = run(dir.path(), &["record", "-d", "1s", "--overhead", "0.001%", "--pid", &pid]);
    assert!(!done.err.contains("within the first aggregation interval"), "{}", done.err);
    done.fails(1, &["nothing was recorded: in ", "--overhead 0.001 % did not pay", "make it higher"]);
}

#[test]
fn a_rule_that_nothing_matched_is_what_is_named() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let nobody = "no-such-program";
    run(dir.path(), &["record", "-d", "1s", "--comm", nobody])
        .fails(1, &["nothing was recorded: no process matched --comm no-such-program in any of"]);
}

/// The first snapshots are lost with the beginning of a block: it was not recorded for too short a time.
#[test]
fn a_recording_cut_before_its_first_snapshot_is_not_said_to_have_been_short() {
    let dir = tempdir().unwrap();
    let made = made_up(dir.path(), "whole.rec", Format::Rec);
    let mut writer = isotherm_record::rec::Writer::new(Vec::new(), "cut.rec".to_owned()).unwrap();
    writer.write(&isotherm_record::Item::Header(isotherm_record::Header::default())).unwrap();
    writer.flush().unwrap();
    let mut cut = writer.into_inner().unwrap();
    // The beginning of a block that is not whole.
    cut.extend(&fs::read(made).unwrap()[..500]);
    fs::write(dir.path().join("cut.rec"), cut).unwrap();
    let done = run(dir.path(), &["report", "wss", "-i", "cut.rec"]);
    assert!(!done.err.contains("before the first aggregation interval"), "{}", done.err);
    done.fails(1, &["cut.rec: it holds no snapshot: what is left"]);
}

#[test]
fn no_file_but_a_recording_is_replaced() {
    let dir = tempdir().unwrap();
    for (name, content) in [("notes.txt", "buy milk"), ("package.json", "{\"name\": 1}")] {
        let path = dir.path().join(name);
        fs::write(&path, content).unwrap();
        run(dir.path(), &["record", "-o", name, "--", "sleep", "1"]).fails(2, &[name, "its name stands for"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
        // Whatever it is called.
        let path = path.with_extension("rec");
        fs::write(&path, content).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        run(dir.path(), &["record", "-o", name, "--", "sleep", "1"]).fails(1, &[name, "is not a recording"]);
        assert_eq!(fs::read_to_string(&path).unwrap(), content);
    }
    // Nor is a recording, for the sake of one that cannot begin.
    let path = made_up(dir.path(), "isotherm.rec", Format::Rec);
    let before = fs::read(&path).unwrap();
    run(dir.path(), &["record", "--pid", "4194303"]).fails(1, &["no such process"]);
    run(dir.path(), &["record", "--", "no-such-program"]).fails(127, &["no-such-program"]);
    assert_eq!(fs::read(&path).unwrap(), before);
}

#[test]
fn a_full_device_is_told_and_the_commands_status_passed_on() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let full = ["No space left", "free some space"];
    run(dir.path(), &["record", "-o", "/dev/full", "--", "sleep", "2"]).fails(1, &full);
    run(dir.path(), &["record", "-o", "/dev/full", "--", "sh", "-c", "sleep 1.5; exit 7"]).fails(7, &full);
    let target = sleeper();
    // Nobody ends this one: it ends by itself, since there is no point in going on.
    let pid = target.pid().to_string();
    run(dir.path(), &["record", "-o", "/dev/full", "--pid", &pid]).fails(1, &full);
}

/// In a mount namespace of its own, on a file system of two pages: what fitted stays readable.
#[test]
fn a_disk_that_fills_up_loses_nothing_that_was_written() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let script = r#"
        mount --make-rprivate / && mount -t tmpfs -o size=128k none . || exit 99
        cd "$PWD"
        dd if=/dev/zero of=ballast bs=4k count=30 2>/dev/null
        "$0" record -o small.rec --quiet --sample 1ms --aggr 5ms --overhead 0 --min-regions 500 -- \
            "$0" workload stairs --set size=2M --set steps=2 --set phase=3s --truth /dev/null
        echo "status $?"
        "$0" report raw -i small.rec | grep -vc '^#'
    "#;
    let Some(done) = with_own_mounts(dir.path(), script) else { return };
    assert!(done.err.contains("No space left") && done.err.contains("free some space"), "{done:?}");
    let mut lines = done.out.lines();
    assert_eq!(lines.next(), Some("status 1"), "{done:?}");
    let regions: u64 = lines.next().unwrap().parse().unwrap();
    assert!(regions > 100, "{done:?}");
}

/// A conversion keeps nothing of what it could not finish, and says nothing else.
#[test]
fn a_conversion_without_room_leaves_nothing_and_says_so() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), "long.rec", Format::Rec);
    for format in ["rec", "parquet", "json", "json_compressed", "perf-script", "record-v2"] {
        let done = run(dir.path(), &["convert", "long.rec", "/dev/full", "--to", format]);
        assert!(!done.err.contains("readable"), "{format}: {done:?}");
        done.fails(
            1,
            &["/dev/full: No space left", "free some space; what was written so far is incomplete"],
        );
    }
    let script = r#"
        mkdir small && mount --make-rprivate / && mount -t tmpfs -o size=16k none small || exit 99
        "$0" convert -q long.rec small/x.json
        echo "status $?"
        echo '[]' > small/there.json
        head -c 4k long.rec > small/there.rec
        "$0" convert -q long.rec small/there.rec
        echo "status $?"
        ls small
        cmp -n 4096 long.rec small/there.rec && echo same
    "#;
    let Some(done) = with_own_mounts(dir.path(), script) else { return };
    assert_eq!(done.out, "status 1\nstatus 1\nthere.json\nthere.rec\nsame\n", "{done:?}");
    for part in [
        "cannot write small/x.json: No space left",
        "nothing is left of it",
        "cannot write small/there.rec: No space left",
        "the file that was there is as it was",
    ] {
        assert!(done.err.contains(part), "{part}: {done:?}");
    }
    assert!(!done.err.contains("readable"), "{done:?}");
}

#[test]
fn mistakes_on_the_command_line_do_not_panic() {
    let dir = tempdir().unwrap();
    for args in [
        &["frobnicate"][..],
        &["convert"],
        &["report", "heatmap", "--width", "0"],
        &["report", "heatmap", "--address", "0x10-0x5"],
        &["report", "heatmap", "--area", "heap", "--address", "0x0+4K"],
        &["report", "heatmap", "--json", "-o", "x.png"],
        &["convert", "only-one"],
        &["convert", "a", "b", "--from", "nonsense"],
        &["completions", "tcsh"],
    ] {
        run(dir.path(), args).fails(2, &["--help"]);
    }
    let output = isotherm(dir.path(), &["--help"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stdout).contains("record"));
}

/// What is meant for an option is not taken for the command to run.
#[test]
fn a_negative_value_is_called_one() {
    let dir = tempdir().unwrap();
    for args in [
        &["record", "--duration", "-5", "--", "true"][..],
        &["record", "-d", "-5s"],
        &["report", "heatmap", "--width", "-5"],
        &["report", "access", "--size", "-4K"],
        &["report", "summary", "--at", "-.5"],
    ] {
        let done = run(dir.path(), args);
        assert!(!done.err.contains("use '-- -"), "{args:?}: {}", done.err);
        done.fails(2, &["negative value"]);
    }
}
