//! The lock of a VMA, as the seed has it (patches 11 and 23 of the series "Per-VMA locks" v2).
//!
//! # What it is for
//!
//! A page fault needs one VMA to stay as it is. With `mmap_lock` alone it waits for whoever maps or unmaps anything. So each
//! VMA has a lock too: a fault read-locks its VMA, and who changes a VMA write-locks it. Operations on other VMAs go on.
//!
//! # Write-locking is a mark, and unlocking one step for all
//!
//! An operation holds `mmap_lock` for writing and changes several VMAs: which ones, it finds out as it goes. It does not keep a
//! list of them. The space has a sequence number, and each VMA one of its own. **A VMA is write-locked while its number is
//! that of the space.** To write-lock is to wait until no reader is left and then to set the VMA's number
//! ([`VmaSeq::start_write`]); doing so again does nothing. Just before `mmap_lock` is released, the space's number goes up by
//! one ([`MmSeq::end_write_all`]), and all VMAs are unlocked at once. No VMA is unlocked by itself.
//!
//! The counter of readers with its bit for the writer is a second thing: it keeps the writer waiting while there are readers, and
//! is free again as soon as the number is set. From then on readers are refused because of the number.
//!
//! # How a reader gets in
//!
//! 1. It finds the VMA in the tree under RCU, which keeps the VMA's memory, and nothing else. It gives up if the VMA maps an
//!    object or has no anonymous state: these never go away, so they may be looked at without a lock.
//! 2. If the numbers are equal, it gives up. This look may be wrong in both ways; it saves the lock's cache line.
//! 3. It adds itself to the readers, unless a writer waits, or is about to set the number. It never waits.
//! 4. It compares the numbers again, and leaves if they are equal. Now the answer is right: see below.
//! 5. The VMA may have changed between 1 and 3. If it does not have the address any more, the reader leaves. If it was taken out
//!    of the tree (*detached*), another may be in its place: the reader leaves, and looks the address up again.
//! 6. It leaves RCU. What it has locked stays in the tree, as it is, and is not freed, until it unlocks: who takes it out
//!    write-locks it before. Unlocking is a section of RCU again, since the VMA may be freed as soon as the lock is free.
//!
//! Who gives up takes `mmap_lock` for reading, and waits as ever. The counts of [`LockStats`](crate::LockStats) say why.
//!
//! # Why it is right
//!
//! *No reader beside a writer.* Say that a writer sets the VMA's number to `n`, the space's. A reader that was in before keeps it
//! waiting. One that comes in afterwards acquires the counter which the writer released, so it sees the VMA's number `n`, or a
//! later one. It does not see a number of the space before `n`: that was stored before the writer took `mmap_lock`, so it
//! happened before the number was set. It sees `n`, and leaves; or a later one, and then the writer has unlocked.
//!
//! *What the writer did is seen.* The space's number is stored with release after all changes, and loaded with acquire in step 4.
//! A reader that gets in after the writer sees all the writer did: the range, the flags, the mark of the detached, and the page
//! tables.
//!
//! *Numbers do not come back.* They have 64 bits. The seed's have 32: after 2^32 operations an old number may be the space's by
//! chance, and a writer takes a VMA for locked that has readers.
//!
//! # Who write-locks what
//!
//! | before | patch | where |
//! |---|---|---|
//! | flags change | 12 | `Writing::modify`, `Writing::set_flags`, `leave_behind` of `mremap` |
//! | VMAs merge, are split, or grow over a gap | 15, 16 | `Writing::insert_as`, `modify`, `split`, `extend_down` |
//! | a VMA shrinks | 16 | `try_unmap`, which locks all that is in the range |
//! | it is moved | 17 | `move_vma` of `mremap` |
//! | it is taken out of the tree | 18 | `try_unmap`, `Writing::detach` |
//! | its page tables are freed | 19 | the same, as they go with the VMA |
//! | the gap beside it is unmapped into which it can grow | 20 | `try_unmap` |
//! | the space ends | 21, 32 | drop of the space: readers borrow the space, so there are none; it frees without a grace period |
//!
//! Beyond the seed, new VMAs are locked before they are found, a fork locks those that it copies, and `MADV_DONTNEED` those whose
//! pages go, as the pages are counted.
//!
//! # Beyond the seed
//!
//! [`VmaLocking`](crate::VmaLocking) chooses how readers get in. Writers do the same for all.
//!
//! *[`Counted`](crate::VmaLocking::Counted): as in Linux since 6.15.* The tree has a reference of its own, so the counter is 1 without
//! readers, and 0 of a VMA that is in no tree (*detached*). Step 3 adds 1 unless the counter is 0. So memory of a VMA may be used
//! for the next one **without a grace period** (*type-safe reuse*, `src/pool.rs`): a reader that found the old one under RCU either
//! finds 0 and leaves, or has locked the new one, which step 5 sees by its address. What it looked at before it had the lock is
//! looked at again then. Memory is used again only when the counter is 0, and as long as it is, nobody adds to it; it becomes 1
//! after the new VMA is write-locked. A VMA without anonymous state is served too: a fault that makes that takes `mmap_lock` for
//! reading if nobody has it for writing (`MmapLock::try_read`), else it starts again.
//!
//! *[`Biased`](crate::VmaLocking::Biased): readers write to nothing that others write to.* The counter is a cache line that all CPUs that fault
//! in one VMA take from each other. Here a reader puts the VMA's address into a slot of its CPU (`src/biased.rs`), and who
//! write-locks the VMA looks at all slots: *biased locking* (Dice and Kogan, BRAVO, USENIX ATC 2019). Most VMAs have few faults
//! between two writers, for which looking at all slots would be dear. So a VMA begins unbiased; a reader that came in by
//! the counter biases it, and a writer takes that back. In the order of time:
//!
//! - a reader stores its slot, fences, and looks whether the VMA is biased and not write-locked: if not, it clears the slot;
//! - a writer, who has waited for the counter, takes the bias away, sets the number, fences, and waits until no slot has the VMA.
//!
//! Of the two fences one comes first: either the writer finds the slot, or the reader finds the number. (A reader that loads
//! a later number of the VMA than the space's it loads next is impossible: the first load acquires.) A writer that finds the VMA
//! unbiased need not look: who was in a slot then had seen it biased by a reader of the counter, which the writer has waited for.
//! Clearing the slot touches the VMA no more, so it needs no RCU.
//!
//! `tests/loom` has the models, of all three.

