//! A process whose first thread has ended before the others.

use std::io;

/// Bytes of the other thread's stack.
const STACK: usize = 64 << 10;
const PAGE: usize = 4096;

/// A child whose first thread ended, as by `pthread_exit` in `main`, while another one goes on: it writes to the first half of
/// [`Self::memory`] every 10 ms, and wrote to the second half once.
#[derive(Debug)]
pub struct Headless {
    pid: libc::pid_t,
    memory: (usize, usize),
}

/// What the other thread works on.
struct Work {
    base: usize,
    size: usize,
}

extern "C" fn write_often(work: *mut libc::c_void) -> libc::c_int {
    // SAFETY: what `start` handed over; it lives as long as the process.
    let Work { base, size } = *unsafe { &*work.cast::<Work>() };
    let write = |size: usize| {
        for at in (0..size).step_by(PAGE) {
            // SAFETY: within the mapping made for it.
            unsafe { (base as *mut u8).add(at).write_volatile(1) };
        }
    };
    write(size);
    loop {
        write(size / 2);
        // SAFETY: without descriptors poll only waits.
        unsafe { libc::poll(std::ptr::null_mut(), 0, 10) };
    }
}

impl Headless {
    /// Starts it with so much memory, in bytes.
    ///
    /// # Errors
    /// No address space, or no process, is to be had.
    pub fn start(size: usize) -> io::Result<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let both = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a mapping of one's own at a place of the kernel's choice.
        let mapped = unsafe { libc::mmap(std::ptr::null_mut(), size + STACK, both, flags, -1, 0) };
        if mapped == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: the mapping made above. Small pages are what most programs have.
        unsafe { libc::madvise(mapped, size, libc::MADV_NOHUGEPAGE) };
        let work = Work { base: mapped as usize, size };
        // SAFETY: the child makes nothing but system calls, and writes to pages that it mapped itself.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let flags = libc::CLONE_VM
                | libc::CLONE_FS
                | libc::CLONE_FILES
                | libc::CLONE_SIGHAND
                | libc::CLONE_THREAD
                | libc::CLONE_SYSVSEM;
            // SAFETY: an option with a number. Ends with the test that made it.
            unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
            // SAFETY: the stack is the mapping's end, which nothing else uses; `work` lies on that of the thread that ends without
            // giving anything back.
            unsafe {
                let stack = mapped.byte_add(size + STACK);
                libc::clone(write_often, stack, flags, (&raw const work).cast_mut().cast());
                // Ends this thread alone.
                libc::syscall(libc::SYS_exit, 0);
                libc::_exit(1)
            }
        }
        let started = if pid > 0 {
            Ok(Self { pid, memory: (work.base, size) })
        } else {
            Err(io::Error::last_os_error())
        };
        // SAFETY: the mapping made above, which nothing here refers to.
        unsafe { libc::munmap(mapped, size + STACK) };
        let started = started?;
        // Its first thread is a zombie once it has ended.
        for _ in 0..30_000 {
            if std::fs::read_to_string(format!("/proc/{pid}/stat"))?.contains(") Z ") {
                return Ok(started);
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Err(io::ErrorKind::TimedOut.into())
    }

    /// Its process id.
    pub fn pid(&self) -> u32 {
        self.pid.unsigned_abs()
    }

    /// Its first address, and how many bytes it is.
    pub fn memory(&self) -> (u64, u64) {
        (self.memory.0 as u64, self.memory.1 as u64)
    }
}

impl Drop for Headless {
    fn drop(&mut self) {
        // SAFETY: a child of this process that nobody else waits for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}
