//! Blocks with one owner, typed by what they are used for.

use core::fmt;
use core::marker::PhantomData;
use core::mem::ManuallyDrop;

use crate::folio::Folio;
use crate::info::Kind;
use crate::kinds::{clear_kinds, end_tables, make_tables, set_kinds};
use crate::view::FolioKind;
use crate::{Block, Frame, Order, OwnedBlock, PageError, Pages};

mod sealed {
    pub trait Use {
        const KIND: crate::Kind;
        /// Whether dropping the handle frees the block.
        const FREES: bool = true;
    }
}

/// What a [`Unique`] block is used for.
pub trait Use: sealed::Use {}
impl<U: sealed::Use> Use for U {}

/// Allocated, and nothing yet.
#[derive(Debug)]
pub enum Unused {}
/// Cut into objects by an allocator above.
#[derive(Debug)]
pub enum Slab {}
/// A page table, of one page or of the format's larger granule.
#[derive(Debug)]
pub enum Table {}
/// May be mapped without being counted, as [special](https://docs.kernel.org/mm/process_addrs.html) mappings are, and is
/// therefore not freed by safe code: the zero page, firmware's memory.
#[derive(Debug)]
pub enum Reserved {}

impl sealed::Use for Unused {
    const KIND: Kind = Kind::Unused;
}
impl sealed::Use for Slab {
    const KIND: Kind = Kind::Slab;
}
impl sealed::Use for Table {
    const KIND: Kind = Kind::Table;
}
impl sealed::Use for Reserved {
    const KIND: Kind = Kind::Reserved;
    const FREES: bool = false;
}

/// A block that this value alone stands for, and what it is used for. Only an unused block can be made something; there is
/// no way from a slab to a folio but through giving it up, so memory has one use at a time.
///
/// Dropped, the block is freed, unless it is [`Reserved`].
///
/// ```compile_fail,E0599
/// # use isotherm_page::{FolioKind, Pages, Slab, Unique};
/// fn map_a_slab<P: Pages>(slab: Unique<'_, P, Slab>) {
///     slab.into_folio(FolioKind::Anon); // only what is unused can be made a folio
/// }
/// ```
///
/// ```compile_fail,E0599
/// # use isotherm_page::{FolioKind, Pages, Table, Unique};
/// fn map_a_table<P: Pages>(table: Unique<'_, P, Table>) {
///     table.into_folio(FolioKind::Anon);
/// }
/// ```
///
/// ```compile_fail,E0382
/// # use isotherm_page::{FolioKind, Pages, Unique, Unused};
/// fn two_folios_of_one_block<P: Pages>(block: Unique<'_, P, Unused>) {
///     let _one = block.into_folio(FolioKind::Anon);
///     let _other = block.into_folio(FolioKind::File); // moved already
/// }
/// ```
pub struct Unique<'m, P: Pages + ?Sized, U: Use> {
    pages: &'m P,
    block: Block,
    used_as: PhantomData<fn() -> U>,
}

impl<'m, P: Pages + ?Sized> Unique<'m, P, Unused> {
    /// The handle of a block that was just allocated.
    ///
    /// # Safety
    /// The block was allocated from `pages`.
    pub unsafe fn new(pages: &'m P, block: OwnedBlock) -> Self {
        // SAFETY: nobody has made anything of it.
        unsafe { Unique::of(pages, block) }
    }

    /// A folio with one reference.
    ///
    /// # Errors
    /// The block comes back if it is larger than [`MAX_FOLIO_ORDER`](crate::MAX_FOLIO_ORDER), or if a page has no
    /// metadata or is in use.
    #[inline]
    pub fn into_folio(self, kind: FolioKind) -> Result<Folio<'m, P>, (PageError, Self)> {
        match Folio::make(self.pages, self.block, kind) {
            Ok(meta) => {
                // The block is the folio's from here on.
                let this = ManuallyDrop::new(self);
                // SAFETY: the reference was just made.
                Ok(unsafe { Folio::first(this.pages, this.block, meta) })
            }
            Err(why) => Err((why, self)),
        }
    }

    /// Memory to be cut into objects.
    ///
    /// # Errors
    /// The block comes back if a page has no metadata or is in use.
    pub fn into_slab(self) -> Result<Unique<'m, P, Slab>, (PageError, Self)> {
        self.become_used()
    }

    /// Memory that may be mapped without being counted.
    ///
    /// # Errors
    /// The block comes back if a page has no metadata or is in use.
    pub fn into_reserved(self) -> Result<Unique<'m, P, Reserved>, (PageError, Self)> {
        self.become_used()
    }

    /// A page table that no tree refers to yet, unlocked, contents arbitrary.
    ///
    /// # Errors
    /// The block comes back if a page has no metadata or is in use.
    pub fn into_table(self) -> Result<Unique<'m, P, Table>, (PageError, Self)> {
        match make_tables(self.pages, self.block) {
            Ok(()) => Ok(self.retyped()),
            Err(why) => Err((why, self)),
        }
    }

    fn become_used<U: Use>(self) -> Result<Unique<'m, P, U>, (PageError, Self)> {
        match set_kinds(self.pages, self.block, U::KIND) {
            Ok(()) => Ok(self.retyped()),
            Err(why) => Err((why, self)),
        }
    }
}

