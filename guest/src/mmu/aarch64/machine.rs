//! What of the experiment only arm64 has: its format, and what the processor must be able to do.

use crate::arch::boot::{HARDWARE_DIRTY, HARDWARE_YOUNG};
use crate::mmu::contradiction::{Checked, ensure};
use core::arch::asm;
use isotherm_pagetable::{Arm64Hafdbs, Format};

/// What a page begins with that is called: `svc #0`, for it is a user program.
pub const RETURN: u64 = 0xd400_0001;

/// Does the experiment with the format of this machine; the number of its levels.
///
/// # Errors
/// What it found.
pub fn measured(seed: u64, operations: u64) -> Checked<u32> {
    crate::mmu::measured::<Arm64Hafdbs>(seed, operations)?;
    Ok(Arm64Hafdbs::ROOT as u32 + 1)
}

/// Whether the experiment can be done here.
///
/// # Errors
/// Why not.
pub fn check() -> Checked {
    let (features, control): (u64, u64);
    // SAFETY: reading them has no effect.
    unsafe {
        asm!("mrs {}, id_aa64mmfr1_el1", out(reg) features, options(nomem, nostack, preserves_flags));
        asm!("mrs {}, tcr_el1", out(reg) control, options(nomem, nostack, preserves_flags));
    }
    ensure!(features & 0xf >= 2, "the processor sets no dirty state (FEAT_HAFDBS); boot with -cpu max");
    let both = HARDWARE_YOUNG | HARDWARE_DIRTY;
    ensure!(control & both == both, "access flag and dirty state are not hardware's: TCR is {control:#x}");
    Ok(())
}

/// Loads and stores here are a user program's in any case (LDTR, STTR), and calls run at EL0: nothing is left to be seen.
pub fn without_users_pages(_act: impl FnOnce() -> Checked) -> Option<Checked> {
    Some(Ok(()))
}
