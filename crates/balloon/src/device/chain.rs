//! Descriptor chains, read once and checked before anything is done.

use std::num::Wrapping;
use std::sync::atomic::Ordering;

use virtio_queue::{Queue, QueueOwnedT, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestMemory};

use super::fault::{Fault, Faults};

/// A buffer of a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub addr: GuestAddress,
    pub len: u32,
    pub writable: bool,
}

/// Takes the next chain of the queue: its head, and its buffers in `parts`, or what is wrong with it. A chain with
/// something wrong is returned to the guest unprocessed, unless its head is out of range.
pub(super) fn next_chain<M: GuestMemory>(
    queue: &mut Queue,
    memory: &M,
    parts: &mut Vec<Part>,
    faults: &mut Faults,
) -> Option<Result<u16, (u16, Fault)>> {
    parts.clear();
    let limit = usize::from(queue.size());
    let before = Wrapping(queue.next_avail());
    let mut iter = match queue.iter(memory) {
        Ok(iter) => iter,
        Err(virtio_queue::Error::InvalidAvailRingIndex) => {
            faults.add(Fault::AvailIndex, format_args!("nothing taken from the queue"));
            return None;
        }
        Err(error) => {
            faults.add(Fault::QueueMemory, format_args!("{error}"));
            return None;
        }
    };
    let Some(chain) = iter.next() else {
        // The ring says that there is one, but the entry cannot be read.
        if queue.avail_idx(memory, Ordering::Acquire).is_ok_and(|index| index != before) {
            faults.add(Fault::QueueMemory, format_args!("entry {before} of the available ring"));
        }
        return None;
    };
    let head = chain.head_index();
    if usize::from(head) >= limit {
        return Some(Err((head, Fault::HeadOutOfRange)));
    }
    let mut complete = false;
    for descriptor in chain {
        if parts.len() == limit {
            return Some(Err((head, Fault::ChainTooLong)));
        }
        complete = !descriptor.has_next();
        parts.push(Part {
            addr: descriptor.addr(),
            len: descriptor.len(),
            writable: descriptor.is_write_only(),
        });
    }
    // The iterator ends silently wherever it cannot go on.
    if complete {
        Some(Ok(head))
    } else if parts.len() == limit {
        Some(Err((head, Fault::ChainTooLong)))
    } else {
        Some(Err((head, Fault::BrokenChain)))
    }
}

/// Returns a chain to the guest. Nothing is ever written into its buffers.
pub(super) fn return_chain<M: GuestMemory>(queue: &mut Queue, memory: &M, head: u16, faults: &mut Faults) {
    if let Err(error) = queue.add_used(memory, head, 0) {
        faults.add(Fault::QueueMemory, format_args!("{error}"));
    }
}

/// Whether the guest wants an interrupt for what was returned.
pub(super) fn wants_interrupt<M: GuestMemory>(queue: &mut Queue, memory: &M) -> bool {
    const NO_INTERRUPT: u16 = 1;
    if !queue.event_idx_enabled() {
        // The queue itself does not look at the flag.
        let flags = memory.load::<u16>(GuestAddress(queue.avail_ring()), Ordering::Acquire);
        if flags.is_ok_and(|flags| u16::from_le(flags) & NO_INTERRUPT != 0) {
            return false;
        }
    }
    queue.needs_notification(memory).unwrap_or(true)
}

/// Calls `f` with the readable bytes of a chain, in pieces of at most 1 KiB, whose boundaries mean nothing.
///
/// Writable and empty buffers are faults and passed over; so is the rest after a buffer outside guest memory.
pub(super) fn read_parts<M: GuestMemory>(
    memory: &M,
    parts: &[Part],
    limit: u64,
    faults: &mut Faults,
    mut f: impl FnMut(&[u8], &mut Faults),
) {
    let length: u64 = parts.iter().map(|part| u64::from(part.len)).sum();
    if length > limit {
        faults.add(Fault::Overlong, format_args!("{length} bytes, at most {limit} are taken"));
        return;
    }
    let mut buffer = [0; 1024];
    for part in parts {
        if part.writable {
            faults.add(Fault::WrongDirection, format_args!("writable, {part:?}"));
            continue;
        }
        if part.len == 0 {
            faults.add(Fault::ZeroLength, format_args!("{part:?}"));
        }
        let (mut offset, end) = (0, u64::from(part.len));
        while offset < end {
            let piece = &mut buffer[..(end - offset).min(1024) as usize];
            let read =
                part.addr.0.checked_add(offset).map(|addr| memory.read_slice(piece, GuestAddress(addr)));
            if !matches!(read, Some(Ok(()))) {
                faults.add(Fault::OutOfRange, format_args!("{part:?}"));
                return;
            }
            f(piece, faults);
            offset += piece.len() as u64;
        }
    }
}
