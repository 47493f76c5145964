//! What targets that ended did in files and shared memory, which outlive them; and those that go on, in what they have unmapped.
//!
//! What a target that goes on left is kept by itself. Bytes that it maps anew, here or there, are the same bytes in use by the same
//! program: what it did in them then and does now is not independent, and the more of it is what counts. When it has ended, all that
//! it left is put together with what others did.
//!
//! A byte of an object is the same whoever accesses it: what a process read three seconds ago is part of the working set of ten
//! seconds, also if that process has ended since. So of each object it is kept when its bytes were accessed last by any of those
//! that ended, by the rules of [`super::objects`], how much of it they had in memory at their end, and how much of it could not be
//! observed until then. What they had of their own is gone with them.
//!
//! The kernel keeps pages of files and of shared memory in memory when the last page table that has them goes. Whether it has
//! given them up since then is not seen.

use super::figures::{COLD_S, WINDOWS_S};
use super::history::History;
use super::layer::Segment;
use super::objects::{Said, Share};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Stretches that an object is cut into. A guess: of more, neighbours are joined, which leaves all sums as they are.
const MOST_STRETCHES: usize = 256;

/// What is known of each object.
#[derive(Clone, Debug, Default)]
pub(super) struct Past {
    /// By object, and by who left it: `None`, all that ended. Sorted, disjoint.
    objects: BTreeMap<(usize, Option<u64>), Vec<Stretch>>,
    /// Since when any of those that ended was observed, seconds.
    from: Option<f64>,
}

/// What those that ended did in a stretch of an object.
#[derive(Clone, Debug)]
struct Stretch {
    start: u64,
    end: u64,
    accessed: History,
    /// Share that was present; `None`: not known.
    resident: Option<f64>,
    /// Share that was present and could not be observed.
    unknown: f64,
    /// When the last of them ended, seconds.
    until: f64,
}

impl Past {
    /// Takes over what `target` left of `size` bytes from `start` on, which are part of `segment`, whose history goes
    /// to `until`. It was observed from `from` on.
    pub fn take(
        &mut self,
        (object, target): (usize, u64),
        (start, size): (u64, u64),
        segment: &Segment,
        (from, until): (f64, f64),
    ) {
        let state = &segment.state;
        let share = size as f64 / state.range.size().max(1) as f64;
        let (_, unknown) = crate::space::accessible(state.seen, state.resident);
        let mut accessed = segment.history.only_accessed();
        accessed.scale(share);
        let new = Stretch {
            start,
            end: start.saturating_add(size),
            accessed,
            resident: state.resident.map(|share| share.min(1.0)),
            unknown,
            until,
        };
        let list = self.objects.entry((object, Some(target))).or_default();
        // The same program's, so the same pages.
        lay(list, new, true);
        reduce(list, until);
        self.from = Some(self.from.map_or(from, |before| before.min(from)));
    }

    /// A target ends: what it left is put to what others did. `is_same`: whether all who map an object have the same pages of it.
    pub fn end(&mut self, target: u64, is_same: impl Fn(usize) -> bool) {
        let mut left = Vec::new();
        self.objects.retain(|(object, by), list| {
            let goes = *by == Some(target);
            if goes {
                left.push((*object, std::mem::take(list)));
            }
            !goes
        });
        for (object, stretches) in left {
            let list = self.objects.entry((object, None)).or_default();
            for stretch in stretches {
                let until = stretch.until;
                lay(list, stretch, is_same(object));
                reduce(list, until);
            }
        }
    }

    /// Forgets the objects that are not `wanted`.
    pub fn retain(&mut self, wanted: impl Fn(usize) -> bool) {
        self.objects.retain(|(object, _), _| wanted(*object));
    }

    pub fn knows(&self, object: usize) -> bool {
        self.objects.range((object, None)..=(object, Some(u64::MAX))).next().is_some()
    }

    /// Since when any of them was observed, seconds.
    pub fn from(&self) -> Option<f64> {
        self.from
    }

    /// The objects of which figures are not what they were at `before`, as time passes.
    pub fn moving(&self, before: f64) -> impl Iterator<Item = usize> {
        let longest = COLD_S.into_iter().chain(WINDOWS_S).fold(0.0, f64::max);
        let moves = move |list: &[Stretch]| list.iter().any(|stretch| stretch.until + longest >= before);
        self.objects.iter().filter(move |(_, list)| moves(list)).map(|((object, _), _)| *object)
    }

