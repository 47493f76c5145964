//! Stores and erasures.
//!
//! An operation replaces the entries of a range by one. It goes from the leaves up. At each level it has a *group*: the nodes
//! that lie next to each other from the one where the range begins to the one where it ends. The group's entries, as they are
//! to be, are written to as few new nodes as hold them, and these are what the entries of the parents' group are replaced
//! by. A group of too few entries takes the neighbour in; so does one of too many, if the neighbour has
//! room. As soon as one node replaces one, its parent's slot is set, and the operation is done; at the latest the root is
//! replaced.

use core::ops::RangeInclusive;
use core::ptr::NonNull;

use isotherm_rcu::Reclaim;

use crate::alloc::NodeAlloc;
use crate::draft::Draft;
use crate::error::NoMemory;
use crate::group::{Group, Part};
use crate::node::{Entry, MIN, Node, SHARED, SLOTS};
use crate::path::{MAX_LEVELS, Path, Step};
use crate::replaced::Span;
use crate::reserve::Reserve;
use crate::stack::Stack;
use crate::sync::Ordering;
use crate::{Value, Writer};

/// Where nodes come from, and which did.
struct Nodes<'r, A: NodeAlloc> {
    reserve: &'r mut Reserve<A>,
    /// Whether more may be allocated.
    more: bool,
    /// To be given back if the operation fails. Three a level, and a root.
    made: Stack<NonNull<Node>, { 3 * MAX_LEVELS + 1 }>,
}

impl<A: NodeAlloc> Nodes<'_, A> {
    fn draft(&mut self, level: u8) -> Result<Draft, NoMemory> {
        let fresh = || if self.more { Node::allocate::<A>(level) } else { None };
        let memory = self.reserve.take(level).or_else(fresh).ok_or(NoMemory)?;
        // SAFETY: the memory is of this level, and nobody else's.
        Ok(unsafe { Draft::new(memory, level) })
    }

    fn finish(&mut self, draft: Draft) -> NonNull<Node> {
        let node = draft.finish();
        self.made.push(node);
        node
    }

    /// Writes a group to as few nodes as hold it, evenly, and puts these into `parents`.
    ///
    /// # Safety
    /// The caller is the writer.
    unsafe fn write(&mut self, level: u8, group: &Group, parents: &mut Group) -> Result<usize, NoMemory> {
        let len = group.len();
        let count = len.div_ceil(SLOTS);
        let mut min = group.min;
        let mut written = 0;
        let mut draft = self.draft(level)?;
        // Entries up to the end of the node that is being written.
        let end = |n: usize| len * (n + 1) / count;
        let mut n = 0;
        for part in group.parts() {
            let mut part = Some(part);
            while let Some(this) = part.take() {
                let left = end(n) - written;
                match this {
                    Part::New(entry) if left > 0 => {
                        draft.push(entry);
                        written += 1;
                    }
                    Part::Old(node, from, to) if left > 0 => {
                        let until = to.min(from + left);
                        // SAFETY: the caller is the writer.
                        unsafe { draft.copy(node, from, until) };
                        written += until - from;
                        part = (until < to).then_some(Part::Old(node, until, to));
                    }
                    full => {
                        n += 1;
                        let next = self.draft(level);
                        let node = self.finish(draft);
                        // SAFETY: the writer made it.
                        min = unsafe { enter(node, min, parents) };
                        draft = next?;
                        part = Some(full);
                    }
                }
            }
        }
        let node = self.finish(draft);
        // SAFETY: the writer made it.
        unsafe { enter(node, min, parents) };
        Ok(count)
    }

    /// Gives back what was made.
    fn undo(&mut self) {
        for &node in &*self.made {
            // SAFETY: nobody has seen it.
            unsafe { self.reserve.put(node, node.as_ref().level()) };
        }
    }
}

