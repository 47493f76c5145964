//! The one array of all pages' metadata, in columns.
//!
//! A page has 32 bytes. They do not lie side by side: the allocator looks at its 2 bytes of every frame that it hands out,
//! fork at 16 of every page that it copies, and reverse maps at the others seldom. In records of 32 bytes the first two
//! would read 16 and 2 times as many cache lines. So each is a column, indexed by the frame's local number.
//!
//! | bytes | column | whose |
//! |---|---|---|
//! | 16 | counts, kind, order, lock ([`PageMeta`]) | the page's owner |
//! | 8 + 2 | mapping (44 bits) and index (36 bits) | the folio's owner |
//! | 4 | link to the next of a list | the list's owner |
//! | 2 | the buddy allocator's state | the zone |
//!
//! The node needs no bytes of its own: a zone is of one node, and an array is a zone's.

use core::fmt;
use core::mem::MaybeUninit;

use crate::carve::{Carver, SLACK, room};
use crate::column::Column;
use crate::error::RangeError;
use crate::spans::{Span, Spans, locals_at_most};
use crate::sync::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use crate::{Block, Folio, Frame, FrameRange, Order, PageMeta, Pages};

/// Bytes of metadata a page (Linux: 64, `struct page`).
pub const BYTES_PER_PAGE: usize = 16 + 8 + 2 + 4 + 2;

#[cfg(not(loom))]
const _: () = {
    let columns = size_of::<PageMeta>()
        + size_of::<AtomicU64>()
        + size_of::<AtomicU16>()
        + size_of::<AtomicU32>()
        + size_of::<AtomicU16>();
    assert!(columns == BYTES_PER_PAGE && BYTES_PER_PAGE <= 32, "32 bytes a page at most");
};

/// Bytes that [`PageArray::new`] needs at most for these ranges, whatever their alignment: [`BYTES_PER_PAGE`] a page, and
/// what rounding adds. It can be computed when compiling.
#[must_use]
pub const fn page_array_size(ranges: &[FrameRange]) -> usize {
    let locals = locals_at_most(ranges);
    if locals > usize::MAX as u64 / 64 {
        return usize::MAX;
    }
    let count = locals as usize;
    let columns = room::<PageMeta>(count)
        .saturating_add(room::<AtomicU64>(count))
        .saturating_add(room::<AtomicU16>(count))
        .saturating_add(room::<AtomicU32>(count))
        .saturating_add(room::<AtomicU16>(count));
    columns.saturating_add(SLACK).saturating_add(room::<Span>(ranges.len()))
}

/// Bits of a mapping.
const MAPPING_BITS: u32 = 44;
/// Bits of an index.
const INDEX_BITS: u32 = 36;
/// Bits of the index beside the mapping.
const LOW_BITS: u32 = 64 - MAPPING_BITS;

/// Where a folio is mapped, for whoever has to find its mappings (a reverse map): the object that maps it, and its place in
/// that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ReverseMap {
    /// The caller's object: its number, or its address shifted by its alignment. Below 2^44; 0 for none. (44 bits hold the
    /// lower 48 bits of the address of what is aligned to 16 bytes.)
    pub mapping: u64,
    /// The page's place in the object, in pages. Below 2^36: 256 TiB, what four levels of page tables translate.
    pub index: u64,
}

impl ReverseMap {
    /// In two words; `None` if a field is too large.
    const fn pack(self) -> Option<(u64, u16)> {
        if self.mapping >> MAPPING_BITS != 0 || self.index >> INDEX_BITS != 0 {
            return None;
        }
        Some((self.mapping << LOW_BITS | self.index & ((1 << LOW_BITS) - 1), (self.index >> LOW_BITS) as u16))
    }

    const fn unpack(word: u64, high: u16) -> Self {
        let low = word & ((1 << LOW_BITS) - 1);
        Self { mapping: word >> LOW_BITS, index: (high as u64) << LOW_BITS | low }
    }
}

/// The metadata of all pages of some ranges, in memory of the caller's.
pub struct PageArray<'m> {
    spans: Spans<'m>,
    node: u16,
    metas: Column<'m, PageMeta>,
    mappings: Column<'m, AtomicU64>,
    indices: Column<'m, AtomicU16>,
    links: Column<'m, AtomicU32>,
    states: Column<'m, AtomicU16>,
    states_taken: AtomicBool,
}

