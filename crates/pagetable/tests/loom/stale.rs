//! Processors that go on with what their TLBs hold while the entries change: nothing that is freed, copied, swapped out or
//! written back is written afterwards.

use isotherm_pagetable::*;
use loom::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

use super::{OLD, beside, fault, page_0, processor, store};
use crate::tiny::{FREE, Space, Tiny, folio, one, space, space_of};

/// A page of this kind that is mapped as page 0, clean, old and writable. The reference of the test is forgotten.
fn mapped(machine: &Arc<Tiny>, kind: FolioKind) -> (Arc<Space>, Frame) {
    let space = Arc::new(space(machine));
    let frame = folio(machine, 0, kind);
    space.map(one(0), frame, OLD, Level::Pte).unwrap();
    (space, frame)
}

#[test]
fn what_is_freed_is_written_by_nobody() {
    model(|| {
        let machine = Tiny::new();
        let (space, frame) = mapped(&machine, FolioKind::Anon);
        // SAFETY: the reference that `folio` made raw.
        drop(unsafe { Folio::from_raw(&*machine, frame) });
        let hardware = processor(&machine, &space, store);
        let mut slots = [Slot::default(); 2];
        space.zap(one(0), &mut space.gather(&mut slots)).unwrap();
        hardware.join().unwrap();
        assert_eq!(machine.freed.load(Ordering::Relaxed), 1);
        assert_eq!(machine.word(frame).load(Ordering::Relaxed), FREE, "written when it was free");
    });
}

#[test]
fn a_childs_page_is_written_by_no_stale_translation() {
    model(|| {
        let machine = Tiny::new();
        let (space, frame) = mapped(&machine, FolioKind::Anon);
        let hardware = processor(&machine, &space, store);
        let child = space_of(&machine, 2);
        let mut gather = space.gather(&mut []);
        space.copy_range(&child, one(0), ForkRule::Copy(Sharing::Private), &mut gather).unwrap();
        gather.flush();
        let (read, _) = page_0(&machine, &child);
        let stored = hardware.join().unwrap();
        assert_eq!((read, machine.word(frame).load(Ordering::Relaxed)), (usize::from(stored), read));
    });
}

#[test]
fn what_is_swapped_out_is_what_was_stored_at_last() {
    model(|| {
        let machine = Tiny::new();
        let (space, frame) = mapped(&machine, FolioKind::Anon);
        let hardware = processor(&machine, &space, store);
        let mut gather = space.gather(&mut []);
        let dirty = space.swap_out(VirtAddr(0), frame, 1, &mut gather).unwrap();
        gather.flush();
        // Written to swap, and read from there again.
        let written = machine.word(frame).load(Ordering::Relaxed);
        let back = folio(&machine, 1, FolioKind::Anon);
        machine.word(back).store(written, Ordering::Relaxed);
        let seen = Seen::SwapEntry(SwapEntry { value: 1, exclusive: true });
        let by = Replacement::Page { frame: back, attributes: Attributes::anonymous() };
        space.replace(VirtAddr(0), seen, by, &mut gather).unwrap();
        let stored = hardware.join().unwrap();
        let (now, _) = page_0(&machine, &space);
        assert_eq!(now, usize::from(stored), "a store was lost");
        assert!(dirty || written == 0);
        assert_eq!(machine.word(frame).load(Ordering::Relaxed), written, "stored when it was in swap");
    });
}

/// A write fault on a page that is being swapped out: its table's lock says who is first.
#[test]
fn a_write_fault_beside_a_swap_out_is_before_it_or_finds_the_swap_entry() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let frame = folio(&machine, 0, FolioKind::Anon);
        space.map(one(0), frame, Attributes { write: false, ..Attributes::anonymous() }, Level::Pte).unwrap();
        let faulting = {
            let (machine, space) = (machine.clone(), space.clone());
            thread::spawn(move || {
                let resolved = space.write_fault(VirtAddr(0), None, fault());
                (resolved, machine.store(&space, 0).is_ok())
            })
        };
        let mut gather = space.gather(&mut []);
        let dirty = space.swap_out(VirtAddr(0), frame, 1, &mut gather).unwrap();
        gather.flush();
        let written = machine.word(frame).load(Ordering::Relaxed);
        let (resolved, stored) = faulting.join().unwrap();
        assert!(matches!(resolved, Ok(Resolved::Reused(1)) | Err(Error::NotMapped)), "{resolved:?}");
        assert!(!stored || resolved.is_ok() && dirty);
        assert_eq!(written, usize::from(stored));
        assert!(matches!(space.query(VirtAddr(0)), Mapping::SwapEntry(_)));
        let view = FolioView::of(&*machine, frame).unwrap();
        assert_eq!((view.maps(), view.refs()), (0, 1));
    });
}

