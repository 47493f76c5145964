//! The writer.

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, RangeInclusive};
use core::ptr::NonNull;

use isotherm_rcu::Reclaim;

use crate::alloc::{Global, NodeAlloc};
use crate::error::{InsertError, NoMemory};
use crate::node::Node;
use crate::path::walk;
use crate::reserve::Reserve;
use crate::sync::Ordering;
use crate::tree::kill_subtree;
use crate::{Lookup, MapleTree, Mapped, Value};

/// The one writer of a tree. It reads as readers do, and what it reads does not change under it.
///
/// It is a [`Lookup`] under which nothing changes. An operation that fails has changed nothing. Readers see each operation as
/// one change.
///
/// It may go to another thread, but two cannot search for gaps by it at once: the index is the writer's own memory.
///
/// ```compile_fail
/// # use isotherm_maple::MapleTree;
/// # use std::num::NonZeroUsize;
/// fn is_sync<T: Sync>(_: &T) {}
/// let tree = MapleTree::<NonZeroUsize, _>::new(isotherm_rcu::Epoch);
/// is_sync(&tree.try_write().unwrap());
/// ```
pub struct Writer<'t, V: Value, R: Reclaim + 't, A: NodeAlloc = Global> {
    pub(crate) tree: &'t MapleTree<V, R, A>,
    lookup: Lookup<'t, V>,
    /// Whether it holds the tree's lock.
    locked: bool,
    /// Not `Sync`: who searches for a gap has the nodes' lengths of gaps for itself.
    _alone: PhantomData<Cell<()>>,
}

impl<'t, V: Value, R: Reclaim, A: NodeAlloc> Writer<'t, V, R, A> {
    /// # Safety
    /// It is the only one while it lives; if `locked`, it has the tree's lock.
    #[inline]
    pub(crate) const unsafe fn new(tree: &'t MapleTree<V, R, A>, locked: bool) -> Self {
        // SAFETY: this is the only writer, and what changes the tree borrows it exclusively.
        let lookup = unsafe { Lookup::new(&tree.root) };
        Self { tree, lookup, locked, _alone: PhantomData }
    }

    /// The tree.
    #[must_use]
    pub const fn tree(&self) -> &'t MapleTree<V, R, A> {
        self.tree
    }

    pub(crate) fn levels(&self) -> usize {
        // SAFETY: only this writer frees nodes.
        let root = unsafe { self.tree.root.load(Ordering::Relaxed).as_ref() };
        root.map_or(0, |root| usize::from(root.level()) + 1)
    }

    /// Maps the range to the value, whatever was there. Ranges that it overlaps in part keep the rest, with their value;
    /// one that it lies within is split. In place, without allocation, if the range is just one that is mapped or a whole
    /// gap.
    ///
    /// An empty range changes nothing.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn store(&mut self, range: RangeInclusive<u64>, value: V) -> Result<(), NoMemory> {
        self.update(range, value.into_raw(), &mut Reserve::new(), true)
    }

    /// Maps the range to the value if nothing is mapped in it.
    ///
    /// # Errors
    /// [`InsertError::Occupied`] with the first that is; [`InsertError::NoMemory`].
    pub fn insert(&mut self, range: RangeInclusive<u64>, value: V) -> Result<(), InsertError<V>> {
        if let Some(found) = self.find(range.clone()) {
            return Err(found.into());
        }
        Ok(self.store(range, value)?)
    }

    /// Maps nothing in the range any more. Ranges that it overlaps in part keep the rest, with their value.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn erase_range(&mut self, range: RangeInclusive<u64>) -> Result<(), NoMemory> {
        self.update(range, core::ptr::null_mut(), &mut Reserve::new(), true)
    }

    /// Takes out the range that holds `index`. In place, without allocation, if it lies between two others.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn erase(&mut self, index: u64) -> Result<Option<Mapped<V>>, NoMemory> {
        let Some(found) = self.entry(index) else { return Ok(None) };
        self.erase_range(found.range())?;
        Ok(Some(found))
    }

    /// Gives the range that holds `index` another value, and returns the old one; `None`, and nothing done, if there is no
    /// such range. In place and without fail.
    pub fn replace(&mut self, index: u64, value: V) -> Option<V> {
        // SAFETY: this is the writer.
        let step = unsafe { walk(&self.tree.root, index) }?;
        // SAFETY: only this writer frees nodes.
        let leaf = unsafe { step.node() };
        let old = leaf.slot(step.at);
        (!old.is_null()).then(|| {
            leaf.set_slot(step.at, value.into_raw());
            // SAFETY: what is not null is a value.
            unsafe { V::from_raw(old) }
        })
    }

    /// Takes out everything, without fail.
    pub fn clear(&mut self) {
        if let Some(root) = NonNull::new(self.tree.root.load(Ordering::Relaxed)) {
            // SAFETY: this is the writer.
            unsafe { self.clear_from(root) };
        }
    }

    /// # Safety
    /// This is the writer, and the tree has this root.
    pub(crate) unsafe fn clear_from(&self, root: NonNull<Node>) {
        // SAFETY: the caller vouches for it; all of it is marked, then nobody finds it any more.
        unsafe {
            kill_subtree(root);
            self.tree.root.store(core::ptr::null_mut(), Ordering::Release);
            self.tree.retire_subtree(root);
        }
    }
}

impl<'t, V: Value, R: Reclaim, A: NodeAlloc> Deref for Writer<'t, V, R, A> {
    type Target = Lookup<'t, V>;

    #[inline]
    fn deref(&self) -> &Lookup<'t, V> {
        &self.lookup
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> Drop for Writer<'_, V, R, A> {
    #[inline]
    fn drop(&mut self) {
        if self.locked {
            self.tree.writing.store(false, Ordering::Release);
        }
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> fmt::Debug for Writer<'_, V, R, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Writer").field("levels", &self.levels()).finish_non_exhaustive()
    }
}
