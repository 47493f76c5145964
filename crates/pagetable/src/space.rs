//! The address space: its root, its birth and its end.

use core::marker::PhantomData;

use crate::address::{Frame, Level, PageRange, VirtAddr};
use crate::error::{Error, Stopped};
use crate::folio::base;
use crate::format::{Attributes, Format, Half};
use crate::gather::{Gather, Slot};
use crate::machine::{Flush, Machine, SpaceId};
use crate::rss::RssStat;
use crate::table::empty_from_first;
use crate::tree::new_table;

/// A tree of page tables of format `F` on the machine `M`.
///
/// All operations but [`exit`](Self::exit) and dropping take `&self` and may run at the same time on
/// different threads; each holds the lock of one table at a time, see the essay at the top of the crate. What two
/// operations on the *same* pages at the same time mean is for the caller's lock of the address space to decide
/// (`mmap_lock`, per-VMA locks): here the tree and all counts stay consistent, whichever comes first.
///
/// Dropping it zaps everything and gives the tables back: as for [`exit`](Self::exit), no CPU may have it loaded
/// ([`id`](Self::id)).
pub struct AddressSpace<'m, F: Format, M: Machine> {
    pub(crate) machine: &'m M,
    pub(crate) id: SpaceId<M::Context>,
    /// Whose pages no operation touches.
    pub(crate) foreign: Foreign,
    /// The tables below the root are other spaces' as well, and stay.
    pub(crate) lends: bool,
    kind: PhantomData<fn() -> F>,
}

/// Entries of the root that are not a space's own, by their indices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Foreign {
    pub first: usize,
    pub end: usize,
}

impl Foreign {
    pub const NONE: Foreign = Foreign { first: 0, end: 0 };

    /// Whether some of these pages, all of one half, are below such an entry.
    #[inline]
    fn has<F: Format>(self, first: u64, last: u64) -> bool {
        self.first < self.end && F::index(F::ROOT, first) < self.end && F::index(F::ROOT, last) >= self.first
    }
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// An empty address space. `context` is what the caller's TLB knows it by, and means nothing here.
    ///
    /// # Errors
    /// [`Error::NoTableFrame`].
    pub fn new(machine: &'m M, context: M::Context) -> Result<Self, Error> {
        let root = new_table::<F, M>(machine)?.into_raw().frame;
        Ok(AddressSpace {
            machine,
            id: SpaceId { root, context },
            foreign: Foreign::NONE,
            lends: false,
            kind: PhantomData,
        })
    }

    /// What the TLB operations of this space are called with. Its `root` is what CR3 or TTBR0 takes.
    ///
    /// Whoever has a CPU load the root, which only `unsafe` code can, takes it out again before the space is exited or
    /// dropped, and does not have it loaded while the space is the child of a [fork](Self::copy_range). The root of a space with a
    /// [kernel's half](Self::with_kernel) is also taken out before that half is dropped, and of one with
    /// [entries of others](Self::with_entries) before what these refer to goes: safe code may forget a space, which then never
    /// ends, and drop the half all the same.
    #[must_use]
    pub fn id(&self) -> SpaceId<M::Context> {
        self.id
    }

    /// How many page tables it has, the root included, without those that are others': what Linux counts in `VmPTE`. Here nothing is
    /// counted as they come and go, but all above the lowest level are read: one for each GiB of granules of 4 KiB, and few
    /// above. Exact while no operation is under way.
    #[must_use]
    pub fn tables(&self) -> u64 {
        self.tables_below(F::ROOT, self.id.root, &self.machine.read_lock())
    }

