//! What is done to a [`Subject`] besides reading and writing its pages: each operation of the library on the page tables,
//! and by the naive rules on the account.

use super::contents;
use super::contradiction::{Checked, ensure};
use super::figures::{Figure, count};
use super::hardware::{HARDWARE, Hardware};
use super::subject::{Page, Subject, around};
use super::{PER_LEAF, World};
use alloc::vec::Vec;
use core::ops::Range;
use isotherm_pagetable::{
    Attributes, Collapsed, Error, Format, Gather, Level, PageRange, Protection, Sharing, Slot, Stopped, Tlb,
};

impl<F: Format> Subject<F> {
    /// Maps a new folio from page `first` on, as many of its pages as lie before the end; nothing is mapped there.
    /// `false`, and nothing is changed, if an empty table is in the way of a huge leaf.
    ///
    /// # Errors
    /// There is no memory, or something is in the way.
    pub fn map(
        &mut self,
        world: &mut World,
        first: usize,
        order: u8,
        largest: Level,
        state: Attributes,
    ) -> Checked<bool> {
        let pages = first..(first + (1 << order)).min(self.pages.len());
        let folio = HARDWARE.folio(order)?;
        let generations: Vec<u64> = pages.clone().map(|_| world.generation()).collect();
        for (n, &generation) in generations.iter().enumerate() {
            contents::fill(folio.head().add(n as u64), generation);
        }
        let result = self.process.space.map(Self::range(first, pages.len())?, folio.head(), state, largest);
        folio.put(&HARDWARE);
        let huge = largest >= Level::Pmd && order == 9 && first.is_multiple_of(PER_LEAF);
        match result {
            Ok(()) => {}
            Err(Stopped { why: Error::Occupied, .. }) if huge => return Ok(false),
            Err(stopped) => return Err(stopped.into()),
        }
        for (page, generation) in self.pages[pages].iter_mut().zip(generations) {
            let Attributes { write, young, dirty, .. } = state;
            *page = Page { generation, mapped: true, write, young, dirty, huge };
        }
        Ok(true)
    }

    /// Forks it.
    ///
    /// # Errors
    /// There is no memory.
    pub fn fork(&self) -> Checked<Self> {
        let process = self.process.fork(Self::range(0, self.pages.len())?, 2)?;
        let pages = self.pages.iter().map(|&page| Page { young: false, ..page }).collect();
        Ok(Self { process, pages })
    }

