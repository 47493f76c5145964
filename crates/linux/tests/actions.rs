//! Actions on real memory: this process's own, a child's, a dead process's. What they report is held against smaps.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod live;

use isotherm_damon::schemes::{Action, Actions, Filter, OpsFilter, Outcome, PageKind, Refusal, Request};
use isotherm_damon::{AddrRange, RegionSnapshot, TargetId};
use isotherm_linux::actions::{Acting, Reason};
use isotherm_linux::maps::Maps;
use isotherm_linux::process::Process;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mlock, mmap, mmap_anonymous};
use rustix::process::{Pid, getpid};
use rustix::time::{ClockId, clock_gettime};
use std::fs::File;
use std::io::Write;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

const ME: TargetId = TargetId(1);
const PAGE: u64 = 4096;
const HUGE: u64 = 2 << 20;

/// The actions on this process, if they work here: they need what the operations do.
fn acting() -> Option<Acting> {
    live::operations()?;
    let mut acting = Acting::new(false);
    acting.target(ME, &Arc::new(Process::open(getpid()).unwrap()));
    acting.set_schemes(&[(std::time::Duration::ZERO, true)]);
    Some(acting)
}

/// Has it act, on the mappings as they are now.
fn apply(
    acting: &mut Acting,
    action: Action,
    start: u64,
    size: u64,
    filters: &[OpsFilter],
) -> Result<Outcome, Refusal> {
    apply_within(acting, action, start, size, filters, None)
}

/// The same in no more time than this, ns.
fn apply_within(
    acting: &mut Acting,
    action: Action,
    start: u64,
    size: u64,
    filters: &[OpsFilter],
    time_left_ns: Option<u64>,
) -> Result<Outcome, Refusal> {
    let mut maps = Maps::new();
    maps.read(&Process::open(getpid()).unwrap()).unwrap();
    acting.mappings(ME, maps.list());
    let range = AddrRange::new(start, start + size);
    let region = RegionSnapshot { range, ..RegionSnapshot::default() };
    let (target, nodes) = (ME, &[][..]);
    acting.apply(&Request {
        scheme: 0,
        action,
        target,
        range,
        region: &region,
        filters,
        nodes,
        time_left_ns,
        window_ns: None,
        matches: range,
    })
}

fn touch(start: u64, size: u64) {
    for addr in (start..start + size).step_by(PAGE as usize) {
        // SAFETY: inside a mapping that this test made and owns.
        unsafe { (addr as *const u8).read_volatile() };
    }
}

/// A mapping of a new file on a disk, read once; 2 MiB aligned.
fn file_memory(size: u64) -> (u64, File) {
    let mut file = tempfile::tempfile_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&vec![1; size as usize]).unwrap();
    // Dirty pages are not dropped.
    file.sync_all().unwrap();
    let flags = MapFlags::SHARED;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped, only read.
    let at = unsafe { mmap(std::ptr::null_mut(), size as usize, ProtFlags::READ, flags, &file, 0) };
    let start = at.unwrap() as u64;
    // A child that another test of this process forks would map it too.
    // SAFETY: the mapping just made; the advice changes no contents.
    unsafe { madvise(start as *mut _, size as usize, Advice::LinuxDontFork) }.unwrap();
    touch(start, size);
    (start, file)
}

/// Anonymous memory, 2 MiB aligned, written to once; with huge pages or without.
fn anonymous(size: u64, huge: bool) -> u64 {
    let len = (size + HUGE) as usize;
    let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), len, prot, flags) };
    let start = (at.unwrap() as u64).next_multiple_of(HUGE);
    let advice = if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    for advice in [advice, Advice::LinuxDontFork] {
        // SAFETY: the range lies inside the mapping just made; the advice changes no contents.
        unsafe { madvise(start as *mut _, size as usize, advice) }.unwrap();
    }
    for addr in (start..start + size).step_by(PAGE as usize) {
        // SAFETY: inside the mapping just made.
        unsafe { (addr as *mut u8).write_volatile(1) };
    }
    start
}

/// Bytes of `key` in the smaps entries of what lies in a range.
fn smaps(start: u64, size: u64, key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps").unwrap();
    let (mut inside, mut sum) = (false, 0);
    for line in text.lines() {
        let range = line.split(' ').next().and_then(|r| r.split_once('-'));
        let hex = |s: &str| u64::from_str_radix(s, 16).ok();
        if let Some((Some(from), Some(to))) = range.map(|(s, e)| (hex(s), hex(e))) {
            inside = from < start + size && start < to;
        } else if inside && let Some(value) = line.strip_prefix(key).and_then(|v| v.strip_prefix(':')) {
            sum += value.trim().split(' ').next().unwrap().parse::<u64>().unwrap() << 10;
        }
    }
    sum
}

