//! The split of a folio of two pages, which fill a table, while another thread is at it: the folio stays whole, or each piece
//! has the mappings that there are.

use isotherm_pagetable::*;
use loom::model;
use loom::sync::Arc;

use super::{beside, both, fault};
use crate::common::prepare;
use crate::tiny::{Space, Tiny, one, space};

/// Splits while `other` does something to the space, and compares the counts of what there is then with the entries;
/// `other` says how many more references it holds to each page.
fn split_beside<T: 'static>(
    other: impl Fn(&Space) -> T + Copy + Sync + Send + 'static,
    held: impl Fn(&T) -> [u32; 2] + Sync + Send + 'static,
    elsewhere: impl Fn(&T) -> Option<&Space> + Sync + Send + 'static,
) {
    model(move || {
        let machine = Tiny::new();
        let space = Arc::new(space(&machine));
        let _raw = prepare(space.machine(), machine.page(1), 1, FolioKind::Anon).unwrap().into_raw();
        space.map(both(), machine.page(1), Attributes::anonymous(), Level::Pte).unwrap();
        // SAFETY: the reference that was just made raw.
        let folio = unsafe { Folio::from_raw(space.machine(), machine.page(1)) }.unwrap();
        let there = beside(&space, other);
        let mapped = [MappedIn { space: &*space, range: one(0) }];
        let mut slots = [TableSlot::default()];
        let result = split_folio(folio, Order::BASE, &mapped, &mut slots);
        let did = there.join().unwrap();
        let mut maps = [0; 2];
        for side in [Some(&*space), elsewhere(&did)].into_iter().flatten() {
            for page in 0..2 {
                if let Mapping::Page { frame, .. } = side.query(VirtAddr::of_page(page))
                    && frame == machine.page(1).add(page)
                {
                    maps[page as usize] += 1;
                }
            }
        }
        let held = held(&did);
        match result {
            Ok(pieces) => {
                for ((piece, maps), held) in pieces.zip(maps).zip(held) {
                    assert_eq!(
                        (piece.order(), piece.maps(), piece.refs()),
                        (Order::BASE, maps, maps + 1 + held)
                    );
                }
            }
            Err((why, folio)) => {
                assert!(matches!(why, Error::Changed | Error::Referenced | Error::Pinned), "{why}");
                let maps: u32 = maps.iter().sum();
                assert_eq!((folio.order().get(), folio.maps()), (1, maps));
                assert_eq!(folio.refs(), maps + 1 + held.iter().sum::<u32>());
            }
        }
        drop(did);
    });
}

#[test]
fn a_folio_is_split_before_or_after_it_is_forked() {
    let fork = |space: &Space| {
        let child = Space::new(space.machine(), 2).unwrap();
        let rule = ForkRule::Copy(Sharing::Private);
        space.copy_range(&child, both(), rule, &mut space.gather(&mut [])).unwrap();
        child
    };
    split_beside(fork, |_| [0; 2], |child| Some(child));
}

#[test]
fn a_folio_is_split_before_or_after_a_page_of_it_goes() {
    let zap = |space: &Space| {
        let mut slots = [Slot::default(); 2];
        space.zap(one(1), &mut space.gather(&mut slots)).unwrap();
    };
    split_beside(zap, |()| [0; 2], |()| None);
}

#[test]
fn a_pin_keeps_the_folio_whole_or_is_of_a_piece() {
    let pin = |space: &Space| space.pin(VirtAddr::of_page(1), None).unwrap();
    split_beside(
        pin,
        |pinned| {
            assert_eq!(pinned.pins(), 1);
            [0, 1]
        },
        |_| None,
    );
}

#[test]
fn a_folio_is_split_before_or_after_a_write_fault() {
    let write = |space: &Space| {
        space.write_protect(one(0), &mut space.gather(&mut [])).unwrap();
        let resolved = space.write_fault(VirtAddr(0), None, fault()).unwrap();
        assert_eq!(resolved, Resolved::Reused(1));
    };
    split_beside(write, |()| [0; 2], |()| None);
}

/// The table may go while its lock is waited for, and the huge leaf that is found then is split first.
#[test]
fn a_folio_is_split_before_or_after_it_is_collapsed_in_place() {
    let collapse = |space: &Space| {
        let collapsed = space.collapse(VirtAddr(0), 0, &mut space.gather(&mut []));
        // Of two folios a copy may be made, if nobody else refers to them.
        let possible = matches!(collapsed, Ok(_) | Err(Error::Changed | Error::NotCollapsible(_)));
        assert!(possible, "{collapsed:?}");
    };
    split_beside(collapse, |()| [0; 2], |()| None);
}
