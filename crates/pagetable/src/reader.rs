//! Reading a tree without its locks.

use crate::format::Format;
use crate::machine::Machine;
use crate::space::AddressSpace;

/// A read-side critical section of RCU in which a tree is read without locks: no table of this space that is found is
/// reused while it lives. As it holds the space, it serves no other, of another machine say, whose tables the section does
/// not protect.
///
/// ```compile_fail,E0505
/// # use isotherm_pagetable::*;
/// fn look_at_a_space_that_is_gone<M: Machine>(space: AddressSpace<'_, X86_64, M>) {
///     let reader = space.read();
///     drop(space);
///     let _ = reader.lookup(VirtAddr(0));
/// }
/// ```
#[must_use = "dropped, the section ends"]
pub struct Reader<'s, 'm, F: Format, M: Machine> {
    pub(crate) space: &'s AddressSpace<'m, F, M>,
    pub(crate) guard: M::Guard<'m>,
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// Starts a read-side critical section, which any number of lookups may share. As long as it lives, no retired table is
    /// reused: keep it short, and allocate nothing in it.
    #[inline]
    pub fn read(&self) -> Reader<'_, 'm, F, M> {
        Reader { space: self, guard: self.machine.read_lock() }
    }
}
