//! Lists of blocks, linked through their pages' metadata.

use crate::sync::Ordering;
use crate::{Block, Order, OwnedBlock, PageArray};

/// A queue of owned blocks of one order, linked through the array: first in, first out, or last in, first out. It takes no
/// memory of its own, and what is in it belongs to it.
///
/// Links go one way, for a page has room for one: blocks leave at the front only. What is dropped with blocks in it keeps
/// them allocated.
#[derive(Debug)]
pub struct BlockList<'a, 'm> {
    array: &'a PageArray<'m>,
    order: Order,
    /// Local numbers plus one; 0 is none.
    first: u32,
    last: u32,
    len: u64,
}

impl<'a, 'm> BlockList<'a, 'm> {
    /// An empty list of blocks of this order.
    #[must_use]
    pub const fn new(array: &'a PageArray<'m>, order: Order) -> Self {
        Self { array, order, first: 0, last: 0, len: 0 }
    }

    /// How many blocks.
    #[must_use]
    pub const fn len(&self) -> u64 {
        self.len
    }

    /// Whether there is none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a block at the end.
    ///
    /// # Errors
    /// It comes back if it is of another order, or not of this array.
    pub fn push_back(&mut self, block: OwnedBlock) -> Result<(), OwnedBlock> {
        let Some(place) = self.place(&block) else { return Err(block) };
        self.set_link(place, 0);
        match self.last {
            0 => self.first = place,
            last => self.set_link(last, place),
        }
        self.last = place;
        self.len += 1;
        let _linked = block.into_block();
        Ok(())
    }

    /// Puts a block before all others.
    ///
    /// # Errors
    /// It comes back if it is of another order, or not of this array.
    pub fn push_front(&mut self, block: OwnedBlock) -> Result<(), OwnedBlock> {
        let Some(place) = self.place(&block) else { return Err(block) };
        self.set_link(place, self.first);
        self.first = place;
        if self.last == 0 {
            self.last = place;
        }
        self.len += 1;
        let _linked = block.into_block();
        Ok(())
    }

    /// Takes the first block out.
    pub fn pop_front(&mut self) -> Option<OwnedBlock> {
        let local = self.first.checked_sub(1)?;
        self.first = self.array.link(local as usize)?.load(Ordering::Relaxed);
        if self.first == 0 {
            self.last = 0;
        }
        self.len -= 1;
        let block = Block::new(self.array.spans().frame(local), self.order);
        // SAFETY: the list owned it, of this order, and does no longer.
        Some(unsafe { OwnedBlock::new(block) })
    }

    /// Puts all blocks of another list of the same array and order behind these.
    ///
    /// # Errors
    /// The other list comes back if it is of another order or array.
    pub fn append(&mut self, other: Self) -> Result<(), Self> {
        if other.order != self.order || !core::ptr::eq(other.array, self.array) {
            return Err(other);
        }
        match (self.last, other.first) {
            (_, 0) => return Ok(()),
            (0, first) => self.first = first,
            (last, first) => self.set_link(last, first),
        }
        self.last = other.last;
        self.len += other.len;
        Ok(())
    }

    fn place(&self, block: &OwnedBlock) -> Option<u32> {
        let local = self.array.spans().local(**block)?;
        // Of 2^32 frames the last has no number plus one.
        (block.order == self.order).then_some(local)?.checked_add(1)
    }

    fn set_link(&self, place: u32, to: u32) {
        if let Some(link) = self.array.link(place as usize - 1) {
            // Relaxed: the list is one thread's at a time.
            link.store(to, Ordering::Relaxed);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::boxed::Box;
    use std::collections::VecDeque;

    use proptest::prelude::*;

    use super::*;
    use crate::{Frame, FrameRange, page_array_size};

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

        #[test]
        fn a_list_is_a_queue(steps in prop::collection::vec(0u8..5, 0..100)) {
            let ranges = [FrameRange::new(1 << 20, (1 << 20) + 64)];
            let mut memory = Box::new_uninit_slice(page_array_size(&ranges));
            let array = PageArray::new(&ranges, 0, &mut memory).unwrap();
            let block = |n: u64| Block::new(Frame((1 << 20) + n), Order::BASE);
            let (mut list, mut model) = (BlockList::new(&array, Order::BASE), VecDeque::new());
            let mut free: VecDeque<_> = (0..64).collect();
            for step in steps {
                match step {
                    0 | 1 => {
                        let Some(n) = free.pop_front() else { continue };
                        // SAFETY: it is in no list.
                        let owned = unsafe { OwnedBlock::new(block(n)) };
                        if step == 0 {
                            list.push_back(owned).unwrap();
                            model.push_back(n);
                        } else {
                            list.push_front(owned).unwrap();
                            model.push_front(n);
                        }
                    }
                    2 | 3 => {
                        let popped = list.pop_front().map(OwnedBlock::into_block);
                        let expected = model.pop_front();
                        prop_assert_eq!(popped, expected.map(block));
                        free.extend(expected);
                    }
                    _ => {
                        let mut other = BlockList::new(&array, Order::BASE);
                        for n in free.drain(..free.len() / 2) {
                            // SAFETY: it is in no list.
                            other.push_back(unsafe { OwnedBlock::new(block(n)) }).unwrap();
                            model.push_back(n);
                        }
                        list.append(other).unwrap();
                    }
                }
                prop_assert_eq!(list.len(), model.len() as u64);
            }
        }
    }

    #[test]
    fn a_block_of_another_order_or_array_comes_back() {
        let ranges = [FrameRange::new(0, 64)];
        let mut memory = Box::new_uninit_slice(page_array_size(&ranges));
        let array = PageArray::new(&ranges, 0, &mut memory).unwrap();
        let mut list = BlockList::new(&array, Order::BASE);
        for block in [Block::new(Frame(0), Order::HUGE), Block::new(Frame(64), Order::BASE)] {
            // SAFETY: nobody uses these numbers.
            let owned = unsafe { OwnedBlock::new(block) };
            let back = list.push_back(owned).unwrap_err();
            assert_eq!(list.push_front(back).unwrap_err().into_block(), block);
        }
        assert!(list.is_empty());
    }
}
