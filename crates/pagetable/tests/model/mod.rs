//! A naive model: per space a map from page to contents, permissions, accessed and dirty; and the comparison with the
//! page tables after random operations.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// A small generator, so that a run is told by its seed.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}

/// Where a page's contents are.
#[derive(Clone, Debug)]
enum Contents {
    Private(u64),
    Shared(Rc<Cell<u64>>),
}

impl Contents {
    fn value(&self) -> u64 {
        match self {
            Contents::Private(value) => *value,
            Contents::Shared(cell) => cell.get(),
        }
    }
}

#[derive(Clone, Debug)]
struct Page {
    contents: Contents,
    protection: Protection,
    /// Must be seen as young, as dirty.
    young: bool,
    dirty: bool,
}

#[derive(Clone, Debug)]
enum Slot {
    Page(Page),
    Token(u64),
}

/// The regions of an address space: first page, pages, what for. Tables' and huge leaves' borders lie within.
const REGIONS: [(u64, u64, Sharing, FolioKind); 4] = [
    (512, 1536, Sharing::Private, FolioKind::Anon),
    ((1 << 18) - 256, 768, Sharing::Private, FolioKind::Anon),
    ((1 << 27) - 300, 600, Sharing::Private, FolioKind::File),
    (1 << 20, 1024, Sharing::Shared, FolioKind::File),
];

struct Space<'m, F: Format, B: Batching> {
    real: AddressSpace<'m, F, HostMachine, B>,
    model: BTreeMap<u64, Slot>,
}

/// The page tables and the model beside them.
pub struct World<'m, F: Format, B: Batching> {
    machine: &'m HostMachine,
    random: Random,
    spaces: Vec<Space<'m, F, B>>,
    /// Folios of files, held by the page cache: the head's frame and the contents of each page.
    files: Vec<(Folio<'m>, Vec<Rc<Cell<u64>>>)>,
    pins: Vec<Folio<'m>>,
    tokens: HashMap<u64, i64>,
    stamp: u64,
    slots: usize,
    huge: bool,
    free: u64,
    trace: bool,
}

const TOKENS: u64 = 3;

impl<'m, F: Format, B: Batching> World<'m, F, B> {
    /// `huge`: huge leaves are mapped too. Without them and without contiguous blocks, young and dirty must agree
    /// exactly, else only nothing may be lost.
    pub fn new(machine: &'m HostMachine, seed: u64, huge: bool) -> Self {
        let free = machine.free_frames();
        let mut world = World {
            machine,
            random: Random(seed),
            spaces: Vec::new(),
            files: Vec::new(),
            pins: Vec::new(),
            tokens: HashMap::new(),
            stamp: 1,
            slots: 1 + seed as usize % 40,
            huge,
            free,
            trace: std::env::var_os("TRACE").is_some(),
        };
        world
            .spaces
            .push(Space { real: AddressSpace::new(machine, 0).expect("a space"), model: BTreeMap::new() });
        for order in [0, 0, 2, 4, 5, 9] {
            let head = machine.take(order).expect("frames");
            let folio = Folio::prepare(machine, head, order, FolioKind::File).expect("a folio");
            let contents = (0..1u64 << order)
                .map(|n| {
                    world.stamp += 1;
                    machine.write(head.add(n).address(), world.stamp).expect("memory");
                    Rc::new(Cell::new(world.stamp))
                })
                .collect();
            world.files.push((folio, contents));
        }
        world
    }

    fn exact(&self) -> bool {
        F::CONTIGUOUS == 1 && !self.huge
    }

    fn region_of(page: u64) -> (u64, u64, Sharing, FolioKind) {
        *REGIONS.iter().find(|r| (r.0..r.0 + r.1).contains(&page)).expect("a page of a region")
    }

    fn space(&mut self) -> usize {
        self.random.below(self.spaces.len() as u64) as usize
    }

