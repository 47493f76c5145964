//! What is kept of a target's past: its regions, as long as they stood, and its mappings.
//!
//! A target that stands still costs nothing: the snapshots in which only its ages rose are one [`Span`]. Regions are shared
//! by reference, so that drawing and saving need no copy of them.

use isotherm_damon::{RegionSnapshot, Snapshot, TargetSnapshot};
use isotherm_record::{Mapping, Mappings};
use isotherm_report::rate::{GAP_S, interval_ns};
use std::collections::VecDeque;
use std::sync::Arc;

/// The end of an aggregation, without what was seen in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moment {
    pub start_ns: u64,
    pub end_ns: u64,
    pub sample_ns: u64,
    pub max_nr_accesses: u32,
}

impl Moment {
    pub fn of(snapshot: &Snapshot) -> Self {
        let (start_ns, end_ns) = interval_ns(snapshot);
        Self { start_ns, end_ns, sample_ns: snapshot.sample_ns, max_nr_accesses: snapshot.max_nr_accesses }
    }

    /// A snapshot of one target at this moment.
    pub fn snapshot(&self, targets: Vec<TargetSnapshot>) -> Snapshot {
        Snapshot {
            start_ns: self.start_ns,
            end_ns: self.end_ns,
            sample_ns: self.sample_ns,
            max_nr_accesses: self.max_nr_accesses,
            targets,
        }
    }
}

/// Regions that stood for a while: of the snapshots in that time only ages differ.
#[derive(Clone, Debug)]
pub struct Span {
    /// From the beginning of the first snapshot to the end of the last.
    pub moment: Moment,
    /// As they were in the first; their ages rose by one with each other.
    pub regions: Arc<[RegionSnapshot]>,
    /// How many snapshots.
    pub snapshots: u32,
}

impl Span {
    /// The regions, `past` snapshots after the first.
    pub fn aged(&self, past: u32) -> Vec<RegionSnapshot> {
        let aged = |r: &RegionSnapshot| RegionSnapshot { age: r.age.saturating_add(past), ..*r };
        self.regions.iter().map(aged).collect()
    }

    fn bytes(&self) -> usize {
        size_of::<Self>() + size_of_val(&*self.regions)
    }
}

/// Mappings, and since when.
#[derive(Clone, Debug)]
pub struct MapsSince {
    pub since_ns: u64,
    pub maps: Arc<[Mapping]>,
    /// There are more than these: the list is long and was not read to its end.
    pub partial: bool,
}

impl MapsSince {
    pub fn of(list: &Mappings) -> Self {
        Self { since_ns: list.time_ns, maps: Arc::clone(&list.maps), partial: list.partial }
    }
}

/// A target's past.
#[derive(Clone, Debug, Default)]
pub struct Timeline {
    spans: VecDeque<Span>,
    maps: VecDeque<MapsSince>,
    bytes: usize,
}

/// Whether what begins at `start_ns` comes right after what ended at `end_ns`.
fn follows(end_ns: u64, start_ns: u64) -> bool {
    start_ns.saturating_sub(end_ns) as f64 <= GAP_S * 1e9
}

/// Lists of mappings that are kept at most: a program that maps and unmaps all the time shall not fill the memory.
const MOST_LISTS: usize = 32;

impl Timeline {
    /// Takes what a snapshot says about the target.
    pub fn push(&mut self, moment: Moment, target: &TargetSnapshot) {
        let regions: Arc<[RegionSnapshot]> = match self.spans.back_mut().filter(|_| target.steady) {
            Some(last) if follows(last.moment.end_ns, moment.start_ns) => {
                last.moment.end_ns = moment.end_ns;
                last.snapshots = last.snapshots.saturating_add(1);
                return;
            }
            // Nothing was seen in between, so what stood before does not stand for that time.
            Some(last) => last.aged(last.snapshots).into(),
            None => target.regions.as_slice().into(),
        };
        let span = Span { moment, regions, snapshots: 1 };
        self.bytes += span.bytes();
        self.spans.push_back(span);
    }

    /// Takes a new list of mappings.
    pub fn map(&mut self, list: MapsSince) {
        self.bytes += size_of_val(&*list.maps);
        self.maps.push_back(list);
        if self.maps.len() > MOST_LISTS {
            self.forget_list();
        }
    }

    /// Forgets what was over before `ns`; of the mappings, those that were replaced by then.
    pub fn forget(&mut self, ns: u64) {
        while self.spans.front().is_some_and(|span| span.moment.end_ns < ns) {
            self.bytes -= self.spans.pop_front().map_or(0, |span| span.bytes());
        }
        while self.maps.get(1).is_some_and(|list| list.since_ns <= ns) {
            self.forget_list();
        }
    }

    fn forget_list(&mut self) {
        self.bytes -= self.maps.pop_front().map_or(0, |list| size_of_val(&*list.maps));
    }

