//! Time: the generic timer's virtual count.

use core::arch::asm;

/// A monotonic clock. Its zero is the moment it was made.
pub struct Clock {
    start: u64,
    hz: u64,
}

fn count() -> u64 {
    let count;
    // SAFETY: reading it has no effect.
    unsafe { asm!("isb", "mrs {}, cntvct_el0", out(reg) count, options(nomem, nostack, preserves_flags)) };
    count
}

impl Clock {
    /// The rate is told by a register.
    pub fn measure() -> Self {
        let hz: u64;
        // SAFETY: as in `count`.
        unsafe { asm!("mrs {}, cntfrq_el0", out(reg) hz, options(nomem, nostack, preserves_flags)) };
        Self { start: count(), hz: hz.max(1) }
    }

    /// Microseconds since the clock was made.
    pub fn now_us(&self) -> u64 {
        (u128::from(count().wrapping_sub(self.start)) * 1_000_000 / u128::from(self.hz)) as u64
    }
}
