//! The statistics queue, on which the device asks and the driver answers: the driver makes a buffer available, the device
//! keeps it, and returns it when it wants a newer one (virtio 1.3, 5.5.6.3).

use virtio_drivers::Hal;
use virtio_drivers::transport::Transport;

use super::memory::FrameMemory;
use super::queue::Queue;
use super::{Balloon, Error, SMALL};
use crate::stats::ENTRY_SIZE;
use crate::{Features, Stats};

/// Where in the request page the statistics stand.
pub(super) const STATS_AT: usize = 1024;
/// A tag that no device knows and that all therefore ignore: a buffer must not be empty.
const UNKNOWN_TAG: [u8; 2] = [0xff; 2];

#[derive(Debug)]
pub(super) struct Statistics<H: Hal> {
    pub queue: Queue<H, SMALL>,
    /// Token and size in bytes of the buffer that the device has.
    with_device: Option<(u16, usize)>,
}

impl<H: Hal> Statistics<H> {
    pub fn new(queue: Queue<H, SMALL>) -> Self {
        Self { queue, with_device: None }
    }

    /// Whether the device returned the buffer (or never had it).
    fn returned(&self) -> Result<bool, Error> {
        let Some((token, _)) = self.with_device else { return Ok(true) };
        Ok(self.queue.returned(|returned| returned == token)?.is_some())
    }
}

impl<H: Hal, T: Transport, M: FrameMemory> Balloon<H, T, M> {
    /// Whether the host waits for statistics.
    pub(super) fn stats_due(&mut self) -> Result<bool, Error> {
        let due = self.statistics.as_ref().map_or(Ok(false), Statistics::returned);
        self.check(due)
    }

    /// Answers the host's request for statistics; `false` if it has not asked.
    ///
    /// The statistics must be of the same kinds every time, beginning with [`Options::stats`](super::Options::stats).
    ///
    /// # Errors
    /// [`Error::NotNegotiated`] without a statistics queue, and what makes the driver give the device up.
    pub fn send_stats(&mut self, stats: &Stats) -> Result<bool, Error> {
        self.alive()?;
        if self.statistics.is_none() {
            return Err(Error::NotNegotiated(Features::STATS_VQ));
        }
        if !self.stats_due()? {
            return Ok(false);
        }
        let taken = self.take_stats();
        self.check(taken)?;
        self.queue_stats(stats)?;
        Ok(true)
    }

    fn take_stats(&mut self) -> Result<(), Error> {
        let Some(statistics) = &mut self.statistics else { return Ok(()) };
        let Some((token, size)) = statistics.with_device.take() else { return Ok(()) };
        let buffer = self.requests.bytes().get(STATS_AT..STATS_AT + size).unwrap_or(&[]);
        // SAFETY: the buffer is where and as long as it was when the device got it.
        unsafe { statistics.queue.take(token, &[buffer], &mut []) }
    }

    pub(super) fn queue_stats(&mut self, stats: &Stats) -> Result<(), Error> {
        let legacy = self.is_legacy();
        let Some(statistics) = &mut self.statistics else { return Ok(()) };
        let page = self.requests.bytes_mut();
        let size = match stats.encode(&mut page[STATS_AT..STATS_AT + Stats::MAX_SIZE], legacy) {
            0 => {
                page[STATS_AT..STATS_AT + 2].copy_from_slice(&UNKNOWN_TAG);
                ENTRY_SIZE
            }
            size => size,
        };
        let buffer = &self.requests.bytes()[STATS_AT..STATS_AT + size];
        // SAFETY: the request page outlives the queue's use, and this part is not written while the device has it.
        let token = unsafe { statistics.queue.add(&[buffer], &mut []) }?;
        statistics.with_device = Some((token, size));
        statistics.queue.notify(&mut self.transport);
        Ok(())
    }
}
