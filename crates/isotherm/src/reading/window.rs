//! Which part of a recording is handed on, and what was known then.
//!
//! One rule for all reports. A stretch of time has the snapshots that overlap it. A moment has one: that which was being taken, or was
//! taken last, and before the first the first; `5s..5s` is a moment. Between snapshots, and beyond the ends, a moment may lie as far
//! from the nearest as the longest snapshot takes: further away nothing was recorded.

use isotherm_record::Item;
use isotherm_report::rate::interval_ns;
use isotherm_report::units::{Bounds, format_time};
use std::io;
use std::time::Duration;

/// Which part of a recording is asked for. Times are distances from its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum When {
    #[default]
    Always,
    /// The snapshots that overlap this time; the others are left out.
    Within(Bounds<Duration>),
    /// That of this moment.
    Moment(Duration),
    /// All are handed on; who asks takes the one of this moment.
    At(Duration),
    /// Those that began before this moment, or the first.
    Until(Duration),
}

impl When {
    /// Within bounds, which may be those of a moment.
    pub fn within(bounds: Bounds<Duration>) -> Self {
        match (bounds.min, bounds.max) {
            (None, None) => Self::Always,
            (Some(min), Some(max)) if min == max => Self::Moment(min),
            _ => Self::Within(bounds),
        }
    }

    /// The moment that is asked for.
    fn moment(self) -> Option<Duration> {
        match self {
            Self::Always | Self::Within(_) => None,
            Self::Moment(moment) | Self::At(moment) | Self::Until(moment) => Some(moment),
        }
    }
}

/// Lets pass what lies in a stretch of time, and what was known at its end: names, mappings and ends from after that are of
/// another time. What monitoring cost is of the stretch of time as far as the items overlap it that say so, and actions are
/// those within it.
pub(super) struct Window {
    when: When,
    /// Start of the recording, once known.
    origin_ns: Option<u64>,
    /// What came before the first snapshot of a recording that does not say when it was started.
    held: Vec<Item>,
    /// What is dated after the stretch of time, until the next snapshot tells whether that is still of it.
    late: Vec<Item>,
    /// Of a moment: the last snapshot before it, and what came after that.
    pending: Vec<Item>,
    /// A snapshot from after the stretch of time has come by.
    over: bool,
    /// Snapshots read, and handed on.
    pub snapshots: u64,
    passed: u64,
    /// From the start of the first to the end of the last, ns.
    span: (u64, u64),
    /// Length of the longest, ns.
    longest: u64,
    /// How far the nearest is from the moment that is asked for, ns.
    nearest: u64,
}

impl Window {
    pub fn new(when: When) -> Self {
        Self {
            when,
            origin_ns: None,
            held: Vec::new(),
            late: Vec::new(),
            pending: Vec::new(),
            over: false,
            snapshots: 0,
            passed: 0,
            span: (u64::MAX, 0),
            longest: 0,
            nearest: u64::MAX,
        }
    }

    pub fn item(&mut self, item: &Item, sink: &mut dyn FnMut(&Item) -> io::Result<()>) -> io::Result<()> {
        match item {
            Item::Header(header) if header.started_ns > 0 => self.origin_ns = Some(header.started_ns),
            Item::Snapshot(snapshot) => {
                let origin = match self.origin_ns {
                    Some(origin) => origin,
                    None => {
                        self.origin_ns = Some(snapshot.start_ns);
                        self.release(sink)?;
                        snapshot.start_ns
                    }
                };
                let (start, end) = interval_ns(snapshot);
                self.snapshots += 1;
                self.span = (self.span.0.min(start), self.span.1.max(end));
                self.longest = self.longest.max(end - start);
                if let Some(moment) = self.when.moment() {
                    let moment = at(origin, moment);
                    let distance = start.saturating_sub(moment).max(moment.saturating_sub(end));
                    self.nearest = self.nearest.min(distance);
                }
                self.over |= self.is_past(origin, start);
                match self.over {
                    true => self.late.clear(),
                    false => {
                        let late = std::mem::take(&mut self.late);
                        late.into_iter().try_for_each(|item| self.pass(item, sink))?;
                    }
                }
                if let When::Moment(_) = self.when {
                    return self.pend(item, origin, start, sink);
                }
                if self.overlaps(origin, start, end) {
                    self.passed += 1;
                    return sink(item);
                }
                return Ok(());
            }
            other if self.origin_ns.is_none() && !matches!(self.when, When::Always | When::At(_)) => {
                self.held.push(other.clone());
                return Ok(());
            }
            other => {
                if self.origin_ns.is_some_and(|origin| !self.lets_pass(origin, other)) {
                    return Ok(());
                }
                let past = self.origin_ns.zip(said_at(other)).is_some_and(|(o, ns)| self.is_past(o, ns));
                if past && !self.over {
                    self.late.push(other.clone());
                }
                if past || self.over && said_at(other).is_some() {
                    return Ok(());
                }
            }
        }
        if !self.pending.is_empty() {
            self.pending.push(item.clone());
            return Ok(());
        }
        sink(item)
    }

