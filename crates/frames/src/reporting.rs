//! Taking free blocks off the lists, and giving them back when the host has seen them.

use core::fmt;

use crate::schedule::Due;
use crate::sink::{MAX_BATCH, ReportSink};
use crate::{Block, Frame, Order, ReportingConfig, Zone, ZoneError};

/// Pageblocks looked at while the zone's lock is held once, an even number.
const HOLD: usize = 64;

/// What [`Zone::take_batch`] has for the host.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "moved once a batch, and there is nowhere to allocate")]
pub enum Report<'z> {
    /// Blocks to report now. There may be more: ask again.
    Batch(Batch<'z>),
    /// Nothing now. Ask again at that time, or later.
    Later(u64),
    /// [`MAX_BATCH`] blocks are away already. Ask again when some are back.
    Full,
}

/// What [`Zone::report`] did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// So many blocks were reported. There may be more: call again.
    Reported(usize),
    /// Nothing was due. Call again at that time, or later.
    Later(u64),
    /// [`MAX_BATCH`] blocks are away through [`Zone::take_batch`]. Call again when some are back.
    Full,
}

/// Free blocks, 1 to [`MAX_BATCH`], isolated to be reported: nobody can allocate them until they are given back.
///
/// Dropped, they are given back as not reported.
#[must_use = "dropped, the blocks are given back as not reported"]
pub struct Batch<'z> {
    zone: &'z (dyn GiveBack + Sync),
    blocks: [Block; MAX_BATCH],
    len: usize,
    outcome: Outcome,
}

/// What became of a report.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Outcome {
    Reported,
    NotReported,
    Kept,
}

impl Batch<'_> {
    /// The blocks, all of the reporting order.
    #[must_use]
    pub fn blocks(&self) -> &[Block] {
        self.blocks.get(..self.len).unwrap_or_default()
    }

    /// Gives the blocks back: the host has acknowledged that they hold nothing. None is reported again before it has been
    /// allocated.
    pub fn reported(mut self) {
        self.outcome = Outcome::Reported;
    }

    /// Gives the blocks back as they were. Nothing is reported for the length of the delay.
    pub fn not_reported(self) {}

    /// Does not give the blocks back: the host may still take what they hold, and will not say when
    /// ([`ReportSink::keeps`]). From now on they count as allocated, and nobody has them.
    pub fn kept(mut self) {
        self.outcome = Outcome::Kept;
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        match self.outcome {
            Outcome::Kept => self.zone.keep_away(self.blocks().len()),
            outcome => self.zone.give_back(self.blocks(), outcome == Outcome::Reported),
        }
    }
}

impl fmt::Debug for Batch<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.blocks()).finish()
    }
}

/// What a batch knows of its zone; keeps the zone's own lifetime out of the batch's type.
trait GiveBack {
    fn give_back(&self, blocks: &[Block], reported: bool);
    fn keep_away(&self, blocks: usize);
}

impl GiveBack for Zone<'_> {
    fn give_back(&self, blocks: &[Block], reported: bool) {
        let mut core = self.core();
        for &block in blocks {
            if let Some(local) = self.spans().local(block) {
                core.buddy.give_back(local, block.order, reported);
            }
        }
        core.schedule.returned(blocks.len(), reported);
    }

    fn keep_away(&self, blocks: usize) {
        // Nothing is reported for the length of the delay, as after any failure.
        self.core().schedule.returned(blocks, false);
    }
}

