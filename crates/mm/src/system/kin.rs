//! A space in a system: its families.

use alloc::vec::Vec;

use isotherm_page::{Folio, Frame};
use isotherm_pagetable::{Format, Machine};

use super::{Family, Member, Moved, Owner, System};
use crate::error::Error;
use crate::flags::{PAGE_SHIFT, VmFlags};
use crate::paged::Mm;
use crate::shared::Shared;
use crate::vma::{ObjectId, VmaInfo};

/// So many families a space is a member of at most: what a fork, and the search of a page, may cost. A guess: shells start
/// programs some forks down from the first, and these begin anew.
const DEPTH: usize = 8;

/// What a space is in its system. It takes part from [`begin`](Self::begin) on, and until this is dropped.
pub(crate) struct Kin<'m, F: Format, M: Machine> {
    system: System<'m, F, M>,
    /// That which its pages come to belong to first. In each it is promised a place, or a member.
    families: Vec<Shared<Family<'m, F, M>>>,
    /// Those of the first it is a member of.
    joined: usize,
    /// Once it takes part.
    mm: Option<Shared<Mm<'m, F, M>>>,
}

/// Entries of a space are copied or moved as long as this lives.
pub(crate) struct Changing<'a, 'm, F: Format, M: Machine>(&'a [Shared<Family<'m, F, M>>]);

impl<F: Format, M: Machine> Drop for Changing<'_, '_, F, M> {
    fn drop(&mut self) {
        self.0.iter().for_each(|family| family.end());
    }
}

impl<'m, F: Format, M: Machine> Kin<'m, F, M> {
    pub(crate) fn new(system: &System<'m, F, M>) -> Result<Self, Error> {
        let mut families = Vec::new();
        families.try_reserve_exact(DEPTH).map_err(|_| Error::NoMemory)?;
        let inner = system.inner();
        inner.spaces.lock().promise()?;
        match inner.new_family() {
            Ok(family) => families.push(family),
            Err(why) => {
                inner.spaces.lock().take_back();
                return Err(why);
            }
        }
        Ok(Self { system: system.clone(), families, joined: 0, mm: None })
    }

    pub(crate) fn system(&self) -> &System<'m, F, M> {
        &self.system
    }

    fn own(&self) -> u32 {
        self.families.first().map_or(0, |family| family.number)
    }

    /// Who walks through one of the families waits, or walks again.
    pub(crate) fn changing(&self) -> Changing<'_, 'm, F, M> {
        self.families.iter().for_each(|family| family.begin());
        Changing(&self.families)
    }

    /// The child of a fork, which has nothing yet, is to be a member of its parent's families.
    pub(crate) fn descend(&mut self, parent: &Self) -> Result<(), Error> {
        if !self.system.is(&parent.system) || self.mm.is_some() {
            return Err(Error::Invalid);
        }
        if parent.families.len() >= DEPTH {
            // Its parent's own will be its own.
            self.families.drain(..).for_each(|own| {
                if own.take_back() {
                    self.system.inner().end_family(own.number);
                }
            });
        }
        for family in &parent.families {
            family.promise()?;
            self.families.push(family.clone());
        }
        Ok(())
    }

    /// Takes part in its families from now on: before [`Changing`] of its parent ends.
    pub(crate) fn join(&mut self, mm: &Shared<Mm<'m, F, M>>) {
        for family in self.families.iter().skip(self.joined) {
            family.join(mm);
        }
        self.joined = self.families.len();
        self.mm = Some(mm.clone());
    }

    /// Exists from now on.
    pub(crate) fn begin(&mut self, mm: &Shared<Mm<'m, F, M>>) {
        self.join(mm);
        let member = Member { mm: mm.clone(), family: self.own() };
        self.system.inner().spaces.lock().push(member);
    }

    /// Pages of a VMA are about to come: if they will not be at their indices, as it was moved and has grown since, they are in the
    /// list.
    pub(crate) fn come(&self, mm: &Mm<'m, F, M>, vma: &VmaInfo) -> Result<(), Error> {
        let (at, end) = (vma.start >> PAGE_SHIFT, vma.end >> PAGE_SHIFT);
        if vma.object.is_some() || vma.pgoff == at {
            return Ok(());
        }
        mm.moved.lock().add(Moved { at, pages: end - at, index: vma.pgoff })
    }

    /// Whether another space that may map anonymous pages of this one has locked memory.
    pub(crate) fn others_lock(&self, mm: &Shared<Mm<'m, F, M>>) -> bool {
        self.families.iter().any(|family| family.has_locks(Some(mm)))
    }

    /// The page of an address is this folio, of which the caller has a reference or which is not mapped yet.
    pub(crate) fn owns(&self, head: Frame, vma: &VmaInfo, address: u64) {
        let inner = self.system.inner();
        let locked = vma.flags.contains(VmFlags::LOCKED);
        inner.records.set(head, Owner::Family(self.own()), index(vma, address), locked, inner.now());
    }

    /// The VMA maps this page of an object.
    pub(crate) fn maps(&self, head: Frame, vma: &VmaInfo, id: ObjectId, index: u64) {
        let inner = self.system.inner();
        let locked = vma.flags.contains(VmFlags::LOCKED);
        inner.records.map(head, Owner::Object(id), index, locked, inner.now());
    }

    /// The same as [`owns`](Self::owns), if it is known by nobody else's record.
    pub(crate) fn owns_unknown(&self, folio: &Folio<'m, M>, vma: &VmaInfo, address: u64) {
        let at = address - ((folio.frame().0 - folio.head().0) << PAGE_SHIFT);
        let known = self.system.inner().records.get(folio.head()).is_some_and(|(owner, there)| {
            let mine = |family: &Shared<Family<'m, F, M>>| owner == Owner::Family(family.number);
            self.families.iter().any(mine) && there == index(vma, at)
        });
        if !known && u64::from(folio.maps()) <= folio.order().frames() {
            self.owns(folio.head(), vma, at);
        }
    }

    /// What there is room for in `moved` before pages of a VMA are moved.
    pub(crate) fn moves(&self, mm: &Mm<'m, F, M>, vma: &VmaInfo, to: u64) -> Result<(), Error> {
        let page = |address: u64| address >> PAGE_SHIFT;
        let pages = page(vma.end - vma.start);
        let mut moved = mm.moved.lock();
        moved.add_moved(page(vma.start), pages, page(to))?;
        moved.add(Moved { at: page(to), pages, index: index(vma, vma.start) })
    }
}

/// The index of the anonymous page of an address: of a private mapping of an object, where it is when it is copied.
fn index(vma: &VmaInfo, address: u64) -> u64 {
    match vma.object {
        None => vma.pgoff + ((address - vma.start) >> PAGE_SHIFT),
        Some(_) => address >> PAGE_SHIFT,
    }
}

impl<F: Format, M: Machine> Drop for Kin<'_, F, M> {
    fn drop(&mut self) {
        let inner = self.system.inner();
        for (n, family) in self.families.iter().enumerate() {
            let last = match &self.mm {
                Some(mm) if n < self.joined => family.leave(mm),
                _ => family.take_back(),
            };
            if last {
                inner.end_family(family.number);
            }
        }
        let mut spaces = inner.spaces.lock();
        let gone = match &self.mm {
            Some(mm) => spaces.remove(|one| one.mm.is(mm)),
            None => None,
        };
        if gone.is_none() {
            spaces.take_back();
        }
        drop(spaces);
        drop(gone);
    }
}
