//! What can be said on the command line.

mod fork;
mod frames;
mod lab;
mod monitor;
mod report;
mod targets;

use clap::{Args, Parser, Subcommand};
use isotherm_report::units::parse_time;
use std::path::PathBuf;
use std::time::Duration;

pub use fork::ForkArgs;
pub use frames::{FramesArgs, FramesPart};
pub use lab::{AccuracyArgs, OvercommitArgs, OvercommitPart, OverheadArgs, ReferenceName};
pub use monitor::MonitorArgs;
pub use report::{
    AccessArgs, ConvertArgs, HeatmapArgs, HtmlArgs, InputArgs, RawArgs, ReportCommand, TrendArgs,
};
pub use targets::TargetArgs;

/// See which memory of a process is hot, on any stock Linux kernel.
#[derive(Debug, Parser)]
#[command(name = "isotherm", version, propagate_version = true, max_term_width = 110)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Watch processes and write what memory they access to a file
    Record(Box<RecordArgs>),
    /// Look at a recording
    #[command(subcommand)]
    Report(ReportCommand),
    /// Convert a recording to another format
    Convert(ConvertArgs),
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

Then: isotherm report heatmap, isotherm report wss, isotherm report access.
Ctrl-C ends the recording properly; when the recording ends before the command does, isotherm waits for the command,
and another Ctrl-C leaves it alone. The command's exit status is passed on, 128 + N when it died of signal N. Status 1
means that recording failed, or that nothing was recorded because the target ended too soon; 126 and 127 that the command
could not be run, or not found.";

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
    /// Print no summary and no progress
    #[arg(short, long)]
    pub quiet: bool,
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
}
