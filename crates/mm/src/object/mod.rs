//! Objects: files and shared memory, whose pages are found by their index, and may be mapped by many spaces.
//!
//! An object has a cache of pages, a reverse map of where it is mapped, and one lock for both. Faults hold it for reading while
//! they put a page into page tables; whoever takes pages away from below holds it for writing: write-back, while it makes pages
//! clean and read-only, [`resize`](Object::resize) and [`evict`](Object::evict). So none of them meets a fault half-way, and
//! what spaces count stays exact.
//!
//! **Dirty.** A page of a file is mapped writable only after it is marked dirty in the cache, under the lock. Write-back takes
//! the mark away and makes all mappings read-only in one hold of the lock: the next write faults, and marks it again. What a CPU
//! writes through a translation that is still to be flushed is kept with the folio ([`Folio::take_dirty`]), after the flush.
//! Shared memory is always dirty, for there is nowhere that it could be written to but swap: see [swapping].
//!
//! **I/O** is done without the lock. A page that is brought in counts only if none was taken out of the cache meanwhile, and the
//! size is what it was: it could have been that page, written to and written back, or cut off, and what was read is outdated
//! then. Write-back and changes of the size
//! are done one at a time, so that an older state of a page is not written after a newer one.

mod bring;
mod cache;
mod extents;
mod from_below;
mod registry;
mod swapping;
mod write_back;

use core::cell::UnsafeCell;
use core::fmt;
use core::ops::{Deref, DerefMut};

use isotherm_page::{Block, Folio, FolioKind, Frame, Order, OwnedBlock};
use isotherm_pagetable::{Format, Machine};

use crate::error::Error;
use crate::mmap_lock::MmapLock;
use crate::paged::Mm;
use crate::shared::Shared;
use crate::sync::AtomicBool;
use crate::vma::VmaInfo;
use cache::Cache;
pub(crate) use cache::Cached;
use extents::Extents;

pub use registry::{Never, Objects};

/// What an object is, for accounting and write-back.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ObjectKind {
    /// A file: pages that were written to are written back.
    File,
    /// Shared memory: what is written stays as long as the object, in memory or in swap.
    Shmem,
}

/// The storage behind an object failed (`EIO`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, thiserror::Error)]
#[error("the storage of the object failed")]
pub struct BackingError;

/// Where the pages of an object come from, and are written to. Called without locks of this crate, and may sleep; by several
/// threads at once, but for write-back of one object.
pub trait Backing {
    /// What it is the storage of.
    fn kind(&self) -> ObjectKind;

    /// Fills a page. Its frame is all zeros, and nobody else's until this returns.
    ///
    /// # Errors
    /// [`BackingError`]: who wanted the page gets a fault or an error.
    fn page_in(&self, index: u64, frame: Frame) -> Result<(), BackingError>;

    /// How many pages behind one that a fault or a `read` has to wait for are brought in after it, if they are not in memory: called
    /// before the first [`page_in`](Self::page_in), so that storage can read all at once. What it says is a wish: pages beyond the end, and those for
    /// which there is no frame, are left out. By default there are none.
    fn read_ahead(&self, index: u64) -> u64 {
        let _ = index;
        0
    }

    /// Writes a page to where [`page_in`](Self::page_in) finds it again. Programs may write to the frame meanwhile; then the
    /// page is written back once more, later.
    ///
    /// # Errors
    /// [`BackingError`]: the page stays dirty.
    fn write_back(&self, index: u64, frame: Frame) -> Result<(), BackingError>;
}

/// Shared memory: pages begin as zeros, and stay in memory, or in the swap of the [`System`](crate::System) whose spaces map them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shmem;

impl Backing for Shmem {
    fn kind(&self) -> ObjectKind {
        ObjectKind::Shmem
    }

    fn page_in(&self, _: u64, _: Frame) -> Result<(), BackingError> {
        Ok(())
    }

    fn write_back(&self, _: u64, _: Frame) -> Result<(), BackingError> {
        Ok(())
    }
}

/// A file or a piece of shared memory, with its pages and the reverse map. Its lock is the caller's, as `mmap_lock` is.
///
/// Spaces of format `F` on the machine `M` map it; they find it by its number through [`Objects`].
pub struct Object<'m, F: Format, M: Machine, B: Backing, L: MmapLock> {
    machine: &'m M,
    backing: B,
    kind: ObjectKind,
    lock: L,
    inner: UnsafeCell<Inner<'m, F, M>>,
    /// Write-back, or a change of the size, is under way.
    writing: AtomicBool,
}

