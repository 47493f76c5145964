//! The guest's side: a driver over the transports and queues of `virtio-drivers`.
//!
//! # How it is driven
//! The driver has no thread, no timer and no interrupt handler. The caller polls: [`Balloon::poll`] says what the host
//! wants, [`Balloon::step`] moves the balloon towards its target by at most one request, [`Balloon::submit_report`] and
//! [`Balloon::poll_report`] are the two halves of a report. None of these waits. [`Balloon::settle`],
//! [`ReportSink::report`](isotherm_frames::ReportSink::report) and [`HintRound`] wait for the device, spinning with
//! [`Options::relax`].
//!
//! # Whose frame is it
//! At any time a frame is with the guest or with the device, never with both:
//!
//! - A ballooned block is the balloon's from [`FrameSource::take`] to [`FrameSource::give`]. It is given only after the
//!   device acknowledged its deflation, whether or not `MUST_TELL_HOST` was negotiated.
//! - A reported or hinted block is the device's from the call that submits it until the call that says it is back. Where
//!   such a call fails, the block is back as well: either it was never passed on, or the device has been reset, after
//!   which it must not touch memory of the guest any more (virtio 1.3, 2.4.2). A device that does not acknowledge its reset
//!   ([`Error::NotReset`]) may go on, so what it had stays with it, the memory of the queues too: a zone hands such blocks out
//!   no more ([`ReportSink::keeps`](isotherm_frames::ReportSink::keeps)).
//! - A device that returns what it does not have, or does not answer, is reset and given up ([`Error::is_fatal`]).
//!   [`Balloon::shutdown`] then returns every frame of the balloon. By what it answers a device cannot make the driver
//!   lose a frame, hand out a frame twice or panic. (What it could do by writing to the guest's memory is another matter,
//!   as is what the transports of `virtio-drivers` think of a broken register layout.)
//!
//! # Poison
//! A guest that expects free pages to keep a value (zeros too) says so in [`Options::poison`]. If the device knows
//! `PAGE_POISON` the value is in the configuration; if it does not, reports and hints could change the value behind the guest's back, so reporting
//! is not negotiated (virtio 1.3, 5.5.3.1). Hinting never keeps content and is not used by such a guest at all.

mod error;
mod hint;
mod inflation;
mod ledger;
mod memory;
mod queue;
mod report;
mod statistics;
mod zone;

use core::fmt;
use core::mem::{ManuallyDrop, forget};

use virtio_drivers::Hal;
use virtio_drivers::transport::{DeviceStatus, DeviceType, InterruptStatus, Transport};

use crate::config::{self, CommandId};
use crate::{Features, Numbering, Role, Stats};

pub use error::Error;
pub use hint::HintRound;
pub use inflation::Step;
pub use memory::{DirectMap, FrameMemory, FrameSource};
pub use zone::ZoneSource;

use inflation::Inflation;
use memory::RequestPage;
use queue::Queue;
use report::InFlight;
use statistics::Statistics;

/// Descriptors of a queue on which one buffer of one part is under way at a time.
const SMALL: usize = 2;
/// Descriptors of a queue that takes a batch of blocks.
const BATCH: usize = isotherm_frames::MAX_BATCH;
/// How often the status register is read after a reset before the device is taken to ignore it.
const RESET_READS: u32 = if cfg!(miri) { 1 << 10 } else { 1 << 20 };

/// What the driver is to ask for.
#[derive(Clone, Copy)]
pub struct Options {
    /// Which features to accept if offered; all by default. A feature that brings a queue below one of these is accepted
    /// too, but not used (see [`queues`](crate::queues)). `PAGE_POISON` goes by `poison` instead.
    pub wanted: Features,
    /// The value that every free frame is filled with, if the guest relies on such a value.
    ///
    /// With a value, frames must hold it when they are given to the balloon or reported, and hold it when they come back.
    pub poison: Option<u32>,
    /// The first statistics. Later ones must be of the same kinds.
    pub stats: Stats,
    /// Called while the driver waits for the device, with the number of times it has looked in vain. `false` gives the
    /// device up: it is reset, and [`Error::Unresponsive`] returned. By default the wait has no end.
    pub relax: fn(u64) -> bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { wanted: Features::all(), poison: None, stats: Stats::new(), relax: spin }
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Options")
            .field("wanted", &self.wanted)
            .field("poison", &self.poison)
            .field("stats", &self.stats)
            .finish_non_exhaustive()
    }
}

