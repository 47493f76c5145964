//! Zap: the mappings of a range go, the folios after the flush (`clear_ptes`, patches 3 and 16 of the seed's series).

use crate::address::{Level, PageRange};
use crate::batch::{Run, detect_in, is_many, other_kind, single};
use crate::entries::clear_run;
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
    /// Removes all mappings of the range and keeps the tables (`MADV_DONTNEED`). What the entries of file folios said
    /// of dirty and young is kept with the folio ([`Folio::take_dirty`](crate::Folio::take_dirty)), from when the gather
    /// has flushed: until then CPUs may write to its pages. References are given back then, too, and the machine hears of
    /// folios that are [partly mapped](crate::Pages::partly_mapped) from then on. Returns what was removed.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::NoTableFrame`](crate::Error::NoTableFrame) if a huge leaf at the border had to be
    /// split, or [`Error::NotCanonical`](crate::Error::NotCanonical).
    pub fn zap(&self, range: PageRange, gather: &mut Gather<'_, M>) -> Result<RssStat, Stopped> {
        gather.serve(self.machine, self.id).map_err(|why| Stopped::at_page(range.first, why))?;
        let mut gone = RssStat::default();
        match self.zap_into::<false>(range, gather, &mut gone) {
            Ok(()) => Ok(gone),
            Err(stopped) => Err(stopped.after(gone)),
        }
    }

    /// Removes all mappings of the range and the tables that it leaves empty (`munmap`). A table that the range covers
    /// only in part stays. Returns what was removed.
    ///
    /// # Errors
    /// As [`zap`](Self::zap).
    pub fn unmap(&self, range: PageRange, gather: &mut Gather<'_, M>) -> Result<RssStat, Stopped> {
        let mut gone = self.zap(range, gather)?;
        gone.tables = self.prune(range, range, gather);
        Ok(gone)
    }

    /// Takes out the tables that translate pages of the range and are empty, as far as they lie wholly in `within`, which
    /// holds the range and of which nothing else is mapped, nor becomes mapped meanwhile: what `munmap` does with the gap
    /// between two VMAs that it makes (`free_pgtables`). A table that `within` covers only in part stays. Returns the tables
    /// that went; no pages do.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::NotCanonical`](crate::Error::NotCanonical),
    /// [`Error::Misaligned`](crate::Error::Misaligned) or [`Error::OtherMachine`](crate::Error::OtherMachine).
    pub fn free_empty_tables(
        &self,
        range: PageRange,
        within: PageRange,
        gather: &mut Gather<'_, M>,
    ) -> Result<RssStat, Stopped> {
        gather.serve(self.machine, self.id).map_err(|why| Stopped::at_page(range.first, why))?;
        self.check(range)?;
        let tables = self.prune(range, within, gather);
        Ok(RssStat { tables, ..RssStat::default() })
    }

    /// `ENDS`: the space ends, no CPU has it loaded and its tables go as they are, so entries need not be emptied.
    pub(crate) fn zap_into<const ENDS: bool>(
        &self,
        range: PageRange,
        gather: &mut Gather<'_, M>,
        gone: &mut RssStat,
    ) -> Result<(), Stopped> {
        let mut splits = 0;
        let done = self.for_windows(range, &mut splits, |window, cursor| {
            if gather.is_full() {
                // Not under the lock of a table: the flush waits for other CPUs.
                let page = window.page;
                drop(window);
                cursor.rest();
                gather.flush();
                return Done::Until(page);
            }
            self.zap_window::<ENDS>(&window, range, gather, gone)
        });
        gone.splits += splits;
        done
    }

    fn zap_window<const ENDS: bool>(
        &self,
        window: &Window<'_, F, M>,
        range: PageRange,
        gather: &mut Gather<'_, M>,
        gone: &mut RssStat,
    ) -> Done {
        let table = &window.table;
        let level = table.level;
        let mut index = window.index;
        let mut kind = FolioKind::Anon;
        // Where a larger folio was, another is likely.
        let mut small = true;
        loop {
            let raw = if level == Level::Pte && small && !window.is_known() {
                let (until, raw) = match kind {
                    FolioKind::Anon => self.zap_small::<ENDS, false>(window, index, gather, gone),
                    FolioKind::File => self.zap_small::<ENDS, true>(window, index, gather, gone),
                };
                gone.count(Some(kind), (until - index) as u64);
                index = until;
                if let Some(other) = other_kind::<F, M>(self.machine, raw, kind) {
                    kind = other;
                    continue;
                }
                raw
            } else {
                (index < window.end).then(|| window.read(index))
            };
            let Some(raw) = raw else { return Done::Until(window.page_of(window.end)) };
            if raw == 0 {
                index += 1;
                continue;
            }
            let page = window.page_of(index);
            if !F::is_present(raw) {
                table.change_at(index).store(0);
                self.machine.release_swap_entry(F::swap_entry_value(raw));
                gone.swap_entries += F::pages(level);
                index += 1;
                continue;
            }
            if F::is_table(level, raw) {
                return Done::Until(page);
            }
            if level != Level::Pte && (page < range.first || page + F::pages(level) > range.end) {
                return Done::Split(page);
            }
            if gather.is_full() {
                return Done::Until(page);
            }
            let len = if is_many::<F>(level, raw) {
                self.zap_run::<ENDS, true>(window, index, page, raw, gather, gone)
            } else {
                self.zap_run::<ENDS, false>(window, index, page, raw, gather, gone)
            };
            index += len;
            small = len == 1;
        }
    }

    /// Zaps entries from `index` on as long as they are empty or map folios of order 0 of one kind; returns where that ends and
    /// what was found there.
    #[inline(never)]
    fn zap_small<const ENDS: bool, const FILE: bool>(
        &self,
        window: &Window<'_, F, M>,
        from: usize,
        gather: &mut Gather<'_, M>,
        gone: &mut RssStat,
    ) -> (usize, Option<u64>) {
        let kind = if FILE { FolioKind::File } else { FolioKind::Anon };
        let entries = &window.table.table()[..window.end];
        let mut zapped = None;
        let mut index = from;
        let found = loop {
            let Some(entry) = entries.get(index) else { break None };
            let raw = F::load(entry);
            if raw != 0 {
                if !F::is_valid(raw) || raw & F::SPECIAL != 0 || gather.is_full() {
                    break Some(raw);
                }
                if single::<F, M>(self.machine, raw, kind).is_none() {
                    break Some(raw);
                }
                if FILE {
                    let raw = if ENDS { raw } else { window.small(index).take::<F>(raw) };
                    // SAFETY: the entry is gone, or its space ends, as a whole. The gather has room, and is touched below, before
                    // anything else is done with it.
                    unsafe { gather.unmapped_used(F::frame(raw), 1, F::is_dirty(raw), F::is_young(raw)) };
                } else {
                    if !ENDS {
                        // Of anonymous memory nobody asks any more whether this mapping was used, as in Linux.
                        window.small(index).store(0);
                    }
                    // SAFETY: as above.
                    unsafe { gather.unmapped(F::frame(raw), 1) };
                }
                zapped = Some((zapped.map_or(index, |(first, _)| first), index));
            } else {
                gone.discount(kind);
            }
            index += 1;
        };
        if let Some((first, last)) = zapped
            && !ENDS
        {
            gather.touch::<F>(Level::Pte, window.page_of(first), (last - first + 1) as u64);
        }
        (index, found)
    }

    /// Zaps the batch at `index`, of one entry unless `MANY`; how many entries.
    #[inline]
    fn zap_run<const ENDS: bool, const MANY: bool>(
        &self,
        window: &Window<'_, F, M>,
        index: usize,
        page: u64,
        raw: u64,
        gather: &mut Gather<'_, M>,
        gone: &mut RssStat,
    ) -> usize {
        let table = &window.table;
        let level = table.level;
        let most = window.end - index;
        let (folio, limit) = if raw & F::SPECIAL != 0 {
            (None, most)
        } else {
            match FolioView::of(self.machine, F::frame(raw)) {
                Ok(folio) => (Some(folio), folio.remaining() >> F::shift(level)),
                Err(_) => (None, 1),
            }
        };
        let limit = if MANY { limit.clamp(1, most) } else { 1 };
        let detect = |raw, limit| {
            if MANY { detect_in::<F, M>(table, index, raw, limit, F::STATE) } else { Run::one(raw) }
        };
        let mut run = detect(raw, limit);
        if !ENDS && unfold_ends::<F, M>(table, self.id, page, run.len) {
            run = detect(F::load(table.entry(index)), run.len);
        }
        let kind = folio.map(|folio| folio.kind());
        let file = kind == Some(FolioKind::File);
        let (mut or, mut and) = (run.or, run.and);
        let pages = run.len << F::shift(level);
        if !ENDS {
            (or, and) = clear_run::<F, M>(table, index, &run, file);
            gather.touch::<F>(level, page, pages as u64);
        }
        gone.count(kind, pages as u64);
        let Some(folio) = folio else { return run.len };
        let (dirty, young) = (file && F::any_dirty(or, and), file && F::is_young(or));
        // Others of the folio's pages stay mapped here, or some of them elsewhere; how many is looked at after the flush, as other runs of
        // them may wait for it.
        let (all, left) = (folio.order().frames(), u64::from(folio.maps()).wrapping_sub(pages as u64));
        let partly = (pages as u64) < all || (1..all).contains(&left);
        // SAFETY: the entries are gone and their pages touched, or their space ends as a whole. Each was one of the folio's
        // mappings, and the gather has room.
        unsafe {
            if partly {
                gather.unmapped_part(F::frame(raw), pages, dirty, young);
            } else if file {
                gather.unmapped_used(F::frame(raw), pages, dirty, young);
            } else {
                gather.unmapped(F::frame(raw), pages);
            }
        }
        run.len
    }
}
