//! What owns pages and refers to them: who frees what, and when.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::sync::Mutex;

use isotherm_page::*;
use proptest::prelude::*;

/// 1024 frames from 1024 on; blocks come out by rising number and are free when they are back.
struct Machine {
    metas: Vec<PageMeta>,
    freed: Mutex<Vec<Block>>,
}

const FIRST: u64 = 1024;
const FRAMES: u64 = 1024;

/// Miri takes its time with each step.
const STEPS: usize = if cfg!(miri) { 20 } else { 200 };

// SAFETY: one record a frame.
unsafe impl Pages for Machine {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        let at = frame.0.checked_sub(FIRST).filter(|&at| at < FRAMES)? as usize;
        // No reference to all of them, which Miri would check one by one.
        // SAFETY: there is a record for each frame.
        Some(unsafe { &*self.metas.as_ptr().add(at) })
    }

    unsafe fn free(&self, block: OwnedBlock) {
        self.freed.lock().unwrap().push(block.into_block());
    }
    unsafe fn split(&self, _: OwnedBlock, _: Order) {}
}

impl Machine {
    fn new() -> Machine {
        Machine { metas: (0..FRAMES).map(|_| PageMeta::new()).collect(), freed: Mutex::default() }
    }

    /// The block at this place, which the test uses once at a time.
    fn block(&self, at: u64, order: u8) -> Unique<'_, Machine, Unused> {
        let block = Block::new(Frame(FIRST + at), Order::new(order).unwrap());
        // SAFETY: the tests use each block once at a time.
        unsafe { Unique::new(self, OwnedBlock::new(block)) }
    }

    fn folio(&self, at: u64, order: u8) -> Folio<'_, Machine> {
        self.block(at, order).into_folio(FolioKind::Anon).map_err(|(why, _)| why).unwrap()
    }

    fn freed(&self) -> Vec<Block> {
        std::mem::take(&mut *self.freed.lock().unwrap())
    }

    /// How many pages are something: a freed folio's tails still say so, and its head does not.
    fn kinds(&self) -> usize {
        let frames = (0..self.metas.len() as u64).map(|n| Frame(FIRST + n));
        let is_used = |frame: &Frame| match self.meta(*frame).unwrap().kind() {
            Kind::Unused => false,
            Kind::Anon | Kind::File => FolioView::of(self, *frame).is_ok(),
            _ => true,
        };
        frames.filter(is_used).count()
    }
}

#[test]
fn the_last_reference_frees_and_no_other() {
    let machine = Machine::new();
    let folio = machine.folio(16, 4);
    let block = Block::new(folio.head(), folio.order());
    let by_tail = Folio::get(&machine, Frame(FIRST + 16 + 9)).unwrap();
    assert_eq!(
        (by_tail.head(), by_tail.frame(), by_tail.remaining()),
        (folio.head(), folio.head().add(9), 7)
    );
    let view = folio.view();
    drop(folio);
    assert_eq!((view.refs(), machine.freed()), (1, vec![]));
    let pinned = by_tail.pin();
    assert_eq!((view.pins(), view.refs()), (1, 1));
    drop(pinned);
    assert_eq!((view.pins(), machine.freed()), (0, vec![block]));
    // By head and by tail there is nothing to refer to any more.
    for n in [0, 9] {
        let gone = Folio::get(&machine, Frame(FIRST + 16 + n));
        assert_eq!(gone.err(), Some(PageError::NotAFolio));
    }
    assert_eq!(machine.freed(), vec![], "it was freed once");
}

