//! A user program's registers, and the way into it and back.
//!
//! [`Context::enter`] loads the registers and goes to privilege level 3. Whatever brings the processor back, but an interrupt, an
//! exception or the system call's `int 0x80`, lands in `exception` on the processor's stack for exceptions; from there
//! [`trapped`] writes the registers down and returns from `enter`, on the stack of whoever called it. So a page fault of a user
//! program is handled like a function's result. Interrupts (wake, TLB flush) are served on the same stack for exceptions, which no
//! exception needs meanwhile, and return to the program.

use crate::arch::faults::{Frame, USER_CODE, USER_DATA};
use crate::boot::MAX_CPUS;
use crate::processor;
use core::ptr::null_mut;
use core::sync::atomic::{AtomicPtr, Ordering};
use isotherm_mm::Access;
use x86_64::instructions::interrupts;
use x86_64::registers::control::Cr2;

/// The system call's vector.
pub const SYSTEM_CALL: u64 = 0x80;
const PAGE_FAULT: u64 = 14;
/// Bits of a page fault's error code (Intel SDM vol. 3, 4.7).
const WRITE: u64 = 1 << 1;
const FETCH: u64 = 1 << 4;
/// Interrupts on, and the bit that is always set.
const FLAGS: u64 = 0x202;

/// Registers of a user program. The assembly below knows the order.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Context {
    /// Where `enter` returns to, while the program runs.
    kernel_stack: u64,
    rax: u64,
    rbx: u64,
    rcx: u64,
    rdx: u64,
    rsi: u64,
    rdi: u64,
    rbp: u64,
    others: [u64; 8],
    rip: u64,
    rflags: u64,
    rsp: u64,
    vector: u64,
    error: u64,
    address: u64,
}

const _: () = assert!(core::mem::offset_of!(Context, others) == 64);
const _: () = assert!(core::mem::offset_of!(Context, rip) == 128);
const _: () = assert!(core::mem::offset_of!(Context, rsp) == 144);

/// What brought the processor back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trap {
    /// `int 0x80`.
    Call,
    /// A page fault: its address, and the access.
    Fault(u64, Access),
    /// Another exception: its vector.
    Exception(u64),
}

/// What each processor's program runs with; null while none does.
static RUNNING: [AtomicPtr<Context>; MAX_CPUS] = [const { AtomicPtr::new(null_mut()) }; MAX_CPUS];

core::arch::global_asm!(
    ".global enter_user, leave_user",
    "enter_user:", // %rdi: context; %rsi, %rdx: selectors of code and stack
    "    pushq %rbx",
    "    pushq %rbp",
    "    pushq %r12",
    "    pushq %r13",
    "    pushq %r14",
    "    pushq %r15",
    "    movq %rsp, (%rdi)",
    "    pushq %rdx",
    "    pushq 144(%rdi)",
    "    pushq 136(%rdi)",
    "    pushq %rsi",
    "    pushq 128(%rdi)",
    "    movq 8(%rdi), %rax",
    "    movq 16(%rdi), %rbx",
    "    movq 24(%rdi), %rcx",
    "    movq 32(%rdi), %rdx",
    "    movq 40(%rdi), %rsi",
    "    movq 56(%rdi), %rbp",
    "    movq 64(%rdi), %r8",
    "    movq 72(%rdi), %r9",
    "    movq 80(%rdi), %r10",
    "    movq 88(%rdi), %r11",
    "    movq 96(%rdi), %r12",
    "    movq 104(%rdi), %r13",
    "    movq 112(%rdi), %r14",
    "    movq 120(%rdi), %r15",
    "    movq 48(%rdi), %rdi",
    "    iretq",
    "leave_user:", // %rdi: context
    "    movq (%rdi), %rsp",
    "    popq %r15",
    "    popq %r14",
    "    popq %r13",
    "    popq %r12",
    "    popq %rbp",
    "    popq %rbx",
    "    ret",
    options(att_syntax)
);

unsafe extern "C" {
    fn enter_user(context: *mut Context, code: u64, stack: u64);
    fn leave_user(context: *mut Context) -> !;
}

impl Context {
    /// A program that begins at `rip`, with its stack's end and its arguments.
    pub fn new(rip: u64, rsp: u64, arguments: [u64; 3]) -> Self {
        let [rdi, rsi, rdx] = arguments;
        Self { rip, rsp, rdi, rsi, rdx, rflags: FLAGS, ..Self::default() }
    }

    /// The same registers, but for where a thread goes on, its stack and its first argument.
    pub fn beside(&self, rip: u64, rsp: u64, argument: u64) -> Self {
        Self { rip, rsp, rdi: argument, ..self.clone() }
    }

    /// The instruction that comes next.
    pub fn instruction(&self) -> u64 {
        self.rip
    }

    /// The number of a call, and its arguments.
    pub fn call(&self) -> (u64, [u64; 3]) {
        (self.rax, [self.rdi, self.rsi, self.rdx])
    }

    /// The result of a call.
    pub fn set_result(&mut self, result: u64) {
        self.rax = result;
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
        unsafe { enter_user(context, USER_CODE, USER_DATA) };
        interrupts::enable();
        match self.vector {
            SYSTEM_CALL => Trap::Call,
            PAGE_FAULT if self.error & FETCH != 0 => Trap::Fault(self.address, Access::Execute),
            PAGE_FAULT if self.error & WRITE != 0 => Trap::Fault(self.address, Access::Write),
            PAGE_FAULT => Trap::Fault(self.address, Access::Read),
            vector => Trap::Exception(vector),
        }
    }
}

/// A program at privilege level 3 was interrupted by an exception: back to who had it run.
pub fn trapped(frame: &Frame) -> ! {
    let context = RUNNING[processor::current()].swap(null_mut(), Ordering::Relaxed);
    assert!(!context.is_null(), "a user program that nobody runs");
    // SAFETY: `enter` waits for it on this processor.
    let to = unsafe { &mut *context };
    (to.rax, to.rbx, to.rcx, to.rdx) = (frame.rax, frame.rbx, frame.rcx, frame.rdx);
    (to.rsi, to.rdi, to.rbp) = (frame.rsi, frame.rdi, frame.rbp);
    to.others = [frame.r8, frame.r9, frame.r10, frame.r11, frame.r12, frame.r13, frame.r14, frame.r15];
    (to.rip, to.rflags, to.rsp) = (frame.rip, frame.rflags, frame.rsp);
    (to.vector, to.error, to.address) = (frame.vector, frame.error, Cr2::read_raw());
    // SAFETY: as above. What is on this stack is not needed any more.
    unsafe { leave_user(context) }
}
