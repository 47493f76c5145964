//! Walks from the root to a leaf.

use core::ptr::NonNull;

use crate::Mapped;
use crate::Value;
use crate::node::Node;
use crate::sync::{AtomicPtr, Ordering};

/// Levels at most. Nodes but the last of a level hold ten entries or more, so memory ends first.
pub(crate) const MAX_LEVELS: usize = 12;

/// An entry of a node that begins at `min`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    pub(crate) node: NonNull<Node>,
    pub(crate) at: usize,
    pub(crate) min: u64,
}

impl Step {
    /// # Safety
    /// The node lives during `'a`.
    pub(crate) const unsafe fn node<'a>(&self) -> &'a Node {
        // SAFETY: the caller vouches for it.
        unsafe { self.node.as_ref() }
    }
}

/// What is stored for an index, null for a gap.
///
/// # Safety
/// A guard is held, or nobody writes.
#[inline]
pub(crate) unsafe fn load(root: &AtomicPtr<Node>, index: u64) -> *mut () {
    // SAFETY: what is found under the guard lives as long as it.
    let Some(mut node) = (unsafe { root.load(Ordering::Acquire).as_ref() }) else {
        return core::ptr::null_mut();
    };
    // Levels go down by one, so a node that is in no near cache need not have come before the way goes on.
    for _ in 0..node.level() {
        // SAFETY: the same.
        node = unsafe { node.child(node.find(index)) };
    }
    node.prefetch_slots();
    node.slot(node.find(index))
}

/// The leaf's entry of an index; `None` in a tree without nodes.
///
/// # Safety
/// A guard is held, and lives as long as the step is used; or nobody writes.
#[inline]
pub(crate) unsafe fn walk(root: &AtomicPtr<Node>, index: u64) -> Option<Step> {
    let mut node = NonNull::new(root.load(Ordering::Acquire))?;
    let mut min = 0;
    // SAFETY: what is found under the guard lives as long as it.
    let levels = unsafe { node.as_ref() }.level();
    // Levels go down by one, as above.
    for _ in 0..levels {
        // SAFETY: the same.
        let this = unsafe { node.as_ref() };
        let at = this.find(index);
        min = this.first(at, min);
        // SAFETY: slots of a branch hold children.
        node = unsafe { NonNull::new_unchecked(this.slot(at).cast()) };
    }
    // SAFETY: the same.
    let leaf = unsafe { node.as_ref() };
    leaf.prefetch_slots();
    Some(Step { node, at: leaf.find(index), min })
}

/// The first value at or after `step`'s entry in its leaf that begins at or before `to`. `Err(Some(index))` where to go on,
/// `Err(None)` if there is none.
///
/// # Safety
/// As for [`walk`]; values are `V`s.
pub(crate) unsafe fn scan<V: Value>(step: &mut Step, to: u64) -> Result<Mapped<V>, Option<u64>> {
    // SAFETY: the caller vouches for it.
    let leaf = unsafe { step.node() };
    while step.at < leaf.len() {
        let (at, first) = (step.at, leaf.first(step.at, step.min));
        if first > to {
            return Err(None);
        }
        step.at += 1;
        let slot = leaf.slot(at);
        if !slot.is_null() {
            // SAFETY: slots of a leaf that are not null hold values.
            let value = unsafe { V::from_raw(slot) };
            return Ok(Mapped { first, last: leaf.last(at), value });
        }
    }
    let last = leaf.last(leaf.len() - 1);
    Err((last < to).then(|| last + 1))
}

/// The last value at or before `step`'s entry in its leaf that ends at or after `from`. `step.at` is one more than the
/// entry's. The rest as for [`scan`].
///
/// # Safety
/// As for [`scan`].
pub(crate) unsafe fn scan_back<V: Value>(step: &mut Step, from: u64) -> Result<Mapped<V>, Option<u64>> {
    // SAFETY: the caller vouches for it.
    let leaf = unsafe { step.node() };
    while step.at > 0 {
        step.at -= 1;
        let (at, last) = (step.at, leaf.last(step.at));
        if last < from {
            return Err(None);
        }
        let slot = leaf.slot(at);
        if !slot.is_null() {
            // SAFETY: slots of a leaf that are not null hold values.
            let value = unsafe { V::from_raw(slot) };
            return Ok(Mapped { first: leaf.first(at, step.min), last, value });
        }
    }
    Err((step.min > from).then(|| step.min - 1))
}

/// The way from the root to an entry of a leaf, by level. Where nodes begin follows from it: an operation has two ways on its
/// stack, so they are short.
pub(crate) struct Path {
    nodes: [NonNull<Node>; MAX_LEVELS],
    places: [u8; MAX_LEVELS],
    levels: u8,
}

impl Path {
    /// One that leads nowhere yet, in the tree of this root.
    ///
    /// # Safety
    /// The caller is the writer.
    #[inline]
    pub(crate) unsafe fn from(root: NonNull<Node>) -> Self {
        // SAFETY: the writer's nodes are not freed meanwhile.
        let levels = unsafe { root.as_ref() }.level() + 1;
        Self { nodes: [root; MAX_LEVELS], places: [0; MAX_LEVELS], levels }
    }

    /// The way to this index.
    ///
    /// # Safety
    /// The caller is the writer.
    pub(crate) unsafe fn go_to(&mut self, index: u64) {
        let top = self.levels() - 1;
        let mut node = self.nodes[top];
        for level in (0..=top).rev() {
            // SAFETY: the writer's nodes are not freed meanwhile.
            let this = unsafe { node.as_ref() };
            let at = this.find(index);
            (self.nodes[level], self.places[level]) = (node, at as u8);
            if level > 0 {
                // SAFETY: slots of a branch hold children.
                node = unsafe { NonNull::new_unchecked(this.slot(at).cast()) };
            }
        }
    }

    pub(crate) fn levels(&self) -> usize {
        usize::from(self.levels)
    }

    pub(crate) fn node(&self, level: usize) -> NonNull<Node> {
        self.nodes[level]
    }

    pub(crate) fn place(&self, level: usize) -> usize {
        usize::from(self.places[level])
    }

    /// Where the node of this level begins: behind the last pivot above that the way leads past.
    ///
    /// # Safety
    /// The caller is the writer.
    pub(crate) unsafe fn min(&self, level: usize) -> u64 {
        let mut above = level + 1..self.levels();
        let past = above.find(|&level| self.places[level] > 0);
        // SAFETY: the writer's nodes are not freed meanwhile.
        past.map_or(0, |level| unsafe { self.nodes[level].as_ref() }.last(self.place(level) - 1) + 1)
    }

    /// # Safety
    /// The caller is the writer.
    pub(crate) unsafe fn step(&self, level: usize) -> Step {
        // SAFETY: the caller vouches for it.
        Step { node: self.node(level), at: self.place(level), min: unsafe { self.min(level) } }
    }

    /// The entry of the leaf: its first and last index, and what it holds.
    ///
    /// # Safety
    /// The caller is the writer.
    pub(crate) unsafe fn entry(&self) -> (u64, u64, *mut ()) {
        // SAFETY: the caller vouches for it.
        let Step { node, at, min } = unsafe { self.step(0) };
        // SAFETY: the writer's nodes are not freed meanwhile.
        let leaf = unsafe { node.as_ref() };
        (leaf.first(at, min), leaf.last(at), leaf.slot(at))
    }
}
