//! Nodes that are being written, and that nobody else knows yet.

use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};

use crate::alloc::NodeAlloc;
use crate::node::{Branch, Entry, Node, SLOTS};
use crate::sync::AtomicPtr;

/// A node's memory, and how many entries of it are written. They are written where they stay: a node on the stack would be a
/// tenth of a small kernel's.
pub(crate) struct Draft {
    memory: NonNull<Node>,
    level: u8,
    len: u8,
}

impl Draft {
    /// # Safety
    /// The memory is of this level and nobody else's.
    pub(crate) const unsafe fn new(memory: NonNull<Node>, level: u8) -> Self {
        Self { memory, level, len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        usize::from(self.len)
    }

    /// The pivot, the slot and, of a branch, the gap of an entry.
    ///
    /// # Safety
    /// `at` is less than [`SLOTS`].
    #[inline]
    unsafe fn places(&mut self, at: usize) -> (*mut u64, *mut AtomicPtr<()>, Option<*mut u64>) {
        let node = self.memory.as_ptr();
        // SAFETY: the memory is a node's, and a branch's if its level is not 0; the caller vouches for `at`.
        unsafe {
            let pivot = (&raw mut (*node).pivots).cast::<u64>().add(at);
            let slot = (&raw mut (*node).slots).cast::<AtomicPtr<()>>().add(at);
            let gaps = || UnsafeCell::raw_get(&raw const (*node.cast::<Branch>()).gaps);
            (pivot, slot, (self.level > 0).then(|| gaps().cast::<u64>().add(at)))
        }
    }

    /// # Panics
    /// There are [`SLOTS`] entries.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) {
        assert!(self.len() < SLOTS, "more entries than a node has");
        // SAFETY: as was checked; the memory is nobody else's.
        unsafe {
            let (pivot, slot, gap) = self.places(self.len());
            pivot.write(entry.last);
            slot.write(AtomicPtr::new(entry.slot));
            if let Some(gap) = gap {
                gap.write(entry.gap);
            }
        }
        self.len += 1;
    }

    /// Copies some entries of a node of the same level.
    ///
    /// # Safety
    /// The caller is the writer.
    ///
    /// # Panics
    /// There are more than [`SLOTS`] entries then.
    pub(crate) unsafe fn copy(&mut self, node: NonNull<Node>, from: usize, to: usize) {
        for at in from..to {
            // SAFETY: the caller is the writer.
            self.push(unsafe { Node::entry_of(node, at) });
        }
    }

    /// Takes the last `count` entries of the draft before this one.
    ///
    /// # Panics
    /// There are more than [`SLOTS`] entries then, or there are not so many.
    pub(crate) fn take_from(&mut self, before: &mut Self, count: usize) {
        assert!(self.len() + count <= SLOTS && count <= before.len() && self.level == before.level);
        before.len -= count as u8;
        let (len, left) = (self.len(), before.len());
        // SAFETY: as was checked; the memory of either is nobody else's, and entries are moved.
        unsafe {
            let (pivots, slots, gaps) = self.places(0);
            let (others_pivots, others_slots, others_gaps) = before.places(left);
            pivots.copy_to(pivots.add(count), len);
            pivots.copy_from_nonoverlapping(others_pivots, count);
            slots.copy_to(slots.add(count), len);
            slots.copy_from_nonoverlapping(others_slots, count);
            if let (Some(gaps), Some(others)) = (gaps, others_gaps) {
                gaps.copy_to(gaps.add(count), len);
                gaps.copy_from_nonoverlapping(others, count);
            }
        }
        self.len += count as u8;
    }

    /// Makes it a node, which is still the draft's. It has an entry at least.
    pub(crate) fn complete(&mut self) -> NonNull<Node> {
        for at in self.len()..SLOTS {
            // SAFETY: `at` is less than SLOTS, and the memory nobody else's.
            unsafe {
                let (pivot, slot, gap) = self.places(at);
                pivot.write(u64::MAX);
                slot.write(AtomicPtr::new(null_mut()));
                if let Some(gap) = gap {
                    gap.write(0);
                }
            }
        }
        // SAFETY: the memory is of this level and nobody else's; all entries are written.
        unsafe { Node::write_head(self.memory, self.level, self.len) };
        self.memory
    }

    /// Makes it a node. It has an entry at least.
    pub(crate) fn finish(mut self) -> NonNull<Node> {
        self.complete()
    }

    /// Gives its memory back, and nothing below.
    ///
    /// # Safety
    /// The memory came from `A` and is nobody else's.
    pub(crate) unsafe fn free<A: NodeAlloc>(self) {
        // SAFETY: the caller vouches for it.
        unsafe { Node::free::<A>(self.memory, self.level) };
    }
}
