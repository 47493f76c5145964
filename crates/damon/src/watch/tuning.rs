//! Every number of the estimator that is a choice, with the reason for it.
//!
//! What is not a measurement or a rule was settled in the simulations of `tests/simulated`, which print the accuracy that any
//! other choice gives.

/// The numbers of [`super::Watch`]. Times are in sampling intervals.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tuning {
    /// Hits that a cell's evidence is worth at most: more make rates steadier and changes slower to show. With 16, the
    /// spread of a rate is a quarter (1/sqrt(16)).
    pub most_hits: f32,
    /// Exposure that idle memory is credited with at most. Past it an access is a surprise anyway.
    pub most_exposure: f32,
    /// A window is as long as it takes for this many accesses to be expected. Short windows make no difference between
    /// periodic and random accesses: of both, a share of rate x length is hit; past 1 they differ by up to 2.
    pub window_hits: f32,
    /// A hit, or a row of them, that was expected with so low a probability is a change of pattern.
    pub surprise_hit: f32,
    /// So many accesses expected since the last hit are a change of pattern: exp(-4.5) is one in 90.
    pub surprise_idle: f32,
    /// Access probability an interval from which memory is checked by turns instead of being watched without end: below
    /// it (1 Hz) cleared pages stay clear for whole aggregations and show each access by themselves.
    pub active: f32,
    /// Pages of a check. Past 33 pages the kernel flushes all of a processor's translations instead of one by one.
    pub check_pages: u32,
    /// Checks of a stretch of which little is known, and of one whose last check was a surprise.
    pub checks_unsettled: usize,
    /// Share of what may be cleared that checks of hot memory may take while other memory waits to be seen at all, percent.
    pub checks_share: usize,
    /// Cells that could not be observed are tried again after so long: 2 s, the time in which all must be seen again after
    /// a fork.
    pub retry: u64,
    /// Half-life of evidence that nothing renews, of so many targets that run, or fewer. Of more it is as many times longer, up
    /// to so many times: each has its turn less often, and what was hot when it was last looked at is more likely hot than not.
    pub half_life: f32,
    pub half_life_for: usize,
    pub half_life_most: f32,
    /// For so long a page that appeared counts as accessed, and as unknown from then on unless it was cleared.
    pub appeared: u64,
    /// After a sweep, which flushes no translations, memory that was hot and shows idle may be in a TLB for so long: 0.55 s
    /// is the longest that was measured (a loop over 1 MiB).
    pub stale: u64,
    /// Nats a change of rate costs where none was drawn before.
    pub price: f32,
    /// ... and where one was.
    pub price_known: f32,
    /// Share of the looks and clears an aggregation may spend on sweeps, percent.
    pub sweep_share: usize,
    /// Shortest time between two sweeps of a target.
    pub sweep_pause: u64,
    /// Targets with more pages than this are not swept: from Linux 6.5 on, all page faults of the target wait until a sweep
    /// is through, 15 to 20 ms for a GiB of small pages.
    pub longest_sweep: usize,
    /// How often memory of a target that does not run is credited with having been idle: it takes time in proportion to what
    /// there is, and nothing waits for it.
    pub rest_pause: u64,
    /// What is set aside for sweeps from the start, in clears: about half of the first second's budget.
    pub first_sweeps: usize,
}

impl Tuning {
    /// The numbers in use.
    pub const DEFAULT: Self = Self {
        most_hits: 16.0,
        most_exposure: 2000.0,
        window_hits: 0.5,
        surprise_hit: 1e-6,
        surprise_idle: 4.5,
        active: 0.005,
        check_pages: 32,
        checks_unsettled: 4,
        checks_share: 30,
        retry: 400,
        half_life: 400.0,
        half_life_for: 8,
        half_life_most: 16.0,
        appeared: 200,
        stale: 110,
        price: 6.0,
        price_known: 1.5,
        sweep_share: 40,
        sweep_pause: 200,
        longest_sweep: 1 << 18,
        rest_pause: 100,
        first_sweeps: 400,
    };
}

impl Tuning {
    /// With the half-life of evidence for so many targets that run.
    pub(super) fn for_targets(self, running: usize) -> Self {
        let times = running as f32 / self.half_life_for.max(1) as f32;
        Self { half_life: self.half_life * times.clamp(1.0, self.half_life_most.max(1.0)), ..self }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Self::DEFAULT
    }
}
