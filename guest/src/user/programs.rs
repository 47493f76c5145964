//! The user programs, in assembly: they have no memory but what they map, and know nothing of this kernel but its calls.
//!
//! A call is `int 0x80` with its number in `%rax` and arguments in `%rdi`, `%rsi` and `%rdx`; its result is in `%rax`, negative if
//! it failed, and nothing else changes. Each program begins with a number of pages, of rounds, and a seed in these three registers. What it
//! writes to a page is the page's address and the seed, mixed, at both ends; it exits with 0 if it found all as it wrote it.

use core::arch::global_asm;

/// Numbers of the calls.
pub mod call {
    /// Ends the thread, with a code; if that is not 0, with an address and what should be there.
    pub const EXIT: u64 = 0;
    /// Lets others run.
    pub const YIELD: u64 = 1;
    /// Maps so many bytes of private memory; of the memory that all programs share, if the second argument is 1.
    pub const MAP: u64 = 2;
    /// Unmaps: address, bytes.
    pub const UNMAP: u64 = 3;
    /// Forks the process: 0 in the child.
    pub const FORK: u64 = 4;
    /// Starts a thread: where, its stack, and its first argument; its other registers are the caller's.
    pub const THREAD: u64 = 5;
    /// Replaces the process by a program: its number, pages, rounds.
    pub const EXEC: u64 = 6;
    /// How many children live.
    pub const CHILDREN: u64 = 7;
}

/// Pages that all programs share.
pub const SHARED_PAGES: u64 = 8;

global_asm!(
    ".pushsection .rodata.user, \"a\"",
    ".balign 4096",
    ".global user_text, user_text_end, user_fill, user_family, user_share, user_replace, user_threads",
    "user_text:",
    ".macro usercall number",
    "    movl $\\number, %eax",
    "    int $0x80",
    ".endm",
    // Maps %r12 pages at %rbx; keeps rounds in %r13 and the seed in %r14.
    "user_begin:",
    "    movq %rdi, %r12",
    "    movq %rsi, %r13",
    "    movq %rdx, %r14",
    "    movq %r12, %rdi",
    "    shlq $12, %rdi",
    "    xorl %esi, %esi",
    "    usercall {map}",
    "    testq %rax, %rax",
    "    js user_bad",
    "    movq %rax, %rbx",
    "    ret",
    // Writes to all pages, and looks at all.
    "user_stamp:",
    "    movq %rbx, %r8",
    "    movq %r12, %rcx",
    "1:  movq %r8, %rax",
    "    xorq %r14, %rax",
    "    movq %rax, (%r8)",
    "    movq %rax, 4088(%r8)",
    "    addq $4096, %r8",
    "    decq %rcx",
    "    jnz 1b",
    "    ret",
    "user_check:",
    "    movq %rbx, %r8",
    "    movq %r12, %rcx",
    "1:  movq %r8, %rax",
    "    xorq %r14, %rax",
    "    cmpq %rax, (%r8)",
    "    jne user_bad",
    "    cmpq %rax, 4088(%r8)",
    "    jne user_bad",
    "    addq $4096, %r8",
    "    decq %rcx",
    "    jnz 1b",
    "    ret",
    "user_bad:",
    "    movl $1, %edi",
    "    movq %r8, %rsi",
    "    movq %rax, %rdx",
    "    usercall {exit}",
    "user_done:",
    "    xorl %edi, %edi",
    "    usercall {exit}",
    // Memory that comes, is written, read and goes.
    "user_fill:",
    "    call user_begin",
    "1:  call user_stamp",
    "    usercall {pause}",
    "    call user_check",
    "    movq %rbx, %rdi",
    "    movq %r12, %rsi",
    "    shlq $12, %rsi",
    "    usercall {unmap}",
    "    testq %rax, %rax",
    "    jnz user_bad",
    "    decq %r13",
    "    jz user_done",
    "    movq %r12, %rdi",
    "    movq %r13, %rsi",
    "    leaq 0x9e3(%r14), %rdx",
    "    call user_begin",
    "    jmp 1b",
    // Forks children, which find what their parent had, while it writes on.
    "user_family:",
    "    call user_begin",
    "    call user_stamp",
    "1:  usercall {fork}",
    "    testq %rax, %rax",
    "    js user_bad",
    "    jz 3f",
    "    addq $0x1003, %r14",
    "    call user_stamp",
    "    usercall {pause}",
    "    call user_check",
    "    decq %r13",
    "    jnz 1b",
    "2:  usercall {children}",
    "    testq %rax, %rax",
    "    jz user_done",
    "    usercall {pause}",
    "    jmp 2b",
    "3:  call user_check",
    "    notq %r14",
    "    call user_stamp",
    "    usercall {pause}",
    "    call user_check",
    "    jmp user_done",
    // Counts in the memory that all share, eight times a round.
    "user_share:",
    "    leaq (,%rsi,8), %r13",
    "    movl ${shared}, %edi",
    "    movl $1, %esi",
    "    usercall {map}",
    "    testq %rax, %rax",
    "    js user_bad",
    "    movq %rax, %rbx",
    "1:  movq %rbx, %r8",
    "    movl ${shared} / 4096, %ecx",
    "2:  lock incq (%r8)",
    "    addq $4096, %r8",
    "    decl %ecx",
    "    jnz 2b",
    "    usercall {pause}",
    "    decq %r13",
    "    jnz 1b",
    "    jmp user_done",
    // Grows its stack, and becomes another program.
    "user_replace:",
    "    call user_begin",
    "    call user_stamp",
    "    movl $8192, %ecx",
    "1:  pushq %rcx",
    "    decl %ecx",
    "    jnz 1b",
    "    movl $1, %ecx",
    "2:  popq %rax",
    "    cmpq %rcx, %rax",
    "    jne user_bad",
    "    incl %ecx",
    "    cmpl $8193, %ecx",
    "    jne 2b",
    "    call user_check",
    "    xorl %edi, %edi",
    "    movq %r12, %rsi",
    "    movq %r13, %rdx",
    "    usercall {exec}",
    "    jmp user_bad",
    // Two threads write to pages in turn, and count themselves at the end of the memory.
    "user_threads:",
    "    call user_begin",
    "    andq $-2, %r12",
    "    jz user_bad",
    "    movl $4096, %edi",
    "    xorl %esi, %esi",
    "    usercall {map}",
    "    testq %rax, %rax",
    "    js user_bad",
    "    movq %rax, %r15",
    "    leaq user_half(%rip), %rdi",
    "    leaq 4096(%r15), %rsi",
    "    movl $4096, %edx",
    "    usercall {thread}",
    "    testq %rax, %rax",
    "    js user_bad",
    "    xorl %edi, %edi",
    "user_half:",
    "    movq %rdi, %rbp",
    "1:  leaq (%rbx,%rbp), %r8",
    "    movq %r12, %rcx",
    "2:  movq %r8, %rax",
    "    xorq %r14, %rax",
    "    movq %rax, (%r8)",
    "    movq %rax, 4088(%r8)",
    "    addq $8192, %r8",
    "    subq $2, %rcx",
    "    jnz 2b",
    "    usercall {pause}",
    "    leaq (%rbx,%rbp), %r8",
    "    movq %r12, %rcx",
    "3:  movq %r8, %rax",
    "    xorq %r14, %rax",
    "    cmpq %rax, (%r8)",
    "    jne user_bad",
    "    cmpq %rax, 4088(%r8)",
    "    jne user_bad",
    "    addq $8192, %r8",
    "    subq $2, %rcx",
    "    jnz 3b",
    "    addq $0x1003, %r14",
    "    decq %r13",
    "    jnz 1b",
    "    lock incq (%r15)",
    "    testq %rbp, %rbp",
    "    jnz user_done",
    "4:  cmpq $2, (%r15)",
    "    je user_done",
    "    usercall {pause}",
    "    jmp 4b",
    "user_text_end:",
    ".popsection",
    exit = const call::EXIT,
    pause = const call::YIELD,
    map = const call::MAP,
    unmap = const call::UNMAP,
    fork = const call::FORK,
    thread = const call::THREAD,
    exec = const call::EXEC,
    children = const call::CHILDREN,
    shared = const SHARED_PAGES * 4096,
    options(att_syntax)
);

