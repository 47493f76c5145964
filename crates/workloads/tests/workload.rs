//! The workload as its users see it: a process that another one watches.
#![allow(clippy::unwrap_used)] // helpers of tests are not tests to the lint

use isotherm_workloads::truth::{Page, PhaseLine, Truth};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A workload that has said `ready` and waits for a line on its standard input.
struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    text: String,
}

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isotherm-workload"));
    command.args(args);
    command
}

impl Running {
    fn start(args: &[&str]) -> Self {
        let mut child = command(args)
            .arg("--start-on-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, out, text: String::new() };
        running.read_until("\"kind\":\"ready\"");
        running
    }

    fn read_until(&mut self, part: &str) {
        loop {
            let before = self.text.len();
            assert_ne!(self.out.read_line(&mut self.text).unwrap(), 0, "ended before {part}:\n{}", self.text);
            if self.text[before..].contains(part) {
                return;
            }
        }
    }

    fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }

    fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end; the truth it told, and whether its status was 0.
    fn end(mut self) -> (Truth, bool) {
        while self.out.read_line(&mut self.text).unwrap() > 0 {}
        let status = self.child.wait().unwrap();
        (Truth::read(self.text.as_bytes()).unwrap(), status.success())
    }

    fn proc(&self, file: &str) -> std::path::PathBuf {
        Path::new("/proc").join(self.child.id().to_string()).join(file)
    }

    /// Clears the Accessed bit of all its pages. On x86 the kernel leaves their translations in the TLB when it does
    /// this, and a processor that has the translation need not set the bit again; clearing the soft-dirty bits flushes.
    fn clear_referenced(&self) {
        for what in ["1", "4"] {
            std::fs::write(self.proc("clear_refs"), what).unwrap();
        }
    }

    /// Bytes of `start..end` with the Accessed bit, by smaps.
    fn referenced(&self) -> Vec<(u64, u64, u64)> {
        let smaps = std::fs::read_to_string(self.proc("smaps")).unwrap();
        let mut out: Vec<(u64, u64, u64)> = Vec::new();
        for line in smaps.lines() {
            let key = line.split(' ').next().unwrap();
            if let Some((start, end)) = key.split_once('-') {
                let hex = |s| u64::from_str_radix(s, 16).unwrap();
                out.push((hex(start), hex(end), 0));
            } else if let Some(rest) = line.strip_prefix("Referenced:") {
                let kib: u64 = rest.trim().trim_end_matches(" kB").parse().unwrap();
                out.last_mut().unwrap().2 = kib * 1024;
            }
        }
        out
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What the kernel saw accessed in a span of time, area by area, against the phase of the truth around it.
#[test]
fn the_kernel_sees_just_what_the_truth_says() {
    let mut run =
        Running::start(&["stairs", "--set", "steps=3", "--set", "phase=1500ms", "--set", "size=3M"]);
    if !run.proc("clear_refs").exists() {
        println!("skipped: the kernel lacks /proc/PID/clear_refs (CONFIG_PROC_PAGE_MONITOR)");
        return;
    }
    run.go();
    let mut seen = Vec::new();
    for step in ["step0", "step1", "step2"] {
        run.read_until(&format!("phase_begin\",\"index\":{}", &step[4..]));
        let from = isotherm_workloads::now_ns();
        run.clear_referenced();
        std::thread::sleep(Duration::from_millis(300));
        let referenced = run.referenced();
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
    for (args, part) in [
        (vec!["stair"], "no pattern is called `stair`"),
        (vec!["/no/such/file.toml"], "/no/such/file.toml"),
        (vec!["stairs", "--set", "sise=1M"], "no parameter `sise`"),
        (vec!["stairs", "--set", "size=huge"], "`huge` is no size"),
        (vec!["stairs", "--set", "size=0"], "its size is 0"),
        (vec!["stairs", "--set", "rate=-1"], "`-1` is no rate"),
        (vec!["stairs", "--set", "size=900T"], "bytes of memory"),
        (vec!["stairs", "--scale-time", "0"], "time scale"),
        (vec!["stairs", "--set", "steps=0"], "there is none"),
        (vec!["stairs", "--truth", "/no/such/dir/t", "--set", "size=4K"], "/no/such/dir/t"),
    ] {
        let output = command(&args).stdin(Stdio::null()).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{args:?}");
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
