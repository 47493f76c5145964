//! Stores and erasures.
//!
//! An operation replaces the entries of a range by one. It goes from the leaves up. At each level it has a *group*: the nodes
//! that lie next to each other from the one where the range begins to the one where it ends. The group's entries, as they are
//! to be, are written to as few new nodes as hold them, and these are what the entries of the parents' group are replaced
//! by. A group of too few entries takes the neighbour in. As soon as one node replaces one, its parent's slot is set,
//! and the operation is done; at the latest the root is replaced.

use core::ops::RangeInclusive;
use core::ptr::{NonNull, null_mut};

use isotherm_rcu::Reclaim;

use crate::alloc::NodeAlloc;
use crate::error::NoMemory;
use crate::node::{Entry, MIN, Node, SLOTS};
use crate::path::{MAX_LEVELS, Path, Step};
use crate::reserve::Reserve;
use crate::stack::Stack;
use crate::sync::Ordering;
use crate::tree::kill_subtree;
use crate::{MapleTree, Value, Writer};

/// Entries of a group: all but one of two nodes, and three.
struct Group {
    entries: Stack<Entry, { 2 * SLOTS + 3 }>,
    /// Where it begins.
    min: u64,
}

impl Group {
    const fn new(min: u64) -> Self {
        Self { entries: Stack::new(), min }
    }

    fn push(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// Entries of a node.
    ///
    /// # Safety
    /// The caller is the writer.
    unsafe fn push_all(&mut self, node: NonNull<Node>, range: core::ops::Range<usize>) {
        // SAFETY: only the writer frees nodes.
        let this = unsafe { node.as_ref() };
        // SAFETY: the caller is the writer, and the reference ends here.
        let gaps = if this.level() > 0 { Some(unsafe { &*Node::gaps(node) }) } else { None };
        for at in range {
            let gap = gaps.map_or(0, |gaps| gaps[at]);
            self.push(Entry { last: this.last(at), slot: this.slot(at), gap });
        }
    }
}

/// Nodes that an operation replaces, to be retired when it is done.
struct Replaced {
    /// Nodes whose children live on, or were replaced before. Three a level, and roots that are not needed.
    nodes: Stack<NonNull<Node>, { 4 * MAX_LEVELS }>,
    /// Children of a node that go with all below: from one entry up to another.
    below: Stack<(NonNull<Node>, usize, usize), { 2 * MAX_LEVELS }>,
}

impl Replaced {
    fn below(&mut self, node: NonNull<Node>, from: usize, to: usize) {
        if from < to {
            self.below.push((node, from, to));
        }
    }

    /// Marks all of it as dead, for readers who come from there. Before it is unlinked: who has seen the operation done must
    /// not find what was before.
    ///
    /// # Safety
    /// The caller is the writer, and unlinks all of it now.
    unsafe fn kill(&self) {
        for &(node, from, to) in &*self.below {
            // SAFETY: only the writer frees nodes.
            let node = unsafe { node.as_ref() };
            for at in from..to {
                // SAFETY: slots of a branch hold children; the caller is the writer.
                unsafe { kill_subtree(NonNull::new_unchecked(node.slot(at).cast())) };
            }
        }
        for node in &*self.nodes {
            // SAFETY: only the writer frees nodes.
            unsafe { node.as_ref() }.kill();
        }
    }

    /// # Safety
    /// The caller is the writer; all of it is [killed](Self::kill) and unlinked.
    unsafe fn retire<V: Value, R: Reclaim, A: NodeAlloc>(&self, tree: &MapleTree<V, R, A>) {
        for &(node, from, to) in &*self.below {
            // SAFETY: the node itself is retired only below.
            let node = unsafe { node.as_ref() };
            for at in from..to {
                // SAFETY: slots of a branch hold children; the caller vouches that they are unlinked.
                unsafe { tree.retire_subtree(NonNull::new_unchecked(node.slot(at).cast())) };
            }
        }
        for node in &*self.nodes {
            // SAFETY: the caller vouches for it.
            unsafe { tree.retire(*node) };
        }
    }
}

/// Where nodes come from, and which did.
struct Nodes<'r, A: NodeAlloc> {
    reserve: &'r mut Reserve<A>,
    /// Whether more may be allocated.
    more: bool,
    /// To be given back if the operation fails. Three a level, and a root.
    made: Stack<(NonNull<Node>, u8), { 3 * MAX_LEVELS + 1 }>,
}

