//! From streams and their tallies to ranges: which bytes were accessed how often in a phase.

use crate::pattern::Touch;
use crate::plan::{LINE, PhasePlan, Plan, Stream};
use crate::quantity::Rate;
use crate::truth::{Arrivals, Course, Max, RangeLine, Stated};
use crate::worker::Tally;
use std::collections::BTreeMap;

/// An area as it is in the phase.
#[derive(Clone, Copy, Debug)]
struct Extent<'a> {
    name: &'a str,
    start: u64,
    size: u64,
    unit: u64,
    pid: u32,
    shared: bool,
}

/// A stream, what came of it, and its course by its index in the phase, if it has one.
type Told<'a> = (&'a Stream, &'a Tally, Option<usize>);

/// What came of a phase that took so long: the ranges of all processes that are there, and the courses of its streams. `extents` are
/// the first address of each area, by its index, and the first past it; `pid` finds the number of a process that is there.
pub(crate) fn of_phase(
    plan: &Plan,
    phase: &PhasePlan,
    extents: &BTreeMap<usize, (u64, u64)>,
    pid: impl Fn(usize) -> Option<u32>,
    tallies: &[Tally],
    seconds: f64,
) -> (Vec<RangeLine>, Vec<Course>) {
    let mut courses = Vec::new();
    // By process and area. An area of the first process is part of its children too, accessed or not.
    let mut streams: BTreeMap<(usize, usize), Vec<Told<'_>>> = BTreeMap::new();
    for (index, area) in plan.areas.iter().enumerate() {
        let there = plan.lasting.iter().chain(&phase.forks);
        let having = there.filter(|process| area.process == 0 || area.process == **process);
        streams.extend(having.map(|&process| ((process, index), Vec::new())));
    }
    for (stream, tally) in phase.streams.iter().zip(tallies) {
        let start = extents.get(&stream.area).map_or(0, |e| e.0);
        let course = course(stream, tally, start, plan.unit, plan.base_page, seconds);
        let course = course.map(|course| {
            courses.push(course);
            courses.len() - 1
        });
        streams.entry((stream.process, stream.area)).or_default().push((stream, tally, course));
    }
    let mut lines = Vec::new();
    for ((process, index), streams) in streams {
        let (Some(area), Some(&(start, end))) = (plan.areas.get(index), extents.get(&index)) else {
            continue;
        };
        let Some(pid) = pid(process) else { continue };
        let (shared, unit) = (area.shared, plan.unit);
        let extent = Extent { name: &area.name, start, size: end - start, unit, pid, shared };
        lines.extend(of_area(extent, &streams, seconds, plan.hot_hz));
    }
    lines.sort_by_key(|l| (l.pid, l.start));
    (lines, courses)
}

/// The course of a stream whose mean rate says too little of it. `start` is its area's first address.
fn course(stream: &Stream, tally: &Tally, start: u64, unit: u64, page: u64, seconds: f64) -> Option<Course> {
    if tally.points.is_empty() && !matches!(stream.order, crate::order::Order::Zipf(_)) {
        return None;
    }
    let touches_a_page =
        if stream.touch == Touch::Line && !stream.order.is_random() { (page / LINE).max(1) } else { 1 };
    let (start, size, order) = (start + stream.offset, stream.size, stream.order);
    let (mean_hz, logged) = (mean_hz(tally, seconds), tally.logged);
    let points = tally.points.clone();
    Some(Course { start, size, page, unit, order, touches_a_page, mean_hz, logged, points })
}

/// Accesses a second to each page.
fn mean_hz(tally: &Tally, seconds: f64) -> f64 {
    if seconds > 0.0 { tally.touches as f64 / tally.touches_per_pass.max(1) as f64 / seconds } else { 0.0 }
}

