//! virtio-balloon for both sides.
#![no_std]

pub mod config;
pub mod driver;
mod features;
pub mod queues;
pub mod stats;

pub use driver::{Balloon, DirectMap, Error, Events, FrameMemory, FrameSource, HintRound, Options, Step};
pub use features::Features;
pub use queues::{Numbering, Role};
pub use stats::{Stat, Stats};
