//! Operations on ranges: map, zap and unmap, protect, remap, swap entries.

use isotherm_pagetable::*;

use super::naive::{Contents, Page, Place};
use super::{Cpu, Region, SWAP_ENTRIES, Space, Use, World, ZEROS_ORDER, prepare, take};

/// What is mapped in a range, by a walk of its own.
pub(super) fn tally<F: Format>(machine: &Cpu, space: &AddressSpace<'_, F, Cpu>, range: PageRange) -> RssStat {
    let mut stat = RssStat::default();
    let each = |run: MappedRun| match run.mapping {
        Mapping::Page { attributes, .. } if attributes.special => stat.special += run.pages,
        Mapping::Page { frame, .. } => match FolioView::of(machine, frame).map(|folio| folio.kind()) {
            Ok(FolioKind::Anon) => stat.anon += run.pages,
            Ok(FolioKind::File) => stat.file += run.pages,
            Err(why) => panic!("{frame} is mapped: {why}"),
        },
        Mapping::SwapEntry(_) => stat.swap_entries += run.pages,
        Mapping::None => {}
    };
    space.runs(range, each).expect("a walk");
    stat
}

impl<'m, F: Format> World<'m, F> {
    pub(super) fn map(&mut self) {
        let s = self.space();
        let range = self.range();
        let region = Self::region_of(Self::first(range));
        let largest = if self.huge && self.random.one_in(2) { Level::Pud } else { Level::Pte };
        if F::GRANULE == 0 && largest > Level::Pte && self.random.one_in(2) {
            return self.map_huge(s, Self::first(range) & !511, region);
        }
        match region.usage {
            Use::Anon if self.random.one_in(12) => self.map_zeros(s, range),
            Use::Anon => self.map_anon(s, Self::first(range), region, largest),
            Use::FilePrivate | Use::FileShared => self.map_file(s, range, largest),
            Use::Device => {
                // Aligned as the addresses are, or not.
                let skew = self.random.of(&[0, 0, 0, 1, 16]);
                self.map_device(s, range, skew, largest);
            }
        }
    }

    /// Maps consecutive frames; how many pages were, before something was in the way.
    fn map_pages(
        &mut self,
        s: usize,
        range: PageRange,
        first: Frame,
        attributes: Attributes,
        largest: Level,
        contents: impl Fn(u64) -> Contents,
    ) {
        let result = self.spaces[s].real.map(range, first, attributes, largest);
        let start = Self::first(range);
        let model = &mut self.spaces[s].model;
        let (done, stat) = match result {
            Ok(stat) => (Self::count(range), stat),
            Err(stopped) => {
                assert_eq!(stopped.why, Error::Occupied);
                let at = Self::page_of(stopped.at);
                assert!(model.get(at).is_some(), "{stopped}, but nothing is there");
                (at - start, stopped.done)
            }
        };
        assert_eq!((stat.resident() + stat.special, stat.swap_entries), (done << F::GRANULE, 0));
        for n in 0..done {
            model.put(start + n, Place::Page(Page::new(contents(n), attributes.dirty)));
        }
    }

    /// Maps 2 MiB where nothing is, mostly not even a table, so that a huge leaf fits.
    fn map_huge(&mut self, s: usize, page: u64, region: Region) {
        if page < region.first || page + 512 > region.end() {
            return;
        }
        let range = Self::span(page, 512);
        let unmap = !self.random.one_in(4);
        self.zap_range(s, range, unmap);
        match region.usage {
            Use::Anon => {
                let Some(head) = take(&self.machine.host, 9) else { return };
                let folio = prepare(self.machine, head, 9, FolioKind::Anon).expect("a folio");
                let first = self.stamp + 1;
                for n in 0..512 {
                    self.write_stamp(head.add(n));
                }
                let contents = |n| Contents::Private(first + n);
                self.map_pages(s, range, head, Attributes::anonymous(), Level::Pmd, contents);
                drop(folio);
            }
            Use::FilePrivate | Use::FileShared => {
                let Some((folio, cells)) = self.files.iter().find(|(folio, _)| folio.order() == Order::HUGE)
                else {
                    return;
                };
                let (head, cells) = (folio.head(), cells.clone());
                let write = region.usage.sharing() == Sharing::Shared;
                let attributes = Attributes { write, ..Attributes::file() };
                let contents = |n| Contents::Shared(cells[n as usize].clone());
                self.map_pages(s, range, head, attributes, Level::Pmd, contents);
            }
            Use::Device => self.map_device(s, range, 0, Level::Pmd),
        }
        self.note("huge leaf");
        if self.random.one_in(3) {
            self.split_and_collapse(s, page);
        }
    }

