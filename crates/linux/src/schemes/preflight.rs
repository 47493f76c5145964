//! What would keep schemes from doing what is meant, found out before the first action.

mod places;

use super::{Rule, SystemMetrics};
use crate::probe::{CapabilityKind, Report};
use isotherm_damon::schemes::{AccessPattern, Action, Frequency, PageKind, Quota, Scheme, Weights};
use isotherm_damon::{Attrs, PAGE_SIZE};
use places::{Nodes, check_filters, check_goals, check_nodes, check_owners};
use std::fmt;
use std::time::Duration;

/// How much it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Something was added or is to be known.
    Note,
    /// It does less than is meant.
    Warning,
    /// It would do nothing, or harm.
    Refusal,
}

/// Something that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// The scheme's name; empty where it concerns all.
    pub scheme: String,
    /// What was found, a clause.
    pub what: String,
    /// What helps, a clause.
    pub remedy: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.scheme.is_empty() {
            write!(f, "scheme {}: ", self.scheme)?;
        }
        write!(f, "{}", self.what)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; {}", self.remedy) }
    }
}

/// Of a pageout scheme that names no limit, which the seeds' prcl does not: bytes and time a second. Memory that is cold should
/// soon be out, and what its paging out costs the program is the same sooner or later (flushes of its TLB, one a dirty page), so
/// the limit is there for devices and for other programs. The bytes are four times what the kernel's DAMON_RECLAIM takes, which is meant
/// to go unnoticed for ever; its 10 ms would be 3 MiB a second where a page takes 4 to 14 us (`isotherm lab schemes`, zram, a
/// virtual machine). The time is as much as passes may take in any case.
const DEFAULT_BYTES: u64 = 512 << 20;
const DEFAULT_TIME: Duration = Duration::from_millis(750);

/// The same in words.
pub const DEFAULT_QUOTA: &str = "512 MiB and 750 ms a second";

/// The quota that a pageout scheme without quota and watermarks gets; none for others.
pub fn default_quota(scheme: &Scheme) -> Option<Quota> {
    let needs = scheme.action == Action::Pageout && !scheme.quota.is_limited() && scheme.watermarks.is_none();
    needs.then(|| Quota {
        bytes: Some(DEFAULT_BYTES),
        time: Some(DEFAULT_TIME),
        reset_interval: Duration::from_secs(1),
        // The coldest first, and what was idle longest: what is just cold enough may turn out to be in use.
        weights: Weights { size: 0, frequency: 1, age: 1 },
        ..scheme.quota.clone()
    })
}

/// Gives pageout schemes without quota and watermarks a quota, and says so.
pub fn add_safe_defaults(rules: &mut [Rule]) -> Vec<Finding> {
    let mut found = Vec::new();
    for rule in rules {
        let Some(quota) = default_quota(&rule.scheme) else { continue };
        rule.scheme.quota = quota;
        found.push(Finding {
            severity: Severity::Note,
            scheme: rule.name.clone(),
            what: format!("it has neither quota nor watermarks, and gets a quota of {DEFAULT_QUOTA}"),
            remedy: "state a quota to have another".into(),
        });
    }
    found
}

/// Looks at rules on this machine. `targets` are the pids that are named; `own` those of this process and its ancestors, itself
/// first.
pub fn check(rules: &[Rule], attrs: &Attrs, report: &Report, targets: &[u32], own: &[u32]) -> Vec<Finding> {
    let (mut found, here) = (Vec::new(), Nodes::read());
    check_targets(targets, own, &mut found);
    for rule in rules {
        let mut add = |severity, what: String, remedy: &str| {
            found.push(Finding { severity, scheme: rule.name.clone(), what, remedy: remedy.to_owned() });
        };
        check_capabilities(&rule.scheme, report, &mut add);
        check_owners(&rule.scheme, &mut add);
        check_rule(rule, attrs, &here, &mut add);
    }
    let blocked =
        |rule: &Rule| found.iter().any(|f| f.scheme == rule.name && f.severity == Severity::Refusal);
    if rules.len() > 1 && !rules.iter().all(blocked) {
        // The others still do what they are meant to.
        let able: Vec<String> = rules.iter().filter(|r| !blocked(r)).map(|r| r.name.clone()).collect();
        for finding in found.iter_mut().filter(|f| !f.scheme.is_empty() && !able.contains(&f.scheme)) {
            finding.severity = finding.severity.min(Severity::Warning);
        }
    }
    found
}

/// Looks at rules without regard to who applies them to what: what would keep them from doing anything under these intervals, on this
/// machine.
pub fn check_alone(rules: &[Rule], attrs: &Attrs) -> Vec<Finding> {
    let (mut found, here) = (Vec::new(), Nodes::read());
    for rule in rules {
        check_rule(rule, attrs, &here, &mut |severity, what, remedy: &str| {
            found.push(Finding { severity, scheme: rule.name.clone(), what, remedy: remedy.to_owned() });
        });
    }
    found
}

fn check_rule(rule: &Rule, attrs: &Attrs, here: &Nodes, add: Add<'_>) {
    check_sense(&rule.scheme, attrs, add);
    check_nodes(&rule.scheme, here, add);
    check_filters(&rule.scheme, add);
    check_goals(&rule.scheme, here, add);
    check_pressure(rule, add);
}

type Add<'a> = &'a mut dyn FnMut(Severity, String, &str);