/// Two threads read the page from swap; one of them puts it there.
#[test]
fn a_swap_entry_is_replaced_once() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        space.map_swap_entry(one(0), 1).unwrap();
        let pages = [folio(&machine, 0, FolioKind::Anon), folio(&machine, 1, FolioKind::Anon)];
        let bring = |space: &Space, frame| {
            let by = Replacement::Page { frame, attributes: Attributes::anonymous() };
            space.replace(VirtAddr(0), Seen::SwapEntry(1.into()), by, &mut space.gather(&mut [])).map(drop)
        };
        let other = beside(&space, move |space| bring(space, pages[1]));
        let mine = bring(&space, pages[0]);
        let theirs = other.join().unwrap();
        let expected = if mine.is_ok() { [1, 0] } else { [0, 1] };
        assert_eq!([&mine, &theirs].map(|done| u32::from(done.is_ok())), expected);
        for (page, maps) in pages.into_iter().zip(expected) {
            let view = FolioView::of(&*machine, page).unwrap();
            assert_eq!((view.maps(), view.refs()), (maps, 1 + maps));
        }
    });
}

#[test]
fn what_was_stored_is_written_back_now_or_found_dirty_later() {
    model(|| {
        let machine = Tiny::new();
        let (space, frame) = mapped(&machine, FolioKind::File);
        let hardware = processor(&machine, &space, store);
        let mut gather = space.gather(&mut []);
        let mut disk = 0;
        for _ in 0..2 {
            if space.mkclean_page(VirtAddr(0), frame, &mut gather).unwrap() {
                gather.flush();
                disk = machine.word(frame).load(Ordering::Relaxed);
            }
            gather.flush();
        }
        let stored = hardware.join().unwrap();
        assert_eq!(disk, usize::from(stored), "a store was not written back");
    });
}

/// The write fault copies the page, and stores to the copy. Who has seen that it did reads the copy, not the old page through what
/// its TLB holds.
#[test]
fn who_has_seen_that_a_write_fault_ended_reads_the_copy() {
    model(|| {
        let machine = Tiny::new();
        machine.allow_a_copy();
        let space = Arc::new(space(&machine));
        let frame = folio(&machine, 0, FolioKind::File);
        space.map(one(0), frame, Attributes::file(), Level::Pte).unwrap();
        let ended = Arc::new(AtomicUsize::new(0));
        let reader = {
            let (machine, space, ended) = (machine.clone(), space.clone(), ended.clone());
            thread::spawn(move || {
                machine.with_tlb(|| {
                    // While the page is copied it is not there, and the fault waits for the lock.
                    let Ok(frame) = space.read().access(VirtAddr(0), Access::Read) else { return };
                    let seen = ended.load(Ordering::Acquire);
                    let word = machine.word(frame).load(Ordering::Relaxed);
                    assert!(seen == 0 || word == 1, "read from the old page");
                });
            })
        };
        assert_eq!(space.write_fault(VirtAddr(0), None, fault()), Ok(Resolved::Copied(1)));
        machine.store(&space, 0).unwrap();
        ended.store(1, Ordering::Release);
        reader.join().unwrap();
        assert_eq!(machine.word(frame).load(Ordering::Relaxed), 0, "the file's page was written");
    });
}

/// When a move has ended, no processor uses the page at its old address any more.
#[test]
fn who_has_seen_that_a_page_moved_finds_nothing_at_its_old_place() {
    model(|| {
        let machine = Tiny::new();
        let (space, _) = mapped(&machine, FolioKind::Anon);
        let moved = Arc::new(AtomicUsize::new(0));
        let hardware = {
            let (machine, space, moved) = (machine.clone(), space.clone(), moved.clone());
            thread::spawn(move || {
                machine.with_tlb(|| {
                    let frame = space.read().access(VirtAddr(0), Access::Write).ok()?;
                    assert_eq!(moved.load(Ordering::Acquire), 0, "used after it moved");
                    machine.word(frame).store(1, Ordering::Relaxed);
                    Some(())
                })
            })
        };
        space.remap(one(0), VirtAddr::of_page(2)).unwrap();
        moved.store(1, Ordering::Release);
        let stored = hardware.join().unwrap().is_some();
        let Mapping::Page { frame, attributes, .. } = space.query(VirtAddr::of_page(2)) else { panic!() };
        assert_eq!(machine.word(frame).load(Ordering::Relaxed), usize::from(stored));
        assert!(attributes.dirty || !stored, "a store was lost");
    });
}
