//! Memory of the caller's, cut into slices.

use core::mem::MaybeUninit;

/// Every slice begins at a multiple of this, two cache lines, at least.
const ALIGN: usize = 128;

/// Bytes that [`Carver::new`] may skip to reach its first aligned place.
pub const SLACK: usize = ALIGN;

/// Bytes for so many `T`, up to where the next slice may begin; `usize::MAX` if there are none that large.
#[must_use]
pub const fn room<T>(count: usize) -> usize {
    const { assert!(align_of::<T>() <= ALIGN) };
    let bytes = size_of::<T>().saturating_mul(count);
    match bytes.checked_next_multiple_of(ALIGN) {
        Some(bytes) => bytes,
        None => usize::MAX,
    }
}

/// What is left of a piece of memory while it is cut into slices, each of [`room`] bytes.
#[derive(Debug)]
pub struct Carver<'m>(&'m mut [MaybeUninit<u8>]);

impl<'m> Carver<'m> {
    /// `None` if the memory does not even reach its first aligned place.
    pub fn new(memory: &'m mut [MaybeUninit<u8>]) -> Option<Self> {
        let skip = memory.as_ptr().align_offset(ALIGN);
        memory.get_mut(skip..).map(Self)
    }

    /// So many `T`, each made by `make`; `None` if the rest is too small, and then the rest is as it was.
    pub fn carve<T>(&mut self, count: usize, make: impl Fn() -> T) -> Option<&'m mut [T]> {
        let bytes = room::<T>(count);
        if bytes > self.0.len() {
            // Before the rest is taken out: an empty slice in its place would not be aligned.
            return None;
        }
        let (these, rest) = core::mem::take(&mut self.0).split_at_mut(bytes);
        self.0 = rest;
        let first = these.as_mut_ptr().cast::<T>();
        for at in 0..count {
            // SAFETY: `bytes` is at least `count` times the size of a T, and `first` is aligned: the carver began at a
            // multiple of ALIGN, every slice is a multiple of it long, and no T asks for more (`room`).
            unsafe { first.add(at).write(make()) };
        }
        // SAFETY: as above, and all of them were just written; the borrow for 'm is handed on, as `these` is not used again.
        Some(unsafe { core::slice::from_raw_parts_mut(first, count) })
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_large_leaves_the_rest_as_it_was() {
        let mut memory = [MaybeUninit::uninit(); 4 * ALIGN];
        let mut carver = Carver::new(&mut memory).unwrap();
        assert!(carver.carve(1 << 20, || 0u64).is_none());
        assert!(carver.carve(usize::MAX, || 0u64).is_none());
        assert_eq!(carver.carve(0, || 0u64), Some(&mut [][..]));
        let words = carver.carve(17, || 5u64).unwrap();
        assert_eq!(words, [5; 17]);
        assert!(words.as_ptr().cast::<u8>().align_offset(ALIGN) == 0);
        assert!(carver.carve(17, || 0u64).is_none());
        assert_eq!(carver.carve(1, || 7u8), Some(&mut [7][..]));
    }
}
