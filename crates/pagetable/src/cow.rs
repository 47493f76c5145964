//! Faults on pages that are mapped: the copy of copy-on-write, or reuse; accessed and dirty where software keeps them.

use crate::address::{Frame, Level, PageRange, VirtAddr};
use crate::batch::{alike, detect_in, with_state};
use crate::entries::{break_run, change_run, run_of, set_run};
use crate::error::Error;
use crate::fold::unfold_ends;
use crate::folio::{Folio, FolioKind, FolioView, base, new_folio};
use crate::format::{Attributes, Format};
use crate::machine::{Event, Machine};
use crate::protect::Sharing;
use crate::query::Expected;
use crate::space::AddressSpace;
use crate::table::Locked;
use crate::walk::{Step, Window};
use isotherm_page::Order;

/// How a write fault is resolved.
#[derive(Clone, Copy, Debug)]
pub struct WriteFault {
    /// What the mapping is for.
    pub sharing: Sharing,
    /// The mapping (VMA) that the address lies in: no page outside is touched.
    pub bounds: PageRange,
    /// Treat all of the folio that lies in bounds and is mapped alike, instead of the one page: keeps contiguous blocks
    /// folded and later pages of the folio from faulting, at the price of copying more.
    pub whole_folio: bool,
}

/// What a write fault came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Resolved {
    /// The mapping permits the write already: another thread was faster, or only the dirty bit was missing, or the TLB of this CPU
    /// had not heard of it.
    Writable,
    /// So many pages became writable without a copy, since nobody else refers to them.
    Reused(u64),
    /// So many pages were copied.
    Copied(u64),
}

/// A copy that is to be made: of a folio without the lock.
struct Plan<'m, M: Machine> {
    level: Level,
    /// The first page and entry.
    page: u64,
    raw: u64,
    /// Entries.
    len: usize,
    /// Order of the copy.
    order: Order,
    /// A reference to what is copied, unless that is special.
    source: Option<Folio<'m, M>>,
}

