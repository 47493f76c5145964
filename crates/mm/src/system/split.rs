//! Large folios become pages: where only some of their pages are mapped, the others are free then.

use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};

use isotherm_page::{Folio, Frame, Order};
use isotherm_pagetable::{
    Error as TableError, Format, Machine, MappedIn, PageRange, TableSlot, VirtAddr, split_folio,
};

use super::{Inner, Kept, System};
use crate::paged::Mm;
use crate::shared::Shared;

/// So many tables map a folio at most that is split.
const TABLES: usize = 16;

type Places<'m, F, M> = Vec<(Shared<Mm<'m, F, M>>, PageRange)>;

impl<'m, F: Format, M: Machine> System<'m, F, M> {
    /// Splits the folio that an anonymous page is part of into pages, wherever it is mapped. Returns how many of its frames are
    /// free then, as nobody maps them.
    ///
    /// # Errors
    /// [`Kept`]: the folio is whole, or was a page already ([`Kept::NotFound`]).
    pub fn split(&self, frame: Frame) -> Result<u64, Kept> {
        self.inner().split(frame)
    }
}

impl<'m, F: Format, M: Machine> Inner<'m, F, M> {
    pub(crate) fn split(&self, frame: Frame) -> Result<u64, Kept> {
        let head = Folio::get(self.machine, frame).map_err(|_| Kept::NotFound)?.head();
        let folio = Folio::get(self.machine, head).map_err(|_| Kept::NotFound)?;
        if folio.head() != head || folio.order() == Order::BASE {
            return Err(Kept::NotFound);
        }
        let (family, index) = self.anonymous(&folio).ok_or(Kept::NotFound)?;
        // Who locks or unlocks pages of it from here on sees the claims, and does it again when they are pages: see
        // `Records::lock_mapped`. What was marked before is known when the marks are spread.
        let _moving = self.records.begin_copy();
        let _claims = self.claim_all(&folio)?;
        fence(Ordering::SeqCst);
        let mut places: Places<'m, F, M> = Vec::new();
        for n in 0..folio.order().frames() {
            let mut room = true;
            family
                .walk(
                    head.add(n),
                    index + n,
                    false,
                    || {},
                    |mm, at| {
                        let table = |at: VirtAddr| at.page() / F::table_pages(isotherm_pagetable::Level::Pte);
                        let is_new = !places
                            .iter()
                            .any(|(one, range)| one.is(mm) && table(range.start()) == table(at));
                        if let Ok(page) = PageRange::with_pages(at, 1)
                            && is_new
                        {
                            room &= places.len() < TABLES && places.try_reserve(1).is_ok();
                            if room {
                                places.push((mm.clone(), page));
                            }
                        }
                    },
                )
                .map_err(|_| Kept::Busy)?;
            if !room {
                return Err(Kept::NoMemory);
            }
        }
        self.records.spread(head, folio.order().frames());
        let mut mapped = Vec::new();
        mapped.try_reserve_exact(places.len()).map_err(|_| Kept::NoMemory)?;
        mapped.extend(places.iter().map(|(mm, range)| MappedIn { space: &mm.tables, range: *range }));
        let mut slots: [TableSlot<'m, F, M>; TABLES] = core::array::from_fn(|_| TableSlot::default());
        match split_folio(folio, Order::BASE, &mapped, &mut slots) {
            Ok(pieces) => Ok(pieces.filter(|piece| piece.maps() == 0).count() as u64),
            Err((TableError::Changed, _)) => Err(Kept::Busy),
            Err((TableError::NoTableFrame | TableError::TooManyTables, _)) => Err(Kept::NoMemory),
            Err(_) => Err(Kept::InUse),
        }
    }
}
