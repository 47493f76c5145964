//! DAMON's monitor over the operations of a backend, under an overhead ceiling.

use crate::clock::{self, monotonic_ns};
use crate::governor::{Governor, Spent};
use crate::maps::Numbers;
use crate::probe::AccessedBitClearers;
use crate::process::Process;
use crate::pte::Sightings;
use crate::pte::{Lives, Pte};
use crate::schemes::{SharedEngine, lock};
use crate::source::{Counters, ListedProcess, Source, SourceError};
use isotherm_damon::{
    AddrRange, Attrs, BLOCK_SIZE, BlockLook, BlockOperations, Callbacks, Check, IntervalsGoal, Moment,
    Monitor, MonitorError, Operations, Ownership, Ran, RangeClear, Snapshot, Sweep, Tally, Target, TargetId,
    Watch, three_regions, without_gaps,
};
use std::sync::Arc;
use std::time::Duration;

/// What a backend adds to [`Operations`] to be run live.
pub trait LiveOperations: Operations {
    /// Name of the backend.
    fn name(&self) -> &'static str;

    /// Starts to observe a process.
    ///
    /// # Errors
    /// When it is gone or may not be observed.
    fn add(&mut self, id: TargetId, process: Arc<Process>) -> Result<(), SourceError>;

    /// Stops to observe it.
    fn remove(&mut self, id: TargetId);

    /// Says what a target has mapped: what [`Operations::ranges`] returns from now on. See [`Source::set_ranges`].
    fn set_ranges(&mut self, id: TargetId, ranges: &[AddrRange]);
    /// See [`Source::set_mappings`].
    fn set_mappings(&mut self, _id: TargetId, _count: Option<usize>) {}

    /// From now on, what of the memory whose Accessed bits are cleared had been accessed is told here.
    fn set_sightings(&mut self, _sightings: Sightings) {}

    /// A target runs another program: what was remembered of its address space goes, its ranges too.
    fn execed(&mut self, id: TargetId);

    /// Targets whose address space was found replaced since the last call.
    fn take_execed(&mut self) -> Vec<TargetId>;

    /// Targets that cannot be observed any longer since the last call, each with the reason.
    fn take_lost(&mut self) -> Vec<(TargetId, SourceError)>;

    /// See [`Source::list_processes`].
    fn list_processes(&mut self, _found: &mut Vec<ListedProcess>) -> bool {
        false
    }

    /// See [`Source::latest_list`].
    fn latest_list(&mut self, _found: &mut Vec<ListedProcess>) -> bool {
        false
    }

    /// See [`Source::suspects`].
    fn suspects(&mut self) -> Option<Vec<u32>> {
        None
    }

    /// See [`Source::numbers`].
    fn numbers(&mut self) -> Option<Numbers> {
        None
    }

    /// See [`Source::count_lives`].
    fn count_lives(&mut self, _everything: bool) -> Option<Lives> {
        None
    }

    /// The first error since the last call that makes going on pointless.
    fn take_error(&mut self) -> Option<SourceError>;

    /// Pages really cleared so far.
    fn cleared(&self) -> u64;

    /// What it cannot see, a sentence each.
    fn blind_spots(&mut self) -> Vec<String>;
}

/// Times what the operations cost, and joins mappings to the ranges that a sampler wants.
struct Timed<O> {
    inner: O,
    spent: Spent,
    /// As DAMON does it; a sampler that reads page tables leaves out every gap that is worth it.
    three_regions: bool,
    nr_targets: usize,
    max_nr_regions: usize,
    /// When the running tick was called, by CLOCK_MONOTONIC.
    tick_ns: u64,
}

/// Gaps of less than a block are not worth a range of their own.
const LEAST_GAP: u64 = BLOCK_SIZE;
/// Most ranges of a target, and of all targets a share of the regions.
const MOST_RANGES: usize = 64;

