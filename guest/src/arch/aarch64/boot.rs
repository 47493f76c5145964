//! Entry of the processors: symbols that `boot.s` and Rust have in common.

use super::faults::Frame;
use core::arch::global_asm;
use core::sync::atomic::AtomicU64;
use isotherm_guest::ram::Range;
use isotherm_pagetable::ARM64_MAIR;

/// Processors that have a stack and a place in every table: as many as a GICv2 has.
pub const MAX_CPUS: usize = 8;

/// log2 of the bytes of a processor's stack, and of its stack for exceptions.
const STACK_SHIFT: u32 = 16;
const FAULT_STACK_SHIFT: u32 = 15;

/// Where RAM begins, with QEMU's device tree before this program.
pub const RAM: u64 = 0x4000_0000;
const IMAGE: u64 = 0x4020_0000;

/// Addresses that are mapped, in GiB.
pub const GIGABYTES: u64 = 16;

/// A leaf of ordinary memory, and of a device's: valid, accessed, the kernel's alone; what users execute it does not matter.
const NORMAL_LEAF: u64 = 1 | 3 << 8 | 1 << 10 | 1 << 54;
const DEVICE_LEAF: u64 = 1 | 2 << 2 | 1 << 10 | 1 << 53 | 1 << 54;

/// `TCR_EL1`: 48 bits of address through TTBR0 with granules of 4 KiB, tables cached and shareable, nothing through TTBR1,
/// 48 bits of physical address, and hardware sets access flag and dirty state.
pub const TCR: u64 =
    16 | 1 << 8 | 1 << 10 | 3 << 12 | 16 << 16 | 1 << 23 | 5 << 32 | HARDWARE_YOUNG | HARDWARE_DIRTY;
pub const HARDWARE_YOUNG: u64 = 1 << 39;
pub const HARDWARE_DIRTY: u64 = 1 << 40;
/// `SCTLR_EL1`: what must be 1, privileged access left as it is by exceptions, MMU and caches on.
const SCTLR: u64 = 0x30d0_0800 | 1 | 1 << 2 | 1 << 12;

/// A page table.
#[repr(C, align(4096))]
pub struct Table(pub [AtomicU64; 512]);

impl Table {
    const fn empty() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }
}

#[repr(C, align(4096))]
struct Stacks<const SHIFT: u32, const BYTES: usize>([[u8; BYTES]; MAX_CPUS]);

/// Root of the identity map.
#[unsafe(no_mangle)]
static LEVEL0: Table = Table::empty();
/// An entry a GiB.
#[unsafe(no_mangle)]
static LEVEL1: Table = Table::empty();
/// Of the first GiB, where the devices are.
#[unsafe(no_mangle)]
static LEVEL2: Table = Table::empty();

/// Only the processors' stack pointers refer to them; as `static mut` they lie in writable memory.
#[unsafe(no_mangle)]
static mut STACKS: Stacks<STACK_SHIFT, { 1 << STACK_SHIFT }> = Stacks([[0; 1 << STACK_SHIFT]; MAX_CPUS]);
#[unsafe(no_mangle)]
static mut FAULT_STACKS: Stacks<FAULT_STACK_SHIFT, { 1 << FAULT_STACK_SHIFT }> =
    Stacks([[0; 1 << FAULT_STACK_SHIFT]; MAX_CPUS]);

/// What of RAM is taken from the start: the device tree, and this program.
pub fn taken() -> [Range; 2] {
    [
        Range { start: RAM, end: IMAGE },
        Range { start: &raw const image_start as u64, end: &raw const image_end as u64 },
    ]
}

unsafe extern "C" {
    /// Where a further processor starts.
    pub safe static ap_start: u8;
    /// First byte of this program in memory.
    safe static image_start: u8;
    /// First byte behind it, page aligned.
    safe static image_end: u8;
}

global_asm!(
    ".set STACK_SHIFT, {shift}",
    ".set FAULT_STACK_SHIFT, {fault_shift}",
    ".set GIGABYTES, {gigabytes}",
    ".set NORMAL_LEAF, {normal}",
    ".set DEVICE_LEAF, {device}",
    ".set MAIR, {mair}",
    ".set TCR, {tcr}",
    ".set SCTLR, {sctlr}",
    ".set FRAME, {frame}",
    include_str!("boot.s"),
    shift = const STACK_SHIFT,
    fault_shift = const FAULT_STACK_SHIFT,
    gigabytes = const GIGABYTES,
    normal = const NORMAL_LEAF,
    device = const DEVICE_LEAF,
    mair = const ARM64_MAIR,
    tcr = const TCR,
    sctlr = const SCTLR,
    frame = const size_of::<Frame>(),
);
