//! Page frames: a buddy allocator with per-CPU caches that reports its free memory to the host.
#![no_std]

mod frame;
mod sink;

pub use frame::{Block, FRAME_SHIFT, FRAME_SIZE, Frame, FrameRange, MAX_FRAME, Order};
pub use sink::{MAX_BATCH, ReportSink};
