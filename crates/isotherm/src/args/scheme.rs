//! The arguments of `isotherm scheme`.

use super::report::{ForeignArgs, parse_selection};
use super::{ApplyArgs, InputArgs};
use clap::{Args, Subcommand};
use isotherm_damon::schemes::Action;
use isotherm_report::access::Selection;
use isotherm_report::units::parse_size;
use isotherm_schemes::Format;
use isotherm_schemes::trial::Throughput;
use std::path::PathBuf;

#[derive(Debug, Subcommand)]
pub enum SchemeCommand {
    /// Read a scheme file and say what it does, a sentence a scheme, or what is wrong with it
    Check(CheckArgs),
    /// Convert a scheme file to another format
    Convert(SchemeConvertArgs),
    /// Say what schemes would have done to the memory of a recording: what is saved, what comes back
    Try(Box<TryArgs>),
    /// Act on the memory of live processes as schemes say
    Apply(Box<ApplyArgs>),
}

/// Which schemes.
#[derive(Clone, Debug, Args)]
pub struct SchemeArgs {
    /// Scheme file (TOML, the one-line text format, or damo's JSON; `-` is standard input), or a preset, with parameters where
    /// wanted: prcl, ethp, reclaim:min_age=5m,quota_sz=1G, lru-sort, stat. A file with the name of a preset: ./NAME
    #[arg(value_name = "FILE|PRESET")]
    pub schemes: String,
    /// Format of the file, when it is not to be found out: toml, text, damo
    #[arg(long, value_name = "FORMAT")]
    pub from: Option<Format>,
}

const CHECK_EXAMPLES: &str = "\
Examples:
  isotherm scheme check my.toml                    what each scheme does, or all that is wrong, with its line
  isotherm scheme check reclaim:min_age=5m         a preset with a parameter of its own
  isotherm scheme check --presets                  the presets and their parameters
  echo '4K null  null 5  5s null  pageout' | isotherm scheme check -
  isotherm scheme check --json-schema > isotherm-schemes.json    for editors that check TOML while you write

A file in TOML:
  [[scheme]]
  name = \"idle\"
  action = \"pageout\"
  max_access = \"5%\"
  min_age = \"2m\"
  quota.size = \"100M/s\"

The status is 0 when the schemes are valid, and 1 otherwise. What this machine lacks for them, such as
a NUMA node or a control group that is named, is said as well, and makes none invalid.";

/// Read a scheme file and say what it does, a sentence a scheme, or what is wrong with it.
#[derive(Debug, Args)]
#[command(after_help = CHECK_EXAMPLES)]
pub struct CheckArgs {
    #[command(flatten)]
    pub schemes: Option<SchemeArgs>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Print the JSON schema of the TOML format
    #[arg(long, exclusive = true)]
    pub json_schema: bool,
    /// Print the presets with their parameters and defaults
    #[arg(long, exclusive = true)]
    pub presets: bool,
}

const CONVERT_EXAMPLES: &str = "\
Examples:
  isotherm scheme convert schemes.txt --to toml              to standard output
  damo args damon --format json ... | isotherm scheme convert - --to toml -o mine.toml
  isotherm scheme convert reclaim --to toml -o reclaim.toml  a preset as a file to change
  isotherm scheme convert mine.toml --to damo --strict       only if damo can say all of it

What the other format cannot say is told on standard error, a line each: the scheme, the field, and what becomes of it.";

/// Convert a scheme file to another format.
#[derive(Debug, Args)]
#[command(after_help = CONVERT_EXAMPLES)]
pub struct SchemeConvertArgs {
    #[command(flatten)]
    pub schemes: SchemeArgs,
    /// Format to write: toml, text (the one-line format), damo (a list of schemes, as `damo --schemes` takes it)
    #[arg(long, value_name = "FORMAT")]
    pub to: Format,
    /// File to write [default: standard output]. It is replaced only if schemes can be read from it
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    /// Write nothing if anything would be lost
    #[arg(long)]
    pub strict: bool,
}