impl<O> Timed<O> {
    fn timed<T>(&mut self, what: fn(&mut Spent) -> &mut Duration, call: impl FnOnce(&mut O) -> T) -> T {
        let start = clock::of_this_thread();
        let result = call(&mut self.inner);
        *what(&mut self.spent) += clock::of_this_thread().saturating_sub(start);
        result
    }
}

impl<O: BlockOperations> Timed<O> {
    /// A look, by the time that passed: it sleeps for nothing, and what the thread's own clock says takes a system call: all of
    /// those together were 3 % of all cost, by a profile. [`Spent::within`] bounds what passed while the thread was not on a processor.
    fn timed_look<T>(&mut self, call: impl FnOnce(&mut O) -> T) -> T {
        let start = monotonic_ns();
        let result = call(&mut self.inner);
        self.spent.checking += Duration::from_nanos(monotonic_ns().saturating_sub(start));
        result
    }
}

impl<O: Operations> Operations for Timed<O> {
    fn ranges(&mut self, target: TargetId) -> Vec<AddrRange> {
        let mapped = self.inner.ranges(target);
        if self.three_regions {
            return three_regions(&mapped);
        }
        let share = self.max_nr_regions / self.nr_targets.max(1) / 4;
        without_gaps(&mapped, share.clamp(2, MOST_RANGES), LEAST_GAP)
    }

    fn take_changed(&mut self) -> Vec<TargetId> {
        self.inner.take_changed()
    }

    fn prepare(&mut self, checks: &mut [Check]) {
        self.timed(|spent| &mut spent.preparing, |inner| inner.prepare(checks));
    }

    fn check(&mut self, checks: &mut [Check]) {
        self.timed(|spent| &mut spent.checking, |inner| inner.check(checks));
    }

    fn is_alive(&mut self, target: TargetId) -> bool {
        self.inner.is_alive(target)
    }
}

impl<O: BlockOperations> BlockOperations for Timed<O> {
    fn survey(&mut self, target: TargetId, blocks: &mut Vec<u64>) -> bool {
        self.timed_look(|inner| inner.survey(target, blocks))
    }

    fn look(&mut self, target: TargetId, blocks: &mut [BlockLook]) -> bool {
        self.timed_look(|inner| inner.look(target, blocks))
    }

    fn clear(&mut self, target: TargetId, ranges: &mut [RangeClear]) {
        self.timed(|spent| &mut spent.preparing, |inner| inner.clear(target, ranges));
    }

    fn ownership(&mut self, target: TargetId, addrs: &[u64], found: &mut Vec<Ownership>) {
        self.timed(|spent| &mut spent.preparing, |inner| inner.ownership(target, addrs, found));
    }

    fn sweep(&mut self, target: TargetId, kind: Sweep) -> bool {
        self.timed(|spent| &mut spent.sweeping, |inner| inner.sweep(target, kind))
    }

    fn mappings(&mut self, target: TargetId) -> Option<usize> {
        self.inner.mappings(target)
    }

    fn age(&mut self, target: TargetId) -> Option<Duration> {
        self.inner.age(target)
    }

    fn ran(&mut self, targets: &[TargetId], found: &mut Vec<Option<Ran>>) {
        self.timed(|spent| &mut spent.asking, |inner| inner.ran(targets, found));
    }

    fn elapsed_ns(&mut self) -> u64 {
        monotonic_ns().saturating_sub(self.tick_ns)
    }
}

fn as_ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A monitor that is a [`Source`].
pub struct MonitorSource<O, S> {
    monitor: Monitor<Timed<O>, S>,
    governor: Governor,
    samples_missed: u64,
    /// Sampling intervals that passed while the governor had it wait.
    samples_waited: u64,
    next_ns: u64,
    schemes: Option<SharedEngine>,
    /// When watermarks are looked at next.
    marks_ns: u64,
    /// Memory that others map too is seen by sweeps.
    sweeps: bool,
}

