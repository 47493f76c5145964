//! What can be said to `isotherm lab tree`.

use clap::{Args, ValueEnum};
use isotherm_report::units::parse_time;
use std::time::Duration;

// A paragraph is one line, broken where the terminal ends.
const EXAMPLES: &str = "\
Examples:
  isotherm lab tree                                   a minute and a half
  isotherm lab tree --ranges 100000 --rounds 30       what the bars are for, for a machine that is not alone
  isotherm lab tree --only operations --json | jq .latency

Maps from ranges to values, of as many ranges as --ranges names, with gaps between them as in an address space: the tree of \
isotherm-maple, whose readers run under RCU by quiescent states; the crate rangemap, and the standard library's BTreeMap, \
each behind the standard library's RwLock; the same BTreeMap with a second one of all gaps by length; and the lock-free \
list of crossbeam-skiplist. Those by first index without an index of gaps search for one from range to range.

Operations, on one thread, in its CPU time: an index in a range at random is looked up, and once more in turn, so that which \
one depends on what was found before; ranges are stored into gaps at random, and erased again; the lowest gap of a size is \
searched for, and the highest, over a quarter of the ranges on average. Locks are taken for each operation, and the time in \
which maple frees its old nodes is part of its stores and erasures.

Readers: look-ups a second of one and of two threads, each on a CPU of its own, alone and beside a thread that stores and \
erases all the time. On two CPUs it shares that of the second reader. The time that a reader waits for a lock counts, and that \
for which another has its CPU does not.

Ratios are medians over rounds, of figures measured in one round. Bars are for 100000 ranges. Takes about 1 GiB of memory \
and no privilege; readers beside others need two CPUs. The status is 0 when the bars are met or part was left out, 1 \
otherwise, 130 after Ctrl-C.";

/// A part of `isotherm lab tree`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum TreePart {
    /// What one operation takes
    Operations,
    /// Look-ups a second, alone and beside a writer
    Readers,
}

/// Time the range tree beside others: look-ups, stores, erasures, gap search, and readers beside a writer.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TreeArgs {
    /// Numbers of ranges, each from 100 to 10000000
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "100,1000,10000,100000,1000000", value_parser = ranges)]
    pub ranges: Vec<usize>,
    /// Rounds, each of which measures everything once
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// For how long each thing is measured in a round
    #[arg(long, value_name = "TIME", default_value = "30ms", value_parser = parse_time)]
    pub slice: Duration,
    /// Do only this part
    #[arg(long, value_name = "PART")]
    pub only: Option<TreePart>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn ranges(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(ranges) if (100..=10_000_000).contains(&ranges) => Ok(ranges),
        _ => Err("give numbers from 100 to 10000000, with commas between them".into()),
    }
}
