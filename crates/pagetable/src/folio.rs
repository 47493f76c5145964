//! Folios: `1 << order` frames, aligned to their size, that are counted as one.
//!
//! The caller keeps one [`FrameMeta`] a frame, 16 bytes. All frames of a folio know its order and how far its head is;
//! the head holds the counts:
//!
//! - `maps`: how many page mappings there are, a huge leaf counting as all its pages;
//! - `refs`: the references that keep the folio alive, one for every page mapping and one for each other holder;
//! - `pins`: holders that do I/O to the memory and so need it to stay where it is.
//!
//! `maps` and `refs` are halves of one word, so a batch moves both with a single atomic addition.

use crate::address::{Frame, TABLE_BITS};
use crate::error::Error;
use crate::machine::{Machine, Memory};
use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The largest order of a folio: 2 MiB, which a PMD leaf maps.
pub const MAX_ORDER: u8 = TABLE_BITS as u8;

/// What a folio is, for copy-on-write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FolioKind {
    /// Anonymous memory.
    Anon,
    /// Pages of a file: the page cache holds them too, so a private write always copies.
    File,
}

const OFFSET: u32 = 0x1ff;
const ORDER_SHIFT: u32 = 9;
const ORDER: u32 = 0xf << ORDER_SHIFT;
const KIND_SHIFT: u32 = 13;
const KIND: u32 = 3 << KIND_SHIFT;
const FREE: u32 = 0 << KIND_SHIFT;
const ANON: u32 = 1 << KIND_SHIFT;
const FILE: u32 = 2 << KIND_SHIFT;
const TABLE: u32 = 3 << KIND_SHIFT;
const DIRTY: u32 = 1 << 15;
const REFERENCED: u32 = 1 << 16;
/// One grant of a page table: see [`Locked::grants`](crate::table::Locked::grants). A frame keeps the count while it is
/// no table, so that two tables that it is one after the other do not have the same.
const GRANT: u32 = 1 << 17;
const GRANTS: u32 = !(GRANT - 1);

/// One reference and one mapping.
const MAPPED: u64 = 1 | 1 << 32;
/// Half of what the count of references can hold: the other half is the room for additions that race.
const MOST_REFERENCES: u32 = 1 << 31;

#[inline]
fn is_folio(info: u32) -> bool {
    info & KIND == ANON || info & KIND == FILE
}

/// What is known of one frame. The caller supplies an array of these, all [`new`](Self::new) (zeroed bytes are that).
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(16)))]
pub struct FrameMeta {
    /// `maps << 32 | refs`, in the head; the pattern of a page table.
    counts: AtomicU64,
    /// Offset in the folio, order, kind; in the head also dirty and referenced. Of a page table kind and grants.
    info: AtomicU32,
    /// Pins of a folio's head; the lock of a page table.
    pub(crate) word: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<FrameMeta>() == 16);

impl FrameMeta {
    /// Of a frame that is free.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> FrameMeta {
        FrameMeta { counts: AtomicU64::new(0), info: AtomicU32::new(FREE), word: AtomicU32::new(0) }
    }

    /// Of a frame that is free.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> FrameMeta {
        FrameMeta { counts: AtomicU64::new(0), info: AtomicU32::new(FREE), word: AtomicU32::new(0) }
    }

    /// Makes a free frame one of a page table, unlocked.
    pub(crate) fn become_table(&self) {
        self.word.store(0, Ordering::Relaxed);
        self.counts.store(0, Ordering::Relaxed);
        self.become_kind(TABLE);
        self.grant();
    }

    /// What the frame is from here on, known to nobody else yet or free.
    fn become_kind(&self, bits: u32) {
        self.info.store(self.info.load(Ordering::Relaxed) & GRANTS | bits, Ordering::Relaxed);
    }

    /// Of a page table, by the holder of its lock: see [`Locked::pattern`](crate::table::Locked::pattern).
    #[inline(always)]
    pub(crate) fn pattern(&self) -> u64 {
        self.counts.load(Ordering::Relaxed)
    }

    #[inline(always)]
    pub(crate) fn set_pattern(&self, raw: u64) {
        self.counts.store(raw, Ordering::Relaxed);
    }

    /// Of a page table, by the holder of its lock: see [`Locked::grants`](crate::table::Locked::grants).
    #[inline]
    pub(crate) fn grants(&self) -> u32 {
        self.info.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn grant(&self) {
        self.info.store(self.grants().wrapping_add(GRANT), Ordering::Relaxed);
    }
}

/// A folio that metadata was found of.
#[derive(Clone, Copy)]
pub struct Folio<'m> {
    head: Frame,
    info: u32,
    offset: u32,
    meta: &'m FrameMeta,
}

