//! How to monitor: the options of everything that records.

use clap::{Args, ValueEnum};
use isotherm_damon::{Attrs, AttrsError, IntervalsGoal};
use isotherm_linux::backend::{Backend, MonitorOptions, SamplerName};
use isotherm_report::units::{format_time_exactly, parse_share, parse_time};
use std::num::IntErrorKind;
use std::time::Duration;

/// Which way to look at memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum BackendName {
    /// The best that works here: pte, idle, kernel, refs, in this order
    Auto,
    /// Page tables read by eBPF, bits cleared by process_madvise, those of shared memory by clear_refs (root or
    /// capabilities; Linux 5.17)
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

/// Who decides which pages to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum SamplerChoice {
    /// Isotherm's own: reads whole page tables, and clears as little as the budget allows (needs `pte`)
    Watch,
    /// DAMON's: a random page of each region, cleared and looked at in each sampling interval
    Classic,
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
    /// Least number of regions, 3 to --max-regions
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = parse_regions, allow_negative_numbers = true)]
    pub min_regions: usize,
    /// Largest number of regions, unless --min-regions of each process are more, and of access checks in a sampling interval;
    /// 1000000 at most
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = parse_regions, allow_negative_numbers = true)]
    pub max_regions: usize,
    /// Ceiling of the monitor's own CPU time, in percent of one CPU, 100% at most; 0 is none
    #[arg(long, value_name = "SHARE", default_value = "1%", value_parser = parse_ceiling, allow_hyphen_values = true)]
    pub overhead: f64,
    /// Who decides which pages to look at; `kernel` and `refs` have no choice [default: watch with `pte`, classic with
    /// `idle`]
    #[arg(long, value_enum, value_name = "SAMPLER")]
    pub sampler: Option<SamplerChoice>,
    /// Let the intervals follow what is observed, so that SHARE of all possible accesses is seen; looks every AGGRS
    /// aggregations and keeps the sampling interval within MIN and MAX. With `pte` and `idle` [default: off; without a
    /// value: 4%,3,5ms,10s]
    #[arg(
        long,
        value_name = "SHARE,AGGRS,MIN,MAX",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "4%,3,5ms,10s",
        value_parser = parse_goal
    )]
    pub auto_intervals: Option<IntervalsGoal>,
    /// Never clear the Accessed bits of a whole process at once (clear_refs), which makes its memory look older to the
    /// kernel's reclaim, and from Linux 6.5 on has its page faults wait meanwhile; shared memory in use is then not seen.
    /// With `pte`
    #[arg(long)]
    pub no_sweep: bool,
    /// Which way to look at memory; see `isotherm doctor`
    #[arg(long, value_enum, value_name = "BACKEND", default_value_t = BackendName::Auto)]
    pub backend: BackendName,
}

