//! Mapping folios, device memory and tokens.

use crate::address::ENTRIES;
use crate::address::{Frame, Level, PageRange, VirtAddr};
use crate::batch::Batching;
use crate::entries::{set_run, unfold_ends};
use crate::error::{Error, Stopped};
use crate::folio::FolioView;
use crate::format::{Attributes, Format, encode_token};
use crate::gather::Gather;
use crate::machine::Machine;
use crate::space::AddressSpace;

impl<F: Format, M: Machine, B: Batching> AddressSpace<'_, F, M, B> {
    /// Maps the pages of `range` to consecutive frames from `first` on, which may belong to several folios, each page
    /// taking a reference of its folio. Leaves are as large as alignment and folio allow, but not above `largest`:
    /// a folio of order 9 becomes a PMD leaf, or with [`Level::Pte`] 512 PTEs. Where a table is already, as a
    /// [`zap`](Self::zap) leaves it, they are the smaller ones of that table; [`unmap`](Self::unmap) leaves none. PUD
    /// leaves are for [`Attributes::special`] mappings, which hold no references: they are of memory that has no metadata,
    /// or is [`Reserved`](isotherm_page::Reserved).
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::Occupied`], [`Error::NoTableFrame`], [`Error::NotAFolio`], [`Error::UnknownFrame`] (also of
    /// frames from [`Format::FRAME_LIMIT`] on), [`Error::TooManyReferences`], [`Error::NotReserved`] or
    /// [`Error::NotCanonical`].
    pub fn map(
        &self,
        range: PageRange,
        first: Frame,
        attributes: Attributes,
        largest: Level,
    ) -> Result<(), Stopped> {
        self.check(range)?;
        if first.0.checked_add(range.pages()).is_none_or(|end| end > F::FRAME_LIMIT) {
            return Err(Stopped::at_page(range.first, Error::UnknownFrame));
        }
        let mut page = range.first;
        while page < range.end {
            let frame = first.add(page - range.first);
            page += self
                .map_some(page, range.end - page, frame, attributes, largest.min(F::LARGEST_LEAF))
                .map_err(|(done, why)| Stopped::at_page(page + done, why))?;
        }
        Ok(())
    }

    /// Maps what one table takes; how many pages.
    fn map_some(
        &self,
        page: u64,
        pages: u64,
        frame: Frame,
        attributes: Attributes,
        largest: Level,
    ) -> Result<u64, (u64, Error)> {
        let mut level = Level::Pte;
        while let Some(above) = level.above().filter(|&l| l <= largest) {
            let fits = (page | frame.0) & (above.pages() - 1) == 0 && pages >= above.pages();
            if !fits || !self.fills(frame, above, attributes).map_err(|why| (0, why))? {
                break;
            }
            level = above;
        }
        loop {
            let done = self.map_at(page, level, pages, frame, attributes)?;
            match level.below() {
                // There is a table already.
                Some(below) if done == 0 => level = below,
                _ => return Ok(done),
            }
        }
    }

    /// Maps leaves of this level, as many as one table takes; how many pages. None if there is a table in the place of
    /// the first.
    fn map_at(
        &self,
        page: u64,
        level: Level,
        pages: u64,
        frame: Frame,
        attributes: Attributes,
    ) -> Result<u64, (u64, Error)> {
        let table = self.make(page, level).map_err(|why| (0, why))?;
        let index = level.index(page);
        let most = (pages >> level.shift()).min((ENTRIES - index) as u64) as usize;
        let mut done = 0;
        while done < most {
            let (at, frame) = (index + done, frame.add((done as u64) << level.shift()));
            let so_far = (done as u64) << level.shift();
            let len = self.map_run(&table, page + so_far, at, frame, most - done, attributes);
            match len {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(why) => return Err((so_far, why)),
            }
        }
        Ok((done as u64) << level.shift())
    }

    /// How many of these frames may be mapped without being counted: all up to the first that has metadata and is not
    /// reserved.
    fn uncounted(&self, frame: Frame, pages: u64) -> u64 {
        let may = |n: &u64| {
            let meta = self.machine.meta(frame.add(*n));
            meta.is_none_or(|meta| meta.kind() == isotherm_page::Kind::Reserved)
        };
        (0..pages).take_while(may).count() as u64
    }

    /// Whether a leaf of this level would have one folio behind it.
    fn fills(&self, frame: Frame, level: Level, attributes: Attributes) -> Result<bool, Error> {
        if attributes.special {
            return Ok(self.uncounted(frame, level.pages()) == level.pages());
        }
        let folio = FolioView::of(self.machine, frame)?;
        Ok(folio.remaining() as u64 >= level.pages())
    }

    /// Maps entries of one folio. 0 if the next folio wants larger or smaller leaves, or there is a table.
    fn map_run(
        &self,
        table: &crate::table::Locked<'_, M>,
        page: u64,
        index: usize,
        frame: Frame,
        most: usize,
        attributes: Attributes,
    ) -> Result<usize, Error> {
        let level = table.level;
        let mut len = most;
        let folio = if attributes.special {
            None
        } else {
            let folio = FolioView::of(self.machine, frame)?;
            let leaves = folio.remaining() >> level.shift();
            if leaves == 0 {
                return Ok(0);
            }
            len = len.min(leaves);
            Some(folio)
        };
        if !B::BATCHED {
            len = 1;
        }
        let empty = table.table().entries()[index..index + len].iter().take_while(|e| e.relaxed() == 0);
        let len = empty.count();
        if len == 0 {
            let raw = table.entry(index).relaxed();
            let table = F::is_present(raw) && F::is_table(level, raw);
            return if table { Ok(0) } else { Err(Error::Occupied) };
        }
        let len = match folio {
            Some(folio) => {
                // SAFETY: these are the entries that are stored below, which give it back when they go.
                unsafe { folio.try_add_mapped(self.machine, len << level.shift()) }?;
                len
            }
            None => match (self.uncounted(frame, (len as u64) << level.shift()) >> level.shift()) as usize {
                0 => return Err(Error::NotReserved),
                len => len,
            },
        };
        set_run::<F, M>(table, self.id, page, F::leaf(level, frame, attributes), len);
        Ok(len)
    }

    /// Puts a token (a swap slot, say) into the empty entries of a range. It belongs to the space from then on:
    /// [`Frames::release_token`](crate::Frames::release_token) is called once for each page that loses it.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::BadToken`], [`Error::Occupied`], [`Error::NoTableFrame`] or [`Error::NotCanonical`].
    pub fn map_token(&self, range: PageRange, token: u64) -> Result<(), Stopped> {
        self.check(range)?;
        let raw = encode_token(token).ok_or(Stopped::at_page(range.first, Error::BadToken))?;
        let mut page = range.first;
        while page < range.end {
            let stopped = |page| move |why| Stopped::at_page(page, why);
            let table = self.make(page, Level::Pte).map_err(stopped(page))?;
            let end = range.end.min((page | (ENTRIES as u64 - 1)) + 1);
            for page in page..end {
                let index = Level::Pte.index(page);
                if table.entry(index).relaxed() != 0 {
                    return Err(Stopped::at_page(page, Error::Occupied));
                }
                table.change()[index].store(raw);
            }
            page = end;
        }
        Ok(())
    }

    /// Replaces the mapping of one page by a token, as reclaim does. Returns whether the page was dirty: then its
    /// contents are to be written out, though not before the gather has flushed, since CPUs may go on writing until then.
    ///
    /// # Errors
    /// [`Error::BadToken`], [`Error::NotMapped`], [`Error::NotCanonical`], [`Error::Pinned`], or [`Error::NoTableFrame`]
    /// if a huge leaf had to be split.
    pub fn swap_out(&self, at: VirtAddr, token: u64, gather: &mut Gather<'_, M>) -> Result<bool, Error> {
        let raw = encode_token(token).ok_or(Error::BadToken)?;
        let page = at.page();
        self.check_page(page)?;
        gather.serve(self.machine, self.id)?;
        if gather.is_full() {
            gather.flush();
        }
        loop {
            let crate::walk::Step::Window(window) = self.step(page, page + 1) else {
                return Err(Error::NotMapped);
            };
            if window.table.level != Level::Pte {
                drop(window);
                self.split_leaf(page)?;
                continue;
            }
            let entry = window.table.entry(window.index);
            let old = entry.relaxed();
            if !F::is_present(old) || old & F::SPECIAL != 0 {
                return Err(Error::NotMapped);
            }
            if FolioView::of(self.machine, F::frame(old)).is_ok_and(|folio| folio.pins() > 0) {
                return Err(Error::Pinned);
            }
            unfold_ends::<F, M>(&window.table, self.id, page, 1);
            let old = window.table.change()[window.index].swap(raw);
            gather.touch(page, 1);
            let dirty = F::is_dirty(old);
            gather.unmapped_used(F::frame(old), 1, dirty, F::is_young(old));
            return Ok(dirty);
        }
    }
}