impl MonitorSource<Pte, Watch> {
    /// The `pte` backend at work, within `overhead` (share of one CPU; 0: no ceiling).
    ///
    /// # Errors
    /// When the attributes are not valid.
    pub fn pte(pte: Pte, attrs: Attrs, overhead: f64, seed: u64) -> Result<Self, MonitorError> {
        let mut source = Self::new(pte, Watch::new(), attrs, overhead, seed)?;
        source.monitor.ops().three_regions = false;
        Ok(source)
    }

    /// Whether memory that other processes map too may be swept (`/proc/PID/clear_refs`).
    pub fn set_sweeps(&mut self, on: bool) {
        self.sweeps = on;
        self.monitor.sampler().set_sweeps(on);
    }
}

impl<O: LiveOperations, S: SamplerOf<O>> MonitorSource<O, S> {
    /// A monitor over `ops`, within `overhead` (share of one CPU; 0: no ceiling).
    ///
    /// # Errors
    /// When the attributes are not valid.
    pub fn new(ops: O, sampler: S, attrs: Attrs, overhead: f64, seed: u64) -> Result<Self, MonitorError> {
        let ops = Timed {
            inner: ops,
            spent: Spent::default(),
            three_regions: true,
            nr_targets: 0,
            max_nr_regions: attrs.max_nr_regions,
            tick_ns: 0,
        };
        let monitor = Monitor::new(attrs, ops, sampler, seed)?;
        Ok(Self {
            monitor,
            governor: Governor::new(overhead),
            samples_missed: 0,
            samples_waited: 0,
            next_ns: 0,
            schemes: None,
            marks_ns: 0,
            sweeps: true,
        })
    }

    /// How long, in nanoseconds, nothing needs to be monitored since watermarks keep all schemes from acting. Looked up at the
    /// end of each aggregation interval, and of each such pause.
    fn dormant(&mut self, now_ns: u64) -> Option<u64> {
        let engine = self.schemes.as_ref().filter(|_| now_ns >= self.marks_ns)?;
        let wait = lock(engine).dormant().map(as_ns);
        self.marks_ns = now_ns.saturating_add(wait.unwrap_or(as_ns(self.monitor.attrs().aggr)));
        wait
    }

    /// Turns interval auto-tuning on (or off, with `None`).
    pub fn set_intervals_goal(&mut self, goal: Option<IntervalsGoal>) {
        self.monitor.set_intervals_goal(goal);
    }

    /// The operations.
    pub fn operations(&mut self) -> &mut O {
        &mut self.monitor.ops().inner
    }

    fn run_tick(&mut self, now_ns: u64, concludes: bool, sink: &mut dyn FnMut(&Snapshot)) -> u64 {
        let before = *self.monitor.tally();
        let start = clock::of_this_thread();
        let ops = self.monitor.ops();
        ops.spent = Spent::default();
        ops.tick_ns = now_ns;
        let allowance = self.governor.allowance(self.monitor.attrs(), concludes);
        let mut callbacks = ToSink { sink, schemes: self.schemes.as_ref() };
        let due = self.monitor.tick(now_ns, allowance, &mut callbacks);
        // Acting is paid for by the schemes' own quotas.
        let acted = self.schemes.as_ref().map_or(Duration::ZERO, |engine| lock(engine).take_cpu());
        self.governor.leave_out(acted);
        let whole = clock::of_this_thread().saturating_sub(start).saturating_sub(acted);
        let after = *self.monitor.tally();
        self.governor.learn(&before, &after, &self.monitor.ops().spent.within(whole));
        due
    }
}

/// A sampler over the operations of a backend; names what every one is.
pub trait SamplerOf<O: LiveOperations>: sealed::Over<O> {}

impl<O: LiveOperations, S: sealed::Over<O>> SamplerOf<O> for S {}

mod sealed {
    use super::{LiveOperations, Timed};
    use isotherm_damon::Sampler;

    #[allow(private_bounds, reason = "what times the operations is nobody's business")]
    pub trait Over<O: LiveOperations>: Sampler<Timed<O>> {}

    impl<O: LiveOperations, S: Sampler<Timed<O>>> Over<O> for S {}
}

