//! A small TLB a thread, and the invalidations that it gets.
//!
//! # Protocol
//!
//! A port uses translations in *sections* alone. Its place has a count that is odd in a section. Each space has a generation, which
//! an invalidation raises. In the order of time:
//!
//! - a port makes its count odd, fences, and loads the space's generation: if that is not the one its TLB is of, the TLB is
//!   emptied. Then it uses what is in the TLB, or looks into the tables. At last it makes its count even.
//! - who invalidates has changed the tables, raises the generation, fences, and waits for each port whose count it finds odd
//!   until that has changed.
//!
//! Of the two fences one comes first. If it is the port's, its odd count is seen, and its section waited for. If it is the
//! other's, the port finds the new generation, acquires what came before it, and finds the tables changed. Nothing is waited for in a
//! section: faults, which may invalidate, are handled outside. `tests/loom/ports.rs` has the models.

use isotherm_page::Frame;
use isotherm_pagetable::{Access, Flush, SpaceId, Tlb};

use crate::sharded::Padded;
use crate::sync::{AtomicBool, AtomicU64, Ordering, fence};

/// Translations of one port. A guess: an emulator's own code has as many pages in use within a few thousand instructions.
const ENTRIES: usize = 64;
/// Generations, which spaces share if there are more.
const SPACES: usize = if cfg!(loom) { 1 } else { 64 };

/// One translation.
#[derive(Clone, Copy)]
struct Entry {
    page: u64,
    frame: Frame,
    /// What it was used for already: only then the tables have the accessed, or the dirty bit.
    read: bool,
    write: bool,
    execute: bool,
}

const NOTHING: Entry = Entry { page: u64::MAX, frame: Frame(0), read: false, write: false, execute: false };

pub(super) struct Entries {
    all: [Entry; ENTRIES],
    generation: u64,
}

impl Entries {
    pub(super) const fn new() -> Self {
        Self { all: [NOTHING; ENTRIES], generation: 0 }
    }

    pub(super) fn get(&self, page: u64, access: Access) -> Option<Frame> {
        let entry = self.all.get(page as usize % ENTRIES).filter(|entry| entry.page == page)?;
        let used = match access {
            Access::Read => entry.read,
            Access::Write => entry.write,
            Access::Execute => entry.execute,
        };
        used.then_some(entry.frame)
    }

    pub(super) fn put(&mut self, page: u64, frame: Frame, access: Access) {
        let Some(entry) = self.all.get_mut(page as usize % ENTRIES) else { return };
        if entry.page != page || entry.frame != frame {
            *entry = Entry { page, frame, ..NOTHING };
        }
        match access {
            Access::Read => entry.read = true,
            // What may be written may be read.
            Access::Write => (entry.read, entry.write) = (true, true),
            Access::Execute => entry.execute = true,
        }
    }

    fn clear(&mut self) {
        self.all = [NOTHING; ENTRIES];
    }
}

/// A port's place.
#[derive(Debug)]
struct Seat {
    taken: AtomicBool,
    /// Odd in a section.
    count: AtomicU64,
}

impl Seat {
    #[cfg(not(loom))]
    const fn new() -> Padded<Self> {
        Padded(Self { taken: AtomicBool::new(false), count: AtomicU64::new(0) })
    }

    #[cfg(loom)]
    fn new() -> Padded<Self> {
        Padded(Self { taken: AtomicBool::new(false), count: AtomicU64::new(0) })
    }
}

/// The TLBs of up to `PORTS` ports of a machine: what its [`Tlb`] passes invalidations on to.
#[derive(Debug)]
pub struct SoftTlbs<const PORTS: usize> {
    seats: [Padded<Seat>; PORTS],
    generations: [AtomicU64; SPACES],
    relax: fn(u32),
}

impl<const PORTS: usize> SoftTlbs<PORTS> {
    /// Without ports. `relax` is what to do between two looks at whether a port has left its section, with the number of looks:
    /// sections are a page's copy long, if the port's thread has a CPU.
    #[cfg(not(loom))]
    #[must_use]
    pub const fn new(relax: fn(u32)) -> Self {
        Self {
            seats: [const { Seat::new() }; PORTS],
            generations: [const { AtomicU64::new(0) }; SPACES],
            relax,
        }
    }

    /// The same, of loom's atomics.
    #[cfg(loom)]
    #[must_use]
    pub fn new(relax: fn(u32)) -> Self {
        let zero = |_| AtomicU64::new(0);
        Self { seats: core::array::from_fn(|_| Seat::new()), generations: core::array::from_fn(zero), relax }
    }

    pub(super) fn join<C>(&self, space: SpaceId<C>) -> Option<Place<'_, PORTS>> {
        let free = |seat: &&Padded<Seat>| {
            seat.0.taken.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
        };
        let seat = &self.seats.iter().find(free)?.0;
        Some(Place { seat, generation: self.generation(space.root), _tlbs: self })
    }

    fn generation(&self, root: Frame) -> &AtomicU64 {
        &self.generations[root.0 as usize % SPACES]
    }

    fn raise(&self, space: SpaceId) {
        // Whoever loads it sees the tables as they are now.
        self.generation(space.root).fetch_add(1, Ordering::Release);
    }
}

// SAFETY: the essay at the top. All of a space's translations go at once.
unsafe impl<const PORTS: usize> Tlb for SoftTlbs<PORTS> {
    type Context = u16;

    fn invalidate_page(&self, space: SpaceId, _: u64) {
        self.raise(space);
    }

    fn invalidate_range(&self, space: SpaceId, _: Flush) {
        self.raise(space);
    }

    fn invalidate_space(&self, space: SpaceId) {
        self.raise(space);
    }

    fn sync(&self) {
        fence(Ordering::SeqCst);
        for seat in &self.seats {
            let count = seat.0.count.load(Ordering::Acquire);
            let mut tries = 0;
            while count % 2 == 1 && seat.0.count.load(Ordering::Acquire) == count {
                (self.relax)(tries);
                tries = u32::saturating_add(tries, 1);
            }
        }
    }
}

/// A port's place until it is dropped.
pub(super) struct Place<'t, const PORTS: usize> {
    seat: &'t Seat,
    generation: &'t AtomicU64,
    _tlbs: &'t SoftTlbs<PORTS>,
}

impl<'t, const PORTS: usize> Place<'t, PORTS> {
    /// From here until it is dropped, what `entries` has, and what the tables say, is true.
    pub(super) fn enter(&self, entries: &mut Entries) -> Section<'t> {
        let count = self.seat.count.load(Ordering::Relaxed);
        // Release: who waits for the section before may find this count, and has what was done in that one behind him.
        self.seat.count.store(count.wrapping_add(1), Ordering::Release);
        fence(Ordering::SeqCst);
        let generation = self.generation.load(Ordering::Acquire);
        if entries.generation != generation {
            entries.clear();
            entries.generation = generation;
        }
        Section(self.seat)
    }
}

impl<const PORTS: usize> Drop for Place<'_, PORTS> {
    fn drop(&mut self) {
        self.seat.taken.store(false, Ordering::Release);
    }
}

pub(super) struct Section<'t>(&'t Seat);

impl Drop for Section<'_> {
    fn drop(&mut self) {
        let count = self.0.count.load(Ordering::Relaxed);
        self.0.count.store(count.wrapping_add(1), Ordering::Release);
    }
}
