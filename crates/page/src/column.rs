//! A column of records in memory of the caller's.

use core::marker::PhantomData;
use core::ptr::NonNull;

/// A slice of which one record is reached without a reference to the others. For the processor it is the same; Miri checks
/// each reference for all that it covers, and took minutes for arrays of a thousand pages.
pub(crate) struct Column<'m, T> {
    first: NonNull<T>,
    len: usize,
    records: PhantomData<&'m [T]>,
}

// SAFETY: it gives out shared references to records, and nothing else.
unsafe impl<T: Sync> Send for Column<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Sync> Sync for Column<'_, T> {}

impl<'m, T> Column<'m, T> {
    pub fn new(records: &'m mut [T]) -> Self {
        Column { first: NonNull::from(&mut *records).cast(), len: records.len(), records: PhantomData }
    }

    pub const fn len(&self) -> usize {
        self.len
    }

    #[inline(always)]
    pub fn get(&self, at: usize) -> Option<&'m T> {
        // SAFETY: one of the records, which are borrowed for 'm.
        (at < self.len).then(|| unsafe { self.first.add(at).as_ref() })
    }

    /// So many records from one on.
    #[inline(always)]
    pub fn some(&self, first: usize, count: usize) -> Option<&'m [T]> {
        if first > self.len || count > self.len - first {
            return None;
        }
        // SAFETY: some of the records, which are borrowed for 'm.
        Some(unsafe { core::slice::from_raw_parts(self.first.add(first).as_ptr(), count) })
    }

    pub const fn all(&self) -> &'m [T] {
        // SAFETY: the records, which are borrowed for 'm.
        unsafe { core::slice::from_raw_parts(self.first.as_ptr(), self.len) }
    }
}
