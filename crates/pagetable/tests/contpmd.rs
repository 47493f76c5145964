//! Contiguous blocks of huge leaves (arm64), each a folio of its own: folded only while none of them has anything left that an
//! access could set, so that each entry says what is true of its folio.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use common::{prepare, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// Leaves of a block, and pages of each.
const LEAVES: u64 = 16;
const LEAF: u64 = 512;
const BLOCK: u64 = LEAVES * LEAF;

type Space<'m, F> = AddressSpace<'m, F, HostMachine>;

/// The first page of a block, in the half of the addresses that the format translates.
fn first<F: Format>() -> u64 {
    let base = if F::HALF == Half::Upper { (1 << 52) - (1 << (F::VA_BITS - PAGE_SHIFT)) } else { 0 };
    base + 4 * BLOCK
}

fn leaf<F: Format>(n: u64) -> PageRange {
    leaves::<F>(n, 1)
}

fn leaves<F: Format>(n: u64, count: u64) -> PageRange {
    PageRange::with_pages(VirtAddr::of_page(first::<F>() + n * LEAF), count * LEAF).unwrap()
}

/// Sixteen folios in a row, aligned as a block, that stay the test's.
fn folios(machine: &HostMachine) -> Vec<Folio<'_, HostMachine>> {
    let mut head = take(machine, 9).unwrap();
    while !head.0.is_multiple_of(BLOCK) {
        head = take(machine, 9).unwrap();
    }
    let heads = std::iter::once(head).chain((1..LEAVES).map(|_| take(machine, 9).unwrap()));
    heads
        .enumerate()
        .map(|(n, found)| {
            assert_eq!(found, head.add(n as u64 * LEAF), "frames in a row");
            prepare(machine, found, 9, FolioKind::Anon).unwrap()
        })
        .collect()
}

/// The leaves, one after the other, in an order in which the last of the block comes last or not.
fn map<F: Format>(
    space: &Space<'_, F>,
    folios: &[Folio<'_, HostMachine>],
    attributes: impl Fn(u64) -> Attributes,
) {
    for n in [3, 0, 1, 2, 4, 5, 6, 15, 7, 8, 9, 10, 11, 12, 13, 14] {
        space.map(leaf::<F>(n), folios[n as usize].head(), attributes(n), Level::Pmd).unwrap();
    }
}

/// Frame, attributes, and whether it is in a block, of each leaf; `None` where there is none.
fn look<F: Format>(space: &Space<'_, F>) -> Vec<Option<(Frame, Attributes, bool)>> {
    (0..LEAVES)
        .map(|n| match space.query(leaf::<F>(n).start()) {
            Mapping::Page { frame, attributes, contiguous, level: Level::Pmd } => {
                Some((frame, attributes, contiguous))
            }
            _ => None,
        })
        .collect()
}

fn folded<F: Format>(space: &Space<'_, F>) -> Vec<bool> {
    look(space).into_iter().map(|leaf| leaf.is_some_and(|(_, _, contiguous)| contiguous)).collect()
}

fn every_state() -> impl Iterator<Item = Attributes> {
    (0..1 << 7).map(|n: u32| {
        let bit = |k: u32| n >> k & 1 == 1;
        Attributes {
            user: bit(0),
            write: bit(1),
            execute: bit(2),
            global: bit(3),
            young: bit(4),
            dirty: bit(5),
            exclusive: bit(6),
            ..Attributes::default()
        }
    })
}

/// All attributes, of all leaves alike; and with one leaf that differs in one thing, at each place.
fn folded_only_at_rest<F: Format>() {
    let machine = HostMachine::new(1 << 15);
    let folios = folios(&machine);
    let mut space = Space::<F>::new(&machine, 1).unwrap();
    let mut check = |attributes: &dyn Fn(u64) -> Attributes, expected: bool| {
        map(&space, &folios, attributes);
        let found = folded(&space);
        assert_eq!(found, [expected; 16], "{:?}, {:?}", attributes(0), attributes(5));
        for (n, leaf) in (0..).zip(look(&space)) {
            let (frame, found, _) = leaf.unwrap();
            assert_eq!((frame, found), (folios[n as usize].head(), attributes(n)), "leaf {n}");
        }
        space = Space::new(&machine, 1).unwrap();
    };
    // Only a kernel's half has global leaves.
    let permitted = |state: &Attributes| F::HALF == Half::Upper || !state.global;
    for state in every_state().filter(permitted) {
        check(&|_| state, state.young && (state.dirty || !state.write));
    }
    let rest = Attributes::anonymous();
    let others = [
        Attributes { user: false, ..rest },
        Attributes { write: false, ..rest },
        Attributes { execute: true, ..rest },
        Attributes { global: true, ..rest },
        Attributes { young: false, ..rest },
        Attributes { dirty: false, ..rest },
        Attributes { exclusive: false, ..rest },
        Attributes { memory: MemoryType::Device, ..rest },
    ];
    for other in others.into_iter().filter(permitted) {
        for at in 0..LEAVES {
            check(&|n| if n == at { other } else { rest }, false);
        }
    }
}

/// What is done to one leaf of a folded block, and what the leaf is then.
type Deed<F> = (&'static str, fn(&Space<'_, F>, u64), fn(Attributes) -> Option<Attributes>);

