//! Schemes at work in a session: what acts, what measures, and what stops a scheme that does harm.
//!
//! An [`Engine`] is called in the sampling loop, by the source that has the regions. Everybody else asks it through the same
//! lock for what it did, or gives it other rules; it is held for the copying of a few numbers.

mod counters;
mod metrics;
pub mod preflight;
mod speed;

pub use counters::KernelCounters;
pub use metrics::SystemMetrics;
pub use speed::pageout_throughput;

use crate::actions::{Acting, LeftAlone, Refaults};
use crate::clock::monotonic_ns;
use crate::maps::MapList;
use crate::process::Process;
use isotherm_damon::schemes::{Age, CommitError, Frequency, Scheme, Schemes, Stats, Status};
use isotherm_damon::{Attrs, Moment, TargetId};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// A scheme, and what stops it.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    /// What people call it.
    pub name: String,
    /// What it does.
    pub scheme: Scheme,
    /// It is suspended when a larger share of what it paged out comes back within its least age, 0..=1.
    pub max_refault_rate: Option<f64>,
    /// It is suspended while some task waited for memory for a larger share of the last ten seconds, in percent.
    pub max_pressure: Option<f64>,
}

/// Why a scheme does not act at the moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Halt {
    /// Too much of what it paged out came back: this share of it. It is tried again when this time (ns of CLOCK_MONOTONIC) has
    /// come.
    Refaults(f64, u64),
    /// Tasks waited for memory for so many percent of the last ten seconds.
    Pressure(f64),
    /// Pressure is limited and cannot be read here.
    PressureUnknown,
}

/// How things stand with a scheme.
#[derive(Clone, Debug)]
pub struct SchemeReport {
    /// What people call it.
    pub name: String,
    /// What it does.
    pub scheme: Scheme,
    /// What it did.
    pub stats: Stats,
    /// Whether it acts.
    pub status: Status,
    /// Why it is suspended, if it is.
    pub halt: Option<Halt>,
    /// What its quota allows in the running window, in bytes; 0: there is no limit, or there was no window yet.
    pub effective_bytes: u64,
    /// Bytes that were left alone, by reason; each counted in every pass that met it.
    pub left: LeftAlone,
    /// What came back of what it paged out.
    pub refaults: Refaults,
    /// How often it was suspended for that.
    pub suspensions: u64,
}

/// What is remembered of the harm a scheme does.
#[derive(Clone, Copy, Debug, Default)]
struct Harm {
    /// Refaults as of the last forgetting.
    counted: Refaults,
    judged: f64,
    back: f64,
    halt: Option<Halt>,
    suspensions: u64,
    /// How long the last suspension was.
    pause: Duration,
}

/// Bytes of which it must be known whether they came back before a scheme is suspended for it. A guess: 256 pages.
const JUDGED: f64 = (1u64 << 20) as f64;
/// What was judged before so long counts for half.
const FORGET: Duration = Duration::from_secs(10);
/// First and longest time for which a scheme is suspended; each is twice as long as the one before.
const PAUSE: (Duration, Duration) = (Duration::from_secs(10), Duration::from_secs(600));
/// How often pressure and cgroups are looked up.
const LOOK_NS: u64 = 1_000_000_000;

/// Schemes, what acts for them, and what they go by.
pub struct Engine {
    rules: Vec<Rule>,
    schemes: Schemes,
    acting: Acting,
    metrics: SystemMetrics,
    harm: Vec<Harm>,
    attrs: Attrs,
    looked_ns: u64,
    forgot_ns: u64,
    cpu: Duration,
    not_taken: Duration,
}

/// An engine as a session and whoever watches it share it.
pub type SharedEngine = Arc<Mutex<Engine>>;

