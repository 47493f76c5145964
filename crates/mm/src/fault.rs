//! Page faults.

use isotherm_pagetable::{Access, Format, Machine};

use crate::error::Error;
use crate::flags::VmFlags;
use crate::object::{Objects, PageInError};
use crate::paged::{Incoming, NotRead, Paged, Unresolved};
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
    /// The VMA maps an object that ends before the page, or whose storage failed, or the page is in swap and cannot be read
    /// (`SIGBUS`).
    #[error("the object has no such page, or its storage or that of swap failed")]
    Bus,
    /// The page is missing, and somebody else fills it: see [`UserFaults`](crate::UserFaults).
    #[error("the page is missing, and is to be filled by who has registered for it")]
    Missing,
    /// The page is marked as write-protected, and somebody else is to know of the write.
    #[error("the page is write-protected by who has registered for it")]
    WriteProtected,
    /// The object has the page, and somebody else is to have it mapped.
    #[error("the page is not mapped yet, and is to be by who has registered for it")]
    Minor,
    /// No frame for a page or a page table. The fault may be repeated; tables that were made for it stay.
    #[error("no frame for a page or a page table")]
    NoMemory,
}

/// So often a fault makes room at most: others may take each time what it has freed. A guess.
const ROOM_TRIES: usize = 16;

/// Whether a VMA permits an access: on x86-64 what may be written or executed may be read.
fn permits(flags: VmFlags, access: Access) -> bool {
    match access {
        Access::Read => flags.intersects(VmFlags::ACCESS),
        Access::Write => flags.contains(VmFlags::WRITE),
        Access::Execute => flags.contains(VmFlags::EXEC),
    }
}

fn no_page(why: PageInError) -> FaultError {
    match why {
        PageInError::NoMemory => FaultError::NoMemory,
        _ => FaultError::Bus,
    }
}

fn error(why: Error) -> FaultError {
    match why {
        Error::NoMemory => FaultError::NoMemory,
        _ => FaultError::NotMapped,
    }
}

impl<'m, P, F, M, O> AddressSpace<P>
where
    P: Platform<Contents = Paged<'m, F, M, O>>,
    F: Format + 'm,
    M: Machine + 'm,
    O: Objects<'m, F, M>,
{
    /// Resolves a page fault of a program: finds the VMA, by its own lock if it can, looks whether it permits the access, and
    /// maps a page. When it returns, the program tries again.
    ///
    /// Of anonymous memory a first read maps the zero page, a first write a page of zeros, a write to a page that a fork
    /// shares a copy of it. Of an object its page is mapped, which is brought in if it is not in memory, without `mmap_lock`
    /// meanwhile; a write to a private mapping copies it. A read maps what is in memory around it too
    /// ([`Config::fault_around`](crate::Config::fault_around)).
    ///
    /// If there is no frame, and the space is in a [`System`](crate::System), some are reclaimed, and it is tried again.
    ///
    /// # Errors
    /// [`FaultError`].
    pub fn fault(&self, address: u64, access: Access) -> Result<(), FaultError> {
        self.with_room(FaultError::NoMemory, || self.fault_once(address, access))
    }

    /// Does something that may find no frame, and then again once some are reclaimed. The caller has no locks.
    pub(crate) fn with_room<E: PartialEq>(
        &self,
        no_memory: E,
        mut act: impl FnMut() -> Result<(), E>,
    ) -> Result<(), E> {
        for _ in 0..ROOM_TRIES {
            match act() {
                Err(why) if why == no_memory && self.contents.make_room() => {}
                done => return done,
            }
        }
        Err(no_memory)
    }

    fn fault_once(&self, address: u64, access: Access) -> Result<(), FaultError> {
        if let Some(vma) = self.lock_vma(address) {
            let info = vma.info();
            if !permits(info.flags, access) {
                vma.refuse();
            } else if access == Access::Write && !info.has_anon && !vma.prepare_anon() {
                vma.retry();
            } else {
                match self.contents.resolve(&info, address, access, P::cpu(), &None) {
                    Ok(()) => return Ok(()),
                    Err(Unresolved::Failed(why)) => return Err(error(why)),
                    // As in the seed, swap is for `mmap_lock`.
                    Err(_) => vma.retry(),
                }
            }
        }
        let mut incoming = None;
        loop {
            match self.try_fault(address, access, &incoming) {
                Ok(()) => return Ok(()),
                Err(Unresolved::Failed(why)) => return Err(error(why)),
                Err(Unresolved::Fault(why)) => return Err(why),
                Err(Unresolved::Object(why)) => return Err(no_page(why)),
                Err(Unresolved::NotCached(id, index)) => self.contents.page_in(id, index).map_err(no_page)?,
                Err(Unresolved::Swapped(swap_entry)) => {
                    // What was read before is of no use any more.
                    drop(incoming.take());
                    incoming = match self.contents.read_swap(swap_entry) {
                        Ok(page) => Some(page),
                        Err(NotRead::Changed) => None,
                        Err(NotRead::NoMemory) => return Err(FaultError::NoMemory),
                        Err(NotRead::Failed(_)) => return Err(FaultError::Bus),
                    };
                }
            }
        }
    }

    /// The fault under `mmap_lock`, with what was read from swap for it.
    fn try_fault(
        &self,
        address: u64,
        access: Access,
        incoming: &Option<Incoming<'m, M>>,
    ) -> Result<(), Unresolved> {
        let vma = self.lock_mmap(address)?;
        let info = vma.info();
        if !permits(info.flags, access) {
            return Err(FaultError::NotPermitted.into());
        }
        let info = self.intercept(info, address, access)?;
        if access == Access::Write && !info.flags.contains(VmFlags::SHARED) {
            vma.prepare_anon();
        }
        // What is somebody else's is mapped page by page.
        let around = if info.flags.intersects(VmFlags::USER) { 0 } else { self.config.fault_around };
        match info.object {
            Some(object) => {
                self.contents.resolve_object(&info, object, address, access, (P::cpu(), around), incoming)
            }
            None => self.contents.resolve(&info, address, access, P::cpu(), incoming),
        }
    }
}
