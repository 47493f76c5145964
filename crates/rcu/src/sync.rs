//! The atomics: those of `core`, or loom's when the models run (`--cfg loom`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};

/// A `const fn` wherever the atomics it makes can be made in one: not in loom's models.
macro_rules! const_unless_loom {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $type:ty),*) -> $ret:ty $body:block) => {
        $(#[$meta])*
        #[cfg(not(loom))]
        $vis const fn $name($($arg: $type),*) -> $ret $body
        $(#[$meta])*
        #[cfg(loom)]
        $vis fn $name($($arg: $type),*) -> $ret $body
    };
}
pub(crate) use const_unless_loom;
