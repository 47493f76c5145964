//! Virtual addresses, page ranges and the levels of a tree.

use core::fmt;

use crate::error::Error;

/// Bits of an address below the page number: pages are counted in 4 KiB, also where a format's smallest leaf is larger.
pub use isotherm_page::FRAME_SHIFT as PAGE_SHIFT;
/// Bytes of a page.
pub use isotherm_page::FRAME_SIZE as PAGE_SIZE;
pub use isotherm_page::Frame;

/// Bits of a page number that a table of 4 KiB translates. The models of loom need tables of a few entries.
pub const TABLE_BITS: u32 = if cfg!(loom) { 1 } else { 9 };
/// Entries of a table of 4 KiB.
pub const ENTRIES: usize = 1 << TABLE_BITS;
/// Page numbers of 64-bit addresses end here.
const PAGE_NUMBERS: u64 = 1 << (64 - PAGE_SHIFT);

/// A virtual address. Whether it is canonical depends on the format, and every operation checks it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(transparent)]
pub struct VirtAddr(pub u64);

impl VirtAddr {
    /// The number of the page that holds the address.
    #[inline]
    #[must_use]
    pub const fn page(self) -> u64 {
        self.0 >> PAGE_SHIFT
    }

    /// The first address of the page with this number.
    #[inline]
    #[must_use]
    pub const fn of_page(page: u64) -> VirtAddr {
        VirtAddr(page << PAGE_SHIFT)
    }
}

impl fmt::Debug for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Display for VirtAddr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Whole pages of virtual address space: page numbers `first..end`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageRange {
    pub(crate) first: u64,
    pub(crate) end: u64,
}

impl PageRange {
    /// The pages of the bytes `start..end`. To reach the very last page of the address space use
    /// [`with_pages`](Self::with_pages).
    ///
    /// # Errors
    /// [`Error::Misaligned`] if an end is no multiple of 4096, [`Error::NotCanonical`] if `end < start`.
    pub const fn new(start: u64, end: u64) -> Result<PageRange, Error> {
        if (start | end) & (PAGE_SIZE - 1) != 0 {
            return Err(Error::Misaligned);
        }
        if end < start {
            return Err(Error::NotCanonical);
        }
        Ok(PageRange { first: start >> PAGE_SHIFT, end: end >> PAGE_SHIFT })
    }

    /// `pages` pages from `start` on.
    ///
    /// # Errors
    /// [`Error::Misaligned`] if `start` is no multiple of 4096, [`Error::NotCanonical`] if the range passes the end
    /// of 64-bit addresses.
    pub const fn with_pages(start: VirtAddr, pages: u64) -> Result<PageRange, Error> {
        if start.0 & (PAGE_SIZE - 1) != 0 {
            return Err(Error::Misaligned);
        }
        let first = start.page();
        if pages > PAGE_NUMBERS - first {
            return Err(Error::NotCanonical);
        }
        Ok(PageRange { first, end: first + pages })
    }

    /// The first address.
    #[must_use]
    pub const fn start(&self) -> VirtAddr {
        VirtAddr::of_page(self.first)
    }

    /// How many pages the range has.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.end - self.first
    }

    /// Whether the page with this number lies in the range.
    #[must_use]
    pub const fn contains(&self, page: u64) -> bool {
        self.first <= page && page < self.end
    }
}

/// A level of the tree, named as Linux names it. A table of level `Pmd` holds PMD entries. How large they are is the
/// format's ([`Format::pages`](crate::Format::pages)); the sizes below are those of tables of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u8)]
pub enum Level {
    /// Entries of 4 KiB.
    Pte = 0,
    /// Entries of 2 MiB: leaves or PTE tables.
    Pmd = 1,
    /// Entries of 1 GiB: leaves or PMD tables.
    Pud = 2,
    /// Entries of 512 GiB: the root of 4-level trees.
    P4d = 3,
    /// Entries of 256 TiB: the root of 5-level trees.
    Pgd = 4,
}

impl Level {
    /// The level below.
    #[inline]
    #[must_use]
    pub const fn below(self) -> Option<Level> {
        match self {
            Level::Pte => None,
            Level::Pmd => Some(Level::Pte),
            Level::Pud => Some(Level::Pmd),
            Level::P4d => Some(Level::Pud),
            Level::Pgd => Some(Level::P4d),
        }
    }

    /// The level above.
    #[inline]
    #[must_use]
    pub const fn above(self) -> Option<Level> {
        match self {
            Level::Pte => Some(Level::Pmd),
            Level::Pmd => Some(Level::Pud),
            Level::Pud => Some(Level::P4d),
            Level::P4d => Some(Level::Pgd),
            Level::Pgd => None,
        }
    }
}
