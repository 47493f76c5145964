//! Nodes: leaves and branches, sized to cache lines.
//!
//! ```text
//! line  0         1         2         3         4 .. 7              8 .. 11 (branches)
//!       head,     pivots    pivots    pivots    slots 0 .. 30,      largest gap below
//!       pivots    7 .. 15   15 .. 23  23 .. 31  link for RCU        each child
//!       0 .. 7
//! ```
//!
//! A node covers a range, and its entries divide it without holes: entry i begins after pivot i-1 and ends at pivot i. In a
//! leaf a slot holds a value, or null for a gap; in a branch it holds a child. Pivots that are not used are the largest
//! number. So the entry of an index is the number of pivots less than it, and is found by ten comparisons without a branch:
//! with the first pivots of lines 1 to 3, then with the rest of one line.

use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::{NonNull, null_mut};

use isotherm_rcu::RcuHead;

use crate::alloc::NodeAlloc;
use crate::sync::{AtomicBool, AtomicPtr, Ordering};

/// Entries of a node at most. Loom's models want deep trees of few entries.
pub(crate) const SLOTS: usize = if cfg!(loom) { 4 } else { 30 };
/// Nodes with fewer are merged with a neighbour, where they have one under the same parent.
pub(crate) const MIN: usize = if cfg!(loom) { 2 } else { 10 };
/// A neighbour takes a share of what is too much for a node if each holds no more than so many then: fuller ones would be full again
/// soon, and two nodes be copied for each few stores.
pub(crate) const SHARED: usize = if cfg!(loom) { 3 } else { 26 };
const PIVOTS: usize = SLOTS + 1;

/// A leaf, or the part that a branch has in common with one.
///
/// Once a node can be found, nothing of it changes but its slots, `dead` and a branch's gaps.
#[repr(C, align(64))]
pub(crate) struct Node {
    /// Whether it is about to be taken out of the tree, or was.
    dead: AtomicBool,
    /// 0 for leaves, for branches one more than for their children.
    level: u8,
    len: u8,
    pub(crate) pivots: [u64; PIVOTS],
    pub(crate) slots: [AtomicPtr<()>; SLOTS],
    rcu: RcuHead,
}

#[repr(C, align(64))]
pub(crate) struct Branch {
    node: Node,
    /// The length of the largest gap below each child. Only the writer reads it.
    pub(crate) gaps: UnsafeCell<[u64; SLOTS]>,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Node>() == 512 && size_of::<Branch>() == 768);

/// An entry on its way into a node: it ends at `last` and begins where the one before ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub(crate) last: u64,
    pub(crate) slot: *mut (),
    /// In a branch, the largest gap below.
    pub(crate) gap: u64,
}

impl Entry {
    pub(crate) const GAP: Self = Self { last: u64::MAX, slot: null_mut(), gap: 0 };
}

/// The number of indexes in a range, or the largest number for all 2^64.
pub(crate) const fn length(first: u64, last: u64) -> u64 {
    (last - first).saturating_add(1)
}

impl Node {
    const fn layout(level: u8) -> Layout {
        if level == 0 { Layout::new::<Self>() } else { Layout::new::<Branch>() }
    }

    /// Memory for a node of this level, not initialised.
    pub(crate) fn allocate<A: NodeAlloc>(level: u8) -> Option<NonNull<Self>> {
        A::allocate(Self::layout(level)).map(NonNull::cast)
    }

    /// # Safety
    /// It came from [`allocate`](Self::allocate) with the same level and allocator, nobody uses it, and it is given back
    /// once.
    pub(crate) unsafe fn free<A: NodeAlloc>(node: NonNull<Self>, level: u8) {
        // SAFETY: the caller vouches for it.
        unsafe { A::free(node.cast(), Self::layout(level)) };
    }

    /// Makes memory a node whose entries are written: the last thing before it is one.
    ///
    /// # Safety
    /// The memory is of this level and nobody else's; pivots, slots and a branch's gaps are initialised, the first `len` of them
    /// with entries.
    pub(crate) unsafe fn write_head(memory: NonNull<Self>, level: u8, len: u8) {
        debug_assert!((1..=SLOTS).contains(&usize::from(len)));
        let node = memory.as_ptr();
        // SAFETY: the caller vouches for the memory.
        unsafe {
            (&raw mut (*node).dead).write(AtomicBool::new(false));
            (&raw mut (*node).level).write(level);
            (&raw mut (*node).len).write(len);
            // The one more than there are slots.
            (&raw mut (*node).pivots[SLOTS]).write(u64::MAX);
            (&raw mut (*node).rcu).write(RcuHead::new());
        }
    }

    /// An entry.
    ///
    /// # Safety
    /// The caller is the writer.
    #[inline]
    pub(crate) unsafe fn entry_of(node: NonNull<Self>, at: usize) -> Entry {
        // SAFETY: the writer's nodes are not freed meanwhile.
        let this = unsafe { node.as_ref() };
        // SAFETY: the caller is the writer, and the reference ends here.
        let gap = if this.level > 0 { unsafe { (*Self::gaps(node))[at] } } else { 0 };
        Entry { last: this.last(at), slot: this.slot(at), gap }
    }

    #[inline]
    pub(crate) const fn level(&self) -> u8 {
        self.level
    }

    #[inline]
    pub(crate) const fn len(&self) -> usize {
        self.len as usize
    }

