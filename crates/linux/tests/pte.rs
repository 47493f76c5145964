//! The `pte` operations on real memory: this process's own, a child's, a dead process's.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod live;

use isotherm_damon::{AddrRange, Check, Operations, Seen, TargetId, three_regions};
use isotherm_linux::maps::Maps;
use isotherm_linux::process::Process;
use isotherm_linux::pte::Pte;
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mlock, mmap_anonymous, mprotect};
use rustix::process::{Pid, getpid};
use std::process::{Command, Stdio};
use std::sync::Arc;

const ME: TargetId = TargetId(1);
const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;

/// The operations on this process, if they work here.
fn operations() -> Option<Pte> {
    let mut pte = live::operations()?;
    pte.add(ME, Arc::new(Process::open(getpid()).unwrap()));
    Some(pte)
}

/// Anonymous memory, 2 MiB aligned, written to once; with huge pages or without.
fn memory(size: u64, huge: bool, flags: MapFlags) -> u64 {
    let len = (size + HUGE) as usize;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
    let start = (at.unwrap() as u64).next_multiple_of(HUGE);
    let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    // SAFETY: the range lies inside the mapping just made; the advice changes no contents.
    unsafe { madvise(start as *mut _, size as usize, advice) }.unwrap();
    if flags.contains(MapFlags::PRIVATE) {
        // A child that another test of this process forks would map it too.
        // SAFETY: as above.
        unsafe { madvise(start as *mut _, size as usize, Advice::LinuxDontFork) }.unwrap();
    }
    touch(start, size);
    start
}

fn touch(start: u64, size: u64) {
    for addr in (start..start + size).step_by(PAGE as usize) {
        // SAFETY: inside a mapping that this test made and owns.
        unsafe { (addr as *mut u8).write_volatile(1) };
    }
}

fn checks(addrs: &[u64]) -> Vec<Check> {
    addrs.iter().map(|a| Check::new(ME, *a)).collect()
}

fn seen(checks: &[Check]) -> Vec<Seen> {
    checks.iter().map(|c| c.seen).collect()
}

/// Kilobytes of `key` in the smaps entry of the mapping that holds `addr`.
fn smaps(addr: u64, key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let mut inside = false;
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|r| r.split_once('-'));
        let hex = |s: &str| u64::from_str_radix(s, 16).ok();
        if let Some((Some(start), Some(end))) = range.map(|(s, e)| (hex(s), hex(e))) {
            inside = (start..end).contains(&addr);
        } else if inside && let Some(value) = line.strip_prefix(key) {
            return value.trim_start_matches(':').trim().split(' ').next().unwrap().parse().unwrap();
        }
    }
    panic!("no {key} for {addr:x}");
}

#[test]
fn a_prepared_page_is_idle_until_it_is_accessed() {
    let Some(mut pte) = operations() else { return };
    let start = memory(64 * PAGE, false, MapFlags::PRIVATE);
    let addrs: Vec<u64> = (0..64).map(|i| start + i * PAGE).collect();
    let mut list = checks(&addrs);
    pte.check(&mut list);
    assert!(list.iter().all(|c| c.seen == Seen::Accessed && c.unit == PAGE), "just written: {list:?}");
    // Every eighth page, too far apart to be cleared with its neighbours.
    let mut some = checks(&addrs.iter().copied().step_by(8).collect::<Vec<_>>());
    pte.prepare(&mut some);
    assert_eq!(seen(&some), [Seen::Idle; 8]);
    for _ in 0..3 {
        pte.check(&mut some);
        assert_eq!(seen(&some), [Seen::Idle; 8], "looking changes nothing");
    }
    touch(addrs[16], PAGE);
    pte.check(&mut some);
    let want: Vec<Seen> = (0..8).map(|i| if i == 2 { Seen::Accessed } else { Seen::Idle }).collect();
    assert_eq!(seen(&some), want);
    let cleared = pte.prepared().cleared;
    assert_eq!(cleared, 8);
    pte.prepare(&mut some);
    assert_eq!(pte.prepared().cleared, cleared + 1, "what is clear already is not cleared again");
    assert_eq!(pte.prepared().idle, 7);
}

#[test]
fn neighbours_are_cleared_with_one_range() {
    let Some(mut pte) = operations() else { return };
    let start = memory(64 * PAGE, false, MapFlags::PRIVATE);
    let mut list = checks(&[start, start + PAGE, start + 3 * PAGE, start + 40 * PAGE]);
    pte.prepare(&mut list);
    assert_eq!(seen(&list), [Seen::Idle; 4]);
    let mut between = checks(&[start + 2 * PAGE, start + 20 * PAGE]);
    pte.check(&mut between);
    assert_eq!(seen(&between), [Seen::Idle, Seen::Accessed], "a gap of a page is cheaper than another flush");
}

