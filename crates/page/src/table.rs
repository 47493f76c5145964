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
/// the lock walks anew from the root. What only its holder may do are methods of the [`TableGuard`] that
/// [`try_lock`](Self::try_lock) returns.
///
/// ```compile_fail,E0599
/// # use isotherm_page::TableMeta;
/// fn unlock_what_another_holds(table: &TableMeta) {
///     table.unlock(); // only a guard unlocks, by being dropped
/// }
/// ```
///
/// ```compile_fail,E0599
/// # use isotherm_page::TableMeta;
/// fn count_a_change_without_the_lock(table: &TableMeta) {
///     table.count_change();
/// }
/// ```
///
/// ```compile_fail,E0133
/// # use isotherm_page::TableMeta;
/// fn end_a_table_in_use(table: &TableMeta) {
///     table.end(); // unsafe: it must be out of its tree
/// }
/// ```
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
    pub fn try_lock(&self) -> Result<TableGuard<'_>, NotLocked> {
        let word = self.0.word.load(Ordering::Relaxed);
        if word & STALE != 0 {
            // Pairs with `unlink`, so that the walk anew finds what replaced the table.
            let _ = self.0.word.load(Ordering::Acquire);
            return Err(NotLocked::Stale);
        }
        if word == 0 && self.0.word.compare_exchange(0, LOCKED, Ordering::Acquire, Ordering::Relaxed).is_ok()
        {
            return Ok(TableGuard(self));
        }
        Err(NotLocked::Held)
    }

    /// What the holder of the lock said of the entries last: if not 0, entry `n` is this plus `n` times what the format's
    /// entries grow by from one page to the next. Without the lock it may be outdated.
    #[inline(always)]
    #[must_use]
    pub fn progression(&self) -> u64 {
        self.0.counts.load(Ordering::Relaxed).rotate_right(ROTATION)
    }

    /// The page is no table any more, though its contents stay until walks without a lock are over. Its lock stays as it
    /// is, stale if the table was unlinked.
    ///
    /// # Safety
    /// No tree refers to the table: the caller has [unlinked](TableGuard::unlink) it, or its tree has ended, or it never
    /// was in one. Nobody holds its lock.
    #[inline]
    pub unsafe fn end(&self) {
        self.0.counts.store(0, Ordering::Relaxed);
        self.0.set_kind(Kind::Unused, 0, 0);
    }
}

/// The lock of a table, held by this thread; dropped, it is given back.
///
/// ```compile_fail,E0382
/// # use isotherm_page::TableGuard;
/// fn change_after_unlinking(guard: TableGuard<'_>) {
///     guard.unlink();
///     guard.count_change(); // moved already
/// }
/// ```
#[derive(Debug)]
#[must_use = "dropped, the lock is given back"]
pub struct TableGuard<'a>(&'a TableMeta);

impl TableGuard<'_> {
    /// What [`remember`](Self::remember) said last, 0 if it holds no longer.
    #[inline(always)]
    #[must_use]
    pub fn progression(&self) -> u64 {
        self.0.progression()
    }

    /// Remembers what the entries are, for whoever has the lock next need not read them. Only valid entries, whose bit 0 is
    /// set in every format, are remembered; of others nothing is known.
    ///
    /// # Safety
    /// Entry `n` is `raw` plus `n` times what the format's entries grow by, and hardware can change none of them. Whoever
    /// changes one calls [`forget`](Self::forget) first.
    #[inline(always)]
    pub unsafe fn remember(&self, raw: u64) {
        let stored = if raw & 1 == 0 { 0 } else { raw.rotate_left(ROTATION) };
        self.0.0.counts.store(stored, Ordering::Relaxed);
    }

    /// Nothing is known of the entries any more.
    #[inline(always)]
    pub fn forget(&self) {
        self.0.0.counts.store(0, Ordering::Relaxed);
    }

    /// A number that [`count_change`](Self::count_change) counts up: a sequence count in Linux' words. If it is the same as
    /// before, so is all that it stands for.
    #[inline]
    #[must_use]
    pub fn sequence(&self) -> u32 {
        self.0.0.load().sequence()
    }

    /// Counts the sequence up.
    #[inline]
    pub fn count_change(&self) {
        self.0.0.store(self.0.0.load().next());
    }

    /// Gives the lock back of a table that the holder has taken out of its tree: from here on nobody gets it.
    #[inline]
    pub fn unlink(self) {
        self.0.0.word.store(STALE, Ordering::Release);
        core::mem::forget(self);
    }
}

impl Drop for TableGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.word.store(0, Ordering::Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 2 } else { 256 }))]

        #[test]
        fn a_progression_is_remembered_and_is_no_count(raw: u64) {
            let page = PageMeta::new();
            // SAFETY: the page is this test's alone.
            let table = unsafe { page.make_table() }.unwrap();
            let guard = table.try_lock().unwrap();
            // SAFETY: there are no entries.
            unsafe { guard.remember(raw | 1) };
            prop_assert_eq!(table.progression(), raw | 1);
            let stored = page.counts.load(Ordering::Relaxed);
            prop_assert!(stored as u32 >= 1 << 31, "{stored:x} could be counts");
            // SAFETY: as above.
            unsafe { guard.remember(raw & !1) };
            prop_assert_eq!(guard.progression(), 0);
            // SAFETY: as above.
            unsafe { guard.remember(raw | 1) };
            guard.forget();
            prop_assert_eq!(table.progression(), 0);
        }
    }

    #[test]
    fn a_lock_is_held_once_and_a_stale_table_never() {
        let page = PageMeta::new();
        // SAFETY: the page is this test's alone.
        let table = unsafe { page.make_table() }.unwrap();
        let guard = table.try_lock().unwrap();
        assert_eq!(table.try_lock().err(), Some(NotLocked::Held));
        drop(guard);
        table.try_lock().unwrap().unlink();
        assert_eq!(table.try_lock().err(), Some(NotLocked::Stale));
        // SAFETY: as above.
        assert!(unsafe { page.make_table() }.is_none(), "it is a table already");
        // SAFETY: no tree refers to it.
        unsafe { table.end() };
        // SAFETY: as above.
        assert!(unsafe { page.make_table() }.unwrap().try_lock().is_ok());
    }
}
