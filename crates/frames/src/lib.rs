//! Page frames: a buddy allocator with per-CPU caches that reports its free memory to the host.
//!
//! For kernels, hypervisors, emulators, and as an arena in a process (`isotherm-arena`). A [`Zone`] hands out frames by
//! number and never touches the memory they stand for; all it keeps lies in memory the caller gives, of
//! [`metadata_size`] bytes. There is no allocation, no global state, no thread and no clock inside.
//!
//! ```
//! use isotherm_frames::*;
//! use std::mem::MaybeUninit;
//!
//! // 64 MiB of memory, of which the first 640 KiB lie apart, and two CPUs.
//! const RAM: [FrameRange; 2] = [FrameRange::of_bytes(0, 0xa_0000), FrameRange::of_bytes(0x10_0000, 63 << 20)];
//! const CONFIG: Config = Config::new(2);
//! let mut metadata = [MaybeUninit::uninit(); metadata_size(&RAM, &CONFIG)];
//! // SAFETY: nobody else hands these frames out.
//! let zone = unsafe { Zone::new(&CONFIG, &RAM, &mut metadata) }?;
//!
//! let cpu = 0;
//! let page = zone.get(cpu, Order::BASE, Mobility::Movable)?;
//! let huge = zone.get(cpu, Order::HUGE, Mobility::Movable)?;
//! assert_eq!(huge.address() % (2 << 20), 0);
//! zone.put(cpu, huge)?;
//! zone.put(cpu, page)?; // consumed: it cannot be freed twice
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # How it is built
//!
//! **Nothing is merged, and nothing is split.** The free frames of a pageblock (2 MiB) are a bitfield of one cache line; a
//! free block of order k is an aligned run of 2^k ones in it. Freeing sets bits, and the buddies have merged; allocating
//! clears them. Pageblocks are listed by the order of their longest free run and by mobility, so an allocation takes the
//! fullest pageblock that can serve it, and in that the shortest run that will do: long runs stay long. Two wholly free
//! pageblocks that are buddies are a block of order 10.
//!
//! **A cache in front, a lock behind.** Each CPU has a cache of blocks of the orders 0 to 9, which it locks by one
//! uncontended compare-exchange; it is filled and emptied many blocks at a time, of single frames 512, under the zone's
//! lock, which takes whole words of the bitfields. Whole pageblocks stay with the CPU, as blocks of order 9, until it needs them
//! again or they lie idle. The rival was the lock-free bitfield allocator without caches (LLFree). On the reference machine (2 CPUs, AMD
//! Zen 4), in millions of pairs of get and put a second, one thread and two, by `isotherm lab frames`:
//!
//! | | order 0 again and again | order 0, 32768 at a time | order 9 again and again |
//! |---|---|---|---|
//! | this | 109, 210 | 78, 124 | 111, 236 |
//! | `buddy_system_allocator` 0.13 | 1.6, 1.9 | 17, 4.3 | 2.5, 2.5 |
//! | LLFree, by its own benchmark on the same machine | 19, 37 | 17, 36 | 26, 53 |
//!
//! A lock that is taken once for many blocks and held for some hundred nanoseconds does not stand in two CPUs' way, and what
//! it guards can be plain data: one `&mut` for whoever holds it, safe code throughout.
//!
//! **A block belongs to whoever has it.** [`Zone::get`] returns an [`OwnedBlock`], which cannot be copied and which
//! [`Zone::put`] consumes. Who has to keep bare numbers instead, in a ledger or in a table entry, makes the value again by
//! an `unsafe` function whose duty it is that the number is right.
//!
//! ```compile_fail,E0382
//! # use isotherm_frames::{Mobility, Order, Zone};
//! fn freed_twice(zone: &Zone) {
//!     let page = zone.get(0, Order::BASE, Mobility::Movable).unwrap();
//!     zone.put(0, page).unwrap();
//!     zone.put(0, page).unwrap(); // moved already
//! }
//! ```
//!
//! ```compile_fail,E0308
//! # use isotherm_frames::{Block, Frame, Order, Zone};
//! fn free_anyones(zone: &Zone) {
//!     zone.put(0, Block::new(Frame(7), Order::BASE)).unwrap(); // a number is no ownership
//! }
//! ```
//!
//! **What is allocated is known.** Two bytes of each frame, its tag, say whether an allocated block begins there, and of
//! what order. They turn what `unsafe` code got wrong, double frees and wrong orders, into errors in every build. The tags
//! are the allocator's column of the caller's [`PageArray`] ([`Zone::with_pages`]), or of the zone's own metadata where
//! no page array is needed ([`Zone::new`]).
//!
//! # The protocol between CPUs
//!
//! There are two kinds of locks, and one order: **a cache, then the zone**. Nobody locks a cache while holding another
//! cache or the zone. That is all there is to know to see that nobody waits in a circle.
//!
//! - *The fast path only tries its cache.* If another CPU is in it (it shares the index, or drains), the allocation goes to
//!   the zone instead. A wrong CPU index is therefore slow but never wrong.
//! - *A tag names the lock under which it is cleared*, its home: that of the cache the block came from, or the zone's.
//!   It is written by the block's new owner, whom nobody else knows yet, and cleared under that lock if it is still what it
//!   was before the lock was taken. So of two CPUs that free one block at the same time one finds it freed already, and
//!   as a block mostly comes back to the cache it came from, whose lock is taken anyway, that costs nothing. A block that
//!   another CPU frees takes that cache's lock once more, for a few instructions.
//! - *An allocation fails only when the caches cannot help.* One that finds nothing adds up what is free. It goes round the caches
//!   twice, locking each for a moment, and looks into the zone in between: at that moment no more was in a cache than there was at the
//!   first visit, and what had been put in until the second. If all that is too little, it fails, and the caches are as they were.
//! - *Or when all of them are empty.* Else it raises the zone's `pressure`, then locks
//!   and empties every cache in turn that may hold something, then looks into the zone once more. Whoever locks a cache after
//!   it was emptied sees the pressure, since the lock orders the two, and puts nothing into the cache. A cache that looks empty
//!   is left alone: whoever puts the first block into one says so before it looks at the pressure, with a fence in between on
//!   either side, so one of the two sees the other. So at the last look all free memory is in the zone, whatever others have
//!   freed and allocated meanwhile; and the next allocation that fails locks no cache.
//! - *Being reported is a way of being allocated.* A batch's blocks are taken off the bitfields like any others, at most
//!   [`MAX_BATCH`] at a time, and put back when the host has acknowledged. An allocation that finds nothing while blocks
//!   are away fails with [`GetError::Reporting`], not with `OutOfMemory`.
//!
//! The unsafe code is the lock's (`lock.rs`, `sync.rs`), and the making of [`OwnedBlock`]s of what was taken off the
//! bitfields. `tests/loom.rs` runs each of these
//! rules through all interleavings with up to four preemptions; breaking one makes its model fail.
//!
//! # Reporting
//!
//! A block of the reporting order (9, as the host's huge pages) waits to be reported from when the last of its frames comes
//! free until it is reported or one of them is allocated: one bit, in a bitmap beside the bitfields, set and cleared where
//! those change. A free block without the bit is one the host knows of, so nothing need be remembered through
//! merging and splitting. What went through a CPU's cache counts as having been allocated.
//!
//! The caller drives it, from a thread or a timer, [woken](Config::wake) when enough waits or by a poll: [`Zone::report`] with a
//! [`ReportSink`] that waits for the host, [`Zone::take_batch`] for hosts that answer later. It is turned on and off while the
//! zone is in use by [`Zone::set_reporting`]. The scheme is Linux kernel mailing list's "mm: Support for page
//! hinting" (v10, 2019; merged, changed, as free page reporting in 5.7): bitmap a zone, threshold, batches of 16.
//!
//! | rule | file |
//! |---|---|
//! | allocating, the caches, the pressure | `zone.rs` |
//! | freeing | `zone/free.rs` |
//! | many frames at a time | `bulk.rs` |
//! | pageblocks, mobility, what `settle` keeps true | `buddy.rs`, `lists.rs` |
//! | runs of ones | `bits.rs` |
//! | the reporting bitmap | `waiting.rs` |
//! | when a report is due | `schedule.rs` |
//! | batches, sweeps | `reporting.rs` |
//! | several zones, the nearest first | `zones.rs` |
//! | memory that goes and comes | `hotplug.rs` |
//! | ranges with holes | `isotherm_page::spans` |
//! | what is known of an allocated block | `tag.rs` |
//! | statistics | `stats.rs` |
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod bits;
mod buddy;
mod bulk;
mod cache;
mod config;
mod error;
mod hotplug;
mod lists;
mod lock;
mod metadata;
mod mobility;
mod padded;
mod reporting;
mod schedule;
mod sink;
mod stats;
mod sync;
mod tag;
mod waiting;
mod zone;
mod zones;

pub use config::{Config, Level, ReportingConfig, Wake, Watermarks};
pub use error::{GetAtError, GetError, PutBulkError, PutError, ZoneError};
pub use hotplug::{HotplugError, Isolation};
pub use isotherm_page::{
    Block, FRAME_SHIFT, FRAME_SIZE, Frame, FrameRange, MAX_FRAME, Order, OwnedBlock, PageArray,
};
pub use metadata::{metadata_size, zone_size};
pub use mobility::Mobility;
pub use reporting::{Batch, Progress, Report};
pub use sink::{MAX_BATCH, ReportSink};
pub use stats::Stats;
pub use zone::{Parts, Zone};
pub use zones::{NodeZone, Zones};
