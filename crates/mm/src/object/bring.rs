//! Pages of shared memory that somebody brings, before a fault does.

use isotherm_page::Frame;
use isotherm_pagetable::{Format, Machine};

use super::{Backing, Inner, Object, ObjectKind, PageInError};
use crate::error::Error;
use crate::mmap_lock::MmapLock;

impl<F: Format, M: Machine, B: Backing, L: MmapLock> Object<'_, F, M, B, L> {
    /// Puts a page into the cache that is not there: `fill` writes to its frame, which is all zeros and nobody else's.
    pub(crate) fn bring(&self, index: u64, fill: impl FnOnce(Frame)) -> Result<(), Error> {
        let error = |why| if why == PageInError::NoMemory { Error::NoMemory } else { Error::BadAddress };
        let is_there = |inner: &Inner<'_, F, M>| {
            Ok(inner.page(index)?.is_some() || inner.cache.swap_entry(index).is_some())
        };
        if is_there(&self.read()).map_err(error)? {
            return Err(Error::Exists);
        }
        let folio = self.new_page().map_err(error)?;
        fill(folio.head());
        let mut inner = self.write();
        if is_there(&inner).map_err(error)? {
            return Err(Error::Exists);
        }
        inner.cache.insert(index, folio.head(), self.kind == ObjectKind::Shmem)?;
        let _reference = folio.into_raw();
        Ok(())
    }
}
