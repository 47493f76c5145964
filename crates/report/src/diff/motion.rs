//! Memory in motion: how much of a working set is other memory a moment later.
//!
//! A program whose working set stays where it is has the same one when it runs again. One that goes through its memory (a
//! garbage collector, a compiler started anew for each file) has what it happened to have in those seconds, and another run
//! has something else, as far as the same run has a little later. Blocks of time do not show that: they are next to each other, and
//! what a collector does in one it still does in the next. So where in an area the working set lies is kept for a stretch of
//! time, and compared with the stretch before. What comes while other memory goes is in motion. What only comes, or only goes,
//! the blocks show.

use isotherm_damon::AddrRange;

/// Length of a stretch, seconds, whatever that of the recording.
pub(super) const STRETCH_S: f64 = 2.0;

/// Smallest part of an area that is looked at by itself, as a power of two: 64 KiB. A guess; from 64 KiB to 1 MiB made no difference.
const FINEST: u32 = 16;

/// Parts of an area at most; of more, two become one.
const MOST: usize = 256;

/// A steady working set seems to move by so much, as a share, since regions are cut anew: of 63 recordings of programs whose hot set
/// stays (`ci/diff-noise.sh`: the pattern `hotspot`, an SQLite database in Python, an array) the most had .0084. Beyond it four of Java had
/// .08 to .12, fifteen of compilers .19 to .66.
const STEADY: f64 = 0.008;

/// What moved: bytes, as a mean over so many seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Moved {
    moved: f64,
    compared: f64,
}

impl Moved {
    pub fn add(&mut self, other: Self) {
        self.moved += other.moved;
        self.compared += other.compared;
    }

    /// What gave way to other memory, beyond what steady working sets show, as a share; `None`: nothing was compared.
    pub fn share(self) -> Option<f64> {
        (self.compared > 0.0).then(|| (self.moved / self.compared - STEADY).max(0.0))
    }
}

/// What moved at several times, by the slot in which the earlier of the stretches that are compared began.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct BySlot(Vec<Moved>);

impl BySlot {
    pub fn add(&mut self, slot: usize, moved: Moved) {
        if self.0.len() <= slot {
            self.0.resize(slot + 1, Moved::default());
        }
        self.0[slot].add(moved);
    }

    pub fn merge(&mut self, other: &Self) {
        other.0.iter().enumerate().for_each(|(slot, moved)| self.add(slot, *moved));
    }

    /// Two slots become one.
    pub fn halve(&mut self) {
        for (slot, moved) in std::mem::take(&mut self.0).into_iter().enumerate() {
            self.add(slot / 2, moved);
        }
    }

    /// The slots in which something was compared.
    pub fn slots(&self) -> impl Iterator<Item = usize> {
        self.0.iter().enumerate().filter(|(_, moved)| moved.compared > 0.0).map(|(slot, _)| slot)
    }

    /// All that is told to these slots.
    pub fn sum(&self, slots: &[usize]) -> Moved {
        let mut sum = Moved::default();
        slots.iter().filter_map(|slot| self.0.get(*slot)).for_each(|moved| sum.add(*moved));
        sum
    }
}

/// What a stretch has that the one before had not, what it lacks, and what both have on the mean: bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Turn {
    pub gained: f64,
    pub lost: f64,
    pub compared: f64,
}

impl Turn {
    pub fn add(&mut self, other: Self) {
        self.gained += other.gained;
        self.lost += other.lost;
        self.compared += other.compared;
    }

    /// Over so many seconds: of what came and what went the smaller part.
    pub fn moved(self, seconds: f64) -> Moved {
        Moved { moved: self.gained.min(self.lost) * seconds, compared: self.compared * seconds }
    }
}

