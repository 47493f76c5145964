//! What the guest's notifications lead to.

use std::ops::Range;

use virtio_queue::{Queue, QueueT};
use vm_memory::{GuestAddress, GuestMemory, Permissions};

use super::chain::{Part, next_chain, read_parts, return_chain, wants_interrupt};
use super::fault::{Fault, Faults};
use super::host::{GuestRange, Host};
use super::subpages::{BalloonedPages, Runs};
use super::{Device, NoSuchQueue, Totals};
use crate::config::{CommandId, PAGE_SIZE};
use crate::stats::ENTRY_SIZE;
use crate::{Features, Role, Stats};

/// The most bytes of page numbers in a request, for 64 MiB of guest memory. Linux sends 1 KiB, Windows 4 KiB.
const PFN_BYTES_MAX: u64 = 1 << 16;
/// The most bytes of statistics, for more tags than exist.
const STATS_BYTES_MAX: u64 = 4096;

/// What [`Device::process`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Outcome {
    /// The interrupt of the queue is to be raised.
    pub interrupt: bool,
    /// There is more in the queue, which the guest will not notify again: call once more, after what else is to be done.
    pub again: bool,
    /// There are new statistics.
    pub stats: bool,
}

impl<H: Host> Device<H> {
    /// Handles what is in a queue, up to as many chains as the queue has places. To be called when the guest notifies the
    /// queue, and at activation for each.
    ///
    /// # Errors
    /// The device is not active or has no queue of this index.
    pub fn process<M: GuestMemory>(
        &mut self,
        index: u16,
        queue: &mut Queue,
        memory: &M,
    ) -> Result<Outcome, NoSuchQueue> {
        let (features, numbering) = self.active.ok_or(NoSuchQueue(index))?;
        let role = numbering.role(index).filter(|_| queue.ready()).ok_or(NoSuchQueue(index))?;
        let legacy = !features.contains(Features::VERSION_1);
        let mut parts = std::mem::take(&mut self.parts);
        let (mut outcome, mut returned, mut empty) = (Outcome::default(), false, false);
        for _ in 0..queue.size() {
            let (head, chain) = match next_chain(queue, memory, &mut parts, &mut self.faults) {
                None => {
                    empty = true;
                    break;
                }
                Some(Ok(head)) => (head, true),
                Some(Err((head, fault))) => {
                    self.faults.add(fault, format_args!("{role:?} queue, head {head}"));
                    (head, false)
                }
            };
            let mut keep = false;
            if chain {
                match role {
                    Role::Inflate => self.inflate(memory, &parts, legacy),
                    Role::Deflate => self.deflate(memory, &parts, legacy),
                    Role::Reporting => self.report(memory, &parts),
                    Role::FreePage => self.hint(memory, &parts, legacy),
                    Role::Stats => {
                        self.receive_stats(memory, &parts, legacy);
                        outcome.stats = true;
                        keep = true;
                        if let Some(earlier) = self.stats_buffer.replace(head) {
                            self.faults.add(Fault::ExtraStatsBuffer, format_args!("head {head}"));
                            return_chain(queue, memory, earlier, &mut self.faults);
                            returned = true;
                        }
                    }
                }
            }
            if !keep && head < queue.size() {
                return_chain(queue, memory, head, &mut self.faults);
                returned = true;
            }
        }
        self.parts = parts;
        outcome.interrupt = returned && wants_interrupt(queue, memory);
        // The question whether there is more also asks the guest to notify from now on. A queue that cannot be read says
        // that there is more for ever.
        let more = queue.enable_notification(memory).unwrap_or(false);
        outcome.again = more && (!empty || next_is_readable(queue, memory));
        Ok(outcome)
    }

    fn inflate<M: GuestMemory>(&mut self, memory: &M, parts: &[Part], legacy: bool) {
        let mut discards = Discards::new(&mut self.host, &mut self.totals, self.inhibited);
        let pages = &mut self.pages;
        let counts = for_each_page(memory, parts, legacy, &mut self.faults, |page, faults| {
            if !pages.insert(page) {
                faults.add(Fault::InflatedTwice, format_args!("page {page:#x}"));
                return false;
            }
            discards.inflated(memory, pages, page, faults);
            true
        });
        discards.finish(&mut self.faults);
        self.totals.inflated += counts * PAGE_SIZE;
    }

