//! Experiments: how true a record is, and what it cost.
//!
//! [`accuracy`] compares the regions of a record with the truth that a workload told about itself, byte by byte.
//! [`overhead`] makes of paired runs, with and without the monitor, a slowdown with its spread. Both run the programs
//! that are measured (a [`Bench`]); what judges is apart from that and pure: it takes what was measured and gives back
//! figures, as a table for people and as a serialisable value. [`overcommit`] boots guests that report their free memory; [`frames`]
//! times the allocator those guests use. [`fork`] times page tables, in batches and beside Linux.
//! [`tree`] times the range tree beside others.
//! [`faults`] times page faults under per-VMA locks and without; [`sim`] runs patterns on a model machine, and models faults on more cores.
//! [`ablate`] simulates what the sampler's constants are for.
//! [`schemes`] tells what schemes save of a workload's memory, and what that costs it.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]

pub mod ablate;
pub mod accuracy;
mod bench;
mod cost;
mod experiment;
pub mod faults;
pub mod fork;
pub mod frames;
pub mod machine;
pub mod overcommit;
pub mod overhead;
mod process;
pub mod schemes;
pub mod sim;
mod statistics;
mod table;
pub mod tree;
mod zram;

pub use bench::Bench;
pub use experiment::{Bar, Figure, Interrupted, Watch};
pub use statistics::{Estimate, Quartiles};
