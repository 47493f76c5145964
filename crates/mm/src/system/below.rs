//! A page as it is seen from below, by whatever reverse map has it.

use isotherm_page::{Folio, Frame};
use isotherm_pagetable::{Format, Gather, Machine, PageRange, VirtAddr};

use super::{Busy, Inner, Owner};
use crate::object::Objects;
use crate::paged::Mm;
use crate::shared::Shared;

impl<'m, F: Format + 'm, M: Machine + 'm> Inner<'m, F, M> {
    /// Calls `visit` for wherever a page is mapped, at some places perhaps again, without waiting for forks; the folio, unless the
    /// frame is no page that a space of the system has mapped. What is visited may be changed by then: `visit` is to look at the entry
    /// itself. Locks of objects are taken.
    pub(crate) fn visit_mappings<O: Objects<'m, F, M>>(
        &self,
        objects: &O,
        frame: Frame,
        visit: impl FnMut(&Shared<Mm<'m, F, M>>, VirtAddr),
    ) -> Result<Option<Folio<'m, M>>, Busy> {
        let Ok(folio) = Folio::get(self.machine, frame) else { return Ok(None) };
        if let Some((family, index)) = self.anonymous(&folio) {
            return family.walk(frame, index, false, || {}, visit).map(|()| Some(folio));
        }
        let Some((Owner::Object(id), index)) = self.records.get(folio.head()) else { return Ok(None) };
        let known = objects.get(id).is_some_and(|object| object.visit_mappings(index, frame, visit));
        Ok(known.then_some(folio))
    }

    /// Clears a page's Accessed bits wherever it is mapped, for who watches memory: what they said is noted for reclaim. With a gather
    /// the next access is seen once that has flushed. Whether it is a page that is known.
    pub(crate) fn take_accessed<O: Objects<'m, F, M>>(
        &self,
        objects: &O,
        frame: Frame,
        mut gather: Option<&mut Gather<'_, M>>,
    ) -> Result<bool, Busy> {
        let mut young = false;
        let found = self.visit_mappings(objects, frame, |mm, at| {
            let Ok(page) = PageRange::with_pages(at, 1) else { return };
            let done = match &mut gather {
                Some(gather) => mm.tables.clear_flush_young(page, &mut [], gather),
                None => mm.tables.clear_young(page),
            };
            young |= done.is_ok_and(|pages| pages > 0);
        })?;
        if let Some(folio) = &found
            && young
        {
            self.records.touch(folio.head(), self.now());
        }
        Ok(found.is_some())
    }
}
