//! The interrupt controllers: waking processors, starting them, a periodic tick.

use super::boot::{self, MAX_CPUS, TRAMPOLINE};
use super::clock::Clock;
use core::sync::atomic::{AtomicU32, Ordering};
use x86_64::instructions::port::Port;

/// Where the local APIC is after reset (Intel SDM vol. 3, 12.4.1).
const LOCAL_APIC: u64 = 0xfee0_0000;
/// Its end-of-interrupt register.
pub const END_OF_INTERRUPT: u64 = LOCAL_APIC + 0xb0;
/// Where QEMU's machines have their (first) I/O APIC.
const IO_APIC: u64 = 0xfec0_0000;

/// Vector of every interrupt that only wakes.
pub const WAKE_VECTOR: u8 = 0x20;
/// Vector by which a processor asks another for a TLB flush.
pub const SHOOTDOWN_VECTOR: u8 = 0x21;
/// Vector of spurious interrupts, which are not acknowledged.
pub const SPURIOUS_VECTOR: u8 = 0xff;

/// Registers of the local APIC by offset.
#[derive(Clone, Copy)]
enum Register {
    Id = 0x20,
    SpuriousVector = 0xf0,
    ErrorStatus = 0x280,
    CommandLow = 0x300,
    CommandHigh = 0x310,
    TimerVector = 0x320,
    InitialCount = 0x380,
    CurrentCount = 0x390,
    TimerDivide = 0x3e0,
}

/// Local APIC ids, by processor.
static IDS: [AtomicU32; MAX_CPUS] = [const { AtomicU32::new(0) }; MAX_CPUS];

fn write(register: Register, value: u32) {
    // SAFETY: the page is mapped and belongs to the local APIC alone; the registers named here exist in every one.
    unsafe { ((LOCAL_APIC + register as u64) as *mut u32).write_volatile(value) }
}

fn read(register: Register) -> u32 {
    // SAFETY: as in `write`; reading has no effect.
    unsafe { ((LOCAL_APIC + register as u64) as *const u32).read_volatile() }
}

/// Makes this processor take interrupts, and known to the others under the number `cpu`.
pub fn enable(cpu: usize) {
    write(Register::SpuriousVector, 0x100 | u32::from(SPURIOUS_VECTOR));
    if let Some(id) = IDS.get(cpu) {
        id.store(read(Register::Id) >> 24, Ordering::Release);
    }
}

fn send(id: u32, command: u32) {
    write(Register::CommandHigh, id << 24);
    write(Register::CommandLow, command);
    while read(Register::CommandLow) & (1 << 12) != 0 {
        core::hint::spin_loop();
    }
}

/// Ends the HLT of processor `cpu`, now or as soon as it comes to one with interrupts held back.
pub fn wake(cpu: usize) {
    interrupt(cpu, WAKE_VECTOR);
}

/// Raises the interrupt `vector` on processor `cpu`.
pub fn interrupt(cpu: usize, vector: u8) {
    if let Some(id) = IDS.get(cpu) {
        send(id.load(Ordering::Acquire), u32::from(vector));
    }
}

/// Starts all other processors at the trampoline (Intel SDM vol. 3, 10.4.4: INIT, 10 ms, SIPI, 200 us, SIPI).
pub fn start_others(clock: &Clock) {
    let code = &raw const boot::ap_trampoline;
    let length = &raw const boot::ap_trampoline_end as usize - code as usize;
    // SAFETY: both symbols bound the trampoline's code; its destination is RAM below 1 MiB that nobody uses, and no
    // processor runs there yet.
    unsafe { core::ptr::copy_nonoverlapping(code, TRAMPOLINE as *mut u8, length) };
    // All but this one, level assert. `send` needs no id for it.
    const OTHERS: u32 = 0b11 << 18 | 1 << 14;
    write(Register::ErrorStatus, 0);
    send(0, OTHERS | 0b101 << 8);
    clock.wait_us(10_000);
    for _ in 0..2 {
        send(0, OTHERS | 0b110 << 8 | (TRAMPOLINE >> 12) as u32);
        clock.wait_us(200);
    }
}

/// Wakes this processor every `period_us` from now on.
pub fn start_tick(clock: &Clock, period_us: u64) {
    const PERIODIC: u32 = 1 << 17;
    const MASKED: u32 = 1 << 16;
    // Divided by 16, measured against the clock.
    write(Register::TimerDivide, 0b0011);
    write(Register::TimerVector, MASKED);
    write(Register::InitialCount, u32::MAX);
    let from = clock.now_us();
    clock.wait_us(2_000);
    let counted = u64::from(u32::MAX - read(Register::CurrentCount));
    let took = (clock.now_us() - from).max(1);
    let count = (counted * period_us / took).clamp(1, u64::from(u32::MAX));
    write(Register::TimerVector, PERIODIC | u32::from(WAKE_VECTOR));
    write(Register::InitialCount, count as u32);
}

/// Silences the old interrupt controllers: what they raise (the timer, on a PC) would look like exceptions.
pub fn mask_legacy() {
    for port in [0x21, 0xa1] {
        // SAFETY: the mask registers of the two 8259; all ones holds every line back.
        unsafe { Port::<u8>::new(port).write(0xff) };
    }
}

/// Lets the serial line's interrupt (pin 4) wake processor 0, edge-triggered.
pub fn route_serial() {
    const PIN: u32 = 4;
    let id = IDS[0].load(Ordering::Acquire);
    for (index, value) in [(0x11 + 2 * PIN, id << 24), (0x10 + 2 * PIN, u32::from(WAKE_VECTOR))] {
        // SAFETY: the page is mapped and belongs to the I/O APIC; select, then data, is its protocol, and only
        // processor 0 speaks to it.
        unsafe {
            (IO_APIC as *mut u32).write_volatile(index);
            ((IO_APIC + 0x10) as *mut u32).write_volatile(value);
        }
    }
}
