//! Which memory there is, as the start info of the PVH boot protocol tells it, and which of it is taken.

/// Bytes `start..end` of physical memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// The first byte.
    pub start: u64,
    /// The byte behind the last.
    pub end: u64,
}

impl Range {
    /// How many bytes; 0 if `end` is not above `start`.
    #[must_use]
    pub const fn len(self) -> u64 {
        self.end.saturating_sub(self.start)
    }

    /// Whether there is no byte in it.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// Whether the two have a byte in common.
    #[must_use]
    pub const fn overlaps(self, other: Self) -> bool {
        self.start < other.end && other.start < self.end && !self.is_empty() && !other.is_empty()
    }
}

/// Most ranges of RAM that are kept; of a map with more, the rest is not used.
pub const MOST: usize = 32;

/// Ranges of RAM, apart from one another, by rising address.
#[derive(Clone, Debug, Default)]
pub struct RamMap {
    ranges: [Range; MOST],
    count: usize,
    left_out: u64,
}

impl RamMap {
    /// No RAM.
    #[must_use]
    pub const fn new() -> Self {
        Self { ranges: [Range { start: 0, end: 0 }; MOST], count: 0, left_out: 0 }
    }

    /// Adds `size` bytes from `start` on, without those that are there already. Firmware gives ranges in any order,
    /// and nothing forbids it to give one twice.
    pub fn add(&mut self, start: u64, size: u64) {
        let mut new = Range { start, end: start.saturating_add(size) };
        // A range inside the new one would cut it in two: it is taken out first, and the new one covers it.
        let mut at = 0;
        while let Some(&old) = self.ranges[..self.count].get(at) {
            if old.start <= new.end && new.start <= old.end && !new.is_empty() {
                new = Range { start: old.start.min(new.start), end: old.end.max(new.end) };
                self.take_out(at);
                at = 0;
            } else {
                at += 1;
            }
        }
        self.insert(new);
    }

    /// Takes `taken` away from what can be used.
    pub fn remove(&mut self, taken: Range) {
        let mut at = 0;
        while let Some(&old) = self.ranges[..self.count].get(at) {
            if old.overlaps(taken) {
                self.take_out(at);
                self.insert(Range { start: old.start, end: taken.start.min(old.end) });
                self.insert(Range { start: taken.end.max(old.start), end: old.end });
                at = 0;
            } else {
                at += 1;
            }
        }
    }

    /// Takes `size` bytes away from the first range with room for them, from a page's first byte on and below
    /// `below`; they can no longer be used by others.
    pub fn carve(&mut self, size: u64, below: u64) -> Option<Range> {
        let found = self.usable().find_map(|range| {
            let start = range.start.checked_next_multiple_of(4096)?;
            let end = start.checked_add(size)?.checked_next_multiple_of(4096)?;
            (end <= range.end.min(below)).then_some(Range { start, end })
        })?;
        self.remove(found);
        Some(found)
    }

    /// The ranges, by rising address.
    pub fn usable(&self) -> impl Iterator<Item = Range> + '_ {
        self.ranges[..self.count].iter().copied()
    }

    /// Bytes in all ranges.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.usable().map(Range::len).sum()
    }

    /// The byte behind the highest range.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.usable().map(|range| range.end).max().unwrap_or(0)
    }

    /// Bytes for which there was no more room in the map.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    fn take_out(&mut self, at: usize) {
        self.ranges.copy_within(at + 1..self.count, at);
        self.count -= 1;
    }

    fn insert(&mut self, range: Range) {
        if range.is_empty() {
            return;
        }
        if self.count == MOST {
            self.left_out += range.len();
            return;
        }
        let at = self.usable().position(|old| old.start > range.start).unwrap_or(self.count);
        self.ranges.copy_within(at..self.count, at + 1);
        self.ranges[at] = range;
        self.count += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(ranges: &[(u64, u64)]) -> RamMap {
        let mut map = RamMap::new();
        for &(start, end) in ranges {
            map.add(start, end - start);
        }
        map
    }

    fn ranges(map: &RamMap) -> Vec<(u64, u64)> {
        map.usable().map(|r| (r.start, r.end)).collect()
    }

    #[test]
    fn ranges_are_sorted_and_those_given_twice_count_once() {
        let map =
            map(&[(0x10_0000, 0x800_0000), (0, 0x9_fc00), (0x10_0000, 0x20_0000), (0x800_0000, 0x900_0000)]);
        assert_eq!(ranges(&map), [(0, 0x9_fc00), (0x10_0000, 0x900_0000)]);
    }

    #[test]
    fn what_is_taken_cuts_ranges() {
        let mut map = map(&[(0, 100), (200, 300)]);
        map.remove(Range { start: 40, end: 60 });
        map.remove(Range { start: 250, end: 400 });
        map.remove(Range { start: 100, end: 200 });
        assert_eq!(ranges(&map), [(0, 40), (60, 100), (200, 250)]);
    }

    #[test]
    fn room_is_carved_in_whole_pages_below_the_limit() {
        let mut map = map(&[(0x10, 0x1800), (0x10_0001, 0x20_0000), (1 << 32, 1 << 33)]);
        assert_eq!(map.carve(0x2000, u64::MAX), Some(Range { start: 0x10_1000, end: 0x10_3000 }));
        assert_eq!(map.carve(1 << 30, 1 << 32), None);
        assert_eq!(map.carve(1 << 30, u64::MAX), Some(Range { start: 1 << 32, end: (1 << 32) + (1 << 30) }));
        assert_eq!(map.carve(u64::MAX, u64::MAX), None);
    }

    #[test]
    fn maps_beyond_the_room_for_them_say_what_is_left_out() {
        let all: Vec<_> = (0..MOST as u64 + 2).map(|i| (i * 100, i * 100 + 10)).collect();
        let map = map(&all);
        assert_eq!((map.usable().count(), map.left_out()), (MOST, 20));
    }

    #[test]
    fn ranges_to_the_end_of_the_address_space_do_not_overflow() {
        let mut map = RamMap::new();
        map.add(u64::MAX - 10, u64::MAX);
        assert_eq!(ranges(&map), [(u64::MAX - 10, u64::MAX)]);
    }
}
