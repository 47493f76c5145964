//! What can be said to `isotherm lab frames`.

use clap::{Args, ValueEnum};
use isotherm_report::units::parse_time;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  isotherm lab frames                                       about two minutes
  isotherm lab frames --only throughput --rounds 20         more rounds, for a machine that is not alone
  isotherm lab frames --json | jq .bars

Throughput: blocks of 4, 8 and 64 KiB and 2 MiB (orders 0, 1, 4 and 9) are taken and given back: the same one again and again
(repeat), 128 MiB of them and then all back (bulk), one of 128 MiB at random (random); by the zone of isotherm-frames, by the
crate buddy_system_allocator, by the zone without caches, behind one lock, and by the C library's malloc. Ratios are medians over rounds, of rates measured in one round.

Cost: a loop allocates 64 MiB, writes to each page and frees them, with and without a thread that reports free memory a
millisecond after it came free: first to a host that does nothing, so that only the allocator's own work shows, then to
the system, which takes the pages, so that the page faults show that come of it.

Faults: loops that take 128 MiB, write to each page and give all back, by one task and by as many as there are CPUs, with and
without reporting as it is by default (the table of the patch series itself, after page_fault1 of will-it-scale).

Sinks: what it costs to give 2 MiB back to the system and to take them again, by MADV_DONTNEED, by MADV_FREE and by a
hole in a memfd. Whether the system backs memory with huge pages decides the figures; nothing is changed there.

Takes about 1 GiB of memory for two CPUs and no privilege; two threads need two CPUs. The status is 0 when the bars are met or part was left
out, 1 otherwise, 130 after Ctrl-C.";

/// A part of `isotherm lab frames`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum FramesPart {
    /// Pairs of get and put a second
    Throughput,
    /// What reporting costs
    Cost,
    /// Fault loops with and without reporting
    Faults,
    /// What giving memory back costs
    Sinks,
}

/// Time the page frame allocator beside others, and what reporting free memory costs.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct FramesArgs {
    /// Rounds, each of which measures everything once
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// For how long each thing is measured in a round
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_time)]
    pub slice: Duration,
    /// Do only this part
    #[arg(long, value_name = "PART")]
    pub only: Option<FramesPart>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
