//! Pairs: the same work timed with and without the monitor.
//!
//! A machine's speed drifts (frequency, neighbours, page placement), by more than a good monitor costs. So the same
//! work is timed with and without the monitor in turn, close together, and only the two times of a *pair* are
//! compared; the drift between pairs falls out. Changing the order from pair to pair (without, with; with, without)
//! also takes out what is left of a steady drift. The spread is that of the pairs' slowdowns.
//!
//! Pairs can be whole runs, or spans of one run between which the monitor is attached and detached
//! ([`pairs_of_work`]): the same process on the same pages.

use crate::statistics::{mean, median};
use isotherm_workloads::truth::WorkLine;
use serde::Serialize;

/// The same work timed twice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Pair {
    /// Without the monitor, ns.
    pub without_ns: f64,
    /// With it, ns.
    pub with_ns: f64,
}

impl Pair {
    /// The share by which the monitor made the work slower: 0.01 is 1 %; negative when it was faster by chance.
    pub fn slowdown(&self) -> f64 {
        self.with_ns / self.without_ns - 1.0
    }
}

/// A span of time in which the monitor was attached, or was not, throughout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Span {
    /// First moment, CLOCK_MONOTONIC ns.
    pub start_ns: u64,
    /// First moment after it.
    pub end_ns: u64,
    /// Whether the monitor was attached.
    pub monitored: bool,
}

impl Span {
    /// Whether a piece of work lies wholly inside.
    pub fn holds(&self, work: &WorkLine) -> bool {
        self.start_ns <= work.start_ns && work.end_ns <= self.end_ns
    }
}

/// Which time of a piece of work counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Time {
    /// From its start to its end: what a user waits.
    #[default]
    Wall,
    /// CPU time of the working thread: holds what the monitor does to it (interrupts, flushed TLB entries) but not
    /// the time in which something else had the CPU. For machines that are shared.
    Cpu,
}

/// What stands for the pieces of work in a span.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Centre {
    /// All of them alike.
    #[default]
    Mean,
    /// The middle one: a disturbance from outside that hits fewer than half of them does not count. Fair only when a
    /// piece takes longer than an aggregation interval, so that each holds all that the monitor does.
    Median,
}

/// Makes pairs of the timed pieces of work of one run. `spans` come in time order; the first and second make a pair,
/// the third and fourth the next, and so on, in whichever order each is. A span's time is the centre of the pieces
/// that lie wholly inside it. Pairs with an empty span, or with two of a kind, are left out.
pub fn pairs_of_work(work: &[WorkLine], spans: &[Span], time: Time, centre: Centre) -> Vec<Pair> {
    let pair = |spans: &[Span]| {
        let (without, with) = match spans {
            [a, b] if !a.monitored && b.monitored => (a, b),
            [a, b] if a.monitored && !b.monitored => (b, a),
            _ => return None,
        };
        Pair::of(work, without, with, time, centre)
    };
    spans.chunks(2).filter_map(pair).collect()
}

/// Makes pairs of neighbouring spans of one kind, as an order that changes from pair to pair leaves them: the second
/// and third, the fourth and fifth, ... Their true slowdown is 0, so theirs is what chance alone shows at that time.
/// Which of the two is called monitored changes from pair to pair, so that a steady drift falls out here too.
pub fn pairs_of_likes(work: &[WorkLine], spans: &[Span], time: Time, centre: Centre) -> Vec<Pair> {
    let pairs = spans.get(1..).unwrap_or_default().chunks(2).enumerate();
    let pair = |(index, spans): (usize, &[Span])| match spans {
        [a, b] if a.monitored == b.monitored => {
            let (first, second) = if index % 2 == 0 { (a, b) } else { (b, a) };
            Pair::of(work, first, second, time, centre)
        }
        _ => None,
    };
    pairs.filter_map(pair).collect()
}

impl Pair {
    fn of(work: &[WorkLine], without: &Span, with: &Span, time: Time, centre: Centre) -> Option<Self> {
        let of_span = |span: &Span| {
            let times: Vec<f64> = work
                .iter()
                .filter(|w| span.holds(w))
                .map(|w| match time {
                    Time::Wall => w.end_ns.saturating_sub(w.start_ns) as f64,
                    Time::Cpu => w.cpu_ns as f64,
                })
                .collect();
            let ns = match centre {
                Centre::Mean => mean(&times)?,
                Centre::Median => median(&times)?,
            };
            (ns > 0.0).then_some(ns)
        };
        Some(Self { without_ns: of_span(without)?, with_ns: of_span(with)? })
    }
}

