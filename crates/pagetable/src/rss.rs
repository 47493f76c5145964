//! What operations did, by kind: what accounting above adds and subtracts.

use core::ops::AddAssign;

use crate::folio::FolioKind;

/// What an operation on a range did to what a space holds, in pages of 4 KiB by kind: pages that were mapped, unmapped, or
/// copied to the child. With it, counters above (Linux' `mm_rss_stat`) need no walk of their
/// own. An operation that stops half-way says what it did until then ([`Stopped::done`](crate::Stopped::done)).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct RssStat {
    /// Pages of folios of anonymous memory.
    pub anon: u64,
    /// Pages of folios of files.
    pub file: u64,
    /// Special pages, which are not counted otherwise.
    pub special: u64,
    /// Pages whose entries hold swap entries, as those in swap.
    pub swap_entries: u64,
    /// Page tables that were added to the tree (by [`map`](crate::AddressSpace::map) and its like, or to the child of a
    /// fork), or that went (by [`unmap`](crate::AddressSpace::unmap),
    /// [`free_empty_tables`](crate::AddressSpace::free_empty_tables) and [`exit`](crate::AddressSpace::exit)).
    pub tables: u64,
    /// Huge leaves that were split at the border of the range, each of which added a table: of a fork, to the parent.
    pub splits: u64,
}

impl RssStat {
    /// Pages of folios: those that hold references.
    #[must_use]
    pub const fn resident(&self) -> u64 {
        self.anon + self.file
    }

    #[inline(always)]
    pub(crate) fn count(&mut self, kind: Option<FolioKind>, pages: u64) {
        let of = match kind {
            Some(FolioKind::Anon) => &mut self.anon,
            Some(FolioKind::File) => &mut self.file,
            None => &mut self.special,
        };
        *of = of.wrapping_add(pages);
    }

    /// As [`count`](Self::count), for counts that are kept in registers: what is chosen by its address is not.
    #[inline(always)]
    pub(crate) fn count_each(&mut self, kind: Option<FolioKind>, pages: u64) {
        let add = |to: u64, of| to.wrapping_add(if kind == of { pages } else { 0 });
        self.anon = add(self.anon, Some(FolioKind::Anon));
        self.file = add(self.file, Some(FolioKind::File));
        self.special = add(self.special, None);
    }

    /// One page less than will be [counted](Self::count): callers of loops over entries count them by how far these came, and
    /// the loops take off the empty ones, which are rare.
    #[inline(always)]
    pub(crate) fn discount(&mut self, kind: FolioKind) {
        self.count(Some(kind), u64::MAX);
    }
}

impl AddAssign for RssStat {
    fn add_assign(&mut self, other: RssStat) {
        self.anon += other.anon;
        self.file += other.file;
        self.special += other.special;
        self.swap_entries += other.swap_entries;
        self.tables += other.tables;
        self.splits += other.splits;
    }
}
