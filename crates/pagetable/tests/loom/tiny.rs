//! A machine for models: a few frames, tables of two entries, and a processor whose stores have begun before they end.

use std::ptr::NonNull;

use isotherm_page::OwnedBlock;
use isotherm_pagetable::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;

use crate::common::{Changed, Wrap, prepare};

const FRAMES: usize = 14;

/// Frames `0..FRAMES/2` are tables, the others pages of one word. Tables are retired and never reused, which is what a
/// guard promises; each keeps a note of that (`reuse.rs` has another machine for that). Of folios for copies there is one, of
/// order 1, and one of order 0 if a model asks for it.
pub struct Tiny {
    tables: Vec<Table>,
    meta: Vec<PageMeta>,
    pub words: Vec<AtomicUsize>,
    next_table: AtomicUsize,
    next_folio: AtomicUsize,
    pub retired: AtomicUsize,
    pub freed: AtomicUsize,
    /// Swap entries that a fork copied.
    pub shared: AtomicUsize,
    /// The page for copies of order 0, until it is allocated.
    spare: AtomicUsize,
    /// What processors hold in their TLBs: translations since whose walk no invalidation was answered.
    translations: AtomicUsize,
}

/// What a page holds once it is free.
pub const FREE: usize = 99;

impl Tiny {
    pub fn new() -> Arc<Tiny> {
        Arc::new(Tiny {
            tables: (0..FRAMES / 2).map(|_| Table::default()).collect(),
            meta: (0..FRAMES).map(|_| PageMeta::new()).collect(),
            words: (0..FRAMES).map(|_| AtomicUsize::new(0)).collect(),
            next_table: AtomicUsize::new(0),
            next_folio: AtomicUsize::new(0),
            retired: AtomicUsize::new(0),
            freed: AtomicUsize::new(0),
            shared: AtomicUsize::new(0),
            spare: AtomicUsize::new(0),
            translations: AtomicUsize::new(0),
        })
    }

    pub fn page(&self, n: usize) -> Frame {
        Frame((FRAMES / 2 + n) as u64)
    }

    /// Where the copy of two pages goes.
    pub fn copies(&self) -> Frame {
        self.page(3)
    }

    /// From here on a page can be copied.
    pub fn allow_a_copy(&self) {
        self.spare.store(1, Ordering::Relaxed);
    }

    /// Where the copy of one page goes.
    pub fn copy_of_one(&self) -> Frame {
        self.page(5)
    }

    /// A processor walks, and goes on with what it found from its TLB, whatever becomes of the entries meanwhile: until it
    /// answers an invalidation, which it does when `f` ends.
    pub fn with_tlb<T>(&self, f: impl FnOnce() -> T) -> T {
        self.translations.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let result = f();
        self.translations.fetch_sub(1, Ordering::SeqCst);
        result
    }

    pub fn word(&self, frame: Frame) -> &AtomicUsize {
        &self.words[frame.0 as usize]
    }

    /// A processor stores 1 in the page, if it may.
    pub fn store<C: Changed>(&self, space: &SpaceOf<C>, page: u64) -> Result<(), Fault> {
        self.with_tlb(|| {
            let frame = space.read().access(VirtAddr::of_page(page), Access::Write)?;
            self.word(frame).store(1, Ordering::Relaxed);
            Ok(())
        })
    }
}

// SAFETY: one record a frame.
unsafe impl Pages for Tiny {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.meta.get(frame.0 as usize)
    }
    unsafe fn free(&self, block: OwnedBlock) {
        let block = block.into_block();
        // Whoever has it next writes to it.
        for frame in 0..block.order.frames() {
            self.word(block.frame.add(frame)).store(FREE, Ordering::Relaxed);
        }
        self.freed.fetch_add(1, Ordering::Relaxed);
    }
    unsafe fn split(&self, _: OwnedBlock, _: Order) {}
}

