//! Lapses: duties of a kernel that the experiment leaves out when asked to, to show that it would notice.

use core::sync::atomic::{AtomicU8, Ordering};
pub use isotherm_guest::command::Lapse;

/// 0, or one more than the lapse.
static NOW: AtomicU8 = AtomicU8::new(0);

/// From now on this one, or none.
pub fn set(lapse: Option<Lapse>) {
    NOW.store(lapse.map_or(0, |lapse| lapse as u8 + 1), Ordering::Relaxed);
}

/// Whether this duty is to be left out.
pub fn is(lapse: Lapse) -> bool {
    NOW.load(Ordering::Relaxed) == lapse as u8 + 1
}
