//! What goals and watermarks go by, read from `/proc` and `/sys`.

use crate::clock::monotonic_ns;
use crate::proc_file::{Reopened, read_text};
use crate::targets::Cgroup;
use isotherm_damon::PAGE_SIZE;
use isotherm_damon::schemes::{GoalMetric, Metrics, WatermarkMetric};
use std::collections::HashMap;
use std::path::PathBuf;

/// Reads them from the running machine.
#[derive(Debug, Default)]
pub struct SystemMetrics {
    /// Pressure files by their path. Opened once; one that is gone is looked for again.
    pressure: HashMap<PathBuf, Reopened>,
    /// `/proc/meminfo` as of a moment: schemes ask for several of its values at once.
    meminfo: Option<(u64, String)>,
}

/// Files of a cgroup: pressure, of version 2 alone, and memory by node, of the hierarchy that has the memory controller.
const PRESSURE: &str = "memory.pressure";
const BY_NODE: &str = "memory.numa_stat";

/// How long what was read holds.
const FRESH_NS: u64 = 100_000_000;

impl SystemMetrics {
    /// Nothing is read before it is asked for.
    pub fn new() -> Self {
        Self::default()
    }

    fn meminfo(&mut self) -> &str {
        let now = monotonic_ns();
        if self.meminfo.as_ref().is_none_or(|(read, _)| now.saturating_sub(*read) > FRESH_NS) {
            self.meminfo = Some((now, read_text("/proc/meminfo").unwrap_or_default()));
        }
        self.meminfo.as_ref().map_or("", |(_, text)| text)
    }

    /// Bytes of a line of `/proc/meminfo`.
    pub fn memory(&mut self, key: &str) -> Option<u64> {
        bytes_of(self.meminfo(), key)
    }

    /// The line `some` of a pressure file: share of the last ten seconds in percent, and total in microseconds.
    fn pressure(&mut self, path: PathBuf) -> Option<(f64, u64)> {
        let mut buf = [0; 256];
        if !self.pressure.contains_key(&path) {
            self.pressure.insert(path.clone(), Reopened::open(&path).ok()?);
        }
        let read = self.pressure.get(&path).and_then(|file| file.read(&mut buf).ok());
        let Some(text) = read.and_then(|text| std::str::from_utf8(text).ok()) else {
            // A cgroup that was removed; perhaps there is a new one of that name.
            self.pressure.remove(&path);
            return None;
        };
        some_of(text)
    }

    fn pressure_of(&mut self, cgroup: Option<&str>) -> Option<(f64, u64)> {
        let path = match cgroup {
            None => PathBuf::from("/proc/pressure/memory"),
            Some(name) => Cgroup::find_with(name, PRESSURE).ok()?.directory().join(PRESSURE),
        };
        self.pressure(path)
    }

    /// Share of the last ten seconds in which some task of the machine waited for memory, in percent.
    pub fn some_pressure(&mut self) -> Option<f64> {
        self.pressure_of(None).map(|(share, _)| share)
    }
}

impl Metrics for SystemMetrics {
    fn goal(&mut self, _scheme: usize, metric: &GoalMetric) -> Option<u64> {
        match metric {
            GoalMetric::SomeMemPsiUs { cgroup } => self.pressure_of(cgroup.as_deref()).map(|(_, us)| us),
            GoalMetric::NodeMemUsedBp(node) => {
                let (total, free) = node_memory(*node)?;
                share_bp(total.saturating_sub(free), total)
            }
            GoalMetric::NodeMemFreeBp(node) => {
                let (total, free) = node_memory(*node)?;
                share_bp(free, total)
            }
            GoalMetric::NodeMemcgUsedBp { node, cgroup } => {
                share_bp(group_on_node(cgroup, *node)?, node_memory(*node)?.0)
            }
            GoalMetric::NodeMemcgFreeBp { node, cgroup } => {
                let total = node_memory(*node)?.0;
                share_bp(total.saturating_sub(group_on_node(cgroup, *node)?), total)
            }
            GoalMetric::ActiveMemBp => {
                let (active, inactive) = (self.memory("Active")?, self.memory("Inactive")?);
                share_bp(active, active.saturating_add(inactive))
            }
            GoalMetric::InactiveMemBp => {
                let (active, inactive) = (self.memory("Active")?, self.memory("Inactive")?);
                share_bp(inactive, active.saturating_add(inactive))
            }
            // Of memory on a node by scheme only who goes by physical addresses knows.
            _ => None,
        }
    }

    fn watermark(&mut self, metric: WatermarkMetric) -> Option<u64> {
        match metric {
            WatermarkMetric::FreeMemRate => {
                let (free, total) = (self.memory("MemFree")?, self.memory("MemTotal")?);
                free.saturating_mul(1000).checked_div(total)
            }
            _ => None,
        }
    }
}

