//! The arguments of `isotherm report` and `isotherm convert`.

use super::holdings::parse_count;
use super::{DiffArgs, InfoArgs, SummaryArgs};
use clap::{Args, Subcommand};
use isotherm_damon::AddrRange;
use isotherm_record::{Format, ReadOptions, RecordChoice, RecordedAttrs};
use isotherm_report::access::{Grouping, Selection, SortKey};
use isotherm_report::colour::ColourChoice;
use isotherm_report::heatmap::{AreaChoice, Scale};
use isotherm_report::trend::{Definition, Threshold};
use isotherm_report::units::{
    Bounds, Rate, UnitError, parse_address_range, parse_bounds, parse_rate, parse_size, parse_time,
};
use std::path::{Path, PathBuf};
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub enum ReportCommand {
    /// What each process, mapping and object holds: mapped, resident, working set, hot, cold, unknown
    Summary(SummaryArgs),
    /// What a recording holds: by whom, when, how, of what, how large, whether it is whole
    Info(InfoArgs),
    /// Two recordings of one program: what differs, and whether that is more than noise
    Diff(DiffArgs),
    /// The regions of a moment or of a stretch of time: address, size, access rate, age
    Access(AccessArgs),
    /// Time x address: where the heat is, and when
    Heatmap(HeatmapArgs),
    /// The working-set size: its distribution, and over time
    Wss(WssArgs),
    /// The number of regions: its distribution, and over time
    Regions(TrendArgs),
    /// Every region of every snapshot, a line each
    Raw(RawArgs),
    /// A page for a browser: heatmap with zoom, working set, processes and mappings, in one file
    Html(HtmlArgs),
}

/// The heading of [`ForeignArgs`] in the help; each has it itself, since `next_help_heading` also goes for what follows.
const FOREIGN: &str = "Input of other programs";

/// Intervals for foreign formats, and the format itself.
#[derive(Clone, Debug, Args)]
pub struct ForeignArgs {
    /// Format of the input, when it is not to be found out: rec, parquet, json_compressed, json, perf-script, record-v0,
    /// record-v1, record-v2
    #[arg(long, help_heading = FOREIGN, value_name = "FORMAT")]
    pub from: Option<Format>,
    /// Sampling interval of an input that does not tell it (perf-script, record-v0 to v2, some of damo's JSON)
    #[arg(long, help_heading = FOREIGN, value_name = "TIME", value_parser = parse_interval)]
    pub sample: Option<Duration>,
    /// Aggregation interval of an input that does not tell it
    #[arg(long, help_heading = FOREIGN, value_name = "TIME", value_parser = parse_interval)]
    pub aggr: Option<Duration>,
    /// Which record of an input that holds several views of the same memory, one a context or scheme: its number, or
    /// `all`, each as a target of its own [default: the first of no scheme]. What there is, is told when it is read
    #[arg(long, help_heading = FOREIGN, value_name = "N|all", value_parser = parse_record)]
    pub record: Option<RecordChoice>,
}

impl ForeignArgs {
    /// How to read.
    pub fn read_options(&self) -> ReadOptions {
        let us =
            |time: Option<Duration>| time.map_or(0, |t| u64::try_from(t.as_micros()).unwrap_or(u64::MAX));
        let intervals =
            RecordedAttrs { sample_us: us(self.sample), aggr_us: us(self.aggr), ..RecordedAttrs::default() };
        ReadOptions { format: self.from, intervals, record: self.record.unwrap_or_default() }
    }
}

/// Which recording to report on.
#[derive(Clone, Debug, Args)]
pub struct InputArgs {
    /// Recording to read, in any format `isotherm convert` reads; `-` is standard input. Several files of one run, or the
    /// directory they are in, are read as one recording
    #[arg(short, long, value_name = "FILE", num_args = 1.., default_value = "isotherm.rec")]
    pub input: Vec<PathBuf>,
    /// Only this target: its pid, or the name of its program; repeatable
    #[arg(long, value_name = "PID|NAME")]
    pub target: Vec<String>,
    #[command(flatten)]
    pub foreign: ForeignArgs,
}

