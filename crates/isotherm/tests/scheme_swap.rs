//! `isotherm scheme apply` on anonymous memory, with swap in zram that the tests make and remove, also when they fail.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::{Running, applying, ended, isotherm, pte_works, skip, skip_but_in_ci, wait_until};
use isotherm_lab::schemes::Zram;
use isotherm_report::units::parse_size;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap_anonymous};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;

/// One at a time: what lies in swap comes back to memory when its device is removed.
static TURN: Mutex<()> = Mutex::new(());

/// Swap, as long as this lives.
struct Swap {
    _zram: Zram,
    _turn: MutexGuard<'static, ()>,
}

fn swap() -> Option<Swap> {
    if !pte_works() {
        skip_but_in_ci("the pte backend does not work here");
        return None;
    }
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    match Zram::new(512 * MIB) {
        Ok(zram) => Some(Swap { _zram: zram, _turn: turn }),
        Err(why) => {
            skip(&format!("no swap in zram: {why:#}"));
            None
        }
    }
}

/// Kilobytes of `key` in the entries of `/proc/PID/smaps` that lie within these addresses, as bytes.
fn smaps(pid: u32, from: u64, to: u64, key: &str) -> u64 {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let (mut inside, mut sum) = (false, 0);
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(start, end)| (hex(start), hex(end))) {
            inside = from < end && start < to;
        } else if inside && let Some(value) = line.strip_prefix(key).and_then(|rest| rest.strip_prefix(':')) {
            sum += value.trim().split(' ').next().unwrap().parse::<u64>().unwrap() << 10;
        }
    }
    sum
}

/// The same of all of the process.
fn whole(pid: u32, key: &str) -> u64 {
    smaps(pid, 0, u64::MAX, key)
}

fn apply(dir: &Path, scheme: &str, pid: u32, more: &[&str]) -> Running {
    fs::write(dir.join("schemes.toml"), scheme).unwrap();
    applying(dir, "schemes.toml", pid, more)
}