// SAFETY: tables live as long as the machine.
unsafe impl Memory for Tiny {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        NonNull::from(&self.tables[frame.0 as usize])
    }
    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        for n in 0..frames as usize {
            let word = self.words[from.0 as usize + n].load(Ordering::Relaxed);
            self.words[to.0 as usize + n].store(word, Ordering::Relaxed);
        }
    }
    unsafe fn clear(&self, _: Frame) {}
    fn relax(&self, _: u32) {
        thread::yield_now();
    }
}

// SAFETY: every frame is given out once.
unsafe impl Frames for Tiny {
    fn alloc_table(&self) -> Option<Frame> {
        let n = self.next_table.fetch_add(1, Ordering::Relaxed);
        (n < FRAMES / 2).then_some(Frame(n as u64))
    }
    unsafe fn retire_table(&self, _: Frame) {
        self.retired.fetch_add(1, Ordering::Relaxed);
    }
    fn share_swap_entry(&self, _: u64) {
        self.shared.fetch_add(1, Ordering::Relaxed);
    }
    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        match order.get() {
            0 => (self.spare.swap(0, Ordering::Relaxed) == 1).then(|| self.copy_of_one()),
            1 => (self.next_folio.fetch_add(1, Ordering::Relaxed) == 0).then(|| self.copies()),
            _ => None,
        }
    }
}

// SAFETY: `sync` waits until all processors have dropped what they hold.
unsafe impl Tlb for Tiny {
    type Context = u16;
    fn invalidate_page(&self, _: SpaceId, _: u64) {}
    fn invalidate_range(&self, _: SpaceId, _: Flush) {}
    fn invalidate_space(&self, _: SpaceId) {}
    fn sync(&self) {
        // Entries that changed are seen by whoever walks from here on.
        fence(Ordering::SeqCst);
        while self.translations.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
    }
}

impl Rcu for Tiny {
    type Guard<'a> = ();
    fn read_lock(&self) {}
}

/// x86-64 with two levels, which with tables of two entries translate four pages.
pub struct TwoLevels;

// SAFETY: fewer levels of the same entries.
unsafe impl Changed for TwoLevels {
    type Of = X86_64;
    const NAME: &'static str = "two levels";
    const ROOT: Level = Level::Pmd;
    const LARGEST_LEAF: Level = Level::Pmd;
    fn translates(_: u64, end: u64) -> bool {
        end <= 4
    }
}

/// arm64 with two levels, and contiguous blocks of two entries: a whole table each.
pub struct Blocks;

// SAFETY: fewer levels of the same entries, and blocks that are smaller.
unsafe impl Changed for Blocks {
    type Of = Arm64Hafdbs;
    const NAME: &'static str = "two levels, blocks of two";
    const ROOT: Level = Level::Pmd;
    const LARGEST_LEAF: Level = Level::Pmd;
    const CONTIGUOUS: usize = 2;
    const CONTIGUOUS_PMD: usize = 1;
    fn translates(_: u64, end: u64) -> bool {
        end <= 4
    }
}

pub type SpaceOf<C> = AddressSpace<'static, Wrap<C>, Tiny>;
pub type Space = SpaceOf<TwoLevels>;

pub fn space(machine: &Arc<Tiny>) -> Space {
    space_of(machine, 1)
}

/// The space borrows the machine for good; the `Arc` in the test keeps it.
pub fn space_of<C: Changed>(machine: &Arc<Tiny>, asid: u16) -> SpaceOf<C> {
    // SAFETY: the space is ended before the machine goes, at the end of each model.
    let machine: &'static Tiny = unsafe { &*Arc::as_ptr(machine) };
    SpaceOf::new(machine, asid).unwrap()
}

pub fn one(page: u64) -> PageRange {
    PageRange::with_pages(VirtAddr::of_page(page), 1).unwrap()
}

/// A folio with a reference that is not given back unless it is made a value again.
pub fn folio(machine: &Tiny, n: usize, kind: FolioKind) -> Frame {
    prepare(machine, machine.page(n), 0, kind).unwrap().into_raw()
}
