//! What can be said to `isotherm lab schemes`.

use super::MonitorArgs;
use clap::Args;
use isotherm_report::units::parse_size;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  isotherm lab schemes --swap 2G -o saved.png           the seeds' prcl on a program that builds 1 GiB and uses a tenth of it
  isotherm lab schemes stairs zigzag --swap 1G --scheme prcl:min_age=1s --predict
                                                        also: what scheme try says of a recording of the same
  isotherm lab schemes hotspot --swap 2G --scheme mine.toml --pairs 5 --pages 4k,thp

Needs root. A pair takes twice as long as the workload, with --predict three times. The machine should have a CPU to spare for the
monitor, and nothing else to do.";

/// Run programs with and without schemes, in turn: memory saved, time lost.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct SavingArgs {
    /// Built-in patterns (`isotherm workload --list`), or files that end in .toml
    #[arg(value_name = "PATTERN", default_values = ["build"])]
    pub patterns: Vec<String>,
    /// Scheme file or preset
    #[arg(long, value_name = "FILE|PRESET", default_value = "prcl:min_age=500ms")]
    pub scheme: String,
    /// Pairs of runs, one without and one with the schemes
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub pairs: u32,
    /// Pages to run each pattern with
    #[arg(long, value_name = "PAGE", value_delimiter = ',', default_values = ["4k"])]
    pub pages: Vec<String>,
    /// Change a parameter of the patterns; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// Factor on the length of phases
    #[arg(long, value_name = "FACTOR")]
    pub scale_time: Option<f64>,
    /// Make a zram device of SIZE and swap there, on the whole machine, until the end [default: the swap that there is]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    pub swap: Option<u64>,
    /// Also record each workload without schemes, try them on the recording, and compare
    #[arg(long)]
    pub predict: bool,
    /// Draw resident memory with and without, of the first pair of each, as .png or .svg
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Print JSON, with every look at the memory
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub monitor: MonitorArgs,
}
