//! One thing after the other on a small machine.

#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use isotherm_pagetable::host::HostMachine;
use isotherm_pagetable::*;

fn folio(machine: &HostMachine, order: u8) -> Folio<'_> {
    let head = machine.take(order).unwrap();
    Folio::prepare(machine, head, order, FolioKind::Anon).unwrap()
}

#[test]
fn a_large_folio_comes_back_when_its_last_mapping_is_gone() {
    let machine = HostMachine::new(4096);
    let free = machine.free_frames();
    let space = AddressSpace::<X86_64, _>::new(&machine, 1).unwrap();
    let f = folio(&machine, 9);
    let range = PageRange::new(0, 2 << 20).unwrap();
    space.map(range, f.head(), Attributes::anonymous(), Level::Pte).unwrap();
    assert_eq!((f.refs(), f.maps()), (513, 512));
    f.put(&machine);
    let mut child = AddressSpace::<X86_64, _>::new(&machine, 2).unwrap();
    let mut slots = [Slot::default(); 8];
    space
        .copy_range(&mut child, range, ForkRule::Copy(Sharing::Private), &mut space.gather(&mut slots))
        .unwrap();
    assert_eq!((f.refs(), f.maps()), (1024, 1024));
    drop(child);
    assert_eq!((f.refs(), f.maps()), (512, 512));
    space.zap(range, &mut space.gather(&mut slots)).unwrap();
    assert_eq!(machine.free_frames(), free - 3 - 1);
    drop(space);
    assert_eq!(machine.free_frames(), free);
}