enum Decision<'m, M: Machine> {
    Done(Resolved),
    Split,
    Copy(Plan<'m, M>),
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// Resolves a write to a page that is mapped read-only, after the caller has found that its mapping permits it.
    ///
    /// In a private mapping an anonymous page that belongs to this space alone becomes writable (its exclusive bit says
    /// so, or all references to its folio are mappings here), everything else is copied. In a shared mapping the page
    /// becomes writable. When it returns, no CPU uses the translation of a page any more that was copied. One of a page that became
    /// writable as it is may still be in the TLBs of other CPUs: these fault in their turn, which comes to
    /// [`Resolved::Writable`].
    ///
    /// The copy is made without a lock, but of a special page, of which one page is copied under the table's lock; if the
    /// mapping changes meanwhile, all is looked at anew. Whatever made the page
    /// read-only must have flushed its gather before, or the copy lacks what other threads still write through their TLB;
    /// a lock of the address space sees to that, as `mmap_lock` does in Linux (see `mm_tlb_flush_pending` there).
    ///
    /// `expected` is the frame that the caller saw; without one it is whatever is there.
    ///
    /// # Errors
    /// [`Error::NotMapped`] if nothing (or a swap entry) is mapped; [`Error::Changed`] if another frame is than was expected;
    /// [`Error::NotPermitted`] if nobody may access the page;
    /// [`Error::UnknownFrame`] or [`Error::NotAFolio`] if memory corruption left a read-only entry whose frame is in no folio;
    /// [`Error::NoFolioFrames`], [`Error::NoTableFrame`];
    /// [`Error::NotCanonical`] also if the address is out of bounds; [`Error::Misaligned`] if these do not begin and end with a leaf,
    /// where the smallest is larger than 4 KiB.
    pub fn write_fault(
        &self,
        at: VirtAddr,
        expected: impl Into<Option<Frame>>,
        fault: WriteFault,
    ) -> Result<Resolved, Error> {
        self.resolve_write(at, Expected::new(expected.into()), fault)
    }

    fn resolve_write(
        &self,
        at: VirtAddr,
        expected: Expected,
        mut fault: WriteFault,
    ) -> Result<Resolved, Error> {
        let page = at.page();
        self.check_page(page)?;
        if !fault.bounds.contains(page) {
            return Err(Error::NotCanonical);
        }
        // A leaf that is partly out of bounds could be neither copied nor split.
        if (fault.bounds.first | fault.bounds.end) & (F::pages(Level::Pte) - 1) != 0 {
            return Err(Error::Misaligned);
        }
        loop {
            let decision = match self.step(page, page + 1) {
                Step::Gap(_) => return Err(Error::NotMapped),
                Step::Window(window) => self.decide(&window, page, expected, &fault)?,
            };
            match decision {
                Decision::Done(resolved) => return Ok(resolved),
                Decision::Split => drop(self.split_leaf(page)?),
                Decision::Copy(plan) => match self.copy_on_write(page, &plan) {
                    Err(Error::Changed) => {}
                    // A page does if there is no room for a folio.
                    Err(Error::NoFolioFrames(order)) if order > base::<F>() && fault.whole_folio => {
                        fault.whole_folio = false;
                    }
                    other => return other,
                },
            }
        }
    }

    fn decide(
        &self,
        window: &Window<'m, F, M>,
        page: u64,
        expected: Expected,
        fault: &WriteFault,
    ) -> Result<Decision<'m, M>, Error> {
        let (table, level) = (&window.table, window.table.level);
        // Young and dirty are not asked for, so a folded block need not be gathered.
        let raw = F::load(table.entry(window.index));
        if !F::is_present(raw) {
            return Err(Error::NotMapped);
        }
        expected.check::<F>(level, page, raw)?;
        if !F::is_valid(raw) {
            return Err(Error::NotPermitted);
        }
        if F::is_writable(raw) {
            self.touch_entries(window, page, true);
            return Ok(Decision::Done(Resolved::Writable));
        }
        let leaf = page >> F::shift(level) << F::shift(level);
        let inside = leaf >= fault.bounds.first && leaf + F::pages(level) <= fault.bounds.end;
        let folio =
            if raw & F::SPECIAL != 0 { None } else { Some(FolioView::of(self.machine, F::frame(raw))?) };
        let (start, len) = match &folio {
            Some(_) if level != Level::Pte => (window.index, 1),
            Some(folio) if fault.whole_folio => self.alike(window, page, raw, folio, fault.bounds),
            _ => (window.index, 1),
        };
        let reusable = fault.sharing == Sharing::Shared
            || folio.is_some_and(|folio| {
                folio.kind() == FolioKind::Anon
                    && (raw & F::EXCLUSIVE != 0
                        || self.all_ours(table, window.index, raw, (len as u64) << F::shift(level), &folio))
            });
        if reusable {
            if !inside {
                return Ok(Decision::Split);
            }
            let first = window.page_of(window.index) - (((window.index - start) as u64) << F::shift(level));
            self.reuse(window, start, first, len, page, fault.sharing);
            return Ok(Decision::Done(Resolved::Reused((len as u64) << F::shift(level))));
        }
        let order = folio.map_or(base::<F>(), |folio| folio.order());
        let whole = fault.whole_folio && inside && (len as u64) << F::shift(level) == order.frames();
        if level != Level::Pte && (!whole || folio.is_none()) {
            return Ok(Decision::Split);
        }
        let (start, len, order) = if whole { (start, len, order) } else { (window.index, 1, base::<F>()) };
        let first = window.page_of(window.index) - (((window.index - start) as u64) << F::shift(level));
        // The source must not be freed while it is copied without the lock.
        let source = match &folio {
            Some(folio) => Some(Folio::get(self.machine, folio.head())?),
            None => None,
        };
        // Of the first, which is like this one but for young and dirty.
        let raw = raw.wrapping_sub(F::step(raw, level).wrapping_mul((window.index - start) as u64));
        Ok(Decision::Copy(Plan { level, page: first, raw, len, order, source }))
    }

    /// The entries around that map the same folio in the same way, within bounds: the first and how many.
    fn alike(
        &self,
        window: &Window<'m, F, M>,
        page: u64,
        raw: u64,
        folio: &FolioView<'_>,
        bounds: PageRange,
    ) -> (usize, usize) {
        let offset = (F::frame(raw).0 - folio.head().0) >> F::GRANULE;
        let page = page >> F::GRANULE;
        // Leaves that lie within bounds as a whole.
        let (first, end) = (bounds.first.div_ceil(F::pages(Level::Pte)), bounds.end >> F::GRANULE);
        let before = offset.min(window.index as u64).min(page.saturating_sub(first));
        let left = (folio.remaining() >> F::GRANULE).min((1 << F::TABLE_BITS) - window.index) as u64;
        let after = left.min(end.saturating_sub(page));
        let ignore = F::STATE | F::CONT;
        let on = alike::<F, M>(&window.table, window.index, after as usize, ignore);
        let nth_before = |n: u64| raw.wrapping_sub(F::step(raw, Level::Pte).wrapping_mul(n));
        let same = |n: &u64| {
            let there = window.table.entry(window.index - *n as usize).relaxed();
            (there ^ nth_before(*n)) & !ignore == 0
        };
        let back = (1..=before).take_while(same).count();
        (window.index - back, back + on)
    }

    /// Whether every reference to the folio of the leaf at `index` is a mapping in this table, of which `known` pages have been
    /// seen there.
    pub(crate) fn all_ours(
        &self,
        table: &Locked<'m, F, M>,
        index: usize,
        raw: u64,
        known: u64,
        folio: &FolioView<'_>,
    ) -> bool {
        let (refs, maps) = folio.refs_and_maps();
        if refs != maps {
            return false;
        }
        if known == u64::from(maps) {
            // Each page that is mapped here is among the mappings, so there are no others.
            return true;
        }
        let level = table.level;
        if level != Level::Pte {
            return u64::from(maps) == F::pages(level);
        }
        if folio.order() <= base::<F>() {
            return maps == 1 << F::GRANULE;
        }
        let offset = (F::frame(raw).0 - folio.head().0) >> F::GRANULE;
        let first = index as i64 - offset as i64;
        let entries = 1 << F::TABLE_BITS;
        let mapped = (0..(folio.order().frames() >> F::GRANULE) as i64)
            .filter_map(|n| usize::try_from(first + n).ok().filter(|&at| at < entries).map(|at| (n, at)))
            .filter(|&(n, at)| {
                let there = table.entry(at).relaxed();
                F::is_present(there) && F::frame(there) == folio.head().add((n as u64) << F::GRANULE)
            })
            .count();
        mapped << F::GRANULE == maps as usize
    }

    /// Makes entries writable, dirty and young; in a private mapping they are exclusive from here on. `at` is the page of the
    /// fault.
    fn reuse(
        &self,
        window: &Window<'m, F, M>,
        start: usize,
        page: u64,
        len: usize,
        at: u64,
        sharing: Sharing,
    ) {
        let table = &window.table;
        let level = table.level;
        unfold_ends::<F, M>(table, self.id, page, len);
        let exclusive = if sharing == Sharing::Private { F::EXCLUSIVE } else { 0 };
        let upgrade = |raw| F::make_dirty(F::make_writable(raw)) | F::YOUNG | exclusive;
        let pages = PageRange { first: page, end: page + ((len as u64) << F::shift(level)) };
        let entries = &table.table()[start..start + len];
        if F::CONTIGUOUS > 1 && entries.iter().any(|entry| entry.relaxed() & F::CONT != 0) {
            // More permission for a block, which need not be the first here: its entries may not differ meanwhile.
            let run = run_of::<F, M>(table, start, len);
            let (or, and) = break_run::<F, M>(table, start, &run);
            self.invalidate(level, page, pages.pages());
            self.machine.sync();
            set_run::<F, M>(table, self.id, page, upgrade(with_state::<F>(run.first, or, and)), len);
            return;
        }
        table.count_change();
        if len == 1 {
            let entry = table.change_at(start);
            entry.update::<F>(entry.relaxed(), upgrade);
        } else {
            let (mut index, end) = (start, start + len);
            while index < end {
                let raw = F::load(table.entry(index));
                let run = detect_in::<F, M>(table, index, raw, end - index, F::STATE);
                change_run::<F, M>(table, index, &run, upgrade);
                index += run.len;
            }
        }
        // Who still holds the read-only translation reads what is written now, and faults when he writes.
        self.machine.permitted(self.id, at);
    }

    fn copy_on_write(&self, page: u64, plan: &Plan<'m, M>) -> Result<Resolved, Error> {
        let folio = new_folio(self.machine, plan.order, FolioKind::Anon)?;
        if plan.source.is_some() {
            // SAFETY: the plan holds a reference to the source; the copy is ours alone.
            unsafe { self.machine.copy(F::frame(plan.raw), folio.head(), plan.order.frames()) };
        }
        self.install(page, plan, &folio)
    }

    /// Maps the copy in place of what was copied, if that is still as it was.
    fn install(&self, page: u64, plan: &Plan<'m, M>, folio: &Folio<'m, M>) -> Result<Resolved, Error> {
        let Step::Window(window) = self.step(page, page + 1) else { return Err(Error::Changed) };
        let (table, level) = (&window.table, window.table.level);
        if level != plan.level {
            return Err(Error::Changed);
        }
        let start = F::index(level, plan.page);
        let unchanged = (0..plan.len).all(|n| {
            let expected = plan.raw.wrapping_add(F::step(plan.raw, level).wrapping_mul(n as u64));
            (table.entry(start + n).relaxed() ^ expected) & !(F::STATE | F::CONT) == 0
        });
        if !unchanged {
            return Err(Error::Changed);
        }
        if plan.source.is_none() {
            // All that keeps a special page what it is, is that it is mapped: so it is as long as the lock is held.
            // SAFETY: as said; the copy is ours alone.
            unsafe { self.machine.copy(F::frame(plan.raw), folio.head(), plan.order.frames()) };
        }
        unfold_ends::<F, M>(table, self.id, plan.page, plan.len);
        let pages = (plan.len as u64) << F::shift(level);
        // SAFETY: these are the entries that are stored below, which give it back when they go.
        unsafe { folio.add_mapped(pages as usize) }?;
        // Break before make: no CPU may see two frames for one page.
        let run = run_of::<F, M>(table, start, plan.len);
        let (or, and) = break_run::<F, M>(table, start, &run);
        self.invalidate(level, plan.page, pages);
        self.machine.sync();
        let attributes = Attributes {
            write: true,
            young: true,
            dirty: true,
            exclusive: true,
            special: false,
            ..F::attributes(plan.raw)
        };
        set_run::<F, M>(table, self.id, plan.page, F::leaf(level, folio.head(), attributes), plan.len);
        drop(window);
        self.machine.event(Event::Copy);
        if let Some(source) = &plan.source {
            if source.kind() == FolioKind::File {
                // SAFETY: the mappings' references are given back below.
                unsafe { source.mark(F::any_dirty(or, and), F::is_young(or)) };
            }
            // SAFETY: the entries that mapped it are broken above, and the TLB was flushed.
            unsafe { source.view().sub_mapped(self.machine, pages as usize) };
            if pages < source.order().frames() && source.is_partly_mapped() {
                self.machine.partly_mapped(source);
            }
        }
        Ok(Resolved::Copied(pages))
    }

    /// Marks a page young, and dirty after a write, where hardware does not: what the fault of an old or clean page
    /// asks for. A contiguous block stays folded. When it returns, this CPU uses no translation any more that refuses the
    /// write for want of the dirty bit ([`Tlb::permitted`](crate::Tlb::permitted)); those of old pages are in no TLB.
    ///
    /// `expected` is the frame that the caller saw; without one it is whatever is there.
    ///
    /// # Errors
    /// [`Error::NotMapped`]; [`Error::Changed`] if another frame is mapped than was expected; [`Error::NotPermitted`] for a
    /// write to a read-only page, or if nobody may access it; [`Error::NotCanonical`].
    pub fn mark_accessed(
        &self,
        at: VirtAddr,
        expected: impl Into<Option<Frame>>,
        write: bool,
    ) -> Result<(), Error> {
        let page = at.page();
        self.check_page(page)?;
        let Step::Window(window) = self.step(page, page + 1) else { return Err(Error::NotMapped) };
        let raw = F::load(window.table.entry(window.index));
        if !F::is_present(raw) {
            return Err(Error::NotMapped);
        }
        Expected::new(expected.into()).check::<F>(window.table.level, page, raw)?;
        if !F::is_valid(raw) || write && !F::is_writable(raw) {
            return Err(Error::NotPermitted);
        }
        self.touch_entries(&window, page, write);
        Ok(())
    }

    fn touch_entries(&self, window: &Window<'m, F, M>, page: u64, write: bool) {
        let table = &window.table;
        let raw = F::load(table.entry(window.index));
        let size = F::contiguous(table.level);
        let touched = |raw| (if write { F::make_dirty(raw) } else { raw }) | F::YOUNG;
        let (start, len) = if raw & F::CONT != 0 && F::CONTIGUOUS > 1 {
            (window.index - window.index % size, size)
        } else {
            (window.index, 1)
        };
        for at in start..start + len {
            let raw = table.entry(at).relaxed();
            if touched(raw) != raw {
                table.change_at(at).update::<F>(raw, touched);
            }
        }
        if write {
            // The TLB may hold that the page is read-only, or clean, which is that to a CPU that cannot set the bit: without
            // this, the write would fault again and again (Linux' `ptep_set_access_flags`). Another CPU may have been
            // faster; then it is so here.
            self.machine.permitted(self.id, page);
        }
    }
}
