//! Contiguous blocks, here of two entries that are a whole table, which are folded and unfolded while a processor stores to them,
//! walks them, or another thread looks at them.

use isotherm_pagetable::*;
use loom::model;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering};

use super::{OLD, Store, beside, both, processor, store};
use crate::common::{Wrap, prepare};
use crate::tiny::{Blocks, SpaceOf, Tiny, one, space_of};

type F = Wrap<Blocks>;
type Space = SpaceOf<Blocks>;

/// A folio of two pages, the first `pages` of which are mapped: old, clean and writable. The reference to it is forgotten.
fn mapped(machine: &Arc<Tiny>, pages: u64) -> Arc<Space> {
    let space = Arc::new(space_of(machine, 1));
    let _raw = prepare(&**machine, machine.page(1), 1, FolioKind::Anon).unwrap().into_raw();
    let range = PageRange::with_pages(VirtAddr(0), pages).unwrap();
    space.map(range, machine.page(1), OLD, Level::Pte).unwrap();
    space
}

/// The entries that hardware sees.
fn entries(machine: &Tiny, space: &Space) -> [&'static AtomicU64; 2] {
    // SAFETY: the machine outlives the model's threads, and no table is reused.
    let root = unsafe { machine.table(space.id().root).as_ref() };
    // SAFETY: as above; the block's table stays linked in all of these models.
    let table = unsafe { machine.table(F::table_frame(root.entries()[0].load())).as_ref() };
    const { assert!(size_of::<Entry>() == size_of::<AtomicU64>()) };
    // SAFETY: an entry is nothing but an atomic word (`repr(transparent)`).
    [0, 1].map(|n| unsafe { &*(&raw const table.entries()[n]).cast() })
}

/// A processor stores 1 in page 0. Of a block it has read the entry of page 1, which stands for both pages, and sets accessed and
/// dirty there. Whether it could.
fn store_by_sibling(machine: &Tiny, space: &Space) -> bool {
    let sibling = entries(machine, space)[1];
    let by_block = machine.with_tlb(|| {
        loop {
            let raw = sibling.load(Ordering::Acquire);
            if !F::is_valid(raw) || raw & F::CONT == 0 || !F::is_writable(raw) {
                return false;
            }
            let after = F::make_dirty(raw | F::YOUNG);
            if sibling.compare_exchange(raw, after, Ordering::AcqRel, Ordering::Acquire).is_ok() {
                machine.word(Frame(F::frame(raw).0 - 1)).store(1, Ordering::Relaxed);
                return true;
            }
        }
    });
    by_block || store(machine, space)
}

/// A processor stores by the page's own entry, or by what another one says of the block.
const BOTH_WAYS: [Store<Blocks>; 2] = [store, store_by_sibling];

/// `change` does something to page 1 of a folded block while a processor stores to page 0, of which nothing is lost.
fn stores_are_kept(change: fn(&Space)) {
    for by in BOTH_WAYS {
        model(move || {
            let machine = Tiny::new();
            let space = mapped(&machine, 2);
            let hardware = processor(&machine, &space, by);
            change(&space);
            let stored = hardware.join().unwrap();
            let Mapping::Page { frame, attributes, contiguous, .. } = space.query(VirtAddr(0)) else {
                panic!("page 0 is gone")
            };
            assert!(!contiguous && frame == machine.page(1));
            assert_eq!(machine.word(frame).load(Ordering::Relaxed), usize::from(stored));
            assert!(attributes.dirty || !stored, "a store was lost");
            assert!(attributes.young || !stored, "an access was lost");
        });
    }
}

#[test]
fn a_block_of_which_a_page_is_protected_keeps_what_hardware_sets() {
    stores_are_kept(|space| {
        space.write_protect(one(1), &mut space.gather(&mut [])).unwrap();
    });
}

#[test]
fn a_block_of_which_a_page_goes_keeps_what_hardware_sets() {
    stores_are_kept(|space| {
        space.zap(one(1), &mut space.gather(&mut [])).unwrap();
    });
}

#[test]
fn a_block_of_which_a_page_is_swapped_out_keeps_what_hardware_sets() {
    stores_are_kept(|space| {
        let frame = space.machine().page(2);
        space.swap_out(VirtAddr::of_page(1), frame, 1, &mut space.gather(&mut [])).unwrap();
    });
}

