//! A process to measure on: this program again, with memory of its own.
#![allow(dead_code, reason = "each example uses a part of it")]

use std::io::{self, BufRead, BufReader};
use std::process::{Child, Command, Stdio};

/// What it does with its memory once it has written to all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Doing {
    /// It sleeps.
    Asleep,
    /// It computes, and so keeps a processor, but leaves the memory alone.
    Busy,
    /// It reads a byte of each page, over and over.
    Reading,
}

/// What backs the memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backing {
    Small,
    Huge,
    Shared,
}

pub struct Process {
    child: Child,
    /// Where its memory begins, a multiple of 2 MiB.
    pub start: u64,
}

impl Drop for Process {
    fn drop(&mut self) {
        // Both fail only for a child that is gone already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Process {
    pub fn start(bytes: u64, backing: Backing, doing: Doing) -> io::Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["child", &bytes.to_string(), &format!("{backing:?}"), &format!("{doing:?}")])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            BufReader::new(out).read_line(&mut line)?;
        }
        let start = line.trim().parse().map_err(|_| io::Error::other("the child did not start"))?;
        Ok(Self { child, start })
    }

    /// How often it left its processor so far.
    pub fn switches(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap_or_default();
        let lines = status.lines().filter_map(|line| line.split_once("ctxt_switches:"));
        lines.filter_map(|(_, n)| n.trim().parse::<u64>().ok()).sum()
    }

    pub fn pid(&self) -> rustix::process::Pid {
        rustix::process::Pid::from_child(&self.child)
    }
}

/// To be called first: does not return in the child.
pub fn run_if_child() -> io::Result<()> {
    const HUGE: usize = 2 << 20;
    let args: Vec<String> = std::env::args().collect();
    let [_, child, bytes, backing, doing] = args.as_slice() else { return Ok(()) };
    if child != "child" {
        return Ok(());
    }
    let bytes: usize = bytes.parse().map_err(io::Error::other)?;
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous};
    let sharing = if backing == "Shared" { MapFlags::SHARED } else { MapFlags::PRIVATE };
    let both = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping at an address of the kernel's choice, never unmapped.
    let at = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes + HUGE, both, sharing) }?;
    let start = (at as usize).next_multiple_of(HUGE);
    let advice = if backing == "Huge" { Advice::LinuxHugepage } else { Advice::LinuxNoHugepage };
    // SAFETY: inside the mapping just made; the advice changes no contents.
    unsafe { madvise(start as *mut _, bytes, advice) }?;
    for addr in (start..start + bytes).step_by(4096) {
        // SAFETY: inside the mapping, which nothing else refers to.
        unsafe { (addr as *mut u8).write_volatile(1) };
    }
    println!("{start}");
    let mut n = 0_u64;
    loop {
        match doing.as_str() {
            "Asleep" => std::thread::sleep(std::time::Duration::from_secs(60)),
            "Busy" => n = std::hint::black_box(n + 1),
            _ => {
                for addr in (start..start + bytes).step_by(4096) {
                    // SAFETY: as above.
                    unsafe { (addr as *const u8).read_volatile() };
                }
            }
        }
    }
}