impl MonitorArgs {
    /// The options as `isotherm record` takes them.
    pub fn to_options(&self) -> Vec<String> {
        let us = |d: Duration| format!("{}us", d.as_micros());
        let backend = self.backend.to_possible_value().map_or_else(String::new, |v| v.get_name().to_owned());
        let mut options: Vec<String> = [
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
        .collect();
        let sampler = self.sampler.and_then(|choice| choice.to_possible_value());
        options.extend(sampler.into_iter().flat_map(|v| ["--sampler".to_owned(), v.get_name().to_owned()]));
        options.extend(self.auto_intervals.map(|goal| {
            format!(
                "--auto-intervals={}%,{},{},{}",
                f64::from(goal.access_bp) / 100.0,
                goal.aggrs,
                us(goal.min_sample),
                us(goal.max_sample)
            )
        }));
        options.extend(self.no_sweep.then(|| "--no-sweep".to_owned()));
        options
    }

    /// What is asked of the monitor beside its attributes.
    pub fn options(&self) -> MonitorOptions {
        MonitorOptions {
            sampler: self.sampler.map(|choice| match choice {
                SamplerChoice::Watch => SamplerName::Watch,
                SamplerChoice::Classic => SamplerName::Classic,
            }),
            intervals_goal: self.auto_intervals,
            sweep: !self.no_sweep,
        }
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
        if self.update < LEAST_UPDATE {
            misuse!(
                "--update {} is too short; the least is {}",
                format_time_exactly(self.update),
                format_time_exactly(LEAST_UPDATE)
            );
        }
        match attrs.validate() {
            Ok(()) => self.check_backend().map(|()| attrs),
            Err(AttrsError::ZeroSample) => {
                misuse!("--sample {} is too short; the least is 1 us", format_time_exactly(self.sample))
            }
            Err(AttrsError::MinTooSmall(min)) => {
                misuse!(
                    "--min-regions {min} is too few; there must be at least 3 (heap, mmap area and stack)"
                )
            }
            Err(AttrsError::MaxBelowMin { min, max }) => {
                misuse!(
                    "--max-regions {max} is less than --min-regions {min}; raise the one or lower the other"
                )
            }
            Err(AttrsError::AggrBelowSample { sample, aggr }) => misuse!(
                "--aggr {} is shorter than --sample {}; an aggregation takes at least one sampling interval",
                format_time_exactly(aggr),
                format_time_exactly(sample)
            ),
        }
    }

    /// Refuses what the backend that was named does not have on any machine.
    fn check_backend(&self) -> anyhow::Result<()> {
        let named = self.backend.to_possible_value();
        let name = named.as_ref().map_or("", |value| value.get_name());
        if matches!(self.backend, BackendName::Kernel | BackendName::Refs) {
            if self.auto_intervals.is_some() {
                misuse!("--backend {name} does not tune its intervals; leave --auto-intervals out");
            }
            if self.sampler.is_some() {
                misuse!("--backend {name} has no samplers to choose from; leave --sampler out");
            }
        }
        if (self.backend, self.sampler) == (BackendName::Idle, Some(SamplerChoice::Watch)) {
            misuse!(
                "the pages of --backend idle cannot be read a table at a time, as `watch` does; take --sampler classic"
            );
        }
        Ok(())
    }
}

/// The shortest regions update interval that can be asked for. A guess: to look mappings up takes some tenths of that, whatever the
/// overhead ceiling allows.
const LEAST_UPDATE: Duration = Duration::from_millis(1);

/// The most regions that can be asked for. A guess: a thousand times the default; each takes part of a core's cache and of every
/// snapshot.
const MOST_REGIONS: usize = 1_000_000;

/// Parses a ceiling of CPU time. One thread watches, so that more than a CPU is a slip, or is meant to be none.
fn parse_ceiling(text: &str) -> Result<f64, String> {
    match parse_share(text) {
        Ok(share) if share > 1.0 => Err("above 100%, all that a CPU has; 0 is no ceiling".to_owned()),
        Ok(share) => Ok(share),
        Err(error) => Err(error.to_string()),
    }
}

/// Parses a number of regions. Which are too few is said with the other attributes.
fn parse_regions(text: &str) -> Result<usize, String> {
    let why = match text.parse::<u64>() {
        Ok(number) if number <= MOST_REGIONS as u64 => return Ok(number as usize),
        Ok(_) => "too many",
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => "too many",
        Err(_) => "not a whole number",
    };
    Err(format!("{why}; regions are 3 to {MOST_REGIONS}"))
}

/// Parses `SHARE,AGGRS,MIN,MAX`.
fn parse_goal(text: &str) -> Result<IntervalsGoal, String> {
    const FORM: &str = "a goal is SHARE,AGGRS,MIN,MAX, for instance 4%,3,5ms,10s";
    let parts: Vec<&str> = text.split(',').map(str::trim).collect();
    let &[share, aggrs, min, max] = parts.as_slice() else { return Err(FORM.to_owned()) };
    let access_bp = (parse_share(share).map_err(|e| e.to_string())? * 10_000.0).round();
    if !(1.0..=10_000.0).contains(&access_bp) {
        return Err(format!("a share of {share}; it must lie between 0.01% and 100%"));
    }
    let aggrs: u32 = aggrs.parse().map_err(|_| format!("{aggrs} is no number of aggregations; {FORM}"))?;
    if aggrs == 0 {
        return Err("at least one aggregation lies between two adjustments".to_owned());
    }
    let (min_sample, max_sample) =
        (parse_time(min).map_err(|e| e.to_string())?, parse_time(max).map_err(|e| e.to_string())?);
    if min_sample.is_zero() || max_sample < min_sample {
        return Err(format!(
            "sampling intervals from {min} to {max}; the first must be the shorter, and not 0"
        ));
    }
    // In range, as checked.
    Ok(IntervalsGoal { access_bp: access_bp as u32, aggrs, min_sample, max_sample })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "what fails here fails the test")]
mod tests {
    use super::*;

    #[test]
    fn a_goal_is_taken_whole_or_refused_with_its_form() {
        assert_eq!(parse_goal("4%,3,5ms,10s"), Ok(IntervalsGoal::default()));
        let goal = parse_goal("0.5%, 1, 1ms, 1ms").unwrap();
        assert_eq!((goal.access_bp, goal.aggrs, goal.min_sample), (50, 1, Duration::from_millis(1)));
        for (text, why) in [
            ("4%", "SHARE,AGGRS"),
            ("4%,x,5ms,10s", "no number of aggregations"),
            ("0%,3,5ms,10s", "between 0.01%"),
            ("400%,3,5ms,10s", "between 0.01%"),
            ("4%,0,5ms,10s", "at least one"),
            ("4%,3,10s,5ms", "shorter"),
            ("4%,3,0,5ms", "not 0"),
            ("4%,3,5,10s", "unit"),
        ] {
            let error = parse_goal(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
    }

    #[test]
    fn options_passed_on_mean_the_same() {
        #[derive(Debug, clap::Parser)]
        struct Line {
            #[command(flatten)]
            monitor: MonitorArgs,
        }
        let parse = |args: &[String]| {
            let line = ["x".to_owned()].into_iter().chain(args.iter().cloned());
            <Line as clap::Parser>::try_parse_from(line).unwrap().monitor
        };
        for args in [
            &[][..],
            &["--sampler", "classic", "--auto-intervals", "--no-sweep"],
            &["--auto-intervals=2.5%,4,1ms,1s", "--sample", "1ms"],
        ] {
            let args: Vec<String> = args.iter().map(|&a| a.to_owned()).collect();
            let (once, again) = (parse(&args), parse(&parse(&args).to_options()));
            assert_eq!(once.options(), again.options(), "{args:?}");
            assert_eq!(once.attrs().unwrap(), again.attrs().unwrap());
        }
    }
}
