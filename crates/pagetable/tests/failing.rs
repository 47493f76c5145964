//! Every operation that allocates, failing at every allocation it makes: with a budget of none, one, two ... until it
//! comes through. What [`Stopped`] promises is looked at each time: all before the page is done, nothing from it on is
//! changed, counts are exact, and repeated from there the operation completes.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{at, pages, prepare, swap_out, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

const FRAMES: u64 = 8192;
const NO_LIMIT: u64 = u64::MAX;

/// Tables of all levels are needed around here: the range lies on both sides of a border between PUD entries.
const BORDER: u64 = 1 << 18;

fn folio(machine: &HostMachine, order: u8) -> Folio<'_, HostMachine> {
    let folio = prepare(machine, take(machine, order).unwrap(), order, FolioKind::Anon).unwrap();
    for n in 0..1 << order {
        machine.write(folio.head().add(n).address(), folio.head().0 + n).unwrap();
    }
    folio
}

/// What a user can see of the pages of a range.
fn look<F: Format>(
    space: &AddressSpace<'_, F, HostMachine>,
    range: PageRange,
) -> Vec<Option<(Frame, Attributes)>> {
    let first = range.start().page();
    (first..first + range.pages())
        .map(|page| match space.query(at(page)) {
            Mapping::Page { frame, attributes, .. } => Some((frame, attributes)),
            Mapping::None => None,
            Mapping::SwapEntry(_) => panic!("a swap entry"),
        })
        .collect()
}

/// Calls `attempt` with growing budgets until it says that the operation came through; at most at the fiftieth.
fn with_growing_budget(least: u64, mut attempt: impl FnMut(u64) -> bool) {
    let enough = (0..50).find(|&budget| attempt(budget)).expect("it comes through at some time");
    assert!(enough >= least, "it needed {enough} allocations only: nothing was tested");
}

fn rest(range: PageRange, from: VirtAddr) -> PageRange {
    let done = from.page() - range.start().page();
    assert!(done < range.pages(), "{from} is past the range");
    pages(from.page(), range.pages() - done)
}

fn map_fails<F: Format>() {
    let range = pages(BORDER - 600, 1400);
    with_growing_budget(5, |budget| {
        let machine = HostMachine::new(FRAMES);
        let free = machine.free_frames();
        let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
        let taken: Vec<_> = (0..3).map(|_| folio(&machine, 9)).collect();
        let head = taken[0].head();
        assert_eq!(taken[2].head(), head.add(1024), "one after the other");
        machine.set_budget(budget, NO_LIMIT);
        let result = space.map(range, head, Attributes::anonymous(), Level::Pte);
        machine.set_budget(NO_LIMIT, NO_LIMIT);
        let done = result.map_or_else(|stopped| stopped.at.page() - range.start().page(), |_| range.pages());
        let mapped = look(&space, range);
        for (n, page) in mapped.iter().enumerate() {
            let expected = (head.add(n as u64), Attributes::anonymous());
            assert_eq!(*page, ((n as u64) < done).then_some(expected), "page {n}, budget {budget}");
        }
        assert_eq!(taken.iter().map(|folio| u64::from(folio.maps())).sum::<u64>(), done);
        if let Err(stopped) = result {
            assert_eq!(stopped.why, Error::NoTableFrame);
            let from = stopped.at;
            space.map(rest(range, from), head.add(done), Attributes::anonymous(), Level::Pte).unwrap();
            assert_eq!(look(&space, range)[1399], Some((head.add(1399), Attributes::anonymous())));
        }
        drop(space);
        drop(taken);
        assert_eq!(machine.free_frames(), free);
        result.is_ok()
    });
}

/// 2 MiB as a huge leaf, then order-4 folios in the tables on both sides of the border, a page of them pinned.
fn populate<'m, F: Format>(space: &AddressSpace<'m, F, HostMachine>) -> Pinned<'m, HostMachine> {
    let machine = space.machine();
    let huge = folio(machine, 9);
    space.map(pages(BORDER - 512, 512), huge.head(), Attributes::anonymous(), Level::Pmd).unwrap();
    drop(huge);
    for first in [BORDER - 1024 + 480, BORDER, BORDER + 512, BORDER + 1024, BORDER + 1040] {
        let small = folio(machine, 4);
        space.map(pages(first, 16), small.head(), Attributes::anonymous(), Level::Pte).unwrap();
        drop(small);
    }
    space.pin(at(BORDER + 515), None).unwrap()
}