fn spin(_looks: u64) -> bool {
    core::hint::spin_loop();
    true
}

/// What [`Balloon::poll`] found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Events {
    /// The balloon is not of the size that the host wants: call [`Balloon::step`] or [`Balloon::settle`].
    pub resize: bool,
    /// The host asks for statistics: call [`Balloon::send_stats`].
    pub stats: bool,
    /// The host asks for hints: call [`Balloon::hint`].
    pub hint: bool,
    /// A report has come back, or is lost with the device: call [`Balloon::poll_report`].
    pub report: bool,
}

/// The driver of a memory balloon.
#[derive(Debug)]
pub struct Balloon<H: Hal, T: Transport, M: FrameMemory> {
    transport: T,
    memory: M,
    features: Features,
    poison: Option<u32>,
    relax: fn(u64) -> bool,
    /// Dropped, as all that the device reaches, only if it was reset.
    inflation: ManuallyDrop<Inflation<H>>,
    statistics: Option<Statistics<H>>,
    hints: Option<Queue<H, BATCH>>,
    reports: Option<Queue<H, BATCH>>,
    in_flight: Option<InFlight>,
    requests: ManuallyDrop<RequestPage<H>>,
    /// `num_pages` as last read.
    target: u32,
    command: CommandId,
    /// The last command that was answered, so that it is answered once.
    hinted: CommandId,
    /// Why the device was given up.
    failed: Option<Error>,
    /// Whether it still has the blocks of the last report or hint.
    kept: bool,
}

impl<H: Hal, T: Transport, M: FrameMemory> Balloon<H, T, M> {
    /// Sets the device up and starts it: resets it, agrees on features, makes the queues and queues the first
    /// statistics.
    ///
    /// # Errors
    /// What the device lacks; it is left reset.
    ///
    /// # Safety
    /// Every block that is passed to the driver, by a [`FrameSource`] or to be reported or hinted, must be unused by
    /// anyone else until the driver gives it back, for its content is thrown away.
    pub unsafe fn new(mut transport: T, memory: M, options: Options) -> Result<Self, Error> {
        if transport.device_type() != DeviceType::MemoryBalloon {
            return Err(Error::WrongDevice(transport.device_type()));
        }
        let (features, used) = negotiate(&mut transport, &options)?;
        let mut queues = Queues::default();
        let built = RequestPage::new()
            .and_then(|requests| Ok((requests, queues.set_up(&mut transport, features, used)?)));
        let (requests, inflation) = match built {
            Ok(parts) => parts,
            Err(error) => {
                // The memory of queues that were set up goes, so the device must have forgotten them.
                if reset(&mut transport).is_err() {
                    forget(queues);
                    return Err(Error::NotReset);
                }
                return Err(error);
            }
        };
        let Queues { statistics, hints, reports, .. } = queues;
        let mut balloon = Self {
            transport,
            memory,
            features,
            poison: options.poison,
            relax: options.relax,
            inflation: ManuallyDrop::new(inflation),
            statistics,
            hints,
            reports,
            in_flight: None,
            requests: ManuallyDrop::new(requests),
            target: 0,
            command: CommandId::STOP,
            hinted: CommandId::STOP,
            failed: None,
            kept: false,
        };
        if balloon.features.contains(Features::PAGE_POISON) {
            balloon.write_config(config::POISON_VAL, options.poison.unwrap_or(0))?;
        }
        balloon.transport.finish_init();
        if balloon.statistics.is_some() {
            balloon.queue_stats(&options.stats)?;
        }
        balloon.refresh()?;
        Ok(balloon)
    }

    /// What was agreed upon.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Whether reports are possible.
    pub fn can_report(&self) -> bool {
        self.reports.is_some()
    }

    /// How many pages of 4 KiB the host wants in the balloon, as of the last [`poll`](Self::poll).
    pub fn target(&self) -> u32 {
        self.target
    }

    /// How many pages of 4 KiB are in the balloon, acknowledged by the device.
    pub fn actual(&self) -> u32 {
        self.inflation.actual()
    }

    /// Why the device was given up, if it was.
    pub fn failure(&self) -> Option<Error> {
        self.failed
    }

