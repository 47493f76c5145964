//! Address spaces for kernels, hypervisors and emulators: VMAs in a range tree under RCU, laid out by Linux' rules.
//!
//! | what | where |
//! |---|---|
//! | the address space and its operations | [`AddressSpace`] |
//! | what the caller brings | [`Platform`], [`MmapLock`], [`Contents`], [`Config`] |
//! | a mapping that is asked for | [`MapRequest`], [`Backing`] |
//! | a VMA as it was found | [`VmaInfo`] |
//! | a VMA that is locked for a fault | [`AddressSpace::lock_vma`], [`VmaRead`]; [`AddressSpace::lock_mmap`], [`MmapRead`] |
//! | private anonymous memory, and its faults | [`Paged`], [`AddressSpace::fault`] |
//!
//! # Lock order
//!
//! | | lock | held for |
//! |---|---|---|
//! | 1 | `mmap_lock` of a space, its parent's before its own | reading: by faults that find no VMA to lock, and looks; writing: by all that changes VMAs |
//! | 2 | the lock of a VMA, for writing | until `mmap_lock` is released; any number of VMAs, in any order |
//! | 2 | the lock of a VMA, for reading | one fault; one VMA, and **no** `mmap_lock` after it |
//! | 3 | what [`Contents`] locks: page tables | |
//! | 4 | what [`Platform::Alloc`] locks | |
//!
//! Readers of a VMA's lock never wait for it: who is refused takes `mmap_lock` instead, after what it had is given back. So a
//! writer that waits for readers of VMAs waits for faults that wait for 3 and 4 at most. A section of RCU is entered at any
//! place, and nothing is waited for in one. VMAs and nodes are freed by callbacks of RCU, which take 4 alone. The protocol of the
//! VMAs' locks is the essay at the top of `src/lock.rs`.
//!
//! Rules of locks are those of the series "Per-VMA locks" v2 (linux-mm, January 2023), called *the seed* here; rules of layout
//! are those of Linux 6.18, against which `tests/linux` compares.
#![cfg_attr(not(any(test, feature = "std", loom)), no_std)]

extern crate alloc;

mod anon;
mod config;
mod contents;
mod error;
mod fault;
mod flags;
mod fork;
mod lock;
mod lookup;
mod map;
mod merge;
mod mmap_lock;
mod paged;
mod place;
mod protect;
mod remap;
mod sharded;
mod space;
mod stack;
mod stats;
mod sync;
mod unmap;
mod usage;
mod vma;
mod writing;

pub use config::{Config, Limits};
pub use contents::{Contents, Held};
pub use error::Error;
pub use fault::FaultError;
pub use flags::{Advice, MapFlags, PAGE_SIZE, Prot, RemapFlags, VmFlags};
pub use lookup::{MmapRead, VmaRead};
pub use map::{Backing, MapRequest};
pub use mmap_lock::MmapLock;
pub use paged::{Access, MmuFault, Paged};
pub use space::{AddressSpace, Platform};
pub use stats::LockStats;
pub use usage::Usage;
pub use vma::{ObjectId, VmaInfo};

#[cfg(all(doctest, feature = "std"))]
#[doc = include_str!("../README.md")]
struct Readme;