impl<'m> Folio<'m> {
    /// Makes `1 << order` free frames from `head` on a folio with one reference, that of the caller.
    ///
    /// # Errors
    /// [`Error::Misaligned`] if the order is above [`MAX_ORDER`] or `head` not aligned to it, [`Error::UnknownFrame`] if
    /// a frame has no metadata; then none of the frames is part of a folio.
    pub fn prepare<M: Memory>(
        memory: &'m M,
        head: Frame,
        order: u8,
        kind: FolioKind,
    ) -> Result<Folio<'m>, Error> {
        if order > MAX_ORDER || head.0 & ((1 << order) - 1) != 0 {
            return Err(Error::Misaligned);
        }
        let bits = u32::from(order) << ORDER_SHIFT | if kind == FolioKind::Anon { ANON } else { FILE };
        let frame = |offset: u32| memory.meta(head.add(u64::from(offset)));
        for offset in 0..1u32 << order {
            let Some(meta) = frame(offset) else {
                (0..offset).filter_map(frame).for_each(|meta| meta.become_kind(FREE));
                return Err(Error::UnknownFrame);
            };
            meta.become_kind(bits | offset);
        }
        let meta = memory.meta(head).ok_or(Error::UnknownFrame)?;
        meta.word.store(0, Ordering::Relaxed);
        meta.counts.store(1, Ordering::Release);
        Ok(Folio { head, info: bits, offset: 0, meta })
    }

    /// The folio that a frame belongs to.
    ///
    /// # Errors
    /// [`Error::UnknownFrame`] if the frame has no metadata, [`Error::NotAFolio`] if it is free or a page table.
    #[inline]
    pub fn of<M: Memory>(memory: &'m M, frame: Frame) -> Result<Folio<'m>, Error> {
        let own = memory.meta(frame).ok_or(Error::UnknownFrame)?;
        let info = own.info.load(Ordering::Relaxed);
        let offset = info & OFFSET;
        if offset == 0 {
            return if is_folio(info) {
                Ok(Folio { head: frame, info, offset, meta: own })
            } else {
                Err(Error::NotAFolio)
            };
        }
        let head = Frame(frame.0 - u64::from(offset));
        let meta = memory.meta(head).ok_or(Error::UnknownFrame)?;
        // Freeing a folio tells only its head: what a tail says counts as long as the head agrees.
        let info = meta.info.load(Ordering::Relaxed);
        if is_folio(info) && offset >> ((info & ORDER) >> ORDER_SHIFT) == 0 {
            Ok(Folio { head, info, offset, meta })
        } else {
            Err(Error::NotAFolio)
        }
    }

    /// The folio of a frame, if its order is 0.
    #[inline(always)]
    pub(crate) fn small<M: Memory>(memory: &'m M, frame: Frame) -> Option<Folio<'m>> {
        let meta = memory.meta(frame)?;
        let info = meta.info.load(Ordering::Relaxed);
        (info & (ORDER | OFFSET) == 0 && is_folio(info)).then_some(Folio {
            head: frame,
            info,
            offset: 0,
            meta,
        })
    }

    /// The first frame.
    #[must_use]
    pub fn head(&self) -> Frame {
        self.head
    }

    /// The order: the folio has `1 << order` frames.
    #[inline]
    #[must_use]
    pub fn order(&self) -> u8 {
        ((self.info & ORDER) >> ORDER_SHIFT) as u8
    }

    /// What it is.
    #[inline]
    #[must_use]
    pub fn kind(&self) -> FolioKind {
        if self.info & KIND == ANON { FolioKind::Anon } else { FolioKind::File }
    }

    /// How many frames there are from the one that was asked for to the folio's end, at least 1.
    #[inline]
    pub(crate) fn remaining(&self) -> usize {
        ((1u32 << self.order()) - self.offset) as usize
    }

    /// References, those of mappings included.
    #[must_use]
    pub fn refs(&self) -> u32 {
        self.meta.counts.load(Ordering::Acquire) as u32
    }

    /// Mappings of pages; a huge leaf counts as all its pages.
    #[must_use]
    pub fn maps(&self) -> u32 {
        (self.meta.counts.load(Ordering::Acquire) >> 32) as u32
    }

    /// Pins.
    #[inline]
    #[must_use]
    pub fn pins(&self) -> u32 {
        self.meta.word.load(Ordering::Relaxed)
    }

    /// Written through a mapping that is gone, since this was last taken.
    #[must_use]
    pub fn take_dirty(&self) -> bool {
        self.meta.info.fetch_and(!DIRTY, Ordering::Relaxed) & DIRTY != 0
    }

    /// Accessed through a mapping that is gone, since this was last taken.
    #[must_use]
    pub fn take_referenced(&self) -> bool {
        self.meta.info.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }

    /// Remembers what the entries said that go.
    #[inline]
    pub(crate) fn mark(&self, dirty: bool, referenced: bool) {
        let bits = if dirty { DIRTY } else { 0 } | if referenced { REFERENCED } else { 0 };
        // Most often it is known already, and then the line stays clean.
        if self.meta.info.load(Ordering::Relaxed) & bits != bits {
            self.meta.info.fetch_or(bits, Ordering::Relaxed);
        }
    }

    /// One reference more, to be given back by [`put`](Self::put). Whoever holds one already, a mapping that cannot go
    /// meanwhile included, can be sure to get it.
    ///
    /// With nothing but a [`lookup`](crate::AddressSpace::lookup) to go by, as a lock-free `get_user_pages` has it, the
    /// folio may be free by now. If the caller's [`Frames::free_folio`](crate::Frames::free_folio) keeps frames from
    /// reuse until the guard of the lookup is gone, this fails then and nothing is harmed; else use
    /// [`reference`](crate::AddressSpace::reference), which looks under the table's lock. After it succeeded look again whether the
    /// page is still mapped to the folio, and give the reference back if not.
    ///
    /// # Errors
    /// [`Error::NotAFolio`] if no reference is left, so that the folio is free; [`Error::TooManyReferences`].
    pub fn get(&self) -> Result<(), Error> {
        let mut counts = self.meta.counts.load(Ordering::Relaxed);
        loop {
            let refs = counts as u32;
            if refs == 0 {
                return Err(Error::NotAFolio);
            }
            if refs >= MOST_REFERENCES - 1 {
                return Err(Error::TooManyReferences);
            }
            let more = counts.wrapping_add(1);
            match self.meta.counts.compare_exchange_weak(counts, more, Ordering::Acquire, Ordering::Relaxed) {
                Ok(_) => return Ok(()),
                Err(now) => counts = now,
            }
        }
    }

    /// `pages` mappings more, each with its reference.
    #[inline]
    pub(crate) fn add_mapped(&self, pages: usize) -> Result<(), Error> {
        self.add(pages as u64 * MAPPED, pages as u32)
    }

    #[inline]
    fn add(&self, bits: u64, refs: u32) -> Result<(), Error> {
        // Relaxed: whoever adds holds a reference already (that of the entry it reads under the lock).
        let before = self.meta.counts.fetch_add(bits, Ordering::Relaxed);
        if (before as u32).saturating_add(refs) >= MOST_REFERENCES {
            self.meta.counts.fetch_sub(bits, Ordering::Relaxed);
            return Err(Error::TooManyReferences);
        }
        Ok(())
    }

    /// Gives back one reference that is no mapping's, and the folio with the last.
    pub fn put<M: Machine>(self, machine: &M) {
        self.sub(machine, 1, 1);
    }

    /// Gives back `pages` mappings with their references, and the folio with the last. No TLB may hold them any more.
    #[inline]
    pub(crate) fn sub_mapped<M: Machine>(self, machine: &M, pages: usize) {
        self.sub(machine, pages as u64 * MAPPED, pages as u32);
    }

    #[inline]
    fn sub<M: Machine>(self, machine: &M, bits: u64, refs: u32) {
        // Release: what this holder did to the memory happens before it is freed. Acquire: so did what others did.
        let before = self.meta.counts.fetch_sub(bits, Ordering::AcqRel);
        debug_assert!(before as u32 >= refs, "reference count of {:?} below zero", self.head);
        if before as u32 == refs {
            self.free(machine);
        }
    }

    #[cold]
    fn free<M: Machine>(self, machine: &M) {
        let order = self.order();
        self.meta.become_kind(FREE);
        machine.free_folio(self.head, order);
    }

    /// Pins the folio; holds a reference as well.
    pub(crate) fn pin(&self) -> Result<(), Error> {
        self.get()?;
        self.meta.word.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Ends a pin of [`AddressSpace::pin`](crate::AddressSpace::pin).
    pub fn unpin<M: Machine>(self, machine: &M) {
        let before = self.meta.word.fetch_sub(1, Ordering::Release);
        debug_assert!(before > 0, "{:?} is not pinned", self.head);
        self.put(machine);
    }
}

/// Whether the aligned contiguous block that starts at `frame` lies within one folio.
pub(crate) fn one_folio<M: Memory>(memory: &M, frame: Frame, pages: usize) -> bool {
    Folio::of(memory, frame).is_ok_and(|folio| folio.remaining() >= pages)
}
