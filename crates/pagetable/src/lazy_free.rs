//! Memory that a program gives up for as long as it does not write to it again (`MADV_FREE`).
//!
//! Its pages are made clean and old, and stay mapped and writable: the next write makes its entry dirty, by hardware or by a fault
//! that costs nothing else. The folio remembers that it was given up ([`FolioView::set_lazy_free`]): that an entry is
//! clean says little alone, since what is swapped out is made clean too. Both happen under the lock of the table: who makes the
//! page [clean](AddressSpace::mkclean) to take it away finds it dirty, or given up and clean.

use crate::address::{Level, PageRange, VirtAddr};
use crate::batch::detect_in;
use crate::error::Stopped;
use crate::fold::unfold_ends;
use crate::folio::{FolioKind, FolioView};
use crate::format::Format;
use crate::gather::Gather;
use crate::machine::Machine;
use crate::rss::RssStat;
use crate::space::AddressSpace;
use crate::walk::{Done, Window};

impl<F: Format, M: Machine> AddressSpace<'_, F, M> {
    /// Gives up the anonymous pages of a range that are mapped here alone, until they are written to again, and drops what swap entries
    /// there are. Returns how many pages were given up, and how many swap entries went.
    ///
    /// Calls `each` for each run of anonymous pages of a folio with its first page, and with whether they were given up: a
    /// folio is as a whole, so it must lie in the range, be mapped by one run, and nowhere else. It is called under a table's
    /// lock: it must not call operations of this space.
    ///
    /// When the gather has flushed, each write to one of the pages makes its entry dirty.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::NotCanonical`](crate::Error::NotCanonical) or
    /// [`Error::OtherMachine`](crate::Error::OtherMachine).
    pub fn lazy_free(
        &self,
        range: PageRange,
        gather: &mut Gather<'_, M>,
        mut each: impl FnMut(&FolioView<'_>, VirtAddr, bool),
    ) -> Result<RssStat, Stopped> {
        gather.serve(self.machine, self.id).map_err(|why| Stopped::at_page(range.first, why))?;
        let mut done = RssStat::default();
        self.for_windows(range, &mut 0, |window, _| {
            let (table, level) = (&window.table, window.table.level);
            let mut index = window.index;
            while index < window.end {
                let raw = F::load(table.entry(index));
                let page = window.page_of(index);
                if raw != 0 && !F::is_present(raw) {
                    table.change_at(index).store(0);
                    self.machine.release_swap_entry(F::swap_entry_value(raw));
                    done.swap_entries += F::pages(level);
                } else if raw != 0 && F::is_table(level, raw) {
                    return Done::Until(page);
                } else if raw != 0
                    && raw & F::SPECIAL == 0
                    && let Ok(folio) = FolioView::of(self.machine, F::frame(raw))
                {
                    let most = if level == Level::Pte { window.end - index } else { 1 };
                    let limit = (folio.remaining() >> F::shift(level)).clamp(1, most);
                    let len = detect_in::<F, M>(table, index, raw, limit, F::STATE).len;
                    if folio.kind() == FolioKind::Anon {
                        let freed = self.give_up(&window, index, len, &folio, range, gather);
                        done.anon += if freed { folio.order().frames() } else { 0 };
                        each(&folio, VirtAddr::of_page(page.max(range.first)), freed);
                    }
                    index += len - 1;
                }
                index += 1;
            }
            Done::Until(window.page_of(window.end))
        })?;
        Ok(done)
    }

    /// Gives up a folio if these entries are all that refers to it, and the range has all of it.
    fn give_up(
        &self,
        window: &Window<'_, F, M>,
        index: usize,
        len: usize,
        folio: &FolioView<'_>,
        range: PageRange,
        gather: &mut Gather<'_, M>,
    ) -> bool {
        let (table, level) = (&window.table, window.table.level);
        let (page, pages) = (window.page_of(index), (len as u64) << F::shift(level));
        let whole = folio.frame() == folio.head() && folio.order().frames() == pages;
        if !whole || u64::from(folio.maps()) != pages || page < range.first || page + pages > range.end {
            return false;
        }
        // SAFETY: the entries hold references of it, and stay as long as their table is locked; it is anonymous.
        unsafe { folio.set_lazy_free() };
        if F::CONTIGUOUS > 1 && F::load(table.entry(index)) & F::CONT != 0 {
            // Of a block of huge leaves the others are folios of their own.
            unfold_ends::<F, M>(table, self.id, page, len);
        }
        let used = |raw: u64| F::is_dirty(raw) || F::is_young(raw);
        let mut changed = false;
        for at in index..index + len {
            let raw = table.entry(at).relaxed();
            if used(raw) {
                table.change_at(at).update::<F>(raw, |raw| F::make_clean(raw) & !F::YOUNG);
                changed = true;
            }
        }
        if changed {
            gather.touch::<F>(level, page, pages);
        }
        true
    }
}