/// Lets schemes act, and hands snapshots on.
struct ToSink<'a> {
    sink: &'a mut dyn FnMut(&Snapshot),
    schemes: Option<&'a SharedEngine>,
}

impl Callbacks for ToSink<'_> {
    fn act(&mut self, moment: &mut Moment<'_>) {
        if let Some(engine) = self.schemes {
            lock(engine).act(moment);
        }
    }

    fn next_act(&self, now: u64) -> u64 {
        self.schemes.map_or(u64::MAX, |engine| lock(engine).next_act(now))
    }

    fn after_aggregation(&mut self, _targets: &mut [Target], snapshot: &Snapshot) {
        (self.sink)(snapshot);
    }
}

impl<O: LiveOperations, S: SamplerOf<O>> Source for MonitorSource<O, S> {
    fn name(&self) -> &'static str {
        // Operations of one kind have one name; the borrow checker wants a shared path to it.
        self.monitor.operations().inner.name()
    }

    fn add_target(&mut self, id: TargetId, process: &Arc<Process>) -> Result<(), SourceError> {
        let ops = self.monitor.ops();
        ops.inner.add(id, Arc::clone(process))?;
        ops.nr_targets += 1;
        self.monitor.add_target(id).map_err(|error| SourceError::Unavailable {
            what: format!("target {}", id.0),
            reason: error.to_string(),
            remedy: "name each process once".into(),
        })
    }

    fn remove_target(&mut self, id: TargetId) {
        self.monitor.remove_target(id);
        let ops = self.monitor.ops();
        ops.inner.remove(id);
        ops.nr_targets = ops.nr_targets.saturating_sub(1);
    }

    fn set_ranges(&mut self, id: TargetId, ranges: &[AddrRange]) {
        self.monitor.ops().inner.set_ranges(id, ranges);
        // The first ranges make the first regions; later ones are taken up by the regions update.
        if self.monitor.targets().iter().any(|t| t.id == id && t.regions.is_empty()) {
            self.monitor.reset_target(id);
        }
    }

    fn set_mappings(&mut self, id: TargetId, count: Option<usize>) {
        self.monitor.ops().inner.set_mappings(id, count);
    }

    fn execed(&mut self, id: TargetId) {
        self.monitor.ops().inner.execed(id);
        self.monitor.reset_target(id);
    }

    fn take_execed(&mut self) -> Vec<TargetId> {
        self.monitor.ops().inner.take_execed()
    }

    fn take_lost(&mut self) -> Vec<(TargetId, SourceError)> {
        self.monitor.ops().inner.take_lost()
    }

    fn tick(&mut self, now_ns: u64, sink: &mut dyn FnMut(&Snapshot)) -> Result<u64, SourceError> {
        let sample_ns = as_ns(self.monitor.attrs().sample).max(1);
        if self.next_ns == 0 {
            self.next_ns = now_ns;
        }
        if now_ns < self.next_ns {
            return Ok(self.next_ns);
        }
        if let Some(wait) = self.dormant(now_ns) {
            // Nothing was missed that was asked for.
            self.next_ns = now_ns.saturating_add(wait);
            return Ok(self.next_ns);
        }
        // Ticks keep to a grid; one that comes late by whole intervals has missed them.
        let late = (now_ns - self.next_ns) / sample_ns;
        self.samples_missed += late;
        self.next_ns += (late + 1) * sample_ns;
        self.governor.set_targets(self.monitor.operations().nr_targets);
        self.governor.settle(now_ns);
        let concludes = self.monitor.concludes_at(now_ns);
        let wait = self.governor.must_wait(now_ns, concludes);
        if wait > 0 {
            let skipped = wait.div_ceil(sample_ns);
            self.samples_missed += skipped;
            self.samples_waited += skipped;
            self.next_ns += (skipped - 1) * sample_ns;
            return Ok(self.next_ns);
        }
        self.next_ns += (self.run_tick(now_ns, concludes, sink) - 1) * sample_ns;
        match self.monitor.ops().inner.take_error() {
            Some(error) => Err(error),
            None => Ok(self.next_ns),
        }
    }

    fn list_processes(&mut self, found: &mut Vec<ListedProcess>) -> bool {
        self.monitor.ops().inner.list_processes(found)
    }

    fn latest_list(&mut self, found: &mut Vec<ListedProcess>) -> bool {
        self.monitor.ops().inner.latest_list(found)
    }

    fn suspects(&mut self) -> Option<Vec<u32>> {
        self.monitor.ops().inner.suspects()
    }

    fn numbers(&mut self) -> Option<Numbers> {
        self.monitor.ops().inner.numbers()
    }

    fn count_lives(&mut self, everything: bool) -> Option<Lives> {
        self.monitor.ops().inner.count_lives(everything)
    }

    fn busiest(&self, found: &mut Vec<TargetId>) {
        self.monitor.busiest(found);
    }

    fn charge(&mut self, cpu: Duration) {
        self.governor.charge(cpu);
    }

    fn spent_beside(&mut self, cpu: Duration) {
        // Of many targets all wait for each other anyway, and what reading takes is most of what there is to do.
        if !self.governor.has_many() {
            self.governor.leave_out(cpu);
            self.governor.charge_once(cpu);
        }
    }

    fn spent_before(&mut self, cpu: Duration) {
        self.governor.spent_before(cpu);
    }

    fn set_schemes(&mut self, engine: &SharedEngine) -> bool {
        self.schemes = Some(Arc::clone(engine));
        self.monitor.ops().inner.set_sightings(lock(engine).acting().sightings());
        true
    }

    fn attrs(&self) -> Attrs {
        *self.monitor.attrs()
    }

    fn counters(&self) -> Counters {
        let tally = self.monitor.tally();
        Counters {
            checks: tally.checks,
            max_checks_per_sample: tally.max_checks_per_sample,
            clears: tally.pages_cleared.max(self.monitor.operations().inner.cleared()),
            flushes: tally.ranges_cleared,
            sweeps: tally.sweeps,
            pages_swept: tally.pages_swept,
            checks_cut: tally.checks_cut,
            clears_cut: tally.prepares_cut,
            samples_missed: self.samples_missed,
        }
    }

    fn waited(&self) -> Duration {
        let intervals = u32::try_from(self.samples_waited).unwrap_or(u32::MAX);
        self.monitor.attrs().sample.saturating_mul(intervals)
    }

    fn blind_spots(&mut self) -> Vec<String> {
        let mut spots = blind_to(self.monitor.tally(), self.sweeps);
        spots.extend(self.monitor.ops().inner.blind_spots());
        spots
    }
}

