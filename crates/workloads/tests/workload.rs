//! The workload as its users see it: a process that another one watches.
#![allow(clippy::unwrap_used)] // helpers of tests are not tests to the lint

mod common;

use common::{Running, clear_referenced, clears, command, smaps};
use isotherm_workloads::truth::{Page, PhaseLine, Truth};
use std::io::BufReader;
use std::process::Stdio;
use std::time::Duration;

/// What the kernel saw accessed in a span of time, area by area, against the phase of the truth around it.
#[test]
fn the_kernel_sees_just_what_the_truth_says() {
    let mut run =
        Running::start(&["stairs", "--set", "steps=3", "--set", "phase=1500ms", "--set", "size=3M"]);
    if !clears() {
        return;
    }
    run.go();
    let mut seen = Vec::new();
    for step in ["step0", "step1", "step2"] {
        run.read_until(&format!("phase_begin\",\"index\":{}", &step[4..]));
        let from = isotherm_workloads::now_ns();
        clear_referenced(run.pid());
        std::thread::sleep(Duration::from_millis(300));
        let referenced = smaps(run.pid(), "Referenced");
        seen.push((from, isotherm_workloads::now_ns(), referenced));
    }
    let (truth, ok) = run.end();
    assert!(ok);
    assert!(truth.areas.iter().all(|a| a.backed_as_asked && a.huge_bytes == 0));
    let mut compared = 0;
    for (from, to, referenced) in seen {
        // A machine so busy that the look took longer than the phase proves nothing about it.
        let Some(phase) = truth.phases.iter().find(|p| p.start_ns <= from && to <= p.end_ns) else {
            continue;
        };
        for range in &phase.ranges {
            let vma = referenced.iter().find(|v| v.0 == range.start && v.1 == range.end).unwrap();
            let expected = if range.touches > 0 { range.end - range.start } else { 0 };
            assert_eq!(vma.2, expected, "{} in {}", range.area, phase.name);
            compared += 1;
        }
    }
    assert!(compared >= 3, "every look missed its phase");
}

fn hot(phase: &PhaseLine) -> Vec<&str> {
    phase.ranges.iter().filter(|r| r.hot).map(|r| r.area.as_str()).collect()
}

#[test]
fn every_phase_covers_every_byte_of_every_area() {
    for (pattern, sets) in [
        ("stairs", vec!["size=1M", "phase=60ms"]),
        ("zigzag", vec!["size=4M", "phase=60ms"]),
        ("hotspot", vec!["total=64M", "offset=6M", "step=6M", "spots=3", "phase=60ms"]),
        ("rates", vec!["size=1M", "phase=200ms", "kind=random"]),
        ("heap", vec!["small=1M", "middle=2M", "large=4M", "idle=1M", "phase=60ms"]),
        ("threads", vec!["threads=3", "size=1M", "phase=60ms"]),
        ("membound", vec!["size=1M", "work=1M", "units=5"]),
    ] {
        let mut args = vec![pattern];
        for set in &sets {
            args.extend(["--set", *set]);
        }
        let mut run = Running::start(&args);
        run.go();
        let (truth, ok) = run.end();
        assert!(ok && truth.end.as_ref().is_some_and(|e| e.reason == "finished"), "{pattern}");
        assert!(truth.phases.iter().all(|p| p.complete && p.end_ns > p.start_ns), "{pattern}");
        for phase in &truth.phases {
            for area in &truth.areas {
                let ranges: Vec<_> = phase.ranges.iter().filter(|r| r.area == area.name).collect();
                assert_eq!(ranges[0].start, area.start, "{pattern}");
                assert!(
                    ranges.windows(2).all(|w| w[0].end == w[1].start),
                    "{pattern}: a hole in {}",
                    area.name
                );
            }
            assert!(phase.ranges.iter().all(|r| (r.touches > 0) == (r.achieved_hz > 0.0)), "{pattern}");
        }
        match pattern {
            "stairs" => {
                assert!(truth.phases.iter().enumerate().all(|(i, p)| hot(p) == [format!("stair{i}")]))
            }
            "zigzag" => assert_eq!(hot(&truth.phases[3]), ["side1"]),
            "hotspot" => {
                let spot = |i: usize| truth.phases[i].ranges.iter().find(|r| r.hot).unwrap();
                assert_eq!((spot(0).end - spot(0).start, spot(1).start - spot(0).start), (2 << 20, 6 << 20));
            }
            "rates" => assert_eq!(hot(&truth.phases[0]), ["area0", "area1", "area2", "area3"]),
            "heap" => {
                let size = |i: usize| {
                    let heap = truth.phases[i].ranges.iter().filter(|r| r.area == "heap");
                    heap.map(|r| r.end - r.start).sum::<u64>() >> 20
                };
                assert_eq!((0..6).map(size).collect::<Vec<_>>(), [1, 2, 4, 4, 4, 1]);
                assert!(hot(&truth.phases[3]).is_empty());
            }
            "threads" => assert_eq!(hot(&truth.phases[2]).len(), 6),
            _ => {
                assert_eq!(truth.work.len(), 5);
                assert!(
                    truth.work.iter().all(|w| w.bytes == 1 << 20 && w.end_ns > w.start_ns && w.cpu_ns > 0)
                );
            }
        }
    }
}

