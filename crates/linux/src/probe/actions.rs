//! Which actions on other processes' memory can be taken.

use super::facts::KernelFacts;
use super::trial::Trial;
use super::{Finding, Missing};
use rustix::io::Errno;
use std::io;

pub(super) fn subject(trial: &io::Result<Trial>) -> Result<&Trial, Missing> {
    trial.as_ref().map_err(|error| {
        Missing::new(
            format!("no process could be made to try it on: {error}"),
            "raise the limit of processes (`ulimit -u`)",
        )
    })
}

/// Whether `process_madvise` takes that advice.
pub(super) fn advise(facts: &KernelFacts, trial: &io::Result<Trial>, advice: i32) -> Finding {
    let Err(error) = subject(trial)?.advise(advice) else {
        return Ok("process_madvise takes it".to_owned());
    };
    let filtered =
        "a seccomp filter is in force: let it pass process_madvise, or run outside of the container";
    Err(match error.raw_os_error().map(Errno::from_raw_os_error) {
        // Tried and found nothing to do at the moment, or no memory for it: it is known, though.
        Some(Errno::AGAIN | Errno::BUSY | Errno::NOMEM) => return Ok("process_madvise takes it".to_owned()),
        Some(Errno::NOSYS) if facts.seccomp_filter && facts.version() >= (5, 10) => {
            Missing::new("process_madvise is not there (ENOSYS)", filtered)
        }
        Some(Errno::NOSYS) => Missing::new(
            format!("Linux {} has no process_madvise", facts.release),
            "boot Linux 5.10 or newer, with CONFIG_ADVISE_SYSCALLS",
        ),
        Some(Errno::PERM) if facts.has("CAP_SYS_NICE") => {
            Missing::new("process_madvise is not permitted, though CAP_SYS_NICE is there", filtered)
        }
        Some(Errno::PERM | Errno::ACCESS) => Missing::new(
            "missing CAP_SYS_NICE",
            "run as root, or `setcap cap_sys_nice,cap_sys_ptrace+ep` the program",
        ),
        Some(Errno::INVAL) => Missing::new(
            format!("process_madvise of Linux {} does not take this advice", facts.release),
            "boot a newer kernel: COLD, PAGEOUT and WILLNEED came with 5.10, COLLAPSE with 6.1 and transparent huge pages",
        ),
        _ => Missing::new(format!("process_madvise failed: {error}"), "report it with this kernel's version"),
    })
}

/// Whether anonymous memory can be paged out at all.
pub(super) fn swap(facts: &KernelFacts) -> Finding {
    let remedy = "add swap: `zramctl` and `swapon`, a swap file, or zswap over one";
    if facts.swap_total == 0 {
        return Err(Missing::new(
            "there is no swap: anonymous memory stays, only files' pages can go",
            remedy,
        ));
    }
    if facts.swap_free == 0 {
        return Err(Missing::new("swap is full: anonymous memory stays, only files' pages can go", remedy));
    }
    let mib = |bytes: u64| bytes >> 20;
    let zswap = if facts.zswap { ", compressed by zswap first" } else { "" };
    Ok(format!("{} of {} MiB of swap are free{zswap}", mib(facts.swap_free), mib(facts.swap_total)))
}

pub(super) fn split() -> Finding {
    split_by("/sys/kernel/debug/split_huge_pages", rustix::process::geteuid().is_root())
}

/// Opens `file`, which does nothing yet: its mode says nothing of lockdown.
fn split_by(file: &str, root: bool) -> Finding {
    let error = match std::fs::File::options().write(true).open(file) {
        Ok(_) => return Ok(format!("through {file}")),
        Err(error) => error,
    };
    Err(match error.raw_os_error().map(Errno::from_raw_os_error) {
        Some(Errno::NOENT) => Missing::new(
            format!("there is no {file}"),
            "mount debugfs (`mount -t debugfs nodev /sys/kernel/debug`) on a kernel with CONFIG_DEBUG_FS and transparent \
             huge pages; paging out splits as well",
        ),
        Some(Errno::PERM) if root => Missing::new(
            format!("kernel lockdown forbids to write to {file}"),
            "boot with lockdown=none; paging out splits as well",
        ),
        Some(Errno::ACCESS | Errno::PERM) => Missing::new(
            format!("{file} may be written by root alone"),
            "run as root, without kernel lockdown",
        ),
        _ => Missing::new(format!("{file}: {error}"), "run as root, without kernel lockdown"),
    })
}

pub(super) fn migrate(facts: &KernelFacts, trial: &io::Result<Trial>) -> Finding {
    match subject(trial)?.move_pages() {
        Err(error) if error.raw_os_error() == Some(Errno::NOSYS.raw_os_error()) => Err(Missing::new(
            "the kernel has no move_pages",
            "boot a kernel with CONFIG_NUMA and CONFIG_MIGRATION",
        )),
        Err(error) => {
            Err(Missing::new(format!("move_pages is refused: {error}"), "run as root or with CAP_SYS_NICE"))
        }
        Ok(()) if facts.numa_nodes < 2 => Err(Missing::new(
            "all memory is on one node",
            "it takes a machine with several NUMA nodes or CXL memory",
        )),
        Ok(()) => Ok(format!("move_pages between {} nodes", facts.numa_nodes)),
    }
}

pub(super) fn pressure() -> Finding {
    match std::fs::read("/proc/pressure/memory") {
        Ok(_) => Ok("/proc/pressure/memory".to_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(Missing::new(
            "the kernel does not measure pressure",
            "boot a kernel with CONFIG_PSI, with psi=1",
        )),
        Err(error) if error.raw_os_error() == Some(Errno::OPNOTSUPP.raw_os_error()) => {
            Err(Missing::new("measuring pressure is turned off", "boot with psi=1"))
        }
        Err(error) => Err(Missing::new(format!("/proc/pressure/memory: {error}"), "boot with psi=1")),
    }
}

/// Whose processes can be observed.
pub(super) fn other_users(facts: &KernelFacts) -> Finding {
    if facts.has("CAP_SYS_PTRACE") {
        let scope = if facts.initial_user_namespace { "" } else { " of this user namespace" };
        Ok(format!("processes of all users{scope}"))
    } else {
        Err(Missing::new(
            "only processes of the same user, and of those none that changed its user or forbade core dumps",
            "run as root, or with CAP_SYS_PTRACE",
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_splits_huge_pages_is_opened_not_looked_at() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("split_huge_pages");
        let of = |root| split_by(file.to_str().unwrap(), root);
        assert!(of(true).is_err_and(|missing| missing.reason.starts_with("there is no /")));
        std::fs::write(&file, "").unwrap();
        assert!(of(true).is_ok());
        // What may be written by its mode, and is refused nonetheless: here since it is a directory.
        assert!(split_by(dir.path().to_str().unwrap(), true).is_err());
    }
}
