//! What can be said to `isotherm lab faults`.

use clap::Args;
use isotherm_report::units::parse_time;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  isotherm lab faults                           about ten seconds
  isotherm lab faults --rounds 20               more rounds, for a machine that is not alone
  isotherm lab faults --json | jq .bars

Threads fault pages in, each in a VMA of its own of 4 MiB, and give them back when all are there; alone, and beside a thread that
maps 64 KiB, touches a page, protects a half and unmaps. Each is measured with per-VMA locks and with mmap_lock alone, in turn.
Ratios are medians over rounds, of rates measured in one round. After each run the pages that are there are counted, and
compared with the memory manager's own count.

It is the memory manager of isotherm-mm in this process: a fault is a call that takes a frame, clears it and maps it. There is no
trap, and no TLB. The mapper runs on whatever CPU is free, or shares one.

Takes about 50 MiB of memory and no privilege; two threads need two CPUs. The status is 0 when the bars are met or could not be
judged, 1 otherwise, 130 after Ctrl-C.";

/// Time page faults under per-VMA locks, beside a thread that maps, and under mmap_lock alone.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FaultsArgs {
    /// Rounds, each of which measures everything once
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// For how long each thing is measured in a round
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_time)]
    pub slice: Duration,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
