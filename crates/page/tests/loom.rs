//! References taken without a lock, and the lock of a table, in every interleaving:
//! `RUSTFLAGS='--cfg loom -C debug-assertions' cargo test --release -p isotherm-page --test loom`.
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::Arc;

use isotherm_page::*;
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

/// Two pages with contents: what is freed is marked so, and whoever refers to a page looks whether it is.
struct Machine {
    metas: [PageMeta; 2],
    contents: [UnsafeCell<u64>; 2],
    freed: AtomicUsize,
}

// SAFETY: the contents are accessed by whoever refers to the page, or owns it.
unsafe impl Sync for Machine {}

// SAFETY: one record a frame.
unsafe impl Pages for Machine {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.metas.get(frame.0 as usize)
    }

    unsafe fn free(&self, block: OwnedBlock) {
        for n in 0..block.order.frames() {
            // SAFETY: loom checks that nobody else accesses it.
            self.contents[(block.frame.0 + n) as usize].with_mut(|page| unsafe { *page = 0 });
        }
        self.freed.fetch_add(1, Ordering::Release);
        let _ = block.into_block();
    }
    unsafe fn split(&self, _: OwnedBlock, _: Order) {}
}

impl Machine {
    fn new() -> Arc<Machine> {
        Arc::new(Machine {
            metas: [PageMeta::new(), PageMeta::new()],
            contents: [UnsafeCell::new(1), UnsafeCell::new(1)],
            freed: AtomicUsize::new(0),
        })
    }

    fn folio(&self, order: u8) -> Folio<'_, Machine> {
        let block = Block::new(Frame(0), Order::new(order).unwrap());
        // SAFETY: the models use each block once at a time.
        unsafe { Folio::new(self, OwnedBlock::new(block), FolioKind::Anon) }.unwrap()
    }

    /// Makes frame 0 a table.
    fn table(&self) -> &TableMeta {
        let block = Block::new(Frame(0), Order::BASE);
        // SAFETY: the page is free, and nobody else takes it.
        let unused = unsafe { Unique::new(self, OwnedBlock::new(block)) };
        let _linked = unused.into_table().unwrap().into_raw();
        // SAFETY: it is a table.
        unsafe { self.metas[0].table() }
    }

    /// Looks at what a frame holds, if there is a folio to refer to.
    fn look(&self, frame: Frame) -> Option<u64> {
        let folio = Folio::get(self, frame).ok()?;
        // SAFETY: the reference keeps the page; loom checks that it is not freed meanwhile.
        let seen = self.contents[frame.0 as usize].with(|page| unsafe { *page });
        drop(folio);
        Some(seen)
    }
}

/// Whoever gets a reference by a stale look finds memory that is not freed, and it is freed once.
#[test]
fn a_reference_is_taken_before_the_last_goes_or_not_at_all() {
    loom::model(|| {
        let machine = Machine::new();
        std::mem::forget(machine.folio(1));
        let other = machine.clone();
        let there = thread::spawn(move || {
            // SAFETY: the reference that was forgotten above.
            unsafe { drop_first(&other) };
        });
        assert!(machine.look(Frame(1)).is_none_or(|seen| seen == 1));
        there.join().unwrap();
        assert_eq!(machine.freed.load(Ordering::Relaxed), 1);
    });
}

/// # Safety
/// A reference of the folio at frame 0 was forgotten.
unsafe fn drop_first(machine: &Machine) {
    let held = Folio::get(machine, Frame(0)).unwrap();
    // SAFETY: each is a reference: the one that was just taken, and the one that was forgotten.
    let forgotten: Folio<'_, Machine> = unsafe { std::ptr::read(&held) };
    drop(held);
    drop(forgotten);
}

