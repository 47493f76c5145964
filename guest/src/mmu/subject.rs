//! A process beside a naive account of its pages: what each holds and permits, whether it was accessed and written. Every
//! operation is done to both, the accesses by the processor, and each says at once what differs.
//!
//! Here: the account, accesses, and the comparison. [`super::operations`] has the rest.

use super::access::code;
use super::contents;
use super::contradiction::{Checked, Contradiction, ensure};
use super::hardware::HARDWARE;
use super::process::{Process, Rules, Touched};
use super::{PAGES, PER_LEAF};
use alloc::vec::Vec;
use core::ops::Range;
use isotherm_pagetable::{
    Attributes, FolioView, Format, Frame, Level, Mapping, PageRange, Resolved, TABLE_BITS, VirtAddr,
};

/// What is to be true of a page.
#[derive(Clone, Copy, Debug, Default)]
pub struct Page {
    /// Its contents.
    pub generation: u64,
    pub mapped: bool,
    /// Its mapping permits writing. Of pages that are not mapped too.
    pub write: bool,
    pub young: bool,
    pub dirty: bool,
    /// It is part of a huge leaf: young and dirty are those of all 512.
    pub huge: bool,
}

/// See the module. Pages are numbered from 0 to [`PAGES`].
pub struct Subject<F: Format> {
    pub process: Process<F>,
    pub pages: Vec<Page>,
}

/// A mapping as the library tells it.
#[derive(Clone, Copy, Debug)]
pub struct Leaf {
    pub frame: Frame,
    pub level: Level,
    pub attributes: Attributes,
    /// Part of a folded contiguous block, whose pages are young and dirty together.
    pub contiguous: bool,
}

/// The pages of the huge leaf, or of the table, that a page lies in.
pub fn around(page: usize) -> Range<usize> {
    let first = page - page % PER_LEAF;
    first..first + PER_LEAF
}

impl<F: Format> Subject<F> {
    /// The number of page 0 in the address space: such that a table of PMDs ends in the middle.
    pub const FIRST: u64 = Process::<F>::FIRST + (1 << (Level::Pud as u32 * TABLE_BITS)) - PAGES as u64 / 2;

    /// A process without pages, all of which may be written.
    ///
    /// # Errors
    /// There is no memory.
    pub fn new() -> Checked<Self> {
        let pages = alloc::vec![Page { write: true, ..Page::default() }; PAGES];
        Ok(Self { process: Process::new(1)?, pages })
    }

    /// The range of pages `first..first + pages`.
    pub fn range(first: usize, pages: usize) -> Checked<PageRange> {
        Ok(PageRange::with_pages(VirtAddr::of_page(Self::FIRST + first as u64), pages as u64)?)
    }

    /// What the library says of a page.
    pub fn leaf(&self, page: usize) -> Option<Leaf> {
        match self.process.space.query(Self::address(page)) {
            Mapping::Page { frame, level, attributes, contiguous } => {
                Some(Leaf { frame, level, attributes, contiguous })
            }
            _ => None,
        }
    }

    /// Where a page begins.
    pub fn address(page: usize) -> VirtAddr {
        VirtAddr::of_page(Self::FIRST + page as u64)
    }

    /// What the page's mapping permits, as far as pages on both sides permit the same.
    pub fn rules(&self, page: usize, whole_folio: bool) -> Checked<Rules> {
        let write = self.pages[page].write;
        let first = self.pages[..page].iter().rposition(|p| p.write != write).map_or(0, |at| at + 1);
        let end = self.pages[page..].iter().position(|p| p.write != write).map_or(PAGES, |n| page + n);
        Ok(Rules { write, bounds: Self::range(first, end - first)?, whole_folio })
    }