impl<'m> PageArray<'m> {
    /// An array of the frames in `ranges`, which may lie in any order and have holes between them; none is in use. `memory`
    /// is of [`page_array_size`] bytes, zeroed or not.
    ///
    /// # Errors
    /// The ranges hold nothing, overlap, or are too large; the memory is too small.
    pub fn new(
        ranges: &[FrameRange],
        node: u16,
        memory: &'m mut [MaybeUninit<u8>],
    ) -> Result<Self, RangeError> {
        let given = memory.len();
        let small = || RangeError::TooLittleMemory { needed: page_array_size(ranges), given };
        let mut carver = Carver::new(memory).ok_or_else(small)?;
        let spans = carver.carve(ranges.len(), || Span::EMPTY).ok_or_else(small)?;
        let (spans, locals) = Spans::new(ranges, spans)?;
        let count = usize::try_from(locals).map_err(|_| RangeError::TooLarge)?;
        Ok(Self {
            spans,
            node,
            metas: carver.carve(count, PageMeta::new).map(Column::new).ok_or_else(small)?,
            mappings: carver.carve(count, || AtomicU64::new(0)).map(Column::new).ok_or_else(small)?,
            links: carver.carve(count, || AtomicU32::new(0)).map(Column::new).ok_or_else(small)?,
            indices: carver.carve(count, || AtomicU16::new(0)).map(Column::new).ok_or_else(small)?,
            states: carver.carve(count, || AtomicU16::new(0)).map(Column::new).ok_or_else(small)?,
            states_taken: AtomicBool::new(false),
        })
    }

    /// The node of all pages.
    #[must_use]
    pub const fn node(&self) -> u16 {
        self.node
    }

    /// How the frames are numbered.
    #[must_use]
    pub const fn spans(&self) -> Spans<'m> {
        self.spans
    }

    /// How many pages it has records of, those included that fill its holes' ends: the local numbers are below.
    #[must_use]
    pub const fn records(&self) -> usize {
        self.metas.len()
    }

    /// The allocator's column, for the one zone that manages these frames: `None` from the second time on.
    pub fn take_states(&self) -> Option<AllocatorStates<'m>> {
        let first =
            self.states_taken.compare_exchange(false, true, Ordering::AcqRel, Ordering::Relaxed).is_ok();
        first.then_some(AllocatorStates(self.states.all()))
    }

    /// The metadata of a frame; `None` if it is in no range.
    #[inline]
    #[must_use]
    pub fn meta(&self, frame: Frame) -> Option<&'m PageMeta> {
        self.metas.get(self.local(frame)?)
    }

    /// The metadata of all frames of a block; `None` if one is in no range.
    #[inline]
    #[must_use]
    pub fn metas(&self, block: Block) -> Option<&'m [PageMeta]> {
        let first = self.spans.local(block)? as usize;
        self.metas.some(first, block.order.frames() as usize)
    }

    /// Remembers where a folio is mapped. Whose mappings and indices mean what is the caller's to define. It stays when the folio goes:
    /// whoever makes another of the frame sets it before others can find that.
    ///
    /// # Errors
    /// `at` comes back if it does not fit into its 80 bits, or if the folio is none of this array's.
    pub fn set_reverse_map<P: Pages + ?Sized>(
        &self,
        folio: &Folio<'_, P>,
        at: ReverseMap,
    ) -> Result<(), ReverseMap> {
        let (word, high) = at.pack().ok_or(at)?;
        let own = self.local(folio.head()).filter(|&head| {
            // Another array's folio may have the same number.
            let meta = folio.pages().meta(folio.head());
            meta.zip(self.metas.get(head)).is_some_and(|(a, b)| core::ptr::eq(a, b))
        });
        let (mapping, index) =
            own.and_then(|head| Some((self.mappings.get(head)?, self.indices.get(head)?))).ok_or(at)?;
        mapping.store(word, Ordering::Relaxed);
        index.store(high, Ordering::Relaxed);
        Ok(())
    }

    /// Before a folio is [split](Folio::split) into folios of `order`: lets each of these be found where its pages are, `n`
    /// pages on in the same object.
    ///
    /// # Errors
    /// As of [`set_reverse_map`](Self::set_reverse_map), of the last that would not fit. Nothing is set then.
    pub fn spread_reverse_map<P: Pages + ?Sized>(
        &self,
        folio: &Folio<'_, P>,
        order: Order,
    ) -> Result<(), ReverseMap> {
        let Some(at) = self.reverse_map(folio.head()) else { return Err(ReverseMap::default()) };
        let nth = |n: u64| ReverseMap { index: at.index + n, ..at };
        let last = nth(folio.order().frames() - 1);
        last.pack().ok_or(last)?;
        // Of this array?
        self.set_reverse_map(folio, at)?;
        for n in (0..folio.order().frames()).step_by(order.frames() as usize) {
            let (Some(local), Some((word, high))) = (self.local(folio.head().add(n)), nth(n).pack()) else {
                continue;
            };
            // Tails' are nobody's.
            if let (Some(mapping), Some(index)) = (self.mappings.get(local), self.indices.get(local)) {
                mapping.store(word, Ordering::Relaxed);
                index.store(high, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Where a folio is mapped, as it was set last for its head. While another thread sets it, the index may be half of
    /// each: whoever follows it holds the lock under which it is set (in Linux the folio's).
    #[must_use]
    pub fn reverse_map(&self, head: Frame) -> Option<ReverseMap> {
        let local = self.local(head)?;
        let word = self.mappings.get(local)?.load(Ordering::Relaxed);
        Some(ReverseMap::unpack(word, self.indices.get(local)?.load(Ordering::Relaxed)))
    }

    #[inline]
    pub(crate) fn local(&self, frame: Frame) -> Option<usize> {
        self.spans.local(Block::new(frame, Order::BASE)).map(|local| local as usize)
    }

    #[inline]
    pub(crate) fn link(&self, local: usize) -> Option<&'m AtomicU32> {
        self.links.get(local)
    }
}

impl fmt::Debug for PageArray<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PageArray").field("pages", &self.metas.len()).field("node", &self.node).finish()
    }
}

