//! A machine made of ordinary memory: for tests, experiments, emulators, and to see what the operations cost.
//!
//! Physical memory is one zeroed allocation, which the operating system populates as it is touched. TLB operations do
//! nothing but count. Retired tables wait until no guard is left. Frames beyond the memory may be mapped as special ones;
//! the copy of one is zeros. Nothing here executes a privileged instruction.

mod lists;
mod memory;
mod swap_counts;
mod tlb;

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, TryLockError};
use std::time::Duration;

use isotherm_page::{Block, Order, OwnedBlock, PageMeta, Unique, Unused};

pub use tlb::Counts;

use crate::address::{Frame, PAGE_SIZE};
use crate::folio::{Folio, FolioKind};
use crate::machine::{Frames, Rcu};
use lists::{FreeLists, LARGEST};
use swap_counts::Held;
use tlb::{Beside, Counters};

/// How often, and after what time each, an allocation looks again whether retired tables can be taken back, if these are
/// all the frames that are left: readers come and go. A reader that itself waits for memory is not waited for for ever.
const PATIENCE: u32 = 5_000;
const WAIT: Duration = Duration::from_micros(100);

/// See the [module](self).
pub struct HostMachine {
    memory: NonNull<u8>,
    allocation: NonNull<u8>,
    layout: Layout,
    frames: u64,
    /// Of `frames` records, which the machine owns. No `Box`: looking at one record through that refers to all of them, which
    /// Miri checks one by one.
    metas: NonNull<PageMeta>,
    lists: Mutex<FreeLists>,
    readers: RwLock<()>,
    counters: Counters,
    swap_counts: Held,
    tlb: Beside,
}

impl fmt::Debug for HostMachine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HostMachine").field("frames", &self.frames).finish_non_exhaustive()
    }
}

// SAFETY: the memory is owned, and reached through `Table`s of atomics or by `copy`, `clear`, `read` and `write`, whose
// rules are the caller's; all else is `Sync` itself.
unsafe impl Send for HostMachine {}
// SAFETY: as above.
unsafe impl Sync for HostMachine {}

/// Blocks of order 9 are to be aligned in memory too.
const ALIGN: usize = (PAGE_SIZE as usize) << LARGEST;

impl HostMachine {
    /// A machine with this many frames, numbered from 0; frame 0 stays unused. The allocation is populated lazily.
    ///
    /// # Panics
    /// If `frames` is 0 or the bytes of so many frames are no valid size of an allocation.
    #[must_use]
    pub fn new(frames: u64) -> HostMachine {
        assert!(frames > 0, "a machine needs frames");
        let align = if cfg!(miri) { PAGE_SIZE as usize } else { ALIGN };
        let bytes =
            usize::try_from(frames).ok().and_then(|n| n.checked_mul(PAGE_SIZE as usize)?.checked_add(align));
        // Aligned by hand: asked for the alignment, the allocator would write all the zeros itself.
        let layout = Layout::from_size_align(bytes.expect("frames fit into the address space"), 16)
            .expect("a valid size");
        // SAFETY: the size is not zero.
        let allocation =
            NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout));
        let skip = allocation.as_ptr().align_offset(align);
        // SAFETY: `align` bytes were added for this.
        let memory = unsafe { allocation.add(skip) };
        let lists = FreeLists {
            free: frames - 1,
            unused: 1,
            end: frames,
            table_budget: u64::MAX,
            folio_budget: u64::MAX,
            ..FreeLists::default()
        };
        let metas: Box<[PageMeta]> = (0..frames).map(|_| PageMeta::new()).collect();
        HostMachine {
            memory,
            allocation,
            layout,
            frames,
            metas: NonNull::from(Box::leak(metas)).cast(),
            lists: Mutex::new(lists),
            readers: RwLock::new(()),
            counters: Counters::default(),
            swap_counts: Held::default(),
            tlb: Beside::default(),
        }
    }

    fn lists(&self) -> MutexGuard<'_, FreeLists> {
        self.lists.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A block of the caller's own, of which nothing is made yet. It is free again when the handle, or what was made of it, is
    /// dropped.
    #[inline]
    pub fn take(&self, order: Order) -> Option<Unique<'_, HostMachine, Unused>> {
        let block = Block::new(self.take_frames(order.get())?, order);
        // SAFETY: the lists hold each block of this machine's once.
        Some(unsafe { Unique::new(self, OwnedBlock::new(block)) })
    }

    /// A new folio of the caller's own.
    #[inline]
    pub fn folio(&self, order: Order, kind: FolioKind) -> Option<Folio<'_, HostMachine>> {
        self.take(order)?.into_folio(kind).ok()
    }

    fn take_frames(&self, order: u8) -> Option<Frame> {
        for _ in 0..PATIENCE {
            let mut lists = self.lists();
            self.reclaim(&mut lists);
            if let Some(taken) = lists.take(order) {
                return Some(taken);
            }
            let waiting =
                if order == 0 { !lists.retired.is_empty() } else { !lists.retired_large.is_empty() };
            if !waiting {
                return None;
            }
            drop(lists);
            std::thread::sleep(WAIT);
        }
        None
    }

    /// How many frames are free, after retired tables are taken back if no guard is left.
    #[must_use]
    pub fn free_frames(&self) -> u64 {
        let mut lists = self.lists();
        self.reclaim(&mut lists);
        lists.free
    }

    /// Lets the operations allocate only so many tables and folios more, to see them fail.
    pub fn set_budget(&self, tables: u64, folios: u64) {
        let mut lists = self.lists();
        lists.table_budget = tables;
        lists.folio_budget = folios;
    }

    /// Takes retired tables back if there is no reader at this moment: all are then beyond their grace period.
    fn reclaim(&self, lists: &mut FreeLists) {
        if lists.retired.is_empty() && lists.retired_large.is_empty() {
            return;
        }
        let nobody = match self.readers.try_write() {
            Ok(_) | Err(TryLockError::Poisoned(_)) => true,
            Err(TryLockError::WouldBlock) => false,
        };
        if nobody {
            // The last first, so that the next space gets them in the order in which the last one had them.
            for frame in std::mem::take(&mut lists.retired).into_iter().rev() {
                lists.give(frame, 0);
            }
            for (frame, order) in std::mem::take(&mut lists.retired_large).into_iter().rev() {
                lists.give(frame, order);
            }
        }
    }
}

