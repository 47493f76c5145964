//! The protocol under loom, on tables of two entries: the real walks, locks and updates, every interleaving, but for one
//! model that says how many.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --release -p isotherm-pagetable --test loom`
#![cfg(loom)]
#![allow(clippy::unwrap_used, reason = "tests, some of them helpers")]

#[path = "../common/mod.rs"]
mod common;
mod contpte;
mod reuse;
mod split;
mod stale;
mod tiny;
mod walked;

use common::prepare;
use isotherm_pagetable::*;
use loom::model;
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;
use tiny::{Space, Tiny, folio, one, space, space_of};

/// Another thread on the same space.
fn beside<C: common::Changed, T: 'static>(
    space: &Arc<tiny::SpaceOf<C>>,
    f: impl FnOnce(&tiny::SpaceOf<C>) -> T + 'static,
) -> thread::JoinHandle<T> {
    let space = space.clone();
    thread::spawn(move || f(&space))
}

/// What a processor changes when it stores.
const OLD: Attributes = Attributes { young: false, dirty: false, ..Attributes::anonymous() };

/// How a processor stores 1 in page 0; whether it may.
type Store<C> = fn(&Tiny, &tiny::SpaceOf<C>) -> bool;

/// By the page's own entry.
fn store<C: common::Changed>(machine: &Tiny, space: &tiny::SpaceOf<C>) -> bool {
    machine.store(space, 0).is_ok()
}

/// A processor that stores in page 0, if it may.
fn processor<C: common::Changed>(
    machine: &Arc<Tiny>,
    space: &Arc<tiny::SpaceOf<C>>,
    store: Store<C>,
) -> thread::JoinHandle<bool> {
    let machine = machine.clone();
    beside(space, move |space| store(&machine, space))
}

fn both() -> PageRange {
    PageRange::with_pages(VirtAddr(0), 2).unwrap()
}

#[test]
fn two_threads_that_need_the_same_table_make_one() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let frames = [folio(&machine, 0, FolioKind::Anon), folio(&machine, 1, FolioKind::Anon)];
        let other = beside(&space, move |space| {
            space.map(one(0), frames[0], Attributes::anonymous(), Level::Pte).unwrap()
        });
        space.map(one(1), frames[1], Attributes::anonymous(), Level::Pte).unwrap();
        other.join().unwrap();
        for page in 0..2u64 {
            let Mapping::Page { frame, .. } = space.query(VirtAddr::of_page(page)) else {
                panic!("page {page} was lost")
            };
            assert_eq!(frame, frames[page as usize]);
        }
    });
}

#[test]
fn a_lookup_sees_all_of_a_mapping_or_nothing() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let frame = folio(&machine, 0, FolioKind::Anon);
        let other = beside(&space, move |space| {
            space.map(one(2), frame, Attributes::anonymous(), Level::Pte).unwrap();
            space
                .unmap(PageRange::with_pages(VirtAddr::of_page(2), 2).unwrap(), &mut space.gather(&mut []))
                .unwrap();
        });
        match space.read().lookup(VirtAddr::of_page(2)) {
            Mapping::None => {}
            Mapping::Page { frame: found, attributes, .. } => {
                assert_eq!((found, attributes), (frame, Attributes::anonymous()));
            }
            Mapping::SwapEntry(_) => panic!("a swap entry"),
        }
        other.join().unwrap();
        assert_eq!(machine.retired.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_table_that_goes_while_its_lock_is_waited_for_is_found_anew() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let frames = [folio(&machine, 0, FolioKind::Anon), folio(&machine, 1, FolioKind::Anon)];
        space.map(one(0), frames[0], Attributes::anonymous(), Level::Pte).unwrap();
        let other = beside(&space, move |space| {
            space.unmap(both(), &mut space.gather(&mut [])).unwrap();
        });
        // Into the table that may go, the one that comes after it, or before it is emptied: never into nowhere.
        let mapped = space.map(one(1), frames[1], Attributes::anonymous(), Level::Pte);
        other.join().unwrap();
        mapped.unwrap();
        let folio = FolioView::of(&*machine, frames[1]).unwrap();
        let there = matches!(space.query(VirtAddr::of_page(1)), Mapping::Page { .. });
        assert_eq!((folio.maps(), folio.refs()), if there { (1, 2) } else { (0, 1) });
    });
}

