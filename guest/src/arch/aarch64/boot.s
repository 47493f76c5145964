// How a processor comes to run Rust: from QEMU's -kernel, at EL1 without an MMU, or as a further processor from PSCI.
//
// Tables are written while the MMU is off. On hardware with caches what is cached of their memory would have to be
// invalidated first; QEMU has none.

    .section .boot.text, "ax"

    .global _start
_start:
    msr daifset, #15
    // The identity map: nothing at address 0, the devices' 2 MiB, and RAM by leaves of 1 GiB.
    ldr x0, =LEVEL0
    ldr x1, =LEVEL1
    orr x2, x1, #3
    str x2, [x0]
    ldr x3, =LEVEL2
    orr x2, x3, #3
    str x2, [x1]
    ldr x4, =DEVICE_LEAF
    mov x5, #(64 * 8)               // 0x0800_0000: the interrupt controller
    movz x6, #0x0800, lsl #16
    orr x7, x6, x4
    str x7, [x3, x5]
    mov x5, #(72 * 8)               // 0x0900_0000: the serial line
    movz x6, #0x0900, lsl #16
    orr x7, x6, x4
    str x7, [x3, x5]
    mov x5, #(80 * 8)               // 0x0a00_0000: virtio
    movz x6, #0x0a00, lsl #16
    orr x7, x6, x4
    str x7, [x3, x5]
    ldr x4, =NORMAL_LEAF
    mov x5, #1
1:  lsl x6, x5, #30
    orr x7, x6, x4
    str x7, [x1, x5, lsl #3]
    add x5, x5, #1
    cmp x5, #GIGABYTES
    b.lo 1b
    dsb sy
    mov x19, #0
    b enter

    .global ap_start
ap_start:                           // x0: number of the processor
    msr daifset, #15
    mov x19, x0

enter:
    mov x0, #(1 << 20)              // floating point, which the compiler uses for copies; not for user programs
    msr cpacr_el1, x0
    ldr x0, =MAIR
    msr mair_el1, x0
    ldr x0, =TCR
    msr tcr_el1, x0
    ldr x0, =LEVEL0
    msr ttbr0_el1, x0
    msr ttbr1_el1, xzr
    ldr x0, =vectors
    msr vbar_el1, x0
    tlbi vmalle1
    dsb nsh
    isb
    ldr x0, =SCTLR
    msr sctlr_el1, x0
    isb
    // Exceptions have a stack of their own: this program runs on SP_EL0.
    add x1, x19, #1
    msr spsel, #1
    ldr x0, =FAULT_STACKS
    lsl x2, x1, #FAULT_STACK_SHIFT
    add x0, x0, x2
    mov sp, x0
    msr spsel, #0
    ldr x0, =STACKS
    lsl x2, x1, #STACK_SHIFT
    add x0, x0, x2
    mov sp, x0
    mov x29, xzr
    mov x30, xzr
    cbnz x19, 1f
    bl boot_main
1:  mov x0, x19
    bl ap_main
    .ltorg

// Exceptions. All registers go to the stack of the exceptions, as `faults::Frame` has them.
    .text
    .macro vector kind
    .balign 128
    sub sp, sp, #FRAME
    stp x0, x1, [sp]
    mov x1, #\kind
    b exception_common
    .endm

    .balign 2048
vectors:
    vector 0
    vector 1
    vector 2
    vector 3
    vector 4
    vector 5
    vector 6
    vector 7
    vector 8
    vector 9
    vector 10
    vector 11
    vector 12
    vector 13
    vector 14
    vector 15

exception_common:
    stp x2, x3, [sp, #16]
    stp x4, x5, [sp, #32]
    stp x6, x7, [sp, #48]
    stp x8, x9, [sp, #64]
    stp x10, x11, [sp, #80]
    stp x12, x13, [sp, #96]
    stp x14, x15, [sp, #112]
    stp x16, x17, [sp, #128]
    stp x18, x19, [sp, #144]
    stp x20, x21, [sp, #160]
    stp x22, x23, [sp, #176]
    stp x24, x25, [sp, #192]
    stp x26, x27, [sp, #208]
    stp x28, x29, [sp, #224]
    mrs x2, elr_el1
    stp x30, x2, [sp, #240]
    mrs x2, spsr_el1
    mrs x3, esr_el1
    stp x2, x3, [sp, #256]
    mrs x2, far_el1
    mrs x3, sp_el0
    stp x2, x3, [sp, #272]
    stp q0, q1, [sp, #288]
    stp q2, q3, [sp, #320]
    stp q4, q5, [sp, #352]
    stp q6, q7, [sp, #384]
    stp q8, q9, [sp, #416]
    stp q10, q11, [sp, #448]
    stp q12, q13, [sp, #480]
    stp q14, q15, [sp, #512]
    stp q16, q17, [sp, #544]
    stp q18, q19, [sp, #576]
    stp q20, q21, [sp, #608]
    stp q22, q23, [sp, #640]
    stp q24, q25, [sp, #672]
    stp q26, q27, [sp, #704]
    stp q28, q29, [sp, #736]
    stp q30, q31, [sp, #768]
    mrs x2, fpcr
    mrs x3, fpsr
    str x2, [sp, #800]
    str x3, [sp, #808]
    mov x0, sp
    bl exception
    ldr x2, [sp, #800]
    ldr x3, [sp, #808]
    msr fpcr, x2
    msr fpsr, x3
    ldp q0, q1, [sp, #288]
    ldp q2, q3, [sp, #320]
    ldp q4, q5, [sp, #352]
    ldp q6, q7, [sp, #384]
    ldp q8, q9, [sp, #416]
    ldp q10, q11, [sp, #448]
    ldp q12, q13, [sp, #480]
    ldp q14, q15, [sp, #512]
    ldp q16, q17, [sp, #544]
    ldp q18, q19, [sp, #576]
    ldp q20, q21, [sp, #608]
    ldp q22, q23, [sp, #640]
    ldp q24, q25, [sp, #672]
    ldp q26, q27, [sp, #704]
    ldp q28, q29, [sp, #736]
    ldp q30, q31, [sp, #768]
    ldp x30, x2, [sp, #240]
    msr elr_el1, x2
    ldr x2, [sp, #256]
    msr spsr_el1, x2
    ldp x2, x3, [sp, #16]
    ldp x4, x5, [sp, #32]
    ldp x6, x7, [sp, #48]
    ldp x8, x9, [sp, #64]
    ldp x10, x11, [sp, #80]
    ldp x12, x13, [sp, #96]
    ldp x14, x15, [sp, #112]
    ldp x16, x17, [sp, #128]
    ldp x18, x19, [sp, #144]
    ldp x20, x21, [sp, #160]
    ldp x22, x23, [sp, #176]
    ldp x24, x25, [sp, #192]
    ldp x26, x27, [sp, #208]
    ldp x28, x29, [sp, #224]
    ldp x0, x1, [sp]
    add sp, sp, #FRAME
    eret
