//! A process of very many mappings.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

const PAGE: usize = 4096;

/// What a process of many mappings does with the pages that are its own, every other one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Writes {
    /// It writes to all of them once, and sleeps.
    AllOnce,
    /// It writes to those among its first so many pages a hundred times a second.
    FirstOften(usize),
}

/// A child of so many mappings: pages of no file and of this program's own file in turn, so that none joins its neighbours.
#[derive(Debug)]
pub struct ManyMappings(libc::pid_t);

impl ManyMappings {
    /// Starts it. It has them all only after a while: see [`Self::count`].
    ///
    /// # Errors
    /// No address space, or no process, is to be had.
    pub fn start(mappings: usize, writes: Writes) -> io::Result<Self> {
        let program = File::open("/proc/self/exe")?;
        let size = mappings * PAGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping of one's own at a place of the kernel's choice.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), size, both, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the child makes nothing but system calls, and writes to pages that it mapped itself.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let write = |pages: usize| {
                for page in (0..pages.min(mappings)).step_by(2) {
                    // SAFETY: within the mapping made above, of a page that stays writable.
                    unsafe { base.cast::<u8>().add(page * PAGE).write_volatile(1) };
                }
            };
            for page in (1..mappings).step_by(2) {
                let (flags, fd) = (libc::MAP_PRIVATE | libc::MAP_FIXED, program.as_raw_fd());
                // SAFETY: within the mapping made above, to which nothing refers.
                unsafe { libc::mmap(base.byte_add(page * PAGE), PAGE, libc::PROT_READ, flags, fd, 0) };
            }
            if writes == Writes::AllOnce {
                write(mappings);
            }
            loop {
                if let Writes::FirstOften(pages) = writes {
                    write(pages);
                }
                // SAFETY: without descriptors poll only waits.
                unsafe { libc::poll(std::ptr::null_mut(), 0, 10) };
            }
        }
        let started = if pid > 0 { Ok(Self(pid)) } else { Err(io::Error::last_os_error()) };
        // SAFETY: the mapping made above, which nothing here refers to.
        unsafe { libc::munmap(base, size) };
        started
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.0.unsigned_abs()
    }

    /// How many mappings it has by now.
    ///
    /// # Errors
    /// The process is gone.
    pub fn count(&self) -> io::Result<usize> {
        Ok(std::fs::read_to_string(format!("/proc/{}/maps", self.0))?.lines().count())
    }

    /// How many mappings a process may have here.
    ///
    /// # Errors
    /// `/proc` does not tell.
    pub fn most() -> io::Result<usize> {
        let most = std::fs::read_to_string("/proc/sys/vm/max_map_count")?;
        most.trim().parse().map_err(io::Error::other)
    }
}

impl Drop for ManyMappings {
    fn drop(&mut self) {
        // SAFETY: a child of this process that nobody else waits for.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_has_as_many_mappings_as_were_asked_for_and_ends_with_its_handle() {
        let target = ManyMappings::start(1000, Writes::AllOnce).unwrap();
        while target.count().unwrap() < 1000 {
            std::thread::yield_now();
        }
        let pid = target.pid();
        drop(target);
        assert!(!std::path::Path::new(&format!("/proc/{pid}")).exists());
    }
}
