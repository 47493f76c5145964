//! The index of gaps.

use core::ops::RangeInclusive;
use core::ptr::NonNull;

use isotherm_rcu::Reclaim;

use crate::alloc::NodeAlloc;
use crate::node::{Node, length};
use crate::sync::Ordering;
use crate::{Value, Writer};

/// What is looked for.
struct Wanted {
    /// At least 1.
    size: u64,
    align: u64,
    from: u64,
    to: u64,
}

impl Wanted {
    /// The lowest fit in a gap.
    fn lowest(&self, first: u64, last: u64) -> Option<u64> {
        let (first, last) = (first.max(self.from), last.min(self.to));
        let start = first.checked_next_multiple_of(self.align)?;
        (start <= last && last - start >= self.size - 1).then_some(start)
    }

    /// The highest fit in a gap.
    fn highest(&self, first: u64, last: u64) -> Option<u64> {
        let (first, last) = (first.max(self.from), last.min(self.to));
        let start = last.checked_sub(self.size - 1)? & !(self.align - 1);
        (start >= first).then_some(start)
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> Writer<'_, V, R, A> {
    /// The lowest multiple of `align` at which `size` indexes are free, all of them within `bounds`.
    ///
    /// The search goes to the first gap that is large enough. If that has no aligned fit, it goes on to the next, so
    /// many gaps that fit without alignment only make it longer.
    ///
    /// # Panics
    /// `size` is 0, or `align` is not a power of two.
    #[must_use]
    pub fn lowest_gap(&self, size: u64, align: u64, bounds: RangeInclusive<u64>) -> Option<u64> {
        self.search(size, align, bounds, Wanted::lowest, lowest)
    }

    /// The highest multiple of `align` at which `size` indexes are free, all of them within `bounds`. As
    /// [`lowest_gap`](Self::lowest_gap) otherwise.
    ///
    /// # Panics
    /// As [`lowest_gap`](Self::lowest_gap).
    #[must_use]
    pub fn highest_gap(&self, size: u64, align: u64, bounds: RangeInclusive<u64>) -> Option<u64> {
        self.search(size, align, bounds, Wanted::highest, highest)
    }

    fn search(
        &self,
        size: u64,
        align: u64,
        bounds: RangeInclusive<u64>,
        fit: fn(&Wanted, u64, u64) -> Option<u64>,
        below: unsafe fn(NonNull<Node>, u64, &Wanted) -> Option<u64>,
    ) -> Option<u64> {
        assert!(size > 0, "a gap of no size");
        assert!(align.is_power_of_two(), "an alignment of {align}");
        let wanted = Wanted { size, align, from: *bounds.start(), to: *bounds.end() };
        if bounds.is_empty() || length(wanted.from, wanted.to) < size {
            return None;
        }
        match NonNull::new(self.tree.root.load(Ordering::Relaxed)) {
            // SAFETY: this is the writer.
            Some(root) => unsafe { below(root, 0, &wanted) },
            None => fit(&wanted, 0, u64::MAX),
        }
    }

    /// Checks what holds of every tree: no two gaps adjoin, ranges fit into each other without holes, and the index of
    /// gaps is right. For tests; takes as long as the tree is large.
    ///
    /// # Panics
    /// When something is wrong.
    pub fn check(&self) {
        if let Some(root) = NonNull::new(self.tree.root.load(Ordering::Relaxed)) {
            // SAFETY: this is the writer.
            unsafe { check(root, 0, u64::MAX, &mut false) };
        }
    }
}

/// # Safety
/// The caller is the writer.
unsafe fn lowest(node: NonNull<Node>, min: u64, wanted: &Wanted) -> Option<u64> {
    // SAFETY: only the writer frees nodes.
    let this = unsafe { node.as_ref() };
    let start = if wanted.from > min { this.find(wanted.from) } else { 0 };
    if this.level() == 0 {
        let mut gaps = (start..this.len()).filter(|&at| this.slot(at).is_null());
        return gaps.find_map(|at| wanted.lowest(this.first(at, min), this.last(at)));
    }
    // SAFETY: the caller is the writer, and nothing is changed meanwhile.
    let gaps = unsafe { &*Node::gaps(node) };
    for (at, &gap) in gaps.iter().enumerate().take(this.len()).skip(start) {
        let first = this.first(at, min);
        if first > wanted.to {
            break;
        }
        if gap >= wanted.size {
            // SAFETY: slots of a branch hold children; the caller is the writer.
            let found = unsafe { lowest(NonNull::new_unchecked(this.slot(at).cast()), first, wanted) };
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// # Safety
/// The caller is the writer.
unsafe fn highest(node: NonNull<Node>, min: u64, wanted: &Wanted) -> Option<u64> {
    // SAFETY: only the writer frees nodes.
    let this = unsafe { node.as_ref() };
    let end = if wanted.to < this.last(this.len() - 1) { this.find(wanted.to) + 1 } else { this.len() };
    if this.level() == 0 {
        let mut gaps = (0..end).rev().filter(|&at| this.slot(at).is_null());
        return gaps.find_map(|at| wanted.highest(this.first(at, min), this.last(at)));
    }
    // SAFETY: the caller is the writer, and nothing is changed meanwhile.
    let gaps = unsafe { &*Node::gaps(node) };
    for at in (0..end).rev() {
        if this.last(at) < wanted.from {
            break;
        }
        if gaps[at] >= wanted.size {
            let first = this.first(at, min);
            // SAFETY: slots of a branch hold children; the caller is the writer.
            let found = unsafe { highest(NonNull::new_unchecked(this.slot(at).cast()), first, wanted) };
            if found.is_some() {
                return found;
            }
        }
    }
    None
}

/// Checks a node that is to cover a range. `gap` is whether what came before was one. Returns the largest gap.
///
/// # Safety
/// The caller is the writer.
unsafe fn check(node: NonNull<Node>, min: u64, max: u64, gap: &mut bool) -> u64 {
    // SAFETY: only the writer frees nodes.
    let this = unsafe { node.as_ref() };
    assert!(!this.is_dead(), "a dead node in the tree");
    assert!(this.len() > 0 && this.last(this.len() - 1) == max, "a node ends where its parent says");
    let mut largest = 0;
    for at in 0..this.len() {
        let (first, last) = (this.first(at, min), this.last(at));
        assert!(first <= last, "an empty entry");
        if this.level() == 0 {
            let is_gap = this.slot(at).is_null();
            assert!(!(is_gap && *gap), "two gaps adjoin at {first:#x}");
            *gap = is_gap;
            if is_gap {
                largest = largest.max(length(first, last));
            }
            continue;
        }
        // SAFETY: slots of a branch hold children.
        let child = unsafe { NonNull::new_unchecked(this.slot(at).cast::<Node>()) };
        // SAFETY: the caller is the writer.
        unsafe {
            assert_eq!(child.as_ref().level() + 1, this.level(), "levels go down by one");
            let below = check(child, first, last, gap);
            assert_eq!(Node::gaps(node)[at], below, "the largest gap below {first:#x}");
            largest = largest.max(below);
        }
    }
    largest
}