/// A page that was swapped out: the store was before, and known of, or faults; nothing of it comes after the flush.
#[test]
fn a_page_of_a_block_is_swapped_out_with_all_that_was_stored() {
    for by in BOTH_WAYS {
        model(move || {
            let machine = Tiny::new();
            let space = mapped(&machine, 2);
            let hardware = processor(&machine, &space, by);
            let mut gather = space.gather(&mut []);
            let dirty = space.swap_out(VirtAddr(0), machine.page(1), 1, &mut gather).unwrap();
            gather.flush();
            let read = machine.word(machine.page(1)).load(Ordering::Relaxed);
            let stored = hardware.join().unwrap();
            assert_eq!((read, dirty), (usize::from(stored), stored));
            let last = machine.word(machine.page(1)).load(Ordering::Relaxed);
            assert_eq!(last, read, "stored when it was in swap");
        });
    }
}

/// The last page of a block arrives, and it is folded, while a processor stores to the first.
#[test]
fn a_block_that_is_folded_keeps_what_hardware_sets() {
    model(|| {
        let machine = Tiny::new();
        let space = mapped(&machine, 1);
        let hardware = processor(&machine, &space, store);
        space.map(one(1), machine.page(2), OLD, Level::Pte).unwrap();
        let stored = hardware.join().unwrap();
        let Mapping::Page { attributes, contiguous, .. } = space.query(VirtAddr(0)) else { panic!() };
        assert!(contiguous);
        assert_eq!(machine.word(machine.page(1)).load(Ordering::Relaxed), usize::from(stored));
        assert_eq!((attributes.dirty, attributes.young), (stored, stored));
    });
}

/// Forks the block, which stays folded, while page 0 is written: both sides know then that it was.
#[test]
fn a_write_during_the_fork_of_a_block_makes_the_childs_page_dirty_too() {
    for by in BOTH_WAYS {
        model(move || {
            let machine = Tiny::new();
            let space = mapped(&machine, 2);
            let hardware = processor(&machine, &space, by);
            let child: Space = space_of(&machine, 2);
            let mut gather = space.gather(&mut []);
            space.copy_range(&child, both(), ForkRule::Copy(Sharing::Private), &mut gather).unwrap();
            gather.flush();
            let read = machine.word(machine.page(1)).load(Ordering::Relaxed);
            let stored = hardware.join().unwrap();
            assert_eq!(read, usize::from(stored), "the child saw a store of the parent's");
            for side in [&*space, &child] {
                let Mapping::Page { attributes, contiguous, .. } = side.query(VirtAddr(0)) else { panic!() };
                assert!(contiguous && !attributes.write);
                assert_eq!(attributes.dirty, stored);
            }
        });
    }
}

/// A processor walks to both pages, and keeps both translations: never one as part of a block and the other as a page by itself,
/// of which Arm says that the TLB may raise a conflict or return nonsense.
fn walked_while(pages: u64, change: fn(&Space)) {
    model(move || {
        let machine = Tiny::new();
        let space = mapped(&machine, pages);
        let walker = beside(&space, {
            let machine = machine.clone();
            move |space| {
                let entries = entries(&machine, space);
                machine.with_tlb(|| entries.map(|entry| entry.load(Ordering::Acquire)))
            }
        });
        change(&space);
        let [first, second] = walker.join().unwrap();
        if F::is_valid(first) && F::is_valid(second) {
            assert_eq!(first & F::CONT, second & F::CONT, "{first:#x} {second:#x}");
            assert_eq!((F::frame(first), F::frame(second)), (machine.page(1), machine.page(2)));
        }
    });
}

#[test]
fn no_walk_finds_half_a_block_that_is_unfolded() {
    walked_while(2, |space| {
        space.write_protect(one(1), &mut space.gather(&mut [])).unwrap();
    });
}

#[test]
fn no_walk_finds_half_a_block_that_is_folded() {
    walked_while(1, |space| {
        space.map(one(1), space.machine().page(2), OLD, Level::Pte).unwrap();
    });
}

/// A look without a lock finds the page, as dirty as it is, or nothing for a moment; never another page.
#[test]
fn a_lookup_beside_folds_and_unfolds_finds_the_page_or_nothing() {
    model(|| {
        let machine = Tiny::new();
        let space = mapped(&machine, 2);
        assert!(store_by_sibling(&machine, &space));
        let changer = beside(&space, |space| {
            space.write_protect(one(1), &mut space.gather(&mut [])).unwrap();
        });
        match space.read().lookup(VirtAddr(0)) {
            Mapping::None => {}
            Mapping::Page { frame, attributes, .. } => {
                assert!(frame == machine.page(1) && attributes.dirty && attributes.young);
            }
            Mapping::SwapEntry(_) => panic!("a swap entry"),
        }
        changer.join().unwrap();
    });
}
