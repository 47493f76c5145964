//! Patterns under the seeds' configurations.

use super::machine::{Begin, Error, Events, Model, Policy, Resident};
use super::monitor::{Sampling, Watcher};
use crate::experiment::Watch;
use isotherm_damon::schemes::{Scheme, Schemes};
use isotherm_damon::{Snapshot, Tally};
use isotherm_mm::{Compressed, Folios, SwapArea, System};
use isotherm_page::Order;
use isotherm_pagetable::host::HostMachine;
use isotherm_workloads::truth::Truth;
use isotherm_workloads::{Overrides, PageSizes, Pattern, PatternError, Plan, replay};
use serde::Serialize;
use std::sync::Arc;

/// What is done to a pattern's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Configuration {
    /// Huge pages where a program asks for them (`madvise`), and no monitor.
    Orig,
    /// The same with a monitor.
    Rec,
    /// Huge pages everywhere (`always`), and no monitor.
    Thp,
    /// `rec` with the scheme that gives huge pages to what is accessed.
    Ethp,
    /// `rec` with the scheme that pages out what is not.
    Prcl,
}

impl Configuration {
    /// All, as the seeds have them.
    pub const ALL: [Self; 5] = [Self::Orig, Self::Rec, Self::Thp, Self::Ethp, Self::Prcl];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Orig => "orig",
            Self::Rec => "rec",
            Self::Thp => "thp",
            Self::Ethp => "ethp",
            Self::Prcl => "prcl",
        }
    }

    /// Whether a monitor runs.
    #[must_use]
    pub const fn is_watched(self) -> bool {
        !matches!(self, Self::Orig | Self::Thp)
    }

    fn folios(self) -> Folios {
        let always = if self == Self::Thp { Order::HUGE } else { Order::BASE };
        Folios { always, advised: Order::HUGE }
    }

    fn schemes(self, prcl: &str) -> Result<Schemes, Error> {
        let preset = match self {
            Self::Ethp => "ethp",
            Self::Prcl => prcl,
            _ => return Ok(Schemes::new()),
        };
        let entries =
            isotherm_schemes::presets::preset(preset).map_err(|why| Error::Schemes(why.to_string()))?;
        let schemes: Vec<Scheme> = entries.into_iter().map(|entry| entry.scheme).collect();
        let mut set = Schemes::new();
        set.commit(schemes).map_err(|why| Error::Schemes(why.to_string()))?;
        Ok(set)
    }
}

/// What is run.
#[derive(Clone, Debug, Serialize)]
pub struct Setup {
    /// Built-in patterns or TOML files.
    pub patterns: Vec<String>,
    /// Their parameters (`KEY=VALUE`), where they have them.
    pub set: Vec<String>,
    /// Factor on the length of their phases.
    pub scale_time: Option<f64>,
    /// The seed of the patterns' and the monitors' random choices.
    pub seed: u64,
    /// The scheme of [`Configuration::Prcl`]: a preset of `isotherm scheme`.
    pub prcl: String,
    /// Who watches.
    pub samplers: Vec<Sampling>,
}

impl Setup {
    /// The plan of one of the patterns.
    ///
    /// # Errors
    /// There is no such pattern, or it cannot be carried out with these parameters.
    pub fn plan(&self, pattern: &str) -> Result<Plan, PatternError> {
        let split = |text: &String| {
            let (key, value) = text.split_once('=').unwrap_or((text, ""));
            (key.to_owned(), value.to_owned())
        };
        let set: Vec<_> = self.set.iter().map(split).collect();
        let over = Overrides { seed: Some(self.seed), time_scale: self.scale_time, ..Overrides::default() };
        Plan::new(&Pattern::load(pattern, &set)?, &over, PageSizes { base: 4096, huge: 2 << 20 })
    }
}

/// One run.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// What runs.
    pub plan: &'a Plan,
    /// What is done to its memory.
    pub configuration: Configuration,
    /// Who watches, if somebody does.
    pub sampling: Sampling,
    /// See [`Setup::prcl`].
    pub prcl: &'a str,
    /// The monitor's seed.
    pub seed: u64,
}

