//! A map from ranges of `u64` that do not overlap to values, for memory managers: readers never wait.
//!
//! | what | where |
//! |---|---|
//! | the map | [`MapleTree`] |
//! | look up, iterate, under RCU | [`MapleTree::read`], [`Reader`], which is a [`Lookup`] |
//! | store, erase, find gaps, one writer at a time | [`MapleTree::try_write`], [`Writer`], a [`Lookup`] too |
//! | stores that cannot fail | [`Writer::reserve`], [`Reserved`], [`Reserve`] |
//! | build from sorted ranges, as for a fork | [`MapleTree::build`] |
//! | what can be a value | [`Value`] |
//! | where nodes come from | [`NodeAlloc`], [`Global`] |
//!
//! It does for VMAs what the kernel's maple tree does: ranges are inclusive, the whole of `u64` is divided into ranges with
//! a value and *gaps*, wide nodes hold the pivots between them, and an index finds the lowest or highest gap of a size.
//!
//! # Protocol
//!
//! **Nothing moves in a node that can be found.** Pivots, length and level of a node are written before it is linked and
//! never again. All that changes is what a slot holds, by one atomic store: a value for another in the same range, a value
//! for a gap, a child for another child of the same range. So a node is always whole, and readers need no version, no lock
//! and no second look.
//!
//! **A change of boundaries is a copy.** The writer builds new leaves beside the old ones, then new branches as far up as
//! boundaries change, and links the top of it by one store, to a slot or to the root. That store is the moment at which the
//! operation takes effect, however many ranges it replaces. Nodes that it replaces are marked as *dead* just before, and
//! freed after a grace period. Below, dead nodes share the subtrees that did not change with the living.
//!
//! **Why a lookup is right** ([`Lookup::get`] is linearizable). Say that a node is *in charge* of an index at a moment if the walk from the
//! root leads through it. Each node that a reader comes to was in charge at some moment since the reader began: the root
//! was when it was loaded. If a branch still is when the reader loads the slot, so is the child. If it is not, it died
//! in between, with its slots as they were at that moment, since only the living are written to; so the child was in charge
//! just before. The value read from the leaf was the index's at such a moment, for the same reason. No reader has to
//! start again: [`Lookup::get`] takes as many steps as the tree has levels, whatever the writer does.
//!
//! **Dead nodes.** What takes several steps, [`Lookup::range`] and its kin, keeps its leaf between them. Before each step
//! it looks whether the leaf is dead, and if so walks from the root again, so that each step finds what the tree held at
//! some moment of that step: a leaf that is not marked is still in the tree. (The kernel's tree marks after it linked,
//! `mas_put_in_tree`. A reader who comes between the two may see an operation done by a lookup, and undone again by the
//! next step of an iteration that has its leaf from before.) A search that
//! passes over several entries, also in one step, is no snapshot of all of them: what is stored in a gap behind it while
//! what lies before it is erased may both be missed. Who must not miss it looks again under the writers' lock, as a page
//! fault does that found no VMA.
//!
//! **Memory order.** Slots and root are stored with release and loaded with acquire, so a node's contents are seen by
//! whoever finds it. The mark of the dead is stored before the link of what replaces it: whoever has seen the writer's
//! operation done, or heard of it from one who has, sees the mark. Who sees the mark and not the link walks, finds the dead
//! leaf again and reads what is still in the tree; he does not wait, as he looks for the mark of kept leaves only.
//!
//! **Gaps.** Two gaps never adjoin, so a gap is one entry of one leaf. Branches hold the length of the largest gap below
//! each child, in cache lines of their own that only the writer reads and writes.
//!
//! **The writer** is one at a time: it has the tree's lock ([`MapleTree::try_write`]) or the caller has one
//! ([`MapleTree::write_locked`]). It needs no guard, as nobody but it frees nodes.
//!
//! `tests/loom.rs` models readers against every kind of change, `tests/model.rs` compares with a naive map.
#![no_std]

extern crate alloc as alloc_crate;

mod alloc;
mod build;
mod draft;
mod error;
mod gaps;
mod group;
mod lookup;
mod node;
mod path;
mod read;
mod replaced;
mod reserve;
mod stack;
mod sync;
mod tree;
mod update;
mod value;
mod write;

pub use alloc::{Global, NodeAlloc};
pub use error::{BuildError, InsertError, NoMemory};
pub use lookup::{Iter, Lookup};
pub use read::Reader;
pub use reserve::{Reserve, Reserved};
pub use tree::{MapleTree, Mapped};
pub use value::Value;
pub use write::Writer;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
