//! Ranges of frames with holes between them, counted without the holes.
//!
//! Frames are numbered locally, in 32 bits: ranges, rounded outwards to blocks of the largest order, follow each
//! other without gaps, so that metadata is paid only for memory that is there, and a local number is aligned to an order
//! exactly if its frame is. What rounding added is never free.

use crate::error::RangeError;
use crate::{Block, Frame, FrameRange, Order};

/// Frames a zone's numbering goes by: what it gives a range is a multiple of this.
const CHUNK: u64 = Order::MAX.frames();
/// The most frames of one numbering, rounding included: 16 TiB.
const MAX_FRAMES: u64 = 1 << 32;

/// A range, and what its local numbers are ahead of its frames by.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    range: FrameRange,
    /// Frame number minus local number, wrapping.
    ahead: u64,
}

impl Span {
    /// A place for one.
    pub const EMPTY: Self = Self { range: FrameRange::new(0, 0), ahead: 0 };
}

/// Ranges, lowest first.
#[derive(Clone, Copy)]
pub struct Spans<'m>(&'m [Span]);

impl<'m> Spans<'m> {
    /// Lays `ranges` out in `spans`, which is as long. Empty ranges are left out. Returns how many local numbers there are.
    ///
    /// # Errors
    /// All ranges are empty, two overlap, or they have more than 2^32 frames or reach beyond 64-bit addresses.
    pub fn new(ranges: &[FrameRange], spans: &'m mut [Span]) -> Result<(Self, u64), RangeError> {
        let mut count = 0;
        for (&range, span) in ranges.iter().filter(|range| !range.is_empty()).zip(spans.iter_mut()) {
            if range.end.0 > crate::MAX_FRAME {
                return Err(RangeError::TooLarge);
            }
            *span = Span { range, ahead: 0 };
            count += 1;
        }
        let spans = spans.get_mut(..count).ok_or(RangeError::Empty)?;
        spans.sort_unstable_by_key(|span| span.range.start);
        let (mut kept, mut end): (usize, u64) = (0, 0);
        for at in 0..count {
            let range = spans[at].range;
            let first = range.start.0 / CHUNK * CHUNK;
            let before = kept.checked_sub(1).map(|before| spans[before]);
            let ahead = match before {
                Some(other) if other.range.end > range.start => {
                    return Err(RangeError::Overlap(other.range, range));
                }
                Some(other) if first <= other.range.end.0 => other.ahead,
                _ => first.wrapping_sub(end),
            };
            end = range.end.0.wrapping_sub(ahead).next_multiple_of(CHUNK);
            if end > MAX_FRAMES {
                return Err(RangeError::TooLarge);
            }
            match before {
                // One range to the allocator: a block may lie across the place where they meet.
                Some(other) if other.range.end == range.start => spans[kept - 1].range.end = range.end,
                _ => {
                    spans[kept] = Span { range, ahead };
                    kept += 1;
                }
            }
        }
        if end == 0 { Err(RangeError::Empty) } else { Ok((Self(&spans[..kept]), end)) }
    }

    /// The local number of a block's first frame; `None` if any of its frames is in no range.
    #[inline]
    #[must_use]
    pub fn local(&self, block: Block) -> Option<u32> {
        let (start, frames) = (block.frame.0, block.order.frames());
        // No overflow: what a span holds lies below 2^52.
        let span = self.0.iter().find(|span| start >= span.range.start.0 && start < span.range.end.0)?;
        (start + frames <= span.range.end.0).then(|| start.wrapping_sub(span.ahead) as u32)
    }

    /// The frame of a local number; of one in no range the frame it would be if the range before it went on.
    #[inline]
    #[must_use]
    pub fn frame(&self, local: u32) -> Frame {
        let local = u64::from(local);
        let mut ahead = 0;
        for span in self.0 {
            ahead = span.ahead;
            if local < span.range.end.0.wrapping_sub(ahead) {
                break;
            }
        }
        Frame(local.wrapping_add(ahead))
    }

    /// The ranges as local numbers `start..end`.
    pub fn locals(&self) -> impl Iterator<Item = (u64, u64)> {
        self.0.iter().map(|span| {
            (span.range.start.0.wrapping_sub(span.ahead), span.range.end.0.wrapping_sub(span.ahead))
        })
    }
}