    /// Has the processor read a page.
    ///
    /// # Errors
    /// It reads something else, faults where it should not, or does not where it should.
    pub fn read(&mut self, page: usize) -> Checked<Touched> {
        let rules = self.rules(page, false)?;
        let expected = self.pages[page];
        let at = Self::FIRST + page as u64;
        let touched = contents::read(&self.process, at, expected.generation, rules)?;
        if !expected.mapped {
            Self::refused(page, touched, 0)?;
            return Ok(touched);
        }
        let Touched { faults, code, .. } = touched;
        ensure!(faults == 0, "page {page} is mapped, and reading it faults (code {code:#x})");
        self.mark(page..page + 1, false);
        Ok(touched)
    }

    /// Has the processor write a page, whose fault is resolved for the whole folio or for the page alone.
    ///
    /// # Errors
    /// It faults where it should not, does not where it should, or the fault is resolved otherwise than it must be.
    pub fn write(&mut self, page: usize, generation: u64, whole_folio: bool) -> Checked<Touched> {
        let rules = self.rules(page, whole_folio)?;
        let before = self.leaf(page);
        let alike = before.map_or(page..page + 1, |leaf| self.alike(page, leaf, rules.bounds));
        let touched = contents::write(&self.process, Self::FIRST + page as u64, generation, rules)?;
        let expected = self.pages[page];
        let Some(before) = before.filter(|_| expected.mapped) else {
            Self::refused(page, touched, code::WRITE)?;
            return Ok(touched);
        };
        if !expected.write {
            Self::refused(page, touched, code::PRESENT | code::WRITE)?;
            return Ok(touched);
        }
        let Touched { faults, code, resolved, .. } = touched;
        if before.attributes.write {
            ensure!(faults == 0, "page {page} is writable, and writing it faults (code {code:#x})");
            self.mark(page..page + 1, true);
        } else {
            ensure!(faults == 1, "page {page} is read-only, and writing it faults {faults} times");
            let resolved = self.resolved_pages(page, before, &alike, resolved, whole_folio)?;
            self.mark(resolved, true);
        }
        self.pages[page].generation = generation;
        Ok(touched)
    }

    fn refused(page: usize, touched: Touched, expected: u64) -> Checked {
        let Touched { refused, faults, code, .. } = touched;
        ensure!(refused, "page {page} was accessed, which must fault with code {expected:#x}");
        ensure!(
            faults == 1 && code == expected,
            "page {page} faults {faults} times, the last with code {code:#x} instead of {expected:#x}"
        );
        Ok(())
    }

    /// Which pages a write fault was resolved for, by the rules of `AddressSpace::write_fault`.
    fn resolved_pages(
        &mut self,
        page: usize,
        before: Leaf,
        alike: &Range<usize>,
        resolved: Option<Resolved>,
        whole_folio: bool,
    ) -> Checked<Range<usize>> {
        let folio = FolioView::of(&HARDWARE, before.frame).map_or(1, |folio| folio.order().frames() as usize);
        let one = page..page + 1;
        let huge = before.level == Level::Pmd;
        let whole = match resolved {
            Some(Resolved::Reused(_)) => huge || whole_folio,
            // Only a folio that is there as a whole is copied as one. Its state before, for the fault has changed it.
            Some(Resolved::Copied(_)) => whole_folio && (huge || alike.len() == folio),
            _ => {
                ensure!(
                    false,
                    "writing page {page} faulted, and the entry permitted it already: {resolved:?}"
                );
                false
            }
        };
        if huge && !whole {
            // Only a page of it was copied.
            self.part(page);
        }
        let pages = match (whole, huge) {
            (false, _) => one,
            (true, true) => around(page),
            (true, false) => alike.clone(),
        };
        let (Some(Resolved::Reused(n) | Resolved::Copied(n)), expected) = (resolved, pages.len() as u64)
        else {
            return Ok(pages);
        };
        ensure!(n == expected, "the fault of page {page} was {resolved:?}, which should be {expected} pages");
        Ok(pages)
    }

