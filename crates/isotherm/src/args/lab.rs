//! What can be said to `isotherm lab overhead`.

use super::MonitorArgs;
use clap::{Args, ValueEnum};
use isotherm_report::units::{parse_size, parse_time};
use std::time::Duration;

const OVERHEAD_EXAMPLES: &str = "\
Examples:
  isotherm lab overhead --sizes 1G                      about a minute and a half
  isotherm lab overhead --sizes 1G --overhead 0.3%      under another ceiling
  isotherm lab overhead --sizes 1G --null               without a monitor: what the machine itself varies by

A pair takes twice a slice and the time to settle. The monitor is attached in the second slice of one pair and in the
first of the next, so that a machine that grows steadily slower or faster shows no slowdown. The machine should have a
CPU to spare for the monitor, and nothing else to do.";

/// Pages that back the workload's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum PageName {
    /// Order-0 pages
    #[value(name = "4k")]
    Base,
    /// Transparent huge pages
    #[value(name = "thp")]
    Huge,
}

/// How the workload goes through its memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum KindName {
    /// Cache lines drawn at random: every access misses
    Random,
    /// One line after the other, as fast as memory allows
    Sequential,
}

/// Time a memory-bound program with and without the monitor, in turn.
#[derive(Debug, Args)]
#[command(after_help = OVERHEAD_EXAMPLES)]
pub struct OverheadArgs {
    /// Sizes of the program's memory
    #[arg(long, value_name = "SIZE", value_delimiter = ',', default_values = ["100M", "1G", "8G"], value_parser = parse_size)]
    pub sizes: Vec<u64>,
    /// Pages that back it
    #[arg(long, value_name = "PAGE", value_delimiter = ',', default_values = ["4k"])]
    pub pages: Vec<PageName>,
    /// How the program goes through it
    #[arg(long, value_name = "KIND", value_delimiter = ',', default_values = ["random"])]
    pub kinds: Vec<KindName>,
    /// Pairs of slices, one without and one with the monitor
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub pairs: u32,
    /// Length of a slice
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    pub slice: Duration,
    /// Time before each slice, with the monitor attached or not, that does not count
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub settle: Duration,
    /// What the program does before the first slice
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time)]
    pub warm_up: Duration,
    /// Leave the monitor out: what differs all the same
    #[arg(long)]
    pub null: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub monitor: MonitorArgs,
}
