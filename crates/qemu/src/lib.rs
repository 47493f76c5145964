//! The program of `guest/` under QEMU, seen and driven from outside.
//!
//! [`Machine`] says what to boot; [`Guest`] is one that runs: commands go to it over its serial line, the balloon's size
//! and statistics over QEMU's monitor, and what it takes from the host is read from `/proc`. A guest never outlives the
//! thread that booted it: dropping it kills QEMU, and so does the kernel when the thread ends in any other way.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

mod console;
mod error;
mod guest;
mod machine;
mod monitor;
mod resident;

pub use console::Reply;
pub use error::Error;
pub use guest::{Ended, Guest};
pub use machine::{Accel, Backing, DEFAULT_PROGRAM, DEFAULT_PROGRAM_ARM64, Kind, Machine};
pub use monitor::{GuestStats, Monitor};
pub use resident::Resident;
