//! The memory of the machine: as the operations reach it, and as safe code may.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use isotherm_page::{Block, Kind, Order, OwnedBlock, PageMeta, Pages, Unique, Unused};

use super::HostMachine;
use crate::address::{Frame, PAGE_SIZE};
use crate::folio::Folio;
use crate::machine::{Event, Memory};
use crate::table::Table;

impl HostMachine {
    /// The word at a physical address (a multiple of 8), as a load of the CPU reads it. `None` outside of memory, and where
    /// neither a folio nor reserved memory is: page tables are read by their operations only.
    ///
    /// For that time it holds a reference to the folio: the frame becomes nothing else meanwhile.
    #[must_use]
    pub fn read(&self, address: u64) -> Option<u64> {
        let _held = self.hold(Frame::containing(address))?;
        Some(self.word(address)?.load(Ordering::Relaxed))
    }

    /// Writes the word at a physical address (a multiple of 8). `None` where [`read`](Self::read) says so.
    pub fn write(&self, address: u64, value: u64) -> Option<()> {
        let _held = self.hold(Frame::containing(address))?;
        self.word(address)?.store(value, Ordering::Relaxed);
        Some(())
    }

    /// The bytes of a frame. `None` where [`read`](Self::read) says so.
    pub fn read_page(&self, frame: Frame, into: &mut [u8; PAGE_SIZE as usize]) -> Option<()> {
        let _held = self.hold(frame)?;
        for (bytes, word) in into.as_chunks_mut().0.iter_mut().zip(self.words(frame)) {
            *bytes = word.load(Ordering::Relaxed).to_ne_bytes();
        }
        Some(())
    }

    /// Writes the bytes of a frame. `None` where [`read`](Self::read) says so.
    pub fn write_page(&self, frame: Frame, from: &[u8; PAGE_SIZE as usize]) -> Option<()> {
        let _held = self.hold(frame)?;
        for (bytes, word) in from.as_chunks().0.iter().zip(self.words(frame)) {
            word.store(u64::from_ne_bytes(*bytes), Ordering::Relaxed);
        }
        Some(())
    }

    /// Writes the first word of each page of a block that is nothing yet: what is found there then was never written since, and
    /// the operating system has memory there.
    pub fn fill(block: &mut Unique<'_, HostMachine, Unused>, value: u64) {
        for page in 0..block.order().frames() {
            if let Some(word) = block.pages().word(block.frame().add(page).address()) {
                word.store(value, Ordering::Relaxed);
            }
        }
    }

    /// Keeps the memory of a frame what it is, if safe code may access it at all.
    fn hold(&self, frame: Frame) -> Option<Option<Folio<'_, HostMachine>>> {
        match self.meta(frame)?.kind() {
            // For good, as far as safe code goes.
            Kind::Reserved => Some(None),
            _ => Folio::get(self, frame).ok().map(Some),
        }
    }

    fn word(&self, address: u64) -> Option<&AtomicU64> {
        if !address.is_multiple_of(8) || address >= self.frames * PAGE_SIZE {
            return None;
        }
        // SAFETY: inside the allocation, aligned, and all access to frames is atomic.
        Some(unsafe { self.memory.add(address as usize).cast::<AtomicU64>().as_ref() })
    }

    fn words(&self, frame: Frame) -> &[AtomicU64] {
        assert!(frame.0 < self.frames, "{frame:?} is outside of memory");
        // SAFETY: inside the allocation, aligned, and all access to frames is atomic.
        unsafe {
            let first = self.memory.add((frame.0 * PAGE_SIZE) as usize).cast::<AtomicU64>();
            std::slice::from_raw_parts(first.as_ptr(), PAGE_SIZE as usize / 8)
        }
    }
}

// SAFETY: metadata is one array.
unsafe impl Pages for HostMachine {
    #[inline]
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        // SAFETY: there are `frames` records, as long as the machine lives.
        (frame.0 < self.frames).then(|| unsafe { self.metas.add(frame.0 as usize).as_ref() })
    }

    #[inline]
    fn metas(&self, block: Block) -> Option<&[PageMeta]> {
        let frames = block.order.frames();
        if frames > self.frames || block.frame.0 > self.frames - frames {
            return None;
        }
        // SAFETY: as in `meta`.
        Some(unsafe {
            std::slice::from_raw_parts(self.metas.add(block.frame.0 as usize).as_ptr(), frames as usize)
        })
    }

    unsafe fn free(&self, block: OwnedBlock) {
        let block = block.into_block();
        self.lists().give(block.frame, block.order.get());
    }

    /// A block of any order is taken back.
    unsafe fn split(&self, _: OwnedBlock, _: Order) {}
}

// SAFETY: a frame is always the same page of one allocation, which lives as long as the machine. Beyond it there is no memory
// that a mapping could harm.
unsafe impl Memory for HostMachine {
    #[inline]
    fn table(&self, frame: Frame) -> NonNull<Table> {
        assert!(frame.0 < self.frames, "{frame:?} is outside of memory");
        // SAFETY: inside the allocation.
        unsafe { self.memory.add((frame.0 * PAGE_SIZE) as usize).cast() }
    }

    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        for n in 0..frames {
            if from.add(n).0 >= self.frames {
                // A device's, of which there are none here.
                // SAFETY: nobody else reaches the frame at `to`, the caller says.
                unsafe { self.clear(to.add(n)) };
                continue;
            }
            let (from, to) = (self.words(from.add(n)), self.words(to.add(n)));
            if cfg!(miri) {
                // Word by word an interpreter takes minutes for a folio.
                // SAFETY: both are whole frames; nobody reaches the target, and under Miri nobody writes the source.
                unsafe { to.as_ptr().cast_mut().copy_from_nonoverlapping(from.as_ptr(), to.len()) };
                continue;
            }
            for (from, to) in from.iter().zip(to) {
                to.store(from.load(Ordering::Relaxed), Ordering::Relaxed);
            }
        }
    }

    unsafe fn clear(&self, frame: Frame) {
        let words = self.words(frame);
        if cfg!(miri) {
            // SAFETY: a whole frame, which nobody else reaches; zeros are atomic words.
            unsafe { words.as_ptr().cast_mut().write_bytes(0, words.len()) };
            return;
        }
        for word in words {
            word.store(0, Ordering::Relaxed);
        }
    }

    fn is_device(&self, frame: Frame) -> bool {
        frame.0 >= self.frames
    }

    fn relax(&self, tries: u32) {
        if tries < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    fn event(&self, event: Event) {
        self.counters.count(event);
    }
}
