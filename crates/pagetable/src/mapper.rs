//! Mapping page after page without a walk for each.

use crate::address::{Frame, Level, PageRange};
use crate::error::{Error, Stopped};
use crate::format::{Attributes, Format};
use crate::machine::Machine;
use crate::rss::RssStat;
use crate::space::AddressSpace;
use crate::table::Locked;

/// Maps pages by leaves of the lowest level, and keeps their table locked from one call to the next: fault-around, populate,
/// `remap_pfn_range`. So between calls, and until it is dropped or [rests](Self::rest), no other operation on pages of that table
/// gets on, and none may be called by the same thread.
#[must_use = "it maps nothing by itself"]
pub struct Mapper<'s, 'm, F: Format, M: Machine> {
    space: &'s AddressSpace<'m, F, M>,
    /// The table, and the first page that it translates.
    table: Option<(u64, Locked<'m, F, M>)>,
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// To map page after page.
    pub fn mapper(&self) -> Mapper<'_, 'm, F, M> {
        Mapper { space: self, table: None }
    }
}

impl<F: Format, M: Machine> Mapper<'_, '_, F, M> {
    /// As [`AddressSpace::map`] with leaves of the lowest level. An entry that is not empty stops it, so that who maps around a
    /// page goes on behind it.
    ///
    /// # Errors
    /// As [`AddressSpace::map`].
    pub fn map(
        &mut self,
        range: PageRange,
        first: Frame,
        attributes: Attributes,
    ) -> Result<RssStat, Stopped> {
        let refuse = |why| Err(Stopped::at_page(range.first, why));
        self.space.check(range)?;
        if first.0.checked_add(range.pages()).is_none_or(|end| end > F::FRAME_LIMIT) {
            return refuse(Error::UnknownFrame);
        }
        if (first.0 & (F::pages(Level::Pte) - 1)) != 0 {
            return refuse(Error::Misaligned);
        }
        self.space.check_attributes(attributes).map_err(|why| Stopped::at_page(range.first, why))?;
        let mut done = RssStat::default();
        let mut page = range.first;
        while page < range.end {
            let frame = first.add(page - range.first);
            page += self
                .some(page, range.end, frame, attributes, &mut done)
                .map_err(|why| Stopped::at_page(page, why).after(done))?;
        }
        Ok(done)
    }

    /// Maps what one batch takes; how many pages.
    fn some(
        &mut self,
        page: u64,
        end: u64,
        frame: Frame,
        attributes: Attributes,
        done: &mut RssStat,
    ) -> Result<u64, Error> {
        let first = page & !(F::table_pages(Level::Pte) - 1);
        let table = match self.table.take() {
            Some((at, table)) if at == first => table,
            // With no lock held, as it may take an allocation.
            other => {
                drop(other);
                self.space.make(page, Level::Pte, &mut done.tables)?
            }
        };
        let index = F::index(Level::Pte, page);
        let most = (end - page).min(F::LINEAR - frame.0 % F::LINEAR) >> F::GRANULE;
        let most = most.min(((1 << F::TABLE_BITS) - index) as u64) as usize;
        let len = self.space.map_run(&table, page, index, frame, most, attributes, done);
        self.table = Some((first, table));
        match len? {
            0 => Err(Error::Misaligned),
            len => Ok((len as u64) << F::GRANULE),
        }
    }

    /// Gives the lock back, until the next page is mapped.
    pub fn rest(&mut self) {
        self.table = None;
    }
}