#[test]
fn holes_are_absent_and_say_how_large_they_are() {
    let Some(mut pte) = operations() else { return };
    let len = 8 * HUGE as usize;
    // SAFETY: a new mapping at an address of the kernel's choice, never accessed.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ, MapFlags::PRIVATE) };
    let inside = (at.unwrap() as u64).next_multiple_of(HUGE) + 2 * HUGE;
    let mut list = checks(&[inside, 0x1000]);
    pte.check(&mut list);
    assert_eq!(seen(&list), [Seen::Absent; 2]);
    assert!(list[0].unit >= HUGE, "no table below the PMD: {}", list[0].unit);
}

#[test]
fn a_huge_page_is_cleared_whole_and_stays_huge() {
    let Some(mut pte) = operations() else { return };
    let start = memory(4 * HUGE, true, MapFlags::PRIVATE);
    let huge = smaps(start, "AnonHugePages");
    if huge < 4 * 2048 {
        println!("skipped: the machine gave {huge} kB of huge pages where 8192 kB were asked for");
        return;
    }
    let mut list = checks(&[start + 5 * PAGE, start + HUGE + 77 * PAGE]);
    pte.check(&mut list);
    assert!(list.iter().all(|c| c.seen == Seen::Accessed && c.unit == HUGE), "{list:?}");
    pte.prepare(&mut list);
    assert_eq!(seen(&list), [Seen::Idle; 2]);
    touch(start + 300 * PAGE, PAGE);
    pte.check(&mut list);
    assert_eq!(seen(&list), [Seen::Accessed, Seen::Idle], "any of its pages sets the huge page's bit");
    assert_eq!(smaps(start, "AnonHugePages"), huge);
}

/// Whether the frame of `addr` is part of a compound page (/proc/kpageflags).
fn is_compound(addr: u64) -> bool {
    use std::os::unix::fs::FileExt;
    let word = |path: &str, index: u64| {
        let mut bytes = [0u8; 8];
        std::fs::File::open(path).unwrap().read_exact_at(&mut bytes, index * 8).unwrap();
        u64::from_ne_bytes(bytes)
    };
    let pfn = word("/proc/self/pagemap", addr / PAGE) & ((1 << 55) - 1);
    word("/proc/kpageflags", pfn) & (3 << 15) != 0
}

#[test]
fn a_folio_mapped_page_by_page_is_never_split() {
    let Some(mut pte) = operations() else { return };
    let start = memory(HUGE, true, MapFlags::PRIVATE);
    if smaps(start, "AnonHugePages") < 2048 {
        println!("skipped: the machine gave no huge page");
        return;
    }
    let middle = (start + HUGE / 2) as *mut _;
    // SAFETY: one page of this test's own mapping, made read-only and writable again; not accessed meanwhile.
    unsafe {
        mprotect(middle, PAGE as usize, MprotectFlags::READ).unwrap();
        mprotect(middle, PAGE as usize, MprotectFlags::READ | MprotectFlags::WRITE).unwrap();
    }
    touch(start, HUGE);
    assert_eq!(smaps(start, "AnonHugePages"), 0, "the PMD is split, the folio is not");
    assert!(is_compound(start));
    let mut list = checks(&[start + PAGE, start + 400 * PAGE]);
    pte.check(&mut list);
    assert!(list.iter().all(|c| c.seen == Seen::Accessed && c.unit == PAGE), "{list:?}");
    pte.prepare(&mut list);
    assert!(list.iter().all(|c| matches!(c.seen, Seen::Idle | Seen::Blind)), "{list:?}");
    assert!(is_compound(start) && is_compound(start + 400 * PAGE), "prepared: {list:?}");
}

#[test]
fn locked_memory_is_known_not_to_be_seen() {
    let Some(mut pte) = operations() else { return };
    let start = memory(16 * PAGE, false, MapFlags::PRIVATE);
    // SAFETY: this test's own mapping.
    unsafe { mlock(start as *mut _, 16 * PAGE as usize) }.unwrap();
    let mut list = checks(&[start, start + 8 * PAGE]);
    pte.prepare(&mut list);
    assert_eq!(seen(&list), [Seen::Blind; 2]);
    assert_eq!(pte.prepared().locked, 2);
}

