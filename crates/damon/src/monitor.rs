//! The monitor: one context's loop, driven from outside.
//!
//! A call of [`Monitor::tick`] is one sampling interval. The order of an aggregation's end is the kernel's: check,
//! merge, schemes, hand out the snapshot, remember `last_nr_accesses` and reset, split; then
//! the regions update when it is due. Schemes may also act in any sampling interval between. An aggregation ends after aggregation/sampling samples, not by the clock
//! (kernel design document, since 6.7), so a late caller stretches it instead of diluting it. A sampler that counts
//! every interval between two looks ([`Sampler::spans_gaps`]) loses nothing by a late call: for it, the intervals
//! missed have passed too.

use crate::ranges::{initial_regions, update_regions};
use crate::{
    AddrRange, Allowance, Attrs, AttrsError, Callbacks, IntervalsGoal, Moment, Operations, Rng, Sampler,
    Snapshot, Step, Tally, Target, TargetId, TargetSnapshot, adapt, tuning::Tuner,
};
use alloc::vec::Vec;

/// Size of a page, and the default alignment of regions, in bytes.
pub const PAGE_SIZE: u64 = 4096;

/// Why a monitor cannot be set up as asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MonitorError {
    /// See [`AttrsError`].
    #[error(transparent)]
    Attrs(#[from] AttrsError),
    /// `min_region` is no power of two.
    #[error("min_region is {0} bytes; it must be a power of two")]
    MinRegion(u64),
    /// The context has this target already.
    #[error("target {0} is already monitored")]
    TargetExists(u64),
}

/// A monitoring context.
pub struct Monitor<O, S> {
    attrs: Attrs,
    min_region: u64,
    ops: O,
    sampler: S,
    rng: Rng,
    targets: Vec<Target>,
    tally: Tally,
    tuner: Option<Tuner>,
    started: bool,
    /// Sampling intervals since the start.
    now: u64,
    last_tick_ns: u64,
    /// Samples since the start: of a sampler that spans no gaps, calls.
    samples: u64,
    passed_samples: u32,
    aggregation_start_ns: u64,
    next_update_ns: u64,
    last_nr_regions: usize,
    /// Where schemes cleared Accessed bits, until the sampler is told.
    cleared: Vec<(TargetId, AddrRange)>,
    /// Looks done in the running sampling interval.
    checked: usize,
    /// Calls that made them, and surveys.
    called: usize,
    /// Reused for every aggregation.
    snapshot: Snapshot,
}

impl<O: Operations, S: Sampler<O>> Monitor<O, S> {
    /// A context without targets. `seed` determines every random choice.
    ///
    /// # Errors
    /// When the attributes are not valid.
    pub fn new(attrs: Attrs, ops: O, sampler: S, seed: u64) -> Result<Self, MonitorError> {
        attrs.validate()?;
        Ok(Self {
            attrs,
            min_region: PAGE_SIZE,
            ops,
            sampler,
            rng: Rng::new(seed),
            targets: Vec::new(),
            tally: Tally::default(),
            tuner: None,
            started: false,
            now: 0,
            last_tick_ns: 0,
            samples: 0,
            passed_samples: 0,
            aggregation_start_ns: 0,
            next_update_ns: 0,
            last_nr_regions: 0,
            cleared: Vec::new(),
            checked: 0,
            called: 0,
            snapshot: Snapshot::default(),
        })
    }

    /// Sets the alignment and least size of regions (bytes, a power of two; default: a page). For targets added
    /// later.
    ///
    /// # Errors
    /// When it is no power of two.
    pub fn set_min_region(&mut self, bytes: u64) -> Result<(), MonitorError> {
        if !bytes.is_power_of_two() {
            return Err(MonitorError::MinRegion(bytes));
        }
        self.min_region = bytes;
        Ok(())
    }

    /// Turns interval auto-tuning on (or off, with `None`).
    pub fn set_intervals_goal(&mut self, goal: Option<IntervalsGoal>) {
        self.tuner = goal.map(Tuner::new);
    }

    /// Starts to monitor `id`, which the operations must know.
    ///
    /// # Errors
    /// When it is monitored already.
    pub fn add_target(&mut self, id: TargetId) -> Result<(), MonitorError> {
        if self.targets.iter().any(|t| t.id == id) {
            return Err(MonitorError::TargetExists(id.0));
        }
        let ranges = self.ops.ranges(id);
        let regions = initial_regions(&ranges, self.attrs.min_nr_regions, self.min_region);
        self.targets.push(Target { id, regions, ranges, moved: true, steady: false, highest: 0 });
        Ok(())
    }

