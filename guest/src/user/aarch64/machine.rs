//! What of the user programs only arm64 has: its format.

use core::arch::asm;
use isotherm_pagetable::Arm64Hafdbs;

/// Runs all programs with the format of this machine.
///
/// # Errors
/// What went wrong, in words.
pub fn measured(
    seed: u64,
    rounds: u64,
    bytes: u64,
    serve: &mut dyn FnMut() -> u64,
) -> Result<alloc::string::String, alloc::string::String> {
    super::measured::<Arm64Hafdbs>(seed, rounds, bytes, serve)
}

/// Instructions were written to this memory: they are to be fetched from now on (Arm ARM, B2.4.4).
pub fn instructions_written(start: u64, bytes: u64) {
    let types: u64;
    // SAFETY: reading it has no effect.
    unsafe { asm!("mrs {}, ctr_el0", out(reg) types, options(nomem, nostack, preserves_flags)) };
    // log2 of the words of the smallest line of data.
    let line = 4 << (types >> 16 & 0xf);
    for at in (start..start + bytes).step_by(line) {
        // SAFETY: memory that is mapped, of which a cache writes back what it has.
        unsafe { asm!("dc cvau, {}", in(reg) at, options(nostack, preserves_flags)) };
    }
    // SAFETY: what was cached of instructions is fetched again, by all processors. An exception returns to a program before it
    // fetches any of these.
    unsafe { asm!("dsb ish", "ic ialluis", "dsb ish", "isb", options(nostack, preserves_flags)) };
}
