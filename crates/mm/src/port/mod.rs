//! Reads, writes and atomic operations of programs through page tables, for emulators and for memory that is hosted in a
//! process: what the CPU does in hardware elsewhere.
//!
//! A [`Port`] is one emulated CPU, or one thread that reaches a space. It looks addresses up in its own small TLB, then in the
//! page tables, which sets the accessed and dirty bits, and faults if it must. [`SoftTlbs`] is what the machine's [`Tlb`](isotherm_pagetable::Tlb) passes
//! invalidations on to, so that nobody uses a page that is given back.
//!
//! Accesses are of whole aligned words of 64 bits, each at once: what crosses a word can be seen half-way by others, as on
//! hardware what crosses a cache line can.

mod tlb;

use core::fmt;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicU64, Ordering};

use isotherm_page::Frame;
use isotherm_pagetable::{Access, Format, Machine};

use crate::fault::FaultError;
use crate::flags::PAGE_SIZE;
use crate::object::Objects;
use crate::paged::Paged;
use crate::space::{AddressSpace, Platform};
use tlb::Entries;
pub use tlb::SoftTlbs;

/// Memory of programs as software reaches it.
///
/// # Safety
/// [`page`](Self::page) returns a pointer, aligned to 4096, to the frame's 4096 bytes, valid for reads and writes by atomic words
/// of 64 bits as long as the frame is a folio's or reserved, and always the same memory for the same frame.
pub unsafe trait Ram {
    /// Where the frame can be reached.
    fn page(&self, frame: Frame) -> NonNull<u8>;
}

#[cfg(feature = "host")]
// SAFETY: a frame is always the same page of one allocation, all of whose users go by atomic words.
unsafe impl Ram for isotherm_pagetable::host::HostMachine {
    fn page(&self, frame: Frame) -> NonNull<u8> {
        isotherm_pagetable::Memory::table(self, frame).cast()
    }
}

/// Why a read or write ended early.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("after {done} bytes: {why}")]
pub struct PortError {
    /// Bytes that were read or written.
    pub done: usize,
    /// Why the next was not.
    pub why: FaultError,
}

/// How an atomic operation failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AtomicError {
    /// The address is not aligned to the size.
    #[error("the address is not aligned to the size of the operation")]
    Misaligned,
    /// The page could not be had.
    #[error(transparent)]
    Fault(#[from] FaultError),
}

/// The size of an atomic operation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Width {
    /// 8 bits.
    Byte = 1,
    /// 16 bits.
    Half = 2,
    /// 32 bits.
    Word = 4,
    /// 64 bits.
    Double = 8,
}

impl Width {
    const fn mask(self) -> u64 {
        u64::MAX >> (64 - 8 * self as u32)
    }
}

/// How a port's look-ups ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PortStats {
    /// Found in its own TLB.
    pub hits: u64,
    /// Found in the page tables.
    pub walks: u64,
    /// After a fault.
    pub faults: u64,
}

/// A thread's way into a space's memory.
pub struct Port<'s, P: Platform, const PORTS: usize> {
    space: &'s AddressSpace<P>,
    place: tlb::Place<'s, PORTS>,
    entries: Entries,
    stats: PortStats,
}

/// The words of a page.
type Words = [AtomicU64; PAGE_SIZE as usize / 8];

