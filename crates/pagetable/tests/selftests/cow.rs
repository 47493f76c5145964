//! Copy-on-write, after the ideas of `cow.c`: what one side of a fork writes the other never sees, whatever else holds the page; and
//! who has pinned a page sees what its program writes to it.

use crate::program::formats;

formats! {
    what_a_parent_writes_its_child_does_not_see
    what_a_child_writes_its_parent_does_not_see
    a_reference_of_the_child_outlives_its_mapping_and_sees_no_write_of_the_parent
    a_pin_from_before_the_fork_sees_what_is_written_after_it
    what_is_shared_is_not_pinned_before_it_was_copied
    a_pinned_page_is_neither_swapped_out_nor_exchanged
    a_page_that_was_in_swap_is_still_shared_or_not
    the_last_who_has_a_page_keeps_it
    grandchildren_are_apart_too
    a_child_with_a_part_of_a_folio_is_as_apart
}

mod cases {
    use isotherm_pagetable::host::HostMachine;
    use isotherm_pagetable::*;

    use crate::program::{Layout, PMD, Program, at, pages};

    /// Pages that are looked at: first, last, and on either side of a block's border.
    const SOME: [u64; 5] = [0, 15, 16, 100, PMD - 1];

    /// The case in each layout; nothing is left afterwards.
    fn each<F: Format>(case: impl Fn(&Program<'_, F>)) {
        for layout in Layout::ALL {
            let machine = HostMachine::new(8192);
            let free = machine.free_frames();
            let parent = Program::<F>::new(&machine, 1);
            parent.populate(0, PMD, layout);
            case(&parent);
            drop(parent);
            assert_eq!(machine.free_frames(), free, "{layout:?}: memory was lost");
        }
    }

    pub fn what_a_parent_writes_its_child_does_not_see<F: Format>() {
        each::<F>(|parent| {
            let child = parent.fork(2, pages(0, PMD));
            for page in SOME {
                parent.write(page, 1000 + page);
                assert_eq!((parent.read(page), child.read(page)), (Ok(1000 + page), Ok(page)));
            }
            (0..PMD).for_each(|page| assert_eq!(child.read(page), Ok(page)));
        });
    }

    pub fn what_a_child_writes_its_parent_does_not_see<F: Format>() {
        each::<F>(|parent| {
            let child = parent.fork(2, pages(0, PMD));
            for page in SOME {
                child.write(page, 1000 + page);
                assert_eq!((parent.read(page), child.read(page)), (Ok(page), Ok(1000 + page)));
            }
            (0..PMD).for_each(|page| assert_eq!(parent.read(page), Ok(page)));
        });
    }

    /// `vmsplice` in the child, which unmaps the page then: the parent is not its only owner, though nobody else maps it.
    pub fn a_reference_of_the_child_outlives_its_mapping_and_sees_no_write_of_the_parent<F: Format>() {
        each::<F>(|parent| {
            let child = parent.fork(2, pages(0, PMD));
            let frame = child.frame(16).unwrap();
            let held = child.0.reference(at(16), None).unwrap();
            child.0.zap(pages(0, PMD), &mut child.0.gather(&mut [])).unwrap();
            parent.write(16, 1);
            assert_eq!(
                parent.machine().read(frame.address()),
                Some(16),
                "the child's reader sees the parent's secret"
            );
            assert_eq!(parent.read(16), Ok(1));
            drop(held);
        });
    }

    pub fn a_pin_from_before_the_fork_sees_what_is_written_after_it<F: Format>() {
        each::<F>(|parent| {
            let frame = parent.frame(16).unwrap();
            let pinned = parent.0.pin(at(16), None).unwrap();
            let child = parent.fork(2, pages(0, PMD));
            assert_ne!(child.frame(16), Some(frame), "the child has a copy");
            parent.write(16, 1);
            assert_eq!(
                parent.machine().read(frame.address()),
                Some(1),
                "the pin and the page table are apart"
            );
            child.write(16, 2);
            assert_eq!((parent.read(16), child.read(16)), (Ok(1), Ok(2)));
            drop(pinned);
        });
    }

    /// Linux unshares a page before it pins it for reading (`FAULT_FLAG_UNSHARE`): here by a write fault.
    pub fn what_is_shared_is_not_pinned_before_it_was_copied<F: Format>() {
        each::<F>(|parent| {
            let child = parent.fork(2, pages(0, PMD));
            for program in [&child, parent] {
                assert_eq!(program.0.pin(at(16), None).err(), Some(Error::NotPermitted));
                program.write(16, 7);
                let pinned = program.0.pin(at(16), None).unwrap();
                let frame = program.frame(16).unwrap();
                program.write(16, 8);
                assert_eq!(program.machine().read(frame.address()), Some(8));
                drop(pinned);
            }
        });
    }

    pub fn a_pinned_page_is_neither_swapped_out_nor_exchanged<F: Format>() {
        each::<F>(|parent| {
            let frame = parent.frame(16).unwrap();
            let pinned = parent.0.pin(at(16), None).unwrap();
            let mut gather = parent.0.gather(&mut []);
            assert_eq!(parent.0.swap_out(at(16), frame, 1, &mut gather), Err(Error::Pinned));
            parent.0.write_protect(pages(16, 1), &mut gather).unwrap();
            gather.flush();
            let other = parent.machine().folio(Order::BASE, FolioKind::Anon).unwrap();
            let moved =
                parent.0.replace(at(16), Seen::Page(frame), Replacement::Moved(other.head()), &mut gather);
            assert_eq!(moved, Err(Error::Pinned));
            parent.write(16, 5);
            assert_eq!((parent.frame(16), parent.machine().read(frame.address())), (Some(frame), Some(5)));
            drop(pinned);
        });
    }

    pub fn a_page_that_was_in_swap_is_still_shared_or_not<F: Format>() {
        each::<F>(|parent| {
            parent.through_swap(15, 1);
            assert!(parent.attributes(15).exclusive, "nobody else had it");
            parent.through_swap(16, 2);
            let child = parent.fork(2, pages(0, PMD));
            for (program, slot) in [(&child, 3), (parent, 4)] {
                program.through_swap(16, slot);
                assert!(!program.attributes(16).exclusive);
            }
            for page in [15, 16] {
                child.write(page, 1);
                assert_eq!(parent.read(page), Ok(page));
                parent.write(page, 2);
                assert_eq!(child.read(page), Ok(1));
            }
        });
    }

    /// No copy is made for nobody: the parent writes when the child has ended.
    pub fn the_last_who_has_a_page_keeps_it<F: Format>() {
        each::<F>(|parent| {
            let frames = SOME.map(|page| parent.frame(page));
            drop(parent.fork(2, pages(0, PMD)));
            let copies = parent.machine().counts().copies;
            for (page, frame) in SOME.into_iter().zip(frames) {
                parent.write(page, 1);
                assert_eq!(parent.frame(page), frame);
            }
            assert_eq!(parent.machine().counts().copies, copies);
        });
    }

    pub fn grandchildren_are_apart_too<F: Format>() {
        each::<F>(|parent| {
            let child = parent.fork(2, pages(0, PMD));
            let grandchild = child.fork(3, pages(0, PMD));
            child.write(16, 1);
            grandchild.write(16, 2);
            parent.write(16, 3);
            assert_eq!([parent, &child, &grandchild].map(|one| one.read(16).unwrap()), [3, 1, 2]);
            assert_eq!([parent, &child, &grandchild].map(|one| one.read(17).unwrap()), [17; 3]);
        });
    }

    /// The child maps one page of a folio, or all but one (`THP` cases with partial sharing).
    pub fn a_child_with_a_part_of_a_folio_is_as_apart<F: Format>() {
        each::<F>(|parent| {
            for (asid, kept, page) in [(2, pages(16, 1), 16), (3, pages(0, PMD - 1), 20)] {
                let child = parent.fork(asid, kept);
                parent.write(page, 1000);
                child.write(page, 2000);
                assert_eq!((parent.read(page), child.read(page)), (Ok(1000), Ok(2000)));
                assert_eq!(child.read(PMD - 1), Err(Fault::NotPresent));
                parent.write(page, page);
            }
        });
    }
}
