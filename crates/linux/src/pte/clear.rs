//! Clearing Accessed bits: process_madvise(MADV_COLD), many ranges a call.
//!
//! MADV_COLD makes pages old. It also deactivates their folios and clears the folios' referenced flags, so that reclaim
//! takes them for colder than they were until they are accessed again: the one trace monitoring leaves. It flushes the
//! TLB once a range. It skips what several processes map, and refuses locked, hugetlb and PFN-mapped areas.
//!
//! Given part of a large folio it splits it, which monitoring must never cause. So a range is first cut to [`pieces`] that
//! hold every large folio whole or not at all.

use crate::frames::Folio;
use isotherm_damon::Cleared;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

const MADV_COLD: i32 = 20;
const IOV_MAX: usize = 1024;

/// Advises MADV_COLD on `ranges` (start, length in bytes) of the process. Reports for each range what became of it.
///
/// # Errors
/// When the call is not possible at all (the process is gone, no permission, no such call); `outcome` is shorter than
/// `ranges` then. A range that is refused is no error.
pub fn advise_cold(
    pidfd: BorrowedFd<'_>,
    ranges: &[(u64, u64)],
    outcome: &mut Vec<Cleared>,
) -> io::Result<()> {
    outcome.clear();
    while outcome.len() < ranges.len() {
        let rest = ranges.get(outcome.len()..).unwrap_or_default();
        let rest = rest.get(..IOV_MAX).unwrap_or(rest);
        let iovecs: Vec<libc::iovec> = rest
            .iter()
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
            outcome.push(match error.raw_os_error() {
                // The first range lies in an area that takes no such advice.
                Some(libc::EINVAL) => Cleared::Refused,
                // Part of it is not mapped (any more); the rest was advised.
                Some(libc::ENOMEM) => Cleared::Done,
                Some(libc::EBUSY | libc::EAGAIN | libc::EINTR) => Cleared::NotDone,
                _ => return Err(error),
            });
            continue;
        }
        // The kernel stops at the first range it cannot do, and returns how many bytes it did before. Trying again from
        // there returns the reason.
        let mut left = advised as u64;
        for &(_, len) in rest {
            if left < len {
                break;
            }
            left -= len;
            outcome.push(Cleared::Done);
        }
    }
    Ok(())
}

/// A page of a range to be cleared, as its page table has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Page {
    /// Nothing to clear, nothing to split.
    Absent,
    /// Present, and it could not be found out what folio it is part of.
    Unknown,
    /// Present.
    Present {
        /// Its frame.
        pfn: u64,
        /// The folio the frame is part of.
        folio: Folio,
        /// What two entries of one folio must agree on, or the kernel takes them for two parts of it.
        protection: u64,
    },
}

/// Cuts a range of pages to the parts that may be advised without splitting a large folio, indices into `pages`; and
/// whether a large folio is in one of them. `keeps_large`: the kernel leaves a folio that is covered whole as it is (6.10).
pub fn pieces(pages: &[Page], keeps_large: bool) -> (Vec<Range<usize>>, bool) {
    let (mut pieces, mut open, mut large): (Vec<_>, Option<Range<usize>>, bool) = (Vec::new(), None, false);
    let mut at = 0;
    while let Some(page) = pages.get(at) {
        let (end, clearable) = match page {
            Page::Absent => {
                at += 1;
                continue;
            }
            Page::Unknown => (at + 1, false),
            Page::Present { folio, .. } if !folio.is_large() => (at + 1, true),
            Page::Present { pfn, folio, protection } => {
                let same = pages.iter().skip(at).zip(*pfn..).take_while(|(page, want)| {
                    matches!(page, Page::Present { pfn, protection: p, .. }
                        if pfn == want && p == protection && folio.contains(*pfn))
                });
                let count = same.count();
                let whole = *pfn == folio.head && count as u64 == folio.frames();
                large |= keeps_large && whole;
                (at + count.max(1), keeps_large && whole)
            }
        };
        if clearable {
            let start = open.as_ref().map_or(at, |open| open.start);
            open = Some(start..end);
        } else {
            pieces.extend(open.take());
        }
        at = end;
    }
    pieces.extend(open);
    (pieces, large)
}

#[cfg(test)]
mod tests;
