//! Mapping folios, device memory and swap entries.

use crate::address::{Frame, Level, PageRange};
use crate::entries::set_run;
use crate::error::{Error, Stopped};
use crate::folio::FolioView;
use crate::format::{Attributes, Format, SwapEntry};
use crate::machine::Machine;
use crate::rss::RssStat;
use crate::space::AddressSpace;
use crate::table::empty_from_first;

impl<F: Format, M: Machine> AddressSpace<'_, F, M> {
    /// Maps the pages of `range` to consecutive frames from `first` on, which may belong to several folios, each page
    /// taking a reference of its folio. Leaves are as large as alignment and folio allow, but not above `largest`:
    /// a folio of order 9 becomes a PMD leaf, or with [`Level::Pte`] 512 PTEs. Where a table is already, as a
    /// [`zap`](Self::zap) leaves it, they are the smaller ones of that table; [`unmap`](Self::unmap) leaves none. PUD
    /// leaves are for [`Attributes::special`] mappings, which hold no references: they are of memory that is
    /// [`Reserved`](isotherm_page::Reserved), or has no metadata and is a [device's](crate::Memory::is_device).
    ///
    /// Returns what was mapped.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::Occupied`], [`Error::NoTableFrame`], [`Error::NotAFolio`], [`Error::UnknownFrame`] (also of
    /// frames from [`Format::FRAME_LIMIT`] on), [`Error::TooManyReferences`], [`Error::NotReserved`],
    /// [`Error::NotCanonical`], [`Error::MemoryType`], [`Error::Global`], or [`Error::Misaligned`] where the smallest leaf is larger than 4 KiB
    /// and the range, a frame or a folio is not aligned to it.
    pub fn map(
        &self,
        range: PageRange,
        first: Frame,
        attributes: Attributes,
        largest: Level,
    ) -> Result<RssStat, Stopped> {
        self.check(range)?;
        if first.0.checked_add(range.pages()).is_none_or(|end| end > F::FRAME_LIMIT) {
            return Err(Stopped::at_page(range.first, Error::UnknownFrame));
        }
        let refuse = |why| Err(Stopped::at_page(range.first, why));
        if (first.0 & (F::pages(Level::Pte) - 1)) != 0 {
            return refuse(Error::Misaligned);
        }
        self.check_attributes(attributes).map_err(|why| Stopped::at_page(range.first, why))?;
        // Above the tables that all processes share nothing is mapped.
        let root = if self.lends { F::ROOT.below() } else { None };
        let largest = largest.min(F::LARGEST_LEAF).min(root.unwrap_or(F::LARGEST_LEAF));
        let mut page = range.first;
        let mut done = RssStat::default();
        while page < range.end {
            let frame = first.add(page - range.first);
            page += self
                .map_some(
                    page,
                    (range.end - page).min(F::LINEAR - frame.0 % F::LINEAR),
                    frame,
                    attributes,
                    largest,
                    &mut done,
                )
                .map_err(|(pages, why)| Stopped::at_page(page + pages, why).after(done))?;
        }
        Ok(done)
    }

    /// Maps what one table takes; how many pages.
    #[inline(always)]
    fn map_some(
        &self,
        page: u64,
        pages: u64,
        frame: Frame,
        attributes: Attributes,
        largest: Level,
        stat: &mut RssStat,
    ) -> Result<u64, (u64, Error)> {
        let mut level = Level::Pte;
        while let Some(above) = level.above().filter(|&l| l <= largest) {
            let fits = (page | frame.0) & (F::pages(above) - 1) == 0 && pages >= F::pages(above);
            if !fits
                || !F::supports(above, attributes.memory)
                || !self.fills(frame, above, attributes).map_err(|why| (0, why))?
            {
                break;
            }
            level = above;
        }
        loop {
            let done = self.map_at(page, level, pages, frame, attributes, stat)?;
            match level.below() {
                // There is a table already.
                Some(below) if done == 0 => level = below,
                // The folio is smaller than the smallest leaf.
                None if done == 0 => return Err((0, Error::Misaligned)),
                _ => return Ok(done),
            }
        }
    }

    /// Maps leaves of this level, as many as one table takes; how many pages. None if there is a table in the place of
    /// the first.
    #[inline(always)]
    fn map_at(
        &self,
        page: u64,
        level: Level,
        pages: u64,
        frame: Frame,
        attributes: Attributes,
        stat: &mut RssStat,
    ) -> Result<u64, (u64, Error)> {
        let mut tables = 0;
        let table = self.make(page, level, &mut tables);
        stat.tables += tables;
        let table = table.map_err(|why| (0, why))?;
        let index = F::index(level, page);
        let most = (pages >> F::shift(level)).min(((1 << F::TABLE_BITS) - index) as u64) as usize;
        let mut done = 0;
        while done < most {
            let (at, frame) = (index + done, frame.add((done as u64) << F::shift(level)));
            let so_far = (done as u64) << F::shift(level);
            let len = self.map_run(&table, page + so_far, at, frame, most - done, attributes, stat);
            match len {
                Ok(0) => break,
                Ok(len) => done += len,
                Err(why) => return Err((so_far, why)),
            }
        }
        Ok((done as u64) << F::shift(level))
    }

    /// How many of these frames may be mapped without being counted: all up to the first that is neither reserved nor a
    /// device's.
    pub(crate) fn uncounted(&self, frame: Frame, pages: u64) -> u64 {
        let may = |n: &u64| {
            let frame = frame.add(*n);
            match self.machine.meta(frame) {
                Some(meta) => meta.kind() == isotherm_page::Kind::Reserved,
                None => self.machine.is_device(frame),
            }
        };
        (0..pages).take_while(may).count() as u64
    }

    /// Whether a leaf of this level would have one folio behind it.
    fn fills(&self, frame: Frame, level: Level, attributes: Attributes) -> Result<bool, Error> {
        if attributes.special {
            return Ok(self.uncounted(frame, F::pages(level)) == F::pages(level));
        }
        let folio = FolioView::of(self.machine, frame)?;
        Ok(folio.remaining() as u64 >= F::pages(level))
    }

    #[inline(always)]
    #[expect(clippy::too_many_arguments, reason = "the state of the loop above")]
    /// Maps entries of one folio. 0 if the next folio wants larger or smaller leaves, or there is a table.
    pub(crate) fn map_run(
        &self,
        table: &crate::table::Locked<'_, F, M>,
        page: u64,
        index: usize,
        frame: Frame,
        most: usize,
        attributes: Attributes,
        stat: &mut RssStat,
    ) -> Result<usize, Error> {
        let level = table.level;
        let mut len = most;
        let folio = if attributes.special {
            None
        } else {
            let folio = FolioView::of(self.machine, frame)?;
            let leaves = folio.remaining() >> F::shift(level);
            if leaves == 0 {
                return Ok(0);
            }
            len = len.min(leaves);
            Some(folio)
        };
        let len = empty_from_first(&table.table()[index..index + len]);
        if len == 0 {
            let raw = table.entry(index).relaxed();
            let table = F::is_valid(raw) && F::is_table(level, raw);
            return if table { Ok(0) } else { Err(Error::Occupied) };
        }
        let len = match folio {
            Some(folio) => {
                // SAFETY: these are the entries that are stored below, which give it back when they go.
                unsafe { folio.try_add_mapped(self.machine, len << F::shift(level)) }?;
                len
            }
            None => {
                match (self.uncounted(frame, (len as u64) << F::shift(level)) >> F::shift(level)) as usize {
                    0 => return Err(Error::NotReserved),
                    len => len,
                }
            }
        };
        set_run::<F, M>(table, self.id, page, F::leaf(level, frame, attributes), len);
        stat.count_each(folio.map(|folio| folio.kind()), (len as u64) << F::shift(level));
        Ok(len)
    }

    /// Puts a swap entry (a swap slot, say) into the empty entries of a range. It belongs to the space from then on:
    /// [`Frames::release_swap_entry`](crate::Frames::release_swap_entry) is called once for each page that loses it.
    ///
    /// Returns what was put there.
    ///
    /// # Errors
    /// [`Stopped`] with [`Error::BadSwapEntry`], [`Error::Occupied`], [`Error::NoTableFrame`] or [`Error::NotCanonical`].
    pub fn map_swap_entry(
        &self,
        range: PageRange,
        swap_entry: impl Into<SwapEntry>,
    ) -> Result<RssStat, Stopped> {
        self.check(range)?;
        let raw =
            swap_entry.into().encode::<F>().ok_or(Stopped::at_page(range.first, Error::BadSwapEntry))?;
        let mut page = range.first;
        let mut done = RssStat::default();
        while page < range.end {
            let table = self.make(page, Level::Pte, &mut done.tables);
            let table = table.map_err(|why| Stopped::at_page(page, why).after(done))?;
            let end = range.end.min((page | (F::table_pages(Level::Pte) - 1)) + 1);
            for page in (page..end).step_by(1 << F::GRANULE) {
                let index = F::index(Level::Pte, page);
                if table.entry(index).relaxed() != 0 {
                    return Err(Stopped::at_page(page, Error::Occupied).after(done));
                }
                table.change_at(index).store(raw);
                done.swap_entries += F::pages(Level::Pte);
            }
            page = end;
        }
        Ok(done)
    }
}
