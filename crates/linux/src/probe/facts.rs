//! Facts about the machine and the user that decide what can be done.

use crate::proc_file::{parse_number, read_text};
use crate::targets::mounted_cgroup_versions;
use rustix::thread::{CapabilitySet, capabilities};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// What is known of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelFacts {
    /// Release of the kernel, as `uname -r` has it.
    pub release: String,
    /// Machine, as `uname -m` has it.
    pub machine: String,
    /// Page size, bytes.
    pub page_size: u64,
    /// Processors online.
    pub cpus: u32,
    /// Transparent huge pages: `always`, `madvise` or `never`; absent if the kernel has none.
    pub thp: Option<String>,
    /// Swap space, bytes.
    pub swap_total: u64,
    /// Swap space that is free, bytes.
    pub swap_free: u64,
    /// Whether zswap compresses what is swapped out.
    pub zswap: bool,
    /// Mounted cgroup hierarchies: `v1`, `v2`, `hybrid` or `none`.
    pub cgroup: String,
    /// NUMA nodes with memory.
    pub numa_nodes: u32,
    /// Kernel lockdown: `none`, `integrity` or `confidentiality`; `unknown` where securityfs is not mounted.
    pub lockdown: String,
    /// Effective user id.
    pub uid: u32,
    /// Which of the capabilities that matter here are effective, as `CAP_BPF`.
    pub capabilities: Vec<String>,
    /// Whether the user's capabilities count for the whole machine: false in a user namespace.
    pub initial_user_namespace: bool,
    /// Whether a seccomp filter watches system calls, as in containers.
    pub seccomp_filter: bool,
}

/// The capabilities that matter here.
const CAPABILITIES: [(CapabilitySet, &str); 5] = [
    (CapabilitySet::BPF, "CAP_BPF"),
    (CapabilitySet::PERFMON, "CAP_PERFMON"),
    (CapabilitySet::SYS_NICE, "CAP_SYS_NICE"),
    (CapabilitySet::SYS_PTRACE, "CAP_SYS_PTRACE"),
    (CapabilitySet::SYS_ADMIN, "CAP_SYS_ADMIN"),
];

impl KernelFacts {
    /// Gathers them. What cannot be read is told as absent.
    pub fn gather() -> Self {
        let uname = rustix::system::uname();
        let meminfo = read_text("/proc/meminfo").unwrap_or_default();
        let status = read_text("/proc/self/status").unwrap_or_default();
        let effective = capabilities(None).map(|sets| sets.effective).unwrap_or(CapabilitySet::empty());
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        Self {
            release: uname.release().to_string_lossy().into_owned(),
            machine: uname.machine().to_string_lossy().into_owned(),
            page_size: rustix::param::page_size() as u64,
            cpus: u32::try_from(cpus).unwrap_or(u32::MAX),
            thp: read_text("/sys/kernel/mm/transparent_hugepage/enabled").ok().and_then(|t| selected(&t)),
            swap_total: kilobytes(&meminfo, "SwapTotal").unwrap_or(0),
            swap_free: kilobytes(&meminfo, "SwapFree").unwrap_or(0),
            zswap: read_text("/sys/module/zswap/parameters/enabled").is_ok_and(|text| text.trim() == "Y"),
            cgroup: match mounted_cgroup_versions() {
                (true, true) => "hybrid",
                (true, false) => "v1",
                (false, true) => "v2",
                (false, false) => "none",
            }
            .to_owned(),
            numa_nodes: count_list(&read_text("/sys/devices/system/node/has_memory").unwrap_or_default())
                .max(1),
            lockdown: lockdown(Path::new("/sys/kernel/security")),
            uid: rustix::process::geteuid().as_raw(),
            capabilities: CAPABILITIES
                .iter()
                .filter(|(set, _)| effective.contains(*set))
                .map(|(_, name)| (*name).to_owned())
                .collect(),
            initial_user_namespace: is_initial_user_namespace(),
            seccomp_filter: field(&status, "Seccomp") == Some("2"),
        }
    }

    /// The kernel's version, such as (6, 12); (0, 0) if its release does not start with one.
    pub fn version(&self) -> (u32, u32) {
        let mut numbers = self.release.split(|c: char| !c.is_ascii_digit()).map(|n| n.parse().unwrap_or(0));
        (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0))
    }

    /// Whether the capability of that name (`CAP_BPF`) is effective. CAP_SYS_ADMIN stands for CAP_BPF and CAP_PERFMON.
    pub fn has(&self, capability: &str) -> bool {
        let held = |name: &str| self.capabilities.iter().any(|held| held == name);
        held(capability) || (matches!(capability, "CAP_BPF" | "CAP_PERFMON") && held("CAP_SYS_ADMIN"))
    }
}

