//! What this machine and this user can do, found out by trying where that does no harm: `isotherm doctor`.
//!
//! Nothing here changes a setting. System calls are tried on a process made for it, files of the kernel are opened but
//! not written, and the BPF program is loaded and let go.

mod actions;
mod backends;
mod clearers;
mod facts;
mod trial;

pub use clearers::{AccessedBitClearer, AccessedBitClearers, Among, ClearerPaths, DamonModule};
pub use facts::KernelFacts;
pub(crate) use facts::is_initial_user_namespace;

use serde::{Deserialize, Serialize};
use std::fmt;
use std::io;
use trial::{Trial, advice};

/// What kind of thing can be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapabilityKind {
    /// A way to watch accesses.
    Backend,
    /// Something to do with what was seen.
    Action,
    /// Something schemes go by.
    Signal,
    /// What can be observed.
    Scope,
}

/// One thing that can be done here, or cannot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Capability {
    /// What kind it is.
    pub kind: CapabilityKind,
    /// Its name, as the command line has it.
    pub name: String,
    /// Whether it can be done.
    pub available: bool,
    /// How, or what it is for.
    pub detail: String,
    /// Why it cannot be done; only if it cannot.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub reason: Option<String>,
    /// What would help; only if it cannot be done.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub remedy: Option<String>,
}

/// What a probe found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Report {
    /// The machine and the user.
    pub facts: KernelFacts,
    /// What can be done: backends first, in the order they are chosen.
    pub capabilities: Vec<Capability>,
    /// Who else clears Accessed bits here.
    pub accessed_bit_clearers: AccessedBitClearers,
}

/// Why something cannot be done, and what would help.
#[derive(Debug)]
struct Missing {
    reason: String,
    remedy: String,
}

impl Missing {
    fn new(reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { reason: reason.into(), remedy: remedy.into() }
    }
}

/// How something can be done, or why not.
type Finding = Result<String, Missing>;

impl Capability {
    fn new(kind: CapabilityKind, name: &str, purpose: &str, finding: Finding) -> Self {
        let (kind, name) = (kind, name.to_owned());
        match finding {
            Ok(detail) => Self { kind, name, available: true, detail, reason: None, remedy: None },
            Err(Missing { reason, remedy }) => Self {
                kind,
                name,
                available: false,
                detail: purpose.to_owned(),
                reason: Some(reason),
                remedy: Some(remedy),
            },
        }
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.reason, &self.remedy) {
            (Some(reason), Some(remedy)) => {
                write!(f, "{}: not available ({}): {reason}; {remedy}", self.name, self.detail)
            }
            _ => write!(f, "{}: available: {}", self.name, self.detail),
        }
    }
}

impl Report {
    /// The first backend in the order of choice that can be used.
    pub fn best_backend(&self) -> Option<&Capability> {
        self.capabilities.iter().find(|c| c.kind == CapabilityKind::Backend && c.available)
    }

    /// The capability of that kind and name.
    pub fn get(&self, kind: CapabilityKind, name: &str) -> Option<&Capability> {
        self.capabilities.iter().find(|c| c.kind == kind && c.name == name)
    }
}

/// Finds out what can be done here.
pub fn probe() -> Report {
    let facts = KernelFacts::gather();
    let trial: io::Result<Trial> = Trial::start();
    let advise = |advice| actions::advise(&facts, &trial, advice);
    use CapabilityKind::{Action, Backend, Scope, Signal};
    let findings = [
        (Backend, "pte", "pages, read by eBPF and cleared by process_madvise", backends::pte(&facts, &trial)),
        (Backend, "idle", "pages, by the kernel's bitmap of idle frames", backends::idle()),
        (Backend, "kernel", "pages, by DAMON in the kernel", backends::kernel(&facts)),
        (Backend, "refs", "whole mappings, without root", backends::refs(&trial)),
        (Scope, "other users", "observing processes of other users", actions::other_users(&facts)),
        (Action, "cold", "making memory the first to be reclaimed", advise(advice::COLD)),
        (Action, "pageout", "reclaiming memory at once", advise(advice::PAGEOUT)),
        (Action, "swap", "room for anonymous memory that is paged out", actions::swap(&facts)),
        (Action, "willneed", "bringing memory back ahead of its use", advise(advice::WILLNEED)),
        (Action, "collapse", "making huge pages where they pay", advise(advice::COLLAPSE)),
        (Action, "split", "making small pages of huge ones", actions::split()),
        (Action, "migrate", "moving memory between NUMA nodes", actions::migrate(&facts, &trial)),
        (Signal, "pressure", "how long tasks waited for memory (PSI)", actions::pressure()),
    ];
    let capabilities = findings
        .into_iter()
        .map(|(kind, name, purpose, finding)| Capability::new(kind, name, purpose, finding))
        .collect();
    Report { facts, capabilities, accessed_bit_clearers: AccessedBitClearers::look(Among::ALL) }
}

/// What the `pte` backend needs, as far as can be told without loading its BPF program.
///
/// # Errors
/// The first thing that is missing, and what would help.
pub fn pte_prerequisites() -> Result<String, (String, String)> {
    backends::pte_prerequisites(&KernelFacts::gather(), &Trial::start())
        .map_err(|Missing { reason, remedy }| (reason, remedy))
}

#[cfg(test)]
mod tests;