fn fork_fails<F: Format>() {
    // The huge leaf is covered in part: it has to be split, which takes a table too.
    let range = pages(BORDER - 300, 1500);
    for folios in [0, NO_LIMIT] {
        with_growing_budget(4, |budget| {
            let machine = HostMachine::new(FRAMES);
            let free = machine.free_frames();
            let parent = AddressSpace::<F, _>::new(&machine, 1).unwrap();
            let pinned = populate(&parent);
            let child = AddressSpace::<F, _>::new(&machine, 2).unwrap();
            let before = look(&parent, range);
            machine.set_budget(budget, folios);
            let rule = ForkRule::Copy(Sharing::Private);
            let result = parent.copy_range(&child, range, rule, &mut parent.gather(&mut []));
            machine.set_budget(NO_LIMIT, NO_LIMIT);
            let first = range.start().page();
            let done = result.map_or_else(|stopped| stopped.at.page() - first, |_| range.pages());
            check_fork(&parent, &child, range, &before, done as usize);
            if let Err(stopped) = result {
                let no_copy = stopped.why == Error::NoFolioFrames(Order::BASE);
                assert!(no_copy || stopped.why == Error::NoTableFrame, "{stopped}");
                assert!(!no_copy || folios == 0 && stopped.at == at(BORDER + 512), "{stopped}");
                let rest = rest(range, stopped.at);
                parent.copy_range(&child, rest, rule, &mut parent.gather(&mut [])).unwrap();
                check_fork(&parent, &child, range, &before, before.len());
            }
            drop(pinned);
            drop((parent, child));
            assert_eq!(machine.free_frames(), free);
            // Without a frame for the copy of the pinned page it never comes further.
            match result {
                Ok(_) => true,
                Err(stopped) => stopped.why == Error::NoFolioFrames(Order::BASE),
            }
        });
    }
}

/// The first `done` pages are shared, the others as they were.
fn check_fork<F: Format>(
    parent: &AddressSpace<'_, F, HostMachine>,
    child: &AddressSpace<'_, F, HostMachine>,
    range: PageRange,
    before: &[Option<(Frame, Attributes)>],
    done: usize,
) {
    let (parents, childs) = (look(parent, range), look(child, range));
    for (n, before) in before.iter().enumerate() {
        let (parents, childs) = (parents[n], childs[n]);
        let Some((frame, attributes)) = *before else {
            assert_eq!((parents, childs), (None, None), "page {n}");
            continue;
        };
        if n >= done {
            assert_eq!((parents, childs), (*before, None), "page {n} of {done}");
            continue;
        }
        let Some((childs_frame, childs_attributes)) = childs else { panic!("page {n} of {done} is missing") };
        let pinned = FolioView::of(parent.machine(), frame).unwrap().pins() > 0;
        let shared = Attributes { write: false, exclusive: false, ..attributes };
        if pinned {
            // The child has a copy of its own.
            assert_eq!(parents, *before);
            assert!(childs_frame != frame && childs_attributes.write && childs_attributes.exclusive);
        } else {
            assert_eq!(parents, Some((frame, shared)), "page {n} of {done}");
            assert_eq!((childs_frame, childs_attributes), (frame, Attributes { young: false, ..shared }));
        }
        let read = |frame: Frame| parent.machine().read(frame.address());
        assert_eq!(read(childs_frame), read(frame), "contents of page {n}");
    }
}

fn remap_fails<F: Format>() {
    // Not aligned as before, so that the huge leaf is split; the target has no table yet.
    let from = pages(BORDER - 544, 1600);
    let to = at((3 << 18) - 1000);
    with_growing_budget(6, |budget| {
        let machine = HostMachine::new(FRAMES);
        let free = machine.free_frames();
        let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
        drop(populate(&space));
        let before = look(&space, from);
        machine.set_budget(budget, NO_LIMIT);
        let result = space.remap(from, to);
        machine.set_budget(NO_LIMIT, NO_LIMIT);
        let moved = |done: usize| {
            let (old, new) = (look(&space, from), look(&space, pages(to.page(), from.pages())));
            for (n, before) in before.iter().enumerate() {
                let expected = if n < done { (None, *before) } else { (*before, None) };
                assert_eq!((old[n], new[n]), expected, "page {n} of {done}, budget {budget}");
            }
        };
        let first = from.start().page();
        moved(result.map_or_else(|stopped| stopped.at.page() - first, |_| from.pages()) as usize);
        if let Err(stopped) = result {
            assert_eq!(stopped.why, Error::NoTableFrame);
            let done = stopped.at.page() - first;
            space.remap(rest(from, stopped.at), at(to.page() + done)).unwrap();
            moved(before.len());
        }
        drop(space);
        assert_eq!(machine.free_frames(), free);
        result.is_ok()
    });
}

