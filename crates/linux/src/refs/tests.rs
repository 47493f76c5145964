use super::*;
use isotherm_damon::RegionSnapshot;
use isotherm_testing::ProgramCopy;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::{Pid, getpid};
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Instant;

/// Memory of its own mapping: the pages next to it are not accessible and so never join it.
struct Memory {
    base: *mut std::ffi::c_void,
    size: usize,
}

const GUARD: usize = 4096;

impl Memory {
    /// `size` bytes of small pages, all of them resident.
    fn resident(size: usize) -> Self {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let base =
            unsafe { mmap_anonymous(std::ptr::null_mut(), size + 2 * GUARD, ProtFlags::empty(), flags) };
        let memory = Self { base: base.unwrap(), size };
        let inside = memory.start() as *mut std::ffi::c_void;
        // SAFETY: the range lies inside the mapping just made, which nothing else refers to.
        unsafe {
            let access = rustix::mm::MprotectFlags::READ | rustix::mm::MprotectFlags::WRITE;
            rustix::mm::mprotect(inside, size, access).unwrap();
            madvise(inside, size, Advice::LinuxNoHugepage).unwrap();
        }
        memory.touch();
        memory
    }

    fn start(&self) -> u64 {
        self.base as u64 + GUARD as u64
    }

    fn touch(&self) {
        for offset in (0..self.size).step_by(4096) {
            // SAFETY: inside the accessible part of the mapping; atomics may be accessed by several threads.
            let byte = unsafe { AtomicU8::from_ptr((self.start() as usize + offset) as *mut u8) };
            byte.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: the memory is only ever accessed through atomics.
unsafe impl Sync for Memory {}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: unmaps what `resident` mapped; whoever borrowed it is done.
        unsafe { munmap(self.base, self.size + 2 * GUARD) }.unwrap();
    }
}

fn source(attrs: Attrs, overhead: f64) -> Refs {
    let mut refs = Refs::new(attrs, overhead).unwrap();
    refs.add_target(TargetId(7), &Arc::new(Process::open(getpid()).unwrap())).unwrap();
    refs
}

/// Drives `refs` in real time until it has handed out `count` snapshots.
fn snapshots(refs: &mut Refs, count: usize) -> Vec<Snapshot> {
    let mut taken = Vec::new();
    while taken.len() < count {
        let now = monotonic_ns();
        let due = refs.tick(now, &mut |snapshot| taken.push(snapshot.clone())).unwrap();
        std::thread::sleep(Duration::from_nanos(due.saturating_sub(monotonic_ns())));
    }
    taken
}

fn region_at(snapshot: &Snapshot, addr: u64) -> RegionSnapshot {
    let regions = &snapshot.targets[0].regions;
    *regions.iter().find(|r| r.range.contains(addr)).expect("the mapping has a region")
}

/// Whether the hot and the cold memory of this process are told apart.
fn hot_and_cold() {
    let (hot, cold) = (Memory::resident(16 << 20), Memory::resident(16 << 20));
    let mut refs = source(Attrs::default(), 0.0);
    let mut taken: Vec<Snapshot> = Vec::new();
    let rate_of_hot = |taken: &[Snapshot]| taken.last().map_or(0, |s| region_at(s, hot.start()).nr_accesses);
    // The longer a look is delayed, the less it proves: where all else is busy, a round may show next to nothing. One
    // of many does not.
    while taken.len() < 3 || rate_of_hot(&taken) < 5 && taken.len() < 100 {
        let due = refs.tick(monotonic_ns(), &mut |snapshot| taken.push(snapshot.clone())).unwrap();
        // Between any two looks, whichever threads are let run.
        hot.touch();
        std::thread::sleep(Duration::from_nanos(due.saturating_sub(monotonic_ns())));
    }
    let last = taken.last().unwrap();
    assert_eq!((last.targets[0].id, last.max_nr_accesses), (TargetId(7), 20));
    let (hot_region, cold_region) = (region_at(last, hot.start()), region_at(last, cold.start()));
    assert_eq!(hot_region.range.size(), 16 << 20);
    assert!(hot_region.nr_accesses >= 5, "{hot_region:?}");
    assert!(taken.iter().all(|snapshot| region_at(snapshot, cold.start()).nr_accesses == 0));
    assert!(cold_region.age >= 3, "{cold_region:?}");
    assert!(taken.windows(2).all(|pair| pair[0].end_ns == pair[1].start_ns));
    assert!(refs.counters().checks > 0 && refs.counters().clears > 0);
    assert!(refs.counters().max_checks_per_sample <= 1000);
    assert!(refs.is_coarse());
}

#[test]
fn hot_memory_is_told_from_cold() {
    hot_and_cold();
}

const REFUSED: &str = "another_users_process_is_refused_with_the_remedy";

#[test]
fn the_same_works_without_root() {
    if !rustix::process::geteuid().is_root() {
        // Then all of these tests run without root.
        hot_and_cold();
        return;
    }
    // Another user may not be able to reach the file this test runs from.
    let dir = tempfile::tempdir().unwrap();
    let copy = ProgramCopy::make(&std::env::current_exe().unwrap(), dir.path()).unwrap();
    let mut command = copy.as_nobody();
    command.arg("--exact").current_dir("/");
    command.args(["hot_memory_is_told_from_cold", REFUSED].map(|test| format!("refs::tests::{test}")));
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("2 passed"), "{text}");
}