/// Pages are mapped by a stale look while the last reference goes: the mappings keep the folio, or there are none.
#[test]
fn a_mapping_is_added_before_the_last_reference_goes_or_not_at_all() {
    loom::model(|| {
        let machine = Machine::new();
        std::mem::forget(machine.folio(1));
        let view = FolioView::of(&*machine, Frame(0)).unwrap();
        let other = machine.clone();
        let there = thread::spawn(move || {
            // SAFETY: the reference that was forgotten above.
            unsafe { drop_first(&other) };
        });
        // SAFETY: they are given back below.
        match unsafe { view.try_add_mapped(&*machine, 2) } {
            Ok(()) => {
                // SAFETY: the mappings keep the page; loom checks that it is not freed meanwhile.
                assert_eq!(machine.contents[1].with(|page| unsafe { *page }), 1);
                // SAFETY: these were added above.
                unsafe { view.sub_mapped(&*machine, 2) };
            }
            Err(why) => assert_eq!(why, PageError::NotAFolio),
        }
        there.join().unwrap();
        assert_eq!(machine.freed.load(Ordering::Relaxed), 1);
    });
}

/// The only holder takes the block out of the folio, and writes to it, while a stale look tries to refer to it.
#[test]
fn a_folio_ends_by_its_only_holder_or_goes_on() {
    loom::model(|| {
        let machine = Machine::new();
        let folio = machine.folio(0);
        let other = machine.clone();
        let there = thread::spawn(move || other.look(Frame(0)));
        match folio.into_unused() {
            Ok(unused) => {
                // SAFETY: the block is the model's alone; loom checks that nobody reads it.
                machine.contents[0].with_mut(|page| unsafe { *page = 2 });
                drop(unused);
            }
            Err(folio) => drop(folio),
        }
        assert!(there.join().unwrap().is_none_or(|seen| seen == 1));
        assert_eq!(machine.freed.load(Ordering::Relaxed), 1);
    });
}

/// A folio of two is split while a stale look refers to its second page: the look gets a reference to the folio, and it stays
/// whole, or to the second piece, or none. What it refers to is not freed meanwhile, and each page is freed once.
#[test]
fn a_look_finds_the_folio_or_a_piece_of_it() {
    for seen in [Frame(0), Frame(1)] {
        loom::model(move || {
            let machine = Machine::new();
            let folio = machine.folio(1);
            let other = machine.clone();
            let there = thread::spawn(move || {
                let found = Folio::get(&*other, seen).ok()?;
                assert_eq!(found.frame(), seen);
                // SAFETY: the reference keeps the page; loom checks that it is not freed meanwhile.
                let contents = other.contents[seen.0 as usize].with(|page| unsafe { *page });
                Some((found.order().get(), found.head(), contents))
            });
            let split = match folio.split(Order::BASE) {
                // The pieces are freed.
                Ok(pieces) => pieces.map(drop).count(),
                Err((why, folio)) => {
                    assert_eq!(why, PageError::Referenced);
                    drop(folio);
                    1
                }
            };
            if let Some((order, head, contents)) = there.join().unwrap() {
                assert_eq!((order, head), if order == 0 { (0, seen) } else { (1, Frame(0)) });
                assert_eq!(contents, 1);
            }
            assert_eq!(machine.freed.load(Ordering::Relaxed), split);
        });
    }
}

/// Pages are mapped by a stale look while the folio is split: as one of the folio, which stays whole, or not at all.
#[test]
fn a_mapping_that_comes_during_a_split_is_of_the_folio_or_fails() {
    loom::model(|| {
        let machine = Machine::new();
        let folio = machine.folio(1);
        let other = machine.clone();
        let there = thread::spawn(move || {
            let Ok(view) = FolioView::of(&*other, Frame(1)) else { return false };
            let order = view.order().get();
            // SAFETY: it is given back below.
            if unsafe { view.try_add_mapped(&*other, 1) }.is_err() {
                return false;
            }
            let now = FolioView::of(&*other, Frame(1)).unwrap();
            assert_eq!((now.order().get(), now.head()), (order, view.head()));
            // SAFETY: it was added above.
            unsafe { now.sub_mapped(&*other, 1) };
            true
        });
        let split = folio.split(Order::BASE).map(|pieces| pieces.map(std::mem::forget).count());
        there.join().unwrap();
        for frame in [Frame(0), Frame(1)] {
            let view = FolioView::of(&*machine, frame).unwrap();
            assert_eq!((view.refs(), view.maps()), (1, 0));
            assert_eq!(view.order().get(), u8::from(split.is_err()));
        }
    });
}

