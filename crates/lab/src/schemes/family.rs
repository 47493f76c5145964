//! How much memory a program and its descendants have, as it goes.

use isotherm_linux::schemes::KernelCounters;
use isotherm_workloads::now_ns;
use serde::Serialize;
use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::Scope;
use std::time::Duration;

/// How often it is looked at: a second holds enough looks for its mean, and one costs some 50 us a process.
const INTERVAL: Duration = Duration::from_millis(100);

/// A look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Look {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// Resident bytes (VmRSS) of all processes; what they share counts for each.
    pub resident: u64,
    /// Bytes of them in swap (VmSwap).
    pub swapped: u64,
    /// Bytes that the machine has read from swap since it was booted ([`KernelCounters`]), those among them that were read ahead, as the
    /// kernel does of memory that a fork left in swap for both.
    pub swapped_in: u64,
}

/// Looks at `pid` and its descendants until `done` is set or they are gone; not at one that begins with less than it was given.
pub(super) fn watch<'scope>(
    scope: &'scope Scope<'scope, '_>,
    pid: i32,
    done: &'scope AtomicBool,
) -> std::thread::ScopedJoinHandle<'scope, Vec<Look>> {
    scope.spawn(move || {
        let mut looks = Vec::new();
        while !done.load(Ordering::Relaxed) {
            let look = look(pid);
            if look.resident == 0 {
                break;
            }
            looks.push(look);
            std::thread::sleep(INTERVAL);
        }
        looks
    })
}

fn look(pid: i32) -> Look {
    let swapped_in = KernelCounters::read().unwrap_or_default().swapped_in;
    let mut look = Look { time_ns: now_ns(), swapped_in, ..Look::default() };
    let mut pids = vec![pid];
    while let Some(pid) = pids.pop() {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        look.resident += kilobytes(&status, "VmRSS:") * 1024;
        look.swapped += kilobytes(&status, "VmSwap:") * 1024;
        // Only the main thread's, since workloads fork from there.
        let children = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
        pids.extend(children.split_whitespace().filter_map(|pid| pid.parse::<i32>().ok()));
    }
    look
}

fn kilobytes(status: &str, name: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(name));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_and_its_children_are_looked_at() {
        let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
        let (own, of_child) = (look(std::process::id() as i32), look(child.id() as i32));
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(of_child.resident > 0 && own.resident > of_child.resident, "{own:?} {of_child:?}");
        assert_eq!(look(child.id() as i32).resident, 0);
        assert_eq!(kilobytes("VmSwap:\t      12 kB\nVmRSS:\t x kB\n", "VmSwap:"), 12);
    }
}