    /// Hands on an item that is no snapshot, behind what has to come before it.
    fn pass(&mut self, item: Item, sink: &mut dyn FnMut(&Item) -> io::Result<()>) -> io::Result<()> {
        if self.pending.is_empty() {
            return sink(&item);
        }
        self.pending.push(item);
        Ok(())
    }

    /// Takes a snapshot of which it is not known yet whether it is the last before the moment.
    fn pend(
        &mut self,
        item: &Item,
        origin: u64,
        start: u64,
        sink: &mut dyn FnMut(&Item) -> io::Result<()>,
    ) -> io::Result<()> {
        if !self.precedes(origin, start) {
            return self.release(sink);
        }
        // Recordings with one target a snapshot have several of one moment.
        let of_same = |first: &Item| match (first, item) {
            (Item::Snapshot(a), Item::Snapshot(b)) => a.end_ns == b.end_ns,
            _ => false,
        };
        if !self.pending.first().is_some_and(of_same) {
            self.passed = 0;
            let others = self.pending.drain(..).filter(|item| !matches!(item, Item::Snapshot(_)));
            for other in others {
                sink(&other)?;
            }
        }
        self.passed += 1;
        self.pending.push(item.clone());
        Ok(())
    }

    /// Whether a snapshot that begins at `start` is the first, or begins before the moment.
    fn precedes(&self, origin: u64, start: u64) -> bool {
        let moment = self.when.moment().unwrap_or(Duration::MAX);
        start <= self.span.0 || start < at(origin, moment)
    }

    /// Whether what begins at `ns` is from after the stretch of time.
    fn is_past(&self, origin_ns: u64, ns: u64) -> bool {
        match self.when {
            When::Always => false,
            When::Within(bounds) => bounds.max.is_some_and(|max| ns >= at(origin_ns, max)),
            // Of a moment before the first snapshot that is the one.
            When::Moment(moment) | When::Until(moment) | When::At(moment) => {
                self.passed > 0 && ns >= at(origin_ns, moment)
            }
        }
    }

    /// Hands on what was held. Its header now says when the recording began, or times would count from the window's
    /// start.
    pub fn release(&mut self, sink: &mut dyn FnMut(&Item) -> io::Result<()>) -> io::Result<()> {
        for mut item in std::mem::take(&mut self.held) {
            if let (Item::Header(header), Some(origin)) = (&mut item, self.origin_ns) {
                // 0 stands for what is not known; a nanosecond more is seen nowhere.
                header.started_ns = origin.max(1);
            }
            if self.origin_ns.is_none_or(|origin| self.lets_pass(origin, &item)) {
                sink(&item)?;
            }
        }
        self.pending.drain(..).try_for_each(|item| sink(&item))
    }

    /// Whether what was done or spent at some time, if `item` is that, was so within the stretch of time.
    fn lets_pass(&self, origin_ns: u64, item: &Item) -> bool {
        let (start, end) = match item {
            Item::Action(action) => (action.time_ns, action.time_ns.saturating_add(1)),
            Item::Cost(cost) => (cost.time_ns.saturating_sub(cost.wall_ns), cost.time_ns),
            _ => return true,
        };
        match self.when {
            // What others take from it is of that moment, and so is the rest.
            When::At(_) => !self.is_past(origin_ns, start),
            _ => self.overlaps(origin_ns, start, end.max(start.saturating_add(1))),
        }
    }

    fn overlaps(&self, origin_ns: u64, start: u64, end: u64) -> bool {
        let bounds = match self.when {
            When::Always | When::At(_) => return true,
            When::Within(bounds) => bounds,
            When::Until(_) => return self.precedes(origin_ns, start),
            // Of what is no snapshot.
            When::Moment(moment) => return (start..=end).contains(&at(origin_ns, moment)),
        };
        let (min, max) = (bounds.min.map(|t| at(origin_ns, t)), bounds.max.map(|t| at(origin_ns, t)));
        min.is_none_or(|min| end > min) && max.is_none_or(|max| start < max)
    }

