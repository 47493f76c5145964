//! Free page reporting: blocks that hold nothing are shown to the device, which may take their memory, and come back.

use core::ptr::NonNull;

use isotherm_frames::{Block, MAX_BATCH, ReportSink};
use virtio_drivers::Hal;
use virtio_drivers::transport::Transport;

use super::memory::FrameMemory;
use super::{Balloon, Error, wait};
use crate::{Features, Role};

/// Blocks that are with the device.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    token: u16,
    parts: Parts,
}

/// The blocks of a batch, by where they are mapped.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parts {
    parts: [NonNull<[u8]>; MAX_BATCH],
    len: usize,
}

// SAFETY: these are addresses of memory that belongs to the driver, whichever thread it is on.
unsafe impl Send for Parts {}
// SAFETY: as above; a shared reference cannot reach the memory.
unsafe impl Sync for Parts {}

impl Parts {
    pub fn new<M: FrameMemory>(memory: &M, blocks: &[Block]) -> Result<Self, Error> {
        if blocks.is_empty() || blocks.len() > MAX_BATCH {
            return Err(Error::BatchSize(blocks.len()));
        }
        let mut parts = [NonNull::slice_from_raw_parts(NonNull::dangling(), 0); MAX_BATCH];
        for (part, &block) in parts.iter_mut().zip(blocks) {
            let start =
                memory.block_ptr(block).filter(|_| block.is_aligned()).ok_or(Error::Unmapped(block))?;
            *part = NonNull::slice_from_raw_parts(start, block.bytes() as usize);
        }
        Ok(Self { parts, len: blocks.len() })
    }

    /// Calls `f` with the parts as the queue wants them.
    ///
    /// # Safety
    /// The blocks must be the driver's, and no other reference to them may exist.
    pub unsafe fn with<R>(&self, f: impl for<'a> FnOnce(&'a mut [&'a mut [u8]]) -> R) -> R {
        // SAFETY: the caller has the blocks to itself; they are mapped whole (`FrameMemory`). Empty parts point nowhere,
        // which is allowed for no bytes.
        let mut slices = self.parts.map(|mut part| unsafe { part.as_mut() });
        f(&mut slices[..self.len])
    }

    /// The parts one by one.
    pub fn singles(&self) -> impl Iterator<Item = Self> + '_ {
        self.parts[..self.len].iter().map(|&part| Self { parts: [part; MAX_BATCH], len: 1 })
    }

    /// Calls `f` with the first part.
    ///
    /// # Safety
    /// As for [`with`](Self::with).
    pub unsafe fn with_first<R>(&self, f: impl for<'a> FnOnce(&'a mut [&'a mut [u8]]) -> R) -> R {
        let mut first = self.parts[0];
        // SAFETY: as in `with`.
        f(&mut [unsafe { first.as_mut() }])
    }
}

impl<H: Hal, T: Transport, M: FrameMemory> Balloon<H, T, M> {
    /// Shows the device 1 to 16 free blocks, without waiting. Until [`poll_report`](Self::poll_report) says that they are
    /// back, nobody may use them.
    ///
    /// # Errors
    /// The blocks were not passed on: reporting was [not negotiated](Error::NotNegotiated), another report is
    /// [under way](Error::Busy), there are [too many or none](Error::BatchSize), one is [not mapped](Error::Unmapped), or the
    /// device was given up before.
    pub fn submit_report(&mut self, blocks: &[Block]) -> Result<(), Error> {
        self.alive()?;
        let reports = self.reports.as_mut().ok_or(Error::NotNegotiated(Features::REPORTING))?;
        if self.in_flight.is_some() {
            return Err(Error::Busy);
        }
        let parts = Parts::new(&self.memory, blocks)?;
        // SAFETY: the caller of `new` vouches that the blocks are unused until they are returned, and nothing here touches
        // them until then.
        let token = unsafe { parts.with(|outputs| reports.add(&[], outputs)) }?;
        self.in_flight = Some(InFlight { token, parts });
        reports.notify(&mut self.transport);
        Ok(())
    }

    /// Whether the device returned the blocks of the report: after `true` they may be used again, and their content is
    /// lost (or the poison value, if one was agreed upon).
    ///
    /// # Errors
    /// [`Error::Idle`] if no report is under way. [`Error::NotReset`]: the device may still take the blocks' memory, so nobody
    /// uses them ([`Batch::kept`](isotherm_frames::Batch::kept)). After any other error the blocks are back too, but the device
    /// may not have taken their memory: they count as not reported. The device has then been reset.
    pub fn poll_report(&mut self) -> Result<bool, Error> {
        let in_flight = self.in_flight.ok_or(Error::Idle)?;
        if let Some(error) = self.failed {
            self.in_flight = None;
            return Err(error);
        }
        match self.report_returned() {
            Ok(false) => return Ok(false),
            Ok(true) => self.in_flight = None,
            Err(error) => {
                self.in_flight = None;
                return Err(error);
            }
        }
        let Some(reports) = &mut self.reports else { return Err(Error::Idle) };
        // SAFETY: these are the parts that the token was given out for, and it is taken back once.
        let taken = unsafe { in_flight.parts.with(|outputs| reports.take(in_flight.token, &[], outputs)) };
        self.check(taken)?;
        Ok(true)
    }

    /// Looks for a returned report. If that shows that the device misbehaves it is reset; the report stays noted until
    /// [`poll_report`](Self::poll_report) has returned it.
    pub(super) fn report_returned(&mut self) -> Result<bool, Error> {
        let (Some(reports), Some(in_flight)) = (&self.reports, &self.in_flight) else { return Ok(false) };
        let returned = reports.returned(|token| token == in_flight.token).map(|token| token.is_some());
        self.check(returned)
    }

    /// Reports and waits.
    fn report_and_wait(&mut self, blocks: &[Block]) -> Result<(), Error> {
        self.kept = false;
        self.submit_report(blocks)?;
        let relax = self.relax;
        let waited = wait(Role::Reporting, relax, || self.poll_report());
        if waited.is_err() {
            let waited = self.check(waited);
            self.in_flight = None;
            self.kept = self.failed == Some(Error::NotReset);
            return waited;
        }
        Ok(())
    }
}

impl<H: Hal, T: Transport, M: FrameMemory> ReportSink for Balloon<H, T, M> {
    type Error = Error;

    /// Reports blocks and waits for the device.
    ///
    /// # Errors
    /// As [`submit_report`](Balloon::submit_report) and [`poll_report`](Balloon::poll_report). The blocks are back, unless the
    /// device [keeps](Self::keeps) them.
    fn report(&mut self, blocks: &[Block]) -> Result<(), Error> {
        self.report_and_wait(blocks)
    }

    /// Whether the device had them when it was given up, and did not acknowledge its reset.
    fn keeps(&self, _: &Error) -> bool {
        self.kept
    }
}