    /// What they say at `now` of the objects that are `wanted`, beside what those who go on say (`running`). `is_same`: whether all who map
    /// an object have the same pages of it.
    pub fn shares<'a>(
        &self,
        now: f64,
        wanted: impl Fn(usize) -> bool,
        running: impl Iterator<Item = &'a Share>,
        is_same: impl Fn(usize) -> bool,
    ) -> Vec<Share> {
        let from = self.from.unwrap_or(now);
        let mut out = Vec::new();
        // Of those who map again what they left.
        let mut again: HashMap<(usize, u64), Vec<&Share>> = HashMap::new();
        for (object, target) in self.objects.keys() {
            if let Some(target) = target.filter(|_| wanted(*object) && !is_same(*object)) {
                again.insert((*object, target), Vec::new());
            }
        }
        if !again.is_empty() {
            for share in running {
                if let Some(list) = again.get_mut(&(share.object, share.target)) {
                    list.push(share);
                }
            }
            again.values_mut().for_each(|list| list.sort_by_key(|share| share.start));
        }
        for (&(object, target), list) in self.objects.iter().filter(|((object, _), _)| wanted(*object)) {
            let now_has =
                target.and_then(|target| again.get(&(object, target))).map_or(&[][..], Vec::as_slice);
            // No target's: they are none any more.
            let target = target.unwrap_or(0);
            for stretch in list {
                let said = stretch.said(now, from);
                let mut at = stretch.start;
                let mut put = |from: u64, to: u64, said: &Arc<Said>| {
                    if from < to {
                        out.push(Share::new(object, target, (from, to - from), said));
                    }
                };
                for share in now_has.iter().filter(|share| share.end > stretch.start) {
                    if share.start >= stretch.end {
                        break;
                    }
                    let (begin, end) = (share.start.max(at), share.end.min(stretch.end));
                    put(at, begin, &said);
                    if begin < end {
                        put(begin, end, &said.beyond(share));
                    }
                    at = at.max(end);
                }
                put(at, stretch.end, &said);
            }
        }
        out
    }
}

impl Stretch {
    fn size(&self) -> f64 {
        self.end.saturating_sub(self.start).max(1) as f64
    }

    fn said(&self, now: f64, from: f64) -> Arc<Said> {
        let there = self.resident.unwrap_or(1.0);
        let accessed = |time: f64| (self.accessed.accessed_since(now - time) / self.size()).min(there);
        let mut ws = WINDOWS_S.map(accessed);
        // That of a second is at the rates of the last aggregation.
        ws[0] = 0.0;
        let idle = COLD_S.map(|time| {
            let unknown = if self.until > now - time { self.unknown } else { 0.0 };
            (1.0 - accessed(time) - unknown).max(0.0)
        });
        let observed = COLD_S.map(|time| now - time >= from);
        Said::of_ended(self.resident, ws, idle, observed)
    }

    /// Cuts off what lies below `at`, which is inside.
    fn split_front(&mut self, at: u64) -> Self {
        let accessed = self.accessed.split_off((at - self.start) as f64 / self.size());
        let front = Self { end: at, accessed, ..*self };
        self.start = at;
        front
    }

    /// The same bytes, of which another says something, too.
    fn with(&self, other: &Self, is_same: bool) -> Self {
        let either = |a: f64, b: f64| if is_same { a.max(b) } else { 1.0 - (1.0 - a) * (1.0 - b) };
        Self {
            accessed: self.accessed.latest(&other.accessed, self.size(), either),
            resident: match (self.resident, other.resident) {
                (Some(a), Some(b)) => Some(either(a, b)),
                (a, b) => a.or(b),
            },
            unknown: either(self.unknown, other.unknown),
            until: self.until.max(other.until),
            ..*self
        }
    }

    /// What of it was in use within a minute of `now`, what was there and what is unknown, shares: neighbours alike in these may be
    /// one.
    fn signature(&self, now: f64) -> [f64; 3] {
        let accessed = self.accessed.accessed_since(now - WINDOWS_S[2]) / self.size();
        [accessed, self.resident.unwrap_or(1.0), self.unknown]
    }
}

/// Lays a stretch over a list: sorted, disjoint.
fn lay(list: &mut Vec<Stretch>, new: Stretch, is_same: bool) {
    let first = list.partition_point(|old| old.end <= new.start);
    let last = list.partition_point(|old| old.start < new.end);
    let mut out = Vec::with_capacity(2 * (last.saturating_sub(first)) + 1);
    let mut rest = Some(new);
    for mut old in list.splice(first..last.max(first), []) {
        let Some(mut new) = rest.take() else {
            out.push(old);
            continue;
        };
        if old.start < new.start {
            out.push(old.split_front(new.start));
        } else if new.start < old.start {
            out.push(new.split_front(old.start));
        }
        if new.end < old.end {
            out.push(old.split_front(new.end).with(&new, is_same));
            out.push(old);
        } else if old.end < new.end {
            out.push(old.with(&new.split_front(old.end), is_same));
            rest = Some(new);
        } else {
            out.push(old.with(&new, is_same));
        }
    }
    out.extend(rest);
    list.splice(first..first, out);
}

