//! Memory in motion: how much of a working set is other memory a moment later.
//!
//! A program whose working set stays where it is has the same one when it runs again. One that goes through its memory (a
//! garbage collector, a compiler started anew for each file) has what it happened to have in those seconds, and another run
//! has something else, as far as the same run has a little later. Blocks of time do not show that: they are next to each other, and
//! what a collector does in one it still does in the next. So where in an area the working set lies is kept for a stretch of
//! time, and compared with the stretch before.

use isotherm_damon::AddrRange;
use std::collections::BTreeMap;

/// A steady working set seems to move by so much, as a share, since regions are cut anew: 11 recordings of programs whose hot set
/// stays (the pattern `hotspot`, an SQLite database in Python, an array) had .000 to .008. Those of Java had .06 to .11, of compilers .26 to
/// .6.
const STEADY: f64 = 0.008;

/// Slots of a stretch: 2 s of a recording of a minute.
pub(super) const STRETCH: usize = 4;

/// Smallest part of an area that is looked at by itself, as a power of two: 64 KiB. A guess; from 64 KiB to 1 MiB made no difference.
const FINEST: u32 = 16;

/// Parts of an area at most; of more, two become one.
const MOST: usize = 256;

/// Where in an area a working set lies.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    /// Size of a part, as a power of two beyond [`FINEST`].
    coarse: u32,
    parts: BTreeMap<u64, Part>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Part {
    /// Bytes x seconds in the stretch under way.
    now: f64,
    /// Mean bytes in the one before.
    before: f64,
}

/// What a stretch has that the one before had not, what it lacks, and what both have on the mean: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Motion {
    pub gained: f64,
    pub lost: f64,
    pub compared: f64,
}

impl Motion {
    pub fn times(self, by: f64) -> Self {
        Self { gained: self.gained * by, lost: self.lost * by, compared: self.compared * by }
    }

    fn add(&mut self, other: Self) {
        self.gained += other.gained;
        self.lost += other.lost;
        self.compared += other.compared;
    }
}

/// What moved at several times, by the slot to which that is told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Motions(BTreeMap<usize, Motion>);

impl Motions {
    pub fn add(&mut self, slot: usize, motion: Motion) {
        if motion.compared > 0.0 {
            self.0.entry(slot).or_default().add(motion);
        }
    }

    pub fn merge(&mut self, other: &Self) {
        other.0.iter().for_each(|(slot, motion)| self.add(*slot, *motion));
    }

    /// Two slots become one.
    pub fn halve(&mut self) {
        for (slot, motion) in std::mem::take(&mut self.0) {
            self.add(slot / 2, motion);
        }
    }

    /// The slots to which something is told.
    pub fn slots(&self) -> impl Iterator<Item = usize> {
        self.0.keys().copied()
    }

    /// Leaves what is told to these slots.
    pub fn keep(&mut self, wanted: impl Fn(usize) -> bool) {
        self.0.retain(|slot, _| wanted(*slot));
    }

    /// What is elsewhere a moment later, beyond what steady working sets show, as a share. Of what came and what went the smaller part:
    /// by the rest the working set grew or shrank, which blocks of time show.
    pub fn share(&self) -> f64 {
        let moved: f64 = self.0.values().map(|motion| motion.gained.min(motion.lost)).sum();
        let compared: f64 = self.0.values().map(|motion| motion.compared).sum();
        if compared > 0.0 { (moved / compared - STEADY).max(0.0) } else { 0.0 }
    }
}

impl Places {
    /// So many bytes x seconds of working set lie evenly in `range`.
    pub fn add(&mut self, range: AddrRange, ws: f64) {
        if ws <= 0.0 || range.is_empty() {
            return;
        }
        // No more parts at once than there may be in the end.
        while (range.size() >> self.shift()) as usize > MOST {
            self.coarsen();
        }
        let shift = self.shift();
        let (first, last) = (range.start >> shift, (range.end - 1) >> shift);
        let a_byte = ws / range.size() as f64;
        for part in first..=last {
            let from = range.start.max(part << shift);
            // Of the last part of all addresses the end is none.
            let to = part.checked_add(1).and_then(|next| next.checked_shl(shift)).filter(|to| *to > from);
            let bytes = range.end.min(to.unwrap_or(u64::MAX)) - from;
            self.parts.entry(part).or_default().now += a_byte * bytes as f64;
        }
        while self.parts.len() > MOST {
            self.coarsen();
        }
    }

    const fn shift(&self) -> u32 {
        FINEST + self.coarse
    }

    fn coarsen(&mut self) {
        self.coarse += 1;
        self.move_parts(1);
    }

    /// Each part becomes part of another, 2^`by` times as large.
    fn move_parts(&mut self, by: u32) {
        let mut parts: BTreeMap<u64, Part> = BTreeMap::new();
        for (at, part) in std::mem::take(&mut self.parts) {
            let whole = parts.entry(at >> by).or_default();
            whole.now += part.now;
            whole.before += part.before;
        }
        self.parts = parts;
    }

    /// What lies in `other` lies here.
    pub fn merge(&mut self, mut other: Self) {
        let coarse = self.coarse.max(other.coarse);
        for places in [&mut *self, &mut other] {
            places.move_parts(coarse - places.coarse);
            places.coarse = coarse;
        }
        for (at, part) in other.parts {
            let whole = self.parts.entry(at).or_default();
            whole.now += part.now;
            whole.before += part.before;
        }
        while self.parts.len() > MOST {
            self.coarsen();
        }
    }

