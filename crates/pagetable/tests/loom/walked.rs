//! A fork whose child reverse maps know already: whoever walks one finds each mapping once; and a pin beside a fork.

use isotherm_pagetable::*;
use loom::model;
use loom::sync::Arc;
use loom::sync::atomic::Ordering;
use loom::thread;

use crate::tiny::{Space, Tiny, folio, one, space, space_of};

const RULE: ForkRule = ForkRule::Copy(Sharing::Private);

/// Swaps a page out wherever it is mapped, the parent's mapping first, while the space is forked.
fn swapped_out_while_forked(prepare: impl Fn(&Tiny, &Space) + Sync + Send + 'static) {
    model(move || {
        let machine = Tiny::new();
        let (parent, child) = (Arc::new(space(&machine)), Arc::new(space_of(&machine, 2)));
        let frame = folio(&machine, 0, FolioKind::Anon);
        parent.map(one(0), frame, Attributes::anonymous(), Level::Pte).unwrap();
        prepare(&machine, &child);
        let walker = {
            let spaces = [parent.clone(), child.clone()];
            thread::spawn(move || {
                let out = |space: &Arc<Space>| {
                    space.swap_out(VirtAddr(0), frame, 1, &mut space.gather(&mut [])).is_ok()
                };
                spaces.iter().filter(|space| out(space)).count()
            })
        };
        parent.copy_range(&child, one(0), RULE, &mut parent.gather(&mut [])).unwrap();
        let handled = walker.join().unwrap();
        let view = FolioView::of(&*machine, frame).unwrap();
        assert_eq!((view.maps(), view.refs()), (0, 1), "a mapping was missed");
        for space in [&parent, &child] {
            let Mapping::SwapEntry(swap_entry) = space.query(VirtAddr(0)) else { panic!("no swap entry") };
            assert_eq!(swap_entry.value, 1);
        }
        // Two entries hold the swap entry: each by a swap-out, or as the copy of one that was swapped out before.
        assert_eq!(handled + machine.shared.load(Ordering::Relaxed), 2, "handled twice, or by nobody");
    });
}

#[test]
fn a_walk_finds_what_a_fork_copies_into_a_new_table() {
    swapped_out_while_forked(|_, _| {});
}

#[test]
fn a_walk_finds_what_a_fork_copies_into_a_table_that_is_there() {
    swapped_out_while_forked(|machine, child| {
        let other = folio(machine, 1, FolioKind::Anon);
        child.map(one(1), other, Attributes::anonymous(), Level::Pte).unwrap();
    });
}

/// Either the fork sees the pin, and needs a page for the child's copy, of which there is none here; or the pin sees a page
/// that is not exclusive any more.
#[test]
fn a_page_is_pinned_or_shared_but_not_both() {
    model(|| {
        let machine = Tiny::new();
        let (parent, child) = (Arc::new(space(&machine)), space_of(&machine, 2));
        let frame = folio(&machine, 0, FolioKind::Anon);
        parent.map(one(0), frame, Attributes::anonymous(), Level::Pte).unwrap();
        let pinner = {
            let space = parent.clone();
            thread::spawn(move || space.pin(VirtAddr(0), frame).map(std::mem::forget))
        };
        let forked = parent.copy_range(&child, one(0), RULE, &mut parent.gather(&mut []));
        let pinned = pinner.join().unwrap();
        let Mapping::Page { attributes, .. } = parent.query(VirtAddr(0)) else { panic!("the page is gone") };
        match pinned {
            Ok(()) => {
                assert_eq!(forked.unwrap_err().why, Error::NoFolioFrames(Order::BASE));
                assert!(
                    attributes.exclusive && attributes.write && child.query(VirtAddr(0)) == Mapping::None
                );
            }
            Err(why) => {
                assert!(why == Error::NotPermitted && forked.is_ok());
                assert!(!attributes.exclusive && !attributes.write);
            }
        }
    });
}
