//! Linux' side: fork(), the child's exit and `MADV_DONTNEED` of memory of the same layout.

use super::{Error, Layout, Setup, Watch};
use crate::{Estimate, statistics::median};
use rustix::mm::{Advice, MapFlags, MprotectFlags, ProtFlags};
use serde::Serialize;
use std::io::{Read, Write};
use std::ptr::{NonNull, null_mut};
use std::time::Instant;

/// What Linux took, in ms; of fork and exit, the median of a fork without that memory is subtracted.
#[derive(Clone, Debug, Serialize)]
pub struct Linux {
    /// The layout.
    pub layout: Layout,
    /// fork() as the parent sees it.
    pub fork: Option<Estimate>,
    /// From the word to exit until the parent has reaped the child.
    pub exit: Option<Estimate>,
    /// `MADV_DONTNEED` of all.
    pub zap: Option<Estimate>,
    /// What was subtracted from fork and exit, ms.
    pub empty: Option<(f64, f64)>,
    /// Why there is nothing.
    pub skipped: Option<String>,
}

const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;

impl Linux {
    pub(super) fn measure(layout: Layout, setup: &Setup, watch: &mut Watch<'_>) -> Result<Linux, Error> {
        if layout == Layout::Mixed {
            return Ok(Linux::skipped(
                layout,
                watch,
                "folios of 16 and 64 KiB are a setting of the whole machine",
            ));
        }
        let bytes = (setup.mib as usize) << 20;
        let (mut forks, mut exits, mut zaps) = (Vec::new(), Vec::new(), Vec::new());
        let (mut empty_forks, mut empty_exits) = (Vec::new(), Vec::new());
        for _ in 0..setup.runs {
            if (watch.stop)() {
                return Err(Error::Interrupted);
            }
            let (fork, exit) = fork_once()?;
            empty_forks.push(fork);
            empty_exits.push(exit);
            let memory = Memory::new(bytes)?;
            memory.populate(layout)?;
            if layout != Layout::Order0 && !memory.is_huge() {
                let why = "the system gave no huge pages: see /sys/kernel/mm/transparent_hugepage/enabled";
                return Ok(Linux::skipped(layout, watch, why));
            }
            if layout == Layout::Order9 {
                memory.map_by_ptes()?;
            }
            let (fork, exit) = fork_once()?;
            forks.push(fork);
            exits.push(exit);
            let start = Instant::now();
            memory.advise(Advice::LinuxDontNeed)?;
            zaps.push(start.elapsed().as_secs_f64() * 1e3);
        }
        let empty = median(&empty_forks).zip(median(&empty_exits));
        let (empty_fork, empty_exit) = empty.unwrap_or_default();
        let less = |all: &[f64], by: f64| Estimate::of(&all.iter().map(|one| one - by).collect::<Vec<_>>());
        Ok(Linux {
            fork: less(&forks, empty_fork),
            exit: less(&exits, empty_exit),
            zap: Estimate::of(&zaps),
            empty,
            layout,
            skipped: None,
        })
    }

    fn skipped(layout: Layout, watch: &mut Watch<'_>, why: &str) -> Linux {
        (watch.progress)(&format!("{}: Linux: skipped: {why}", layout.name()));
        Linux { layout, fork: None, exit: None, zap: None, empty: None, skipped: Some(why.into()) }
    }
}

fn system<T, E: Into<std::io::Error>>(what: &'static str, result: Result<T, E>) -> Result<T, Error> {
    result.map_err(|why| Error::System { what, why: why.into() })
}

