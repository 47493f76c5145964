//! How much is acted on at a time, and how much of it there is nothing for.

use super::select::blocks;
use crate::pte::Inspected;
use isotherm_damon::schemes::{Action, Pace};
use isotherm_damon::{BLOCK_SIZE, PAGE_SIZE};

/// Memory that is acted on at a time, the most: 16 MiB.
const CHUNK: u64 = 8 * BLOCK_SIZE;

/// Where time is limited, the clock is looked at after chunks that should take so long: what is to be done in the time left is
/// known so well, and the look at the pages and the call for them, some 30 us, are little of it. A guess.
const SLICE_NS: u64 = 1_000_000;

/// A chunk is not begun that would be late if it took so many times as long as the pace says. A guess; it is less than a hundredth
/// of a window of 100 ms that is not used for it.
pub(super) const DOUBT: u64 = 2;

/// The least chunk: 64 KiB, or a block where the action is for blocks. A larger folio is its own least chunk.
pub(super) const fn least_chunk(action: Action) -> u64 {
    match action {
        Action::Collapse | Action::Hugepage | Action::Nohugepage => BLOCK_SIZE,
        _ => Pace::FIRST,
    }
}

/// How large a chunk is to be when so much time is left, at this pace: a power of two, at least `least`. `None`: the time is not
/// enough for `need` bytes.
pub(super) fn chunk_size(pace: &Pace, least: u64, need: u64, time_left_ns: Option<u64>) -> Option<u64> {
    let Some(left) = time_left_ns else { return Some(CHUNK) };
    if pace.bytes_in(left / DOUBT) < need {
        return None;
    }
    let bytes = pace.piece(SLICE_NS.min(left / 2)).clamp(least, CHUNK);
    Some(1 << bytes.ilog2())
}

/// Bytes at which there is nothing for an action.
pub(super) fn absent(action: Action, start: u64, pages: &[Inspected]) -> u64 {
    let absent = |pages: &[Inspected]| pages.iter().filter(|page| !page.present).count() as u64 * PAGE_SIZE;
    match action {
        // It counts addresses, as the kernel's does.
        Action::Stat => 0,
        // Absent pages of a block that is not empty come to be.
        Action::Collapse | Action::Hugepage => {
            let filled = blocks(start, pages.len()).filter_map(|block| pages.get(block));
            let filled = filled.map(absent).filter(|&bytes| bytes < BLOCK_SIZE).sum::<u64>();
            absent(pages) - filled
        }
        _ => absent(pages),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_such_that_they_end_in_time() {
        const KIB: u64 = 1 << 10;
        let size = |pace: &Pace, us: Option<u64>| {
            chunk_size(pace, 64 * KIB, 64 * KIB, us.map(|us| us * 1000)).map(|bytes| bytes / KIB)
        };
        let mut pace = Pace::new();
        assert_eq!((size(&pace, None), size(&pace, Some(1))), (Some(16 << 10), Some(64)));
        // 20 us a page: a millisecond is 200 KiB.
        for _ in 0..4 {
            pace.learn(400 * KIB, 0, 2_000_000);
        }
        assert_eq!((size(&pace, None), size(&pace, Some(100_000))), (Some(16 << 10), Some(128)));
        // Half of the time left, and none when 64 KiB, which take 320 us, might take twice that.
        assert_eq!((size(&pace, Some(1000)), size(&pace, Some(600))), (Some(64), None));
        // A folio of 2 MiB takes 10 ms.
        let folio = |us: u64| chunk_size(&pace, 64 * KIB, 2048 * KIB, Some(us * 1000));
        assert_eq!((folio(15_000), folio(25_000)), (None, Some(128 * KIB)));
    }
}
