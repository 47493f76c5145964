//! Contents of files and of private copies against Linux itself: random calls and accesses of this process, in a stretch of
//! addresses that nothing else is near, and the same on the crate. Results, words and the number of anonymous pages agree, and
//! what a child that is forked reads and writes.
//!
//! `ISOTHERM_MM_SEQUENCES=10000` runs so many sequences.
#![cfg(all(target_os = "linux", target_arch = "x86_64", not(loom), not(miri)))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::RwLock;

use common::files::*;
use common::host::{FRAMES, word, zero};
use common::{PAGE, anonymous};
use isotherm_mm::*;
use isotherm_pagetable::X86_64;
use isotherm_pagetable::host::HostMachine;
use proptest::prelude::*;

/// Where the crate's page 0 is here. Linux places mappings from the top down, so none comes here by itself.
const BASE: u64 = 0x1234_0000_0000;
const PAGES: std::ops::Range<u64> = 30..54;
const SIZES: [u64; 2] = [12, 8];

#[derive(Clone, Debug)]
enum Op {
    Map {
        at: u64,
        pages: u64,
        file: Option<(u64, u64)>,
        shared: bool,
        prot: u8,
    },
    Unmap(u64, u64),
    Protect(u64, u64, u8),
    Discard(u64, u64),
    /// And then each page is written to: until then both may have either what was there or zeros.
    LazyFree(u64, u64),
    Move {
        from: u64,
        pages: u64,
        to: u64,
        stays: bool,
    },
    Read(u64),
    Write(u64, u64),
    Sync(u64, u64, u32),
    Put(u64, u64, u64),
    Truncate(u64, u64),
    /// By the number of the advice in Linux: what a fork does with it, what is needed soon or not, what is to be there.
    Advise(u64, u64, i32),
    /// `mlock2(MLOCK_ONFAULT)`, which faults nothing in, or `munlock`.
    Lock(u64, u64, bool),
    /// The parent writes to the pages of which the mask has a bit, then a child that was forked before looks at all pages, writes to
    /// those of the second mask, looks again, and ends.
    Fork {
        parent: u64,
        child: u64,
    },
}

/// Whether the processor and the kernel have protection keys.
fn protection_keys() -> bool {
    std::fs::read_to_string("/proc/cpuinfo").unwrap().split_whitespace().any(|flag| flag == "ospke")
}

fn op() -> impl Strategy<Value = Op> {
    let (page, pages, file, index) = (PAGES, 1..9u64, 0..2u64, 0..14u64);
    // Where the processor has protection keys, Linux takes one for memory that may only be executed, and then it cannot be read. The
    // crate has no keys, as no Linux has on other processors: such memory is readable, and is compared as that here.
    let keys = protection_keys();
    let prot = prop_oneof![4 => Just(3u8), 1 => (0..8u8).prop_map(move |prot| if keys && prot == 4 { 5 } else { prot })];
    let mapped = proptest::option::weighted(0.85, (file.clone(), index.clone()));
    prop_oneof![
        4 => (page.clone(), pages.clone(), mapped, any::<bool>(), prot.clone())
            .prop_map(|(at, pages, file, shared, prot)| Op::Map { at, pages, file, shared, prot }),
        1 => (page.clone(), pages.clone()).prop_map(|(at, n)| Op::Unmap(at, n)),
        2 => (page.clone(), pages.clone(), prot).prop_map(|(at, n, prot)| Op::Protect(at, n, prot)),
        1 => (page.clone(), pages.clone()).prop_map(|(at, n)| Op::Discard(at, n)),
        1 => (page.clone(), pages.clone()).prop_map(|(at, n)| Op::LazyFree(at, n)),
        1 => (page.clone(), pages.clone(), page.clone(), any::<bool>())
            .prop_map(|(from, pages, to, stays)| Op::Move { from, pages, to, stays }),
        5 => page.clone().prop_map(Op::Read),
        8 => (page.clone(), any::<u64>()).prop_map(|(at, value)| Op::Write(at, value)),
        1 => (page, pages, 0..8u32).prop_map(|(at, n, flags)| Op::Sync(at, n, flags)),
        1 => (file.clone(), index.clone(), any::<u64>()).prop_map(|(file, at, value)| Op::Put(file, at, value)),
        2 => (file, index).prop_map(|(file, pages)| Op::Truncate(file, pages)),
        1 => (PAGES, 1..9u64, any::<bool>()).prop_map(|(at, n, on)| Op::Lock(at, n, on)),
        2 => (PAGES, 1..9u64, prop::sample::select(vec![
            libc::MADV_DONTFORK,
            libc::MADV_DOFORK,
            libc::MADV_WIPEONFORK,
            libc::MADV_KEEPONFORK,
            libc::MADV_WILLNEED,
            libc::MADV_COLD,
            libc::MADV_PAGEOUT,
            libc::MADV_POPULATE_READ,
            libc::MADV_POPULATE_WRITE,
        ]))
            .prop_map(|(at, n, advice)| Op::Advise(at, n, advice)),
        2 => (any::<u64>(), any::<u64>()).prop_map(|(parent, child)| Op::Fork { parent, child }),
    ]
}