impl<'s, 'm, P, F, M, O, const PORTS: usize> Port<'s, P, PORTS>
where
    P: Platform<Contents = Paged<'m, F, M, O>>,
    F: Format + 'm,
    M: Machine + Ram + 'm,
    O: Objects<'m, F, M>,
{
    /// A port of its own for the calling thread; `None` if there are as many as `tlbs` has places for.
    ///
    /// # Safety
    /// The [`Tlb`](isotherm_pagetable::Tlb) of the space's machine passes all it is called with on to `tlbs`.
    pub unsafe fn new(space: &'s AddressSpace<P>, tlbs: &'s SoftTlbs<PORTS>) -> Option<Self> {
        let place = tlbs.join(space.contents().id())?;
        Some(Self { space, place, entries: Entries::new(), stats: PortStats::default() })
    }

    /// How its look-ups ended so far.
    #[must_use]
    pub const fn stats(&self) -> PortStats {
        self.stats
    }

    /// Does something with the page of an address, once it can be accessed so.
    fn with_page<R>(
        &mut self,
        address: u64,
        access: Access,
        act: impl FnOnce(&Words) -> R,
    ) -> Result<R, FaultError> {
        loop {
            // Meanwhile whoever takes the page away waits. Nothing is waited for here.
            let section = self.place.enter(&mut self.entries);
            let (page, hit) = (address / PAGE_SIZE, self.entries.get(address / PAGE_SIZE, access));
            let frame = match hit {
                Some(frame) => {
                    self.stats.hits += 1;
                    Some(frame)
                }
                None => self.space.contents().access(address, access).ok().inspect(|&frame| {
                    self.stats.walks += 1;
                    self.entries.put(page, frame, access);
                }),
            };
            if let Some(frame) = frame {
                let at: NonNull<Words> = self.space.contents().machine().page(frame).cast();
                // SAFETY: the frame is mapped, and nobody takes it away before the section ends; all go by atomic words.
                let done = act(unsafe { at.as_ref() });
                drop(section);
                return Ok(done);
            }
            drop(section);
            self.stats.faults += 1;
            self.space.fault(address, access)?;
        }
    }

    /// Does `act` for the part of each page: the page, where in it, and which bytes of the whole.
    fn parts(
        &mut self,
        address: u64,
        length: usize,
        access: Access,
        mut act: impl FnMut(&Words, usize, core::ops::Range<usize>),
    ) -> Result<(), PortError> {
        let mut done = 0;
        while done < length {
            let stopped = |why| PortError { done, why };
            let at = address.checked_add(done as u64).ok_or(stopped(FaultError::NotMapped))?;
            let offset = (at % PAGE_SIZE) as usize;
            let end = length.min(done + (PAGE_SIZE as usize - offset));
            self.with_page(at, access, |words| act(words, offset, done..end)).map_err(stopped)?;
            done = end;
        }
        Ok(())
    }

    /// Reads memory, as loads of a program do.
    ///
    /// # Errors
    /// [`PortError`]; what was read until then is in the buffer.
    pub fn read(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), PortError> {
        self.parts(address, buffer.len(), Access::Read, |words, offset, part| {
            let Some(part) = buffer.get_mut(part) else { return };
            copy_out(words, offset, part);
        })
    }

    /// Writes memory, as stores of a program do.
    ///
    /// # Errors
    /// [`PortError`]; what was written until then stays.
    pub fn write(&mut self, address: u64, bytes: &[u8]) -> Result<(), PortError> {
        self.parts(address, bytes.len(), Access::Write, |words, offset, part| {
            let Some(part) = bytes.get(part) else { return };
            store(words, offset, part);
        })
    }

    /// The value at an address, in the byte order of the machine that it is on, little-endian: an atomic load.
    ///
    /// # Errors
    /// [`AtomicError`].
    pub fn load(&mut self, address: u64, width: Width) -> Result<u64, AtomicError> {
        let shift = shift(address, width)?;
        let word = self.with_page(address, Access::Read, |words| {
            word(words, address).map_or(0, |word| word.load(Ordering::SeqCst))
        })?;
        Ok(u64::from_le(word) >> shift & width.mask())
    }

    /// Replaces the value at an address by what `change` makes of it, at once for all who look: an atomic read-modify-write.
    /// `change` may be called several times, and leaves all as it is with `None`. What was there, whether it was replaced or not.
    ///
    /// # Errors
    /// [`AtomicError`].
    pub fn update(
        &mut self,
        address: u64,
        width: Width,
        mut change: impl FnMut(u64) -> Option<u64>,
    ) -> Result<u64, AtomicError> {
        let shift = shift(address, width)?;
        let mask = width.mask() << shift;
        let word = self.with_page(address, Access::Write, |words| {
            let Some(word) = word(words, address) else { return 0 };
            let updated = word.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |old| {
                let old = u64::from_le(old);
                let new = change(old >> shift & width.mask())?;
                Some(((old & !mask) | (new << shift & mask)).to_le())
            });
            match updated {
                Ok(old) | Err(old) => old,
            }
        })?;
        Ok(u64::from_le(word) >> shift & width.mask())
    }

    /// Stores a value, atomically; what was there.
    ///
    /// # Errors
    /// [`AtomicError`].
    pub fn swap(&mut self, address: u64, width: Width, value: u64) -> Result<u64, AtomicError> {
        self.update(address, width, |_| Some(value))
    }

    /// Stores a value if another is there; what was there.
    ///
    /// # Errors
    /// [`AtomicError`].
    pub fn compare_exchange(
        &mut self,
        address: u64,
        width: Width,
        expected: u64,
        value: u64,
    ) -> Result<u64, AtomicError> {
        self.update(address, width, |old| (old == expected & width.mask()).then_some(value))
    }

    /// Adds to a value, wrapping; what was there.
    ///
    /// # Errors
    /// [`AtomicError`].
    pub fn fetch_add(&mut self, address: u64, width: Width, value: u64) -> Result<u64, AtomicError> {
        self.update(address, width, |old| Some(old.wrapping_add(value)))
    }

    /// Reads what is to be executed.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn fetch(&mut self, address: u64, buffer: &mut [u8]) -> Result<(), PortError> {
        self.parts(address, buffer.len(), Access::Execute, |words, offset, part| {
            let Some(part) = buffer.get_mut(part) else { return };
            copy_out(words, offset, part);
        })
    }
}

