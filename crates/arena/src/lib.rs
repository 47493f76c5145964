//! A process's own memory as frames that go back to the system when they are free.
//!
//! An [`Arena`] is a mapping of its own, cut into blocks of 4 KiB to 4 MiB by the allocator of `isotherm-frames`. Blocks are
//! aligned to their size, so those of 2 MiB can be huge pages. What has been free for a while is reported to the system in
//! blocks of 2 MiB, as a guest reports its free memory to its host: by [`Arena::poll`], whenever the program likes, or by
//! a [`Reporter`], a thread that does nothing else.
//!
//! How memory goes back is a choice ([`GiveBack`]); `isotherm lab frames` measures what each costs, and what it costs to
//! take the memory again.
//!
//! ```
//! use isotherm_arena::{Arena, GiveBack, Order, Settings};
//! use std::time::Duration;
//!
//! let settings = Settings { delay: Duration::ZERO, ..Settings::new(64 << 20, GiveBack::DontNeed) };
//! let arena = Arena::new(&settings)?;
//! let mut blocks = Vec::new();
//! for _ in 0..30 {
//!     let mut block = arena.allocate(Order::HUGE)?;
//!     block.fill(1);
//!     blocks.push(block);
//! }
//! assert!(arena.resident()? >= 60 << 20);
//!
//! drop(blocks);
//! arena.return_all()?;
//! assert_eq!(arena.resident()?, 0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod arena;
mod mapping;
mod reporter;

pub use arena::{Allocation, Arena, ArenaError, Poll, Settings};
pub use isotherm_frames::{GetError, Order, Stats};
pub use mapping::GiveBack;
pub use reporter::Reporter;
