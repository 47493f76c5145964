//! DAMON on live Linux processes.
mod cpu_time;
mod governor;
pub mod maps;
mod monitor_source;
mod proc_file;
pub mod process;
pub mod pte;
mod refs;
mod session;
mod source;
pub mod targets;
pub use source::{Counters, Source, SourceError};

pub use refs::Refs;
pub use monitor_source::{LiveOperations, MonitorSource};
pub use session::{Cost, Ended, Observer, Session, SessionOptions, monotonic_ns};