    fn deflate<M: GuestMemory>(&mut self, memory: &M, parts: &[Part], legacy: bool) {
        let (pages, host, mut runs) = (&mut self.pages, &mut self.host, Runs::default());
        let counts = for_each_page(memory, parts, legacy, &mut self.faults, |page, faults| {
            if !pages.remove(page) {
                faults.add(Fault::NotInBalloon, format_args!("page {page:#x}"));
                return false;
            }
            if let Some(run) = runs.add(page * PAGE_SIZE..(page + 1) * PAGE_SIZE) {
                host.restore(guest_range(run));
            }
            true
        });
        if let Some(run) = runs.finish() {
            host.restore(guest_range(run));
        }
        self.totals.deflated += counts * PAGE_SIZE;
    }

    fn report<M: GuestMemory>(&mut self, memory: &M, parts: &[Part]) {
        // Memory that is taken reads as zeros, which the guest must not find where it relies on another value.
        let keep = self.inhibited || self.poison != 0;
        let mut discards = Discards::new(&mut self.host, &mut self.totals, keep);
        for part in parts {
            let Some(range) = free_range(memory, part, &mut self.faults) else { continue };
            discards.totals.reported += range.end - range.start;
            discards.reported(range, &mut self.faults);
        }
        discards.finish(&mut self.faults);
    }

    fn hint<M: GuestMemory>(&mut self, memory: &M, parts: &[Part], legacy: bool) {
        let readable = parts.partition_point(|part| !part.writable);
        let (commands, blocks) = parts.split_at(readable);
        if !commands.is_empty() {
            let mut bytes = Vec::with_capacity(4);
            read_parts(memory, commands, 4, &mut self.faults, |piece, _| bytes.extend_from_slice(piece));
            match <[u8; 4]>::try_from(bytes) {
                Ok(bytes) => {
                    let id = if legacy { u32::from_ne_bytes(bytes) } else { u32::from_le_bytes(bytes) };
                    if !self.hints.command_received(CommandId(id)) {
                        self.faults.add(Fault::StaleCommand, format_args!("id {id:#x}"));
                    }
                }
                Err(bytes) => {
                    self.faults.add(Fault::OddLength, format_args!("command id of {} bytes", bytes.len()));
                }
            }
        }
        for part in blocks {
            let Some(range) = free_range(memory, part, &mut self.faults) else { continue };
            // Hints of a round that is over are no mistake: the guest cannot know in time.
            if self.hints.is_running() && !self.inhibited {
                self.totals.hinted += range.end - range.start;
                self.host.hint(guest_range(range));
            }
        }
    }

    fn receive_stats<M: GuestMemory>(&mut self, memory: &M, parts: &[Part], legacy: bool) {
        let mut bytes = Vec::new();
        read_parts(memory, parts, STATS_BYTES_MAX, &mut self.faults, |piece, _| {
            bytes.extend_from_slice(piece)
        });
        if bytes.len() % ENTRY_SIZE != 0 {
            self.faults.add(Fault::OddLength, format_args!("{} bytes of statistics", bytes.len()));
        }
        // What old drivers put into their first buffer is not initialised (5.5.6.3.3).
        let first_of_legacy = legacy && self.stats.is_none();
        self.stats = Some(if first_of_legacy { Stats::new() } else { Stats::decode(&bytes, legacy) });
    }
}

/// Whether the next entry of the available ring can be taken, without taking it.
fn next_is_readable<M: GuestMemory>(queue: &mut Queue, memory: &M) -> bool {
    let position = queue.next_avail();
    let readable = virtio_queue::QueueOwnedT::iter(queue, memory).is_ok_and(|mut iter| iter.next().is_some());
    queue.set_next_avail(position);
    readable
}

fn guest_range(range: Range<u64>) -> GuestRange {
    GuestRange { start: range.start, bytes: range.end - range.start }
}

