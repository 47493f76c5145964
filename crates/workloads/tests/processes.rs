//! Patterns with children, and with memory in motion, as their users see them.
#![allow(clippy::unwrap_used)] // helpers of tests are not tests to the lint

mod common;

use common::{Running, clear_referenced, clears, proc, smaps};
use isotherm_workloads::now_ns;
use isotherm_workloads::truth::{Segment, Truth};
use rustix::process::Signal;
use std::time::{Duration, Instant};

fn start(pattern: &str, sets: &[&str]) -> Running {
    let mut args = vec![pattern];
    sets.iter().for_each(|set| args.extend(["--set", *set]));
    Running::start(&args)
}

/// The processes of a workload that is running, by the lines it printed so far: name and pid.
fn processes(run: &Running) -> Vec<(String, u32)> {
    let lines = run.text.lines().filter_map(|l| serde_json::from_str::<serde_json::Value>(l).ok());
    let processes = lines.filter(|l| l["kind"] == "process");
    processes
        .map(|l| (l["name"].as_str().unwrap().to_owned(), u32::try_from(l["pid"].as_u64().unwrap()).unwrap()))
        .collect()
}

/// Whether the process is there, and no zombie.
fn lives(pid: u32) -> bool {
    std::fs::read_to_string(proc(pid, "stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

fn wait_until_gone(pids: &[u32]) {
    let since = Instant::now();
    while let Some(pid) = pids.iter().find(|pid| lives(**pid)) {
        assert!(since.elapsed() < Duration::from_secs(10), "process {pid} is still there");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Bytes that the truth has as accessed in a window, of segments that lie in one mapping of one process.
fn accessed(segments: &[Segment], start: u64, end: u64) -> f64 {
    let inside = segments.iter().filter(|s| start <= s.start && s.end <= end);
    inside.map(|s| s.accessed * s.size() as f64).sum()
}

/// Bytes that may count as referenced though this process left them alone. Referenced in smaps is also a flag of the page,
/// which all who map it share: reclaim and a kernel's own DAMON set it for pages whose Accessed bits they clear, some pages
/// at each of their samples: 116 were seen on a busy machine.
const OTHERS: f64 = 1024.0 * 1024.0;

/// Process by process, mapping by mapping: what the kernel saw referenced in a span of time, against the truth for it.
fn compare_with_the_kernel(pattern: &str, sets: &[&str], tolerance: f64) -> Truth {
    let mut run = start(pattern, sets);
    let pids: Vec<u32> = processes(&run).into_iter().map(|(_, pid)| pid).collect();
    run.go();
    run.read_until("phase_begin");
    std::thread::sleep(Duration::from_millis(100));
    let mut looks = Vec::new();
    for &pid in &pids {
        let from = now_ns();
        clear_referenced(pid);
        let cleared = now_ns();
        std::thread::sleep(Duration::from_millis(300));
        let before = now_ns();
        let seen = smaps(pid, "Referenced");
        looks.push((pid, from, cleared, before, now_ns(), seen));
    }
    let (truth, ok) = run.end();
    assert!(ok);
    let mut compared = 0;
    for (pid, from, cleared, before, to, seen) in looks {
        // What a look shows lies between what was accessed for certain in its time, and what may have been.
        let (least, most) = (truth.coverage(cleared..before), truth.coverage(from..to));
        for area in truth.areas.iter().filter(|a| a.pid == pid || a.pid == truth.workload.pid) {
            let vmas = seen.iter().filter(|v| v.0 >= area.start && v.1 <= area.end);
            let referenced = vmas.map(|v| v.2).sum::<u64>() as f64;
            let low = accessed(least.of(pid), area.start, area.end);
            let high = accessed(most.of(pid), area.start, area.end);
            let size = (area.end - area.start) as f64;
            let (low, high) = (low * (1.0 - tolerance) - 8192.0, high * (1.0 + tolerance) + OTHERS);
            assert!(
                (low..=high).contains(&referenced),
                "{pattern}, {} in {pid}: {referenced} of {size} bytes, not {low} to {high}",
                area.name
            );
            compared += 1;
        }
    }
    assert!(compared >= pids.len());
    truth
}

#[test]
fn the_kernel_sees_what_moves_and_what_is_drawn() {
    if !clears() {
        return;
    }
    compare_with_the_kernel("sweep", &["size=64M", "idle=4M", "speed=64M", "touch=page", "phase=1s"], 0.1);
    compare_with_the_kernel(
        "fft",
        &["size=64M", "idle=4M", "speed=32M", "touch=page", "stride=1M", "phases=1", "phase=1s"],
        0.1,
    );
    compare_with_the_kernel("bgsave", &[&SAVES[..], &["saves=1", "before=1s", "slow=20Hz"]].concat(), 0.1);
    compare_with_the_kernel("zipf", &["size=16M", "grain=256K", "rate=1Hz", "phase=1s", "idle=1M"], 0.1);
}

#[test]
fn the_kernel_sees_what_each_process_does_to_shared_memory() {
    if !clears() {
        return;
    }
    let sets = ["processes=3", "size=16M", "common=1M", "part=2M", "offset=4M", "step=4M", "private=1M"];
    let truth = compare_with_the_kernel("shm", &[&sets[..], &["phase=2500ms"]].concat(), 0.0);
    assert_eq!(truth.processes.len(), 4);
    let phase = &truth.phases[0];
    let coverage = truth.coverage(phase.start_ns..phase.end_ns);
    // 1 MiB that all use, 2 MiB each.
    assert_eq!(coverage.bytes(), f64::from(9 << 20));
    assert_eq!(coverage.distinct_bytes(), f64::from(7 << 20));
    for process in &truth.processes[1..] {
        assert_eq!(accessed(coverage.of(process.pid), 0, u64::MAX), f64::from(3 << 20), "{}", process.name);
    }
}

#[test]
fn forked_children_copy_what_they_write_to() {
    let mut run = start("prefork", &["workers=2", "heap=16M", "hot=1M", "diverge=4M", "phase=2s"]);
    let children: Vec<u32> = processes(&run)[1..].iter().map(|(_, pid)| *pid).collect();
    let heap: serde_json::Value = run
        .text
        .lines()
        .find(|l| l.contains("\"name\":\"heap\""))
        .map(|l| serde_json::from_str(l).unwrap())
        .unwrap();
    run.go();
    run.read_until("phase_begin");
    std::thread::sleep(Duration::from_millis(1500));
    let at = now_ns();
    let copied: Vec<u64> = children
        .iter()
        .map(|&pid| {
            let vmas = smaps(pid, "Private_Dirty");
            vmas.iter().find(|v| v.0 == heap["start"].as_u64().unwrap()).unwrap().2
        })
        .collect();
    let (truth, ok) = run.end();
    assert!(ok);
    let coverage = truth.coverage(0..at);
    for (pid, copied) in children.into_iter().zip(copied) {
        let expected =
            accessed(coverage.of(pid), heap["start"].as_u64().unwrap(), heap["end"].as_u64().unwrap());
        assert!(
            (copied as f64 - expected).abs() < 0.1 * expected,
            "{pid}: {copied} copied, {expected} written to"
        );
        assert!(expected > f64::from(2 << 20));
    }
    // The parent, whose heap it is, does nothing to it.
    assert_eq!(accessed(coverage.of(truth.workload.pid), 0, u64::MAX), 0.0);
}

/// Small and short.
const SAVES: [&str; 9] = [
    "size=16M",
    "written=4M",
    "read=4M",
    "read_at=4M",
    "seldom=4M",
    "seldom_at=8M",
    "speed=16M",
    "before=600ms",
    "after=200ms",
];

#[test]
fn a_child_of_a_phase_shares_the_memory_reads_all_of_it_and_is_gone_before_the_next() {
    let mut run = start("bgsave", &SAVES);
    let data: serde_json::Value =
        serde_json::from_str(run.text.lines().find(|l| l.contains("area")).unwrap()).unwrap();
    let data = data["start"].as_u64().unwrap();
    let shared = |pid: u32| {
        let vmas = smaps(pid, "Shared_Dirty");
        vmas.iter().find(|v| v.0 == data).unwrap().2
    };
    assert_eq!(processes(&run).len(), 1);
    run.go();
    let mut saves = Vec::new();
    for phase in [1, 4] {
        run.read_until(&format!("phase_begin\",\"index\":{phase}"));
        let (name, pid) = processes(&run).pop().unwrap();
        assert_eq!(name, "child");
        std::thread::sleep(Duration::from_millis(300));
        saves.push((pid, shared(run.pid()), now_ns()));
        run.read_until(&format!("phase_begin\",\"index\":{}", phase + 1));
        assert!(!lives(pid));
        assert_eq!(shared(run.pid()), 0);
    }
    let (truth, ok) = run.end();
    assert!(ok);
    let born: Vec<_> = truth.processes.iter().map(|p| p.phase).collect();
    assert_eq!(born, [None, Some(1), Some(4)]);
    let main = truth.workload.pid;
    for (phase, (pid, shared, at)) in [1, 4].into_iter().zip(saves) {
        let phase = &truth.phases[phase];
        // Of 16 MiB the parent has its own copy of the 4 it writes to at 20 Hz, unless it was held up.
        let looked_in_time = at < phase.end_ns;
        let until = truth.coverage(phase.start_ns..at);
        let mut written = until.of(main).iter().filter(|s| s.end <= data + (4 << 20));
        let copied = written.all(|s| s.accessed >= 1.0);
        assert!(!looked_in_time || !copied || shared == 12 << 20, "{shared} bytes are shared");
        let all = truth.coverage(phase.start_ns..phase.end_ns);
        assert_eq!(accessed(all.of(pid), 0, u64::MAX), f64::from(16 << 20), "what the child reads");
        assert!(all.of(main).iter().map(Segment::size).sum::<u64>() == 16 << 20);
    }
    for (index, phase) in truth.phases.iter().enumerate() {
        let pids: std::collections::BTreeSet<_> = phase.ranges.iter().map(|r| r.pid).collect();
        assert_eq!(pids.len(), if index % 3 == 1 { 2 } else { 1 });
    }
}

#[test]
fn the_log_of_a_fast_stream_has_its_rate_in_any_window() {
    let mut run = start("bgsave", &[&SAVES[..], &["saves=1"]].concat());
    run.go();
    let (truth, ok) = run.end();
    assert!(ok);
    for phase in &truth.phases {
        for range in phase.ranges.iter().filter(|r| r.pid == truth.workload.pid && r.hot) {
            let [course] = range.courses[..] else { panic!("one course: {range:?}") };
            let course = &phase.courses[course];
            assert!(course.logged && course.points.len() as u64 >= range.touches / (4 << 20 >> 12));
            // Whatever the windows, their accesses add up; and it is no memory in motion.
            let window = (phase.end_ns - phase.start_ns) / 7;
            let hz: f64 = (0..7)
                .map(|i| phase.start_ns + i * window)
                .map(|from| {
                    let coverage = truth.coverage(from..from + window);
                    let segments =
                        coverage.of(range.pid).iter().filter(|s| s.start < range.end && s.end > range.start);
                    let segment = segments.copied().next().unwrap();
                    assert!(!segment.moving);
                    segment.hz
                })
                .sum();
            assert!(
                (hz / 7.0 - range.achieved_hz).abs() < 0.02 * range.achieved_hz + 0.01,
                "{hz}, {range:?}"
            );
        }
    }
}

#[test]
fn a_front_brings_memory_as_fast_as_it_says_and_gives_it_back() {
    let mut run = start("front", &["size=64M", "idle=1M", "speed=64M", "rounds=2"]);
    let resident = |run: &Running| {
        let area = run.text.lines().find(|l| l.contains("growing")).unwrap();
        let area: serde_json::Value = serde_json::from_str(area).unwrap();
        let vmas = smaps(run.pid(), "Rss");
        vmas.iter().find(|v| v.0 == area["start"].as_u64().unwrap()).unwrap().2
    };
    assert_eq!(resident(&run), 0);
    run.go();
    let mut seen = Vec::new();
    for round in 0..2 {
        run.read_until(&format!("phase_begin\",\"index\":{round}"));
        std::thread::sleep(Duration::from_millis(400));
        seen.push((resident(&run), now_ns()));
    }
    let (truth, ok) = run.end();
    assert!(ok && truth.areas.iter().all(|a| a.backed_as_asked));
    for (phase, (resident, at)) in truth.phases.iter().zip(seen) {
        let passed = truth.coverage(phase.start_ns..at).bytes();
        assert!(
            (resident as f64 - passed).abs() < f64::from(2 << 20),
            "{resident} resident, {passed} passed"
        );
        assert_eq!(truth.coverage(phase.start_ns..phase.end_ns).bytes(), f64::from(64 << 20));
        // A machine that is busy makes it slower, never faster.
        assert!(phase.complete && phase.end_ns - phase.start_ns > 990_000_000);
    }
}

#[test]
fn a_swarm_starts_soon_and_leaves_nobody_behind() {
    let since = Instant::now();
    let run = start("swarm", &["cold=200", "hot=3", "own=16K", "size=64K", "phase=1h"]);
    assert!(since.elapsed() < Duration::from_secs(20));
    let all = processes(&run);
    assert_eq!(all.len(), 204);
    let pids: Vec<u32> = all.iter().map(|(_, pid)| *pid).collect();
    assert!(pids.iter().all(|&pid| lives(pid)));
    assert_eq!(std::fs::read_to_string(proc(pids[1], "comm")).unwrap(), "cold0\n");
    // Killed, it cannot end its children; the kernel does.
    run.signal(Signal::KILL);
    wait_until_gone(&pids[1..]);
}

#[test]
fn ctrl_c_ends_a_family_with_the_truth_up_to_then() {
    let mut run = start("swarm", &["cold=20", "hot=2", "own=16K", "size=64K", "phase=1h"]);
    let pids: Vec<u32> = processes(&run).into_iter().map(|(_, pid)| pid).collect();
    run.go();
    run.read_until("phase_begin");
    std::thread::sleep(Duration::from_millis(300));
    // As a terminal does: to all of them.
    for &pid in &pids {
        let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, Signal::INT).unwrap();
    }
    let (truth, ok) = run.end();
    assert!(ok);
    assert_eq!(truth.end.unwrap().reason, "interrupted");
    let hot: Vec<_> = truth.phases[0].ranges.iter().filter(|r| r.touches > 0).collect();
    assert!(hot.len() == 2 && hot[0].pid != hot[1].pid, "{hot:?}");
    assert_eq!(truth.phases[0].ranges.len(), 22);
    wait_until_gone(&pids);
}

#[test]
fn a_child_that_dies_ends_the_workload_with_its_name() {
    let mut run = start("prefork", &["workers=3", "heap=1M", "hot=64K", "phase=1h"]);
    let (name, pid) = processes(&run)[2].clone();
    run.go();
    run.read_until("phase_begin");
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let pids: Vec<u32> = processes(&run).into_iter().map(|(_, pid)| pid).collect();
    assert_eq!(name, "worker1");
    let (truth, ok) = run.end();
    assert!(!ok && truth.end.is_none());
    wait_until_gone(&pids);
}

#[test]
fn what_processes_cannot_do_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (text, part) in [
        ("[[area]]\nname = \"a\"\nsize = 1\nprocess = \"b\"\n[[phase]]\nduration = 1\n", "no process `b`"),
        (
            "[[process]]\nname = \"p\"\ncount = 2\n[[area]]\nname = \"a\"\nsize = 1\n[[phase]]\nduration = 1\n",
            "{i}",
        ),
        (
            "[[process]]\nname = \"p{i}\"\ncount = 2\n[[area]]\nname = \"a\"\nsize = 1\nprocess = \"p0\"\n\
             [[phase]]\nduration = 1\naccess = [{ area = \"a\", process = \"p1\", rate = 1 }]\n",
            "belongs to another process",
        ),
        (
            "[[process]]\nname = \"p\"\n[[area]]\nname = \"a\"\nsize = 1\n\
             [[phase]]\nduration = 1\nresize = [{ area = \"a\", size = 9 }]\n",
            "cannot change their size",
        ),
        (
            "[[process]]\nname = \"p\"\nphase = \"save\"\n[[area]]\nname = \"a\"\nsize = 1\n\
             [[phase]]\nname = \"safe\"\nduration = 1\n",
            "no phase `save`",
        ),
        (
            "[[process]]\nname = \"p\"\nphase = \"save\"\n[[area]]\nname = \"a\"\nsize = 1\n\
             [[phase]]\nname = \"save\"\nduration = 1\n",
            "no access there",
        ),
        (
            "[[process]]\nname = \"p\"\nphase = \"save\"\n[[area]]\nname = \"a\"\nsize = 1\nprocess = \"p\"\n\
             [[phase]]\nname = \"save\"\nduration = 1\n",
            "maps nothing of its own",
        ),
        (
            "[[process]]\nname = \"p\"\nphase = \"save\"\n[[area]]\nname = \"a\"\nsize = 1\n\
             [[phase]]\nduration = 1\naccess = [{ area = \"a\", process = \"p\", rate = 1 }]\n",
            "not there in this phase",
        ),
        (
            "[[area]]\nname = \"a\"\nsize = \"1M\"\n[[phase]]\nduration = 1\n\
             access = [{ area = \"a\", rate = 1, speed = \"1M\" }]\n",
            "either a `rate` or a `speed`",
        ),
        (
            "[[area]]\nname = \"a\"\nsize = \"1M\"\n[[phase]]\nduration = 1\n\
             access = [{ area = \"a\", kind = \"butterfly\", rate = 1 }]\n",
            "stride",
        ),
        (
            "[[area]]\nname = \"a\"\nsize = \"1M\"\n[[phase]]\nduration = 1\n\
             access = [{ area = \"a\", kind = \"zipf\", grain = \"3M\", rate = 1 }]\n",
            "grain",
        ),
    ] {
        let path = dir.path().join("own.toml");
        std::fs::write(&path, format!("name = \"own\"\n{text}")).unwrap();
        let output = common::command(&[path.to_str().unwrap()]).output().unwrap();
        let error = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && error.contains(part), "{text}: {error}");
    }
}
