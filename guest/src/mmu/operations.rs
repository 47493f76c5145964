//! What is done to a [`Subject`] besides reading and writing its pages: each operation of the library on the page tables,
//! and by the naive rules on the account.

use super::contents;
use super::contradiction::{Checked, ensure};
use super::figures::{Figure, count};
use super::hardware::{HARDWARE, Hardware};
use super::subject::{Page, Subject, around};
use super::{PAGES, PER_LEAF, World};
use alloc::vec::Vec;
use core::ops::Range;
use isotherm_pagetable::{
    Attributes, Collapsed, Error, Flush, Folio, Format, Gather, Level, MappedIn, Order, PageRange,
    Protection, RssStat, Sharing, Slot, Stopped, TableSlot, Tlb,
};

impl<F: Format> Subject<F> {
    /// Maps a new folio from page `first` on, as many of its pages as lie before the end; nothing is mapped there.
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
    ) -> Checked {
        let pages = first..(first + (1 << order)).min(self.pages.len());
        let folio = HARDWARE.folio(order)?;
        let generations: Vec<u64> = pages.clone().map(|_| world.generation()).collect();
        for (n, &generation) in generations.iter().enumerate() {
            contents::fill(folio.head().add(n as u64), generation);
        }
        let result = self.process.space.map(Self::range(first, pages.len())?, folio.head(), state, largest);
        drop(folio);
        result?;
        let wished = largest >= Level::Pmd && order == 9 && first.is_multiple_of(PER_LEAF);
        let huge = wished && self.is_huge(first);
        for (page, generation) in self.pages[pages.clone()].iter_mut().zip(generations) {
            let Attributes { write, young, dirty, .. } = state;
            *page = Page { generation, mapped: true, write, young, dirty, huge };
        }
        self.merge(pages);
        Ok(())
    }

    /// Whether the library mapped a page by a huge leaf: where a table was left empty it does not.
    fn is_huge(&self, page: usize) -> bool {
        self.leaf(page).is_some_and(|leaf| leaf.level == Level::Pmd)
    }

    /// Forks it.
    ///
    /// # Errors
    /// There is no memory.
    pub fn fork(&self) -> Checked<Self> {
        let process = self.process.fork(Self::range(0, self.pages.len())?, 2)?;
        let pages = self.pages.iter().map(|&page| Page { young: false, ..page }).collect();
        let mut child = Self { process, pages };
        child.merge(0..PAGES);
        Ok(child)
    }

    /// Does `act`, with a gather, to a range, whose borders part huge leaves.
    fn on_range(
        &mut self,
        pages: &Range<usize>,
        act: impl FnOnce(&Self, PageRange, &mut Gather<'_, Hardware>) -> Result<RssStat, Stopped>,
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
        self.merge(0..PAGES);
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
        HARDWARE.invalidate_range(self.process.space.id(), Flush::of::<F>(Level::Pte, range));
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
            let cleared = self.together(page);
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
        self.merge(0..PAGES);
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

    /// Moves pages to others, which are not mapped and do not overlap them.
    ///
    /// # Errors
    /// It stopped, though nothing is in the way.
    pub fn remap(&mut self, from: Range<usize>, to: usize) -> Checked {
        let aligned = (from.start ^ to).is_multiple_of(PER_LEAF);
        self.process.space.remap(Self::range(from.start, from.len())?, Self::address(to))?;
        for page in from.clone() {
            let whole = around(page);
            if self.pages[page].huge && !(aligned && from.start <= whole.start && whole.end <= from.end) {
                self.part(page);
            }
        }
        let target = to..to + from.len();
        for (page, to) in from.zip(target.clone()) {
            self.pages[to] = self.pages[page];
            self.pages[page] = Page { write: true, ..Page::default() };
        }
        for page in target {
            if self.pages[page].huge && !self.is_huge(page) {
                self.part(page);
            }
        }
        self.merge(0..PAGES);
        Ok(())
    }
}

/// Splits the folio that a page of the first subject maps, wherever it and the others map it. What none of them maps is free.
///
/// # Errors
/// It is not split, though nothing else uses it.
pub fn split_folio<F: Format>(subjects: &mut [Subject<F>], page: usize, order: Order) -> Checked {
    let Some(leaf) = subjects.first().and_then(|subject| subject.leaf(page)) else { return Ok(()) };
    let folio = Folio::get(&HARDWARE, leaf.frame).map_err(Error::from)?;
    if order >= folio.order() {
        return Ok(());
    }
    let all = Subject::<F>::range(0, PAGES)?;
    let spaces = subjects.iter().map(|subject| &subject.process.space);
    let mapped: Vec<_> = spaces.map(|space| MappedIn { space, range: all }).collect();
    let mut slots: Vec<_> = (0..subjects.len() * PAGES / PER_LEAF).map(|_| TableSlot::default()).collect();
    let result = isotherm_pagetable::split_folio(folio, order, &mapped, &mut slots);
    drop((slots, mapped));
    drop(result.map_err(|(why, _)| why)?);
    count(Figure::Folios, 1);
    for subject in subjects {
        for first in (0..PAGES).step_by(PER_LEAF) {
            if subject.pages[first].huge && !subject.is_huge(first) {
                subject.part(first);
            }
        }
        subject.merge(0..PAGES);
    }
    Ok(())
}