#[test]
fn bits_that_hardware_sets_are_not_lost() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let frame = folio(&machine, 0, FolioKind::File);
        let clean = Attributes { write: true, young: false, ..Attributes::file() };
        space.map(one(0), frame, clean, Level::Pte).unwrap();
        let hardware = beside(&space, move |space| space.read().access(VirtAddr(0), Access::Write).is_ok());
        let mut slots = [Slot::default(); 2];
        let mut gather = space.gather(&mut slots);
        space.write_protect(one(0), &mut gather).unwrap();
        space.clear_young(one(0)).unwrap();
        space.zap(one(0), &mut gather).unwrap();
        drop(gather);
        let written = hardware.join().unwrap();
        // A write that was permitted is known of, whenever it came.
        assert_eq!(Folio::get(&*machine, frame).unwrap().take_dirty(), written);
    });
}

#[test]
fn bits_that_hardware_sets_in_a_batch_are_not_lost() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        // A folio of two pages, which fill a table.
        let head = machine.page(1);
        let _raw = prepare(&*machine, head, 1, FolioKind::File).unwrap().into_raw();
        let clean = Attributes { write: true, young: false, ..Attributes::file() };
        space.map(both(), head, clean, Level::Pte).unwrap();
        let hardware =
            beside(&space, move |space| space.read().access(VirtAddr::of_page(1), Access::Write).is_ok());
        space.zap(both(), &mut space.gather(&mut [])).unwrap();
        let written = hardware.join().unwrap();
        let folio = Folio::get(&*machine, head).unwrap();
        assert_eq!((folio.take_dirty(), folio.take_referenced()), (written, written));
        assert_eq!((folio.maps(), folio.refs()), (0, 2));
    });
}

/// Forks while the last of `1 << order` pages, which fill or half fill a table, is written.
fn fork_while_written(order: u8) {
    model(move || {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let head = machine.page(1);
        let _raw = prepare(&*machine, head, order, FolioKind::Anon).unwrap().into_raw();
        let range = PageRange::with_pages(VirtAddr(0), 1 << order).unwrap();
        let clean = Attributes { dirty: false, ..Attributes::anonymous() };
        space.map(range, head, clean, Level::Pte).unwrap();
        let last = VirtAddr::of_page(range.pages() - 1);
        let hardware = beside(&space, move |space| space.read().access(last, Access::Write).is_ok());
        let child = space_of(&machine, 2);
        space
            .copy_range(&child, range, ForkRule::Copy(Sharing::Private), &mut space.gather(&mut []))
            .unwrap();
        let written = hardware.join().unwrap();
        // Whichever side is left then knows that the page differs from what was swapped out, say.
        for side in [&*space, &child] {
            let Mapping::Page { attributes, .. } = side.query(last) else { panic!() };
            assert!(!attributes.write && attributes.dirty == written);
        }
    });
}

#[test]
fn a_write_during_a_fork_makes_the_childs_page_dirty_too() {
    fork_while_written(0);
}

#[test]
fn a_write_during_a_fork_in_batches_makes_the_childs_page_dirty_too() {
    fork_while_written(1);
}

#[test]
fn an_access_is_seen_by_this_harvest_or_the_next() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let frame = folio(&machine, 0, FolioKind::File);
        let old = Attributes { write: true, young: false, ..Attributes::file() };
        space.map(one(0), frame, old, Level::Pte).unwrap();
        let hardware = beside(&space, move |space| space.read().access(VirtAddr(0), Access::Write).is_ok());
        let mut bitmap = [0];
        let first = space.harvest_young(one(0), &mut bitmap).unwrap();
        assert!(hardware.join().unwrap());
        let second = space.harvest_young(one(0), &mut bitmap).unwrap();
        assert_eq!(first + second, 1, "an access was lost, or seen twice");
        let Mapping::Page { attributes, .. } = space.query(VirtAddr(0)) else { panic!() };
        assert!(attributes.dirty, "a write was lost");
    });
}

