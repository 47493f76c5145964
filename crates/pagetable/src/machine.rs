//! What the caller brings: memory, frames, TLB maintenance and RCU-like protection.
//!
//! Nothing in this crate executes a privileged instruction: all that touches hardware goes through these traits. A
//! kernel implements them with its direct map, its allocator, `INVLPG`/`TLBI` and its RCU; the [`host`](crate::host)
//! implementation uses ordinary memory and counts.

use core::fmt;
use core::ptr::NonNull;

use isotherm_page::{Order, Pages};

use crate::address::{Frame, Level, PageRange};
use crate::format::Format;
use crate::table::Table;

/// Physical memory as software reaches it.
///
/// # Safety
/// - [`table`](Self::table) returns a pointer, aligned to 4096, to the frame's 4096 bytes, and of a table of more frames
///   ([`Format::GRANULE`](crate::Format::GRANULE)) to all of them in a row, valid for reads and writes as long as the frame is a page table (from [`Frames::alloc_table`] until its grace period after
///   [`Frames::retire_table`] is over), and always the same memory for the same frame.
/// - [`is_device`](Self::is_device) is true only of frames whose memory no software relies on: writes to it through any
///   mapping, at any time, harm nobody's memory.
pub unsafe trait Memory {
    /// Where the page table in this frame can be reached.
    fn table(&self, frame: Frame) -> NonNull<Table>;

    /// Copies the contents of `frames` frames. The source is part of a folio, or whatever was mapped as special: the zero
    /// page, or a device's memory. It may be written meanwhile through other mappings, as by any
    /// write that races with a fork; then it is the caller of the operation who knows why that is no harm.
    ///
    /// # Safety
    /// Neither range is being freed, and nobody else reaches the frames at `to`.
    unsafe fn copy(&self, from: Frame, to: Frame, frames: u64);

    /// Clears the contents of a frame that nobody else reaches.
    ///
    /// # Safety
    /// The frame was returned by [`Frames::alloc_folio`] or lies in such a folio, and nobody else reaches it.
    unsafe fn clear(&self, frame: Frame);

    /// Whether a frame without metadata may be mapped for anyone who asks, writable too, with nobody counting: a device's
    /// registers or memory. The kernel's own image, its firmware's tables and whatever else has no metadata is not. By default
    /// there is none.
    fn is_device(&self, frame: Frame) -> bool {
        let _ = frame;
        false
    }

    /// What to do between two tries to take the lock of a table, `tries` counting from 0. A kernel leaves the default
    /// and holds preemption off around each operation.
    fn relax(&self, tries: u32) {
        let _ = tries;
        core::hint::spin_loop();
    }

    /// For statistics, as Linux' `count_vm_event`: something happened that no result says. Called under the lock of a table.
    /// By default nothing is counted.
    #[inline]
    fn event(&self, event: Event) {
        let _ = event;
    }
}

/// The allocators of frames. Folios are given back by [`Pages::free`].
///
/// # Safety
/// - A frame that is returned is nobody else's until it is given back, has metadata ([`Pages::meta`]), is of no
///   [`Kind`](isotherm_page::Kind), and a folio is aligned to its size.
/// - What is allocated for tables and folios can also be given back by [`Pages::free`]: folios are, and tables that no tree
///   ever referred to.
/// - The frame of a retired table keeps its contents, and is not reused, until every [`Rcu::Guard`] that existed at the
///   time of the call is gone.
pub unsafe trait Frames {
    /// A frame for a page table, contents arbitrary. `None` if there is none.
    fn alloc_table(&self) -> Option<Frame>;

    /// Frames for up to `into.len()` page tables, written to its start. Returns how many there were. A fork asks for some
    /// at a time: an allocator that hands them out together saves it a lock for each.
    fn alloc_tables(&self, into: &mut [Frame]) -> usize {
        let mut count = 0;
        for (slot, frame) in into.iter_mut().zip(core::iter::from_fn(|| self.alloc_table())) {
            *slot = frame;
            count += 1;
        }
        count
    }

    /// Takes back the frame of a page table, once no guard of now is left.
    ///
    /// # Safety
    /// The frame came from [`alloc_table`](Self::alloc_table) or [`alloc_tables`](Self::alloc_tables), was not given back
    /// since, and no tree refers to it any more.
    unsafe fn retire_table(&self, frame: Frame);

    /// The first frame of a block of this order, aligned to its size, for a page table of a format whose tables are larger
    /// than 4 KiB. By default there is none.
    fn alloc_table_of(&self, order: Order) -> Option<Frame> {
        if order == Order::BASE { self.alloc_table() } else { None }
    }

    /// As [`retire_table`](Self::retire_table), of a table of this order. By default larger ones are lost: whoever allocates
    /// them takes them back.
    ///
    /// # Safety
    /// As for [`retire_table`](Self::retire_table), with what [`alloc_table_of`](Self::alloc_table_of) returned.
    unsafe fn retire_table_of(&self, frame: Frame, order: Order) {
        if order == Order::BASE {
            // SAFETY: the caller's duty.
            unsafe { self.retire_table(frame) };
        }
    }

    /// The first frame of a block of this order for the copy of a folio, contents arbitrary. `None` if there is none.
    fn alloc_folio(&self, order: Order) -> Option<Frame>;

    /// Another space refers to the swap entry of a non-present entry. Called under the lock of a table: it must neither sleep
    /// nor call operations on the space.
    fn share_swap_entry(&self, swap_entry: u64) {
        let _ = swap_entry;
    }

    /// An entry that held this swap entry is gone. Called under the lock of a table, as [`share_swap_entry`](Self::share_swap_entry).
    fn release_swap_entry(&self, swap_entry: u64) {
        let _ = swap_entry;
    }
}

