//! What of the experiment only x86-64 has: its formats, what its control registers must say, SMAP.

use crate::mmu::contradiction::{Checked, ensure};
use isotherm_pagetable::{X86_64, X86_64La57};
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};

/// What a page begins with that is called: `ret`.
pub const RETURN: u64 = 0xc3;

/// Does the experiment with the format of this machine; the number of its levels.
///
/// # Errors
/// What it found.
pub fn measured(seed: u64, operations: u64) -> Checked<u32> {
    if Cr4::read().contains(Cr4Flags::L5_PAGING) {
        crate::mmu::measured::<X86_64La57>(seed, operations)?;
        return Ok(5);
    }
    crate::mmu::measured::<X86_64>(seed, operations)?;
    Ok(4)
}

/// Whether the experiment can be done here.
///
/// # Errors
/// Why not.
pub fn check() -> Checked {
    let (cr0, cr4) = (Cr0::read(), Cr4::read());
    ensure!(
        cr0.contains(Cr0Flags::WRITE_PROTECT),
        "CR0.WP is clear: this program could write read-only pages"
    );
    let hidden = Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION | Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION;
    ensure!(!cr4.intersects(hidden), "CR4 has more set than this program did: {cr4:?}");
    Ok(())
}

/// Does something while this program may access only what users may not (SMAP), where the processor can do that.
pub fn without_users_pages(act: impl FnOnce() -> Checked) -> Option<Checked> {
    if core::arch::x86_64::__cpuid_count(7, 0).ebx & (1 << 20) == 0 {
        return None;
    }
    // SAFETY: no page of this program is one that users may access, and flag AC is clear since the start.
    unsafe { Cr4::update(|flags| flags.insert(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION)) };
    let result = act();
    // SAFETY: it was clear before.
    unsafe { Cr4::update(|flags| flags.remove(Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION)) };
    Some(result)
}
