//! The interrupt controller, a GICv2: waking processors, the tick, and what the serial line raises.

use super::{clock, serial};

const DISTRIBUTOR: u64 = 0x0800_0000;
const CPU_INTERFACE: u64 = 0x0801_0000;
/// Of the distributor: on; enabled interrupts, a bit each; their processors, a byte each; raising one by software.
const D_CONTROL: u64 = 0;
const D_ENABLE: u64 = 0x100;
const D_TARGETS: u64 = 0x800;
const D_SOFTWARE: u64 = 0xf00;
/// Of the interface: on; what is masked; the interrupt that came; that it is over.
const C_CONTROL: u64 = 0;
const C_MASK: u64 = 4;
const C_ACKNOWLEDGE: u64 = 0xc;
const C_END: u64 = 0x10;
/// The virtual timer's interrupt, of each processor.
const TIMER: u32 = 27;
/// The serial line's interrupt.
const SERIAL: u32 = 33;
/// From here on: none.
const SPURIOUS: u32 = 1020;

fn read(address: u64) -> u32 {
    // SAFETY: the controller's pages are mapped, and these registers exist.
    unsafe { (address as *const u32).read_volatile() }
}

fn write(address: u64, value: u32) {
    // SAFETY: as in `read`.
    unsafe { (address as *mut u32).write_volatile(value) }
}

/// Turns it on, with the serial line for processor 0. Once.
pub fn prepare() {
    let targets = DISTRIBUTOR + D_TARGETS + u64::from(SERIAL / 4 * 4);
    let shift = SERIAL % 4 * 8;
    write(targets, read(targets) & !(0xff << shift) | 1 << shift);
    write(DISTRIBUTOR + D_ENABLE + u64::from(SERIAL / 32 * 4), 1 << (SERIAL % 32));
    write(DISTRIBUTOR + D_CONTROL, 1);
}

/// Makes this processor take interrupts.
pub fn enable() {
    // Those that software raises.
    write(DISTRIBUTOR + D_ENABLE, 0xffff);
    write(CPU_INTERFACE + C_MASK, 0xff);
    write(CPU_INTERFACE + C_CONTROL, 1);
}

/// Makes this processor take those of its timer too.
pub fn enable_tick() {
    write(DISTRIBUTOR + D_ENABLE, 1 << TIMER);
}

/// Ends the sleep of processor `cpu`, now or as soon as it comes to one with interrupts held back.
pub fn wake(cpu: usize) {
    // SAFETY: a barrier: what it is woken for is seen before the interrupt.
    unsafe { core::arch::asm!("dsb ish", options(nostack, preserves_flags)) };
    write(DISTRIBUTOR + D_SOFTWARE, 1 << (16 + cpu));
}

/// An interrupt has come, whose only purpose is to wake.
pub fn acknowledge() {
    let came = read(CPU_INTERFACE + C_ACKNOWLEDGE);
    if came & 0x3ff >= SPURIOUS {
        return;
    }
    if came & 0x3ff == SERIAL {
        serial::acknowledge();
    }
    if came & 0x3ff == TIMER {
        clock::tick();
    }
    write(CPU_INTERFACE + C_END, came);
}
