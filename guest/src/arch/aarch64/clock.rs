//! Time: the generic timer's virtual count, and its tick.

use core::arch::asm;
use core::sync::atomic::{AtomicU64, Ordering};

/// The timer's counts from one tick to the next.
static TICK: AtomicU64 = AtomicU64::new(0);

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

    /// Has this processor's timer raise an interrupt every `us` microseconds.
    pub fn start_tick(&self, us: u64) {
        TICK.store(us * self.hz / 1_000_000, Ordering::Relaxed);
        tick();
        // SAFETY: turns the timer on.
        unsafe {
            asm!("msr cntv_ctl_el0, {}", "isb", in(reg) 1u64, options(nomem, nostack, preserves_flags))
        };
    }

    /// Microseconds since the clock was made.
    pub fn now_us(&self) -> u64 {
        (u128::from(count().wrapping_sub(self.start)) * 1_000_000 / u128::from(self.hz)) as u64
    }
}

/// The tick has come: the next one is due.
pub fn tick() {
    let counts = TICK.load(Ordering::Relaxed);
    // SAFETY: sets the timer, and takes its interrupt back.
    unsafe { asm!("msr cntv_tval_el0, {}", "isb", in(reg) counts, options(nomem, nostack, preserves_flags)) };
}
