//! The memory a zone keeps its books in: the caller's, laid out here.

use core::mem::MaybeUninit;

use crate::bits::{Bitfield, PAGEBLOCK_ORDER};
use crate::cache::Cache;
use crate::lists::Pageblock;
use crate::lock::Lock;
use crate::padded::Padded;
use crate::spans::{self, Span};
use crate::sync::AtomicU8;
use crate::waiting::Waiting;
use crate::{Config, FrameRange};

/// Everything in the metadata begins at a multiple of this, two cache lines, at least.
const ALIGN: usize = 128;

/// Bytes that [`Zone::new`](crate::Zone::new) needs for its metadata at most, whatever their alignment: 1 a frame, and
/// about 80 for each 2 MiB, 0.03 % of the memory in all; to which come 1.1 KiB a CPU.
///
/// It can be computed when compiling, for memory that is known then. `usize::MAX` if no memory suffices.
///
/// ```
/// use isotherm_frames::{Config, FrameRange, metadata_size};
///
/// const RAM: [FrameRange; 1] = [FrameRange::of_bytes(0x10_0000, 64 << 20)];
/// const CONFIG: Config = Config::new(2);
/// static mut METADATA: [u8; metadata_size(&RAM, &CONFIG)] = [0; metadata_size(&RAM, &CONFIG)];
/// ```
#[must_use]
pub const fn metadata_size(ranges: &[FrameRange], config: &Config) -> usize {
    let locals = spans::locals_at_most(ranges);
    if locals > usize::MAX as u64 / 4 {
        return usize::MAX;
    }
    let pageblocks = (locals >> PAGEBLOCK_ORDER) as usize;
    let waiting = match &config.reporting {
        Some(reporting) => Waiting::words(pageblocks, reporting.order.get()),
        None => 0,
    };
    let mut total = ALIGN;
    total = total.saturating_add(room::<Span>(ranges.len()));
    total = total.saturating_add(room::<AtomicU8>(locals as usize));
    total = total.saturating_add(room::<Bitfield>(pageblocks));
    total = total.saturating_add(room::<Pageblock>(pageblocks));
    total = total.saturating_add(room::<Padded<Lock<Cache>>>(config.cpus));
    total.saturating_add(room::<u64>(waiting))
}

/// Bytes for so many `T`, up to where the next thing may begin.
const fn room<T>(count: usize) -> usize {
    const { assert!(align_of::<T>() <= ALIGN) };
    let bytes = size_of::<T>().saturating_mul(count);
    match bytes.checked_next_multiple_of(ALIGN) {
        Some(bytes) => bytes,
        None => usize::MAX,
    }
}

/// What is left of the metadata memory while it is being laid out.
pub struct Carver<'m>(&'m mut [MaybeUninit<u8>]);

impl<'m> Carver<'m> {
    /// `None` if the memory does not even reach its first aligned place.
    pub fn new(memory: &'m mut [MaybeUninit<u8>]) -> Option<Self> {
        let skip = memory.as_ptr().align_offset(ALIGN);
        memory.get_mut(skip..).map(Self)
    }

    /// So many `T`, each made by `make`; `None` if the rest is too small.
    pub fn carve<T>(&mut self, count: usize, make: impl Fn() -> T) -> Option<&'m mut [T]> {
        let bytes = room::<T>(count);
        let (these, rest) = core::mem::take(&mut self.0).split_at_mut_checked(bytes)?;
        self.0 = rest;
        let first = these.as_mut_ptr().cast::<T>();
        for at in 0..count {
            // SAFETY: `bytes` is at least `count` times the size of a T, and `first` is aligned: the carver began at a
            // multiple of ALIGN, every piece is a multiple of it long, and no T asks for more (`room`).
            unsafe { first.add(at).write(make()) };
        }
        // SAFETY: as above, and all of them were just written; the borrow for 'm is handed on, as `these` is not used again.
        Some(unsafe { core::slice::from_raw_parts_mut(first, count) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn metadata_is_as_small_as_is_said() {
        let gib = [FrameRange::of_bytes(0, 1 << 30)];
        let (none, four) = (metadata_size(&gib, &Config::new(0)), metadata_size(&gib, &Config::new(4)));
        assert!(none < (1 << 18) + 512 * 81, "{none}");
        assert!((four - none) / 4 <= 1152, "{}", (four - none) / 4);
    }
}
