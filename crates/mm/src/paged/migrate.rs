//! Pages of a range that move to other nodes.

use isotherm_page::{FolioView, Frame};
use isotherm_pagetable::{Format, Machine, Mapping, PageRange, VirtAddr};

use super::Paged;
use crate::object::Objects;

/// So many folios are looked for under one lock of a table.
const SOME: usize = 32;

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Paged<'m, F, M, O> {
    /// Moves the folios that begin in a range to the node that `node` says for each, by its number in a row of folios as large; how many
    /// pages have moved. Called without locks.
    pub(crate) fn migrate(&self, range: PageRange, node: impl Fn(u64) -> Option<u32>) -> u64 {
        let Some(system) = self.system() else { return 0 };
        let (mut page, end, mut moved) = (range.start().page(), range.start().page() + range.pages(), 0);
        while page < end {
            let (mut some, mut len, mut next) = ([(Frame(0), 0, 0); SOME], 0, end);
            let Ok(rest) = PageRange::with_pages(VirtAddr::of_page(page), end - page) else { break };
            let done = self.mm.tables.runs(rest, |run| {
                let Mapping::Page { frame, attributes, .. } = run.mapping else { return };
                if attributes.special || next < end {
                    return;
                }
                let mut n = 0;
                while n < run.pages {
                    let Ok(folio) = FolioView::of(system.inner().machine, frame.add(n)) else { return };
                    let pages = folio.order().frames();
                    let at = run.at.page() + n;
                    n += pages - (folio.frame().0 - folio.head().0);
                    if folio.frame() != folio.head() {
                        continue;
                    }
                    match some.get_mut(len) {
                        Some(place) => *place = (folio.head(), pages, at / pages),
                        None => {
                            next = at;
                            return;
                        }
                    }
                    len += 1;
                }
            });
            debug_assert!(done.is_ok(), "{done:?}");
            for &(head, pages, index) in some.iter().take(len) {
                let to = node(index).map(|node| system.migrate_to(&self.objects, head, node));
                moved += if to == Some(Ok(true)) { pages } else { 0 };
            }
            page = next;
        }
        moved
    }
}
