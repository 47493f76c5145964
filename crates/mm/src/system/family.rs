//! Reverse maps of anonymous memory: families.
//!
//! **What a family is.** A page that a space writes to first belongs to the space's family, for good. Its forks' children may map
//! it too, and theirs: all these spaces are *members* of the family. So each space has a family of its own, which its pages
//! come to belong to, and is a member of those of its ancestors (what Linux does by VMA with chains of `anon_vma`, here
//! is done by space). A child at the end of a long line of forks has no family of its own, but goes on with its
//! parent's.
//!
//! **Where in a space.** A page has an *index*: that of its VMA, which is the number of the page at whose address it was first
//! mapped, and which goes with it when it is moved. So it is found at that address, but in VMAs that `mremap` has moved; of these
//! a space has a list ([`Moved`]). That a page is there is seen in the page tables, so a list may hold more than is true.
//! A range that is unmapped is taken out of the list afterwards, and walks do not notice. So a walk goes through the list by
//! address: it asks for the next higher one each time. Going by position it would pass over a place when one before it goes.
//!
//! **Walks** find all. A fork or a move says that it begins, to all families of its space, before it changes an entry, and that
//! it has ended after the child is a member, or the new place is in the list. Who walks waits until none is under way,
//! and walks again if one has begun meanwhile. What a walk changed before a fork came by, the fork copied as it was then; what it
//! looked at after, it knows that a fork has begun: the lock of the table orders both. A walk holds no lock but that of one
//! table, and a member as long as it looks at it: a space that ends meanwhile is freed by the walk.

use alloc::vec::Vec;

use isotherm_page::Frame;
use isotherm_pagetable::{Format, Machine, Mapping, VirtAddr};

use crate::error::Error;
use crate::paged::Mm;
use crate::shared::Shared;
use crate::spin::{Spin, relax};
use crate::sync::{AtomicU64, Ordering};

/// A list with room for those that were promised a place.
pub(crate) struct Roster<T> {
    all: Vec<T>,
    promised: usize,
}

impl<T> Roster<T> {
    pub(crate) const fn new() -> Self {
        Self { all: Vec::new(), promised: 0 }
    }

    pub(crate) fn promise(&mut self) -> Result<(), Error> {
        self.all.try_reserve(self.promised + 1).map_err(|_| Error::NoMemory)?;
        self.promised += 1;
        Ok(())
    }

    pub(crate) fn take_back(&mut self) {
        self.promised = self.promised.saturating_sub(1);
    }

    /// Of one who was promised it.
    pub(crate) fn push(&mut self, one: T) {
        self.take_back();
        debug_assert!(self.all.len() < self.all.capacity(), "no room was promised");
        self.all.push(one);
    }

    /// Takes out the first of this kind. It is to be dropped when no lock is held any more.
    pub(crate) fn remove(&mut self, is: impl FnMut(&T) -> bool) -> Option<T> {
        let at = self.all.iter().position(is)?;
        Some(self.all.swap_remove(at))
    }

    pub(crate) fn get(&self, at: usize) -> Option<&T> {
        self.all.get(at)
    }

    fn is_unused(&self) -> bool {
        self.all.is_empty() && self.promised == 0
    }
}

/// Pages that are not at the address of their index, by page numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Moved {
    pub(crate) at: u64,
    pub(crate) pages: u64,
    pub(crate) index: u64,
}

impl Moved {
    fn end(&self) -> u64 {
        self.at + self.pages
    }

    fn has(&self, other: &Self) -> bool {
        self.at <= other.at
            && other.end() <= self.end()
            && self.index.wrapping_sub(self.at) == other.index.wrapping_sub(other.at)
    }

    /// Where the page of this index is.
    fn find(&self, index: u64) -> Option<u64> {
        let offset = index.checked_sub(self.index).filter(|&offset| offset < self.pages)?;
        Some(self.at + offset)
    }
}

/// The list of a space.
pub(crate) struct MovedList(Vec<Moved>);

