//! `isotherm scheme apply` on live processes, of which this one is one: memory of files needs no swap to go.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{
    Group, Running, applying, ended, isotherm, pte_works, run, skip, skip_but_in_ci, sleeper, wait_until,
};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap};
use rustix::process::Signal;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::Path;

const SIZE: u64 = 32 << 20;
const PAGE: usize = 4096;

const IDLE: &str = "\
[[scheme]]
name = \"idle\"
action = \"pageout\"
max_access = \"5%\"
min_age = \"1s\"
quota.size = \"8M/s\"
";

/// Whether schemes can act here.
fn can_act() -> bool {
    let can = pte_works();
    if !can {
        skip_but_in_ci("the pte backend does not work here");
    }
    can
}

/// Memory of a file on a disk, all of it read. Its address.
fn file_memory(dir: &Path) -> u64 {
    let path = dir.join("data");
    let mut file = fs::File::options().read(true).write(true).create_new(true).open(path).unwrap();
    file.write_all(&vec![1; SIZE as usize]).unwrap();
    // Dirty pages are not dropped.
    file.sync_all().unwrap();
    let len = SIZE as usize;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped, only read.
    let at = unsafe { mmap(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::SHARED, &file, 0) }.unwrap();
    // What others map too is left alone, as children of this process would.
    // SAFETY: the mapping just made; the advice changes no contents.
    unsafe { madvise(at, len, Advice::LinuxDontFork) }.unwrap();
    for offset in (0..len).step_by(PAGE) {
        // SAFETY: inside the mapping just made.
        unsafe { (at as *const u8).add(offset).read_volatile() };
    }
    at as u64
}

/// Resident bytes of the mappings that begin at `addr`.
fn resident(addr: u64) -> u64 {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&format!("{addr:x}-")));
    let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
    rss.trim().split(' ').next().unwrap().parse::<u64>().unwrap() << 10
}

fn apply(dir: &Path, pid: u32, more: &[&str]) -> Running {
    applying(dir, "idle.toml", pid, more)
}

#[test]
fn what_is_not_used_goes_and_the_log_says_how_much() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let dir = dir.path();
    fs::write(dir.join("idle.toml"), IDLE).unwrap();
    let addr = file_memory(dir);
    assert_eq!(resident(addr), SIZE);
    let running =
        apply(dir, std::process::id(), &["-o", "run.rec", "--overhead", "0", "--stats-every", "100ms"]);
    wait_until("memory that is not used goes", || resident(addr) <= SIZE / 100 * 15);
    // Of a folio that is partly used something stays; nothing more goes once all has that can.
    let done = ended(running);
    let errors = fs::read_to_string(dir.join("errors")).unwrap();
    done.ok();
    // This process runs isotherm, which is not as it should be.
    assert!(errors.contains("it is its parent"), "{errors}");
    let out = fs::read_to_string(dir.join("out")).unwrap();
    assert!(out.contains("idle: active, tried"), "lines while it ran: {out}");
    let last = out.lines().rev().find(|line| line.starts_with("idle  ")).unwrap();
    assert!(last.contains("active"), "a table at the end: {out}");

    let gone = SIZE - resident(addr);
    let log = fs::read_to_string(dir.join("log")).unwrap();
    let swapless = fs::read_to_string("/proc/swaps").unwrap_or_default().lines().count() < 2;
    let mut without_swap = 0;
    let (mut applied, mut windows) = (0, BTreeMap::<u64, u64>::new());
    for line in log.lines() {
        let entry: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = |name: &str| entry[name].as_u64().unwrap();
        assert_eq!((entry["scheme"].as_str(), entry["action"].as_str()), (Some("idle"), Some("pageout")));
        if number("pid") != u64::from(std::process::id()) {
            // Of another test's command, which is a fork of this process at first.
            *windows.entry(number("window_ns")).or_default() += number("tried");
            continue;
        }
        let (start, end) = (number("start"), number("end"));
        assert!(number("tried") <= end - start && number("applied") <= number("tried"), "{line}");
        if (addr..addr + SIZE).contains(&start) {
            applied += number("applied");
        }
        without_swap += entry["left"]["no_swap"].as_u64().unwrap_or(0);
        *windows.entry(number("window_ns")).or_default() += number("tried");
    }
    assert!(applied.abs_diff(gone) * 100 <= gone, "{applied} applied, {gone} gone");
    assert!(!swapless || without_swap > 0, "anonymous memory that can go nowhere is told: {log}");
    let most = *windows.values().max().unwrap();
    assert!(most <= 8 << 20, "{most} bytes in one window");
    let opened: Vec<u64> = windows.into_keys().collect();
    assert!(opened.windows(2).all(|two| two[1] - two[0] >= 1_000_000_000), "windows of a second: {opened:?}");
    run(dir, &["report", "info", "-i", "run.rec"]).ok();
}