impl<A: NodeAlloc> Nodes<'_, A> {
    fn make(&mut self, level: u8, entries: &[Entry]) -> Result<NonNull<Node>, NoMemory> {
        let fresh = || if self.more { Node::allocate::<A>(level) } else { None };
        let memory = self.reserve.take(level).or_else(fresh).ok_or(NoMemory)?;
        // SAFETY: the memory is of this level, and nobody else's.
        unsafe { Node::write(memory, level, entries) };
        self.made.push((memory, level));
        Ok(memory)
    }

    /// Writes a group to as few nodes as hold it, evenly, and puts these into `parents`.
    fn write(&mut self, level: u8, group: &Group, parents: &mut Group) -> Result<usize, NoMemory> {
        let count = group.entries.len().div_ceil(SLOTS);
        let mut min = group.min;
        for n in 0..count {
            let part = &group.entries[group.entries.len() * n / count..group.entries.len() * (n + 1) / count];
            let node = self.make(level, part)?;
            // SAFETY: the writer made it.
            let gap = unsafe { Node::largest_gap(node, min) };
            // There are SLOTS entries or fewer, but not none.
            let last = part.last().map_or(u64::MAX, |entry| entry.last);
            parents.push(Entry { last, slot: node.as_ptr().cast(), gap });
            min = last.wrapping_add(1);
        }
        Ok(count)
    }

    /// Gives back what was made.
    fn undo(&mut self) {
        for &(node, level) in &*self.made {
            // SAFETY: nobody has seen it.
            unsafe { self.reserve.put(node, level) };
        }
    }
}

