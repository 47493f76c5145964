//! Fork: the child gets the parent's mappings in batches (patches 2 and 15 of the seed's series).
//!
//! For every batch the counts of its folio move once, the parent's entries are write-protected in one go, and the
//! child's are written in one go; each entry of the parent is read once. The parent's TLB is flushed when the gather is,
//! once for all.
//!
//! # A child that is seen while it is made
//!
//! No CPU has the child loaded, but reverse maps may know it already (Linux links a child's VMA before it copies the pages).
//! Whoever walks one visits the parent's mapping first and then the child's, and must find each mapping that there is, once:
//!
//! - an entry of the parent's is copied, and the child's is in its tree, before the lock of the parent's table goes. So
//!   whoever had that lock before has changed what is copied (a page that was swapped out is a swap entry in both), and whoever
//!   gets it after finds the child's entry when he comes there.
//! - a table that the child has not yet is filled while nobody knows it, with plain stores, and linked as a whole; one that it
//!   has is changed under its lock.
//!
//! With a lock held no other is waited for. Those of the child's are tried, and if somebody has one, all is let go and begun
//! anew; the table above those that are made stays locked from one to the next, but is let go if the lock of the parent's next
//! has to be waited for. So a fork waits in no circle, in whatever order others take locks of both.

mod child;

use crate::address::{Level, PageRange};
use crate::batch::{Run, detect_in, is_many, other_kind, single, with_state};
use crate::entries::{exchange_one, exchange_run, write_one, write_run};
use crate::error::{Error, Stopped};
use crate::fold::unfold_ends;
use crate::folio::{Folio, FolioKind, FolioView, base, new_folio};
use crate::format::Format;
use crate::gather::Gather;
use crate::machine::{Event, Machine};
use crate::protect::Sharing;
use crate::rss::RssStat;
use crate::space::AddressSpace;
use crate::tree::Preallocated;
use crate::walk::{Cursor, Step, Window};
use child::{Child, Childs, Pause, write_linked};
use isotherm_page::{Order, PageError};

/// How fork treats a range.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ForkRule {
    /// Copy what is mapped, with the meaning that [`Sharing`] gives it.
    Copy(Sharing),
    /// Copy nothing: the child's faults find the pages again in their file (Linux does so for file mappings without
    /// private pages).
    Refault,
}

/// Tables that a page may need, one a level.
const LEVELS: u64 = 5;

/// How far a window was copied.
enum Copied {
    Until(u64),
    /// A huge leaf here is covered only in part, or pinned.
    Split(u64),
    /// A pinned page here needs a folio for its copy, which is allocated without the table's lock.
    Spare(u64),
    Failed(u64, Error),
}

/// What is allocated while no lock is held, for use under one.
struct Spare<'m, M: Machine> {
    machine: &'m M,
    /// For the copy of a pinned page.
    page: Option<Folio<'m, M>>,
}

