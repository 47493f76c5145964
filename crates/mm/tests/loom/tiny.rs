//! A machine for models: a few frames, tables of two entries, and a processor that goes on storing until the flush is over.

use std::ptr::NonNull;
use std::sync::OnceLock;

use isotherm_mm::{FrameBytes, PageBytes, SwapArea};
use isotherm_page::{Frame, Order, OwnedBlock, PageMeta, Pages};
use isotherm_pagetable::*;
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;

const TABLES: usize = 16;
const PAGES: usize = 6;

/// The first frames are tables, the others pages of one word. Each is given out once.
pub struct Tiny {
    tables: Vec<Table>,
    meta: Vec<PageMeta>,
    words: Vec<AtomicUsize>,
    next_table: AtomicUsize,
    next_page: AtomicUsize,
    pub freed: AtomicUsize,
    /// Accesses of processors that have begun to walk and are not over.
    accesses: AtomicUsize,
    /// A processor has the translation of this page, writable and dirty, and stores 1 there when it is asked to flush.
    stale: AtomicUsize,
    /// Who counts swap entries.
    pub area: OnceLock<&'static SwapArea>,
}

impl Tiny {
    pub fn new() -> Self {
        Self {
            tables: (0..TABLES).map(|_| Table::default()).collect(),
            meta: (0..TABLES + PAGES).map(|_| PageMeta::new()).collect(),
            words: (0..PAGES).map(|_| AtomicUsize::new(0)).collect(),
            next_table: AtomicUsize::new(0),
            next_page: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            accesses: AtomicUsize::new(0),
            stale: AtomicUsize::new(0),
            area: OnceLock::new(),
        }
    }

    pub fn word(&self, frame: Frame) -> &AtomicUsize {
        &self.words[frame.0 as usize - TABLES]
    }

    pub fn given_out(&self) -> usize {
        self.next_page.load(Ordering::Relaxed)
    }

    /// One more store by a translation that is still to be flushed.
    pub fn keep_translation(&self, frame: Frame) {
        self.stale.store(frame.0 as usize, Ordering::Relaxed);
    }

    /// An access of a processor: who flushes waits until it is over.
    pub fn access<R>(&self, act: impl FnOnce() -> R) -> R {
        self.accesses.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let done = act();
        self.accesses.fetch_sub(1, Ordering::SeqCst);
        done
    }
}

// SAFETY: one record a frame.
unsafe impl Pages for Tiny {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.meta.get(frame.0 as usize)
    }
    unsafe fn free(&self, block: OwnedBlock) {
        if block.into_block().frame.0 as usize >= TABLES {
            self.freed.fetch_add(1, Ordering::Relaxed);
        }
    }
    unsafe fn split(&self, _: OwnedBlock, _: Order) {}
}

// SAFETY: tables live as long as the machine.
unsafe impl Memory for Tiny {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        NonNull::from(&self.tables[frame.0 as usize])
    }
    unsafe fn copy(&self, from: Frame, to: Frame, _: u64) {
        self.word(to).store(self.word(from).load(Ordering::Relaxed), Ordering::Relaxed);
    }
    unsafe fn clear(&self, frame: Frame) {
        self.word(frame).store(0, Ordering::Relaxed);
    }
    fn relax(&self, _: u32) {
        thread::yield_now();
    }
}

// SAFETY: every frame is given out once.
unsafe impl Frames for Tiny {
    fn alloc_table(&self) -> Option<Frame> {
        let n = self.next_table.fetch_add(1, Ordering::Relaxed);
        (n < TABLES).then_some(Frame(n as u64))
    }
    unsafe fn retire_table(&self, _: Frame) {}
    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        let n = self.next_page.fetch_add(1, Ordering::Relaxed);
        (order == Order::BASE && n < PAGES).then_some(Frame((TABLES + n) as u64))
    }
    fn share_swap_entry(&self, swap_entry: u64) {
        self.area.get().unwrap().share(swap_entry);
    }
    fn release_swap_entry(&self, swap_entry: u64) {
        self.area.get().unwrap().release(swap_entry);
    }
}

// SAFETY: `sync` waits for every access that began before, and ends the translation that is kept.
unsafe impl Tlb for Tiny {
    type Context = u16;
    fn invalidate_page(&self, _: SpaceId, _: u64) {}
    fn invalidate_range(&self, _: SpaceId, _: Flush) {}
    fn invalidate_space(&self, _: SpaceId) {}
    fn sync(&self) {
        self.access(|| {
            let stale = self.stale.swap(0, Ordering::AcqRel);
            if stale != 0 {
                self.word(Frame(stale as u64)).store(1, Ordering::Relaxed);
            }
        });
        // Entries that changed are seen by whoever walks from here on.
        fence(Ordering::SeqCst);
        while self.accesses.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
    }
}

impl FrameBytes for Tiny {
    fn read_page(&self, frame: Frame, into: &mut PageBytes) {
        into[0] = self.word(frame).load(Ordering::Relaxed) as u8;
    }
    fn write_page(&self, frame: Frame, from: &PageBytes) {
        self.word(frame).store(usize::from(from[0]), Ordering::Relaxed);
    }
}

impl Rcu for Tiny {
    type Guard<'a> = ();
    fn read_lock(&self) {}
}