/// The allocator's two bytes of every page. There is one value an array, so who has it is the only one to write there.
#[derive(Debug)]
pub struct AllocatorStates<'m>(&'m [AtomicU16]);

impl<'m> AllocatorStates<'m> {
    /// The column, all 0, indexed by local number.
    #[must_use]
    pub const fn into_slice(self) -> &'m [AtomicU16] {
        self.0
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;
    use std::boxed::Box;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

        #[test]
        fn a_reverse_map_is_read_as_it_was_written(mapping in 0u64..1 << 44, index in 0u64..1 << 36) {
            let map = ReverseMap { mapping, index };
            let (word, high) = map.pack().unwrap();
            prop_assert_eq!(ReverseMap::unpack(word, high), map);
        }

        #[test]
        fn what_does_not_fit_is_refused(mapping in 1u64 << 44.., index in 1u64 << 36..) {
            prop_assert_eq!(ReverseMap { mapping, index: 0 }.pack(), None);
            prop_assert_eq!(ReverseMap { mapping: 0, index }.pack(), None);
        }
    }

    #[test]
    fn every_bit_of_a_reverse_map_is_its_own() {
        for bit in 0..MAPPING_BITS + INDEX_BITS {
            let map = match bit {
                0..MAPPING_BITS => ReverseMap { mapping: 1 << bit, index: 0 },
                _ => ReverseMap { mapping: 0, index: 1 << (bit - MAPPING_BITS) },
            };
            let (word, high) = map.pack().unwrap();
            assert_eq!(word.count_ones() + high.count_ones(), 1);
            assert_eq!(ReverseMap::unpack(word, high), map);
        }
    }

    #[test]
    fn an_array_has_32_bytes_a_page_and_none_for_holes() {
        // Miri takes its time with each frame.
        let frames: u64 = if cfg!(miri) { 1024 } else { 0x4_0000 };
        let ranges = [FrameRange::new(0, 0x9f), FrameRange::new(0x10_0000, 0x10_0000 + frames)];
        let size = page_array_size(&ranges);
        assert!(size <= 32 * (1024 + frames as usize) + 1024, "{size}");
        let mut memory = Box::new_uninit_slice(size);
        let array = PageArray::new(&ranges, 3, &mut memory).unwrap();
        assert_eq!(array.node(), 3);
        assert!(array.meta(Frame(0x9e)).is_some() && array.meta(Frame(0x9f)).is_none());
        let metas = |frame, order| array.metas(Block::new(Frame(frame), Order::new(order).unwrap()));
        assert!(metas(0x9c, 2).is_none(), "a block with a frame in a hole");
        let four = metas(0x98, 2).unwrap();
        assert!(
            (0x98..).zip(four).all(|(frame, meta)| std::ptr::eq(array.meta(Frame(frame)).unwrap(), meta))
        );
        assert_eq!(four.len(), 4);
        assert!(array.take_states().is_some() && array.take_states().is_none());
        let mut little = Box::new_uninit_slice(64);
        assert!(matches!(
            PageArray::new(&ranges, 0, &mut little),
            Err(RangeError::TooLittleMemory { given: 64, .. })
        ));
    }
}
