use super::*;
use crate::clock;
use crate::maps::tests::mapping_of_many_pieces;
use crate::maps::{Maps, Reader, StepLimit};
use crate::pte::Pte;
use rustix::process::{Pid, Signal, getpid, kill_process};
use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The numbers of this kernel; `None`, said, where they cannot be had.
pub(crate) fn numbers() -> Option<Numbers> {
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
pub(crate) struct Mapping(pub Process);

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
        Self::that_changes(map, || ())
    }

    /// One that stops then, and when it is continued makes the system calls of `change`.
    pub(crate) fn that_changes(map: impl Fn(), change: impl Fn()) -> Self {
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
                    libc::raise(libc::SIGSTOP);
                    change();
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
                    // What continues it before it has stopped is lost.
                    assert_eq!(libc::waitpid(pid, std::ptr::null_mut(), libc::WUNTRACED), pid);
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
fn of_all_kinds([file, deleted]: &[CString; 2]) {
    // SAFETY: calls with arguments as the kernel wants them, on memory that was just mapped.
    unsafe {
        for path in [file, deleted] {
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

/// As read by numbers in steps of so many bytes, and whether it was not printed after all.
fn read(numbers: &mut Numbers, process: &Process, bytes: usize) -> (Vec<crate::maps::Mapping>, bool) {
    let before = numbers.lists;
    let (mut reader, mut maps) = (Reader::new(), Maps::new());
    reader.begin_by(process, numbers, true).unwrap();
    let limit = StepLimit { bytes, cpu: Duration::MAX };
    loop {
        if reader.step_by(process, &mut maps, limit, numbers).unwrap().whole.is_some() {
            break;
        }
    }
    (maps.mappings().to_vec(), numbers.lists > before)
}

fn maps_printed(process: &Process) -> Maps {
    let mut maps = Maps::new();
    maps.read(process).unwrap();
    maps
}

pub(crate) fn files(name: &str) -> (tempfile::TempDir, [PathBuf; 2]) {
    let dir = tempfile::TempDir::new().unwrap();
    let files = ["kept", "deleted"].map(|kind| dir.path().join(format!("isotherm-{name}-{kind}-")));
    files.iter().for_each(|file| std::fs::write(file, vec![1; 5 << 12]).unwrap());
    (dir, files)
}

pub(crate) fn c_string(path: impl AsRef<Path>) -> CString {
    CString::new(path.as_ref().as_os_str().as_bytes()).unwrap()
}

#[test]
fn numbers_say_what_is_printed() {
    let Some(mut numbers) = numbers() else { return };
    let (_dir, files) = files("numbers");
    let paths = files.each_ref().map(c_string);
    let [kept, _] = &files;
    let child = Mapping::new(|| of_all_kinds(&paths));
    let printed = maps_printed(&child.0);
    let has = |what: &str| printed.mappings().iter().filter(|m| m.name.contains(what)).count();
    assert!(has("-kept-") >= 4 && has("-deleted-") >= 4 && has("/memfd:ring (deleted)") == 1, "{printed:?}");
    assert!(has("[heap]") >= 1 && has("[stack]") == 1 && has("[vdso]") == 1 && has("/SYSV") == 1);
    let can_ask = kernel_is_at_least(6, 11);
    for bytes in [usize::MAX, 16, 100, 500] {
        let (read, by_numbers) = read(&mut numbers, &child.0, bytes);
        assert_eq!(read, printed.mappings(), "in steps of {bytes}");
        assert!(by_numbers || !can_ask, "printed in steps of {bytes}");
    }
    // The file is called otherwise, and so is what was known of it.
    let moved = kept.with_extension("moved");
    std::fs::rename(kept, &moved).unwrap();
    let printed = maps_printed(&child.0);
    assert!(printed.mappings().iter().any(|m| m.name.ends_with(".moved")));
    assert_eq!(read(&mut numbers, &child.0, usize::MAX), (printed.mappings().to_vec(), can_ask));
    std::fs::remove_file(&moved).unwrap();
    let printed = maps_printed(&child.0);
    assert!(printed.mappings().iter().any(|m| m.name.ends_with(".moved (deleted)")));
    assert_eq!(read(&mut numbers, &child.0, usize::MAX), (printed.mappings().to_vec(), can_ask));
}

#[test]
fn names_that_cannot_be_asked_for_are_learnt_from_what_is_printed() {
    let Some(mut numbers) = numbers() else { return };
    numbers.is_mute = true;
    let dir = tempfile::TempDir::new().unwrap();
    let program = dir.path().join("program");
    let copied = std::process::Command::new("cp").args(["/bin/sleep".as_ref(), program.as_os_str()]).status();
    assert!(copied.unwrap().success());
    let mut sleeps = std::process::Command::new(&program).arg("1000").spawn().unwrap();
    let child = Mapping(Process::open(Pid::from_child(&sleeps)).unwrap());
    child.0.wait_for_exec();
    let mut again = || {
        // Until its loader is done.
        loop {
            let printed = maps_printed(&child.0).mappings().to_vec();
            let (read, by_numbers) = read(&mut numbers, &child.0, usize::MAX);
            if read == printed && maps_printed(&child.0).mappings() == printed {
                return (read, by_numbers);
            }
        }
    };
    // Each library that it maps is unknown once.
    assert!((0..100).any(|_| again().1));
    std::fs::remove_file(&program).unwrap();
    let is_learnt = |(read, by_numbers): (Vec<crate::maps::Mapping>, bool)| {
        assert!(read.iter().any(|m| m.name.ends_with("program (deleted)")), "{read:?}");
        by_numbers
    };
    assert!((0..100).any(|_| is_learnt(again())));
    drop(child);
    let _ = sleeps.wait();
}

/// Mounts, in a namespace of its own, that end with it.
fn in_a_mount_namespace(test: impl FnOnce() + Send) {
    std::thread::scope(|scope| {
        let tested = scope.spawn(|| {
            // SAFETY: concerns this thread alone, which ends with the test.
            if unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) } != 0 {
                println!("skipped: needs CAP_SYS_ADMIN: {}", io::Error::last_os_error());
                return;
            }
            // SAFETY: a null pointer for what is not needed.
            let flags = libc::MS_REC | libc::MS_PRIVATE;
            assert_eq!(mount(c"none", Path::new("/"), None, flags, c""), 0, "{}", io::Error::last_os_error());
            test();
        });
        tested.join().unwrap();
    });
}

fn mount(
    what: &std::ffi::CStr,
    at: &Path,
    kind: Option<&std::ffi::CStr>,
    flags: u64,
    data: &std::ffi::CStr,
) -> i32 {
    let at = c_string(at);
    let kind = kind.map_or(std::ptr::null(), |kind| kind.as_ptr());
    // SAFETY: strings that end in a zero, or null where that is allowed.
    unsafe { libc::mount(what.as_ptr(), at.as_ptr(), kind, flags, data.as_ptr().cast()) }
}

/// A child that has mapped a file, its mappings as printed and by numbers.
fn mapped(numbers: &mut Numbers, path: &Path) -> (Mapping, Vec<crate::maps::Mapping>) {
    let path = c_string(path);
    let child = Mapping::new(|| {
        // SAFETY: a path that ends in a zero.
        map(unsafe { libc::open(path.as_ptr(), libc::O_RDONLY) }, 1, libc::MAP_PRIVATE);
    });
    let (read, _) = read(numbers, &child.0, usize::MAX);
    assert_eq!(read, maps_printed(&child.0).mappings(), "{path:?}");
    (child, read)
}

#[test]
fn files_of_an_overlay_have_the_names_that_are_printed_also_when_they_change() {
    let Some(mut numbers) = numbers() else { return };
    let dir = tempfile::TempDir::new().unwrap();
    in_a_mount_namespace(|| {
        let at = |name: &str| dir.path().join(name);
        // Of what is an overlay itself there may be none.
        std::fs::create_dir(at("base")).unwrap();
        assert_eq!(mount(c"none", &at("base"), Some(c"tmpfs"), 0, c""), 0, "{}", io::Error::last_os_error());
        for name in ["base/lower", "base/upper", "base/work", "merged", "bind"] {
            std::fs::create_dir(at(name)).unwrap();
        }
        for name in ["a", "b"] {
            std::fs::write(at("base/lower").join(name), [1; 4096]).unwrap();
        }
        let [lower, upper, work] =
            ["base/lower", "base/upper", "base/work"].map(|name| at(name).display().to_string());
        let data = c_string(format!("lowerdir={lower},upperdir={upper},workdir={work}"));
        if mount(c"overlay", &at("merged"), Some(c"overlay"), 0, &data) != 0 {
            println!("skipped: no overlays here: {}", io::Error::last_os_error());
            return;
        }
        assert_eq!(mount(&c_string(at("merged")), &at("bind"), None, libc::MS_BIND, c""), 0);
        let (child, read_first) = mapped(&mut numbers, &at("merged/a"));
        assert!(read_first.iter().any(|m| m.name.ends_with("merged/a")), "{read_first:?}");
        let (_other, by_bind) = mapped(&mut numbers, &at("bind/a"));
        assert!(by_bind.iter().any(|m| m.name.ends_with("bind/a")), "{by_bind:?}");
        std::fs::rename(at("merged/a"), at("merged/old")).unwrap();
        assert_eq!(read(&mut numbers, &child.0, usize::MAX).0, maps_printed(&child.0).mappings());
        std::fs::remove_file(at("merged/old")).unwrap();
        let (deleted, _) = read(&mut numbers, &child.0, usize::MAX);
        assert_eq!(deleted, maps_printed(&child.0).mappings());
        assert!(deleted.iter().any(|m| m.name.ends_with("old (deleted)")), "{deleted:?}");
    });
}

#[test]
fn a_file_of_a_mount_that_took_the_place_of_another_is_not_taken_for_that_ones() {
    let Some(mut numbers) = numbers() else { return };
    let dir = tempfile::TempDir::new().unwrap();
    in_a_mount_namespace(|| {
        for round in 0..40 {
            let at = dir.path().join(format!("MEI{round}"));
            std::fs::create_dir(&at).unwrap();
            assert_eq!(mount(c"none", &at, Some(c"tmpfs"), 0, c""), 0, "{}", io::Error::last_os_error());
            std::fs::write(at.join("lib.so"), [1; 4096]).unwrap();
            let (child, read) = mapped(&mut numbers, &at.join("lib.so"));
            assert!(read.iter().any(|m| m.name.ends_with(&format!("MEI{round}/lib.so"))), "{read:?}");
            drop(child);
            let at = c_string(&at);
            // Children of other tests may hold what was open when they were forked.
            // SAFETY: a path that ends in a zero.
            let unmounted = unsafe { libc::umount2(at.as_ptr(), libc::MNT_DETACH) };
            assert_eq!(unmounted, 0, "{}", io::Error::last_os_error());
        }
    });
}

#[test]
fn a_list_that_changes_between_two_steps_stays_sorted_and_has_no_mapping_twice() {
    let Some(mut numbers) = numbers() else { return };
    let start = mapping_of_many_pieces(400);
    let process = Process::open(getpid()).unwrap();
    for joined in 0..100 {
        let (mut reader, mut maps) = (Reader::new(), Maps::new());
        reader.begin_by(&process, &mut numbers, true).unwrap();
        let few = StepLimit { bytes: 16, cpu: Duration::MAX };
        // Up to a border within what is joined then.
        while reader
            .so_far()
            .mappings()
            .last()
            .is_none_or(|m| m.range.end <= start as u64 + (joined * 4 + 1) * 4096)
        {
            if reader.step_by(&process, &mut maps, few, &mut numbers).unwrap().whole.is_some() {
                break;
            }
        }
        for page in joined * 4..joined * 4 + 4 {
            // SAFETY: within what was mapped above, which nothing else uses.
            unsafe {
                rustix::mm::mprotect(
                    start.byte_add(page as usize * 4096),
                    4096,
                    rustix::mm::MprotectFlags::READ,
                )
            }
            .unwrap();
        }
        while reader.step_by(&process, &mut maps, StepLimit::NONE, &mut numbers).unwrap().whole.is_none() {}
        assert!(maps.mappings().is_sorted_by(|a, b| a.range.end <= b.range.start), "{:?}", maps.mappings());
        assert!(maps.ranges().is_sorted_by(|a, b| a.end <= b.start));
    }
    // SAFETY: what was mapped above.
    unsafe { rustix::mm::munmap(start, 400 * 4096) }.unwrap();
}

/// Where [`map_at`] maps.
pub(crate) const AT: usize = 0x1000_0000;

/// Maps a page of a file in the place of what was mapped like this before.
pub(crate) fn map_at(path: &CString) {
    // SAFETY: a path that ends in a zero, and an address where nothing lies but what was mapped there the time before.
    unsafe {
        let fd = libc::open(path.as_ptr(), libc::O_RDONLY);
        let at = std::ptr::without_provenance_mut(AT);
        libc::mmap(at, 4096, libc::PROT_READ, libc::MAP_PRIVATE | libc::MAP_FIXED, fd, 0);
    }
}

#[test]
fn a_mapping_that_takes_the_place_of_another_changes_the_stamp() {
    let Some(mut numbers) = numbers() else { return };
    let (_dir, files) = files("replaced");
    let [first, second] = files.each_ref().map(c_string);
    let child = Mapping::that_changes(|| map_at(&first), || map_at(&second));
    let mut maps = Maps::new();
    let read = |numbers: &mut Numbers, maps: &mut Maps| {
        let mut reader = Reader::new();
        reader.begin_by(&child.0, numbers, true).unwrap();
        reader.step_by(&child.0, maps, StepLimit::NONE, numbers).unwrap();
        maps.find(AT as u64).map(|m| m.name.to_string()).unwrap_or_default()
    };
    assert!(read(&mut numbers, &mut maps).contains("-kept-"));
    let Some(stamp) = numbers.stamp(&child.0) else {
        assert!(!kernel_is_at_least(6, 4));
        println!("skipped: this kernel does not count changes of mappings");
        return;
    };
    assert_eq!((maps.is_as_of(stamp), numbers.stamp(&child.0)), (Some(true), Some(stamp)));
    kill_process(child.0.pid(), Signal::CONT).unwrap();
    // The same pages are mapped in all.
    while !read(&mut numbers, &mut Maps::new()).contains("-deleted-") {
        std::thread::yield_now();
    }
    let now = numbers.stamp(&child.0).unwrap();
    assert_eq!(maps.is_as_of(now), Some(false));
    assert!(maps.is_of(child.0.pages().unwrap().0));
}

#[test]
fn where_the_kernel_keeps_things_is_said_to_nobody() {
    let Some(mut numbers) = numbers() else { return };
    let child = Mapping::new(|| ());
    let (mut reader, mut maps) = (Reader::new(), Maps::new());
    reader.begin_by(&child.0, &mut numbers, true).unwrap();
    let few = StepLimit { bytes: 16, cpu: Duration::MAX };
    assert_eq!(reader.step_by(&child.0, &mut maps, few, &mut numbers).unwrap().whole, None);
    let said = format!("{reader:?} {numbers:?}");
    let numbers = said.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse::<u64>().ok());
    assert!(numbers.into_iter().all(|number| number >> 63 == 0), "{said}");
}

#[test]
fn of_each_process_of_the_machine_numbers_say_what_is_printed() {
    let Some(mut numbers) = numbers() else { return };
    let mut same = 0;
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
    }
    println!("{same} processes, {} by numbers", numbers.lists);
    assert!(same > 0 && (numbers.lists > 0 || !kernel_is_at_least(6, 11)));
}

#[test]
fn tens_of_thousands_of_mappings_are_read_in_small_steps() {
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
    assert!(steps > PAGES / 4096 && numbers.lists == 1, "{steps}: {numbers:?}");
    assert_eq!(maps.mappings(), printed.mappings());
}
