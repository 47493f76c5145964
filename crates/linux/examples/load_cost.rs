//! What starting the `pte` backend costs: `cargo run --release -p isotherm-linux --example load_cost` (root). Under
//! `perf stat` it shows how much of that is the kernel's, nearly all of it the verifier's.
#![allow(clippy::print_stdout, reason = "that is what it is for")]

use isotherm_linux::pte::Pte;
use rustix::time::{ClockId, clock_gettime};
use std::error::Error;
use std::time::Instant;

/// Processor time of this process, ms.
fn cpu() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 * 1e3 + now.tv_nsec as f64 / 1e6
}

/// A field of `/proc/self/status`.
fn status(field: &str) -> Option<String> {
    let text = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field))?;
    Some(line.trim_start_matches(':').trim().to_owned())
}

fn main() -> Result<(), Box<dyn Error>> {
    // The first is what a monitor pays; the others show how much of that is cold caches.
    for _ in 0..5 {
        let (start, before) = (Instant::now(), cpu());
        let pte = Pte::load()?;
        let (ms, cpu) = (start.elapsed().as_secs_f64() * 1e3, cpu() - before);
        println!(
            "load {ms:6.1} ms, {cpu:6.1} ms of CPU; resident then {}, at most {}",
            status("VmRSS").unwrap_or_default(),
            status("VmHWM").unwrap_or_default()
        );
        drop(pte);
    }
    Ok(())
}
