//! Large folios: how large those are that a first write maps, and huge leaves made of what is mapped.

use isotherm_page::{FolioKind, FolioView, Frame, Order};
use isotherm_pagetable::{
    Attributes, Collapsed, Error as TableError, Format, Level, Machine, Mapping, PageRange, Slot, VirtAddr,
};

use super::Paged;
use crate::error::Error;
use crate::flags::{PAGE_SHIFT, VmFlags};
use crate::vma::VmaInfo;

/// So many folios are split after one look.
const SPLITS: usize = 32;

/// What a huge leaf maps.
pub(crate) const HUGE: u64 = 2 << 20;

/// How large folios of private anonymous memory may be: the largest whose aligned range lies in the VMA, of which nothing is mapped
/// yet, and for which there are frames. What Linux sets for each size in `transparent_hugepage/hugepages-*/enabled`. Of order 9
/// it is a huge leaf where there is no page table yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Folios {
    /// In any VMA but one with [`NOHUGEPAGE`](VmFlags::NOHUGEPAGE) (`always`).
    pub always: Order,
    /// In a VMA with [`HUGEPAGE`](VmFlags::HUGEPAGE) (`madvise`).
    pub advised: Order,
}

impl Folios {
    /// Pages alone: `never`.
    pub const SMALL: Self = Self { always: Order::BASE, advised: Order::BASE };

    /// The largest order in a VMA.
    fn largest(self, flags: VmFlags) -> Order {
        if flags.contains(VmFlags::NOHUGEPAGE) {
            return Order::BASE;
        }
        let order = if flags.contains(VmFlags::HUGEPAGE) { self.advised } else { self.always };
        order.max(self.always).min(Order::HUGE)
    }
}

impl<'m, F: Format, M: Machine, O> Paged<'m, F, M, O> {
    /// The same with larger folios. The child of a fork has the same.
    #[must_use]
    pub fn with_folios(self, folios: Folios) -> Self {
        Self { folios, ..self }
    }

    /// Whether huge leaves are wanted in a VMA.
    pub(crate) fn wants_huge(&self, vma: &VmaInfo) -> bool {
        vma.object.is_none() && self.folios.largest(vma.flags) == Order::HUGE
    }

    /// Maps a folio of zeros around an address of a VMA of anonymous memory, where nothing is mapped, if it can be larger than a
    /// page; whether it has. Where faults are somebody else's each page is one of its own, as in Linux.
    pub(super) fn map_large(&self, vma: &VmaInfo, at: VirtAddr, cpu: usize) -> Result<bool, TableError> {
        if vma.object.is_some() || vma.flags.intersects(VmFlags::USER) {
            return Ok(false);
        }
        let mut order = self.folios.largest(vma.flags);
        while order > Order::BASE {
            if self.map_folio(vma, at, order, cpu)? {
                return Ok(true);
            }
            let Some(smaller) = Order::new(order.get() - 1) else { break };
            order = smaller;
        }
        Ok(false)
    }

    fn map_folio(&self, vma: &VmaInfo, at: VirtAddr, order: Order, cpu: usize) -> Result<bool, TableError> {
        let (tables, pages) = (&self.mm.tables, order.frames());
        let first = at.page() & !(pages - 1);
        if first < vma.start >> PAGE_SHIFT || first + pages > vma.end >> PAGE_SHIFT {
            return Ok(false);
        }
        let Ok(range) = PageRange::with_pages(VirtAddr::of_page(first), pages) else { return Ok(false) };
        let mut vacant = true;
        tables.runs(range, |_| vacant = false).map_err(|stopped| stopped.why)?;
        if !vacant {
            return Ok(false);
        }
        let folio = match self.new_folio(order) {
            Ok(folio) => folio,
            // A smaller one will do.
            Err(TableError::NoFolioFrames(_)) => return Ok(false),
            Err(why) => return Err(why),
        };
        for n in 0..pages {
            // SAFETY: it is ours alone.
            unsafe { tables.machine().clear(folio.head().add(n)) };
        }
        if let Some(kin) = &self.kin {
            kin.come(&self.mm, vma).map_err(|_| TableError::NoTableFrame)?;
            kin.owns(folio.head(), vma, range.start().0);
        }
        if order == Order::HUGE {
            // Before there is one.
            self.mm.set_huge();
        }
        let attributes = Attributes { execute: vma.flags.contains(VmFlags::EXEC), ..Attributes::anonymous() };
        match tables.map(range, folio.head(), attributes, Level::Pmd) {
            Ok(mapped) => {
                self.mm.came(cpu, mapped, None);
                Ok(true)
            }
            // Another fault came in between: what was mapped before is there, the rest is not.
            Err(stopped) => {
                self.mm.came(cpu, stopped.done, None);
                if stopped.at.page() > at.page() { Ok(true) } else { Err(stopped.why) }
            }
        }
    }

    /// Splits the large folios of a VMA that stays as it is meanwhile into pages; how many folios.
    pub(crate) fn split_folios(&self, vma: &VmaInfo) -> u64 {
        let Some(kin) = &self.kin else { return 0 };
        let (system, mut page, end) = (kin.system().inner(), vma.start >> PAGE_SHIFT, vma.end >> PAGE_SHIFT);
        let mut count = 0;
        while page < end {
            let Ok(range) = PageRange::with_pages(VirtAddr::of_page(page), end - page) else { break };
            let (mut found, mut len, mut next) = ([Frame(0); SPLITS], 0, end);
            let done = self.mm.tables.runs(range, |run| {
                let Mapping::Page { frame, attributes, .. } = run.mapping else { return };
                let folio = FolioView::of(system.machine, frame);
                if let (Ok(folio), false) = (folio, attributes.special)
                    && folio.order() > Order::BASE
                    && folio.kind() == FolioKind::Anon
                {
                    match found.get_mut(len) {
                        Some(place) => (*place, len) = (frame, len + 1),
                        None => next = next.min(run.at.page()),
                    }
                }
            });
            debug_assert!(done.is_ok(), "{done:?}");
            // What is in several runs is whole once.
            let split = |frame: &&Frame| system.split(**frame).is_ok();
            count += found.get(..len).unwrap_or_default().iter().filter(split).count() as u64;
            page = next;
        }
        count
    }

    /// Maps the 2 MiB at an address, which lie in a VMA that stays as it is meanwhile, by a huge leaf; whether that is so then.
    pub(crate) fn collapse(&self, vma: &VmaInfo, at: u64, max_none: u64) -> Result<bool, Error> {
        if vma.object.is_some() || vma.flags.contains(VmFlags::SHARED) {
            return Ok(false);
        }
        self.mm.set_huge();
        let mut slots = [Slot::default(); 64];
        let mut gather = self.mm.tables.gather(&mut slots);
        match self.mm.tables.collapse(VirtAddr(at), max_none, &mut gather) {
            Ok(Collapsed::Already | Collapsed::InPlace) => Ok(true),
            Ok(Collapsed::Copied { pages }) => {
                self.mm.add(0, None, (Order::HUGE.frames() - pages) as i64);
                if let Some(kin) = &self.kin
                    && let Ok(folio) = self.mm.tables.reference(VirtAddr(at), None)
                    && folio.kind() == FolioKind::Anon
                    && folio.order() == Order::HUGE
                    && folio.head() == folio.frame()
                {
                    kin.owns(folio.head(), vma, at);
                }
                Ok(true)
            }
            Err(TableError::NoFolioFrames(_) | TableError::NoTableFrame) => Err(Error::NoMemory),
            Err(_) => Ok(false),
        }
    }
}