#[test]
fn another_users_process_is_refused_with_the_remedy() {
    // The memory of process 1 is root's; root itself may observe it.
    if rustix::process::geteuid().is_root() {
        println!("skipped: root may observe any process; run as another user by the test above");
        return;
    }
    let init = Arc::new(Process::open(Pid::from_raw(1).unwrap()).unwrap());
    let error = Refs::new(Attrs::default(), 0.0).unwrap().add_target(TargetId(1), &init);
    assert!(error.unwrap_err().to_string().contains("run as its user or as root"));
}

#[test]
fn looks_become_rare_as_the_budget_shrinks() {
    let _held = Memory::resident(64 << 20);
    // A short aggregation, so that the budget alone says how long a round takes.
    let attrs =
        Attrs { sample: Duration::from_millis(1), aggr: Duration::from_millis(2), ..Attrs::default() };
    let mut refs = source(attrs, 0.02);
    let (wall, cpu) = (Instant::now(), clock::of_this_thread());
    let taken = snapshots(&mut refs, 4);
    let share = (clock::of_this_thread() - cpu).as_secs_f64() / wall.elapsed().as_secs_f64();
    // The first round runs before any cost is known; the others were stretched to pay for themselves.
    assert!(refs.round_ns > 2_000_000, "{}", refs.round_ns);
    assert!(share < 0.10, "{share}");
    assert!(refs.counters().checks_cut > 0);
    assert!(taken[3].end_ns - taken[3].start_ns >= 2_000_000);
    assert!(refs.blind_spots().iter().any(|spot| spot.contains("as often as the overhead allows")));
}

#[test]
fn a_target_that_ends_leaves_the_others_alone() {
    let mut child = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let sleeper = Arc::new(Process::open(Pid::from_raw(child.id() as i32).unwrap()).unwrap());
    let mut refs = source(Attrs::default(), 0.0);
    refs.add_target(TargetId(8), &sleeper).unwrap();
    assert_eq!(snapshots(&mut refs, 1)[0].targets.len(), 2);
    child.kill().unwrap();
    child.wait().unwrap();
    let last = snapshots(&mut refs, 2).pop().unwrap();
    assert_eq!(last.targets.iter().map(|t| t.id).collect::<Vec<_>>(), [TargetId(7)]);
    refs.remove_target(TargetId(8));
    refs.remove_target(TargetId(7));
    let now = monotonic_ns();
    assert!(refs.tick(now, &mut |_| panic!("no target, no snapshot")).unwrap() > now);
    let error = refs.add_target(TargetId(9), &sleeper);
    assert!(matches!(error, Err(SourceError::Process { source }) if source.is_gone()));
}

#[test]
fn regions_never_exceed_their_limit() {
    let attrs = Attrs { min_nr_regions: 3, max_nr_regions: 5, ..Attrs::default() };
    let mut refs = source(attrs, 0.0);
    let snapshot = snapshots(&mut refs, 1).pop().unwrap();
    assert_eq!(snapshot.nr_regions(), 5);
}
