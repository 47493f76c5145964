//! Which of a file's blocks were read, by their numbers: a file that was put together from pieces may lack some, have some twice, or
//! hold several recordings, each of which counts from 0.

/// Blocks that are remembered, 4 bytes each: of a recording with a block a second those of twelve days.
const MOST: usize = 1 << 20;

/// What the number of a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// Nothing is missing before it.
    Next,
    /// So many that were not read come before it.
    After(u32),
    /// It was read before.
    Again,
    /// Later ones were read before it.
    Late,
    /// Another block of this number was read: this one is of another recording.
    Another,
}

/// The numbers of the blocks that were read.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// Checksum of the block of each number, its lowest bit set; 0: none was read.
    read: Vec<u32>,
    next: u32,
}

impl Numbers {
    /// What the number of the next block says, whose checksum that is. It is noted, [`Place::Another`] as the first of its recording.
    pub(super) fn take(&mut self, number: u32, checksum: u32) -> Place {
        let mark = checksum | 1;
        let place = match self.at(number) {
            0 if number < self.next => Place::Late,
            0 if number == self.next => Place::Next,
            0 => Place::After(number - self.next),
            same if same == mark => return Place::Again,
            _ => {
                self.begin(number);
                Place::Another
            }
        };
        let at = number as usize;
        if at < MOST {
            if self.read.len() <= at {
                self.read.resize(at + 1, 0);
            }
            self.read[at] = mark;
        }
        self.next = self.next.max(number.saturating_add(1));
        place
    }

    /// Blocks of another recording follow, from this number on.
    pub(super) fn begin(&mut self, number: u32) {
        self.read.clear();
        self.next = number;
    }

    fn at(&self, number: u32) -> u32 {
        self.read.get(number as usize).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn what_comes_again_or_late_or_of_another_is_known(
            list in proptest::collection::vec((0_u32..30, 0_u32..2), 0..80),
        ) {
            let (mut numbers, mut naive) = (Numbers::default(), BTreeMap::new());
            // Up to where numbers were met with, or missed.
            let mut known = 0;
            for (number, checksum) in list {
                let checksum = checksum * 2;
                let expected = match naive.get(&number) {
                    Some(same) if *same == checksum => Place::Again,
                    Some(_) => {
                        (naive, known) = (BTreeMap::new(), number);
                        Place::Another
                    }
                    None if number < known => Place::Late,
                    None if number == known => Place::Next,
                    None => Place::After(number - known),
                };
                if expected != Place::Again {
                    naive.insert(number, checksum);
                    known = known.max(number + 1);
                }
                prop_assert_eq!(numbers.take(number, checksum), expected);
            }
        }
    }

    #[test]
    fn what_is_not_remembered_is_read() {
        let mut numbers = Numbers::default();
        let far = MOST as u32 + 5;
        assert_eq!(numbers.take(far, 2), Place::After(far));
        assert_eq!(numbers.take(far, 2), Place::Late);
        assert_eq!(numbers.take(u32::MAX, 2), Place::After(u32::MAX - far - 1));
        assert!(numbers.read.is_empty());
    }
}
