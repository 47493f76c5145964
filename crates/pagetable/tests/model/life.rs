//! What happens to a space and its pages while programs run: fork, exit, accesses with their faults, pins.

use isotherm_pagetable::*;

use super::naive::{Contents, Place};
use super::range::tally;
use super::{SPACES, Space, World};

impl<F: Format> World<'_, F> {
    pub(super) fn fork(&mut self) {
        if self.spaces.len() >= SPACES {
            return self.exit();
        }
        let s = self.space();
        let asid = self.random.below(100) as u16;
        let refault = self.random.one_in(3);
        let pinned = !self.pins.is_empty();
        let space = &self.spaces[s];
        let child = AddressSpace::new(self.machine, asid).expect("a space");
        let mut model = space.model.clone();
        let mut slots = [Slot::default(); 4];
        let mut gather = space.real.gather(&mut slots);
        let mut copies = 0;
        for region in Self::regions() {
            let (range, sharing) = (Self::span(region.first, region.pages), region.usage.sharing());
            let own = |place: &Place| !matches!(place, Place::Page(page) if matches!(page.contents, Contents::Shared(_)));
            let refault = refault && !Self::pages(range).filter_map(|page| model.get(page)).any(own);
            let rule = if refault { ForkRule::Refault } else { ForkRule::Copy(sharing) };
            let got = space.real.copy_range(&child, range, rule, &mut gather).expect("copied");
            let found = tally(self.machine, &child, range);
            assert_eq!(RssStat { tables: 0, splits: 0, ..got }, found);
            if refault {
                Self::pages(range).for_each(|at| drop(model.take(at)));
            }
            for (at, page) in model.pages_mut(Self::pages(range)) {
                page.young = false;
                // A pinned page was copied: the child's is new.
                let real = child.query(Self::at(at));
                let copied = matches!(real, Mapping::Page { attributes, .. } if attributes.exclusive);
                assert!(!copied || pinned, "page {at:#x} belongs to parent and child alike");
                page.dirty = sharing == Sharing::Private && (page.dirty || copied);
                copies += u64::from(copied);
            }
        }
        drop(gather);
        self.spaces.push(Space { real: child, model });
        if copies > 0 {
            self.note("copy of a pinned page");
        }
    }

    pub(super) fn exit(&mut self) {
        if self.spaces.len() == 1 {
            return;
        }
        let s = self.space();
        let dropped = self.random.one_in(2);
        let Space { real, .. } = self.spaces.swap_remove(s);
        if dropped {
            drop(real);
        } else {
            let mut mapped = RssStat::default();
            for region in Self::regions() {
                mapped += tally(self.machine, &real, Self::span(region.first, region.pages));
            }
            let tables = real.tables();
            let gone = real.exit(&mut vec![Slot::default(); self.slots]);
            assert_eq!(gone, RssStat { tables, ..mapped });
        }
    }

    /// The pages around that permit the same: a VMA.
    fn bounds(&self, s: usize, page: u64) -> PageRange {
        let region = Self::region_of(page);
        let of = |page| self.spaces[s].model.page(page).map(|page| page.protection);
        let same = |p: &u64| of(*p) == of(page);
        let before = (region.first..page).rev().take_while(same).count() as u64;
        let after = (page + 1..region.end()).take_while(same).count() as u64;
        Self::span(page - before, before + 1 + after)
    }

    /// An access as a CPU makes it, its faults resolved as a kernel does.
    pub(super) fn access(&mut self, access: Access) {
        let s = self.space();
        let page = self.a_page(s);
        let fault = WriteFault {
            sharing: Self::region_of(page).usage.sharing(),
            whole_folio: self.random.one_in(2),
            bounds: self.bounds(s, page),
        };
        let write = access == Access::Write;
        let mut tries = 0;
        let (frame, walked) = loop {
            tries += 1;
            assert!(tries < 8, "a fault is not resolved: page {page:#x}");
            let space = &self.spaces[s];
            let result = self.machine.access(&space.real, Self::at(page).page(), access);
            let permits = space.model.page(page).is_some_and(|model| model.permits(access));
            match result {
                Ok(found) => {
                    assert!(permits, "page {page:#x} may not be accessed: {access:?}");
                    break found;
                }
                Err(Fault::NotPresent) => {
                    let permitted = space.model.page(page).is_some_and(|page| page.protection.user);
                    assert!(!permitted, "page {page:#x} is gone");
                    return;
                }
                Err(Fault::Protection) if !permits => return,
                Err(Fault::Protection) => {
                    assert!(write, "page {page:#x} refuses a {access:?} that it permits");
                    self.write_fault(s, page, fault);
                }
                Err(Fault::Old | Fault::Clean) => {
                    space.real.mark_accessed(Self::at(page), None, write).expect("marked");
                }
            }
        };
        let (machine, space) = (&self.machine.host, &mut self.spaces[s]);
        let Some(model) = space.model.page_mut(page) else { panic!("not in the model") };
        model.young |= walked.0;
        if let Contents::Device(expected) = model.contents {
            assert_eq!(frame, expected, "page {page:#x} of space {s}");
        }
        assert_eq!(machine.read(frame.address()), model.contents.value(), "contents of page {page:#x}");
        if write {
            self.stamp += 1;
            model.dirty = true;
            model.contents.set(self.stamp);
            let written = machine.write(frame.address(), self.stamp);
            assert_eq!(written.is_none(), matches!(model.contents, Contents::Device(_)));
        }
    }

    fn write_fault(&mut self, s: usize, page: u64, fault: WriteFault) {
        let space = &mut self.spaces[s];
        let resolved = space.real.write_fault(Self::at(page), None, fault);
        let (copied, alone, reached) = match resolved {
            Ok(Resolved::Copied(n)) if n == 1 << F::GRANULE => (true, true, "page copied"),
            Ok(Resolved::Copied(_)) => (true, false, "folio copied"),
            Ok(Resolved::Reused(n)) if n == 1 << F::GRANULE => (false, true, "page reused"),
            Ok(Resolved::Reused(_)) => (false, false, "folio reused"),
            Ok(Resolved::Writable) => (false, false, "writable already"),
            Err(why) => panic!("write fault: {why}"),
        };
        self.reached.entry(reached).and_modify(|n| *n += 1).or_insert(1);
        for (at, model) in space.model.pages_mut(Self::pages(fault.bounds)) {
            if at.abs_diff(page) > if alone { 0 } else { 512 } {
                continue;
            }
            let Mapping::Page { frame, attributes, .. } = space.real.query(Self::at(at)) else {
                panic!("page {at:#x} is gone")
            };
            let anon = FolioView::of(self.machine, frame).is_ok_and(|folio| folio.kind() == FolioKind::Anon);
            if copied && anon {
                // What was copied is this mapping's own from here on.
                let value = model.contents.value().expect("memory");
                model.contents = Contents::Private(value);
            }
            if attributes.write {
                // All pages of a resolution are young and dirty.
                model.dirty |= attributes.dirty;
                model.young |= attributes.young;
            }
        }
    }

    pub(super) fn pin(&mut self) {
        if self.pins.len() >= 3 || (self.random.one_in(2) && !self.pins.is_empty()) {
            let n = self.random.below(self.pins.len() as u64) as usize;
            drop(self.pins.swap_remove(n));
            return;
        }
        let s = self.space();
        let page = self.a_page(s);
        match self.spaces[s].real.pin(Self::at(page), None) {
            Ok(pinned) => self.pins.push(pinned),
            Err(why) => assert!(matches!(why, Error::NotMapped | Error::NotPermitted), "{why}"),
        }
    }
}
