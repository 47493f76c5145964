//! Every page of a range, for whoever acts on them: what is there, whose it is, and which folio it is part of.

use super::Pte;
use super::blocks::{is_mapped, protection};
use super::walk::{Found, MAX_TABLES, bit};
use crate::frames::Folio;
use crate::pagemap::Entry as Mapped;
use isotherm_damon::{AddrRange, BLOCK_SIZE, PAGE_SIZE, TargetId};

/// A page of a range.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Inspected {
    /// Something is mapped.
    pub present: bool,
    /// Its Accessed bit, or that of the huge page it is part of; `None` where it cannot be read.
    pub young: Option<bool>,
    /// It was accessed shortly before its Accessed bit was cleared, and that is not long ago. Not read here.
    pub was_young: bool,
    /// Mapped by the entry of a huge page.
    pub huge: bool,
    /// Mapped by this process alone, as far as the kernel counts that.
    pub exclusive: bool,
    /// Of a file or shared memory, not anonymous.
    pub file: bool,
    /// Swapped out.
    pub swapped: bool,
    /// Its frame.
    pub pfn: u64,
    /// What two entries of one folio must agree on, or the kernel takes them for two parts of it.
    pub protection: u64,
    /// The folio it is part of; `None` where that cannot be told.
    pub folio: Option<Folio>,
}

impl Inspected {
    /// It was accessed, as far as is known not long ago.
    pub(crate) fn is_in_use(&self) -> bool {
        self.was_young || self.young == Some(true)
    }
}

/// The block that is read, and its entries: those of its table, or one for all of it.
struct Block {
    start: u64,
    entries: Entries,
}

enum Entries {
    Unknown,
    Absent,
    /// The entry, and how many bytes it maps.
    Huge(u64, u64),
    Small(Box<[u64; 512]>),
}

impl Pte {
    /// Reads the entries of all blocks that `range` touches.
    fn entries_of(&mut self, id: TargetId, range: AddrRange) -> Option<Vec<Block>> {
        let first = range.start & !(BLOCK_SIZE - 1);
        let blocks = (first..range.end).step_by(BLOCK_SIZE as usize);
        let mut blocks: Vec<Block> = blocks.map(|start| Block { start, entries: Entries::Unknown }).collect();
        for chunk in blocks.chunks_mut(MAX_TABLES) {
            let read = self.visit(id, |walker, pidfd| {
                walker.tables(
                    pidfd,
                    1,
                    chunk,
                    |block| block.start,
                    |block, found| {
                        block.entries = match found {
                            Found::Unknown => Entries::Unknown,
                            Found::Absent => Entries::Absent,
                            Found::Leaf { size, entry } => Entries::Huge(entry, size),
                            Found::Table(table) => Entries::Small(Box::new(*table)),
                        };
                    },
                )
            });
            if !read {
                return None;
            }
        }
        self.proved(id).then_some(blocks)
    }

    /// Reads the pages of `range`, replaced in `found`, one a page. False when nothing that was read counts.
    pub(crate) fn inspect(&mut self, id: TargetId, range: AddrRange, found: &mut Vec<Inspected>) -> bool {
        found.clear();
        let Some(blocks) = self.entries_of(id, range) else { return false };
        let block_pages = BLOCK_SIZE / PAGE_SIZE;
        for block in &blocks {
            let from = range.start.max(block.start);
            let to = range.end.min(block.start + BLOCK_SIZE);
            let pages = (from - block.start) / PAGE_SIZE..((to - block.start) / PAGE_SIZE).min(block_pages);
            found.extend(pages.map(|page| match &block.entries {
                Entries::Unknown | Entries::Absent => Inspected::default(),
                Entries::Huge(entry, size) => {
                    let offset = (block.start + page * PAGE_SIZE) & (size - 1);
                    Inspected {
                        present: true,
                        young: Some(entry & bit::ACCESSED != 0),
                        huge: true,
                        pfn: self.walker.pfn(*entry, *size) + offset / PAGE_SIZE,
                        protection: *size,
                        ..Inspected::default()
                    }
                }
                Entries::Small(table) => {
                    let entry = table.get(page as usize).copied().unwrap_or(0);
                    if !is_mapped(entry) {
                        return Inspected::default();
                    }
                    Inspected {
                        present: true,
                        young: Some(entry & bit::ACCESSED != 0),
                        pfn: self.walker.pfn(entry, PAGE_SIZE),
                        protection: protection(entry),
                        ..Inspected::default()
                    }
                }
            }));
        }
        let pfns: Vec<u64> = found.iter().filter(|page| page.present).map(|page| page.pfn).collect();
        let mut folios = self.folios(&pfns).into_iter();
        for page in found.iter_mut().filter(|page| page.present) {
            page.folio = folios.next().flatten();
        }
        self.add_ownership(id, range, found)
    }

    /// Adds what only the page map tells.
    fn add_ownership(&mut self, id: TargetId, range: AddrRange, found: &mut [Inspected]) -> bool {
        let Some(target) = self.targets.get(&id) else { return false };
        let Some(pagemap) = self.pagemaps.of(id, &target.process) else { return false };
        let mut mapped = Vec::with_capacity(found.len());
        pagemap.read(range, &mut mapped);
        for (page, mapped) in found.iter_mut().zip(mapped) {
            page.swapped = mapped.swapped();
            page.file = mapped.of_file();
            page.exclusive = mapped.present() && mapped.exclusive();
            // What came or went between the two looks is as good as not there.
            page.present &= mapped.present();
        }
        self.proved(id)
    }

    /// Which pages of `range` are mapped, and whether by a huge page's entry; replaced in `found`. False when nothing that was
    /// read counts.
    pub(crate) fn present(&mut self, id: TargetId, range: AddrRange, found: &mut Vec<(bool, bool)>) -> bool {
        found.clear();
        let Some(blocks) = self.entries_of(id, range) else { return false };
        for block in &blocks {
            let from = range.start.max(block.start);
            let to = range.end.min(block.start + BLOCK_SIZE);
            let pages = (from - block.start) / PAGE_SIZE..(to - block.start) / PAGE_SIZE;
            found.extend(pages.map(|page| match &block.entries {
                Entries::Unknown | Entries::Absent => (false, false),
                Entries::Huge(..) => (true, true),
                Entries::Small(table) => (table.get(page as usize).is_some_and(|e| is_mapped(*e)), false),
            }));
        }
        true
    }

    /// Whether advice for a whole large folio that is mapped page by page leaves it whole.
    pub(crate) const fn keeps_large(&self) -> bool {
        self.keeps_large
    }
}

/// Made from the page map alone: where page tables cannot be read.
pub(crate) fn of_pagemap(entry: Mapped) -> Inspected {
    Inspected {
        present: entry.present(),
        exclusive: entry.present() && entry.exclusive(),
        file: entry.of_file(),
        swapped: entry.swapped(),
        pfn: if entry.present() { entry.pfn() } else { 0 },
        ..Inspected::default()
    }
}
