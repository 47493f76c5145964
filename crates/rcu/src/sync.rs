//! The atomics and cells: those of `core`, or loom's when the models run (`--cfg loom`).

#[cfg(not(loom))]
pub use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering, fence};
#[cfg(loom)]
pub use interrupt::fence;
#[cfg(loom)]
pub use loom::{
    cell::UnsafeCell,
    sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering},
};

/// The cell of `core` with loom's interface. Loom's reports accesses that are not ordered.
#[cfg(not(loom))]
#[derive(Debug)]
#[repr(transparent)]
pub struct UnsafeCell<T>(core::cell::UnsafeCell<T>);

#[cfg(not(loom))]
impl<T> UnsafeCell<T> {
    pub const fn new(value: T) -> Self {
        Self(core::cell::UnsafeCell::new(value))
    }

    #[inline]
    pub fn with_mut<R>(&self, access: impl FnOnce(*mut T) -> R) -> R {
        access(self.0.get())
    }
}

/// Alone on its cache lines (two, since x86-64 prefetches them in pairs, and Apple's have 128 bytes).
#[derive(Debug)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

/// A `const fn` wherever the atomics and cells it makes can be made in one: not in loom's models.
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

/// Interrupts in loom's models: code that runs on the same CPU in the middle of the crate's own.
#[cfg(loom)]
pub mod interrupt {
    use std::boxed::Box;
    use std::cell::RefCell;

    loom::thread_local! {
        static PENDING: RefCell<Option<Box<dyn FnOnce()>>> = RefCell::new(None);
    }

    /// Has `handler` run once on this thread, just before its next fence.
    pub fn before_fence(handler: impl FnOnce() + 'static) {
        PENDING.with(|pending| *pending.borrow_mut() = Some(Box::new(handler)));
    }

    /// Loom's, after an interrupt that is pending.
    pub fn fence(order: super::Ordering) {
        let handler = PENDING.with(|pending| pending.borrow_mut().take());
        if let Some(handler) = handler {
            handler();
        }
        loom::sync::atomic::fence(order);
    }
}