fn log(dir: &Path) -> Vec<Value> {
    let text = fs::read_to_string(dir.join("log")).unwrap_or_default();
    // The last line may be half written.
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

fn number(line: &Value, name: &str) -> u64 {
    line[name].as_u64().unwrap()
}

/// A figure of the statistics that were printed last, in bytes; 0 before there were any.
fn told(dir: &Path, scheme: &str, what: &str) -> u64 {
    let text = fs::read_to_string(dir.join("out")).unwrap();
    // A line each time, of which each scheme has a part; at the end one each.
    let begins = format!("{scheme}: ");
    let mut parts = text.lines().rev().flat_map(|line| line.split(" | ")).map(str::trim_start);
    let line = parts.find(|part| part.starts_with(&begins));
    let figure = line.and_then(|line| line.split(&format!(", {what} ")).nth(1)?.split(',').next());
    figure.map_or(0, |figure| parse_size(&figure.replace(' ', "")).unwrap())
}

/// Bytes that were left alone for a reason, by address of the action.
fn left(lines: &[Value], reason: &str, from: u64, to: u64) -> u64 {
    let within = |line: &&Value| from < number(line, "end") && number(line, "start") < to;
    lines.iter().filter(within).filter_map(|line| line["left"][reason].as_u64()).sum()
}

/// Runs a pattern until the test ends, and says where its areas are.
fn workload(dir: &Path, pattern: &str) -> (Running, BTreeMap<String, (u64, u64)>) {
    fs::write(dir.join("pattern.toml"), pattern).unwrap();
    let running = Running::start(isotherm(dir, &["workload", "pattern.toml", "--truth", "truth"]));
    let records = || {
        let text = fs::read_to_string(dir.join("truth")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()).collect::<Vec<_>>()
    };
    wait_until("the workload is ready", || records().iter().any(|record| record["kind"] == "ready"));
    let areas = records().into_iter().filter(|record| record["kind"] == "area");
    let areas = areas.map(|area| {
        (area["name"].as_str().unwrap().to_owned(), (number(&area, "start"), number(&area, "end")))
    });
    (running, areas.collect())
}

const THIRDS: &str = "\
name = \"thirds\"
summary = \"three areas: hot, warm, and one that is never used\"
area = [{ name = \"hot\", size = \"24M\" }, { name = \"warm\", size = \"24M\" }, { name = \"cold\", size = \"24M\" }]

[[phase]]
name = \"all\"
duration = \"10m\"
access = [{ area = \"hot\", rate = \"100Hz\" }, { area = \"warm\", rate = \"10Hz\" }]
";

/// Bar 2 of the schemes: a quota for one third of what matches takes the coldest third.
#[test]
fn a_quota_for_a_third_takes_the_cold_one() {
    let Some(_swap) = swap() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (running, areas) = workload(dir, THIRDS);
    let pid = running.pid();
    // All that is there matches, and one window is all there is.
    let scheme = "[[scheme]]\nname = \"third\"\naction = \"pageout\"\nmin_size = \"4K\"\nmin_age = \"2s\"\n\
         quota.size = \"24M\"\nquota.reset_interval = \"1h\"\nquota.weights = { access = 1, age = 1 }\n\
         filters = [{ reject = \"not anon\" }]\n";
    let applying = apply(dir, scheme, pid, &["--overhead", "0", "--stats-every", "100ms"]);
    let swapped = |name: &str| areas.get(name).map(|&(from, to)| smaps(pid, from, to, "Swap")).unwrap();
    // Looks at what is absent or in use cost a little of the quota each time, and what filters leave out counts as tried.
    let tried = || told(dir, "third", "tried");
    wait_until("most of the quota is used", || tried() >= 16 * MIB && whole(pid, "Swap") >= 8 * MIB);
    ended(applying).ok();
    // What else the program has, such as its heap, is no part of the three.
    let [hot, warm, cold] = ["hot", "warm", "cold"].map(swapped);
    assert!(cold * 100 >= (hot + warm + cold) * 95, "of hot {hot}, of warm {warm}, of cold {cold}");
    assert!(cold >= 6 * MIB && tried() <= 24 * MIB, "{cold} out, {} tried of a quota of 24 MiB", tried());
}

/// Bar 2: no window gets more than its quota, seen from inside and from outside.
#[test]
fn no_window_gets_more_than_its_quota() {
    let Some(_swap) = swap() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (running, _) = workload(dir, THIRDS);
    let pid = running.pid();
    let scheme = "[[scheme]]\nname = \"slow\"\naction = \"pageout\"\nmin_size = \"4K\"\nmax_access = \"5%\"\n\
         min_age = \"1s\"\nquota.size = \"1M/500ms\"\nfilters = [{ reject = \"not anon\" }]\n";
    let applying = apply(dir, scheme, pid, &["--overhead", "0"]);
    wait_until("some windows have passed", || whole(pid, "Swap") >= 10 * MIB);
    ended(applying).ok();
    let mut windows = BTreeMap::<u64, u64>::new();
    for line in log(dir) {
        *windows.entry(number(&line, "window_ns")).or_default() += number(&line, "tried");
    }
    assert!(windows.values().all(|&bytes| bytes <= MIB), "{windows:?}");
    let opened: Vec<u64> = windows.keys().copied().collect();
    assert!(opened.windows(2).all(|two| two[1] - two[0] >= 500_000_000), "{opened:?}");
    let out = whole(pid, "Swap");
    assert!(out <= windows.len() as u64 * MIB, "{out} in {} windows", windows.len());
}

/// Huge pages that went to swap whole since boot; `None` where the kernel does not count them.
fn written_whole() -> Option<u64> {
    let counts = fs::read_to_string("/proc/vmstat").unwrap();
    counts.lines().find_map(|line| line.strip_prefix("thp_swpout ")?.parse().ok())
}

/// A block goes with one flush of the TLB, and leaves no huge page behind that nobody asked for.
#[test]
fn blocks_that_are_cold_as_a_whole_go_as_huge_pages() {
    let Some(_swap) = swap() else { return };
    let rule = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let (Some(before), true) = (written_whole(), rule.contains("[madvise]")) else {
        skip("huge pages are forbidden here, or come unasked");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (running, areas) = workload(dir, THIRDS);
    let pid = running.pid();
    let (from, to) = areas["cold"];
    let scheme = "[[scheme]]\nname = \"all\"\naction = \"pageout\"\nmax_access = \"1%\"\nmin_age = \"1s\"\n\
         quota.size = \"8M\"\nfilters = [{ reject = \"not anon\" }]\n";
    let applying = apply(dir, scheme, pid, &["--overhead", "0"]);
    wait_until("the cold area is out", || smaps(pid, from, to, "Swap") >= 22 * MIB);
    ended(applying).ok();
    let whole_blocks = written_whole().unwrap() - before;
    // On a busy machine a collapse may take so long that what comes in the next second goes page by page.
    assert!(whole_blocks >= 1, "{whole_blocks} of 11 blocks or more went as huge pages");
    assert_eq!(whole(pid, "AnonHugePages"), 0, "what stays or comes back is as it was");
    // What goes is what smaps says, however it goes.
    let applied: u64 = log(dir).iter().map(|line| number(line, "applied")).sum();
    let out = whole(pid, "Swap");
    assert!(applied.abs_diff(out) <= out / 50, "{applied} applied, {out} out");
}

/// Bar 6: what is said to have been applied is what smaps says.
#[test]
fn what_was_applied_is_what_smaps_says() {
    let Some(_swap) = swap() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let (running, areas) = workload(dir, THIRDS);
    let pid = running.pid();
    let before = whole(pid, "Rss");
    let scheme = "[[scheme]]\nname = \"idle\"\naction = \"pageout\"\nmin_size = \"4K\"\nmax_access = \"1%\"\n\
         min_age = \"1s\"\nquota.size = \"64M/s\"\n";
    let applying = apply(dir, scheme, pid, &["--overhead", "0"]);
    let &(from, to) = areas.get("cold").unwrap();
    // A page may be in the kernel's hands at the wrong moment.
    wait_until("what is never used is out", || smaps(pid, from, to, "Rss") * 50 <= to - from);
    ended(applying).ok();
    let gone = before - whole(pid, "Rss");
    let applied: u64 = log(dir).iter().map(|line| number(line, "applied")).sum();
    assert!(applied.abs_diff(gone) * 100 <= gone, "{applied} applied, {gone} gone");
    let out = fs::read_to_string(dir.join("out")).unwrap();
    let last = out.lines().last().unwrap();
    assert!(last.contains("as the kernel counts: ") && !last.contains(" 0 B to swap, "), "{out}");
}

/// Memory that is needed again sooner than the scheme takes for granted: it is noticed, and the scheme suspended. It asks for memory
/// in use; otherwise what is seen to be accessed would stay.
#[test]
fn a_scheme_whose_memory_comes_back_is_suspended() {
    let Some(_swap) = swap() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let pattern = "name = \"seldom\"\nsummary = \"all of it is accessed every other second\"\n\
         area = [{ name = \"seldom\", size = \"24M\" }]\n[[phase]]\nname = \"all\"\nduration = \"10m\"\n\
         access = [{ area = \"seldom\", rate = \"0.5Hz\" }]\n";
    let (running, _) = workload(dir, pattern);
    let scheme = "[[scheme]]\nname = \"eager\"\naction = \"pageout\"\nmin_access = \"0.02%\"\nmax_access = \"5%\"\nmin_age = \"3s\"\n\
         quota.size = \"64M/s\"\nmax_refault_rate = \"20%\"\nfilters = [{ reject = \"not anon\" }]\n";
    let applying = apply(dir, scheme, running.pid(), &["--overhead", "0", "--stats-every", "100ms"]);
    let out = || fs::read_to_string(dir.join("out")).unwrap();
    wait_until("it is suspended", || out().contains("eager: suspended: "));
    ended(applying).ok();
    assert!(out().contains(" % came back, "), "{}", out());
}

/// Memory of this process, filled with what its address says.
struct Memory {
    start: u64,
    len: u64,
}

impl Memory {
    fn new(len: u64, shared: bool) -> Self {
        let kind = if shared { MapFlags::SHARED } else { MapFlags::PRIVATE };
        let prot = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len as usize, prot, kind) }.unwrap();
        // SAFETY: the mapping just made, which holds nothing yet.
        unsafe { madvise(at, len as usize, Advice::LinuxNoHugepage) }.unwrap();
        let memory = Self { start: at as u64, len };
        for word in (0..len).step_by(512) {
            // SAFETY: inside the mapping just made, and aligned.
            unsafe { ((memory.start + word) as *mut u64).write_volatile(memory.content(word)) };
        }
        memory
    }

    /// A private one that children of other tests do not share.
    fn private(len: u64) -> Self {
        let memory = Self::new(len, false);
        // SAFETY: a mapping of this test's own; the advice changes no contents.
        unsafe { madvise(memory.start as *mut _, len as usize, Advice::LinuxDontFork) }.unwrap();
        memory
    }

    const fn content(&self, word: u64) -> u64 {
        (self.start + word).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn is_whole(&self) -> bool {
        (0..self.len).step_by(512).all(|word| {
            // SAFETY: inside the mapping, and aligned.
            let found = unsafe { ((self.start + word) as *const u64).read_volatile() };
            found == self.content(word)
        })
    }

    fn kept(&self, key: &str) -> u64 {
        smaps(std::process::id(), self.start, self.start + self.len, key)
    }
}

/// Bar 5: what is shared with processes that are no targets, locked, or unknown is untouched, counted, told.
#[test]
fn what_is_shared_locked_or_unknown_stays_and_is_counted() {
    let Some(_swap) = swap() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let size = 8 * MIB;
    let (shared, locked, private) = (Memory::new(size, true), Memory::private(size), Memory::private(size));
    // SAFETY: a mapping of this test's own.
    unsafe { mlock(locked.start as *mut _, size as usize) }.unwrap();
    // A child that lives for the test, without exec: it goes on mapping what is shared.
    // SAFETY: the child calls nothing but pause, which is async-signal-safe.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let mut page = 0;
        while page < size {
            // SAFETY: inside the shared mapping, which the child has too.
            unsafe { ((shared.start + page) as *const u8).read_volatile() };
            page += PAGE;
        }
        loop {
            // SAFETY: no memory is involved.
            unsafe { libc::pause() };
        }
    }
    let ends = || {
        // SAFETY: the child made above, which is waited for once.
        unsafe {
            libc::kill(child, libc::SIGKILL);
            libc::waitpid(child, std::ptr::null_mut(), 0);
        }
    };
    let _ended = Ends(Some(ends));
    let scheme = |unknown: bool| {
        format!(
            "[[scheme]]\nname = \"idle\"\naction = \"pageout\"\nmin_size = \"4K\"\nmax_access = \"5%\"\nmin_age = \"500ms\"\n\
             unknown = {unknown}\nquota.size = \"64M/s\"\n"
        )
    };
    let own = std::process::id();
    let areas = [(shared.start, shared.start + size), (locked.start, locked.start + size)];
    for unknown in [false, true] {
        let _ = fs::remove_file(dir.join("log"));
        let more = ["--overhead", "0", "--no-children", "--stats-every", "100ms", "--no-sweep"];
        let applying = apply(dir, &scheme(unknown), own, &more);
        wait_until("private memory goes", || private.kept("Rss") * 10 <= size);
        if !unknown {
            wait_until("what is unknown is told", || told(dir, "idle", "unknown") >= 2 * size);
        } else {
            for (reason, (from, to)) in ["shared", "locked"].into_iter().zip(areas) {
                wait_until(reason, || left(&log(dir), reason, from, to) >= size);
            }
        }
        ended(applying).ok();
        for memory in [&shared, &locked] {
            assert_eq!((memory.kept("Rss"), memory.kept("Swap")), (size, 0), "unknown = {unknown}");
        }
        let out = fs::read_to_string(dir.join("out")).unwrap();
        if unknown {
            assert!(out.contains("shared with other processes") && out.contains("locked"), "{out}");
        } else {
            // Without sweeps nothing is known of either: no Accessed bit of theirs can be cleared.
            let tried = |from, to| {
                let within = |line: &&Value| from < number(line, "end") && number(line, "start") < to;
                log(dir).iter().filter(within).count()
            };
            assert_eq!(areas.map(|(from, to)| tried(from, to)), [0, 0]);
        }
        assert!(private.is_whole() && shared.is_whole() && locked.is_whole());
    }
}

/// Calls it when dropped.
struct Ends<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Ends<F> {
    fn drop(&mut self) {
        if let Some(ends) = self.0.take() {
            ends();
        }
    }
}

/// Bar 7: killed at any moment it leaves nothing half-done: memory holds what it held, and the target goes on.
/// `ISOTHERM_KILLS` says how often.
#[test]
fn killed_at_random_moments_it_leaves_memory_as_it_was() {
    let Some(_swap) = swap() else { return };
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let memory = Memory::private(16 * MIB);
    let kills = std::env::var("ISOTHERM_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(10u64);
    let scheme = "[[scheme]]\naction = \"pageout\"\nmin_size = \"4K\"\nmin_age = \"0s\"\nunknown = true\nquota.size = \"1G/s\"\n";
    let (mut acted, mut moment) = (0, 0x1234_5678_9abc_def1u64);
    for _ in 0..kills {
        let applying = apply(dir, scheme, std::process::id(), &["--overhead", "0", "--no-children"]);
        moment ^= moment << 13;
        moment ^= moment >> 7;
        moment ^= moment << 17;
        std::thread::sleep(Duration::from_millis(moment % 1500));
        applying.signal(Signal::KILL);
        drop(applying.end());
        acted += u64::from(memory.kept("Swap") > 0);
        assert!(memory.is_whole());
    }
    println!("{acted} of {kills} were killed after they had acted");
    assert_eq!(memory.kept("Rss"), 16 * MIB);
    assert!(kills < 10 || acted > 0, "none had come to act");
}
