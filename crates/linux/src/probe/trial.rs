//! Trying system calls on a process where they do no harm.
//!
//! The subject is a fork of this process that never runs a program ([`HeldCommand`]), and the memory tried on is made
//! for it: whatever is done to it, nobody uses it, and it goes with the subject.

use crate::process::Process;
use crate::targets::HeldCommand;
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ffi::{OsString, c_void};
use std::io;
use std::os::fd::AsRawFd;

/// Advice for `process_madvise`, numbered as in include/uapi/asm-generic/mman-common.h.
pub(super) mod advice {
    pub const WILLNEED: i32 = 3;
    pub const COLD: i32 = 20;
    pub const PAGEOUT: i32 = 21;
    pub const COLLAPSE: i32 = 25;
}

/// What [`Trial::advise`] is tried on: the size of a huge page on x86-64 and, with small pages, on arm64.
const SIZE: usize = 2 << 20;

/// A process to try things on.
pub(super) struct Trial {
    subject: HeldCommand,
    memory: *mut c_void,
}

impl Trial {
    /// # Errors
    /// When no process or memory is to be had.
    pub(super) fn start() -> io::Result<Self> {
        // Twice the size holds an aligned range of it wherever it lies.
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice.
        let memory = unsafe { mmap_anonymous(std::ptr::null_mut(), 2 * SIZE, access, MapFlags::PRIVATE) }?;
        let start = aligned(memory) as *mut u8;
        for offset in [0, SIZE / 2, SIZE - 1] {
            // SAFETY: inside the mapping just made, which nothing else refers to.
            unsafe { start.add(offset).write_volatile(1) };
        }
        // Never run, so its name does not matter.
        match HeldCommand::start(&[OsString::from("true")]) {
            Ok(subject) => Ok(Self { subject, memory }),
            Err(error) => {
                // SAFETY: unmaps what was mapped above; no reference to it is left.
                let _ = unsafe { munmap(memory, 2 * SIZE) };
                Err(io::Error::other(error))
            }
        }
    }

    pub(super) fn process(&self) -> &Process {
        self.subject.process()
    }

    /// Tries an advice on memory of the subject.
    pub(super) fn advise(&self, advice: i32) -> io::Result<()> {
        let range = libc::iovec { iov_base: aligned(self.memory) as *mut c_void, iov_len: SIZE };
        let pidfd = self.process().pidfd().as_raw_fd();
        // SAFETY: the range describes memory of the other process, which the kernel checks; none of ours is written.
        let advised = unsafe {
            libc::syscall(libc::SYS_process_madvise, pidfd, &raw const range, 1_usize, advice, 0_u32)
        };
        if advised < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// Tries to move none of its pages.
    pub(super) fn move_pages(&self) -> io::Result<()> {
        let nothing = std::ptr::null::<c_void>();
        let pid = self.process().pid().as_raw_nonzero().get();
        // SAFETY: no pages, so no pointer is followed.
        let moved =
            unsafe { libc::syscall(libc::SYS_move_pages, pid, 0_usize, nothing, nothing, nothing, 0_i32) };
        if moved < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }
}

fn aligned(memory: *mut c_void) -> usize {
    (memory as usize).next_multiple_of(SIZE)
}

impl Drop for Trial {
    fn drop(&mut self) {
        // SAFETY: unmaps what `start` mapped; no reference to it is left.
        let _ = unsafe { munmap(self.memory, 2 * SIZE) };
    }
}