    /// Stops to monitor `id`; unknown ids are ignored.
    pub fn remove_target(&mut self, id: TargetId) {
        self.targets.retain(|t| t.id != id);
        self.sampler.forget(id);
    }

    /// The target's address space was replaced as a whole (exec): its regions start anew.
    pub fn reset_target(&mut self, id: TargetId) {
        self.sampler.forget(id);
        let ranges = self.ops.ranges(id);
        if let Some(target) = self.targets.iter_mut().find(|t| t.id == id) {
            target.regions = initial_regions(&ranges, self.attrs.min_nr_regions, self.min_region);
            (target.ranges, target.moved, target.steady) = (ranges, true, false);
        }
    }

    /// Changes the attributes while running. Ages are rescaled by old/new aggregation interval, counts by the
    /// ratio of the highest possible counts, so that both keep their meaning. A new aggregation begins.
    ///
    /// # Errors
    /// When the attributes are not valid; nothing is changed then.
    pub fn set_attrs(&mut self, attrs: Attrs) -> Result<(), AttrsError> {
        attrs.validate()?;
        let (old, new) = (self.attrs, attrs);
        let scale = |value: u32, num: u128, den: u128| {
            u32::try_from(u128::from(value) * num / den.max(1)).unwrap_or(u32::MAX)
        };
        let (old_max, new_max) = (u128::from(old.max_nr_accesses()), u128::from(new.max_nr_accesses()));
        let counts = self.sampler.adapts_regions();
        for target in &mut self.targets {
            target.steady = false;
            for region in &mut target.regions {
                region.age = scale(region.age, old.aggr.as_micros(), new.aggr.as_micros());
                region.last_nr_accesses = scale(region.last_nr_accesses, new_max, old_max);
                // What was counted belongs to the aggregation that is given up; an estimate holds.
                let fine = u128::from(region.accesses_bp()) * new_max / old_max.max(1);
                region.nr_accesses = if counts { 0 } else { scale(region.nr_accesses, new_max, old_max) };
                region.nr_accesses_bp = if counts { 0 } else { u32::try_from(fine).unwrap_or(u32::MAX) };
                region.exposure = if counts { 0 } else { region.exposure };
            }
        }
        let us = |attrs: &Attrs| u64::try_from(attrs.sample.as_micros()).unwrap_or(u64::MAX).max(1);
        if us(&old) != us(&new) {
            self.sampler.rescale(us(&old), us(&new), self.now);
        }
        self.attrs = attrs;
        self.passed_samples = 0;
        self.aggregation_start_ns = self.last_tick_ns;
        Ok(())
    }

    /// One sampling interval at `now_ns` of the caller's clock, within `allowance`. Callbacks are told of each step;
    /// when an aggregation ends, [`Callbacks::after_aggregation`] gets its snapshot.
    ///
    /// Gives the number of sampling intervals after which the next call is due: 1, or more where the sampler has
    /// nothing to do meanwhile.
    pub fn tick(&mut self, now_ns: u64, allowance: Allowance, callbacks: &mut impl Callbacks) -> u64 {
        self.step(now_ns, allowance, callbacks);
        let left = self.attrs.max_nr_accesses().saturating_sub(self.passed_samples).max(1);
        let due = self.sampler.next_due(self.now, self.now + u64::from(left)) - self.now;
        due.min(callbacks.next_act(self.samples).saturating_sub(self.samples).max(1))
    }

    /// Whether a tick at `now_ns` would end the aggregation: such a one can wait, at the price of a snapshot that comes late.
    /// Others are mostly for looks at what was cleared, which tell little if they come late. True of the first, which plans what
    /// comes.
    pub fn concludes_at(&self, now_ns: u64) -> bool {
        let passed = if self.sampler.spans_gaps() { self.intervals_until(now_ns) } else { 1 };
        !self.started || u64::from(self.passed_samples) + passed >= u64::from(self.attrs.max_nr_accesses())
    }