    /// The entry that an index of the node's range lies in.
    #[inline]
    pub(crate) fn find(&self, index: u64) -> usize {
        let p = &self.pivots;
        if cfg!(loom) {
            return p.iter().filter(|&&pivot| pivot < index).count();
        }
        let line = usize::from(p[7] < index) + usize::from(p[15] < index) + usize::from(p[23] < index);
        // The compiler sees that `line` is at most 3.
        let start = 8 * (line & 3);
        start + p[start..start + 7].iter().map(|&pivot| usize::from(pivot < index)).sum::<usize>()
    }

    /// Has the CPU fetch the lines of the slots, while it looks in those of the pivots for the one it wants. A leaf of a large
    /// tree is in no near cache, and one miss after another would take twice the time of all at once.
    #[inline]
    pub(crate) fn prefetch_slots(&self) {
        let slots = self.slots.as_ptr();
        // The first slot is the last word of line 3, or the first of line 4: what counts is a slot in each line.
        for at in [0, 8, 16, 24] {
            prefetch(slots.wrapping_add(at));
        }
    }

    /// The last index of an entry.
    #[inline]
    pub(crate) fn last(&self, at: usize) -> u64 {
        self.pivots[at]
    }

    /// The last index of all.
    pub(crate) fn end(&self) -> u64 {
        self.last(self.len() - 1)
    }

    /// The first index of an entry, in a node that begins at `min`.
    #[inline]
    pub(crate) fn first(&self, at: usize, min: u64) -> u64 {
        if at == 0 { min } else { self.pivots[at - 1] + 1 }
    }

    /// What an entry holds, with all that was done before it was put there.
    #[inline]
    pub(crate) fn slot(&self, at: usize) -> *mut () {
        self.slots[at].load(Ordering::Acquire)
    }

    /// Puts something there, with all that was done before.
    #[inline]
    pub(crate) fn set_slot(&self, at: usize, slot: *mut ()) {
        self.slots[at].store(slot, Ordering::Release);
    }

    /// A child of a branch.
    ///
    /// # Safety
    /// The node is a branch, and the child is not freed during `'a`: a guard is held that is older than the load of the
    /// pointer to this node, or nobody writes.
    #[inline]
    pub(crate) unsafe fn child<'a>(&self, at: usize) -> &'a Self {
        // SAFETY: slots of a branch that are in use hold children; the caller vouches for their lives.
        unsafe { &*self.slot(at).cast::<Self>() }
    }

    #[inline]
    pub(crate) fn is_dead(&self) -> bool {
        // Who came by the node's successor, or heard of it, sees the mark: it was set before the link, which was released.
        // Who sees the mark and not the link finds the node again, as it still is in the tree.
        self.dead.load(Ordering::Relaxed)
    }

    /// Marks it as dead. What is linked in its stead is linked thereafter, with release.
    pub(crate) fn kill(&self) {
        self.dead.store(true, Ordering::Relaxed);
    }

    pub(crate) const fn rcu(node: NonNull<Self>) -> NonNull<RcuHead> {
        // SAFETY: a field of a node is not at null, and lies within it.
        unsafe { NonNull::new_unchecked(&raw mut (*node.as_ptr()).rcu) }
    }

    /// The node that a head belongs to.
    ///
    /// # Safety
    /// The head came from [`rcu`](Self::rcu).
    pub(crate) const unsafe fn of_rcu(head: NonNull<RcuHead>) -> NonNull<Self> {
        // SAFETY: the head lies at this offset of a node.
        unsafe { head.byte_sub(core::mem::offset_of!(Self, rcu)).cast() }
    }

    /// # Safety
    /// The node is a branch that was made by a [`Draft`](crate::draft::Draft), and the caller is the writer and holds no
    /// other reference to its
    /// gaps.
    pub(crate) unsafe fn gaps<'a>(node: NonNull<Self>) -> &'a mut [u64; SLOTS] {
        // SAFETY: the caller vouches for it. The pointer was not made from a reference to the common part.
        unsafe { &mut *UnsafeCell::raw_get(&raw const (*node.cast::<Branch>().as_ptr()).gaps) }
    }

    /// The length of the largest gap in a node that begins at `min`.
    ///
    /// # Safety
    /// The caller is the writer.
    pub(crate) unsafe fn largest_gap(node: NonNull<Self>, min: u64) -> u64 {
        // SAFETY: the writer's nodes are not freed meanwhile.
        let this = unsafe { node.as_ref() };
        if this.level > 0 {
            // SAFETY: the caller is the writer, and the reference ends here.
            return unsafe { Self::gaps(node) }[..this.len()].iter().copied().max().unwrap_or(0);
        }
        let gap = |at: &usize| this.slot(*at).is_null();
        let lengths = (0..this.len()).filter(gap).map(|at| length(this.first(at, min), this.last(at)));
        lengths.max().unwrap_or(0)
    }
}

/// Has the CPU fetch a cache line.
#[inline]
fn prefetch<T>(what: *const T) {
    #[cfg(all(target_arch = "x86_64", not(miri), not(loom)))]
    // SAFETY: a prefetch changes nothing and faults nowhere.
    unsafe {
        core::arch::asm!("prefetcht0 [{}]", in(reg) what, options(nostack, preserves_flags, readonly));
    }
    #[cfg(all(target_arch = "aarch64", not(miri), not(loom)))]
    // SAFETY: a prefetch changes nothing and faults nowhere.
    unsafe {
        core::arch::asm!("prfm pldl1keep, [{}]", in(reg) what, options(nostack, preserves_flags, readonly));
    }
    #[cfg(any(miri, loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
    let _ = what;
}
