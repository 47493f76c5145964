//! The upper half of addresses, that all processes have alike: the kernel's.
//!
//! Where one tree translates both halves (x86-64, RISC-V), every process has the kernel's entries in its own root. Here all of
//! these refer to tables from the start, as many as half a root has (1 MiB of them with 512 entries), which stay where they are
//! for good: so a root is made by copying its upper half once, and what the kernel maps or unmaps afterwards is seen by all
//! processes at once. (Linux preallocates the tables of its vmalloc area so, `preallocate_vmalloc_pages`, for others it has faults
//! copy the entry.) On arm64 the kernel has a tree of its own, under [`Ttbr1`](crate::Ttbr1).

use core::fmt;

use crate::error::Error;
use crate::format::{Format, Half};
use crate::machine::Machine;
use crate::space::{AddressSpace, Foreign, upper_half};
use crate::table::OwnEntries;
use crate::tree::{link, new_table};

/// A kernel's half, which [processes](AddressSpace::with_kernel) share: a space whose pages are all in the upper half. What is
/// invalidated there is to be invalidated in the TLBs of all CPUs, whatever they have loaded, [global](crate::Attributes::global)
/// translations included ([`Tlb`](crate::Tlb)): so says the [context](crate::Tlb::Context) that it is made with.
///
/// Dropping it gives the tables back that processes share. No CPU may have the root of one of these loaded then, not even of one
/// that was forgotten instead of dropped ([`AddressSpace::id`]).
pub struct KernelHalf<'m, F: Format, M: Machine>(AddressSpace<'m, F, M>);

impl<'m, F: Format, M: Machine> KernelHalf<'m, F, M> {
    /// One in which nothing is mapped.
    ///
    /// # Errors
    /// [`Error::NoTableFrame`].
    pub fn new(machine: &'m M, context: M::Context) -> Result<Self, Error> {
        const {
            assert!(matches!(F::HALF, Half::Both), "a tree of both halves");
        }
        let mut space = AddressSpace::<F, M>::new(machine, context)?;
        (space.foreign, space.lends) = (Foreign { first: 0, end: upper_half::<F>() }, true);
        for index in upper_half::<F>()..2 * upper_half::<F>() {
            let table = link::<F, M>(new_table::<F, M>(machine)?);
            // SAFETY: the space is known to nobody yet, so nobody reads or changes its root.
            unsafe { OwnEntries::<F>::of(machine, space.id.root) }.all_mut()[index].set(table);
        }
        Ok(KernelHalf(space))
    }

    /// The space, to map and unmap in. Its pages are those of the upper half.
    #[must_use]
    pub fn space(&self) -> &AddressSpace<'m, F, M> {
        &self.0
    }
}

impl<F: Format, M: Machine> fmt::Debug for KernelHalf<'_, F, M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("KernelHalf").field(&self.0.id).finish()
    }
}

impl<'m, F: Format, M: Machine> AddressSpace<'m, F, M> {
    /// An empty space of a process, in which the kernel's half is found as it is at any time. Operations on it are on the lower
    /// half; those on the upper fail with [`Error::NotCanonical`], but for looks.
    ///
    /// # Errors
    /// [`Error::NoTableFrame`]; [`Error::OtherMachine`] if the kernel is of another machine.
    pub fn with_kernel(
        machine: &'m M,
        context: M::Context,
        kernel: &'m KernelHalf<'m, F, M>,
    ) -> Result<Self, Error> {
        if !core::ptr::eq(machine, kernel.0.machine) {
            return Err(Error::OtherMachine);
        }
        let upper = upper_half::<F>()..2 * upper_half::<F>();
        // SAFETY: the kernel's root is a table as long as the kernel's space is, which is borrowed here.
        let kernels = unsafe { kernel.0.table_at(kernel.0.id.root) }.all();
        let space = AddressSpace::<F, M>::new(machine, context)?;
        // SAFETY: what they refer to stays until the kernel's space ends, and that is borrowed for as long as operations use this
        // one. It may be dropped once this one is forgotten: then none uses it, and a CPU that has the root loaded is the
        // duty of who loaded it (`id`).
        Ok(unsafe { space.entered(upper.start, kernels[upper.clone()].iter().map(|entry| entry.relaxed())) })
    }

    /// An empty space whose root has `entries` from `first` on, which are others': tables that the caller made, of the kernel that
    /// it was started with say. Operations on pages below them fail with [`Error::NotCanonical`], but for looks, and when the
    /// space ends they are left alone.
    ///
    /// # Errors
    /// [`Error::NoTableFrame`]; [`Error::NotCanonical`] if the root has not so many entries.
    ///
    /// # Safety
    /// They are entries of a root of this format, and what they refer to stays that for as long as the space lives. (After that no
    /// operation follows them; a CPU does that has the root loaded, of a space that was forgotten say: see [`id`](Self::id).)
    pub unsafe fn with_entries(
        machine: &'m M,
        context: M::Context,
        first: usize,
        entries: &[u64],
    ) -> Result<Self, Error> {
        if first.checked_add(entries.len()).is_none_or(|end| end > 1 << F::TABLE_BITS) {
            return Err(Error::NotCanonical);
        }
        let space = AddressSpace::<F, M>::new(machine, context)?;
        // SAFETY: the caller's duty.
        Ok(unsafe { space.entered(first, entries.iter().copied()) })
    }

    /// # Safety
    /// Nobody knows the space yet; the entries, no more than the root has room for, are as for [`with_entries`](Self::with_entries).
    unsafe fn entered(mut self, first: usize, entries: impl ExactSizeIterator<Item = u64>) -> Self {
        self.foreign = Foreign { first, end: first + entries.len() };
        // SAFETY: nobody knows the space yet, so nobody reads or changes its root.
        let mut own = unsafe { OwnEntries::<F>::of(self.machine, self.id.root) };
        for (own, raw) in own.all_mut()[first..].iter_mut().zip(entries) {
            own.set(raw);
        }
        self
    }
}
