//! Tables that are reused: the frame of a retired table becomes another's as soon as no guard is left that could know it.

use std::ptr::NonNull;

use isotherm_page::OwnedBlock;
use isotherm_pagetable::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering, fence};
use loom::thread;

use super::both;
use crate::common::Wrap;
use crate::tiny::{Tiny, TwoLevels, folio, one};

/// [`Tiny`], with grace periods, whose last retired table is the first that is allocated again.
struct Reusing {
    tiny: Arc<Tiny>,
    guards: AtomicUsize,
    /// The frame, and 1.
    retired: AtomicUsize,
    reused: AtomicUsize,
}

type Space = AddressSpace<'static, Wrap<TwoLevels>, Reusing>;

impl Reusing {
    fn new() -> Arc<Self> {
        let [guards, retired, reused] = [0; 3].map(AtomicUsize::new);
        Arc::new(Reusing { tiny: Tiny::new(), guards, retired, reused })
    }
}

fn space(machine: &Arc<Reusing>) -> Arc<Space> {
    // SAFETY: the space is ended before the machine goes, at the end of each model.
    Arc::new(Space::new(unsafe { &*Arc::as_ptr(machine) }, 1).unwrap())
}

struct Section<'a>(&'a AtomicUsize);

impl Drop for Section<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Rcu for Reusing {
    type Guard<'a> = Section<'a>;
    fn read_lock(&self) -> Section<'_> {
        self.guards.fetch_add(1, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        Section(&self.guards)
    }
}

// SAFETY: as `Tiny`, but a retired table is handed out again: when no guard is left, after it was unlinked.
unsafe impl Frames for Reusing {
    fn alloc_table(&self) -> Option<Frame> {
        fence(Ordering::SeqCst);
        if self.guards.load(Ordering::SeqCst) == 0 {
            let retired = self.retired.swap(0, Ordering::AcqRel);
            if retired != 0 {
                self.reused.fetch_add(1, Ordering::Relaxed);
                return Some(Frame(retired as u64 - 1));
            }
        }
        self.tiny.alloc_table()
    }
    unsafe fn retire_table(&self, frame: Frame) {
        self.retired.store(frame.0 as usize + 1, Ordering::Release);
    }
    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        self.tiny.alloc_folio(order)
    }
}

// SAFETY: all is forwarded to a machine that keeps the rules.
unsafe impl Pages for Reusing {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.tiny.meta(frame)
    }
    unsafe fn free(&self, block: OwnedBlock) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.tiny.free(block) };
    }
    unsafe fn split(&self, block: OwnedBlock, order: Order) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.tiny.split(block, order) };
    }
}

// SAFETY: as above.
unsafe impl Memory for Reusing {
    fn table(&self, frame: Frame) -> NonNull<Table> {
        self.tiny.table(frame)
    }
    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.tiny.copy(from, to, frames) };
    }
    unsafe fn clear(&self, frame: Frame) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.tiny.clear(frame) };
    }
    fn relax(&self, tries: u32) {
        self.tiny.relax(tries);
    }
}

// SAFETY: as above.
unsafe impl Tlb for Reusing {
    type Context = u16;
    fn invalidate_page(&self, _: SpaceId, _: u64) {}
    fn invalidate_range(&self, _: SpaceId, _: Flush) {}
    fn invalidate_space(&self, _: SpaceId) {}
    fn sync(&self) {
        self.tiny.sync();
    }
}

/// Explored with so many preemptions at the most: there are two operations with locks, guards and tables on one side.
fn bounded(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(f);
}

fn frame_at(space: &Space, page: u64) -> Option<Frame> {
    match space.query(VirtAddr::of_page(page)) {
        Mapping::Page { frame, .. } => Some(frame),
        _ => None,
    }
}