    /// A table and those below it.
    #[expect(clippy::only_used_in_recursion, reason = "it keeps the tables from being freed")]
    fn tables_below(&self, level: Level, frame: Frame, guard: &M::Guard<'_>) -> u64 {
        let Some(below) = level.below() else { return 1 };
        // SAFETY: the guard is older than the load that found the frame.
        let table = unsafe { self.table_at(frame) }.all();
        let others = if level == F::ROOT { self.foreign.first..self.foreign.end } else { 0..0 };
        let own = table.iter().enumerate().filter(|(index, _)| !others.contains(index));
        let raw =
            own.map(|(_, entry)| entry.load()).filter(|&raw| F::is_valid(raw) && F::is_table(level, raw));
        1 + raw
            .map(|raw| match below {
                Level::Pte => 1,
                _ => self.tables_below(below, F::table_frame(raw), guard),
            })
            .sum::<u64>()
    }

    /// Where its own part of the lower half begins: behind entries of the root that are others'
    /// ([`with_entries`](Self::with_entries)), at 0 if there are none.
    #[must_use]
    pub fn lowest(&self) -> VirtAddr {
        let Foreign { first, end } = self.foreign;
        let lower =
            matches!(F::HALF, Half::Lower) || matches!(F::HALF, Half::Both) && first < upper_half::<F>();
        VirtAddr::of_page(if lower { (end as u64) << F::shift(F::ROOT) } else { 0 })
    }

    /// The machine it was made on.
    #[must_use]
    pub fn machine(&self) -> &'m M {
        self.machine
    }

    /// A gather for operations on this space.
    pub fn gather<'g>(&self, slots: &'g mut [Slot]) -> Gather<'g, M>
    where
        'm: 'g,
    {
        Gather::new(self.machine, self.id, slots)
    }

    /// Invalidates translations of leaves of a level.
    pub(crate) fn invalidate(&self, level: Level, page: u64, pages: u64) {
        if pages == 1 {
            self.machine.invalidate_page(self.id, page);
        } else {
            let range = PageRange { first: page, end: page + pages };
            self.machine.invalidate_range(self.id, Flush::of::<F>(level, range));
        }
    }

    /// Whether the pages are a kernel's, so that leaves may be global: those who invalidate are bound to drop such translations
    /// there ([`Tlb`](crate::Tlb)), and only there.
    #[inline]
    pub(crate) fn may_be_global(&self) -> bool {
        self.lends || matches!(F::HALF, Half::Upper)
    }

    /// Checks that leaves with these attributes may be in this space, and the format has such.
    #[inline]
    pub(crate) fn check_attributes(&self, attributes: Attributes) -> Result<(), Error> {
        if attributes.global && !self.may_be_global() {
            return Err(Error::Global);
        }
        if F::supports(Level::Pte, attributes.memory) { Ok(()) } else { Err(Error::MemoryType) }
    }

    /// Checks that the format translates the range, and that it begins and ends with a leaf.
    pub(crate) fn check(&self, range: PageRange) -> Result<(), Stopped> {
        if (range.first | range.end) & (F::pages(Level::Pte) - 1) != 0 {
            return Err(Stopped::at_page(range.first, Error::Misaligned));
        }
        if range.first == range.end
            || F::translates(range.first, range.end) && !self.foreign.has::<F>(range.first, range.end - 1)
        {
            Ok(())
        } else {
            Err(Stopped::at_page(range.first, Error::NotCanonical))
        }
    }

    pub(crate) fn check_page(&self, page: u64) -> Result<(), Error> {
        if F::translates(page, page + 1) && !self.foreign.has::<F>(page, page) {
            Ok(())
        } else {
            Err(Error::NotCanonical)
        }
    }

    /// Zaps everything and gives back all tables: what the exit of a process does. No CPU may have the space loaded any
    /// more. So what TLBs still hold of it is invalidated as a whole, before anything is given back, and a gather that
    /// fills up again need not repeat it. Dropping does the same with a small gather. Returns what was mapped, and how many
    /// tables there were.
    pub fn exit(mut self, slots: &mut [Slot]) -> RssStat {
        let gone = self.end(slots);
        core::mem::forget(self);
        gone
    }

    fn end(&mut self, slots: &mut [Slot]) -> RssStat {
        let mut gone = RssStat::default();
        let mut gather = Gather::new(self.machine, self.id, slots);
        for range in own_ranges::<F>(self.foreign) {
            gather.whole_space();
            // Nothing in a whole half needs a split, so nothing can fail.
            let _ = self.zap_into::<true>(range, &mut gather, &mut gone);
        }
        // SAFETY: the space ends with this, and all that was mapped is gone, all of it by the loop. If that has nothing to do, others'
        // entries fill the root, which has no table of this space then.
        gone.tables = unsafe { self.free_tables(F::ROOT, self.id.root, &mut gather) };
        gather.whole_space();
        gather.flush();
        gone
    }

    /// Gives back a table of the tree that ends, and all below it; how many.
    ///
    /// # Safety
    /// Nobody uses the space any more, nor will: it ends. Leaves have been zapped into this gather, of which
    /// [`Gather::whole_space`] was called, unless there is but the root. The table, of `level`, is given back once.
    unsafe fn free_tables(&self, level: Level, frame: Frame, gather: &mut Gather<'_, M>) -> u64 {
        let mut count = 1;
        if let Some(below) = level.below() {
            // SAFETY: the space ends, so the table is still in the tree and nobody else removes it.
            let table = unsafe { self.table_at(frame) }.all();
            // Of the root all but others' entries.
            let others = if level == F::ROOT { self.foreign.first..self.foreign.end } else { 0..0 };
            for (n, chunk) in table.chunks(CHUNK).enumerate() {
                if empty_from_first(chunk) == CHUNK {
                    continue;
                }
                for (index, entry) in (n * CHUNK..).zip(chunk) {
                    let raw = entry.relaxed();
                    // Most of what is there are leaves.
                    if !F::is_valid(raw) || !F::is_table(level, raw) || others.contains(&index) {
                        continue;
                    }
                    if below == Level::Pte {
                        // SAFETY: the space ends, the caller says, and a table is in one entry.
                        unsafe { gather.retired(F::table_frame(raw), base::<F>()) };
                        count += 1;
                    } else {
                        // SAFETY: as above.
                        count += unsafe { self.free_tables(below, F::table_frame(raw), gather) };
                    }
                }
            }
        }
        // SAFETY: as above; what it refers to was looked at.
        unsafe { gather.retired(frame, base::<F>()) };
        count
    }
}