use crate::sync::{AtomicU64, Ordering};

/// Readers that have the lock, in the lowest bits.
const READERS: u64 = WRITER - 1;

/// The writer waits for readers, or has the lock.
const WRITER: u64 = 1 << 19;

/// So many readers are refused: the counter must never reach the writer's bit, however many are forgotten.
const MOST_READERS: u64 = 1 << 18;

/// What the counter is without readers: VMAs in the tree have a reference of their own, which [`VmaLock::detach`] takes away.
const ATTACHED: u64 = 1;

/// Above the writer's bit: how many readers there ever were, but for those that gave up. So a fault needs no counter beside
/// the lock's to be counted. After 2^44 the count of one VMA would begin anew.
const ENTRIES: u32 = 20;
const ENTRY: u64 = 1 << ENTRIES;

/// The lock of one VMA: a counter of readers, and a bit for the writer. It lies apart from the VMA, on a cache line of its
/// own: faults write to it all the time, and others only read the VMA (patch 33 of the seed).
#[repr(align(64))]
pub(crate) struct VmaLock(AtomicU64);

/// The sequence number of an address space. It is changed only by who holds `mmap_lock` for writing.
pub(crate) struct MmSeq(AtomicU64);

/// The sequence number of a VMA, which is that of its space as long as it is write-locked.
pub(crate) struct VmaSeq(AtomicU64);

impl VmaLock {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(ATTACHED))
    }

    /// `down_read_trylock`.
    fn try_read(&self) -> bool {
        // No writer's bit, and room for as many threads as there may be beside this one.
        if self.0.fetch_add(ENTRY + 1, Ordering::Acquire) & (WRITER | READERS) < MOST_READERS {
            return true;
        }
        self.cancel_read();
        false
    }

    /// `__refcount_inc_not_zero_limited_acquire`: never writes to the counter of a VMA that is refused.
    fn try_count(&self) -> Counted {
        // Acquire: who finds it detached and looks again does not find it in the tree once more.
        let mut word = self.0.load(Ordering::Acquire);
        loop {
            let readers = word & (WRITER | READERS);
            if readers == 0 {
                return Counted::Detached;
            }
            if readers >= MOST_READERS {
                return Counted::Refused;
            }
            let more = word.wrapping_add(ENTRY + 1);
            match self.0.compare_exchange_weak(word, more, Ordering::Acquire, Ordering::Acquire) {
                Ok(_) => return Counted::In,
                Err(now) => word = now,
            }
        }
    }

    /// `vma_mark_detached`: takes the reference away that the tree had, of a VMA that is write-locked or that nobody can find.
    /// When it returns nobody refers to the VMA, and nobody can any more. Those who tried to leave at once.
    pub(crate) fn detach(&self, relax: impl Fn(u32)) {
        self.0.fetch_sub(ATTACHED, Ordering::AcqRel);
        self.wait(0, relax);
    }

    /// `vma_mark_attached`: readers may come in from now on, and see what was done before.
    pub(crate) fn attach(&self) {
        self.0.store(ATTACHED, Ordering::Release);
    }

    /// `up_read`.
    pub(crate) fn end_read(&self) {
        self.0.fetch_sub(1, Ordering::Release);
    }

    /// The same by a reader that is not counted.
    pub(crate) fn cancel_read(&self) {
        self.0.fetch_sub(ENTRY + 1, Ordering::Release);
    }

    /// How many readers there were, also those that have the lock.
    pub(crate) fn entries(&self) -> u64 {
        self.0.load(Ordering::Relaxed) >> ENTRIES
    }

    /// The same of a VMA that is in no tree: those who have found it and give up are waited for.
    pub(crate) fn all_entries(&self, relax: impl Fn(u32)) -> u64 {
        self.wait(ATTACHED, relax) >> ENTRIES
    }

    /// `down_write`: waits until no reader is left. Others are refused meanwhile.
    fn write(&self, relax: impl Fn(u32)) {
        if self.0.fetch_or(WRITER, Ordering::Acquire) & READERS > ATTACHED {
            self.wait(ATTACHED, relax);
        }
    }

    /// Waits until there are no more than so many readers.
    fn wait(&self, most: u64, relax: impl Fn(u32)) -> u64 {
        let mut tries = 0;
        loop {
            let word = self.0.load(Ordering::Acquire);
            if word & READERS <= most {
                return word;
            }
            relax(tries);
            tries = u32::saturating_add(tries, 1);
        }
    }

    /// `up_write`.
    fn end_write(&self) {
        self.0.fetch_and(!WRITER, Ordering::Release);
    }
}

