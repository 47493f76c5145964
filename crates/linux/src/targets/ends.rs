//! Noticing that processes ended: one epoll(7) over the pidfds of all, so that a look costs what has happened, not what
//! there is.

use crate::process::Process;
use rustix::event::{Timespec, epoll};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

/// Most ends one call of epoll_wait tells of.
const AT_ONCE: usize = 64;

/// The pidfds of processes that still live.
#[derive(Debug)]
pub(super) struct Ends {
    epoll: io::Result<OwnedFd>,
}

impl Ends {
    pub(super) fn new() -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from);
        Self { epoll }
    }

    /// Watches over a process; its end will be told under `name`.
    ///
    /// # Errors
    /// When the system refuses: too many files, or too many watches (fs.epoll.max_user_watches).
    pub(super) fn add(&self, process: &Process, name: u32) -> io::Result<()> {
        let epoll = self.epoll.as_ref().map_err(|error| io::Error::from(error.kind()))?;
        let data = epoll::EventData::new_u64(u64::from(name));
        epoll::add(epoll, process.pidfd(), data, epoll::EventFlags::IN)?;
        Ok(())
    }

    pub(super) fn remove(&self, process: &Process) {
        if let Ok(epoll) = &self.epoll {
            // It may not have been added.
            let _ = epoll::delete(epoll, process.pidfd());
        }
    }

    /// Names of processes that have ended, at most 64 of them.
    pub(super) fn look(&self) -> Vec<u32> {
        let Ok(epoll) = &self.epoll else { return Vec::new() };
        let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
        // Interrupted or refused for want of memory: the next look finds them.
        let mut space = [const { MaybeUninit::uninit() }; AT_ONCE];
        let Ok((events, _)) = epoll::wait(epoll, space.as_mut_slice(), Some(&at_once)) else {
            return Vec::new();
        };
        // Names were 32 bits wide when they went in.
        events.iter().filter_map(|event| u32::try_from(event.data.u64()).ok()).collect()
    }
}
