//! Readers.

use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeInclusive;

use isotherm_rcu::Reclaim;

use crate::alloc::{Global, NodeAlloc};
use crate::node::Node;
use crate::path::{Step, load, scan, scan_back, walk};
use crate::sync::AtomicPtr;
use crate::{MapleTree, Mapped, Value};

/// A read-side critical section of a tree. What is found in it can be used until it is dropped, even if it is taken out
/// of the tree meanwhile, provided that owners free objects by the same RCU.
pub struct Reader<'t, V: Value, R: Reclaim + 't, A: NodeAlloc = Global> {
    tree: &'t MapleTree<V, R, A>,
    guard: R::Guard<'t>,
}

impl<'t, V: Value, R: Reclaim, A: NodeAlloc> Reader<'t, V, R, A> {
    #[inline]
    pub(crate) const fn new(tree: &'t MapleTree<V, R, A>, guard: R::Guard<'t>) -> Self {
        Self { tree, guard }
    }

    /// The guard.
    #[must_use]
    pub const fn guard(&self) -> &R::Guard<'t> {
        &self.guard
    }

    /// The value whose range holds `index`. Takes a bounded number of steps, whatever the writer does.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u64) -> Option<V> {
        // SAFETY: the guard is held, and what is not null is a value.
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

    /// All ranges that have an index in `range`, in order, from either end. They come whole, also where they begin before
    /// `range` or end after it.
    ///
    /// While others write, each range that is returned was in the tree at some moment since the one before was; all of them
    /// together are no snapshot. What is in the tree all the time is found; what is stored behind the search while what lies
    /// before it is erased may both be missed, also by [`Self::find`]. A range that grew meanwhile may begin before the end of the one that was returned last.
    #[must_use]
    pub fn range(&self, range: RangeInclusive<u64>) -> Iter<'_, V> {
        // SAFETY: the guard is held as long as the iterator, which borrows this.
        unsafe { Iter::new(&self.tree.root, range) }
    }

    /// All ranges.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, V> {
        self.range(0..=u64::MAX)
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> fmt::Debug for Reader<'_, V, R, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// Ranges and their values in order, from either end.
pub struct Iter<'a, V: Value> {
    root: &'a AtomicPtr<Node>,
    /// What is still to come: from here, to there; `None` if nothing is.
    rest: Option<(u64, u64)>,
    front: Option<Step>,
    back: Option<Step>,
    _values: PhantomData<*mut V>,
}

impl<'a, V: Value> Iter<'a, V> {
    /// # Safety
    /// A guard is held during `'a`, or nobody writes.
    pub(crate) unsafe fn new(root: &'a AtomicPtr<Node>, range: RangeInclusive<u64>) -> Self {
        let rest = (!range.is_empty()).then(|| (*range.start(), *range.end()));
        Self { root, rest, front: None, back: None, _values: PhantomData }
    }

    /// The leaf that was kept, unless it died.
    fn kept(step: Option<Step>) -> Option<Step> {
        // SAFETY: the guard is held that it was found under.
        step.filter(|step| !unsafe { step.node() }.is_dead())
    }
}

impl<V: Value> Iterator for Iter<'_, V> {
    type Item = Mapped<V>;

    fn next(&mut self) -> Option<Mapped<V>> {
        let (mut from, to) = self.rest.take()?;
        let mut kept = Self::kept(self.front);
        loop {
            // SAFETY: a guard is held, or nobody writes.
            let mut step = kept.take().or_else(|| unsafe { walk(self.root, from) })?;
            // SAFETY: the same.
            match unsafe { scan(&mut step, to) } {
                Ok(found) => {
                    self.front = Some(step);
                    self.rest = (found.last < to).then(|| (found.last + 1, to));
                    return Some(found);
                }
                Err(Some(next)) => from = next,
                Err(None) => return None,
            }
        }
    }
}

impl<V: Value> DoubleEndedIterator for Iter<'_, V> {
    fn next_back(&mut self) -> Option<Mapped<V>> {
        let (from, mut to) = self.rest.take()?;
        let mut kept = Self::kept(self.back);
        loop {
            let walked = || {
                // SAFETY: a guard is held, or nobody writes.
                let step = unsafe { walk(self.root, to) };
                step.map(|step| Step { at: step.at + 1, ..step })
            };
            let mut step = kept.take().or_else(walked)?;
            // SAFETY: the same.
            match unsafe { scan_back(&mut step, from) } {
                Ok(found) => {
                    self.back = Some(step);
                    self.rest = (found.first > from).then(|| (from, found.first - 1));
                    return Some(found);
                }
                Err(Some(next)) => to = next,
                Err(None) => return None,
            }
        }
    }
}

impl<V: Value> core::iter::FusedIterator for Iter<'_, V> {}

impl<V: Value> fmt::Debug for Iter<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Iter").field("rest", &self.rest).finish_non_exhaustive()
    }
}
