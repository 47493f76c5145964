//! Every number of the estimator that is a choice, with the reason for it, in one table.
//!
//! What is not a measurement or a rule was settled in simulations. `isotherm lab ablate NAME` repeats them with a constant and
//! without it, or at half and double where there is no without, and prints what that does to accuracy and cost; without a NAME,
//! of all of the table. `tests/simulated` holds what came of it.

use core::time::Duration;

/// What a range is as dear as, in pages. Measured: 6 us for its flush, and .5 us a page for reading its entry and its frame's folio
/// and for the kernel's part; a call is 35 us.
pub(super) const PAGES_A_RANGE: usize = 12;
/// Pages of a clear, with what ranges cost: two thirds of a cell by itself.
pub(super) const PAGES_A_CLEAR: usize = 50;
/// Pages that take a sweep as long as a mapping does. Measured: 0.65 us a mapping of 65,000, 54 ns a page.
pub(super) const PAGES_A_MAPPING: usize = 12;
/// Shortest length that is believed of a window, in intervals: clocks and calls are no more exact.
pub(super) const SHORTEST: f32 = 0.1;

/// So many that it never comes to that.
const NEVER: f64 = 1e15;
const INFINITE: f64 = f64::INFINITY;

/// A constant of the estimator: a field of [`Tuning`].
#[derive(Clone, Copy, Debug)]
pub struct Constant {
    /// The field's name.
    pub name: &'static str,
    /// What it is, and the reason or the experiment that set it.
    pub reason: &'static str,
    /// The value in use; in milliseconds, where `least` says so.
    pub default: f64,
    /// A time in milliseconds, of no fewer sampling intervals than that however long they are; `None`: no time.
    pub least: Option<u32>,
    /// The value that takes away what it stands for; `None` where there is no without.
    pub without: Option<f64>,
    /// Its value.
    pub get: fn(&Tuning) -> f64,
    /// Gives it another one, rounded and cut off to what its type can hold.
    pub set: fn(&mut Tuning, f64),
}

/// A number of any of the table's types.
trait Number: Copy {
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
}

macro_rules! whole {
    ($($type:ty),*) => {
        $(impl Number for $type {
            fn of(value: f64) -> Self {
                // Saturates.
                (value + 0.5) as Self
            }

            fn value(self) -> f64 {
                self as f64
            }
        })*
    };
}

whole!(u8, u32, u64, usize);

impl Number for f32 {
    fn of(value: f64) -> Self {
        value as Self
    }

    fn value(self) -> f64 {
        f64::from(self)
    }
}

macro_rules! least {
    (ms $least:literal) => {
        Some($least)
    };
    () => {
        None
    };
}

macro_rules! without {
    (without $value:expr) => {
        Some($value)
    };
    (variants) => {
        None
    };
}