/// Who counts how often a swap entry is held, for machines that pass on what [`Frames::share_swap_entry`] and [`Frames::release_swap_entry`]
/// say: a swap area, say. Both are called under the lock of a table: they must neither sleep nor call operations on spaces.
pub trait SwapCounts: Send + Sync {
    /// As [`Frames::share_swap_entry`].
    fn share(&self, swap_entry: u64);
    /// As [`Frames::release_swap_entry`].
    fn release(&self, swap_entry: u64);
}

/// The identity of an address space for TLB maintenance.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SpaceId<C = u16> {
    /// The frame of the root table.
    pub root: Frame,
    /// What the caller keeps of the space for its TLB: see [`Tlb::Context`].
    pub context: C,
}

/// Translations of several pages that are to be invalidated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Flush {
    /// The pages.
    pub range: PageRange,
    /// Pages of the smallest leaf among those that changed: one invalidation for each so many pages will do.
    pub stride: u64,
    /// The level of the leaves that changed, if all were of one: a hint that spares a walk, as arm64's TTL.
    pub level: Option<Level>,
    /// Tables were removed too, so that cached entries of upper levels must go as well.
    pub tables: bool,
}

impl Flush {
    /// Of leaves of one level.
    #[must_use]
    pub fn of<F: Format>(level: Level, range: PageRange) -> Flush {
        Flush { range, stride: F::pages(level), level: Some(level), tables: false }
    }
}

/// TLB maintenance. Invalidations are issued one by one and waited for together: [`sync`](Self::sync) is the barrier
/// (on arm64 the trailing DSB that patch 13 of the seed's series elides, on x86-64 the wait for the other CPUs).
///
/// Changes of entries come before the invalidation in program order; that walks see them first is the implementation's to
/// order (on arm64 `DSB ISHST` before the `TLBI`, on x86-64 a full barrier before an interrupt is sent through x2APIC).
///
/// Some are called under the lock of a table, where an entry must be gone from all TLBs before it is made anew. So a CPU
/// that spins for a lock in [`Memory::relax`] must answer the others' shootdowns: operations are not called with
/// interrupts off, unless `relax` looks for such requests.
///
/// # Safety
/// When `sync` returns, no CPU uses a translation any more, of a leaf or of a table, that was invalidated before by the
/// same thread. Without that freed memory stays reachable.
///
/// That holds of global translations too ([`Attributes::global`](crate::Attributes::global)), which no [`Flush`] tells from
/// others. Only the space of a [`KernelHalf`](crate::KernelHalf) has such leaves, and a space whose format's
/// [`HALF`](crate::Format::HALF) is [`Half::Upper`](crate::Half::Upper): every invalidation of such a space drops them, on every
/// CPU. An implementation knows the space by its [context](Self::Context); one that serves no such space need not care. What drops
/// one ASID or PCID does not drop global translations:
///
/// | | drops global translations | does not |
/// |---|---|---|
/// | x86-64 | `INVLPG`, `INVPCID` of type 2 | a load of CR3, `INVPCID` of types 0, 1 and 3 |
/// | arm64 | `TLBI VAE1IS`, `VAAE1IS`, `VMALLE1IS` | `TLBI ASIDE1IS` |
/// | RISC-V | `SFENCE.VMA` with `rs2` = `x0` | with an ASID in `rs2` |
///
/// A leaf that [`permitted`](Self::permitted) is called for needs no `sync`.
pub unsafe trait Tlb {
    /// What is known of a space where its translations are invalidated, chosen by the caller when the space is made: an ASID, or a
    /// reference to what has the CPUs that the space runs on, the generation of its ASID, a PCID for each CPU.
    type Context: Copy + fmt::Debug + Send + Sync;

    /// Invalidates the translation of the page with this number, of a leaf of 4 KiB.
    fn invalidate_page(&self, space: SpaceId<Self::Context>, page: u64);

    /// Invalidates the translations of a range.
    fn invalidate_range(&self, space: SpaceId<Self::Context>, flush: Flush);

    /// Invalidates all of a space: asked for only when it ends.
    fn invalidate_space(&self, space: SpaceId<Self::Context>);

    /// More is permitted for a page than before, of the same frame, after a fault of this CPU. It must not fault again for want
    /// of that: nothing need be done where a fault drops the translation that caused it, as on x86-64, which is the default;
    /// elsewhere this CPU drops it, and waits until it is gone. Others are left alone. One that still holds what was permitted
    /// before faults in its turn, and that fault finds nothing to do and comes here too (a spurious fault; Linux'
    /// `flush_tlb_fix_spurious_fault`).
    fn permitted(&self, space: SpaceId<Self::Context>, page: u64) {
        let _ = (space, page);
    }

    /// Waits until the invalidations that this thread issued are complete everywhere.
    fn sync(&self);
}

/// Protection of lock-free walks: while a guard lives, no retired page table that could be seen at its creation is reused.
///
/// An operation on a range holds a guard for some tables at a time, while it takes and holds their locks; never while it
/// allocates, or while a [`Gather`](crate::Gather) is flushed that is full.
pub use isotherm_rcu::Rcu;

/// What happens below the interface: see [`Memory::event`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Event {
    /// A contiguous block was folded while its entries were in use.
    Fold,
    /// A contiguous block was unfolded.
    Unfold,
    /// A huge leaf was split.
    Split,
    /// A page or folio was copied for a write fault, a page for the child of a fork, or pages for a collapse.
    Copy,
}

/// Everything an address space needs.
pub trait Machine: Pages + Memory + Frames + Tlb + Rcu {}
impl<T: Pages + Memory + Frames + Tlb + Rcu> Machine for T {}
