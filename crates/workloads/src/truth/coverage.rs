//! Coverage: which bytes were accessed at least once in a span of time, and how often.

use super::course::Stretch;
use super::{Arrivals, PhaseLine, RangeLine, Truth};
use std::ops::Range;

/// Bytes of one process with one history in a span of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Segment {
    /// The process.
    pub pid: u32,
    /// First address.
    pub start: u64,
    /// First address past it.
    pub end: u64,
    /// Accesses a second to each page, the mean over the span. Of a stream that moves through its range (see `moving`) the
    /// mean over the range.
    pub hz: f64,
    /// Probability that any of its pages was accessed at least once in the span, 0..=1: just 0 or 1 where accesses are
    /// periodic and the span is long enough, or where the truth has their course.
    pub accessed: f64,
    /// How accesses follow one another.
    pub arrivals: Arrivals,
    /// Whether a stream moves through it so slowly that `hz` says little about a short time.
    pub moving: bool,
    /// Whether it is memory that other processes map too.
    pub shared: bool,
}

impl Segment {
    /// Its bytes.
    pub fn size(&self) -> u64 {
        self.end - self.start
    }
}

/// What was accessed in a span of time.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Coverage {
    /// Sorted by process and address, disjoint; every byte that the truth knows of in that time.
    pub segments: Vec<Segment>,
}

impl Truth {
    /// What was accessed from `window.start` until before `window.end`, nanoseconds of CLOCK_MONOTONIC. Time outside the
    /// phases has no accesses. For random accesses the bytes are exact expectations, given the number of accesses that were
    /// made; for those that move, exact to the pages touched within 5 ms of the ends of the window.
    pub fn coverage(&self, window: Range<u64>) -> Coverage {
        let first = self.phases.partition_point(|p| p.end_ns <= window.start);
        let phases = self.phases.get(first..).unwrap_or_default();
        let all = (window.end.saturating_sub(window.start)).max(1) as f64;
        let mut sum = Vec::new();
        for phase in phases.iter().take_while(|p| p.start_ns < window.end) {
            let inside = window.start.max(phase.start_ns)..window.end.min(phase.end_ns);
            let mut segments = phase.segments(inside.clone());
            // Rates are those of the whole window.
            let share = inside.end.saturating_sub(inside.start) as f64 / all;
            segments.iter_mut().for_each(|s| s.hz *= share);
            sum = if sum.is_empty() { segments } else { merged(&sum, &segments) };
        }
        Coverage { segments: sum }
    }
}

impl Coverage {
    /// Bytes accessed at least once (expected), process by process: shared memory counts once for each that accessed it.
    pub fn bytes(&self) -> f64 {
        self.segments.iter().map(|s| s.accessed * s.size() as f64).sum()
    }

    /// The same, with shared memory counted once: in all processes a shared mapping has the same addresses, since they
    /// got it by fork.
    pub fn distinct_bytes(&self) -> f64 {
        let private: f64 =
            self.segments.iter().filter(|s| !s.shared).map(|s| s.accessed * s.size() as f64).sum();
        private + self.shared().iter().map(|s| s.accessed * s.size() as f64).sum::<f64>()
    }

    /// Memory that several processes map, as all of them together accessed it; `pid` is 0.
    pub fn shared(&self) -> Vec<Segment> {
        let mut sum: Vec<Segment> = Vec::new();
        for of_process in self.segments.chunk_by(|a, b| a.pid == b.pid) {
            let shared: Vec<_> =
                of_process.iter().filter(|s| s.shared).map(|s| Segment { pid: 0, ..*s }).collect();
            sum = if sum.is_empty() { shared } else { merged(&sum, &shared) };
        }
        sum
    }

    /// The segments of one process.
    pub fn of(&self, pid: u32) -> &[Segment] {
        let first = self.segments.partition_point(|s| s.pid < pid);
        let last = self.segments.partition_point(|s| s.pid <= pid);
        self.segments.get(first..last).unwrap_or_default()
    }
}