fn memfd(name: &std::ffi::CStr) -> OwnedFd {
    // SAFETY: makes a file of our own.
    unsafe {
        let fd = libc::memfd_create(name.as_ptr(), 0);
        assert!(fd >= 0, "memfd_create");
        OwnedFd::from_raw_fd(fd)
    }
}

/// The number of a result, or of the error.
fn result(got: i64) -> i64 {
    // SAFETY: the error is this thread's.
    if got == -1 { -i64::from(unsafe { *libc::__errno_location() }) } else { got }
}

struct Linux {
    files: [OwnedFd; 2],
    /// A file of a word, through which words are read and written: where that is not possible is an error, and no signal.
    mailbox: OwnedFd,
}

impl Drop for Linux {
    fn drop(&mut self) {
        // SAFETY: all that is mapped there is ours.
        unsafe { libc::munmap(BASE as *mut _, 512 * PAGE as usize) };
    }
}

impl Linux {
    fn new() -> Self {
        let linux = Self { files: [memfd(c"one"), memfd(c"two")], mailbox: memfd(c"mailbox") };
        for (file, &size) in linux.files.iter().zip(&SIZES) {
            // SAFETY: the file is ours.
            assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), (size * PAGE) as i64) }, 0);
        }
        linux
    }

    fn put(file: &OwnedFd, at: u64, value: u64) {
        let bytes = value.to_ne_bytes();
        // SAFETY: writes to a file of ours.
        let got = unsafe { libc::pwrite(file.as_raw_fd(), bytes.as_ptr().cast(), 8, at as i64) };
        assert_eq!(got, 8);
    }

    fn word(&self, at: u64, write: Option<u64>) -> Option<u64> {
        let address = (BASE + at * PAGE + WORD) as *mut libc::c_void;
        let fd = self.mailbox.as_raw_fd();
        if let Some(value) = write {
            Self::put(&self.mailbox, 0, value);
            // SAFETY: writes a word in a stretch of addresses that holds nothing but what is tested here.
            return (unsafe { libc::pread(fd, address, 8, 0) } == 8).then_some(value);
        }
        // SAFETY: reads a word.
        if unsafe { libc::pwrite(fd, address, 8, 0) } != 8 {
            return None;
        }
        let mut bytes = [0; 8];
        // SAFETY: reads a word into a variable.
        assert_eq!(unsafe { libc::pread(fd, bytes.as_mut_ptr().cast(), 8, 0) }, 8);
        Some(u64::from_ne_bytes(bytes))
    }

    /// Does the same; what the system call returned, an address less `BASE`.
    fn call(&self, op: &Op) -> i64 {
        let bytes = |pages: u64| (pages * PAGE) as usize;
        let address = |page: u64| (BASE + page * PAGE) as *mut libc::c_void;
        // SAFETY: all addresses are in the stretch, which holds nothing else.
        unsafe {
            match *op {
                Op::Map { at, pages, file, shared, prot } => {
                    let kind = if shared && file.is_some() { libc::MAP_SHARED } else { libc::MAP_PRIVATE };
                    let (fd, offset, anonymous) = match file {
                        Some((file, offset)) => (self.files[file as usize].as_raw_fd(), offset, 0),
                        None => (-1, 0, libc::MAP_ANONYMOUS),
                    };
                    let flags = kind | anonymous | libc::MAP_FIXED;
                    let offset = (offset * PAGE) as i64;
                    let got = libc::mmap(address(at), bytes(pages), i32::from(prot), flags, fd, offset);
                    result(got as i64) - BASE as i64
                }
                Op::Unmap(at, n) => result(libc::munmap(address(at), bytes(n)).into()),
                Op::Protect(at, n, prot) => result(libc::mprotect(address(at), bytes(n), prot.into()).into()),
                Op::Discard(at, n) => {
                    result(libc::madvise(address(at), bytes(n), libc::MADV_DONTNEED).into())
                }
                Op::LazyFree(at, n) => result(libc::madvise(address(at), bytes(n), libc::MADV_FREE).into()),
                Op::Move { from, pages, to, stays } => {
                    let flags = libc::MREMAP_MAYMOVE
                        | libc::MREMAP_FIXED
                        | if stays { libc::MREMAP_DONTUNMAP } else { 0 };
                    let got = libc::mremap(address(from), bytes(pages), bytes(pages), flags, address(to));
                    let got = result(got as i64);
                    if got < 0 { got } else { got - BASE as i64 }
                }
                Op::Sync(at, n, flags) => result(libc::msync(address(at), bytes(n), flags as i32).into()),
                Op::Advise(at, n, advice) => result(libc::madvise(address(at), bytes(n), advice).into()),
                Op::Lock(at, n, true) => {
                    result(libc::syscall(libc::SYS_mlock2, address(at), bytes(n), libc::MLOCK_ONFAULT))
                }
                Op::Lock(at, n, false) => result(libc::munlock(address(at), bytes(n)).into()),
                Op::Put(..) | Op::Read(_) | Op::Write(..) | Op::Fork { .. } => 0,
                Op::Truncate(file, pages) => {
                    result(libc::ftruncate(self.files[file as usize].as_raw_fd(), bytes(pages) as i64).into())
                }
            }
        }
    }

    /// The words that a child finds before and after it wrote to the pages of its mask, both in the order of the pages.
    fn fork(&self, parent: u64, child: u64) -> Vec<Option<u64>> {
        let report = memfd(c"report");
        let mut go = [0; 2];
        // SAFETY: there is room for two numbers.
        assert_eq!(unsafe { libc::pipe(go.as_mut_ptr()) }, 0);
        // SAFETY: the child makes system calls alone, and ends.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0, "fork");
        if pid == 0 {
            let mut byte = 0_u8;
            // SAFETY: reads a byte into a variable.
            unsafe { libc::read(go[0], (&raw mut byte).cast(), 1) };
            each_of_child(child, |n, at, write| {
                let found = self.word(at, write);
                Self::put(&report, 16 * n, u64::from(found.is_some()));
                Self::put(&report, 16 * n + 8, found.unwrap_or(0));
            });
            // SAFETY: has no preconditions.
            unsafe { libc::_exit(0) };
        }
        for at in all_pages().filter(|at| parent >> at & 1 != 0) {
            self.word(at, Some(PARENT + at));
        }
        let mut status = 0;
        // SAFETY: the pipe and the child are ours.
        unsafe {
            assert_eq!(libc::write(go[1], c"".as_ptr().cast(), 1), 1);
            assert_eq!(libc::waitpid(pid, &mut status, 0), pid);
            libc::close(go[0]);
            libc::close(go[1]);
        }
        assert_eq!(status, 0, "the child failed");
        let mut words = Vec::new();
        each_of_child(child, |n, _, _| {
            let mut pair = [0_u64; 2];
            // SAFETY: reads two numbers into a variable.
            let got =
                unsafe { libc::pread(report.as_raw_fd(), pair.as_mut_ptr().cast(), 16, (16 * n) as i64) };
            assert_eq!(got, 16);
            words.push((pair[0] == 1).then_some(pair[1]));
        });
        words
    }

    /// Anonymous pages in the stretch.
    fn anonymous(&self) -> u64 {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let (mut ours, mut kilobytes) = (false, 0);
        for line in smaps.lines() {
            if let Some((start, _)) = line.split_once('-').filter(|_| !line.contains(" kB"))
                && let Ok(start) = u64::from_str_radix(start, 16)
            {
                ours = (BASE..BASE + 512 * PAGE).contains(&start);
            } else if ours && (line.starts_with("Anonymous:") || line.starts_with("Swap:")) {
                kilobytes += line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap();
            }
        }
        kilobytes / 4
    }
}

