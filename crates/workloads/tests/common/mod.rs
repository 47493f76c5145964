//! A workload as its users see it: a process that another one watches.
#![allow(clippy::unwrap_used, dead_code, reason = "helpers of several tests, each of which uses some")]

use isotherm_workloads::truth::Truth;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

/// A workload that has said `ready` and waits for a line on its standard input.
pub struct Running {
    child: Child,
    out: BufReader<ChildStdout>,
    pub text: String,
}

pub fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_isotherm-workload"));
    command.args(args);
    command
}

impl Running {
    pub fn start(args: &[&str]) -> Self {
        let mut child = command(args)
            .arg("--start-on-stdin")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let mut running = Self { child, out, text: String::new() };
        running.read_until("\"kind\":\"ready\"");
        running
    }

    pub fn read_until(&mut self, part: &str) {
        loop {
            let before = self.text.len();
            assert_ne!(self.out.read_line(&mut self.text).unwrap(), 0, "ended before {part}:\n{}", self.text);
            if self.text[before..].contains(part) {
                return;
            }
        }
    }

    pub fn go(&mut self) {
        self.child.stdin.take().unwrap().write_all(b"go\n").unwrap();
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).unwrap();
    }

    /// Waits for the end; the truth it told, and whether its status was 0.
    pub fn end(mut self) -> (Truth, bool) {
        while self.out.read_line(&mut self.text).unwrap() > 0 {}
        let status = self.child.wait().unwrap();
        (Truth::read(self.text.as_bytes()).unwrap(), status.success())
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn proc(pid: u32, file: &str) -> std::path::PathBuf {
    Path::new("/proc").join(pid.to_string()).join(file)
}

/// Clears the Accessed bit of all pages of a process. On x86 the kernel leaves their translations in the TLB when it does
/// this, and a processor that has the translation need not set the bit again; clearing the soft-dirty bits flushes.
pub fn clear_referenced(pid: u32) {
    for what in ["1", "4"] {
        std::fs::write(proc(pid, "clear_refs"), what).unwrap();
    }
}

/// Bytes of each mapping, `start..end`, by the field of smaps.
pub fn smaps(pid: u32, field: &str) -> Vec<(u64, u64, u64)> {
    let smaps = std::fs::read_to_string(proc(pid, "smaps")).unwrap();
    let mut out: Vec<(u64, u64, u64)> = Vec::new();
    for line in smaps.lines() {
        let key = line.split(' ').next().unwrap();
        if let Some((start, end)) = key.split_once('-') {
            let hex = |s| u64::from_str_radix(s, 16).unwrap();
            out.push((hex(start), hex(end), 0));
        } else if let Some(rest) = line.strip_prefix(field) {
            let kib: u64 = rest.trim_start_matches(':').trim().trim_end_matches(" kB").parse().unwrap();
            out.last_mut().unwrap().2 = kib * 1024;
        }
    }
    out
}

/// Whether the kernel lets Accessed bits be cleared; says why not.
pub fn clears() -> bool {
    let there = proc(std::process::id(), "clear_refs").exists();
    if !there {
        println!("skipped: the kernel lacks /proc/PID/clear_refs (CONFIG_PROC_PAGE_MONITOR)");
    }
    there
}
