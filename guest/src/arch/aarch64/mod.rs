//! arm64: QEMU's virt, with a GICv2, a PL011, virtio-mmio, PSCI by HVC and semihosting.

pub mod boot;
pub mod clock;
mod device_tree;
pub mod faults;
mod gic;
pub mod interrupts;
pub mod paging;
pub mod power;
pub mod processor;
pub mod serial;
pub mod transport;

pub use gic::wake;

use crate::{console, crew, memory};
use clock::Clock;

/// How often the host is looked at when nothing else wakes this program, in microseconds.
const TICK: u64 = 20_000;
/// How long processors may take to start, in microseconds.
const START: u64 = 2_000_000;

#[unsafe(no_mangle)]
extern "C" fn boot_main() -> ! {
    processor::set(0);
    console::open();
    let tree = device_tree::read();
    let clock = Clock::measure();
    let cpus = tree.cpus.clamp(1, boot::MAX_CPUS);
    let ram = memory::prepare(tree.ram, cpus);

    gic::prepare();
    gic::enable();
    crew::arrive(0);
    for cpu in 1..cpus {
        power::start(cpu);
    }
    let until = clock.now_us() + START;
    while crew::present() < cpus && clock.now_us() < until {
        core::hint::spin_loop();
    }
    clock.start_tick(TICK);
    gic::enable_tick();
    crate::serve(clock, ram, cpus)
}

#[unsafe(no_mangle)]
extern "C" fn ap_main(cpu: usize) -> ! {
    processor::set(cpu);
    gic::enable();
    crew::arrive(cpu);
    crew::wait_for_jobs(cpu)
}