/// What came of a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Done {
    /// The pattern.
    pub pattern: String,
    /// What was done to its memory.
    pub configuration: Configuration,
    /// Who watched; `None` if nobody did.
    pub sampling: Option<Sampling>,
    /// CPU time of the program, ns: by what its accesses and faults cost.
    pub cpu_ns: u64,
    /// How long it took, ns.
    pub wall_ns: u64,
    /// Accesses that it made, and those that it left out as it was late.
    pub touches: u64,
    /// See `touches`.
    pub missed: u64,
    /// What happened to it.
    pub events: Events,
    /// What it had of memory.
    pub resident: Resident,
    /// CPU time of the monitor without what its schemes do, as a share of one CPU.
    pub monitor_share: f64,
    /// Most checks in a sampling interval.
    pub max_checks: u64,
}

/// Memory for tables, and the machine's own.
const SPARE: u64 = 64 << 20;

/// Runs a plan on a machine that has twice the memory it needs; what came of it, what it did, and what the monitor said.
///
/// # Errors
/// [`Error`].
pub fn run(
    subject: &Subject<'_>,
    stop: &dyn Fn() -> bool,
) -> Result<(Done, Truth, Vec<Snapshot>, Tally), Error> {
    let Subject { plan, configuration, sampling, prcl, seed } = *subject;
    let frames = (2 * plan.max_bytes() + SPARE) / 4096 + 16 * plan.processes.len() as u64;
    let machine = HostMachine::new(frames);
    let slots = u32::try_from(frames).unwrap_or(u32::MAX);
    let swap = Arc::new(SwapArea::new(Box::new(Compressed::new(slots, u64::MAX)?))?);
    machine.set_swap_counts(swap.clone());
    let zero = machine.take(Order::BASE).and_then(|block| block.into_reserved().ok());
    let zero = zero.ok_or(Error::Mm(isotherm_mm::Error::NoMemory))?;
    let system = System::new(&machine, frames, Some(swap))?;
    let schemes = configuration.schemes(prcl)?;
    let begin: Option<Begin<'_, '_>> = configuration
        .is_watched()
        .then(|| Box::new(move |start| Watcher::new(sampling, schemes, seed, start)) as Begin<'_, '_>);
    let policy = Policy { page: plan.page, folios: configuration.folios() };
    let threads = plan.threads.len();
    let mut model = Model::new(&machine, system, zero.frame(), policy, (threads, begin), stop)?;
    let truth = replay(plan, &mut model)?;
    let (events, resident, watcher) = model.finish();
    let (tally, monitor_ns, snapshots) = watcher.map(Watcher::finish).unwrap_or_default();
    let ranges = || truth.phases.iter().flat_map(|phase| &phase.ranges);
    let end = truth.end.as_ref();
    let wall_ns = end.map_or(0, |end| end.time_ns);
    let done = Done {
        pattern: plan.pattern.clone(),
        configuration,
        sampling: configuration.is_watched().then_some(sampling),
        cpu_ns: end.map_or(0, |end| end.cpu_ns),
        wall_ns,
        touches: ranges().map(|range| range.touches).sum(),
        missed: ranges().map(|range| range.missed).sum(),
        events,
        resident,
        monitor_share: monitor_ns / wall_ns.max(1) as f64,
        max_checks: tally.max_checks_per_sample,
    };
    Ok((done, truth, snapshots, tally))
}

/// Patterns under all configurations.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Patterns {
    /// All runs: of each pattern `orig` and `thp` once, the others once a sampler.
    pub runs: Vec<Done>,
}

