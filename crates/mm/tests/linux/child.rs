//! The process: a fork of the test that makes the system calls and writes down what came of them, in memory that it shares
//! with the test. It allocates nothing, since another thread may have held the allocator's lock when it was made.

use std::ffi::CStr;

use crate::ops::{ARENA, HEAP, Op, PAGE};

/// Addresses of user programs end here (47 bits).
pub const TASK_END: u64 = 0x7fff_ffff_f000;
/// `vm.mmap_min_addr` is at most this on any kernel that is configured as usual.
pub const LOWEST: u64 = 0x1_0000;
pub const GUARD: u64 = 256 * PAGE;

/// What the process leaves behind, before the text.
#[repr(C)]
pub struct Report {
    /// Bytes of text.
    pub len: u64,
    pub ready: u64,
}

/// An open end of the text.
pub struct Out {
    text: *mut u8,
    room: usize,
    len: usize,
}

impl Out {
    fn write(&mut self, bytes: &[u8]) {
        if self.len + bytes.len() > self.room {
            fail(c"the report is full");
        }
        // SAFETY: there is room, and the memory is this process's to write.
        unsafe { self.text.add(self.len).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        self.len += bytes.len();
    }

    fn number(&mut self, number: i64) {
        let mut digits = [0; 20];
        let (mut at, mut left) = (digits.len(), number.unsigned_abs());
        loop {
            at -= 1;
            digits[at] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        if number < 0 {
            self.write(b"-");
        }
        self.write(&digits[at..]);
    }

    /// Appends a file; where it begins and ends.
    fn file(&mut self, path: &CStr) -> (usize, usize) {
        let start = self.len;
        // SAFETY: reads into the rest of the report.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_RDONLY);
            if fd < 0 {
                fail(c"open");
            }
            loop {
                let got = libc::read(fd, self.text.add(self.len).cast(), self.room - self.len);
                if got <= 0 {
                    break;
                }
                self.len += got as usize;
            }
            libc::close(fd);
        }
        (start, self.len)
    }
}

fn fail(why: &CStr) -> ! {
    // SAFETY: ends the process.
    unsafe {
        libc::write(2, why.as_ptr().cast(), why.count_bytes());
        libc::_exit(3);
    }
}

/// One system call; its result, or the negated error.
///
/// # Safety
/// The call harms nothing that the process still uses.
unsafe fn call(number: i64, args: [u64; 6]) -> i64 {
    let [a, b, c, d, e, f] = args;
    // SAFETY: the caller vouches for it.
    let result = unsafe { libc::syscall(number, a, b, c, d, e, f) };
    // SAFETY: the error is this thread's.
    if result == -1 { -i64::from(unsafe { *libc::__errno_location() }) } else { result }
}

pub struct Setup<'a> {
    pub ops: &'a [Op],
    pub report: *mut Report,
    pub text: *mut u8,
    pub room: usize,
    pub files: [i32; 2],
    pub filler: i32,
    pub zeros: i32,
    /// Where the arena is: fixed for a series of processes, as they are forks of one.
    pub arena: u64,
    pub heap: u64,
    /// Pages that may be mapped in addition (`RLIMIT_AS`).
    pub limit: Option<u64>,
}

/// The process's whole life.
pub fn run(setup: &Setup<'_>) -> ! {
    let mut out = Out { text: setup.text, room: setup.room, len: 0 };
    // SAFETY: the heap is used by nobody in this process from here on; of what is mapped only the arena and the heap change.
    unsafe {
        call(libc::SYS_brk, [setup.heap, 0, 0, 0, 0, 0]);
        fill(setup, &mut out);
        let (start, end) = out.file(c"/proc/self/statm");
        if let Some(limit) = setup.limit {
            let statm = std::slice::from_raw_parts(out.text.add(start), end - start);
            let digits = statm.iter().take_while(|digit| digit.is_ascii_digit());
            let total = digits.fold(0, |total, &digit| total * 10 + u64::from(digit - b'0'));
            let bytes = (total + limit) * PAGE;
            let limit = libc::rlimit { rlim_cur: bytes, rlim_max: bytes };
            libc::setrlimit(libc::RLIMIT_AS, &limit);
        }
        out.len = start;
        snapshot(&mut out);
        for op in setup.ops {
            let result = perform(setup, op);
            out.write(b"= ");
            out.number(result);
            out.write(b"\n");
            snapshot(&mut out);
        }
        out.write(b"+\n");
        out.file(c"/proc/self/smaps");
        (*setup.report).len = out.len as u64;
        (*setup.report).ready = 1;
        libc::_exit(0);
    }
}

