//! Page tables.
#![cfg_attr(not(any(test, feature = "host", loom)), no_std)]

mod address;
mod batch;
mod collapse;
mod cow;
mod entries;
mod error;
mod folio;
mod fork;
mod format;
mod gather;
#[cfg(feature = "host")]
pub mod host;
mod machine;
mod map;
mod mmu;
mod protect;
mod query;
mod remap;
mod space;
mod sync;
mod table;
mod young;
mod zap;

pub use address::{ENTRIES, Frame, Level, PAGE_SHIFT, PAGE_SIZE, PageRange, TABLE_BITS, VirtAddr};
pub use batch::{Batched, Batching, PerPage};
pub use collapse::Collapsed;
pub use cow::{Resolved, WriteFault};
pub use error::{Error, Stopped};
pub use folio::{Folio, FolioKind, FrameMeta, MAX_ORDER};
pub use fork::ForkRule;
pub use format::{
    Arm64, Arm64Haf, Arm64Hafdbs, Arm64Software, Attributes, Format, MemoryType, TOKEN_BITS, X86_64,
    X86_64La57, decode_token, encode_token,
};
pub use gather::{Gather, Slot};
pub use machine::{Event, Frames, Machine, Memory, Observe, Rcu, SpaceId, Tlb};
pub use mmu::{Access, Fault};
pub use protect::{Protection, Sharing};
pub use query::{MappedRun, Mapping};
pub use space::AddressSpace;
pub use table::{Entry, Table};
