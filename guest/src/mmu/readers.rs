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
use crate::memory;
use crate::processor;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use isotherm_frames::{Order, OwnedBlock};
use isotherm_page::BlockList;
use isotherm_pagetable::Rcu;

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

/// Frames of tables; none before the first.
type List = Option<BlockList<'static, 'static>>;

/// The tables that wait for their grace period.
#[derive(Debug)]
pub struct Retired {
    next: List,
    waiting: List,
    seen: [u64; MAX_CPUS],
}

fn is_empty(list: &List) -> bool {
    list.as_ref().is_none_or(BlockList::is_empty)
}

impl Retired {
    pub const fn new() -> Self {
        Self { next: None, waiting: None, seen: [0; MAX_CPUS] }
    }

    /// Adds a table that is out of the tree.
    pub fn add(&mut self, table: OwnedBlock) {
        let next = self.next.get_or_insert_with(|| BlockList::new(memory::pages(), Order::BASE));
        if let Err(table) = next.push_front(table) {
            panic!("{table} is a page table outside of RAM");
        }
    }

    /// Whether no table waits.
    pub fn is_empty(&self) -> bool {
        is_empty(&self.next) && is_empty(&self.waiting)
    }

    /// Gives tables whose grace period is over to `free`.
    pub fn reclaim(&mut self, mut free: impl FnMut(OwnedBlock)) {
        for _ in 0..2 {
            if is_empty(&self.waiting) {
                self.waiting = self.next.take();
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
            while let Some(table) = self.waiting.as_mut().and_then(BlockList::pop_front) {
                free(table);
            }
        }
    }
}
