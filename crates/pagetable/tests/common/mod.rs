//! What the tests share: short names for pages and folios, and formats that differ from a real one in a single point.

#![allow(
    dead_code,
    unused_imports,
    clippy::unwrap_used,
    reason = "helpers of tests, each of which uses some"
)]

#[cfg(not(loom))]
mod busy;
mod folio;
mod wrap;

#[cfg(not(loom))]
pub use busy::{Busy, Meanwhile};
pub use folio::prepare;
#[cfg(not(loom))]
pub use folio::take;
pub use wrap::{Changed, Wrap};

use isotherm_pagetable::*;

/// The pages `first..first + pages`.
pub fn pages(first: u64, pages: u64) -> PageRange {
    PageRange::with_pages(VirtAddr::of_page(first), pages).unwrap()
}

/// Swaps out whatever page is mapped there, or finds that there is none.
pub fn swap_out<F: Format, M: Machine>(
    space: &AddressSpace<'_, F, M>,
    at: VirtAddr,
    swap_entry: u64,
    gather: &mut Gather<'_, M>,
) -> Result<bool, Error> {
    match space.query(at) {
        Mapping::Page { frame, .. } => space.swap_out(at, frame, swap_entry, gather),
        _ => Err(Error::NotMapped),
    }
}

/// The address of a page.
pub fn at(page: u64) -> VirtAddr {
    VirtAddr::of_page(page)
}