const ACCESS_EXAMPLES: &str = "\
Examples:
  isotherm report access --sort rate --rate 5%..     what is hot at the end, hottest first
  isotherm report access --sort rate -n 10           the ten hottest regions of each target
  isotherm report access --time 10s..20s             mean over ten seconds
  isotherm report access --time .. --mapping heap    mean over all the recording, of the heap
  isotherm report access --resident 2M.. --age 5s.. --rate 0   idle for 5 s and worth reclaiming
  isotherm report access --by object --sort rate     files and shared memory, each once, with the accesses of
                                                     all processes that map them

Sizes are bytes mapped: what of a region is a gap between mappings counts as nothing. Of these, bytes that are not in memory
(never touched, given back, swapped out) are neither cold nor unknown: sums name them apart (\"not there\"), and --rate leaves
out regions that have no others. In sums over several targets what they share (files, shared memory) counts once. A region
whose rate is \"unknown\" could not be observed: it is not cold, and --rate leaves it out unless --unknown is given.";

/// The regions of a moment or of a stretch of time: address, size, access rate, age.
#[derive(Debug, Args)]
#[command(after_help = ACCESS_EXAMPLES)]
pub struct AccessArgs {
    #[command(flatten)]
    pub input: InputArgs,
    /// When, from the recording's start: `last` is the last snapshot (where all programs ended, the last one before they gave
    /// up their memory), `10s` a moment, `10s..20s` the mean over that time, `..` over all
    #[arg(long, visible_alias = "at", value_name = "WHEN", default_value = "last", value_parser = parse_selection)]
    pub time: Selection,
    /// Column to sort by: address, size, resident, rate, age, target, mapping. Sizes, rate and age: largest first
    #[arg(long, value_name = "COLUMN", default_value = "address")]
    pub sort: SortKey,
    /// Sort the other way round
    #[arg(long)]
    pub reverse: bool,
    /// Most regions of a target or object, the first by --sort; sums are of all, and JSON tells how many more there are (unlisted_regions, unlisted_bytes) [default: all; 0: all]
    #[arg(short = 'n', long, value_name = "N", value_parser = parse_count)]
    pub limit: Option<usize>,
    /// Only regions of this size, `MIN..MAX`; either end may be left out
    #[arg(long, value_name = "RANGE", value_parser = parse_sizes)]
    pub size: Option<Bounds<u64>>,
    /// Only regions of which so many bytes are present in memory, `MIN..MAX`
    #[arg(long, value_name = "RANGE", value_parser = parse_sizes)]
    pub resident: Option<Bounds<u64>>,
    /// Only regions accessed at this rate, `MIN..MAX`, in % of the highest rate that can be seen or in Hz. `0` over a stretch
    /// of time: not accessed in it, as a mean of less than half an access of each page in all of it
    #[arg(long, value_name = "RANGE", value_parser = parse_rates)]
    pub rate: Option<Rates>,
    /// With --rate: also regions whose rate is unknown
    #[arg(long, requires = "rate")]
    pub unknown: bool,
    /// How to group regions: `target`, or `object`: a file or shared memory, addresses being offsets in it, each byte once
    /// with the accesses of all targets that map it
    #[arg(long, value_name = "target|object", default_value = "target")]
    pub by: Grouping,
    /// Only regions that have kept their rate for so long, `MIN..MAX`
    #[arg(long, value_name = "RANGE", value_parser = parse_times)]
    pub age: Option<Bounds<Duration>>,
    /// Only regions that touch these addresses, `START-END` or `START+SIZE`; repeatable
    #[arg(long, value_name = "RANGE", value_parser = parse_address_range)]
    pub address: Vec<AddrRange>,
    /// Only regions over a mapping with this in its name or path (`heap`, `libc`), also if it is not the largest there
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    pub mapping: String,
    /// Columns to use [default: those of the terminal]; in few, figures stand below the addresses
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..))]
    pub width: Option<u16>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const HEATMAP_EXAMPLES: &str = "\
Examples:
  isotherm report heatmap                       the hottest memory, on the terminal
  isotherm report heatmap -o heat.png           the same as a picture
  isotherm report heatmap --area heap --time 10s..20s
  isotherm report heatmap --object PostgreSQL   shared memory, with the accesses of all who map it
  isotherm report heatmap --address 0x7f1200000000+64M -o spot.svg