/// Locks an engine. One whose thread panicked is as it was left.
pub fn lock(engine: &SharedEngine) -> MutexGuard<'_, Engine> {
    engine.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// An engine with `rules`.
    ///
    /// # Errors
    /// When one of the schemes is not valid.
    pub fn new(rules: Vec<Rule>, attrs: Attrs, acting: Acting) -> Result<Self, CommitError> {
        let mut engine = Self {
            rules: Vec::new(),
            schemes: Schemes::new(),
            acting,
            metrics: SystemMetrics::new(),
            harm: Vec::new(),
            attrs,
            looked_ns: 0,
            forgot_ns: monotonic_ns(),
            cpu: Duration::ZERO,
            not_taken: Duration::ZERO,
        };
        engine.commit(rules)?;
        Ok(engine)
    }

    /// Exchanges the rules. A scheme is the one of the same name, or else the one of the same index, if that has another name now: it
    /// keeps its statistics and its quota's window. Ages of regions stay.
    ///
    /// # Errors
    /// When one of the schemes is not valid; nothing is changed then.
    pub fn commit(&mut self, rules: Vec<Rule>) -> Result<(), CommitError> {
        let from = former(&self.rules, &rules);
        self.schemes.commit_from(rules.iter().map(|rule| rule.scheme.clone()).collect(), &from)?;
        self.acting.move_schemes(&from);
        let of = |at: &Option<usize>| at.and_then(|at| self.harm.get(at)).copied().unwrap_or_default();
        self.harm = from.iter().map(of).collect();
        self.rules = rules;
        self.set_ages();
        Ok(())
    }

    fn set_ages(&mut self) {
        let attrs = self.attrs;
        let of = |rule: &Rule| (least_age(&rule.scheme, &attrs), takes_idle(&rule.scheme));
        let schemes: Vec<(Duration, bool)> = self.rules.iter().map(of).collect();
        self.acting.set_schemes(&schemes);
    }

    /// What acts.
    pub fn acting(&mut self) -> &mut Acting {
        &mut self.acting
    }

    /// The rules in force.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }

    /// Gives a goal that goes by a user's value its present one.
    pub fn set_goal_input(&mut self, scheme: usize, goal: usize, value: Option<u64>) -> bool {
        self.schemes.set_goal_input(scheme, goal, value)
    }

    /// CPU time that acting took since the beginning.
    pub const fn cpu(&self) -> Duration {
        self.cpu
    }

    /// How things stand, one entry a scheme.
    pub fn report(&self) -> Vec<SchemeReport> {
        let rules = self.rules.iter().zip(&self.harm).enumerate();
        let report = |(index, (rule, harm)): (usize, (&Rule, &Harm))| SchemeReport {
            name: rule.name.clone(),
            scheme: rule.scheme.clone(),
            stats: self.schemes.stats(index).cloned().unwrap_or_default(),
            status: self.schemes.status(index).unwrap_or(Status::Active),
            halt: harm.halt,
            effective_bytes: self.schemes.effective_bytes(index),
            left: self.acting.left_alone(index),
            refaults: self.acting.refaults(index),
            suspensions: harm.suspensions,
        };
        rules.map(report).collect()
    }

    pub(crate) fn target(&mut self, id: TargetId, process: &Arc<Process>) {
        self.acting.target(id, process);
    }

    pub(crate) fn mappings(&mut self, id: TargetId, maps: &Arc<MapList>) {
        self.acting.mappings(id, maps);
    }

    pub(crate) fn execed(&mut self, id: TargetId) {
        self.acting.execed(id);
    }

    pub(crate) fn gone(&mut self, id: TargetId) {
        self.acting.gone(id);
    }

    /// CPU time that acting took since the last call, which is not the monitor's.
    pub(crate) fn take_cpu(&mut self) -> Duration {
        std::mem::take(&mut self.not_taken)
    }

    pub(crate) fn next_act(&self, now: u64) -> u64 {
        self.schemes.next_act(now)
    }

    /// Reads the watermarks: how long to wait before they are read again, if they keep all schemes from acting.
    pub(crate) fn dormant(&mut self) -> Option<Duration> {
        self.schemes.dormant(&mut self.metrics)
    }

    /// Lets the schemes act.
    pub(crate) fn act(&mut self, moment: &mut Moment<'_>) {
        if moment.attrs != self.attrs {
            self.attrs = moment.attrs;
            self.set_ages();
        }
        if moment.ends_aggregation {
            self.acting.look_after(moment.now_ns);
            self.judge(moment.now_ns);
        }
        self.schemes.apply(moment, &mut self.acting, &mut self.metrics);
        let spent = self.acting.take_cpu();
        self.cpu += spent;
        self.not_taken += spent;
    }

    /// Suspends schemes that do harm, and lets those act again whose time has come.
    fn judge(&mut self, now_ns: u64) {
        let looks = now_ns.saturating_sub(self.looked_ns) >= LOOK_NS;
        let forgets = u128::from(now_ns.saturating_sub(self.forgot_ns)) >= FORGET.as_nanos();
        let limited = self.rules.iter().any(|rule| rule.max_pressure.is_some());
        let pressure = if looks && limited { self.metrics.some_pressure() } else { None };
        if looks {
            self.looked_ns = now_ns;
            self.acting.refresh();
        }
        if forgets {
            self.forgot_ns = now_ns;
        }
        for (index, (rule, harm)) in self.rules.iter().zip(&mut self.harm).enumerate() {
            harm.learn(self.acting.refaults(index), forgets);
            harm.judge(rule, now_ns, looks.then_some(pressure));
            self.schemes.suspend(index, harm.halt.is_some());
        }
    }
}