pub(crate) struct Inner<'m, F: Format, M: Machine> {
    pub(crate) cache: Cache,
    pub(crate) extents: Extents<'m, F, M>,
    /// In pages.
    pub(crate) size: u64,
    /// How often pages were taken out of the cache, or the size changed.
    changes: u64,
    /// Once a page was swapped out.
    swapped: Option<swapping::Swapped<'m>>,
}

// SAFETY: what is inside is reached with the lock held, for writing if it is changed.
unsafe impl<'m, F: Format, M: Machine, B: Backing + Sync, L: MmapLock + Sync> Sync for Object<'m, F, M, B, L>
where
    M: Sync,
    Inner<'m, F, M>: Send + Sync,
{
}

/// Why a page could not be had.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PageInError {
    /// The object ends before it.
    #[error("the object ends before the page")]
    BeyondEnd,
    /// Its storage failed.
    #[error(transparent)]
    Backing(#[from] BackingError),
    /// No frame, or no memory for the cache.
    #[error("no frame for a page, or no memory for the cache")]
    NoMemory,
}

/// Holds the lock for reading.
pub(crate) struct Read<'a, 'm, F: Format, M: Machine, L: MmapLock + 'a> {
    inner: &'a Inner<'m, F, M>,
    _lock: L::Read<'a>,
}

impl<'m, F: Format, M: Machine, L: MmapLock> Deref for Read<'_, 'm, F, M, L> {
    type Target = Inner<'m, F, M>;

    fn deref(&self) -> &Self::Target {
        self.inner
    }
}

/// Holds the lock for writing.
struct Write<'a, 'm, F: Format, M: Machine, L: MmapLock + 'a> {
    inner: &'a mut Inner<'m, F, M>,
    _lock: L::Write<'a>,
}

impl<'m, F: Format, M: Machine, L: MmapLock> Deref for Write<'_, 'm, F, M, L> {
    type Target = Inner<'m, F, M>;

    fn deref(&self) -> &Self::Target {
        self.inner
    }
}

impl<'m, F: Format, M: Machine, L: MmapLock> DerefMut for Write<'_, 'm, F, M, L> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.inner
    }
}

impl<F: Format, M: Machine> Inner<'_, F, M> {
    /// A page that is in the cache, `None` if it has to be brought in.
    pub(crate) fn page(&self, index: u64) -> Result<Option<Cached<'_>>, PageInError> {
        if index >= self.size { Err(PageInError::BeyondEnd) } else { Ok(self.cache.get(index)) }
    }

    /// Takes a page out of the cache, and gives its reference back. What reclaim says is remembered.
    fn remove(&mut self, machine: &M, index: u64, left_at: Option<u64>) {
        let frame = match left_at {
            Some(left_at) => self.cache.evict(index, left_at),
            None => self.cache.remove(index),
        };
        if let Some(frame) = frame {
            self.changes += 1;
            // SAFETY: the cache had a reference, and does not have the page any more.
            drop(unsafe { Folio::from_raw(machine, frame) });
        }
    }
}

impl<'m, F: Format, M: Machine, B: Backing, L: MmapLock> Object<'m, F, M, B, L> {
    /// An object of so many pages, none of them in memory.
    pub fn new(machine: &'m M, backing: B, lock: L, pages: u64) -> Self {
        let inner = Inner {
            cache: Cache::default(),
            extents: Extents::new(),
            size: pages,
            changes: 0,
            swapped: None,
        };
        let (kind, inner) = (backing.kind(), UnsafeCell::new(inner));
        Self { machine, backing, kind, lock, inner, writing: AtomicBool::new(false) }
    }

    /// What it is.
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Its storage.
    pub fn backing(&self) -> &B {
        &self.backing
    }

    /// Its size, in pages.
    pub fn pages(&self) -> u64 {
        self.read().size
    }

    /// How many of its pages are in memory.
    pub fn cached(&self) -> u64 {
        self.read().cache.len()
    }

    pub(crate) fn read(&self) -> Read<'_, 'm, F, M, L> {
        let lock = self.lock.read();
        // SAFETY: the lock is held for reading as long as the reference lives.
        Read { inner: unsafe { &*self.inner.get() }, _lock: lock }
    }

    fn write(&self) -> Write<'_, 'm, F, M, L> {
        let lock = self.lock.write();
        // SAFETY: the lock is held for writing as long as the reference lives.
        Write { inner: unsafe { &mut *self.inner.get() }, _lock: lock }
    }

    /// Brings a page into memory, if it is not there: what a fault or a `read` waits for.
    ///
    /// # Errors
    /// [`PageInError`].
    pub fn page_in(&self, index: u64) -> Result<(), PageInError> {
        self.bring_in_ahead(index).map(drop)
    }