What could not be observed has a colour of its own, striped (`?` without colours): it is unknown, not cold.";

/// Time x address: where the heat is, and when.
#[derive(Debug, Args)]
#[command(after_help = HEATMAP_EXAMPLES)]
pub struct HeatmapArgs {
    #[command(flatten)]
    pub input: InputArgs,
    /// Draw a picture instead: FILE.png or FILE.svg
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    pub output: Option<PathBuf>,
    /// What to show: `hot` (where the heat is), `all`, `heap`, `mmap`, `stack`, or part of the name of a mapping
    #[arg(long, value_name = "AREA", default_value = "hot")]
    pub area: AreaChoice,
    /// Show these addresses: `START-END` or `START+SIZE`
    #[arg(long, value_name = "RANGE", value_parser = parse_address_range, conflicts_with = "area")]
    pub address: Option<AddrRange>,
    /// Show files and shared memory with this in their path, or of this device and inode as `report access --by object`
    /// prints them, by offset, with the accesses of all targets that map them
    #[arg(long, value_name = "NAME|DEV:INODE", conflicts_with_all = ["area", "address"])]
    pub object: Option<String>,
    /// Show at most so many areas
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub max_areas: u16,
    /// Only this time from the recording's start: `FROM..TO`, of which either end may be left out; `10s` is the snapshot of a
    /// moment, `last` the last one
    #[arg(long, value_name = "WHEN", value_parser = parse_selection)]
    pub time: Option<Selection>,
    /// How rates become colours: auto, linear, sqrt, log
    #[arg(long, value_name = "SCALE", default_value = "auto")]
    pub scale: Scale,
    /// When to use colours on the terminal: auto, always, never. Auto heeds NO_COLOR
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: ColourChoice,
    /// Width: columns of the terminal [default: its own], or pixels of the picture [default: 1280]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub width: Option<u16>,
    /// Height of the areas together: lines of the terminal, or pixels of the picture [default: 560]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub height: Option<u16>,
    /// Title of the picture [default: what was recorded]
    #[arg(long, value_name = "TEXT", requires = "output", default_value = "", hide_default_value = true)]
    pub title: String,
    /// Print JSON: the rate of every cell in Hz, null where nothing was monitored, "unknown" where nothing could be
    /// observed
    #[arg(long)]
    pub json: bool,
}

const WSS_EXAMPLES: &str = "\
Examples:
  isotherm report wss                        bytes accessed at least once within a second (Denning's working set)
  isotherm report wss --window 10s           within ten seconds: what rare accesses keep busy, too
  isotherm report wss --damo                 as damo counts it, for comparison with its reports
  isotherm report wss --threshold 5%         bytes of regions at 5 % of the highest rate and more

The working set of a window is estimated from access rates: of a region accessed in a share p of the sampling intervals,
a window of n of them meets 1 - (1 - p)^n. The rates are those of each snapshot: what is used in turn, for seconds each, is
not added up over the window. Only mapped bytes count, those that several targets map once. What could not be observed
is not in it; how much that is stands beside it. Of a window longer than a second nothing is counted until as much has been
observed; one longer than the recording is extrapolated from the rates seen, and the report says so.";

/// The working-set size: its distribution, and over time.
#[derive(Debug, Args)]
#[command(after_help = WSS_EXAMPLES)]
pub struct WssArgs {
    #[command(flatten)]
    pub trend: TrendArgs,
    /// Count the bytes accessed at least once within so much time
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_window)]
    pub window: Duration,
    /// Count as damo does: all bytes of regions with at least 1 access in an aggregation, as recorded: gaps between
    /// mappings and what could not be observed are in it, what several targets map counts for each
    #[arg(long, conflicts_with = "window")]
    pub damo: bool,
    /// Count all bytes of regions that reach this in an aggregation: `1` access, `5%` of the highest rate, `10Hz`
    #[arg(long, value_name = "RATE", value_parser = parse_threshold, conflicts_with_all = ["window", "damo"])]
    pub threshold: Option<Threshold>,
}

