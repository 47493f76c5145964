//! Who reads standard output, and whether they have left, as `head` does in `isotherm ... | head -1`.
//!
//! Most commands write what they have to say and end: SIGPIPE ends those quietly, at their next line. What goes on for long, has
//! something to put away before it ends, or both, asks instead ([`has_left`]), and ends as if it was asked to.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, fstat};
use std::io::stdout;

/// The status of a program that SIGPIPE ended, as shells have it.
pub const LEFT: u8 = 128 + libc::SIGPIPE as u8;

/// Whether standard output is a pipe that nobody reads any more. Of a terminal that is gone SIGHUP tells; a socket is a service
/// manager's, which may come back.
pub fn has_left() -> bool {
    let out = stdout();
    let mut polled = [PollFd::new(&out, PollFlags::empty())];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut polled, Some(&at_once)).is_ok()
        && polled.iter().any(|fd| fd.revents().contains(PollFlags::ERR))
        && fstat(&out).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Fifo)
}
