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
//! `tests/loom` has the models.

use crate::sync::{AtomicU32, AtomicU64, Ordering};

/// The writer waits for readers, or has the lock.
const WRITER: u32 = 1 << 31;

/// So many readers are refused: the counter must never reach the writer's bit, however many are forgotten.
const MOST_READERS: u32 = 1 << 30;

/// The lock of one VMA: a counter of readers, and a bit for the writer. It lies apart from the VMA, on a cache line of its
/// own: faults write to it all the time, and others only read the VMA (patch 33 of the seed).
#[repr(align(64))]
pub(crate) struct VmaLock {
    readers: AtomicU32,
}

/// The sequence number of an address space. It is changed only by who holds `mmap_lock` for writing.
pub(crate) struct MmSeq(AtomicU64);

/// The sequence number of a VMA, which is that of its space as long as it is write-locked.
pub(crate) struct VmaSeq(AtomicU64);

impl VmaLock {
    pub(crate) fn new() -> Self {
        Self { readers: AtomicU32::new(0) }
    }

    /// `down_read_trylock`.
    fn try_read(&self) -> bool {
        // No writer's bit, and room for as many threads as there may be beside this one.
        if self.readers.fetch_add(1, Ordering::Acquire) < MOST_READERS {
            return true;
        }
        self.readers.fetch_sub(1, Ordering::Release);
        false
    }

    /// `up_read`.
    pub(crate) fn end_read(&self) {
        self.readers.fetch_sub(1, Ordering::Release);
    }

    /// `down_write`: waits until no reader is left. Others are refused meanwhile.
    fn write(&self, relax: impl Fn(u32)) {
        let mut readers = self.readers.fetch_or(WRITER, Ordering::Acquire) & !WRITER;
        let mut tries = 0;
        while readers != 0 {
            relax(tries);
            tries = tries.saturating_add(1);
            readers = self.readers.load(Ordering::Acquire) & !WRITER;
        }
    }

    /// `up_write`.
    fn end_write(&self) {
        self.readers.fetch_and(!WRITER, Ordering::Release);
    }
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
            lock.end_read();
            return false;
        }
        true
    }

    /// `vma_start_write`: locks the VMA until the space's number changes. Waits for readers. Called by who holds `mmap_lock`
    /// for writing, as often as he likes.
    pub(crate) fn start_write(&self, lock: &VmaLock, mm: &MmSeq, relax: impl Fn(u32)) {
        let number = mm.0.load(Ordering::Relaxed);
        if self.0.load(Ordering::Relaxed) == number {
            return;
        }
        lock.write(relax);
        self.0.store(number, Ordering::Relaxed);
        lock.end_write();
    }

    /// Whether the VMA is write-locked. Asked by who holds `mmap_lock` for writing.
    pub(crate) fn is_write_locked(&self, mm: &MmSeq) -> bool {
        self.0.load(Ordering::Relaxed) == mm.0.load(Ordering::Relaxed)
    }
}