    fn map_device(&mut self, s: usize, range: PageRange, skew: u64, largest: Level) {
        let first = Frame((super::DEVICE + Self::first(range) + skew) << F::GRANULE);
        let attributes =
            Attributes { write: true, special: true, memory: MemoryType::Device, ..Attributes::file() };
        self.map_pages(s, range, first, attributes, largest, |n| Contents::Device(Self::frame(first, n)));
    }

    /// Pages that were read and never written: frames of zeros that belong to no folio.
    fn map_zeros(&mut self, s: usize, range: PageRange) {
        let len = Self::count(range).min(1 << ZEROS_ORDER);
        let range = Self::span(Self::first(range), len);
        let attributes = Attributes { special: true, ..Attributes::file() };
        self.map_pages(s, range, self.zeros.frame(), attributes, Level::Pte, |_| Contents::Private(0));
    }

    pub(super) fn map_anon(&mut self, s: usize, page: u64, region: Region, largest: Level) {
        let largest_folio = if cfg!(miri) { 5 } else { 9 }.min(MAX_ORDER.get() - F::GRANULE as u8);
        let order = self.random.of(&[0, 0, 1, 3, 4, 4, 5, 9, 9]).min(largest_folio);
        // Aligned as a fault would place a large folio, or not.
        let aligned = !self.random.one_in(4);
        let page = if aligned { page & !((1 << order) - 1) } else { page }.max(region.first);
        let skip = if self.random.one_in(5) { self.random.below(1 << order) } else { 0 };
        let (zap, by_page) = (self.random.one_in(2), self.random.one_in(4));
        let Some(head) = take(&self.machine.host, Self::order(order)) else { return };
        let folio = prepare(self.machine, head, Self::order(order), FolioKind::Anon).expect("a folio");
        let len = ((1 << order) - skip).min(Self::reach(region) - page);
        let stamps: Vec<u64> = (0..len).map(|n| self.write_stamp(Self::frame(head, skip + n))).collect();
        let at = Self::span(page, len);
        if zap {
            let unmap = self.random.one_in(2);
            self.zap_range(s, at, unmap);
        }
        // At once, or page by page as faults come.
        if by_page {
            for n in 0..len {
                let one = Self::span(page + n, 1);
                let first = Self::frame(head, skip + n);
                let contents = |_| Contents::Private(stamps[n as usize]);
                self.map_pages(s, one, first, Attributes::anonymous(), largest, contents);
            }
        } else {
            let contents = |n| Contents::Private(stamps[n as usize]);
            self.map_pages(s, at, Self::frame(head, skip), Attributes::anonymous(), largest, contents);
        }
        drop(folio);
    }

    fn map_file(&mut self, s: usize, range: PageRange, largest: Level) {
        let which = self.random.below(self.files.len() as u64) as usize;
        let size = self.files[which].1.len() as u64;
        let skip = self.random.below(size);
        let skip = if self.random.one_in(2) { 0 } else { skip };
        let len = (size - skip).min(Self::count(range));
        let sharing = Self::region_of(Self::first(range)).usage.sharing();
        let attributes = Attributes { write: sharing == Sharing::Shared, ..Attributes::file() };
        let at = Self::span(Self::first(range), len);
        let first = Self::frame(self.files[which].0.head(), skip);
        let cells = self.files[which].1.clone();
        let contents = |n| Contents::Shared(cells[(skip + n) as usize].clone());
        self.map_pages(s, at, first, attributes, largest, contents);
    }

    pub(super) fn zap(&mut self) {
        let s = self.space();
        let range = self.range();
        let unmap = self.random.one_in(2);
        self.zap_range(s, range, unmap);
    }

    pub(super) fn zap_range(&mut self, s: usize, range: PageRange, unmap: bool) {
        let mut slots = vec![Slot::default(); self.slots];
        let Space { real, model } = &self.spaces[s];
        let expected = tally(self.machine, real, range);
        let places = Self::pages(range).filter(|&page| model.get(page).is_some()).count() as u64;
        assert_eq!(expected.resident() + expected.special + expected.swap_entries, places << F::GRANULE);
        let mut gather = real.gather(&mut slots);
        let gone = if unmap { real.unmap(range, &mut gather) } else { real.zap(range, &mut gather) };
        let gone = gone.expect("zapped");
        drop(gather);
        assert_eq!(RssStat { tables: 0, splits: 0, ..gone }, expected);
        for page in Self::pages(range) {
            self.spaces[s].model.take(page);
        }
    }