    /// The same as [`bring_in`](Self::bring_in), and pages behind it as the storage wishes.
    pub(crate) fn bring_in_ahead(&self, index: u64) -> Result<Option<u64>, PageInError> {
        if self.read().page(index)?.is_some() {
            return Ok(None);
        }
        let ahead = self.backing.read_ahead(index);
        let left_at = self.bring_in(index)?;
        for next in (1..=ahead).map_while(|n| index.checked_add(n)) {
            if self.bring_in(next).is_err() {
                break;
            }
        }
        Ok(left_at)
    }

    /// The same; returns what reclaim said when it took the page away.
    pub(crate) fn bring_in(&self, index: u64) -> Result<Option<u64>, PageInError> {
        loop {
            let (changes, swap_entry) = {
                let inner = self.read();
                if inner.page(index)?.is_some() {
                    return Ok(None);
                }
                (inner.changes, inner.cache.swap_entry(index))
            };
            if let Some(swap_entry) = swap_entry {
                match self.swap_in(index, swap_entry)? {
                    // Somebody else was faster, or it is gone.
                    None => continue,
                    left_at => return Ok(left_at),
                }
            }
            let folio = self.new_page()?;
            self.backing.page_in(index, folio.head())?;
            let mut inner = self.write();
            if inner.page(index)?.is_some() {
                return Ok(None);
            }
            if inner.changes == changes && inner.cache.swap_entry(index).is_none() {
                // There is nowhere that shared memory could be written back to.
                let dirty = self.kind == ObjectKind::Shmem;
                let inserted = inner.cache.insert(index, folio.head(), dirty);
                let shadow = inserted.map_err(|_| PageInError::NoMemory)?;
                let _reference = folio.into_raw();
                return Ok(shadow);
            }
        }
    }

    /// A page of zeros.
    fn new_page(&self) -> Result<Folio<'m, M>, PageInError> {
        let frame = self.machine.alloc_folio(Order::BASE).ok_or(PageInError::NoMemory)?;
        // SAFETY: it was just allocated.
        let block = unsafe { OwnedBlock::new(Block::new(frame, Order::BASE)) };
        // SAFETY: it came from this machine.
        let folio = unsafe { Folio::new(self.machine, block, FolioKind::File) }.map_err(|(_, block)| {
            // SAFETY: nothing was made of it.
            unsafe { self.machine.free(block) };
            PageInError::NoMemory
        })?;
        // SAFETY: it is ours alone.
        unsafe { self.machine.clear(frame) };
        Ok(folio)
    }

    /// Does something with a page's frame, for `read` and `write`. The page is brought in if it is not there, and is dirty from
    /// here on if it is to be written. The object's lock is held for reading meanwhile: `act` must not call operations of the
    /// object or of spaces, nor touch memory of programs that may fault.
    ///
    /// # Errors
    /// [`PageInError`].
    pub fn with_page<R>(
        &self,
        index: u64,
        write: bool,
        act: impl FnOnce(Frame) -> R,
    ) -> Result<R, PageInError> {
        loop {
            self.page_in(index)?;
            let inner = self.read();
            if let Some(page) = inner.page(index)? {
                if write {
                    page.set_dirty();
                }
                return Ok(act(page.frame));
            }
        }
    }

    /// Room in the reverse map for so many extents more.
    pub(crate) fn reserve(&self, more: usize) -> Result<(), Error> {
        self.write().extents.reserve(more)
    }

    pub(crate) fn unreserve(&self, more: usize) {
        self.write().extents.unreserve(more);
    }

    /// The VMA maps the object. What a fork has copied of it, and the object has lost meanwhile, goes.
    pub(crate) fn attach(&self, mm: &Shared<Mm<'m, F, M>>, vma: &VmaInfo, pgoff: u64) {
        let mut inner = self.write();
        inner.extents.attach(mm, vma, pgoff);
        mm.drop_stale(vma, pgoff, &inner, self.kind);
    }

    pub(crate) fn detach(&self, mm: &Shared<Mm<'m, F, M>>, vma: &VmaInfo) {
        self.write().extents.detach(mm, vma.range());
    }
}

impl<F: Format, M: Machine, B: Backing, L: MmapLock> Drop for Object<'_, F, M, B, L> {
    fn drop(&mut self) {
        let inner = self.inner.get_mut();
        inner.drop_swap_entries(0);
        while let Some(index) = inner.cache.first_in(0..u64::MAX).map(|page| page.index) {
            inner.remove(self.machine, index, None);
        }
    }
}

impl<F: Format, M: Machine, B: Backing, L: MmapLock> fmt::Debug for Object<'_, F, M, B, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Object").field("kind", &self.kind).finish_non_exhaustive()
    }
}
