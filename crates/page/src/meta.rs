//! The sixteen bytes of a page that every operation on its mappings uses.

use crate::info::{DIRTY, Info, Kind, REFERENCED};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::table::TableMeta;

/// What a page is, and how often it is mapped and referred to. The caller supplies an array of these, all
/// [`new`](Self::new) (zeroed bytes are that), by itself or as a column of a [`PageArray`](crate::PageArray).
///
/// Of a folio the head has the counts: `maps << 32 | refs` in one word, so that a batch of mappings moves both by one
/// atomic addition. References are refused from 2^30 on, so bit 31 of that word is clear in a folio's head. Of a
/// page that is neither a folio's head nor a table the word is 0, and of a table it is 0 or has bit 31 set: whoever
/// tries to take a reference by a stale look therefore never changes the word of anything but a folio.
#[derive(Debug, Default)]
#[cfg_attr(not(loom), repr(C, align(16)))]
pub struct PageMeta {
    /// Of a folio's head `maps << 32 | refs`; of a table see [`TableMeta::progression`].
    pub(crate) counts: AtomicU64,
    /// An [`Info`].
    pub(crate) info: AtomicU32,
    /// Pins of a folio's head; the lock of a table.
    pub(crate) word: AtomicU32,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<PageMeta>() == 16);

impl PageMeta {
    /// Of a page that is not in use.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new() -> Self {
        Self { counts: AtomicU64::new(0), info: AtomicU32::new(0), word: AtomicU32::new(0) }
    }

    /// Of a page that is not in use.
    #[cfg(loom)]
    #[must_use]
    pub fn new() -> Self {
        Self { counts: AtomicU64::new(0), info: AtomicU32::new(0), word: AtomicU32::new(0) }
    }

    /// What the page is used for now. A page of a freed folio that was not its head says what it was until it becomes something
    /// else: [`FolioView::of`](crate::FolioView::of) asks the head as well.
    #[must_use]
    pub fn kind(&self) -> Kind {
        self.load().kind()
    }

    #[inline]
    pub(crate) fn load(&self) -> Info {
        Info(self.info.load(Ordering::Relaxed))
    }

    /// Makes it something else. Only the page's owner does, and [`DIRTY`] and [`REFERENCED`] are changed by who holds a
    /// reference, so no other store comes in between.
    #[inline]
    pub(crate) fn store(&self, info: Info) {
        self.info.store(info.0, Ordering::Relaxed);
    }

    #[inline]
    pub(crate) fn set_kind(&self, kind: Kind, order: u8, offset: u32) {
        self.store(self.load().become_kind(kind, order, offset));
    }

    pub(crate) fn take_flag(&self, flag: u32) -> bool {
        // Acquire: what the page was written with before the mark is what is read after this.
        self.info.fetch_and(!flag, Ordering::Acquire) & flag != 0
    }

    #[inline]
    pub(crate) fn mark(&self, dirty: bool, referenced: bool) {
        let bits = if dirty { DIRTY } else { 0 } | if referenced { REFERENCED } else { 0 };
        // That the page was referenced is most often known already, and then the line stays clean. A dirty mark may be one
        // that is being taken at this moment: whoever takes it reads what was written before this, or finds it again.
        if dirty || self.info.load(Ordering::Relaxed) & bits != bits {
            self.info.fetch_or(bits, Ordering::Release);
        }
    }

    /// Makes a page a table, unlocked; `None` if it is in use already.
    ///
    /// # Safety
    /// The page is allocated and the caller alone owns it; the folio is gone of which it was a tail, if it was.
    /// [`TableMeta::end`] is called before it is freed.
    #[inline]
    pub(crate) unsafe fn make_table(&self) -> Option<&TableMeta> {
        let info = self.load();
        if info.kind() != Kind::Unused && !info.is_tail() {
            return None;
        }
        self.word.store(0, Ordering::Relaxed);
        self.counts.store(0, Ordering::Relaxed);
        self.store(info.become_table());
        Some(TableMeta::of(self))
    }

    /// The page as the table that it is.
    ///
    /// # Safety
    /// The page is a table, or was one that is unlinked and not reused yet, for as long as the reference is used.
    #[inline(always)]
    #[must_use]
    pub unsafe fn table(&self) -> &TableMeta {
        TableMeta::of(self)
    }
}