impl<'m, P: Pages + ?Sized> Unique<'m, P, Slab> {
    /// Unused again: no object is left.
    #[must_use]
    pub fn into_unused(self) -> Unique<'m, P, Unused> {
        clear_kinds(self.pages, self.block);
        self.retyped()
    }
}

impl<'m, P: Pages + ?Sized> Unique<'m, P, Table> {
    /// The number alone, to be kept where a value cannot be: in an entry of the table above. The block stays a table.
    #[must_use = "the number is all that is left of the table"]
    pub fn into_raw(self) -> Block {
        ManuallyDrop::new(self).block
    }

    /// The table again, of which [`into_raw`](Self::into_raw) gave the number.
    ///
    /// # Safety
    /// The block is a table of these pages that no tree refers to, and no walk without a lock can be in it any more. It is
    /// made a value once.
    pub unsafe fn from_raw(pages: &'m P, block: Block) -> Self {
        Self { pages, block, used_as: PhantomData }
    }

    /// Unused again: it is in no tree.
    #[must_use]
    pub fn into_unused(self) -> Unique<'m, P, Unused> {
        end_tables(self.pages, self.block);
        self.retyped()
    }
}

impl<'m, P: Pages + ?Sized> Unique<'m, P, Reserved> {
    /// Unused again.
    ///
    /// # Safety
    /// It is mapped nowhere, and no TLB holds a translation to it.
    #[must_use]
    pub unsafe fn into_unused(self) -> Unique<'m, P, Unused> {
        clear_kinds(self.pages, self.block);
        self.retyped()
    }
}

impl<'m, P: Pages + ?Sized, U: Use> Unique<'m, P, U> {
    /// # Safety
    /// The block was allocated from `pages`, and its pages are of the kind that `U` says.
    pub(crate) unsafe fn of(pages: &'m P, block: OwnedBlock) -> Self {
        Self { pages, block: block.into_block(), used_as: PhantomData }
    }

    fn retyped<V: Use>(self) -> Unique<'m, P, V> {
        let (pages, block) = self.into_parts();
        Unique { pages, block: block.into_block(), used_as: PhantomData }
    }

    fn into_parts(self) -> (&'m P, OwnedBlock) {
        let this = ManuallyDrop::new(self);
        // SAFETY: this value was the block's owner, and is not used again.
        (this.pages, unsafe { OwnedBlock::new(this.block) })
    }

    /// The pages it is of.
    #[must_use]
    pub fn pages(&self) -> &'m P {
        self.pages
    }

    /// The first frame.
    #[must_use]
    pub fn frame(&self) -> Frame {
        self.block.frame
    }

    /// The block's size.
    #[must_use]
    pub fn order(&self) -> Order {
        self.block.order
    }
}

impl<P: Pages + ?Sized, U: Use> Drop for Unique<'_, P, U> {
    fn drop(&mut self) {
        if U::FREES {
            match U::KIND {
                Kind::Unused => {}
                Kind::Table => end_tables(self.pages, self.block),
                _ => clear_kinds(self.pages, self.block),
            }
            // SAFETY: this value is the only owner, and the block was allocated from these pages.
            unsafe { self.pages.free(OwnedBlock::new(self.block)) };
        }
    }
}

impl<P: Pages + ?Sized, U: Use> fmt::Debug for Unique<'_, P, U> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({:?})", self.block, U::KIND)
    }
}
