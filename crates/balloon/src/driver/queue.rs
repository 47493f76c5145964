//! A virtqueue of `virtio-drivers`, used so that a device that answers wrongly cannot hurt.
//!
//! The queue of that crate panics, or frees the wrong descriptors, when it is asked to take back a buffer that is not the
//! one the device returned. So a token is checked against those handed out before the queue hears of it. Its notification
//! suppression by index is wrong once the index wraps, so [`RING_EVENT_IDX`](crate::Features::RING_EVENT_IDX) is never
//! accepted, and a barrier that it lacks between publishing a buffer and looking whether the device wants a notification
//! is placed here: without it, driver and device can both miss the other's last word, and the buffer waits for ever.

use core::sync::atomic::{Ordering, fence};

use virtio_drivers::Hal;
use virtio_drivers::queue::VirtQueue;
use virtio_drivers::transport::Transport;

use super::Error;
use crate::Role;

#[derive(Debug)]
pub(super) struct Queue<H: Hal, const SIZE: usize> {
    queue: VirtQueue<H, SIZE>,
    role: Role,
    index: u16,
}

impl<H: Hal, const SIZE: usize> Queue<H, SIZE> {
    pub fn new<T: Transport>(transport: &mut T, role: Role, index: u16) -> Result<Self, Error> {
        let size = transport.max_queue_size(index);
        if size < SIZE as u32 {
            return Err(Error::QueueTooSmall { role, size, needed: SIZE });
        }
        let mut queue = VirtQueue::new(transport, index, false, false).map_err(|source| match source {
            virtio_drivers::Error::DmaError => Error::NoDmaMemory("queues"),
            source => Error::Queue { role, source },
        })?;
        queue.set_dev_notify(false);
        Ok(Self { queue, role, index })
    }

    /// Makes a buffer available without telling the device; returns the token by which it comes back.
    ///
    /// # Safety
    /// The parts must stay valid, and those in `outputs` untouched, until [`take`](Self::take) gave them back or the device
    /// was reset.
    pub unsafe fn add<'a>(
        &mut self,
        inputs: &'a [&'a [u8]],
        outputs: &'a mut [&'a mut [u8]],
    ) -> Result<u16, Error> {
        // SAFETY: the caller keeps the parts alive.
        unsafe { self.queue.add(inputs, outputs) }.map_err(|source| Error::Queue { role: self.role, source })
    }

    /// Notifies the device that there are buffers, if it wants to be.
    pub fn notify(&mut self, transport: &mut impl Transport) {
        // The index of the new buffer must be visible before the device's wish is read.
        fence(Ordering::SeqCst);
        if self.queue.should_notify() {
            transport.notify(self.index);
        }
    }

    /// The token of the buffer that the device returned, if there is one and `expected` knows it.
    pub fn returned(&self, expected: impl FnOnce(u16) -> bool) -> Result<Option<u16>, Error> {
        match self.queue.peek_used() {
            Some(token) if !expected(token) => Err(Error::Misbehaved(self.role)),
            token => Ok(token),
        }
    }

    /// Takes a returned buffer back. Its length is ignored: no queue of the balloon says anything by it, and old devices
    /// put something there.
    ///
    /// # Safety
    /// `token` must be what [`add`](Self::add) returned for these very parts, and not have been taken back before.
    pub unsafe fn take<'a>(
        &mut self,
        token: u16,
        inputs: &'a [&'a [u8]],
        outputs: &'a mut [&'a mut [u8]],
    ) -> Result<(), Error> {
        // SAFETY: the caller gives the parts that belong to the token.
        match unsafe { self.queue.pop_used(token, inputs, outputs) } {
            Ok(_) => Ok(()),
            // Between the look at the token and now, the device changed its mind.
            Err(_) => Err(Error::Misbehaved(self.role)),
        }
    }

    pub fn set_interrupts(&mut self, enabled: bool) {
        self.queue.set_dev_notify(enabled);
    }

    pub fn role(&self) -> Role {
        self.role
    }
}