impl Harm {
    fn learn(&mut self, now: Refaults, forgets: bool) {
        if forgets {
            (self.judged, self.back) = (self.judged / 2.0, self.back / 2.0);
        }
        self.judged += now.judged.saturating_sub(self.counted.judged) as f64;
        self.back += now.back.saturating_sub(self.counted.back) as f64;
        self.counted = now;
    }

    /// `pressure`: what was measured just now, if it was.
    fn judge(&mut self, rule: &Rule, now_ns: u64, pressure: Option<Option<f64>>) {
        if let Some(Halt::Refaults(_, until)) = self.halt {
            if rule.max_refault_rate.is_some() && now_ns < until {
                return;
            }
            (self.halt, self.judged, self.back) = (None, 0.0, 0.0);
        }
        if let Some(limit) = rule.max_refault_rate
            && self.judged >= JUDGED
            && self.back > limit * self.judged
        {
            self.pause = if self.pause.is_zero() { PAUSE.0 } else { (self.pause * 2).min(PAUSE.1) };
            let until = now_ns.saturating_add(u64::try_from(self.pause.as_nanos()).unwrap_or(u64::MAX));
            self.halt = Some(Halt::Refaults(self.back / self.judged, until));
            self.suspensions += 1;
            return;
        }
        match (rule.max_pressure, pressure) {
            (None, _) => self.halt = None,
            (Some(_), None) => {}
            (Some(_), Some(None)) => self.halt = Some(Halt::PressureUnknown),
            (Some(limit), Some(Some(now))) => self.halt = (now > limit).then_some(Halt::Pressure(now)),
        }
    }
}

/// Which of the rules `before` each of the rules `now` is.
fn former(before: &[Rule], now: &[Rule]) -> Vec<Option<usize>> {
    let named = |rules: &[Rule], name: &str| rules.iter().position(|rule| rule.name == name);
    let of = |(index, rule): (usize, &Rule)| {
        let renamed =
            |one: &&Rule| named(now, &one.name).is_none() && one.scheme.action == rule.scheme.action;
        named(before, &rule.name).or_else(|| before.get(index).filter(renamed).map(|_| index))
    };
    now.iter().enumerate().map(of).collect()
}

/// The least age of what a scheme acts on, at least one aggregation interval.
pub fn least_age(scheme: &Scheme, attrs: &Attrs) -> Duration {
    let age = match scheme.pattern.age {
        Age::Time(bounds) => bounds.min,
        Age::Aggregations(bounds) => attrs.aggr.saturating_mul(bounds.min),
    };
    age.max(attrs.aggr)
}

