//! What is known of each page, after the ideas of `pagemap_ioctl.c`: which were written since the last look (`PAGE_IS_WRITTEN` with
//! `PM_SCAN_WP_MATCHING`, here `mkclean`), and of which kind they are (here `runs`).

use crate::program::formats;

formats! {
    what_was_not_written_is_not_found
    what_was_written_is_found_once
    pages_that_were_written_alone_are_found_alone
    a_look_at_a_part_leaves_the_rest_for_later
    a_huge_page_is_written_as_a_whole
    what_a_child_writes_is_not_the_parents
    pages_are_of_the_kinds_that_they_are
}

mod cases {
    use isotherm_pagetable::host::HostMachine;
    use isotherm_pagetable::*;

    use crate::program::{Layout, PMD, Program, at, pages};

    /// The pages of the range that were written since the last look.
    fn written<F: Format>(program: &Program<'_, F>, range: PageRange) -> Vec<u64> {
        let mut bitmap = [0u64; PMD as usize / 64];
        let mut slots = [Slot::default(); 4];
        let count = program.0.mkclean(range, &mut bitmap, &mut program.0.gather(&mut slots)).unwrap();
        let first = range.start().page();
        let found: Vec<_> =
            (0..PMD).filter(|&n| bitmap[n as usize / 64] >> (n % 64) & 1 == 1).map(|n| first + n).collect();
        assert_eq!(found.len() as u64, count);
        found
    }

    /// A program whose pages nobody has written since the last look.
    fn clean<F: Format>(machine: &HostMachine, layout: Layout) -> Program<'_, F> {
        let program = Program::<F>::new(machine, 1);
        program.populate(0, PMD, layout);
        assert_eq!(written(&program, pages(0, PMD)).len() as u64, PMD, "new memory counts as written");
        program
    }

    pub fn what_was_not_written_is_not_found<F: Format>() {
        for layout in Layout::ALL {
            let machine = HostMachine::new(4096);
            let program = clean::<F>(&machine, layout);
            for page in 0..PMD {
                assert_eq!(program.read(page), Ok(page));
            }
            assert_eq!(written(&program, pages(0, PMD)), [], "{layout:?}: reads were taken for writes");
        }
    }

    pub fn what_was_written_is_found_once<F: Format>() {
        for layout in Layout::ALL {
            let machine = HostMachine::new(4096);
            let program = clean::<F>(&machine, layout);
            for round in 0..3 {
                (0..PMD).for_each(|page| program.write(page, round));
                assert_eq!(written(&program, pages(0, PMD)).len() as u64, PMD, "{layout:?}");
                assert_eq!(written(&program, pages(0, PMD)), [], "{layout:?}");
            }
        }
    }

    /// Every other page, and only those: of blocks that were folded too, since a clean page faults when it is written.
    pub fn pages_that_were_written_alone_are_found_alone<F: Format>() {
        for layout in [Layout::Small, Layout::Large, Layout::HugeByPtes] {
            let machine = HostMachine::new(4096);
            let program = clean::<F>(&machine, layout);
            let some: Vec<_> = (0..PMD).step_by(2).collect();
            some.iter().for_each(|&page| program.write(page, 1));
            assert_eq!(written(&program, pages(0, PMD)), some, "{layout:?}");
        }
    }

    pub fn a_look_at_a_part_leaves_the_rest_for_later<F: Format>() {
        for layout in [Layout::Small, Layout::Large, Layout::HugeByPtes] {
            let machine = HostMachine::new(4096);
            let program = clean::<F>(&machine, layout);
            let some = [0, 99, 100, 101, PMD - 1];
            some.into_iter().for_each(|page| program.write(page, 1));
            assert_eq!(written(&program, pages(100, 1)), [100], "{layout:?}");
            assert_eq!(written(&program, pages(1, 99)), [99], "{layout:?}");
            assert_eq!(written(&program, pages(0, PMD)), [0, 101, PMD - 1], "{layout:?}");
        }
    }

    /// One entry says it for all pages, also to who asks about some; a program that writes to a part of it again is found again.
    pub fn a_huge_page_is_written_as_a_whole<F: Format>() {
        let machine = HostMachine::new(4096);
        let program = clean::<F>(&machine, Layout::Huge);
        program.write(100, 1);
        assert_eq!(written(&program, pages(200, 10)), (200..210).collect::<Vec<_>>());
        program.write(0, 1);
        assert_eq!(written(&program, pages(0, PMD)).len() as u64, PMD);
        assert_eq!(written(&program, pages(0, PMD)), []);
    }

    pub fn what_a_child_writes_is_not_the_parents<F: Format>() {
        for layout in [Layout::Small, Layout::Large, Layout::HugeByPtes] {
            let machine = HostMachine::new(4096);
            let parent = clean::<F>(&machine, layout);
            let child = parent.fork(2, pages(0, PMD));
            child.write(7, 1);
            parent.write(9, 1);
            assert_eq!((written(&parent, pages(0, PMD)), written(&child, pages(0, PMD))), (vec![9], vec![7]));
        }
    }

    /// Present, of a file, the zero page, huge, in swap, and nothing: each in its place, with the borders where they are.
    pub fn pages_are_of_the_kinds_that_they_are<F: Format>() {
        let machine = HostMachine::new(4096);
        let program = Program::<F>::new(&machine, 1);
        program.populate(0, 16, Layout::Small);
        program.populate(PMD, PMD, Layout::Huge);
        let file = machine.folio(Order::new(4).unwrap(), FolioKind::File).unwrap();
        program.0.map(pages(32, 8), file.head(), Attributes::file(), Level::Pte).unwrap();
        let zero = machine.take(Order::BASE).unwrap().into_reserved().map_err(|(why, _)| why).unwrap();
        let special = Attributes { special: true, ..Attributes::file() };
        program.0.map(pages(48, 1), zero.frame(), special, Level::Pte).unwrap();
        let frame = program.frame(5).unwrap();
        program.0.swap_out(at(5), frame, 77, &mut program.0.gather(&mut [])).unwrap();
        let mut kinds = vec!['-'; 2 * PMD as usize];
        program
            .0
            .runs(pages(0, 2 * PMD), |run| {
                let kind = match run.mapping {
                    Mapping::SwapEntry(entry) if entry.value == 77 => 's',
                    Mapping::Page { level: Level::Pmd, .. } => 'h',
                    Mapping::Page { attributes, .. } if attributes.special => 'z',
                    Mapping::Page { frame, .. } => match FolioView::of(&machine, frame).unwrap().kind() {
                        FolioKind::Anon => 'a',
                        FolioKind::File => 'f',
                    },
                    other => panic!("{other:?}"),
                };
                kinds[run.at.page() as usize..][..run.pages as usize].fill(kind);
            })
            .unwrap();
        let expected = |page| match page {
            5 => 's',
            0..16 => 'a',
            32..40 => 'f',
            48 => 'z',
            PMD.. => 'h',
            _ => '-',
        };
        assert_eq!(kinds, (0..2 * PMD).map(expected).collect::<Vec<_>>());
        program.0.unmap(pages(48, 1), &mut program.0.gather(&mut [])).unwrap();
    }
}