    /// A random range within a region: often one page, often a whole table or block.
    fn range(&mut self) -> PageRange {
        let (first, pages, ..) = REGIONS[self.random.below(4) as usize];
        let mut start = first + self.random.below(pages);
        let len = match self.random.below(6) {
            0 => 1,
            1 => self.random.below(16) + 1,
            2 => {
                start &= !15;
                16 * (1 + self.random.below(8))
            }
            3 => {
                start &= !511;
                512 * (1 + self.random.below(2))
            }
            4 => pages,
            _ => self.random.below(200) + 1,
        };
        let start = start.max(first);
        PageRange::with_pages(VirtAddr::of_page(start), len.min(first + pages - start)).expect("a range")
    }

    fn pages(range: PageRange) -> std::ops::Range<u64> {
        range.start().page()..range.start().page() + range.pages()
    }

    fn a_page(&mut self) -> u64 {
        let s = self.space();
        let start = self.range().start().page();
        let model = &self.spaces[s].model;
        if model.is_empty() || self.random.below(8) == 0 {
            let (first, pages, ..) = REGIONS[self.random.below(4) as usize];
            return first + self.random.below(pages);
        }
        let (&low, &high) = (model.keys().next().expect("a page"), model.keys().last().expect("a page"));
        let at = if self.random.below(2) == 0 { low + self.random.below(high - low + 1) } else { start };
        *model.range(at..).next().map_or(&low, |(page, _)| page)
    }

    /// One random operation.
    pub fn step(&mut self) {
        let dice = self.random.below(100);
        if self.trace {
            eprintln!("op {dice}");
        }
        match dice {
            0..=17 => self.map(),
            18..=25 => self.zap(),
            26..=31 => self.protect(),
            32..=35 => self.write_protect(),
            36..=39 => self.fork(),
            40..=42 => self.exit(),
            43..=66 => self.access(true),
            67..=78 => self.access(false),
            79..=83 => self.harvest(),
            84..=87 => self.split_or_collapse(),
            88..=91 => self.remap(),
            92..=94 => self.token(),
            95..=97 => self.pin(),
            _ => self.check_some(),
        }
    }

    fn map(&mut self) {
        let s = self.space();
        let range = self.range();
        let (_, _, _, kind) = Self::region_of(range.start().page());
        let largest = if self.huge && self.random.below(2) == 0 { Level::Pud } else { Level::Pte };
        let mut page = range.start().page();
        let end = page + range.pages();
        if kind == FolioKind::Anon {
            // Aligned as a fault would place a large folio, or not.
            let order = [0, 0, 1, 3, 4, 4, 5, 9, 9][self.random.below(9) as usize];
            let Some(head) = self.machine.take(order) else { return };
            let folio = Folio::prepare(self.machine, head, order, FolioKind::Anon).expect("a folio");
            if self.random.below(4) != 0 {
                page &= !((1 << order) - 1);
            }
            let (first, pages, ..) = Self::region_of(range.start().page());
            let page = page.max(first);
            let skip = if self.random.below(5) == 0 { self.random.below(1 << order) } else { 0 };
            let len = ((1 << order) - skip).min(first + pages - page);
            let stamps: Vec<u64> = (0..len)
                .map(|n| {
                    self.stamp += 1;
                    self.machine.write(head.add(skip + n).address(), self.stamp).expect("memory");
                    self.stamp
                })
                .collect();
            let at = PageRange::with_pages(VirtAddr::of_page(page), len).expect("a range");
            if self.random.below(2) == 0 {
                self.zap_range(s, at);
            }
            // At once, or page by page as faults come.
            let real = &self.spaces[s].real;
            let result = if self.random.below(4) == 0 {
                (0..len).try_for_each(|n| {
                    let one = PageRange::with_pages(VirtAddr::of_page(page + n), 1).expect("a page");
                    real.map(one, head.add(skip + n), Attributes::anonymous(), largest)
                })
            } else {
                real.map(at, head.add(skip), Attributes::anonymous(), largest)
            };
            let done = match result {
                Ok(()) => len,
                Err(stopped) => stopped.at.page() - page,
            };
            let model = &mut self.spaces[s].model;
            if let Err(stopped) = result {
                assert_eq!(stopped.why, Error::Occupied);
                assert!(model.contains_key(&stopped.at.page()) || largest > Level::Pte, "{stopped:?}");
            }
            for n in 0..done {
                let page_ = Page {
                    contents: Contents::Private(stamps[n as usize]),
                    protection: Protection::READ_WRITE,
                    young: true,
                    dirty: true,
                };
                let old = model.insert(page + n, Slot::Page(page_));
                assert!(old.is_none());
            }
            folio.put(self.machine);
        } else {
            let which = self.random.below(self.files.len() as u64) as usize;
            let (folio, contents) = &self.files[which];
            let size = contents.len() as u64;
            let skip = self.random.below(size);
            let skip = if self.random.below(2) == 0 { 0 } else { skip };
            let sharing = Self::region_of(page).2;
            let len = (size - skip).min(end - page).min(range.pages());
            let attributes = Attributes { write: sharing == Sharing::Shared, ..Attributes::file() };
            let at = PageRange::with_pages(VirtAddr::of_page(page), len).expect("a range");
            let result = self.spaces[s].real.map(at, folio.head().add(skip), attributes, largest);
            let done = match result {
                Ok(()) => len,
                Err(stopped) => stopped.at.page() - page,
            };
            for n in 0..done {
                let cell = &contents[(skip + n) as usize];
                let page_ = Page {
                    contents: Contents::Shared(cell.clone()),
                    protection: Protection::READ_WRITE,
                    young: true,
                    dirty: false,
                };
                assert!(self.spaces[s].model.insert(page + n, Slot::Page(page_)).is_none());
            }
        }
    }

