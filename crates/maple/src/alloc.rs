//! Where nodes come from.

use core::alloc::Layout;
use core::ptr::NonNull;

/// An allocator of nodes. It is a type without values, since a node that is freed after its grace period knows its type and
/// nothing else. Tests use one that fails.
///
/// # Safety
/// [`allocate`](Self::allocate) returns memory of that layout that is nobody else's until it is given back.
pub unsafe trait NodeAlloc: 'static {
    /// Memory for a node; `None` if there is none.
    fn allocate(layout: Layout) -> Option<NonNull<u8>>;

    /// Takes memory back. Called by whatever runs the callbacks of RCU.
    ///
    /// # Safety
    /// It came from [`allocate`](Self::allocate) with the same layout, and is given back once.
    unsafe fn free(memory: NonNull<u8>, layout: Layout);
}

/// The global allocator.
#[derive(Clone, Copy, Debug)]
pub struct Global;

// SAFETY: the global allocator's own promise.
unsafe impl NodeAlloc for Global {
    fn allocate(layout: Layout) -> Option<NonNull<u8>> {
        // SAFETY: nodes have a size.
        NonNull::new(unsafe { alloc_crate::alloc::alloc(layout) })
    }

    unsafe fn free(memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller vouches for it.
        unsafe { alloc_crate::alloc::dealloc(memory.as_ptr(), layout) };
    }
}