impl<V: Value, R: Reclaim, A: NodeAlloc> Writer<'_, V, R, A> {
    /// Replaces what is in the range by one value, or by a gap if `raw` is null. Takes nodes from `reserve`, and others only
    /// if `more` may be allocated.
    pub(crate) fn update(
        &mut self,
        range: RangeInclusive<u64>,
        raw: *mut (),
        reserve: &mut Reserve<A>,
        more: bool,
    ) -> Result<(), NoMemory> {
        if range.is_empty() {
            return Ok(());
        }
        let made = Stack::new();
        let mut nodes = Nodes { reserve, more, made };
        let root = NonNull::new(self.tree.root.load(Ordering::Relaxed));
        let done = match root {
            // SAFETY: this is the writer.
            Some(root) => unsafe { self.update_at(root, *range.start(), *range.end(), raw, &mut nodes) },
            None if raw.is_null() => Ok(()),
            None => self.first(*range.start(), *range.end(), raw, &mut nodes),
        };
        if done.is_err() {
            nodes.undo();
        }
        done
    }

    /// Stores to an empty tree.
    fn first(&self, first: u64, last: u64, raw: *mut (), nodes: &mut Nodes<'_, A>) -> Result<(), NoMemory> {
        let mut group = Group::new(0);
        if first > 0 {
            group.push(Entry { last: first - 1, ..Entry::GAP });
        }
        group.push(Entry { last, slot: raw, gap: 0 });
        if last < u64::MAX {
            group.push(Entry::GAP);
        }
        let root = nodes.make(0, &group.entries)?;
        self.tree.root.store(root.as_ptr(), Ordering::Release);
        Ok(())
    }

    /// # Safety
    /// This is the writer, and the tree has this root.
    unsafe fn update_at(
        &self,
        root: NonNull<Node>,
        mut first: u64,
        mut last: u64,
        raw: *mut (),
        nodes: &mut Nodes<'_, A>,
    ) -> Result<(), NoMemory> {
        // SAFETY: the caller vouches for all that is read of the tree here.
        let path = |index| unsafe { Path::to(root, index) };
        let (mut low, mut high) = (path(first), path(last));
        // SAFETY: the same.
        let entry = |path: &Path| unsafe { path.entry() };
        if raw.is_null() {
            // Gaps do not adjoin: this one takes in those beside it.
            if first > 0 && entry(&low).0 == first {
                low = path(first - 1);
                if !entry(&low).2.is_null() {
                    low = path(first);
                }
            }
            if last < u64::MAX && entry(&high).1 == last {
                high = path(last + 1);
                if !entry(&high).2.is_null() {
                    high = path(last);
                }
            }
            if entry(&low).2.is_null() {
                first = entry(&low).0;
            }
            if entry(&high).2.is_null() {
                last = entry(&high).1;
            }
        }
        let (low_entry, high_entry) = (entry(&low), entry(&high));
        if (low_entry.0, low_entry.1) == (first, last) {
            let leaf = low.steps[0];
            if low_entry.2 != raw {
                // SAFETY: as above.
                unsafe { leaf.node() }.set_slot(leaf.at, raw);
                if low_entry.2.is_null() || raw.is_null() {
                    // SAFETY: as above.
                    unsafe { self.update_gaps(&low, 1, Node::largest_gap(leaf.node, leaf.min)) };
                }
            }
            return Ok(());
        }

        // The entries of the leaves.
        let mut group = Group::new(low.steps[0].min);
        // SAFETY: as above.
        unsafe { group.push_all(low.steps[0].node, 0..low.steps[0].at) };
        if low_entry.0 < first {
            group.push(Entry { last: first - 1, slot: low_entry.2, gap: 0 });
        }
        group.push(Entry { last, slot: raw, gap: 0 });
        if last < high_entry.1 {
            group.push(Entry { last: high_entry.1, slot: high_entry.2, gap: 0 });
        }
        // SAFETY: as above.
        unsafe {
            let leaf = high.steps[0];
            group.push_all(leaf.node, leaf.at + 1..leaf.node().len());
            self.rebuild(&mut low, &mut high, group, nodes)
        }
    }

    /// From the entries of the leaves up.
    ///
    /// # Safety
    /// This is the writer, and the paths lead through the tree.
    unsafe fn rebuild(
        &self,
        low: &mut Path,
        high: &mut Path,
        mut group: Group,
        nodes: &mut Nodes<'_, A>,
    ) -> Result<(), NoMemory> {
        let mut replaced = Replaced { nodes: Stack::new(), below: Stack::new() };
        for level in 0..low.levels {
            let (from, to) = (low.steps[level].node, high.steps[level].node);
            replaced.nodes.push(from);
            if to != from {
                replaced.nodes.push(to);
            }
            if level + 1 == low.levels {
                // SAFETY: the caller vouches for it; the group is all of the root's level.
                return unsafe { self.replace_root(level, &group, nodes, &mut replaced) };
            }
            let (mut a, mut b) = (low.steps[level + 1], high.steps[level + 1]);
            let shared = a.node == b.node;
            // SAFETY: only this writer frees nodes.
            let (low_parent, high_parent) = unsafe { (a.node(), b.node()) };
            // What lies between the two ends goes with all below.
            if shared {
                replaced.below(a.node, a.at + 1, b.at);
            } else {
                replaced.below(a.node, a.at + 1, low_parent.len());
                replaced.below(b.node, 0, b.at);
            }
            if group.entries.len() < MIN {
                // SAFETY: slots of a branch hold children.
                let child =
                    |parent: &Node, at| unsafe { NonNull::new_unchecked(parent.slot(at).cast::<Node>()) };
                if b.at + 1 < high_parent.len() {
                    b.at += 1;
                    let neighbour = child(high_parent, b.at);
                    // SAFETY: as above.
                    unsafe { group.push_all(neighbour, 0..neighbour.as_ref().len()) };
                    replaced.nodes.push(neighbour);
                } else if a.at > 0 {
                    a.at -= 1;
                    let neighbour = child(low_parent, a.at);
                    let mut longer = Group::new(low_parent.first(a.at, a.min));
                    // SAFETY: as above.
                    unsafe { longer.push_all(neighbour, 0..neighbour.as_ref().len()) };
                    group.entries.iter().for_each(|&entry| longer.push(entry));
                    group = longer;
                    replaced.nodes.push(neighbour);
                }
            }
            let mut parents = Group::new(a.min);
            // SAFETY: as above.
            unsafe { parents.push_all(a.node, 0..a.at) };
            let count = nodes.write(level as u8, &group, &mut parents)?;
            if shared && a.at == b.at && count == 1 {
                // One node for one: this is the moment.
                let new = parents.entries[a.at];
                // SAFETY: this is the writer, and they are unlinked by the next store.
                unsafe { replaced.kill() };
                low_parent.set_slot(a.at, new.slot);
                low.steps[level + 1] = a;
                // SAFETY: as above; all that was replaced cannot be found any more.
                unsafe {
                    self.update_gaps(low, level + 1, new.gap);
                    replaced.retire(self.tree);
                }
                return Ok(());
            }
            // SAFETY: as above.
            unsafe { parents.push_all(b.node, b.at + 1..high_parent.len()) };
            group = parents;
            (low.steps[level + 1], high.steps[level + 1]) = (a, b);
        }
        Ok(())
    }

    /// The group becomes the whole tree.
    ///
    /// # Safety
    /// This is the writer; the group is at `level`, covers everything, and all else is replaced.
    unsafe fn replace_root(
        &self,
        level: usize,
        group: &Group,
        nodes: &mut Nodes<'_, A>,
        replaced: &mut Replaced,
    ) -> Result<(), NoMemory> {
        let mut level = level as u8;
        let mut root = match &*group.entries {
            [only] if level > 0 => only.slot.cast::<Node>(),
            [only] if only.slot.is_null() => null_mut(),
            _ => {
                let mut parents = Group::new(0);
                nodes.write(level, group, &mut parents)?;
                if parents.entries.len() > 1 {
                    level += 1;
                    assert!(usize::from(level) < MAX_LEVELS, "the tree is too high");
                    nodes.make(level, &parents.entries)?.as_ptr()
                } else {
                    parents.entries[0].slot.cast()
                }
            }
        };
        // A root with one child is not needed.
        while let Some(node) = NonNull::new(root) {
            // SAFETY: only this writer frees nodes.
            let this = unsafe { node.as_ref() };
            if this.level() == 0 || this.len() > 1 {
                break;
            }
            replaced.nodes.push(node);
            root = this.slot(0).cast();
        }
        // SAFETY: this is the writer, and they are unlinked by the next store.
        unsafe { replaced.kill() };
        self.tree.root.store(root, Ordering::Release);
        // SAFETY: none of it can be found any more.
        unsafe { replaced.retire(self.tree) };
        Ok(())
    }

    /// The largest gap below the path's entry of `level` is now `gap`.
    ///
    /// # Safety
    /// This is the writer, and the path from `level` on leads through the tree.
    unsafe fn update_gaps(&self, path: &Path, level: usize, mut gap: u64) {
        for &Step { node, at, min } in &path.steps[level..path.levels.max(level)] {
            // SAFETY: this is the writer; the reference ends here.
            let slot = unsafe { &mut Node::gaps(node)[at] };
            if *slot == gap {
                return;
            }
            *slot = gap;
            // SAFETY: as above.
            gap = unsafe { Node::largest_gap(node, min) };
        }
    }
}
