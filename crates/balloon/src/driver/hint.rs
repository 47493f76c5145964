//! Free page hinting: at the host's request, during migration, all that is free (virtio 1.3, 5.5.6.5).
//!
//! The specification lets a driver go on using a hinted page before the device has looked at the hint; the host must then
//! sort out by its dirty log which came last. Here a block stays with the device until it is back, as with reporting, so
//! that the question does not arise.

use isotherm_frames::{Block, MAX_BATCH, ReportSink};
use virtio_drivers::Hal;
use virtio_drivers::transport::{InterruptStatus, Transport};

use super::memory::FrameMemory;
use super::queue::Queue;
use super::report::Parts;
use super::{BATCH, Balloon, Error, wait};
use crate::config::CommandId;
use crate::{Features, Role};

/// Where in the request page the command id stands.
const COMMAND_AT: usize = 2048;

impl<H: Hal, T: Transport, M: FrameMemory> Balloon<H, T, M> {
    /// Whether the host asks for hints and has not got an answer yet.
    pub(super) fn hint_requested(&self) -> bool {
        self.hints.is_some() && self.command.is_request() && self.command != self.hinted
    }

    /// Begins to answer the host's request for hints; `None` if there is none. Waits for the device.
    ///
    /// The round is a [`ReportSink`] through which to pass every free block once, by an allocator's sweep. It ends with
    /// [`HintRound::finish`], or when it is dropped.
    ///
    /// A zone counts the hinted blocks as reported, which they are where the migration leads. If it fails, and the host
    /// stays the same, [`Zone::sweep`](isotherm_frames::Zone::sweep) has them reported after all.
    ///
    /// # Errors
    /// [`Error::NotNegotiated`] if there is no hinting, or the device was given up.
    pub fn hint(&mut self) -> Result<Option<HintRound<'_, H, T, M>>, Error> {
        self.alive()?;
        if self.hints.is_none() {
            return Err(Error::NotNegotiated(Features::FREE_PAGE_HINT));
        }
        if !self.hint_requested() {
            return Ok(None);
        }
        let id = self.command;
        self.send_command(id)?;
        self.hinted = id;
        Ok(Some(HintRound { balloon: self, id, open: true, stopped: false }))
    }

    fn send_command(&mut self, id: CommandId) -> Result<(), Error> {
        let bytes = self.wire(id.0);
        let Some(hints) = &mut self.hints else { return Err(Error::NotNegotiated(Features::FREE_PAGE_HINT)) };
        self.requests.bytes_mut()[COMMAND_AT..COMMAND_AT + 4].copy_from_slice(&bytes);
        let buffer = &self.requests.bytes()[COMMAND_AT..COMMAND_AT + 4];
        // SAFETY: the buffer is not written again before it is back, or the device reset.
        let token = unsafe { hints.add(&[buffer], &mut []) }?;
        hints.notify(&mut self.transport);
        let returned =
            wait(Role::FreePage, self.relax, || Ok(hints.returned(|returned| returned == token)?.is_some()))
                // SAFETY: the same buffer, once.
                .and_then(|()| unsafe { hints.take(token, &[buffer], &mut []) });
        self.check(returned)
    }

    /// Passes blocks on, each as a buffer of its own as the specification asks, and waits for all.
    fn send_hints(&mut self, blocks: &[Block]) -> Result<(), Error> {
        let parts = Parts::new(&self.memory, blocks)?;
        let Some(hints) = &mut self.hints else { return Err(Error::NotNegotiated(Features::FREE_PAGE_HINT)) };
        let mut away = [const { None }; MAX_BATCH];
        let mut added = Ok(());
        for (slot, part) in away.iter_mut().zip(parts.singles()) {
            // SAFETY: the caller of `new` vouches for the blocks, and nothing touches them until they are back.
            match unsafe { part.with_first(|outputs| hints.add(&[], outputs)) } {
                Ok(token) => *slot = Some((token, part)),
                Err(error) => {
                    added = Err(error);
                    break;
                }
            }
        }
        hints.notify(&mut self.transport);
        let returned = wait(Role::FreePage, self.relax, || take_hints(hints, &mut away));
        let returned = self.check(returned);
        self.kept = returned == Err(Error::NotReset);
        returned.and(added)
    }
}

/// Takes back what is there; `true` when everything is.
fn take_hints<H: Hal>(
    hints: &mut Queue<H, BATCH>,
    away: &mut [Option<(u16, Parts)>; MAX_BATCH],
) -> Result<bool, Error> {
    let is_away = |returned, slot: &Option<(u16, Parts)>| slot.is_some_and(|(token, _)| token == returned);
    while let Some(token) = hints.returned(|returned| away.iter().any(|slot| is_away(returned, slot)))? {
        let slot = away.iter_mut().find(|slot| is_away(token, slot));
        if let Some((token, part)) = slot.and_then(Option::take) {
            // SAFETY: the part belongs to the token, and is forgotten with it.
            unsafe { part.with_first(|outputs| hints.take(token, &[], outputs)) }?;
        }
    }
    Ok(away.iter().all(Option::is_none))
}

/// A round of hints, see [`Balloon::hint`].
#[derive(Debug)]
pub struct HintRound<'a, H: Hal, T: Transport, M: FrameMemory> {
    balloon: &'a mut Balloon<H, T, M>,
    id: CommandId,
    open: bool,
    stopped: bool,
}

impl<H: Hal, T: Transport, M: FrameMemory> HintRound<'_, H, T, M> {
    /// The host's number for the round.
    pub fn id(&self) -> CommandId {
        self.id
    }

    /// Ends the round: no more hints come.
    ///
    /// # Errors
    /// The device was given up.
    pub fn finish(mut self) -> Result<(), Error> {
        self.close()
    }

    fn close(&mut self) -> Result<(), Error> {
        if !core::mem::take(&mut self.open) {
            return Ok(());
        }
        self.balloon.alive()?;
        self.balloon.send_command(CommandId::STOP)
    }
}

impl<H: Hal, T: Transport, M: FrameMemory> ReportSink for HintRound<'_, H, T, M> {
    type Error = Error;

    /// Hints blocks and waits until they are back. Their content is lost then, whatever it was: whoever uses them must
    /// write before reading.
    ///
    /// # Errors
    /// [`Error::HintingStopped`] if the host changed its mind: the sweep should end, and the round be finished. Otherwise
    /// as [`Balloon::submit_report`]. The blocks are back, unless the device [keeps](Self::keeps) them.
    fn report(&mut self, blocks: &[Block]) -> Result<(), Error> {
        self.balloon.kept = false;
        self.balloon.alive()?;
        // While a round is under way QEMU shows no id at all, so only an announced change is a change.
        let interrupt = self.balloon.transport.ack_interrupt();
        if interrupt.contains(InterruptStatus::DEVICE_CONFIGURATION_INTERRUPT) {
            self.balloon.refresh()?;
            self.balloon.inflation.resume();
            self.stopped |= self.balloon.command != self.id;
        }
        if self.stopped {
            return Err(Error::HintingStopped);
        }
        self.balloon.send_hints(blocks)
    }

    /// As the [balloon](Balloon)'s.
    fn keeps(&self, _: &Error) -> bool {
        self.balloon.kept
    }
}

impl<H: Hal, T: Transport, M: FrameMemory> Drop for HintRound<'_, H, T, M> {
    fn drop(&mut self) {
        // Nobody is left to hear of an error, and the driver remembers a fatal one.
        let _ = self.close();
    }
}