fn share_bp(part: u64, whole: u64) -> Option<u64> {
    let bp = (u128::from(part) * 10_000).checked_div(u128::from(whole))?;
    u64::try_from(bp).ok()
}

/// Bytes of the line `key:  N kB`, of which the last word before the colon counts: a node's file begins with its name.
fn bytes_of(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.split_whitespace().next_back() == Some(key)).then_some(value)
    })?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib.saturating_mul(1024))
}

fn some_of(text: &str) -> Option<(f64, u64)> {
    let line = text.lines().find(|line| line.starts_with("some "))?;
    let field = |key: &str| line.split_whitespace().find_map(|word| word.strip_prefix(key));
    Some((field("avg10=")?.parse().ok()?, field("total=")?.parse().ok()?))
}

/// All and free bytes of a node.
fn node_memory(node: u32) -> Option<(u64, u64)> {
    let text = read_text(format!("/sys/devices/system/node/node{node}/meminfo")).ok()?;
    Some((bytes_of(&text, "MemTotal")?, bytes_of(&text, "MemFree")?))
}

/// Bytes that a memory cgroup has on the LRU lists of a node.
fn group_on_node(cgroup: &str, node: u32) -> Option<u64> {
    let group = Cgroup::find_with(cgroup, BY_NODE).ok()?;
    let text = read_text(group.directory().join(BY_NODE)).ok()?;
    on_node(&text, node, group.version())
}

fn on_node(text: &str, node: u32, version: u8) -> Option<u64> {
    // Version 2 counts bytes by list, version 1 pages by kind.
    let (keys, unit): (&[&str], u64) = match version {
        2 => (&["active_anon", "inactive_anon", "active_file", "inactive_file"], 1),
        _ => (&["anon", "file"], PAGE_SIZE),
    };
    let prefix = format!("N{node}=");
    let mut sum = None;
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let Some(key) = words.next().map(|word| word.split('=').next().unwrap_or(word)) else { continue };
        if keys.contains(&key)
            && let Some(value) = words.find_map(|word| word.strip_prefix(&prefix)?.parse::<u64>().ok())
        {
            sum = Some(sum.unwrap_or(0u64).saturating_add(value.saturating_mul(unit)));
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_understood() {
        let meminfo =
            "MemTotal:       24684544 kB\nMemFree:        19745000 kB\nActive:  100 kB\nActive(anon): 7 kB\n";
        assert_eq!(bytes_of(meminfo, "MemFree"), Some(19_745_000 << 10));
        assert_eq!(bytes_of(meminfo, "Active"), Some(100 << 10));
        assert_eq!(bytes_of("Node 0 MemTotal:   5 kB\nNode 0 MemFree:  x kB", "MemTotal"), Some(5 << 10));
        assert_eq!(bytes_of("Node 0 MemFree:  x kB", "MemFree"), None);
        let psi = "some avg10=1.25 avg60=0.00 avg300=0.00 total=12345\nfull avg10=0.00 total=1\n";
        assert_eq!(some_of(psi), Some((1.25, 12_345)));
        assert_eq!(some_of("full avg10=0.00 total=1"), None);
        let v2 = "anon N0=9 N1=9\nactive_anon N0=10 N1=20\ninactive_file N0=1 N1=2\n";
        assert_eq!((on_node(v2, 1, 2), on_node(v2, 2, 2)), (Some(22), None));
        let v1 = "total=5 N0=5\nfile=2 N0=2\nanon=3 N0=3\nhierarchical_anon=9 N0=9\n";
        assert_eq!(on_node(v1, 0, 1), Some(5 * PAGE_SIZE));
        assert_eq!((share_bp(1, 4), share_bp(1, 0)), (Some(2500), None));
    }

    #[test]
    fn this_machine_can_be_measured() {
        let mut metrics = SystemMetrics::new();
        let free = metrics.watermark(WatermarkMetric::FreeMemRate).unwrap();
        assert!(free <= 1000, "{free}");
        let active = metrics.goal(0, &GoalMetric::ActiveMemBp).unwrap();
        let inactive = metrics.goal(0, &GoalMetric::InactiveMemBp).unwrap();
        assert!((9_990..=10_000).contains(&(active + inactive)), "{active} {inactive}");
        assert_eq!(metrics.goal(0, &GoalMetric::NodeMemUsedBp(4_000_000)), None);
        let gone = GoalMetric::SomeMemPsiUs { cgroup: Some("no/such/group".into()) };
        assert_eq!(metrics.goal(0, &gone), None);
    }
}
