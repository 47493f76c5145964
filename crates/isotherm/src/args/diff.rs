//! The arguments of `isotherm report diff`.

use super::report::ForeignArgs;
use clap::Args;
use isotherm_report::units::{parse_share, parse_time};
use std::path::PathBuf;
use std::time::Duration;

const ABOUT: &str = "\
Examples:
  isotherm report diff before.rec after.rec
  isotherm report diff a1.rec,a2.rec,a3.rec b1.rec,b2.rec,b3.rec   several a side: finds less, errs less
  isotherm report diff --exit-code before.rec after.rec; [ $? = 1 ] && echo changed

Mappings are matched by program and name, anonymous ones by order and size; addresses do not matter. Compared are the
mean over time of the working set (accessed at least once within 1 s) and of the access rate of what is in it.
Mappings below 1 MiB or 5 % of the working set are too small to compare. Anonymous memory whose size differs by more than
2 %, or is that of others of the program, may have been taken for another: a change for which those make up by more than half is
unclear.

What a difference is. Each recording is cut into blocks of 1 s and more, and of six and more the middle half counts, so that
a busy second does not; nor do blocks in which the monitor was later, or had lost sight of more, than in others (two
fifths and two thirds at most): where others had the processors the program had not. Two recordings of one
program differ by more than their blocks show, since monitoring is sampling: that is taken to be 1.5 % of a working
set plus 256 KiB, and 10 % of a rate (standard deviations, from recordings of steady programs); what its blocks scatter by
adds to that as far as it is more than half of it. Where the monitor was
late for more than 2 % of the sampling intervals of the rest the machine was busy, and how fast the program ran is uncertain by twice
of what is beyond that: that adds to the noise as far as the working set moves with speed, and an eighth of it in any case
(half of it to that of rates).
Memory in motion (a garbage collector's, that of a compiler started for each file) is in use by chance. What of a working
set gives way to other memory within two seconds, beyond the 0.8 % that steady ones show, is said; the working set is
uncertain by twice that share (all of it at most), its rate by eight times. Where a recording is too short to tell a tenth is taken.
With several recordings a side, their own scatter takes the place of all that; of four and more a side the middle half counts.
Any part of what is unknown may have been in use, on each side another: each part is taken to be as likely as any other, which
adds a standard deviation of 29 % of the unknown bytes (not of what no recording can see, as locked memory), however many
recordings there are. A
t-test on that gives p, corrected for all that is compared (Holm; of --level four fifths go to working sets, a fifth
to rates). Called different is what has p < --level, changed by --min-change at least (a rate: by 25 %), and is not
explained by what more is unknown on the side that has less: a change has to be more than twice of that.

What can be found. Of a steady program two recordings of 10 s show a change of the working set of 8 % and more, two of
10 s a side one of 5 to 10 %, three a side one of 5 %. A program that does not come around to all of its hot set within a
second has a working set that goes by its speed: a larger hot set does not show in it, and a busy machine does.

What is unclear. A working set that seems to have changed by --min-change, where that is within the noise, and the noise
would hide a change twice as large; or where what is unknown explains the change. More or longer recordings may show it.
Where nothing seems to have changed and noise would hide that much, it is said beside; where it is mostly what is unknown that
would hide it, that is unclear, too. Unclear is also what could not be
compared at all: less than 1 MiB is known to be in use, or noise would hide a working set that doubled. JSON has the
outcome (same, unclear, different), and as detectable the smallest change that noise would not hide, a share of A.

So two recordings are enough for what is as clear as that. A program whose runs differ for reasons of its own (other
input, another phase) does differ; give several recordings a side to find out what is common to them.";

/// Two recordings of one program: working sets, what got hotter and colder, and whether that is more than noise.
#[derive(Debug, Args)]
#[command(after_help = ABOUT)]
pub struct DiffArgs {
    /// First recording, or several, separated by commas
    #[arg(value_name = "A")]
    pub a: PathBuf,
    /// Second recording, or several, separated by commas
    #[arg(value_name = "B")]
    pub b: PathBuf,
    /// Only this target: its pid, or the name of its program; repeatable
    #[arg(long, value_name = "PID|NAME")]
    pub target: Vec<String>,
    #[command(flatten)]
    pub foreign: ForeignArgs,
    /// Left out at the start of each recording: until the monitor has seen most. Of short ones at most a fifth
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = parse_time)]
    pub settle: Duration,
    /// Smallest change of a working set that counts
    #[arg(long, value_name = "SHARE", default_value = "5%", value_parser = parse_share)]
    pub min_change: f64,
    /// Highest probability of calling noise a difference, over all that is compared
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = parse_share)]
    pub level: f64,
    /// Exit with status 0 when there is no significant difference, 1 when there is one, 2 on errors, 3 when it is unclear
    #[arg(long)]
    pub exit_code: bool,
    /// Columns to use [default: those of the terminal]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(40..))]
    pub width: Option<u16>,
    /// Print JSON: sizes in bytes, rates in Hz
    #[arg(long)]
    pub json: bool,
}