    fn intervals_until(&self, now_ns: u64) -> u64 {
        let sample_ns = u64::try_from(self.attrs.sample.as_nanos()).unwrap_or(u64::MAX).max(1);
        (now_ns.saturating_sub(self.last_tick_ns).saturating_add(sample_ns / 2) / sample_ns).max(1)
    }

    fn step(&mut self, now_ns: u64, allowance: Allowance, callbacks: &mut impl Callbacks) {
        (self.checked, self.called) = (0, 0);
        if !self.started {
            self.started = true;
            self.last_tick_ns = now_ns;
            self.aggregation_start_ns = now_ns;
            self.next_update_ns = now_ns + self.update_ns();
            callbacks.before_start(&self.targets);
            self.with_sampler(allowance, |sampler, step| sampler.plan(step, true));
            return;
        }
        let intervals = self.intervals_until(now_ns);
        self.last_tick_ns = now_ns;
        self.now += intervals;
        let samples = if self.sampler.spans_gaps() { intervals } else { 1 };
        self.passed_samples = self.passed_samples.saturating_add(u32::try_from(samples).unwrap_or(u32::MAX));
        self.samples = self.samples.saturating_add(samples);
        let ends = self.passed_samples >= self.attrs.max_nr_accesses();
        self.with_sampler(allowance, |sampler, step| {
            sampler.sample(step);
            if ends {
                sampler.conclude(step);
            }
        });
        callbacks.after_sampling(&self.targets);
        let updates = now_ns >= self.next_update_ns;
        let mut reshaped = false;
        if ends {
            self.aggregate(now_ns, callbacks);
        } else {
            reshaped = self.act(now_ns, false, callbacks);
        }
        if updates {
            self.next_update_ns = now_ns + self.update_ns();
            for id in self.ops.take_changed() {
                let Some(target) = self.targets.iter_mut().find(|t| t.id == id) else { continue };
                let ranges = self.ops.ranges(id);
                if ranges != target.ranges {
                    update_regions(&mut target.regions, &ranges, self.min_region);
                    (target.ranges, target.moved, target.steady) = (ranges, true, false);
                }
            }
            callbacks.after_update(&self.targets);
        }
        if !self.cleared.is_empty() {
            let mut cleared = core::mem::take(&mut self.cleared);
            self.with_sampler(allowance, |sampler, step| sampler.cleared(step, &cleared));
            cleared.clear();
            self.cleared = cleared;
        }
        if ends || updates || reshaped {
            self.with_sampler(allowance, |sampler, step| sampler.plan(step, ends));
        }
    }

    fn aggregate(&mut self, now_ns: u64, callbacks: &mut impl Callbacks) {
        let max_nr_accesses = self.attrs.max_nr_accesses();
        // Of a target that is steady nothing has changed, and of many targets nearly all are.
        for target in self.targets.iter_mut().filter(|t| !t.steady) {
            target.highest = target.regions.iter().map(|r| r.nr_accesses).max().unwrap_or(0);
        }
        let highest = self.targets.iter().map(|t| t.highest).max().unwrap_or(0);
        let threshold = highest / 10;
        for target in &mut self.targets {
            adapt::age_regions(&mut target.regions, threshold);
        }
        let adapts = self.sampler.adapts_regions();
        if adapts {
            let size: u64 = self.targets.iter().map(Target::size).sum();
            let max_size = (size / self.attrs.min_nr_regions as u64).max(self.min_region);
            adapt::merge_targets(
                &mut self.targets,
                threshold,
                max_size,
                self.attrs.max_nr_regions,
                max_nr_accesses,
            );
        }
        self.act(now_ns, true, callbacks);
        self.take_snapshot(now_ns, max_nr_accesses);
        callbacks.after_aggregation(&mut self.targets, &self.snapshot);
        let tuned = self.tuner.as_mut().and_then(|tuner| tuner.aggregated(&self.targets, &self.attrs));
        for target in self.targets.iter_mut().filter(|t| !t.steady) {
            for region in &mut target.regions {
                region.last_nr_accesses = region.nr_accesses;
                if adapts {
                    (region.nr_accesses, region.nr_accesses_bp, region.exposure) = (0, 0, 0);
                }
            }
            target.steady = !adapts;
        }
        self.passed_samples = 0;
        self.aggregation_start_ns = now_ns;
        if let Some(attrs) = tuned
            && self.set_attrs(attrs).is_ok()
        {
            callbacks.attrs_changed(&self.attrs);
        }
        if adapts {
            adapt::split_targets(
                &mut self.targets,
                &mut self.last_nr_regions,
                self.attrs.max_nr_regions,
                self.min_region,
                &mut self.rng,
            );
        }
    }

