//! Readers.

use core::fmt;
use core::marker::PhantomData;
use core::ops::Deref;

use isotherm_rcu::Reclaim;

use crate::alloc::{Global, NodeAlloc};
use crate::{Lookup, MapleTree, Value};

/// A read-side critical section of a tree. What is found in it can be used until it is dropped, even if it is taken out
/// of the tree meanwhile, provided that owners free objects by the same RCU.
///
/// While others write, each range that is returned was in the tree at some moment since the one before was; all of them
/// together are no snapshot. What is in the tree all the time is found; what is stored behind a search while what lies before
/// it is erased may both be missed, by [`Lookup::find`] too. A range that grew meanwhile may begin before the end of the
/// one that was returned last.
///
/// What is found cannot outlive the reader:
///
/// ```compile_fail
/// # use isotherm_maple::MapleTree;
/// # use std::num::NonZeroUsize;
/// let tree = MapleTree::<NonZeroUsize, _>::new(isotherm_rcu::Epoch);
/// let mut ranges = tree.read().iter();
/// ranges.next();
/// ```
pub struct Reader<'t, V: Value, R: Reclaim + 't, A: NodeAlloc = Global> {
    /// Borrowed from the tree.
    lookup: Lookup<'t, V>,
    guard: R::Guard<'t>,
    _tree: PhantomData<&'t MapleTree<V, R, A>>,
}

impl<'t, V: Value, R: Reclaim, A: NodeAlloc> Reader<'t, V, R, A> {
    #[inline]
    pub(crate) const fn new(tree: &'t MapleTree<V, R, A>, guard: R::Guard<'t>) -> Self {
        // SAFETY: the guard is held as long as this, which does not give the lookup away.
        Self { lookup: unsafe { Lookup::new(&tree.root) }, guard, _tree: PhantomData }
    }

    /// The guard.
    #[must_use]
    pub const fn guard(&self) -> &R::Guard<'t> {
        &self.guard
    }
}

impl<'t, V: Value, R: Reclaim, A: NodeAlloc> Deref for Reader<'t, V, R, A> {
    type Target = Lookup<'t, V>;

    #[inline]
    fn deref(&self) -> &Lookup<'t, V> {
        &self.lookup
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> fmt::Debug for Reader<'_, V, R, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}