/// Joins neighbours while there are too many, those first of which the fewest bytes are said to be what they are not.
fn reduce(list: &mut Vec<Stretch>, now: f64) {
    if list.len() <= MOST_STRETCHES {
        return;
    }
    let cost = |a: &Stretch, b: &Stretch| {
        let touch = a.end == b.start && a.resident.is_some() == b.resident.is_some();
        let differ = || a.signature(now).into_iter().zip(b.signature(now)).map(|(a, b)| (a - b).abs());
        touch.then(|| differ().sum::<f64>() * a.size().min(b.size()))
    };
    let mut costs: Vec<f64> = list.windows(2).filter_map(|pair| cost(&pair[0], &pair[1])).collect();
    // A quarter at once, so that this is not done for each stretch that comes.
    let nth = (list.len() - MOST_STRETCHES + MOST_STRETCHES / 4).min(costs.len());
    if nth == 0 {
        return;
    }
    let (_, &mut limit, _) = costs.select_nth_unstable_by(nth - 1, f64::total_cmp);
    list.dedup_by(|next, last| {
        let joins = cost(last, next).is_some_and(|cost| cost <= limit);
        if joins {
            let share = next.size() / (last.size() + next.size());
            let mix = |a: f64, b: f64| a + (b - a) * share;
            last.resident = last.resident.zip(next.resident).map(|(a, b)| mix(a, b));
            last.unknown = mix(last.unknown, next.unknown);
            last.until = last.until.max(next.until);
            last.end = next.end;
            last.accessed.join(std::mem::take(&mut next.accessed), now);
        }
        joins
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stretch(start: u64, end: u64, accessed: f64, at: f64) -> Stretch {
        let mut history = History::default();
        let bytes = (end - start) as f64;
        history.resize(bytes, 0.0);
        // All but so much of it, within a second.
        history.pass(-(1.0 - accessed).ln(), at - 1.0, at);
        Stretch {
            start,
            end,
            accessed: history.only_accessed(),
            resident: Some(1.0),
            unknown: 0.0,
            until: at,
        }
    }

    fn met(list: &[Stretch], since: f64) -> f64 {
        list.iter().map(|stretch| stretch.accessed.accessed_since(since)).sum()
    }

    #[test]
    fn what_several_did_in_the_same_bytes_is_put_together_as_if_each_did_it_by_itself() {
        let mut list = Vec::new();
        lay(&mut list, stretch(0, 1000, 0.5, 10.0), false);
        lay(&mut list, stretch(500, 1500, 0.5, 20.0), false);
        let borders: Vec<(u64, u64)> = list.iter().map(|s| (s.start, s.end)).collect();
        assert_eq!(borders, [(0, 500), (500, 1000), (1000, 1500)]);
        // Three quarters of what both used; of it half was accessed last by the later one.
        assert!((met(&list, 0.0) - (250.0 + 375.0 + 250.0)).abs() < 1.0, "{}", met(&list, 0.0));
        assert!((met(&list, 15.0) - 500.0).abs() < 1.0, "{}", met(&list, 15.0));
        // One inside another, and one over all and on both sides of it.
        lay(&mut list, stretch(600, 700, 0.0, 30.0), false);
        lay(&mut list, stretch(0, 3000, 0.5, 40.0), false);
        assert!(list.windows(2).all(|pair| pair[0].end == pair[1].start), "{list:?}");
        assert!((met(&list, 35.0) - 1500.0).abs() < 2.0, "{}", met(&list, 35.0));
        let all = 500.0 * (0.75 + 0.875 + 0.75) + 750.0;
        assert!((met(&list, 0.0) - all).abs() < 3.0, "{} {all}", met(&list, 0.0));
    }

    #[test]
    fn of_very_many_stretches_sums_are_kept() {
        let mut list = Vec::new();
        for i in 0..2000 {
            lay(&mut list, stretch(i * 100, i * 100 + 100, if i % 500 < 7 { 0.9 } else { 0.1 }, 50.0), false);
            reduce(&mut list, 50.0);
        }
        assert!(list.len() <= MOST_STRETCHES, "{}", list.len());
        let all = 4.0 * (7.0 * 90.0 + 493.0 * 10.0);
        assert!((met(&list, 0.0) / all - 1.0).abs() < 0.01, "{}", met(&list, 0.0));
    }
}
