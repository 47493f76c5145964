//! What can be said to `isotherm top`.

use super::{MonitorArgs, TargetArgs};
use clap::Args;
use isotherm_report::colour::ColourChoice;
use isotherm_report::units::parse_time;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  isotherm top                                  every process of the machine
  isotherm top --pid 1234                       one, with its children; Enter opens it
  isotherm top --cgroup system.slice/redis.service
  isotherm top -- ./my-program --its-option     a command from its start; what it prints is shown at the end

Keys stand at the bottom of the screen, and `?` explains them. `w` writes what is kept of the past (ten minutes, at most 64 \
MiB) to a recording that `isotherm report` reads.

Over a slow line the screen is drawn less often: it sends at most 8 kB a second by itself, and takes at most 0.8 % of a CPU \
beside what monitoring takes (--overhead). The status is 0 after `q` or Ctrl-C, 128 + N after signal N, that of the command \
if there is one, and 1 if nothing could be watched.";

/// Watch live which memory is in use: processes, their mappings, a heatmap.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct TopArgs {
    #[command(flatten)]
    pub targets: TargetArgs,
    /// How often to draw [default: about once a second, less often where the line is slow]
    #[arg(long, value_name = "TIME", value_parser = parse_refresh)]
    pub refresh: Option<Duration>,
    /// When to use colours: auto, always, never. Auto heeds NO_COLOR
    #[arg(long, value_name = "WHEN", default_value = "auto")]
    pub color: ColourChoice,
    /// Leave the mouse to the terminal, which then selects text with it
    #[arg(long)]
    pub no_mouse: bool,
    #[command(flatten)]
    pub monitor: MonitorArgs,
}

fn parse_refresh(text: &str) -> Result<Duration, String> {
    let time = parse_time(text).map_err(|error| error.to_string())?;
    if time < Duration::from_millis(50) {
        return Err("at most twenty times a second: give 50ms or more".into());
    }
    Ok(time)
}
