//! Courses: how a stream of accesses went through its range, where a mean rate says too little.

use crate::order::{Order, joined};
use serde::{Deserialize, Serialize};
use std::ops::Range;

/// A stream of accesses that goes through its range slowly, or draws some pages more often than others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// First address of the stream's range.
    pub start: u64,
    /// Bytes of the range.
    pub size: u64,
    /// Size of an order-0 page, bytes.
    pub page: u64,
    /// Size of the pages that back the range, bytes: a touch accesses all of one.
    pub unit: u64,
    /// Which page comes when.
    #[serde(flatten)]
    pub order: Order,
    /// Touches of each page in a pass; 1 when pages are drawn.
    pub touches_a_page: u64,
    /// Accesses a second to each page: the mean over the range and the phase.
    pub mean_hz: f64,
    /// Whether its mean rate would do, since it goes through its range many times a second: it is told because its pattern asks
    /// for it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub logged: bool,
    /// For passes: nanoseconds from the start of the phase, and touches done until then. Both rise; between two of them
    /// touches came evenly. At most some 5 ms apart while something was touched.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub points: Vec<(u64, u64)>,
}

/// Part of a course's range in a span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Stretch {
    pub(super) start: u64,
    pub(super) end: u64,
    /// Accesses a second to each page.
    pub(super) hz: f64,
    /// Probability that a page was accessed at all.
    pub(super) accessed: f64,
}

impl Course {
    /// Why it cannot be; `None` when it can.
    pub(super) fn contradiction(&self) -> Option<&'static str> {
        let sizes = [self.size, self.page, self.unit, self.touches_a_page];
        if sizes.contains(&0) || self.start.checked_add(self.size).is_none() || self.page > self.size {
            return Some("has a size that cannot be");
        }
        if !(self.mean_hz.is_finite() && self.mean_hz >= 0.0) {
            return Some("has a rate that is no number");
        }
        match self.order {
            Order::Zipf(p) if p.grain == 0 || p.grain > self.size || !(0.0..=10.0).contains(&p.skew) => {
                Some("has a popularity that cannot be")
            }
            _ if !self.points.is_sorted_by(|a, b| a.0 <= b.0 && a.1 <= b.1) => Some("goes back in time"),
            _ => None,
        }
    }

    /// Whether it moves through its range, so that no rate of a page describes a short time.
    pub(super) fn moves(&self) -> bool {
        !self.order.is_random() && !self.logged
    }

    /// What it did in `window`, nanoseconds from the start of the phase: the whole range in address order, in pieces.
    pub(super) fn stretches(&self, window: Range<u64>) -> Vec<Stretch> {
        let seconds = window.end.saturating_sub(window.start) as f64 / 1e9;
        match self.order {
            Order::Zipf(popularity) => {
                let count = (self.size / popularity.grain).max(1);
                let grain = self.size / count;
                let mut start = self.start;
                let stretch = |share: f64| {
                    let (from, hz) = (start, self.mean_hz * share * count as f64);
                    start += grain;
                    Stretch { start: from, end: start, hz, accessed: -(-hz * seconds).exp_m1() }
                };
                popularity.shares(count).into_iter().map(stretch).collect()
            }
            Order::Random => {
                let (hz, accessed) = (self.mean_hz, -(-self.mean_hz * seconds).exp_m1());
                vec![Stretch { start: self.start, end: self.start + self.size, hz, accessed }]
            }
            Order::Sequential | Order::Butterfly { .. } => self.passed(window, seconds),
        }
    }

    fn passed(&self, window: Range<u64>, seconds: f64) -> Vec<Stretch> {
        let (from, to) = (self.touches_at(window.start), self.touches_at(window.end));
        let pages = (self.size / self.page).max(1);
        let per_pass = (pages * self.touches_a_page) as f64;
        let hz = if seconds > 0.0 { (to - from) / per_pass / seconds } else { 0.0 };
        // A page is accessed with the first touch of it.
        let (first, last) = (
            (from / self.touches_a_page as f64).floor() as u64,
            (to / self.touches_a_page as f64).ceil() as u64,
        );
        let mut accessed = Vec::new();
        if to > from && last - first >= pages {
            accessed.push(0..self.size);
        } else if to > from {
            let (a, b) = (first % pages, first % pages + (last - first));
            for visits in [a..b.min(pages), 0..b.saturating_sub(pages)] {
                let units = self.order.pages(visits, pages, self.page).into_iter().map(|p| {
                    let (start, end) = (p.start * self.page, p.end * self.page);
                    start / self.unit * self.unit..end.next_multiple_of(self.unit).min(self.size)
                });
                accessed.extend(units);
            }
        }
        let mut stretches = Vec::new();
        let mut at = 0;
        for range in joined(accessed) {
            for (start, end, accessed) in [(at, range.start, 0.0), (range.start, range.end, 1.0)] {
                if start < end {
                    let (start, end) = (self.start + start, self.start + end);
                    stretches.push(Stretch { start, end, hz, accessed });
                }
            }
            at = range.end;
        }
        if at < self.size {
            let (start, end) = (self.start + at, self.start + self.size);
            stretches.push(Stretch { start, end, hz, accessed: 0.0 });
        }
        stretches
    }

    /// Touches done until `time` nanoseconds from the start of the phase.
    fn touches_at(&self, time: u64) -> f64 {
        let next = self.points.partition_point(|p| p.0 <= time);
        let (before, after) = (next.checked_sub(1).and_then(|i| self.points.get(i)), self.points.get(next));
        match (before, after) {
            (Some(&(t0, n0)), Some(&(t1, n1))) => {
                n0 as f64 + (n1 - n0) as f64 * (time - t0) as f64 / (t1 - t0).max(1) as f64
            }
            (Some(&(_, n)), None) => n as f64,
            (None, _) => 0.0,
        }
    }
}