    /// The pages around that map the folio in the same way: those of one table, consecutive, equal but for young and dirty.
    fn alike(&self, page: usize, leaf: Leaf, bounds: PageRange) -> Range<usize> {
        let head = FolioView::of(&HARDWARE, leaf.frame).map(|folio| folio.head());
        let same = |other: usize| {
            let Some(there) = self.leaf(other) else { return false };
            let state = |a: Attributes| Attributes { young: false, dirty: false, ..a };
            bounds.contains(Self::FIRST + other as u64)
                && there.frame.0.wrapping_sub(leaf.frame.0) == (other as u64).wrapping_sub(page as u64)
                && there.level == leaf.level
                && FolioView::of(&HARDWARE, there.frame).map(|folio| folio.head()) == head
                && state(there.attributes) == state(leaf.attributes)
        };
        let table = around(page);
        let first = (table.start..page).rev().take_while(|&p| same(p)).last().unwrap_or(page);
        let last = (page + 1..table.end).take_while(|&p| same(p)).last().unwrap_or(page);
        first..last + 1
    }

    /// Pages became young, and dirty if they were written: with a huge leaf, or a folded block, all of its pages.
    pub fn mark(&mut self, pages: Range<usize>, write: bool) {
        let pages = if self.pages[pages.start].huge { around(pages.start) } else { pages };
        for page in &mut self.pages[pages.clone()] {
            page.young = true;
            page.dirty |= write;
        }
        self.merge(pages);
    }

    /// The pages that are young and dirty together with this one.
    pub fn together(&self, page: usize) -> Range<usize> {
        if self.pages[page].huge {
            around(page)
        } else if F::CONTIGUOUS > 1 && self.leaf(page).is_some_and(|leaf| leaf.contiguous) {
            let first = page - page % F::CONTIGUOUS;
            first..first + F::CONTIGUOUS
        } else {
            page..page + 1
        }
    }

    /// After an operation on these pages: those of blocks that are folded now are young if one of them was, and dirty.
    pub fn merge(&mut self, pages: Range<usize>) {
        if F::CONTIGUOUS == 1 {
            return;
        }
        let first = pages.start - pages.start % F::CONTIGUOUS;
        for first in (first..pages.end.min(PAGES)).step_by(F::CONTIGUOUS) {
            let page = self.pages[first];
            if !page.mapped || page.huge {
                continue;
            }
            let block = self.together(first);
            if block.len() > 1 {
                let block = &mut self.pages[block];
                let (young, dirty) = (block.iter().any(|p| p.young), block.iter().any(|p| p.dirty));
                block.iter_mut().for_each(|page| (page.young, page.dirty) = (young, dirty));
            }
        }
    }

    /// The huge leaf around a page, if there is one, became 512 pages.
    pub fn part(&mut self, page: usize) {
        self.pages[around(page)].iter_mut().for_each(|page| page.huge = false);
    }

    /// Compares all pages, and adds their frames to `frames`, with whether they can be written.
    ///
    /// # Errors
    /// The first that differs.
    pub fn check(&self, frames: &mut Vec<(Frame, bool)>) -> Checked {
        for (n, page) in self.pages.iter().enumerate() {
            let leaf = self.leaf(n);
            ensure!(leaf.is_some() == page.mapped, "page {n} should be {page:?}, and is {leaf:?}");
            let Some(leaf) = leaf else { continue };
            let a = leaf.attributes;
            let level = if page.huge { Level::Pmd } else { Level::Pte };
            ensure!(
                (a.young, a.dirty) == (page.young, page.dirty),
                "page {n} was {}{}, and its entry says {}{}",
                if page.young { "accessed" } else { "not accessed" },
                if page.dirty { " and written" } else { ", nor written" },
                if a.young { "young" } else { "old" },
                if a.dirty { ", dirty" } else { ", clean" },
            );
            ensure!(
                leaf.level == level && a.user && (page.write || !a.write),
                "page {n} should be {page:?}, and is {leaf:?}"
            );
            contents::check_frame(leaf.frame, page.generation)
                .map_err(|found| Contradiction(alloc::format!("page {n}: {found}")))?;
            frames.push((leaf.frame, a.write));
        }
        Ok(())
    }
}