/// A child that lives until it is dropped.
struct Child(std::process::Child);

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn what_was_paged_out_is_what_smaps_says() {
    let Some(mut acting) = acting() else { return };
    let size = 8 << 20;
    let (start, _file) = file_memory(size);
    let before = smaps(start, size, "Rss");
    assert_eq!(before, size);
    let outcome = apply(&mut acting, Action::Pageout, start, size, &[]).unwrap();
    let gone = before - smaps(start, size, "Rss");
    assert_eq!(outcome.passed, size);
    assert!(outcome.applied.abs_diff(gone) * 100 <= gone, "{} applied, {gone} gone", outcome.applied);
    // What is not gone is accounted for: a page that another CPU had in its hands.
    assert_eq!(outcome.applied + acting.left_alone(0).total(), size, "{:?}", acting.left_alone(0));
    assert!(gone >= size / 10 * 9, "{gone} of {size}");
    let again = apply(&mut acting, Action::Pageout, start, size, &[]).unwrap();
    assert!(again.applied <= size - gone, "what is gone cannot go again");
    // It comes back when it is used, and that is noticed.
    touch(start, size);
    acting.look_after(u64::MAX);
    let refaults = acting.refaults(0);
    assert!(refaults.judged >= gone && refaults.rate() == Some(1.0), "{refaults:?}");
}

#[test]
fn locked_memory_is_not_touched() {
    let Some(mut acting) = acting() else { return };
    let size = 4 << 20;
    let (start, _file) = file_memory(size);
    // SAFETY: a mapping of this test's own.
    unsafe { mlock(start as *mut _, (size / 2) as usize) }.unwrap();
    let outcome = apply(&mut acting, Action::Pageout, start, size, &[]).unwrap();
    assert_eq!(smaps(start, size / 2, "Rss"), size / 2);
    assert!(outcome.applied > 0 && outcome.applied <= size / 2, "{outcome:?}");
    let left = acting.left_alone(0);
    assert_eq!(left.get(Reason::Locked), size / 2, "{left:?}");
}

#[test]
fn memory_that_others_map_is_not_touched() {
    let Some(mut acting) = acting() else { return };
    let size = 1 << 20;
    let (start, file) = file_memory(size);
    // SAFETY: a second mapping of the same file, only read; the first stands for another process's as well: what counts is
    // how often a page is mapped.
    let at = unsafe {
        mmap(std::ptr::null_mut(), size as usize, ProtFlags::READ, MapFlags::SHARED, &file, 0).unwrap()
    };
    touch(at as u64, size);
    let outcome = apply(&mut acting, Action::Pageout, start, size, &[]).unwrap();
    assert_eq!((outcome.applied, outcome.passed), (0, size));
    assert_eq!(acting.left_alone(0).get(Reason::Shared), size);
    assert_eq!(smaps(start, size, "Rss"), size);
}

/// Folios split and to be split, machine-wide.
fn huge_mapped(start: u64, size: u64) -> u64 {
    smaps(start, size, "AnonHugePages")
}

#[test]
fn a_huge_page_is_acted_on_whole_or_not_at_all() {
    let Some(mut acting) = acting() else { return };
    let start = anonymous(2 * HUGE, true);
    if huge_mapped(start, 2 * HUGE) != 2 * HUGE {
        println!("skipped: the system gave no huge pages");
        return;
    }
    let outcome = apply(&mut acting, Action::Cold, start + PAGE, 2 * HUGE - PAGE, &[]).unwrap();
    assert_eq!(outcome.applied, HUGE, "the second");
    assert_eq!(acting.left_alone(0).get(Reason::PartOfFolio), HUGE - PAGE);
    assert_eq!(huge_mapped(start, 2 * HUGE), 2 * HUGE);
}

#[test]
fn small_pages_become_huge_ones() {
    let Some(mut acting) = acting() else { return };
    let start = anonymous(3 * HUGE, false);
    // SAFETY: the memory made above.
    unsafe { madvise(start as *mut _, 3 * HUGE as usize, Advice::LinuxHugepage) }.unwrap();
    let outcome = apply(&mut acting, Action::Collapse, start + PAGE, 3 * HUGE - PAGE, &[]).unwrap();
    let huge = huge_mapped(start, 3 * HUGE);
    assert_eq!(outcome.applied, huge);
    // The first block is not in the range whole; that the system has no huge pages left is told.
    let left = acting.left_alone(0);
    assert!(huge == 2 * HUGE || left.get(Reason::NoMemory) + left.get(Reason::Busy) > 0, "{huge}: {left:?}");
    let again = apply(&mut acting, Action::Hugepage, start, huge, &[]).unwrap();
    assert!(again.applied <= HUGE, "{again:?}");
}