impl Patterns {
    /// Runs all.
    ///
    /// # Errors
    /// [`Error`]; what was run until then stays.
    pub fn measure(&mut self, setup: &Setup, plans: &[Plan], watch: &mut Watch<'_>) -> Result<(), Error> {
        let stop = Arc::clone(&watch.stop);
        for plan in plans {
            for configuration in Configuration::ALL {
                let watched = configuration.is_watched();
                let samplers = setup.samplers.iter().take(if watched { usize::MAX } else { 1 });
                for &sampling in samplers {
                    let by = if watched { format!(", {}", sampling.name()) } else { String::new() };
                    (watch.progress)(&format!("{}, {}{by} ...", plan.pattern, configuration.name()));
                    let (prcl, seed) = (setup.prcl.as_str(), setup.seed);
                    let subject = Subject { plan, configuration, sampling, prcl, seed };
                    self.runs.push(run(&subject, &*stop)?.0);
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setup(set: &[&str]) -> Setup {
        Setup {
            patterns: Vec::new(),
            set: set.iter().map(|text| (*text).to_owned()).collect(),
            scale_time: None,
            seed: 1,
            prcl: "prcl:min_age=500ms".to_owned(),
            samplers: Sampling::ALL.to_vec(),
        }
    }

    fn measure(pattern: &str, set: &[&str]) -> Vec<Done> {
        let setup = setup(set);
        let plan = setup.plan(pattern).expect("it can be carried out");
        let mut watch = Watch { stop: Arc::new(|| false), progress: &mut |_| {} };
        let mut all = Patterns::default();
        all.measure(&setup, &[plan], &mut watch).expect("nothing fails");
        all.runs
    }

    fn of(runs: &[Done], configuration: Configuration, sampling: Sampling) -> &Done {
        let found = runs.iter().find(|run| {
            run.configuration == configuration && run.sampling.is_none_or(|watched| watched == sampling)
        });
        found.expect("it was run")
    }

    #[test]
    fn schemes_save_memory_and_cost_time_and_twice_is_the_same() {
        let set = ["size=4M", "steps=4", "phase=2s", "rate=50Hz"];
        let runs = measure("stairs", &set);
        assert_eq!(runs, measure("stairs", &set));
        assert_eq!(runs.len(), 2 + 3 * 2);
        for sampling in Sampling::ALL {
            let get = |configuration| of(&runs, configuration, sampling);
            let (orig, rec, prcl) =
                (get(Configuration::Orig), get(Configuration::Rec), get(Configuration::Prcl));
            // 16 MiB, and the heap and the stack beside them.
            assert_eq!(orig.resident.rss as u64, (16 << 20) + 73 * 4096);
            assert_eq!((orig.events.refaults, orig.monitor_share), (0, 0.0));
            assert_eq!(rec.resident.rss, orig.resident.rss);
            assert!(rec.cpu_ns > orig.cpu_ns && rec.max_checks > 0 && rec.max_checks <= 1000, "{rec:?}");
            // One of four areas is in use at a time.
            assert!(prcl.resident.rss < 0.6 * orig.resident.rss, "{prcl:?}");
            assert!(prcl.events.refaults > 0 && prcl.cpu_ns > rec.cpu_ns, "{prcl:?}");
            // The same accesses in all.
            assert!(runs.iter().all(|run| (run.touches, run.missed) == (orig.touches, 0)));
        }
    }

    #[test]
    fn huge_pages_save_walks_and_ethp_gives_them_to_what_is_hot() {
        let runs = measure("hotspot", &["total=64M", "spot=16M", "offset=32M", "rate=50Hz", "phase=4s"]);
        let get = |configuration| of(&runs, configuration, Sampling::Blocks);
        let (orig, thp, ethp) = (get(Configuration::Orig), get(Configuration::Thp), get(Configuration::Ethp));
        assert_eq!((orig.resident.huge, orig.events.huge), (0.0, 0));
        assert!(thp.resident.huge > (63 << 20) as f64 && thp.events.walks * 4 < orig.events.walks, "{thp:?}");
        assert!(thp.cpu_ns < orig.cpu_ns);
        let huge = ethp.resident.huge as u64;
        assert!((6 << 20..24 << 20).contains(&huge) && ethp.events.walks < orig.events.walks, "{ethp:?}");
    }

    #[test]
    fn families_run_too() {
        for (pattern, set) in [("prefork", &["phase=1s"][..]), ("shm", &["phase=1s"])] {
            let mut setup = setup(set);
            setup.samplers = vec![Sampling::Blocks];
            let plan = setup.plan(pattern).expect("it can be carried out");
            let prcl = setup.prcl.as_str();
            let subject = Subject {
                plan: &plan,
                configuration: Configuration::Prcl,
                sampling: Sampling::Blocks,
                prcl,
                seed: 1,
            };
            let (done, truth, snapshots, _) = run(&subject, &|| false).expect("nothing fails");
            assert!(done.touches > 0 && !snapshots.is_empty(), "{done:?}");
            let last = snapshots.last().expect("there are some");
            assert_eq!(last.targets.len(), truth.processes.len());
        }
    }
}
