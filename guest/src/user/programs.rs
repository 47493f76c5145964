//! The user programs, in assembly: they have no memory but what they map, and know nothing of this kernel but its calls.
//!
//! A call has a number, up to three arguments and a result, negative if it failed, in registers (`text.rs` of each processor).
//! Each program begins with a number of pages, of rounds, and a seed, where a call has its arguments. What it writes to a page is
//! the page's address and the seed, mixed, at both ends; it exits with 0 if it found all as it wrote it.

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

    /// How often a program that is given so many rounds counts in shared memory.
    pub const fn shared_counts(self, rounds: u64) -> u64 {
        if matches!(self, Self::Share) { 8 * rounds } else { 0 }
    }
}

/// The text of all programs: where it lies here, page aligned, and how many bytes it has.
pub fn text() -> (u64, u64) {
    let start = &raw const user_text as u64;
    (start, &raw const user_text_end as u64 - start)
}
