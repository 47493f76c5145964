//! The host's side: a device model on `virtio-queue` and `vm-memory`, for a VMM to embed.
//!
//! The VMM owns transport, queues, interrupts and threads. It calls
//!
//! - [`Device::offered`] and [`Device::queue_count`] when it builds the transport;
//! - [`Device::read_config`] and [`Device::write_config`] when the guest accesses the configuration;
//! - [`Device::activate`] when the driver sets `DRIVER_OK`, [`Device::reset`] when it writes 0 to the status;
//! - [`Device::process`] when the guest notifies a queue, and raises the queue's interrupt if it returns so;
//! - [`Device::set_target`], [`Device::poll_stats`], [`Device::request_hints`] when its user wants something, and raises a
//!   configuration interrupt or the queue's if it returns so.
//!
//! What memory a guest gives up goes to a [`Host`]; [`GuestRam`] is one for memory mapped by `vm-memory`.
//!
//! # Trust
//! Everything in queues, buffers and configuration writes comes from the guest and may be hostile. Chains are read once,
//! checked, and then acted upon; what is wrong is passed over, counted and logged ([`Fault`]). Work and memory for one
//! call of `process` are bounded by the queue's size and the size of guest memory.

mod chain;
mod fault;
mod hinting;
mod host;
mod process;
mod subpages;

use thiserror::Error;
use virtio_queue::{Queue, QueueT};
use vm_memory::GuestMemory;

use crate::config::{self, CommandId};
use crate::{Features, Numbering, Role, Stats};

pub use fault::{Fault, Faults};
pub use hinting::Hinting;
pub use host::{Discard, GuestRam, GuestRange, Host};
pub use process::Outcome;

use chain::Part;
use hinting::HintState;
use subpages::BalloonedPages;

/// What a device did with the guest's memory since it was made, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Put into the balloon.
    pub inflated: u64,
    /// Taken out of the balloon.
    pub deflated: u64,
    /// Reported as free.
    pub reported: u64,
    /// Hinted as free.
    pub hinted: u64,
    /// Given up by the host, of what was inflated and reported.
    pub discarded: u64,
}

/// The device was activated wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ActivateError {
    /// The driver accepted what was not offered.
    #[error("the driver accepted features that were not offered: {0:#x}")]
    NotOffered(u64),
    /// The queues that the driver set up are not those of its features.
    #[error("the driver set up no queues that fit {0:?}, whichever way they are numbered")]
    Queues(Features),
}

/// The device is not active, or has no such queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("the balloon has no active queue {0}")]
pub struct NoSuchQueue(pub u16);

/// A memory balloon device.
#[derive(Debug)]
pub struct Device<H> {
    host: H,
    offered: Features,
    /// What was agreed upon, and where the queues are, while active.
    active: Option<(Features, Numbering)>,
    inhibited: bool,
    target: u32,
    actual: u32,
    poison: u32,
    pages: BalloonedPages,
    hints: HintState,
    stats: Option<Stats>,
    /// Head of the statistics buffer that the device keeps.
    stats_buffer: Option<u16>,
    totals: Totals,
    faults: Faults,
    parts: Vec<Part>,
}

impl<H: Host> Device<H> {
    /// A device that offers these features, besides what concerns queues and versions: `VERSION_1`, and indirect
    /// descriptors and event indices, which `virtio-queue` knows.
    pub fn new(host: H, features: Features) -> Self {
        let common = Features::VERSION_1 | Features::RING_INDIRECT_DESC | Features::RING_EVENT_IDX;
        Self {
            host,
            offered: (features & Features::BALLOON) | common,
            active: None,
            inhibited: false,
            target: 0,
            actual: 0,
            poison: 0,
            pages: BalloonedPages::default(),
            hints: HintState::default(),
            stats: None,
            stats_buffer: None,
            totals: Totals::default(),
            faults: Faults::default(),
            parts: Vec::new(),
        }
    }

    /// The device's type, 5.
    pub const DEVICE_TYPE: u32 = 5;

    /// The features to offer.
    pub fn offered(&self) -> Features {
        self.offered
    }