unsafe extern "C" {
    safe static user_text: u8;
    safe static user_text_end: u8;
    safe static user_fill: u8;
    safe static user_family: u8;
    safe static user_share: u8;
    safe static user_replace: u8;
    safe static user_threads: u8;
}

/// A program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// Writes memory, reads it, gives it back.
    Fill,
    /// Forks.
    Family,
    /// Counts in shared memory.
    Share,
    /// Grows its stack, and becomes [`Program::Fill`].
    Replace,
    /// Two threads.
    Threads,
}

impl Program {
    /// All, by their numbers.
    pub const ALL: [Self; 5] = [Self::Fill, Self::Family, Self::Share, Self::Replace, Self::Threads];

    /// Where it begins in the text.
    pub fn entry(self) -> u64 {
        let start = match self {
            Self::Fill => &raw const user_fill,
            Self::Family => &raw const user_family,
            Self::Share => &raw const user_share,
            Self::Replace => &raw const user_replace,
            Self::Threads => &raw const user_threads,
        };
        start as u64 - &raw const user_text as u64
    }

    /// How often a program that is told so many rounds counts in shared memory.
    pub const fn shared_counts(self, rounds: u64) -> u64 {
        if matches!(self, Self::Share) { 8 * rounds } else { 0 }
    }
}

/// The text of all programs: where it lies here, page aligned, and how many bytes it has.
pub fn text() -> (u64, u64) {
    let start = &raw const user_text as u64;
    (start, &raw const user_text_end as u64 - start)
}