/// Operations on a range that ends within a huge leaf, and so need a table to split it.
fn border_fails<F: Format>() {
    type Operation<F> = fn(
        &AddressSpace<'_, F, HostMachine>,
        PageRange,
        &mut Gather<'_, HostMachine>,
    ) -> Result<RssStat, Stopped>;
    let operations: [Operation<F>; 4] = [
        |space, range, gather| space.zap(range, gather),
        |space, range, gather| space.unmap(range, gather),
        |space, range, gather| space.write_protect(range, gather),
        |space, range, gather| space.protect(range, Protection::NONE, Sharing::Private, gather),
    ];
    for (n, operation) in operations.iter().enumerate() {
        for range in [pages(BORDER - 544, 132), pages(BORDER - 100, 200), pages(BORDER - 300, 200)] {
            with_growing_budget(1, |budget| {
                let machine = HostMachine::new(FRAMES);
                let free = machine.free_frames();
                let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
                drop(populate(&space));
                let all = pages(BORDER - 1024, 2560);
                let before = look(&space, all);
                machine.set_budget(budget, NO_LIMIT);
                let result = operation(&space, range, &mut space.gather(&mut []));
                machine.set_budget(NO_LIMIT, NO_LIMIT);
                let changed_until = |end: u64| {
                    for (k, (before, now)) in before.iter().zip(look(&space, all)).enumerate() {
                        let page = all.start().page() + k as u64;
                        let inside = range.contains(page) && page < end && before.is_some();
                        assert_eq!(*before != now, inside, "page {page:#x}, operation {n}, budget {budget}");
                    }
                };
                let end = range.start().page() + range.pages();
                changed_until(result.map_or_else(|stopped| stopped.at.page(), |_| end));
                if let Err(stopped) = result {
                    assert_eq!(stopped.why, Error::NoTableFrame);
                    operation(&space, rest(range, stopped.at), &mut space.gather(&mut [])).unwrap();
                    changed_until(end);
                }
                drop(space);
                assert_eq!(machine.free_frames(), free);
                result.is_ok()
            });
        }
    }
}

