//! A machine made of ordinary memory: for tests, experiments, emulators, and to see what the operations cost.
//!
//! Physical memory is one zeroed allocation, which the operating system populates as it is touched. TLB operations do
//! nothing but count. Retired tables wait until no guard is left. Frames beyond the memory may be mapped as special ones;
//! the copy of one is zeros. Nothing here executes a privileged instruction.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

use isotherm_page::{Block, Kind, Order, OwnedBlock, PageMeta, Pages, Unique, Unused};

use crate::address::{Frame, PAGE_SIZE, PageRange};
use crate::folio::{Folio, FolioKind, MAX_ORDER};
use crate::machine::{Event, Frames, Memory, Observe, Rcu, SpaceId, Tlb, Tokens};
use crate::table::Table;

/// How many operations of each kind the machine was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// [`Tlb::invalidate_page`].
    pub tlb_pages: u64,
    /// [`Tlb::invalidate_range`].
    pub tlb_ranges: u64,
    /// [`Tlb::invalidate_space`].
    pub tlb_spaces: u64,
    /// [`Tlb::sync`].
    pub tlb_syncs: u64,
    /// Contiguous blocks folded while in use.
    pub folds: u64,
    /// Contiguous blocks unfolded.
    pub unfolds: u64,
    /// Huge leaves split.
    pub splits: u64,
    /// Copies for write faults and pinned pages.
    pub copies: u64,
}

#[derive(Debug, Default)]
struct Counters {
    tlb: [AtomicU64; 4],
    events: [AtomicU64; 4],
}

/// The order of the largest blocks.
const LARGEST: u8 = MAX_ORDER.get();

/// Free blocks by order.
#[derive(Debug, Default)]
struct FreeLists {
    blocks: [Vec<u64>; LARGEST as usize + 1],
    /// Frames in the lists and those that were never used.
    free: u64,
    /// The first frame that was never used.
    unused: u64,
    end: u64,
    retired: Vec<Frame>,
    /// Larger tables, and their orders.
    retired_large: Vec<(Frame, u8)>,
    /// Tables that may still be allocated.
    table_budget: u64,
    /// Folios that may still be allocated by the operations themselves.
    folio_budget: u64,
    tokens: std::collections::HashMap<u64, u64>,
}

impl FreeLists {
    fn take(&mut self, order: u8) -> Option<Frame> {
        if order > LARGEST {
            return None;
        }
        let frame = self.take_block(order)?;
        self.free -= 1 << order;
        Some(Frame(frame))
    }

    fn take_block(&mut self, order: u8) -> Option<u64> {
        // What was split already comes first, so that whole blocks of the largest order last.
        let split = (order..LARGEST).find(|&o| !self.blocks[usize::from(o)].is_empty());
        if let Some(from) = split {
            return self.split_block(from, order);
        }
        if order == LARGEST
            && let Some(block) = self.blocks[usize::from(order)].pop()
        {
            return Some(block);
        }
        if let Some(block) = self.take_unused(LARGEST) {
            self.blocks[usize::from(LARGEST)].push(block);
        } else if let Some(block) = self.take_unused(order) {
            // Of the rest that makes no whole block.
            return Some(block);
        }
        let from = (order..=LARGEST).find(|&o| !self.blocks[usize::from(o)].is_empty())?;
        self.split_block(from, order)
    }

    /// A block that was never used. What its alignment skips goes to the lists.
    fn take_unused(&mut self, order: u8) -> Option<u64> {
        let size = 1u64 << order;
        if self.unused.next_multiple_of(size) + size > self.end {
            return None;
        }
        while !self.unused.is_multiple_of(size) {
            let piece = self.unused.trailing_zeros();
            self.blocks[piece as usize].push(self.unused);
            self.unused += 1 << piece;
        }
        self.unused += size;
        Some(self.unused - size)
    }

