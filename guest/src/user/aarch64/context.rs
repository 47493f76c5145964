//! A user program's registers, and the way into it and back.
//!
//! [`Context::enter`] loads the registers and goes to EL0. Whatever brings the processor back, but an interrupt, an exception or
//! the system call's `svc`, lands in `exception` on the processor's stack for exceptions; from there [`trapped`] writes the
//! registers down and returns from `enter`, on the stack of whoever called it. So a page fault of a user program is handled like a
//! function's result. Interrupts are served on the same stack for exceptions, which no exception needs meanwhile, and return to the
//! program.
//!
//! `SP_EL0` is this program's stack pointer as well as the user's: it is kept in the context while the other is loaded. Registers of
//! floating point are none of a user's (`CPACR_EL1` in `boot.s`).

use crate::arch::faults::Frame;
use crate::arch::interrupts;
use crate::boot::MAX_CPUS;
use crate::processor;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use isotherm_mm::Access;

/// EL0 with interrupts, and without debugging, system errors and fast interrupts, as this program runs.
const FLAGS: u64 = 0x340;

/// Classes of exceptions (Arm ARM, ESR_EL1.EC).
const SVC: u64 = 0x15;
const FETCH: u64 = 0x20;
const DATA: u64 = 0x24;
/// Of a data abort's syndrome: it was a write.
const WRITE: u64 = 1 << 6;
/// Of an abort's syndrome: what kind of fault, less the level of the table in the lower two bits.
const KIND: u64 = 0x3c;
/// A translation that is missing, an access flag that is clear, a permission that is missing.
const KINDS: [u64; 3] = [0x4, 0x8, 0xc];

/// Registers of a user program. The assembly below knows the order.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Where `enter` returns to, while the program runs.
    kernel_stack: u64,
    pc: u64,
    sp: u64,
    flags: u64,
    x: [u64; 31],
    syndrome: u64,
    address: u64,
}

const _: () = assert!(core::mem::offset_of!(Context, pc) == 8);
const _: () = assert!(core::mem::offset_of!(Context, flags) == 24);
const _: () = assert!(core::mem::offset_of!(Context, x) == 32);

/// What brought the processor back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// `svc`.
    Call,
    /// A page fault: its address, and the access.
    Fault(u64, Access),
    /// Another exception: its class.
    Exception(u64),
}

/// What each processor's program runs with; null while none does.
static RUNNING: [AtomicPtr<Context>; MAX_CPUS] = [const { AtomicPtr::new(null_mut()) }; MAX_CPUS];

core::arch::global_asm!(
    ".global enter_user, leave_user",
    "enter_user:", // x0: context
    "    sub sp, sp, #160",
    "    stp x19, x20, [sp]",
    "    stp x21, x22, [sp, #16]",
    "    stp x23, x24, [sp, #32]",
    "    stp x25, x26, [sp, #48]",
    "    stp x27, x28, [sp, #64]",
    "    stp x29, x30, [sp, #80]",
    "    stp d8, d9, [sp, #96]",
    "    stp d10, d11, [sp, #112]",
    "    stp d12, d13, [sp, #128]",
    "    stp d14, d15, [sp, #144]",
    "    mov x1, sp",
    "    str x1, [x0]",
    "    msr daifset, #15",
    "    msr spsel, #1",
    "    ldp x1, x2, [x0, #8]",
    "    ldr x3, [x0, #24]",
    "    msr elr_el1, x1",
    "    msr sp_el0, x2",
    "    msr spsr_el1, x3",
    "    ldp x2, x3, [x0, #48]",
    "    ldp x4, x5, [x0, #64]",
    "    ldp x6, x7, [x0, #80]",
    "    ldp x8, x9, [x0, #96]",
    "    ldp x10, x11, [x0, #112]",
    "    ldp x12, x13, [x0, #128]",
    "    ldp x14, x15, [x0, #144]",
    "    ldp x16, x17, [x0, #160]",
    "    ldp x18, x19, [x0, #176]",
    "    ldp x20, x21, [x0, #192]",
    "    ldp x22, x23, [x0, #208]",
    "    ldp x24, x25, [x0, #224]",
    "    ldp x26, x27, [x0, #240]",
    "    ldp x28, x29, [x0, #256]",
    "    ldr x30, [x0, #272]",
    "    ldp x0, x1, [x0, #32]",
    "    eret",
    "leave_user:", // x0: context; x1: where the stack for exceptions begins
    "    mov sp, x1",
    "    msr spsel, #0",
    "    ldr x1, [x0]",
    "    mov sp, x1",
    "    ldp x19, x20, [sp]",
    "    ldp x21, x22, [sp, #16]",
    "    ldp x23, x24, [sp, #32]",
    "    ldp x25, x26, [sp, #48]",
    "    ldp x27, x28, [sp, #64]",
    "    ldp x29, x30, [sp, #80]",
    "    ldp d8, d9, [sp, #96]",
    "    ldp d10, d11, [sp, #112]",
    "    ldp d12, d13, [sp, #128]",
    "    ldp d14, d15, [sp, #144]",
    "    add sp, sp, #160",
    "    ret",
);

