//! What of the user programs only x86-64 has: its formats.

use isotherm_pagetable::{X86_64, X86_64La57};
use x86_64::registers::control::{Cr4, Cr4Flags};

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
    if Cr4::read().contains(Cr4Flags::L5_PAGING) {
        super::measured::<X86_64La57>(seed, rounds, bytes, serve)
    } else {
        super::measured::<X86_64>(seed, rounds, bytes, serve)
    }
}

/// Instructions were written to this memory: the processor sees by itself what it is to fetch.
pub fn instructions_written(_start: u64, _bytes: u64) {}
