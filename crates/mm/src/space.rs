//! The address space.

use core::fmt;
use core::ops::Range;

use isotherm_maple::{MapleTree, NodeAlloc, Writer};
use isotherm_rcu::Reclaim;

use crate::biased::Slots;
use crate::config::{Config, VmaLocking};
use crate::contents::{Contents, Held};
use crate::flags::PAGE_SIZE;
use crate::lock::MmSeq;
use crate::mmap_lock::MmapLock;
use crate::pool::Pool;
use crate::sharded::Padded;
use crate::stats::LockCounters;
use crate::sync::counter::{AtomicU64, Ordering};
use crate::usage::{Counters, Usage};
use crate::userfault::Mark;
use crate::vma::{Anon, VmaInfo, VmaPtr};
use crate::writing::Writing;

/// What an address space stands on: the caller's RCU, lock and allocator, and what lies behind the VMAs.
pub trait Platform {
    /// RCU, through which VMAs and nodes of the tree are freed.
    type Rcu: Reclaim + Clone;
    /// `mmap_lock`.
    type Lock: MmapLock;
    /// Pages, or `()`.
    type Contents: Contents;
    /// Where VMAs and nodes of the tree come from: [`Global`](isotherm_maple::Global), or one that can fail.
    type Alloc: NodeAlloc;

    /// Which CPU this is, or which thread: any number, that chooses among the counters of [`LockStats`](crate::LockStats), so that faults on
    /// different CPUs do not write to the same cache line.
    #[must_use]
    fn cpu() -> usize {
        0
    }
}

/// The address space of a process: what is mapped where. See the [crate's documentation](crate).
///
/// Addresses and lengths are in bytes, ranges half open. All methods but `exec` take `&self` and may be called by any threads at once.
pub struct AddressSpace<P: Platform> {
    pub(crate) tree: MapleTree<VmaPtr, P::Rcu, P::Alloc>,
    // Who maps and unmaps writes to the padded ones each time. Faults read all the others, and of these `seq` alone.
    pub(crate) lock: Padded<P::Lock>,
    pub(crate) seq: Padded<MmSeq>,
    pub(crate) slots: Slots,
    pub(crate) pool: Padded<Pool>,
    pub(crate) contents: P::Contents,
    pub(crate) config: Config,
    pub(crate) usage: Padded<Counters>,
    pub(crate) stats: LockCounters,
    /// Pages of which somebody else is to know when they are written. Changed under `mmap_lock`, held for writing.
    pub(crate) marks: MapleTree<Mark, P::Rcu, P::Alloc>,
    anons: Padded<AtomicU64>,
    /// The end of the heap, as `brk` was asked for it.
    pub(crate) brk: Padded<AtomicU64>,
}

impl<P: Platform> AddressSpace<P> {
    /// An empty one. It ends where the contents do ([`Contents::limit`]), or before, and begins where they do, or behind.
    #[must_use]
    pub fn new(rcu: P::Rcu, lock: P::Lock, contents: P::Contents, config: Config) -> Self {
        Self::with_tree(MapleTree::new_in(rcu), lock, contents, config)
    }

    pub(crate) fn with_tree(
        tree: MapleTree<VmaPtr, P::Rcu, P::Alloc>,
        lock: P::Lock,
        mut contents: P::Contents,
        mut config: Config,
    ) -> Self {
        contents.begin();
        config.end = config.end.min(contents.limit() & !(PAGE_SIZE - 1));
        config.lowest = config.lowest.max(contents.lowest());
        let marks = MapleTree::new_in(tree.rcu().clone());
        config.top_down_base = config.top_down_base.min(config.end);
        Self {
            tree,
            lock: Padded(lock),
            seq: Padded(MmSeq::new()),
            slots: Slots::new(config.vma_lock == VmaLocking::Biased),
            pool: Padded(Pool::new()),
            contents,
            config,
            usage: Padded(Counters::new()),
            stats: LockCounters::new(),
            marks,
            anons: Padded(AtomicU64::new(0)),
            brk: Padded(AtomicU64::new(config.heap)),
        }
    }

    /// Becomes another program's, as by `execve`: nothing is mapped, and the heap is empty. Rules and limits stay. What the old one had
    /// is given back, in which it is as if it was dropped: no CPU may have it loaded.
    pub fn exec(&mut self, lock: P::Lock, contents: P::Contents) {
        let new = Self::new(self.tree.rcu().clone(), lock, contents, self.config);
        drop(core::mem::replace(self, new));
    }

    /// What it was made with, but for an end that was too high, or a beginning that was too low.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// What lies behind the VMAs.
    #[must_use]
    pub const fn contents(&self) -> &P::Contents {
        &self.contents
    }

    /// How much is mapped.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.usage.get()
    }

    /// How often VMAs were changed, or could have been.
    #[cfg(feature = "damon")]
    pub(crate) fn changes(&self) -> u64 {
        self.seq.changes()
    }

    /// The VMA that an address lies in.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<VmaInfo> {
        let _lock = self.lock.read();
        self.tree.read().get(address).map(|vma| vma.info())
    }

    /// Calls `each` for all VMAs that have an address in the range, in order, with `mmap_lock` held for reading: it must not
    /// call operations of the space.
    pub fn for_each(&self, range: Range<u64>, mut each: impl FnMut(VmaInfo)) {
        let Some(last) = range.end.checked_sub(1) else { return };
        let _lock = self.lock.read();
        for found in self.tree.read().range(range.start..=last) {
            each(found.value.info());
        }
    }

    /// Anonymous state that no VMA has yet.
    pub(crate) fn new_anon(&self, forked: bool) -> Anon {
        Anon::new(self.anons.fetch_add(1, Ordering::Relaxed) + 1, forked)
    }

    /// Takes `mmap_lock` for writing.
    pub(crate) fn write(&self) -> Writing<'_, P> {
        let lock = self.lock.write();
        // SAFETY: the lock is held for writing, until after the writer is gone.
        let tree: Writer<'_, _, _, _> = unsafe { self.tree.write_locked() };
        Writing::new(self, tree, lock)
    }
}

impl<P: Platform> Drop for AddressSpace<P> {
    fn drop(&mut self) {
        // SAFETY: whoever holds the lock borrows the space, so nobody does.
        let writer = unsafe { self.tree.write_locked() };
        for found in writer.iter() {
            let vma = found.value;
            if vma.object().is_some() {
                self.contents.detach(&Held::new(&self.lock.0), &vma.info());
            }
            // Without a grace period (patch 32 of the seed): who finds a VMA under RCU, or has it locked, borrows the space. One
            // that is read-locked still (patch 21) was forgotten.
            // SAFETY: nobody uses it, and the tree's nodes are freed without looking at values.
            unsafe { vma.free::<P::Alloc>() };
        }
        // SAFETY: as above.
        unsafe { self.pool.free::<P::Alloc>() };
    }
}

impl<P: Platform> fmt::Debug for AddressSpace<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressSpace").field("usage", &self.usage()).finish_non_exhaustive()
    }
}