    pub(super) fn protect(&mut self) {
        let s = self.space();
        let range = self.range();
        let sharing = Self::region_of(Self::first(range)).usage.sharing();
        let protection = self.random.of(&[
            Protection::READ,
            Protection::READ_WRITE,
            Protection::READ_WRITE,
            Protection::NONE,
            Protection { execute: true, ..Protection::READ },
        ]);
        let mut slots = [Slot::default(); 4];
        let space = &mut self.spaces[s];
        let mut gather = space.real.gather(&mut slots);
        space.real.protect(range, protection, sharing, &mut gather).expect("protected");
        drop(gather);
        for (_, page) in space.model.pages_mut(Self::pages(range)) {
            page.protection = protection;
        }
    }

    pub(super) fn write_protect(&mut self) {
        let s = self.space();
        let range = self.range();
        let real = &self.spaces[s].real;
        real.write_protect(range, &mut real.gather(&mut [])).expect("protected");
        let page = Self::first(range);
        if let Mapping::Page { frame, attributes, .. } = real.query(Self::at(page)) {
            self.exchange(s, page, frame, attributes);
        }
    }

    pub(super) fn remap(&mut self) {
        let s = self.space();
        let from = self.range();
        let region = Self::region_of(Self::first(from));
        // To a region of the same use.
        let anon = region.usage == Use::Anon;
        let target = if anon { self.random.of(&Self::regions()[..3]) } else { region };
        if Self::count(from) > target.pages {
            return;
        }
        let mut to = target.first + self.random.below(target.pages - Self::count(from) + 1);
        if self.random.one_in(2) {
            // Aligned to tables as the source is.
            to = ((to & !511) | (Self::first(from) & 511)).max(target.first);
            if to + Self::count(from) > target.end() {
                return;
            }
        }
        let space = &mut self.spaces[s];
        let start = Self::first(from);
        let done = match space.real.remap(from, Self::at(to)) {
            Ok(_) => Self::count(from),
            Err(Stopped { why: Error::Overlapping, at, .. }) => {
                assert!(at == from.start() && to.abs_diff(start) < Self::count(from));
                0
            }
            Err(stopped) => {
                assert_eq!(stopped.why, Error::Occupied);
                let done = Self::page_of(stopped.at) - start;
                assert!(space.model.get(to + done).is_some(), "{stopped}, but nothing is at its target");
                done
            }
        };
        for n in 0..done {
            if let Some(place) = space.model.take(start + n) {
                space.model.put(to + n, place);
            }
        }
    }

    pub(super) fn swap_entry(&mut self) {
        let s = self.space();
        let swap_entry = 1 + self.random.below(SWAP_ENTRIES - 1);
        if self.random.one_in(2) {
            let page = self.a_page(s);
            match self.spaces[s].real.query(Self::at(page)) {
                Mapping::SwapEntry(seen) => self.swap_in(s, page, seen),
                Mapping::Page { frame, attributes, .. } if self.random.one_in(3) => {
                    self.exchange(s, page, frame, attributes);
                }
                Mapping::Page { frame, .. } => self.swap_out(s, page, frame, swap_entry),
                Mapping::None => assert!(self.spaces[s].model.get(page).is_none()),
            }
            return;
        }
        let range = self.range();
        let space = &mut self.spaces[s];
        let start = Self::first(range);
        let done = match space.real.map_swap_entry(range, swap_entry) {
            Ok(_) => Self::count(range),
            Err(stopped) => {
                assert_eq!(stopped.why, Error::Occupied);
                assert!(
                    space.model.get(Self::page_of(stopped.at)).is_some(),
                    "{stopped}, but nothing is there"
                );
                Self::page_of(stopped.at) - start
            }
        };
        for n in 0..done {
            space.model.put(start + n, Place::SwapEntry(swap_entry));
        }
        *self.swap_entries.entry(swap_entry).or_default() += done as i64;
    }

