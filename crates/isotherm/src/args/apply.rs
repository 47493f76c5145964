//! The arguments of `isotherm scheme apply`.

use super::scheme::SchemeArgs;
use super::{MonitorArgs, TargetArgs};
use clap::Args;
use isotherm_report::units::{parse_share, parse_time};
use std::path::PathBuf;
use std::time::Duration;

/// A share of something that has no more than itself.
fn parse_part(text: &str) -> Result<f64, String> {
    let share = parse_share(text).map_err(|error| error.to_string())?;
    if share > 1.0 { Err(format!("{text:?} is more than 100 %, the most there can be")) } else { Ok(share) }
}

const EXAMPLES: &str = "\
Examples:
  isotherm scheme apply prcl --pid 1234                page out what a process does not use
  isotherm scheme apply mine.toml --cgroup system.slice/app.service --log actions.jsonl
  isotherm scheme apply reclaim --comm 'php-fpm*' --user www-data
                                                       processes by name and user, as they come and go
  isotherm scheme apply reclaim --all --duration 1h
  isotherm scheme apply ethp -o run.rec -- ./my-program --its-option

What would keep a scheme from doing what it says (no swap, a missing capability, a pattern that matches nothing) is said before \
the first action; a scheme set that could do nothing is refused. A pageout scheme without quota and watermarks gets a quota of \
512 MiB and 750 ms a second. Memory whose access rate is unknown is left alone unless a scheme says `unknown = true`; \
so is memory that several processes map, locked memory, and that of hugetlbfs.

SIGHUP, or a change of the file, has it read again: regions keep their ages, schemes their statistics and quotas. A file that is \
not valid is refused, and the schemes go on as they were.

A line of --log is an object with the time (unix_ns, time_ns), scheme, action, pid, region (start, end), nr_accesses and \
age_aggregations (why it was chosen), tried (bytes of it that were there) and applied in bytes, window_ns (when the quota's \
window was opened: what was tried in one window is within the quota), left (bytes by reason), latency_us, and \
waited_us of that, for which other programs had the CPU: a quota of time is charged the rest.

Ctrl-C ends it with a last table, and status 0. What was advised stays as it is. The command's exit status is passed on.";

/// Act on the memory of live processes as schemes say.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ApplyArgs {
    #[command(flatten)]
    pub schemes: SchemeArgs,
    #[command(flatten)]
    pub targets: TargetArgs,
    /// How long to act [default: until Ctrl-C or the targets' end]
    #[arg(short, long, value_name = "TIME", value_parser = parse_time)]
    pub duration: Option<Duration>,
    /// How often to print statistics: on a terminal they are one screen, else lines
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    pub stats_every: Duration,
    /// Write every action to FILE, a JSON object a line; what is there stays. It is opened anew on SIGHUP, and when
    /// it was moved away or removed
    #[arg(long, value_name = "FILE")]
    pub log: Option<PathBuf>,
    /// Also record to FILE, as `isotherm record` does
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Suspend a scheme when more than SHARE of what it paged out comes back within its least age; for schemes that state no
    /// limit of their own
    #[arg(long, value_name = "SHARE", value_parser = parse_part)]
    pub max_refault_rate: Option<f64>,
    /// Suspend schemes while tasks wait for memory for more than SHARE of the last 10 s (PSI, some); for schemes that state
    /// no limit of their own
    #[arg(long, value_name = "SHARE", value_parser = parse_part)]
    pub max_pressure: Option<f64>,
    /// Act also on large folios that are only partly in a region, which splits them
    #[arg(long)]
    pub split_folios: bool,
    /// Print no statistics while running
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub monitor: MonitorArgs,
}