    fn split_block(&mut self, from: u8, order: u8) -> Option<u64> {
        let block = self.blocks[usize::from(from)].pop()?;
        for half in order..from {
            self.blocks[usize::from(half)].push(block + (1 << half));
        }
        Some(block)
    }

    fn give(&mut self, frame: Frame, order: u8) {
        self.free += 1 << order;
        self.blocks[usize::from(order)].push(frame.0);
    }
}

/// How often, and after what time each, an allocation looks again whether retired tables can be taken back, if these are
/// all the frames that are left: readers come and go. A reader that itself waits for memory is not waited for for ever.
const PATIENCE: u32 = 5_000;
const WAIT: Duration = Duration::from_micros(100);

/// See the [module](self).
pub struct HostMachine {
    memory: NonNull<u8>,
    allocation: NonNull<u8>,
    layout: Layout,
    frames: u64,
    meta: Box<[PageMeta]>,
    lists: Mutex<FreeLists>,
    readers: RwLock<()>,
    counters: Counters,
    tokens: OnceLock<Arc<dyn Tokens>>,
    tlb: Beside,
}

impl fmt::Debug for HostMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMachine").field("frames", &self.frames).finish_non_exhaustive()
    }
}

/// A TLB that is no part of the machine, if there is one.
#[derive(Default)]
struct Beside(OnceLock<Arc<dyn Tlb + Send + Sync>>);

impl fmt::Debug for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Beside").field(&self.0.get().is_some()).finish()
    }
}

// SAFETY: the memory is owned, and reached through `Table`s of atomics or by `copy`, `clear`, `read` and `write`, whose
// rules are the caller's; all else is `Sync` itself.
unsafe impl Send for HostMachine {}
// SAFETY: as above.
unsafe impl Sync for HostMachine {}

/// Blocks of order 9 are to be aligned in memory too.
const ALIGN: usize = (PAGE_SIZE as usize) << LARGEST;

impl HostMachine {
    /// A machine with this many frames, numbered from 0; frame 0 stays unused. The allocation is populated lazily.
    ///
    /// # Panics
    /// If `frames` is 0 or the bytes of so many frames are no valid size of an allocation.
    #[must_use]
    pub fn new(frames: u64) -> HostMachine {
        assert!(frames > 0, "a machine needs frames");
        let align = if cfg!(miri) { PAGE_SIZE as usize } else { ALIGN };
        let bytes =
            usize::try_from(frames).ok().and_then(|n| n.checked_mul(PAGE_SIZE as usize)?.checked_add(align));
        // Aligned by hand: asked for the alignment, the allocator would write all the zeros itself.
        let layout = Layout::from_size_align(bytes.expect("frames fit into the address space"), 16)
            .expect("a valid size");
        // SAFETY: the size is not zero.
        let allocation =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let skip = allocation.as_ptr().align_offset(align);
        // SAFETY: `align` bytes were added for this.
        let memory = unsafe { allocation.add(skip) };
        let lists = FreeLists {
            free: frames - 1,
            unused: 1,
            end: frames,
            table_budget: u64::MAX,
            folio_budget: u64::MAX,
            ..FreeLists::default()
        };
        HostMachine {
            memory,
            allocation,
            layout,
            frames,
            meta: (0..frames).map(|_| PageMeta::new()).collect(),
            lists: Mutex::new(lists),
            readers: RwLock::new(()),
            counters: Counters::default(),
            tokens: OnceLock::new(),
            tlb: Beside::default(),
        }
    }

    /// Passes on what is said of tokens from here on, to the first for whom this is called.
    pub fn set_tokens(&self, tokens: Arc<dyn Tokens>) {
        let _ = self.tokens.set(tokens);
    }

    /// Passes invalidations on to a TLB, of an emulator say: from now on and for good. `false`, and nothing changes, if there is
    /// one.
    pub fn set_tlb(&self, tlb: Arc<dyn Tlb + Send + Sync>) -> bool {
        self.tlb.0.set(tlb).is_ok()
    }

