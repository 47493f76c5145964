//! The arguments of `isotherm report summary` and `isotherm report info`.

use super::InputArgs;
use super::report::ForeignArgs;
use clap::{Args, ValueEnum};
use isotherm_report::holdings::{By, Sort};
use isotherm_report::units::{UnitError, parse_size, parse_time};
use std::path::PathBuf;
use std::time::Duration;

const SUMMARY_COLUMNS: &str = "\
Examples:
  isotherm report summary                            processes, largest working set first, and their mappings
  isotherm report summary --sort cold-1m --by mapping   what could be reclaimed, largest first
  isotherm report summary --by object                files and shared memory, each byte once
  isotherm report summary --at 30s --csv             as things stood after 30 s, for a spreadsheet

Columns (K, M and G are KiB, MiB and GiB):
  mapped       mapped and monitored
  resid.       of that, present in memory; ? where the recording does not say. Pages read but never written are the
               kernel's page of zeroes: in the page tables they are resident, and unknown; the Rss of smaps leaves them out
  working set  accessed at least once (Denning's): within 1 s at the rates of the last aggregation; in the last 10 s and
               60 s as observed; - where less was observed (--json has what there is, and observed_ns)
  hot          accessed in at least 10 % of the sampling intervals, on a mean in which 5 s ago counts a seventh
  cold since   present and known not to have been accessed for 10 s, a minute, 5 minutes: could be reclaimed; - where
               nothing was observed for so long
  unkn.        could not be observed: it is in no working set, and it is not cold

Of a region that covers several mappings, or objects, only the sum is known, and each has its share by size. Where that may be off
by more than a tenth it is marked: ~16M is right within a factor of two, <64K may be anything up to that. Then --json and --csv
have no figure; shared_out is how many of the bytes mapped lie in such regions, and `between` in JSON has the bounds.

A line stands for all mappings of a file or name in a process, or for a run of anonymous ones; \"unknown mapping\" for
memory in use that lies outside of all that are known. In the total, and by object,
a file or shared memory that several processes map counts once, with the accesses of all of them. Of a file that is mapped
privately (programs, libraries) all are taken to have the same pages; of what is mapped shared each may have its own. What a process
did in a file that nobody maps any more has a line for a minute, `unmapped`. Memory of its own that
a process got by fork counts in parent and child, also while they share its pages.";

/// What a line is of.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum ByName {
    /// A process, with its largest mappings below it
    Process,
    /// A mapping of a process
    Mapping,
    /// A file or shared memory, each byte once; then what each process has of its own
    Object,
}

impl From<ByName> for By {
    fn from(name: ByName) -> Self {
        match name {
            ByName::Process => Self::Process,
            ByName::Mapping => Self::Mapping,
            ByName::Object => Self::Object,
        }
    }
}

/// What lines are sorted by.
#[derive(Clone, Copy, Debug, ValueEnum)]
#[allow(missing_docs, reason = "the names are the columns'")]
pub enum SortName {
    Name,
    Mapped,
    Resident,
    #[value(name = "ws-1s")]
    Ws1s,
    #[value(name = "ws-10s")]
    Ws10s,
    #[value(name = "ws-60s")]
    Ws60s,
    Hot,
    #[value(name = "cold-10s")]
    Cold10s,
    #[value(name = "cold-1m")]
    Cold1m,
    #[value(name = "cold-5m")]
    Cold5m,
    Unknown,
}

impl From<SortName> for Sort {
    fn from(name: SortName) -> Self {
        match name {
            SortName::Name => Self::Name,
            SortName::Mapped => Self::Mapped,
            SortName::Resident => Self::Resident,
            SortName::Ws1s => Self::Ws1s,
            SortName::Ws10s => Self::Ws10s,
            SortName::Ws60s => Self::Ws60s,
            SortName::Hot => Self::Hot,
            SortName::Cold10s => Self::Cold10s,
            SortName::Cold1m => Self::Cold1m,
            SortName::Cold5m => Self::Cold5m,
            SortName::Unknown => Self::Unknown,
        }
    }
}

/// A moment of a recording.
#[derive(Clone, Copy, Debug)]
pub struct Moment(
    /// From its start; `None`: its end.
    pub Option<Duration>,
);

fn parse_moment(text: &str) -> Result<Moment, UnitError> {
    match text.trim() {
        "last" => Ok(Moment(None)),
        moment => parse_time(moment).map(|time| Moment(Some(time))),
    }
}

/// Parses how many lines there may be.
pub fn parse_count(text: &str) -> Result<usize, String> {
    text.parse().map_err(|_| "give how many, a whole number such as 20".to_owned())
}

/// What each process, mapping and object holds: mapped, resident, working set, hot, cold, unknown.
#[derive(Debug, Args)]
#[command(after_help = SUMMARY_COLUMNS)]
pub struct SummaryArgs {
    #[command(flatten)]
    pub input: InputArgs,
    /// What a line is of
    #[arg(long, value_name = "WHAT", value_enum, default_value = "process")]
    pub by: ByName,
    /// Column to sort by, largest first
    #[arg(long, value_name = "COLUMN", value_enum, default_value = "ws-10s")]
    pub sort: SortName,
    /// Sort the other way round
    #[arg(long)]
    pub reverse: bool,
    /// As things stood at this time from the recording's start; `last` is its end, as without it
    #[arg(long, value_name = "TIME", default_value = "last", hide_default_value = true, value_parser = parse_moment)]
    pub at: Moment,
    /// Only mappings with this in their name or path (`heap`, `libc`); the total is of all for all that
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub mapping: String,
    /// Only lines of at least so many resident bytes, `1M` (mapped ones where residence is not known)
    #[arg(long, value_name = "SIZE", default_value = "0", hide_default_value = true, value_parser = parse_size)]
    pub min_size: u64,
    /// Most lines [default: 20 on the terminal, all with --json and --csv; 0: all]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_count)]
    pub limit: Option<usize>,
    /// Most mappings below a process [default: 4 on the terminal, all with --json and --csv]; of a process that ended the 8
    /// largest are kept, and the others together as `other mappings`
    #[arg(long, value_name = "N", value_parser = parse_count)]
    pub mappings: Option<usize>,
    /// Columns to use [default: those of the terminal]; from 150 on sizes are written in full, below 78 some
    /// columns are left out
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..))]
    pub width: Option<u16>,
    /// Print JSON; sizes are bytes
    #[arg(long, conflicts_with = "csv")]
    pub json: bool,
    /// Print comma-separated values; sizes are bytes, `id` is the device and inode of an object, and a name that a
    /// spreadsheet would take for a formula (it begins with = + - @) has a ' before it
    #[arg(long)]
    pub csv: bool,
}

/// What a recording holds: who made it where and when, how, of what, how large, and whether it is whole.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// Recording to look at, in any format that is read, damaged ones too; `-` is standard input. Of several files, or the
    /// directory they are in: a line each, then what they are together, and what is missing between them
    #[arg(short, long, value_name = "FILE", num_args = 1.., default_value = "isotherm.rec")]
    pub input: Vec<PathBuf>,
    #[command(flatten)]
    pub foreign: ForeignArgs,
    /// List the targets
    #[arg(long)]
    pub targets: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