impl WssArgs {
    /// What a working set is to be.
    pub fn definition(&self) -> Definition {
        match self.threshold {
            Some(threshold) => Definition::Threshold(threshold),
            None if self.damo => Definition::Damo,
            None => Definition::Window(self.window),
        }
    }
}

/// One figure a snapshot: its distribution, and over time.
#[derive(Debug, Args)]
pub struct TrendArgs {
    #[command(flatten)]
    pub input: InputArgs,
    /// Draw a picture instead: FILE.png or FILE.svg
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    pub output: Option<PathBuf>,
    /// Only this time from the recording's start: `FROM..TO`, of which either end may be left out; `10s` is the snapshot of a
    /// moment, `last` the last one
    #[arg(long, value_name = "WHEN", value_parser = parse_selection)]
    pub time: Option<Selection>,
    /// Width: columns of the terminal [default: its own], or pixels of the picture [default: 1280]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    pub width: Option<u16>,
    /// Height of the plot: lines of the terminal [default: 10; 0: none], or pixels of the picture [default: 420]
    #[arg(long, value_name = "N")]
    pub height: Option<u16>,
    /// Title of the picture [default: what was recorded]
    #[arg(long, value_name = "TEXT", requires = "output", default_value = "", hide_default_value = true)]
    pub title: String,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

const RAW_COLUMNS: &str = "\
Columns: start_s end_s target address_start address_end bytes nr_accesses max_nr_accesses rate_hz age seen exposure
resident. Regions are as recorded, gaps between mappings included.
  rate_hz   ? where it is unknown, which is not 0
  seen      share of the region that could be observed, 0 to 1; the rate is that of this share
  exposure  sampling intervals through which a page of it was observed; - where accesses are counted without an account
  resident  bytes present in memory; - where not known";

/// Every region of every snapshot, a line each.
#[derive(Debug, Args)]
#[command(after_help = RAW_COLUMNS)]
pub struct RawArgs {
    #[command(flatten)]
    pub input: InputArgs,
    /// Only this time from the recording's start: `FROM..TO`, of which either end may be left out; `10s` is the snapshot of a
    /// moment, `last` the last one
    #[arg(long, value_name = "WHEN", value_parser = parse_selection)]
    pub time: Option<Selection>,
    /// Print JSON lines: an object a region, and one each for header, targets, mappings and costs
    #[arg(long)]
    pub json: bool,
}

const HTML_EXAMPLES: &str = "\
Examples:
  isotherm report html -o heat.html                       of isotherm.rec; open it in any browser of 2023 or later
  isotherm report html -i redis.rec -o redis.html --title 'redis under GETs'
  isotherm report html --area all --max-areas 20 -o all.html
  isotherm report html --time 10m..20m --target postgres -o ten-minutes.html

The file is complete: nothing is loaded from the network, neither by it nor to make it, and it can be mailed or kept.
It holds the heat at several resolutions. Of a short recording that is all there is; of a long one as much as fits into
--max-size, and where you zoom in deeper than that the page gives the `isotherm report heatmap` command for the spot.
Memory of which nothing is known is striped there, as in pictures: it is unknown, not cold.
A page that is there already is replaced; a file that is anything else is left as it is.";

/// A page for a browser: heatmap with zoom, working set, processes and mappings, in one file.
#[derive(Debug, Args)]
#[command(after_help = HTML_EXAMPLES)]
pub struct HtmlArgs {
    #[command(flatten)]
    pub input: InputArgs,
    /// File to write; `-` is standard output
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// What to show: `hot` (where the heat is), `all`, `heap`, `mmap`, `stack`, or part of the name of a mapping
    #[arg(long, value_name = "AREA", default_value = "hot")]
    pub area: AreaChoice,
    /// Show these addresses: `START-END` or `START+SIZE`
    #[arg(long, value_name = "RANGE", value_parser = parse_address_range, conflicts_with = "area")]
    pub address: Option<AddrRange>,
    /// Show files and shared memory with this in their path, or of this device and inode, by offset, with the accesses of
    /// all targets that map them
    #[arg(long, value_name = "NAME|DEV:INODE", conflicts_with_all = ["area", "address"])]
    pub object: Option<String>,
    /// Show at most so many areas; which of them are in view is chosen on the page
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=64))]
    pub max_areas: u16,
    /// Only this time from the recording's start: `FROM..TO`, of which either end may be left out; `10s` is the snapshot of a
    /// moment, `last` the last one
    #[arg(long, value_name = "WHEN", value_parser = parse_selection)]
    pub time: Option<Selection>,
    /// Title of the page [default: what was recorded]
    #[arg(long, value_name = "TEXT", default_value = "", hide_default_value = true)]
    pub title: String,
    /// Largest size of the file: detail is left out where it takes most, until the rest fits
    #[arg(long, value_name = "SIZE", default_value = "5M", value_parser = parse_size)]
    pub max_size: u64,
}

