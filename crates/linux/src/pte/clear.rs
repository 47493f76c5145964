//! Clearing Accessed bits: process_madvise(MADV_COLD), a page or a folio at a time.
//!
//! MADV_COLD makes a page old. It also deactivates its folio and clears the folio's referenced flag, so that reclaim
//! takes it for colder than it was until it is accessed again: the one trace monitoring leaves. It flushes the TLB
//! once a range. It skips what several processes map, and refuses locked, hugetlb and PFN-mapped areas. Given part of
//! a large folio it splits it, which monitoring must never cause; hence [`Folios`], which tells what a frame is part of.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

const MADV_COLD: i32 = 20;

/// Advises MADV_COLD on `ranges` (start, length in bytes) of the process, at most `IOV_MAX` in a call. Tells for each
/// range whether the kernel took it.
///
/// # Errors
/// When the call is not possible at all (no permission, no such call); a range that is refused is no error.
pub fn advise_cold(pidfd: BorrowedFd<'_>, ranges: &[(u64, u64)], taken: &mut Vec<bool>) -> io::Result<()> {
    const IOV_MAX: usize = 1024;
    taken.clear();
    while taken.len() < ranges.len() {
        let rest = ranges.get(taken.len()..).unwrap_or_default();
        let iovecs: Vec<libc::iovec> = rest
            .iter()
            .take(IOV_MAX)
            .map(|&(start, len)| libc::iovec { iov_base: start as *mut libc::c_void, iov_len: len as usize })
            .collect();
        // SAFETY: iovecs is an array of the length given; its addresses belong to the other process and are not
        // accessed through this one. MADV_COLD changes no contents.
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                pidfd.as_raw_fd(),
                iovecs.as_ptr(),
                iovecs.len(),
                MADV_COLD,
                0u32,
            )
        };
        if advised < 0 {
            let error = io::Error::last_os_error();
            match error.raw_os_error() {
                // The first range lies in an area that takes no such advice, or is not mapped (any more).
                Some(libc::EINVAL | libc::ENOMEM | libc::EBUSY | libc::EAGAIN) => taken.push(false),
                _ => return Err(error),
            }
            continue;
        }
        // The kernel stops at the first range it cannot do; what it says is how many bytes it did before.
        let mut left = advised as u64;
        let before = taken.len();
        for &(_, len) in rest.iter().take(iovecs.len()) {
            if left < len {
                break;
            }
            left -= len;
            taken.push(true);
        }
        if taken.len() < ranges.len() && taken.len() - before < iovecs.len() {
            taken.push(false);
        }
    }
    Ok(())
}

/// What kind of memory a frame is, as far as clearing its Accessed bit goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frame {
    /// A page of its own.
    Small,
    /// Part of a larger folio.
    Large {
        /// Whether it is the folio's first page.
        head: bool,
    },
    /// Locked, hugetlb, the zero page or no page at all: MADV_COLD does nothing to it.
    Unclearable,
}

/// /proc/kpageflags: what each page frame is. Needs CAP_SYS_ADMIN (root).
pub struct Folios {
    flags: Option<File>,
}

const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;
const HUGETLB: u64 = 1 << 17;
const UNEVICTABLE: u64 = 1 << 18;
const NOPAGE: u64 = 1 << 20;
const ZERO_PAGE: u64 = 1 << 24;

impl Folios {
    /// Opens it; what cannot be told is then answered with `None`.
    pub fn open() -> Self {
        Self { flags: File::open("/proc/kpageflags").ok() }
    }

    /// Whether it can tell.
    pub fn is_available(&self) -> bool {
        self.flags.is_some()
    }

    /// What the frame is; `None` where that cannot be told.
    pub fn frame(&self, pfn: u64) -> Option<Frame> {
        let mut word = [0u8; 8];
        self.flags.as_ref()?.read_exact_at(&mut word, pfn * 8).ok()?;
        Some(classify(u64::from_ne_bytes(word)))
    }

    /// First frame and number of frames of the folio that `pfn` is part of, when it is a large one of at most 2 MiB.
    pub fn folio_of(&self, pfn: u64) -> Option<(u64, u64)> {
        const BLOCK: u64 = 512;
        let first = pfn & !(BLOCK - 1);
        let mut bytes = [0u8; BLOCK as usize * 8];
        self.flags.as_ref()?.read_exact_at(&mut bytes, first * 8).ok()?;
        let (words, _) = bytes.as_chunks::<8>();
        let frames: Vec<Frame> = words.iter().map(|w| classify(u64::from_ne_bytes(*w))).collect();
        let at = (pfn - first) as usize;
        let head = (0..=at).rev().find(|i| frames.get(*i) == Some(&Frame::Large { head: true }))?;
        let tails = frames.iter().skip(head + 1).take_while(|f| **f == Frame::Large { head: false }).count();
        (head + tails >= at).then_some((first + head as u64, 1 + tails as u64))
    }
}

fn classify(flags: u64) -> Frame {
    if flags & (HUGETLB | UNEVICTABLE | NOPAGE | ZERO_PAGE) != 0 {
        Frame::Unclearable
    } else if flags & (COMPOUND_HEAD | COMPOUND_TAIL) != 0 {
        Frame::Large { head: flags & COMPOUND_HEAD != 0 }
    } else {
        Frame::Small
    }
}