/// Whether the user's capabilities count for the whole machine.
pub(crate) fn is_initial_user_namespace() -> bool {
    read_text("/proc/self/uid_map").is_ok_and(|map| covers_all_users(&map))
}

/// The mode of kernel lockdown. Kernels without that module lock nothing down, and have other files of securityfs; where it is
/// not mounted nothing is known.
fn lockdown(securityfs: &Path) -> String {
    let mode = read_text(securityfs.join("lockdown")).ok().and_then(|text| selected(&text));
    let mounted = std::fs::read_dir(securityfs).is_ok_and(|mut files| files.next().is_some());
    mode.unwrap_or_else(|| if mounted { "none" } else { "unknown" }.to_owned())
}

/// The word in brackets of a file such as `always [madvise] never`.
fn selected(text: &str) -> Option<String> {
    let (_, rest) = text.split_once('[')?;
    Some(rest.split_once(']')?.0.to_owned())
}

fn field<'a>(text: &'a str, key: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':')).map(str::trim)
}

fn kilobytes(text: &str, key: &str) -> Option<u64> {
    parse_number(field(text, key)?.strip_suffix("kB")?.as_bytes())?.checked_mul(1024)
}

/// How many numbers a list such as `0-3,8` names.
fn count_list(text: &str) -> u32 {
    let count = |range: &str| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u32>().ok()?, last.parse::<u32>().ok()?);
        last.checked_sub(first)?.checked_add(1)
    };
    text.trim().split(',').filter_map(count).fold(0, u32::saturating_add)
}

/// Whether a map of user ids is that of the initial namespace: every id stands for itself.
fn covers_all_users(map: &str) -> bool {
    map.split_whitespace().eq(["0", "0", "4294967295"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_understood() {
        assert_eq!(selected("always [madvise] never\n").as_deref(), Some("madvise"));
        assert_eq!(selected("none integrity"), None);
        assert_eq!(selected("]["), None);
        assert_eq!(
            kilobytes("SwapTotalX: 1 kB\nSwapTotal:    2097148 kB\n", "SwapTotal"),
            Some(2_097_148 << 10)
        );
        assert_eq!(kilobytes("SwapTotal: many", "SwapTotal"), None);
        assert_eq!(count_list("0-3,8\n"), 5);
        assert_eq!(count_list("0\n"), 1);
        assert_eq!(count_list("3-1,x,,0-4294967295"), 0);
        assert!(covers_all_users("         0          0 4294967295\n"));
        assert!(!covers_all_users("0 1000 1\n"));
    }

    #[test]
    fn lockdown_is_unknown_where_nothing_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        assert_eq!(lockdown(&dir.path().join("none")), "unknown");
        assert_eq!(lockdown(dir.path()), "unknown");
        write("lsm", "capability");
        assert_eq!(lockdown(dir.path()), "none");
        write("lockdown", "none [integrity] confidentiality\n");
        assert_eq!(lockdown(dir.path()), "integrity");
    }

    #[test]
    fn versions_are_read_from_releases() {
        let facts = |release: &str| KernelFacts { release: release.to_owned(), ..KernelFacts::gather() };
        assert_eq!(facts("6.12.48+deb13-cloud-amd64").version(), (6, 12));
        assert_eq!(facts("5.17-rc1").version(), (5, 17));
        assert_eq!(facts("rubbish").version(), (0, 0));
    }

    #[test]
    fn broad_capabilities_stand_for_narrow_ones() {
        let mut facts = KernelFacts::gather();
        facts.capabilities = vec!["CAP_SYS_ADMIN".to_owned()];
        assert!(facts.has("CAP_BPF") && facts.has("CAP_PERFMON") && facts.has("CAP_SYS_ADMIN"));
        assert!(!facts.has("CAP_SYS_NICE") && !facts.has("CAP_SYS_PTRACE"));
    }

    #[test]
    fn this_machine_has_facts() {
        let facts = KernelFacts::gather();
        assert!(facts.version() >= (5, 3));
        assert!(facts.page_size.is_power_of_two() && facts.cpus > 0 && facts.numa_nodes > 0);
        assert!(facts.swap_free <= facts.swap_total);
        let json = serde_json::to_string(&facts).unwrap();
        assert_eq!(serde_json::from_str::<KernelFacts>(&json).unwrap(), facts);
    }
}