/// A space with [`populate`]d memory, and a child that shares the huge leaf at `BORDER - 512`.
fn shared<F: Format>(
    machine: &HostMachine,
) -> (AddressSpace<'_, F, HostMachine>, AddressSpace<'_, F, HostMachine>) {
    let space = AddressSpace::<F, _>::new(machine, 1).unwrap();
    drop(populate(&space));
    let child = AddressSpace::<F, _>::new(machine, 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    space.copy_range(&child, HUGE, rule, &mut space.gather(&mut [])).unwrap();
    (space, child)
}

const HUGE: PageRange = match PageRange::with_pages(VirtAddr::of_page(BORDER - 512), 512) {
    Ok(range) => range,
    Err(_) => panic!("a range"),
};

fn write_fault_fails<F: Format>() {
    let page = at(BORDER - 200);
    let (no_table, no_folio) = (Err(Error::NoTableFrame), Err(Error::NoFolioFrames(Order::BASE)));
    for (whole_folio, tables, folios, expected) in [
        (false, 0, 0, no_table),
        (false, 0, 1, no_table),
        (false, 1, 0, no_folio),
        (false, 1, 1, Ok(Resolved::Copied(1))),
        // Without room for the folio a page does, for which the leaf is split.
        (true, 0, 0, no_table),
        (true, 1, 0, no_folio),
        (true, 0, 1, Ok(Resolved::Copied(512))),
    ] {
        let machine = HostMachine::new(FRAMES);
        let free = machine.free_frames();
        let (space, child) = shared::<F>(&machine);
        let before = look(&space, HUGE);
        let fault = WriteFault { sharing: Sharing::Private, bounds: HUGE, whole_folio };
        machine.set_budget(tables, folios);
        let result = space.write_fault(page, None, fault);
        machine.set_budget(NO_LIMIT, NO_LIMIT);
        assert_eq!(result, expected, "{tables} tables, {folios} folios, whole: {whole_folio}");
        if result.is_err() {
            assert_eq!(look(&space, HUGE), before, "{tables} tables, {folios} folios");
            assert!(matches!(space.write_fault(page, None, fault), Ok(Resolved::Copied(_))));
        }
        let now = look(&space, HUGE);
        let changed = before.iter().zip(&now).filter(|(before, now)| before != now).count() as u64;
        if let Ok(Resolved::Copied(pages)) = result {
            assert_eq!(changed, pages);
        }
        assert_eq!(look(&child, HUGE).iter().flatten().count(), 512);
        drop((space, child));
        assert_eq!(machine.free_frames(), free);
    }
}

fn split_and_swap_out_fail<F: Format>() {
    let machine = HostMachine::new(FRAMES);
    let free = machine.free_frames();
    let (space, child) = shared::<F>(&machine);
    let before = look(&space, HUGE);
    let page = at(BORDER - 200);
    machine.set_budget(0, 0);
    assert_eq!(space.split(page), Err(Error::NoTableFrame));
    assert_eq!(swap_out(&space, page, 7, &mut space.gather(&mut [])), Err(Error::NoTableFrame));
    assert!(matches!(space.query(page), Mapping::Page { level: Level::Pmd, .. }));
    machine.set_budget(1, 0);
    assert_eq!(space.split(page), Ok(()));
    assert_eq!(look(&space, HUGE), before);
    assert!(matches!(space.query(page), Mapping::Page { level: Level::Pte, .. }));
    assert_eq!(swap_out(&space, page, 7, &mut space.gather(&mut [])), Ok(true));
    assert_eq!(space.query(page), Mapping::SwapEntry(SwapEntry { value: 7, exclusive: false }));
    assert!(AddressSpace::<F, _>::new(&machine, 3).is_err_and(|why| why == Error::NoTableFrame));
    drop((space, child));
    assert_eq!(machine.free_frames(), free);
}

fn collapse_fails<F: Format>() {
    let machine = HostMachine::new(FRAMES);
    let free = machine.free_frames();
    let space = AddressSpace::<F, _>::new(&machine, 1).unwrap();
    drop(populate(&space));
    let range = pages(BORDER, 512);
    let before = look(&space, range);
    machine.set_budget(0, 0);
    let no_room = Err(Error::NoFolioFrames(MAX_ORDER));
    assert_eq!(space.collapse(at(BORDER), 511, &mut space.gather(&mut [])), no_room);
    // The pages may have become read-only; a write gets them back without a copy.
    let fault = WriteFault { sharing: Sharing::Private, bounds: range, whole_folio: true };
    assert!(matches!(
        space.write_fault(at(BORDER), None, fault),
        Ok(Resolved::Reused(16) | Resolved::Writable)
    ));
    assert_eq!(look(&space, range), before);
    machine.set_budget(0, 1);
    let collapsed = space.collapse(at(BORDER), 511, &mut space.gather(&mut []));
    assert_eq!(collapsed, Ok(Collapsed::Copied { pages: 16 }));
    for (n, (before, now)) in before.iter().zip(look(&space, range)).enumerate() {
        let (copy, _) = now.unwrap();
        let expected = before.map_or(0, |(frame, _)| frame.0);
        assert_eq!(machine.read(copy.address()), Some(expected), "page {n}");
    }
    drop(space);
    assert_eq!(machine.free_frames(), free);
}

macro_rules! formats {
    ($($name:ident: $format:ty;)*) => {$(
        mod $name {
            use super::*;
            #[test]
            fn map_stops_where_a_table_lacks() {
                map_fails::<$format>();
            }
            #[test]
            fn fork_stops_where_a_table_or_a_copy_lacks() {
                fork_fails::<$format>();
            }
            #[test]
            fn remap_stops_where_a_table_lacks() {
                remap_fails::<$format>();
            }
            #[test]
            fn changes_stop_before_a_huge_leaf_that_cannot_be_split() {
                border_fails::<$format>();
            }
            #[test]
            fn a_write_fault_without_memory_changes_nothing() {
                write_fault_fails::<$format>();
            }
            #[test]
            fn split_and_swap_out_without_memory_change_nothing() {
                split_and_swap_out_fail::<$format>();
            }
            #[test]
            fn a_collapse_without_memory_can_be_repeated() {
                collapse_fails::<$format>();
            }
        }
    )*};
}

formats! {
    x86_64: X86_64;
    x86_64_la57: X86_64La57;
    arm64: Arm64Hafdbs;
    arm64_software: Arm64Software;
}