/// Of each row of the table a field, its default, and its entry in the list.
macro_rules! table {
    ($($(#[doc = $reason:literal])+ $name:ident: $type:ty = $default:expr, $how:ident $($without:expr)? $(, ms $least:literal)?;)+) => {
        /// The numbers of [`super::Watch`]. Times, which have an `ms` in the table, are in milliseconds; in sampling intervals
        /// once the estimator has taken them over.
        #[derive(Clone, Copy, Debug, PartialEq)]
        pub struct Tuning {
            $($(#[doc = $reason])+ pub $name: $type,)+
        }

        impl Tuning {
            /// The numbers in use.
            pub const DEFAULT: Self = Self { $($name: $default,)+ };

            /// All of them by name.
            pub const CONSTANTS: &'static [Constant] = &[
                $(Constant {
                    name: stringify!($name),
                    reason: concat!($($reason),+),
                    default: $default as f64,
                    least: least!($(ms $least)?),
                    without: without!($how $($without)?),
                    get: |tuning| tuning.$name.value(),
                    set: |tuning, value| tuning.$name = <$type>::of(value),
                },)+
            ];
        }
    };
}

table! {
    /// Targets from which on it matters more to see something of each than all of any.
    many: usize = 16, without NEVER;
    /// As long as more than a quarter of many targets wait to be seen, what is seen already gets so many times less, and that in one
    /// of so many aggregations; checks in one of [`Self::soon`].
    crowded: usize = 4, without 1.0;
    /// See [`Self::crowded`].
    crowded_turn: usize = 50, without 1.0;
    /// Part of an aggregation, percent, after which a target that was swept is looked at, of many: aggregations come late then,
    /// and of what is looked at late it is known only that it is accessed, not that it is hot. 60 ms: what is accessed 20 times a
    /// second shows. Of aggregations of less than four intervals that is their end all the same.
    in_time: u64 = 60, without 100.0;
    /// Aggregations that one which came late may stand for.
    late_by: u64 = 8, without 1.0;
    /// Checks that are saved up meanwhile at most.
    checks_saved: usize = 8, variants;
    /// Places of a target at which memory appears that are followed at once: an allocator has a handful.
    most_fronts: usize = 32, without NEVER;
    /// As long as no more targets run, each is asked often where it has memory; of more, those where memory appeared not long ago, and
    /// no more than that many in one aggregation.
    few: usize = 4, variants;
    /// How many times as seldom targets are asked whether they ran where most did.
    asked_less: usize = 4, without 1.0;
    /// Aggregations within which all are asked, whatever it costs: 5 s.
    asked_within: usize = 50, without NEVER;
    /// Clears that are worth a call of their own: a call costs 60 us, with the looks before and after, and one of these 25.
    batch: usize = 8, without 1.0;
    /// What this many aggregations give is waited for.
    soon: usize = 10, variants;
    /// As often a sweep is put off, at most: more than twice as often as its price takes to come in.
    put_off: usize = 50, without 0.0;
    /// Part of what was saved up that may be spent in one aggregation.
    saved: usize = 4, without 1.0;
    /// Without a ceiling there is still no use in more clears than this in an aggregation.
    enough: usize = 4000, without NEVER;
    /// Most wake-ups of an aggregation with checks: for clearing, for windows of 1, 2, 4 and 8 intervals, and at the end.
    round: usize = 6, variants;
    /// Aggregations' clears (of half a [`Self::batch`] at least) that are saved up from which on there are checks in each, whatever
    /// wake-ups were planned: those are counted in whole ones, and a third of the ceiling stayed unspent
    /// (`tests/simulated/bursts.rs`). How many is a guess.
    rich: usize = 8, without NEVER;
    /// Hits that a cell's evidence is worth at most: more make rates steadier and changes slower to show. With 16, the
    /// spread of a rate is a quarter (1/sqrt(16)).
    most_hits: f32 = 16.0, without INFINITE;
    /// Exposure that idle memory is credited with at most. Past it an access is a surprise anyway.
    most_exposure: f32 = 10000.0, without INFINITE, ms 200;
    /// A window is as long as it takes for this many accesses to be expected. Short windows make no difference between
    /// periodic and random accesses: of both, a share of rate x length is hit; past 1 they differ by up to 2.
    /// Shorter ones than 0.4 take more wake-ups and find changes later.
    window_hits: f32 = 0.4, variants;
    /// Of the pages of a window so large a share must be left so that those go on being watched when others were accessed. At
    /// half, pages at even distances would be met a third too early; at three quarters, a sixth.
    rest_share: f32 = 0.75, without 1.0;
    /// So many accesses to them must be missing, where each page goes by itself, that they are not those that are accessed: a guess.
    missing: f32 = 10.0, without INFINITE;
    /// For so long after a clear they tell a rate: 1 s, the window of working sets.
    rest_counts: u64 = 1000, without NEVER, ms 20;
    /// A hit, or a row of them, that was expected with so low a probability is a change of pattern.
    surprise_hit: f32 = 1e-6, without 0.0;
    /// ... of a stretch's checks: there are fewer stretches than cells.
    surprise_row: f32 = 1e-4, without 0.0;
    /// So many accesses expected since the last hit are a change of pattern: exp(-4.5) is one in 90.
    surprise_idle: f32 = 4.5, without INFINITE;
    /// Access probability an interval from which memory is checked by turns instead of being watched without end: below
    /// it (1 Hz) cleared pages stay clear for whole aggregations and show each access by themselves.
    active: f32 = 0.005, variants;
    /// ... of all checks of a stretch together, of what is accessed a few times a second. Memory that is accessed all at once at random
    /// times may become unknown for a moment by it; with 6 a loop that has ended is shown for twice as long
    /// (`tests/simulated/bursts.rs`).
    over: f32 = 4.5, without INFINITE;
    /// Hits that the evidence of a stretch slower than [`Self::fast`] keeps when it is drawn anew from its cells, of which each counts
    /// little: a loop over 300 MiB at 2 Hz was told by what one pass had shown, at .7 to 4 Hz. With 4 it is told for twice as long
    /// after it ended (`tests/simulated/bursts.rs`).
    deep_hits: f32 = 10.0, without 0.001;
    /// Pages of a check. Of each the kernel's record is read, which is in no cache: with 32 a tenth of all cost, by a profile. Past 33
    /// the kernel flushes all of a processor's translations instead of one by one. With 8, 16 or 32 rates are told as well
    /// (`tests/simulated/rates.rs`); 16 are a folio of 64 KiB.
    check_pages: u32 = 16, without 64.0;
    /// Checks of a stretch of which little is known, and of one whose last check was a surprise.
    checks_unsettled: usize = 6, without 1.0;
    /// Of what is accessed at least so often, 6 Hz, and spans 4 MiB, so many times as many checks: where neighbours lie together in it,
    /// they are told apart the sooner.
    fast: f32 = 0.03, without INFINITE;
    /// How many times as many; see [`Self::fast`].
    checks_fast: usize = 2, without 1.0;
    /// Checks of a stretch that is as fast, if nothing is unsettled about it: two of one moment tell what one each at two do not, whether
    /// its parts differ.
    checks_settled: usize = 3, without 1.0;
    /// Checks of neighbours that fell silent, at two moments or more and none accessed in between, that speak for each of them of which
    /// one did. Without it F1 of two halves of which a loop is in one by turns is .907 where there is a quarter of the ceiling to
    /// spend, with it .953 (`tests/simulated/poor.rs`).
    quiet_checks: usize = 3, without NEVER;
    /// ... within so long; what a check showed longer ago says nothing of those of now. A guess.
    quiet_for: u64 = 1000, without 0.0, ms 10;
    /// ... if it has so many cells: of fewer, those that were just hit would be asked again and again.
    settled_cells: u32 = 32, without 1.0;
    /// Cells of a target whose folios are larger than a check, from which on all its checks are of whole cells: each finds out by a
    /// check that tells nothing.
    larger_folios: u32 = 8, without 1e9;
    /// Share of idle pages of a stretch from which on its rate is that of the others. A guess.
    sparse: f32 = 0.2, without 1.0;
    /// Share of what may be cleared that checks of hot memory may take while other memory waits to be seen at all, percent.
    checks_share: usize = 30, without 100.0;
    /// Of what checks leave, the share that what was accessed and is forgotten gets before anything else, percent.
    forgotten_share: usize = 50, without 0.0;
    /// Cells that could not be observed are tried again after so long: 2 s, the time in which all must be seen again after
    /// a fork.
    retry: u64 = 2000, variants, ms 20;
    /// Half-life of evidence that nothing renews, of so many targets that run, or fewer. Of more it is as many times longer, up
    /// to so many times: each has its turn less often, and what was hot when it was last looked at is more likely hot than not.
    half_life: f32 = 2000.0, without INFINITE, ms 100;
    /// What was accessed and not heard of for so long is cleared again if there is nothing better to do: a quarter of the
    /// half-life, before what is known of it means little.
    forgotten: u64 = 500, without NEVER, ms 25;
    /// See [`Self::half_life`]. With 8, two of eight Python workers were unknown within ten seconds at the usual ceiling, with 4 none:
    /// one and two runs.
    half_life_for: usize = 4, variants;
    /// See [`Self::half_life`].
    half_life_most: f32 = 16.0, without 1.0;
    /// For so long a page that appeared counts as accessed, and as unknown from then on unless it was cleared.
    appeared: u64 = 1000, without 0.0, ms 1;
    /// How often a target that runs and in which nothing appears is asked whether something does. In each
    /// aggregation that was 7 % of all cost, by a profile.
    survey_pause: u64 = 300, without 0.0, ms 3;
    /// After a sweep, which flushes no translations, memory that was hot and shows idle may be in a TLB for so long: 0.55 s
    /// is the longest that was measured (a loop over 1 MiB).
    stale: u64 = 550, without 0.0, ms 1;
    /// Nats a change of rate costs where none was drawn before. With 6, and with windows of half an access, neighbours of 10 to
    /// 50 Hz were told 39 % wrong on average instead of 28 % (`tests/simulated/rates.rs`), and hot memory was found no better;
    /// with 3 and 1.5 where one was drawn, a loop that passes over all of its memory at once 45 % instead of 38 %.
    price: f32 = 2.0, variants;
    /// ... and where one was.
    price_known: f32 = 1.0, without 2.0;
    /// Share of the looks and clears an aggregation may spend on sweeps, percent. With 40 a third of PostgreSQL's buffers was unknown on
    /// average over half a minute, with 80 a sixth; past 60 what appears (`front`) is seen later.
    sweep_share: usize = 60, without 0.0;
    /// Shortest time between two sweeps of a target.
    sweep_pause: u64 = 1000, without 0.0, ms 20;
    /// Sweeps in a row after which all of what others map may be accessed again before the look, to be believed. On two processors with six
    /// busy loops 64 MiB written every 10 ms were unknown for seconds without it.
    again: u8 = 4, without 0.0;
    /// Targets with more pages than this, 1.5 GiB, are not swept, a mapping counted as a dozen: from Linux 6.5 on, all page faults
    /// of the target wait until a sweep is through, 15 to 20 ms for a GiB of small pages.
    longest_sweep: usize = 3 << 17, without NEVER;
    /// How often memory of a target that does not run is credited with having been idle: it takes time in proportion to what
    /// there is, and nothing waits for it.
    rest_pause: u64 = 500, without 0.0, ms 1;
    /// For so long a target must not have run so that its unwatched memory counts as idle.
    rest_least: f32 = 1000.0, without 0.0, ms 1;
    /// How often a target that does not run is looked at all the same.
    rest_look: u64 = 30000, without NEVER, ms 1;
    /// What is set aside for sweeps from the start, in clears: about the first second's budget. With less `zipf` is told worse
    /// (`tests/simulated/busy.rs`).
    first_sweeps: usize = 400, without 0.0;
    /// Aggregations' clears that a sweep of a target that was hardly seen may take on credit.
    lent: usize = 120, without 0.0;
    /// How many times more or less pages hit than expected are a change of pattern, when neither all are nor none.
    apart: f32 = 4.0, without INFINITE;
    /// ... if it differs by more than 3.5 standard deviations (12 is the square) of what chance gives so many pages: of a hundred checks
    /// of 32 pages at 40 Hz, one showed a fourth of what was expected.
    no_chance: f32 = 12.0, without 0.0;
    /// The first hits since long are a change of pattern if they came so late with no more than this probability: a guess. Without it F1
    /// of the bytes that `zipf` accesses within a second is .50 when it begins after 3 s of idleness, with it .94.
    first: f32 = 1e-3, without 0.0;
    /// ... where no more than the window's own length was known before it.
    first_short: f32 = 0.05, without 1e-3;
    /// Exposure that such a window counts as, at most: for how much of it the pages were accessed is not known, and what is left of them
    /// will tell. Without it F1 of such bytes is .87 where there is a quarter of the ceiling to spend, with it .905
    /// (`tests/simulated/poor.rs`).
    began: f32 = 100.0, without INFINITE, ms 1;
    /// Of so few hits in a row this probability is enough for a change of pattern: before them it was idle, and that says nothing of how
    /// often it is accessed now. Guesses, by what `lab accuracy rates` shows in the first seconds of a phase.
    begins_hits: f32 = 5.0, without 0.0;
    /// See [`Self::begins_hits`].
    begins_chance: f32 = 1e-2, variants;
    /// Hits that are as good as none: a few stray pages of a cell.
    next_to_none: f32 = 0.05, without 1e-30;
    /// Up to so many times more or less is about the same rate: what the hits of one window may be off by chance. With 8, hot cells
    /// among cooler ones were taken for those.
    like: f32 = 2.5, variants;
    /// Weight of a hit that showed later than expected after a clear that flushed nothing.
    late: f32 = 0.5, without 1.0;
    /// Nats by which two rates must explain the checks of a stretch better than one does: of chance one in 3000 for each of seven
    /// places, of checks that are independent of each other. With 5, F1 of the bytes
    /// that a loop over 512 MiB accesses within a second falls from .93 to .90 (`tests/simulated/seconds.rs`).
    price_sides: f32 = 8.0, without INFINITE;
    /// So many times must the two differ: what is closer lies on one rung of the ladder.
    apart_sides: f32 = 1.6, without 1.0;
    /// How often checks may come at once because something changed, rather than at a random moment: once a second.
    hurries: u64 = 1000, without 1.0, ms 1;
    /// Neighbours of different rates are drawn as two for so long, 4 s, also while the rates that are known of them are alike.
    apart_for: u64 = 4000, without 0.0, ms 200;
    /// Checks of either side of a border that make an observation of how much those differ. With one, a loop's front that is met by it
    /// sets it apart from all others.
    checks_a_side: f32 = 2.0, without 1.0;
    /// Observations there must be: a loop that passes over all of its memory at once is met at one point by all checks of one moment.
    moments: f32 = 3.0, without 1.0;
    /// Nats by which they must speak for two rates.
    price_moments: f32 = 3.0, without 0.0;
    /// A stretch of no more than so many times the cells that were checked is idle when those are; of a larger one what was not checked
    /// is unknown. Without it a tenth of 300 MiB that stayed in use when the rest fell silent was told idle for 600 ms, and paged out
    /// (`tests/schemes/whole.rs`).
    checks_cover: usize = 4, without NEVER;
    /// Checks of a stretch that are remembered.
    most_checks: f32 = 128.0, without INFINITE;
    /// Observations of a border that are remembered, before all fade.
    most_moments: f32 = 32.0, without INFINITE;
    /// What the sides of a border differ by at one moment is chance by so much of the mean share, at least.
    alike_sides: f32 = 0.2, without 0.0;
    /// Checks of one moment of a stretch that tell where it is accessed; more are a sweep.
    checks_told: usize = 64, without 0.0;
    /// Hits of checks of a stretch that are remembered as they are.
    sides_hits: f32 = 9.0, without INFINITE;
    /// What is left of them, and of exposure, with each later moment of checks.
    side_fades: f32 = 0.85, without 1.0;
    /// Hits that what is known of a side is worth at most: part of them are of the time when neither rate was known.
    side_hits: f32 = 3.0, without INFINITE;
    /// Exposure that memory which is not present is credited with: twice the longest window at the default attributes.
    absent: f32 = 200.0, variants, ms 2;
    /// How many times as large as what is present memory that is not must be for a stretch to be mostly that.
    mostly: u64 = 32, without NEVER;
    /// What appeared counts as accessed once in the time it appeared within and an eighth of the time since: at the end of
    /// [`Self::appeared`] nearly all of it is in the working set of a second, at a rate of 4 Hz.
    new_fades: f32 = 8.0, variants;
    /// Weight of a window that tells only that the rate is no less.
    bound: f32 = 0.4, without 1.0;
    /// ... of a window of so many intervals or more: often all that is known for seconds, and one window without a hit is not to
    /// make nothing of it.
    bound_long: f32 = 75.0, without INFINITE, ms 2;
    /// See [`Self::bound_long`].
    bound_long_weight: f32 = 0.75, variants;
    /// Changes along a cell from pages accessed to pages not, that a loop with two fronts makes.
    run: u32 = 4, without 0.0;
    /// Neighbouring pages that are a piece of hot memory rather than chance hits, to be watched again soon: a guess.
    piece_pages: u32 = 4, without 65.0;
    /// So many must be expected of pages that are accessed at random for their number to tell: a guess.
    telling: f32 = 10.0, variants;
    /// Observations that a cell counts as at most, where its pages are accessed each for itself. F1 of the bytes that `zipf` accesses
    /// within a second (`tests/simulated/seconds.rs`) is .90 with 1, .95 with 16 and .954 with 32; windows of different kinds
    /// differ by up to a quarter, which is no chance, so not all 64.
    most_observations: u8 = 32, without 1.0;
    /// Windows of more than so many aggregations, in which memory that was idle was accessed, tell next to nothing of its rate.
    late_look: f32 = 2.0, without INFINITE;
    /// Exposure that counts of a cell, at most, where rates change: past it a few cells would outweigh all around them.
    most_telling: f32 = 2000.0, without INFINITE, ms 40;
    /// ... and for the mean rate of cells of different rates. Between 20, where a loop's first hits would count three times over, and
    /// 200, where what is idle outweighs what is accessed now and then. Without a limit changes of rate show too late.
    weight: f32 = 500.0, without INFINITE, ms 10;
    /// Counting takes time in proportion to what there is: of so many blocks, it is done once a sampling interval at most.
    blocks_a_count: u64 = 8, without NEVER;
    /// Blocks that are drawn anew in every aggregation; of so many times as many, in one of as many aggregations.
    blocks_a_drawing: u64 = 128, without NEVER;
    /// Intervals after which a target is drawn anew in which nothing but small changes of rates was found: drawing is a sixth of all
    /// cost if it is done in every aggregation.
    redrawn: u64 = 500, without 0.0, ms 20;
    /// So many times sooner where memory appears: it counts as accessed for a second only.
    grows_sooner: u64 = 4, without 1.0;
    /// Nats by which a cell without evidence is likelier to lie in an unknown stretch than in a known one.
    likelier_unknown: f32 = 1.0, without 0.0;
    /// The same of a cell that was not tried: 16 of them, 4 MiB, stand apart from what was seen on both sides. With .05 the 4 MiB in use
    /// of each of 32 processes were told idle for ten seconds, as what lay beside them was.
    untried_unknown: f32 = 0.3, without 0.0;
    /// ... and of one that appeared and was not heard of since: 20 of them, 5 MiB, stand apart from what was seen on both
    /// sides, the few between cells that are seen one by one do not. A guess.
    appeared_unknown: f32 = 0.3, without 0.0;
    /// Hits of a cell that was accessed and is not watched that count when it is drawn, if it had as many, however long ago: with less it
    /// goes with the idle memory beside it (`tests/simulated/pieces.rs`).
    lit_hits: f32 = 0.4, without 0.0;
    /// As how many cells one counts of which, accessed when it was last heard of, nothing is known any more: idle it is not. A guess.
    forgotten_unknown: f32 = 4.0, without 1.0;
    /// Nats by which a cell with evidence is likelier to lie in a known stretch than in an unknown one.
    likelier_known: f32 = 3.0, without 0.0;
    /// ... and for each of its hits, up to so many: one cell that was seen hot twice stands out of what is unknown on both
    /// sides, which takes two changes at the usual price.
    likelier_hit: f32 = 2.0, without 0.0;
    /// See [`Self::likelier_hit`].
    hits_at_most: f32 = 3.0, variants;
    /// Pages whose bits others took, of late, from which on that is believed: a guess.
    few_taken: f32 = 32.0, without INFINITE;
    /// Exposure from which on idle cells are all alike.
    long_idle: f32 = 1000.0, variants, ms 20;
    /// Hits from which, or exposure from which, the sum of a stretch's evidence makes its rate known: about one access, or as
    /// much exposure as half an aggregation of DAMON's defaults has looks at a page.
    known_hits: f32 = 0.7, variants;
    /// See [`Self::known_hits`].
    known_exposure: f32 = 50.0, variants, ms 1;
}

impl Tuning {
    /// With times in sampling intervals of so long.
    ///
    /// They are rounded, and never fewer intervals than the table says: what is believed for a while must outlast a few
    /// aggregations, however long those are.
    pub(super) fn in_intervals(mut self, sample: Duration) -> Self {
        let intervals_a_ms = 1e6 / (sample.as_nanos().max(1) as f64);
        for constant in Self::CONSTANTS {
            let Some(least) = constant.least else { continue };
            let ms = (constant.get)(&self);
            // Nothing stays nothing: that is without.
            if ms > 0.0 {
                (constant.set)(&mut self, (ms * intervals_a_ms).max(f64::from(least)));
            }
        }
        self
    }

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

/// The numbers in use, with times in the sampling intervals that are the default.
#[cfg(test)]
pub(super) static AT_5_MS: std::sync::LazyLock<Tuning> =
    std::sync::LazyLock::new(|| Tuning::DEFAULT.in_intervals(Duration::from_millis(5)));

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_constant_has_a_reason_and_can_be_set() {
        for constant in Tuning::CONSTANTS {
            let mut tuning = Tuning::DEFAULT;
            assert!((constant.get)(&tuning) as f32 == constant.default as f32, "{}", constant.name);
            assert!(constant.reason.len() > 20 && constant.default > 0.0, "{}", constant.name);
            assert_ne!(constant.without, Some(constant.default), "{}", constant.name);
            let other = constant.without.unwrap_or(constant.default * 2.0);
            (constant.set)(&mut tuning, other);
            assert!((constant.get)(&tuning) as f32 == other as f32, "{}", constant.name);
            assert_ne!(tuning, Tuning::DEFAULT, "{}", constant.name);
            (constant.set)(&mut tuning, constant.default);
            assert_eq!(tuning, Tuning::DEFAULT, "{}", constant.name);
        }
    }

    #[test]
    fn times_are_the_same_at_every_interval_and_no_shorter_than_it_takes_to_hear_of_anything() {
        let at = |us: u64| Tuning::DEFAULT.in_intervals(Duration::from_micros(us));
        assert_eq!([at(1000).appeared, at(5000).appeared, at(50_000).appeared], [1000, 200, 20]);
        assert_eq!([at(1000).half_life, at(20_000).half_life, at(50_000).half_life], [2000.0, 100.0, 100.0]);
        assert_eq!((at(10_000_000).appeared, at(1).stale), (1, 550_000));
        let without = Tuning { stale: 0, ..Tuning::DEFAULT };
        assert_eq!(without.in_intervals(Duration::from_millis(5)).stale, 0);
    }
}
