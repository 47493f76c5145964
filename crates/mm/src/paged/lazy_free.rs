//! Pages that are given up for as long as their program does not write to them: see
//! [`lazy_free`](crate::AddressSpace::lazy_free).

use isotherm_page::{Frame, Order};
use isotherm_pagetable::{Format, Machine, PageRange};

use super::Paged;
use super::mm::pages;
use crate::system::GENERATIONS;
use crate::vma::VmaInfo;

/// So many folios are split after one look.
const SPLITS: usize = 32;

/// Large folios that are not as a whole in the range.
struct Large {
    heads: [Frame; SPLITS],
    len: usize,
    /// The first page that was not looked at for them.
    next: Option<u64>,
}

impl<'m, F: Format, M: Machine, O> Paged<'m, F, M, O> {
    /// Gives up the pages of a VMA of private anonymous memory that stays as it is meanwhile. Large folios of which it has a part are
    /// split for it, if that is possible; else they are kept, as in Linux.
    pub(super) fn give_up(&self, vma: &VmaInfo) {
        let Some(all) = pages(&vma.range()) else { return };
        let (mut page, end) = (all.start().page(), all.start().page() + all.pages());
        while page < end {
            let Ok(rest) = PageRange::with_pages(isotherm_pagetable::VirtAddr::of_page(page), end - page)
            else {
                return;
            };
            let mut large = Large { heads: [Frame(0); SPLITS], len: 0, next: None };
            self.give_up_whole(rest, &mut large);
            let next = large.next.unwrap_or(end);
            let Some(kin) = &self.kin else { return };
            let heads = large.heads.get(..large.len).unwrap_or_default();
            let split = heads.iter().filter(|head| kin.system().inner().split(**head).is_ok()).count();
            if split > 0
                && let Ok(again) = PageRange::new(rest.start().0, next << crate::flags::PAGE_SHIFT)
            {
                // What was given up is so once more: a write that came in between is one beside this call.
                self.give_up_whole(again, &mut Large { len: SPLITS, next: Some(page), ..large });
            }
            page = next;
        }
    }

    /// Gives up what are whole folios in a range; which large ones are not.
    fn give_up_whole(&self, range: PageRange, large: &mut Large) {
        let system = self.kin.as_ref().map(|kin| kin.system().inner());
        let done = self.mm.with_gather(|gather| {
            self.mm.tables.lazy_free(range, gather, |folio, at, freed| {
                if freed {
                    if let Some(system) = system {
                        // They leave first.
                        let oldest = system.now().wrapping_sub(GENERATIONS - 1);
                        system.records.touch(folio.head(), oldest);
                    }
                } else if folio.order() > Order::BASE
                    && u64::from(folio.maps()) <= folio.order().frames()
                    && large.next.is_none()
                {
                    // A folio in several runs is one after the other.
                    let known = large.heads.get(..large.len).unwrap_or_default();
                    if known.last() != Some(&folio.head()) {
                        match large.heads.get_mut(large.len) {
                            Some(place) => (*place, large.len) = (folio.head(), large.len + 1),
                            None => large.next = Some(at.page()),
                        }
                    }
                }
            })
        });
        debug_assert!(done.is_ok(), "{done:?}");
        let gone = done.unwrap_or_else(|stopped| stopped.done);
        self.mm.add_swapped(-(gone.swap_entries as i64));
    }
}
