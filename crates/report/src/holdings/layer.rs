//! The memory of one target, cut into segments that have a history each.

use super::FADE_S;
use super::history::History;
use isotherm_damon::AddrRange;

/// Segments of a target beyond twice its regions: this many. A guess; more only keep apart what happened at different
/// times, and sums do not depend on it.
const SPARE_SEGMENTS: usize = 256;

/// Histories whose mean ages differ by less than this share, or by less than [`ALIKE_S`], are joined.
const ALIKE: f64 = 0.05;
const ALIKE_S: f64 = 0.3;

/// Mean rates that differ by this share of the higher one are apart, whatever the ages: whether memory is hot is decided by a
/// factor. Below [`SELDOM_HZ`] it does not matter.
const RATES_ALIKE: f64 = 0.3;
const SELDOM_HZ: f64 = 1.0;

/// Accessed bytes and such as are only known to be idle are at least this far apart in age: which it is decides whether
/// they belong to a working set.
const USED_S: f64 = 10.0;

/// What a snapshot says about a part of a target's mapped memory.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Part {
    pub range: AddrRange,
    /// Share that could be observed, 0..=1.
    pub seen: f64,
    /// Access rate of that, accesses at random: a page is left alone for a time of `t` seconds with the probability
    /// `exp(-per_s t)`.
    pub per_s: f64,
    /// The same in sampling intervals with an access a second.
    pub hz: f64,
    /// Share present in memory, where that is known.
    pub resident: Option<f64>,
    /// For how long it has been known to be idle when it is first met with, seconds.
    pub idle_s: f64,
    /// The region that says so, which may be more than this: what lies in its gaps is no part, and what is accessed of it and what is
    /// not are two.
    pub whole: AddrRange,
    /// Which bytes of the region are accessed is not known: it was laid down.
    pub strewn: bool,
}

/// A stretch of memory with one state and one history.
#[derive(Clone, Debug)]
pub(super) struct Segment {
    pub state: Part,
    pub history: History,
    pub mean: MeanRate,
}

/// The rate on the mean of the time since it became known; what is longer ago than [`FADE_S`](super::FADE_S) fades out. An aggregation without an access, and one whose rate was guessed too high, are thus one of many.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct MeanRate {
    pub hz: f64,
    /// The least and the most of what was joined.
    ends: (f64, f64),
    over_s: f64,
    /// The shortest and the longest time of what was joined.
    times: (f64, f64),
}

impl MeanRate {
    /// After `seconds` more at a rate of `hz`.
    pub fn after(self, hz: f64, seconds: f64) -> Self {
        if seconds <= 0.0 {
            return self;
        }
        let longer = |time: f64| (time + seconds).min(FADE_S);
        let (over_s, times) = (longer(self.over_s), (longer(self.times.0), longer(self.times.1)));
        let share = (seconds / over_s).min(1.0);
        let towards = |mean: f64| mean + (hz - mean) * share;
        Self { hz: towards(self.hz), ends: (towards(self.ends.0), towards(self.ends.1)), over_s, times }
    }

    /// Of two stretches of memory of so many bytes.
    fn joined(self, bytes: f64, other: Self, others: f64) -> Self {
        let share = others / (bytes + others).max(1.0);
        let mix = |a: f64, b: f64| a + (b - a) * share;
        let (ends, times) = self.ends_with(other);
        Self { hz: mix(self.hz, other.hz), ends, over_s: mix(self.over_s, other.over_s), times }
    }

    /// The ends of both, and their times.
    fn ends_with(self, other: Self) -> ((f64, f64), (f64, f64)) {
        let both = |a: (f64, f64), b: (f64, f64)| (a.0.min(b.0), a.1.max(b.1));
        (both(self.ends, other.ends), both(self.times, other.times))
    }

    /// By how much the means of two differ, and all that was joined to either: a share of the highest. Means of times that
    /// are not as long differ soon.
    fn apart(self, other: Self) -> f64 {
        let ((least, most), (shortest, longest)) = self.ends_with(other);
        let times = (longest - shortest) / longest.max(f64::MIN_POSITIVE);
        (most - least) / most.max(SELDOM_HZ) + if most > SELDOM_HZ { times } else { 0.0 }
    }
}

impl Segment {
    /// Of which nothing was known before.
    fn fresh(state: Part) -> Self {
        Self { state, history: History::default(), mean: MeanRate::default() }
    }

    /// The parts of a region as one, in which each byte has the same past: of as many bytes, wherever they lie.
    pub fn spread<'a>(parts: impl Iterator<Item = &'a Self>, now: f64) -> Self {
        let mut all: Option<Self> = None;
        for part in parts {
            match &mut all {
                Some(all) => {
                    all.state.range.end += part.state.range.size();
                    all.history.join(part.history.clone(), now);
                }
                None => {
                    let mut first = part.clone();
                    first.state.range = AddrRange::new(0, part.state.range.size());
                    all = Some(first);
                }
            }
        }
        all.unwrap_or_else(|| Self::fresh(Part::default()))
    }

    fn size(&self) -> f64 {
        self.state.range.size() as f64
    }

    /// Cuts off what lies below `addr`, which is inside.
    fn split_front(&mut self, addr: u64) -> Self {
        let share = (addr - self.state.range.start) as f64 / self.size();
        let history = self.history.split_off(share);
        let mut state = self.state;
        state.range.end = addr;
        self.state.range.start = addr;
        Self { state, history, mean: self.mean }
    }
}

