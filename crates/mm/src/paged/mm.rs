//! Page tables with their counts: what both the operations of a space and the reverse maps change.

use core::ops::Range;
use core::sync::atomic::{AtomicBool, Ordering};

use isotherm_page::{FolioKind, FolioView};
use isotherm_pagetable::{
    AddressSpace as Tables, Format, Gather, Half, Machine, MappedRun, Mapping, PageRange, RssStat, Slot,
    VirtAddr,
};

use crate::object::{Inner, ObjectKind};
use crate::sharded::Sharded;
use crate::spin::Spin;
use crate::system::MovedList;
use crate::vma::VmaInfo;

/// What one flush gives back at most.
const SLOTS: usize = 128;

/// How many pages of a space are mapped, by kind: what `/proc/PID/status` says. The zero page is none.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Rss {
    /// Pages of the space's own, also copies of an object's in private mappings (`RssAnon`).
    pub anon: u64,
    /// Pages of files (`RssFile`).
    pub file: u64,
    /// Pages of shared memory (`RssShmem`).
    pub shmem: u64,
    /// Pages that are in swap (`VmSwap`): these are not resident.
    pub swap: u64,
}

impl Rss {
    /// All that are resident.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.anon + self.file + self.shmem
    }
}

/// Of a page that is mapped: anonymous if `None`, else an object's.
pub(crate) type Kind = Option<ObjectKind>;

pub(crate) struct Mm<'m, F: Format, M: Machine> {
    pub(crate) tables: Tables<'m, F, M>,
    anon: Sharded,
    file: Sharded,
    shmem: Sharded,
    swap: Sharded,
    /// Where anonymous pages are that were moved, for the reverse map.
    pub(crate) moved: Spin<MovedList>,
    /// There may be huge leaves.
    huge: AtomicBool,
    /// Some of its memory is locked.
    locks: AtomicBool,
}

/// The pages of a range of addresses.
pub(crate) fn pages(range: &Range<u64>) -> Option<PageRange> {
    PageRange::new(range.start, range.end).ok()
}

impl<'m, F: Format, M: Machine> Mm<'m, F, M> {
    pub(crate) fn new(tables: Tables<'m, F, M>) -> Self {
        let [anon, file, shmem, swap] = core::array::from_fn(|_| Sharded::new());
        Self {
            tables,
            anon,
            file,
            shmem,
            swap,
            moved: Spin::new(MovedList::new()),
            huge: AtomicBool::new(false),
            locks: AtomicBool::new(false),
        }
    }

    pub(crate) fn rss(&self) -> Rss {
        let [anon, file, shmem, swap] =
            [&self.anon, &self.file, &self.shmem, &self.swap].map(|counter| counter.get());
        Rss { anon, file, shmem, swap }
    }

    /// Whether there may be huge leaves: who is about to split one has excluded those who make them.
    pub(crate) fn has_huge(&self) -> bool {
        self.huge.load(Ordering::Relaxed)
    }

    pub(crate) fn set_huge(&self) {
        self.huge.store(true, Ordering::Relaxed);
    }

    /// Whether some of its memory is locked: pages are marked as locked after that.
    pub(crate) fn has_locks(&self) -> bool {
        self.locks.load(Ordering::Relaxed)
    }

    pub(crate) fn set_locks(&self, locks: bool) {
        self.locks.store(locks, Ordering::Relaxed);
    }

    /// All addresses that a space's pages can have.
    pub(crate) fn all(&self) -> Option<PageRange> {
        let end = match F::HALF {
            Half::Lower => 1 << F::VA_BITS,
            Half::Both => 1 << (F::VA_BITS - 1),
            Half::Upper => return None,
        };
        PageRange::new(self.tables.lowest().0, end).ok()
    }

    /// The part of a range in which tables are the space's.
    pub(crate) fn above(&self, range: Range<u64>) -> Range<u64> {
        range.start.max(self.tables.lowest().0)..range.end
    }

    /// So many pages more, or less, are in swap.
    pub(crate) fn add_swapped(&self, change: i64) {
        self.swap.add(0, change);
    }

