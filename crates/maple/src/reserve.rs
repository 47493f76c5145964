//! Nodes put aside, so that stores cannot fail.

use core::fmt;
use core::marker::PhantomData;
use core::ops::{Deref, RangeInclusive};
use core::ptr::NonNull;

use isotherm_rcu::Reclaim;

use crate::alloc::{Global, NodeAlloc};
use crate::error::{InsertError, NoMemory};
use crate::node::Node;
use crate::{Mapped, Value, Writer};

/// Nodes of one size that nobody uses, chained through their first word.
#[derive(Default)]
struct Chain {
    first: Option<NonNull<Node>>,
    len: usize,
}

impl Chain {
    /// # Safety
    /// The memory is a node's and nobody else's.
    unsafe fn push(&mut self, memory: NonNull<Node>) {
        // SAFETY: a node has room for a pointer, and its alignment.
        unsafe { memory.cast().write(self.first) };
        self.first = Some(memory);
        self.len += 1;
    }

    fn pop(&mut self) -> Option<NonNull<Node>> {
        let first = self.first?;
        // SAFETY: `push` wrote it.
        self.first = unsafe { first.cast().read() };
        self.len -= 1;
        Some(first)
    }
}

/// Memory for nodes, allocated before it is needed: outside of locks, or where failing is still harmless.
pub struct Reserve<A: NodeAlloc = Global> {
    leaves: Chain,
    branches: Chain,
    _alloc: PhantomData<fn() -> A>,
}

// SAFETY: it owns memory that nobody else knows.
unsafe impl<A: NodeAlloc> Send for Reserve<A> {}

/// Nodes that so many stores to a tree of so many levels take at most.
///
/// A store over many ranges makes of the leaves at its two ends up to three, and the same of the branches of each level;
/// three branches at the top need another above, and the next store has a level more to go.
///
/// `None`: more than can be counted.
fn need(levels: usize, stores: usize) -> Option<(usize, usize)> {
    let grown = stores.checked_mul(stores.saturating_sub(1))? / 2;
    let branches = stores.checked_mul(levels.checked_mul(3)?.checked_add(1)?)?;
    Some((stores.checked_mul(3)?, branches.checked_add(grown.checked_mul(3)?)?))
}

impl<A: NodeAlloc> Reserve<A> {
    /// An empty one.
    #[must_use]
    pub const fn new() -> Self {
        Self {
            leaves: Chain { first: None, len: 0 },
            branches: Chain { first: None, len: 0 },
            _alloc: PhantomData,
        }
    }

    /// Allocates what is lacking for so many stores to a tree of so many [levels](crate::MapleTree::levels): for one store
    /// three leaves of 512 bytes, and three branches of 768 bytes a level and one.
    ///
    /// # Errors
    /// [`NoMemory`]; what was allocated stays.
    pub fn fill(&mut self, levels: usize, stores: usize) -> Result<(), NoMemory> {
        let (leaves, branches) = need(levels, stores).ok_or(NoMemory)?;
        for (chain, wanted, level) in [(&mut self.leaves, leaves, 0), (&mut self.branches, branches, 1)] {
            while chain.len < wanted {
                let memory = Node::allocate::<A>(level).ok_or(NoMemory)?;
                // SAFETY: it was just allocated.
                unsafe { chain.push(memory) };
            }
        }
        Ok(())
    }

    fn suffices(&self, levels: usize, stores: usize) -> bool {
        need(levels, stores)
            .is_some_and(|(leaves, branches)| self.leaves.len >= leaves && self.branches.len >= branches)
    }

    /// Memory for a node of this level.
    pub(crate) fn take(&mut self, level: u8) -> Option<NonNull<Node>> {
        if level == 0 { self.leaves.pop() } else { self.branches.pop() }
    }

    /// # Safety
    /// The memory is of a node of this level, from `A`, and nobody uses it.
    pub(crate) unsafe fn put(&mut self, memory: NonNull<Node>, level: u8) {
        let chain = if level == 0 { &mut self.leaves } else { &mut self.branches };
        // SAFETY: the caller vouches for it.
        unsafe { chain.push(memory) };
    }
}

impl<A: NodeAlloc> Default for Reserve<A> {
    fn default() -> Self {
        Self::new()
    }
}

