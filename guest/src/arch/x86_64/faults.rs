//! Exceptions and panics: told in words, then the end of the run; but page faults of the experiment with page tables are
//! resolved there, and exceptions of user programs are handled by whoever runs them.

use super::boot::{self, MAX_CPUS};
use super::power::{End, end};
use crate::console::write_line_in_distress;
use crate::{mmu, user};
use core::sync::atomic::{AtomicU64, Ordering};
use spin::Once;
use x86_64::instructions::segmentation::{CS, Segment};
use x86_64::instructions::tables::{lidt, load_tss};
use x86_64::registers::control::Cr2;
use x86_64::structures::DescriptorTablePointer;
use x86_64::structures::gdt::{Descriptor, GlobalDescriptorTable};
use x86_64::structures::tss::TaskStateSegment;
use x86_64::{PrivilegeLevel, VirtAddr};

const VECTORS: usize = 256;
const EXCEPTIONS: usize = 32;
const PAGE_FAULT: u64 = 14;
/// Bytes of the stack that exceptions are told and resolved on, so that an overflowing stack is told too.
const FAULT_STACK: usize = 32 << 10;

/// Two words a vector.
static IDT: [AtomicU64; 2 * VECTORS] = [const { AtomicU64::new(0) }; 2 * VECTORS];

#[repr(C, align(16))]
struct FaultStack([u8; FAULT_STACK]);
static mut FAULT_STACKS: [FaultStack; MAX_CPUS] = [const { FaultStack([0; FAULT_STACK]) }; MAX_CPUS];
static TASKS: [Once<TaskStateSegment>; MAX_CPUS] = [const { Once::new() }; MAX_CPUS];
static SEGMENTS: [Once<GlobalDescriptorTable>; MAX_CPUS] = [const { Once::new() }; MAX_CPUS];

/// Names by vector (Intel SDM vol. 3, table 7-1).
const NAMES: [&str; EXCEPTIONS] = [
    "divide error",
    "debug",
    "NMI",
    "breakpoint",
    "overflow",
    "bound range",
    "invalid opcode",
    "no FPU",
    "double fault",
    "coprocessor overrun",
    "invalid TSS",
    "segment not present",
    "stack fault",
    "general protection",
    "page fault",
    "reserved",
    "x87 error",
    "alignment check",
    "machine check",
    "SIMD error",
    "virtualization",
    "control protection",
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "reserved",
    "hypervisor injection",
    "VMM communication",
    "security",
    "reserved",
];

/// Gates for interrupts, and for what user programs may do too.
const INTERRUPT: u64 = 0x8e;
const USER_INTERRUPT: u64 = 0xee;

/// A gate to `handler` on the fault stack (`ist` 1), or on the current one unless a user program runs (`ist` 0).
fn set_gate(vector: usize, handler: u64, ist: u64, gate: u64) {
    let low = handler & 0xffff | 0x08 << 16 | ist << 32 | gate << 40 | (handler >> 16 & 0xffff) << 48;
    if let [first, second] = &IDT[2 * vector..][..2] {
        first.store(low, Ordering::Relaxed);
        second.store(handler >> 32, Ordering::Relaxed);
    }
}

/// Fills the table of interrupts, once, before any processor loads it.
pub fn prepare() {
    for vector in 0..EXCEPTIONS {
        set_gate(vector, &raw const boot::exception_stubs as u64 + 16 * vector as u64, 1, INTERRUPT);
    }
    set_gate(super::apic::WAKE_VECTOR.into(), &raw const boot::wake_interrupt as u64, 0, INTERRUPT);
    set_gate(super::apic::SHOOTDOWN_VECTOR.into(), &raw const boot::shootdown_interrupt as u64, 0, INTERRUPT);
    set_gate(super::apic::SPURIOUS_VECTOR.into(), &raw const boot::spurious_interrupt as u64, 0, INTERRUPT);
    let call = user::SYSTEM_CALL as usize;
    set_gate(call, &raw const boot::system_call as u64, 1, USER_INTERRUPT);
}

