//! The writer.

use core::cell::Cell;
use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeInclusive;
use core::ptr::NonNull;

use isotherm_rcu::Reclaim;

use crate::alloc::{Global, NodeAlloc};
use crate::error::{InsertError, NoMemory};
use crate::path::{Path, load};
use crate::read::Iter;
use crate::reserve::Reserve;
use crate::sync::Ordering;
use crate::tree::kill_subtree;
use crate::{MapleTree, Mapped, Value};

/// The one writer of a tree. It reads as readers do, and what it reads does not change under it.
///
/// An operation that fails has changed nothing. Readers see each operation as one change.
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
        Self { tree, locked, _alone: PhantomData }
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

    /// The value whose range holds `index`.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<V> {
        // SAFETY: nobody else writes, and what is not null is a value.
        unsafe {
            let raw = load(&self.tree.root, index);
            (!raw.is_null()).then(|| V::from_raw(raw))
        }
    }

    /// The same with its range.
    #[must_use]
    pub fn entry(&self, index: u64) -> Option<Mapped<V>> {
        self.find(index..=index)
    }

    /// The first range that has an index in `range`, with its value.
    #[must_use]
    pub fn find(&self, range: RangeInclusive<u64>) -> Option<Mapped<V>> {
        self.range(range).next()
    }

    /// The last range that has an index in `range`, with its value.
    #[must_use]
    pub fn find_back(&self, range: RangeInclusive<u64>) -> Option<Mapped<V>> {
        self.range(range).next_back()
    }

    /// All ranges that have an index in `range`, in order, from either end. They come whole.
    #[must_use]
    pub fn range(&self, range: RangeInclusive<u64>) -> Iter<'_, V> {
        // SAFETY: nobody else writes, and this does not while it is borrowed.
        unsafe { Iter::new(&self.tree.root, range) }
    }

    /// All ranges.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, V> {
        self.range(0..=u64::MAX)
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
        let root = NonNull::new(self.tree.root.load(Ordering::Relaxed))?;
        // SAFETY: this is the writer.
        let step = unsafe { Path::to(root, index) }.steps[0];
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
        let Some(root) = NonNull::new(self.tree.root.load(Ordering::Relaxed)) else { return };
        // SAFETY: this is the writer.
        unsafe { kill_subtree(root) };
        self.tree.root.store(core::ptr::null_mut(), Ordering::Release);
        // SAFETY: this is the writer; all of it is marked, and nobody finds it any more.
        unsafe { self.tree.retire_subtree(root) };
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
