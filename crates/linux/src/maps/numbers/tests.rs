use super::*;
use crate::clock;
use crate::maps::tests::mapping_of_many_pieces;
use crate::maps::{Maps, Reader, StepLimit};
use crate::pte::Pte;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The numbers of this kernel; `None`, said, where they cannot be had.
fn numbers() -> Option<Numbers> {
    let must =
        std::env::var_os("CI").is_some() && rustix::process::geteuid().is_root() && kernel_is_at_least(6, 1);
    let found = Pte::load().map_err(|error| error.to_string());
    let found =
        found.and_then(|pte| pte.numbers().ok_or_else(|| "mappings are in no tree known here".to_owned()));
    let found = found.and_then(|mut numbers| {
        let Way::Later { load, .. } = std::mem::take(&mut numbers.way) else { unreachable!() };
        numbers.get_ready(load().map_err(|error| error.to_string())?);
        Ok(numbers)
    });
    match found {
        Ok(numbers) => Some(numbers),
        Err(why) => {
            assert!(!must, "skipped, as root in CI: {why}");
            println!("skipped: {why}");
            None
        }
    }
}

/// A child of a fork that maps what it is told to and waits until it is killed.
struct Mapping(Process);

impl Drop for Mapping {
    fn drop(&mut self) {
        // Fails where it has ended.
        let _ = kill_process(self.0.pid(), Signal::KILL);
        let _ = rustix::process::waitpid(Some(self.0.pid()), rustix::process::WaitOptions::empty());
    }
}

impl Mapping {
    /// `map` makes nothing but system calls.
    fn new(map: impl Fn()) -> Self {
        let mut ready = [0; 2];
        // SAFETY: an array of two, as wanted.
        assert_eq!(unsafe { libc::pipe2(ready.as_mut_ptr(), libc::O_CLOEXEC) }, 0);
        // SAFETY: other threads hold locks, so the child makes nothing but system calls.
        match unsafe { libc::fork() } {
            0 => {
                map();
                // SAFETY: a byte of its own; then it sleeps for good.
                unsafe {
                    libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                    libc::write(ready[1], [1_u8].as_ptr().cast(), 1);
                    loop {
                        libc::pause();
                    }
                }
            }
            pid => {
                assert!(pid > 0);
                let mut byte = [0_u8];
                // SAFETY: room for the one byte; both ends are this function's.
                unsafe {
                    libc::close(ready[1]);
                    assert_eq!(libc::read(ready[0], byte.as_mut_ptr().cast(), 1), 1);
                    libc::close(ready[0]);
                }
                Self(Process::open(Pid::from_raw(pid).unwrap()).unwrap())
            }
        }
    }
}

fn map(fd: i32, pages: usize, flags: i32) -> *mut libc::c_void {
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe { libc::mmap(std::ptr::null_mut(), pages << 12, libc::PROT_READ | libc::PROT_WRITE, flags, fd, 0) }
}

