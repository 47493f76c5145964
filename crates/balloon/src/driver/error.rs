//! What can go wrong on the guest's side.

use isotherm_frames::Block;
use thiserror::Error;
use virtio_drivers::transport::DeviceType;

use crate::{Features, Role};

/// An error of the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[non_exhaustive]
pub enum Error {
    /// The transport leads to another kind of device.
    #[error("the device is a {0:?}, not a memory balloon: give the driver the transport of device type 5")]
    WrongDevice(DeviceType),
    /// The device did not accept a subset of the features that it had offered.
    #[error("the device refused the features {0:?}, all of which it had offered: it cannot be driven")]
    FeaturesRefused(Features),
    /// A queue of a negotiated feature does not exist, whichever way queues are numbered.
    #[error("the device has no queues for {0:?}: leave features out of `Options::wanted`")]
    MissingQueue(Features),
    /// A queue is smaller than what the driver puts into it at a time.
    #[error(
        "the {role:?} queue has room for {size} descriptors, {needed} are needed: raise the queue size of the device"
    )]
    QueueTooSmall {
        /// The queue.
        role: Role,
        /// How many descriptors the device allows.
        size: u32,
        /// How many the driver needs.
        needed: usize,
    },
    /// The request needs a feature that was not agreed upon.
    #[error("{0:?} was not negotiated: the device does not offer it, or `Options` left it out")]
    NotNegotiated(Features),
    /// The page for requests, or the memory of a queue, could not be allocated.
    #[error("no DMA memory for the {0}: `Hal::dma_alloc` failed")]
    NoDmaMemory(&'static str),
    /// The configuration space could not be read or written.
    #[error("configuration space of the device at offset {offset}: {source}")]
    Config {
        /// Offset in bytes of the field.
        offset: usize,
        /// What the transport said.
        source: virtio_drivers::Error,
    },
    /// A report is already with the device.
    #[error("a report is still with the device: poll it first")]
    Busy,
    /// There is no report to wait for.
    #[error("no report is with the device: submit one first")]
    Idle,
    /// A batch must have between one and [`MAX_BATCH`](isotherm_frames::MAX_BATCH) blocks.
    #[error("a batch of {0} blocks; 1 to 16 go at a time")]
    BatchSize(usize),
    /// The block does not lie in memory that the driver can address.
    #[error("{0} is not mapped (`FrameMemory::frame_ptr`) or not aligned to its size: it was not passed on")]
    Unmapped(Block),
    /// The device withdrew its request for hints, or replaced it by another.
    #[error("the device wants no more hints of this round")]
    HintingStopped,
    /// The queue's own bookkeeping refused a buffer.
    #[error("the {role:?} queue did not take a buffer: {source}")]
    Queue {
        /// The queue.
        role: Role,
        /// What the queue said.
        source: virtio_drivers::Error,
    },
    /// The device returned a buffer that it did not have. It has been reset and is used no more.
    #[error("the device returned a buffer on the {0:?} queue that it did not have; it has been reset")]
    Misbehaved(Role),
    /// The device does not acknowledge its reset. It is used no more, but what it was given it may still use: blocks that were with
    /// it are nobody's, until [`Balloon::shutdown`](super::Balloon::shutdown) finds it reset after all.
    #[error("the device does not acknowledge its reset")]
    NotReset,
    /// The device did not answer within the patience of `Options::relax`. It has been reset and is used no more.
    #[error("the device did not answer on the {0:?} queue; it has been reset")]
    Unresponsive(Role),
}

impl Error {
    /// Whether the device was given up: it has been reset, holds nothing of the guest any more (unless it is
    /// [`NotReset`](Self::NotReset)), and all that is left is [`Balloon::shutdown`](super::Balloon::shutdown).
    pub const fn is_fatal(&self) -> bool {
        matches!(self, Self::Misbehaved(_) | Self::Unresponsive(_) | Self::NotReset)
    }
}