#[test]
fn what_is_in_use_is_not_made_anything_else() {
    let machine = Machine::new();
    let folio = machine.folio(8, 1);
    // Whoever claims to own what contains it, or is contained, gets nothing.
    for (at, order) in [(8, 0), (9, 0), (8, 1), (0, 4)] {
        let (why, unique) = machine.block(at, order).into_slab().unwrap_err();
        assert!(matches!(why, PageError::InUse(_)), "{why}");
        std::mem::forget(unique);
        let (why, unique) = machine.block(at, order).into_folio(FolioKind::File).unwrap_err();
        assert!(matches!(why, PageError::InUse(_)), "{why}");
        std::mem::forget(unique);
    }
    assert_eq!((folio.refs(), folio.kind(), machine.kinds()), (1, FolioKind::Anon, 2));
    drop(folio);
    assert_eq!(machine.freed().len(), 1);
    // Its tail is free as well.
    let tail = machine.block(9, 0).into_slab().unwrap();
    drop(tail);
    let table = machine.block(9, 0).into_table().map_err(|(why, _)| why).unwrap();
    // SAFETY: it is a table, which has no entries.
    unsafe { machine.metas[9].table().try_lock().unwrap().remember(u64::MAX) };
    assert_eq!(Folio::get(&machine, Frame(FIRST + 9)).err(), Some(PageError::NotAFolio));
    drop(table);
}

#[test]
fn a_tail_is_in_use_as_long_as_its_folio_is() {
    let machine = Machine::new();
    let folio = machine.folio(8, 2);
    assert_eq!(machine.kinds(), 4);
    let Err((why, lied)) = machine.block(9, 0).into_table() else { panic!("a table in a folio") };
    assert!(matches!(why, PageError::InUse(_)));
    std::mem::forget(lied);
    assert!(Folio::get(&machine, Frame(FIRST + 9)).is_ok());
    drop(folio);
    assert_eq!((machine.kinds(), machine.freed().len()), (0, 1));
}

#[test]
fn what_was_written_is_known_of_the_folio_that_it_was_written_to() {
    let machine = Machine::new();
    let first = machine.folio(8, 2);
    // SAFETY: the folio is referred to.
    unsafe { first.mark(true, true) };
    assert_eq!((first.take_dirty(), first.take_dirty(), first.take_referenced()), (true, false, true));
    // SAFETY: as above.
    unsafe { first.mark(true, true) };
    drop(first);
    let second = machine.folio(8, 2);
    assert_eq!((second.take_dirty(), second.take_referenced()), (false, false));
}

#[test]
fn a_block_has_one_use_after_the_other() {
    let machine = Machine::new();
    let slab = machine.block(0, 2).into_slab().unwrap();
    assert_eq!(machine.metas[3].kind(), Kind::Slab);
    let folio = slab.into_unused().into_folio(FolioKind::File).map_err(|(why, _)| why).unwrap();
    assert_eq!((machine.metas[3].kind(), folio.kind()), (Kind::File, FolioKind::File));
    let other = Folio::get(&machine, folio.head()).unwrap();
    let folio = folio.into_unused().unwrap_err();
    drop(other);
    let unused = folio.into_unused().unwrap();
    assert_eq!(machine.kinds(), 0);
    let reserved = unused.into_reserved().unwrap();
    let frame = reserved.frame();
    drop(reserved);
    assert_eq!(
        (machine.kinds(), machine.freed()),
        (4, vec![]),
        "reserved memory is not freed by being forgotten"
    );
    let again = machine.block(frame.0 - FIRST, 2).into_reserved().unwrap_err();
    assert!(matches!(again.0, PageError::InUse(_)));
    std::mem::forget(again);
}

#[test]
fn folios_are_aligned_and_at_most_of_order_nine() {
    let machine = Machine::new();
    for (at, order) in [(1, 1), (0, 10), (256, 9)] {
        let (why, unique) = machine.block(at, order).into_folio(FolioKind::Anon).unwrap_err();
        assert!(matches!(why, PageError::Misaligned(_)), "{why}");
        std::mem::forget(unique);
    }
    let (why, unique) = machine.block(1008, 5).into_folio(FolioKind::Anon).unwrap_err();
    assert!(matches!(why, PageError::Misaligned(_)));
    std::mem::forget(unique);
    let (why, unique) = machine.block(1024, 0).into_folio(FolioKind::Anon).unwrap_err();
    assert_eq!(why, PageError::Unknown);
    std::mem::forget(unique);
    assert_eq!(machine.kinds(), 0, "what failed half-way left nothing behind");
    let slab = machine.block(0, 10).into_slab().unwrap();
    drop(slab);
    assert_eq!((machine.kinds(), machine.freed().len()), (0, 1));
}

