//! One page in the place of another, or of a swap entry, if the entry is still what the caller saw: swap-out and swap-in,
//! migration, and the merging of equal pages, none of which may leave a hole that a fault could fill meanwhile.

use crate::address::{Frame, Level, VirtAddr};
use crate::entries::set_run;
use crate::error::Error;
use crate::fold::unfold_ends;
use crate::folio::{FolioKind, FolioView};
use crate::format::{Attributes, Format, SwapEntry};
use crate::gather::Gather;
use crate::machine::Machine;
use crate::query::{Mapping, describe};
use crate::space::AddressSpace;
use crate::table::{Locked, broken};
use crate::walk::Step;

/// What the caller of [`AddressSpace::replace`] saw at the page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Seen {
    /// This frame, whatever its attributes.
    Page(Frame),
    /// This frame, which may not be written, and was not since [`mkclean`](AddressSpace::mkclean): what was copied from it is
    /// still what it says. (A write fault that came since made it writable, if nobody else has it, and else put a copy in its
    /// place. What has write-protected it again, as a fork does, leaves it dirty, the child's too.)
    Clean(Frame),
    /// This swap entry, and whether it was exclusive: it no longer is after a fork.
    SwapEntry(SwapEntry),
}

/// What [`AddressSpace::replace`] puts there.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Replacement {
    /// A page, which takes a reference of its folio.
    Page {
        /// Its frame.
        frame: Frame,
        /// What the entry says of it.
        attributes: Attributes,
    },
    /// The same page in another frame, which has its contents by now: the entry stays what it is but for the frame, of whose folio
    /// it takes a reference. This is a migration in one step. Where the page is the first of a PMD leaf, and the frame the first of
    /// as many of its folio, all pages of the leaf are moved, and it stays one; else a huge leaf is split.
    Moved(Frame),
    /// A swap entry with this value. It is exclusive if what it replaces was.
    SwapEntry(u64),
    /// Nothing: what is there is needed no more.
    Nothing,
}

