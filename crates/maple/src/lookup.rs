//! What readers and the writer find.

use core::fmt;
use core::marker::PhantomData;
use core::ops::RangeInclusive;

use crate::node::Node;
use crate::path::{Step, load, scan, scan_back, walk};
use crate::sync::AtomicPtr;
use crate::{Mapped, Value};

/// What can be looked up by a [`Reader`](crate::Reader), and by a [`Writer`](crate::Writer), under whom nothing changes.
pub struct Lookup<'t, V: Value> {
    root: &'t AtomicPtr<Node>,
    _values: PhantomData<*mut V>,
}

// SAFETY: it is a reference to a tree, from which values are copied by whoever has it or shares it.
unsafe impl<V: Value + Send + Sync> Send for Lookup<'_, V> {}
// SAFETY: as above.
unsafe impl<V: Value + Send + Sync> Sync for Lookup<'_, V> {}

impl<'t, V: Value> Lookup<'t, V> {
    /// # Safety
    /// Whoever has it, or borrows it, holds a guard, or nobody else writes and the writer is borrowed meanwhile. The root is of
    /// a tree of `V`s.
    #[inline]
    pub(crate) const unsafe fn new(root: &'t AtomicPtr<Node>) -> Self {
        Self { root, _values: PhantomData }
    }

    /// The value whose range holds `index`. One node a level is read, whatever the writer does.
    #[inline]
    #[must_use]
    pub fn get(&self, index: u64) -> Option<V> {
        // SAFETY: a guard is held or nobody writes, and what is not null is a value.
        unsafe {
            let raw = load(self.root, index);
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
    #[must_use]
    pub fn range(&self, range: RangeInclusive<u64>) -> Iter<'_, V> {
        let rest = (!range.is_empty()).then(|| (*range.start(), *range.end()));
        // A guard is held as long as the iterator, which borrows this; or nobody writes so long.
        Iter { root: self.root, rest, front: None, back: None, _values: PhantomData }
    }

    /// All ranges.
    #[must_use]
    pub fn iter(&self) -> Iter<'_, V> {
        self.range(0..=u64::MAX)
    }
}

impl<V: Value> fmt::Debug for Lookup<'_, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lookup").finish_non_exhaustive()
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

impl<V: Value> Iter<'_, V> {
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