    /// Lets schemes act. Whether they split regions.
    fn act(&mut self, now_ns: u64, ends_aggregation: bool, callbacks: &mut impl Callbacks) -> bool {
        let passed_bp = self.passed_bp();
        let mut moment = Moment {
            now_ns,
            interval: self.samples,
            ends_aggregation,
            attrs: self.attrs,
            min_region: self.min_region,
            targets: &mut self.targets,
            counts: self.sampler.adapts_regions(),
            passed_bp,
            nr_regions: None,
            reshaped: false,
            cleared: core::mem::take(&mut self.cleared),
        };
        callbacks.act(&mut moment);
        let (reshaped, cleared) = (moment.reshaped, moment.cleared);
        self.cleared = cleared;
        reshaped
    }

    fn take_snapshot(&mut self, now_ns: u64, max_nr_accesses: u32) {
        self.snapshot.start_ns = self.aggregation_start_ns;
        self.snapshot.end_ns = now_ns;
        self.snapshot.sample_ns = u64::try_from(self.attrs.sample.as_nanos()).unwrap_or(u64::MAX);
        self.snapshot.max_nr_accesses = max_nr_accesses;
        self.snapshot.targets.resize_with(self.targets.len(), TargetSnapshot::default);
        for (out, target) in self.snapshot.targets.iter_mut().zip(&self.targets) {
            out.steady = target.steady && out.id == target.id && out.regions.len() == target.regions.len();
            if out.steady {
                for (region, now) in out.regions.iter_mut().zip(&target.regions) {
                    region.age = now.age;
                }
                continue;
            }
            out.id = target.id;
            out.regions.clear();
            out.regions.extend(target.regions.iter().map(crate::Region::snapshot));
        }
    }

    fn with_sampler(&mut self, allowance: Allowance, f: impl FnOnce(&mut S, &mut Step<'_, O>)) {
        let mut step = Step {
            ops: &mut self.ops,
            targets: &mut self.targets,
            attrs: &self.attrs,
            min_region: self.min_region,
            rng: &mut self.rng,
            allowance,
            now: self.now,
            now_ns: self.last_tick_ns,
            tally: &mut self.tally,
            checked: &mut self.checked,
            called: &mut self.called,
        };
        f(&mut self.sampler, &mut step);
    }

    fn update_ns(&self) -> u64 {
        u64::try_from(self.attrs.update.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Tells the callbacks that monitoring ends and gives the operations back.
    pub fn terminate(self, callbacks: &mut impl Callbacks) -> O {
        callbacks.before_terminate(&self.targets);
        self.ops
    }

    /// The targets with their regions as they stand.
    pub fn targets(&self) -> &[Target] {
        &self.targets
    }

    /// Attributes in force.
    pub fn attrs(&self) -> &Attrs {
        &self.attrs
    }

    /// `nr_accesses` of one of the regions as of now, also between two aggregations: what was counted so far filled up
    /// with the last aggregation's count ([`crate::Region::moving_sum`]), or the estimate where the sampler keeps one.
    pub fn nr_accesses_now(&self, region: &crate::Region) -> u32 {
        if self.sampler.adapts_regions() { region.moving_sum(self.passed_bp()) } else { region.nr_accesses }
    }

    /// Share of the running aggregation that has passed, in basis points; for [`crate::Region::moving_sum`].
    pub fn passed_bp(&self) -> u32 {
        (u64::from(self.passed_samples) * 10_000 / u64::from(self.attrs.max_nr_accesses())).min(10_000) as u32
    }

    /// Of many targets the few that run, those that take most CPU time first, if the sampler knows.
    pub fn busiest(&self, found: &mut Vec<TargetId>) {
        self.sampler.busiest(found);
    }

    /// What was done so far.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// The sampler.
    pub fn sampler(&mut self) -> &mut S {
        &mut self.sampler
    }

    /// The operations, to look at.
    pub fn operations(&self) -> &O {
        &self.ops
    }

    /// The operations.
    pub fn ops(&mut self) -> &mut O {
        &mut self.ops
    }
}
