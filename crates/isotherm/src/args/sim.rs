//! What can be said to `isotherm lab sim`.

use clap::{Args, ValueEnum};
use isotherm_lab::sim::Sampling;
use isotherm_report::units::parse_time;
use std::path::PathBuf;
use std::time::Duration;

// A paragraph is one line, broken where the terminal ends.
const EXAMPLES: &str = "\
Examples:
  isotherm lab sim                              stairs, zigzag and hotspot as the seeds ran theirs
  isotherm lab sim heap --sampler blocks        a pattern of `isotherm workload`, watched by one sampler
  isotherm lab sim my.toml --set size=1G        a pattern of your own
  isotherm lab sim --accuracy                   how true it is what DAMON says there, beside the bars of `lab accuracy`
  isotherm lab sim --cores                      page faults on up to 64 cores, half a minute
  isotherm lab sim --cores --json > here.json   with what was measured
  isotherm lab sim --cores --costs here.json    the same again, to the last digit

Runs patterns on a machine of isotherm-mm (page tables, faults, swap, huge pages) in virtual time, under the configurations of \
the DAMON patch series: orig (huge pages where a program asks for them), rec (with a monitor), thp (huge pages everywhere), ethp \
(huge pages for what is accessed, by a scheme) and prcl (what is not accessed for --min-age is paged out, to compressed memory). \
The monitor and its schemes are those of isotherm-damon, with the page tables' Accessed bits as what they see and madvise as what \
they do; of both samplers: classic, DAMON's own with at most 1000 regions, and blocks, at 1 % of a CPU by the prices that looks \
and clears have for a program on Linux.

The runtime is the CPU time of the program by stated prices: 5 ns an access, 25 ns a walk when the TLB (1536 entries) does not \
have a page of 4 KiB, 12 ns for one of 2 MiB, 60 ns for an Accessed or Dirty bit that is set, 1.2 us a fault and 100 ns for each \
page of zeros, 300 ns a copy, 3 us a page from swap, 1.5 us a flush by another CPU. Each thread has a CPU of its own; the monitor, \
its schemes and the scanner that makes huge pages (16 MiB each 100 ms) have theirs. What the prices say of a real machine is no \
better than they are. An access sets the Accessed bit although the TLB has the translation, where hardware would not.

--cores is another model, of discrete events: threads that fault, each on a core of its own, in VMAs of their own, alone and \
beside a thread that maps, protects and unmaps, and all in one VMA; under mmap_lock alone, under per-VMA locks as in the patch \
series of January 2023 (sequence), and under locks without a write that CPUs share (biased). Cores wait for cache lines, for \
mmap_lock and for the zone of frames, which the model has as isotherm-mm has them. What a fault, a cache line, a lock and a \
wake-up cost is measured on two CPUs of this machine first. A line costs the same from any core, and memory is as fast for all: it \
shows which lock or line ends the scaling, not what a certain machine does. Beside it stands what is measured here, by one thread \
and by two.

The same seed, with --cores the same costs and seed, gives the same figures. Takes twice the memory of the pattern, and no privilege.";

/// A sampler by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SamplingChoice {
    /// A page a region, of at most 1000 regions
    Classic,
    /// Whole page tables, at 1 % of a CPU
    Blocks,
}

impl SamplingChoice {
    /// The sampler.
    pub const fn sampling(self) -> Sampling {
        match self {
            Self::Classic => Sampling::Classic,
            Self::Blocks => Sampling::Blocks,
        }
    }
}

/// Run patterns on a model machine: what schemes save and cost there; or model page faults on up to 64 cores.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SimArgs {
    /// Patterns, or TOML files [default: stairs zigzag hotspot; with --accuracy those that have a bar]
    #[arg(value_name = "PATTERN", conflicts_with = "cores")]
    pub patterns: Vec<String>,
    /// Set a parameter of the patterns (repeatable)
    #[arg(long, value_name = "KEY=VALUE", conflicts_with = "cores")]
    pub set: Vec<String>,
    /// Make the patterns' phases so many times as long
    #[arg(long, value_name = "FACTOR", conflicts_with = "cores")]
    pub scale_time: Option<f64>,
    /// Watch by this sampler alone
    #[arg(long, value_enum, value_name = "NAME", conflicts_with = "cores")]
    pub sampler: Option<SamplingChoice>,
    /// What prcl pages out was not accessed for so long
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = parse_time, conflicts_with_all = ["cores", "accuracy"])]
    pub min_age: Duration,
    /// Judge what DAMON says of the patterns, byte by byte, instead of running schemes
    #[arg(long, conflicts_with = "cores")]
    pub accuracy: bool,
    /// Model page faults on up to 64 cores instead, by lock costs that are measured here
    #[arg(long)]
    pub cores: bool,
    /// With --cores: rounds in which costs are measured
    #[arg(long, value_name = "N", default_value_t = 7, value_parser = clap::value_parser!(u32).range(1..=100_000), requires = "cores")]
    pub rounds: u32,
    /// With --cores: for how long each rate is measured in a round
    #[arg(long, value_name = "TIME", default_value = "50ms", value_parser = parse_time, requires = "cores")]
    pub slice: Duration,
    /// With --cores: do not measure costs, but take those of a report that --json printed
    #[arg(long, value_name = "FILE", requires = "cores")]
    pub costs: Option<PathBuf>,
    /// The seed of all random choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