    /// A folio of one page with this in it.
    fn new_page(&mut self, value: u64) -> Option<Folio<'m, Cpu>> {
        let head = take(&self.machine.host, Self::order(0))?;
        let folio = prepare(self.machine, head, Self::order(0), FolioKind::Anon).expect("a folio");
        self.machine.host.write(head.address(), value).expect("memory");
        Some(folio)
    }

    /// The page comes back, with something new in it.
    fn swap_in(&mut self, s: usize, page: u64, seen: SwapEntry) {
        self.stamp += 1;
        let stamp = self.stamp;
        if Self::region_of(page).usage.sharing() == Sharing::Shared {
            // Where the page is every sharer's, which the model does not know.
            return;
        }
        let Some(folio) = self.new_page(stamp) else { return };
        let write = seen.exclusive;
        let attributes = Attributes { write, exclusive: seen.exclusive, ..Attributes::anonymous() };
        let by = Replacement::Page { frame: folio.head(), attributes };
        let at = Self::at(page);
        let space = &mut self.spaces[s];
        let mut gather = space.real.gather(&mut []);
        let other = SwapEntry { exclusive: !seen.exclusive, ..seen };
        for wrong in [
            Seen::SwapEntry(other),
            Seen::SwapEntry(SwapEntry { value: 1 << 20, ..seen }),
            Seen::Page(Frame(0)),
        ] {
            assert_eq!(space.real.replace(at, wrong, by, &mut gather), Err(Error::Changed));
        }
        let found = space.real.replace(at, Seen::SwapEntry(seen), by, &mut gather);
        assert_eq!(found, Ok(Mapping::SwapEntry(seen)));
        space.model.replace(page, Place::Page(Page::new(Contents::Private(stamp), true)));
        self.note("swapped in");
    }

    /// Another page with the same contents takes the place of one that is read-only: as it is, where the page's number is odd.
    fn exchange(&mut self, s: usize, page: u64, frame: Frame, attributes: Attributes) {
        let value = self.spaces[s].model.page(page).and_then(|page| page.contents.value());
        let (Some(value), Use::Anon) = (value, Self::region_of(page).usage) else { return };
        let Some(folio) = self.new_page(value) else { return };
        let new = Attributes { special: false, exclusive: true, ..attributes };
        let moves = page % 2 == 1;
        let by = match moves {
            true => Replacement::Moved(folio.head()),
            false => Replacement::Page { frame: folio.head(), attributes: new },
        };
        let space = &mut self.spaces[s];
        let mut slots = [Slot::default(); 2];
        let mut gather = space.real.gather(&mut slots);
        match space.real.replace(Self::at(page), Seen::Page(frame), by, &mut gather) {
            Ok(_) => {
                assert!(!attributes.write);
                let model = space.model.page_mut(page).expect("a page");
                // Young and dirty of a block or a huge leaf were those of all its pages.
                (model.young, model.dirty) = (attributes.young, attributes.dirty);
                model.contents = Contents::Private(value);
                self.note(if moves { "moved" } else { "exchanged" });
            }
            Err(Error::NotPermitted) => assert!(attributes.write),
            Err(Error::NotMapped) => assert!(attributes.special && moves),
            Err(Error::Pinned) => assert!(!self.pins.is_empty()),
            Err(why) => panic!("exchange: {why}"),
        }
    }

    fn swap_out(&mut self, s: usize, page: u64, frame: Frame, swap_entry: u64) {
        let space = &mut self.spaces[s];
        let at = Self::at(page);
        let special = matches!(space.real.query(at), Mapping::Page { attributes, .. } if attributes.special);
        let mut slots = [Slot::default(); 2];
        let mut gather = space.real.gather(&mut slots);
        let other = Frame(frame.0 ^ (1 << F::GRANULE));
        if FolioView::of(self.machine, other).is_ok() {
            assert_eq!(space.real.swap_out(at, other, swap_entry, &mut gather), Err(Error::Changed));
        }
        match space.real.swap_out(at, frame, swap_entry, &mut gather) {
            Ok(dirty) => {
                let old = space.model.replace(page, Place::SwapEntry(swap_entry));
                self.note("swapped out");
                let Some(Place::Page(old)) = old else { panic!("page {page:#x} was not mapped") };
                assert!(dirty || !old.dirty, "page {page:#x} goes to swap, and its write is lost");
                *self.swap_entries.entry(swap_entry).or_default() += 1;
            }
            Err(Error::NotMapped) => assert!(special || space.model.page(page).is_none()),
            Err(Error::Pinned) => assert!(!self.pins.is_empty()),
            Err(why) => panic!("swap out: {why}"),
        }
    }
}