impl MovedList {
    pub(crate) const fn new() -> Self {
        Self(Vec::new())
    }

    pub(crate) fn add(&mut self, new: Moved) -> Result<(), Error> {
        if new.index == new.at || self.0.iter().any(|one| one.has(&new)) {
            return Ok(());
        }
        let follows = |one: &Moved| {
            one.index.wrapping_sub(one.at) == new.index.wrapping_sub(new.at)
                && one.at <= new.end()
                && new.at <= one.end()
        };
        if let Some(one) = self.0.iter_mut().find(|one| follows(one)) {
            let (at, end) = (one.at.min(new.at), one.end().max(new.end()));
            *one = Moved { at, pages: end - at, index: one.index.min(new.index) };
            return Ok(());
        }
        self.0.try_reserve(1).map_err(|_| Error::NoMemory)?;
        self.0.push(new);
        Ok(())
    }

    /// What is in a range is at `to` as well.
    pub(crate) fn add_moved(&mut self, from: u64, pages: u64, to: u64) -> Result<(), Error> {
        for at in 0..self.0.len() {
            let Some(&one) = self.0.get(at) else { break };
            let (first, end) = (one.at.max(from), one.end().min(from + pages));
            if first < end {
                let index = one.index + (first - one.at);
                self.add(Moved { at: first - from + to, pages: end - first, index })?;
            }
        }
        Ok(())
    }

    /// Nothing is in the range any more. What would have to be split stays.
    pub(crate) fn trim(&mut self, from: u64, end: u64) {
        self.0.retain_mut(|one| {
            if one.at < from {
                if one.end() <= end && one.end() > from {
                    one.pages = from - one.at;
                }
            } else if one.at < end {
                let gone = one.end().min(end) - one.at;
                (one.at, one.index, one.pages) = (one.at + gone, one.index + gone, one.pages - gone);
            }
            one.pages > 0
        });
    }

    pub(crate) fn copy(&self) -> Result<Self, Error> {
        let mut copy = Vec::new();
        copy.try_reserve_exact(self.0.len()).map_err(|_| Error::NoMemory)?;
        copy.extend_from_slice(&self.0);
        Ok(Self(copy))
    }

    /// The first place behind `after` at which the page of an index may be. Places are asked for by address, as positions in the
    /// list change when another place is taken out: a place that is in the list all the time is not missed.
    fn next(&self, index: u64, after: Option<u64>) -> Option<u64> {
        let places = self.0.iter().filter_map(|one| one.find(index));
        places.filter(|&at| after.is_none_or(|after| at > after)).min()
    }
}

/// A fork or a move is under way all the time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Busy;

/// How often is waited, and how often walked again, by who would rather do something else.
const TRIES: u32 = 4;

/// See the [module](self).
pub(crate) struct Family<'m, F: Format, M: Machine> {
    pub(crate) number: u32,
    /// How many forks and moves are under way, and above that how many have begun.
    changes: AtomicU64,
    members: Spin<Roster<Shared<Mm<'m, F, M>>>>,
}

const BEGUN: u64 = 1 << 24;

impl<'m, F: Format, M: Machine> Family<'m, F, M> {
    pub(crate) fn new(number: u32) -> Self {
        Self { number, changes: AtomicU64::new(0), members: Spin::new(Roster::new()) }
    }

    /// Room for a member more.
    pub(crate) fn promise(&self) -> Result<(), Error> {
        self.members.lock().promise()
    }

    /// Whether nobody is left, after one who was promised a place does not come.
    pub(crate) fn take_back(&self) -> bool {
        let mut members = self.members.lock();
        members.take_back();
        members.is_unused()
    }

    pub(crate) fn join(&self, mm: &Shared<Mm<'m, F, M>>) {
        self.members.lock().push(mm.clone());
    }

