//! DAMON on live Linux processes.
#![cfg_attr(doctest, doc = include_str!("../README.md"))]
#![cfg_attr(doctest, doc = include_str!("../../../README.md"))]
pub mod actions;
pub mod backend;
mod clock;
mod frames;
mod governor;
mod idle;
mod kernel;
pub mod maps;
mod monitor_source;
mod pagemap;
pub mod probe;
mod proc_file;
pub mod process;
pub mod pte;
mod refs;
pub mod schemes;
mod session;
mod source;
pub mod targets;
pub use source::{Counters, ListedProcess, Source, SourceError};

pub use clock::of_this_thread as thread_cpu;
pub use idle::{Idle, IdlePaths};
pub use kernel::{Kernel, KernelPaths, look_at_kernel};
pub use monitor_source::{LiveOperations, MonitorSource};
pub use refs::Refs;
pub use session::{
    Cost, Ended, Feed, FeedLimits, Observer, Refusals, Session, SessionEvent, SessionOptions, monotonic_ns,
    process_cpu,
};
