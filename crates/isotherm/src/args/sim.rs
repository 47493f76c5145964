//! What can be said to `isotherm lab sim`.

use clap::Args;
use isotherm_report::units::parse_time;
use std::path::PathBuf;
use std::time::Duration;

// A paragraph is one line, broken where the terminal ends.
const EXAMPLES: &str = "\
Examples:
  isotherm lab sim                              half a minute
  isotherm lab sim --json > here.json           with what was measured
  isotherm lab sim --costs here.json            the same again, to the last digit

A discrete-event model of threads that fault, each on a core of its own: in VMAs of their own, alone and beside a thread that \
maps, protects and unmaps, and all in one VMA; under mmap_lock alone, under per-VMA locks as in the patch series of January 2023 \
(sequence), and under locks without a write that CPUs share (biased). Cores wait for cache lines, for mmap_lock and for the zone of \
frames, which the model has as isotherm-mm has them.

What a fault, a cache line, a lock and a wake-up cost is measured on two CPUs of this machine first. The model knows nothing of a \
machine of 64 cores: a line costs the same from any core, and memory is as fast for all. So it shows which lock or line ends the \
scaling, not what a certain machine does. Beside it stands what is measured here, by one thread and by two.

The same costs and seed give the same figures. Takes about 100 MiB of memory and no privilege.";

/// Model page faults on up to 64 cores, by lock costs that are measured here.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SimArgs {
    /// Rounds in which costs are measured
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rounds: u32,
    /// For how long each rate is measured in a round
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = parse_time)]
    pub slice: Duration,
    /// Do not measure costs, but take those of a report that --json printed
    #[arg(long, value_name = "FILE")]
    pub costs: Option<PathBuf>,
    /// The seed of the model
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
