//! Advice to another process's memory: process_madvise(2), many ranges a call.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What the kernel is advised to do (`include/uapi/asm-generic/mman-common.h`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Advice {
    Willneed,
    Cold,
    Pageout,
    Collapse,
}

impl Advice {
    const fn number(self) -> i32 {
        match self {
            Self::Willneed => 3,
            Self::Cold => 20,
            Self::Pageout => 21,
            Self::Collapse => 25,
        }
    }
}

/// What became of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advised {
    /// The kernel took the advice.
    Taken,
    /// Its mapping takes no such advice (EINVAL): locked, of a device, or of hugetlbfs.
    Refused,
    /// A part of it is not mapped any more, or there was no memory to do it (ENOMEM).
    NoMemory,
    /// Something was in the way for the moment (EAGAIN, EBUSY).
    Busy,
    /// The process may not be advised any more (EPERM): other credentials than before, or another program.
    NotPermitted,
}

/// Why no range of a process can be advised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutOfReach {
    /// It is gone.
    Gone,
    /// It may not be advised, or the call is not there.
    NotPermitted,
}

/// Most ranges a call.
const IOV_MAX: usize = 1024;

/// Most bytes a call, but for a first range that is larger: the mmap lock is held for reading meanwhile.
const MOST_BYTES: u64 = 32 << 20;

/// Gives `advice` for `ranges` (start, length in bytes), and reports for each range what became of it. The kernel stops at the
/// first range that it cannot do; it goes on after that.
///
/// # Errors
/// When none of those left can be done; `outcome` is shorter than `ranges` then.
pub(super) fn advise(
    pidfd: BorrowedFd<'_>,
    ranges: &[(u64, u64)],
    advice: Advice,
    outcome: &mut Vec<Advised>,
) -> Result<(), OutOfReach> {
    outcome.clear();
    while let Some(rest) = ranges.get(outcome.len()..).filter(|rest| !rest.is_empty()) {
        let mut bytes = 0;
        let fits = |(index, range): &(usize, &(u64, u64))| {
            bytes += range.1;
            *index == 0 || bytes <= MOST_BYTES
        };
        let iovecs: Vec<libc::iovec> = rest
            .iter()
            .take(IOV_MAX)
            .enumerate()
            .take_while(fits)
            .map(|(_, &(start, len))| libc::iovec {
                iov_base: start as *mut libc::c_void,
                iov_len: len as usize,
            })
            .collect();
        // SAFETY: iovecs is an array of the length given; its addresses belong to the other process and are not accessed
        // through this one. None of the advice changes contents.
        let advised = unsafe {
            libc::syscall(
                libc::SYS_process_madvise,
                pidfd.as_raw_fd(),
                iovecs.as_ptr(),
                iovecs.len(),
                advice.number(),
                0u32,
            )
        };
        if advised < 0 {
            outcome.push(match io::Error::last_os_error().raw_os_error() {
                Some(libc::EINVAL) => Advised::Refused,
                Some(libc::ENOMEM) => Advised::NoMemory,
                Some(libc::EBUSY | libc::EAGAIN | libc::EINTR) => Advised::Busy,
                Some(libc::ESRCH) => return Err(OutOfReach::Gone),
                _ => return Err(OutOfReach::NotPermitted),
            });
            continue;
        }
        // How many bytes were done before the first range that could not be. Trying again from there returns the reason.
        let mut left = advised as u64;
        let before = outcome.len();
        for &(_, len) in rest.iter().take(iovecs.len()) {
            if left < len {
                break;
            }
            left -= len;
            outcome.push(Advised::Taken);
        }
        if outcome.len() == before {
            // A part of the first range alone: the rest of it is not tried again, and what was done is measured.
            outcome.push(Advised::Busy);
        }
    }
    Ok(())
}
