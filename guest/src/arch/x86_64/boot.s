# How a processor comes to run Rust: from QEMU's PVH entry (32 bits, no paging), or as a further processor from its
# start-up interrupt (16 bits). AT&T syntax, since far jumps have no other that assemblers agree on.

    .section .note.pvh, "a", @note
    .align 4
    .long 4, 8, 18                  # sizes of name and descriptor, XEN_ELFNOTE_PHYS32_ENTRY
    .asciz "Xen"
    .quad pvh_start

    .section .boot.text, "ax"

# PVH entry: flat segments, paging off, %ebx holds the address of the start info.
    .code32
    .global pvh_start
pvh_start:
    cli
    cld
    movl %ebx, %ebp                 # cpuid would overwrite %ebx

    # Identity map of the first 4 GiB: one table of each upper level, 2048 leaves of 2 MiB.
    movl $(PDPT + 3), PML4
    movl $PD, %eax
    orl $3, %eax
    xorl %ecx, %ecx
1:  movl %eax, PDPT(,%ecx,8)
    addl $4096, %eax
    incl %ecx
    cmpl $4, %ecx
    jne 1b
    xorl %ecx, %ecx
    movl $0x83, %eax                # present, writable, leaf
1:  movl %eax, PD(,%ecx,8)
    addl $0x200000, %eax
    incl %ecx
    cmpl $2048, %ecx
    jne 1b

    lgdt gdt_pointer
    movl %ebp, %edi                 # first argument of boot_main
    xorl %esi, %esi                 # processor 0
    jmp enter_long_mode

# A further processor, still in 32 bits: takes the next number, and sleeps for ever when there is no room for it.
ap_start32:
    movw $0x10, %ax
    movw %ax, %ds
    movl $1, %esi
    lock xaddl %esi, ap_ticket
    cmpl $MAX_CPUS, %esi
    jae 2f
    jmp enter_long_mode
2:  cli
    hlt
    jmp 2b

# %edi: argument, %esi: number of the processor.
enter_long_mode:
    movl $0x10, %eax
    movw %ax, %ds
    movw %ax, %es
    movw %ax, %fs
    movw %ax, %gs
    movw %ax, %ss
    # Page tables of 5 levels where the processor has them: once in long mode it cannot be changed any more.
    movl $PML4, %ebp
    xorl %eax, %eax
    cpuid
    cmpl $7, %eax
    jb 1f
    movl $7, %eax
    xorl %ecx, %ecx
    cpuid
    testl $0x10000, %ecx            # LA57
    jz 1f
    movl $(PML4 + 3), PML5          # every processor writes the same
    movl $PML5, %ebp
    movl %cr4, %eax
    orl $0x1000, %eax               # LA57
    movl %eax, %cr4
1:  movl %cr4, %eax
    orl $0x20, %eax                 # PAE
    movl %eax, %cr4
    movl %ebp, %cr3
    movl $0xc0000080, %ecx          # EFER
    rdmsr
    orl $0x900, %eax                # NXE, LME
    wrmsr
    movl %cr0, %eax
    andl $~0x60000000, %eax         # caches on: a processor starts with CD and NW set
    orl $0x80010001, %eax           # PG, WP, PE
    movl %eax, %cr0
    ljmp $0x08, $long_mode

    .code64
long_mode:
    movl %esi, %eax
    incl %eax
    shll $STACK_SHIFT, %eax
    leaq STACKS(%rax), %rsp
    xorl %ebp, %ebp
    testl %esi, %esi
    jnz 1f
    call boot_main
    ud2
1:  movl %esi, %edi
    call ap_main
    ud2

# Copied to TRAMPOLINE, a page below 1 MiB, which the start-up interrupt names; only this runs there.
    .code16
    .global ap_trampoline, ap_trampoline_end
ap_trampoline:
    cli
    xorw %ax, %ax
    movw %ax, %ds
    lgdtl TRAMPOLINE + ap_gdt_pointer - ap_trampoline
    movl %cr0, %eax
    orl $1, %eax
    movl %eax, %cr0
    ljmpl $0x18, $ap_start32
ap_gdt_pointer:
    .word gdt_end - gdt - 1
    .long gdt
ap_trampoline_end:
    .code64

# Exceptions. Each stub leaves vector and error code (0 where the processor pushes none) on the stack.
    .text
exception_common:
    pushq %r15
    pushq %r14
    pushq %r13
    pushq %r12
    pushq %r11
    pushq %r10
    pushq %r9
    pushq %r8
    pushq %rbp
    pushq %rdi
    pushq %rsi
    pushq %rdx
    pushq %rcx
    pushq %rbx
    pushq %rax
    movq %rsp, %rdi
    movq %rsp, %rbx                 # which the call preserves
    andq $-16, %rsp
    cld
    call exception
    movq %rbx, %rsp
    popq %rax
    popq %rbx
    popq %rcx
    popq %rdx
    popq %rsi
    popq %rdi
    popq %rbp
    popq %r8
    popq %r9
    popq %r10
    popq %r11
    popq %r12
    popq %r13
    popq %r14
    popq %r15
    addq $16, %rsp                  # vector and error code
    iretq

    .altmacro
    .macro stub vector
    .align 16
    .if (\vector == 8) || ((\vector >= 10) && (\vector <= 14)) || (\vector == 17) || (\vector == 21) || (\vector == 29) || (\vector == 30)
    .else
    pushq $0
    .endif
    pushq $\vector
    jmp exception_common
    .endm

# A user program's call: as an exception without an error code.
    .align 16
    .global system_call
system_call:
    pushq $0
    pushq $0x80
    jmp exception_common

    .align 16
    .global exception_stubs         # 16 bytes each
exception_stubs:
    .set vector, 0
    .rept 32
    stub %vector
    .set vector, vector + 1
    .endr

# Most interrupts only end a HLT; what they were for is looked up by whoever woke.
    .align 16
    .global wake_interrupt, spurious_interrupt
wake_interrupt:
    pushq %rax
    movl $LOCAL_APIC_EOI, %eax
    movl $0, (%rax)
    popq %rax
spurious_interrupt:
    iretq

# Another processor wants translations gone from this one's TLB.
    .align 16
    .global shootdown_interrupt
shootdown_interrupt:
    pushq %rax
    pushq %rcx
    pushq %rdx
    pushq %rsi
    pushq %rdi
    pushq %r8
    pushq %r9
    pushq %r10
    pushq %r11
    cld
    call answer_shootdowns          # nine registers and the processor's five words: aligned to 16
    movl $LOCAL_APIC_EOI, %eax
    movl $0, (%rax)
    popq %r11
    popq %r10
    popq %r9
    popq %r8
    popq %rdi
    popq %rsi
    popq %rdx
    popq %rcx
    popq %rax
    iretq

    .section .rodata
    .align 8
gdt:
    .quad 0
    .quad 0x00af9b000000ffff        # 0x08: code, 64 bits
    .quad 0x00cf93000000ffff        # 0x10: data
    .quad 0x00cf9b000000ffff        # 0x18: code, 32 bits
gdt_end:
gdt_pointer:
    .word gdt_end - gdt - 1
    .long gdt

    .data
    .align 4
ap_ticket:
    .long 1
    .text
