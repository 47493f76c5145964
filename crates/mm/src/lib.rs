//! Address spaces for kernels, hypervisors and emulators: VMAs in a range tree under RCU, laid out by Linux' rules.
//!
//! | what | where |
//! |---|---|
//! | the address space and its operations | [`AddressSpace`] |
//! | what the caller brings | [`Platform`], [`MmapLock`], [`Contents`], [`Config`] |
//! | a mapping that is asked for | [`MapRequest`], [`Source`] |
//! | a VMA as it was found | [`VmaInfo`] |
//! | a VMA that is locked for a fault | [`AddressSpace::lock_vma`], [`VmaRead`]; [`AddressSpace::lock_mmap`], [`MmapRead`] |
//! | memory behind the VMAs, and faults | [`Paged`], [`AddressSpace::fault`] |
//! | a program's reads, writes and atomics, for emulators | [`Port`], [`SoftTlbs`] |
//! | faults that a VMM resolves: post-copy, snapshots | [`UserFaults`] |
//! | files and shared memory: pages, dirty, write-back, reverse map | [`Object`], [`Backing`], [`Objects`]; [`AddressSpace::msync`] |
//! | all spaces of a machine: reverse maps of anonymous memory, swap, reclaim | [`System`], [`Paged::in_system`]; [`Swap`], [`SwapArea`]; [`AddressSpace::page_out`], [`AddressSpace::lazy_free`] |
//! | DAMON (feature `damon`) | `damon` |
//!
//! # Lock order
//!
//! | | lock | held for |
//! |---|---|---|
//! | 1 | `mmap_lock` of a space, its parent's before its own | reading: by faults that find no VMA to lock, and looks; writing: by all that changes VMAs |
//! | 2 | the lock of a VMA, for writing | until `mmap_lock` is released; any number of VMAs, in any order |
//! | 2 | the lock of a VMA, for reading | one fault; one VMA, and **no** `mmap_lock` after it |
//! | 3 | the lock of an [`Object`], for reading | by faults on its pages, and by what takes pages out of a space |
//! | 3 | the same for writing | by what changes the cache or where it is mapped; **no** lock of a space after it |
//! | 4 | page tables | |
//! | 5 | lists of a [`System`], of a space's moved pages, and of a [`SwapArea`], which spin | a few instructions; none after another |
//! | 6 | what [`Platform::Alloc`] locks | |
//!
//! Readers of a VMA's lock never wait for it: who is refused takes `mmap_lock` instead, after what it had is given back. So a
//! writer that waits for readers of VMAs waits for faults that wait for 3 to 6 at most. A section of RCU is entered at any
//! place, and nothing is waited for in one. VMAs and nodes are freed by callbacks of RCU, which take 6 alone. Pages are
//! brought in and written back without any lock, also by swap, but where advice pages out, which holds `mmap_lock` for reading.
//! Reclaim takes no locks of spaces: it walks page tables, and waits for a fork or a move by giving up ([`Kept::Busy`]). The protocol of the
//! VMAs' locks is the essay at the top of `src/lock.rs`.
//!
//! Some waits with `mmap_lock` held, for writing, are for no lock of the list:
//!
//! - who locks pages waits for who moves them to other frames, splits their folio, or takes them away to swap at that moment; who
//!   unlocks pages, by `munmap` too, for the first two;
//! - a space that has locked memory for the first time waits for all who unlock pages at that moment, and so do `mmap` and `mremap` of
//!   an object in a space that has some.
//!
//! Those that are waited for wait for 3 to 6 at most, and for forks and moves of other spaces. If several take pages away at once, one of
//! them may be waited for while it writes pages to swap, or pages of files back.
//!
//! Rules of locks are those of the series "Per-VMA locks" v2 (linux-mm, January 2023), called *the seed* here; rules of layout
//! are those of Linux 6.18, against which `tests/linux` compares.
#![cfg_attr(not(any(test, feature = "std", loom)), no_std)]

extern crate alloc;

mod advise;
mod anon;
mod biased;
mod config;
mod contents;
#[cfg(feature = "damon")]
pub mod damon;
mod error;
mod fault;
mod flags;
mod fork;
mod lock;
mod lookup;
mod map;
mod merge;
mod mmap_lock;
mod msync;
mod object;
mod paged;
mod place;
mod pool;
mod port;
mod protect;
mod remap;
mod sharded;
mod shared;
mod space;
mod spin;
mod stack;
mod stats;
mod swap;
mod sync;
mod system;
mod unmap;
mod usage;
mod userfault;
mod vma;
mod writing;

pub use biased::SLOTS;
pub use config::{Config, Limits, VmaLocking};
pub use contents::{Contents, Held, HeldForRead};
pub use error::Error;
pub use fault::FaultError;
pub use flags::{Advice, MapFlags, MsyncFlags, PAGE_SIZE, Prot, RemapFlags, VmFlags};
pub use lookup::{MmapRead, VmaRead};
pub use map::{MapRequest, Source};
pub use mmap_lock::MmapLock;
pub use object::{Backing, BackingError, Never, Object, ObjectKind, Objects, PageInError, Shmem};
pub use paged::{Access, Folios, MmuFault, Paged, Rss};
pub use port::{AtomicError, Port, PortError, PortStats, Ram, SoftTlbs, Width};
pub use sharded::SHARDS;
pub use space::{AddressSpace, Platform};
pub use stats::LockStats;
pub use swap::*;
pub use system::{Kept, MappedAt, Nodes, Reclaimed, System, SystemStats, Watermarks};
pub use usage::Usage;
pub use userfault::UserFaults;
pub use vma::{ObjectId, VmaInfo};

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
