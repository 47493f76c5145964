//! Targets beyond those that are described, which are counted only.

use std::collections::{HashMap, VecDeque};

/// Of those counted only, so many that ended are still known: one that leaves a control group may come back.
pub(super) const MAX_ENDED: usize = 1 << 16;

/// Ids of targets that are not described, so that each counts once.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Counted {
    /// Whether each has ended.
    known: HashMap<u64, bool>,
    /// When they ended, the oldest first; some are back since.
    ended: VecDeque<u64>,
}

impl Counted {
    /// Whether it is a new one.
    pub fn add(&mut self, id: u64) -> bool {
        self.known.insert(id, false).is_none()
    }

    pub fn end(&mut self, id: u64) {
        match self.known.get_mut(&id) {
            Some(ended) if !*ended => *ended = true,
            _ => return,
        }
        self.ended.push_back(id);
        if self.ended.len() > MAX_ENDED
            && let Some(oldest) = self.ended.pop_front()
            && self.known.get(&oldest) == Some(&true)
        {
            self.known.remove(&oldest);
        }
    }

    /// How many are known.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.known.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_came_back_stays_known_while_others_end() {
        let mut counted = Counted::default();
        assert!(counted.add(1));
        counted.end(1);
        assert!(!counted.add(1), "it is back");
        for id in 2..MAX_ENDED as u64 + 10 {
            assert!(counted.add(id));
            counted.end(id);
        }
        assert!(!counted.add(1), "what ended long ago makes room, not what lives");
        assert!(counted.len() <= MAX_ENDED + 1);
    }
}
