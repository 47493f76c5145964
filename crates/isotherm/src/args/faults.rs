//! What can be said to `isotherm lab faults`.

use clap::{Args, ValueEnum};
use isotherm_report::units::parse_time;
use std::time::Duration;

// A paragraph is one line, broken where the terminal ends.
const EXAMPLES: &str = "\
Examples:
  isotherm lab faults                           about two minutes
  isotherm lab faults --rounds 30               more rounds, for a machine that is not alone
  isotherm lab faults --only storm --json | jq .storm

It is the memory manager of isotherm-mm in this process: a fault is a call that takes a frame, clears it and maps it. There is \
no trap, no TLB and no program. A fault finds its VMA in one of four ways: under mmap_lock alone; under per-VMA locks as \
in the patch series of January 2023 (sequence), which is the default and what bars are about; under a count of references, as \
in Linux since 6.15 (counted); and without a write that CPUs share (biased).

Own: threads fault pages in, each in a VMA of its own of 32 MiB, and give them back when all are there; alone, beside a \
thread that maps 64 KiB, touches a page, protects a half and unmaps, and all in one VMA. Rates are of the time in which they \
fault, not of that in which they give back; of one thread alone, of its CPU time. The mapper has a CPU of its own if there \
is one left; if it shares one, those who fault go on while it is out in any way, so that is not judged.

Storm: 100 threads start at once, spread over the CPUs. Each maps a stack of 8 MiB with its guard page, 16 KiB of \
thread-local storage, a signal stack of \
64 KiB and a table of 1 MiB; writes to 16 pages of the stack and to all of the others; and unmaps all.

Price: one fault beside Linux' MADV_POPULATE_WRITE of a page, both with zeroing, and mmap and munmap of a page beside these system \
calls less two empty ones, in a space with the mappings of this process.

Linux: what page_fault1, page_fault2, page_fault3, mmap1 and brk1 of will-it-scale do, with 16 MiB a thread in small pages, by \
threads of one process. Linux' side includes the system calls, the trap of each fault, the access itself, the TLB, the accounting \
of control groups and its lists of pages; this side calls of functions alone. Files are memory on both.

Ratios are medians over rounds, of figures measured in one round. After each run the pages that are there are counted, and \
compared with the memory manager's own count. Takes about 400 MiB of memory and no privilege; two threads need two CPUs. The \
status is 0 when the bars are met or part was left out, 1 otherwise, 130 after Ctrl-C.";

/// A part of `isotherm lab faults`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FaultsPart {
    /// Threads in VMAs of their own, alone and beside a mapper
    Own,
    /// 100 threads that start, touch memory and exit
    Storm,
    /// One fault and one mapping beside Linux
    Price,
    /// Sequences of will-it-scale beside Linux
    Linux,
}

/// Time page faults under per-VMA locks and under mmap_lock alone, beside a mapper, in a start storm, and beside Linux.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FaultsArgs {
    /// Rounds, each of which measures everything once
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// For how long each thing is measured in a round; a storm takes what it takes
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_time)]
    pub slice: Duration,
    /// Do only this part
    #[arg(long, value_name = "PART")]
    pub only: Option<FaultsPart>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