impl Drop for HostMachine {
    fn drop(&mut self) {
        // SAFETY: allocated by `new` with this layout; addresses into it do not outlive the machine.
        unsafe { dealloc(self.allocation.as_ptr(), self.layout) };
        let metas = NonNull::slice_from_raw_parts(self.metas, self.frames as usize);
        // SAFETY: leaked by `new`.
        drop(unsafe { Box::from_raw(metas.as_ptr()) });
    }
}

// SAFETY: the lists hold each frame once and blocks aligned to their order; retired tables wait for `reclaim`.
unsafe impl Frames for HostMachine {
    fn alloc_table(&self) -> Option<Frame> {
        let mut frame = [Frame(0)];
        (self.alloc_tables(&mut frame) == 1).then_some(frame[0])
    }

    fn alloc_tables(&self, into: &mut [Frame]) -> usize {
        let mut lists = self.lists();
        for (count, slot) in into.iter_mut().enumerate() {
            let Some(budget) = lists.table_budget.checked_sub(1) else { return count };
            lists.table_budget = budget;
            if lists.blocks[0].is_empty() {
                self.reclaim(&mut lists);
            }
            let Some(frame) = lists.take(0) else {
                if count > 0 {
                    return count;
                }
                drop(lists);
                let Some(frame) = self.take_frames(0) else { return 0 };
                *slot = frame;
                return 1;
            };
            *slot = frame;
        }
        into.len()
    }

    unsafe fn retire_table(&self, frame: Frame) {
        self.lists().retired.push(frame);
    }

    fn alloc_table_of(&self, order: Order) -> Option<Frame> {
        let mut lists = self.lists();
        lists.table_budget = lists.table_budget.checked_sub(1)?;
        drop(lists);
        self.take_frames(order.get())
    }

    unsafe fn retire_table_of(&self, frame: Frame, order: Order) {
        if order == Order::BASE {
            self.lists().retired.push(frame);
        } else {
            self.lists().retired_large.push((frame, order.get()));
        }
    }

    fn alloc_folio(&self, order: Order) -> Option<Frame> {
        let mut lists = self.lists();
        lists.folio_budget = lists.folio_budget.checked_sub(1)?;
        drop(lists);
        self.take_frames(order.get())
    }

    fn share_swap_entry(&self, swap_entry: u64) {
        self.swap_counts.share(swap_entry);
    }

    fn release_swap_entry(&self, swap_entry: u64) {
        self.swap_counts.release(swap_entry);
    }
}

impl Rcu for HostMachine {
    type Guard<'a> = RwLockReadGuard<'a, ()>;

    #[inline]
    fn read_lock(&self) -> Self::Guard<'_> {
        // Nobody ever waits to write, so readers may nest.
        self.readers.read().unwrap_or_else(PoisonError::into_inner)
    }
}
