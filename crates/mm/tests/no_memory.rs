//! Memory of the global allocator runs out while pages go to swap and come back: what is done then fails and may be repeated, and no
//! page is lost. (That of nodes and VMAs is that of `Platform::Alloc`, which other tests have fail.)
#![cfg(not(loom))]
#![cfg(not(miri))]
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use std::alloc::{GlobalAlloc, Layout, System as Process};
use std::cell::Cell;

use common::host::{FRAMES, word, zero};
use common::swap::{machine_with_swap, space_in, system};
use common::{PAGE, anonymous};
use isotherm_pagetable::X86_64;

const FIRST: u64 = 100;
const PAGES: u64 = 8;

thread_local! {
    /// Allocations of this thread that succeed, before all fail.
    static LEFT: Cell<u64> = const { Cell::new(u64::MAX) };
}

/// The process' allocator, or none.
struct Failing;

// SAFETY: the process' allocator, whose duties are the same.
unsafe impl GlobalAlloc for Failing {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let left = LEFT.get();
        if left == 0 {
            return std::ptr::null_mut();
        }
        if left != u64::MAX {
            LEFT.set(left - 1);
        }
        // SAFETY: the caller vouches for it.
        unsafe { Process.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller vouches for it.
        unsafe { Process.dealloc(memory, layout) };
    }
}

#[global_allocator]
static ALLOCATOR: Failing = Failing;

/// Does something while so many allocations succeed.
fn with_memory<R>(allocations: u64, act: impl FnOnce() -> R) -> R {
    LEFT.set(allocations);
    let done = act();
    LEFT.set(u64::MAX);
    done
}

/// What each page holds: of the first it is one word, so the others are what is compressed.
fn value(page: u64) -> u64 {
    if page == FIRST { 0 } else { page << 32 | 7 }
}

#[test]
fn pages_go_to_swap_and_come_back_when_memory_runs_out() {
    let (machine, swap) = machine_with_swap(FRAMES, 64);
    let zero = zero(&machine);
    let system = system::<X86_64>(&machine, &swap);
    let space = space_in(&system, zero.frame());
    space.mmap(&anonymous(PAGES).at(FIRST * PAGE)).unwrap();
    let pages = || FIRST..FIRST + PAGES;
    let out = || space.page_out(FIRST * PAGE, PAGES * PAGE);
    for page in pages() {
        word(&machine, &space, page * PAGE, Some(value(page))).unwrap();
    }
    let there = || {
        for page in pages() {
            assert_eq!(word(&machine, &space, page * PAGE, None), Ok(value(page)), "page {page}");
        }
    };
    // Once with memory: lists of the machine's are then as long as they will be.
    assert_eq!(out(), Ok(PAGES * PAGE));
    there();
    // Only what is stored needs memory: one piece for each page but that of one word.
    for allocations in 0..PAGES {
        let left = with_memory(allocations, out);
        assert_eq!(left, Ok((allocations + 1).min(PAGES) * PAGE), "{allocations} allocations");
        assert_eq!(space.contents().resident() + swap.area.used(), PAGES, "{allocations} allocations");
        // Coming back needs none.
        with_memory(0, there);
    }
    assert_eq!((space.contents().resident(), swap.area.used()), (PAGES, 0));
}