/// How far the value lies from the lowest bits of its word.
fn shift(address: u64, width: Width) -> Result<u32, AtomicError> {
    if !address.is_multiple_of(width as u64) {
        return Err(AtomicError::Misaligned);
    }
    Ok((address % 8) as u32 * 8)
}

/// The word that holds an address of the page.
fn word(words: &Words, address: u64) -> Option<&AtomicU64> {
    words.get((address % PAGE_SIZE / 8) as usize)
}

/// Loads bytes from an offset within the page on: each word once.
fn copy_out(words: &Words, mut offset: usize, mut bytes: &mut [u8]) {
    while let Some(word) = words.get(offset / 8) {
        let count = bytes.len().min(8 - offset % 8);
        let Some((now, rest)) = bytes.split_at_mut_checked(count) else { return };
        let value = word.load(Ordering::Relaxed).to_ne_bytes();
        if let Some(part) = value.get(offset % 8..offset % 8 + count) {
            now.copy_from_slice(part);
        }
        if rest.is_empty() {
            return;
        }
        offset += count;
        bytes = rest;
    }
}

/// Stores bytes from an offset within the page on: whole words by stores, parts of one so that others' bytes stay.
fn store(words: &Words, mut offset: usize, mut bytes: &[u8]) {
    while let Some(word) = words.get(offset / 8) {
        let within = offset % 8;
        let count = bytes.len().min(8 - within);
        let Some((now, rest)) = bytes.split_at_checked(count) else { return };
        if count == 0 {
            return;
        }
        let mut value = [0; 8];
        if let Some(part) = value.get_mut(within..within + count) {
            part.copy_from_slice(now);
        }
        let value = u64::from_ne_bytes(value);
        if count == 8 {
            word.store(value, Ordering::Relaxed);
        } else {
            let mut mask = [0; 8];
            if let Some(part) = mask.get_mut(within..within + count) {
                part.fill(0xff);
            }
            let mask = u64::from_ne_bytes(mask);
            // Never refused.
            let _ =
                word.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |old| Some((old & !mask) | value));
        }
        offset += count;
        bytes = rest;
    }
}

impl<P: Platform, const PORTS: usize> fmt::Debug for Port<'_, P, PORTS> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Port").field("stats", &self.stats).finish_non_exhaustive()
    }
}