/// Where a working set lies: bytes x seconds, in parts of one size.
#[derive(Clone, Debug, Default)]
struct Grid {
    /// Size of a part, as a power of two beyond [`FINEST`].
    coarse: u32,
    /// Number of the first part.
    first: u64,
    /// What each part has more than the one before it. A range that covers many changes two.
    steps: Vec<f64>,
    /// What each part has besides.
    extra: Vec<f64>,
}

impl Grid {
    const fn shift(&self) -> u32 {
        FINEST + self.coarse
    }

    fn is_empty(&self) -> bool {
        self.extra.is_empty()
    }

    /// Adds what lies evenly in a range, which is not empty.
    fn add(&mut self, range: AddrRange, ws: f64) {
        self.reach(range);
        let shift = self.shift();
        let (first, last) = ((range.start >> shift) - self.first, ((range.end - 1) >> shift) - self.first);
        let (first, last) = (first as usize, last as usize);
        let a_byte = ws / range.size() as f64;
        if first == last {
            self.extra[first] += ws;
            return;
        }
        // Parts between the outer two are covered whole.
        let a_part = a_byte * (1_u64 << shift) as f64;
        let into_last = a_byte * (((range.end - 1) & ((1 << shift) - 1)) + 1) as f64;
        self.extra[first] += ws - into_last - a_part * (last - first - 1) as f64;
        self.extra[last] += into_last;
        self.steps[first + 1] += a_part;
        self.steps[last] -= a_part;
    }

    /// Has parts for this range.
    fn reach(&mut self, range: AddrRange) {
        let of = |shift: u32| (range.start >> shift, (range.end - 1) >> shift);
        let (mut first, mut last) = of(self.shift());
        if !self.is_empty() {
            first = first.min(self.first);
            last = last.max(self.first + self.extra.len() as u64 - 1);
        }
        if !self.is_empty() && first == self.first && last < first + self.extra.len() as u64 {
            return;
        }
        let mut coarser = 0;
        while (last >> coarser) - (first >> coarser) >= MOST as u64 {
            coarser += 1;
        }
        let before = self.amounts();
        let (at, by) = (self.first, coarser);
        self.coarse += by;
        self.first = first >> by;
        let parts = ((last >> by) - self.first + 1) as usize;
        (self.steps, self.extra) = (vec![0.0; parts], vec![0.0; parts]);
        for (i, amount) in before.into_iter().enumerate() {
            self.extra[(((at + i as u64) >> by) - self.first) as usize] += amount;
        }
    }

    /// What lies in each part.
    fn amounts(&self) -> Vec<f64> {
        let mut level = 0.0;
        let each = self.steps.iter().zip(&self.extra).map(|(step, extra)| {
            level += step;
            (level + extra).max(0.0)
        });
        each.collect()
    }

    /// The same in parts as large as those of `coarse`, with the numbers of the parts.
    fn as_coarse(&self, coarse: u32) -> Vec<(u64, f64)> {
        let by = coarse - self.coarse;
        let mut parts: Vec<(u64, f64)> = Vec::new();
        for (i, amount) in self.amounts().into_iter().enumerate().filter(|(_, amount)| *amount > 0.0) {
            let at = (self.first + i as u64) >> by;
            match parts.last_mut() {
                Some((last, sum)) if *last == at => *sum += amount,
                _ => parts.push((at, amount)),
            }
        }
        parts
    }
}

/// Where in an area a working set lies now, and where it lay a stretch of time before.
#[derive(Clone, Debug, Default)]
pub(super) struct Places {
    now: Grid,
    before: Grid,
    before_s: f64,
}

impl Places {
    /// So many bytes x seconds of working set lie evenly in `range`.
    pub fn add(&mut self, range: AddrRange, ws: f64) {
        if ws > 0.0 && !range.is_empty() {
            self.now.add(range, ws);
        }
    }

