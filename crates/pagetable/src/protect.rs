//! Protect: what a range of pages permits.

use crate::address::{Level, PageRange};
use crate::batch::{Run, detect_in, is_many};
use crate::entries::{break_run, change_run, clear_run, set_run};
use crate::error::Stopped;
use crate::fold::unfold_ends;
use crate::folio::{FolioKind, FolioView};
use crate::format::{Attributes, Format};
use crate::gather::Gather;
use crate::machine::Machine;
use crate::rss::RssStat;
use crate::space::AddressSpace;
use crate::walk::{Done, Window};

/// What a mapping is for, which decides what fork and write permission mean.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sharing {
    /// Writes are private (`MAP_PRIVATE`): pages are shared until one side writes. Only exclusive anonymous pages are
    /// writable.
    Private,
    /// Writes are shared (`MAP_SHARED`).
    Shared,
}

/// What a range of pages shall permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Protection {
    /// User programs may access it. `false` is `PROT_NONE`: nobody may, the kernel neither
    /// ([`Attributes::no_access`]). Of pages that are the kernel's alone it says nothing.
    pub user: bool,
    /// Writing is permitted; in a private mapping a page that is not exclusive stays read-only, so that the first write
    /// faults and [`AddressSpace::write_fault`] gives it a copy. Special pages, such as the zero page, never are exclusive
    /// there.
    pub write: bool,
    /// Executing is permitted.
    pub execute: bool,
}

impl Protection {
    /// Read only.
    pub const READ: Protection = Protection { user: true, write: false, execute: false };
    /// Read and write.
    pub const READ_WRITE: Protection = Protection { user: true, write: true, execute: false };
    /// Nothing.
    pub const NONE: Protection = Protection { user: false, write: false, execute: false };
}

impl<F: Format, M: Machine> AddressSpace<'_, F, M> {
    /// Changes what the mapped pages of the range permit. CPUs may use the old permissions until the gather flushes: as
    /// after a fork, no [write fault](Self::write_fault) may copy one of the pages before. Pages stay as they
    /// are counted: only splits are returned.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::NoTableFrame`](crate::Error::NoTableFrame) if a huge leaf at the border had to be
    /// split, or [`Error::NotCanonical`](crate::Error::NotCanonical).
    pub fn protect(
        &self,
        range: PageRange,
        protection: Protection,
        sharing: Sharing,
        gather: &mut Gather<'_, M>,
    ) -> Result<RssStat, Stopped> {
        gather.serve(self.machine, self.id).map_err(|why| Stopped::at_page(range.first, why))?;
        self.change_windows(range, gather, |raw, run_is_anon| {
            let own = raw & F::EXCLUSIVE != 0 && run_is_anon;
            let write = protection.write && (sharing == Sharing::Shared || own);
            permit::<F>(raw, protection, write)
        })
    }

    /// Makes the mapped pages of the range read-only and leaves everything else: contiguous blocks that lie wholly in
    /// the range stay folded (`wrprotect_ptes`; write tracking, and the parent's half of a fork). Until the gather
    /// flushes it is as with [`protect`](Self::protect).
    ///
    /// # Errors
    /// As [`protect`](Self::protect).
    pub fn write_protect(&self, range: PageRange, gather: &mut Gather<'_, M>) -> Result<RssStat, Stopped> {
        gather.serve(self.machine, self.id).map_err(|why| Stopped::at_page(range.first, why))?;
        self.change_windows(
            range,
            gather,
            |raw, _| if F::is_writable(raw) { F::write_protect(raw) } else { raw },
        )
    }

    fn change_windows(
        &self,
        range: PageRange,
        gather: &mut Gather<'_, M>,
        change: impl Fn(u64, bool) -> u64,
    ) -> Result<RssStat, Stopped> {
        let mut changed = RssStat::default();
        let done = self.for_windows(range, &mut changed.splits, |window, _| {
            self.change_window(&window, range, gather, &change)
        });
        done.map(|()| changed).map_err(|stopped| stopped.after(changed))
    }

    fn change_window(
        &self,
        window: &Window<'_, F, M>,
        range: PageRange,
        gather: &mut Gather<'_, M>,
        change: &impl Fn(u64, bool) -> u64,
    ) -> Done {
        let (table, level) = (&window.table, window.table.level);
        // Also if nothing changes: a collapse under way has made the pages read-only itself, and must not make them
        // writable again.
        table.count_change();
        let mut index = window.index;
        while index < window.end {
            let page = window.page_of(index);
            let raw = F::load(table.entry(index));
            if !F::is_present(raw) {
                index += 1;
                continue;
            }
            if F::is_table(level, raw) {
                return Done::Until(page);
            }
            if level != Level::Pte && (page < range.first || page + F::pages(level) > range.end) {
                return Done::Split(page);
            }
            index += self.change_one(window, index, page, raw, gather, change);
        }
        Done::Until(window.page_of(window.end))
    }

    fn change_one(
        &self,
        window: &Window<'_, F, M>,
        index: usize,
        page: u64,
        raw: u64,
        gather: &mut Gather<'_, M>,
        change: &impl Fn(u64, bool) -> u64,
    ) -> usize {
        let (table, level) = (&window.table, window.table.level);
        let folio =
            if raw & F::SPECIAL != 0 { None } else { FolioView::of(self.machine, F::frame(raw)).ok() };
        let most = window.end - index;
        let limit = match &folio {
            Some(folio) => (folio.remaining() >> F::shift(level)).clamp(1, most),
            None => most,
        };
        let anon = folio.is_some_and(|folio| folio.kind() == FolioKind::Anon);
        if limit == 1 && raw & F::CONT == 0 && F::is_valid(raw) {
            // A page by itself, as most are where folios are small.
            let after = change(raw, anon);
            if after != raw {
                table.change_at(index).update::<F>(raw, |raw| change(raw, anon));
                if !permits_more::<F>(raw, after) {
                    gather.touch::<F>(level, page, F::pages(level));
                }
            }
            return 1;
        }
        // Young and dirty may differ: what is permitted does not depend on them, and each entry keeps its own.
        let detect = |raw, limit| {
            if is_many::<F>(level, raw) {
                detect_in::<F, M>(table, index, raw, limit, F::STATE)
            } else {
                Run::one(raw)
            }
        };
        let mut run = detect(raw, limit);
        let mut after = change(run.first, anon);
        if after == run.first {
            return run.len;
        }
        if unfold_ends::<F, M>(table, self.id, page, run.len) {
            run = detect(F::load(table.entry(index)), run.len);
            after = change(run.first, anon);
        }
        self.apply(window, index, page, &run, after, |raw| change(raw, anon));
        // What was not present is in no TLB, and who holds that less is permitted faults, and finds nothing to do.
        if F::is_valid(run.first) && !permits_more::<F>(run.first, after) {
            gather.touch::<F>(level, page, (run.len as u64) << F::shift(level));
        }
        run.len
    }

    fn apply(
        &self,
        window: &Window<'_, F, M>,
        index: usize,
        page: u64,
        run: &Run,
        after: u64,
        change: impl Fn(u64) -> u64,
    ) {
        let (table, level) = (&window.table, window.table.level);
        let protects = after == F::write_protect(run.first);
        if F::CONTIGUOUS > 1 && run.exact() && !F::is_valid(run.first) && F::is_valid(after) {
            // What may be accessed again may be folded again.
            clear_run::<F, M>(table, index, run, false);
            set_run::<F, M>(table, self.id, page, after, run.len);
            return;
        }
        if F::CONTIGUOUS == 1 || run.first & F::CONT == 0 || protects {
            change_run::<F, M>(table, index, run, change);
            return;
        }
        // Entries of a folded block may differ in nothing but what write-protection changes, not even for a moment:
        // break before make. One flush for all blocks of the run, each of which keeps its own state.
        let size = F::contiguous(level);
        let mut states = States::default();
        // Unless all are alike, what a block's entries say is what they said when they were broken.
        let (or, and) = if run.exact() { (run.or, run.and) } else { (0, u64::MAX) };
        for n in (0..run.len).step_by(size) {
            let block = Run { len: size.min(run.len - n), or, and, ..*run };
            let (or, and) = break_run::<F, M>(table, index + n, &block);
            states.put(n / size, F::is_young(or), F::any_dirty(or, and));
        }
        let pages = (run.len as u64) << F::shift(level);
        self.invalidate(level, page, pages);
        self.machine.sync();
        for n in (0..run.len).step_by(size) {
            let raw = run.first.wrapping_add(F::step(run.first, level).wrapping_mul(n as u64));
            let raw = states.of::<F>(n / size, raw);
            let page = page + ((n as u64) << F::shift(level));
            set_run::<F, M>(table, self.id, page, change(raw), size.min(run.len - n));
        }
    }
}

