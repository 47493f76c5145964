//! Moves, after the ideas of `mremap_test.c`: every combination of sizes and alignments, with data beside both places.

use crate::program::formats;

formats! {
    contents_move_whatever_size_and_alignment_are
    a_huge_leaf_stays_one_where_both_places_are_aligned
    a_move_onto_itself_or_onto_something_changes_nothing
    what_is_known_of_a_page_moves_with_it
    the_old_place_can_be_used_again
    a_shared_page_is_shared_after_it_moved
}

mod cases {
    use isotherm_pagetable::host::HostMachine;
    use isotherm_pagetable::*;

    use crate::program::{Layout, PMD, Program, at, pages};

    /// Where the target begins.
    const FAR: u64 = 8 * PMD;

    fn program<F: Format>(machine: &HostMachine, count: u64, layout: Layout) -> Program<'_, F> {
        let program = Program::<F>::new(machine, 1);
        program.populate(0, count, layout);
        program
    }

    pub fn contents_move_whatever_size_and_alignment_are<F: Format>() {
        for layout in Layout::ALL {
            for (offset, count, to) in [
                (0, 1, 0),
                (0, 16, 16),
                (3, 16, 5),
                (15, 2, PMD - 1),
                (0, PMD, 0),
                (0, PMD, 1),
                (1, PMD, 0),
                (PMD - 1, 2, PMD - 1),
                (7, PMD + 9, 7),
                (0, 2 * PMD, PMD),
                (16, 2 * PMD - 32, 48),
            ] {
                let machine = HostMachine::new(4096);
                let program = program::<F>(&machine, 2 * PMD, layout);
                // Data on either side of the target, which must stay.
                let target = FAR + to;
                for beside in [target - 1, target + count] {
                    let folio = machine.folio(Order::BASE, FolioKind::Anon).unwrap();
                    program
                        .0
                        .map(pages(beside, 1), folio.head(), Attributes::anonymous(), Level::Pte)
                        .unwrap();
                    program.write(beside, beside);
                }
                program.0.remap(pages(offset, count), at(target)).unwrap();
                let case = format!("{layout:?}: {count} pages from {offset} to {to}");
                for page in 0..2 * PMD {
                    let moved = (offset..offset + count).contains(&page);
                    let expected = if moved { Err(Fault::NotPresent) } else { Ok(page) };
                    assert_eq!(program.read(page), expected, "{case}, page {page}");
                }
                for n in 0..count {
                    assert_eq!(program.read(target + n), Ok(offset + n), "{case}, page {n} of the target");
                }
                for beside in [target - 1, target + count] {
                    assert_eq!(program.read(beside), Ok(beside), "{case}, beside it");
                }
            }
        }
    }

    pub fn a_huge_leaf_stays_one_where_both_places_are_aligned<F: Format>() {
        for (to, stays) in [(FAR, true), (FAR + 16, false)] {
            let machine = HostMachine::new(4096);
            let program = program::<F>(&machine, PMD, Layout::Huge);
            let moved = program.0.remap(pages(0, PMD), at(to)).unwrap();
            assert_eq!(moved.splits, u64::from(!stays));
            let level = |page| match program.0.query(at(page)) {
                Mapping::Page { level, .. } => level,
                other => panic!("{other:?}"),
            };
            assert_eq!(level(to + 100), if stays { Level::Pmd } else { Level::Pte });
            program.write(to + 100, 1);
            assert_eq!((program.read(to + 100), program.read(to + 101)), (Ok(1), Ok(101)));
        }
    }

    pub fn a_move_onto_itself_or_onto_something_changes_nothing<F: Format>() {
        for layout in Layout::ALL {
            let machine = HostMachine::new(4096);
            let program = program::<F>(&machine, 2 * PMD, layout);
            let refused = |from: PageRange, to| program.0.remap(from, at(to)).unwrap_err().why;
            for to in [0, 1, PMD - 1] {
                assert_eq!(refused(pages(0, PMD), to), Error::Overlapping);
                assert_eq!(refused(pages(to, PMD), 0), Error::Overlapping);
            }
            assert_eq!(refused(pages(0, 16), PMD + 16), Error::Occupied);
            (0..2 * PMD).for_each(|page| assert_eq!(program.read(page), Ok(page), "{layout:?}"));
        }
    }

    /// Young, dirty, write permission and exclusive; a pin keeps seeing what is written.
    pub fn what_is_known_of_a_page_moves_with_it<F: Format>() {
        for layout in Layout::ALL {
            let machine = HostMachine::new(4096);
            let program = program::<F>(&machine, PMD, layout);
            let mut bitmap = [0; 8];
            program.0.mkclean(pages(0, PMD), &mut bitmap, &mut program.0.gather(&mut [])).unwrap();
            program.0.clear_young(pages(0, PMD)).unwrap();
            program.write(33, 1);
            let pinned = program.0.pin(at(33), None).unwrap();
            let before: Vec<_> = (0..PMD).map(|page| program.attributes(page)).collect();
            program.0.remap(pages(0, PMD), at(FAR)).unwrap();
            let after: Vec<_> = (FAR..FAR + PMD).map(|page| program.attributes(page)).collect();
            assert_eq!(before, after, "{layout:?}");
            assert!(after[33].dirty && after[33].young && after[33].write && after[33].exclusive);
            program.write(FAR + 33, 2);
            let frame = program.frame(FAR + 33).unwrap();
            assert_eq!((pinned.pins(), machine.read(frame.address())), (1, Some(2)));
        }
    }

    /// `MREMAP_DONTUNMAP`: the old addresses stay the program's, and what is put there is another page.
    pub fn the_old_place_can_be_used_again<F: Format>() {
        for layout in Layout::ALL {
            let machine = HostMachine::new(4096);
            let program = program::<F>(&machine, PMD, layout);
            program.0.remap(pages(16, 64), at(FAR)).unwrap();
            let folio = machine.folio(Order::new(4).unwrap(), FolioKind::Anon).unwrap();
            program.0.map(pages(32, 16), folio.head(), Attributes::anonymous(), Level::Pte).unwrap();
            (32..48).for_each(|page| program.write(page, 9000 + page));
            (0..64).for_each(|n| assert_eq!(program.read(FAR + n), Ok(16 + n), "{layout:?}"));
            (32..48).for_each(|page| assert_eq!(program.read(page), Ok(9000 + page), "{layout:?}"));
            assert_eq!(
                (program.read(31), program.read(48)),
                (Err(Fault::NotPresent), Err(Fault::NotPresent))
            );
        }
    }

    pub fn a_shared_page_is_shared_after_it_moved<F: Format>() {
        for layout in Layout::ALL {
            let machine = HostMachine::new(4096);
            let parent = program::<F>(&machine, PMD, layout);
            let child = parent.fork(2, pages(0, PMD));
            child.0.remap(pages(0, PMD), at(FAR)).unwrap();
            child.write(FAR + 40, 1);
            parent.write(41, 2);
            assert_eq!((parent.read(40), child.read(FAR + 40)), (Ok(40), Ok(1)), "{layout:?}");
            assert_eq!((parent.read(41), child.read(FAR + 41)), (Ok(2), Ok(41)), "{layout:?}");
        }
    }
}