#[test]
fn a_file_that_is_changed_is_read_again_and_one_that_is_not_valid_is_not_taken() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    fs::write(dir.join("idle.toml"), IDLE).unwrap();
    let target = sleeper();
    let running = apply(dir, target.pid(), &["--stats-every", "100ms"]);
    let told = |file: &str, words: &str| fs::read_to_string(dir.join(file)).unwrap().contains(words);
    wait_until("it runs", || told("out", "idle: active"));
    fs::write(dir.join("idle.toml"), IDLE.replace("5%", "105%")).unwrap();
    wait_until("what is wrong is said", || told("errors", "idle.toml is not taken; the schemes go on"));
    fs::write(dir.join("idle.toml"), IDLE.replace("\"idle\"", "\"other\"")).unwrap();
    wait_until("the new one counts", || told("out", "other: active"));
    let times = || fs::read_to_string(dir.join("errors")).unwrap().matches("was read again").count();
    let before = times();
    running.signal(Signal::HUP);
    wait_until("SIGHUP has it read again", || times() > before);
    ended(running).ok();
}

#[test]
fn when_the_cgroup_of_a_goal_is_removed_it_is_said_and_statistics_are_kept() {
    if !can_act() {
        return;
    }
    let Some(group) = Group::new("goal").filter(|group| group.0.join("memory.pressure").exists()) else {
        skip("no cgroup of version 2 can be made");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let goal = format!(
        "quota.goals = [{{ metric = \"some_mem_psi_us\", target = \"10ms\", cgroup = {:?} }}]\n",
        group.0
    );
    let scheme = "[[scheme]]\nname = \"idle\"\naction = \"stat\"\nquota.size = \"8M/200ms\"\n";
    fs::write(dir.join("idle.toml"), scheme.to_owned() + &goal).unwrap();
    let target = sleeper();
    let running = apply(dir, target.pid(), &["--stats-every", "100ms", "--overhead", "0"]);
    let out = || fs::read_to_string(dir.join("out")).unwrap();
    wait_until("the goal lets it act", || out().contains("idle: active, tried ") && out().contains("full "));
    drop(group);
    wait_until("that is said", || out().contains("idle: waits: no goal can be read"));
    ended(running).ok();
    let last = out().lines().rev().find(|line| line.starts_with("idle  ")).unwrap().to_owned();
    assert!(last.ends_with("waits: no goal can be read") && !last.contains("idle  0 B"), "{last}");
}

#[test]
fn when_the_cgroup_of_the_targets_is_removed_it_is_said_and_statistics_are_kept() {
    if !can_act() {
        return;
    }
    let Some(group) = Group::new("targets") else {
        skip("no cgroup can be made");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let target = sleeper();
    group.add(target.pid());
    let path = group.0.to_str().unwrap().to_owned();
    let mut command =
        isotherm(dir, &["scheme", "apply", "stat", "--cgroup", &path, "--stats-every", "100ms"]);
    command.stdout(fs::File::create(dir.join("out")).unwrap());
    command.stderr(fs::File::create(dir.join("errors")).unwrap());
    let running = Running::start(command);
    let out = || fs::read_to_string(dir.join("out")).unwrap();
    wait_until("it acts", || out().contains("1 process "));
    ended(target);
    drop(group);
    running.end().ok();
    let errors = fs::read_to_string(dir.join("errors")).unwrap();
    assert!(errors.contains(&format!("cgroup {path} was removed")), "{errors}");
    assert!(out().lines().any(|line| line.starts_with("stat  ")), "{}", out());
}

#[test]
fn while_watermarks_keep_all_schemes_from_acting_nothing_is_monitored() {
    if !can_act() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    // There is always less free than all, and more than nothing.
    let asleep = "watermarks = { high = \"0.1%\", mid = \"0.1%\", low = \"0%\", interval = \"200ms\" }\n";
    fs::write(dir.join("idle.toml"), format!("{IDLE}{asleep}")).unwrap();
    let target = sleeper();
    let running = apply(dir, target.pid(), &["--stats-every", "100ms", "-o", "run.rec"]);
    let told = |words: &str| fs::read_to_string(dir.join("out")).unwrap().matches(words).count();
    wait_until("it sleeps", || told("idle: off by its watermarks") > 10);
    assert!(!dir.join("run.rec").exists(), "no snapshot was taken");
    fs::write(dir.join("idle.toml"), IDLE).unwrap();
    wait_until("it wakes", || told("idle: active") > 10);
    ended(running).ok();
    let recorded = run(dir, &["report", "info", "-i", "run.rec"]).ok();
    assert!(recorded.contains("snapshots"), "{recorded}");
}

#[test]
fn what_makes_no_sense_is_refused_before_anything_is_done() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let toml = IDLE.replace("min_age", "max_size = \"1K\"\nmin_age");
    fs::write(dir.join("tiny.toml"), toml).unwrap();
    let target = sleeper();
    let pid = target.pid().to_string();
    run(dir, &["scheme", "apply", "prcl"]).fails(2, &["nothing to act on"]);
    run(dir, &["scheme", "apply", "no.toml", "--pid", &pid]).fails(1, &["no scheme file no.toml", "prcl"]);
    let refused = ["scheme idle: it matches nothing", "regions are whole pages", "not applied"];
    run(dir, &["scheme", "apply", "tiny.toml", "--pid", &pid]).fails(1, &refused);
    run(dir, &["scheme", "apply", "prcl", "--pid", &pid, "--backend", "refs"])
        .fails(1, &["refs has no regions that schemes can act on", "pte"]);
}
