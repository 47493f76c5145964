//! Pages that are page tables: a lock, and what is known of the entries without reading them.

use crate::PageMeta;
use crate::info::Kind;
use crate::sync::Ordering;

const LOCKED: u32 = 1;
const STALE: u32 = 2;
/// A progression is stored rotated by this, so that its bit 0, which is set, becomes bit 31, and the word is no folio's
/// count of references: see [`PageMeta`]. One instruction, as it is read several times a table.
const ROTATION: u32 = 31;

/// The metadata of a page that is a page table.
///
/// The lock is a word: free, held, or stale, which says that the table was unlinked from its tree and whoever waited for
/// the lock walks anew from the root. The holder's other fields are read and written with relaxed accesses, which the lock
/// orders.
///
/// There is no typed handle of a table, nor a guard of its lock: the methods do not check who calls them, and whoever got
/// here has promised to keep the protocol ([`PageMeta::table`]).
#[derive(Debug)]
#[repr(transparent)]
pub struct TableMeta(PageMeta);

/// Why a table's lock was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotLocked {
    /// Another thread holds it: try again.
    Held,
    /// The table is no longer in the tree: walk again from the root.
    Stale,
}

impl TableMeta {
    #[inline(always)]
    pub(crate) fn of(page: &PageMeta) -> &Self {
        // SAFETY: the same layout, by `repr(transparent)`.
        unsafe { &*core::ptr::from_ref(page).cast::<Self>() }
    }

    /// One try to take the lock.
    ///
    /// # Errors
    /// [`NotLocked`].
    #[inline]
    pub fn try_lock(&self) -> Result<(), NotLocked> {
        let word = self.0.word.load(Ordering::Relaxed);
        if word & STALE != 0 {
            // Pairs with `unlock_stale`, so that the walk anew finds what replaced the table.
            let _ = self.0.word.load(Ordering::Acquire);
            return Err(NotLocked::Stale);
        }
        if word == 0 && self.0.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return Ok(());
        }
        Err(NotLocked::Held)
    }

    /// Gives the lock back, which the caller holds.
    #[inline]
    pub fn unlock(&self) {
        self.0.word.store(0, Ordering::Release);
    }

    /// Gives the lock back, which the caller holds, of a table that it has unlinked from the tree.
    #[inline]
    pub fn unlock_stale(&self) {
        self.0.word.store(STALE, Ordering::Release);
    }

    /// What the holder of the lock said of the entries last: if not 0, entry `n` is this plus `n` times what the format's
    /// entries grow by from one page to the next.
    #[inline(always)]
    #[must_use]
    pub fn progression(&self) -> u64 {
        self.0.counts.load(Ordering::Relaxed).rotate_right(ROTATION)
    }

    /// Says it of the entries; 0 if it holds no longer. Only present entries, whose bit 0 is set in every format, are
    /// remembered; of others nothing is known.
    #[inline(always)]
    pub fn set_progression(&self, raw: u64) {
        let stored = if raw & 1 == 0 { 0 } else { raw.rotate_left(ROTATION) };
        self.0.counts.store(stored, Ordering::Relaxed);
    }

    /// A number that the holder of the lock counts up by [`change`](Self::change): a sequence count in Linux' words. If it is
    /// the same as before, so is all that it stands for.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.0.load().sequence()
    }

    /// Counts the sequence up. The caller holds the lock.
    #[inline]
    pub fn change(&self) {
        self.0.store(self.0.load().next());
    }

    /// The page is no table any more, though its contents stay until walks without a lock are over. Its lock stays as it
    /// is, stale if the table was unlinked.
    #[inline]
    pub fn end(&self) {
        self.0.counts.store(0, Ordering::Relaxed);
        self.0.set_kind(Kind::Unused, 0, 0);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_progression_is_remembered_and_is_no_count(raw: u64) {
            let page = PageMeta::new();
            // SAFETY: the page is this test's alone.
            let table = unsafe { page.make_table() }.unwrap();
            table.set_progression(raw | 1);
            prop_assert_eq!(table.progression(), raw | 1);
            let stored = page.counts.load(Ordering::Relaxed);
            prop_assert!(stored as u32 >= 1 << 31, "{stored:x} could be counts");
            table.set_progression(raw & !1);
            prop_assert_eq!(table.progression(), 0);
        }
    }

    #[test]
    fn a_lock_is_held_once_and_a_stale_table_never() {
        let page = PageMeta::new();
        // SAFETY: the page is this test's alone.
        let table = unsafe { page.make_table() }.unwrap();
        assert_eq!(table.try_lock(), Ok(()));
        assert_eq!(table.try_lock(), Err(NotLocked::Held));
        table.unlock();
        assert_eq!(table.try_lock(), Ok(()));
        table.unlock_stale();
        assert_eq!(table.try_lock(), Err(NotLocked::Stale));
        // SAFETY: as above.
        assert!(unsafe { page.make_table() }.is_none(), "it is a table already");
        table.end();
        // SAFETY: as above.
        assert_eq!(unsafe { page.make_table() }.unwrap().try_lock(), Ok(()));
    }
}