/// Page 0 goes with its table, and page 2 comes, whose table may be the same frame; who looks for page 0 meanwhile finds it or
/// nothing, never what the table is for by then.
#[test]
fn a_lookup_finds_nothing_in_what_became_another_table() {
    // Nobody is in a section in the first run, so there the table is reused.
    bounded(4, || {
        let machine = Reusing::new();
        let space = space(&machine);
        let frames = [folio(&machine.tiny, 0, FolioKind::Anon), folio(&machine.tiny, 1, FolioKind::Anon)];
        space.map(one(0), frames[0], Attributes::anonymous(), Level::Pte).unwrap();
        let looking = {
            let space = space.clone();
            thread::spawn(move || match space.read().lookup(VirtAddr(0)) {
                Mapping::None => None,
                Mapping::Page { frame, .. } => Some(frame),
                Mapping::SwapEntry(_) => panic!("a swap entry"),
            })
        };
        space.unmap(both(), &mut space.gather(&mut [])).unwrap();
        space.map(one(2), frames[1], Attributes::anonymous(), Level::Pte).unwrap();
        let found = looking.join().unwrap();
        assert!(found.is_none() || found == Some(frames[0]), "{found:?}");
        assert_eq!((frame_at(&space, 0), frame_at(&space, 2)), (None, Some(frames[1])));
        assert!(machine.reused.load(Ordering::Relaxed) <= 1);
    });
}

/// As above, and the other one maps page 1: into the old table before it goes, or into a new one, never into that of page 2.
#[test]
fn what_waits_for_a_tables_lock_does_not_change_what_it_became() {
    bounded(3, || {
        let machine = Reusing::new();
        let space = space(&machine);
        let frames = [0, 1, 2].map(|n| folio(&machine.tiny, n, FolioKind::Anon));
        space.map(one(0), frames[0], Attributes::anonymous(), Level::Pte).unwrap();
        let mapping = {
            let space = space.clone();
            thread::spawn(move || {
                space.map(one(1), frames[2], Attributes::anonymous(), Level::Pte).unwrap();
            })
        };
        space.unmap(both(), &mut space.gather(&mut [])).unwrap();
        space.map(one(2), frames[1], Attributes::anonymous(), Level::Pte).unwrap();
        mapping.join().unwrap();
        assert_eq!((frame_at(&space, 0), frame_at(&space, 3)), (None, None));
        assert_eq!(frame_at(&space, 2), Some(frames[1]));
        let last = FolioView::of(&*machine, frames[2]).unwrap();
        let there = frame_at(&space, 1) == Some(frames[2]);
        assert_eq!((last.maps(), last.refs()), if there { (1, 2) } else { (0, 1) });
    });
}

/// An operation on page 0 that found its table before that went changes it there, or nothing: page 2 stays what it is.
#[test]
fn what_waits_to_protect_a_page_protects_no_other() {
    bounded(3, || {
        let machine = Reusing::new();
        let space = space(&machine);
        let frames = [0, 1].map(|n| folio(&machine.tiny, n, FolioKind::Anon));
        space.map(one(0), frames[0], Attributes::anonymous(), Level::Pte).unwrap();
        let protecting = {
            let space = space.clone();
            thread::spawn(move || {
                space.write_protect(one(0), &mut space.gather(&mut [])).unwrap();
            })
        };
        space.unmap(both(), &mut space.gather(&mut [])).unwrap();
        space.map(one(2), frames[1], Attributes::anonymous(), Level::Pte).unwrap();
        protecting.join().unwrap();
        let Mapping::Page { frame, attributes, .. } = space.query(VirtAddr::of_page(2)) else { panic!() };
        assert_eq!((frame, attributes), (frames[1], Attributes::anonymous()));
    });
}

/// The models above are worth what they reuse: without anybody beside, the table is.
#[test]
fn a_table_is_reused_when_nobody_looks() {
    bounded(0, || {
        let machine = Reusing::new();
        let space = space(&machine);
        let frames = [folio(&machine.tiny, 0, FolioKind::Anon), folio(&machine.tiny, 1, FolioKind::Anon)];
        space.map(one(0), frames[0], Attributes::anonymous(), Level::Pte).unwrap();
        space.unmap(both(), &mut space.gather(&mut [])).unwrap();
        space.map(one(2), frames[1], Attributes::anonymous(), Level::Pte).unwrap();
        assert_eq!(machine.reused.load(Ordering::Relaxed), 1);
    });
}
