//! Memory behind the VMAs: page tables, and the pages that they map, counted by kind.

mod around;
mod contents;
mod fill;
mod folios;
mod lazy_free;
#[cfg(feature = "damon")]
mod migrate;
mod mm;
mod page_out;
mod resolve;
mod swap_in;
mod will_need;

use core::fmt;
use core::ops::Range;

use isotherm_page::Frame;
use isotherm_pagetable::{
    AddressSpace as Tables, Format, Machine, MappedRun, Mapping, PageRange, SpaceId, VirtAddr,
};

use crate::error::Error;
use crate::object::Objects;
use crate::shared::Shared;
use crate::system::{Kin, System};

pub(crate) use fill::Filled;
pub use folios::Folios;
pub(crate) use folios::HUGE;
pub(crate) use mm::Mm;
pub use mm::Rss;
pub(crate) use resolve::Unresolved;
pub(crate) use swap_in::{Incoming, NotRead};
pub(crate) use will_need::Wanted;

/// An access of a program, and what the MMU says of it.
pub use isotherm_pagetable::{Access, Fault as MmuFault};

/// Page tables of format `F` on a machine `M`, for private anonymous memory, whose folios are as large as [`Folios`] says, and for
/// objects that `O` has, with pages of order 0.
pub struct Paged<'m, F: Format, M: Machine, O = ()> {
    /// The reverse maps of objects have it too.
    mm: Shared<Mm<'m, F, M>>,
    zero: Frame,
    objects: O,
    /// Of a space in a system.
    kin: Option<Kin<'m, F, M>>,
    folios: Folios,
}

impl<'m, F: Format, M: Machine> Paged<'m, F, M> {
    /// Empty page tables, of a format whose smallest leaf is a page of 4 KiB, for anonymous memory. `zero` is a frame of zeros
    /// that stays what it is, mapped wherever only reads came so far: a [`Reserved`](isotherm_page::Reserved) one. `context` is
    /// the caller's tag for the TLB.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn new(machine: &'m M, context: M::Context, zero: Frame) -> Result<Self, Error> {
        Self::with_objects(machine, context, zero, ())
    }
}

impl<'m, F: Format + 'm, M: Machine + 'm, O: Objects<'m, F, M>> Paged<'m, F, M, O> {
    /// The same, with objects that can be mapped. Other spaces that map them find them there too.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn with_objects(machine: &'m M, context: M::Context, zero: Frame, objects: O) -> Result<Self, Error> {
        let tables = Tables::new(machine, context).map_err(|_| Error::NoMemory)?;
        Self::with_tables(tables, zero, objects)
    }

    /// The same in tables that the caller has made, in which nothing is mapped: of a kernel whose half all processes share
    /// ([`with_kernel`](Tables::with_kernel)), or with entries that are others'
    /// ([`with_entries`](Tables::with_entries)). Of the lower half the space has what lies [behind](Tables::lowest) those.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn with_tables(tables: Tables<'m, F, M>, zero: Frame, objects: O) -> Result<Self, Error> {
        const { assert!(F::GRANULE == 0, "pages here are of 4 KiB, as the smallest leaves are") };
        Ok(Self { mm: Shared::new(Mm::new(tables))?, zero, objects, kin: None, folios: Folios::SMALL })
    }

    /// The same in a system: its anonymous pages are found from below, and may be swapped out. A fork's child is of the same
    /// system.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub fn in_system(
        system: &System<'m, F, M>,
        context: M::Context,
        zero: Frame,
        objects: O,
    ) -> Result<Self, Error> {
        Self::with_objects(system.inner().machine, context, zero, objects)?.into_system(system)
    }

    /// The same of what no space has yet.
    ///
    /// # Errors
    /// [`Error::NoMemory`]; [`Error::Invalid`] if the system is another machine's.
    pub fn into_system(self, system: &System<'m, F, M>) -> Result<Self, Error> {
        if !core::ptr::eq(self.machine(), system.inner().machine) {
            return Err(Error::Invalid);
        }
        Ok(Self { kin: Some(Kin::new(system)?), ..self })
    }
}

impl<'m, F: Format, M: Machine, O> Paged<'m, F, M, O> {
    /// What the TLB operations are called with; its root is what the CPU loads. No CPU may have it loaded when the space is
    /// dropped.
    #[must_use]
    pub fn id(&self) -> SpaceId<M::Context> {
        self.mm.tables.id()
    }

    pub(crate) fn machine(&self) -> &M {
        self.mm.tables.machine()
    }

    /// How many pages are mapped, by kind. Exact while no fault or operation is under way.
    #[must_use]
    pub fn rss(&self) -> Rss {
        self.mm.rss()
    }

    #[cfg(feature = "damon")]
    pub(crate) fn mm(&self) -> &Mm<'m, F, M> {
        &self.mm
    }

    /// The system that it is in.
    #[must_use]
    pub fn system(&self) -> Option<&System<'m, F, M>> {
        self.kin.as_ref().map(Kin::system)
    }

    /// How many page tables it has (`VmPTE` of `/proc/PID/status`), by a look at those above the lowest level. Exact while no fault or
    /// operation is under way.
    #[must_use]
    pub fn tables(&self) -> u64 {
        self.mm.tables.tables()
    }

    /// How many pages are mapped but for the zero page.
    #[must_use]
    pub fn resident(&self) -> u64 {
        self.rss().total()
    }

    /// What the tables have at an address, and changes nothing (what `/proc/pid/pagemap` shows).
    #[must_use]
    pub fn mapping(&self, address: u64) -> Mapping {
        self.mm.tables.read().lookup(VirtAddr(address))
    }

    /// Calls `each` for all that is mapped in a range of whole pages, in order. While it changes, so does what is found.
    ///
    /// # Errors
    /// The range is none.
    pub fn mappings(&self, range: Range<u64>, each: impl FnMut(MappedRun)) -> Result<(), Error> {
        let range = PageRange::new(range.start, range.end).map_err(|_| Error::Invalid)?;
        self.mm.tables.runs(range, each).map_err(|_| Error::Invalid)
    }

    /// The frame of a page, as the MMU finds it, which sets the accessed and dirty bits; for emulators and tests. Nothing keeps
    /// the page from being unmapped when this returns but what the caller knows.
    ///
    /// # Errors
    /// What the CPU would raise: then the space's [`fault`](crate::AddressSpace::fault) resolves it.
    pub fn access(&self, address: u64, access: Access) -> Result<Frame, MmuFault> {
        self.mm.tables.read().access(VirtAddr(address), access)
    }
}

impl<F: Format, M: Machine, O> fmt::Debug for Paged<'_, F, M, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Paged").field("rss", &self.rss()).finish_non_exhaustive()
    }
}
