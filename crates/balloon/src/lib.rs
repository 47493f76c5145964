//! virtio-balloon (virtio 1.3, section 5.5) for both sides: a driver for guests and a device model for VMMs.
//!
//! | module | feature | for |
//! |---|---|---|
//! | [`driver`] | always, `no_std` | kernels and bare-metal programs |
#![cfg_attr(feature = "device", doc = "| [`device`] | `device` | VMMs |")]
#![cfg_attr(not(feature = "device"), doc = "| `device` | `device` | VMMs |")]
#![cfg_attr(feature = "loopback", doc = "| [`loopback`] | `loopback` | tests of either |")]
#![cfg_attr(not(feature = "loopback"), doc = "| `loopback` | `loopback` | tests of either |")]
//! | [`config`], [`queues`], [`stats`], [`Features`] | always | what goes between the two |
//!
//! # In a kernel
//! A transport and a [`Hal`](virtio_drivers::Hal) as for any driver of `virtio-drivers`, a map of where frames are
//! mapped, and a place in the main loop:
//!
//! ```
//! use isotherm_balloon::{Balloon, DirectMap, Error, Features, Options, Stat, Stats, ZoneSource};
//! use isotherm_frames::Zone;
//! use virtio_drivers::{Hal, transport::Transport};
//!
//! fn start<H: Hal, T: Transport>(transport: T, zone: &Zone) -> Result<Balloon<H, T, DirectMap>, Error> {
//!     // The first 4 GiB are mapped one to one.
//!     // SAFETY: so the boot code did, and `H::share` returns addresses unchanged.
//!     let map = unsafe { DirectMap::new(0, 1 << 20) };
//!     let options = Options { stats: statistics(zone), ..Options::default() };
//!     // SAFETY: the driver gets free blocks of the zone only.
//!     unsafe { Balloon::new(transport, map, options) }
//! }
//!
//! fn statistics(zone: &Zone) -> Stats {
//!     Stats::new().with(Stat::FreeMemory, zone.free_frames() * 4096).with(Stat::TotalMemory, zone.frames() * 4096)
//! }
//!
//! /// Now and then, or after the device's interrupt.
//! fn tend<H: Hal, T: Transport>(balloon: &mut Balloon<H, T, DirectMap>, zone: &Zone, now: u64) -> Result<(), Error> {
//!     let events = balloon.poll()?;
//!     if events.resize {
//!         balloon.step(&mut ZoneSource::new(zone, 0))?;
//!     }
//!     if events.stats {
//!         balloon.send_stats(&statistics(zone))?;
//!     }
//!     if events.hint && let Some(mut round) = balloon.hint()? {
//!         zone.sweep();
//!         while matches!(zone.report(now, &mut round), Ok(isotherm_frames::Progress::Reported(_))) {}
//!         round.finish()?;
//!     }
//!     if balloon.can_report() {
//!         zone.report(now, balloon)?;
//!     }
//!     Ok(())
//! }
//!
//! /// When an allocation has failed, before saying so.
//! fn out_of_memory<H: Hal, T: Transport>(balloon: &mut Balloon<H, T, DirectMap>, zone: &Zone) -> Result<u32, Error> {
//!     if !balloon.features().contains(Features::DEFLATE_ON_OOM) {
//!         return Ok(0);
//!     }
//!     balloon.deflate_on_oom(256, &mut ZoneSource::new(zone, 0))
//! }
//! ```
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
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
