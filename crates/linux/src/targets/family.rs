//! Asking the kernel who is whose child, and waiting for one's own.

use crate::proc_file;
use rustix::process::{WaitId, WaitIdOptions, waitid};

/// The children of all threads of `pid`, if the kernel lists them, and the number of threads looked at.
pub(super) fn children_of(pid: u32) -> (Option<Vec<u32>>, usize) {
    let mut children = Vec::new();
    let mut threads = 0;
    let mut text = Vec::new();
    // A process that is gone has no children left.
    let Ok(tasks) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return (Some(children), 1) };
    for task in tasks.flatten() {
        threads += 1;
        let task = task.path();
        match proc_file::read_whole(task.join("children"), &mut text) {
            Ok(()) => {
                let pids = text.split(|&b| b == b' ').filter_map(proc_file::parse_number);
                children.extend(pids.filter_map(|pid| u32::try_from(pid).ok()));
            }
            Err(_) if task.join("stat").exists() => return (None, threads),
            Err(_) => {}
        }
    }
    (Some(children), threads)
}

pub(super) fn all_pids() -> Vec<u32> {
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect()
}

pub(super) fn self_pid() -> u32 {
    std::process::id()
}

pub(super) fn wait_for(who: WaitId<'_>) {
    // Nothing to wait for is as good as having waited.
    let _ = waitid(who, WaitIdOptions::EXITED | WaitIdOptions::NOHANG);
}