const CONVERT_EXAMPLES: &str = "\
Examples:
  isotherm convert isotherm.rec heat.parquet        for pandas, DuckDB, pyarrow
  isotherm convert isotherm.rec damon.data          for damo (json_compressed)
  isotherm convert perf.txt --sample 5ms --aggr 100ms old.rec
  isotherm convert isotherm-*.rec all.parquet       the files of a series, or the directory they are in, as one

Formats by file name: .rec, .parquet, .json_compressed or damon.data, .json, .txt (perf-script), .damon (record-v2).
A name without an ending is written as rec, one with another ending needs --to; what is read is found out by content. damo takes plain JSON only where `file` calls it
\"JSON data\" (before version 5.44, up to 1 MiB); json_compressed it takes anywhere.
The output appears under its name when it is complete; a failed conversion leaves nothing behind.";

/// Convert a recording to another format.
#[derive(Debug, Args)]
#[command(after_help = CONVERT_EXAMPLES, override_usage = "isotherm convert [OPTIONS] <IN>... <OUT>")]
pub struct ConvertArgs {
    /// Recording to read, and last the file to write; `-` is standard input or output. Several files of one run, or the
    /// directory they are in, are read as one. What is written to is replaced when it is a recording, and kept as FILE.old
    /// unless it was made of the same one; left alone when it is anything else
    // One list: of two, the parser takes what stands behind an option for too much, and it counts up to an option only.
    #[arg(value_name = "FILE", required = true, num_args = 1..)]
    pub files: Vec<PathBuf>,
    #[command(flatten)]
    pub foreign: ForeignArgs,
    /// Format of the output [default: by its name]: rec, parquet, json_compressed, json, perf-script, record-v0,
    /// record-v1, record-v2
    #[arg(long, value_name = "FORMAT")]
    pub to: Option<Format>,
    /// Say nothing but errors
    #[arg(short, long)]
    pub quiet: bool,
}

impl ConvertArgs {
    /// What is written to, and what is read: the last file, and those before it, if there are any.
    pub fn sides(&self) -> Option<(&Path, &[PathBuf])> {
        let (output, inputs) = self.files.split_last()?;
        (!inputs.is_empty()).then_some((output, inputs))
    }
}

/// Bounds of access rates.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// Lowest.
    pub min: Option<Rate>,
    /// Highest.
    pub max: Option<Rate>,
}

fn parse_sizes(text: &str) -> Result<Bounds<u64>, UnitError> {
    parse_bounds(text, parse_size)
}

/// A time that is not 0, in which nothing could be accessed.
fn parse_window(text: &str) -> Result<Duration, String> {
    match parse_time(text) {
        Ok(Duration::ZERO) => Err("nothing is accessed in no time; give a window such as 1s".to_owned()),
        Ok(window) => Ok(window),
        Err(error) => Err(error.to_string()),
    }
}

/// An interval of monitoring, which recordings have in microseconds.
fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_time(text) {
        Ok(interval) if interval < Duration::from_micros(1) => Err("too short; the least is 1 us".to_owned()),
        Ok(interval) => Ok(interval),
        Err(error) => Err(error.to_string()),
    }
}

fn parse_times(text: &str) -> Result<Bounds<Duration>, UnitError> {
    parse_bounds(text, parse_time)
}

