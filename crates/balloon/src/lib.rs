//! virtio-balloon for both sides.
#![cfg_attr(not(feature = "device"), no_std)]

pub mod config;
#[cfg(feature = "device")]
pub mod device;
pub mod driver;
mod features;
#[cfg(feature = "loopback")]
pub mod loopback;
pub mod queues;
pub mod stats;

pub use driver::{
    Balloon, DirectMap, Error, Events, FrameMemory, FrameSource, HintRound, Options, Step, ZoneSource,
};
pub use features::Features;
pub use queues::{Numbering, Role};
pub use stats::{Stat, Stats};
