//! Collapse of 512 PTEs to a PMD leaf, and split back (patch 1 of the seed's series: one `set_ptes`).

use crate::address::{Frame, Level, PageRange, VirtAddr};
use crate::batch::{get, with_state};
use crate::entries::run_of;
use crate::error::Error;
use crate::folio::{Folio, FolioKind, FolioView, MAX_ORDER, base, new_folio};
use crate::format::{Attributes, Format};
use crate::gather::Gather;
use crate::machine::{Event, Flush, Machine};
use crate::space::AddressSpace;
use crate::table::{CHANGING, Locked, Two};
use crate::walk::Step;

/// Pages of the largest folio, and entries of a table of 4 KiB.
const ENTRIES: usize = 1 << MAX_ORDER.get();

/// What is copied: the pages of a table, as they were when the copy began.
struct Held {
    /// The entries, read-only. A reference is held of the folio of each that is not empty.
    entries: [u64; ENTRIES],
    table: Frame,
    sequence: u32,
}

/// What a collapse did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Collapsed {
    /// There is a huge leaf already.
    Already,
    /// The PTEs mapped all of one folio: only the tables changed.
    InPlace,
    /// The pages were copied into a new folio.
    Copied {
        /// Pages that were mapped; the others of the new folio are zero.
        pages: u64,
    },
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// Splits the huge leaf at an address: into the entries of a table of the level below, written in one batch. Nothing happens if
    /// there is none. Counts, permissions, young and dirty stay.
    ///
    /// # Errors
    /// [`Error::NoTableFrame`], [`Error::NotCanonical`].
    pub fn split(&self, at: VirtAddr) -> Result<(), Error> {
        self.check_page(at.page())?;
        self.split_leaf(at.page()).map(drop)
    }

    /// Maps the 2 MiB around an address by a PMD leaf; where the format's are larger, no folio fills one.
    ///
    /// If the 512 PTEs map one folio of order 9 alike, only the tables change. Otherwise the pages are copied into a new
    /// folio: all must be private anonymous pages that this space alone refers to, and at most `max_none` may be
    /// missing, which become zero pages: in a private mapping of a file, whose missing pages are the file's, it must be
    /// 0. While they are copied they are read-only but stay mapped, and no lock is held;
    /// if a page is written or remapped meanwhile, the collapse is given up. Needs 4 KiB of stack.
    ///
    /// # Errors
    /// [`Error::NotCollapsible`] with the reason, [`Error::Pinned`], [`Error::Changed`] (try again),
    /// [`Error::NoFolioFrames`], [`Error::TooManyReferences`], [`Error::NotMapped`], [`Error::NotCanonical`];
    /// [`Error::UnknownFrame`] or [`Error::NotAFolio`] if memory corruption left an entry whose frame is in no folio. The mapping
    /// is then as before, though pages may have become read-only, which the next write fault heals without a copy.
    pub fn collapse(
        &self,
        at: VirtAddr,
        max_none: u64,
        gather: &mut Gather<'_, M>,
    ) -> Result<Collapsed, Error> {
        let first = at.page() & !(F::pages(Level::Pmd) - 1);
        self.check_page(first)?;
        gather.serve(self.machine, self.id)?;
        if F::GRANULE != 0 || F::pages(Level::Pmd) != MAX_ORDER.frames() {
            return Err(Error::NotCollapsible("no folio is as large as a leaf of this format's"));
        }
        gather.flush();
        let Step::Window(window) = self.step(first, first + 1) else { return Err(Error::NotMapped) };
        if window.table.level != Level::Pte {
            return Ok(Collapsed::Already);
        }
        if self.one_folio(&window.table).is_some() {
            drop(window);
            return self.collapse_in_place(first, gather);
        }
        let attributes = self.collapsible(&window.table, max_none)?;
        let (table, sequence) = (window.table.frame, window.table.sequence());
        let mut held = Held { entries: [0; ENTRIES], table, sequence };
        let result = self.hold(&window.table, &mut held.entries);
        drop(window);
        // Nobody may write any more before the first byte is copied.
        let range = PageRange { first, end: first + F::pages(Level::Pmd) };
        self.machine.invalidate_range(self.id, Flush::of::<F>(Level::Pte, range));
        self.machine.sync();
        let result = result.and_then(|()| self.copy_and_replace(first, &held, attributes, gather));
        for &raw in held.entries.iter().filter(|&&raw| raw != 0) {
            // SAFETY: `hold` took it.
            drop(unsafe { Folio::from_raw(self.machine, F::frame(raw)) });
        }
        result
    }

    /// The folio of order 9 that the table maps as a whole, its pages alike.
    fn one_folio(&self, table: &Locked<'_, F, M>) -> Option<u64> {
        let first = F::load(table.entry(0));
        if !F::is_present(first) || first & F::SPECIAL != 0 {
            return None;
        }
        let folio = FolioView::of(self.machine, F::frame(first)).ok()?;
        let memory = F::attributes(first).memory;
        if folio.order() != MAX_ORDER || folio.head() != F::frame(first) || !F::supports(Level::Pmd, memory) {
            return None;
        }
        let run = run_of::<F, M>(table, 0, ENTRIES);
        // Some blocks may be folded and others not.
        ((run.or ^ run.and) & !(F::STATE | F::CONT) == 0).then_some(first)
    }

    fn collapse_in_place(&self, first: u64, gather: &mut Gather<'_, M>) -> Result<Collapsed, Error> {
        let (parent, child) = self.parent_and_child(first)?;
        let Some(raw) = self.one_folio(&child) else { return Err(Error::Changed) };
        let range = PageRange { first, end: first + F::pages(Level::Pmd) };
        // Break before make, and then nothing can set a bit in the table any more.
        let slot = parent.change_at(F::index(Level::Pmd, first));
        slot.store(CHANGING);
        self.machine.invalidate_range(
            self.id,
            Flush { tables: true, level: None, ..Flush::of::<F>(Level::Pte, range) },
        );
        self.machine.sync();
        let run = run_of::<F, M>(&child, 0, ENTRIES);
        let raw = with_state::<F>(raw, run.or, run.and) & !F::CONT;
        slot.store(F::at_level(raw, Level::Pmd));
        // SAFETY: the leaf is in its place.
        unsafe { gather.unlinked(child.unlink(), base::<F>(), first, F::pages(Level::Pmd)) };
        Ok(Collapsed::InPlace)
    }

    /// The PMD table and the PTE table below it, both locked.
    fn parent_and_child(&self, first: u64) -> Result<Two<'m, F, M>, Error> {
        let (parent, child) = self.parent(first, Level::Pmd).ok_or(Error::Changed)?;
        // SAFETY: the parent is locked, so the child stays in the tree.
        let child =
            unsafe { Locked::acquire(self.machine, child, Level::Pte) }.map_err(|_| Error::Changed)?;
        Ok((parent, child))
    }

    /// Whether the pages can be copied together; what the huge leaf shall say.
    fn collapsible(&self, table: &Locked<'m, F, M>, max_none: u64) -> Result<Attributes, Error> {
        let mut common: Option<Attributes> = None;
        let mut none = 0;
        // The last folio that turned out to be this space's alone.
        let mut ours = None;
        for index in 0..ENTRIES {
            let raw = F::load(table.entry(index));
            if raw == 0 {
                none += 1;
                if none > max_none {
                    return Err(Error::NotCollapsible("too many pages are missing"));
                }
                continue;
            }
            if !F::is_present(raw) {
                return Err(Error::NotCollapsible("a page is swapped out"));
            }
            if raw & F::SPECIAL != 0 {
                return Err(Error::NotCollapsible("a special mapping"));
            }
            if !F::is_valid(raw) {
                return Err(Error::NotCollapsible("a page that nobody may access"));
            }
            let folio = FolioView::of(self.machine, F::frame(raw))?;
            if folio.kind() != FolioKind::Anon {
                return Err(Error::NotCollapsible("a page of a file"));
            }
            if folio.pins() > 0 {
                return Err(Error::Pinned);
            }
            // After a fork the entries do not say that the others are gone.
            if raw & F::EXCLUSIVE == 0 && ours != Some(folio.head()) {
                if !self.all_ours(table, index, raw, 1 << F::GRANULE, &folio) {
                    return Err(Error::NotCollapsible("a page is shared with another space"));
                }
                ours = Some(folio.head());
            }
            let raw = get::<F>(table.table(), index, Level::Pte);
            let own = F::attributes(raw);
            let so_far = common.get_or_insert(own);
            let differ = (own.user, own.execute, own.global, own.memory)
                != (so_far.user, so_far.execute, so_far.global, so_far.memory);
            if differ {
                return Err(Error::NotCollapsible("the pages permit different things"));
            }
            so_far.young |= own.young;
            // Permits no page more than it did: what could be written again, the next write fault finds out.
            so_far.write &= own.write;
        }
        let common = common.ok_or(Error::NotMapped)?;
        if !F::supports(Level::Pmd, common.memory) {
            return Err(Error::NotCollapsible("no leaf as large is cached like this"));
        }
        Ok(Attributes { dirty: true, exclusive: true, ..common })
    }

    /// Takes a reference of each page, then makes all read-only; `held` are the entries from here on, those of which there
    /// is a reference also if that fails. Then none is read-only that was not.
    fn hold(&self, table: &Locked<'_, F, M>, held: &mut [u64; ENTRIES]) -> Result<(), Error> {
        for (entry, held) in table.table().iter().zip(held.iter_mut()) {
            let raw = entry.relaxed();
            if raw != 0 {
                let _held = Folio::get(self.machine, F::frame(raw))?.into_raw();
                *held = raw;
            }
        }
        // Folded blocks are protected as a whole, so they stay folded.
        for (entry, held) in table.change().iter().zip(held.iter_mut()).filter(|(_, held)| **held != 0) {
            if F::is_writable(*held) {
                entry.update::<F>(*held, F::write_protect);
            }
            *held = entry.relaxed();
        }
        Ok(())
    }

    fn copy_and_replace(
        &self,
        first: u64,
        held: &Held,
        attributes: Attributes,
        gather: &mut Gather<'_, M>,
    ) -> Result<Collapsed, Error> {
        let folio = new_folio(self.machine, MAX_ORDER, FolioKind::Anon)?;
        let head = folio.head();
        for (n, &raw) in held.entries.iter().enumerate() {
            let to = head.add(n as u64);
            // SAFETY: `hold` took a reference of every source; the copy is ours alone.
            unsafe {
                if raw == 0 {
                    self.machine.clear(to)
                } else {
                    self.machine.copy(F::frame(raw), to, 1)
                };
            }
        }
        self.put_huge(first, held, &folio, attributes, gather)
    }

    /// Puts the huge leaf in place of the table, if that still says what was copied.
    fn put_huge(
        &self,
        first: u64,
        held: &Held,
        folio: &Folio<'m, M>,
        mut attributes: Attributes,
        gather: &mut Gather<'_, M>,
    ) -> Result<Collapsed, Error> {
        let (parent, child) = self.parent_and_child(first)?;
        // A page that was written since was made writable before, and may be read-only again.
        if (child.frame, child.sequence()) != (held.table, held.sequence) {
            return Err(Error::Changed);
        }
        for (entry, &raw) in child.table().iter().zip(&held.entries) {
            let now = entry.relaxed();
            // Young may come at any time.
            if (now ^ raw) & !F::YOUNG != 0 {
                return Err(Error::Changed);
            }
            let pinned = raw != 0 && FolioView::of(self.machine, F::frame(raw)).is_ok_and(|f| f.pins() > 0);
            if pinned {
                return Err(Error::Pinned);
            }
        }
        // SAFETY: the leaf that is stored below, which gives it back when it goes.
        unsafe { folio.add_mapped(ENTRIES) }?;
        let range = PageRange { first, end: first + F::pages(Level::Pmd) };
        let slot = parent.change_at(F::index(Level::Pmd, first));
        slot.store(CHANGING);
        self.machine.invalidate_range(
            self.id,
            Flush { tables: true, level: None, ..Flush::of::<F>(Level::Pte, range) },
        );
        self.machine.sync();
        attributes.young |= child.table().iter().any(|entry| F::is_young(entry.relaxed()));
        slot.store(F::leaf(Level::Pmd, folio.head(), attributes));
        drop(parent);
        // SAFETY: the leaf is in its place.
        unsafe { gather.unlinked(child.unlink(), base::<F>(), first, F::pages(Level::Pmd)) };
        let mut pages = 0;
        for &raw in held.entries.iter().filter(|&&raw| raw != 0) {
            // The TLB is flushed already, and `collapse` still holds a reference.
            if let Ok(folio) = FolioView::of(self.machine, F::frame(raw)) {
                // SAFETY: its entry was in the table that is unlinked.
                unsafe { folio.sub_mapped(self.machine, 1) };
            }
            pages += 1;
        }
        self.machine.event(Event::Copy);
        Ok(Collapsed::Copied { pages })
    }
}
