//! The tree.

use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::{NonNull, null_mut};

use isotherm_rcu::{RcuHead, Reclaim};

use crate::alloc::{Global, NodeAlloc};
use crate::node::Node;
use crate::sync::{AtomicBool, AtomicPtr, Ordering};
use crate::{Reader, Value, Writer};

/// A range with its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Mapped<V> {
    /// The first index of the range.
    pub first: u64,
    /// The last index of the range, which is part of it.
    pub last: u64,
    /// The value.
    pub value: V,
}

impl<V> Mapped<V> {
    /// The range.
    #[must_use]
    pub const fn range(&self) -> RangeInclusive<u64> {
        self.first..=self.last
    }
}

/// A map from ranges of `u64` that do not overlap to values. See the [crate's documentation](crate).
///
/// The tree is empty at first and has no node then. It never drops what values point to. Dropping the tree frees its
/// nodes.
pub struct MapleTree<V: Value, R: Reclaim, A: NodeAlloc = Global> {
    /// Null if nothing is mapped.
    pub(crate) root: AtomicPtr<Node>,
    pub(crate) writing: AtomicBool,
    pub(crate) rcu: R,
    _values: PhantomData<*mut V>,
    _alloc: PhantomData<fn() -> A>,
}

// SAFETY: values go where the tree goes, and nodes are its own.
unsafe impl<V: Value + Send, R: Reclaim + Send, A: NodeAlloc> Send for MapleTree<V, R, A> {}
// SAFETY: values are put in by one thread and copied by others; the protocol at the top of the crate.
unsafe impl<V: Value + Send + Sync, R: Reclaim + Sync, A: NodeAlloc> Sync for MapleTree<V, R, A> {}

impl<V: Value, R: Reclaim> MapleTree<V, R> {
    /// An empty tree with nodes from the global allocator. Nodes are freed through `rcu`, under whose guards readers read.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(rcu: R) -> Self {
        Self::new_in(rcu)
    }

    /// An empty tree with nodes from the global allocator.
    #[cfg(loom)]
    #[must_use]
    pub fn new(rcu: R) -> Self {
        Self::new_in(rcu)
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> MapleTree<V, R, A> {
    /// An empty tree with nodes from the allocator that the type names.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new_in(rcu: R) -> Self {
        let (root, writing) = (AtomicPtr::new(null_mut()), AtomicBool::new(false));
        Self { root, writing, rcu, _values: PhantomData, _alloc: PhantomData }
    }

    /// An empty tree with nodes from the allocator that the type names.
    #[cfg(loom)]
    #[must_use]
    pub fn new_in(rcu: R) -> Self {
        let (root, writing) = (AtomicPtr::new(null_mut()), AtomicBool::new(false));
        Self { root, writing, rcu, _values: PhantomData, _alloc: PhantomData }
    }

    /// What nodes are freed through. Owners free the objects of values by the same.
    #[must_use]
    pub const fn rcu(&self) -> &R {
        &self.rcu
    }

    /// Starts a read-side critical section, in which the tree can be read while others write.
    #[inline]
    pub fn read(&self) -> Reader<'_, V, R, A> {
        Reader::new(self, self.rcu.read_lock())
    }

    /// The tree's lock for writing; `None` if somebody has it.
    #[inline]
    pub fn try_write(&self) -> Option<Writer<'_, V, R, A>> {
        let free = !self.writing.swap(true, Ordering::Acquire);
        // SAFETY: nobody else has the lock, and it is kept until the writer is dropped.
        free.then(|| unsafe { Writer::new(self, true) })
    }

    /// A writer for a caller who has a lock of his own.
    ///
    /// # Safety
    /// While it lives there is no other writer of this tree, of whatever kind; what one writer did happens before the next
    /// one is made.
    #[inline]
    pub unsafe fn write_locked(&self) -> Writer<'_, V, R, A> {
        // SAFETY: the caller vouches for it.
        unsafe { Writer::new(self, false) }
    }

    /// Levels of nodes; 0 if nothing is mapped. What [`Reserve::fill`](crate::Reserve::fill) wants to know.
    pub fn levels(&self) -> usize {
        let _guard = self.rcu.read_lock();
        // SAFETY: a node that is found under a guard lives as long as it.
        unsafe { self.root.load(Ordering::Acquire).as_ref() }.map_or(0, |root| usize::from(root.level()) + 1)
    }

    /// Has a node freed after a grace period.
    ///
    /// # Safety
    /// The caller is the writer, has marked the node, then unlinked it, and does not use it any more.
    pub(crate) unsafe fn retire(&self, node: NonNull<Node>) {
        // SAFETY: it lives until its grace period is over.
        debug_assert!(unsafe { node.as_ref() }.is_dead(), "unlinked before it was marked");
        // SAFETY: it is retired once, and any thread may give it back.
        unsafe { self.rcu.defer(Node::rcu(node), free::<A>) };
    }

    /// Retires a node and all below.
    ///
    /// # Safety
    /// As for [`retire`](Self::retire), for all of them.
    pub(crate) unsafe fn retire_subtree(&self, node: NonNull<Node>) {
        // SAFETY: it is retired only below.
        let this = unsafe { node.as_ref() };
        if this.level() > 0 {
            for at in 0..this.len() {
                // SAFETY: slots of a branch hold children.
                let child = unsafe { NonNull::new_unchecked(this.slot(at).cast()) };
                // SAFETY: the caller vouches for it.
                unsafe { self.retire_subtree(child) };
            }
        }
        // SAFETY: the caller vouches for it.
        unsafe { self.retire(node) };
    }
}

/// Marks a node and all below as dead.
///
/// # Safety
/// The caller is the writer.
pub(crate) unsafe fn kill_subtree(node: NonNull<Node>) {
    // SAFETY: only the writer frees nodes.
    let this = unsafe { node.as_ref() };
    this.kill();
    if this.level() > 0 {
        for at in 0..this.len() {
            // SAFETY: slots of a branch hold children; the caller is the writer.
            unsafe { kill_subtree(NonNull::new_unchecked(this.slot(at).cast())) };
        }
    }
}

/// Called after a grace period.
unsafe fn free<A: NodeAlloc>(head: NonNull<RcuHead>) {
    // SAFETY: only nodes' heads are deferred with this, and nobody sees the node any more.
    unsafe {
        let node = Node::of_rcu(head);
        Node::free::<A>(node, node.as_ref().level());
    }
}

/// Frees a node and all below at once.
///
/// # Safety
/// Nobody sees any of them.
pub(crate) unsafe fn free_subtree<A: NodeAlloc>(node: NonNull<Node>) {
    // SAFETY: it is freed only below.
    let this = unsafe { node.as_ref() };
    let level = this.level();
    if level > 0 {
        for at in 0..this.len() {
            // SAFETY: slots of a branch hold children, which the caller vouches for.
            unsafe { free_subtree::<A>(NonNull::new_unchecked(this.slot(at).cast())) };
        }
    }
    // SAFETY: the caller vouches for it.
    unsafe { Node::free::<A>(node, level) };
}

impl<V: Value, R: Reclaim, A: NodeAlloc> Drop for MapleTree<V, R, A> {
    fn drop(&mut self) {
        if let Some(root) = NonNull::new(self.root.load(Ordering::Acquire)) {
            // SAFETY: readers and writers borrow the tree, so there are none.
            unsafe { free_subtree::<A>(root) };
        }
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> fmt::Debug for MapleTree<V, R, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MapleTree").field("levels", &self.levels()).finish_non_exhaustive()
    }
}