    /// What lies in `other` lies here.
    pub fn merge(&mut self, other: &Self) {
        for (mine, other) in [(&mut self.now, &other.now), (&mut self.before, &other.before)] {
            for (part, ws) in other.as_coarse(other.coarse) {
                let start = part << other.shift();
                mine.add(AddrRange::new(start, start.saturating_add(1 << other.shift())), ws);
            }
        }
        self.before_s = self.before_s.max(other.before_s);
    }

    /// Ends a stretch of so many seconds, and begins the next: what is not where it was in the stretch before.
    pub fn turn(&mut self, seconds: f64) -> Turn {
        let coarse = self.now.coarse.max(self.before.coarse);
        let mut all: Vec<(u64, f64)> = Vec::new();
        for (grid, seconds, sign) in [(&self.now, seconds, 1.0), (&self.before, self.before_s, -1.0)] {
            let a_second = |(part, ws)| (part, sign * ws / f64::max(seconds, f64::MIN_POSITIVE));
            all.extend(grid.as_coarse(coarse).into_iter().map(a_second));
        }
        let compared = all.iter().map(|(_, bytes)| bytes.abs() / 2.0).sum();
        let mut turn = Turn { compared, ..Turn::default() };
        all.sort_by_key(|(part, _)| *part);
        for part in all.chunk_by(|a, b| a.0 == b.0) {
            let more: f64 = part.iter().map(|(_, bytes)| bytes).sum();
            turn.gained += more.max(0.0);
            turn.lost += (-more).max(0.0);
        }
        (self.before, self.before_s) = (std::mem::take(&mut self.now), seconds);
        turn
    }

    /// Nothing came before.
    pub fn forget(&mut self) {
        self.before = Grid::default();
    }
}

/// The stretch under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Stretch {
    /// The slot in which it began.
    pub first: usize,
    /// Seconds observed in it.
    pub seconds: f64,
    /// The slot in which the one before began, if that was long enough and this follows it at once.
    pub before: Option<usize>,
}

impl Stretch {
    /// Whether it is long enough to be compared: the last one of a recording is not whole, and of little time nothing can be told.
    pub fn is_enough(&self) -> bool {
        self.seconds >= STRETCH_S / 2.0
    }

    /// The next one. `follows`: without time between them.
    pub fn next(&self, slot: usize, follows: bool) -> Self {
        Self { first: slot, seconds: 0.0, before: (follows && self.is_enough()).then_some(self.first) }
    }

