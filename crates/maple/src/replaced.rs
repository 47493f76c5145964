//! What an operation replaces.

use core::ptr::NonNull;

use isotherm_rcu::Reclaim;

use crate::alloc::NodeAlloc;
use crate::node::Node;
use crate::path::{MAX_LEVELS, Path};
use crate::tree::kill_subtree;
use crate::{MapleTree, Value};

/// The neighbour that a level's group takes in.
#[derive(Clone, Copy)]
enum Neighbour {
    None,
    Before,
    After,
}

/// The ways to where the range of an operation begins and where it ends. They tell what is replaced, so that no list is
/// needed.
pub(crate) struct Span {
    pub(crate) low: Path,
    pub(crate) high: Path,
    neighbours: [Neighbour; MAX_LEVELS],
}

impl Span {
    /// Two ways that lead nowhere yet.
    ///
    /// # Safety
    /// The caller is the writer.
    #[inline]
    pub(crate) unsafe fn from(root: NonNull<Node>) -> Self {
        // SAFETY: the caller vouches for it.
        let (low, high) = unsafe { (Path::from(root), Path::from(root)) };
        Self { low, high, neighbours: [Neighbour::None; MAX_LEVELS] }
    }

    /// The group of this level takes in the node after it.
    pub(crate) fn take_after(&mut self, level: usize) {
        self.neighbours[level] = Neighbour::After;
    }

    /// The group of this level takes in the node before it.
    pub(crate) fn take_before(&mut self, level: usize) {
        self.neighbours[level] = Neighbour::Before;
    }

    /// Calls `node` for each node that is replaced up to a level and whose children live on or have been replaced below, and
    /// `subtree` for each that goes with all below. A node is not read after either was called for it.
    ///
    /// # Safety
    /// The caller is the writer. The paths lead through the tree as it was.
    unsafe fn each(
        &self,
        top: usize,
        mut node: impl FnMut(NonNull<Node>),
        mut subtree: impl FnMut(NonNull<Node>),
    ) {
        for level in 0..=top {
            let (low, high) = (self.low.node(level), self.high.node(level));
            if level + 1 < self.low.levels() {
                let (a, b) = (self.low.place(level + 1), self.high.place(level + 1));
                let parents = (self.low.node(level + 1), self.high.node(level + 1));
                // SAFETY: nodes of that level were not given away yet, and only the writer frees nodes.
                let (low_parent, high_parent) = unsafe { (parents.0.as_ref(), parents.1.as_ref()) };
                // SAFETY: slots of a branch hold children.
                let child = |parent: &Node, at| unsafe { NonNull::new_unchecked(parent.slot(at).cast()) };
                match self.neighbours[level] {
                    Neighbour::None => {}
                    Neighbour::Before => node(child(low_parent, a - 1)),
                    Neighbour::After => node(child(high_parent, b + 1)),
                }
                // What lies between the two ends goes with all below.
                if parents.0 == parents.1 {
                    (a + 1..b).for_each(|at| subtree(child(low_parent, at)));
                } else {
                    (a + 1..low_parent.len()).for_each(|at| subtree(child(low_parent, at)));
                    (0..b).for_each(|at| subtree(child(high_parent, at)));
                }
            }
            node(low);
            if high != low {
                node(high);
            }
        }
    }

    /// Marks as dead, up to a level, what is replaced, for readers who come from there. Before it is unlinked: who has seen the
    /// operation done must not find what was before.
    ///
    /// # Safety
    /// The caller is the writer, and unlinks all of it now.
    pub(crate) unsafe fn kill(&self, top: usize) {
        // SAFETY: the caller is the writer, who alone frees nodes.
        unsafe { self.each(top, |node| node.as_ref().kill(), |node| kill_subtree(node)) };
    }

    /// Has it freed after a grace period.
    ///
    /// # Safety
    /// The caller is the writer; all of it is [killed](Self::kill) and unlinked.
    pub(crate) unsafe fn retire<V: Value, R: Reclaim, A: NodeAlloc>(
        &self,
        top: usize,
        tree: &MapleTree<V, R, A>,
    ) {
        // SAFETY: the caller vouches for it.
        unsafe { self.each(top, |node| tree.retire(node), |node| tree.retire_subtree(node)) };
    }
}