    fn forget(tokens: &mut HashMap<u64, i64>, slot: Option<Slot>) {
        if let Some(Slot::Token(token)) = slot {
            *tokens.entry(token).or_default() -= 1;
        }
    }

    fn zap(&mut self) {
        let s = self.space();
        let range = self.range();
        self.zap_range(s, range);
    }

    fn zap_range(&mut self, s: usize, range: PageRange) {
        let unmap = self.random.below(2) == 0;
        let mut slots = vec![isotherm_pagetable::Slot::default(); self.slots];
        let space = &mut self.spaces[s];
        let mut gather = space.real.gather(&mut slots);
        if unmap {
            space.real.unmap(range, &mut gather).expect("unmapped");
        } else {
            space.real.zap(range, &mut gather).expect("zapped");
        }
        drop(gather);
        for page in Self::pages(range) {
            Self::forget(&mut self.tokens, space.model.remove(&page));
        }
    }

    fn protect(&mut self) {
        let s = self.space();
        let range = self.range();
        let sharing = Self::region_of(range.start().page()).2;
        let protection = [
            Protection::READ,
            Protection::READ_WRITE,
            Protection::READ_WRITE,
            Protection::NONE,
            Protection { execute: true, ..Protection::READ },
        ][self.random.below(5) as usize];
        let mut slots = [isotherm_pagetable::Slot::default(); 4];
        let space = &mut self.spaces[s];
        let mut gather = space.real.gather(&mut slots);
        space.real.protect(range, protection, sharing, &mut gather).expect("protected");
        drop(gather);
        for (_, slot) in space.model.range_mut(Self::pages(range)) {
            if let Slot::Page(page) = slot {
                page.protection = protection;
            }
        }
    }

    fn write_protect(&mut self) {
        let s = self.space();
        let range = self.range();
        let space = &self.spaces[s];
        space.real.write_protect(range, &mut space.real.gather(&mut [])).expect("protected");
    }

