//! A folio split into smaller ones: what the pieces are, who refers to them, and what is refused.
#![cfg(not(loom))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::collections::BTreeSet;
use std::sync::Mutex;

use isotherm_page::*;
use proptest::prelude::*;

/// As an allocator does that knows what it has given out: what it was not told of it does not take back.
struct Machine<'m> {
    array: PageArray<'m>,
    allocated: Mutex<BTreeSet<Block>>,
    freed: Mutex<Vec<Block>>,
}

// SAFETY: the array has one record a frame.
unsafe impl Pages for Machine<'_> {
    fn meta(&self, frame: Frame) -> Option<&PageMeta> {
        self.array.meta(frame)
    }
    unsafe fn free(&self, block: OwnedBlock) {
        let block = block.into_block();
        assert!(self.allocated.lock().unwrap().remove(&block), "{block} was not given out");
        self.freed.lock().unwrap().push(block);
    }
    unsafe fn split(&self, block: OwnedBlock, order: Order) {
        let block = block.into_block();
        assert!(order < block.order, "nothing is split");
        let mut allocated = self.allocated.lock().unwrap();
        assert!(allocated.remove(&block), "{block} was not given out");
        let pieces = (0..block.order.frames()).step_by(order.frames() as usize);
        allocated.extend(pieces.map(|n| Block::new(block.frame.add(n), order)));
    }
}

const FIRST: u64 = 512;
const RAM: [FrameRange; 1] = [FrameRange::new(FIRST, FIRST + 64)];

fn with_machine<T>(test: impl FnOnce(&Machine<'_>) -> T) -> T {
    let mut memory = Box::new_uninit_slice(page_array_size(&RAM));
    let array = PageArray::new(&RAM, 0, &mut memory).unwrap();
    let machine = Machine { array, allocated: Mutex::default(), freed: Mutex::default() };
    let result = test(&machine);
    assert_eq!(machine.allocated.into_inner().unwrap(), BTreeSet::new(), "never freed");
    result
}

impl Machine<'_> {
    fn folio(&self, order: u8, kind: FolioKind) -> Folio<'_, Self> {
        self.folio_at(FIRST, order, kind)
    }

    fn folio_at(&self, frame: u64, order: u8, kind: FolioKind) -> Folio<'_, Self> {
        let block = Block::new(Frame(frame), Order::new(order).unwrap());
        self.allocated.lock().unwrap().insert(block);
        // SAFETY: each test uses it once at a time.
        unsafe { Folio::new(self, OwnedBlock::new(block), kind) }.unwrap()
    }

    fn freed(&self) -> Vec<Block> {
        std::mem::take(&mut *self.freed.lock().unwrap())
    }
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

#[test]
fn every_piece_is_a_folio_of_its_own() {
    for (from, to) in [(1, 0), (4, 0), (4, 2), (5, 5), (2, 3)] {
        with_machine(|machine| {
            let folio = machine.folio(from, FolioKind::File);
            // SAFETY: a reference is held.
            unsafe { folio.mark(true, true) };
            machine.array.set_reverse_map(&folio, ReverseMap { mapping: 7, index: 100 }).unwrap();
            machine.array.spread_reverse_map(&folio, order(to)).unwrap();
            let pieces: Vec<_> = folio.split(order(to)).unwrap().collect();
            let size = 1 << to.min(from);
            assert_eq!(pieces.len() as u64 * size, 1 << from);
            for (n, piece) in (0..).map(|n| n * size).zip(&pieces) {
                assert_eq!(piece.head(), Frame(FIRST + n));
                assert_eq!((piece.order(), piece.kind()), (order(to.min(from)), FolioKind::File));
                assert_eq!((piece.refs(), piece.maps(), piece.pins()), (1, 0, 0));
                assert!(piece.take_dirty() && piece.take_referenced(), "whose the marks were nobody knows");
                assert_eq!(
                    machine.array.reverse_map(piece.head()),
                    Some(ReverseMap { mapping: 7, index: 100 + n })
                );
                let last = Folio::get(machine, piece.head().add(size - 1)).unwrap();
                assert_eq!((last.head(), last.remaining()), (piece.head(), 1));
            }
            assert_eq!(machine.freed(), []);
            drop(pieces);
            assert_eq!(machine.freed().len() as u64 * size, 1 << from);
            assert_eq!(Folio::get(machine, Frame(FIRST)).err(), Some(PageError::NotAFolio));
        });
    }
}

#[test]
fn whoever_else_refers_to_the_folio_keeps_it_whole() {
    with_machine(|machine| {
        let folio = machine.folio(3, FolioKind::Anon);
        let other = Folio::get(machine, Frame(FIRST + 5)).unwrap();
        let (why, folio) = folio.split(Order::BASE).unwrap_err();
        assert_eq!((why, folio.order(), folio.refs()), (PageError::Referenced, order(3), 2));
        let other = other.pin();
        let (_, folio) = folio.split(Order::BASE).unwrap_err();
        drop(other);
        // SAFETY: the folio is referred to; the mappings are given back below.
        unsafe { folio.add_mapped(2) }.unwrap();
        let (why, folio) = folio.split(Order::BASE).unwrap_err();
        assert_eq!((why, folio.refs(), folio.maps()), (PageError::Referenced, 3, 2));
        // SAFETY: as above.
        unsafe { folio.view().sub_mapped(machine, 2) };
        drop(folio.split(Order::BASE).unwrap());
        assert_eq!(machine.freed().len(), 8);
    });
}

