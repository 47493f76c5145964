//! Fork, entry by entry.

use super::{ENTRIES, PerPage, Resident, update};
use crate::fork::Error;
use isotherm_pagetable::{Flush, Format, Frame, Level, PageRange, Tlb, VirtAddr};
use std::sync::atomic::{AtomicU64, Ordering};

impl<F: Format> PerPage<'_, F> {
    /// Copies everything to the child, which is empty: private memory becomes read-only on both sides.
    pub(in crate::fork) fn fork(&self, child: &Self, pages: u64) -> Result<Resident, Error> {
        let mut tables = self.tables();
        let mut got = Resident::default();
        let mut page = 0;
        let mut touched = false;
        while page < pages {
            let above = self.table(page, Level::Pmd, None)?.ok_or(Error::NoFrames)?;
            let childs_above = child.table(page, Level::Pmd, Some(&mut tables))?.ok_or(Error::NoFrames)?;
            // SAFETY: tables of these spaces.
            let (from, to) = unsafe { (self.entries(above), child.entries(childs_above)) };
            for index in F::index(Level::Pmd, page)..ENTRIES {
                if page >= pages {
                    break;
                }
                let raw = from[index].load(Ordering::Acquire);
                if F::is_table(Level::Pmd, raw) {
                    let fresh = tables.take()?;
                    // SAFETY: the one is reached from the root, the other nobody else knows.
                    let copied = unsafe { self.copy_table(F::table_frame(raw), fresh, &mut got) };
                    touched |= copied?;
                    // SAFETY: a table of the child's.
                    let _lock = unsafe { child.lock(childs_above) };
                    to[index].store(F::table(fresh), Ordering::Release);
                } else if raw != 0 {
                    // SAFETY: a table of this space's.
                    let _lock = unsafe { self.lock(above) };
                    touched |= self.copy_entry(Level::Pmd, &from[index], &to[index], &mut got)?;
                }
                page += F::pages(Level::Pmd);
            }
        }
        if touched {
            let range = PageRange::with_pages(VirtAddr(0), pages)?;
            self.machine.invalidate_range(self.id, Flush::of::<F>(Level::Pte, range));
            self.machine.sync();
        }
        Ok(got)
    }

    /// Copies a lowest table, entry by entry; whether a translation is to be flushed.
    ///
    /// # Safety
    /// `from` is a table of this space's, `to` one that nobody else knows.
    #[inline(never)]
    unsafe fn copy_table(&self, from: Frame, to: Frame, got: &mut Resident) -> Result<bool, Error> {
        // SAFETY: the caller's duty.
        let (lock, from, to) = unsafe { (self.lock(from), self.entries(from), self.entries(to)) };
        let mut touched = false;
        for (from, to) in from.iter().zip(to) {
            touched |= self.copy_entry(Level::Pte, from, to, got)?;
        }
        drop(lock);
        Ok(touched)
    }

    /// Copies an entry, as `copy_present_pte` of Linux 6.6.
    #[inline(always)]
    fn copy_entry(
        &self,
        level: Level,
        from: &AtomicU64,
        to: &AtomicU64,
        got: &mut Resident,
    ) -> Result<bool, Error> {
        let mut raw = from.load(Ordering::Acquire);
        if raw == 0 {
            to.store(0, Ordering::Relaxed);
            return Ok(false);
        }
        let folio = self.folio(raw)?;
        if raw & F::EXCLUSIVE != 0 && folio.pins() > 0 {
            // Linux copies the page. Here nobody pins any.
            return Err(Error::NoFrames);
        }
        // SAFETY: the parent's entry has a reference and is locked; the child's, stored below, gives this one back.
        unsafe { folio.add_mapped(F::pages(level) as usize) }.map_err(isotherm_pagetable::Error::from)?;
        got.count(&folio, F::pages(level));
        let writable = F::is_writable(raw);
        if writable || raw & F::EXCLUSIVE != 0 {
            raw = update::<F>(from, raw, protected::<F>);
        }
        to.store(protected::<F>(raw) & !F::YOUNG, Ordering::Relaxed);
        Ok(writable)
    }
}

/// What becomes of a private leaf.
#[inline(always)]
fn protected<F: Format>(raw: u64) -> u64 {
    let raw = raw & !F::EXCLUSIVE;
    if F::is_writable(raw) { F::write_protect(raw) } else { raw }
}