impl Zone<'_> {
    /// Isolates blocks that are free and that the host does not know of, if a report is due: for hosts that answer later.
    /// Give the batch back by [`Batch::reported`] when the host has acknowledged. For hosts that answer at once there is
    /// [`Zone::report`].
    ///
    /// `now` is in nanoseconds since any fixed time. A report is due once [`threshold`] blocks have waited for [`delay`];
    /// from then on until none waits, or at once after [`Zone::sweep`]. Not while an allocation cannot find memory, nor
    /// if it would take what is free below the watermark `low` (as in Linux' `mm/page_reporting.c`).
    ///
    /// Caches that nobody has used for [`delay`] are drained on the way. Without reporting in the zone's configuration
    /// nothing is ever due.
    ///
    /// [`threshold`]: crate::ReportingConfig::threshold
    /// [`delay`]: crate::ReportingConfig::delay
    pub fn take_batch(&self, now: u64) -> Report<'_> {
        let mut core = self.core();
        let Some(config) = core.schedule.config() else { return Report::Later(u64::MAX) };
        if core.schedule.look_for_idle(now, config.delay) {
            drop(core);
            self.drain_idle();
            core = self.core();
        }
        let again = Report::Later(now.saturating_add(config.delay));
        if self.is_pressed() {
            return again;
        }
        if core.schedule.room() == 0 {
            return Report::Full;
        }
        let waiting = core.buddy.waiting();
        if let Due::At(time) = core.schedule.due(now, waiting, &config) {
            return Report::Later(time);
        }
        let least = self.watermarks().low.saturating_add(config.order.frames());
        let mut blocks = [Block::new(Frame(0), config.order); MAX_BATCH];
        let mut len = 0;
        for slot in blocks.iter_mut().take(core.schedule.room()) {
            if self.watermarks().low > 0 && core.buddy.free() < least {
                break;
            }
            let Some(local) = core.buddy.isolate() else { break };
            slot.frame = self.spans().frame(local);
            len += 1;
        }
        if len == 0 {
            return again;
        }
        core.schedule.taken(len);
        drop(core);
        Report::Batch(Batch { zone: self, blocks, len, outcome: Outcome::NotReported })
    }

    /// Reports one batch to `sink`, if one is due ([`Zone::take_batch`] says when), and returns when the host has
    /// acknowledged. Meanwhile others allocate and free as ever.
    ///
    /// # Errors
    /// The sink's. The blocks were given back, and are tried again after the delay; those that the host
    /// [keeps](ReportSink::keeps) are handed out no more.
    pub fn report<S: ReportSink + ?Sized>(&self, now: u64, sink: &mut S) -> Result<Progress, S::Error> {
        match self.take_batch(now) {
            Report::Batch(batch) => {
                if let Err(error) = sink.report(batch.blocks()) {
                    if sink.keeps(&error) {
                        batch.kept();
                    }
                    return Err(error);
                }
                let blocks = batch.blocks().len();
                batch.reported();
                Ok(Progress::Reported(blocks))
            }
            Report::Later(time) => Ok(Progress::Later(time)),
            Report::Full => Ok(Progress::Full),
        }
    }

    /// Has all free memory reported, whether or not it was before, and without threshold or delay: seed 003's hinting of
    /// the whole guest on request, before a migration say, by the same isolation and therefore without its race.
    /// [`Zone::report`] or [`Zone::take_batch`] then do it, batch by batch; as ever not where that would take what is free below `low`.
    pub fn sweep(&self) {
        self.drain_all();
        let pageblocks = self.core().buddy.pageblocks();
        // Piece by piece, so that nobody waits long for the lock. What is freed meanwhile waits anyway.
        for first in (0..pageblocks).step_by(HOLD) {
            self.core().buddy.mark(first, first + HOLD, true);
        }
        self.core().schedule.sweep();
    }

    /// Reports free memory like that from now on, or, with `None`, not until this is called again: while the zone is in use. What is
    /// away at the host comes back as ever, and what was reported is known to be while nothing is.
    ///
    /// # Errors
    /// [`ZoneError::ReportingOrder`]: the zone was made without reporting, or to report blocks of another order; its bitmap is of
    /// that.
    pub fn set_reporting(&self, config: Option<ReportingConfig>) -> Result<(), ZoneError> {
        let mut core = self.core();
        let (made, given) = (core.schedule.order(), config.map(|config| config.order));
        if made.is_none() || given.is_some_and(|given| Some(given) != made) {
            return Err(ZoneError::ReportingOrder { made, given });
        }
        core.schedule.set(config);
        Ok(())
    }

    /// Free blocks of each order, counted in pieces, and what is in caches and away.
    pub(crate) fn count(&self, counts: &mut [u64; Order::COUNT]) {
        let pageblocks = self.core().buddy.pageblocks();
        for first in (0..pageblocks).step_by(HOLD) {
            self.core().buddy.count(first, first + HOLD, counts);
        }
    }
}