    /// The number of queues that the device has, from index 0 on: QEMU's numbering, in which only queues that exist
    /// count. A queue for reports wants room for 32 descriptors, those for hints and page numbers for 128.
    pub fn queue_count(&self) -> usize {
        Numbering::counted(self.offered).queues().count()
    }

    /// Starts operation with the features that the driver accepted. `ready` says which queues it has set up.
    ///
    /// A driver that accepts reporting but not hinting counts its queues in one of two ways, which shows in the queues
    /// that it has set up; both are taken.
    ///
    /// # Errors
    /// The driver broke the rules; the VMM should set `DEVICE_NEEDS_RESET`, and the device stays inactive.
    pub fn activate(
        &mut self,
        accepted: u64,
        mut ready: impl FnMut(u16) -> bool,
    ) -> Result<(), ActivateError> {
        let excess = accepted & !self.offered.bits();
        if excess != 0 {
            return Err(ActivateError::NotOffered(excess));
        }
        let features = Features::from_bits_truncate(accepted);
        // Where queues were offered and declined, QEMU still counts them.
        let offered = Numbering::counted(self.offered).only(features);
        // A driver may leave a queue that it does not use unset, but not those that make a balloon.
        let numbering = [offered, Numbering::counted(features), Numbering::fixed(features)]
            .into_iter()
            .max_by_key(|numbering| {
                let set_up = numbering.queues().filter(|&(_, index)| ready(index)).count();
                // Of equals the first is to win.
                (set_up, usize::from(*numbering == offered))
            })
            .filter(|numbering| {
                [Role::Inflate, Role::Deflate]
                    .iter()
                    .all(|&role| numbering.index(role).is_some_and(&mut ready))
            })
            .ok_or(ActivateError::Queues(features))?;
        if !features.contains(Features::PAGE_POISON) {
            self.poison = 0;
        }
        self.active = Some((features, numbering));
        Ok(())
    }

    /// Ends operation: the guest has reset the device, or is gone. The balloon is empty again, and all the guest's memory
    /// may be touched by it. The target stays.
    pub fn reset(&mut self) {
        self.active = None;
        self.actual = 0;
        self.poison = 0;
        self.pages.clear();
        self.hints.stop();
        self.stats = None;
        self.stats_buffer = None;
    }

    /// What was agreed upon, while active.
    pub fn features(&self) -> Option<Features> {
        Some(self.active?.0)
    }

    /// What the queue of this index is for, while active.
    pub fn role(&self, index: u16) -> Option<Role> {
        self.active?.1.role(index)
    }

    /// The index of a queue, while active.
    pub fn queue_index(&self, role: Role) -> Option<u16> {
        self.active?.1.index(role)
    }

    /// Sets how many pages of 4 KiB the balloon shall have. Returns whether to raise a configuration interrupt.
    pub fn set_target(&mut self, pages: u32) -> bool {
        self.target = pages;
        self.active.is_some()
    }

    /// How many pages of 4 KiB the balloon shall have.
    pub fn target(&self) -> u32 {
        self.target
    }

    /// How many pages of 4 KiB the balloon has, as the driver says.
    pub fn actual(&self) -> u32 {
        self.actual
    }

    /// How many pages of 4 KiB the balloon has, as the device has seen.
    pub fn ballooned(&self) -> u64 {
        self.pages.len()
    }

    /// While inhibited, all requests are acknowledged but no memory is taken: for guests with assigned devices, whose
    /// memory is pinned, and during postcopy migration. What was inflated meanwhile stays with the guest's process.
    pub fn set_inhibited(&mut self, inhibited: bool) {
        self.inhibited = inhibited;
    }

    /// Asks the guest for new statistics, for instance once a second. Returns whether to raise the interrupt of the statistics
    /// queue; [`Outcome::stats`] of a later [`process`](Self::process) says when they are there. Without effect while
    /// the guest has not answered yet.
    ///
    /// # Errors
    /// There is no statistics queue.
    pub fn poll_stats<M: GuestMemory>(&mut self, queue: &mut Queue, memory: &M) -> Result<bool, NoSuchQueue> {
        let index = self.queue_index(Role::Stats).ok_or(NoSuchQueue(Role::Stats as u16))?;
        if !queue.ready() {
            return Err(NoSuchQueue(index));
        }
        let Some(head) = self.stats_buffer.take() else { return Ok(false) };
        chain::return_chain(queue, memory, head, &mut self.faults);
        Ok(chain::wants_interrupt(queue, memory))
    }