/// At most so many local numbers: what [`Spans::new`] would give, if no ranges meet within a chunk.
#[must_use]
pub const fn locals_at_most(ranges: &[FrameRange]) -> u64 {
    let (mut total, mut at): (u64, usize) = (0, 0);
    while at < ranges.len() {
        let range = ranges[at];
        if !range.is_empty() {
            let first = range.start.0 / CHUNK * CHUNK;
            total = total.saturating_add(range.end.0.div_ceil(CHUNK).saturating_mul(CHUNK) - first);
        }
        at += 1;
    }
    total
}

#[cfg(test)]
mod tests {
    use std::vec;
    use std::vec::Vec;

    use proptest::prelude::*;

    use super::*;

    fn block(frame: u64, order: u8) -> Block {
        Block::new(Frame(frame), Order::new(order).unwrap())
    }

    #[test]
    fn a_pc_s_memory_map_has_no_metadata_for_its_holes() {
        let ranges = [
            FrameRange::new(0x100, 0xbffe0),
            FrameRange::new(1, 0x9f),
            FrameRange::new(0x10_0000, 0x14_0000),
        ];
        let mut spans = [Span::EMPTY; 3];
        let (spans, locals) = Spans::new(&ranges, &mut spans).unwrap();
        assert_eq!(locals, 0xc0000 + 0x40000);
        assert_eq!(spans.local(block(0x9e, 0)), Some(0x9e));
        assert_eq!(spans.local(block(0x9f, 0)), None);
        assert_eq!(spans.local(block(0x9e, 1)), None);
        assert_eq!(spans.local(block(0x10_0000, 10)), Some(0xc0000));
        assert_eq!(spans.frame(0xc0001), Frame(0x10_0001));
        assert!(locals_at_most(&ranges) >= locals);
    }

    #[test]
    fn a_block_may_lie_across_ranges_that_touch() {
        let mut spans = [Span::EMPTY; 3];
        let ranges = [FrameRange::new(512, 1000), FrameRange::new(0, 512), FrameRange::new(1000, 1024)];
        let (spans, locals) = Spans::new(&ranges, &mut spans).unwrap();
        assert_eq!((locals, spans.local(block(0, 10))), (1024, Some(0)));
        assert_eq!(spans.locals().collect::<Vec<_>>(), [(0, 1024)]);
    }

    #[test]
    fn ranges_that_cannot_be_numbered_are_refused() {
        let mut spans = [Span::EMPTY; 2];
        let mut new = |a, b| Spans::new(&[a, b], &mut spans).map(|(_, locals)| locals);
        let empty = FrameRange::new(9, 9);
        assert_eq!(new(empty, FrameRange::new(9, 3)), Err(RangeError::Empty));
        let (a, b) = (FrameRange::new(5, 9), FrameRange::new(8, 10));
        assert_eq!(new(b, a), Err(RangeError::Overlap(a, b)));
        assert_eq!(new(empty, FrameRange::new(0, u64::MAX)), Err(RangeError::TooLarge));
        assert_eq!(new(empty, FrameRange::new(1024, (1 << 32) + 2048)), Err(RangeError::TooLarge));
        assert_eq!(new(empty, FrameRange::new(1024, (1 << 32) + 1024)), Ok(1 << 32));
        assert_eq!(new(empty, FrameRange::new(crate::MAX_FRAME - 1, crate::MAX_FRAME)), Ok(1024));
    }

    /// Miri takes its time with each frame.
    const LENGTH: u64 = if cfg!(miri) { 100 } else { 3000 };

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 256 }))]

        #[test]
        fn each_frame_has_one_local_number_aligned_as_itself(
            gaps in prop::collection::vec((0u64..LENGTH, 1u64..LENGTH), 1..6),
        ) {
            let (mut ranges, mut at) = (Vec::new(), 0);
            for (gap, length) in gaps {
                ranges.push(FrameRange::new(at + gap, at + gap + length));
                at += gap + length;
            }
            let mut spans = vec![Span::EMPTY; ranges.len()];
            let (spans, locals) = Spans::new(&ranges, &mut spans).unwrap();
            prop_assert!(locals <= locals_at_most(&ranges));
            let mut seen = vec![false; locals as usize];
            for frame in 0..at + 10 {
                let inside = ranges.iter().any(|range| (range.start.0..range.end.0).contains(&frame));
                let local = spans.local(block(frame, 0));
                prop_assert_eq!(local.is_some(), inside);
                if let Some(local) = local {
                    prop_assert_eq!(spans.frame(local), Frame(frame));
                    prop_assert_eq!(u64::from(local) % CHUNK, frame % CHUNK);
                    prop_assert!(!std::mem::replace(&mut seen[local as usize], true));
                }
            }
        }
    }
}