    /// Acknowledges the device's interrupt, reads its configuration, and says what there is to do. Does not wait.
    ///
    /// To be called from the interrupt's bottom half, or now and then: a read of a few registers.
    ///
    /// # Errors
    /// The device was given up, now or before, or its configuration cannot be read.
    pub fn poll(&mut self) -> Result<Events, Error> {
        if self.failed.is_some() && self.in_flight.is_some() {
            return Ok(Events { report: true, ..Events::default() });
        }
        self.alive()?;
        let interrupt = self.transport.ack_interrupt();
        self.refresh()?;
        if interrupt.contains(InterruptStatus::DEVICE_CONFIGURATION_INTERRUPT) {
            // Also when the host asked for the same size again.
            self.inflation.resume();
        }
        Ok(Events {
            resize: self.inflation.wants_step(self.target),
            stats: self.stats_due()?,
            hint: self.hint_requested(),
            report: self.report_returned()?,
        })
    }

    /// Whether the device shall raise interrupts when it returns buffers; off after [`new`](Self::new). It always does when
    /// its configuration changes.
    pub fn set_interrupts(&mut self, enabled: bool) {
        self.inflation.set_interrupts(enabled);
        if let Some(statistics) = &mut self.statistics {
            statistics.queue.set_interrupts(enabled);
        }
        for queue in [&mut self.hints, &mut self.reports].into_iter().flatten() {
            queue.set_interrupts(enabled);
        }
    }

    /// Takes the balloon down: resets the device and gives every frame back to the source.
    ///
    /// The device is reset first, which ends the balloon (virtio 1.3, 2.4: a reset device holds no state of the guest), so
    /// this works with a device that has been given up too. A report under way is over as well.
    ///
    /// # Errors
    /// [`Error::NotReset`], and the balloon as it was: a device that does not acknowledge the reset may still take what it was
    /// given, so no frame comes back. It can be tried again.
    #[expect(clippy::result_large_err, reason = "it is the balloon itself, and there is nowhere to put it")]
    pub fn shutdown(mut self, source: &mut impl FrameSource) -> Result<(), (Error, Self)> {
        if let Err(error) = reset(&mut self.transport) {
            self.failed = Some(error);
            return Err((error, self));
        }
        self.in_flight = None;
        self.inflation.release(&self.memory, self.poison, source);
        Ok(())
    }

    fn alive(&self) -> Result<(), Error> {
        self.failed.map_or(Ok(()), Err)
    }

    /// Gives the device up if the error says so.
    fn check<R>(&mut self, result: Result<R, Error>) -> Result<R, Error> {
        let Err(error) = result else { return result };
        if !error.is_fatal() || self.failed.is_some() {
            return Err(error);
        }
        let error = reset(&mut self.transport).err().unwrap_or(error);
        self.failed = Some(error);
        Err(error)
    }

    /// Reads the configuration.
    fn refresh(&mut self) -> Result<(), Error> {
        let target = self.read_config(config::NUM_PAGES)?;
        if target != self.target {
            self.target = target;
            self.inflation.resume();
        }
        if self.hints.is_some() {
            self.command = CommandId(self.read_config(config::FREE_PAGE_HINT_CMD_ID)?);
        }
        Ok(())
    }

    fn read_config(&self, offset: usize) -> Result<u32, Error> {
        let value = self.transport.read_config_space::<u32>(offset);
        value.map(u32::from_le).map_err(|source| Error::Config { offset, source })
    }

    fn write_config(&mut self, offset: usize, value: u32) -> Result<(), Error> {
        self.transport
            .write_config_space(offset, value.to_le())
            .map_err(|source| Error::Config { offset, source })
    }

    /// A value in the byte order of the queues: little-endian, or the guest's own on a legacy device.
    fn wire(&self, value: u32) -> [u8; 4] {
        if self.is_legacy() { value.to_ne_bytes() } else { value.to_le_bytes() }
    }

    fn is_legacy(&self) -> bool {
        !self.features.contains(Features::VERSION_1)
    }
}

impl<H: Hal, T: Transport, M: FrameMemory> Drop for Balloon<H, T, M> {
    /// Resets the device, whose queues are about to go. Frames in the balloon stay away for good: to have them back, call
    /// [`shutdown`](Self::shutdown). So does the memory of the queues if the device does not acknowledge the reset, as it may
    /// still write there.
    fn drop(&mut self) {
        if reset(&mut self.transport).is_err() {
            forget((self.statistics.take(), self.hints.take(), self.reports.take()));
            return;
        }
        // SAFETY: neither is used again.
        unsafe {
            ManuallyDrop::drop(&mut self.inflation);
            ManuallyDrop::drop(&mut self.requests);
        }
    }
}

