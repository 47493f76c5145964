//! The atomics: those of `core`, or loom's when the models run (`--cfg loom`).

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence,
};

/// What only counts: no protocol depends on it, and the models are spared its interleavings.
pub(crate) mod counter {
    pub(crate) use core::sync::atomic::{AtomicU64, Ordering};
}