/// `MIN..MAX` of rates, which have no order among each other as long as some are shares.
fn parse_rates(text: &str) -> Result<Rates, String> {
    let parse_rate = |text: &str| parse_rate(text).map_err(|error| error.to_string());
    let end = |part: &str| match part.trim() {
        "" => Ok(None),
        part => parse_rate(part).map(Some),
    };
    let rates = match text.split_once("..") {
        Some((min, max)) => Rates { min: end(min)?, max: end(max)? },
        None => {
            let rate = Some(parse_rate(text)?);
            Rates { min: rate, max: rate }
        }
    };
    match (rates.min, rates.max) {
        // A rate in Hz and a share are compared when it is known what they are shares of.
        (Some(Rate::Hz(min)), Some(Rate::Hz(max))) | (Some(Rate::Share(min)), Some(Rate::Share(max)))
            if min > max =>
        {
            Err("the minimum is above the maximum; give the lower rate first, as in 5%..20%".to_owned())
        }
        _ => Ok(rates),
    }
}

/// A time from the recording's start: one rule for all that read one.
pub fn parse_selection(text: &str) -> Result<Selection, UnitError> {
    match text.trim() {
        "last" => Ok(Selection::Last),
        range if range.contains("..") => {
            let bounds = parse_times(range)?;
            Ok(match (bounds.min, bounds.max) {
                (Some(min), Some(max)) if min == max => Selection::At(min),
                (min, max) => Selection::Between(min.unwrap_or_default(), max.unwrap_or(Duration::MAX)),
            })
        }
        moment => parse_time(moment).map(Selection::At),
    }
}

fn parse_record(text: &str) -> Result<RecordChoice, String> {
    match (text.trim(), text.trim().parse()) {
        ("all", _) => Ok(RecordChoice::All),
        (_, Ok(nth)) if nth > 0 => Ok(RecordChoice::Nth(nth)),
        _ => Err("give the number of a record, from 1, or `all`".to_owned()),
    }
}

fn parse_threshold(text: &str) -> Result<Threshold, UnitError> {
    match text.trim().parse() {
        Ok(accesses) => Ok(Threshold::Accesses(accesses)),
        Err(_) => parse_rate(text).map(Threshold::Rate),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn when_is_a_moment_a_range_or_the_last() {
        let s = Duration::from_secs;
        assert_eq!(parse_selection("last"), Ok(Selection::Last));
        assert_eq!(parse_selection("10s"), Ok(Selection::At(s(10))));
        assert_eq!(parse_selection("1s..2s"), Ok(Selection::Between(s(1), s(2))));
        assert_eq!(parse_selection(".."), Ok(Selection::Between(s(0), Duration::MAX)));
        assert_eq!(parse_selection("2s..2s"), Ok(Selection::At(s(2))));
        assert!(parse_selection("2s..1s").is_err());
        assert!(parse_selection("yesterday").is_err());
    }

    #[test]
    fn rates_mix_units() {
        let rates = parse_rates("5%..100Hz").unwrap();
        assert_eq!(rates, Rates { min: Some(Rate::Share(0.05)), max: Some(Rate::Hz(100.0)) });
        assert_eq!(parse_rates("..5%").unwrap(), Rates { min: None, max: Some(Rate::Share(0.05)) });
        assert_eq!(parse_rates("0").unwrap(), Rates { min: Some(Rate::Hz(0.0)), max: Some(Rate::Hz(0.0)) });
        assert!(parse_rates("5").is_err());
        assert!(parse_rates("50%..20%").is_err() && parse_rates("2Hz..1Hz").is_err());
        assert!(parse_rates("20%..20%").is_ok() && parse_rates("50%..20Hz").is_ok());
    }

    #[test]
    fn a_record_is_a_number_or_all() {
        assert_eq!(parse_record("2"), Ok(RecordChoice::Nth(2)));
        assert_eq!(parse_record("all"), Ok(RecordChoice::All));
        assert!(parse_record("0").is_err() && parse_record("some").is_err());
    }

    #[test]
    fn a_threshold_is_a_count_or_a_rate() {
        assert_eq!(parse_threshold("3"), Ok(Threshold::Accesses(3)));
        assert_eq!(parse_threshold("10Hz"), Ok(Threshold::Rate(Rate::Hz(10.0))));
        assert!(parse_threshold("-1").is_err());
    }
}
