//! What can be said on the command line.

mod fork;
mod frames;
mod lab;
mod report;

use anyhow::bail;
use clap::{Args, Parser, Subcommand, ValueEnum};
use isotherm_damon::{Attrs, AttrsError};
use isotherm_linux::backend::Backend;
use isotherm_report::units::{parse_share, parse_time};
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

pub use fork::ForkArgs;
pub use frames::{FramesArgs, FramesPart};
pub use lab::{AccuracyArgs, OvercommitArgs, OvercommitPart, OverheadArgs, ReferenceName};
pub use report::{
    AccessArgs, ConvertArgs, HeatmapArgs, InputArgs, RawArgs, ReportCommand, TrendArgs, WssArgs,
};

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
    /// Tell which backends and actions this machine and user can use, and what would help
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

/// Which way to look at memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// The best that works here: pte, idle, kernel, refs, in this order
    Auto,
    /// Page tables read by eBPF, bits cleared by process_madvise (root or capabilities; Linux 5.17)
    Pte,
    /// Idle page tracking (root; CONFIG_IDLE_PAGE_TRACKING)
    Idle,
    /// The kernel's own DAMON (root; CONFIG_DAMON_VADDR, CONFIG_DAMON_SYSFS)
    Kernel,
    /// clear_refs and smaps: no root needed, but whole mappings only
    Refs,
}

impl BackendName {
    /// The backend; none for the best.
    pub fn backend(self) -> Option<Backend> {
        match self {
            Self::Auto => None,
            Self::Pte => Some(Backend::Pte),
            Self::Idle => Some(Backend::Idle),
            Self::Kernel => Some(Backend::Kernel),
            Self::Refs => Some(Backend::Refs),
        }
    }
}

const RECORD_EXAMPLES: &str = "\
Examples:
  isotherm record -- ./my-program --its-option      a command from its start, with its children
  isotherm record --pid 1234 --duration 30s         a running process, for half a minute
  isotherm record --cgroup system.slice/redis.service -o redis.rec
  isotherm record --overhead 0.3% --pid 1234        at most 0.3 % of one CPU

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
    /// Process to watch; repeatable
    #[arg(short, long, value_name = "PID")]
    pub pid: Vec<u32>,
    /// Control group whose processes to watch, a path below its mount or a whole one; repeatable
    #[arg(long, value_name = "PATH")]
    pub cgroup: Vec<String>,
    /// How long to record [default: until Ctrl-C or the targets' end]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time)]
    pub duration: Option<Duration>,
    #[command(flatten)]
    pub monitor: MonitorArgs,
    /// Do not watch the targets' children
    #[arg(long)]
    pub no_children: bool,
    /// Print no summary and no progress
    #[arg(short, long)]
    pub quiet: bool,
    /// A command to run and watch
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// How to monitor.
#[derive(Clone, Debug, Args)]
pub struct MonitorArgs {
    /// Sampling interval: how finely accesses are told apart
    #[arg(long, value_name = "TIME", default_value = "5ms", value_parser = parse_time)]
    pub sample: Duration,
    /// Aggregation interval: how long accesses are counted for one snapshot
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_time)]
    pub aggr: Duration,
    /// Regions update interval: how often mappings and children are looked up
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub update: Duration,
    /// Least number of regions; at least 3
    #[arg(long, value_name = "N", default_value_t = 10)]
    pub min_regions: usize,
    /// Largest number of regions, and of access checks in a sampling interval
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub max_regions: usize,
    /// Ceiling of the monitor's own CPU time, in percent of one CPU; 0 is none
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = parse_share)]
    pub overhead: f64,
    /// Which way to look at memory; see `isotherm doctor`
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t = BackendName::Auto)]
    pub backend: BackendName,
}

impl MonitorArgs {
    /// The options as `isotherm record` takes them.
    pub fn to_options(&self) -> Vec<String> {
        let us = |d: Duration| format!("{}us", d.as_micros());
        let backend = self.backend.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
        [
            ("--sample", us(self.sample)),
            ("--aggr", us(self.aggr)),
            ("--update", us(self.update)),
            ("--min-regions", self.min_regions.to_string()),
            ("--max-regions", self.max_regions.to_string()),
            ("--overhead", format!("{}%", self.overhead * 100.0)),
            ("--backend", backend),
        ]
        .into_iter()
        .flat_map(|(option, value)| [option.to_owned(), value])
        .collect()
    }

    /// The attributes asked for.
    ///
    /// # Errors
    /// When they are not valid together, in terms of the options.
    pub fn attrs(&self) -> anyhow::Result<Attrs> {
        let attrs = Attrs {
            sample: self.sample,
            aggr: self.aggr,
            update: self.update,
            min_nr_regions: self.min_regions,
            max_nr_regions: self.max_regions,
        };
        match attrs.validate() {
            Ok(()) => Ok(attrs),
            Err(AttrsError::ZeroSample) => bail!("--sample {:?} is too short; the least is 1us", self.sample),
            Err(AttrsError::MinTooSmall(min)) => {
                bail!("--min-regions {min} is too few; there must be at least 3 (heap, mmap area and stack)")
            }
            Err(AttrsError::MaxBelowMin { min, max }) => {
                bail!(
                    "--max-regions {max} is less than --min-regions {min}; raise the one or lower the other"
                )
            }
            Err(AttrsError::AggrBelowSample { sample, aggr }) => bail!(
                "--aggr {aggr:?} is shorter than --sample {sample:?}; an aggregation takes at least one sampling interval"
            ),
        }
    }
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