    fn fork(&mut self) {
        if self.spaces.len() >= 5 {
            return self.exit();
        }
        let s = self.space();
        let pinned: Vec<Frame> = self.pins.iter().map(Folio::head).collect();
        let asid = self.random.below(100) as u16;
        let space = &self.spaces[s];
        let mut child = AddressSpace::new(self.machine, asid).expect("a space");
        let mut model = space.model.clone();
        let mut slots = [isotherm_pagetable::Slot::default(); 4];
        let mut gather = space.real.gather(&mut slots);
        for (first, pages, sharing, _) in REGIONS {
            let range = PageRange::with_pages(VirtAddr::of_page(first), pages).expect("a range");
            space.real.copy_range(&mut child, range, ForkRule::Copy(sharing), &mut gather).expect("copied");
            for (page, slot) in model.range_mut(Self::pages(range)) {
                match slot {
                    Slot::Page(p) => {
                        p.young = false;
                        let real = child.query(VirtAddr::of_page(*page));
                        // A pinned page was copied: the child's is new.
                        let copied = matches!(real, Mapping::Page { attributes, .. } if attributes.exclusive);
                        assert!(!copied || !pinned.is_empty());
                        p.dirty = sharing == Sharing::Private && (p.dirty || copied);
                    }
                    Slot::Token(token) => *self.tokens.entry(*token).or_default() += 1,
                }
            }
        }
        drop(gather);
        self.spaces.push(Space { real: child, model });
    }

    fn exit(&mut self) {
        if self.spaces.len() == 1 {
            return;
        }
        let s = self.space();
        let space = self.spaces.swap_remove(s);
        for (_, slot) in space.model {
            Self::forget(&mut self.tokens, Some(slot));
        }
        match self.random.below(2) {
            0 => drop(space.real),
            _ => space.real.exit(&mut vec![isotherm_pagetable::Slot::default(); self.slots]),
        }
    }

    /// The pages around that permit the same: a VMA.
    fn bounds(&self, s: usize, page: u64) -> PageRange {
        let (first, pages, ..) = Self::region_of(page);
        let of = |page| match self.spaces[s].model.get(&page) {
            Some(Slot::Page(p)) => Some(p.protection),
            _ => None,
        };
        let same = |p: &u64| of(*p) == of(page);
        let before = (first..page).rev().take_while(same).count() as u64;
        let after = (page + 1..first + pages).take_while(same).count() as u64;
        PageRange::with_pages(VirtAddr::of_page(page - before), before + 1 + after).expect("a range")
    }

