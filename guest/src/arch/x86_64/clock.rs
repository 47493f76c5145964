//! Time: the time stamp counter, measured once against the programmable interval timer.

use x86_64::instructions::port::Port;

/// The timer's rate in Hz, the only one that every PC has known beforehand.
const PIT_HZ: u64 = 1_193_182;
/// How long is measured, in the timer's ticks: 10 ms.
const MEASURED: u64 = PIT_HZ / 100;

/// A monotonic clock. Its zero is the moment it was made.
pub struct Clock {
    start: u64,
    ticks_per_ms: u64,
}

fn time_stamp() -> u64 {
    // SAFETY: RDTSC exists on every x86-64 processor, and nothing forbids it here.
    unsafe { core::arch::x86_64::_rdtsc() }
}

impl Clock {
    /// Measures for 10 ms.
    pub fn measure() -> Self {
        let mut control = Port::<u8>::new(0x43);
        let mut channel = Port::<u8>::new(0x40);
        // Reads the counter, which runs down from 65535 again and again.
        let mut latched = move || {
            // SAFETY: the timer's ports; latching channel 0 and reading two bytes has no effect on anything else.
            unsafe {
                control.write(0);
                u16::from_le_bytes([channel.read(), channel.read()])
            }
        };
        // SAFETY: channel 0, both bytes, mode 2 (rate generator), from 65536. Its interrupt is not routed anywhere.
        unsafe {
            Port::<u8>::new(0x43).write(0b0011_0100);
            Port::<u8>::new(0x40).write(0);
            Port::<u8>::new(0x40).write(0);
        }
        let mut last = latched();
        let mut passed = 0;
        let start = time_stamp();
        while passed < MEASURED {
            let now = latched();
            passed += u64::from(last.wrapping_sub(now));
            last = now;
        }
        let ticks = time_stamp().wrapping_sub(start);
        Self { start, ticks_per_ms: (ticks.saturating_mul(PIT_HZ / 1000) / passed).max(1) }
    }

    /// Microseconds since the clock was made.
    pub fn now_us(&self) -> u64 {
        let ticks = u128::from(time_stamp().wrapping_sub(self.start));
        (ticks * 1000 / u128::from(self.ticks_per_ms)) as u64
    }

    /// Spins for `us` microseconds.
    pub fn wait_us(&self, us: u64) {
        let until = self.now_us().saturating_add(us);
        while self.now_us() < until {
            core::hint::spin_loop();
        }
    }
}