fn fault() -> WriteFault {
    WriteFault { sharing: Sharing::Private, bounds: both(), whole_folio: false }
}

/// What page 0 holds, and its mapping.
fn page_0(machine: &Tiny, space: &Space) -> (usize, Attributes) {
    let Mapping::Page { frame, attributes, .. } = space.query(VirtAddr(0)) else { panic!("page 0 is gone") };
    (machine.words[frame.0 as usize].load(Ordering::Relaxed), attributes)
}

/// Two pages become a huge leaf while `other`, which returns whether it stored, is at the first.
fn collapse_while(other: fn(&Tiny, &Space) -> bool) {
    model(move || {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        for n in 0..2 {
            let frame = folio(&machine, n, FolioKind::Anon);
            space.map(one(n as u64), frame, Attributes::anonymous(), Level::Pte).unwrap();
            // SAFETY: the reference that `folio` made raw.
            drop(unsafe { Folio::from_raw(&*machine, frame) });
        }
        let thread = {
            let (machine, space) = (machine.clone(), space.clone());
            thread::spawn(move || other(&machine, &space))
        };
        let collapsed = space.collapse(VirtAddr(0), 0, &mut space.gather(&mut []));
        let stored = thread.join().unwrap();
        assert!(
            matches!(collapsed, Ok(Collapsed::Copied { pages: 2 }) | Err(Error::Changed)),
            "{collapsed:?}"
        );
        assert_eq!(page_0(&machine, &space).0, usize::from(stored), "a store was lost: {collapsed:?}");
        // The huge leaf's folio, or the two pages; what was not used is free.
        let huge = collapsed.is_ok();
        let copy = FolioView::of(&*machine, machine.copies()).map(|folio| (folio.maps(), folio.refs()));
        assert!(if huge { copy == Ok((2, 2)) } else { copy.is_err() }, "{copy:?}");
        assert_eq!(machine.freed.load(Ordering::Relaxed) > 1, huge);
    });
}

#[test]
fn a_store_during_a_collapse_is_not_lost() {
    collapse_while(|machine, space| machine.store(space, 0).is_ok());
}

#[test]
fn a_write_fault_during_a_collapse_is_waited_for_or_ends_it() {
    collapse_while(|machine, space| {
        let resolved = space.write_fault(VirtAddr(0), None, fault());
        assert!(matches!(resolved, Ok(Resolved::Writable | Resolved::Reused(_))), "{resolved:?}");
        machine.store(space, 0).is_ok()
    });
}

/// Two pages of one folio, mapped by leaves of this level, while `change` makes other leaves of them and a processor stores.
fn stores_are_kept(level: Level, change: fn(&Space)) {
    model(move || {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let folio = prepare(&*machine, machine.page(1), 1, FolioKind::Anon).unwrap();
        let clean = Attributes { young: false, dirty: false, ..Attributes::anonymous() };
        space.map(both(), folio.head(), clean, level).unwrap();
        let hardware = {
            let (machine, space) = (machine.clone(), space.clone());
            thread::spawn(move || machine.store(&space, 0))
        };
        change(&space);
        let stored = hardware.join().unwrap().is_ok();
        let (word, attributes) = page_0(&machine, &space);
        assert_eq!((word, attributes.dirty, attributes.young), (usize::from(stored), stored, stored));
        assert_eq!((folio.maps(), folio.refs()), (2, 3));
    });
}

#[test]
fn a_collapse_in_place_keeps_what_hardware_sets() {
    stores_are_kept(Level::Pte, |space| {
        let collapsed = space.collapse(VirtAddr(0), 0, &mut space.gather(&mut []));
        assert_eq!(collapsed, Ok(Collapsed::InPlace));
    });
}