    /// An access as a CPU makes it, its faults resolved as a kernel does.
    fn access(&mut self, write: bool) {
        let s = self.space();
        let page = self.a_page();
        let at = VirtAddr::of_page(page);
        let sharing = Self::region_of(page).2;
        let whole_folio = self.random.below(2) == 0;
        let bounds = self.bounds(s, page);
        let access = if write { Access::Write } else { Access::Read };
        self.stamp += 1;
        let value = self.stamp;
        let (machine, space) = (self.machine, &mut self.spaces[s]);
        let mut tries = 0;
        let frame = loop {
            tries += 1;
            assert!(tries < 8, "a fault is not resolved: page {page:#x}");
            let result = {
                use isotherm_pagetable::Rcu;
                let guard = machine.read_lock();
                space.real.access(&guard, at, access)
            };
            let permits = match space.model.get(&page) {
                Some(Slot::Page(p)) => p.protection.user && (!write || p.protection.write),
                _ => false,
            };
            match result {
                Ok(frame) => {
                    assert!(permits, "page {page:#x} may not be accessed");
                    break frame;
                }
                Err(Fault::NotPresent) => {
                    assert!(!matches!(space.model.get(&page), Some(Slot::Page(_))), "page {page:#x} is gone");
                    return;
                }
                Err(Fault::Protection) if !permits => return,
                Err(Fault::Protection) => {
                    assert!(write, "page {page:#x} is not readable");
                    let fault = WriteFault { sharing, bounds, whole_folio };
                    match space.real.write_fault(at, fault) {
                        Ok(Resolved::Copied(n)) => {
                            // What the copy was made of became private, dirty and young.
                            let copied = n;
                            for (&p, slot) in
                                space.model.range_mut(page.saturating_sub(copied)..page + copied)
                            {
                                let Slot::Page(model) = slot else { continue };
                                let Mapping::Page { frame, .. } = space.real.query(VirtAddr::of_page(p))
                                else {
                                    panic!("page {p:#x} is gone")
                                };
                                let private =
                                    Folio::of(machine, frame).expect("a folio").kind() == FolioKind::Anon;
                                if private {
                                    model.contents = Contents::Private(model.contents.value());
                                }
                            }
                        }
                        Ok(_) => {}
                        Err(why) => panic!("write fault: {why}"),
                    }
                    // All pages of the resolution are young and dirty.
                    for (&p, slot) in space.model.range_mut(page.saturating_sub(512)..page + 512) {
                        if let (Slot::Page(model), Mapping::Page { attributes: a, .. }) =
                            (slot, space.real.query(VirtAddr::of_page(p)))
                            && a.write
                        {
                            model.dirty |= a.dirty;
                            model.young |= a.young;
                        }
                    }
                }
                Err(Fault::Old | Fault::Clean) => space.real.mark_accessed(at, write).expect("marked"),
            }
        };
        let Some(Slot::Page(model)) = space.model.get_mut(&page) else { panic!("not in the model") };
        model.young = true;
        assert_eq!(machine.read(frame.address()), Some(model.contents.value()), "contents of page {page:#x}");
        if write {
            model.dirty = true;
            machine.write(frame.address(), value).expect("memory");
            match &mut model.contents {
                Contents::Private(own) => *own = value,
                Contents::Shared(cell) => cell.set(value),
            }
        }
    }

    fn harvest(&mut self) {
        let s = self.space();
        let range = self.range();
        let mut bitmap = vec![0; range.pages().div_ceil(64) as usize];
        let exact = self.exact();
        let space = &mut self.spaces[s];
        let before: Vec<Mapping> =
            Self::pages(range).map(|p| space.real.query(VirtAddr::of_page(p))).collect();
        let young = space.real.harvest_young(range, &mut bitmap).expect("harvested");
        let mut count = 0;
        for (n, page) in Self::pages(range).enumerate() {
            let bit = bitmap[n / 64] >> (n % 64) & 1 == 1;
            count += u64::from(bit);
            let was = matches!(before[n], Mapping::Page { attributes, .. } if attributes.young);
            assert_eq!(bit, was, "page {page:#x}");
            match space.model.get_mut(&page) {
                Some(Slot::Page(model)) => {
                    assert!(bit || !model.young, "an access to page {page:#x} was lost");
                    assert!(!exact || bit == model.young, "page {page:#x} was not accessed");
                    model.young = false;
                }
                _ => assert!(!bit),
            }
        }
        assert_eq!(young, count);
        // A block or huge leaf at the border is old as a whole now.
        let first = range.start().page();
        for (_, slot) in space.model.range_mut(first & !511..(first + range.pages() + 511) & !511) {
            if let (Slot::Page(model), false) = (slot, exact) {
                model.young = false;
            }
        }
    }

    fn split_or_collapse(&mut self) {
        let s = self.space();
        let page = self.a_page();
        let at = VirtAddr::of_page(page);
        let collapse = self.huge && self.random.below(2) == 0;
        let space = &mut self.spaces[s];
        if !collapse {
            return space.real.split(at).expect("split");
        }
        // Not across the end of a region.
        let first = page & !511;
        let (start, pages, _, kind) = Self::region_of(page);
        if first < start || first + 512 > start + pages {
            return;
        }
        let mut slots = [isotherm_pagetable::Slot::default(); 4];
        let mut gather = space.real.gather(&mut slots);
        let result = space.real.collapse(at, 511, &mut gather);
        drop(gather);
        if let Ok(Collapsed::Copied { .. }) = result {
            assert_eq!(kind, FolioKind::Anon);
            let Mapping::Page { attributes, level: Level::Pmd, .. } = space.real.query(at) else {
                panic!("not a huge leaf")
            };
            for p in first..first + 512 {
                let protection = Protection {
                    user: attributes.user,
                    write: attributes.write,
                    execute: attributes.execute,
                };
                let slot = space.model.entry(p).or_insert(Slot::Page(Page {
                    contents: Contents::Private(0),
                    protection,
                    young: false,
                    dirty: true,
                }));
                if let Slot::Page(model) = slot {
                    model.dirty = true;
                }
            }
        }
    }

