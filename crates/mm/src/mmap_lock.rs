//! The lock of an address space.

/// A lock for many readers or one writer: what Linux calls `mmap_lock`. It is the caller's: a kernel's sleeps, and is fair
/// as that kernel wants it. The trait is implemented for `std::sync::RwLock<()>` (feature `std`).
///
/// # Safety
/// While a [`Write`](Self::Write) guard lives, no other guard of the same lock does. What was done under a guard happens
/// before whatever is done under a guard that excludes it and is made later.
pub unsafe trait MmapLock {
    /// Held for reading.
    type Read<'a>
    where
        Self: 'a;
    /// Held for writing.
    type Write<'a>
    where
        Self: 'a;

    /// Takes the lock for reading, shared with other readers.
    fn read(&self) -> Self::Read<'_>;

    /// Takes the lock for writing, alone.
    fn write(&self) -> Self::Write<'_>;

    /// Takes the lock for reading if that needs no waiting. `None` without trying is allowed: then faults that need it while
    /// they have a VMA locked start again.
    fn try_read(&self) -> Option<Self::Read<'_>> {
        None
    }

    /// What a writer does between two looks at whether those are gone that it waits for, `tries` counting from 0: the readers of a
    /// VMA, which are page faults, or who takes pages away that are locked, or unlocks them elsewhere. All of them end without
    /// waiting for the writer; they may sleep.
    fn relax(&self, tries: u32) {
        let _ = tries;
        core::hint::spin_loop();
    }
}

// SAFETY: it is such a lock.
#[cfg(feature = "std")]
unsafe impl MmapLock for std::sync::RwLock<()> {
    type Read<'a> = std::sync::RwLockReadGuard<'a, ()>;
    type Write<'a> = std::sync::RwLockWriteGuard<'a, ()>;

    fn read(&self) -> Self::Read<'_> {
        Self::read(self).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn write(&self) -> Self::Write<'_> {
        Self::write(self).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn try_read(&self) -> Option<Self::Read<'_>> {
        match Self::try_read(self) {
            Ok(guard) => Some(guard),
            Err(std::sync::TryLockError::Poisoned(why)) => Some(why.into_inner()),
            Err(std::sync::TryLockError::WouldBlock) => None,
        }
    }

    fn relax(&self, tries: u32) {
        if tries < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}
