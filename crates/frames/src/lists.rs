//! Pageblocks in lists by what can be allocated from them.

use crate::Mobility;
use crate::bits::PAGEBLOCK_ORDER;

/// No pageblock.
const NIL: u32 = u32::MAX;

/// A list of pageblocks. Partly free ones are listed by the order of their longest free run and by their mobility; wholly
/// free ones have none, and two that make up a block of order 10 are listed once, by the first of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum List {
    Partial { largest: u8, mobility: Mobility },
    Whole,
    Pair,
}

impl List {
    const COUNT: usize = PAGEBLOCK_ORDER as usize * Mobility::COUNT + 2;

    const fn index(self) -> usize {
        match self {
            Self::Partial { largest, mobility } => largest as usize * Mobility::COUNT + mobility as usize,
            Self::Whole => Self::COUNT - 2,
            Self::Pair => Self::COUNT - 1,
        }
    }
}

/// Which end of a list a pageblock goes to. Allocation takes from the head: what was freed last is in the caches, and what
/// the host has taken back costs a fault at the host, so it comes last.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    Head,
    Tail,
}

/// What becomes of a pageblock's free frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// They are handed out, and reported.
    Normal,
    /// Neither: the pageblock is about to be removed.
    Isolated,
    /// There are none: the memory is gone.
    Removed,
}

/// A pageblock as the lists and the zone know it.
#[derive(Clone, Copy, Debug)]
pub struct Pageblock {
    next: u32,
    prev: u32,
    /// Free frames, 0..=512.
    pub free: u16,
    /// Whom its free frames are for, while it is partly free.
    pub mobility: Mobility,
    pub state: State,
    list: Option<List>,
}

impl Pageblock {
    pub const EMPTY: Self =
        Self { next: NIL, prev: NIL, free: 0, mobility: Mobility::Movable, state: State::Normal, list: None };

    /// Whether it is wholly free, to be handed out.
    pub const fn is_whole(&self) -> bool {
        self.free == 1 << PAGEBLOCK_ORDER && matches!(self.state, State::Normal)
    }
}

#[derive(Clone, Copy)]
struct Ends {
    head: u32,
    tail: u32,
}

/// A zone's pageblocks and the lists they are in.
pub struct Lists<'m> {
    pub blocks: &'m mut [Pageblock],
    ends: [Ends; List::COUNT],
}

impl<'m> Lists<'m> {
    pub fn new(blocks: &'m mut [Pageblock]) -> Self {
        Self { blocks, ends: [Ends { head: NIL, tail: NIL }; List::COUNT] }
    }

    /// The first pageblock of a list.
    pub fn head(&self, list: List) -> Option<usize> {
        let head = self.ends[list.index()].head;
        (head != NIL).then_some(head as usize)
    }

    /// Puts a pageblock into `list`, or into none, out of the one it is in. One that is already there keeps its place.
    pub fn relist(&mut self, at: usize, list: Option<List>, place: Place) {
        if self.blocks[at].list == list {
            return;
        }
        if let Some(old) = self.blocks[at].list {
            self.unlink(at, old);
        }
        self.blocks[at].list = list;
        if let Some(new) = list {
            self.link(at, new, place);
        }
    }

    fn link(&mut self, at: usize, list: List, place: Place) {
        let ends = &mut self.ends[list.index()];
        let index = at as u32;
        let (next, prev) = match place {
            Place::Head => (core::mem::replace(&mut ends.head, index), NIL),
            Place::Tail => (NIL, core::mem::replace(&mut ends.tail, index)),
        };
        if next == NIL {
            ends.tail = index;
        } else {
            self.blocks[next as usize].prev = index;
        }
        if prev == NIL {
            self.ends[list.index()].head = index;
        } else {
            self.blocks[prev as usize].next = index;
        }
        (self.blocks[at].next, self.blocks[at].prev) = (next, prev);
    }

    fn unlink(&mut self, at: usize, list: List) {
        let Pageblock { next, prev, .. } = self.blocks[at];
        let ends = &mut self.ends[list.index()];
        if prev == NIL {
            ends.head = next;
        } else {
            self.blocks[prev as usize].next = next;
        }
        if next == NIL {
            ends.tail = prev;
        } else {
            self.blocks[next as usize].prev = prev;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn walk(lists: &Lists<'_>, list: List) -> Vec<usize> {
        let (mut found, mut at) = (Vec::new(), lists.ends[list.index()].head);
        let mut prev = NIL;
        while at != NIL {
            assert_eq!(lists.blocks[at as usize].prev, prev);
            found.push(at as usize);
            (prev, at) = (at, lists.blocks[at as usize].next);
        }
        assert_eq!(lists.ends[list.index()].tail, prev);
        found
    }

    #[test]
    fn each_list_has_an_index_of_its_own() {
        let mut seen = [false; List::COUNT];
        let partial = (0..9).flat_map(|largest| {
            [Mobility::Movable, Mobility::Unmovable].map(|mobility| List::Partial { largest, mobility })
        });
        for list in partial.chain([List::Whole, List::Pair]) {
            assert!(!core::mem::replace(&mut seen[list.index()], true), "{list:?}");
        }
        assert!(seen.iter().all(|&seen| seen));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 256 }))]

        #[test]
        fn lists_hold_what_was_put_into_them_in_order(
            moves in prop::collection::vec((0usize..6, 0u8..4, any::<bool>()), 0..60),
        ) {
            let mut blocks = [Pageblock::EMPTY; 6];
            let mut lists = Lists::new(&mut blocks);
            let all = [
                List::Whole,
                List::Pair,
                List::Partial { largest: 3, mobility: Mobility::Movable },
            ];
            let mut model = all.map(|_| VecDeque::new());
            for (at, list, head) in moves {
                let place = if head { Place::Head } else { Place::Tail };
                let to = usize::from(list);
                lists.relist(at, all.get(to).copied(), place);
                if model.get(to).is_some_and(|blocks| blocks.contains(&at)) {
                    continue;
                }
                model.iter_mut().for_each(|blocks| blocks.retain(|&other| other != at));
                if let Some(blocks) = model.get_mut(to) {
                    if head { blocks.push_front(at) } else { blocks.push_back(at) }
                }
                for (list, blocks) in all.iter().zip(&model) {
                    prop_assert_eq!(&walk(&lists, *list), &Vec::from(blocks.clone()));
                }
            }
        }
    }
}
