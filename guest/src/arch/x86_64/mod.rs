//! x86-64: QEMU's microvm and q35.

mod apic;
pub mod boot;
pub mod clock;
pub mod faults;
pub mod paging;
pub mod power;
pub mod processor;
pub mod serial;
mod start_info;
pub mod transport;

pub use apic::{SHOOTDOWN_VECTOR, interrupt, wake};
pub use x86_64::instructions::interrupts;

use crate::{console, crew, memory};
use clock::Clock;

/// How often the host is looked at when nothing else wakes this program, in microseconds.
const TICK: u64 = 20_000;
/// How long processors may take to start, in microseconds.
const START: u64 = 2_000_000;

#[unsafe(no_mangle)]
extern "C" fn boot_main(start_info: u32) -> ! {
    processor::set(0);
    console::open();
    faults::prepare();
    faults::load(0);
    let ram = start_info::ram(start_info);
    apic::mask_legacy();
    let clock = Clock::measure();
    let cpus = usize::from(power::cpu_count()).clamp(1, boot::MAX_CPUS);
    let ram = memory::prepare(ram, cpus);

    apic::enable(0);
    crew::arrive(0);
    apic::start_others(&clock);
    let until = clock.now_us() + START;
    while crew::present() < cpus && clock.now_us() < until {
        core::hint::spin_loop();
    }
    apic::start_tick(&clock, TICK);
    apic::route_serial();
    crate::serve(clock, ram, cpus)
}

#[unsafe(no_mangle)]
extern "C" fn ap_main(cpu: u32) -> ! {
    let cpu = cpu as usize;
    processor::set(cpu);
    faults::load(cpu);
    apic::enable(cpu);
    crew::arrive(cpu);
    crew::wait_for_jobs(cpu)
}