#[test]
fn filters_pick_pages_by_kind() {
    let Some(mut acting) = acting() else { return };
    let (size, anon) = (1 << 20, anonymous(1 << 20, false));
    let (file, _kept) = file_memory(size);
    let passed = |acting: &mut Acting, start, kind: PageKind| {
        apply(acting, Action::Stat, start, size, &[Filter::allow(kind)]).unwrap().passed
    };
    assert_eq!(
        (passed(&mut acting, anon, PageKind::Anon), passed(&mut acting, file, PageKind::Anon)),
        (size, 0)
    );
    assert_eq!(passed(&mut acting, anon, PageKind::Unmapped), 0);
    assert_eq!(passed(&mut acting, anon, PageKind::HugepageSize { min: 4096, max: 4096 }), size);
    assert_eq!(passed(&mut acting, anon, PageKind::HugepageSize { min: 8192, max: HUGE }), 0);
    let any = PageKind::File("*".into());
    assert_eq!((passed(&mut acting, anon, any.clone()), passed(&mut acting, file, any)), (0, size));
    assert_eq!(passed(&mut acting, file, PageKind::File("/no/such/*".into())), 0);
    assert_eq!(passed(&mut acting, anon, PageKind::Memcg("no/such/group".into())), 0);
    // A kernel's own DAMON may clear the bits of a few pages meanwhile.
    let young = passed(&mut acting, anon, PageKind::Young);
    assert!((size - 16 * PAGE..=size).contains(&young), "just written: {young}");
    // A page that the kernel moves at that moment is not cleared: MADV_COLD passes over what is no present entry.
    let still_young = |acting: &mut Acting| {
        apply(acting, Action::Cold, anon, size, &[]).unwrap();
        passed(acting, anon, PageKind::Young)
    };
    let left: Vec<u64> = (0..5).map(|_| still_young(&mut acting)).take_while(|left| *left > 0).collect();
    assert!(left.len() < 5, "cleared five times, and still young: {left:?}");
    // What they exclude is not acted on.
    let filters = [Filter::reject(PageKind::File("*".into()))];
    let outcome = apply(&mut acting, Action::Pageout, file, size, &filters).unwrap();
    assert_eq!((outcome.applied, outcome.passed, smaps(file, size, "Rss")), (0, 0, size));
}

/// What is paged out of memory that somebody saw to be accessed and then cleared, for a scheme whose least age has not passed since.
fn out_of_what_was_seen(takes_idle: bool) -> Option<(u64, u64)> {
    let mut acting = acting()?;
    acting.spare_young();
    acting.set_schemes(&[(std::time::Duration::from_secs(3600), takes_idle)]);
    let size = 64 * PAGE;
    let (start, _file) = file_memory(size);
    // Pages that the kernel moves at that moment stay as they are.
    let is_clear = |acting: &mut Acting| {
        apply(acting, Action::Cold, start, size, &[]).unwrap();
        apply(acting, Action::Stat, start, size, &[Filter::allow(PageKind::Young)]).unwrap().passed == 0
    };
    assert!((0..5).any(|_| is_clear(&mut acting)), "cleared five times, and still young");
    let now = clock_gettime(ClockId::Monotonic);
    let now_ns = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
    acting.sightings().add(ME, now_ns, [AddrRange::new(start, start + size)]);
    acting.look_after(now_ns);
    let outcome = apply(&mut acting, Action::Pageout, start, size, &[]).unwrap();
    Some((outcome.applied, acting.left_alone(0).get(Reason::Young)))
}

#[test]
fn what_was_seen_to_be_accessed_lately_stays_whoever_cleared_it() {
    let Some((out, young)) = out_of_what_was_seen(true) else { return };
    assert_eq!((out, young), (0, 64 * PAGE));
    assert_eq!(out_of_what_was_seen(false), Some((64 * PAGE, 0)), "it asks for memory in use");
}

#[test]
fn what_cannot_be_done_is_counted_and_every_call_is_heard_of() {
    let Some(mut acting) = acting() else { return };
    let heard = Arc::new(Mutex::new(Vec::new()));
    let ears = Arc::clone(&heard);
    acting.set_audit(Box::new(move |applied| ears.lock().unwrap().push(applied.clone())));
    let (start, size) = (anonymous(HUGE, false), HUGE);
    let outcome = apply(&mut acting, Action::LruPrio, start, size, &[]).unwrap();
    assert_eq!((outcome.applied, acting.left_alone(0).get(Reason::Unsupported)), (0, size));
    let heard = heard.lock().unwrap();
    assert_eq!(heard.len(), 1);
    assert_eq!(
        (heard[0].action, heard[0].range.size(), heard[0].pid),
        (Action::LruPrio, size, std::process::id())
    );
}

