//! Page tables for x86-64, arm64 and RISC-V: what maps a frame at an address, and every operation on ranges of such mappings
//! that a memory manager needs, in batches.
//!
//! Pages and frames are counted in 4 KiB everywhere. Where a format's smallest leaf is larger ([`Format::GRANULE`]), ranges,
//! frames and folios are aligned to it, a leaf counts as all its pages, and a table is a block of frames.
//!
//! | what | where |
//! |---|---|
//! | entries of x86-64 (4 and 5 levels), arm64 (granules of 4, 16 and 64 KiB, addresses of 48 and 52 bits, TTBR0 and TTBR1) and RISC-V (Sv39, Sv48, Sv57) | [`Format`], [`X86_64`], [`X86_64La57`], [`Arm64`], [`RiscV`] |
//! | what the caller brings: metadata, memory, frames, TLB, RCU | [`Pages`], [`Memory`], [`Frames`], [`Tlb`], [`Rcu`], together [`Machine`] |
//! | folios and their counts, the metadata of a page | `isotherm-page`: [`Folio`], [`FolioView`], [`Pinned`], [`PageMeta`] |
//! | the tree and its operations | [`AddressSpace`] |
//! | one TLB flush for all that an operation frees | [`Gather`] |
//! | what an operation on a range did, by kind | [`RssStat`] |
//! | reading a tree without its locks | [`Reader`] |
//! | a machine of ordinary memory that counts | `host` (feature `host`, needs std) |
//!
//! | operation | method |
//! |---|---|
//! | map folios, device memory, swap entries | [`map`](AddressSpace::map), [`map_swap_entry`](AddressSpace::map_swap_entry) |
//! | zap (`MADV_DONTNEED`), unmap, exit | [`zap`](AddressSpace::zap), [`unmap`](AddressSpace::unmap), [`exit`](AddressSpace::exit) |
//! | tables of a gap (`free_pgtables`) | [`free_empty_tables`](AddressSpace::free_empty_tables) |
//! | protect, write-protect | [`protect`](AddressSpace::protect), [`write_protect`](AddressSpace::write_protect) |
//! | map page after page (fault-around, populate) | [`mapper`](AddressSpace::mapper) |
//! | a kernel's half, shared by all; entries of the root that others made | [`KernelHalf`], [`with_kernel`](AddressSpace::with_kernel), [`with_entries`](AddressSpace::with_entries) |
//! | fork, and the write faults after it | [`copy_range`](AddressSpace::copy_range), [`write_fault`](AddressSpace::write_fault) |
//! | collapse and split | [`collapse`](AddressSpace::collapse), [`split`](AddressSpace::split) |
//! | split a folio, mapped by several spaces or not | [`split_folio`] |
//! | young, for DAMON | [`harvest_young`](AddressSpace::harvest_young), [`harvest_frames`](AddressSpace::harvest_frames) |
//! | dirty, for write-back; young, for reclaim | [`mkclean`](AddressSpace::mkclean), [`clear_flush_young`](AddressSpace::clear_flush_young); of one page, if it is still that frame: [`mkclean_page`](AddressSpace::mkclean_page), [`clear_flush_young_page`](AddressSpace::clear_flush_young_page) |
//! | memory that is given up until it is written to | [`lazy_free`](AddressSpace::lazy_free) |
//! | move | [`remap`](AddressSpace::remap) |
//! | put a page in the place of a swap entry or of another | [`replace`](AddressSpace::replace), [`swap_out`](AddressSpace::swap_out) |
//! | look | [`lookup`](Reader::lookup), [`query`](AddressSpace::query), [`runs`](AddressSpace::runs) |
//!
//! Rules and figures are those of the series "Transparent Contiguous PTEs for User Mappings" v4 (linux-mm, December
//! 2023), called *the seed* here, and of the discussion of its patch 2.
//!
//! # Batches
//!
//! A batch is a run of present leaves of one table that map consecutive frames of one folio and agree in every bit but
//! the frame, apart from young and dirty where the operation does not care. Counts of the folio move once a batch. A
//! folio of order 0 is its own batch, and takes a tight loop of its own, so that small folios pay
//! nothing. A table that was filled in one batch remembers that its entries are an arithmetic *progression*. As long as
//! no software changes one and hardware has nothing left to set in them, the next batch need not read them at all.
//!
//! # What is not present
//!
//! Hardware takes three kinds of entries for not present. An empty one is 0. A page that nobody may access
//! ([`Attributes::no_access`], what `PROT_NONE` makes of a user's page) keeps its frame, its references and all it was; every operation
//! but an access treats it as mapped. And a [`SwapEntry`] stands for a page that is elsewhere. Formats encode both so that no CPU
//! that reads ahead through such an entry (L1TF) finds memory there, if all memory is below half of the CPU's physical address space
//! and no swap entry's value is larger than [`SwapEntry::largest_safe`].
//!
//! # Concurrency
//!
//! **Who may change an entry.** Software changes an entry of a table only while it holds that table's lock. The lock is a
//! word of the metadata of the table's frame ([`TableMeta`](isotherm_page::TableMeta)), so there is one a table (split page-table locks). Hardware
//! may at any time set the accessed bit of a present leaf, and the dirty bit of a writable one; it never clears any.
//!
//! **No bit of hardware's is lost.** Under the lock an entry that hardware can still change is replaced by
//! compare-exchange or swap. Once its accessed bit is set, and its dirty bit or it is read-only, no *hardware update*
//! (the Arm ARM's word for what sets these bits) can change it any more ([`Format::no_hw_update`]): between a load and a plain store by the holder of the
//! lock it cannot change, and the store loses nothing. So it is with nearly all entries of memory in use; this is what
//! makes write-protecting, harvesting and zapping whole tables cheap. Of anonymous pages that are zapped nobody asks for
//! the bits, so these are stored over as well.
//!
//! **Lookups take no lock.** A walk loads one entry a level, with acquire, so that it sees what was written to a table or
//! page before it was linked. The tables it goes through may be unlinked meanwhile; an [`Rcu::Guard`] keeps their frames
//! from being reused until it is done. A lookup sees a mapping or none, never half of one; while a leaf is split,
//! folded, unfolded or collapsed it may see none for a moment, and a fault that comes of it waits for the lock and finds
//! it: above the lowest level the entry that is broken is marked, so that nobody takes it for a hole, and below it every
//! change begins with the table's lock.
//!
//! **Tables come.** A table is filled while nobody else knows it, then linked under its parent's lock if the entry is
//! still empty. It is allocated while no lock is held: allocators may sleep.
//!
//! **Tables go.** Only an empty table goes, or one that a huge leaf replaces: parent locked, then child, the parent's
//! entry changed, the child marked *stale* and unlocked, the TLB flushed, the frame retired. Whoever waited for the
//! child's lock sees the mark, and walks again from the root. So a locked table is in the tree: that is why the lock may
//! be taken on a frame that was found without one.
//!
//! **Lock order.** Parent before child; several tables of one level (remap, split of a folio) in the order of their
//! frames. A fork waits for locks of the parent's only, and holds none while it waits; those of the child's it tries. So a child may be
//! known to reverse maps while it is made. No operation but the split of a folio, which holds the locks of all tables that map it,
//! holds those of more than two tables, none allocates memory under a lock, and no lock is held while folios are given back. That split
//! calls the allocator under its locks, to note that the block is several ([`Pages::split`]).
//!
//! **The TLB before the memory.** [`Gather`] collects what a change removes: mapping, then flush, then the reference
//! that might free the folio. Where two translations of one page must not coexist (copy of a write fault, fold and
//! unfold, split and collapse) the entry is emptied and flushed before it is written anew.
//!
//! **Pins.** [`pin`](AddressSpace::pin) holds the table's lock, as a fork does while it copies the entry: either the fork
//! sees the pin and gives the child a copy, or the pin sees a page that is no longer exclusive and refuses. A pin of a
//! folio by itself ([`Folio::pin`]) does neither: it keeps the folio, not the mapping.
//!
//! What two operations on the same pages at once *mean* is left to the locks of address spaces above; whatever they do,
//! the tree stays consistent and all counts exact. The protocol is modelled with loom on the code itself
//! (`tests/loom`), contiguous blocks, TLBs that hold on to translations, and the reuse of tables included.
//!
//! # What safe code cannot do
//!
//! But for the case at the end of this section, no sequence of safe calls frees or reuses memory that is mapped, is a page
//! table, or is referred to.
//!
//! - A reference is a [`Folio`], given back by being dropped; whoever has none can look ([`FolioView`]), or get one
//!   ([`Folio::get`]), which fails if there is no live folio.
//! - [`map`](AddressSpace::map) takes references only of folios that are alive. Memory that has metadata is mapped without
//!   references only if it is [`Reserved`](isotherm_page::Reserved).
//! - What a gather collected goes back to its own machine, and so do a child's pages: operations refuse those of another.
//! - A table is a [`Unique<Table>`](isotherm_page::Table) until it is linked, and what is known of it is changed through the
//!   [guard](isotherm_page::TableGuard) of its lock.
//! - A [`Reader`] looks at the tables of the one space that it holds.
//! - Memory without metadata is mapped only if the machine says that it is a [device's](Memory::is_device).
//! - The host machine's memory is read and written by safe code only where a folio is, to which a reference is held for that
//!   time, or reserved memory: never in a table.
//! - Giving back a table or a block by its number is `unsafe`, with the duty to own it.
//!
//! ```compile_fail,E0599
//! # use isotherm_pagetable::*;
//! fn drop_anyones_reference<M: Machine>(machine: &M, frame: Frame) {
//!     FolioView::of(machine, frame).unwrap().put(machine);
//! }
//! ```
//!
//! ```compile_fail,E0133
//! # use isotherm_pagetable::*;
//! fn retire_any_frame<M: Machine>(machine: &M, frame: Frame) {
//!     machine.retire_table(frame); // unsafe: it must be a table that no tree refers to
//! }
//! ```
//!
//! ```compile_fail,E0133
//! # use isotherm_page::{Block, FolioKind, Order, OwnedBlock};
//! # use isotherm_pagetable::*;
//! fn prepare_any_frames<M: Machine>(machine: &M, frame: Frame) {
//!     let block = OwnedBlock::new(Block::new(frame, Order::BASE)); // unsafe: it must be the caller's
//!     let _ = unsafe { Folio::new(machine, block, FolioKind::Anon) };
//! }
//! ```
//!
//! ```compile_fail,E0505
//! # use isotherm_page::{Pages, Unique, Unused};
//! # use isotherm_pagetable::*;
//! fn use_after_free<P: Pages>(block: Unique<'_, P, Unused>) {
//!     let frame = &block;
//!     drop(block);
//!     println!("{}", frame.frame());
//! }
//! ```
//!
//! A read-side section of one machine cannot serve another's tables, since only a space starts one for its lookups:
//!
//! ```compile_fail,E0061
//! # use isotherm_pagetable::*;
//! fn look_under_another_machines_guard<M: Machine>(space: &AddressSpace<'_, X86_64, M>, other: &M) {
//!     let guard = other.read_lock();
//!     let _ = space.read().lookup(&guard, VirtAddr(0));
//! }
//! ```
//!
//! What types do not check is with the caller: a space whose root a CPU has loaded, which only `unsafe` code can do, is neither
//! ended nor the child of a fork, and the kernel's half in it is not dropped ([`AddressSpace::id`]).
//!
//! # Failing
//!
//! Operations on ranges return [`Stopped`] with the page they came to: all before it is done, nothing from it on is
//! changed, and what was done is counted. They fail for want of a frame, on an occupied or non-canonical range, never half-way through an entry.
//!
//! After memory corruption an entry may have a frame without metadata. Operations that change or remove it, those that look, and
//! a fork, treat it as a special mapping: it is not counted. Others need the folio and fail with [`Error::UnknownFrame`]: a
//! [write fault](AddressSpace::write_fault) on a read-only page, a [collapse](AddressSpace::collapse), a
//! [reference](AddressSpace::reference), a [pin](AddressSpace::pin); or, a [swap-out](AddressSpace::swap_out), with
//! [`Error::NotMapped`].
//! A frame that has metadata and is in no folio stops a fork too, with [`Error::NotAFolio`]: it may become a folio's, which would lack
//! the child's reference.
#![cfg_attr(not(any(test, feature = "host", loom)), no_std)]

