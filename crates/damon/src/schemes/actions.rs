//! What schemes need of their surroundings: something that acts, and something that measures.

use super::filter::OpsFilter;
use super::goal::GoalMetric;
use super::scheme::{Action, Node};
use super::watermark::WatermarkMetric;
use crate::{AddrRange, RegionSnapshot, TargetId};
use alloc::vec::Vec;

/// One action on one range.
#[derive(Clone, Copy, Debug)]
pub struct Request<'a> {
    /// Index of the scheme.
    pub scheme: usize,
    /// What to do.
    pub action: Action,
    /// In whose address space.
    pub target: TargetId,
    /// To which addresses: whole least regions, within one region; or a unit that was [`cut`](Outcome::cut).
    pub range: AddrRange,
    /// The memory around `range` that matches just as well. What cannot be divided, as a large folio, and reaches from
    /// `range` beyond it, may be acted on whole as long as it lies within.
    pub matches: AddrRange,
    /// What is known of the memory; its range is the part of the region that matched, of which `range` may be a part.
    pub region: &'a RegionSnapshot,
    /// Which pages of the range ([`passes`](super::passes)); all if there are none.
    pub filters: &'a [OpsFilter],
    /// Where to migrate to.
    pub nodes: &'a [Node],
    /// How long it should take at the most, in nanoseconds, where there is a quota. It does a least call, however long that
    /// takes, and no more for which the time is not enough; then it stops ([`Outcome::until`]).
    pub time_left_ns: Option<u64>,
    /// When the running window of the quota was opened ([`Moment::now_ns`](crate::Moment::now_ns)); `None` without a quota.
    pub window_ns: Option<u64>,
}

/// What came of a [`Request`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    /// Bytes on which the action took effect.
    pub applied: u64,
    /// Bytes present that passed the filters of the request.
    pub passed: u64,
    /// Bytes of the range at which there is nothing that the action could be for, or what goes with memory before the range.
    /// They were looked at, not tried. 0 in the kernel, which charges a quota for absent memory as well.
    pub skipped: u64,
    /// What cannot be divided, begins in the range, and goes on behind its end within [`Request::matches`]: it was left for a
    /// call of its own. Nothing from its start on was done.
    pub cut: Option<AddrRange>,
    /// It can be divided after all, and only costs less as a whole: where a window would be left with much unused for it, a part of
    /// it is asked for.
    pub divides: bool,
    /// Where it stopped, in the range, since what comes next would take longer than [`Request::time_left_ns`]: nothing from
    /// there on was tried. Or where it met with [`Self::refused`]. `None`: all of the range was dealt with.
    pub until: Option<u64>,
    /// Why it stopped at [`Self::until`], if not for want of time: what was done before stands, the rest is refused.
    pub refused: Option<Refusal>,
    /// How long it took, in nanoseconds of the caller's clock.
    pub took_ns: u64,
    /// How long it was kept from going on besides, as by other programs that had the CPU: that is no cost of the action, and is charged to
    /// no quota, but the pass is longer by it.
    pub waited_ns: u64,
}

/// Why nothing was done. It is not tried then, not charged, and ages stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// Not to this range.
    Range,
    /// To no range of this target in this pass: it is gone, or out of reach.
    Target,
    /// To nothing in this pass.
    Pass,
}

/// Does what schemes ask for. Implemented by the caller for its kind of address space (kernel: the operations set).
pub trait Actions {
    /// Applies an action to a range. [`Action::Stat`] is asked for only where there are filters, to count what passes them.
    ///
    /// An action that this kind of address space does not have is tried and does nothing, as in the kernel: an outcome of 0
    /// bytes.
    ///
    /// # Errors
    /// When nothing was done, and nothing tried.
    fn apply(&mut self, request: &Request<'_>) -> Result<Outcome, Refusal>;

    /// Appends where actions cleared the Accessed bits of pages that were accessed, and flushed their translations, since this
    /// was last called: to a sampler that is as good as a clear of its own, and it would lose what it had yet to see.
    fn take_cleared(&mut self, _cleared: &mut Vec<(TargetId, AddrRange)>) {}
}

/// Measures what goals and watermarks go by. `None`: it cannot be read; what depends on it does nothing then.
pub trait Metrics {
    /// The metric of a goal of the scheme of this index, in the metric's unit. Never asked for [`GoalMetric::UserInput`].
    fn goal(&mut self, _scheme: usize, _metric: &GoalMetric) -> Option<u64> {
        None
    }

    /// The metric of a watermark, in the metric's unit.
    fn watermark(&mut self, _metric: WatermarkMetric) -> Option<u64> {
        None
    }
}

/// Measures nothing.
impl Metrics for () {}