/// Whether memory that is not accessed at all matches a scheme; one that does not take it asks for memory in use.
fn takes_idle(scheme: &Scheme) -> bool {
    match scheme.pattern.frequency {
        Frequency::Share(bounds) => bounds.min == 0,
        Frequency::Samples(bounds) => bounds.min == 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::schemes::{AccessPattern, Action};

    const SECOND: u64 = 1_000_000_000;

    fn rule(max_refault_rate: Option<f64>, max_pressure: Option<f64>) -> Rule {
        let scheme = Scheme::new(AccessPattern::ANY, Action::Pageout);
        Rule { name: "cold".into(), scheme, max_refault_rate, max_pressure }
    }

    #[test]
    fn a_scheme_whose_memory_comes_back_is_suspended_for_ever_longer() {
        let (rule, mut harm) = (rule(Some(0.2), None), Harm::default());
        let mut total = Refaults::default();
        let mut now = 0;
        let mut more = |judged: u64, back: u64| {
            (total.judged, total.back) = (total.judged + (judged << 20), total.back + (back << 20));
            total
        };
        harm.learn(more(100, 10), false);
        harm.judge(&rule, now, None);
        assert_eq!(harm.halt, None, "a tenth is less than a fifth");
        harm.learn(more(100, 90), false);
        harm.judge(&rule, now, None);
        assert_eq!(harm.halt, Some(Halt::Refaults(0.5, 10 * SECOND)));
        now = 9 * SECOND;
        harm.judge(&rule, now, None);
        assert!(harm.halt.is_some());
        now = 10 * SECOND;
        harm.judge(&rule, now, None);
        assert_eq!(harm.halt, None, "it gets another chance, with a clean slate");
        harm.learn(more(1, 1), false);
        harm.judge(&rule, now, None);
        assert_eq!(harm.halt, Some(Halt::Refaults(1.0, 30 * SECOND)), "twice as long");
        assert_eq!(harm.suspensions, 2);
    }

    #[test]
    fn a_scheme_is_the_one_of_its_name_wherever_it_stands() {
        let rules = |names: &[&str]| -> Vec<Rule> {
            names.iter().map(|name| Rule { name: (*name).into(), ..rule(None, None) }).collect()
        };
        let before = rules(&["a", "b"]);
        let of = |names: &[&str]| former(&before, &rules(names));
        assert_eq!(of(&["new", "a", "b"]), [None, Some(0), Some(1)]);
        assert_eq!(of(&["b"]), [Some(1)]);
        assert_eq!(of(&["a", "renamed", "more"]), [Some(0), Some(1), None]);
        let mut other = rules(&["renamed", "b"]);
        other[0].scheme.action = Action::Cold;
        assert_eq!(former(&before, &other), [None, Some(1)], "what another action did is not its own");
    }

    #[test]
    fn what_is_known_of_little_suspends_nothing() {
        let (rule, mut harm) = (rule(Some(0.2), None), Harm::default());
        harm.learn(Refaults { judged: 1 << 19, back: 1 << 19 }, false);
        harm.judge(&rule, 0, None);
        assert_eq!(harm.halt, None);
    }

    #[test]
    fn pressure_suspends_for_as_long_as_it_lasts() {
        let (rule, mut harm) = (rule(None, Some(5.0)), Harm::default());
        let mut at = |pressure: Option<Option<f64>>| {
            harm.judge(&rule, 0, pressure);
            harm.halt
        };
        assert_eq!(at(Some(Some(4.0))), None);
        assert_eq!(at(Some(Some(6.0))), Some(Halt::Pressure(6.0)));
        assert_eq!(at(None), Some(Halt::Pressure(6.0)), "not measured anew");
        assert_eq!(at(Some(Some(5.0))), None);
        assert_eq!(at(Some(None)), Some(Halt::PressureUnknown));
    }
}
