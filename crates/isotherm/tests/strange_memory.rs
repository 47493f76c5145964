//! Processes whose memory is not like most: reserved and hardly used, changed from beside. The test is the process.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod common;

use common::*;
use isotherm_damon::{RegionSnapshot, Snapshot};
use isotherm_record::Item;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// One test at a time: each is the process that is recorded, and two recorders clear each other's bits.
static ALONE: Mutex<()> = Mutex::new(());

/// Memory of this process.
struct Reserved(Range<u64>);

impl Drop for Reserved {
    fn drop(&mut self) {
        let size = (self.0.end - self.0.start) as usize;
        // SAFETY: the mapping made by `reserve`, which nobody uses any more.
        unsafe { munmap(self.0.start as *mut _, size) }.unwrap();
    }
}

fn reserve(bytes: u64) -> Reserved {
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a new mapping, where the kernel likes.
    let start = unsafe {
        mmap_anonymous(std::ptr::null_mut(), bytes as usize, ProtFlags::READ | ProtFlags::WRITE, flags)
    };
    let start = start.unwrap() as u64;
    Reserved(start..start + bytes)
}

/// Writes to each page of some memory that [`reserve`] gave, some 50 times a second, until told to stop.
fn use_memory(range: &Range<u64>, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for page in range.clone().step_by(4096) {
            // SAFETY: the range was reserved and belongs to this thread alone.
            unsafe { std::ptr::write_volatile(page as *mut u8, 1) };
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Snapshots of this process, while it uses some memory.
fn record_oneself(hot: &Range<u64>, options: &[&str]) -> Vec<Snapshot> {
    let dir = tempfile::tempdir().unwrap();
    let pid = std::process::id().to_string();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| use_memory(hot, &stop));
        let args = [&["record", "-q", "--pid", &pid, "-o", "own.rec"][..], options].concat();
        let done = run(dir.path(), &args);
        stop.store(true, Ordering::Relaxed);
        done.ok();
    });
    let items = read(&dir.path().join("own.rec")).unwrap();
    let of = |item| match item {
        Item::Snapshot(snapshot) => Some(snapshot),
        _ => None,
    };
    items.into_iter().filter_map(of).collect()
}

/// The regions of the last snapshot.
fn last(snapshots: &[Snapshot]) -> impl Iterator<Item = &RegionSnapshot> {
    snapshots.last().unwrap().targets.iter().flat_map(|target| &target.regions)
}

fn common(region: &RegionSnapshot, range: &Range<u64>) -> u64 {
    let end = region.range.end.min(range.end);
    end.saturating_sub(region.range.start.max(range.start))
}

#[test]
fn what_is_used_of_a_reserved_terabyte_is_found_and_the_rest_counts_as_nothing() {
    if !pte_works() {
        return;
    }
    let _alone = ALONE.lock();
    let reserved = reserve(1 << 40);
    let (all, start) = (reserved.0.clone(), reserved.0.start);
    let hot = start + (700 << 30)..start + (700 << 30) + 64 * MIB;
    let snapshots = record_oneself(&hot, &["--duration", "6s"]);
    // On a machine that does other things, a moment says little.
    let found = |snapshot: &Snapshot| -> u64 {
        let regions = snapshot.targets.iter().flat_map(|target| &target.regions);
        regions.filter(|region| region.nr_accesses > 0).map(|region| common(region, &hot)).sum()
    };
    let used = snapshots.iter().rev().take(20).map(found).max().unwrap();
    assert!(used > 60 * MIB, "{} of 64 MiB are told as accessed", used / MIB);
    let resident = |region: &RegionSnapshot| match common(region, &all) {
        0 => 0,
        _ => region.resident.expect("pte tells what is resident"),
    };
    let resident: u64 = last(&snapshots).map(resident).sum();
    assert!((60 * MIB..72 * MIB).contains(&resident), "{} MiB resident", resident / MIB);
    // Beyond it nothing is accessed, as what is not there cannot be.
    let beside: u64 = last(&snapshots)
        .filter(|region| region.nr_accesses > 0)
        .map(|region| common(region, &all) - common(region, &hot))
        .sum();
    assert!(beside < 8 * MIB, "{} MiB beside are told as accessed", beside / MIB);
}

#[test]
fn every_process_has_the_least_number_of_regions() {
    if !pte_works() {
        return;
    }
    let _alone = ALONE.lock();
    let reserved = reserve(32 * MIB);
    let other = sleeper();
    let more = other.pid().to_string();
    let hot = reserved.0.clone();
    let snapshots = record_oneself(&hot, &["--duration", "3s", "--min-regions", "60", "--pid", &more]);
    // Those that have just come, with next to nothing mapped, cannot have so many.
    let large = |size: u64| size > MIB;
    let counts: Vec<usize> = snapshots
        .iter()
        .flat_map(|snapshot| &snapshot.targets)
        .filter(|target| large(target.regions.iter().map(|region| region.range.size()).sum()))
        .map(|target| target.regions.len())
        .collect();
    assert!(counts.len() > snapshots.len(), "both were seen");
    assert!(counts.iter().all(|count| *count >= 60), "{counts:?} regions, at least 60 were asked for");
}

/// What `/proc/PID` tells of such a process has no memory, and no advice reaches it: sweeps show what is accessed, at all times. Of so much
/// memory no processor keeps all translations.
#[test]
fn memory_is_seen_also_when_the_first_thread_has_ended() {
    if !pte_works() {
        return;
    }
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let target = isotherm_testing::Headless::start(128 << 20).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let pid = target.pid().to_string();
    run(dir.path(), &["record", "-q", "-d", "14s", "--overhead", "0", "--pid", &pid, "-o", "headless.rec"])
        .ok();
    let items = read(&dir.path().join("headless.rec")).unwrap();
    let snapshots: Vec<Snapshot> = items
        .into_iter()
        .filter_map(|item| if let Item::Snapshot(snapshot) = item { Some(snapshot) } else { None })
        .collect();
    let (start, size) = target.memory();
    // On a machine that does other things, a moment says little.
    let most = |range: Range<u64>, is_hot: bool| -> u64 {
        let told = |snapshot: &Snapshot| -> u64 {
            let regions = snapshot.targets.iter().flat_map(|target| &target.regions);
            let is = |region: &&RegionSnapshot| !region.is_unknown() && (region.nr_accesses > 0) == is_hot;
            regions.filter(is).map(|region| common(region, &range)).sum()
        };
        snapshots.iter().rev().take(30).map(told).max().unwrap()
    };
    let half = size / 2;
    let (hot, cold) = (most(start..start + half, true), most(start + half..start + size, false));
    assert!(hot * 10 >= half * 8, "{hot} of {half} bytes hot");
    assert!(cold * 10 >= half * 8, "{cold} of {half} bytes idle");
}