impl PhaseLine {
    /// What was accessed in `window`, nanoseconds of CLOCK_MONOTONIC; only the part of it inside the phase counts.
    pub fn segments(&self, window: Range<u64>) -> Vec<Segment> {
        let from = window.start.clamp(self.start_ns, self.end_ns) - self.start_ns;
        let to = window.end.clamp(self.start_ns, self.end_ns) - self.start_ns;
        let stretches: Vec<_> = self.courses.iter().map(|c| c.stretches(from..to.max(from))).collect();
        let seconds = to.saturating_sub(from) as f64 / 1e9;
        let mut segments = Vec::with_capacity(self.ranges.len());
        for range in &self.ranges {
            self.segments_of(range, seconds, &stretches, &mut segments);
        }
        segments
    }

    fn segments_of(
        &self,
        range: &RangeLine,
        seconds: f64,
        stretches: &[Vec<Stretch>],
        out: &mut Vec<Segment>,
    ) {
        let courses =
            || range.courses.iter().filter_map(|&i| Some((self.courses.get(i)?, stretches.get(i)?)));
        // What the courses do not account for.
        let by_courses: f64 = courses().map(|(c, _)| c.mean_hz).sum();
        let hz = range.achieved_hz - by_courses;
        let hz = if hz > range.achieved_hz * 1e-9 { hz } else { 0.0 };
        let accessed = match range.arrivals {
            Arrivals::None => 0.0,
            Arrivals::Periodic => (hz * seconds).min(1.0),
            Arrivals::Random => -(-hz * seconds).exp_m1(),
        };
        let base = Segment {
            pid: range.pid,
            start: range.start,
            end: range.end,
            hz,
            accessed,
            arrivals: range.arrivals,
            moving: false,
            shared: range.shared,
        };
        let mut parts = vec![base];
        for (course, stretches) in courses() {
            let first = stretches.partition_point(|s| s.end <= range.start);
            let inside =
                stretches.get(first..).unwrap_or_default().iter().take_while(|s| s.start < range.end);
            let segments: Vec<_> = inside
                .map(|s| Segment {
                    start: s.start.max(range.start),
                    end: s.end.min(range.end),
                    hz: s.hz,
                    accessed: s.accessed,
                    moving: course.moves(),
                    ..base
                })
                .collect();
            parts = merged(&parts, &segments);
        }
        out.extend(parts);
    }
}

/// Both together, cut where either begins or ends a segment: rates add up, and accesses are independent of one another
/// where they are not certain.
fn merged(a: &[Segment], b: &[Segment]) -> Vec<Segment> {
    let mut out = Vec::with_capacity(a.len() + b.len());
    let (mut a, mut b) = (a.iter().copied().peekable(), b.iter().copied().peekable());
    loop {
        let (x, y) = match (a.peek_mut(), b.peek_mut()) {
            (Some(x), Some(y)) => (x, y),
            (Some(_), None) => {
                out.extend(a);
                return out;
            }
            _ => {
                out.extend(b);
                return out;
            }
        };
        let (first, other, x_first) =
            if (x.pid, x.start) <= (y.pid, y.start) { (x, y, true) } else { (y, x, false) };
        let apart = first.pid != other.pid || first.end <= other.start;
        if apart || first.start < other.start {
            // The part of the first that lies before the other.
            let end = if apart { first.end } else { other.start };
            out.push(Segment { end, ..*first });
            first.start = end;
        } else {
            let end = first.end.min(other.end);
            out.push(Segment {
                end,
                hz: first.hz + other.hz,
                accessed: 1.0 - (1.0 - first.accessed) * (1.0 - other.accessed),
                arrivals: stronger(first.arrivals, other.arrivals),
                moving: first.moving || other.moving,
                ..*first
            });
            first.start = end;
            other.start = end;
        }
        let (first_done, other_done) = (first.start >= first.end, other.start >= other.end);
        let (x_done, y_done) = if x_first { (first_done, other_done) } else { (other_done, first_done) };
        if x_done {
            a.next();
        }
        if y_done {
            b.next();
        }
    }
}

fn stronger(a: Arrivals, b: Arrivals) -> Arrivals {
    match (a, b) {
        (Arrivals::Random, _) | (_, Arrivals::Random) => Arrivals::Random,
        (Arrivals::Periodic, _) | (_, Arrivals::Periodic) => Arrivals::Periodic,
        _ => Arrivals::None,
    }
}

#[cfg(test)]
mod tests;
