//! Pages move to other frames: for compaction, for memory that is to be removed, or to another node.
//!
//! **An anonymous page** is made clean and read-only wherever it is mapped, and the TLB is flushed, as when it is swapped out: from here
//! on it is what it is, and may be read. Then it is copied, and each entry that is still clean and read-only gets the new frame in
//! one step: no fault finds it empty, or waits. Who writes to the page meanwhile makes it writable again, or has a copy: that entry
//! keeps the old frame, and the page stays there for it. So nothing is undone if a page stays, and what spaces count does not change.
//! A folio of 2 MiB moves as a whole where a huge leaf maps it, and that stays one; else page by page, to a folio as large.
//!
//! **A page of an object** is taken out of all page tables with the object's lock held for writing, and its place in the cache gets
//! the new frame. The next access of each program maps it again.

use alloc::vec::Vec;
use core::sync::atomic::{Ordering, fence};

use isotherm_page::{Folio, FolioKind, Frame, Unique, Unused};
use isotherm_pagetable::{
    Error as TableError, Format, Gather, Level, Machine, Mapping, Replacement, Seen, Slot,
};

use super::records::Claim;
use super::swap_out::in_use;
use super::{BATCH, Inner, Kept, Owner, System};
use crate::object::Objects;

impl<'m, F: Format + 'm, M: Machine + 'm> System<'m, F, M> {
    /// Moves a page to another frame, wherever it is mapped: an anonymous folio by its first frame, or a page of an object that
    /// has been mapped. Its frame is free then. `to` is a block that the caller has allocated where it wants the page to be; it is freed
    /// if nothing is mapped to it.
    ///
    /// A page that was given up ([`lazy_free`](crate::AddressSpace::lazy_free)) is needed again by that; one that is locked moves and
    /// is locked. Locks of spaces are not needed; those of objects are taken.
    ///
    /// # Errors
    /// [`Kept`]: the page is still mapped at its old frame, at some places at least.
    pub fn migrate<O: Objects<'m, F, M>>(
        &self,
        objects: &O,
        frame: Frame,
        to: Unique<'m, M, Unused>,
    ) -> Result<(), Kept> {
        let inner = self.inner();
        let folio = Folio::get(inner.machine, frame).map_err(|_| Kept::NotFound)?;
        if folio.head() != frame {
            return Err(Kept::NotFound);
        }
        if folio.order() != to.order() || !core::ptr::eq(to.pages(), inner.machine) {
            return Err(Kept::OtherBlock);
        }
        let moving = inner.records.begin_copy();
        let claims = inner.claim_all(&folio)?;
        // Who locks or unlocks the page from here on sees the claims, and waits: see `Records::lock_mapped`.
        fence(Ordering::SeqCst);
        let done = match folio.kind() {
            FolioKind::Anon => inner.migrate_anonymous(folio, to),
            FolioKind::File => inner.migrate_cached(objects, folio, to),
        };
        drop((claims, moving));
        done
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm> Inner<'m, F, M> {
    /// Nobody else takes a page of the folio away.
    pub(super) fn claim_all(&self, folio: &Folio<'m, M>) -> Result<Vec<Claim<'_>>, Kept> {
        let frames = folio.order().frames();
        let mut claims = Vec::new();
        claims.try_reserve_exact(frames as usize).map_err(|_| Kept::NoMemory)?;
        for n in 0..frames {
            claims.push(self.records.claim(folio.head().add(n)).ok_or(Kept::InUse)?);
        }
        Ok(claims)
    }

    fn migrate_anonymous(&self, folio: Folio<'m, M>, to: Unique<'m, M, Unused>) -> Result<(), Kept> {
        let (family, index) = self.anonymous(&folio).ok_or(Kept::NotFound)?;
        if in_use(&folio) {
            return Err(Kept::InUse);
        }
        let (old, frames) = (folio.head(), folio.order().frames());
        let mut slots = [Slot::default(); BATCH];
        let mut gather = Gather::of_any(self.machine, &mut slots);
        let mut found = false;
        for n in 0..frames {
            let from = old.add(n);
            let clean = |mm: &crate::shared::Shared<crate::paged::Mm<'m, F, M>>, at| {
                found = true;
                // What is there by now may be another page, which stays as it is.
                let done = mm.tables.mkclean_page(at, from, &mut gather);
                debug_assert!(matches!(done, Ok(_) | Err(TableError::Changed)), "{done:?}");
                if done == Ok(true) {
                    // Before anybody finds it clean: given up and clean it would be dropped, also if it does not move.
                    folio.clear_lazy_free();
                }
            };
            family.walk(from, index + n, false, || {}, clean).map_err(|_| Kept::Busy)?;
        }
        gather.flush();
        if !found && folio.maps() > 0 {
            // It is another's by now, or was never of this system.
            return Err(Kept::NotFound);
        }
        if in_use(&folio) {
            return Err(Kept::InUse);
        }
        let new = to.into_folio(FolioKind::Anon).map_err(|_| Kept::OtherBlock)?;
        // SAFETY: a reference is held of either; nobody else has the new one. Who writes to the old one meanwhile does so through
        // an entry that keeps it.
        unsafe { self.machine.copy(old, new.head(), frames) };
        // Before anybody finds it there.
        let (age, locked) = (self.records.age(old, self.now()), self.records.is_locked(old));
        self.records.set(
            new.head(),
            Owner::Family(family.number),
            index,
            locked,
            self.now().wrapping_sub(age),
        );
        let mut why = Kept::InUse;
        let (mapped, mut moved) = (u64::from(folio.maps()), 0);
        for n in 0..frames {
            if n > 0 && moved == mapped {
                // By huge leaves, which moved as a whole.
                break;
            }
            let (from, by) = (old.add(n), Replacement::Moved(new.head().add(n)));
            let walked = family.walk(
                from,
                index + n,
                false,
                || {},
                |mm, at| match mm.tables.replace(at, Seen::Clean(from), by, &mut gather) {
                    Ok(Mapping::Page { level: Level::Pmd, .. }) => moved += frames,
                    Err(TableError::NoTableFrame) => why = Kept::NoMemory,
                    _ => {}
                },
            );
            if walked.is_err() {
                why = Kept::Busy;
            }
        }
        // Mappings give their references back.
        gather.flush();
        if folio.maps() == 0 { Ok(()) } else { Err(why) }
    }

    fn migrate_cached<O: Objects<'m, F, M>>(
        &self,
        objects: &O,
        folio: Folio<'m, M>,
        to: Unique<'m, M, Unused>,
    ) -> Result<(), Kept> {
        let Some((Owner::Object(id), index)) = self.records.get(folio.head()) else {
            return Err(Kept::NotFound);
        };
        let object = objects.get(id).ok_or(Kept::NotFound)?;
        let new = to.into_folio(FolioKind::File).map_err(|_| Kept::OtherBlock)?;
        let (old, head) = (folio.head(), new.head());
        object.migrate(index, folio, new, || {
            let (age, locked) = (self.records.age(old, self.now()), self.records.is_locked(old));
            self.records.set(head, Owner::Object(id), index, locked, self.now().wrapping_sub(age));
        })
    }
}