impl<F: Format, M: Machine> AddressSpace<'_, F, M> {
    /// Replaces what one page is mapped to, if that is still what the caller saw, under its table's lock: no fault finds the
    /// page empty and fills it meanwhile. (A [`lookup`](crate::Reader::lookup) may see none for a moment where a page replaces a page.)
    /// Returns what was replaced, with young and dirty as they were
    /// at last.
    ///
    /// - A swap entry by a page is the end of swap-in or of a migration; the swap entry is released.
    /// - A page by a swap entry is its beginning. CPUs may use the page until the gather flushes, which then gives its reference
    ///   back: only after that are its contents what they will be, to be written out or copied.
    /// - A page by nothing is the end of memory that was given up ([`lazy_free`](Self::lazy_free)), if it is still
    ///   [`Clean`](Seen::Clean).
    /// - A page by a page, or by itself in [another frame](Replacement::Moved), which must have the same contents: so the old one must
    ///   not be writable. When this returns, no CPU uses the old translation any more.
    ///
    /// # Errors
    /// [`Error::Changed`] if something else is there, or nothing. [`Error::Pinned`]; [`Error::NotPermitted`] if a page that
    /// may be written is to be replaced by another; [`Error::NotMapped`] if a swap entry or a special page is to be moved;
    /// [`Error::BadSwapEntry`]; what [`map`](Self::map) says of a frame;
    /// [`Error::NoTableFrame`] if a huge leaf had to be split; [`Error::NotCanonical`]; [`Error::OtherMachine`].
    pub fn replace(
        &self,
        at: VirtAddr,
        seen: Seen,
        by: Replacement,
        gather: &mut Gather<'_, M>,
    ) -> Result<Mapping, Error> {
        let page = at.page() & !(F::pages(Level::Pte) - 1);
        self.check_page(page)?;
        gather.serve(self.machine, self.id)?;
        if gather.is_full() {
            gather.flush();
        }
        loop {
            let Step::Window(window) = self.step(page, page + 1) else { return Err(Error::Changed) };
            let (table, index) = (&window.table, window.index);
            let old = table.entry(index).relaxed();
            let found = describe::<F>(table.level, page, old);
            let same = match (found, seen) {
                (Mapping::Page { frame, .. }, Seen::Page(expected)) => frame == expected,
                (Mapping::Page { frame, attributes, .. }, Seen::Clean(expected)) => {
                    frame == expected && !attributes.write && !attributes.dirty
                }
                (Mapping::SwapEntry(swap_entry), Seen::SwapEntry(expected)) => swap_entry == expected,
                _ => false,
            };
            if !same {
                return Err(Error::Changed);
            }
            if table.level == Level::Pte {
                return self.replace_entry(table, page, old, by, gather);
            }
            if let Replacement::Moved(frame) = by
                && let Some(moved) = self.move_leaf(table, page, old, frame, gather)?
            {
                return Ok(moved);
            }
            drop(window);
            self.split_leaf(page)?;
        }
    }

    fn replace_entry(
        &self,
        table: &Locked<'_, F, M>,
        page: u64,
        old: u64,
        by: Replacement,
        gather: &mut Gather<'_, M>,
    ) -> Result<Mapping, Error> {
        let index = F::index(table.level, page);
        if !F::is_present(old) {
            match by {
                Replacement::Page { frame, attributes } => {
                    let new = self.new_leaf(frame, attributes)?;
                    set_run::<F, M>(table, self.id, page, new, 1);
                }
                Replacement::SwapEntry(value) => {
                    let swap_entry = SwapEntry { value, ..SwapEntry::decode::<F>(old) };
                    table.change_at(index).store(swap_entry.encode::<F>().ok_or(Error::BadSwapEntry)?);
                }
                Replacement::Moved(_) => return Err(Error::NotMapped),
                Replacement::Nothing => table.change_at(index).store(0),
            }
            self.machine.release_swap_entry(F::swap_entry_value(old));
            return Ok(describe::<F>(table.level, page, old));
        }
        let counted = old & F::SPECIAL == 0;
        if counted && FolioView::of(self.machine, F::frame(old)).is_ok_and(|folio| folio.pins() > 0) {
            return Err(Error::Pinned);
        }
        let last = match by {
            Replacement::Page { .. } | Replacement::Moved(_) if F::is_writable(old) => {
                return Err(Error::NotPermitted);
            }
            Replacement::Moved(_) if !counted => return Err(Error::NotMapped),
            Replacement::Page { frame, attributes } => {
                let new = self.new_leaf(frame, attributes)?;
                self.exchange(table, page, |_| new)
            }
            Replacement::Moved(frame) => {
                // That it takes a reference is all that is wanted yet.
                self.new_leaf(frame, F::attributes(old))?;
                self.exchange(table, page, |last| F::leaf(Level::Pte, frame, F::attributes(last)))
            }
            Replacement::SwapEntry(_) | Replacement::Nothing => {
                let new = match by {
                    Replacement::SwapEntry(value) => {
                        let swap_entry = SwapEntry { value, exclusive: old & F::EXCLUSIVE != 0 };
                        swap_entry.encode::<F>().ok_or(Error::BadSwapEntry)?
                    }
                    _ => 0,
                };
                unfold_ends::<F, M>(table, self.id, page, 1);
                let last = table.change_at(index).swap(new);
                gather.touch::<F>(Level::Pte, page, F::pages(Level::Pte));
                last
            }
        };
        if counted {
            // Of anonymous memory nobody asks any more whether this mapping was used.
            let file =
                FolioView::of(self.machine, F::frame(last)).is_ok_and(|one| one.kind() == FolioKind::File);
            let (dirty, young) = (file && F::is_dirty(last), file && F::is_young(last));
            // Perhaps of a larger folio, which is partly mapped then.
            // SAFETY: its entry was replaced under the lock, and was counted; whoever replaced it flushed, or touched the page.
            unsafe { gather.unmapped_part(F::frame(last), 1 << F::GRANULE, dirty, young) };
        }
        Ok(describe::<F>(table.level, page, last))
    }

    /// Moves a PMD leaf as a whole, if the page is its first and as many frames follow the one given in its folio.
    fn move_leaf(
        &self,
        table: &Locked<'_, F, M>,
        page: u64,
        old: u64,
        frame: Frame,
        gather: &mut Gather<'_, M>,
    ) -> Result<Option<Mapping>, Error> {
        let (level, pages) = (table.level, F::pages(table.level));
        // A folio may be gone by now, and another be there: the reference is taken of what is there then.
        let to = FolioView::of(self.machine, frame).ok().filter(|to| to.remaining() as u64 >= pages);
        let whole = level == Level::Pmd && (page | frame.0) & (pages - 1) == 0 && old & F::SPECIAL == 0;
        let Some(to) = to.filter(|_| whole && frame.0 < F::FRAME_LIMIT) else { return Ok(None) };
        let folio = FolioView::of(self.machine, F::frame(old));
        if folio.is_ok_and(|folio| folio.pins() > 0) {
            return Err(Error::Pinned);
        }
        if F::is_writable(old) {
            return Err(Error::NotPermitted);
        }
        // SAFETY: the entry that gives it back is stored below; a leaf has 512 pages at the most, as its folio has.
        unsafe { to.try_add_mapped(self.machine, pages as usize) }?;
        unfold_ends::<F, M>(table, self.id, page, 1);
        // Broken, and not a hole: nobody puts a table there meanwhile.
        let last = table.change_at(F::index(level, page)).swap(broken(level));
        self.invalidate(level, page, pages);
        self.machine.sync();
        let new = F::leaf(level, frame, F::attributes(last));
        set_run::<F, M>(table, self.id, page, new, 1);
        let file = folio.is_ok_and(|folio| folio.kind() == FolioKind::File);
        let (dirty, young) = (file && F::is_dirty(last), file && F::is_young(last));
        // SAFETY: the leaf was replaced under the lock, and the TLB flushed.
        unsafe { gather.unmapped_used(F::frame(last), pages as usize, dirty, young) };
        Ok(Some(describe::<F>(level, page, last)))
    }

    /// Puts a leaf in the place of a page, which is made of the entry as it was at last; returns that.
    fn exchange(&self, table: &Locked<'_, F, M>, page: u64, new: impl FnOnce(u64) -> u64) -> u64 {
        unfold_ends::<F, M>(table, self.id, page, 1);
        // Break before make: no CPU may see two frames for one page.
        let last = table.change_at(F::index(table.level, page)).swap(0);
        self.invalidate(Level::Pte, page, F::pages(Level::Pte));
        self.machine.sync();
        set_run::<F, M>(table, self.id, page, new(last), 1);
        last
    }

    /// The leaf of a page, for which the reference is taken.
    fn new_leaf(&self, frame: Frame, attributes: Attributes) -> Result<u64, Error> {
        let pages = F::pages(Level::Pte);
        if frame.0 & (pages - 1) != 0 {
            return Err(Error::Misaligned);
        }
        self.check_attributes(attributes)?;
        if frame.0 >= F::FRAME_LIMIT {
            return Err(Error::UnknownFrame);
        }
        if attributes.special {
            if self.uncounted(frame, pages) < pages {
                return Err(Error::NotReserved);
            }
        } else {
            let folio = FolioView::of(self.machine, frame)?;
            if (folio.remaining() as u64) < pages {
                return Err(Error::Misaligned);
            }
            // SAFETY: the caller stores the entry that gives it back when it goes.
            unsafe { folio.try_add_mapped(self.machine, pages as usize) }?;
        }
        Ok(F::leaf(Level::Pte, frame, attributes))
    }

    /// Replaces the mapping of one page by a swap entry, as reclaim does, if it is still this frame that is mapped: whoever comes
    /// by the reverse map must not swap out another. Returns whether the page was dirty: then its contents are to be
    /// written out, though not before the gather has flushed, since CPUs may go on writing until then. The swap entry is
    /// exclusive if the page was.
    ///
    /// # Errors
    /// [`Error::Changed`] if something else is mapped, or nothing; [`Error::NotMapped`] if the page is special;
    /// [`Error::BadSwapEntry`], [`Error::NotCanonical`], [`Error::Pinned`], or [`Error::NoTableFrame`] if a huge leaf had to be
    /// split.
    pub fn swap_out(
        &self,
        at: VirtAddr,
        frame: Frame,
        swap_entry: u64,
        gather: &mut Gather<'_, M>,
    ) -> Result<bool, Error> {
        if FolioView::of(self.machine, frame).is_err() {
            return Err(Error::NotMapped);
        }
        match self.replace(at, Seen::Page(frame), Replacement::SwapEntry(swap_entry), gather)? {
            Mapping::Page { attributes, .. } => Ok(attributes.dirty),
            _ => Err(Error::Changed),
        }
    }
}