fn check_targets(targets: &[u32], own: &[u32], found: &mut Vec<Finding>) {
    for (index, pid) in own.iter().enumerate().filter(|(_, pid)| targets.contains(pid)) {
        let (severity, what) = if index == 0 {
            (
                Severity::Refusal,
                format!(
                    "process {pid} is isotherm itself: a scheme that acts on who runs it waits for itself"
                ),
            )
        } else {
            let what = format!(
                "process {pid} runs isotherm (it is its parent, or that one's): what is done to it holds up both"
            );
            (Severity::Warning, what)
        };
        let remedy = "leave it out of the targets, or start isotherm elsewhere".to_owned();
        found.push(Finding { severity, scheme: String::new(), what, remedy });
    }
}

fn check_capabilities(scheme: &Scheme, report: &Report, add: Add<'_>) {
    let needed = match scheme.action {
        Action::Willneed => "willneed",
        Action::Cold | Action::LruDeprio => "cold",
        Action::Pageout => "pageout",
        Action::Hugepage | Action::Collapse => "collapse",
        Action::Nohugepage => "split",
        Action::MigrateHot | Action::MigrateCold => "migrate",
        Action::LruPrio => {
            let what = "lru_prio would do nothing: no system call moves another process's memory to the hot end of its list";
            add(Severity::Refusal, what.into(), "protect it by memory.low of its cgroup instead");
            return;
        }
        _ => return,
    };
    let missing = report.get(CapabilityKind::Action, needed).filter(|c| !c.available);
    if let Some(missing) = missing {
        let reason = missing.reason.as_deref().unwrap_or("not available");
        let what = format!("{} would do nothing: {reason}", scheme.action);
        add(Severity::Refusal, what, missing.remedy.as_deref().unwrap_or_default());
    }
    if scheme.action == Action::Pageout && !rejects_anonymous(scheme) {
        check_swap(report, add);
    }
}

/// Whether its filters leave no anonymous memory.
fn rejects_anonymous(scheme: &Scheme) -> bool {
    use isotherm_damon::schemes::passes;
    let file = |kind: &PageKind| matches!(kind, PageKind::File(_));
    let ops = &scheme.filters.ops;
    // Asked of an anonymous page of which all else is unknown: both ways.
    let anon = |rest: bool| passes(ops, |kind| *kind == PageKind::Anon || rest && !file(kind));
    !ops.is_empty() && !anon(true) && !anon(false)
}

/// Less free swap than this share of it, in percent, or than so many bytes is almost none.
const LITTLE_SWAP: (u64, u64) = (10, 64 << 20);

fn check_swap(report: &Report, add: Add<'_>) {
    let facts = &report.facts;
    if let Some(missing) = report.get(CapabilityKind::Action, "swap").filter(|c| !c.available) {
        let reason = missing.reason.as_deref().unwrap_or("there is no swap");
        add(Severity::Warning, reason.to_owned(), missing.remedy.as_deref().unwrap_or_default());
    } else if facts.swap_free < LITTLE_SWAP.1 || facts.swap_free < facts.swap_total / 100 * LITTLE_SWAP.0 {
        let mib = |bytes: u64| bytes >> 20;
        // A small one that is empty is not full.
        let how = if facts.swap_free > facts.swap_total / 2 {
            "there is little swap"
        } else {
            "swap is almost full"
        };
        let what = format!(
            "{how} ({} of {} MiB are free): anonymous memory soon stays",
            mib(facts.swap_free),
            mib(facts.swap_total)
        );
        add(Severity::Warning, what, "add swap, or have the scheme reject anonymous memory");
    }
}

fn check_sense(scheme: &Scheme, attrs: &Attrs, add: Add<'_>) {
    let AccessPattern { size, frequency, .. } = &scheme.pattern;
    if size.max < PAGE_SIZE {
        let what = format!("it matches nothing: no region is as small as {} bytes", size.max);
        add(Severity::Refusal, what, "regions are whole pages of 4 KiB: raise the largest size");
    }
    if let Frequency::Samples(bounds) = frequency
        && bounds.min > attrs.max_nr_accesses()
    {
        let most = attrs.max_nr_accesses();
        let what =
            format!("it matches nothing: nr_accesses of {} and more, and {most} is the most", bounds.min);
        add(Severity::Refusal, what, "give the frequency in percent, or other intervals (--sample, --aggr)");
    }
    if scheme.quota.bytes.is_some_and(|bytes| bytes < PAGE_SIZE) {
        let what = "its quota is less than a page, so nothing is ever done".to_owned();
        add(Severity::Refusal, what, "raise the quota");
    }
    if let Some(time) = scheme.quota.time
        && !scheme.quota.reset_interval.is_zero()
        && time > scheme.quota.reset_interval
    {
        let (time, every) = (time.as_millis(), scheme.quota.reset_interval.as_millis());
        let what =
            format!("its quota of {time} ms in {every} ms is no limit: there is no more time than that");
        add(Severity::Warning, what, "lower the time, or leave it out");
    }
    let unmapped = |f: &isotherm_damon::schemes::OpsFilter| f.kind == PageKind::Unmapped && f.matching;
    if scheme.filters.ops.last().is_some_and(|f| f.allow) && scheme.filters.ops.iter().all(unmapped) {
        let what =
            "it matches nothing: it wants unmapped memory, and all memory of a process is mapped".to_owned();
        add(Severity::Refusal, what, "leave out the filter `unmapped`");
    }
}

/// What is limited by memory pressure and cannot be.
fn check_pressure(rule: &Rule, add: Add<'_>) {
    if rule.max_pressure.is_some() && SystemMetrics::new().some_pressure().is_none() {
        let what = "memory pressure is limited and cannot be read, so it never acts".to_owned();
        add(Severity::Refusal, what, "leave the limit out, or boot a kernel with CONFIG_PSI, with psi=1");
    }
}

#[cfg(test)]
mod tests;