/// How a reader's attempt ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Counted {
    /// It has the lock.
    In,
    /// The VMA is write-locked, or about to be.
    Refused,
    /// The VMA is in no tree.
    Detached,
}

impl MmSeq {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// How often it was changed: by who held `mmap_lock` for writing.
    #[cfg(feature = "damon")]
    pub(crate) fn changes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// `vma_end_write_all`: unlocks all VMAs that are write-locked. Called by who is about to release `mmap_lock`, held for
    /// writing.
    pub(crate) fn end_write_all(&self) {
        let next = self.0.load(Ordering::Relaxed).wrapping_add(1);
        self.0.store(next, Ordering::Release);
    }
}

impl VmaSeq {
    /// Of a VMA that is not locked: it may not be 0, which is a space's first number.
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }

    /// `vma_start_read`: whether the lock was taken for reading. Refused while the VMA is write-locked, and in doubt.
    pub(crate) fn start_read(&self, lock: &VmaLock, mm: &MmSeq) -> bool {
        // Not worth trying otherwise. Both may be outdated.
        if self.0.load(Ordering::Relaxed) == mm.0.load(Ordering::Relaxed) {
            return false;
        }
        if !lock.try_read() {
            return false;
        }
        // Acquire: what a writer did before it unlocked is seen by who finds the number changed.
        if self.0.load(Ordering::Relaxed) == mm.0.load(Ordering::Acquire) {
            lock.cancel_read();
            return false;
        }
        true
    }

    /// The same of a VMA whose memory may have become another's meanwhile, which was in no tree between.
    pub(crate) fn start_read_counted(&self, lock: &VmaLock, mm: &MmSeq) -> Counted {
        if self.0.load(Ordering::Relaxed) == mm.0.load(Ordering::Relaxed) {
            return Counted::Refused;
        }
        let counted = lock.try_count();
        if counted == Counted::In && self.0.load(Ordering::Relaxed) == mm.0.load(Ordering::Acquire) {
            lock.cancel_read();
            return Counted::Refused;
        }
        counted
    }

    /// Whether the VMA is write-locked, for a reader that a writer can see.
    pub(crate) fn is_locked_for(&self, mm: &MmSeq) -> bool {
        // Acquire: whoever sees a VMA's number sees that the space had it.
        self.0.load(Ordering::Acquire) == mm.0.load(Ordering::Acquire)
    }

    /// `vma_start_write`: locks the VMA until the space's number changes. Waits for readers; `wait` for those that the counter
    /// does not know, once the number is set. Called by who holds `mmap_lock` for writing, as often as he likes.
    pub(crate) fn start_write(&self, lock: &VmaLock, mm: &MmSeq, relax: impl Fn(u32), wait: impl FnOnce()) {
        let number = mm.0.load(Ordering::Relaxed);
        if self.0.load(Ordering::Relaxed) == number {
            return;
        }
        lock.write(relax);
        self.0.store(number, Ordering::Release);
        wait();
        lock.end_write();
    }

    /// Of a VMA that is made of the memory of one that is gone: it is write-locked from the start.
    pub(crate) fn begin_locked(&self, mm: &MmSeq) {
        self.0.store(mm.0.load(Ordering::Relaxed), Ordering::Release);
    }

    /// Whether the VMA is write-locked. Asked by who holds `mmap_lock` for writing.
    pub(crate) fn is_write_locked(&self, mm: &MmSeq) -> bool {
        self.0.load(Ordering::Relaxed) == mm.0.load(Ordering::Relaxed)
    }
}
