//! [`operations`] through the interface that page tables had until e8f2fa0, before the crate `page`.

mod operations;

mod api {
    use std::hint::black_box;

    use isotherm_pagetable::host::HostMachine;
    use isotherm_pagetable::*;

    pub type Space<'m, F> = AddressSpace<'m, F, HostMachine>;

    pub fn folio(machine: &HostMachine, order: u8) -> Frame {
        let head = machine.take(order).unwrap();
        Folio::prepare(machine, head, order, FolioKind::Anon).unwrap();
        head
    }

    pub fn put(machine: &HostMachine, head: Frame) {
        Folio::of(machine, head).unwrap().put(machine);
    }

    pub fn write_fault<F: Format>(space: &Space<'_, F>, at: VirtAddr, fault: WriteFault) -> Resolved {
        space.write_fault(at, fault).unwrap()
    }

    pub fn lookups<F: Format>(
        space: &Space<'_, F>,
        machine: &HostMachine,
        addresses: impl Iterator<Item = VirtAddr>,
    ) {
        let guard = machine.read_lock();
        addresses.for_each(|at| {
            black_box(space.lookup(&guard, at));
        });
    }
}

fn main() {
    operations::main();
}
