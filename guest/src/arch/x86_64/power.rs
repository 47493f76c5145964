//! Ending the run with a code that the one who started QEMU sees.

pub use crate::ending::End;
use x86_64::instructions::{hlt, interrupts, port::Port};

/// Ends the run: through QEMU's `isa-debug-exit` at port 0xf4; where there is none, this processor sleeps for ever.
pub fn end(end: End) -> ! {
    // SAFETY: the port is the debug device's or nobody's.
    unsafe { Port::<u32>::new(0xf4).write(u32::from(end as u8)) };
    interrupts::disable();
    loop {
        hlt();
    }
}

/// Number of processors the machine has, told by QEMU's firmware configuration device.
pub fn cpu_count() -> u16 {
    const NB_CPUS: u16 = 0x05;
    let mut data = Port::<u8>::new(0x511);
    // SAFETY: the device's ports; selecting an item and reading it concerns nobody else. Read before other
    // processors run.
    unsafe {
        Port::<u16>::new(0x510).write(NB_CPUS);
        u16::from_le_bytes([data.read(), data.read()])
    }
}