mod address;
mod batch;
mod clean;
mod collapse;
mod cow;
mod entries;
mod error;
mod fold;
mod folio;
mod fork;
mod format;
mod gather;
#[cfg(feature = "host")]
pub mod host;
mod kernel;
mod lazy_free;
mod machine;
mod map;
mod mapper;
mod mmu;
mod protect;
mod query;
mod reader;
mod remap;
mod replace;
mod rss;
mod space;
mod split;
mod sync;
mod table;
mod tree;
mod walk;
mod young;
mod zap;

pub use isotherm_page::{Order, PageMeta, Pages, Pieces};

pub use address::{ENTRIES, Frame, Level, PAGE_SHIFT, PAGE_SIZE, PageRange, TABLE_BITS, VirtAddr};
pub use collapse::Collapsed;
pub use cow::{Resolved, WriteFault};
pub use error::{Error, Stopped};
pub use folio::{Folio, FolioKind, FolioView, MAX_ORDER, Pinned};
pub use fork::ForkRule;
pub use format::{
    ARM64_MAIR, Arm64, Arm64Haf, Arm64Hafdbs, Arm64Software, Attributes, Format, Granule, Granule4K,
    Granule4KLpa2, Granule16K, Granule16KLpa2, Granule64K, Granule64KLpa, Haf, Hafdbs, Half, HardwareBits,
    MemoryType, RiscV, RiscVBits, RiscVLevels, Software, Sv39, Sv48, Sv57, Svade, Svadu, SwapEntry, Ttbr,
    Ttbr0, Ttbr1, X86_64, X86_64_PAT, X86_64La57,
};
pub use gather::{Gather, Slot};
pub use kernel::KernelHalf;
pub use machine::{Event, Flush, Frames, Machine, Memory, Rcu, SpaceId, SwapCounts, Tlb};
pub use mapper::Mapper;
pub use mmu::{Access, Fault};
pub use protect::{Protection, Sharing};
pub use query::{MappedRun, Mapping};
pub use reader::Reader;
pub use replace::{Replacement, Seen};
pub use rss::RssStat;
pub use space::AddressSpace;
pub use split::{MappedIn, TableSlot, split_folio};
pub use table::{Entry, Table};

#[cfg(all(doctest, feature = "host"))]
#[doc = include_str!("../README.md")]
struct Readme;
