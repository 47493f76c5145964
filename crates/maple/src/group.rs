//! What a level's nodes are to hold, before it is written.

use core::ptr::NonNull;

use crate::node::{Entry, Node};
use crate::stack::Stack;

/// Some entries of a node that is there.
#[derive(Clone, Copy)]
pub(crate) struct Old {
    node: NonNull<Node>,
    from: u8,
    to: u8,
}

impl Old {
    fn len(self) -> usize {
        usize::from(self.to - self.from)
    }
}

/// Entries that follow each other: of nodes that are there, some new ones, and of nodes that are there. They are not copied
/// together: a list of all of them would be 1.5 KB.
pub(crate) struct Group {
    before: Stack<Old, 2>,
    /// A leaf's entry that is stored and what is left on either side; or the nodes that replace a group below: two, and one
    /// for each SLOTS entries that come to theirs.
    new: Stack<Entry, 3>,
    after: Stack<Old, 2>,
    /// Where it begins.
    pub(crate) min: u64,
}

impl Group {
    pub(crate) const fn new(min: u64) -> Self {
        Self { before: Stack::new(), new: Stack::new(), after: Stack::new(), min }
    }

    /// Some entries of a node, before the new ones.
    pub(crate) fn begin(&mut self, node: NonNull<Node>, from: usize, to: usize) {
        if from < to {
            self.before.push(Old { node, from: from as u8, to: to as u8 });
        }
    }

    pub(crate) fn push(&mut self, entry: Entry) {
        self.new.push(entry);
    }

    /// Some entries of a node, after all others.
    pub(crate) fn end(&mut self, node: NonNull<Node>, from: usize, to: usize) {
        if from < to {
            self.after.push(Old { node, from: from as u8, to: to as u8 });
        }
    }

    /// All entries of a node that begins at `min` come first.
    pub(crate) fn begin_with(&mut self, node: NonNull<Node>, len: usize, min: u64) {
        let mut before = Stack::new();
        before.push(Old { node, from: 0, to: len as u8 });
        self.before.iter().for_each(|&old| before.push(old));
        (self.before, self.min) = (before, min);
    }

    pub(crate) fn len(&self) -> usize {
        self.before.iter().chain(&*self.after).map(|old| old.len()).sum::<usize>() + self.new.len()
    }

    /// The first of the new entries.
    pub(crate) fn first_new(&self) -> Option<Entry> {
        self.new.first().copied()
    }

    /// The entry, if there is no other.
    ///
    /// # Safety
    /// The caller is the writer.
    pub(crate) unsafe fn only(&self) -> Option<Entry> {
        if self.len() != 1 {
            return None;
        }
        let old = self.before.first().or(self.after.first());
        // SAFETY: the caller is the writer.
        old.map_or(self.first_new(), |old| Some(unsafe { Node::entry_of(old.node, usize::from(old.from)) }))
    }

    /// All of it, in order.
    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> + '_ {
        let old = |&Old { node, from, to }: &Old| Part::Old(node, usize::from(from), usize::from(to));
        let new = self.new.iter().map(|&entry| Part::New(entry));
        self.before.iter().map(old).chain(new).chain(self.after.iter().map(old))
    }
}

/// A part of a group.
pub(crate) enum Part {
    /// Some entries of a node, from one up to another.
    Old(NonNull<Node>, usize, usize),
    New(Entry),
}
