//! Stacks that grow down.

use crate::error::Error;
use crate::flags::{PAGE_SHIFT, PAGE_SIZE, VmFlags};
use crate::space::{AddressSpace, Platform};
use crate::vma::VmaPtr;
use crate::writing::Writing;

impl<P: Platform> AddressSpace<P> {
    /// Grows the stack that lies above an address down to it (`expand_stack`), as a fault does that finds no VMA there. That
    /// the address is mapped already is no error.
    ///
    /// # Errors
    /// [`Error::BadAddress`] if what lies above is no stack that grows; [`Error::NoSpace`] if it would come nearer than the
    /// guard gap to what lies below; [`Error::TooLow`], [`Error::Limit`], [`Error::NoMemory`].
    pub fn grow_stack(&self, address: u64) -> Result<(), Error> {
        self.write().grow_stack(address).map(drop)
    }
}

impl<P: Platform> Writing<'_, P> {
    /// The VMA of the address, after the stack above has grown to it, if there was none.
    pub(crate) fn grow_stack(&mut self, address: u64) -> Result<VmaPtr, Error> {
        let address = address & !(PAGE_SIZE - 1);
        let config = &self.space.config;
        let vma = self.first_in(address, config.end).ok_or(Error::BadAddress)?;
        let this = vma.desc();
        if this.start <= address {
            return Ok(vma);
        }
        if !this.flags.contains(VmFlags::GROWSDOWN) {
            return Err(Error::BadAddress);
        }
        if address < config.lowest {
            return Err(Error::TooLow);
        }
        if let Some(below) = self.before(address)
            && !below.flags().contains(VmFlags::GROWSDOWN)
            && below.flags().intersects(VmFlags::ACCESS)
            && address - below.end() < config.stack_guard
        {
            return Err(Error::NoSpace);
        }
        // As in Linux: what grows is about to be written to, and has anonymous state also if a limit refuses it then.
        let nodes = self.nodes(1)?;
        self.start_write(vma);
        self.space.prepare(|address| self.at(address), vma);
        let grown = (this.start - address) >> PAGE_SHIFT;
        let within = this.end - address <= config.limits.stack
            && grown <= this.pgoff
            && self.may_expand(this.flags, grown as i64)
            && self.may_lock(this.flags, grown);
        if !within {
            return Err(Error::Limit);
        }
        self.extend_down(vma, address, nodes)?;
        self.space.usage.pages(this.flags, grown as i64);
        Ok(vma)
    }
}