/// Joins successive pieces of work to ones that take `least_ns` or longer, all of as many pieces as another, so that
/// [`Centre::Median`] is fair to them. `work` comes in time order; a joined piece lies wholly inside one of `spans`, and
/// what is left over at a span's end is left out.
pub fn grouped(work: &[WorkLine], spans: &[Span], least_ns: u64) -> Vec<WorkLine> {
    let inside: Vec<Vec<&WorkLine>> =
        spans.iter().map(|s| work.iter().filter(|w| s.holds(w)).collect()).collect();
    let times: Vec<f64> =
        inside.iter().flatten().map(|w| w.end_ns.saturating_sub(w.start_ns) as f64).collect();
    let Some(typical) = median(&times).filter(|&ns| ns > 0.0) else { return Vec::new() };
    // At most as many as there are pieces: a group that long is never full, and none is made.
    let pieces = ((least_ns as f64 / typical).ceil().max(1.0) as usize).min(times.len().max(1));
    let join = |group: &[&WorkLine]| {
        let (first, last) = (*group.first()?, *group.last()?);
        let mut joined = first.clone();
        joined.end_ns = last.end_ns;
        joined.cpu_ns = group.iter().map(|w| w.cpu_ns).sum();
        joined.touches = group.iter().map(|w| w.touches).sum();
        joined.bytes = group.iter().map(|w| w.bytes).sum();
        Some(joined)
    };
    inside.iter().flat_map(|pieces_of_span| pieces_of_span.chunks_exact(pieces).filter_map(join)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(start_ns: u64, end_ns: u64) -> WorkLine {
        WorkLine { phase: 0, area: "a".into(), start_ns, end_ns, cpu_ns: 3, touches: 1, bytes: 64 }
    }

    fn span(start_ns: u64, end_ns: u64, monitored: bool) -> Span {
        Span { start_ns, end_ns, monitored }
    }

    #[test]
    fn work_is_paired_in_either_order_and_pieces_across_a_border_are_left_out() {
        let work: Vec<_> = [(0, 10), (10, 20), (20, 32), (35, 47), (47, 58), (58, 69), (72, 82)]
            .map(|(s, e)| piece(s, e))
            .into_iter()
            .collect();
        let spans = [span(0, 20, false), span(20, 50, true), span(50, 70, true), span(70, 90, false)];
        let pairs = |spans: &[Span]| pairs_of_work(&work, spans, Time::Wall, Centre::Mean);
        // The piece 47..58 lies in no span.
        assert_eq!(
            pairs(&spans),
            [Pair { without_ns: 10.0, with_ns: 12.0 }, Pair { without_ns: 10.0, with_ns: 11.0 }]
        );
        assert_eq!(pairs(&[span(0, 20, false), span(20, 50, false)]), []);
        assert_eq!(pairs(&[span(0, 20, false), span(20, 25, true)]), []);
        assert_eq!(pairs(&[span(0, 20, false)]), []);
    }

    #[test]
    fn likes_are_paired_with_likes_and_drift_falls_out() {
        // Without, with, with, without, without, with, with, without; work that slows down steadily.
        let kinds = [false, true, true, false, false, true, true, false];
        let spans: Vec<_> = (0..).zip(kinds).map(|(i, m)| span(i * 1000, i * 1000 + 1000, m)).collect();
        let work: Vec<_> = (0..8).map(|i| piece(i * 1000, i * 1000 + 100 + i)).collect();
        let pairs = pairs_of_likes(&work, &spans, Time::Wall, Centre::Mean);
        let pair = |without_ns, with_ns| Pair { without_ns, with_ns };
        assert_eq!(pairs, [pair(101.0, 102.0), pair(104.0, 103.0), pair(105.0, 106.0)]);
        assert_eq!(pairs_of_likes(&work, &spans[..2], Time::Wall, Centre::Mean), []);
        assert_eq!(pairs_of_likes(&work, &[], Time::Wall, Centre::Mean), []);
    }

    #[test]
    fn pieces_are_joined_to_equal_work_inside_a_span() {
        let work: Vec<_> = (0..20).map(|i| piece(i * 10, i * 10 + 10)).collect();
        let spans = [span(0, 70, false), span(75, 140, true)];
        let joined = grouped(&work, &spans, 25);
        let times: Vec<_> = joined.iter().map(|w| (w.start_ns, w.end_ns, w.cpu_ns, w.touches)).collect();
        assert_eq!(times, [(0, 30, 9, 3), (30, 60, 9, 3), (80, 110, 9, 3), (110, 140, 9, 3)]);
        assert_eq!(grouped(&work, &spans, 0).len(), 7 + 6);
        assert_eq!(grouped(&work, &spans, u64::MAX), []);
        assert_eq!(grouped(&[], &spans, 25), []);
    }

    #[test]
    fn a_disturbance_from_outside_can_be_kept_out() {
        let mut work: Vec<_> = (0..6).map(|i| piece(i * 10, i * 10 + 10)).collect();
        work[4].end_ns = 90; // 40..90: someone else had the CPU
        work[5] = piece(90, 100);
        let spans = [span(0, 30, false), span(30, 100, true)];
        let slowdown = |time, centre| pairs_of_work(&work, &spans, time, centre)[0].slowdown();
        assert!(slowdown(Time::Wall, Centre::Mean) > 1.0);
        assert_eq!(slowdown(Time::Wall, Centre::Median), 0.0);
        assert_eq!(slowdown(Time::Cpu, Centre::Mean), 0.0);
    }
}
