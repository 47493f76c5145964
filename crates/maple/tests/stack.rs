//! How much stack operations take: a kernel has 8 to 16 KB in all.
#![cfg(not(any(loom, miri)))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use isotherm_maple::{Global, MapleTree, NodeAlloc};
use isotherm_rcu::{Callback, Rcu, RcuHead, Reclaim};
use std::alloc::Layout;
use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::num::NonZeroUsize;
use std::ptr::NonNull;

/// Bytes that the README promises of optimised code. Other code keeps more of what it has used up.
const LIMIT: usize = if cfg!(debug_assertions) { 2048 } else { 1536 };

thread_local! {
    static START: Cell<usize> = const { Cell::new(0) };
    static DEEPEST: Cell<usize> = const { Cell::new(0) };
}

/// Where the stack ends now.
#[inline(never)]
fn end() -> usize {
    let here = 0_u8;
    black_box(&raw const here).addr()
}

/// Called by what an operation calls in its innermost functions.
fn note() {
    DEEPEST.set(DEEPEST.get().max(START.get().saturating_sub(end())));
}

struct Noting;

// SAFETY: the global allocator's memory.
unsafe impl NodeAlloc for Noting {
    fn allocate(layout: Layout) -> Option<NonNull<u8>> {
        note();
        Global::allocate(layout)
    }

    unsafe fn free(memory: NonNull<u8>, layout: Layout) {
        note();
        // SAFETY: it came from there.
        unsafe { Global::free(memory, layout) };
    }
}

/// RCU for one thread: callbacks wait until it is dropped.
#[derive(Default)]
struct Alone(RefCell<Vec<(NonNull<RcuHead>, Callback)>>);

impl Rcu for Alone {
    type Guard<'a> = ();

    fn read_lock(&self) {}
}

// SAFETY: callbacks are called when guards, which borrow this, are gone.
unsafe impl Reclaim for Alone {
    unsafe fn defer(&self, head: NonNull<RcuHead>, callback: Callback) {
        note();
        self.0.borrow_mut().push((head, callback));
    }

    fn synchronize(&self) {}
}

impl Drop for Alone {
    fn drop(&mut self) {
        for (head, callback) in self.0.take() {
            // SAFETY: they were deferred with it, and nobody reads any more.
            unsafe { callback(head) };
        }
    }
}

/// The stack that something takes.
#[inline(never)]
fn taken(run: impl FnOnce()) -> usize {
    DEEPEST.set(0);
    START.set(end());
    run();
    DEEPEST.get()
}

#[test]
fn no_operation_takes_more_than_is_promised() {
    let value = |n| NonZeroUsize::new(n).unwrap();
    let ranges = (0..50_000_u64).map(|n| (20 * n..=20 * n + 9, value(n as usize + 1)));
    let mut tree = None;
    let built = taken(|| tree = MapleTree::<_, _, Noting>::build(Alone::default(), ranges).ok());
    let tree = tree.unwrap();
    assert!(tree.levels() >= 4);
    let mut writer = tree.try_write().unwrap();
    let mut all = vec![("build", built)];
    all.push(("a split", taken(|| writer.store(1005..=1006, value(1)).unwrap())));
    for n in 0..200 {
        all.push(("another", taken(|| writer.store(2000 * n + 5..=2000 * n + 1999, value(1)).unwrap())));
    }
    all.push(("a store over most", taken(|| writer.store(55..=900_015, value(1)).unwrap())));
    let mut reserved = writer.reserve(1).unwrap();
    all.push(("with a reserve", taken(|| reserved.erase_range(900_016..=950_001))));
    drop(reserved);
    all.push(("insert", taken(|| writer.insert(900_020..=900_021, value(1)).unwrap())));
    all.push(("erase", taken(|| assert!(writer.erase(900_020).unwrap().is_some()))));
    all.push(("clear", taken(|| writer.clear())));
    for (what, bytes) in all {
        assert!(bytes > 0, "{what} allocates or frees");
        assert!(bytes < LIMIT, "{what}: {bytes} bytes");
    }
}
