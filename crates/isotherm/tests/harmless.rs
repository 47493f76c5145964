//! Monitors killed at any moment leave their target and the machine as they were, and a recording that can be read.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{ISOTHERM, Running, isotherm, pte_works, read, run, snapshots, wait_for_snapshots, wait_until};
use isotherm_damon::Rng;
use isotherm_record::Item;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
use rustix::process::Signal;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::process::{ChildStdout, Command, Stdio};
use std::time::Duration;
use tempfile::tempdir;

const HUGE: usize = 2 << 20;
const BYTES: usize = 16 * HUGE;
const PAGE_WORDS: usize = 4096 / 8;

/// Set in the process that plays the target.
const TARGET: &str = "ISOTHERM_TEST_TARGET";

/// What word `index` holds after `round`.
fn word(index: usize, round: u64) -> u64 {
    (index as u64 ^ round.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Writes a word of every page again and again and looks whether the last one is still there, until its input ends;
/// then looks at every word and tells how many are wrong.
fn be_the_target() {
    let flags = MapFlags::PRIVATE;
    // SAFETY: a new mapping, which nothing else knows; it stays until the process ends.
    let map = unsafe {
        mmap_anonymous(std::ptr::null_mut(), BYTES + HUGE, ProtFlags::READ | ProtFlags::WRITE, flags).unwrap()
    };
    let aligned = map.cast::<u8>().wrapping_add(map.cast::<u8>().align_offset(HUGE));
    // SAFETY: inside the mapping, whose length leaves room for the alignment. Advice changes no content.
    let _ = unsafe { madvise(aligned.cast(), BYTES, Advice::LinuxHugepage) };
    // SAFETY: readable and writable, zeroed, aligned to 2 MiB, and used through this slice only.
    let words = unsafe { std::slice::from_raw_parts_mut(aligned.cast::<u64>(), BYTES / 8) };
    for (i, w) in words.iter_mut().enumerate() {
        *w = word(i, 0);
    }
    println!("target ready");
    let end = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let (mut round, mut wrong) = (0, 0);
    while !end.is_finished() {
        for i in (0..words.len()).step_by(PAGE_WORDS) {
            wrong += u64::from(words[i] != word(i, round));
            words[i] = word(i, round + 1);
        }
        round += 1;
        std::thread::sleep(Duration::from_millis(1));
    }
    for (i, w) in words.iter().enumerate() {
        let rounds = if i % PAGE_WORDS == 0 { round } else { 0 };
        wrong += u64::from(*w != word(i, rounds));
    }
    println!(
        "target did its rounds {} and found {wrong} wrong words",
        if round > 0 { "well" } else { "never" }
    );
}

/// The target's own lines, among those of the test harness it runs under.
fn next_line(out: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    while !line.contains("target ") {
        line.clear();
        assert!(out.read_line(&mut line).unwrap() > 0, "the target ended");
    }
    line[line.find("target ").unwrap()..].trim_end().to_owned()
}

/// Huge pages that the process maps, in bytes.
fn huge_bytes(pid: u32) -> u64 {
    let smaps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let kib =
        |l: &str| l.strip_prefix("AnonHugePages:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok();
    smaps.lines().filter_map(kib).sum::<u64>() << 10
}

fn vmstat(name: &str) -> u64 {
    let text = fs::read_to_string("/proc/vmstat").unwrap();
    text.lines().find_map(|l| l.strip_prefix(name)?.trim().parse().ok()).unwrap_or(0)
}

/// How many monitors to kill; fewer for a quick look.
fn kills() -> u64 {
    std::env::var("ISOTHERM_TEST_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(100)
}

#[test]
fn monitors_killed_at_random_moments_change_nothing() {
    if std::env::var_os(TARGET).is_some() {
        return be_the_target();
    }
    if !pte_works() {
        return;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "monitors_killed_at_random_moments_change_nothing", "--nocapture"]);
    command.env(TARGET, "1").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut target = Running::start(command);
    let mut out = BufReader::new(target.0.stdout.take().unwrap());
    assert_eq!(next_line(&mut out), "target ready");
    let huge = huge_bytes(target.pid());
    if huge == 0 {
        println!("skipped: no huge pages here, so that none can be split");
    }
    let dir = tempdir().unwrap();
    let file = dir.path().join("killed.rec");
    let mut rng = Rng::new(7);
    let (mut readable, mut split_at) = (0, Vec::new());
    for i in 0..kills() {
        let _ = fs::remove_file(&file);
        let pid = target.pid().to_string();
        // As eager as it can be told to: every page of it may be looked at, and cleared, within a second.
        let eager = ["--sample", "1ms", "--aggr", "20ms", "--overhead", "0", "--min-regions", "100"];
        let mut command = isotherm(dir.path(), &["record", "--quiet", "-o", "killed.rec", "--pid", &pid]);
        let splits = vmstat("thp_split_page ");
        let mut monitor = Running::start({
            command.args(eager);
            command
        });
        // Most die while they set up or take their first looks, some after the first second has been written.
        let ms = if i % 16 == 15 { 1500 + rng.below(1000) } else { rng.below(300) };
        std::thread::sleep(Duration::from_millis(ms));
        monitor.0.kill().unwrap();
        monitor.0.wait().unwrap();
        if vmstat("thp_split_page ") != splits {
            split_at.push(i);
        }
        assert_eq!(
            huge_bytes(target.pid()),
            huge,
            "a huge page of the target was split (kill {i} after {ms} ms)"
        );
        if fs::metadata(&file).is_ok_and(|m| m.len() > 0) {
            let items = read(&file).expect("what was written can be read");
            readable += u64::from(snapshots(&items) > 0);
        }
    }
    drop(target.0.stdin.take());
    assert_eq!(next_line(&mut out), "target did its rounds well and found 0 wrong words");
    assert!(kills() < 16 || readable > 0, "no recording was ever written");
    // The counter is the whole machine's: other programs split pages of their own now and then, but not all the time.
    assert!(split_at.len() as u64 <= kills() / 4, "thp_split_page moved during kills {split_at:?}");
}

#[test]
fn a_command_outlives_its_monitor() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let file = dir.path().join("isotherm.rec");
    let script = "while [ ! -e stop ]; do sleep 0.1; done; echo well > ended";
    let mut monitor = Running::start(isotherm(dir.path(), &["record", "--quiet", "--", "sh", "-c", script]));
    wait_for_snapshots(&file, 5);
    monitor.signal(Signal::KILL);
    monitor.0.wait().unwrap();
    fs::write(dir.path().join("stop"), "").unwrap();
    wait_until("the command's end", || {
        fs::read_to_string(dir.path().join("ended")).is_ok_and(|t| t == "well\n")
    });
    let report = run(dir.path(), &["report", "wss"]);
    assert!(report.err.contains("not finished"), "{}", report.err);
    report.ok();
}

/// Bar 7 on a recording of a real program: a cut costs the second it falls in, nothing before it.
#[test]
fn a_recording_cut_anywhere_reads_up_to_its_last_whole_second() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let mut command =
        isotherm(dir.path(), &["record", "--quiet", "--aggr", "50ms", "--", ISOTHERM, "workload"]);
    command.args(["zigzag", "--set", "size=8M", "--set", "phase=2500ms", "--truth", "truth"]);
    common::Done::from(command.output().unwrap()).ok();
    let whole = fs::read(dir.path().join("isotherm.rec")).unwrap();
    let ends = |bytes: &[u8]| -> Vec<u64> {
        let mut reader = isotherm_record::rec::Reader::new(bytes, "cut").unwrap();
        let mut ends = Vec::new();
        while let Some(item) = isotherm_record::ItemReader::next_item(&mut reader).unwrap() {
            if let Item::Snapshot(snapshot) = item {
                ends.push(snapshot.end_ns);
            }
        }
        ends
    };
    let all = ends(&whole);
    assert!(all.len() > 60, "{}", all.len());
    // A block ends with the snapshot that completes its second, and on a busy machine its first and its last one
    // come late.
    let gap = all.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    let mut rng = Rng::new(1);
    let mut cuts: Vec<usize> = (0..1000).map(|_| 1 + rng.below(whole.len() as u64 - 1) as usize).collect();
    cuts.extend([1, whole.len()]);
    cuts.sort_unstable();
    let mut before = 0;
    for cut in cuts {
        let read = ends(&whole[..cut]);
        assert_eq!(read, all[..read.len()], "cut at {cut}");
        assert!(read.len() >= before, "cut at {cut}");
        // With a thousand cuts none of the blocks goes unnoticed: what the next one adds is what a cut in it costs.
        let gained =
            all[before..read.len()].iter().max().map_or(0, |last| last - all[before.saturating_sub(1)]);
        assert!(
            gained <= 1_000_000_000 + 2 * gap,
            "cut at {cut}: {gained} ns at once, {gap} ns between snapshots"
        );
        before = read.len();
    }
    assert_eq!(before, all.len());
}