#[test]
fn a_reverse_map_is_kept_of_folios_of_this_array_only() {
    let ranges = [FrameRange::new(FIRST, FIRST + 1024)];
    let mut memory = Box::new_uninit_slice(page_array_size(&ranges));
    let array = PageArray::new(&ranges, 0, &mut memory).unwrap();
    let machine = Machine::new();
    let folio = machine.folio(0, 0);
    let at = ReverseMap { mapping: 1, index: 2 };
    assert_eq!(array.set_reverse_map(&folio, at), Err(at), "the same number, but another machine's");

    struct OfArray<'m>(PageArray<'m>);
    // SAFETY: the array has one record a frame.
    unsafe impl Pages for OfArray<'_> {
        fn meta(&self, frame: Frame) -> Option<&PageMeta> {
            self.0.meta(frame)
        }
        unsafe fn free(&self, _: OwnedBlock) {}
        unsafe fn split(&self, _: OwnedBlock, _: Order) {}
    }
    let own = OfArray(array);
    let block = Block::new(Frame(FIRST), Order::BASE);
    // SAFETY: the block is the test's.
    let folio = unsafe { Folio::new(&own, OwnedBlock::new(block), FolioKind::Anon) }.unwrap();
    own.0.set_reverse_map(&folio, at).unwrap();
    assert_eq!(own.0.reverse_map(folio.head()), Some(at));
    let far = ReverseMap { mapping: 0, index: 1 << 36 };
    assert_eq!(own.0.set_reverse_map(&folio, far), Err(far));
    assert_eq!(own.0.reverse_map(Frame(0)), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    /// Against a naive model: sixteen blocks of four frames, each unused, a slab, or a folio with so many references.
    #[test]
    fn handles_agree_with_a_naive_model(steps in prop::collection::vec((0usize..16, 0u8..6), 0..STEPS)) {
        enum Held<'m> {
            Nothing,
            Slab(Unique<'m, Machine, Slab>),
            Folio(Vec<Folio<'m, Machine>>),
        }
        let machine = Machine::new();
        let mut held: Vec<_> = (0..16).map(|_| Held::Nothing).collect();
        for (at, step) in steps {
            let frame = Frame(FIRST + 4 * at as u64 + u64::from(step) % 4);
            let slot = &mut held[at];
            match (step, &mut *slot) {
                (0, Held::Nothing) => {
                    *slot = Held::Slab(machine.block(4 * at as u64, 2).into_slab().unwrap());
                }
                (1, Held::Nothing) => *slot = Held::Folio(vec![machine.folio(4 * at as u64, 2)]),
                (2..4, Held::Folio(folios)) => folios.push(Folio::get(&machine, frame).unwrap()),
                (4, Held::Folio(folios)) => {
                    let last = folios.len() == 1;
                    folios.pop();
                    prop_assert_eq!(machine.freed().len(), usize::from(last));
                    if last {
                        *slot = Held::Nothing;
                    }
                }
                (5, Held::Slab(slab)) => {
                    prop_assert_eq!(slab.order().get(), 2);
                    *slot = Held::Nothing;
                    prop_assert_eq!(machine.freed().len(), 1);
                }
                _ => {}
            }
            match &*slot {
                Held::Folio(folios) => {
                    prop_assert_eq!(FolioView::of(&machine, frame).unwrap().refs(), folios.len() as u32);
                }
                Held::Slab(_) | Held::Nothing => {
                    prop_assert_eq!(Folio::get(&machine, frame).err(), Some(PageError::NotAFolio));
                }
            }
        }
    }

    /// Aligned blocks of all sizes of 64 frames in turn, of every use: what folios left in their tails makes no page part of
    /// anything, and keeps none from becoming something else. Nothing is made of a page that is in use.
    #[test]
    fn what_freed_folios_leave_behind_says_nothing(steps in prop::collection::vec((0u64..64, 0u8..7, 0u8..5), 0..STEPS / 2)) {
        enum Held<'m> {
            Folio(Folio<'m, Machine>),
            Slab(Unique<'m, Machine, Slab>),
            Table(Unique<'m, Machine, Table>),
        }
        let machine = Machine::new();
        let mut held: Vec<(u64, u64, Held<'_>)> = Vec::new();
        for (at, order, to) in steps {
            if to == 4 {
                held.retain(|&(first, end, _)| !(first..end).contains(&at));
            } else {
                let (first, end) = (at >> order << order, ((at >> order) + 1) << order);
                let is_free = !held.iter().any(|&(from, to, _)| from < end && first < to);
                let block = machine.block(first, order);
                let made = match to {
                    0 => block.into_slab().map(Held::Slab),
                    1 => block.into_table().map(Held::Table),
                    2 => block.into_folio(FolioKind::Anon).map(Held::Folio),
                    _ => block.into_folio(FolioKind::File).map(Held::Folio),
                };
                match made {
                    Ok(made) => {
                        prop_assert!(is_free, "{}..{} is in use", first, end);
                        held.push((first, end, made));
                    }
                    Err((why, lied)) => {
                        prop_assert!(!is_free && matches!(why, PageError::InUse(_)), "{}", why);
                        std::mem::forget(lied);
                    }
                }
            }
            for n in 0..64 {
                let of = held.iter().find(|(first, end, _)| (*first..*end).contains(&n));
                let view = FolioView::of(&machine, Frame(FIRST + n));
                match of {
                    Some((first, end, Held::Folio(folio))) => {
                        let view = view.unwrap();
                        prop_assert_eq!((view.head(), view.kind()), (Frame(FIRST + first), folio.kind()));
                        prop_assert_eq!((view.remaining() as u64, view.refs()), (end - n, 1));
                    }
                    Some((.., Held::Slab(unique))) => {
                        prop_assert!(view.is_err());
                        prop_assert_eq!(machine.meta(unique.frame()).unwrap().kind(), Kind::Slab);
                    }
                    Some((.., Held::Table(unique))) => {
                        prop_assert!(view.is_err());
                        prop_assert_eq!(machine.meta(unique.frame()).unwrap().kind(), Kind::Table);
                    }
                    None => prop_assert!(view.is_err(), "{} is nothing", n),
                }
            }
        }
    }
}

#[test]
fn a_table_is_nothing_else_until_it_is_in_no_tree() {
    let machine = Machine::new();
    let table = machine.block(4, 2).into_table().map_err(|(why, _)| why).unwrap();
    let frames = [4, 5, 6, 7].map(|n| Frame(FIRST + n));
    for frame in frames {
        assert_eq!(machine.meta(frame).unwrap().kind(), Kind::Table);
        assert_eq!(Folio::get(&machine, frame).err(), Some(PageError::NotAFolio));
    }
    // Linked: the number is in an entry, and nothing that holds it gives the block back.
    let linked = table.into_raw();
    // SAFETY: a lie, which is found out: that is the test.
    let again = unsafe { Unique::new(&machine, OwnedBlock::new(linked)) };
    let Err((why, again)) = again.into_table() else { panic!("two tables in one frame") };
    assert_eq!(why, PageError::InUse(linked));
    std::mem::forget(again);
    assert_eq!((machine.kinds(), machine.freed()), (4, vec![]));
    // SAFETY: the frame is a table.
    let meta = unsafe { machine.meta(frames[0]).unwrap().table() };
    meta.try_lock().unwrap().unlink();
    // SAFETY: it is unlinked, and nobody walks.
    let table = unsafe { Unique::<_, Table>::from_raw(&machine, linked) };
    let folio = table.into_unused().into_folio(FolioKind::File).map_err(|(why, _)| why).unwrap();
    assert_eq!((folio.refs(), folio.pins()), (1, 0), "nothing is left of its lock");
    drop(folio);
    assert_eq!((machine.kinds(), machine.freed()), (0, vec![linked]));
}

#[test]
fn a_block_of_which_a_page_is_in_use_is_made_no_table() {
    let machine = Machine::new();
    let slab = machine.block(6, 0).into_slab().map_err(|(why, _)| why).unwrap();
    let Err((why, block)) = machine.block(4, 2).into_table() else { panic!("a slab in a table") };
    assert!(matches!(why, PageError::InUse(_)));
    assert_eq!(machine.kinds(), 1);
    std::mem::forget(block);
    drop(slab);
}
