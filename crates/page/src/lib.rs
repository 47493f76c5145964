//! Pages: frame numbers, orders, the metadata of a page, and the handles that own pages and refer to them.
//!
//! What stands on it: the zone of `isotherm-frames`, which hands out blocks, and the page tables of
//! `isotherm-pagetable`, which map folios. Both keep what they know of a page here, so that there is one record a page, and
//! one definition of frame, order and block.
//!
//! | what | where |
//! |---|---|
//! | frames and ranges of them, orders, blocks | [`Frame`], [`FrameRange`], [`Order`], [`Block`] |
//! | a block that an allocator handed out | [`OwnedBlock`] |
//! | a block with one owner, and what it is used for | [`Unique`] with [`Unused`], [`Slab`], [`Table`], [`Reserved`] |
//! | a reference to a folio, and one that counts as a pin | [`Folio`], [`Pinned`] |
//! | what is known of a folio, without a reference | [`FolioView`] |
//! | a folio split into smaller ones | [`Folio::split`], [`Splitting`], [`Pieces`] |
//! | the metadata of a page that is a page table, and its lock | [`TableMeta`], [`TableGuard`] |
//! | the metadata of all pages, in 32 bytes each | [`PageArray`], [`PageMeta`] |
//! | lists of blocks, linked through the metadata | [`BlockList`] |
//! | where a folio is mapped | [`ReverseMap`] |
//! | numbering of ranges with holes | [`spans`] |
//!
//! # The life of a page
//!
//! ```text
//!   free in the zone --get--> OwnedBlock --Unique::new--> Unique<Unused> --into_folio--> Folio (counted)
//!        ^                         |                        |   ^                           |
//!        |                         |                        |   +---into_unused-------------+  last one dropped
//!        +------------put----------+                        +--into_slab----> Unique<Slab>  |
//!        |                                                  +--into_table---> Unique<Table> |
//!        |                                                  +--into_reserved-> Unique<Reserved>
//!        +------------------Pages::free, when the last handle is dropped ------------------+
//! ```
//!
//! A page table is a [`Unique<Table>`](Table) until it is linked into a tree ([`into_raw`](Unique::into_raw)), whose entry
//! then stands for it. Only the [`TableGuard`] of its lock changes what is known of it. It leaves the tree by
//! [`unlink`](TableGuard::unlink), and is a value again once no walk can be in it any more ([`from_raw`](Unique::from_raw)),
//! which `isotherm-pagetable` sees to.
//!
//! **A page has one use at a time.** Its [`Kind`] is in its metadata, and the handle's type says the same: only
//! [`Unused`] memory can be made something, by a method that consumes the handle. What two owners would have to agree on
//! cannot be said: a slab has no method that maps it.
//!
//! **References are values.** A [`Folio`] is one reference. It cannot be copied; dropping it gives it back, and nothing else
//! does. Mappings hold references too, which their entries stand for: the page tables give these back by `unsafe` methods
//! of [`FolioView`], whose duty is to name entries that are gone from tables and TLBs.
//!
//! **Looking is free.** [`FolioView::of`] returns what a frame is part of, without a reference and without a duty. The
//! answer may be outdated when it comes, so safe code changes nothing through a view; [`Folio::get`] turns it into a
//! reference, or finds that the folio is gone.
//!
//! **What is not counted is not freed.** Special mappings (the zero page, device memory) hold no references. Memory that
//! has metadata may be mapped like that only while it is [`Reserved`], and leaves that state by an `unsafe` method alone.
//!
//! This is after Asterinas' `Frame<M>` and `UniqueFrame<M>`, whose metadata slot is 64 bytes and says by a vtable what
//! happens on the last drop. Here all kinds are this crate's: one word holds them, and [`Pages::free`] is the one way back.
//!
//! # What is unsafe, and why
//!
//! | | the duty |
//! |---|---|
//! | [`OwnedBlock::new`] | the block is allocated to the caller alone |
//! | [`Unique::new`], [`Folio::new`] | the block came from these pages |
//! | `impl` [`Pages`] | one record a frame, for good |
//! | [`Pages::free`] | no reference is left |
//! | [`Pages::split`] | nobody else can get a reference |
//! | [`FolioView::add_mapped`], [`sub_mapped`](FolioView::sub_mapped) | there is, or was, an entry for it |
//! | [`FolioView::mark`] | the entries' references are not given back yet |
//! | [`Folio::begin_split`] | all its mappings are known, and neither come nor go |
//! | [`PageMeta::table`] | the page is a table |
//! | [`TableGuard::remember`] | the entries are what is said of them |
//! | [`TableMeta::end`], [`Unique::<Table>::from_raw`](Unique::from_raw) | the table is in no tree; for the latter, no walk is in it |
//! | [`Unique<Reserved>::into_unused`](Unique) | it is mapped nowhere |
//!
//! # Without a lock
//!
//! Counts are atomic. How a reference is taken by a stale look is explained at the top of `folio.rs` and modelled with loom
//! (`tests/loom.rs`). The lock of a table is [`TableMeta::try_lock`]; who holds it when is `isotherm-pagetable`'s essay.
#![cfg_attr(not(any(test, loom)), no_std)]
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod array;
mod block;
pub mod carve;
mod column;
mod error;
mod folio;
mod frame;
mod info;
mod kinds;
mod list;
mod meta;
mod order;
mod pages;
pub mod spans;
mod split;
mod sync;
mod table;
mod unique;
mod view;

pub use array::{AllocatorStates, BYTES_PER_PAGE, PageArray, ReverseMap, page_array_size};
pub use block::{Block, OwnedBlock};
pub use error::{PageError, RangeError};
pub use folio::{Folio, Pinned};
pub use frame::{FRAME_SHIFT, FRAME_SIZE, Frame, FrameRange, MAX_FRAME};
pub use info::Kind;
pub use list::BlockList;
pub use meta::PageMeta;
pub use order::Order;
pub use pages::Pages;
pub use split::{Pieces, Splitting};
pub use table::{NotLocked, TableGuard, TableMeta};
pub use unique::{Reserved, Slab, Table, Unique, Unused, Use};
pub use view::{FolioKind, FolioView, MAX_FOLIO_ORDER};