fn deeds<F: Format>() -> [Deed<F>; 8] {
    [
        (
            "harvest",
            |space, n| assert_eq!(space.harvest_young(leaf::<F>(n), &mut [0; 8]), Ok(LEAF)),
            |a| Some(Attributes { young: false, ..a }),
        ),
        (
            "harvest of a page",
            |space, n| {
                let page =
                    PageRange::with_pages(VirtAddr(leaf::<F>(n).start().0 + 7 * PAGE_SIZE), 1).unwrap();
                assert_eq!(space.harvest_young(page, &mut [0]), Ok(1));
            },
            |a| Some(Attributes { young: false, ..a }),
        ),
        (
            "write-protect",
            |space, n| assert!(space.write_protect(leaf::<F>(n), &mut space.gather(&mut [])).is_ok()),
            |a| Some(Attributes { write: false, ..a }),
        ),
        (
            "protect",
            |space, n| {
                let gather = &mut space.gather(&mut []);
                space.protect(leaf::<F>(n), Protection::NONE, Sharing::Private, gather).unwrap();
            },
            |a| Some(Attributes { no_access: true, write: false, ..a }),
        ),
        (
            "mkclean",
            |space, n| {
                assert_eq!(space.mkclean(leaf::<F>(n), &mut [0; 8], &mut space.gather(&mut [])), Ok(LEAF));
            },
            |a| Some(Attributes { write: false, dirty: false, ..a }),
        ),
        ("zap", |space, n| assert!(space.zap(leaf::<F>(n), &mut space.gather(&mut [])).is_ok()), |_| None),
        ("split", |space, n| space.split(leaf::<F>(n).start()).unwrap(), |_| None),
        (
            "move",
            |space, n| {
                let to = VirtAddr(leaf::<F>(n).start().0 + 64 * BLOCK * PAGE_SIZE);
                space.remap(leaf::<F>(n), to).unwrap();
            },
            |_| None,
        ),
    ]
}

