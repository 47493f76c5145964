//! What the tests of layouts stand on, and an allocator that fails when it is told to.
#![allow(dead_code, clippy::unwrap_used, reason = "shared by several tests; what fails here fails the test")]

#[cfg(not(loom))]
pub mod cpus;
#[cfg(not(loom))]
pub mod files;
#[cfg(not(loom))]
pub mod host;
#[cfg(not(loom))]
pub mod swap;

use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::RwLock;

use isotherm_maple::{Global, NodeAlloc};
use isotherm_mm::*;
use isotherm_rcu::Epoch;

pub const PAGE: u64 = 4096;

thread_local! {
    /// Allocations of this thread that succeed, before all fail.
    static BUDGET: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// The global allocator, or none.
pub struct Failing;

impl Failing {
    pub fn after(allocations: u64) {
        BUDGET.set(allocations);
    }
}

// SAFETY: that of the global one.
unsafe impl NodeAlloc for Failing {
    fn allocate(layout: Layout) -> Option<NonNull<u8>> {
        let left = BUDGET.get().checked_sub(1)?;
        if left != u64::MAX - 1 {
            BUDGET.set(left);
        }
        Global::allocate(layout)
    }

    unsafe fn free(memory: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller vouches for it.
        unsafe { Global::free(memory, layout) };
    }
}

/// Layouts alone.
pub struct Bare;

impl Platform for Bare {
    type Rcu = Epoch;
    type Lock = RwLock<()>;
    type Contents = ();
    type Alloc = Failing;
}

pub type Space = AddressSpace<Bare>;

pub fn space(config: Config) -> Space {
    Space::new(Epoch, RwLock::new(()), (), config)
}

/// A small space of 512 pages from 64 KiB on.
pub const SMALL: Config = Config {
    lowest: 16 * PAGE,
    end: 512 * PAGE,
    top_down_base: 500 * PAGE,
    bottom_up_base: 100 * PAGE,
    heap: 20 * PAGE + 0x123,
    stack_guard: 8 * PAGE,
    huge_page: 32 * PAGE,
    // What is mapped is what was touched.
    fault_around: PAGE,
    ..Config::X86_64
};

pub fn mappings<P: Platform>(space: &AddressSpace<P>) -> Vec<VmaInfo> {
    let mut all = Vec::new();
    space.for_each(0..u64::MAX, |vma| all.push(vma));
    all
}

/// Private memory that may be read and written.
pub fn anonymous(pages: u64) -> MapRequest {
    MapRequest::anonymous(pages * PAGE, Prot::READ | Prot::WRITE)
}

/// Its ranges, in pages, as `first..end`.
pub fn ranges(space: &Space) -> Vec<(u64, u64)> {
    mappings(space).iter().map(|vma| (vma.start / PAGE, vma.end / PAGE)).collect()
}
