//! Which backends can be used.

use super::facts::KernelFacts;
use super::trial::{Trial, advice};
use super::{Finding, Missing};
use crate::idle::{Idle, IdlePaths};
use crate::kernel::{KernelPaths, look_at_kernel};
use crate::pagemap::Pagemap;
use crate::proc_file::read_into;
use crate::process::Process;
use crate::pte::{Pte, WalkError};
use crate::source::SourceError;
use std::fs::OpenOptions;
use std::io::{self, Write};

/// What `pte` needs, as far as can be told without loading its BPF program: x86-64, Linux 5.17, BTF, capabilities, no
/// confidentiality lockdown, and `process_madvise`. Tells what there is, or the first thing that is missing.
pub(super) fn pte_prerequisites(facts: &KernelFacts, trial: &io::Result<Trial>) -> Finding {
    if facts.machine != "x86_64" {
        return Err(Missing::new(
            format!("it knows the page tables of x86_64 only, and this is {}", facts.machine),
            "use another backend",
        ));
    }
    if facts.version() < (5, 17) {
        return Err(Missing::new(
            format!("Linux {} is older than 5.17, whose BPF has no bpf_loop", facts.release),
            "boot a newer kernel (Debian 12 and Ubuntu 22.04 HWE have one) or use another backend",
        ));
    }
    if let Err(error) = std::fs::metadata("/sys/kernel/btf/vmlinux") {
        return Err(Missing::new(
            format!("the kernel's type information cannot be read (/sys/kernel/btf/vmlinux: {error})"),
            "boot a kernel with CONFIG_DEBUG_INFO_BTF (those of Debian, Ubuntu, Fedora and RHEL have it), with sysfs \
             mounted on /sys",
        ));
    }
    if facts.lockdown == "confidentiality" {
        return Err(Missing::new(
            "kernel lockdown is in confidentiality mode, which forbids BPF to read the kernel's memory",
            "boot with lockdown=integrity (or none) or use another backend",
        ));
    }
    let needed = ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_NICE", "CAP_SYS_PTRACE"];
    let lacking: Vec<&str> = needed.into_iter().filter(|name| !facts.has(name)).collect();
    if !lacking.is_empty() {
        return Err(Missing::new(
            format!("missing {}", lacking.join(", ")),
            "run as root, or `setcap cap_bpf,cap_perfmon,cap_sys_nice,cap_sys_ptrace+ep` the program",
        ));
    }
    if !facts.initial_user_namespace {
        return Err(Missing::new(
            "its capabilities are those of a user namespace, which do not count for the kernel's memory",
            "run outside of rootless containers",
        ));
    }
    super::actions::advise(facts, trial, advice::COLD)?;
    Ok(format!("Linux {}, BTF, capabilities and process_madvise are there", facts.release))
}

pub(super) fn pte(facts: &KernelFacts, trial: &io::Result<Trial>) -> Finding {
    pte_prerequisites(facts, trial)?;
    // All looks well; only the kernel's verifier knows.
    match Pte::load() {
        Ok(pte) => {
            let lists = match pte.check_numbers() {
                Ok(()) => "mappings as the kernel keeps them".to_owned(),
                Err(why) => format!("mappings as /proc prints them ({why})"),
            };
            Ok(format!("page by page; {}-level page tables; {lists}", pte.levels()))
        }
        Err(error) => Err(Missing::new(
            error.to_string(),
            match error {
                WalkError::NoBtf(_) => "boot a kernel with CONFIG_DEBUG_INFO_BTF, with sysfs mounted on /sys",
                WalkError::Machine(_) | WalkError::NoDirectMap(_) => "use another backend",
                WalkError::Object(_) => "report this kernel's version, and use another backend meanwhile",
                WalkError::Refused { .. } if facts.seccomp_filter => {
                    "a seccomp filter is in force: let it pass bpf(2), or run outside of the container"
                }
                WalkError::Refused { .. } => {
                    "report the message with this kernel's version, and use another backend"
                }
            },
        )),
    }
}

pub(super) fn idle() -> Finding {
    Idle::open(&IdlePaths::default()).map_err(missing)?;
    let own =
        Process::open(rustix::process::getpid()).map_err(|error| Missing::new(error.to_string(), ""))?;
    let entry = Pagemap::open(&own).ok().and_then(|pagemap| pagemap.entry(&raw const own as u64));
    if entry.is_none_or(|entry| entry.pfn() == 0) {
        return Err(Missing::new(
            "the kernel hides frame numbers in /proc/PID/pagemap",
            "run with CAP_SYS_ADMIN in the initial user namespace",
        ));
    }
    Ok("page by page, through the bitmap of idle frames".to_owned())
}

pub(super) fn refs(trial: &io::Result<Trial>) -> Finding {
    let trial = super::actions::subject(trial)?;
    let subject = trial.process();
    let clear_refs = subject.path("clear_refs");
    if let Err(error) = OpenOptions::new().write(true).open(&clear_refs).and_then(|mut f| f.write_all(b"1")) {
        return Err(match error.kind() {
            io::ErrorKind::NotFound => Missing::new(
                "the kernel has no /proc/PID/clear_refs",
                "boot a kernel with CONFIG_PROC_PAGE_MONITOR (every distribution's has it)",
            ),
            _ => Missing::new(
                format!("/proc/PID/clear_refs of an own process cannot be written: {error}"),
                "mount /proc writable, outside of the container's read-only one",
            ),
        });
    }
    let mut text = Vec::new();
    let referenced = read_into(subject.path("smaps"), &mut text)
        .is_ok_and(|()| text.windows(11).any(|window| window == b"Referenced:"));
    if !referenced {
        return Err(Missing::new(
            "/proc/PID/smaps tells nothing of references",
            "boot a kernel with CONFIG_PROC_PAGE_MONITOR (every distribution's has it)",
        ));
    }
    Ok("whole mappings only, without root".to_owned())
}

pub(super) fn kernel(facts: &KernelFacts) -> Finding {
    look_at_kernel(&KernelPaths::default()).map_err(missing)?;
    if rustix::fs::access("/sys/kernel/mm/damon/admin/kdamonds/nr_kdamonds", rustix::fs::Access::WRITE_OK)
        .is_err()
    {
        return Err(Missing::new(
            "DAMON's files may be written by root alone",
            "run as root, outside of containers",
        ));
    }
    match std::fs::read_to_string(format!("/boot/config-{}", facts.release)) {
        Ok(config) if !config.lines().any(|line| line == "CONFIG_DAMON_VADDR=y") => Err(Missing::new(
            "this kernel's DAMON cannot monitor virtual address spaces",
            "boot a kernel with CONFIG_DAMON_VADDR or use another backend",
        )),
        Ok(_) => Ok("DAMON in the kernel, in a kdamond of its own".to_owned()),
        // Only making a kdamond would show it otherwise, and looking must change nothing.
        Err(_) => Ok("DAMON in the kernel, in a kdamond of its own, if it has CONFIG_DAMON_VADDR".to_owned()),
    }
}

fn missing(error: SourceError) -> Missing {
    match error {
        SourceError::Unavailable { reason, remedy, .. } => Missing { reason, remedy },
        error => Missing::new(error.to_string(), "use another backend"),
    }
}