/// One leaf is changed, at each place: it is what it should be, the others are as before and in no block.
fn one_is_changed_alone<F: Format>() {
    for (name, deed, becomes) in deeds::<F>() {
        let machine = HostMachine::new(1 << 15);
        let folios = folios(&machine);
        for at in 0..LEAVES {
            let space = Space::<F>::new(&machine, 1).unwrap();
            map(&space, &folios, |_| Attributes::anonymous());
            assert_eq!(folded(&space), [true; 16]);
            machine.reset_counts();
            deed(&space, at);
            assert_eq!(machine.counts().unfolds, 1, "{name} of leaf {at}");
            // Broken before it is made: a flush of its own.
            assert!(machine.counts().tlb_ranges > 0 && machine.counts().tlb_syncs > 0);
            for (n, found) in (0..).zip(look(&space)) {
                let before = Attributes::anonymous();
                let expected = if n == at { becomes(before) } else { Some(before) };
                let expected = expected.map(|a| (folios[n as usize].head(), a, false));
                assert_eq!(found, expected, "{name} of leaf {at}: leaf {n}");
            }
            drop(space);
            assert!(folios.iter().all(|folio| (folio.maps(), folio.refs()) == (0, 1)));
        }
    }
}

/// What changes nothing, or all leaves alike, leaves the block folded.
fn a_block_stays_one<F: Format>() {
    let machine = HostMachine::new(1 << 15);
    let folios = folios(&machine);
    let space = Space::<F>::new(&machine, 1).unwrap();
    map(&space, &folios, |_| Attributes::anonymous());
    machine.reset_counts();
    let all = leaves::<F>(0, LEAVES);
    let mut bitmap = [0; BLOCK as usize / 64];
    assert_eq!(space.test_young(all, &mut bitmap), Ok(BLOCK));
    for n in 0..LEAVES {
        let at = VirtAddr(leaf::<F>(n).start().0 + n * PAGE_SIZE);
        let frame = space.read().access(at, Access::Write).unwrap();
        assert_eq!(frame, folios[n as usize].head().add(n));
        drop(space.pin(at, frame).unwrap());
        space.mark_accessed(at, frame, true).unwrap();
    }
    assert_eq!(space.mkclean(all, &mut bitmap, &mut space.gather(&mut [])), Ok(BLOCK));
    assert_eq!((folded(&space), machine.counts().unfolds), (vec![true; 16], 0));
    let expected = Attributes { write: false, dirty: false, ..Attributes::anonymous() };
    assert!(look(&space).into_iter().all(|leaf| leaf.is_some_and(|(_, found, _)| found == expected)));
}

/// A child's leaves are old, so they are in no block; the parent's are protected one by one.
fn forked<F: Format>() {
    let machine = HostMachine::new(1 << 15);
    let folios = folios(&machine);
    let space = Space::<F>::new(&machine, 1).unwrap();
    map(&space, &folios, |_| Attributes::anonymous());
    let child = Space::<F>::new(&machine, 2).unwrap();
    let rule = ForkRule::Copy(Sharing::Private);
    space.copy_range(&child, leaves::<F>(0, LEAVES), rule, &mut space.gather(&mut [])).unwrap();
    for (side, young) in [(&space, true), (&child, false)] {
        for (n, found) in look(side).into_iter().enumerate() {
            let state = Attributes { write: false, exclusive: false, young, ..Attributes::anonymous() };
            assert_eq!(found, Some((folios[n].head(), state, false)));
        }
    }
    assert!(folios.iter().all(|folio| folio.maps() == 2 * LEAF as u32));
}

macro_rules! formats {
    ($($name:ident: $format:ty),*) => {$(
        mod $name {
            use super::*;
            #[test]
            fn a_block_is_folded_while_its_leaves_are_at_rest() {
                folded_only_at_rest::<$format>();
            }
            #[test]
            fn a_leaf_that_changes_leaves_its_block() {
                one_is_changed_alone::<$format>();
            }
            #[test]
            fn what_changes_no_leaf_alone_unfolds_nothing() {
                a_block_stays_one::<$format>();
            }
            #[test]
            fn a_fork_takes_the_leaves_one_by_one() {
                forked::<$format>();
            }
        }
    )*};
}

formats!(
    hafdbs: Arm64Hafdbs,
    haf: Arm64Haf,
    software: Arm64Software,
    lpa2: Arm64<Hafdbs, Granule4KLpa2>,
    ttbr1: Arm64<Hafdbs, Granule4K, Ttbr1>
);