/// Cuts one area where any of its streams begins or ends. Accesses of streams that overlap add up.
fn of_area(extent: Extent<'_>, streams: &[Told<'_>], seconds: f64, hot_hz: f64) -> Vec<RangeLine> {
    let mut cuts: Vec<u64> = streams.iter().flat_map(|(s, ..)| [s.offset, s.offset + s.size]).collect();
    cuts.extend([0, extent.size]);
    cuts.sort_unstable();
    cuts.dedup();
    let mut lines = Vec::new();
    for pair in cuts.windows(2) {
        let &[from, to] = pair else { continue };
        if to > extent.size {
            break;
        }
        let mut line = RangeLine {
            pid: extent.pid,
            area: extent.name.to_owned(),
            start: extent.start + from,
            end: extent.start + to,
            unit: extent.unit,
            rate: Stated::Hz(0.0),
            achieved_hz: 0.0,
            arrivals: Arrivals::None,
            write: false,
            hot: false,
            touches: 0,
            missed: 0,
            max_gap_ns: 0,
            shared: extent.shared,
            courses: Vec::new(),
        };
        for (stream, tally, course) in
            streams.iter().filter(|(s, ..)| s.offset <= from && to <= s.offset + s.size)
        {
            add(&mut line, stream, tally, seconds);
            line.courses.extend(course);
        }
        line.hot = match line.rate {
            Stated::Hz(hz) => hz >= hot_hz,
            Stated::Max(_) => true,
        };
        lines.push(line);
    }
    lines
}

fn add(line: &mut RangeLine, stream: &Stream, tally: &Tally, seconds: f64) {
    line.rate = match (line.rate, stream.rate) {
        (Stated::Hz(sum), Rate::Hz(hz)) => Stated::Hz(sum + hz),
        _ => Stated::Max(Max::Max),
    };
    line.achieved_hz += mean_hz(tally, seconds);
    line.arrivals = if line.arrivals == Arrivals::Random || stream.order.is_random() {
        Arrivals::Random
    } else {
        Arrivals::Periodic
    };
    line.write |= stream.write;
    let share = (line.end - line.start) as f64 / stream.size.max(1) as f64;
    line.touches += (tally.touches as f64 * share).round() as u64;
    line.missed += tally.missed;
    line.max_gap_ns = line.max_gap_ns.max(tally.max_gap_ns);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::Order;
    use crate::pattern::{Gaps, Touch};

    fn stream(offset: u64, size: u64, rate: Rate) -> Stream {
        Stream {
            area: 0,
            offset,
            size,
            process: 0,
            order: Order::Sequential,
            rate,
            steady: false,
            gaps: Gaps::Poisson,
            write: false,
            touch: Touch::Page,
            thread: 0,
            work_touches: 0,
            units: None,
            passes: None,
            course: false,
        }
    }

    #[test]
    fn ranges_cover_the_area_and_overlapping_rates_add_up() {
        let (a, b) = (stream(0x1000, 0x3000, Rate::Hz(8.0)), stream(0x2000, 0x1000, Rate::Hz(4.0)));
        let tally = |touches, touches_per_pass| Tally { touches, touches_per_pass, ..Tally::default() };
        // In 2 s: 15 of 16 passes over 3 pages, 8 of 8 over one.
        let (ta, tb) = (tally(45, 3), tally(8, 1));
        let extent =
            Extent { name: "x", start: 0x10_0000, size: 0x5000, unit: 0x1000, pid: 1, shared: false };
        let lines = of_area(extent, &[(&a, &ta, None), (&b, &tb, Some(3))], 2.0, 10.0);
        let got: Vec<_> = lines
            .iter()
            .map(|l| (l.start - 0x10_0000, l.end - 0x10_0000, l.achieved_hz, l.hot, l.touches))
            .collect();
        assert_eq!(
            got,
            [
                (0, 0x1000, 0.0, false, 0),
                (0x1000, 0x2000, 7.5, false, 15),
                (0x2000, 0x3000, 11.5, true, 23),
                (0x3000, 0x4000, 7.5, false, 15),
                (0x4000, 0x5000, 0.0, false, 0),
            ]
        );
        assert_eq!(lines[2].rate, Stated::Hz(12.0));
        assert_eq!((lines[1].courses.len(), &lines[2].courses[..]), (0, &[3][..]));
    }

    #[test]
    fn an_area_that_nobody_touches_is_one_cold_range() {
        let extent = Extent { name: "x", start: 0x1000, size: 0x2000, unit: 0x1000, pid: 1, shared: false };
        let lines = of_area(extent, &[], 1.0, 10.0);
        assert_eq!(lines.len(), 1);
        assert_eq!((lines[0].start, lines[0].end, lines[0].hot), (0x1000, 0x3000, false));
    }
}