    /// The guest's last statistics. They are the guest's claims.
    pub fn stats(&self) -> Option<&Stats> {
        self.stats.as_ref()
    }

    /// Asks the guest to hint all free pages, when a migration begins a pass over memory. Returns the round's id, for which
    /// a configuration interrupt is to be raised; `None` if the guest cannot hint, or needs its free pages to keep a poison
    /// value.
    pub fn request_hints(&mut self) -> Option<CommandId> {
        let able = self.features()?.contains(Features::FREE_PAGE_HINT) && self.poison == 0;
        able.then(|| self.hints.request())
    }

    /// Hints are of no use any more, until the next request. A configuration interrupt is to be raised.
    pub fn stop_hints(&mut self) {
        self.hints.stop();
    }

    /// All hints are dealt with: the guest may use the pages. A configuration interrupt is to be raised.
    pub fn finish_hints(&mut self) {
        self.hints.done();
    }

    /// Where hinting stands.
    pub fn hinting(&self) -> Hinting {
        self.hints.state()
    }

    /// The value that the guest fills free pages with, 0 if none or zeros.
    pub fn poison(&self) -> u32 {
        self.poison
    }

    /// What was done with the guest's memory.
    pub fn totals(&self) -> Totals {
        self.totals
    }

    /// What the guest did wrong.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// The host.
    pub fn host(&self) -> &H {
        &self.host
    }

    /// The host.
    pub fn host_mut(&mut self) -> &mut H {
        &mut self.host
    }

    /// Size of the configuration space in bytes: 8, 12 or 16, by the features offered, as QEMU has it.
    pub fn config_size(&self) -> usize {
        if self.offered.contains(Features::PAGE_POISON) {
            config::SIZE
        } else if self.offered.contains(Features::FREE_PAGE_HINT) {
            config::POISON_VAL
        } else {
            config::FREE_PAGE_HINT_CMD_ID
        }
    }

    fn config(&self) -> [u8; config::SIZE] {
        let mut bytes = [0; config::SIZE];
        let fields = [self.target, self.actual, self.hints.command().0, self.poison];
        for (place, field) in bytes.chunks_exact_mut(4).zip(fields) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// The guest reads the configuration at `offset`, in bytes. What lies beyond the end reads as 0.
    pub fn read_config(&self, offset: u64, data: &mut [u8]) {
        data.fill(0);
        let config = self.config();
        let rest = usize::try_from(offset).ok().and_then(|offset| config.get(offset..self.config_size()));
        for (byte, value) in data.iter_mut().zip(rest.unwrap_or(&[])) {
            *byte = *value;
        }
    }

    /// The guest writes the configuration at `offset`, in bytes. Only `actual` may be written, and `poison_val` before the
    /// device is active; anything else is ignored and counted.
    pub fn write_config(&mut self, offset: u64, data: &[u8]) {
        let poison_allowed = self.active.is_none() && self.offered.contains(Features::PAGE_POISON);
        let mut config = self.config();
        let mut refused = data.is_empty();
        for (&value, position) in data.iter().zip(offset..=u64::MAX) {
            let position = usize::try_from(position).unwrap_or(usize::MAX);
            let allowed = match position {
                config::ACTUAL..config::FREE_PAGE_HINT_CMD_ID => true,
                config::POISON_VAL..config::SIZE => poison_allowed,
                _ => false,
            };
            refused |= !allowed;
            match config.get_mut(position) {
                Some(byte) if allowed => *byte = value,
                // Drivers may write the whole structure.
                Some(_) => {}
                None => break,
            }
        }
        if refused {
            self.faults.add(Fault::ConfigWrite, format_args!("{} bytes at {offset}", data.len()));
        }
        let [_, _, _, _, a0, a1, a2, a3, _, _, _, _, p0, p1, p2, p3] = config;
        self.actual = u32::from_le_bytes([a0, a1, a2, a3]);
        self.poison = u32::from_le_bytes([p0, p1, p2, p3]);
    }
}
