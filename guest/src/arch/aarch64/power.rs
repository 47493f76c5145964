//! Starting processors, and ending the run with a code that the one who started QEMU sees.

use super::boot;
pub use crate::ending::End;
use core::arch::asm;

/// PSCI, by HVC (Arm DEN 0022).
const CPU_ON: u64 = 0xc400_0003;
const SYSTEM_OFF: u64 = 0x8400_0008;

fn psci(function: u64, arguments: [u64; 3]) -> u64 {
    let result;
    // SAFETY: the firmware's calling convention: x0 to x3, of which x0 comes back; what it does is the caller's wish.
    unsafe {
        asm!(
            "hvc #0",
            inlateout("x0") function => result,
            inlateout("x1") arguments[0] => _,
            inlateout("x2") arguments[1] => _,
            inlateout("x3") arguments[2] => _,
            clobber_abi("C"),
        );
    }
    result
}

/// Starts processor `cpu` at `ap_start`, which finds its number in x0.
pub fn start(cpu: usize) {
    let entry = &raw const boot::ap_start as u64;
    // Up to eight are of one cluster, where the number is the lowest field of MPIDR.
    let _refused = psci(CPU_ON, [cpu as u64, entry, cpu as u64]);
}

/// Ends the run: by semihosting, with twice the code plus one, as `isa-debug-exit` does on a PC; where there is none, the
/// machine is turned off.
pub fn end(end: End) -> ! {
    const EXIT_EXTENDED: u64 = 0x20;
    const APPLICATION_EXIT: u64 = 0x20026;
    let block = [APPLICATION_EXIT, 2 * end as u64 + 1];
    // SAFETY: semihosting's calling convention: the operation, and a block of arguments. It does not return.
    unsafe {
        asm!("hlt #0xf000", in("x0") EXIT_EXTENDED, in("x1") &raw const block, options(nostack));
    }
    psci(SYSTEM_OFF, [0; 3]);
    loop {
        // SAFETY: it sleeps.
        unsafe { asm!("wfi", options(nomem, nostack)) };
    }
}
