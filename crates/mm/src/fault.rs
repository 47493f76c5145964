//! Page faults.

use isotherm_pagetable::{Access, Format, Machine};

use crate::error::Error;
use crate::flags::VmFlags;
use crate::paged::Paged;
use crate::space::{AddressSpace, Platform};

/// Why a fault was not resolved.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FaultError {
    /// No VMA has the address, and no stack could grow to it (`SEGV_MAPERR`).
    #[error("nothing is mapped at the address")]
    NotMapped,
    /// The VMA does not permit the access (`SEGV_ACCERR`).
    #[error("the mapping does not permit the access")]
    NotPermitted,
    /// The VMA maps an object, whose pages are the caller's.
    #[error("the page is an object's")]
    Object,
    /// No frame for a page or a page table. The fault may be repeated; tables that were made for it stay.
    #[error("no frame for a page or a page table")]
    NoMemory,
}

/// Whether a VMA permits an access: on x86-64 what may be written or executed may be read.
fn permits(flags: VmFlags, access: Access) -> bool {
    match access {
        Access::Read => flags.intersects(VmFlags::ACCESS),
        Access::Write => flags.contains(VmFlags::WRITE),
        Access::Execute => flags.contains(VmFlags::EXEC),
    }
}

fn error(why: Error) -> FaultError {
    match why {
        Error::NoMemory => FaultError::NoMemory,
        _ => FaultError::NotMapped,
    }
}

impl<'m, P, F, M> AddressSpace<P>
where
    P: Platform<Contents = Paged<'m, F, M>>,
    F: Format,
    M: Machine + 'm,
{
    /// Resolves a page fault of a program: finds the VMA, by its own lock if it can, looks whether it permits the access, and
    /// maps a page. When it returns, the program tries again.
    ///
    /// A first read maps the zero page, a first write a page of zeros, a write to a page that a fork shares a copy of it.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn fault(&self, address: u64, access: Access) -> Result<(), FaultError> {
        if let Some(vma) = self.lock_vma(address) {
            let info = vma.info();
            if permits(info.flags, access) {
                return self.contents.resolve(&info, address, access, P::cpu()).map_err(error);
            }
            vma.refuse();
        }
        let vma = self.lock_mmap(address).map_err(error)?;
        let info = vma.info();
        if !permits(info.flags, access) {
            return Err(FaultError::NotPermitted);
        }
        if info.object.is_some() {
            return Err(FaultError::Object);
        }
        if access == Access::Write {
            vma.prepare_anon();
        }
        self.contents.resolve(&info, address, access, P::cpu()).map_err(error)
    }
}