    /// Why there is nothing to report of a recording, which may be `whole`, a sentence.
    pub fn nothing(&self, whole: bool) -> Option<String> {
        if self.snapshots == 0 {
            let why = match whole {
                true => "the recording ended before the first aggregation interval was over",
                false => "what is left of the recording ends before the first",
            };
            return Some(format!("it holds no snapshot: {why}"));
        }
        let origin = self.origin_ns.unwrap_or(self.span.0);
        let (first, last) = self.span;
        let asked = match (self.when, self.when.moment()) {
            (_, Some(moment)) if self.nearest > self.longest => format!("at {}", shown(moment)),
            (When::Within(bounds), _) if self.passed == 0 => match (bounds.min, bounds.max) {
                (Some(min), Some(max)) => format!("from {} to {}", shown(min), shown(max)),
                (Some(min), None) => format!("from {} on", shown(min)),
                (None, max) => format!("before {}", shown(max.unwrap_or_default())),
            },
            _ => return None,
        };
        let distance = |ns: u64| format_time(ns.saturating_sub(origin));
        let (from, to) = (distance(first), distance(last));
        let (asked_from, asked_to) = match self.when {
            When::Within(bounds) => (bounds.min, bounds.max),
            other => (other.moment(), other.moment()),
        };
        let inside = |time: Option<Duration>| time.is_some_and(|t| (first..=last).contains(&at(origin, t)));
        if inside(asked_from) && inside(asked_to) {
            return Some(format!(
                "nothing was recorded {asked}: it spans {from} to {to}, but no snapshot was taken then, or the recorder stood \
                 still; choose another time"
            ));
        }
        Some(format!("nothing was recorded {asked}: it spans {from} to {to}; choose a time within"))
    }
}

/// When an item that says how things stand from then on was recorded, ns.
fn said_at(item: &Item) -> Option<u64> {
    match item {
        Item::Target(target) => Some(target.time_ns),
        Item::Mappings(mappings) => Some(mappings.time_ns),
        Item::TargetEnd(end) => Some(end.time_ns),
        Item::Attrs { time_ns, .. } => Some(*time_ns),
        Item::Header(_) | Item::Snapshot(_) | Item::Cost(_) | Item::Action(_) | Item::End(_) => None,
    }
}