    fn tlb(&self) -> Option<&(dyn Tlb + Send + Sync)> {
        self.tlb.0.get().map(|tlb| &**tlb)
    }

    fn lists(&self) -> MutexGuard<'_, FreeLists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of the caller's own, of which nothing is made yet. It is free again when the handle, or what was made of it, is
    /// dropped.
    pub fn take(&self, order: Order) -> Option<Unique<'_, HostMachine, Unused>> {
        let block = Block::new(self.take_frames(order.get())?, order);
        // SAFETY: the lists hold each block of this machine's once.
        Some(unsafe { Unique::new(self, OwnedBlock::new(block)) })
    }

    /// A new folio of the caller's own.
    pub fn folio(&self, order: Order, kind: FolioKind) -> Option<Folio<'_, HostMachine>> {
        self.take(order)?.into_folio(kind).ok()
    }

    fn take_frames(&self, order: u8) -> Option<Frame> {
        for _ in 0..PATIENCE {
            let mut lists = self.lists();
            self.reclaim(&mut lists);
            let taken = lists.take(order);
            let waiting =
                if order == 0 { !lists.retired.is_empty() } else { !lists.retired_large.is_empty() };
            if taken.is_some() || !waiting {
                return taken;
            }
            drop(lists);
            std::thread::sleep(WAIT);
        }
        None
    }

    /// How many frames are free, after retired tables are taken back if no guard is left.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        let mut lists = self.lists();
        self.reclaim(&mut lists);
        lists.free
    }

    /// Lets the operations allocate only so many tables and folios more, to see them fail.
    pub fn set_budget(&self, tables: u64, folios: u64) {
        let mut lists = self.lists();
        lists.table_budget = tables;
        lists.folio_budget = folios;
    }

    /// How often each token is held by entries, relative to those that [`map_token`](crate::AddressSpace::map_token)
    /// put there.
    #[must_use]
    pub fn token_balance(&self, token: u64) -> i64 {
        self.lists().tokens.get(&token).map_or(0, |&n| n as i64)
    }

    /// What was asked for so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let tlb = |n: usize| self.counters.tlb[n].load(Ordering::Relaxed);
        let event = |n: usize| self.counters.events[n].load(Ordering::Relaxed);
        Counts {
            tlb_pages: tlb(0),
            tlb_ranges: tlb(1),
            tlb_spaces: tlb(2),
            tlb_syncs: tlb(3),
            folds: event(0),
            unfolds: event(1),
            splits: event(2),
            copies: event(3),
        }
    }

    /// Counts from zero again.
    pub fn reset_counts(&self) {
        for counter in self.counters.tlb.iter().chain(&self.counters.events) {
            counter.store(0, Ordering::Relaxed);
        }
    }

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

    /// Takes retired tables back if there is no reader at this moment: all are then beyond their grace period.
    fn reclaim(&self, lists: &mut FreeLists) {
        if lists.retired.is_empty() && lists.retired_large.is_empty() {
            return;
        }
        let nobody = match self.readers.try_write() {
            Ok(_) | Err(TryLockError::Poisoned(_)) => true,
            Err(TryLockError::WouldBlock) => false,
        };
        if nobody {
            // The last first, so that the next space gets them in the order in which the last one had them.
            for frame in std::mem::take(&mut lists.retired).into_iter().rev() {
                lists.give(frame, 0);
            }
            for (frame, order) in std::mem::take(&mut lists.retired_large).into_iter().rev() {
                lists.give(frame, order);
            }
        }
    }
}

impl Drop for HostMachine {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; addresses into it do not outlive the machine.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) };
    }
}

// SAFETY: metadata is one array.
unsafe impl Pages for HostMachine {
    #[inline]
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.meta.get(usize::try_from(frame.0).ok()?)
    }

    unsafe fn free(&self, block: OwnedBlock) {
        let block = block.into_block();
        self.lists().give(block.frame, block.order.get());
    }
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
}