/// The segments of a target: sorted, disjoint.
#[derive(Clone, Debug, Default)]
pub(super) struct Layer {
    pub segments: Vec<Segment>,
    /// The time up to which the histories go, seconds.
    pub until: f64,
    /// Since when it has been observed without a gap, seconds.
    pub known_from: f64,
    spare: Vec<Segment>,
}

impl Layer {
    /// A layer of a target that is met with at `from`.
    pub fn new(from: f64) -> Self {
        Self { until: from, known_from: from, ..Self::default() }
    }

    /// What held at the last change has held up to now.
    pub fn catch_up(&mut self, now: f64) {
        for segment in &mut self.segments {
            segment.history.pass(segment.state.per_s, self.until, now);
            segment.mean = segment.mean.after(segment.state.hz, now - self.until);
        }
        self.until = self.until.max(now);
    }

    /// What happened until `now` is not known.
    pub fn skip_to(&mut self, now: f64) {
        (self.until, self.known_from) = (now, now);
    }

    /// These addresses, sorted and disjoint, are other memory from now on: what is known of them begins anew.
    pub fn forget(&mut self, ranges: &[AddrRange]) {
        let mut old = std::mem::take(&mut self.segments).into_iter();
        let mut held: Option<Segment> = None;
        for range in ranges {
            while let Some(mut segment) = held.take().or_else(|| old.next()) {
                let (start, end) = (segment.state.range.start, segment.state.range.end);
                if start >= range.end {
                    held = Some(segment);
                    break;
                }
                if end <= range.start {
                    self.segments.push(segment);
                    continue;
                }
                if start < range.start {
                    self.segments.push(segment.split_front(range.start));
                }
                if range.end < end {
                    let front = segment.split_front(range.end);
                    held = Some(std::mem::replace(&mut segment, front));
                }
                let mut fresh = Segment::fresh(segment.state);
                fresh.history.resize(fresh.size() * fresh.state.seen, self.until);
                self.segments.push(fresh);
            }
        }
        self.segments.extend(held.into_iter().chain(old));
    }

    /// Takes over what a snapshot says of the time from `from` (or as far as the histories go) to `to`. What had the same
    /// addresses before keeps its history.
    pub fn replace(&mut self, parts: &[Part], from: f64, to: f64) {
        let from = self.until.max(from);
        let arrived = share_arrived(&self.segments, parts);
        let mut old = std::mem::replace(&mut self.segments, std::mem::take(&mut self.spare));
        let out = &mut self.segments;
        out.clear();
        let mut before = old.drain(..);
        let mut held: Option<Segment> = None;
        for part in parts {
            let first = out.len();
            let mut rest = *part;
            while !rest.range.is_empty() {
                let Some(mut known) = held.take().or_else(|| before.next()) else {
                    grow(out, first, Segment::fresh(rest), (from, to));
                    break;
                };
                let (start, end) = (known.state.range.start, known.state.range.end);
                if end <= rest.range.start {
                    continue;
                }
                if start >= rest.range.end {
                    held = Some(known);
                    grow(out, first, Segment::fresh(rest), (from, to));
                    break;
                }
                if start > rest.range.start {
                    let mut fresh = Segment::fresh(rest);
                    let front = fresh.split_front(start);
                    rest = fresh.state;
                    grow(out, first, front, (from, to));
                    held = Some(known);
                    continue;
                }
                if start < rest.range.start {
                    known.split_front(rest.range.start);
                }
                if end > rest.range.end {
                    let front = known.split_front(rest.range.end);
                    held = Some(std::mem::replace(&mut known, front));
                }
                let end = known.state.range.end;
                let mut state = rest;
                state.range.end = end;
                let more = state.resident.zip(known.state.resident).map_or(0.0, |(now, then)| now - then);
                if more * arrived > 0.0 {
                    known.history.arrive(more * arrived * known.size() * known.state.seen, to);
                }
                grow(out, first, Segment { state, ..known }, (from, to));
                rest.range.start = end;
            }
        }
        drop(before);
        self.spare = old;
        self.until = self.until.max(to);
        reduce(&mut self.segments, 2 * parts.len() + SPARE_SEGMENTS, to);
    }
}

/// The share of what is present now and was not, piece by piece, that is more on the whole: where regions are drawn anew, each with what is
/// present on its own mean, what was there before is shared out anew, and nothing has come.
fn share_arrived(old: &[Segment], parts: &[Part]) -> f64 {
    let (mut net, mut gains) = (0.0, 0.0);
    let mut first = 0;
    for part in parts {
        while old.get(first).is_some_and(|s| s.state.range.end <= part.range.start) {
            first += 1;
        }
        let here = old.get(first..).unwrap_or_default().iter();
        for known in here.take_while(|s| s.state.range.start < part.range.end) {
            let size = part.range.intersection(known.state.range).size() as f64;
            let more = part.resident.zip(known.state.resident).map_or(0.0, |(now, then)| (now - then) * size);
            net += more;
            gains += more.max(0.0);
        }
    }
    if gains > 0.0 { (net / gains).clamp(0.0, 1.0) } else { 0.0 }
}

