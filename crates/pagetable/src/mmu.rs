//! What the MMU does on an access, for emulators and to test the tables without one: walks, checks permissions, and
//! sets the accessed and dirty bits at any time, with no lock but the atomicity of its update, as hardware does.

use crate::address::{Frame, VirtAddr};
use crate::format::Format;
use crate::machine::Machine;
use crate::reader::Reader;

/// An access of a user program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// A load.
    Read,
    /// A store.
    Write,
    /// An instruction fetch.
    Execute,
}

/// Why an access faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Fault {
    /// Nothing is mapped, or a page that nobody may access.
    #[error("nothing is mapped there, or a page that nobody may access")]
    NotPresent,
    /// The mapping does not permit the access.
    #[error("the mapping does not permit the access")]
    Protection,
    /// The page is old and software keeps the accessed bit: [`AddressSpace::mark_accessed`](crate::AddressSpace::mark_accessed) resolves it.
    #[error("the page is old, and the accessed bit is kept by software")]
    Old,
    /// The page is writable but clean and software keeps the dirty bit: [`AddressSpace::mark_accessed`](crate::AddressSpace::mark_accessed) resolves it.
    #[error("the page is clean, and the dirty bit is kept by software")]
    Clean,
}

impl<F: Format, M: Machine> Reader<'_, '_, F, M> {
    /// Translates an access of a user program, setting the accessed and dirty bits if the format says that hardware
    /// does. Returns the frame of the page.
    ///
    /// The reader protects the tables only. As with hardware, it is [`Tlb::sync`](crate::Tlb::sync) that ends the use of a
    /// translation: an emulator's must wait until each CPU is done with the access that it is at, from before this call
    /// to after its load or store. Else a page may be freed, or a collapse miss a dirty bit, in between.
    ///
    /// # Errors
    /// The [`Fault`] that the CPU would raise.
    pub fn access(&self, at: VirtAddr, access: Access) -> Result<Frame, Fault> {
        let page = at.page();
        if !F::translates(page, page + 1) {
            return Err(Fault::NotPresent);
        }
        loop {
            let (level, index, raw, table) = self.space.walk(page, &self.guard);
            if !F::is_valid(raw) {
                return Err(Fault::NotPresent);
            }
            let attributes = F::attributes(raw);
            let permitted = attributes.user
                && match access {
                    Access::Read => true,
                    Access::Write => attributes.write,
                    Access::Execute => attributes.execute,
                };
            if !permitted {
                return Err(Fault::Protection);
            }
            let mut after = raw;
            if !attributes.young {
                if !F::HARDWARE_YOUNG {
                    return Err(Fault::Old);
                }
                after |= F::YOUNG;
            }
            if access == Access::Write && !attributes.dirty {
                if !F::HARDWARE_DIRTY {
                    return Err(Fault::Clean);
                }
                after = F::make_dirty(after);
            }
            // The bits are set in the entry that permitted the access, or the walk starts anew.
            if after == raw || table.at(index).exchange(raw, after).is_ok() {
                return Ok(F::frame(raw).add(page & (F::pages(level) - 1)));
            }
        }
    }
}