/// Young and dirty of the blocks of a table, of which no format has more than 256.
#[derive(Default)]
struct States {
    young: [u64; 4],
    dirty: [u64; 4],
}

impl States {
    fn put(&mut self, block: usize, young: bool, dirty: bool) {
        let (word, bit) = (block / 64 % 4, block % 64);
        self.young[word] |= u64::from(young) << bit;
        self.dirty[word] |= u64::from(dirty) << bit;
    }

    /// The leaf, with the state of its block.
    fn of<F: Format>(&self, block: usize, raw: u64) -> u64 {
        let is = |bits: &[u64; 4]| bits[block / 64 % 4] >> (block % 64) & 1 == 1;
        let raw = F::make_clean(raw) & !F::YOUNG;
        let raw = if is(&self.young) { raw | F::YOUNG } else { raw };
        if is(&self.dirty) { F::make_dirty(raw) } else { raw }
    }
}

/// Whether a leaf differs from what it was in nothing but that it may be written now. (Not so of execution: a fetch that finds the
/// old translation is no fault that [`write_fault`](AddressSpace::write_fault) sees.)
fn permits_more<F: Format>(before: u64, after: u64) -> bool {
    !F::is_writable(before) && F::make_writable(before) == after
}

/// The leaf with other permissions.
fn permit<F: Format>(raw: u64, protection: Protection, write: bool) -> u64 {
    let old = F::attributes(raw);
    let no_access = old.user && !protection.user;
    let write = write && !no_access;
    let new = Attributes { no_access, write, execute: protection.execute, ..old };
    // Only the bits that differ, so that the level's and the contiguous bit stay.
    let same_level = |a| F::leaf(Level::Pte, F::frame(raw), a);
    raw ^ same_level(old) ^ same_level(new)
}