#[test]
fn memory_shared_with_a_child_is_known_not_to_be_seen() {
    let Some(mut pte) = operations() else { return };
    let start = memory(16 * PAGE, false, MapFlags::SHARED);
    // SAFETY: the child only touches the shared mapping, pauses, and ends without running the parent's exit handlers.
    let child = unsafe { libc::fork() };
    if child == 0 {
        touch(start, 16 * PAGE);
        // SAFETY: no arguments; ends when the parent kills this process.
        unsafe { libc::pause() };
        // SAFETY: as above.
        unsafe { libc::_exit(0) };
    }
    let child = Pid::from_raw(child).unwrap();
    // Once the child has touched the pages they are mapped twice.
    let shared = (0..100_000).any(|_| {
        touch(start, 16 * PAGE);
        let mut list = checks(&[start, start + 8 * PAGE]);
        pte.prepare(&mut list);
        std::thread::yield_now();
        seen(&list) == [Seen::Blind; 2]
    });
    rustix::process::kill_process(child, rustix::process::Signal::KILL).unwrap();
    rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty()).unwrap();
    assert!(shared);
    assert!(pte.prepared().shared >= 2);
}

/// A child that does not outlive its test, also when that fails.
struct Ended(std::process::Child);

impl Drop for Ended {
    fn drop(&mut self) {
        // Both fail only for a child that is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What a process has mapped, once its loader is done: heap, mmap area and stack.
fn mapped(process: &Process) -> Vec<AddrRange> {
    let mut maps = Maps::new();
    for _ in 0..1_000_000 {
        maps.read(process).unwrap();
        let ranges = maps.ranges().to_vec();
        if three_regions(&ranges).len() == 3 {
            return ranges;
        }
    }
    panic!("no three regions in {:?}", maps.ranges());
}

#[test]
fn a_dead_target_says_nothing() {
    let Some(mut pte) = operations() else { return };
    let mut child = Ended(Command::new("sleep").arg("100").stdin(Stdio::null()).spawn().unwrap());
    let id = TargetId(2);
    let process = Arc::new(Process::open(Pid::from_child(&child.0)).unwrap());
    pte.add(id, Arc::clone(&process));
    let ranges = mapped(&process);
    pte.set_ranges(id, &ranges);
    assert_eq!(pte.ranges(id), ranges);
    let mut list = [Check::new(id, ranges[0].start)];
    pte.check(&mut list);
    assert_ne!(list[0].seen, Seen::Unchecked);
    child.0.kill().unwrap();
    child.0.wait().unwrap();
    let mut list = [Check::new(id, ranges[0].start)];
    pte.check(&mut list);
    pte.prepare(&mut list);
    assert_eq!(list[0].seen, Seen::Unchecked);
    assert!(!pte.is_alive(id) && pte.is_alive(ME));
    assert!(pte.take_error().is_none(), "a target's death is no error");
}

#[test]
fn a_target_that_replaces_itself_is_watched_on() {
    let Some(mut pte) = operations() else { return };
    let mut shell = Command::new("sh");
    shell.args(["-c", "read line; exec sleep 100"]).stdin(Stdio::piped());
    let mut child = Ended(shell.spawn().unwrap());
    let pid = Pid::from_child(&child.0);
    let id = TargetId(2);
    let process = Arc::new(Process::open(pid).unwrap());
    pte.add(id, Arc::clone(&process));
    let mut list = [Check::new(id, mapped(&process)[0].start)];
    pte.check(&mut list);
    assert!(pte.take_execed().is_empty());
    std::io::Write::write_all(&mut child.0.stdin.take().unwrap(), b"\n").unwrap();
    let name = || std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).unwrap();
    while name().trim() != "sleep" {
        std::thread::yield_now();
    }
    let stack = three_regions(&mapped(&process))[2];
    let mut pages: Vec<Check> =
        (stack.start..stack.end).step_by(PAGE as usize).map(|a| Check::new(id, a)).collect();
    pte.check(&mut pages);
    assert_eq!(pte.take_execed(), [id], "said once, so that its regions start anew");
    pte.execed(id);
    assert!(pte.ranges(id).is_empty());
    // Its pages are its own: were they looked up in the map of the old address space, they would seem shared or gone.
    pte.prepare(&mut pages);
    assert!(pte.prepared().cleared > 0, "{:?}", pte.prepared());
    assert_eq!(pte.prepared().shared, 0);
    assert!(pte.take_error().is_none() && pte.is_alive(id));
}
