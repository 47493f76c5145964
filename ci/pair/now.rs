//! [`operations`] through the interface of this revision, and of all before it that have the crate `page`.

mod operations;

mod api {
    use std::hint::black_box;

    use isotherm_pagetable::host::HostMachine;
    use isotherm_pagetable::*;

    pub type Space<'m, F> = AddressSpace<'m, F, HostMachine>;

    /// A folio with a reference that is given back by [`put`].
    pub fn folio(machine: &HostMachine, order: u8) -> Frame {
        machine.folio(Order::new(order).unwrap(), FolioKind::Anon).unwrap().into_raw()
    }

    pub fn put(machine: &HostMachine, head: Frame) {
        // SAFETY: `folio` made the reference raw, and it is made a value here only.
        drop(unsafe { Folio::from_raw(machine, head) });
    }

    pub fn write_fault<F: Format>(space: &Space<'_, F>, at: VirtAddr, fault: WriteFault) -> Resolved {
        space.write_fault(at, None, fault).unwrap()
    }

    pub fn lookups<F: Format>(
        space: &Space<'_, F>,
        _: &HostMachine,
        addresses: impl Iterator<Item = VirtAddr>,
    ) {
        let reader = space.read();
        addresses.for_each(|at| {
            black_box(reader.lookup(at));
        });
    }
}

fn main() {
    operations::main();
}
