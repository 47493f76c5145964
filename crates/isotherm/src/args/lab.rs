//! What can be said to `isotherm lab accuracy`, `isotherm lab overhead` and `isotherm lab overcommit`.

use super::MonitorArgs;
use clap::{Args, ValueEnum};
use isotherm_report::units::{parse_size, parse_time};
use std::path::PathBuf;
use std::time::Duration;

/// What a recording of any process is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ReferenceName {
    /// All Accessed bits, cleared and read again about once a second (root; pages are write-protected by it each time)
    Scan,
}

const ACCURACY_EXAMPLES: &str = "\
Examples:
  isotherm lab accuracy rates threads --runs 3              two patterns, three times
  isotherm lab accuracy swarm --pages 4k --settle 10s       scores from the tenth second on
  isotherm lab accuracy bgsave --details                    around a fork: what memory in use was called, each second
  isotherm lab accuracy --against scan -p 1234              any program: against a slow scan of all its pages

F1 is that of hot bytes; memory in motion has no rate to be hot by and is judged by the bytes accessed within a second.
Of bgsave, which forks a child now and then, it also prints what its hot memory was called around that; with --details second by
second: hot (at half its rate or more), lukewarm, cold (below a twentieth of it: memory in use that reads cold), unknown.";

/// Record programs that know the truth about themselves and compare, byte by byte.
#[derive(Debug, Args)]
#[command(after_help = ACCURACY_EXAMPLES)]
pub struct AccuracyArgs {
    /// Built-in patterns, or files that end in .toml [default: all built-in ones but membound and build]
    #[arg(value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// Instead of a program that knows the truth, compare with this, on any processes
    #[arg(long, value_name = "REFERENCE", requires = "pid", conflicts_with_all = ["patterns", "set", "scale_time", "details", "runs"])]
    pub against: Option<ReferenceName>,
    /// Process to compare on, with its descendants; repeatable
    #[arg(short, long, value_name = "PID", requires = "against", allow_negative_numbers = true, value_parser = super::parse_pid)]
    pub pid: Vec<u32>,
    /// How long to compare
    #[arg(short, long, value_name = "TIME", default_value = "30s", value_parser = parse_time, requires = "against")]
    pub duration: Duration,
    /// Length of a pass of the reference
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time, requires = "against")]
    pub pass: Duration,
    /// How long the reference keeps away after each pass: the bits that it clears are lost to the monitor, as are those that
    /// anyone else clears
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = parse_time, requires = "against")]
    pub pause: Duration,
    /// Pages to run each pattern with
    #[arg(long, value_name = "PAGE", value_delimiter = ',', default_values = ["4k", "thp"])]
    pub pages: Vec<String>,
    /// Change a parameter of the patterns; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Factor on the length of phases
    #[arg(long, value_name = "FACTOR")]
    pub scale_time: Option<f64>,
    /// Leave this long after the start of a phase out of the scores; the time until it is found counts all the same. With
    /// --against, the time before the first pass [default: 0, with --against 5s]
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub settle: Option<Duration>,
    /// Runs of each
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub runs: u32,
    /// Keep the recordings in this directory
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Print every phase and rate, not just a line a run
    #[arg(long)]
    pub details: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub monitor: MonitorArgs,
}

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

const OVERCOMMIT_EXAMPLES: &str = "\
Examples:
  cargo xtask guest --build && isotherm lab overcommit      a tenth of the sizes of 2019: about three minutes
  isotherm lab overcommit --scale 5 --only fit              a fifth, the first experiment alone
  isotherm lab overcommit --budget 3G --memory 1G --touch 800M

Guests are started one after the other; each touches most of its memory, frees it, and stays. The host is a budget that
the resident sets of all QEMU processes together must not exceed: nothing is enforced, so nothing here is swapped or
killed. Then memhog runs in three guests, one after the other. As root that is done again with an enforced budget: the guests
are in a memory cgroup, made for the purpose and removed, with swap in zram, which this whole machine may use meanwhile; where
it cannot be made, it is left out, with the reason. Needs QEMU (Debian: qemu-system-x86) and the guest program, but neither root
nor KVM. The status is 0 when the bars are met or part was left out, 1 otherwise, 130 after Ctrl-C.";

/// An experiment of `isotherm lab overcommit`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum OvercommitPart {
    /// How many guests fit
    Fit,
    /// Times of memhog in three guests
    Memhog,
    /// The same in a cgroup with swap in zram, which are made for it and removed
    Enforced,
}

/// Boot guests until a host's memory is exceeded, with and without free page reporting.
#[derive(Debug, Args)]
#[command(after_help = OVERCOMMIT_EXAMPLES)]
pub struct OvercommitArgs {
    /// What the sizes of the original experiments (15 GB host, 5 GB guests that touch 4 GB, memhog 6G) are divided by
    #[arg(long, value_name = "FACTOR", default_value_t = 10.0)]
    pub scale: f64,
    /// The host's memory [default: 15G / FACTOR]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub budget: Option<u64>,
    /// A guest's RAM in the first experiment, in whole MiB [default: 5G / FACTOR]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub memory: Option<u64>,
    /// What it touches [default: 4G / FACTOR]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub touch: Option<u64>,
    /// Most guests to start at a time
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=64))]
    pub guests: u32,
    /// Runs of memhog, each way
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub runs: u32,
    /// Do only this experiment
    #[arg(long, value_name = "PART")]
    pub only: Option<OvercommitPart>,
    /// The guest program [default: what `cargo xtask guest --build` left under target]
    #[arg(long, value_name = "PATH")]
    pub guest: Option<PathBuf>,
    /// The emulator
    #[arg(long, value_name = "PROGRAM", default_value = "qemu-system-x86_64")]
    pub qemu: PathBuf,
    /// Have the guests executed by KVM, not by QEMU's translator
    #[arg(long)]
    pub kvm: bool,
    /// Print every guest and run, not just the sum
    #[arg(long)]
    pub details: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