fn snapshot(out: &mut Out) {
    out.file(c"/proc/self/statm");
    out.file(c"/proc/self/maps");
}

/// Maps a file wherever nothing is, but for the arena and what lies behind the heap: so that whatever is placed is placed there.
///
/// # Safety
/// As for `run`.
unsafe fn fill(setup: &Setup<'_>, out: &mut Out) {
    let (start, end) = out.file(c"/proc/self/maps");
    out.len = start;
    // SAFETY: it was just written, and what follows writes elsewhere.
    let maps = unsafe { std::slice::from_raw_parts(out.text.add(start), end - start) };
    let heap_end = setup.heap.next_multiple_of(PAGE) + HEAP + GUARD;
    let free = [(setup.heap & !(PAGE - 1), heap_end), (setup.arena, setup.arena + ARENA)];
    let mut at = LOWEST;
    for line in maps.split(|&byte| byte == b'\n').filter(|line| !line.is_empty()) {
        let mut ends = line.split(|&byte| byte == b'-' || byte == b' ').map(hex);
        let (first, last) = (ends.next().unwrap_or(0), ends.next().unwrap_or(0));
        if first >= TASK_END {
            break;
        }
        // SAFETY: nothing is mapped between the two.
        unsafe { fill_gap(setup, at, first, &free) };
        at = last;
    }
    // SAFETY: as above.
    unsafe { fill_gap(setup, at, TASK_END, &free) };
}

fn hex(digits: &[u8]) -> u64 {
    digits.iter().fold(0, |value, &digit| value << 4 | u64::from((digit as char).to_digit(16).unwrap_or(0)))
}

/// # Safety
/// Nothing is mapped in the gap.
unsafe fn fill_gap(setup: &Setup<'_>, start: u64, end: u64, free: &[(u64, u64); 2]) {
    let mut at = start;
    for &(first, last) in free {
        if first < end && last > at {
            // SAFETY: a part of the gap.
            unsafe { fill_piece(setup, at, first) };
            at = last;
        }
    }
    // SAFETY: a part of the gap.
    unsafe { fill_piece(setup, at, end) };
}

/// # Safety
/// Nothing is mapped in the range.
unsafe fn fill_piece(setup: &Setup<'_>, start: u64, end: u64) {
    if start >= end {
        return;
    }
    let flags = (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64;
    // SAFETY: nothing is there.
    let got = unsafe { call(libc::SYS_mmap, [start, end - start, 0, flags, setup.filler as u64, 0]) };
    if got != start as i64 {
        fail(c"cannot fill a gap");
    }
}

/// # Safety
/// As for `run`.
unsafe fn perform(setup: &Setup<'_>, op: &Op) -> i64 {
    let fd = |file: Option<u64>| file.map_or(-1i64 as u64, |file| setup.files[file as usize] as u64);
    // SAFETY: as for `run`.
    unsafe {
        match *op {
            Op::Mmap { address, length, prot, flags, file, offset } => {
                let args = [address, length, prot as u64, flags as u64, fd(file), offset as u64];
                call(libc::SYS_mmap, args)
            }
            Op::Munmap { address, length } => call(libc::SYS_munmap, [address, length, 0, 0, 0, 0]),
            Op::Mprotect { address, length, prot } => {
                call(libc::SYS_mprotect, [address, length, prot as u64, 0, 0, 0])
            }
            Op::Mremap { address, old, new, flags, to } => {
                call(libc::SYS_mremap, [address, old, new, flags as u64, to, 0])
            }
            Op::Madvise { address, length, advice } => {
                call(libc::SYS_madvise, [address, length, advice as u64, 0, 0, 0])
            }
            Op::Mlock { address, length } => call(libc::SYS_mlock2, [address, length, 1, 0, 0, 0]),
            Op::Munlock { address, length } => call(libc::SYS_munlock, [address, length, 0, 0, 0, 0]),
            Op::Msync { address, length, flags } => {
                call(libc::SYS_msync, [address, length, flags as u64, 0, 0, 0])
            }
            Op::Touch { address } => call(libc::SYS_read, [setup.zeros as u64, address, 1, 0, 0, 0]),
            Op::Brk { offset } => call(libc::SYS_brk, [setup.heap + offset, 0, 0, 0, 0, 0]),
            Op::Fork => {
                let pid = call(libc::SYS_clone, [libc::SIGCHLD as u64, 0, 0, 0, 0, 0]);
                if pid > 0 {
                    let mut status = 0;
                    let waited = libc::waitpid(pid as i32, &mut status, 0);
                    libc::_exit(if i64::from(waited) == pid { libc::WEXITSTATUS(status) } else { 3 });
                }
                pid
            }
        }
    }
}