    /// Does `act`, with a gather, to a range, whose borders part huge leaves.
    fn on_range(
        &mut self,
        pages: &Range<usize>,
        act: impl FnOnce(&Self, PageRange, &mut Gather<'_, Hardware>) -> Result<(), Stopped>,
    ) -> Checked {
        let mut slots = [Slot::default(); 8];
        let mut gather = self.process.space.gather(&mut slots);
        act(self, Self::range(pages.start, pages.len())?, &mut gather)?;
        drop(gather);
        for border in [pages.start, pages.end] {
            if !border.is_multiple_of(PER_LEAF) {
                self.part(border);
            }
        }
        Ok(())
    }

    /// Permits writing, or forbids it.
    ///
    /// # Errors
    /// There is no table for a split.
    pub fn protect(&mut self, pages: Range<usize>, write: bool) -> Checked {
        let protection = if write { Protection::READ_WRITE } else { Protection::READ };
        self.on_range(&pages, |subject, range, gather| {
            subject.process.space.protect(range, protection, Sharing::Private, gather)
        })?;
        self.pages[pages].iter_mut().for_each(|page| page.write = write);
        Ok(())
    }

    /// Makes the next write of each page fault.
    ///
    /// # Errors
    /// There is no table for a split.
    pub fn write_protect(&mut self, pages: Range<usize>) -> Checked {
        self.on_range(&pages, |subject, range, gather| subject.process.space.write_protect(range, gather))
    }

    /// Removes pages, and with `tables` the tables that are empty then.
    ///
    /// # Errors
    /// There is no table for a split.
    pub fn zap(&mut self, pages: Range<usize>, tables: bool) -> Checked {
        self.on_range(&pages, |subject, range, gather| match tables {
            true => subject.process.space.unmap(range, gather),
            false => subject.process.space.zap(range, gather),
        })?;
        for page in &mut self.pages[pages] {
            *page = Page { write: page.write, ..Page::default() };
        }
        Ok(())
    }

    /// Harvests: every page that was accessed must be found, and no other. Flushes, so that the next access is seen.
    ///
    /// # Errors
    /// One is missing, or found though nobody accessed it.
    pub fn harvest(&mut self, pages: Range<usize>) -> Checked<u64> {
        let range = Self::range(pages.start, pages.len())?;
        let mut bitmap = alloc::vec![0; pages.len().div_ceil(64)];
        let young = self.process.space.harvest_young(range, &mut bitmap)?;
        HARDWARE.invalidate_range(self.process.space.id(), range, false);
        HARDWARE.sync();
        count(Figure::Young, young);
        let mut expected = 0;
        for (n, page) in pages.clone().enumerate() {
            let (found, accessed) = (bitmap[n / 64] >> (n % 64) & 1 == 1, self.pages[page].young);
            ensure!(found == accessed, "page {page}: accessed {accessed}, harvested {found}");
            expected += u64::from(accessed);
        }
        ensure!(young == expected, "{young} pages were harvested, {expected} accessed");
        for page in pages {
            let cleared = if self.pages[page].huge { around(page) } else { page..page + 1 };
            self.pages[cleared].iter_mut().for_each(|page| page.young = false);
        }
        Ok(young)
    }

    /// Splits the huge leaf around a page, if there is one.
    ///
    /// # Errors
    /// There is no frame for the table.
    pub fn split(&mut self, page: usize) -> Checked {
        self.process.space.split(Self::address(page))?;
        self.part(page);
        Ok(())
    }

    /// Collapses the 512 pages around a page to a huge leaf, if that can be done, all of which permit the same.
    ///
    /// # Errors
    /// What it did cannot be.
    pub fn collapse(&mut self, page: usize) -> Checked<Option<Collapsed>> {
        let mut slots = [Slot::default(); 8];
        let mut gather = self.process.space.gather(&mut slots);
        let result = self.process.space.collapse(Self::address(page), PER_LEAF as u64 - 1, &mut gather);
        drop(gather);
        let pages = &mut self.pages[around(page)];
        let mapped = pages.iter().filter(|page| page.mapped).count();
        let collapsed = match result {
            Ok(collapsed) => collapsed,
            Err(Error::NotCollapsible(_) | Error::NotMapped) => return Ok(None),
            Err(why) => return Err(why.into()),
        };
        count(Figure::Collapses, 1);
        let young = pages.iter().any(|page| page.young);
        let dirty = match collapsed {
            Collapsed::Already => {
                ensure!(pages.iter().all(|page| page.huge), "page {page} is said to be huge already");
                return Ok(Some(collapsed));
            }
            Collapsed::InPlace => {
                ensure!(mapped == PER_LEAF, "{mapped} pages around page {page} were collapsed in place");
                pages.iter().any(|page| page.dirty)
            }
            Collapsed::Copied { pages: copied } => {
                ensure!(copied == mapped as u64, "{copied} pages of {mapped} around page {page} were copied");
                true
            }
        };
        for page in pages {
            let generation = if page.mapped { page.generation } else { 0 };
            *page = Page { generation, mapped: true, young, dirty, huge: true, ..*page };
        }
        Ok(Some(collapsed))
    }

    /// Moves pages to others, which are not mapped and do not overlap them. Returns how many it moved: a table that is in
    /// the way of a huge leaf stops it.
    ///
    /// # Errors
    /// It stopped where nothing is in the way.
    pub fn remap(&mut self, from: Range<usize>, to: usize) -> Checked<usize> {
        let range = Self::range(from.start, from.len())?;
        let aligned = (from.start ^ to).is_multiple_of(PER_LEAF);
        let moved = match self.process.space.remap(range, Self::address(to)) {
            Ok(()) => from.len(),
            Err(Stopped { at, why: Error::Occupied }) => {
                let moved = (at.page() - range.start().page()) as usize;
                let stopped = self.pages[from.start + moved];
                let empty = stopped.huge && aligned;
                ensure!(empty, "page {} could not be moved: something is in the way", from.start + moved);
                moved
            }
            Err(stopped) => return Err(stopped.into()),
        };
        let done = from.start..from.start + moved;
        for page in done.clone() {
            let whole = around(page);
            if self.pages[page].huge && !(aligned && done.start <= whole.start && whole.end <= done.end) {
                self.part(page);
            }
        }
        for n in 0..moved {
            self.pages[to + n] = self.pages[from.start + n];
            self.pages[from.start + n] = Page { write: true, ..Page::default() };
        }
        Ok(moved)
    }
}