impl<A: NodeAlloc> Drop for Reserve<A> {
    fn drop(&mut self) {
        for (chain, level) in [(&mut self.leaves, 0), (&mut self.branches, 1)] {
            while let Some(memory) = chain.pop() {
                // SAFETY: it came from `A` with this size, and nobody uses it.
                unsafe { Node::free::<A>(memory, level) };
            }
        }
    }
}

impl<A: NodeAlloc> fmt::Debug for Reserve<A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (leaves, branches) = (self.leaves.len, self.branches.len);
        f.debug_struct("Reserve").field("leaves", &leaves).field("branches", &branches).finish()
    }
}

/// A writer that has put aside what its next stores need: they cannot fail. It reads as the writer it came from. What is left
/// is freed when it is dropped.
pub struct Reserved<'w, 't, V: Value, R: Reclaim + 't, A: NodeAlloc = Global> {
    writer: &'w mut Writer<'t, V, R, A>,
    nodes: Reserve<A>,
    stores: usize,
}

impl<'t, V: Value, R: Reclaim, A: NodeAlloc> Writer<'t, V, R, A> {
    /// Puts aside what `stores` calls of [`Reserved::store`], [`Reserved::insert`], [`Reserved::erase`] and
    /// [`Reserved::erase_range`] need at most.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn reserve(&mut self, stores: usize) -> Result<Reserved<'_, 't, V, R, A>, NoMemory> {
        let mut nodes = Reserve::new();
        nodes.fill(self.levels(), stores)?;
        Ok(Reserved { writer: self, nodes, stores })
    }

    /// The same from nodes that were allocated before the lock was taken. Allocates nothing.
    ///
    /// # Errors
    /// The nodes, if they do not suffice: the tree has grown.
    pub fn reserve_from(
        &mut self,
        nodes: Reserve<A>,
        stores: usize,
    ) -> Result<Reserved<'_, 't, V, R, A>, Reserve<A>> {
        if nodes.suffices(self.levels(), stores) {
            Ok(Reserved { writer: self, nodes, stores })
        } else {
            Err(nodes)
        }
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> Reserved<'_, '_, V, R, A> {
    fn replace(&mut self, range: RangeInclusive<u64>, value: Option<V>) {
        assert!(self.stores > 0, "more stores than were reserved");
        self.stores -= 1;
        let raw = value.map_or(core::ptr::null_mut(), V::into_raw);
        let done = self.writer.update(range, raw, &mut self.nodes, false);
        assert_eq!(done, Ok(()), "the reserve is too small");
    }

    /// As [`Writer::store`], without fail.
    ///
    /// # Panics
    /// If more stores are made than were reserved.
    pub fn store(&mut self, range: RangeInclusive<u64>, value: V) {
        self.replace(range, Some(value));
    }

    /// As [`Writer::insert`], and fails only if the range is not free.
    ///
    /// # Errors
    /// The first value in the range, if it is not free.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub fn insert(&mut self, range: RangeInclusive<u64>, value: V) -> Result<(), Mapped<V>> {
        match self.writer.find(range.clone()) {
            Some(found) => Err(found),
            None => {
                self.replace(range, Some(value));
                Ok(())
            }
        }
    }

    /// As [`Writer::erase_range`], without fail.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub fn erase_range(&mut self, range: RangeInclusive<u64>) {
        self.replace(range, None);
    }

    /// As [`Writer::erase`], without fail.
    ///
    /// # Panics
    /// As [`store`](Self::store).
    pub fn erase(&mut self, index: u64) -> Option<Mapped<V>> {
        let found = self.writer.entry(index)?;
        self.replace(found.range(), None);
        Some(found)
    }
}

impl<'t, V: Value, R: Reclaim, A: NodeAlloc> Deref for Reserved<'_, 't, V, R, A> {
    type Target = Writer<'t, V, R, A>;

    fn deref(&self) -> &Self::Target {
        self.writer
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> fmt::Debug for Reserved<'_, '_, V, R, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reserved").field("stores", &self.stores).finish_non_exhaustive()
    }
}

impl<V> From<Mapped<V>> for InsertError<V> {
    fn from(found: Mapped<V>) -> Self {
        Self::Occupied(found)
    }
}