/// Whether this machine hands out huge pages to who asks; says why not.
fn huge_pages() -> bool {
    let enabled = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let reason = if enabled.is_empty() {
        "the kernel has no transparent huge pages"
    } else if enabled.contains("[never]") {
        "transparent huge pages are switched off"
    } else {
        return true;
    };
    println!("skipped: {reason}");
    false
}

#[test]
fn huge_pages_are_asked_for_and_the_truth_says_whether_they_came() {
    if !huge_pages() {
        return;
    }
    let mut run = Running::start(&["zigzag", "--page", "thp", "--set", "size=7M", "--set", "phase=50ms"]);
    run.go();
    let (truth, ok) = run.end();
    assert!(ok);
    assert_eq!(truth.workload.page, Page::Huge);
    for area in &truth.areas {
        assert_eq!((area.start % area.unit, area.end % area.unit), (0, 0));
        assert!(area.end - area.start >= 7 << 20);
        // A machine without a free huge page is no error, but it must not be told otherwise.
        assert_eq!(area.backed_as_asked, area.huge_bytes == area.end - area.start);
        assert_eq!(area.resident_bytes, area.end - area.start);
    }
}

#[test]
fn signals_end_it_with_the_truth_up_to_then() {
    for (signal, before_start) in [
        (rustix::process::Signal::TERM, false),
        (rustix::process::Signal::INT, false),
        (rustix::process::Signal::TERM, true),
    ] {
        let mut run =
            Running::start(&["stairs", "--set", "size=1M", "--set", "steps=2", "--set", "phase=1h"]);
        if !before_start {
            run.go();
            run.read_until("phase_begin");
            std::thread::sleep(Duration::from_millis(100));
        }
        run.signal(signal);
        let (truth, ok) = run.end();
        assert!(ok);
        assert_eq!(truth.end.unwrap().reason, "interrupted");
        assert_eq!(truth.phases.len(), usize::from(!before_start));
        for phase in truth.phases {
            assert!(!phase.complete && phase.end_ns > phase.start_ns);
            assert!(phase.ranges[0].touches > 0);
        }
    }
}

#[test]
fn the_end_of_standard_input_starts_it_too_and_the_truth_can_go_to_a_file() {
    let directory = tempfile::tempdir().unwrap();
    let pattern = directory.path().join("own.toml");
    let truth = directory.path().join("truth.jsonl");
    let text = "name = \"own\"\n[[area]]\nname = \"a\"\nsize = \"1M\"\n\
                [[phase]]\nduration = \"50ms\"\naccess = [{ area = \"a\", rate = \"max\", write = true }]\n";
    std::fs::write(&pattern, text).unwrap();
    let output =
        command(&[pattern.to_str().unwrap(), "--start-on-stdin", "--truth", truth.to_str().unwrap()])
            .stdin(Stdio::null())
            .output()
            .unwrap();
    assert!(output.status.success() && output.stdout.is_empty());
    let truth = Truth::read(BufReader::new(std::fs::File::open(truth).unwrap())).unwrap();
    assert_eq!(truth.workload.pattern, "own");
    assert!(truth.phases[0].ranges[0].write && truth.phases[0].ranges[0].achieved_hz > 0.0);
}

#[test]
fn bad_arguments_are_one_clear_sentence() {
    // The status is 2 when the command line is wrong on every machine.
    for (args, part, status) in [
        (vec!["stair"], "no pattern is called `stair`", 2),
        (vec!["/no/such/file.toml"], "/no/such/file.toml", 1),
        (vec!["stairs", "--set", "sise=1M"], "no parameter `sise`", 2),
        (vec!["stairs", "--set", "size=huge"], "`huge` is no size", 2),
        (vec!["stairs", "--set", "size=0"], "its size is 0", 2),
        (vec!["stairs", "--set", "rate=-1"], "`-1` is no rate", 2),
        (vec!["stairs", "--set", "size=900T"], "bytes of memory", 1),
        (vec!["stairs", "--scale-time", "0"], "time scale", 2),
        (vec!["stairs", "--set", "steps=0"], "there is none", 2),
        (vec!["stairs", "--truth", "/no/such/dir/t", "--set", "size=4K"], "/no/such/dir/t", 1),
    ] {
        let output = command(&args).stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(status), "{args:?}: {error}");
        assert!(error.contains(part), "{args:?}: {error}");
        assert!(!error.contains("panicked"), "{args:?}: {error}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    let mut child = command(&["stairs", "--set", "size=1M", "--set", "phase=50ms", "--delay", "200ms"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(!output.status.success());
    assert!(error.contains("cannot write the truth"), "{error}");
}