/// Entries that are passed over together if they are empty.
const CHUNK: usize = 8;

impl<F: Format, M: Machine> Drop for AddressSpace<'_, F, M> {
    fn drop(&mut self) {
        self.end(&mut [Slot::default(); 64]);
    }
}

/// The first entry of a root table that belongs to the upper half.
pub(crate) fn upper_half<F: Format>() -> usize {
    1 << (F::VA_BITS - crate::PAGE_SHIFT - F::shift(F::ROOT) - 1)
}

/// The ranges that together are all a tree translates but what is below others' entries.
fn own_ranges<F: Format>(foreign: Foreign) -> impl Iterator<Item = PageRange> {
    halves::<F>().flat_map(move |half| {
        let (first, end) = (F::index(F::ROOT, half.first), F::index(F::ROOT, half.end - 1) + 1);
        let (from, to) = (foreign.first.clamp(first, end), foreign.end.clamp(first, end));
        let page = move |index: usize| half.first + ((index - first) as u64) * F::pages(F::ROOT);
        [(first, from), (to, end)]
            .into_iter()
            .filter(|(first, end)| first < end)
            .map(move |(first, end)| PageRange { first: page(first), end: page(end).min(half.end) })
    })
}

/// The ranges that together are all a tree translates.
fn halves<F: Format>() -> impl Iterator<Item = PageRange> {
    let all = 1u64 << (F::VA_BITS - crate::PAGE_SHIFT);
    let size = if F::HALF == Half::Both { all / 2 } else { all };
    let top = 1u64 << (64 - crate::PAGE_SHIFT);
    [PageRange { first: 0, end: size }, PageRange { first: top - size, end: top }]
        .into_iter()
        .filter(|r| F::translates(r.first, r.end))
}