/// Enters a node that begins at `min` into its parents' group; where the next one begins.
///
/// # Safety
/// The caller is the writer and made the node.
unsafe fn enter(node: NonNull<Node>, min: u64, parents: &mut Group) -> u64 {
    // SAFETY: the caller vouches for it.
    let (last, gap) = unsafe { (node.as_ref().end(), Node::largest_gap(node, min)) };
    parents.push(Entry { last, slot: node.as_ptr().cast(), gap });
    last.wrapping_add(1)
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
        let mut root = nodes.draft(0)?;
        if first > 0 {
            root.push(Entry { last: first - 1, ..Entry::GAP });
        }
        root.push(Entry { last, slot: raw, gap: 0 });
        if last < u64::MAX {
            root.push(Entry::GAP);
        }
        self.tree.root.store(root.finish().as_ptr(), Ordering::Release);
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
        let mut span = unsafe { Span::from(root) };
        // SAFETY: the same.
        let entry = |path: &Path| unsafe { path.entry() };
        // SAFETY: the same.
        let go_to = |path: &mut Path, index| unsafe { path.go_to(index) };
        let Span { low, high, .. } = &mut span;
        go_to(low, first);
        go_to(high, last);
        if raw.is_null() {
            // Gaps do not adjoin: this one takes in those beside it.
            if first > 0 && entry(low).0 == first {
                go_to(low, first - 1);
                if !entry(low).2.is_null() {
                    go_to(low, first);
                }
            }
            if last < u64::MAX && entry(high).1 == last {
                go_to(high, last + 1);
                if !entry(high).2.is_null() {
                    go_to(high, last);
                }
            }
            if entry(low).2.is_null() {
                first = entry(low).0;
            }
            if entry(high).2.is_null() {
                last = entry(high).1;
            }
            if (first, last) == (0, u64::MAX) {
                // SAFETY: as above.
                unsafe { self.clear_from(root) };
                return Ok(());
            }
        }
        let (low_entry, high_entry) = (entry(low), entry(high));
        if (low_entry.0, low_entry.1) == (first, last) {
            // SAFETY: as above.
            let leaf = unsafe { low.step(0) };
            if low_entry.2 != raw {
                // SAFETY: as above.
                unsafe { leaf.node() }.set_slot(leaf.at, raw);
                if low_entry.2.is_null() || raw.is_null() {
                    // SAFETY: as above.
                    unsafe { self.update_gaps(low, 1, Node::largest_gap(leaf.node, leaf.min)) };
                }
            }
            return Ok(());
        }

        // The entries of the leaves.
        // SAFETY: as above.
        let (from, to) = unsafe { (low.step(0), high.step(0)) };
        let mut group = Group::new(from.min);
        group.begin(from.node, 0, from.at);
        if low_entry.0 < first {
            group.push(Entry { last: first - 1, slot: low_entry.2, gap: 0 });
        }
        group.push(Entry { last, slot: raw, gap: 0 });
        if last < high_entry.1 {
            group.push(Entry { last: high_entry.1, slot: high_entry.2, gap: 0 });
        }
        // SAFETY: as above.
        unsafe {
            group.end(to.node, to.at + 1, to.node().len());
            self.rebuild(&mut span, &mut group, nodes)
        }
    }

    /// From the entries of the leaves up.
    ///
    /// # Safety
    /// This is the writer, and the span's paths lead through the tree.
    unsafe fn rebuild(
        &self,
        span: &mut Span,
        group: &mut Group,
        nodes: &mut Nodes<'_, A>,
    ) -> Result<(), NoMemory> {
        for level in 0..span.low.levels() {
            if level + 1 == span.low.levels() {
                // SAFETY: the caller vouches for it; the group is all of the root's level.
                return unsafe { self.replace_root(span, group, nodes) };
            }
            // SAFETY: the caller vouches for it.
            let (mut a, mut b) = unsafe { (span.low.step(level + 1), span.high.step(level + 1)) };
            // SAFETY: only this writer frees nodes.
            let (low_parent, high_parent) = unsafe { (a.node(), b.node()) };
            let (few, many) = (group.len() < MIN, group.len() > SLOTS);
            if few || many {
                // SAFETY: slots of a branch hold children, which only this writer frees.
                let child = |parent: &Node, at| unsafe {
                    let child = NonNull::new_unchecked(parent.slot(at).cast::<Node>());
                    (child, child.as_ref().len())
                };
                // Of what is too much for its nodes a neighbour takes a share if it has room: then there is no more of them.
                let fits = |len| few || group.len() + len <= group.len().div_ceil(SLOTS) * SHARED;
                let after = (b.at + 1 < high_parent.len()).then(|| child(high_parent, b.at + 1));
                let before = || (a.at > 0).then(|| child(low_parent, a.at - 1));
                if let Some((neighbour, len)) = after.filter(|&(_, len)| fits(len)) {
                    b.at += 1;
                    group.end(neighbour, 0, len);
                    span.take_after(level);
                } else if let Some((neighbour, len)) = before().filter(|&(_, len)| fits(len)) {
                    a.at -= 1;
                    group.begin_with(neighbour, len, low_parent.first(a.at, a.min));
                    span.take_before(level);
                }
            }
            let mut parents = Group::new(a.min);
            parents.begin(a.node, 0, a.at);
            // SAFETY: the caller vouches for it.
            let count = unsafe { nodes.write(level as u8, group, &mut parents)? };
            if a.node == b.node
                && a.at == b.at
                && count == 1
                && let Some(new) = parents.first_new()
            {
                // One node for one: this is the moment.
                // SAFETY: as above; what is marked is unlinked by the next store, and then cannot be found any more.
                unsafe {
                    span.kill(level);
                    low_parent.set_slot(a.at, new.slot);
                    self.update_gaps(&span.low, level + 1, new.gap);
                    span.retire(level, self.tree);
                }
                return Ok(());
            }
            parents.end(b.node, b.at + 1, high_parent.len());
            *group = parents;
        }
        Ok(())
    }

    /// The group becomes the whole tree.
    ///
    /// # Safety
    /// This is the writer; the group is at the root's level and covers everything.
    unsafe fn replace_root(
        &self,
        span: &Span,
        group: &Group,
        nodes: &mut Nodes<'_, A>,
    ) -> Result<(), NoMemory> {
        let level = span.low.levels() - 1;
        // SAFETY: the caller vouches for it.
        let mut root = match unsafe { group.only() } {
            Some(only) if level > 0 => only.slot.cast::<Node>(),
            _ => {
                let mut parents = Group::new(0);
                // SAFETY: as above.
                let count = unsafe { nodes.write(level as u8, group, &mut parents)? };
                match parents.first_new() {
                    Some(only) if count == 1 => only.slot.cast(),
                    _ => {
                        assert!(level + 1 < MAX_LEVELS, "the tree is too high");
                        let mut draft = nodes.draft(level as u8 + 1)?;
                        for part in parents.parts() {
                            if let Part::New(entry) = part {
                                draft.push(entry);
                            }
                        }
                        nodes.finish(draft).as_ptr()
                    }
                }
            }
        };
        // A root with one child is not needed.
        let top = root;
        // SAFETY: only this writer frees nodes.
        while let Some(child) = unsafe { only_child(root) } {
            // SAFETY: the same; it has a child.
            unsafe { &*root }.kill();
            root = child;
        }
        // SAFETY: this is the writer; what is marked is unlinked by the next store, and then cannot be found any more.
        unsafe {
            span.kill(level);
            self.tree.root.store(root, Ordering::Release);
            let mut node = top;
            while node != root
                && let Some(child) = only_child(node)
                && let Some(dead) = NonNull::new(node)
            {
                self.tree.retire(dead);
                node = child;
            }
            span.retire(level, self.tree);
        }
        Ok(())
    }

    /// The largest gap below the path's entry of `level` is now `gap`.
    ///
    /// # Safety
    /// This is the writer, and the path from `level` on leads through the tree.
    unsafe fn update_gaps(&self, path: &Path, level: usize, mut gap: u64) {
        for level in level..path.levels() {
            // SAFETY: the caller vouches for it.
            let Step { node, at, min } = unsafe { path.step(level) };
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

/// The child of a branch that has no other.
///
/// # Safety
/// The caller is the writer, and the node is one or null.
unsafe fn only_child(node: *mut Node) -> Option<*mut Node> {
    // SAFETY: the caller vouches for it.
    let this = unsafe { node.as_ref() }?;
    (this.level() > 0 && this.len() == 1).then(|| this.slot(0).cast())
}