    /// Two slots became one.
    pub fn halve(&mut self) {
        self.first /= 2;
        self.before = self.before.map(|slot| slot / 2);
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

    /// Gained, lost and compared, MiB.
    fn stretch(places: &mut Places, range: AddrRange, seconds: f64) -> [f64; 3] {
        for _ in 0..10 {
            places.add(range, range.size() as f64 * seconds / 10.0);
        }
        let Turn { gained, lost, compared } = places.turn(seconds);
        [gained, lost, compared].map(|bytes| (bytes / MIB as f64 * 1000.0).round() / 1000.0)
    }

    #[test]
    fn what_stays_does_not_move_and_what_goes_elsewhere_does() {
        let places = &mut Places::default();
        stretch(places, at(0, 8), 2.0);
        assert_eq!(stretch(places, at(0, 8), 1.0), [0.0, 0.0, 8.0]);
        assert_eq!(stretch(places, at(2, 8), 2.0), [2.0, 2.0, 8.0]);
        assert_eq!(stretch(places, at(100, 8), 2.0), [8.0, 8.0, 8.0]);
        assert_eq!(stretch(places, at(100, 16), 2.0), [8.0, 0.0, 12.0], "it has grown");
        assert_eq!(stretch(places, at(0, 0), 2.0), [0.0, 16.0, 8.0], "it is gone");
        assert_eq!(stretch(places, at(0, 0), 2.0), [0.0; 3]);
    }

    #[test]
    fn one_look_at_everything_blinds_for_one_stretch_only() {
        let places = &mut Places::default();
        places.add(at(0, 1 << 20), 1.0);
        stretch(places, at(4, 8), 2.0);
        stretch(places, at(12, 8), 2.0);
        assert_eq!(stretch(places, at(20, 8), 2.0), [8.0, 8.0, 8.0]);
    }

    #[test]
    fn only_what_comes_as_other_memory_goes_is_motion() {
        let turn = |gained, lost| Turn { gained, lost, compared: 100.0 }.moved(2.0).share().unwrap();
        assert_eq!((turn(50.0, 0.0), turn(0.0, 50.0), turn(0.7, 0.6)), (0.0, 0.0, 0.0));
        assert!((turn(50.0, 20.8) - 0.2).abs() < 1e-9);
        // What one mapping loses when another gains it has moved.
        let mut both = Turn { gained: 50.8, lost: 0.0, compared: 50.0 };
        both.add(Turn { gained: 0.0, lost: 50.8, compared: 50.0 });
        assert!((both.moved(1.0).share().unwrap() - 0.5).abs() < 1e-9);
        assert_eq!(Moved::default().share(), None);
        // It has not where that was at another time, also when both times become one slot.
        let mut slots = BySlot::default();
        slots.add(2, Turn { gained: 50.0, lost: 0.0, compared: 100.0 }.moved(2.0));
        slots.add(3, Turn { gained: 0.0, lost: 50.0, compared: 100.0 }.moved(2.0));
        slots.halve();
        assert_eq!(slots.slots().collect::<Vec<_>>(), [1]);
        assert_eq!((slots.sum(&[1]).share(), slots.sum(&[0]).share()), (Some(0.0), None));
    }

    #[test]
    fn the_whole_address_space_takes_no_more_parts() {
        let mut places = Places::default();
        places.add(AddrRange::new(0, u64::MAX), 1.0);
        places.add(AddrRange::new(u64::MAX - 10, u64::MAX), 1.0);
        places.add(AddrRange::new(5, 5), 1.0);
        assert!(places.now.extra.len() <= MOST);
        let copy = places.clone();
        places.merge(&copy);
        let turn = places.turn(1.0);
        assert!((turn.gained - 4.0).abs() < 1e-9, "{turn:?}");
    }

    proptest! {
        /// What is kept is what was put in, part by part, however it is put together.
        #[test]
        fn nothing_is_lost(
            list in prop::collection::vec((0_u64..1 << 36, 1_u64..1 << 30, 0.0..1e9_f64), 1..60), join: bool,
        ) {
            let (mut one, mut other) = (Places::default(), Places::default());
            for (i, (start, size, ws)) in list.iter().enumerate() {
                let side = if join && i % 3 == 0 { &mut other } else { &mut one };
                side.add(AddrRange::new(*start, start + size), *ws);
                prop_assert!(side.now.extra.len() <= MOST);
            }
            let exact = one.clone();
            one.merge(&other);
            prop_assert!(one.now.extra.len() <= MOST);
            let all: f64 = list.iter().map(|(_, _, ws)| ws).sum();
            let near = |a: f64, b: f64| (a - b).abs() <= 1e-6 * all;
            if !join {
                let size = 1 << exact.now.shift();
                for (part, amount) in exact.now.as_coarse(exact.now.coarse) {
                    let part = AddrRange::new(part * size, (part + 1) * size);
                    let inside = list.iter().map(|(start, bytes, ws)| {
                        let range = AddrRange::new(*start, start + bytes);
                        ws * range.intersection(part).size() as f64 / range.size() as f64
                    });
                    prop_assert!(near(amount, inside.sum()));
                }
            }
            let turn = one.turn(1.0);
            prop_assert!(near(turn.gained, all) && turn.lost == 0.0 && near(turn.compared, all / 2.0));
            let again = one.turn(1.0);
            prop_assert!(near(again.lost, all) && again.gained == 0.0);
            prop_assert_eq!(one.turn(1.0), Turn::default());
        }
    }
}