    fn remap(&mut self) {
        let s = self.space();
        let from = self.range();
        let (first, pages, sharing, kind) = Self::region_of(from.start().page());
        // To the same kind of region.
        let (to_first, to_pages) = if kind == FolioKind::Anon {
            let (a, b, ..) = REGIONS[self.random.below(2) as usize];
            (a, b)
        } else {
            (first, pages)
        };
        let _ = sharing;
        if from.pages() > to_pages {
            return;
        }
        let mut to = to_first + self.random.below(to_pages - from.pages() + 1);
        if self.random.below(2) == 0 {
            to = ((to & !511) | (from.start().page() & 511)).max(to_first);
            if to + from.pages() > to_first + to_pages {
                return;
            }
        }
        let space = &mut self.spaces[s];
        let start = from.start().page();
        let result = space.real.remap(from, VirtAddr::of_page(to));
        let done = match result {
            Ok(()) => from.pages(),
            Err(stopped) => {
                assert_eq!(stopped.why, Error::Occupied);
                stopped.at.page() - start
            }
        };
        for n in 0..done {
            if let Some(slot) = space.model.remove(&(start + n)) {
                let old = space.model.insert(to + n, slot);
                assert!(old.is_none(), "page {:#x} was mapped", to + n);
            }
        }
    }

    fn token(&mut self) {
        let s = self.space();
        let token = 1 + self.random.below(TOKENS);
        if self.random.below(2) == 0 {
            let page = self.a_page();
            let space = &mut self.spaces[s];
            let mut slots = [isotherm_pagetable::Slot::default(); 2];
            let mut gather = space.real.gather(&mut slots);
            match space.real.swap_out(VirtAddr::of_page(page), token, &mut gather) {
                Ok(_) => {
                    let old = space.model.insert(page, Slot::Token(token));
                    assert!(matches!(old, Some(Slot::Page(_))));
                    *self.tokens.entry(token).or_default() += 1;
                }
                Err(Error::NotMapped) => assert!(!matches!(space.model.get(&page), Some(Slot::Page(_)))),
                Err(Error::Pinned) => {}
                Err(why) => panic!("swap out: {why}"),
            }
        } else {
            let range = self.range();
            let space = &mut self.spaces[s];
            let start = range.start().page();
            let done = match space.real.map_token(range, token) {
                Ok(()) => range.pages(),
                Err(stopped) => {
                    assert_eq!(stopped.why, Error::Occupied);
                    stopped.at.page() - start
                }
            };
            for n in 0..done {
                assert!(space.model.insert(start + n, Slot::Token(token)).is_none());
                *self.tokens.entry(token).or_default() += 1;
            }
        }
    }

    fn pin(&mut self) {
        if self.pins.len() >= 3 || (self.random.below(2) == 0 && !self.pins.is_empty()) {
            let n = self.random.below(self.pins.len() as u64) as usize;
            self.pins.swap_remove(n).unpin(self.machine);
            return;
        }
        let s = self.space();
        let page = self.a_page();
        match self.spaces[s].real.pin(VirtAddr::of_page(page)) {
            Ok(frame) => self.pins.push(Folio::of(self.machine, frame).expect("a folio")),
            Err(why) => assert!(matches!(why, Error::NotMapped | Error::NotPermitted), "{why}"),
        }
    }

