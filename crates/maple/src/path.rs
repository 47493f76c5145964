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
    while node.level() > 0 {
        // SAFETY: the same.
        node = unsafe { node.child(node.find(index)) };
    }
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
    loop {
        // SAFETY: what is found under the guard lives as long as it.
        let this = unsafe { node.as_ref() };
        let at = this.find(index);
        if this.level() == 0 {
            return Some(Step { node, at, min });
        }
        min = this.first(at, min);
        // SAFETY: slots of a branch hold children.
        node = unsafe { NonNull::new_unchecked(this.slot(at).cast()) };
    }
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

/// The way from the root to an entry of a leaf, by level.
#[derive(Clone, Copy)]
pub(crate) struct Path {
    pub(crate) steps: [Step; MAX_LEVELS],
    pub(crate) levels: usize,
}

impl Path {
    /// # Safety
    /// The caller is the writer.
    pub(crate) unsafe fn to(root: NonNull<Node>, index: u64) -> Self {
        // SAFETY: the writer's nodes are not freed meanwhile.
        let levels = usize::from(unsafe { root.as_ref() }.level()) + 1;
        let mut path = Self { steps: [Step { node: root, at: 0, min: 0 }; MAX_LEVELS], levels };
        let mut node = root;
        let mut min = 0;
        for level in (0..levels).rev() {
            // SAFETY: the same.
            let this = unsafe { node.as_ref() };
            let at = this.find(index);
            path.steps[level] = Step { node, at, min };
            if level > 0 {
                min = this.first(at, min);
                // SAFETY: slots of a branch hold children.
                node = unsafe { NonNull::new_unchecked(this.slot(at).cast()) };
            }
        }
        path
    }

    /// The entry of the leaf: its first and last index, and what it holds.
    ///
    /// # Safety
    /// The caller is the writer.
    pub(crate) unsafe fn entry(&self) -> (u64, u64, *mut ()) {
        let Step { at, min, .. } = self.steps[0];
        // SAFETY: the writer's nodes are not freed meanwhile.
        let leaf = unsafe { self.steps[0].node() };
        (leaf.first(at, min), leaf.last(at), leaf.slot(at))
    }
}
