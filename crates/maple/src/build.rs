//! Whole trees from sorted ranges.

use core::ops::RangeInclusive;
use core::ptr::NonNull;

use alloc_crate::vec::Vec;
use isotherm_rcu::Reclaim;

use crate::alloc::NodeAlloc;
use crate::error::{BuildError, NoMemory};
use crate::node::{Entry, Node, SLOTS};
use crate::sync::Ordering;
use crate::tree::free_subtree;
use crate::{MapleTree, Value};

/// Entries of a node that is built: room is left for a few stores.
const FILL: usize = SLOTS - SLOTS / 10;

/// A level that is being built, from its first entry to its last.
struct Level {
    level: u8,
    /// What is not in nodes yet. As soon as there is enough for two nodes one is made, so that the last two are even.
    buffer: [Entry; 2 * FILL],
    len: usize,
    min: u64,
    /// Nodes, as entries of the level above.
    nodes: Vec<Entry>,
}

impl Level {
    const fn new(level: u8) -> Self {
        Self { level, buffer: [Entry::GAP; 2 * FILL], len: 0, min: 0, nodes: Vec::new() }
    }

    fn push<A: NodeAlloc>(&mut self, entry: Entry) -> Result<(), NoMemory> {
        if self.len == self.buffer.len() {
            self.emit::<A>(FILL)?;
        }
        self.buffer[self.len] = entry;
        self.len += 1;
        Ok(())
    }

    /// Makes a node of the first so many entries.
    fn emit<A: NodeAlloc>(&mut self, count: usize) -> Result<(), NoMemory> {
        self.nodes.try_reserve(1).map_err(|_| NoMemory)?;
        let memory = Node::allocate::<A>(self.level).ok_or(NoMemory)?;
        // SAFETY: it was just allocated.
        unsafe { Node::write(memory, self.level, &self.buffer[..count]) };
        // SAFETY: nobody else knows the node.
        let gap = unsafe { Node::largest_gap(memory, self.min) };
        let last = self.buffer[count - 1].last;
        self.nodes.push(Entry { last, slot: memory.as_ptr().cast(), gap });
        self.min = last.wrapping_add(1);
        self.buffer.copy_within(count..self.len, 0);
        self.len -= count;
        Ok(())
    }

    fn finish<A: NodeAlloc>(&mut self) -> Result<(), NoMemory> {
        if self.len > SLOTS {
            self.emit::<A>(self.len / 2)?;
        }
        self.emit::<A>(self.len)
    }

    /// Gives back all nodes.
    fn undo<A: NodeAlloc>(&mut self) {
        for node in self.nodes.drain(..) {
            // SAFETY: they were made here, and nobody knows them.
            unsafe { free_subtree::<A>(NonNull::new_unchecked(node.slot.cast())) };
        }
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> MapleTree<V, R, A> {
    /// A tree of ranges that come in order and do not overlap, in one pass: nine tenths full, and several times as fast as
    /// storing them. For a fork, they are those of the parent with the child's values.
    ///
    /// # Errors
    /// [`BuildError::Unsorted`], [`BuildError::NoMemory`].
    pub fn build(
        rcu: R,
        ranges: impl IntoIterator<Item = (RangeInclusive<u64>, V)>,
    ) -> Result<Self, BuildError> {
        let tree = Self::new_in(rcu);
        let mut leaves = Level::new(0);
        let root = match build::<V, A>(&mut leaves, ranges) {
            Ok(root) => root,
            Err(error) => {
                leaves.undo::<A>();
                return Err(error);
            }
        };
        tree.root.store(root, Ordering::Release);
        Ok(tree)
    }
}

/// The root. On an error all nodes are in `level`, which ends as the topmost.
fn build<V: Value, A: NodeAlloc>(
    level: &mut Level,
    ranges: impl IntoIterator<Item = (RangeInclusive<u64>, V)>,
) -> Result<*mut Node, BuildError> {
    // Where the next range may begin; `None` if all of u64 is taken.
    let mut next = Some(0);
    let mut empty = true;
    for (range, value) in ranges {
        let (first, last) = (*range.start(), *range.end());
        let Some(free) = next.filter(|&free| free <= first && !range.is_empty()) else {
            return Err(BuildError::Unsorted(first));
        };
        if free < first {
            level.push::<A>(Entry { last: first - 1, ..Entry::GAP })?;
        }
        level.push::<A>(Entry { last, slot: value.into_raw(), gap: 0 })?;
        next = last.checked_add(1);
        empty = false;
    }
    if empty {
        return Ok(core::ptr::null_mut());
    }
    if next.is_some() {
        level.push::<A>(Entry::GAP)?;
    }
    level.finish::<A>()?;
    while level.nodes.len() > 1 {
        let mut above = Level::new(level.level + 1);
        // An entry is in `level.nodes` as long as no node above holds it.
        let mut moved = 0;
        let done = raise::<A>(level, &mut above, &mut moved);
        level.nodes.drain(..moved);
        if done.is_err() {
            above.undo::<A>();
            return Err(NoMemory.into());
        }
        *level = above;
    }
    Ok(level.nodes[0].slot.cast())
}

/// Puts the nodes of a level into nodes of the level above; `moved` counts those that are in one.
fn raise<A: NodeAlloc>(level: &Level, above: &mut Level, moved: &mut usize) -> Result<(), NoMemory> {
    for (pushed, &node) in level.nodes.iter().enumerate() {
        let done = above.push::<A>(node);
        *moved = pushed + usize::from(done.is_ok()) - above.len;
        done?;
    }
    let done = above.finish::<A>();
    *moved = level.nodes.len() - above.len;
    done
}