impl<M: Machine> Spare<'_, M> {
    fn fill_page(&mut self, order: Order) -> Result<(), Error> {
        if self.page.is_none() {
            self.page = Some(new_folio(self.machine, order, FolioKind::Anon)?);
        }
        Ok(())
    }
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// Copies the mappings of the range to `child`, in which the range must be unmapped and which no CPU has loaded yet.
    /// Others may know the child already, by a reverse map: see the text at the top of `fork.rs` for what they find. They
    /// neither map nor unmap there.
    ///
    /// - Private: writable pages become read-only on both sides, anonymous pages shared; the child's are old and as
    ///   dirty as the parent's. A pinned exclusive page stays as it is, and the child gets a copy.
    /// - Shared: both sides keep write permission; the child's are old and clean.
    /// - Special mappings and swap entries are copied, special ones read-only if private; a swap entry is exclusive on neither side.
    ///   An entry whose frame has no metadata, which memory corruption may leave, is copied as a special mapping is.
    ///
    /// Until `gather` has flushed, CPUs may still write through the parent's old translations: flush before the child
    /// runs, and before a [write fault](Self::write_fault) of the parent copies a page, or the copy lacks what another
    /// thread of the parent writes to the page meanwhile. One gather may serve all ranges of a fork.
    ///
    /// Returns what the child has got.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::NoTableFrame`], [`Error::NoFolioFrames`], [`Error::TooManyReferences`],
    /// [`Error::Occupied`], [`Error::NotAFolio`] if memory corruption left an entry whose frame is in none, [`Error::Global`] if the
    /// parent is a kernel's half and the child is none, or [`Error::NotCanonical`] if pages of the range are not the parent's own, or
    /// not the child's. What was copied stays, so that the child can be [ended](Self::exit) or the rest copied.
    pub fn copy_range(
        &self,
        child: &AddressSpace<'m, F, M>,
        range: PageRange,
        rule: ForkRule,
        gather: &mut Gather<'_, M>,
    ) -> Result<RssStat, Stopped> {
        self.check(range)?;
        if !core::ptr::eq(self.machine, child.machine) {
            return Err(Stopped::at_page(range.first, Error::OtherMachine));
        }
        if self.id.root == child.id.root {
            return Err(Stopped::at_page(range.first, Error::Occupied));
        }
        // What the parent has to itself may be others' in the child: the kernel's half, of all processes.
        child.check(range)?;
        // A kernel's half has global leaves, which nobody drops from TLBs when a process's pages go.
        if self.may_be_global() && !child.may_be_global() {
            return Err(Stopped::at_page(range.first, Error::Global));
        }
        let ForkRule::Copy(sharing) = rule else { return Ok(RssStat::default()) };
        gather.serve(self.machine, self.id).map_err(|why| Stopped::at_page(range.first, why))?;
        let mut preallocated = Preallocated::new(self.machine);
        let mut got = RssStat::default();
        let done = self.copy_windows(child, range, sharing, gather, &mut preallocated, &mut got);
        got.tables = preallocated.taken;
        match done {
            Ok(()) => Ok(got),
            Err(stopped) => Err(stopped.after(got)),
        }
    }

    fn copy_windows(
        &self,
        child: &AddressSpace<'m, F, M>,
        range: PageRange,
        sharing: Sharing,
        gather: &mut Gather<'_, M>,
        preallocated: &mut Preallocated<'m, F, M>,
        got: &mut RssStat,
    ) -> Result<(), Stopped> {
        let mut spare = Spare { machine: self.machine, page: None };
        let mut cursor = Cursor::new();
        let mut above = None;
        let stopped = |page| move |why| Stopped::at_page(page, why);
        let mut page = range.first;
        let mut tries = 0;
        while page < range.end {
            let window = match self.step_holding(&mut cursor, page, range.end, &mut above) {
                Step::Gap(next) => {
                    above = None;
                    page = next;
                    continue;
                }
                Step::Window(window) => window,
            };
            let level = window.table.level;
            // Of the same machine, so it is the child's as well.
            let Some(guard) = cursor.guard() else { continue };
            let mut table = match child.table_of_child(page, level, preallocated, guard, &mut above) {
                Ok(table) => table,
                Err(Pause::Failed(Error::NoTableFrame)) => {
                    drop(window);
                    above = None;
                    cursor.rest();
                    let tables = (range.end - page) / F::table_pages(level) + LEVELS;
                    preallocated.fill(tables).map_err(stopped(page))?;
                    continue;
                }
                Err(Pause::Failed(why)) => return Err(stopped(page)(why)),
                Err(_) => {
                    drop(window);
                    above = None;
                    cursor.rest();
                    self.machine.relax(tries);
                    tries = tries.saturating_add(1);
                    continue;
                }
            };
            tries = 0;
            table.leave_empty(0..window.index);
            let copied = match sharing {
                Sharing::Private => {
                    self.copy_window::<true>(&window, &mut table, range, &mut spare, gather, got)
                }
                Sharing::Shared => {
                    self.copy_window::<false>(&window, &mut table, range, &mut spare, gather, got)
                }
            };
            let (Copied::Until(done) | Copied::Split(done) | Copied::Spare(done) | Copied::Failed(done, _)) =
                copied;
            // All before `done` was written.
            let left = if done <= page { window.index } else { F::index(level, done - 1) + 1 };
            table.leave_empty(left..1 << F::TABLE_BITS);
            // Before the parent's lock goes.
            table.finish(&above);
            drop(window);
            if !matches!(copied, Copied::Until(_)) {
                above = None;
            }
            page = match copied {
                Copied::Until(next) => next,
                Copied::Split(at) => {
                    cursor.rest();
                    got.splits += u64::from(self.split_leaf(at).map_err(stopped(at.max(page)))?);
                    at.max(page)
                }
                Copied::Spare(at) => {
                    cursor.rest();
                    spare.fill_page(base::<F>()).map_err(stopped(at))?;
                    at
                }
                Copied::Failed(at, why) => return Err(stopped(at)(why)),
            };
        }
        Ok(())
    }

    fn copy_window<const PRIVATE: bool>(
        &self,
        window: &Window<'_, F, M>,
        child: &mut Child<'_, F, M>,
        range: PageRange,
        spare: &mut Spare<'_, M>,
        gather: &mut Gather<'_, M>,
        got: &mut RssStat,
    ) -> Copied {
        let level = window.table.level;
        let mut index = window.index;
        let mut kind = FolioKind::Anon;
        // Where a larger folio was, another is likely.
        let mut small = true;
        loop {
            let raw = if level == Level::Pte && small && !window.is_known() {
                let (until, raw) = match child {
                    Child::Linked(table) => {
                        self.copy_small_of::<PRIVATE>(kind, window, index, table, gather, got)
                    }
                    Child::Fresh { entries, .. } => {
                        self.copy_small_of::<PRIVATE>(kind, window, index, entries, gather, got)
                    }
                };
                got.count(Some(kind), (until - index) as u64);
                index = until;
                if let Some(other) = other_kind::<F, M>(self.machine, raw, kind) {
                    kind = other;
                    continue;
                }
                raw
            } else {
                (index < window.end).then(|| window.read(index))
            };
            let Some(raw) = raw else { return Copied::Until(window.page_of(window.end)) };
            if raw == 0 {
                child.leave_empty(index..index + 1);
                index += 1;
                continue;
            }
            let page = window.page_of(index);
            if !F::is_present(raw) {
                if !child.vacant(index, 1) {
                    return Copied::Failed(page, Error::Occupied);
                }
                // The page belongs to both from here on.
                let shared = raw & !F::EXCLUSIVE;
                if shared != raw {
                    window.table.change_at(index).store(shared);
                }
                self.machine.share_swap_entry(F::swap_entry_value(raw));
                child.set(index, shared);
                got.swap_entries += F::pages(level);
                index += 1;
                continue;
            }
            if F::is_table(level, raw) {
                return Copied::Until(page);
            }
            if level != Level::Pte && (page < range.first || page + F::pages(level) > range.end) {
                return Copied::Split(page);
            }
            let copied = if is_many::<F>(level, raw) {
                self.copy_run::<PRIVATE, true>(window, index, page, raw, child, spare, gather, got)
            } else {
                self.copy_run::<PRIVATE, false>(window, index, page, raw, child, spare, gather, got)
            };
            match copied {
                Ok(len) => {
                    index += len;
                    small = len == 1;
                }
                Err(Pause::Split) => return Copied::Split(page),
                Err(Pause::Spare | Pause::Busy) => return Copied::Spare(page),
                Err(Pause::Failed(why)) => return Copied::Failed(page, why),
            }
        }
    }

    #[inline(always)]
    fn copy_small_of<const PRIVATE: bool>(
        &self,
        kind: FolioKind,
        window: &Window<'_, F, M>,
        from: usize,
        child: &mut impl Childs,
        gather: &mut Gather<'_, M>,
        got: &mut RssStat,
    ) -> (usize, Option<u64>) {
        match kind {
            FolioKind::Anon => self.copy_small::<PRIVATE, false, _>(window, from, child, gather, got),
            FolioKind::File => self.copy_small::<PRIVATE, true, _>(window, from, child, gather, got),
        }
    }

    /// Copies entries from `index` on one by one as long as they are empty or map folios of order 0 and one kind that need nothing
    /// special; returns where that ends and what was found there. So batches cost small folios nothing but the look at the
    /// order, which is in the word that has the kind.
    #[inline(never)]
    fn copy_small<const PRIVATE: bool, const FILE: bool, C: Childs>(
        &self,
        window: &Window<'_, F, M>,
        from: usize,
        child: &mut C,
        gather: &mut Gather<'_, M>,
        got: &mut RssStat,
    ) -> (usize, Option<u64>) {
        let kind = if FILE { FolioKind::File } else { FolioKind::Anon };
        let entries = &window.table.table()[..window.end];
        // The first and the end of those of which a translation is to be flushed.
        let (mut first, mut end) = (usize::MAX, 0);
        let mut index = from;
        let found = loop {
            let Some(entry) = entries.get(index) else { break None };
            let raw = F::load(entry);
            if raw != 0 {
                if !F::is_valid(raw) || raw & F::SPECIAL != 0 {
                    break Some(raw);
                }
                let Some(folio) = single::<F, M>(self.machine, raw, kind) else { break Some(raw) };
                if PRIVATE && raw & F::EXCLUSIVE != 0 && folio.pins() > 0 {
                    break Some(raw);
                }
                if child.raw(index) != 0 {
                    break Some(raw);
                }
                // SAFETY: the parent's entry has a reference and is locked; the child's, stored below, gives this one back.
                if unsafe { folio.add_mapped(1) }.is_err() {
                    break Some(raw);
                }
                let after = parents::<F, PRIVATE>(raw);
                let mut childs_raw = childs::<F, PRIVATE>(raw);
                if after != raw {
                    // No progression is known, so there is none to forget.
                    if F::no_hw_update(raw) {
                        entry.store(after);
                    } else {
                        // The page may have been written since `raw` was read, and the child has it as well.
                        childs_raw = childs::<F, PRIVATE>(entry.update::<F>(raw, parents::<F, PRIVATE>));
                    }
                    if F::is_writable(raw) {
                        (first, end) = (first.min(index), index + 1);
                    }
                }
                child.put(index, childs_raw);
            } else {
                child.leave(index);
                got.discount(kind);
            }
            index += 1;
        };
        if first < end {
            gather.touch::<F>(Level::Pte, window.page_of(first), (end - first) as u64);
        }
        (index, found)
    }

    /// Copies the batch at `index`, of one entry unless `MANY`; how many entries.
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "the state of the loop above")]
    fn copy_run<const PRIVATE: bool, const MANY: bool>(
        &self,
        window: &Window<'_, F, M>,
        index: usize,
        page: u64,
        raw: u64,
        child: &mut Child<'_, F, M>,
        spare: &mut Spare<'_, M>,
        gather: &mut Gather<'_, M>,
        got: &mut RssStat,
    ) -> Result<usize, Pause> {
        let (table, level) = (&window.table, window.table.level);
        let most = window.end - index;
        let (folio, limit) = if raw & F::SPECIAL != 0 {
            (None, most)
        } else {
            match FolioView::of(self.machine, F::frame(raw)) {
                Ok(folio) => (Some(folio), folio.remaining() >> F::shift(level)),
                // Of a corrupt table: it will never be a folio's. The next frame may be one, whose reference is taken by itself.
                Err(PageError::Unknown) => (None, 1),
                Err(why) => return Err(Error::from(why).into()),
            }
        };
        if PRIVATE
            && let Some(folio) = &folio
            && raw & F::EXCLUSIVE != 0
            && folio.pins() > 0
            && folio.kind() == FolioKind::Anon
        {
            let copied = self.copy_pinned(window, index, child, spare)?;
            got.count(Some(FolioKind::Anon), (copied as u64) << F::GRANULE);
            return Ok(copied);
        }
        let limit = if MANY { limit.clamp(1, most) } else { 1 };
        // The child's are old, so young may differ; of a shared mapping they are clean as well.
        let ignore = if PRIVATE { F::YOUNG } else { F::STATE };
        let detect = |raw, limit| {
            if MANY { detect_in::<F, M>(table, index, raw, limit, ignore) } else { Run::one(raw) }
        };
        let mut run = detect(raw, limit);
        if !child.vacant(index, run.len) {
            run = detect(raw, child.vacancy(level, index, run.len)?);
        }
        let after = parents::<F, PRIVATE>(run.first);
        if after != run.first && unfold_ends::<F, M>(table, self.id, page, run.len) {
            run = detect(F::load(table.entry(index)), run.len);
        }
        if let Some(folio) = &folio {
            // SAFETY: the parent's entries have references and are locked; the child's, stored below, give these back.
            unsafe { folio.add_mapped(run.len << F::shift(level)) }.map_err(Error::from)?;
        }
        let mut raw = run.first;
        if after != run.first {
            let (or, and) = if MANY {
                exchange_run::<F, M>(table, index, &run, parents::<F, PRIVATE>)
            } else {
                exchange_one::<F, M>(table, index, &run, parents::<F, PRIVATE>)
            };
            if F::is_writable(run.first) {
                // A page may have been written since the run was read, and the child has it as well.
                raw = with_state::<F>(raw, or, and);
                gather.touch::<F>(level, page, (run.len as u64) << F::shift(level));
            }
        }
        let raw = childs::<F, PRIVATE>(raw);
        match child {
            Child::Linked(table) => write_linked::<F, M>(table, index, raw, run.len),
            Child::Fresh { entries, .. } if MANY => {
                write_run::<F, M>(self.machine, entries, level, index, raw, run.len);
            }
            Child::Fresh { entries, .. } => write_one::<F, M>(self.machine, entries, level, index, raw),
        }
        got.count(folio.map(|folio| folio.kind()), (run.len as u64) << F::shift(level));
        Ok(run.len)
    }

    /// The parent keeps its pinned page, I/O to it must reach the parent. The child gets a copy of now.
    #[cold]
    fn copy_pinned(
        &self,
        window: &Window<'_, F, M>,
        index: usize,
        child: &mut Child<'_, F, M>,
        spare: &mut Spare<'_, M>,
    ) -> Result<usize, Pause> {
        if window.table.level != Level::Pte {
            return Err(Pause::Split);
        }
        if !child.vacant(index, 1) {
            return Err(Error::Occupied.into());
        }
        let Some(folio) = spare.page.take() else { return Err(Pause::Spare) };
        let frame = folio.head();
        let raw = crate::batch::get::<F>(window.table.table(), index, Level::Pte);
        // SAFETY: the reference is held here; the child's entry, stored below, gives this one back.
        unsafe { folio.add_mapped(1 << F::GRANULE) }.map_err(Error::from)?;
        // SAFETY: the source is mapped and its table locked, so it is not freed; the copy is ours alone.
        unsafe { self.machine.copy(F::frame(raw), frame, 1 << F::GRANULE) };
        self.machine.event(Event::Copy);
        let attributes =
            crate::Attributes { young: false, dirty: true, exclusive: true, ..F::attributes(raw) };
        child.set(index, F::leaf(Level::Pte, frame, attributes));
        Ok(1)
    }
}

/// What becomes of the parent's leaf.
#[inline]
fn parents<F: Format, const PRIVATE: bool>(raw: u64) -> u64 {
    if !PRIVATE {
        return raw;
    }
    let raw = raw & !F::EXCLUSIVE;
    if F::is_writable(raw) { F::write_protect(raw) } else { raw }
}

/// The child's leaf.
#[inline]
fn childs<F: Format, const PRIVATE: bool>(raw: u64) -> u64 {
    let raw = if PRIVATE { parents::<F, PRIVATE>(raw) } else { F::make_clean(raw) };
    raw & !F::YOUNG
}
