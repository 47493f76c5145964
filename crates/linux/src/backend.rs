//! Which backend watches: the one that was named, or the best that works here.

use crate::idle::{Idle, IdlePaths};
use crate::kernel::{Kernel, KernelPaths};
use crate::monitor_source::{LiveOperations, MonitorSource};
use crate::probe;
use crate::pte::Pte;
use crate::refs::Refs;
use crate::source::{Source, SourceError};
use isotherm_damon::{Attrs, Classic, IntervalsGoal, MonitorError};
use std::error::Error;
use std::fmt;

/// Who decides which pages to look at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SamplerName {
    /// Isotherm's own: watches pages until they are accessed, and clears as few as the budget allows.
    #[default]
    Watch,
    /// DAMON's: a random page of each region, cleared and looked at in each sampling interval.
    Classic,
}

/// What is asked of a monitor beside its attributes. `kernel` and `refs` have no choice of any of it, and are refused
/// where it matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MonitorOptions {
    /// Who decides which pages to look at; `None`: the one that suits the backend.
    pub sampler: Option<SamplerName>,
    /// Interval auto-tuning.
    pub intervals_goal: Option<IntervalsGoal>,
    /// Whether the Accessed bits of whole processes may be cleared at once.
    pub sweep: bool,
}

impl Default for MonitorOptions {
    fn default() -> Self {
        Self { sampler: None, intervals_goal: None, sweep: true }
    }
}

/// A way to look at the memory of live processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Backend {
    /// Page tables read by eBPF, bits cleared by process_madvise.
    Pte,
    /// The bitmap of idle pages.
    Idle,
    /// The kernel's own DAMON.
    Kernel,
    /// clear_refs and smaps: whole mappings.
    Refs,
}

impl Backend {
    /// All, best first. The first two see pages at a cost the user sets, `kernel` sees pages at a cost of its own, `refs`
    /// sees whole mappings only.
    pub const ALL: [Self; 4] = [Self::Pte, Self::Idle, Self::Kernel, Self::Refs];

    /// As command lines and recordings call it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pte => "pte",
            Self::Idle => "idle",
            Self::Kernel => "kernel",
            Self::Refs => "refs",
        }
    }

    /// Starts it, without targets.
    fn open(
        self,
        attrs: Attrs,
        options: &MonitorOptions,
        overhead: f64,
        seed: u64,
    ) -> Result<Box<dyn Source>, Box<dyn Error>> {
        let own_monitor = matches!(self, Self::Pte | Self::Idle);
        if options.intervals_goal.is_some() && !own_monitor {
            return Err("it does not tune its intervals; leave --auto-intervals out".into());
        }
        if options.sampler.is_some() && !own_monitor {
            return Err("it has no samplers to choose from; leave --sampler out".into());
        }
        Ok(match self {
            Self::Pte => {
                // Says what is missing where the kernel, asked to load the program, would only say no.
                probe::pte_prerequisites().map_err(|(reason, remedy)| format!("{reason}; {remedy}"))?;
                pte_monitor(Pte::load()?, attrs, options, overhead, seed)?
            }
            Self::Idle => {
                if options.sampler == Some(SamplerName::Watch) {
                    return Err(
                        "its pages cannot be read a table at a time, as `watch` does; take --sampler classic"
                            .into(),
                    );
                }
                classic(Idle::open(&IdlePaths::default())?, attrs, options, overhead, seed)?
            }
            Self::Kernel => Box::new(Kernel::start(attrs, KernelPaths::default())?),
            Self::Refs => {
                // Without CONFIG_PROC_PAGE_MONITOR there are neither of these files.
                std::fs::metadata("/proc/self/clear_refs")
                    .map_err(|e| format!("this kernel has no /proc/PID/clear_refs ({e})"))?;
                Box::new(Refs::new(attrs, overhead)?)
            }
        })
    }
}

fn pte_monitor(
    pte: Pte,
    attrs: Attrs,
    options: &MonitorOptions,
    overhead: f64,
    seed: u64,
) -> Result<Box<dyn Source>, MonitorError> {
    if options.sampler == Some(SamplerName::Classic) {
        return classic(pte, attrs, options, overhead, seed);
    }
    let mut source = MonitorSource::pte(pte, attrs, overhead, seed)?;
    source.set_intervals_goal(options.intervals_goal);
    source.set_sweeps(options.sweep);
    Ok(Box::new(source))
}

/// DAMON's own sampler over `ops`.
fn classic<O: LiveOperations + 'static>(
    ops: O,
    attrs: Attrs,
    options: &MonitorOptions,
    overhead: f64,
    seed: u64,
) -> Result<Box<dyn Source>, MonitorError> {
    let mut source = MonitorSource::new(ops, Classic::new(), attrs, overhead, seed)?;
    source.set_intervals_goal(options.intervals_goal);
    Ok(Box::new(source))
}

impl fmt::Display for Backend {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A backend that does not work here, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Which.
    pub backend: Backend,
    /// Why not, a clause.
    pub reason: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.backend, self.reason)
    }
}

/// A backend at work, as yet without targets.
pub struct Opened {
    /// Which it is.
    pub backend: Backend,
    /// It.
    pub source: Box<dyn Source>,
    /// The better ones, which do not work here.
    pub refused: Vec<Refusal>,
}

/// No backend works.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BackendError {
    /// The one that was asked for does not.
    #[error("{0}; `isotherm doctor` tells what works here")]
    NotHere(Refusal),
    /// None does.
    #[error("no backend works here: {}; `isotherm doctor` tells what helps", listed(.0))]
    None(Vec<Refusal>),
}

/// The error as a clause after the backend's name.
fn reason_of(error: &(dyn Error + 'static)) -> String {
    match error.downcast_ref::<SourceError>() {
        Some(SourceError::Unavailable { reason, remedy, .. }) => format!("{reason}; {remedy}"),
        _ => error.to_string(),
    }
}

fn listed(refusals: &[Refusal]) -> String {
    refusals.iter().map(Refusal::to_string).collect::<Vec<_>>().join("; ")
}

/// Opens the backend `choice`, or the first of [`Backend::ALL`] that works, to spend at most `overhead` of one CPU (0.01
/// is 1 %; 0: no ceiling). `seed` makes a monitor's random choices its own.
///
/// # Errors
/// Why none of those asked for works.
pub fn open(
    choice: Option<Backend>,
    attrs: Attrs,
    options: &MonitorOptions,
    overhead: f64,
    seed: u64,
) -> Result<Opened, BackendError> {
    let mut refused = Vec::new();
    for &backend in Backend::ALL.iter().filter(|b| choice.is_none_or(|c| c == **b)) {
        match backend.open(attrs, options, overhead, seed) {
            Ok(source) => return Ok(Opened { backend, source, refused }),
            Err(error) => refused.push(Refusal { backend, reason: reason_of(&*error) }),
        }
    }
    Err(match (choice, refused.pop()) {
        (Some(_), Some(refusal)) => BackendError::NotHere(refusal),
        (_, last) => {
            refused.extend(last);
            BackendError::None(refused)
        }
    })
}