/// Mappings of every kind that has a name of its own.
fn of_all_kinds(file: &Path, deleted: &Path) {
    let [file, deleted] = [file, deleted].map(|path| CString::new(path.as_os_str().as_bytes()));
    let (Ok(file), Ok(deleted)) = (file, deleted) else { return };
    // SAFETY: calls with arguments as the kernel wants them, on memory that was just mapped.
    unsafe {
        for path in [&file, &deleted] {
            let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC);
            map(fd, 2, libc::MAP_SHARED);
            let second = map(fd, 3, libc::MAP_PRIVATE);
            libc::mprotect(second.byte_add(4096), 4096, libc::PROT_READ | libc::PROT_EXEC);
        }
        libc::unlink(deleted.as_ptr());
        map(libc::memfd_create(c"ring".as_ptr(), libc::MFD_CLOEXEC), 1, libc::MAP_SHARED);
        map(-1, 1, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        let named = map(-1, 2, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // Kernels without such names refuse it.
        libc::prctl(libc::PR_SET_VMA, libc::PR_SET_VMA_ANON_NAME, named, 4096, c"arena".as_ptr());
        let segment = libc::shmget(libc::IPC_PRIVATE, 4096, 0o600);
        libc::shmat(segment, std::ptr::null(), 0);
        libc::shmctl(segment, libc::IPC_RMID, std::ptr::null_mut());
        let heap = libc::sbrk(0);
        libc::brk(heap.byte_add(1 << 20));
    }
}

/// As read by numbers in steps of so many bytes, and whether none of it was printed.
fn read(numbers: &mut Numbers, process: &Process, bytes: usize) -> (Vec<crate::maps::Mapping>, bool) {
    let (mut reader, mut maps) = (Reader::new(), Maps::new());
    reader.begin_by(process, numbers, true).unwrap();
    let limit = StepLimit { bytes, cpu: Duration::MAX };
    let mut by_numbers = true;
    loop {
        by_numbers &= reader.reads_numbers();
        if reader.step_by(process, &mut maps, limit, numbers).unwrap().whole.is_some() {
            break;
        }
    }
    assert_eq!(maps.list().ranges(), maps_printed(process).list().ranges());
    (maps.mappings().to_vec(), by_numbers)
}

fn maps_printed(process: &Process) -> Maps {
    let mut maps = Maps::new();
    maps.read(process).unwrap();
    maps
}

fn files(name: &str) -> [std::path::PathBuf; 2] {
    let files = ["kept", "deleted"]
        .map(|kind| std::env::temp_dir().join(format!("isotherm-{name}-{kind}-{}", std::process::id())));
    files.iter().for_each(|file| std::fs::write(file, vec![1; 5 << 12]).unwrap());
    files
}

#[test]
fn what_the_numbers_tell_is_what_is_printed() {
    let Some(mut numbers) = numbers() else { return };
    let [kept, deleted] = files("numbers");
    let child = Mapping::new(|| of_all_kinds(&kept, &deleted));
    let printed = maps_printed(&child.0);
    let has = |what: &str| printed.mappings().iter().filter(|m| m.name.contains(what)).count();
    assert!(has("-kept-") >= 4 && has("-deleted-") >= 4 && has("/memfd:ring (deleted)") == 1, "{printed:?}");
    assert!(has("[heap]") >= 1 && has("[stack]") == 1 && has("[vdso]") == 1 && has("/SYSV") == 1);
    for bytes in [usize::MAX, 100] {
        assert_eq!(read(&mut numbers, &child.0, bytes).0, printed.mappings(), "in steps of {bytes}");
    }
    // The file is called otherwise, and so is what was known of it.
    let moved = kept.with_extension("moved");
    std::fs::rename(&kept, &moved).unwrap();
    let printed = maps_printed(&child.0);
    assert!(printed.mappings().iter().any(|m| m.name.ends_with(".moved")));
    assert_eq!(read(&mut numbers, &child.0, usize::MAX).0, printed.mappings());
    std::fs::remove_file(&moved).unwrap();
    let printed = maps_printed(&child.0);
    assert!(printed.mappings().iter().any(|m| m.name.ends_with(".moved (deleted)")));
    assert_eq!(read(&mut numbers, &child.0, usize::MAX).0, printed.mappings());
}

#[test]
fn names_that_cannot_be_asked_for_are_learnt_from_what_is_printed() {
    let Some(mut numbers) = numbers() else { return };
    numbers.is_mute = true;
    let [kept, deleted] = files("learnt");
    let child = Mapping::new(|| {
        for path in [&kept, &deleted] {
            let Ok(path) = CString::new(path.as_os_str().as_bytes()) else { return };
            // SAFETY: a path that ends in a zero.
            map(unsafe { libc::open(path.as_ptr(), libc::O_RDWR) }, 2, libc::MAP_SHARED);
        }
    });
    let printed = maps_printed(&child.0);
    let (first, second) = (read(&mut numbers, &child.0, usize::MAX), read(&mut numbers, &child.0, 200));
    assert_eq!((&*first.0, &*second.0), (printed.mappings(), printed.mappings()));
    assert!(second.1 && numbers.known.len() > 3, "not by numbers: {numbers:?}");
    std::fs::remove_file(&kept).unwrap();
    assert_eq!(read(&mut numbers, &child.0, usize::MAX).0, maps_printed(&child.0).mappings());
    std::fs::remove_file(&deleted).unwrap();
}

#[test]
fn of_each_process_of_the_machine_the_numbers_tell_what_is_printed() {
    let Some(mut numbers) = numbers() else { return };
    let (mut same, mut by_numbers) = (0, 0);
    let pids = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    for pid in pids.filter_map(Pid::from_raw).filter(|pid| *pid != getpid()) {
        let mut before = Maps::new();
        let Ok(process) = Process::open(pid) else { continue };
        if before.read(&process).is_err() || before.mappings().is_empty() {
            continue;
        }
        let (mut reader, mut maps) = (Reader::new(), Maps::new());
        let read = reader.begin_by(&process, &mut numbers, true);
        if read.is_err() || reader.step_by(&process, &mut maps, StepLimit::NONE, &mut numbers).is_err() {
            continue;
        }
        let mut after = Maps::new();
        if after.read(&process).is_err() || after.mappings() != before.mappings() {
            // It maps and unmaps meanwhile.
            continue;
        }
        assert_eq!(maps.list(), before.list(), "{pid:?}");
        same += 1;
        by_numbers += usize::from(maps.is_of(process.pages().map_or(0, |pages| pages.0)));
    }
    println!("{same} processes");
    assert!(same > 0 && by_numbers > 0);
}

#[test]
fn tens_of_thousands_of_mappings_are_read_in_small_steps_and_for_a_fraction_of_printing_them() {
    let Some(mut numbers) = numbers() else { return };
    const PAGES: usize = 60_000;
    let child = Mapping::new(|| {
        mapping_of_many_pieces(PAGES);
    });
    let start = clock::of_this_thread();
    let printed = maps_printed(&child.0);
    let printing = clock::of_this_thread() - start;
    let (mut reader, mut maps) = (Reader::new(), Maps::new());
    let start = clock::of_this_thread();
    reader.begin_by(&child.0, &mut numbers, true).unwrap();
    let (mut steps, mut longest) = (0, Duration::ZERO);
    let limit = StepLimit { bytes: 64 << 10, cpu: Duration::from_millis(1) };
    loop {
        let before = clock::of_this_thread();
        let whole = reader.step_by(&child.0, &mut maps, limit, &mut numbers).unwrap().whole;
        (steps, longest) = (steps + 1, longest.max(clock::of_this_thread() - before));
        if whole.is_some() {
            break;
        }
        assert!(!reader.so_far().is_complete());
    }
    let took = clock::of_this_thread() - start;
    println!("{steps} steps, {took:?} of CPU, at most {longest:?} a step; printed {printing:?}");
    assert!(steps >= PAGES / 4096, "{steps}");
    assert_eq!(maps.mappings(), printed.mappings());
}
