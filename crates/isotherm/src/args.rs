//! What can be said on the command line.

mod ablate;
mod apply;
mod diff;
mod faults;
mod fork;
mod frames;
mod holdings;
mod lab;
mod monitor;
mod report;
mod saving;
mod scheme;
mod sim;
mod targets;
mod top;
mod tree;

use crate::record::Keep;
use clap::{Args, Parser, Subcommand};
use isotherm_report::units::parse_time;
use std::path::PathBuf;
use std::time::Duration;

pub use ablate::AblateArgs;
pub use apply::ApplyArgs;
pub use diff::DiffArgs;
pub use faults::{FaultsArgs, FaultsPart};
pub use fork::ForkArgs;
pub use frames::{FramesArgs, FramesPart};
pub use holdings::{InfoArgs, SummaryArgs};
pub use lab::{AccuracyArgs, OvercommitArgs, OvercommitPart, OverheadArgs, ReferenceName};
pub use monitor::MonitorArgs;
#[cfg(test)]
pub use report::parse_selection;
pub use report::{
    AccessArgs, ConvertArgs, HeatmapArgs, HtmlArgs, InputArgs, RawArgs, ReportCommand, TrendArgs,
};
pub use saving::SavingArgs;
pub use scheme::{CheckArgs, SchemeCommand, SchemeConvertArgs, TryArgs};
pub use sim::SimArgs;
pub use targets::TargetArgs;
pub use top::TopArgs;
pub use tree::{TreeArgs, TreePart};

const FIRST_STEPS: &str = "\
First steps:
  isotherm doctor                       what works here, and what would help
  isotherm record --pid PID -d 10s      watch a process for 10 s (best as root)
  isotherm record -- COMMAND            watch a program from its start to its end
  isotherm report summary               what each process holds: in use, hot, cold
  isotherm report heatmap               which addresses were accessed when
  isotherm top                          the same live, of all processes (as root)

Each command says more with --help.";

/// See which memory of a process is hot, on any stock Linux kernel.
#[derive(Debug, Parser)]
#[command(name = "isotherm", version, propagate_version = true, max_term_width = 110, after_help = FIRST_STEPS)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch processes and write what memory they access to a file
    Record(Box<RecordArgs>),
    /// Watch live which memory is in use: processes, their mappings, a heatmap
    Top(Box<TopArgs>),
    /// Look at a recording
    #[command(subcommand)]
    Report(ReportCommand),
    /// Convert a recording to another format
    Convert(ConvertArgs),
    /// Say which memory gets which action: check and convert scheme files, try them on a recording, apply them
    #[command(subcommand)]
    Scheme(SchemeCommand),
    /// Repeat the experiments: how true a record is, what it costs, what reporting free memory saves
    #[command(subcommand)]
    Lab(LabCommand),
    /// Show which backends and actions this machine and user can use, what would help, and who else clears Accessed bits
    #[command(
        after_help = "The status is 0 when any backend works, and 1 otherwise. Nothing is changed by looking."
    )]
    Doctor {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Print completions for a shell
    Completions {
        /// Which shell
        shell: clap_complete::Shell,
    },
    /// Write manual pages
    Man {
        /// Directory for a page a command [default: print the page of isotherm itself]
        dir: Option<PathBuf>,
    },
    /// Run a program with a known access pattern
    Workload(isotherm_workloads::Args),
}

const RECORD_EXAMPLES: &str = "\
Examples:
  isotherm record -- ./my-program --its-option      a command from its start, with its children
  isotherm record --pid 1234 --duration 30s         a running process, for half a minute
  isotherm record --cgroup system.slice/redis.service -o redis.rec
  isotherm record --overhead 0.3% --pid 1234        at most 0.3 % of one CPU
  isotherm record --all --duration 1m               every process of the machine, as they come and go
  isotherm record --pid 1234 --follow=10s | jq .totals.ws_1s
                                                    the working set in bytes, every ten seconds
  isotherm record --all --every 10m --keep 1G       for good: a file every ten minutes, a GiB plus the file under way

Then: isotherm report heatmap, isotherm report wss, isotherm report access.

What is said meanwhile, and the summary at the end, go to standard error: standard output is the command's, or that of --follow.
`isotherm report summary` prints to standard output; `2>&1` sends there what is said, too, and --quiet says nothing.

The file has its name once the first snapshot is in it. A recording that was there is kept as FILE.old then. A recording in
which there is nothing to the end takes no other's place. Where there was none, it is kept: it says what happened to the
targets and what recording cost.

