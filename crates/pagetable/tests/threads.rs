//! Threads that do everything at once to one address space: fork, zap, map, protect, harvest, split and collapse, of
//! folios too, move, swap, lookups without a lock, and accesses that set bits as hardware does. No lock of the caller's orders them, so
//! what a page maps to is open; what must hold at rest is not: counts are exact, every frame comes back, and no access
//! that was permitted is forgotten.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

mod common;

use std::sync::atomic::{AtomicU64, Ordering};

use common::{at, pages, prepare, take};
use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

/// Phases, in each of which all threads run, so that none is done long before the others begin. `PHASES` asks for
/// others, where threads are slow to start.
fn phases() -> u64 {
    let usual = if cfg!(miri) {
        3
    } else if cfg!(debug_assertions) {
        1_000
    } else {
        4_000
    };
    std::env::var("PHASES").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

/// Private memory, over a table's border: the second table can be huge.
const FIRST: u64 = 496;
const PAGES: u64 = if cfg!(miri) { 32 } else { 16 + 512 + 16 };
/// Where it is moved to and back.
const ELSEWHERE: u64 = 4096;
/// A file's folios of order 2, mapped at one place each, so that an access to a page is one to its folio.
const FILE: u64 = 1 << 19;
const FILES: u64 = if cfg!(miri) { 8 } else { 64 };

type Space<'m, F> = AddressSpace<'m, F, HostMachine>;

fn done(result: Result<RssStat, Stopped>) {
    result.unwrap();
}

fn a_range(random: &mut Random) -> PageRange {
    let first = random.below(PAGES);
    let len = match random.below(4) {
        0 => 1,
        1 => 16,
        2 => PAGES,
        _ => 1 + random.below(40),
    };
    pages(FIRST + first, len.min(PAGES - first))
}

/// What threads share beside the space.
struct Shared<'m, F: Format> {
    space: Space<'m, F>,
    files: Vec<Folio<'m, HostMachine>>,
    /// Folios of the file that an access was permitted to, a write; and those that were found young since.
    accessed: Vec<AtomicU64>,
    written: Vec<AtomicU64>,
    found: Vec<AtomicU64>,
    swap_entries: AtomicU64,
    folio_splits: AtomicU64,
}

const FAULT: WriteFault = WriteFault {
    sharing: Sharing::Private,
    bounds: match PageRange::with_pages(VirtAddr::of_page(FIRST), PAGES) {
        Ok(range) => range,
        Err(_) => panic!("a range"),
    },
    whole_folio: false,
};