/// Lets the time pass for a segment and appends it, joined to the one before where that is of the same part, from
/// `first` on, and alike.
fn grow(out: &mut Vec<Segment>, first: usize, mut segment: Segment, (from, to): (f64, f64)) {
    let state = &segment.state;
    let fresh = segment.history.bytes() <= 0.0;
    let since = if fresh { from - state.idle_s } else { from };
    segment.history.resize(segment.size() * state.seen, since);
    segment.history.pass(state.per_s, from, to);
    segment.mean = match state.seen > 0.0 {
        true => segment.mean.after(state.hz, to - from),
        false => MeanRate::default(),
    };
    match out.get_mut(first..).and_then(<[Segment]>::last_mut) {
        // The means are the cheaper to compare.
        Some(last)
            if neighbours(&last.state, &segment.state)
                && last.mean.apart(segment.mean) <= RATES_ALIKE
                && {
                    let (age, limit) =
                        apart((last, last.history.signature(to)), (&segment, segment.history.signature(to)));
                    age <= limit
                } =>
        {
            join(last, segment, to);
        }
        _ => out.push(segment),
    }
}

/// Whether two are neighbours of one part.
fn neighbours(a: &Part, b: &Part) -> bool {
    a.range.end == b.range.start && Part { range: b.range, ..*a } == *b
}

/// By how much the histories of neighbours of one part, with these signatures, differ in age, and how much may be joined.
fn apart(
    (a, (age, used)): (&Segment, (f64, f64)),
    (b, (other, other_used)): (&Segment, (f64, f64)),
) -> (f64, f64) {
    let limit = ALIKE_S + ALIKE * age.min(other);
    let unlike = (age - other).abs()
        + (used - other_used).abs() * age.max(other).max(USED_S)
        + a.mean.apart(b.mean) * limit / RATES_ALIKE;
    (unlike, limit)
}

fn join(last: &mut Segment, next: Segment, now: f64) {
    last.mean = last.mean.joined(last.size(), next.mean, next.size());
    last.state.range.end = next.state.range.end;
    last.history.join(next.history, now);
}

/// Joins neighbours of one part until there are at most `max` segments, those first whose joining displaces the fewest
/// bytes in time.
fn reduce(segments: &mut Vec<Segment>, max: usize, now: f64) {
    let Some(excess) = segments.len().checked_sub(max).filter(|n| *n > 0) else { return };
    let cost = |a: &Segment, signature: (f64, f64), b: &Segment, other: (f64, f64)| {
        neighbours(&a.state, &b.state).then(|| apart((a, signature), (b, other)).0 * a.size().min(b.size()))
    };
    let signatures: Vec<(f64, f64)> = segments.iter().map(|s| s.history.signature(now)).collect();
    let pairs = segments.windows(2).zip(signatures.windows(2));
    let mut costs: Vec<f64> = pairs.filter_map(|(pair, of)| cost(&pair[0], of[0], &pair[1], of[1])).collect();
    if costs.is_empty() {
        return;
    }
    let nth = excess.min(costs.len()) - 1;
    let (_, &mut limit, _) = costs.select_nth_unstable_by(nth, f64::total_cmp);
    let list = std::mem::take(segments);
    segments.reserve(list.len());
    let mut of_last = (0.0, 0.0);
    for (segment, signature) in list.into_iter().zip(signatures) {
        match segments.last_mut() {
            Some(last) if cost(last, of_last, &segment, signature).is_some_and(|c| c <= limit) => {
                join(last, segment, now);
                of_last = last.history.signature(now);
            }
            _ => {
                of_last = signature;
                segments.push(segment);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known_for(seconds: f64) -> MeanRate {
        MeanRate::default().after(2.0, seconds)
    }

    /// A few bytes known for 0.7 s vanish among those of a second; after the next jump of the rate their mean is half as high
    /// again, and so it is that of what would join them next.
    #[test]
    fn stretches_join_by_all_the_times_in_them_not_by_their_mean() {
        let few = known_for(0.7).joined(4096.0, known_for(1.0), 9.0 * 4096.0);
        assert!(few.over_s > 0.96);
        let next = known_for(1.38);
        assert!(known_for(1.0).apart(next) < RATES_ALIKE, "these two may");
        assert!(few.apart(next) > RATES_ALIKE, "{}", few.apart(next));
        let rates = [0.7, 1.38].map(|seconds| known_for(seconds).after(200.0, 0.1).hz);
        assert!(rates[0] > 1.5 * rates[1], "{rates:?}");
        // Whoever has known all for as long as the mean looks back is alike again.
        assert!(few.after(2.0, FADE_S).apart(next.after(2.0, FADE_S)) < 1e-9);
    }
}