#[test]
fn a_call_ends_when_its_time_is_over() {
    let Some(mut acting) = acting() else { return };
    let (start, size) = (anonymous(8 * HUGE, false), 8 * HUGE);
    // Nothing takes a nanosecond, and a least call is done nonetheless.
    let outcome = apply_within(&mut acting, Action::Cold, start, size, &[], Some(1)).unwrap();
    let until = outcome.until.unwrap();
    assert_eq!((until - start, outcome.applied), (16 * PAGE, 16 * PAGE), "{outcome:?}");
    // It goes on from there, in as many chunks as it takes.
    let outcome =
        apply_within(&mut acting, Action::Cold, until, start + size - until, &[], Some(1 << 60)).unwrap();
    assert_eq!((outcome.until, outcome.applied), (None, size - 16 * PAGE), "{outcome:?}");
}

#[test]
fn a_huge_page_is_a_least_call() {
    let Some(mut acting) = acting() else { return };
    let (start, size) = (anonymous(4 * HUGE, true), 4 * HUGE);
    if huge_mapped(start, size) < size {
        eprintln!("skipped: no huge pages to be had");
        return;
    }
    let (mut at, mut calls) = (start, 0);
    while at < start + size {
        let outcome = apply_within(&mut acting, Action::Cold, at, start + size - at, &[], Some(1)).unwrap();
        let end = outcome.until.unwrap_or(start + size);
        assert!(end > at, "it gets on: {outcome:?}");
        (at, calls) = (end, calls + 1);
    }
    assert!(calls >= 4 && huge_mapped(start, size) == size, "{calls} calls");
}

/// A child whose stack is private memory, as a target.
fn child_with_stack(acting: &mut Acting) -> (Child, AddrRange) {
    let child = Child(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap());
    let process = Arc::new(Process::open(Pid::from_child(&child.0)).unwrap());
    acting.target(ME, &process);
    let mut maps = Maps::new();
    let stack = |maps: &mut Maps| {
        maps.read(&process).unwrap();
        maps.list().mappings().iter().find(|mapping| &*mapping.name == "[stack]").map(|mapping| mapping.range)
    };
    let range = stack(&mut maps).unwrap();
    acting.mappings(ME, maps.list());
    (child, range)
}

#[test]
fn what_is_not_permitted_any_more_is_counted_as_that() {
    let Some(mut acting) = acting() else { return };
    let (_child, range) = child_with_stack(&mut acting);
    let region = RegionSnapshot { range, ..RegionSnapshot::default() };
    let request = Request {
        scheme: 0,
        action: Action::Cold,
        target: ME,
        range,
        region: &region,
        filters: &[],
        nodes: &[],
        time_left_ns: None,
        window_ns: None,
        matches: range,
    };
    let permitted = acting.apply(&request).unwrap();
    assert!(permitted.applied > 0, "{permitted:?} {:?}", acting.left_alone(0));
    assert_eq!(acting.left_alone(0).get(Reason::NotPermitted), 0);
    // Of this thread alone, and for this call alone: it may be the one that other tests run on.
    let before = rustix::thread::capabilities(None).unwrap();
    let mut without = before;
    without.effective.remove(rustix::thread::CapabilitySet::SYS_NICE);
    rustix::thread::set_capabilities(None, without).unwrap();
    let forbidden = acting.apply(&request);
    rustix::thread::set_capabilities(None, before).unwrap();
    let forbidden = forbidden.unwrap();
    assert_eq!((forbidden.applied, forbidden.refused), (0, None));
    assert_eq!(acting.left_alone(0).get(Reason::NotPermitted), permitted.applied);
}

#[test]
fn a_target_that_died_is_refused() {
    if live::operations().is_none() {
        return;
    }
    let child = Child(Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap());
    let process = Arc::new(Process::open(Pid::from_child(&child.0)).unwrap());
    let mut acting = Acting::new(false);
    let id = TargetId(2);
    acting.target(id, &process);
    let mut maps = Maps::new();
    maps.read(&process).unwrap();
    acting.mappings(id, maps.list());
    let range = maps.ranges()[0];
    let region = RegionSnapshot { range, ..RegionSnapshot::default() };
    let request = |target| Request {
        scheme: 0,
        action: Action::Cold,
        target,
        range,
        matches: range,
        region: &region,
        filters: &[],
        nodes: &[],
        time_left_ns: None,
        window_ns: None,
    };
    assert!(acting.apply(&request(id)).is_ok());
    drop(child);
    assert_eq!(acting.apply(&request(id)), Err(Refusal::Target));
    assert_eq!(acting.apply(&request(TargetId(3))), Err(Refusal::Target), "never heard of");
}