/// Whoever holds a pin writes to the page; whoever holds a reference and finds no pin, as a collapse does, copies it.
#[test]
fn what_was_written_under_a_pin_is_seen_when_there_is_none() {
    loom::model(|| {
        let machine = Machine::new();
        let folio = machine.folio(0);
        std::mem::forget(Folio::get(&*machine, Frame(0)).unwrap().pin());
        let other = machine.clone();
        let there = thread::spawn(move || {
            // SAFETY: the page is pinned; loom checks that nobody reads it meanwhile.
            other.contents[0].with_mut(|page| unsafe { *page = 2 });
            let pinned = Folio::get(&*other, Frame(0)).unwrap().pin();
            // SAFETY: the pin that was forgotten above.
            let forgotten: Pinned<'_, Machine> = unsafe { std::ptr::read(&pinned) };
            drop(pinned);
            drop(forgotten);
        });
        if folio.pins() == 0 {
            // SAFETY: the reference keeps the page; loom checks that nobody writes to it.
            assert_eq!(machine.contents[0].with(|page| unsafe { *page }), 2);
        }
        there.join().unwrap();
        assert_eq!((folio.pins(), folio.refs()), (0, 1));
    });
}

/// Write-back takes the dirty mark and reads the page, while a mapping that has written to it goes, and marks it once more: what
/// was written is read, or the mark is there for the next.
#[test]
fn what_was_written_before_a_mark_is_read_by_who_takes_it() {
    loom::model(|| {
        let (machine, written) = (Machine::new(), Arc::new(AtomicUsize::new(0)));
        let folio = machine.folio(0);
        // SAFETY: the model holds a reference. The mapping is given back below.
        unsafe {
            folio.mark(true, true);
            folio.add_mapped(1).unwrap();
        }
        let (other, word) = (machine.clone(), written.clone());
        let there = thread::spawn(move || {
            let mapped = FolioView::of(&*other, Frame(0)).unwrap();
            word.store(1, Ordering::Relaxed);
            // SAFETY: the mapping of above, which nothing else gives back.
            unsafe {
                mapped.mark(true, true);
                mapped.sub_mapped(&*other, 1);
            }
        });
        // Who finds no other reference, as reclaim must, finds whatever those that are gone have left.
        let alone = folio.refs() == 1;
        let taken = folio.take_dirty();
        let read = written.load(Ordering::Relaxed);
        assert!(taken, "it was marked before");
        assert!(!alone || read == 1);
        there.join().unwrap();
        assert!(read == 1 || folio.take_dirty(), "written, and neither read nor marked");
    });
}

/// Mappings that turn out to be too many are taken off again; meanwhile the folio is one for everybody else.
#[test]
fn a_failing_addition_makes_the_folio_no_other_page() {
    loom::model(|| {
        let machine = Machine::new();
        let folio = machine.folio(0);
        // SAFETY: the model holds a reference, and gives these back below.
        unsafe { folio.add_mapped(512) }.unwrap();
        let other = machine.clone();
        let there = thread::spawn(move || {
            let view = FolioView::of(&*other, Frame(0)).unwrap();
            // SAFETY: the reference of the model's is held until this thread has ended.
            unsafe { view.add_mapped(512) }
        });
        match Folio::get(&*machine, Frame(0)) {
            Ok(_) => {}
            Err(why) => assert_eq!(why, PageError::TooManyReferences),
        }
        assert_eq!(there.join().unwrap(), Err(PageError::TooManyReferences));
        assert_eq!((folio.refs(), folio.maps()), (513, 512));
        // SAFETY: these were added above.
        unsafe { folio.view().sub_mapped(&*machine, 512) };
        drop(folio);
        assert_eq!(machine.freed.load(Ordering::Relaxed), 1);
    });
}

