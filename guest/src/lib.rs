//! What of the guest needs no hardware, so that the host's tests can run it: the map of RAM, the language of commands,
//! the stamps by which lost pages are found, the heap of small objects.
//!
//! The program itself is `main.rs`; see the README for how it is booted.
#![cfg_attr(not(test), no_std)]

pub mod command;
pub mod job;
pub mod ram;
pub mod slab;
pub mod stamp;
