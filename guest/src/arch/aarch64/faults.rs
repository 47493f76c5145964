//! Exceptions: told in words, then the end of the run; but page faults of the experiment with page tables are resolved there,
//! exceptions of user programs are handled by whoever runs them, and interrupts only wake.

use super::gic;
use super::power::{End, end};
use crate::console::write_line_in_distress;
use crate::{mmu, user};

/// Of the sixteen vectors: a synchronous exception, and an interrupt, of this program, which runs on SP_EL0; the same of a user
/// program.
pub const OWN: u64 = 0;
const INTERRUPT: u64 = 1;
pub const USERS: u64 = 8;
const USERS_INTERRUPT: u64 = 9;

/// Registers as `exception_common` leaves them on the stack.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Frame {
    pub x: [u64; 31],
    pub elr: u64,
    pub spsr: u64,
    pub esr: u64,
    pub far: u64,
    pub sp: u64,
    q: [[u64; 2]; 32],
    fpcr: u64,
    fpsr: u64,
}

const _: () = assert!(size_of::<Frame>() == 816, "the offsets in boot.s");

impl Frame {
    /// What kind of exception (Arm ARM, ESR_EL1.EC).
    pub fn class(&self) -> u64 {
        self.esr >> 26 & 0x3f
    }
}

/// Names by class, of those that this program may raise.
fn name(class: u64) -> &'static str {
    match class {
        0 => "an instruction that is none",
        0x15 => "SVC",
        0x20 | 0x21 => "instruction abort",
        0x22 => "PC alignment",
        0x24 | 0x25 => "data abort",
        0x26 => "SP alignment",
        0x2f => "SError",
        0x3c => "BRK",
        _ => "unknown",
    }
}

#[unsafe(no_mangle)]
extern "C" fn exception(frame: &mut Frame, vector: u64) {
    match vector {
        INTERRUPT | USERS_INTERRUPT => gic::acknowledge(),
        USERS if user::is_running() => user::trapped(frame),
        OWN | USERS if mmu::page_fault(frame, vector) => {}
        _ => tell(frame, vector),
    }
}

fn tell(frame: &Frame, vector: u64) -> ! {
    let class = frame.class();
    write_line_in_distress(format_args!(
        "fault: {} (vector {vector}, class {class:#x}, syndrome {:#x}) at {:#x}, address {:#x}, stack {:#x}",
        name(class),
        frame.esr,
        frame.elr,
        frame.far,
        frame.sp
    ));
    write_line_in_distress(format_args!("fault: x0 to x30 {:x?}, flags {:#x}", frame.x, frame.spsr));
    end(End::Fault)
}
