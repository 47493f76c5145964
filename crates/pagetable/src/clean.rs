//! Dirty and young for write-back and reclaim: with the flush that makes the next write fault, or the next access seen.

use crate::address::{Frame, Level, PageRange, VirtAddr};
use crate::error::{Error, Stopped};
use crate::fold::unfold_ends;
use crate::format::Format;
use crate::gather::Gather;
use crate::machine::Machine;
use crate::query::{Mapping, describe};
use crate::space::AddressSpace;
use crate::walk::{Done, Step, Window};
use crate::young::Bitmap;

/// What was done at a place.
struct Cleaned {
    /// Entries.
    len: usize,
    changed: bool,
    dirty: bool,
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// Makes the pages of the range clean and read-only, so that whoever writes to one faults first, and returns how many
    /// were dirty: what is to be written back (Linux' `page_mkclean`). Bit `i % 64` of `bitmap[i / 64]` is set if page `i`
    /// was; bits that are set already stay, pages beyond the bitmap are made clean all the same. All pages of a huge leaf
    /// are dirty together, also if the range covers only some, and so are those of a folded block in the range.
    ///
    /// CPUs may write to the pages until the gather flushes: only then are the contents those to be written back.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::NotCanonical`](crate::Error::NotCanonical),
    /// [`Error::Misaligned`](crate::Error::Misaligned) or [`Error::OtherMachine`](crate::Error::OtherMachine).
    pub fn mkclean(
        &self,
        range: PageRange,
        bitmap: &mut [u64],
        gather: &mut Gather<'_, M>,
    ) -> Result<u64, Stopped> {
        gather.serve(self.machine, self.id).map_err(|why| Stopped::at_page(range.first, why))?;
        let mut bitmap = Bitmap(Some(bitmap));
        let mut dirty = 0;
        self.for_windows(range, &mut 0, |window, _| {
            window.table.count_change();
            let mut index = window.index;
            while index < window.end {
                let raw = F::load(window.table.entry(index));
                if F::is_present(raw) && F::is_table(window.table.level, raw) {
                    return Done::Until(window.page_of(index));
                }
                let cleaned = self.clean(&window, index, raw);
                let page = window.page_of(index);
                let end = page + cleaned.len as u64 * F::pages(window.table.level);
                if cleaned.changed {
                    gather.touch::<F>(window.table.level, page, end - page);
                }
                if cleaned.dirty {
                    let (first, end) = (page.max(range.first), end.min(range.end));
                    bitmap.set_all(first - range.first, end - range.first);
                    dirty += end - first;
                }
                index += cleaned.len;
            }
            Done::Until(window.page_of(window.end))
        })?;
        Ok(dirty)
    }

    /// The same for one page, if it is still this frame that is mapped: whoever comes by the reverse map must not make another
    /// page clean. Whether it was dirty; of a huge leaf all pages are made clean together.
    ///
    /// # Errors
    /// [`Error::Changed`] if something else is mapped, or nothing; [`Error::NotCanonical`]; [`Error::OtherMachine`].
    pub fn mkclean_page(
        &self,
        at: VirtAddr,
        frame: Frame,
        gather: &mut Gather<'_, M>,
    ) -> Result<bool, Error> {
        let window = self.still(at, frame, gather)?;
        let level = window.table.level;
        let raw = F::load(window.table.entry(window.index));
        window.table.count_change();
        let cleaned = self.clean(&window, window.index, raw);
        if cleaned.changed {
            let first = window.page_of(window.index);
            gather.touch::<F>(level, first, cleaned.len as u64 * F::pages(level));
        }
        Ok(cleaned.dirty)
    }

