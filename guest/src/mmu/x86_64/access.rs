//! Loads, stores and calls through page tables under test, and the page faults that come of them.
//!
//! The instructions that may fault stand in routines of their own, which keep in a register what the fault handler has
//! to know: an [`Attempt`]. So the handler needs no state of its own, and a page fault anywhere else stays a bug that
//! ends the run. A fault is handed to the attempt's [`Resolve`]; if that resolves it, the handler returns and the
//! processor repeats the instruction; if not, the routine returns at once, as `copy_from_user` of a kernel does.
//!
//! All this runs at privilege level 0, on pages that user programs may access. What is different from level 3: a
//! read-only page faults only since CR0.WP is set, a page that user programs may not access does not fault, and error
//! codes lack the user bit. [`crate::mmu::permissions`] looks at the user bit through SMAP instead.

use crate::arch::faults::Frame;
use crate::mmu::figures::{Figure, count};
use core::cell::Cell;
use core::ffi::c_void;
use x86_64::registers::control::Cr2;

/// Bits of a page fault's error code (Intel SDM vol. 3, 4.7).
pub mod code {
    /// The page was there, but not for this.
    pub const PRESENT: u64 = 1;
    /// It was a write.
    pub const WRITE: u64 = 1 << 1;
    /// It was an instruction fetch.
    pub const FETCH: u64 = 1 << 4;
}

/// More faults than this on one instruction are a fault that is never resolved.
const MOST: u32 = 8;

/// What resolves faults, as a kernel does.
pub trait Resolve {
    /// Whether the instruction may be tried again. Called in the exception's handler, without interrupts.
    fn resolve(&self, address: u64, code: u64) -> bool;
}

/// An access, and what became of it.
#[repr(C)]
pub struct Attempt<'a> {
    resolver: &'a dyn Resolve,
    address: u64,
    /// Faults that were raised.
    pub faults: Cell<u32>,
    /// The error code of the last.
    pub code: Cell<u64>,
    /// Whether it was given up.
    pub refused: Cell<bool>,
}

core::arch::global_asm!(
    "user_load:", // %rdi: address; %rsi: attempt
    "    movq (%rdi), %rax",
    "    ret",
    "user_store:", // %rdx: what
    "    movq %rdx, (%rdi)",
    "user_refused:",
    "    ret",
    "user_call:",
    "    subq $8, %rsp",
    "    callq *%rdi",
    "user_called:",
    "    addq $8, %rsp",
    "    ret",
    options(att_syntax)
);

unsafe extern "C" {
    fn user_load(address: u64, attempt: *const c_void) -> u64;
    fn user_store(address: u64, attempt: *const c_void, word: u64);
    fn user_call(address: u64, attempt: *const c_void);
    safe static user_called: u8;
    safe static user_refused: u8;
}

impl<'a> Attempt<'a> {
    /// To access `address`, faults being resolved by `resolver`.
    pub fn new(address: u64, resolver: &'a dyn Resolve) -> Self {
        count(Figure::Touches, 1);
        Self { resolver, address, faults: Cell::new(0), code: Cell::new(0), refused: Cell::new(false) }
    }

    /// Loads a word. What it returns means nothing if the attempt was refused.
    ///
    /// # Safety
    /// The tables that are loaded map nothing at the address, or memory that may be read at any time.
    pub unsafe fn load(&self) -> u64 {
        // SAFETY: the caller's duty; a fault is resolved or ends the routine.
        unsafe { user_load(self.address, (&raw const *self).cast()) }
    }

    /// Stores a word.
    ///
    /// # Safety
    /// The tables that are loaded map nothing at the address, or memory that Rust knows nothing of.
    pub unsafe fn store(&self, word: u64) {
        // SAFETY: as in `load`.
        unsafe { user_store(self.address, (&raw const *self).cast(), word) }
    }

    /// Calls the code at the address.
    ///
    /// # Safety
    /// The tables that are loaded map nothing there, or a `ret`.
    pub unsafe fn call(&self) {
        // SAFETY: as in `load`.
        unsafe { user_call(self.address, (&raw const *self).cast()) }
    }
}

/// Resolves the page fault, or lets the routine return; `false` if it was not one of the routines here.
pub fn page_fault(frame: &mut Frame) -> bool {
    let (load, store) = (user_load as *const () as u64, user_store as *const () as u64);
    let called = &raw const user_called as u64;
    let address = Cr2::read_raw();
    // Of a fetch the instruction pointer says where to; where from stands on the stack.
    // SAFETY: a fetch that faulted right at the address that was called has pushed nothing after the call.
    let fetch = frame.rip == address
        && address == frame.rdi
        && frame.error & code::FETCH != 0
        && unsafe { (frame.rsp as *const u64).read() } == called;
    if frame.rip != load && frame.rip != store && !fetch {
        return false;
    }
    // SAFETY: the routines have it in this register until after the instruction that faulted, and it lives as long.
    let attempt = unsafe { &*(frame.rsi as *const Attempt<'_>) };
    count(Figure::Faults, 1);
    attempt.faults.set(attempt.faults.get() + 1);
    attempt.code.set(frame.error);
    let expected = address == attempt.address && attempt.faults.get() < MOST;
    if expected && attempt.resolver.resolve(address, frame.error) {
        return true;
    }
    count(Figure::Refused, 1);
    attempt.refused.set(true);
    if fetch {
        frame.rsp += 8;
        frame.rip = called;
    } else {
        frame.rip = &raw const user_refused as u64;
    }
    true
}