/// Whoever names the mappings may be wrong; the counts of another folio are not changed for that.
#[test]
fn mappings_of_another_folio_are_refused() {
    with_machine(|machine| {
        let other = machine.folio_at(FIRST + 8, 2, FolioKind::Anon);
        let folio = machine.folio(2, FolioKind::Anon);
        // SAFETY: a reference is held, and the test ends before the mappings would.
        unsafe { folio.add_mapped(4) }.unwrap();
        // SAFETY: there are so many, and nobody changes them.
        let mut splitting = unsafe { folio.begin_split(Order::BASE, 4) }.unwrap();
        for frame in [FIRST - 1, FIRST + 4, FIRST + 9] {
            let named = std::panic::AssertUnwindSafe(|| splitting.mapped(Frame(frame), 1));
            assert!(std::panic::catch_unwind(named).is_err(), "{frame}");
        }
        assert_eq!((other.refs(), other.maps()), (1, 0));
        // And those that are named count.
        (0..4).for_each(|n| splitting.mapped(Frame(FIRST + n), 1));
        let pieces: Vec<_> = splitting.finish().collect();
        for piece in &pieces {
            assert_eq!((piece.refs(), piece.maps()), (2, 1));
            // SAFETY: it was added above.
            unsafe { piece.view().sub_mapped(machine, 1) };
        }
        drop((pieces, other));
        assert_eq!(machine.freed().len(), 5);
    });
}

#[test]
fn a_reverse_map_that_does_not_fit_for_all_is_set_for_none() {
    with_machine(|machine| {
        let folio = machine.folio(2, FolioKind::Anon);
        let at = ReverseMap { mapping: 1, index: (1 << 36) - 2 };
        machine.array.set_reverse_map(&folio, at).unwrap();
        assert!(machine.array.spread_reverse_map(&folio, Order::BASE).is_err());
        assert_eq!(machine.array.reverse_map(Frame(FIRST + 1)), Some(ReverseMap::default()));
        // Larger pieces fit, as the last of them begins earlier, but not their last page.
        assert!(machine.array.spread_reverse_map(&folio, order(1)).is_err());
    });
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

    /// Against a naive model, which has a count for each page.
    #[test]
    fn each_piece_has_the_mappings_of_its_pages(
        from in 0u8..6,
        to in 0u8..6,
        mapped in prop::collection::vec((0u64..32, 1u32..5), 0..20),
        kept in prop::collection::vec(any::<bool>(), 32),
    ) {
        with_machine(|machine| {
            let folio = machine.folio(from, FolioKind::Anon);
            let mut maps = vec![0u32; 1 << from];
            for &(page, times) in &mapped {
                maps[page as usize % (1 << from)] += times;
            }
            let all: u32 = maps.iter().sum();
            // SAFETY: the folio is referred to; the mappings are given back below.
            unsafe { folio.add_mapped(all as usize) }.unwrap();
            // SAFETY: there are so many, and nobody changes them.
            let (_, folio) = unsafe { folio.begin_split(order(to), all + 1) }.unwrap_err();
            // SAFETY: as above.
            let mut splitting = unsafe { folio.begin_split(order(to), all) }.unwrap();
            prop_assert_eq!(Folio::get(machine, Frame(FIRST)).err(), Some(PageError::NotAFolio));
            for (n, &times) in maps.iter().enumerate() {
                splitting.mapped(Frame(FIRST + n as u64), times);
                prop_assert_eq!(Folio::get(machine, Frame(FIRST + n as u64)).err(), Some(PageError::NotAFolio));
            }
            let size = 1 << to.min(from);
            let pieces: Vec<_> = splitting.finish().collect();
            for (piece, maps) in pieces.iter().zip(maps.chunks(size)) {
                let own: u32 = maps.iter().sum();
                prop_assert_eq!((piece.maps(), piece.refs()), (own, own + 1));
            }
            // Some references go before the mappings, some after.
            let pieces = pieces.into_iter().zip(maps.chunks(size)).zip(&kept);
            let held: Vec<_> = pieces.filter_map(|((piece, maps), kept)| {
                let (view, own) = (piece.view(), maps.iter().sum::<u32>());
                let piece = kept.then_some(piece);
                if own > 0 {
                    // SAFETY: they were added above.
                    unsafe { view.sub_mapped(machine, own as usize) };
                }
                piece
            }).collect();
            prop_assert_eq!(machine.freed().len() + held.len(), (1 << from) / size);
            drop(held);
            Ok(())
        })?;
    }
}
