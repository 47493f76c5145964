//! Whose page a frame is, and whether it is locked, in one word: so that who says the one at first use of a frame does not overwrite
//! what another has said of the other meanwhile. Two spaces may map a page of an object for the first time at once, and one of them
//! locked.

use super::atomic::{AtomicU64, Ordering};

/// Somebody who maps the page has locked it, or had: see `Inner::stays`.
pub(crate) const LOCKED: u64 = 1 << 61;

/// 0 is nobody's. Whose it is has no bit in common with [`LOCKED`].
pub(crate) struct Word(AtomicU64);

impl Word {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(0))
    }

    /// Whose it is.
    pub(crate) fn whose(&self) -> u64 {
        self.0.load(Ordering::Relaxed) & !LOCKED
    }

    pub(crate) fn is_locked(&self) -> bool {
        self.0.load(Ordering::Relaxed) & LOCKED != 0
    }

    /// Sets or clears the mark.
    pub(crate) fn lock(&self, locked: bool) {
        if locked {
            self.0.fetch_or(LOCKED, Ordering::Relaxed);
        } else {
            self.0.fetch_and(!LOCKED, Ordering::Relaxed);
        }
    }

    /// By one who alone knows the page.
    pub(crate) fn set(&self, whose: u64, locked: bool) {
        self.0.store(whose | if locked { LOCKED } else { 0 }, Ordering::Relaxed);
    }

    /// By one of those who map a page. It stays locked, if it is, and is locked if one of them says so; a mark of the page that the
    /// frame was before means nothing.
    pub(crate) fn map(&self, whose: u64, locked: bool) {
        self.update(|old| {
            let stays = old & LOCKED != 0 && old & !LOCKED == whose;
            whose | if locked || stays { LOCKED } else { 0 }
        });
    }

    /// If nobody knows whose it is.
    pub(crate) fn learn(&self, whose: u64) {
        self.update(|old| if old & !LOCKED == 0 { whose | old } else { old });
    }

    fn update(&self, new: impl Fn(u64) -> u64) {
        let mut old = self.0.load(Ordering::Relaxed);
        // Who maps a page that is known has nothing to write.
        while new(old) != old {
            match self.0.compare_exchange(old, new(old), Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => break,
                Err(now) => old = now,
            }
        }
    }
}