// SAFETY: the lists hold each frame once and blocks aligned to their order; retired tables wait for `reclaim`.
unsafe impl Frames for HostMachine {
    fn alloc_table(&self) -> Option<Frame> {
        let mut frame = [Frame(0)];
        (self.alloc_tables(&mut frame) == 1).then_some(frame[0])
    }

    fn alloc_tables(&self, into: &mut [Frame]) -> usize {
        let mut lists = self.lists();
        for (count, slot) in into.iter_mut().enumerate() {
            let Some(budget) = lists.table_budget.checked_sub(1) else { return count };
            lists.table_budget = budget;
            if lists.blocks[0].is_empty() {
                self.reclaim(&mut lists);
            }
            let Some(frame) = lists.take(0) else {
                if count > 0 {
                    return count;
                }
                drop(lists);
                let Some(frame) = self.take_frames(0) else { return 0 };
                *slot = frame;
                return 1;
            };
            *slot = frame;
        }
        into.len()
    }

    unsafe fn retire_table(&self, frame: Frame) {
        self.lists().retired.push(frame);
    }

    fn alloc_table_of(&self, order: Order) -> Option<Frame> {
        let mut lists = self.lists();
        lists.table_budget = lists.table_budget.checked_sub(1)?;
        drop(lists);
        self.take_frames(order.get())
    }

    unsafe fn retire_table_of(&self, frame: Frame, order: Order) {
        if order == Order::BASE {
            self.lists().retired.push(frame);
        } else {
            self.lists().retired_large.push((frame, order.get()));
        }
    }

    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        let mut lists = self.lists();
        lists.folio_budget = lists.folio_budget.checked_sub(1)?;
        drop(lists);
        self.take_frames(order.get())
    }

    fn share_token(&self, token: u64) {
        let mut lists = self.lists();
        let held = lists.tokens.entry(token).or_default();
        *held = held.wrapping_add(1);
        drop(lists);
        if let Some(tokens) = self.tokens.get() {
            tokens.share(token);
        }
    }

    fn release_token(&self, token: u64) {
        let mut lists = self.lists();
        let held = lists.tokens.entry(token).or_default();
        *held = held.wrapping_sub(1);
        drop(lists);
        if let Some(tokens) = self.tokens.get() {
            tokens.release(token);
        }
    }
}

// SAFETY: there is no TLB but the one beside, which does what is asked.
unsafe impl Tlb for HostMachine {
    fn invalidate_page(&self, space: SpaceId, page: u64) {
        self.counters.tlb[0].fetch_add(1, Ordering::Relaxed);
        if let Some(tlb) = self.tlb() {
            tlb.invalidate_page(space, page);
        }
    }

    fn invalidate_range(&self, space: SpaceId, range: PageRange, tables: bool) {
        self.counters.tlb[1].fetch_add(1, Ordering::Relaxed);
        if let Some(tlb) = self.tlb() {
            tlb.invalidate_range(space, range, tables);
        }
    }

    fn invalidate_space(&self, space: SpaceId) {
        self.counters.tlb[2].fetch_add(1, Ordering::Relaxed);
        if let Some(tlb) = self.tlb() {
            tlb.invalidate_space(space);
        }
    }

    fn sync(&self) {
        self.counters.tlb[3].fetch_add(1, Ordering::Relaxed);
        if let Some(tlb) = self.tlb() {
            tlb.sync();
        }
    }
}

impl Rcu for HostMachine {
    type Guard<'a> = RwLockReadGuard<'a, ()>;

    #[inline]
    fn read_lock(&self) -> Self::Guard<'_> {
        // Nobody ever waits to write, so readers may nest.
        self.readers.read().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Observe for HostMachine {
    fn event(&self, event: Event) {
        let n = match event {
            Event::Fold => 0,
            Event::Unfold => 1,
            Event::Split => 2,
            Event::Copy => 3,
        };
        self.counters.events[n].fetch_add(1, Ordering::Relaxed);
    }
}
