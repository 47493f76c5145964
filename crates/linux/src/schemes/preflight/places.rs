//! NUMA nodes and control groups that schemes name, and that this machine may not have.

use super::{Add, Severity};
use crate::proc_file::read_text;
use crate::schemes::SystemMetrics;
use crate::targets::Cgroup;
use isotherm_damon::schemes::{GoalMetric, Metrics, PageKind, Scheme};
use std::fs::File;
use std::ops::RangeInclusive;

/// The NUMA nodes that have memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Nodes(Vec<RangeInclusive<u32>>);

impl Nodes {
    /// Those of this machine. A kernel without NUMA has node 0.
    pub fn read() -> Self {
        Self::parse(&read_text("/sys/devices/system/node/has_memory").unwrap_or_default())
            .unwrap_or(Self(vec![0..=0]))
    }

    /// Of a list such as `0-1,4`; `None` if it names none.
    fn parse(text: &str) -> Option<Self> {
        let range = |range: &str| {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            Some(first.parse().ok()?..=last.parse().ok()?)
        };
        let ranges: Vec<_> = text.trim().split(',').filter_map(range).collect();
        (!ranges.is_empty()).then_some(Self(ranges))
    }

    fn has(&self, node: u32) -> bool {
        self.0.iter().any(|range| range.contains(&node))
    }

    /// "there is no NUMA node 7 with memory here, but 0 to 1 and 4".
    fn lacks(&self, node: u32) -> String {
        let range = |range: &RangeInclusive<u32>| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first} to {last}"),
        };
        let all: Vec<String> = self.0.iter().map(range).collect();
        format!("there is no NUMA node {node} with memory here, but {}", all.join(" and "))
    }
}

/// Nodes that memory is to go to.
pub(super) fn check_nodes(scheme: &Scheme, here: &Nodes, add: Add<'_>) {
    if !scheme.migrates() {
        return;
    }
    let lacking: Vec<u32> = scheme.nodes.iter().map(|node| node.id).filter(|node| !here.has(*node)).collect();
    let Some(first) = lacking.first() else { return };
    let what = here.lacks(*first);
    if lacking.len() == scheme.nodes.len() {
        add(Severity::Refusal, format!("{what}: nothing can be moved"), "name a node that there is");
    } else {
        let what = format!("{what}: what is to go there stays where it is");
        add(Severity::Warning, what, "name nodes that there are");
    }
}

/// Control groups that filters go by.
pub(super) fn check_filters(scheme: &Scheme, add: Add<'_>) {
    let groups = scheme.filters.ops.iter().filter_map(|filter| match &filter.kind {
        PageKind::Memcg(path) => Some(path),
        _ => None,
    });
    for path in groups {
        if Cgroup::find_with(path, "memory.stat").is_err() {
            let what = format!(
                "no memory is of cgroup {path}, which a filter names: it is not there, or has no memory controller"
            );
            add(Severity::Warning, what, "name a cgroup as it is below /sys/fs/cgroup");
        }
    }
}

/// Whether it can be read what filters go by.
pub(super) fn check_owners(scheme: &Scheme, add: Add<'_>) {
    let by_group = scheme.filters.ops.iter().any(|filter| matches!(filter.kind, PageKind::Memcg(_)));
    if by_group && let Err(error) = File::open("/proc/kpagecgroup") {
        let what = format!("whose memory is whose cannot be read ({error}), and a filter goes by cgroup");
        add(
            Severity::Refusal,
            what,
            "run as root, on a kernel with CONFIG_MEMCG and CONFIG_PROC_PAGE_MONITOR",
        );
    }
}

/// Goals whose metric cannot be read.
pub(super) fn check_goals(scheme: &Scheme, here: &Nodes, add: Add<'_>) {
    let mut metrics = SystemMetrics::new();
    for goal in &scheme.quota.goals {
        if matches!(goal.metric, GoalMetric::UserInput(_)) || metrics.goal(0, &goal.metric).is_some() {
            continue;
        }
        let (what, remedy) = match &goal.metric {
            GoalMetric::SomeMemPsiUs { cgroup: None } => {
                ("memory pressure cannot be read".to_owned(), "boot a kernel with CONFIG_PSI, with psi=1")
            }
            GoalMetric::SomeMemPsiUs { cgroup: Some(group) } => (
                format!("memory pressure of cgroup {group} cannot be read"),
                "name a cgroup of version 2 with the memory controller, as it is below /sys/fs/cgroup",
            ),
            GoalMetric::NodeEligibleMemBp(_) => {
                ("node_eligible_mem_bp goes by physical addresses".to_owned(), "take node_mem_used_bp")
            }
            GoalMetric::NodeMemUsedBp(node)
            | GoalMetric::NodeMemFreeBp(node)
            | GoalMetric::NodeMemcgUsedBp { node, .. }
            | GoalMetric::NodeMemcgFreeBp { node, .. }
                if !here.has(*node) =>
            {
                (here.lacks(*node), "name a node that there is")
            }
            GoalMetric::NodeMemcgUsedBp { node, cgroup } | GoalMetric::NodeMemcgFreeBp { node, cgroup } => (
                format!("memory of cgroup {cgroup} on node {node} cannot be read"),
                "see /sys/devices/system/node for nodes, and the cgroup's memory.numa_stat",
            ),
            _ => ("a goal's metric cannot be read".to_owned(), "see /sys/devices/system/node for nodes"),
        };
        add(Severity::Refusal, format!("{what}, so its quota stays 0"), remedy);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::schemes::{AccessPattern, Action, Node};

    #[test]
    fn nodes_that_are_not_there_are_named() {
        let here = Nodes::parse("0-1,4\n").unwrap();
        assert_eq!(Nodes::parse(""), None);
        let found = |nodes: &[u32], action| {
            let nodes = nodes.iter().map(|id| Node { id: *id, weight: 1 }).collect();
            let scheme = Scheme { nodes, ..Scheme::new(AccessPattern::ANY, action) };
            let mut found = Vec::new();
            check_nodes(&scheme, &here, &mut |severity, what, _| found.push((severity, what)));
            found
        };
        assert_eq!(found(&[0, 1, 4], Action::MigrateCold), []);
        let lacks = "there is no NUMA node 2 with memory here, but 0 to 1 and 4";
        let none = [(Severity::Refusal, format!("{lacks}: nothing can be moved"))];
        assert_eq!(found(&[2, 3], Action::MigrateHot), none);
        let some = [(Severity::Warning, format!("{lacks}: what is to go there stays where it is"))];
        assert_eq!(found(&[1, 2], Action::MigrateCold), some);
        assert_eq!(found(&[9], Action::Pageout), [], "it goes nowhere");
    }
}