/// Calls `f` with each page number that is guest memory; returns how often it said `true`.
fn for_each_page<M: GuestMemory>(
    memory: &M,
    parts: &[Part],
    legacy: bool,
    faults: &mut Faults,
    mut f: impl FnMut(u64, &mut Faults) -> bool,
) -> u64 {
    // A number may be split between buffers.
    let (mut number, mut filled, mut count) = ([0; 4], 0, 0);
    read_parts(memory, parts, PFN_BYTES_MAX, faults, |piece, faults| {
        for &byte in piece {
            number[filled] = byte;
            filled = (filled + 1) % 4;
            if filled != 0 {
                continue;
            }
            let page =
                u64::from(if legacy { u32::from_ne_bytes(number) } else { u32::from_le_bytes(number) });
            if memory.check_range(GuestAddress(page * PAGE_SIZE), PAGE_SIZE as usize, Permissions::Write) {
                count += u64::from(f(page, faults));
            } else {
                faults.add(Fault::OutOfRange, format_args!("page {page:#x}"));
            }
        }
    });
    if filled != 0 {
        faults.add(Fault::OddLength, format_args!("{filled} bytes behind the last page number"));
    }
    count
}

/// The pages of the balloon that lie wholly in a free block, if it is one.
fn free_range<M: GuestMemory>(memory: &M, part: &Part, faults: &mut Faults) -> Option<Range<u64>> {
    let end = part.addr.0.checked_add(u64::from(part.len));
    let fault = match end {
        _ if !part.writable => Fault::WrongDirection,
        _ if part.len == 0 => Fault::ZeroLength,
        Some(end) if memory.check_range(part.addr, part.len as usize, Permissions::Write) => {
            let whole = inner(part.addr.0..end, PAGE_SIZE);
            if whole.is_some() {
                return whole;
            }
            Fault::Unaligned
        }
        _ => Fault::OutOfRange,
    };
    faults.add(fault, format_args!("{part:?}"));
    None
}

/// The part of a range that consists of whole units of `size`, a power of two.
fn inner(range: Range<u64>, size: u64) -> Option<Range<u64>> {
    let start = range.start.checked_next_multiple_of(size)?;
    let end = range.end - range.end % size;
    (start < end).then_some(start..end)
}

/// Collects what the host is to give up.
struct Discards<'a, H> {
    host: &'a mut H,
    totals: &'a mut Totals,
    keep: bool,
    runs: Runs,
}

impl<'a, H: Host> Discards<'a, H> {
    fn new(host: &'a mut H, totals: &'a mut Totals, keep: bool) -> Self {
        Self { host, totals, keep, runs: Runs::default() }
    }

    fn page_size(&self, address: u64) -> u64 {
        let size = self.host.page_size(address);
        if size.is_power_of_two() { size.max(PAGE_SIZE) } else { PAGE_SIZE }
    }

    /// A page has come into the balloon: its host page goes if it is complete.
    fn inflated<M: GuestMemory>(
        &mut self,
        memory: &M,
        pages: &BalloonedPages,
        page: u64,
        faults: &mut Faults,
    ) {
        if self.keep {
            return;
        }
        let address = page * PAGE_SIZE;
        let size = self.page_size(address);
        let start = address - address % size;
        let complete = size == PAGE_SIZE
            || (memory.check_range(GuestAddress(start), size as usize, Permissions::Write)
                && pages.contains_all(start / PAGE_SIZE..(start + size) / PAGE_SIZE));
        if complete {
            self.discard(start..start + size, faults);
        }
    }

    /// A range is free: the host pages in it go.
    fn reported(&mut self, range: Range<u64>, faults: &mut Faults) {
        if self.keep {
            return;
        }
        // A block may lie across two kinds of memory.
        let size = self.page_size(range.start).max(self.page_size(range.end - 1));
        match inner(range.clone(), size) {
            Some(whole) => self.discard(whole, faults),
            None => faults.add(Fault::Unaligned, format_args!("{range:#x?}, host pages of {size} bytes")),
        }
    }

    fn discard(&mut self, range: Range<u64>, faults: &mut Faults) {
        if let Some(run) = self.runs.add(range) {
            self.run(run, faults);
        }
    }

    fn run(&mut self, run: Range<u64>, faults: &mut Faults) {
        let range = guest_range(run);
        match self.host.discard(range) {
            Ok(()) => self.totals.discarded += range.bytes,
            Err(error) => faults.add(Fault::Host, format_args!("{range:#x?}: {error}")),
        }
    }

    fn finish(mut self, faults: &mut Faults) {
        if let Some(run) = self.runs.finish() {
            self.run(run, faults);
        }
    }
}
