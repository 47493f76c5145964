//! Page frames: a buddy allocator with per-CPU caches that reports its free memory to the host.
#![no_std]

#[cfg(any(test, loom))]
extern crate std;

mod bits;
mod buddy;
mod cache;
mod config;
mod error;
mod frame;
mod lists;
mod lock;
mod metadata;
mod mobility;
mod padded;
mod reporting;
mod schedule;
mod sink;
mod spans;
mod stats;
mod sync;
mod tag;
mod waiting;
mod zone;

pub use config::{Config, Level, ReportingConfig, Watermarks};
pub use error::{GetAtError, GetError, PutBulkError, PutError, ZoneError};
pub use frame::{Block, FRAME_SHIFT, FRAME_SIZE, Frame, FrameRange, MAX_FRAME, Order};
pub use metadata::metadata_size;
pub use mobility::Mobility;
pub use reporting::{Batch, Progress, Report};
pub use sink::{MAX_BATCH, ReportSink};
pub use stats::Stats;
pub use zone::Zone;