impl<F: Format> Shared<'_, F> {
    fn machine(&self) -> &HostMachine {
        self.space.machine()
    }

    /// A program: accesses, and the faults that they raise.
    fn program(&self, random: &mut Random) {
        let write = random.below(2) == 0;
        let access = if write { Access::Write } else { Access::Read };
        let file = random.below(2) == 0;
        let page = if file { FILE + random.below(FILES * 4) } else { FIRST + random.below(PAGES) };
        let result = self.space.read().access(at(page), access);
        match result {
            Ok(_) if file => {
                let n = ((page - FILE) / 4) as usize;
                self.accessed[n].store(1, Ordering::Relaxed);
                if write {
                    self.written[n].store(1, Ordering::Relaxed);
                }
            }
            Ok(_) | Err(Fault::NotPresent) => {}
            Err(Fault::Protection) if file => {
                let fault = WriteFault {
                    sharing: Sharing::Shared,
                    bounds: pages(FILE, FILES * 4),
                    whole_folio: random.below(2) == 0,
                };
                let result = self.space.write_fault(at(page), None, fault);
                // Meanwhile nobody may access it any more.
                assert!(matches!(result, Ok(_) | Err(Error::NotMapped | Error::NotPermitted)), "{result:?}");
            }
            Err(Fault::Protection) => {
                let fault = WriteFault { whole_folio: random.below(2) == 0, ..FAULT };
                let result = self.space.write_fault(at(page), None, fault);
                assert!(
                    matches!(
                        result,
                        Ok(_) | Err(Error::NotMapped | Error::NotPermitted | Error::NoFolioFrames(_))
                    ),
                    "{result:?}"
                );
            }
            Err(Fault::Old | Fault::Clean) => {
                let result = self.space.mark_accessed(at(page), None, write);
                assert!(matches!(result, Ok(()) | Err(Error::NotMapped | Error::NotPermitted)), "{result:?}");
            }
        }
    }

    /// Populates what is empty.
    fn populate(&self, random: &mut Random) {
        let machine = self.machine();
        let order = [0, 0, 2, 4, 9][random.below(if cfg!(miri) { 4 } else { 5 }) as usize];
        let Some(head) = take(machine, order) else { return };
        let folio = prepare(machine, head, order, FolioKind::Anon).unwrap();
        let mut page = ((FIRST + random.below(PAGES)) & !((1 << order) - 1)).max(FIRST);
        if order == 9 {
            // A huge leaf needs a place where not even a table is.
            page = 512;
            self.space.unmap(pages(page, 512), &mut self.space.gather(&mut [])).unwrap();
        }
        let len = (1 << order).min(FIRST + PAGES - page);
        let largest = if random.below(2) == 0 { Level::Pmd } else { Level::Pte };
        let result = self.space.map(pages(page, len), head, Attributes::anonymous(), largest);
        assert!(result.is_ok() || result.is_err_and(|stopped| stopped.why == Error::Occupied));
        drop(folio);
        let n = random.below(FILES);
        let clean = Attributes { write: true, young: false, ..Attributes::file() };
        let _ = self.space.map(pages(FILE + 4 * n, 4), self.files[n as usize].head(), clean, Level::Pte);
    }

    fn fork(&self, random: &mut Random) {
        let child = Space::new(self.machine(), 7).unwrap();
        let mut slots = [Slot::default(); 16];
        let mut gather = self.space.gather(&mut slots);
        let (private, shared) = (ForkRule::Copy(Sharing::Private), ForkRule::Copy(Sharing::Shared));
        self.space.copy_range(&child, FAULT.bounds, private, &mut gather).unwrap();
        self.space.copy_range(&child, pages(FILE, FILES * 4), shared, &mut gather).unwrap();
        drop(gather);
        for _ in 0..random.below(8) {
            let page = FIRST + random.below(PAGES);
            let _ = child.write_fault(at(page), None, FAULT);
        }
        if random.below(2) == 0 {
            child.zap(a_range(random), &mut child.gather(&mut slots)).unwrap();
        }
        child.exit(&mut slots);
    }

    fn change(&self, random: &mut Random) {
        let mut slots = [Slot::default(); 8];
        let slots = &mut slots[..random.below(9) as usize];
        let gather = &mut self.space.gather(slots);
        let range = a_range(random);
        let file = pages(FILE + random.below(FILES * 4 - 8), 1 + random.below(8));
        match random.below(10) {
            0 => done(self.space.zap(range, gather)),
            1 => done(self.space.unmap(range, gather)),
            2 => done(self.space.zap(file, gather)),
            3 => done(self.space.write_protect(range, gather)),
            4 => done(self.space.write_protect(file, gather)),
            5 => {
                let how = [Protection::READ, Protection::READ_WRITE, Protection::NONE];
                let how = how[random.below(3) as usize];
                done(self.space.protect(range, how, Sharing::Private, gather));
            }
            6 => self.space.split(range.start()).unwrap(),
            7 => {
                let _ = self.space.collapse(at(512), 511, gather);
            }
            8 => self.split_folio(range.start(), random),
            _ => {
                if common::swap_out(&self.space, range.start(), 1, gather).is_ok() {
                    self.swap_entries.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    /// The folio of a page becomes smaller ones, if it is mapped here alone and nobody is at it.
    fn split_folio(&self, at: VirtAddr, random: &mut Random) {
        let Ok(folio) = self.space.reference(at, None) else { return };
        let mapped = [FAULT.bounds, pages(ELSEWHERE + FIRST, PAGES)];
        let mapped = mapped.map(|range| MappedIn { space: &self.space, range });
        let order = Order::new([0, 0, 2, 4][random.below(4) as usize]).unwrap();
        let larger = folio.order() > order;
        let mut slots = std::array::from_fn::<_, 8, _>(|_| TableSlot::default());
        match split_folio(folio, order, &mapped, &mut slots) {
            Ok(pieces) => {
                self.folio_splits.fetch_add(u64::from(larger), Ordering::Relaxed);
                // Others map and unmap the pieces already: how many references each has is known at rest.
                for piece in pieces {
                    assert!(piece.order() <= order);
                }
            }
            Err((why, _)) => assert!(matches!(why, Error::Changed | Error::Referenced), "{why}"),
        }
    }

    fn relocate(&self, random: &mut Random) {
        let range = a_range(random);
        let to = ELSEWHERE + range.start().page();
        let back = match self.space.remap(range, at(to)) {
            Ok(_) => range.pages(),
            Err(stopped) => stopped.at.page() - range.start().page(),
        };
        // Others may have mapped what was left: those pages stay where they are.
        let _ = self.space.remap(pages(to, back), range.start());
        self.space.unmap(pages(ELSEWHERE + FIRST, PAGES), &mut self.space.gather(&mut [])).unwrap();
    }

    fn look(&self, random: &mut Random) {
        let mut bitmap = [0; (FILES as usize * 4).div_ceil(64)];
        let file = pages(FILE, FILES * 4);
        self.space.harvest_young(file, &mut bitmap).unwrap();
        for page in (0..FILES as usize * 4).filter(|page| bitmap[page / 64] >> (page % 64) & 1 == 1) {
            self.found[page / 4].store(1, Ordering::Relaxed);
        }
        self.space.clear_young(a_range(random)).unwrap();
        let reader = self.space.read();
        for _ in 0..8 {
            let page = FILE + random.below(FILES * 4);
            if let Mapping::Page { frame, .. } = reader.lookup(at(page)) {
                let expected = self.files[((page - FILE) / 4) as usize].head().add((page - FILE) % 4);
                assert_eq!(frame, expected, "half of a mapping was seen");
            }
        }
        drop(reader);
        let mut seen = 0;
        self.space.runs(FAULT.bounds, |run| seen += run.pages).unwrap();
        assert!(seen <= PAGES);
    }

    /// Nobody is at it any more: counts must be those of the mappings.
    fn at_rest(&self) {
        let machine = self.machine();
        let mut maps = std::collections::HashMap::<Frame, u32>::new();
        for range in [FAULT.bounds, pages(ELSEWHERE + FIRST, PAGES), pages(FILE, FILES * 4)] {
            let each = |run: MappedRun| {
                if let Mapping::Page { frame, .. } = run.mapping {
                    let head = FolioView::of(machine, frame).unwrap().head();
                    *maps.entry(head).or_default() += run.pages as u32;
                }
            };
            self.space.runs(range, each).unwrap();
        }
        for (&head, &count) in &maps {
            let folio = FolioView::of(machine, head).unwrap();
            let held = u32::from(folio.kind() == FolioKind::File);
            assert_eq!((folio.maps(), folio.refs()), (count, count + held), "{head:?}");
        }
    }
}

fn everything_at_once<F: Format>(seed: u64) {
    let machine = HostMachine::new(if cfg!(miri) { 1024 } else { 1 << 15 });
    let free = machine.free_frames();
    let file = |_| prepare(&machine, take(&machine, 2).unwrap(), 2, FolioKind::File).unwrap();
    let none = || (0..FILES).map(|_| AtomicU64::new(0)).collect();
    let shared = Shared::<F> {
        space: Space::new(&machine, 1).unwrap(),
        files: (0..FILES).map(file).collect(),
        accessed: none(),
        written: none(),
        found: none(),
        swap_entries: AtomicU64::new(0),
        folio_splits: AtomicU64::new(0),
    };
    type Task<F> = fn(&Shared<'_, F>, &mut Random);
    let tasks: [(Task<F>, u64); 8] = [
        (|shared, random| shared.program(random), 16),
        (|shared, random| shared.program(random), 16),
        (|shared, random| shared.populate(random), 4),
        (|shared, random| shared.fork(random), 1),
        (|shared, random| shared.change(random), 4),
        // Two that move pages both ways between the same tables: each holds two locks.
        (|shared, random| shared.relocate(random), 1),
        (|shared, random| shared.relocate(random), 1),
        (|shared, random| shared.look(random), 1),
    ];
    let mut randoms: Vec<Random> =
        (1..=tasks.len() as u64).map(|n| Random(seed ^ n.wrapping_mul(0x9e37_79b9_7f4a_7c15))).collect();
    for _ in 0..phases() {
        std::thread::scope(|scope| {
            for ((task, often), random) in tasks.into_iter().zip(&mut randoms) {
                let shared = &shared;
                let often = if cfg!(miri) { 1 + often / 8 } else { often };
                scope.spawn(move || (0..often).for_each(|_| task(shared, random)));
            }
        });
    }
    shared.at_rest();
    if !cfg!(miri) {
        let counts = machine.counts();
        assert!(counts.copies > 0 && counts.splits > 0, "{counts:?}");
        assert!(F::CONTIGUOUS == 1 || counts.unfolds > 0, "{counts:?}");
        assert!(shared.folio_splits.load(Ordering::Relaxed) > 0);
    }
    let Shared { space, files, accessed, written, found, swap_entries, .. } = shared;
    space.exit(&mut [Slot::default(); 4]);
    assert_eq!(machine.swap_entry_balance(1) + swap_entries.into_inner() as i64, 0, "swap entries");
    for (n, folio) in files.into_iter().enumerate() {
        let (young, dirty) = (folio.take_referenced(), folio.take_dirty());
        let was = |marks: &[AtomicU64]| marks[n].load(Ordering::Relaxed) != 0;
        assert!(young || was(&found) || !was(&accessed), "an access to folio {n} was lost");
        assert!(dirty || !was(&written), "a write to folio {n} was lost");
        assert_eq!((folio.refs(), folio.maps()), (1, 0));
        drop(folio);
    }
    assert_eq!(machine.free_frames(), free, "frames were lost");
}

#[test]
fn everything_at_once_on_x86_64() {
    everything_at_once::<X86_64>(1);
}

#[test]
fn everything_at_once_on_arm64() {
    everything_at_once::<Arm64Hafdbs>(2);
}

#[test]
#[cfg_attr(miri, ignore = "takes a minute and the same paths")]
fn everything_at_once_on_arm64_with_software_bits() {
    everything_at_once::<Arm64Software>(3);
}

#[test]
#[cfg_attr(miri, ignore = "takes a minute and the same paths")]
fn everything_at_once_on_arm64_whose_dirty_bit_is_software_s() {
    everything_at_once::<Arm64Haf>(4);
}
