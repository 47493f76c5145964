//! What can be said to `isotherm lab ablate`.

use clap::Args;

// A paragraph is one line, broken where the terminal ends.
const EXAMPLES: &str = "\
Examples:
  isotherm lab ablate --list                          the constants, what they are for, and what each is without
  isotherm lab ablate surprise_row price              two of them, in all patterns
  isotherm lab ablate price --factor 1.5 --seeds 8    a smaller step, more seeds
  isotherm lab ablate price --pattern zipf --details  pattern by pattern
  isotherm lab ablate --json | jq '.ablations[] | select(.effect != \"differs\") | .constant'

Nothing is watched and no privilege needed: the sampler watches simulated address spaces, with looks, clears and wake-ups at \
the price they have on a virtual machine, under the default ceiling of 1 % of a CPU. The same seeds give the same figures.

The first table shows what the constants give as they are. In the second, each row is one constant changed and the differences \
that makes, on average over the patterns that have the figure: without it, or where there is no without, divided and \
multiplied by the factor. Columns:
  F1 hot      F1 of bytes told to be hot: 15 Hz and more are, 6.7 Hz and less are not
  F1 1 s      F1 of bytes accessed within a second, recorded against true
  rate error  mean relative error of the rates of 10 to 50 Hz
  found       until the greater part of hot memory is told to be hot
  clears/s    ranges cleared, each of which flushes translations
  CPU         of one CPU, by the simulation's prices

A difference counts where it is more than twice the standard deviation over the seeds, and more than 0.005 of F1, 2 % of a \
rate, 0.1 s, or 3 % of a cost. The last column names the figure that stands out most, and how many others do. `= nothing` \
marks constants that make no difference by that; `= unused` those that never came into play, as no run went any other way. \
Shared memory and stale translations are not simulated: what is for those shows nothing here.

Patterns: stairs, zigzag, hotspot, rates, random-rates, huge-rates, threads, zipf, sweep, front, workers, swarm, nap.

All constants take some minutes. The status is 0, 2 when a name is unknown, 130 after Ctrl-C.";

/// Simulate the sampler without each of its constants: what accuracy and cost are then.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct AblateArgs {
    /// Constants [default: all]
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// List the constants, with the reason for each, and simulate nothing
    #[arg(long, conflicts_with_all = ["pattern", "factor", "seeds", "details", "json"])]
    pub list: bool,
    /// Simulate only this pattern; repeatable
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub pattern: Vec<String>,
    /// What constants are divided and multiplied by of which there is no without, from 1.01 to 1000
    #[arg(long, value_name = "FACTOR", default_value = "2", value_parser = factor)]
    pub factor: f64,
    /// Runs of each pattern, each with another seed; the first are the same in every call
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(2..=1000))]
    pub seeds: u32,
    /// Print every pattern, not just the mean
    #[arg(long)]
    pub details: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

fn factor(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(factor) if (1.01..=1000.0).contains(&factor) => Ok(factor),
        _ => Err("give a number from 1.01 to 1000, such as 2".into()),
    }
}