/// The folio is freed and its frames are made two smaller ones: a stale look gets one of what there was, of what there is,
/// or nothing.
#[test]
fn a_reference_is_to_what_the_frame_is_part_of() {
    loom::model(|| {
        let machine = Machine::new();
        std::mem::forget(machine.folio(1));
        let other = machine.clone();
        let there = thread::spawn(move || {
            // SAFETY: the reference that was forgotten above.
            unsafe { drop_first(&other) };
            // Unless the other thread has a reference still.
            let freed = other.freed.load(Ordering::Acquire) == 1;
            if freed {
                std::mem::forget(other.folio(0));
            }
            freed
        });
        if let Ok(folio) = Folio::get(&*machine, Frame(1)) {
            assert_eq!((folio.head(), folio.order().get(), folio.frame()), (Frame(0), 1, Frame(1)));
        }
        let remade = there.join().unwrap();
        assert_eq!(machine.freed.load(Ordering::Relaxed), 1);
        match FolioView::of(&*machine, Frame(0)) {
            // What was taken by mistake is given back.
            Ok(small) => assert_eq!((remade, small.order().get(), small.refs()), (true, 0, 1)),
            Err(why) => assert_eq!((remade, why), (false, PageError::NotAFolio)),
        }
    });
}

/// The frame is made a page table, whose progression a stale look must not count up.
#[test]
fn a_stale_look_changes_no_table() {
    loom::model(|| {
        let machine = Machine::new();
        std::mem::forget(machine.folio(0));
        let other = machine.clone();
        let there = thread::spawn(move || {
            // SAFETY: the reference that was forgotten above.
            unsafe { drop_first(&other) };
            // Unless the other thread has a reference still.
            let freed = other.freed.load(Ordering::Acquire) == 1;
            if freed {
                let table = other.table();
                // SAFETY: there are no entries.
                unsafe { table.try_lock().unwrap().remember(0x1001) };
            }
            freed
        });
        let _ = machine.look(Frame(0));
        if there.join().unwrap() {
            // SAFETY: it is a table since above.
            assert_eq!(unsafe { machine.metas[0].table() }.progression(), 0x1001);
        }
    });
}

/// Two threads change a table's sequence and what it stands for, under the lock; the second finds the table stale if the first
/// unlinked it.
#[test]
fn a_table_is_one_threads_at_a_time() {
    loom::model(|| {
        let machine = Machine::new();
        let before = machine.table().try_lock().unwrap().sequence();
        let change = |machine: &Machine| {
            // SAFETY: it is a table.
            let table = unsafe { machine.metas[0].table() };
            let guard = loop {
                match table.try_lock() {
                    Ok(guard) => break guard,
                    Err(NotLocked::Held) => thread::yield_now(),
                    Err(NotLocked::Stale) => return false,
                }
            };
            guard.count_change();
            // SAFETY: under the lock; loom checks that nobody else is there.
            let last = machine.contents[0].with_mut(|page| unsafe {
                *page += 1;
                *page == 3
            });
            if last {
                guard.unlink();
            }
            true
        };
        let other = machine.clone();
        let there = thread::spawn(move || change(&other));
        assert!(change(&machine));
        assert!(there.join().unwrap());
        assert!(!change(&machine), "the second unlinked it");
        // SAFETY: it is in no tree.
        unsafe { machine.metas[0].table().end() };
        assert!(machine.table().try_lock().unwrap().sequence() > before + 2);
    });
}