/// Selectors of user programs' code and data: what [`load`] puts behind the task segment, which takes two entries, with
/// privilege level 3.
pub const USER_CODE: u64 = 6 << 3 | 3;
/// See [`USER_CODE`].
pub const USER_DATA: u64 = 5 << 3 | 3;

/// Gives processor `cpu` the table and a stack for exceptions. Once a processor.
pub fn load(cpu: usize) {
    let task = TASKS[cpu].call_once(|| {
        let mut task = TaskStateSegment::new();
        let stack = &raw const FAULT_STACKS as u64 + (FAULT_STACK * (cpu + 1)) as u64;
        task.interrupt_stack_table[0] = VirtAddr::new(stack);
        // Interrupts of user programs: no exception is under way then.
        task.privilege_stack_table[0] = VirtAddr::new(stack);
        task
    });
    let mut selector = None;
    let segments = SEGMENTS[cpu].call_once(|| {
        let mut segments = GlobalDescriptorTable::new();
        segments.append(Descriptor::kernel_code_segment());
        segments.append(Descriptor::kernel_data_segment());
        selector = Some(segments.append(Descriptor::tss_segment(task)));
        segments.append(Descriptor::user_data_segment());
        segments.append(Descriptor::user_code_segment());
        segments
    });
    segments.load();
    let pointer = DescriptorTablePointer {
        limit: (16 * VECTORS - 1) as u16,
        base: VirtAddr::new(&raw const IDT as u64),
    };
    // SAFETY: the first entries are code and data as in the table of boot.s, in the same order; the third is a task
    // segment that lives for ever; the gates lead to code that expects them.
    unsafe {
        CS::set_reg(x86_64::structures::gdt::SegmentSelector::new(1, PrivilegeLevel::Ring0));
        if let Some(selector) = selector {
            load_tss(selector);
        }
        lidt(&pointer);
    }
}

/// Registers as `exception_common` and the processor leave them on the stack.
#[repr(C)]
#[derive(Debug)]
pub struct Frame {
    pub rax: u64,
    pub rbx: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    pub rbp: u64,
    pub r8: u64,
    pub r9: u64,
    pub r10: u64,
    pub r11: u64,
    pub r12: u64,
    pub r13: u64,
    pub r14: u64,
    pub r15: u64,
    pub vector: u64,
    pub error: u64,
    pub rip: u64,
    pub cs: u64,
    pub rflags: u64,
    pub rsp: u64,
    pub ss: u64,
}

#[unsafe(no_mangle)]
extern "C" fn exception(frame: &mut Frame) {
    if frame.cs & 3 == 3 {
        user::trapped(frame);
    }
    if frame.vector == PAGE_FAULT && mmu::page_fault(frame) {
        return;
    }
    tell(frame)
}

fn tell(frame: &Frame) -> ! {
    let name = NAMES.get(frame.vector as usize).copied().unwrap_or("unknown");
    write_line_in_distress(format_args!(
        "fault: {name} (vector {}, error {:#x}) at {:#x}, address {:#x}, stack {:#x}",
        frame.vector,
        frame.error,
        frame.rip,
        Cr2::read_raw(),
        frame.rsp
    ));
    write_line_in_distress(format_args!(
        "fault: rax {:#x} rbx {:#x} rcx {:#x} rdx {:#x} rsi {:#x} rdi {:#x} rbp {:#x} r8 {:#x} r9 {:#x} r10 {:#x} \
         r11 {:#x} r12 {:#x} r13 {:#x} r14 {:#x} r15 {:#x} flags {:#x}",
        frame.rax,
        frame.rbx,
        frame.rcx,
        frame.rdx,
        frame.rsi,
        frame.rdi,
        frame.rbp,
        frame.r8,
        frame.r9,
        frame.r10,
        frame.r11,
        frame.r12,
        frame.r13,
        frame.r14,
        frame.r15,
        frame.rflags
    ));
    end(End::Fault)
}