    /// Whether nobody is left.
    pub(crate) fn leave(&self, mm: &Shared<Mm<'m, F, M>>) -> bool {
        let mut members = self.members.lock();
        // Another takes its place: who walks at this moment might pass it by.
        self.changes.fetch_add(BEGUN, Ordering::AcqRel);
        let gone = members.remove(|one| one.is(mm));
        let unused = members.is_unused();
        drop(members);
        drop(gone);
        unused
    }

    /// Whether a member, other than this one, has locked memory.
    pub(crate) fn has_locks(&self, but: Option<&Shared<Mm<'m, F, M>>>) -> bool {
        let members = self.members.lock();
        members.all.iter().any(|one| one.has_locks() && but.is_none_or(|but| !one.is(but)))
    }

    pub(crate) fn begin(&self) {
        self.changes.fetch_add(BEGUN + 1, Ordering::AcqRel);
    }

    pub(crate) fn end(&self) {
        self.changes.fetch_sub(1, Ordering::AcqRel);
    }

    /// Calls `visit` for wherever a frame is mapped that is the page of this index, at some places perhaps again; `again` before
    /// all is gone through anew. Who is not `patient` gives up if forks are under way.
    ///
    /// What is visited may be changed by then: `visit` is to look at the entry itself. It is called without locks.
    pub(crate) fn walk(
        &self,
        frame: Frame,
        index: u64,
        patient: bool,
        mut again: impl FnMut(),
        mut visit: impl FnMut(&Shared<Mm<'m, F, M>>, VirtAddr),
    ) -> Result<(), Busy> {
        let (mut waited, mut walked) = (0, 0);
        loop {
            if !patient && (waited > TRIES || walked > TRIES) {
                return Err(Busy);
            }
            let seen = self.changes.load(Ordering::Acquire);
            if !seen.is_multiple_of(BEGUN) {
                relax(waited);
                waited = waited.saturating_add(1);
                continue;
            }
            again();
            for at in 0.. {
                let member = self.members.lock().get(at).cloned();
                let Some(mm) = member else { break };
                mm.places(frame, index, |at| visit(&mm, at));
            }
            if self.changes.load(Ordering::Acquire) == seen {
                return Ok(());
            }
            walked += 1;
        }
    }
}

impl<F: Format, M: Machine> Mm<'_, F, M> {
    /// Calls `each` for where a frame is mapped here that is the anonymous page of this index.
    fn places(&self, frame: Frame, index: u64, mut each: impl FnMut(VirtAddr)) {
        let mut visit = |page| {
            let at = VirtAddr::of_page(page);
            if let Mapping::Page { frame: there, .. } = self.tables.query(at)
                && there == frame
            {
                each(at);
            }
        };
        visit(index);
        let mut last = None;
        loop {
            // The list is not locked while a table is.
            let next = self.moved.lock().next(index, last);
            let Some(page) = next else { break };
            visit(page);
            last = Some(page);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        /// What the list says of where indices are holds at least what is true.
        #[test]
        fn moved_pages_are_found(moves in proptest::collection::vec((0..40u64, 1..8u64, 0..40u64, any::<bool>()), 1..20)) {
            let mut list = MovedList::new();
            // Of each page the index, as a program without VMAs would move pages.
            let mut naive: BTreeMap<u64, u64> = (0..48).map(|page| (page, page)).collect();
            for (from, pages, to, unmap) in moves {
                if from < to + pages && to < from + pages {
                    continue;
                }
                list.trim(to, to + pages);
                naive.retain(|page, _| !(to..to + pages).contains(page));
                list.add_moved(from, pages, to).unwrap();
                list.add(Moved { at: to, pages, index: from }).unwrap();
                for n in 0..pages {
                    if let Some(index) = naive.remove(&(from + n)) {
                        naive.insert(to + n, index);
                    }
                }
                if unmap {
                    list.trim(from, from + pages);
                }
            }
            for (&page, &index) in &naive {
                let mut places = std::iter::successors(list.next(index, None), |&at| list.next(index, Some(at)));
                prop_assert!(page == index || places.any(|place| place == page), "page {page} of index {index}");
            }
        }
    }
}
