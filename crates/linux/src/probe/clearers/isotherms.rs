//! Other isotherms at work: each clears the bits that the other looks for.

use super::{AccessedBitClearer, Among, all_tasks, kernel_threads};
use crate::proc_file::read_text;
use std::collections::BTreeSet;
use std::path::Path;

/// The name of the program, as the kernel keeps it.
pub(super) const COMM: &str = "isotherm";

/// The isotherms below `proc` that hold descriptors of processes (pidfds), which is what they watch; but this one. What this
/// user may not look into is left out.
pub(super) fn isotherms(proc: &Path, among: Among<'_>) -> Vec<AccessedBitClearer> {
    let pids = match among {
        Among::All { but } => {
            let threads: BTreeSet<u32> = kernel_threads(proc).unwrap_or_default().into_iter().collect();
            let mut pids = all_tasks(proc).unwrap_or_default();
            pids.retain(|pid| !but.contains(pid) && !threads.contains(pid));
            pids
        }
        Among::Those(pids) => pids.to_vec(),
    };
    let mut found = Vec::new();
    for pid in pids.into_iter().filter(|pid| *pid != std::process::id()) {
        let process = proc.join(pid.to_string());
        // The name is cheaper to read than where the program lies, and is not changed by a link to it.
        if read_text(process.join("comm")).is_ok_and(|comm| comm.trim_end() == COMM) {
            let targets = watched(&process);
            if !targets.is_empty() {
                found.push(AccessedBitClearer::Isotherm { pid, targets });
            }
        }
    }
    found.sort_by_key(|one| match one {
        AccessedBitClearer::Isotherm { pid, .. } => *pid,
        _ => 0,
    });
    found
}

/// The processes to which a process holds pidfds, those that live.
fn watched(process: &Path) -> BTreeSet<u32> {
    let descriptors = std::fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    // "anon_inode:[pidfd]", or "pidfd:[INODE]" where they are files of a filesystem of their own (from 6.9 on).
    let is_pidfd = |path: &Path| {
        std::fs::read_link(path).is_ok_and(|to| {
            let to = to.as_os_str().as_encoded_bytes();
            to == b"anon_inode:[pidfd]" || to.starts_with(b"pidfd:")
        })
    };
    let pidfds = descriptors.filter(|descriptor| is_pidfd(&descriptor.path()));
    let of = |info: String| {
        let line = info.lines().find_map(|line| line.strip_prefix("Pid:"))?;
        line.trim().parse::<u32>().ok().filter(|&pid| pid != 0)
    };
    pidfds
        .filter_map(|descriptor| {
            read_text(process.join("fdinfo").join(descriptor.file_name())).ok().and_then(of)
        })
        .collect()
}