const SHARED: &str = "pages mapped by several processes are not seen";
const LOCKED: &str = "locked, hugetlb and device pages are not seen";
const SPLIT: &str = "large folios mapped page by page are not seen, since clearing a page would split them";

/// What a sampler that clears ranges could not see.
fn blind_to(tally: &Tally, sweeps: bool) -> Vec<String> {
    let tried = tally.pages_cleared + tally.blind_shared + tally.blind_locked + tally.blind_split;
    let shared = if sweeps { 0 } else { tally.blind_shared };
    let spots = [(shared, SHARED), (tally.blind_locked, LOCKED), (tally.blind_split, SPLIT)];
    let spots = spots.iter().filter_map(|(count, what)| blind_spot(*count, tried, what));
    spots.chain(taken(tally)).collect()
}

/// Share of the bits left set that must be found clear for it to be told: a hundredth hides next to nothing.
const TAKEN: f64 = 0.01;

/// What others cleared between two looks.
fn taken(tally: &Tally) -> Option<String> {
    let share = tally.found_clear as f64 / tally.left_set.max(1) as f64;
    (share >= TAKEN).then(|| {
        format!(
            "others clear Accessed bits: {:.1} % of those left set were found clear; rates allow for accesses that this hides",
            share * 100.0
        )
    })
}