const TRY_EXAMPLES: &str = "\
Examples:
  isotherm scheme try prcl -i my.rec                     what would have been paged out, and what of it came back
  isotherm scheme try my.toml -i my.rec --json
  isotherm scheme try prcl -i my.rec --sweep min_age=1s..60s           the trade-off, a line a value
  isotherm scheme try prcl -i my.rec --sweep min_age=1s..60s -o t.png  the same as a picture
  isotherm scheme try my.toml -i my.rec --sweep idle.quota.size=1M,10M,100M
  isotherm scheme try reclaim -i my.rec --throughput 300M              swap of the machine it is meant for takes so much a second

Nothing is done to any process. The schemes run over the recorded regions with their quotas, apply intervals, and filters of
addresses and targets. Memory paged out stays out until it is accessed again, and is not paged out again before; each action lets
an age begin anew. A pageout scheme without quota and watermarks gets the quota that `scheme apply` gives it. What a recording cannot say (memory pressure, free memory, kinds of pages) is noted with what was assumed. Memory
whose rate is unknown is left alone.

What can be swept: min_size, max_size, min_access, max_access, min_age, max_age, apply_interval, quota.size, quota.time,
quota.reset_interval, in all schemes or, as NAME.PARAMETER, in one.";

/// Say what schemes would have done to the memory of a recording: what is saved, what comes back.
#[derive(Debug, Args)]
#[command(after_help = TRY_EXAMPLES)]
pub struct TryArgs {
    #[command(flatten)]
    pub schemes: SchemeArgs,
    /// Recording to read, in any format `isotherm convert` reads; `-` is standard input. Several files of one run, or the
    /// directory they are in, are read as one recording
    #[arg(short, long, value_name = "RECORD", num_args = 1.., default_value = "isotherm.rec")]
    pub input: Vec<PathBuf>,
    /// Only this time from the recording's start: `FROM..TO`, of which either end may be left out; `10s` is the snapshot of a
    /// moment, `last` the last one
    #[arg(long, value_name = "WHEN", value_parser = parse_selection)]
    pub time: Option<Selection>,
    /// Try several values of a parameter, `PARAMETER=MIN..MAX` (eight of them) or `PARAMETER=VALUE,VALUE,...`
    #[arg(long, value_name = "PARAMETER=VALUES")]
    pub sweep: Option<String>,
    /// Bytes that a scheme's action gets done in a second of its quota's time, or ACTION=SIZE for one action; repeatable. Matters
    /// only to quotas of time [default: of pageout what is measured here, where there is swap]
    #[arg(long, value_name = "[ACTION=]SIZE", value_parser = parse_throughput)]
    pub throughput: Vec<Throughput>,
    /// With --sweep, draw the trade-off as a picture instead: FILE.png or FILE.svg
    #[arg(short, long, value_name = "FILE", conflicts_with = "json")]
    pub output: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl TryArgs {
    /// The recording to read.
    pub fn recording(&self) -> InputArgs {
        let foreign = ForeignArgs { from: None, sample: None, aggr: None, record: None };
        InputArgs { input: self.input.clone(), target: Vec::new(), foreign }
    }
}

fn parse_throughput(text: &str) -> Result<Throughput, String> {
    let (action, size) = text.split_once('=').map_or((None, text), |(action, size)| (Some(action), size));
    let action = match action {
        None => None,
        Some(name) => {
            let known = || Action::ALL.map(Action::name).join(", ");
            Some(
                Action::from_name(name.trim())
                    .ok_or_else(|| format!("there is no action {name:?}; there are {}", known()))?,
            )
        }
    };
    let bytes_per_s = parse_size(size.trim().trim_end_matches("/s")).map_err(|error| error.to_string())?;
    if bytes_per_s == 0 {
        return Err("nothing would ever be done".to_owned());
    }
    Ok(Throughput { action, bytes_per_s, source: "--throughput says".to_owned() })
}