unsafe extern "C" {
    fn enter_user(context: *mut Context);
    fn leave_user(context: *mut Context, stack: *const Frame) -> !;
}

impl Context {
    /// A program that begins at `pc`, with its stack's end and its arguments.
    pub fn new(pc: u64, sp: u64, arguments: [u64; 3]) -> Self {
        let mut context = Self { pc, sp, flags: FLAGS, ..Self::default() };
        context.x[..3].copy_from_slice(&arguments);
        context
    }

    /// The same registers, but for where a thread goes on, its stack and its first argument.
    pub fn beside(&self, pc: u64, sp: u64, argument: u64) -> Self {
        let mut context = Self { pc, sp, ..self.clone() };
        context.x[0] = argument;
        context
    }

    /// The instruction that comes next.
    pub fn instruction(&self) -> u64 {
        self.pc
    }

    /// The number of a call, and its arguments.
    pub fn call(&self) -> (u64, [u64; 3]) {
        let [a, b, c, ..] = self.x;
        (self.x[8], [a, b, c])
    }

    /// The result of a call.
    pub fn set_result(&mut self, result: u64) {
        self.x[0] = result;
    }

    /// Lets the program run until it traps. Takes interrupts when it returns, as before.
    ///
    /// # Safety
    /// The processor has page tables loaded in which users may access memory of the program's own alone.
    pub unsafe fn enter(&mut self) -> Trap {
        let context = core::ptr::from_mut(self);
        // An interrupt that comes in between changes nothing of it.
        RUNNING[processor::current()].store(context, Ordering::Relaxed);
        // SAFETY: the context lives until `trapped` has left through it, which is where this returns from.
        unsafe { enter_user(context) };
        interrupts::enable();
        let class = self.syndrome >> 26 & 0x3f;
        let paging = KINDS.contains(&(self.syndrome & KIND));
        match class {
            SVC => Trap::Call,
            FETCH if paging => Trap::Fault(self.address, Access::Execute),
            DATA if paging && self.syndrome & WRITE != 0 => Trap::Fault(self.address, Access::Write),
            DATA if paging => Trap::Fault(self.address, Access::Read),
            class => Trap::Exception(class),
        }
    }
}

/// Whether this processor runs a user program.
pub fn is_running() -> bool {
    !RUNNING[processor::current()].load(Ordering::Relaxed).is_null()
}

/// A program at EL0 was interrupted by an exception: back to who had it run.
pub fn trapped(frame: &Frame) -> ! {
    let context = RUNNING[processor::current()].swap(null_mut(), Ordering::Relaxed);
    assert!(!context.is_null(), "a user program that nobody runs");
    // SAFETY: `enter` waits for it on this processor.
    let to = unsafe { &mut *context };
    to.x = frame.x;
    (to.pc, to.sp, to.flags) = (frame.elr, frame.sp, frame.spsr);
    (to.syndrome, to.address) = (frame.esr, frame.far);
    let stack = core::ptr::from_ref(frame).wrapping_add(1);
    // SAFETY: as above. What is on this stack is not needed any more: the frame was the first on it.
    unsafe { leave_user(context, stack) }
}
