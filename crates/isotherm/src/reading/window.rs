//! Which part of a recording is handed on, and what was known then.
//!
//! One rule for all reports. A stretch of time has the snapshots that overlap it. A moment has one: that which was being taken, or was
//! taken last, and before the first the first; `5s..5s` is a moment. Between snapshots, and beyond the ends, a moment may lie as far
//! from the nearest as the longest snapshot takes: further away nothing was recorded.

use isotherm_record::Item;
use isotherm_report::access::Selection;
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
    /// The last one.
    Last,
    /// All are handed on; who asks takes the one of this moment.
    At(Duration),
    /// Those that began before this moment, or the first.
    Until(Duration),
}

impl When {
    /// What is asked for on the command line.
    pub fn selected(time: Selection) -> Self {
        match time {
            Selection::Last => Self::Last,
            Selection::At(moment) => Self::Moment(moment),
            Selection::Between(Duration::ZERO, Duration::MAX) => Self::Always,
            Selection::Between(from, to) => {
                let bound = |time: Duration, open: Duration| (time != open).then_some(time);
                Self::Within(Bounds { min: bound(from, Duration::ZERO), max: bound(to, Duration::MAX) })
            }
        }
    }

    /// The moment that is asked for.
    fn moment(self) -> Option<Duration> {
        match self {
            Self::Always | Self::Within(_) | Self::Last => None,
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
    /// Start of the last of these, ns.
    last_start: u64,
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
            last_start: 0,
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
                if let When::Moment(_) | When::Last = self.when {
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
        let waits = self.when == When::Last && happened(item).is_some();
        if waits || !self.pending.is_empty() {
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
        if !self.pending.iter().any(of_same) {
            self.passed = 0;
            for other in std::mem::take(&mut self.pending) {
                match &other {
                    Item::Snapshot(_) => {}
                    // Of the last moment it is not known before its snapshot comes when that is.
                    Item::Cost(_) | Item::Action(_) if self.when == When::Last => {
                        if happened(&other).is_some_and(|(_, end)| end > start) {
                            self.pending.push(other);
                        }
                    }
                    _ => sink(&other)?,
                }
            }
            self.last_start = start;
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
            When::Always | When::Last => false,
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
        let (last, of_last) = (self.last_start, self.when == When::Last);
        let passes = |item: &Item| !of_last || happened(item).is_none_or(|(_, end)| end > last);
        self.pending.drain(..).filter(passes).try_for_each(|item| sink(&item))
    }

    /// Whether what was done or spent at some time, if `item` is that, was so within the stretch of time.
    fn lets_pass(&self, origin_ns: u64, item: &Item) -> bool {
        let Some((start, end)) = happened(item) else { return true };
        match self.when {
            // What others take from it is of that moment, and so is the rest.
            When::At(_) => !self.is_past(origin_ns, start),
            _ => self.overlaps(origin_ns, start, end.max(start.saturating_add(1))),
        }
    }

    fn overlaps(&self, origin_ns: u64, start: u64, end: u64) -> bool {
        let bounds = match self.when {
            When::Always | When::At(_) | When::Last => return true,
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

/// From when to when that was which an item tells, if it is something that was done or spent, ns.
fn happened(item: &Item) -> Option<(u64, u64)> {
    match item {
        Item::Action(action) => Some((action.time_ns, action.time_ns.saturating_add(1))),
        Item::Cost(cost) => Some((cost.time_ns.saturating_sub(cost.wall_ns), cost.time_ns)),
        _ => None,
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
mod tests;