    /// Memory it takes, about.
    pub const fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn is_empty(&self) -> bool {
        self.spans.is_empty()
    }

    /// The last span.
    pub fn last(&self) -> Option<&Span> {
        self.spans.back()
    }

    /// Spans that share time with `from..to`.
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = &Span> + Clone {
        let first = self.spans.partition_point(|span| span.moment.end_ns <= from);
        self.spans.range(first..).take_while(move |span| span.moment.start_ns < to)
    }

    /// The list of mappings in force at `from`, and those that follow before `to`.
    pub fn maps_between(&self, from: u64, to: u64) -> impl Iterator<Item = &MapsSince> + Clone {
        let first = self.maps.partition_point(|list| list.since_ns <= from).saturating_sub(1);
        self.maps.range(first.min(self.maps.len())..).take_while(move |list| list.since_ns < to)
    }

    /// The mappings last read.
    pub fn maps(&self) -> Option<&MapsSince> {
        self.maps.back()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::{AddrRange, TargetId};

    fn region(start: u64, end: u64) -> RegionSnapshot {
        RegionSnapshot { range: AddrRange::new(start, end), ..RegionSnapshot::default() }
    }

    fn moment(i: u64) -> Moment {
        Moment { start_ns: i * 100, end_ns: (i + 1) * 100, sample_ns: 5, max_nr_accesses: 20 }
    }

    fn steady(id: u64) -> TargetSnapshot {
        TargetSnapshot { id: TargetId(id), regions: Vec::new(), steady: true }
    }

    #[test]
    fn what_stands_still_takes_no_memory_and_grows_old() {
        let mut timeline = Timeline::default();
        timeline.push(moment(0), &TargetSnapshot::new(TargetId(1), vec![region(0, 10)]));
        let bytes = timeline.bytes();
        (1..1000).for_each(|i| timeline.push(moment(i), &steady(1)));
        assert_eq!(timeline.bytes(), bytes);
        let last = timeline.last().unwrap();
        assert_eq!((last.snapshots, last.moment.end_ns, last.aged(999)[0].age), (1000, 100_000, 999));
        timeline.push(moment(1000), &TargetSnapshot::new(TargetId(1), vec![region(0, 20)]));
        assert_eq!(timeline.between(0, u64::MAX).count(), 2);
        assert_eq!(timeline.between(100_000, 100_001).next().unwrap().regions[0].range.end, 20);
        timeline.forget(100_001);
        assert_eq!(
            (timeline.between(0, u64::MAX).count(), timeline.last().unwrap().moment.start_ns),
            (1, 100_000)
        );
        assert!(timeline.bytes() <= bytes);
    }

    #[test]
    fn what_stood_before_a_stop_does_not_stand_for_it() {
        const SECOND: u64 = 1_000_000_000;
        let taken = |start_ns, end_ns| {
            let (sample_ns, max_nr_accesses) = (5_000_000, 20);
            Moment::of(&Snapshot { start_ns, end_ns, sample_ns, max_nr_accesses, targets: Vec::new() })
        };
        let mut timeline = Timeline::default();
        timeline.push(taken(0, SECOND / 10), &TargetSnapshot::new(TargetId(1), vec![region(0, 10)]));
        timeline.push(taken(SECOND / 10, SECOND / 5), &steady(1));
        // The recorder was stopped for a minute.
        timeline.push(taken(SECOND / 5, 60 * SECOND), &steady(1));
        timeline.push(taken(60 * SECOND, 60 * SECOND + SECOND / 10), &steady(1));
        let spans: Vec<_> = timeline.between(0, u64::MAX).collect();
        let times = spans.iter().map(|span| (span.moment.start_ns, span.moment.end_ns, span.regions[0].age));
        let after = (60 * SECOND - SECOND / 10, 60 * SECOND + SECOND / 10, 2);
        assert_eq!(times.collect::<Vec<_>>(), [(0, SECOND / 5, 0), after]);
    }

    #[test]
    fn mappings_are_those_of_their_time() {
        let mut timeline = Timeline::default();
        let list = |n: u64| {
            let maps = Arc::from([Mapping { start: n, end: n + 1, ..Mapping::default() }]);
            MapsSince { since_ns: n, maps, partial: false }
        };
        for since in [10, 20, 30] {
            timeline.map(list(since));
        }
        let of = |from, to| timeline.maps_between(from, to).map(|list| list.since_ns).collect::<Vec<_>>();
        assert_eq!(of(0, 5), [] as [u64; 0]);
        assert_eq!(of(0, 15), [10]);
        assert_eq!(of(25, 100), [20, 30]);
        assert_eq!(of(40, 100), [30]);
        timeline.forget(25);
        assert_eq!(timeline.maps_between(0, 100).count(), 2);
        (0..100).for_each(|i| timeline.map(list(100 + i)));
        assert_eq!(timeline.maps_between(0, 1000).count(), MOST_LISTS);
    }
}