/// The same on the crate.
fn ours(files: &Files<'_, X86_64>, space: &FileSpace<'_>, op: &Op) -> i64 {
    let number = |done: Result<u64, Error>| match done {
        Ok(value) => value as i64,
        Err(why) => -i64::from(why.errno()),
    };
    let bits = |prot: u8| Prot::from_bits_truncate(u64::from(prot));
    let unit = |done: Result<(), Error>| number(done.map(|()| 0));
    match *op {
        Op::Map { at, pages, file, shared, prot } => {
            let request = match file {
                Some((file, offset)) => object(1 + file, offset, pages, shared, at),
                None => anonymous(pages).at(at * PAGE),
            };
            number(space.mmap(&MapRequest { prot: bits(prot), ..request }))
        }
        Op::Unmap(at, n) => unit(space.munmap(at * PAGE, n * PAGE)),
        Op::Protect(at, n, prot) => unit(space.mprotect(at * PAGE, n * PAGE, bits(prot))),
        Op::Discard(at, n) => unit(space.discard(at * PAGE, n * PAGE)),
        Op::LazyFree(at, n) => unit(space.lazy_free(at * PAGE, n * PAGE)),
        Op::Move { from, pages, to, stays } => {
            let mut flags = RemapFlags::MAYMOVE | RemapFlags::FIXED;
            flags.set(RemapFlags::DONTUNMAP, stays);
            number(space.mremap(from * PAGE, pages * PAGE, pages * PAGE, flags, to * PAGE))
        }
        Op::Sync(at, n, flags) => {
            unit(space.msync(at * PAGE, n * PAGE, MsyncFlags::from_bits_truncate(flags)))
        }
        Op::Advise(at, n, advice) => {
            let (at, length) = (at * PAGE, n * PAGE);
            // The errors of `madvise`.
            let populated = |access| match space.populate(at, length, access) {
                Ok(()) => 0,
                Err(FaultError::NotMapped) => -i64::from(libc::ENOMEM),
                Err(FaultError::NotPermitted) => -i64::from(libc::EINVAL),
                Err(_) => -i64::from(libc::EFAULT),
            };
            match advice {
                libc::MADV_DONTFORK => unit(space.madvise(at, length, Advice::DontFork)),
                libc::MADV_DOFORK => unit(space.madvise(at, length, Advice::DoFork)),
                libc::MADV_WIPEONFORK => unit(space.madvise(at, length, Advice::WipeOnFork)),
                libc::MADV_KEEPONFORK => unit(space.madvise(at, length, Advice::KeepOnFork)),
                libc::MADV_WILLNEED => unit(space.will_need(at, length).map(drop)),
                libc::MADV_COLD => unit(space.cold(at, length).map(drop)),
                libc::MADV_PAGEOUT => unit(space.page_out(at, length).map(drop)),
                libc::MADV_POPULATE_READ => populated(Access::Read),
                _ => populated(Access::Write),
            }
        }
        Op::Lock(at, n, true) => unit(space.mlock(at * PAGE, n * PAGE, true)),
        Op::Lock(at, n, false) => unit(space.munlock(at * PAGE, n * PAGE)),
        Op::Put(..) | Op::Read(_) | Op::Write(..) | Op::Fork { .. } => 0,
        Op::Truncate(file, pages) => {
            files.file(1 + file).resize(pages);
            files.file(1 + file).backing().truncate(pages);
            0
        }
    }
}