    /// The place of a page, locked, if it is still this frame that is mapped, and the gather serves this space.
    fn still(
        &self,
        at: VirtAddr,
        frame: Frame,
        gather: &mut Gather<'_, M>,
    ) -> Result<Window<'m, F, M>, Error> {
        let page = at.page() & !(F::pages(Level::Pte) - 1);
        self.check_page(page)?;
        gather.serve(self.machine, self.id)?;
        let Step::Window(window) = self.step(page, page + 1) else { return Err(Error::Changed) };
        match describe::<F>(window.table.level, page, F::load(window.table.entry(window.index))) {
            Mapping::Page { frame: there, .. } if there == frame => Ok(window),
            _ => Err(Error::Changed),
        }
    }

    /// Makes an entry, or what is left of its block, clean and read-only.
    fn clean(&self, window: &Window<'_, F, M>, index: usize, raw: u64) -> Cleaned {
        let nothing = |len| Cleaned { len, changed: false, dirty: false };
        if !F::is_present(raw) {
            return nothing(1);
        }
        let due = |raw| F::is_dirty(raw) || F::is_writable(raw);
        let (table, block) = (&window.table, F::contiguous(window.table.level));
        let mut len = 1;
        if F::CONTIGUOUS > 1 && raw & F::CONT != 0 {
            let last = index - index % block + block;
            len = last.min(window.end) - index;
            let all = &table.table()[last - block..last];
            if !all.iter().any(|entry| due(F::load(entry))) {
                return nothing(len);
            }
            // Of a block that is covered in part, each entry has the state of all then.
            unfold_ends::<F, M>(table, self.id, window.page_of(index), len);
        } else if !due(raw) {
            return nothing(1);
        }
        let mut dirty = false;
        for entry in &table.change()[index..index + len] {
            // A page may have been written since it was looked at.
            let last = entry.update::<F>(entry.relaxed(), |raw| F::make_clean(F::write_protect(raw)));
            dirty |= F::is_dirty(last);
        }
        Cleaned { len, changed: true, dirty }
    }

    /// As [`harvest_young`](Self::harvest_young), with a flush: when the gather has flushed, each access to one of the pages
    /// that were young is seen again (Linux' `ptep_clear_flush_young`). For reclaim, which must not take a page for unused
    /// that is used through a translation that some TLB holds.
    ///
    /// # Errors
    /// As [`mkclean`](Self::mkclean).
    pub fn clear_flush_young(
        &self,
        range: PageRange,
        bitmap: &mut [u64],
        gather: &mut Gather<'_, M>,
    ) -> Result<u64, Stopped> {
        gather.serve(self.machine, self.id).map_err(|why| Stopped::at_page(range.first, why))?;
        let young = self.harvest_young(range, bitmap)?;
        if young > 0 {
            // Of either level, so that nobody takes the one for a hint.
            gather.touch::<F>(Level::Pte, range.first, range.pages());
            gather.touch::<F>(Level::Pmd, range.first, range.pages());
        }
        Ok(young)
    }

    /// The same for one page, if it is still this frame that is mapped: whoever comes by the reverse map must not make another
    /// page old. Whether it was young; the pages of a huge leaf or of a folded block are young together, and made old and flushed
    /// together.
    ///
    /// # Errors
    /// As [`mkclean_page`](Self::mkclean_page).
    pub fn clear_flush_young_page(
        &self,
        at: VirtAddr,
        frame: Frame,
        gather: &mut Gather<'_, M>,
    ) -> Result<bool, Error> {
        let window = self.still(at, frame, gather)?;
        let (level, index) = (window.table.level, window.index);
        let first = at.page() & !(F::pages(Level::Pte) - 1);
        let page = PageRange { first, end: first + F::pages(Level::Pte) };
        let folded = F::load(window.table.entry(index)) & F::CONT != 0;
        let (young, _) = self.young_window(&window, page, true, &mut Bitmap(None));
        if young > 0 {
            // A block of the lowest level stays folded, so all of it is old now. Above, only the leaf is.
            let entries = if level == Level::Pte && folded { F::CONTIGUOUS } else { 1 } as u64;
            let pages = entries * F::pages(level);
            gather.touch::<F>(level, first / pages * pages, pages);
        }
        Ok(young > 0)
    }
}