A line of --follow holds the time, and in bytes what each process, and all of them together (what they share once), has mapped,
resident, in the working sets of 1, 10 and 60 s (ws_1s, ...), hot (at a tenth of the highest rate and more, on a mean in which
5 s ago counts a seventh), cold since 10 s, 1 and 5 minutes, and unknown (null: not observed, or not for so long); then how many processes were seen,
ended too soon for that (null: not known), ended while they waited for it (unreached), or wait for it; and what monitoring
cost since the last time that this was told, once a second (null: not since the line before).
When nobody reads the lines any more the recording ends. Without a file: -o /dev/null.

Ctrl-C ends the recording properly, with status 0; SIGTERM and SIGHUP do, with 143 and 129. The file is complete then: another
Ctrl-C, should the summary take long, leaves that out. When the recording ends before the command does, isotherm waits for the
command, to which SIGTERM and SIGHUP are passed on; Ctrl-C reaches it from the terminal (`kill -INT` of isotherm alone does
not), and another Ctrl-C leaves it alone (130). The command's exit status is passed on,
128 + N when it died of signal N. Status 1 means that recording failed, or that nothing was recorded; 2 that the command line
is wrong; 126 and 127 that the command could not be run, or not found.";

/// Watch processes and write what memory they access to a file.
#[derive(Debug, Args)]
#[command(after_help = RECORD_EXAMPLES)]
pub struct RecordArgs {
    /// File to write; `-` is standard output. A recording that is there already is kept as FILE.old
    #[arg(short, long, value_name = "FILE", default_value = "isotherm.rec")]
    pub output: PathBuf,
    #[command(flatten)]
    pub targets: TargetArgs,
    /// How long to record [default: until Ctrl-C or the targets' end]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub monitor: MonitorArgs,
    /// Also print how things stand to standard output, a JSON object a line, one every TIME; for running processes
    /// only, as a recorded command writes there itself [default: off; without a value: 1s]
    #[arg(long, value_name = "TIME", num_args = 0..=1, require_equals = true, default_missing_value = "1s", value_parser = parse_time)]
    pub follow: Option<Duration>,
    /// Write a series of files, a new one every TIME, instead of one: isotherm.rec makes isotherm-20260801T120000Z.rec and so on,
    /// named by the time of their beginning (UTC). Each is complete in itself; `report -i` takes several as one
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub every: Option<Duration>,
    /// With --every, how much of a series is kept, in files (100) or bytes (1G, plus the file under way): the oldest files
    /// go, also those of former recordings of the same name, but none that is being written
    #[arg(long, value_name = "N|SIZE", default_value = "1G", requires = "every", value_parser = parse_keep)]
    pub keep: Keep,
    /// Print no summary and no progress
    #[arg(short, long)]
    pub quiet: bool,
}

fn parse_keep(text: &str) -> Result<Keep, String> {
    text.parse()
}

/// Parses the number of a process. Whether there is one is for others to say.
fn parse_pid(text: &str) -> Result<u32, &'static str> {
    text.parse().map_err(|_| {
        "a pid is the number of a process, 1 or more, as `pgrep NAME` or `ps -e` prints it (every process: --all)"
    })
}

#[derive(Debug, Subcommand)]
pub enum LabCommand {
    /// Record programs that know the truth about themselves and compare, byte by byte
    Accuracy(AccuracyArgs),
    /// Time a memory-bound program with and without the monitor, in turn
    Overhead(OverheadArgs),
    /// Boot guests until a host's memory is exceeded, with and without free page reporting
    Overcommit(OvercommitArgs),
    /// Time the page frame allocator beside others, and what reporting free memory costs
    Frames(FramesArgs),
    /// Time fork, exit, zap and young harvest of page tables in batches, page by page, and beside Linux
    Fork(ForkArgs),
    /// Time the range tree beside others, and readers beside a writer
    Tree(TreeArgs),
    /// Time page faults under per-VMA locks and under mmap_lock alone, in a start storm, and beside Linux
    Faults(FaultsArgs),
    /// Model page faults on up to 64 cores, by lock costs that are measured here
    Sim(SimArgs),
    /// Simulate the sampler without each of its constants: what accuracy and cost are then
    Ablate(AblateArgs),
    /// Run programs with and without schemes, in turn: memory saved, time lost
    Schemes(SavingArgs),
}
