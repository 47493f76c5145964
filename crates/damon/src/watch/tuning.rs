//! Every number of the estimator that is a choice, with the reason for it.
//!
//! What is not a measurement or a rule was settled in the simulations of `tests/simulated`, which print the accuracy that any
//! other choice gives.

/// Targets from which on it matters more to see something of each than all of any.
pub(super) const MANY: usize = 16;
/// As long as more than a quarter of many targets wait to be seen, what is seen already gets so many times less, and that in one
/// of so many aggregations; checks in one of [`SOON`].
pub(super) const CROWDED: usize = 4;
/// See [`CROWDED`].
pub(super) const CROWDED_TURN: usize = 50;
/// Part of an aggregation after which a target that was swept is looked at, of many: aggregations come late then, and of what is
/// looked at late it is known only that it is accessed, not that it is hot. 60 ms: what is accessed 20 times a second shows.
/// Of aggregations of less than four intervals that is their end all the same.
pub(super) const IN_TIME: (u64, u64) = (3, 5);
/// Aggregations that one which came late may stand for.
pub(super) const LATE_BY: u64 = 8;
/// Checks that are saved up meanwhile at most.
pub(super) const CHECKS_SAVED: usize = 8;
/// Places of a target at which memory appears that are followed at once: an allocator has a handful.
pub(super) const MOST_FRONTS: usize = 32;
/// As long as no more targets run, each is asked often where it has memory; of more, those where memory appeared not long ago, and
/// no more than that many in one aggregation.
pub(super) const FEW: usize = 4;
/// Clears that are worth a call of their own: a call costs 40 to 60 us, with the looks before and after, a range some 10.
pub(super) const BATCH: usize = 16;
/// What this many aggregations give is waited for.
pub(super) const SOON: usize = 10;
/// As often a sweep is put off, at most: more than twice as often as its price takes to come in.
pub(super) const PUT_OFF: usize = 50;
/// Part of what was saved up that may be spent in one aggregation.
pub(super) const SAVED: usize = 4;
/// Without a ceiling there is still no use in more clears than this in an aggregation.
pub(super) const ENOUGH: usize = 4000;
/// Most wake-ups of an aggregation with checks: for clearing, for windows of 1, 2, 4 and 8 intervals, and at the end.
pub(super) const ROUND: usize = 6;
/// Clears that are as dear as clearing a range of so many pages. Measured: a range costs 10 us for its flush when the
/// target runs on another processor, and 75 ns a page.
pub(super) const PAGES_A_CLEAR: usize = 128;
/// Pages that take a sweep as long as a mapping does. Measured: 0.65 us a mapping of 65,000, 54 ns a page.
pub(super) const PAGES_A_MAPPING: usize = 12;
/// How many times as seldom targets are asked whether they ran where most did.
pub(super) const ASKED_LESS: usize = 4;
/// Aggregations within which all are asked, whatever it costs: 5 s.
pub(super) const ASKED_WITHIN: usize = 50;
/// How many times more or less pages hit than expected are a change of pattern, when neither all are nor none.
pub(super) const APART: f32 = 4.0;
/// ... if it differs by more than 3.5 standard deviations (12 is the square) of what chance gives so many pages: of a hundred checks
/// of 32 pages at 40 Hz, one showed a fourth of what was expected.
pub(super) const NO_CHANCE: f32 = 12.0;
/// The first hits since long are a change of pattern if they came so late with no more than this probability: a guess. Without it F1
/// of the bytes that `zipf` accesses within a second is .50 when it begins after 3 s of idleness, with it .94.
pub(super) const FIRST: f32 = 1e-3;
/// Of so few hits in a row this probability is enough for a change of pattern: before them it was idle, and that says nothing of how
/// often it is accessed now. Guesses, by what `lab accuracy rates` shows in the first seconds of a phase.
pub(super) const BEGINS: (f32, f32) = (5.0, 1e-2);
/// Hits that are as good as none: a few stray pages of a cell.
pub(super) const NEXT_TO_NONE: f32 = 0.05;
/// Up to so many times more or less is about the same rate: what the hits of one window may be off by chance. With 8, hot cells
/// among cooler ones were taken for those.
pub(super) const LIKE: f32 = 2.5;
/// Weight of a hit that showed later than expected after a clear that flushed nothing.
pub(super) const LATE: f32 = 0.5;
/// Nats by which two rates must explain the checks of a stretch better than one does: of chance one in 3000 for each of seven
/// places, of checks that are independent of each other. With 5, F1 of the bytes
/// that a loop over 512 MiB accesses within a second falls from .93 to .90 (`tests/simulated/seconds.rs`).
pub(super) const PRICE_SIDES: f32 = 8.0;
/// So many times must the two differ: what is closer lies on one rung of the ladder.
pub(super) const APART_SIDES: f32 = 1.6;
/// Checks that a side must have had.
pub(super) const CHECKS_A_SIDE: f32 = 3.0;
/// Checks of a side differ by so much of their mean, at least: how many of a few pages are met differs by chance.
pub(super) const ALIKE_SIDES: f32 = 0.2;
/// Checks of an eighth of a stretch that are remembered, before all fade.
pub(super) const MOST_A_PLACE: f32 = 32.0;
/// Hits that what is known of a side is worth at most: part of them are of the time when neither rate was known.
pub(super) const SIDE_HITS: f32 = 3.0;
/// Exposure that memory which is not present is credited with: twice the longest window at the default attributes.
pub(super) const ABSENT: f32 = 40.0;
/// How many times as large as what is present memory that is not must be for a stretch to be mostly that.
pub(super) const MOSTLY: u64 = 32;
/// What appeared counts as accessed once in the time it appeared within and an eighth of the time since: at the end of
/// [`Tuning::appeared`] nearly all of it is in the working set of a second, at a rate of 4 Hz.
pub(super) const NEW_FADES: f32 = 8.0;
/// Weight of a window that tells only that the rate is no less.
pub(super) const BOUND: f32 = 0.4;
/// ... of a window of so many intervals or more: often all that is known for seconds, and one window without a hit is not to
/// make nothing of it.
pub(super) const LONG: (f32, f32) = (15.0, 0.75);
/// Changes along a cell from pages accessed to pages not, that a loop with two fronts makes.
pub(super) const RUN: u32 = 4;
/// So many must be expected of pages that are accessed at random for their number to tell: a guess.
pub(super) const TELLING: f32 = 10.0;
/// Observations that a cell counts as at most, where its pages are accessed each for itself. F1 of the bytes that `zipf` accesses
/// within a second (`tests/simulated/seconds.rs`) is .90 with 1, .95 with 16 and .954 with 32; windows of different kinds
/// differ by up to a quarter, which is no chance, so not all 64.
pub(super) const MOST_OBSERVATIONS: u8 = 32;
/// Windows of more than so many aggregations, in which memory that was idle was accessed, tell next to nothing of its rate.
pub(super) const LATE_LOOK: f32 = 2.0;
/// Shortest length that is believed of a window, in intervals: clocks and calls are no more exact.
pub(super) const SHORTEST: f32 = 0.1;
/// Exposure that counts of a cell, at most, where rates change: past it a few cells would outweigh all around them.
pub(super) const MOST_TELLING: f32 = 400.0;
/// ... and for the mean rate of cells of different rates. Between 20, where a loop's first hits would count three times over, and
/// 200, where what is idle outweighs what is accessed now and then. Without a limit changes of rate show too late.
pub(super) const WEIGHT: f32 = 100.0;
/// Counting takes time in proportion to what there is: of so many blocks, it is done once a sampling interval at most.
pub(super) const BLOCKS_A_COUNT: u64 = 8;
/// Blocks that are drawn anew in every aggregation; of so many times as many, in one of as many aggregations.
pub(super) const BLOCKS_A_DRAWING: u64 = 128;
/// Intervals after which a target is drawn anew in which nothing but small changes of rates was found: drawing is a sixth of all
/// cost if it is done in every aggregation.
pub(super) const REDRAWN: u64 = 100;
/// So many times sooner where memory appears: it counts as accessed for a second only.
pub(super) const GROWS_SOONER: u64 = 4;

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
    /// Shorter ones than 0.4 take more wake-ups and find changes later.
    pub window_hits: f32,
    /// Of the pages of a window so large a share must be left so that those go on being watched when others were accessed. At
    /// half, pages at even distances would be met a third too early; at three quarters, a sixth.
    pub rest_share: f32,
    /// For so long after a clear they tell a rate: 1 s, the window of working sets.
    pub rest_counts: u64,
    /// A hit, or a row of them, that was expected with so low a probability is a change of pattern.
    pub surprise_hit: f32,
    /// ... of a stretch's checks: there are fewer stretches than cells.
    pub surprise_row: f32,
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
    /// What was accessed and not heard of for so long is cleared again if there is nothing better to do: a quarter of the
    /// half-life, before what is known of it means little.
    pub forgotten: u64,
    /// See [`Self::half_life`].
    pub half_life_for: usize,
    /// See [`Self::half_life`].
    pub half_life_most: f32,
    /// For so long a page that appeared counts as accessed, and as unknown from then on unless it was cleared.
    pub appeared: u64,
    /// How often a target in which nothing appears is asked whether something does.
    pub survey_pause: u64,
    /// After a sweep, which flushes no translations, memory that was hot and shows idle may be in a TLB for so long: 0.55 s
    /// is the longest that was measured (a loop over 1 MiB).
    pub stale: u64,
    /// Nats a change of rate costs where none was drawn before. With 6, and with windows of half an access, neighbours of 10 to
    /// 50 Hz were told 39 % wrong on average instead of 28 % (`tests/simulated/rates.rs`), and hot memory was found no better;
    /// with 3 and 1.5 where one was drawn, a loop that passes over all of its memory at once 45 % instead of 38 %.
    pub price: f32,
    /// ... and where one was.
    pub price_known: f32,
    /// Share of the looks and clears an aggregation may spend on sweeps, percent.
    pub sweep_share: usize,
    /// Shortest time between two sweeps of a target.
    pub sweep_pause: u64,
    /// Targets with more pages than this, 1.5 GiB, are not swept, a mapping counted as a dozen: from Linux 6.5 on, all page faults
    /// of the target wait until a sweep is through, 15 to 20 ms for a GiB of small pages.
    pub longest_sweep: usize,
    /// How often memory of a target that does not run is credited with having been idle: it takes time in proportion to what
    /// there is, and nothing waits for it.
    pub rest_pause: u64,
    /// For so long a target must not have run so that its unwatched memory counts as idle.
    pub rest_least: f32,
    /// How often a target that does not run is looked at all the same.
    pub rest_look: u64,
    /// What is set aside for sweeps from the start, in clears: about half of the first second's budget.
    pub first_sweeps: usize,
    /// Aggregations' clears that a sweep of a target that was hardly seen may take on credit.
    pub lent: usize,
}

impl Tuning {
    /// The numbers in use.
    pub const DEFAULT: Self = Self {
        most_hits: 16.0,
        most_exposure: 2000.0,
        window_hits: 0.4,
        rest_share: 0.75,
        rest_counts: 200,
        surprise_hit: 1e-6,
        surprise_row: 1e-4,
        surprise_idle: 4.5,
        active: 0.005,
        check_pages: 32,
        checks_unsettled: 6,
        checks_share: 30,
        retry: 400,
        half_life: 400.0,
        forgotten: 100,
        half_life_for: 8,
        half_life_most: 16.0,
        appeared: 200,
        survey_pause: 60,
        stale: 110,
        price: 2.0,
        price_known: 1.0,
        sweep_share: 40,
        sweep_pause: 200,
        longest_sweep: 3 << 17,
        rest_pause: 100,
        rest_least: 200.0,
        rest_look: 6000,
        first_sweeps: 400,
        lent: 120,
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
