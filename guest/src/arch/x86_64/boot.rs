//! Entry of the processors: symbols that `boot.s` and Rust have in common.

use core::arch::global_asm;
use core::sync::atomic::AtomicU64;
use isotherm_guest::ram::Range;

/// Processors that have a stack and a place in every table. Further ones sleep.
pub const MAX_CPUS: usize = 8;

/// log2 of the bytes of a processor's stack.
const STACK_SHIFT: u32 = 16;

/// Where further processors start: a page below 1 MiB that neither firmware nor start info use.
pub const TRAMPOLINE: u64 = 0x8000;

/// A page table: entries are read by the processor at any time.
#[repr(C, align(4096))]
pub struct Table(pub [AtomicU64; 512]);

impl Table {
    const fn empty() -> Self {
        Self([const { AtomicU64::new(0) }; 512])
    }
}

#[repr(C, align(4096))]
struct Stacks([[u8; 1 << STACK_SHIFT]; MAX_CPUS]);

/// Root of the identity map on processors with 5 levels; its first entry is the root of the others.
#[unsafe(no_mangle)]
pub static PML5: Table = Table::empty();
/// Root of the identity map on processors with 4 levels.
#[unsafe(no_mangle)]
pub static PML4: Table = Table::empty();
/// Third level: an entry a GiB.
#[unsafe(no_mangle)]
pub static PDPT: Table = Table::empty();
/// Second level of the first 4 GiB.
#[unsafe(no_mangle)]
pub static PD: [Table; 4] = [const { Table::empty() }; 4];
/// First level of the first 4 MiB, this program among them.
pub static PT: [Table; 2] = [const { Table::empty() }; 2];

/// Only the processors' stack pointers refer to it; as `static mut` it lies in writable memory.
#[unsafe(no_mangle)]
static mut STACKS: Stacks = Stacks([[0; 1 << STACK_SHIFT]; MAX_CPUS]);

/// The lowest page of each stack, which nothing may ever touch: a stack that grows into it has overflowed.
pub fn stack_guards() -> impl Iterator<Item = u64> {
    (0..MAX_CPUS as u64).map(|cpu| &raw const STACKS as u64 + (cpu << STACK_SHIFT))
}

/// What of RAM is taken from the start: page 0, the trampoline, this program.
pub fn taken() -> [Range; 3] {
    let page = |start| Range { start, end: start + 4096 };
    [
        page(0),
        page(TRAMPOLINE),
        Range { start: &raw const image_start as u64, end: &raw const image_end as u64 },
    ]
}

unsafe extern "C" {
    /// First byte of the code a further processor starts with.
    pub safe static ap_trampoline: u8;
    /// First byte behind it.
    pub safe static ap_trampoline_end: u8;
    /// Entry points of the exceptions, 16 bytes each.
    pub safe static exception_stubs: u8;
    /// Entry point of a user program's calls.
    pub safe static system_call: u8;
    /// Entry point of interrupts that wake.
    pub safe static wake_interrupt: u8;
    /// Entry point of the interrupt by which another processor asks for a TLB flush.
    pub safe static shootdown_interrupt: u8;
    /// Entry point of the interrupt that must not be acknowledged.
    pub safe static spurious_interrupt: u8;
    /// First byte of this program in memory; code and constants, page aligned, come first.
    pub safe static image_start: u8;
    /// First byte of its variables, page aligned.
    pub safe static data_start: u8;
    /// First byte behind it, page aligned.
    pub safe static image_end: u8;
}

global_asm!(
    ".set MAX_CPUS, {cpus}",
    ".set STACK_SHIFT, {shift}",
    ".set TRAMPOLINE, {trampoline}",
    ".set LOCAL_APIC_EOI, {eoi}",
    include_str!("boot.s"),
    cpus = const MAX_CPUS,
    shift = const STACK_SHIFT,
    trampoline = const TRAMPOLINE,
    eoi = const super::apic::END_OF_INTERRUPT,
    options(att_syntax)
);
