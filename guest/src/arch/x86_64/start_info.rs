//! What the PVH boot protocol leaves in memory: the map of RAM and the command line (Xen's
//! `include/public/arch-x86/hvm/start_info.h`).

use super::power::{End, end};
use isotherm_guest::ram::RamMap;

const MAGIC: u32 = 0x336e_c578;
const TYPE_RAM: u32 = 1;
/// Entries of a map that are read; firmware has about ten.
const MOST_ENTRIES: u32 = 128;

#[repr(C)]
#[derive(Clone, Copy)]
struct StartInfo {
    magic: u32,
    version: u32,
    flags: u32,
    nr_modules: u32,
    modlist: u64,
    cmdline: u64,
    rsdp: u64,
    memmap: u64,
    memmap_entries: u32,
    reserved: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    address: u64,
    size: u64,
    kind: u32,
    reserved: u32,
}

/// The map of RAM at the start info, which lies at `address`.
pub fn ram(address: u32) -> RamMap {
    // SAFETY: the loader left it below 4 GiB, where everything is mapped, and nobody has written to memory since; any
    // bits are a valid value.
    let info = unsafe { (address as usize as *const StartInfo).read_unaligned() };
    if info.magic != MAGIC || info.version < 1 || info.memmap >= 1 << 32 {
        crate::line!(
            "unfit: no PVH start info with a map of memory at {address:#x}; boot with QEMU's -kernel"
        );
        end(End::Unfit);
    }
    let mut ram = RamMap::new();
    for index in 0..info.memmap_entries.min(MOST_ENTRIES) {
        // SAFETY: as above; the loader says that so many entries lie there.
        let entry = unsafe { (info.memmap as *const Entry).add(index as usize).read_unaligned() };
        if entry.kind == TYPE_RAM {
            ram.add(entry.address, entry.size);
        }
    }
    ram
}
