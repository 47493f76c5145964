//! Zap: the mappings of a range go, the folios after the flush (`clear_ptes`, patches 3 and 16 of the seed's series).

use crate::address::{Level, PageRange};
use crate::batch::{Batching, detect};
use crate::entries::{clear_run, step, unfold_ends};
use crate::error::Stopped;
use crate::folio::{Folio, FolioKind};
use crate::format::{Format, decode_token};
use crate::gather::Gather;
use crate::machine::Machine;
use crate::space::{AddressSpace, Done, Window};

impl<F: Format, M: Machine, B: Batching> AddressSpace<'_, F, M, B> {
    /// Removes all mappings of the range and keeps the tables (`MADV_DONTNEED`). What the entries of file folios said
    /// of dirty and young is kept with the folio ([`Folio::take_dirty`]). References are given back when the gather
    /// flushes.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::NoTableFrame`](crate::Error::NoTableFrame) if a huge leaf at the border had to be
    /// split, or [`Error::NotCanonical`](crate::Error::NotCanonical).
    pub fn zap(&self, range: PageRange, gather: &mut Gather<'_, M>) -> Result<(), Stopped> {
        gather.serve(self.id);
        self.zap_into(range, gather)
    }

    /// Removes all mappings of the range and the tables that it leaves empty (`munmap`). A table that the range covers
    /// only in part stays.
    ///
    /// # Errors
    /// As [`zap`](Self::zap).
    pub fn unmap(&self, range: PageRange, gather: &mut Gather<'_, M>) -> Result<(), Stopped> {
        self.zap(range, gather)?;
        self.prune(range, gather);
        Ok(())
    }

    pub(crate) fn zap_into(&self, range: PageRange, gather: &mut Gather<'_, M>) -> Result<(), Stopped> {
        self.for_windows(range, |window| {
            if gather.is_full() {
                // Not under the lock of a table: the flush waits for other CPUs.
                let page = window.page;
                drop(window);
                gather.flush();
                return Ok(Done::Until(page));
            }
            Ok(self.zap_window(&window, range, gather))
        })
    }

    fn zap_window(&self, window: &Window<'_, M>, range: PageRange, gather: &mut Gather<'_, M>) -> Done {
        let table = &window.table;
        let level = table.level;
        let mut index = window.index;
        while index < window.end {
            let page = window.page_of(index);
            let raw = F::load(table.entry(index));
            if raw == 0 {
                index += 1;
                continue;
            }
            if !F::is_present(raw) {
                table.entry(index).store(0);
                self.machine.release_token(decode_token(raw));
                index += 1;
                continue;
            }
            if F::is_table(level, raw) {
                return Done::Until(page);
            }
            if level != Level::Pte && (page < range.first || page + level.pages() > range.end) {
                return Done::Split(page);
            }
            if gather.is_full() {
                return Done::Until(page);
            }
            index += self.zap_run(window, index, page, raw, gather);
        }
        Done::Until(window.page_of(window.end))
    }

    /// Zaps the batch at `index`; how many entries.
    fn zap_run(
        &self,
        window: &Window<'_, M>,
        index: usize,
        page: u64,
        raw: u64,
        gather: &mut Gather<'_, M>,
    ) -> usize {
        let table = &window.table;
        let level = table.level;
        let special = raw & F::SPECIAL != 0;
        let folio = if special { None } else { Folio::of(self.machine, F::frame(raw)).ok() };
        let most = window.end - index;
        let limit = match &folio {
            _ if !B::BATCHED => 1,
            Some(folio) => (folio.remaining() >> level.shift()).clamp(1, most),
            None => most,
        };
        let mut run = detect::<F>(table.table(), index, raw, limit, step(level), F::STATE);
        if unfold_ends::<F, M>(table, self.id, page, run.len) {
            let raw = F::load(table.entry(index));
            run = detect::<F>(table.table(), index, raw, run.len, step(level), F::STATE);
        }
        let (or, and) = clear_run::<F, M>(table, index, &run);
        let pages = run.len << level.shift();
        gather.touch(page, pages as u64);
        if let Some(folio) = folio {
            if folio.kind() == FolioKind::File {
                folio.mark(F::any_dirty(or, and), F::is_young(or));
            }
            gather.unmapped(F::frame(raw), pages);
        }
        run.len
    }
}
