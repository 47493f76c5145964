//! Which of a file's blocks were read, by their numbers: a file that was put together from pieces may lack some, or have some twice.

/// Most stretches of numbers that are kept apart. A file as it was written has one.
const MOST: usize = 1 << 12;

/// What the number of a block says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// It follows the one before.
    Next,
    /// So many before it are not there.
    After(u32),
    /// It was read before.
    Again,
    /// Later ones were read before it.
    Late,
}

/// The numbers of the blocks that were read.
#[derive(Debug, Default)]
pub(super) struct Numbers {
    /// First and last of each stretch: sorted, apart.
    read: Vec<(u32, u32)>,
    next: u32,
}

impl Numbers {
    /// What the number of the next block says, which is noted.
    pub(super) fn take(&mut self, number: u32) -> Place {
        let at = self.read.partition_point(|&(_, last)| last < number);
        if self.read.get(at).is_some_and(|&(first, _)| first <= number) {
            return Place::Again;
        }
        self.note(at, number);
        let next = std::mem::replace(&mut self.next, number.wrapping_add(1));
        match number.checked_sub(next) {
            Some(0) => Place::Next,
            Some(missing) => Place::After(missing),
            None => Place::Late,
        }
    }

    /// Notes a number that lies before the stretch `at`, and behind all before that.
    fn note(&mut self, at: usize, number: u32) {
        let follows = at.checked_sub(1).filter(|&i| self.read[i].1.checked_add(1) == Some(number));
        let leads = self.read.get(at).is_some_and(|&(first, _)| number.checked_add(1) == Some(first));
        match (follows, leads) {
            (Some(before), true) => {
                self.read[before].1 = self.read[at].1;
                self.read.remove(at);
            }
            (Some(before), false) => self.read[before].1 = number,
            (None, true) => self.read[at].0 = number,
            // What then comes again is read again.
            (None, false) if self.read.len() == MOST => {}
            (None, false) => self.read.insert(at, (number, number)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn what_comes_again_is_known(list in proptest::collection::vec(0_u32..40, 0..80)) {
            let (mut numbers, mut naive, mut next) = (Numbers::default(), BTreeSet::new(), 0);
            for number in list {
                let expected = match naive.insert(number) {
                    false => Place::Again,
                    true if number == next => Place::Next,
                    true if number > next => Place::After(number - next),
                    true => Place::Late,
                };
                if expected != Place::Again {
                    next = number + 1;
                }
                prop_assert_eq!(numbers.take(number), expected);
            }
        }
    }

    #[test]
    fn the_last_number_there_is_follows_the_one_before() {
        let mut numbers = Numbers::default();
        assert_eq!(numbers.take(u32::MAX - 1), Place::After(u32::MAX - 1));
        assert_eq!(numbers.take(u32::MAX), Place::Next);
        assert_eq!(numbers.take(u32::MAX), Place::Again);
        assert_eq!(numbers.take(0), Place::Next);
    }
}