fn blind_spot(count: u64, tried: u64, what: &str) -> Option<String> {
    let share = count as f64 / tried.max(1) as f64;
    (count > 0).then(|| format!("{what}: {:.1} % of the pages looked at", share * 100.0))
}

impl LiveOperations for Pte {
    fn name(&self) -> &'static str {
        "pte"
    }

    fn list_processes(&mut self, found: &mut Vec<ListedProcess>) -> bool {
        Self::list_processes(self, found)
    }

    fn latest_list(&mut self, found: &mut Vec<ListedProcess>) -> bool {
        Self::latest_list(self, found)
    }

    fn suspects(&mut self) -> Option<Vec<u32>> {
        self.named(&AccessedBitClearers::NAMES)
    }

    fn numbers(&mut self) -> Option<Numbers> {
        Self::numbers(self)
    }

    fn count_lives(&mut self, everything: bool) -> Option<Lives> {
        // Where it cannot be had, how many there are is unknown, and recorded as that.
        self.start_lives(everything).ok()
    }

    fn add(&mut self, id: TargetId, process: Arc<Process>) -> Result<(), SourceError> {
        Self::add(self, id, process);
        Ok(())
    }

    fn remove(&mut self, id: TargetId) {
        Self::remove(self, id);
    }

    fn set_ranges(&mut self, id: TargetId, ranges: &[AddrRange]) {
        Self::set_ranges(self, id, ranges);
    }

    fn set_mappings(&mut self, id: TargetId, count: Option<usize>) {
        Self::set_mappings(self, id, count);
    }

    fn set_sightings(&mut self, sightings: Sightings) {
        Self::set_sightings(self, sightings);
    }

    fn execed(&mut self, id: TargetId) {
        Self::execed(self, id);
    }

    fn take_execed(&mut self) -> Vec<TargetId> {
        Self::take_execed(self)
    }

    fn take_lost(&mut self) -> Vec<(TargetId, SourceError)> {
        let refused = Self::take_refused(self).into_iter();
        let what = "to clear its Accessed bits (process_madvise)";
        refused.map(|(id, source)| (id, SourceError::Io { what: what.into(), source })).collect()
    }

    fn take_error(&mut self) -> Option<SourceError> {
        Self::take_error(self)
            .map(|source| SourceError::Io { what: "to watch pages (process_madvise, bpf)".into(), source })
    }

    fn cleared(&self) -> u64 {
        self.prepared().cleared
    }

    fn blind_spots(&mut self) -> Vec<String> {
        let p = *self.prepared();
        let tried = p.cleared + p.idle + p.shared + p.locked + p.split;
        [
            blind_spot(p.shared, tried, SHARED),
            blind_spot(p.locked, tried, LOCKED),
            blind_spot(p.split, tried, SPLIT),
            (!self.knows_folios()).then(|| {
                "nothing is seen but what is absent: this kernel does not show which pages are parts of large folios, \
                 and clearing one would split it; CAP_SYS_ADMIN helps"
                    .to_owned()
            }),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_is_named_unseen_only_without_sweeps() {
        let tally = Tally { pages_cleared: 75, blind_shared: 20, blind_locked: 5, ..Tally::default() };
        let locked = format!("{LOCKED}: 5.0 % of the pages looked at");
        assert_eq!(blind_to(&tally, true), std::slice::from_ref(&locked));
        assert_eq!(blind_to(&tally, false), [format!("{SHARED}: 20.0 % of the pages looked at"), locked]);
        assert!(blind_to(&Tally { pages_cleared: 9, ..Tally::default() }, false).is_empty());
    }

    #[test]
    fn bits_that_others_cleared_are_told_if_they_are_not_few() {
        let of = |found_clear| Tally { left_set: 1000, found_clear, ..Tally::default() };
        assert!(blind_to(&of(9), true).is_empty());
        let told = blind_to(&of(125), true);
        assert!(told.len() == 1 && told[0].contains("12.5 % of those left set"), "{told:?}");
    }
}
