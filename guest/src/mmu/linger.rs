//! A walk that takes its time: so that what happens to a table between two loads of a lookup happens for sure, and not
//! once in a thousand.
//!
//! While it is [on](on), processors but the first wait at every table of a walk but the root, before they read it, until
//! the first processor lets them [pass].

use super::tlb;
use crate::processor;
use core::sync::atomic::{AtomicU64, Ordering};
use isotherm_pagetable::Frame;

/// The root that is not waited at; 0 while it is off.
static ROOT: AtomicU64 = AtomicU64::new(0);
/// How often a walk came to a table.
static ARRIVED: AtomicU64 = AtomicU64::new(0);
/// How many of them passed.
static PASSED: AtomicU64 = AtomicU64::new(0);

/// Walks from this root take their time from now on, until [`off`].
pub fn on(root: Frame) {
    ROOT.store(root.0, Ordering::SeqCst);
}

/// They do not, and one that waits goes on.
pub fn off() {
    ROOT.store(0, Ordering::SeqCst);
}

/// A walk is about to read a table.
pub fn at_table(table: Frame) {
    let root = ROOT.load(Ordering::Relaxed);
    if root != 0 && root != table.0 && processor::current() != 0 {
        let own = ARRIVED.fetch_add(1, Ordering::SeqCst) + 1;
        tlb::wait_until(|| PASSED.load(Ordering::SeqCst) >= own || ROOT.load(Ordering::SeqCst) == 0);
    }
}

/// Whether a walk waits.
pub fn waits() -> bool {
    ARRIVED.load(Ordering::SeqCst) > PASSED.load(Ordering::SeqCst)
}

/// Lets the walk that waits go on, to the next table.
pub fn pass() {
    PASSED.store(ARRIVED.load(Ordering::SeqCst), Ordering::SeqCst);
}