/// The moment `time` after `origin_ns`, ns.
fn at(origin_ns: u64, time: Duration) -> u64 {
    origin_ns.saturating_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

fn shown(time: Duration) -> String {
    format_time(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::{Snapshot, TargetId};
    use isotherm_record::Header;
    use isotherm_report::units::{parse_bounds, parse_time};

    fn passed(window: &str, started_ns: u64) -> (u64, Vec<u64>) {
        let bounds = parse_bounds(window, parse_time).unwrap();
        let mut window = Window::new(When::within(bounds));
        let mut items = vec![Item::Header(Header { started_ns, ..Header::default() })];
        items.extend((10..20).map(|second| {
            let ns = second * 1_000_000_000;
            Item::Snapshot(Snapshot { start_ns: ns, end_ns: ns + 1_000_000_000, ..Snapshot::default() })
        }));
        let (mut started, mut seconds) = (0, Vec::new());
        for item in &items {
            window
                .item(item, &mut |item| {
                    match item {
                        Item::Header(h) => started = h.started_ns,
                        Item::Snapshot(s) => seconds.push(s.start_ns / 1_000_000_000),
                        _ => {}
                    }
                    Ok(())
                })
                .unwrap();
        }
        let mut rest = |item: &Item| {
            if let Item::Snapshot(s) = item {
                seconds.push(s.start_ns / 1_000_000_000);
            }
            Ok(())
        };
        window.release(&mut rest).unwrap();
        (started, seconds)
    }

    #[test]
    fn a_window_counts_from_the_recordings_start() {
        assert_eq!(passed("2s..4s", 9_000_000_000), (9_000_000_000, vec![11, 12]));
        assert_eq!(passed("8500ms..", 9_000_000_000).1, [17, 18, 19]);
        assert_eq!(passed("..1ns", 10_000_000_000).1, [10]);
    }

    #[test]
    fn a_moment_has_one_snapshot() {
        for (moment, second) in
            [("0", 10), ("1ns", 10), ("1s", 10), ("2s", 11), ("2500ms", 12), ("10s", 19), ("11s", 19)]
        {
            for moment in [moment.to_owned(), format!("{moment}..{moment}")] {
                assert_eq!(passed(&moment, 10_000_000_000).1, [second], "{moment}");
            }
        }
        assert_eq!(passed("0", 0).1, [10], "of a recording that does not say when it began");
    }

    /// What was known then comes with it, in its order, and nothing else.
    #[test]
    fn a_moment_has_all_targets_that_were_told_apart() {
        let second = 1_000_000_000;
        let taken = |target: u64, s: u64| {
            let targets = vec![isotherm_damon::TargetSnapshot::new(TargetId(target), Vec::new())];
            Item::Snapshot(Snapshot {
                start_ns: s * second,
                end_ns: (s + 1) * second,
                targets,
                ..Snapshot::default()
            })
        };
        let end = |s: u64| {
            Item::TargetEnd(isotherm_record::TargetEnd {
                target: 1,
                time_ns: s * second,
                ..Default::default()
            })
        };
        let items = [
            Item::Header(Header { started_ns: 10 * second, ..Header::default() }),
            taken(1, 10),
            taken(2, 10),
            end(10),
            taken(1, 11),
            end(11),
            taken(2, 11),
            end(12),
            taken(1, 12),
        ];
        let mut passed = Vec::new();
        let mut window = Window::new(When::Moment(Duration::from_millis(1500)));
        let mut sink = |item: &Item| {
            passed.push(match item {
                Item::Snapshot(s) => format!("{} {}", s.start_ns / second, s.targets[0].id.0),
                Item::TargetEnd(end) => format!("end {}", end.time_ns / second),
                _ => return Ok(()),
            });
            Ok(())
        };
        items.iter().for_each(|item| window.item(item, &mut sink).unwrap());
        window.release(&mut sink).unwrap();
        assert_eq!(passed, ["end 10", "11 1", "end 11", "11 2"]);
        assert_eq!(window.nothing(true), None);
    }

    #[test]
    fn names_mappings_and_ends_are_those_of_the_window() {
        let second = 1_000_000_000;
        let named = |comm: &str, at_s: f64| {
            let time_ns = (at_s * 1e9) as u64;
            Item::Target(isotherm_record::TargetInfo {
                id: 1,
                comm: comm.to_owned(),
                time_ns,
                ..Default::default()
            })
        };
        let taken = |s: u64| {
            Item::Snapshot(Snapshot { start_ns: s * second, end_ns: (s + 1) * second, ..Snapshot::default() })
        };
        let end = isotherm_record::TargetEnd { target: 1, time_ns: 14 * second, ..Default::default() };
        let items = [
            Item::Header(Header { started_ns: 10 * second, ..Header::default() }),
            named("sh", 10.0),
            taken(10),
            taken(11),
            named("env", 12.5),
            taken(12),
            named("sleep", 13.2),
            taken(13),
            Item::TargetEnd(end),
            // Of a recording that does not say when.
            named("dateless", 0.0),
        ];
        let passed = |when: When| {
            let (mut window, mut passed) = (Window::new(when), Vec::new());
            let mut sink = |item: &Item| {
                passed.push(match item {
                    Item::Target(target) => target.comm.clone(),
                    Item::TargetEnd(_) => "end".to_owned(),
                    Item::Snapshot(snapshot) => (snapshot.start_ns / second).to_string(),
                    _ => return Ok(()),
                });
                Ok(())
            };
            items.iter().for_each(|item| window.item(item, &mut sink).unwrap());
            window.release(&mut sink).unwrap();
            passed.join(" ")
        };
        let within = |text: &str| passed(When::within(parse_bounds(text, parse_time).unwrap()));
        assert_eq!(within("..2s"), "sh 10 11");
        // The aggregation that goes on at that moment is shown, with what was known at its end.
        assert_eq!(within("..2100ms"), "sh 10 11 env 12");
        assert_eq!(within("2s..3s"), "sh env 12");
        assert_eq!(within("2s"), "sh 11");
        assert_eq!(within("2600ms"), "sh env 12");
        assert_eq!(within("1s.."), "sh 11 env 12 sleep 13 end dateless");
        assert_eq!(passed(When::Until(Duration::from_millis(2100))), within("..2100ms"));
        assert_eq!(within("..9s"), "sh 10 11 env 12 sleep 13 end dateless");
        assert_eq!(passed(When::Always), within("..9s"));
        // Which of the snapshots is that of the moment, others decide.
        assert_eq!(passed(When::At(Duration::from_millis(2100))), "sh 10 11 env 12 13");
        assert_eq!(passed(When::At(Duration::ZERO)), "sh 10 11 12 13");
    }

    #[test]
    fn costs_and_actions_are_those_of_the_window() {
        let second = 1_000_000_000;
        let mut items = vec![Item::Header(Header { started_ns: 10 * second, ..Header::default() })];
        for s in 10..20 {
            let (start_ns, end_ns) = (s * second, (s + 1) * second);
            items.push(Item::Snapshot(Snapshot { start_ns, end_ns, ..Snapshot::default() }));
            // Written later than they happened.
            let (time_ns, wall_ns) = (end_ns, second);
            items.push(Item::Cost(isotherm_record::Cost { time_ns, wall_ns, ..Default::default() }));
            let time_ns = start_ns + second / 2;
            items.push(Item::Action(isotherm_record::SchemeAction { time_ns, ..Default::default() }));
        }
        let passed = |when: When, items: &[Item]| {
            let (mut window, mut passed) = (Window::new(when), Vec::new());
            let mut sink = |item: &Item| {
                match item {
                    Item::Cost(cost) => passed.push(format!("c{}", cost.time_ns / second - 11)),
                    Item::Action(action) => passed.push(format!("a{}", action.time_ns / second - 10)),
                    _ => {}
                }
                Ok(())
            };
            items.iter().for_each(|item| window.item(item, &mut sink).unwrap());
            window.release(&mut sink).unwrap();
            passed.join(" ")
        };
        let within =
            |text: &str, items: &[Item]| passed(When::within(parse_bounds(text, parse_time).unwrap()), items);
        assert_eq!(within("2s..4s", &items), "c2 a2 c3 a3");
        assert_eq!(within("..1400ms", &items), "c0 a0 c1");
        assert_eq!(within("8600ms..", &items), "c8 c9 a9");
        assert_eq!(passed(When::Until(Duration::from_secs(2)), &items), "c0 a0 c1 a1");
        assert_eq!(passed(When::At(Duration::from_millis(1200)), &items), "c0 a0 c1");
        assert_eq!(passed(When::Always, &items).split(' ').count(), 20);
        // One that does not say when it began holds them back until it is known.
        let mut dateless = items.clone();
        dateless[0] = Item::Header(Header::default());
        dateless.swap(1, 2);
        dateless.swap(2, 3);
        assert_eq!(within("2s..3s", &dateless), "c2 a2");
    }

    #[test]
    fn a_recording_that_does_not_say_when_it_began_began_with_its_first_snapshot() {
        assert_eq!(passed("2s..4s", 0), (10_000_000_000, vec![12, 13]));
    }

    /// 0 is a time like any other.
    #[test]
    fn a_recording_may_begin_at_zero() {
        let mut window = Window::new(When::Within(parse_bounds("30s..35s", parse_time).unwrap()));
        let mut started = None;
        let mut sink = |item: &Item| {
            if let Item::Header(header) = item {
                started = Some(header.started_ns);
            }
            Ok(())
        };
        window.item(&Item::Header(Header::default()), &mut sink).unwrap();
        for second in 0..40 {
            let (start_ns, end_ns) = (second * 1_000_000_000, (second + 1) * 1_000_000_000);
            let snapshot = Snapshot { start_ns, end_ns, ..Snapshot::default() };
            window.item(&Item::Snapshot(snapshot), &mut sink).unwrap();
        }
        // Else who reports would count from the window's start.
        assert_eq!(started, Some(1));
    }

    #[test]
    fn nothing_was_recorded_at_a_moment_in_a_gap() {
        let nothing = |when: When| {
            let mut window = Window::new(when);
            for second in (10..20).chain(100..110) {
                let (start_ns, end_ns) = (second * 1_000_000_000, (second + 1) * 1_000_000_000);
                let snapshot = Snapshot { start_ns, end_ns, ..Snapshot::default() };
                window.item(&Item::Snapshot(snapshot), &mut |_| Ok(())).unwrap();
            }
            window.nothing(true)
        };
        for when in [When::At, When::Until, When::Moment] {
            for second in [1, 5, 10, 11, 89, 95, 100] {
                assert_eq!(nothing(when(Duration::from_secs(second))), None, "{second}");
            }
            for second in [12, 50, 88, 200] {
                let why = nothing(when(Duration::from_secs(second))).unwrap();
                assert!(why.starts_with("nothing was recorded at "), "{why}");
                assert_eq!(why.contains("stood still"), second != 200, "{why}");
            }
        }
    }
}