    /// Ends a stretch of so many seconds, and begins the next: what of it moved since the one before.
    pub fn turn(&mut self, seconds: f64) -> Motion {
        let mut motion = Motion::default();
        for part in self.parts.values_mut() {
            let now = part.now / seconds.max(f64::MIN_POSITIVE);
            motion.gained += (now - part.before).max(0.0);
            motion.lost += (part.before - now).max(0.0);
            motion.compared += f64::midpoint(now, part.before);
            *part = Part { now: 0.0, before: now };
        }
        self.parts.retain(|_, part| part.before > 0.0);
        motion
    }

    /// Nothing came before.
    pub fn forget(&mut self) {
        self.parts.clear();
    }
}

/// The stretch under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stretch {
    /// Which it is, by the first of its slots.
    pub first: usize,
    /// Seconds observed in it.
    pub seconds: f64,
    /// The one before, when it was as long and came just before it.
    pub before: Option<usize>,
}

impl Stretch {
    /// Whether a snapshot in `slot` belongs to it.
    pub const fn holds(&self, slot: usize) -> bool {
        slot / STRETCH == self.first / STRETCH
    }

    /// The next one, which `slot` is in. `enough`: this one was long enough to be compared with.
    pub const fn next(&self, slot: usize, enough: bool) -> Self {
        let first = slot / STRETCH * STRETCH;
        let before = if enough && first == self.first + STRETCH { Some(self.first) } else { None };
        Self { first, seconds: 0.0, before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn at(first: u64, mib: u64) -> AddrRange {
        AddrRange::new(first * MIB, (first + mib) * MIB)
    }

    #[test]
    fn what_stays_does_not_move_and_what_goes_elsewhere_does() {
        let mut places = Places::default();
        let mut stretch = |range: AddrRange, seconds: f64| {
            for _ in 0..10 {
                places.add(range, range.size() as f64 * seconds / 10.0);
            }
            let Motion { gained, lost, compared } = places.turn(seconds);
            [gained, lost, compared].map(|bytes| (bytes / MIB as f64 * 1000.0).round() / 1000.0)
        };
        stretch(at(0, 8), 2.0);
        assert_eq!(stretch(at(0, 8), 1.0), [0.0, 0.0, 8.0]);
        assert_eq!(stretch(at(2, 8), 2.0), [2.0, 2.0, 8.0]);
        assert_eq!(stretch(at(100, 8), 2.0), [8.0, 8.0, 8.0]);
        assert_eq!(stretch(at(100, 16), 2.0), [8.0, 0.0, 12.0], "it has grown");
        assert_eq!(stretch(at(0, 0), 2.0), [0.0, 16.0, 8.0], "it is gone");
        assert_eq!(stretch(at(0, 0), 2.0), [0.0; 3]);
    }

    #[test]
    fn only_what_comes_as_other_memory_goes_is_motion() {
        let motions = |list: &[(usize, [f64; 3])]| {
            let mut motions = Motions::default();
            for (slot, [gained, lost, compared]) in list {
                motions.add(*slot, Motion { gained: *gained, lost: *lost, compared: *compared });
            }
            motions
        };
        let share = |list: &[(usize, [f64; 3])]| motions(list).share();
        assert_eq!((share(&[]), share(&[(0, [0.7, 0.6, 100.0])])), (0.0, 0.0), "as of steady ones");
        assert_eq!(share(&[(0, [50.0, 0.0, 100.0]), (4, [0.0, 50.0, 100.0])]), 0.0, "it grew and shrank");
        assert!((share(&[(0, [50.0, 20.8, 100.0]), (4, [0.0, 0.0, 0.0])]) - 0.2).abs() < 1e-9);
        // What one mapping loses at the time at which another gains it has moved.
        let mut both = motions(&[(4, [50.8, 0.0, 50.0])]);
        both.merge(&motions(&[(4, [0.0, 50.8, 50.0])]));
        assert!((both.share() - 0.5).abs() < 1e-9);
        both.halve();
        assert_eq!(both.slots().collect::<Vec<_>>(), [2]);
        both.keep(|slot| slot > 2);
        assert_eq!(both, Motions::default());
    }

    #[test]
    fn the_whole_address_space_takes_no_more_parts() {
        let mut places = Places::default();
        places.add(AddrRange::new(0, u64::MAX), 1.0);
        places.add(AddrRange::new(u64::MAX - 10, u64::MAX), 1.0);
        places.add(AddrRange::new(5, 5), 1.0);
        assert!(places.parts.len() <= MOST);
        let motion = places.turn(1.0);
        assert!((motion.gained - 2.0).abs() < 1e-9, "{motion:?}");
    }

    proptest! {
        /// What is kept is what was put in, however it is put together.
        #[test]
        fn nothing_is_lost(list in prop::collection::vec((0_u64..1 << 40, 1_u64..1 << 32, 0.0..1e9_f64), 1..60)) {
            let (mut one, mut other) = (Places::default(), Places::default());
            for (i, (start, size, ws)) in list.iter().enumerate() {
                let side = if i % 3 == 0 { &mut other } else { &mut one };
                side.add(AddrRange::new(*start, start + size), *ws);
                prop_assert!(side.parts.len() <= MOST);
            }
            one.merge(other);
            prop_assert!(one.parts.len() <= MOST);
            let all: f64 = list.iter().map(|(_, _, ws)| ws).sum();
            let motion = one.turn(1.0);
            prop_assert!((motion.gained - all).abs() <= 1e-6 * all && motion.lost == 0.0);
            prop_assert!((motion.compared - all / 2.0).abs() <= 1e-6 * all);
            let again = one.turn(1.0);
            prop_assert!((again.lost - all).abs() <= 1e-6 * all && again.gained == 0.0);
            prop_assert!(one.parts.is_empty());
        }
    }
}