    fn check_some(&mut self) {
        if self.random.below(8) == 0 {
            self.check();
        }
    }

    /// Compares everything.
    pub fn check(&self) {
        let mut maps: HashMap<Frame, u32> = HashMap::new();
        for (s, space) in self.spaces.iter().enumerate() {
            let mut seen = 0;
            for (first, pages, ..) in REGIONS {
                let range = PageRange::with_pages(VirtAddr::of_page(first), pages).expect("a range");
                space
                    .real
                    .runs(range, |run| {
                        for n in 0..run.pages {
                            seen += 1;
                            self.check_page(s, run.at.page() + n, n, &run, &mut maps);
                        }
                    })
                    .expect("runs");
            }
            assert_eq!(seen, space.model.len(), "pages of space {s}");
            for (&page, _) in space.model.iter().step_by(97) {
                use isotherm_pagetable::Rcu;
                let guard = self.machine.read_lock();
                assert_eq!(
                    space.real.lookup(&guard, VirtAddr::of_page(page)),
                    space.real.query(VirtAddr::of_page(page))
                );
            }
        }
        for (&head, &count) in &maps {
            let folio = Folio::of(self.machine, head).expect("a folio");
            let cache = u32::from(self.files.iter().any(|(file, _)| file.head() == head));
            let pins = self.pins.iter().filter(|pin| pin.head() == head).count() as u32;
            assert_eq!(folio.maps(), count, "mappings of {head:?}");
            assert_eq!(folio.refs(), count + cache + pins, "references of {head:?}");
            assert_eq!(folio.pins(), pins);
        }
    }

    fn check_page(&self, s: usize, page: u64, n: u64, run: &MappedRun, maps: &mut HashMap<Frame, u32>) {
        match (self.spaces[s].model.get(&page), run.mapping) {
            (Some(Slot::Token(token)), Mapping::Token(real)) => assert_eq!(*token, real),
            (Some(Slot::Page(model)), Mapping::Page { frame, attributes, .. }) => {
                let frame = frame.add(n);
                let folio = Folio::of(self.machine, frame).expect("a folio");
                *maps.entry(folio.head()).or_default() += 1;
                let found = self.machine.read(frame.address());
                assert_eq!(found, Some(model.contents.value()), "contents of page {page:#x} of space {s}");
                assert_eq!(attributes.user, model.protection.user, "page {page:#x} of space {s}");
                assert_eq!(attributes.execute, model.protection.execute, "page {page:#x} of space {s}");
                assert!(
                    model.protection.write || !attributes.write,
                    "page {page:#x} of space {s} is writable"
                );
                assert!(attributes.young || !model.young, "page {page:#x} of space {s}: an access was lost");
                assert!(attributes.dirty || !model.dirty, "page {page:#x} of space {s}: a write was lost");
                if self.exact() {
                    assert_eq!(attributes.young, model.young, "young of page {page:#x} of space {s}");
                    assert_eq!(attributes.dirty, model.dirty, "dirty of page {page:#x} of space {s}");
                }
            }
            (model, real) => panic!("page {page:#x} of space {s}: {real:?} instead of {model:?}"),
        }
    }

    /// Ends everything: all frames must be free again.
    pub fn finish(mut self) {
        self.check();
        for space in self.spaces.drain(..) {
            for (_, slot) in space.model {
                Self::forget(&mut self.tokens, Some(slot));
            }
            drop(space.real);
        }
        for pin in self.pins.drain(..) {
            pin.unpin(self.machine);
        }
        for (file, contents) in self.files.drain(..) {
            assert_eq!((file.refs(), file.maps()), (1, 0), "a file's folio of {} pages", contents.len());
            file.put(self.machine);
        }
        assert!(self.tokens.values().all(|&n| n == 0));
        assert_eq!(self.machine.free_frames(), self.free, "frames were lost");
    }
}
