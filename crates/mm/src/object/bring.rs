//! Pages of shared memory that somebody brings, before a fault does.

use isotherm_page::Frame;
use isotherm_pagetable::{Format, Machine};

use super::{Backing, Object, ObjectKind, PageInError};
use crate::error::Error;
use crate::mmap_lock::MmapLock;

impl<F: Format, M: Machine, B: Backing, L: MmapLock> Object<'_, F, M, B, L> {
    /// Puts a page into the cache that is not there: `fill` writes to its frame, which is all zeros and nobody else's.
    pub(crate) fn bring(&self, index: u64, fill: impl FnOnce(Frame)) -> Result<(), Error> {
        let error = |why| if why == PageInError::NoMemory { Error::NoMemory } else { Error::BadAddress };
        if self.read().page(index).map_err(error)?.is_some() {
            return Err(Error::Exists);
        }
        let folio = self.new_page().map_err(error)?;
        fill(folio.head());
        let mut inner = self.write();
        if inner.page(index).map_err(error)?.is_some() {
            return Err(Error::Exists);
        }
        inner.cache.insert(index, folio.head(), self.kind == ObjectKind::Shmem)?;
        let _reference = folio.into_raw();
        Ok(())
    }
}