/// What parents and children write, beside the page.
const PARENT: u64 = 1 << 32;
const CHILD: u64 = 2 << 32;

/// All pages that may be mapped.
fn all_pages() -> std::ops::Range<u64> {
    PAGES.start..PAGES.end + 10
}

/// What a child does: it looks at all pages, writes to those of the mask, and looks again. With how much it did before.
fn each_of_child(mask: u64, mut act: impl FnMut(u64, u64, Option<u64>)) {
    let mut n = 0;
    let mut next = |at, write| {
        act(n, at, write);
        n += 1;
    };
    all_pages().for_each(|at| next(at, None));
    all_pages().filter(|at| mask >> at & 1 != 0).for_each(|at| next(at, Some(CHILD + at)));
    all_pages().for_each(|at| next(at, None));
}

fn run(ops: &[Op]) {
    let linux = Linux::new();
    let machine = HostMachine::new(FRAMES);
    let zero = zero(&machine);
    let files = Files::<X86_64>::new(&machine, &SIZES.map(|size| (ObjectKind::File, size)));
    let space = file_space(&machine, &files, zero.frame());
    for (id, &size) in (0..).zip(&SIZES) {
        for index in 0..size {
            Linux::put(&linux.files[id], index * PAGE + WORD, 1000 + index);
        }
    }
    for op in ops {
        if let Op::LazyFree(at, n) = *op {
            let mut writable = true;
            space.for_each(at * PAGE..(at + n) * PAGE, |vma| writable &= vma.flags.contains(VmFlags::WRITE));
            if !writable {
                continue;
            }
        }
        assert_eq!(ours(&files, &space, op), linux.call(op), "result (ours, Linux): {op:?}");
        match *op {
            Op::Read(at) => {
                let got = word(&machine, &space, at * PAGE + WORD, None).ok();
                assert_eq!(got, linux.word(at, None), "word (ours, Linux): {op:?}");
            }
            Op::Write(at, value) => {
                let got = word(&machine, &space, at * PAGE + WORD, Some(value)).ok();
                assert_eq!(got, linux.word(at, Some(value)), "word (ours, Linux): {op:?}");
            }
            Op::LazyFree(at, n) => {
                for page in at..at + n {
                    let got = word(&machine, &space, page * PAGE + WORD, Some(page)).ok();
                    assert_eq!(got, linux.word(page, Some(page)), "word (ours, Linux): {op:?}");
                }
            }
            Op::Put(file, index, value) => {
                let put = |frame: isotherm_page::Frame| machine.write(frame.address() + WORD, value).unwrap();
                if files.file(1 + file).with_page(index, true, put).is_ok() {
                    Linux::put(&linux.files[file as usize], index * PAGE + WORD, value);
                }
            }
            Op::Fork { parent, child } => {
                let forked =
                    space.fork(RwLock::new(()), paged(&machine, &files, 2, zero.frame()).unwrap()).unwrap();
                for at in all_pages().filter(|at| parent >> at & 1 != 0) {
                    let _ = word(&machine, &space, at * PAGE + WORD, Some(PARENT + at));
                }
                let mut words = Vec::new();
                each_of_child(child, |_, at, write| {
                    words.push(word(&machine, &forked, at * PAGE + WORD, write).ok());
                });
                assert_eq!(words, linux.fork(parent, child), "words of the child (ours, Linux): {op:?}");
                drop(forked);
                for at in all_pages() {
                    let got = word(&machine, &space, at * PAGE + WORD, None).ok();
                    assert_eq!(got, linux.word(at, None), "page {at} of the parent (ours, Linux): {op:?}");
                }
            }
            _ => {}
        }
        assert_eq!(space.contents().rss().anon, linux.anonymous(), "anonymous (ours, Linux): {op:?}");
    }
    for at in all_pages() {
        let got = word(&machine, &space, at * PAGE + WORD, None).ok();
        assert_eq!(got, linux.word(at, None), "page {at} at the end (ours, Linux)");
    }
}

fn sequences() -> u32 {
    std::env::var("ISOTHERM_MM_SEQUENCES").ok().and_then(|n| n.parse().ok()).unwrap_or(128)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: sequences(), ..ProptestConfig::default() })]

    #[test]
    fn words_and_copies_are_those_of_linux(ops in proptest::collection::vec(op(), 1..80)) {
        run(&ops);
    }
}