/// ms of fork() and of the child's exit.
fn fork_once() -> Result<(f64, f64), Error> {
    let (mut go, stay) = system("make a pipe", std::io::pipe())?;
    let start = Instant::now();
    // SAFETY: the child calls nothing but read, through the pipe's descriptor, and _exit.
    let child = unsafe { libc::fork() };
    let forked = start.elapsed().as_secs_f64() * 1e3;
    if child == 0 {
        let mut byte = [0];
        let _ = go.read(&mut byte);
        // SAFETY: ends the child at once, without anything of the parent's being run.
        unsafe { libc::_exit(0) };
    }
    if child < 0 {
        return Err(Error::System { what: "fork", why: std::io::Error::last_os_error() });
    }
    let mut stay = stay;
    let start = Instant::now();
    // Should the write fail, dropping the pipe ends the child all the same; and it dies with the pipe if we do.
    let _ = stay.write_all(&[1]);
    let mut status = 0;
    // SAFETY: waits for the child that was just made.
    while unsafe { libc::waitpid(child, &raw mut status, 0) } < 0 {
        let why = std::io::Error::last_os_error();
        if why.kind() != std::io::ErrorKind::Interrupted {
            return Err(Error::System { what: "wait for the child", why });
        }
    }
    Ok((forked, start.elapsed().as_secs_f64() * 1e3))
}

/// Anonymous memory, aligned to huge pages.
struct Memory {
    mapping: NonNull<u8>,
    length: usize,
    start: NonNull<u8>,
    bytes: usize,
}

impl Memory {
    fn new(bytes: usize) -> Result<Memory, Error> {
        let length = bytes + HUGE;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, where the system likes.
        let mapping =
            unsafe { rustix::mm::mmap_anonymous(null_mut(), length, protection, MapFlags::PRIVATE) };
        let mapping = system("map memory", mapping)?.cast::<u8>();
        let Some(mapping) = NonNull::new(mapping) else { return Err(Error::NoFrames) };
        // SAFETY: the mapping has a huge page more than is used.
        let start = unsafe { mapping.add(mapping.as_ptr().align_offset(HUGE)) };
        Ok(Memory { mapping, length, start, bytes })
    }

    fn advise(&self, advice: Advice) -> Result<(), Error> {
        // SAFETY: our own memory, into which there are no references.
        let result = unsafe { rustix::mm::madvise(self.start.as_ptr().cast(), self.bytes, advice) };
        system("advise on memory", result)
    }

    fn populate(&self, layout: Layout) -> Result<(), Error> {
        let huge = layout != Layout::Order0;
        self.advise(if huge { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage })?;
        for page in (0..self.bytes).step_by(PAGE) {
            // SAFETY: within our own memory.
            unsafe { self.start.add(page).write_volatile(1) };
        }
        Ok(())
    }

    /// Whether nearly all of it is in huge pages.
    fn is_huge(&self) -> bool {
        let Ok(smaps) = std::fs::read_to_string("/proc/self/smaps") else { return false };
        let start = format!("{:x}-", self.start.as_ptr() as usize);
        let mapping = format!("{:x}-", self.mapping.as_ptr() as usize);
        let mut lines =
            smaps.lines().skip_while(|line| !line.starts_with(&start) && !line.starts_with(&mapping));
        let huge = lines.find_map(|line| line.strip_prefix("AnonHugePages:"));
        let kib = huge.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<usize>().ok());
        kib.is_some_and(|kib| kib * 1024 >= self.bytes / 10 * 9)
    }

    /// Has the huge pages mapped by PTEs: changing the protection of one page of each splits its PMD, not the folio.
    fn map_by_ptes(&self) -> Result<(), Error> {
        for flags in [MprotectFlags::READ, MprotectFlags::READ | MprotectFlags::WRITE] {
            for at in (0..self.bytes).step_by(HUGE) {
                // SAFETY: one page of our own memory, which nobody uses meanwhile.
                let result = unsafe { rustix::mm::mprotect(self.start.add(at).as_ptr().cast(), PAGE, flags) };
                system("change the protection of a page", result)?;
            }
        }
        Ok(())
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: our own mapping, into which there are no references.
        let _ = unsafe { rustix::mm::munmap(self.mapping.as_ptr().cast(), self.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn linux_is_measured_or_says_why_not() {
        let setup = Setup { runs: 2, mib: 8 };
        let mut said = String::new();
        let mut watch = Watch { stop: &|| false, progress: &mut |line| said.push_str(line) };
        for layout in Layout::ALL {
            let linux = Linux::measure(layout, &setup, &mut watch).unwrap();
            assert!(linux.skipped.is_some() || linux.zap.is_some_and(|zap| zap.count == 2), "{linux:?}");
        }
        assert!(said.contains("skipped: "));
    }
}