#[test]
fn a_split_keeps_what_hardware_sets() {
    stores_are_kept(Level::Pmd, |space| space.split(VirtAddr(0)).unwrap());
}

/// Whoever comes second finds what the other left: a huge leaf, or nothing. Both have so many steps that they are
/// explored with three preemptions at the most.
#[test]
fn a_zap_and_a_collapse_of_the_same_pages() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        for n in 0..2 {
            let frame = folio(&machine, n, FolioKind::Anon);
            space.map(one(n as u64), frame, Attributes::anonymous(), Level::Pte).unwrap();
            // SAFETY: the reference that `folio` made raw.
            drop(unsafe { Folio::from_raw(&*machine, frame) });
        }
        let zapper = beside(&space, move |space| space.unmap(both(), &mut space.gather(&mut [])).unwrap());
        let collapsed = space.collapse(VirtAddr(0), 2, &mut space.gather(&mut []));
        zapper.join().unwrap();
        let expected =
            matches!(collapsed, Ok(Collapsed::Copied { .. }) | Err(Error::Changed | Error::NotMapped));
        assert!(expected, "{collapsed:?}");
        // The pages are gone in any case, and the copy, if one was made, is mapped as a whole or not at all.
        assert!(
            FolioView::of(&*machine, machine.page(0)).is_err()
                && FolioView::of(&*machine, machine.page(1)).is_err()
        );
        let mapped = matches!(space.query(VirtAddr(0)), Mapping::Page { .. });
        let copy = FolioView::of(&*machine, machine.copies()).map(|folio| (folio.maps(), folio.refs()));
        assert!(if mapped { copy == Ok((2, 2)) } else { copy.is_err() }, "{mapped}: {copy:?}");
    });
}

#[test]
fn two_moves_between_the_same_tables_do_not_wait_for_each_other() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let frames = [folio(&machine, 0, FolioKind::Anon), folio(&machine, 1, FolioKind::Anon)];
        space.map(one(0), frames[0], Attributes::anonymous(), Level::Pte).unwrap();
        space.map(one(3), frames[1], Attributes::anonymous(), Level::Pte).unwrap();
        let other = beside(&space, move |space| space.remap(one(3), VirtAddr::of_page(1)).unwrap());
        space.remap(one(0), VirtAddr::of_page(2)).unwrap();
        other.join().unwrap();
        for (page, expected) in [(0, None), (1, Some(frames[1])), (2, Some(frames[0])), (3, None)] {
            let found = match space.query(VirtAddr::of_page(page)) {
                Mapping::Page { frame, .. } => Some(frame),
                _ => None,
            };
            assert_eq!(found, expected, "page {page}");
        }
    });
}

#[test]
fn a_fork_and_a_write_fault_share_or_own_but_not_both() {
    model(|| {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let frame = folio(&machine, 0, FolioKind::Anon);
        space.map(one(0), frame, Attributes { write: false, ..Attributes::anonymous() }, Level::Pte).unwrap();
        let fault = WriteFault { sharing: Sharing::Private, bounds: one(0), whole_folio: false };
        let writer = beside(&space, move |space| space.write_fault(VirtAddr(0), None, fault));
        let child = space_of(&machine, 2);
        space
            .copy_range(&child, one(0), ForkRule::Copy(Sharing::Private), &mut space.gather(&mut []))
            .unwrap();
        let resolved = writer.join().unwrap();
        let Mapping::Page { attributes: own, .. } = space.query(VirtAddr(0)) else { panic!() };
        let Mapping::Page { attributes: childs, .. } = child.query(VirtAddr(0)) else { panic!() };
        assert!(!own.write && !childs.write && !own.exclusive && !childs.exclusive);
        // Reused before the fork, or refused after it for want of a frame for the copy.
        assert!(
            matches!(resolved, Ok(Resolved::Reused(1)) | Err(Error::NoFolioFrames(Order::BASE))),
            "{resolved:?}"
        );
        let folio = FolioView::of(&*machine, frame).unwrap();
        assert_eq!((folio.maps(), folio.refs()), (2, 3));
    });
}
