//! RCU: page tables that were taken out of a tree are reused only when nobody can be walking through them any more.
//!
//! Each processor counts when it enters and leaves a protected section, so the count is odd inside. A table that is
//! retired goes to the list `next`. When the list `waiting` is empty, `next` becomes it, and the counts of all processors
//! are written down: whoever was inside then may see a table of the list, and nobody who entered later. Once each of
//! those has left, the list is free. A processor never waits for that; it looks when it retires or allocates a table.
//!
//! The lists are chained through the frames' metadata, since a retired table keeps its contents.

use super::hardware::Hardware;
use crate::boot::MAX_CPUS;
use crate::processor;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use isotherm_pagetable::{Frame, Rcu};

#[derive(Debug)]
struct Reader {
    /// Odd while the processor is inside.
    passes: AtomicU64,
    /// How deeply.
    depth: AtomicU32,
}

static READERS: [Reader; MAX_CPUS] =
    [const { Reader { passes: AtomicU64::new(0), depth: AtomicU32::new(0) } }; MAX_CPUS];

/// A protected section, of the processor that entered it.
#[derive(Debug)]
pub struct Section(&'static Reader);

impl Section {
    fn enter() -> Self {
        let reader = &READERS[processor::current()];
        // Only this processor changes them, and its interrupts do not walk.
        if reader.depth.fetch_add(1, Ordering::Relaxed) == 0 {
            // A barrier as well: nothing is read of a tree before this is seen.
            reader.passes.fetch_add(1, Ordering::SeqCst);
        }
        Self(reader)
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        if self.0.depth.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.0.passes.fetch_add(1, Ordering::Release);
        }
    }
}

impl Rcu for Hardware {
    type Guard<'a> = Section;

    fn read_lock(&self) -> Section {
        Section::enter()
    }
}

/// A list of frames: the first, or 0.
#[derive(Debug, Default)]
struct List(u64);

/// The tables that wait for their grace period.
#[derive(Debug)]
pub struct Retired {
    next: List,
    waiting: List,
    seen: [u64; MAX_CPUS],
}

impl Retired {
    pub const fn new() -> Self {
        Self { next: List(0), waiting: List(0), seen: [0; MAX_CPUS] }
    }

    /// Adds a table that is out of the tree. `link` is the place of a frame's link.
    pub fn add<'a>(&mut self, frame: Frame, link: impl Fn(Frame) -> Option<&'a AtomicU64>) {
        if let Some(link) = link(frame) {
            link.store(self.next.0, Ordering::Relaxed);
            self.next.0 = frame.0;
        }
    }

    /// Whether no table waits.
    pub fn is_empty(&self) -> bool {
        self.next.0 == 0 && self.waiting.0 == 0
    }

    /// Gives tables whose grace period is over to `free`.
    pub fn reclaim<'a>(
        &mut self,
        link: impl Fn(Frame) -> Option<&'a AtomicU64>,
        mut free: impl FnMut(Frame),
    ) {
        for _ in 0..2 {
            if self.waiting.0 == 0 {
                self.waiting = core::mem::take(&mut self.next);
                // What took the tables out of their trees is seen by all who enter from here on.
                fence(Ordering::SeqCst);
                self.seen = core::array::from_fn(|cpu| READERS[cpu].passes.load(Ordering::SeqCst));
            }
            let over = READERS.iter().zip(&self.seen).all(|(reader, &seen)| {
                seen.is_multiple_of(2) || reader.passes.load(Ordering::Acquire) != seen
            });
            if !over {
                return;
            }
            while self.waiting.0 != 0 {
                let frame = Frame(self.waiting.0);
                self.waiting.0 = link(frame).map_or(0, |link| link.load(Ordering::Relaxed));
                free(frame);
            }
        }
    }
}