/// The queues of a device, as far as they were set up: it may write to their memory from then on.
struct Queues<H: Hal> {
    inflate: Option<Queue<H, SMALL>>,
    deflate: Option<Queue<H, SMALL>>,
    statistics: Option<Statistics<H>>,
    hints: Option<Queue<H, BATCH>>,
    reports: Option<Queue<H, BATCH>>,
}

impl<H: Hal> Default for Queues<H> {
    fn default() -> Self {
        Self { inflate: None, deflate: None, statistics: None, hints: None, reports: None }
    }
}

impl<H: Hal> Queues<H> {
    /// Finds the queues of the negotiated features and sets them up; returns the first two. One that was accepted for the sake of
    /// numbering only is left alone, except that of the statistics, of which the device must be given a buffer.
    fn set_up(
        &mut self,
        transport: &mut impl Transport,
        features: Features,
        used: Features,
    ) -> Result<Inflation<H>, Error> {
        let missing = Error::MissingQueue(features);
        let numbering =
            Numbering::find(features, |index| transport.max_queue_size(index) > 0).ok_or(missing)?;
        let index = |role: Role| numbering.index(role);
        let used_index = |role: Role| index(role).filter(|_| used.contains(role.feature()));
        let (inflate, deflate) = index(Role::Inflate).zip(index(Role::Deflate)).ok_or(missing)?;
        self.inflate = Some(Queue::new(transport, Role::Inflate, inflate)?);
        self.deflate = Some(Queue::new(transport, Role::Deflate, deflate)?);
        if let Some(index) = index(Role::Stats) {
            self.statistics = Some(Statistics::new(Queue::new(transport, Role::Stats, index)?));
        }
        if let Some(index) = used_index(Role::FreePage) {
            self.hints = Some(Queue::new(transport, Role::FreePage, index)?);
        }
        if let Some(index) = used_index(Role::Reporting) {
            self.reports = Some(Queue::new(transport, Role::Reporting, index)?);
        }
        let (inflate, deflate) = self.inflate.take().zip(self.deflate.take()).ok_or(missing)?;
        Ok(Inflation::new(inflate, deflate))
    }
}

/// Virtio 1.3, 3.1.1, steps 1 to 6. Returns what was agreed upon, and what of it is used.
fn negotiate(transport: &mut impl Transport, options: &Options) -> Result<(Features, Features), Error> {
    reset(transport)?;
    transport.set_status(DeviceStatus::ACKNOWLEDGE);
    transport.set_status(DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER);
    let offered = Features::from_bits_truncate(transport.read_device_features());

    let mut used = options.wanted & offered & Features::BALLOON;
    used.remove(Features::PAGE_POISON);
    if options.poison.is_some() {
        used.remove(Features::FREE_PAGE_HINT);
        if offered.contains(Features::PAGE_POISON) {
            used.insert(Features::PAGE_POISON);
        } else {
            used.remove(Features::REPORTING);
        }
    }
    let features = Numbering::at_or_below(used, offered) | (offered & Features::VERSION_1);
    transport.write_driver_features(features.bits());

    let status = DeviceStatus::ACKNOWLEDGE | DeviceStatus::DRIVER | DeviceStatus::FEATURES_OK;
    transport.set_status(status);
    // A legacy device does not know the bit.
    if features.contains(Features::VERSION_1) && !transport.get_status().contains(DeviceStatus::FEATURES_OK) {
        transport.set_status(DeviceStatus::FAILED);
        return Err(Error::FeaturesRefused(features));
    }
    transport.set_guest_page_size(config::PAGE_SIZE as u32);
    Ok((features, used))
}

/// Resets the device and waits until it says that it is.
fn reset(transport: &mut impl Transport) -> Result<(), Error> {
    transport.set_status(DeviceStatus::empty());
    for _ in 0..RESET_READS {
        if transport.get_status() == DeviceStatus::empty() {
            return Ok(());
        }
        core::hint::spin_loop();
    }
    Err(Error::NotReset)
}

/// Waits until `done` says so.
fn wait(
    role: Role,
    relax: fn(u64) -> bool,
    mut done: impl FnMut() -> Result<bool, Error>,
) -> Result<(), Error> {
    let mut looks = 0;
    while !done()? {
        looks += 1;
        if !relax(looks) {
            return Err(Error::Unresponsive(role));
        }
    }
    Ok(())
}