    /// So many pages more, or less. `cpu` chooses a counter.
    pub(crate) fn add(&self, cpu: usize, kind: Kind, change: i64) {
        let counter = match kind {
            None => &self.anon,
            Some(ObjectKind::File) => &self.file,
            Some(ObjectKind::Shmem) => &self.shmem,
        };
        counter.add(cpu, change);
    }

    pub(crate) fn with_gather<R>(&self, act: impl FnOnce(&mut Gather<'_, M>) -> R) -> R {
        let mut slots = [Slot::default(); SLOTS];
        // Dropped, it flushes.
        act(&mut self.tables.gather(&mut slots))
    }

    /// Whether a run is of anonymous pages; `None` if it is not of pages that are counted. The pages stay mapped meanwhile.
    fn is_anon(&self, run: &MappedRun) -> Option<bool> {
        let Mapping::Page { frame, attributes, .. } = run.mapping else { return None };
        if attributes.special {
            return None;
        }
        let folio = FolioView::of(self.tables.machine(), frame).ok()?;
        Some(folio.kind() == FolioKind::Anon)
    }

    /// Pages that an operation mapped. Those that are no anonymous ones are of `kind`: page tables know no shared memory.
    pub(crate) fn came(&self, cpu: usize, pages: RssStat, kind: Kind) {
        self.add(cpu, None, pages.anon as i64);
        self.add(cpu, kind, pages.file as i64);
        self.add_swapped(pages.swap_entries as i64);
    }

    /// The pages of a range go, of which no fault, and no reverse map of an object, changes any meanwhile. Pages that are no anonymous ones are
    /// of `kind`.
    pub(crate) fn zap_in(&self, range: PageRange, kind: Kind, gather: &mut Gather<'_, M>) {
        // No huge leaf reaches across the borders.
        let done = self.tables.zap(range, gather);
        debug_assert!(done.is_ok(), "{done:?}");
        let gone = done.unwrap_or_else(|stopped| stopped.done);
        self.add(0, None, -(gone.anon as i64));
        self.add(0, kind, -(gone.file as i64));
        self.add_swapped(-(gone.swap_entries as i64));
    }

    /// The same from below, with a flush: when it returns, nobody uses the pages here.
    pub(crate) fn zap(&self, range: PageRange, kind: ObjectKind) {
        let mut slots = [Slot::default(); SLOTS];
        self.zap_in(range, Some(kind), &mut self.tables.gather(&mut slots));
    }

    /// Zaps pages of a VMA that are not what the object has there: those that it lost after a fork copied them, when
    /// its reverse map did not know of the child yet.
    pub(crate) fn drop_stale(&self, vma: &VmaInfo, pgoff: u64, object: &Inner<'m, F, M>, kind: ObjectKind) {
        let Some(all) = pages(&vma.range()) else { return };
        let index = |at: VirtAddr| pgoff + (at.page() - all.start().page());
        loop {
            let mut stale = None;
            let looked = self.tables.runs(all, |run| {
                let frame = match run.mapping {
                    Mapping::Page { frame, .. } => match self.is_anon(&run) {
                        Some(anon) => Some(frame).filter(|_| !anon),
                        None => return,
                    },
                    // A copy that is swapped out.
                    Mapping::SwapEntry(_) => None,
                    Mapping::None => return,
                };
                for n in 0..run.pages {
                    let at = VirtAddr::of_page(run.at.page() + n);
                    let is = object.page(index(at));
                    let lost = match (is, frame) {
                        (Err(_), _) => true,
                        (Ok(page), Some(frame)) => page.is_none_or(|page| page.frame != frame.add(n)),
                        (Ok(_), None) => false,
                    };
                    if lost {
                        stale = stale.or(Some(at));
                    }
                }
            });
            debug_assert!(looked.is_ok(), "{looked:?}");
            let Some(page) = stale.and_then(|at| PageRange::with_pages(at, 1).ok()) else { return };
            self.zap(page, kind);
        }
    }
}
