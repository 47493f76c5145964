//! Loads, stores and calls through page tables under test, and the page faults that come of them.
//!
//! Loads and stores are LDTR and STTR, which are permitted what a user program is; a call goes to EL0, and what is called
//! comes back by SVC. They stand in routines of their own, which keep in a register what the fault handler has to know: an
//! [`Attempt`]. So the handler needs no state of its own, and a page fault anywhere else stays a bug that ends the run. A
//! fault is handed to the attempt's [`Resolve`]; if that resolves it, the handler returns and the processor repeats the
//! instruction; if not, the routine returns at once, as `copy_from_user` of a kernel does.

use crate::arch::faults::{Frame, OWN, USERS};
use crate::mmu::figures::{Figure, count};
use core::cell::Cell;
use core::ffi::c_void;

/// Why a page fault came, in the bits that x86-64 has for it (Intel SDM vol. 3, 4.7).
pub mod code {
    /// The page was there, but not for this.
    pub const PRESENT: u64 = 1;
    /// It was a write.
    pub const WRITE: u64 = 1 << 1;
    /// It was an instruction fetch.
    pub const FETCH: u64 = 1 << 4;
    /// Neither permission nor a missing page: an access flag that hardware did not set, a conflict in the TLB.
    pub const ODD: u64 = 1 << 8;
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
    /// The code of the last.
    pub code: Cell<u64>,
    /// Whether it was given up.
    pub refused: Cell<bool>,
}

core::arch::global_asm!(
    "user_load:", // x0: address; x1: attempt
    "    ldtr x0, [x0]",
    "    ret",
    "user_store:", // x2: what
    "    sttr x2, [x0]",
    "user_refused:",
    "    ret",
    "user_call:",
    "    mrs x3, daif",
    "    msr daifset, #15",
    "    dsb ish",
    "    ic ialluis",
    "    dsb ish",
    "    msr elr_el1, x0",
    "    mov x4, #0x3c0", // EL0, interrupts held back
    "    msr spsr_el1, x4",
    "    isb",
    "    eret",
    "user_called:",
    "    msr daif, x3",
    "    ret",
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

    /// Calls the code at the address, as a user program.
    ///
    /// # Safety
    /// The tables that are loaded map nothing there, or an `svc #0`.
    pub unsafe fn call(&self) {
        // SAFETY: as in `load`.
        unsafe { user_call(self.address, (&raw const *self).cast()) }
    }
}

/// EL1 on SP_EL0, interrupts held back: how `user_call` goes on.
const BACK: u64 = 0x3c4;
/// Classes of exceptions (Arm ARM, ESR_EL1.EC).
const SVC: u64 = 0x15;
const USERS_FETCH: u64 = 0x20;
const OWN_DATA: u64 = 0x25;

/// Resolves the page fault, or lets the routine return; `false` if it was not one of the routines here.
pub fn page_fault(frame: &mut Frame, vector: u64) -> bool {
    let (load, store) = (user_load as *const () as u64, user_store as *const () as u64);
    let fetch = match (vector, frame.class()) {
        (USERS, SVC) => {
            (frame.elr, frame.spsr) = (&raw const user_called as u64, BACK);
            return true;
        }
        (USERS, USERS_FETCH) => true,
        (OWN, OWN_DATA) if frame.elr == load || frame.elr == store => false,
        _ => return false,
    };
    let address = frame.far;
    // SAFETY: the routines have it in this register until after the instruction that faulted, and it lives as long.
    let attempt = unsafe { &*(frame.x[1] as *const Attempt<'_>) };
    count(Figure::Faults, 1);
    attempt.faults.set(attempt.faults.get() + 1);
    // The level of the table is in the lower two bits.
    let why = match frame.esr >> 2 & 0xf {
        1 => 0,
        3 => code::PRESENT,
        _ => code::ODD,
    };
    let write = !fetch && frame.esr & 1 << 6 != 0;
    let code = why | if write { code::WRITE } else { 0 } | if fetch { code::FETCH } else { 0 };
    attempt.code.set(code);
    let expected = address == attempt.address && attempt.faults.get() < MOST;
    if expected && attempt.resolver.resolve(address, code) {
        return true;
    }
    count(Figure::Refused, 1);
    attempt.refused.set(true);
    if fetch {
        (frame.elr, frame.spsr) = (&raw const user_called as u64, BACK);
    } else {
        frame.elr = &raw const user_refused as u64;
    }
    true
}
