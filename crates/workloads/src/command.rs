//! The command line of a workload, for its own binary and for any other that wants to offer it.

use crate::pattern::{BUILTIN, Pattern, PatternError};
use crate::plan::{Overrides, PageSizes, Plan};
use crate::quantity::Span;
use crate::run::{RunError, Start, run};
use crate::truth::Page;
use clap::{Parser, ValueEnum};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::fs::File;
use std::io::{BufWriter, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Pages as the command line calls them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum PageArg {
    /// Order-0 pages.
    #[value(name = "4k")]
    Base,
    /// Transparent huge pages.
    #[value(name = "thp")]
    Huge,
}

/// Runs a program with a known memory access pattern. It prints what it does as JSON lines: its areas, `ready`, then
/// each phase with the rate at which every byte was accessed.
#[derive(Clone, Debug, Parser)]
#[command(name = "isotherm-workload", version, arg_required_else_help = true)]
pub struct Args {
    /// A built-in pattern (--list tells which there are and what they do), or a file that ends in .toml
    #[arg(required_unless_present = "list")]
    pattern: Option<String>,
    /// List the built-in patterns and their parameters
    #[arg(long)]
    list: bool,
    /// Print the pattern's TOML text: the start of one's own
    #[arg(long)]
    show: bool,
    /// Size of the pages that back the areas [default: the pattern's]
    #[arg(long)]
    page: Option<PageArg>,
    /// Change a parameter of the pattern; repeatable
    #[arg(long = "set", value_name = "KEY=VALUE", value_parser = key_value)]
    set: Vec<(String, String)>,
    /// Seed of random draws [default: the pattern's]
    #[arg(long)]
    seed: Option<u64>,
    /// How often to go through all phases [default: the pattern's]
    #[arg(long)]
    cycles: Option<u32>,
    /// Factor on the length of phases, for instance 0.2 for a quick run
    #[arg(long, value_name = "FACTOR")]
    scale_time: Option<f64>,
    /// Wait so long between `ready` and the first phase
    #[arg(long, value_name = "TIME", value_parser = time, conflicts_with = "start_on_stdin")]
    delay: Option<Span>,
    /// Wait for a line (or the end) of standard input between `ready` and the first phase
    #[arg(long)]
    start_on_stdin: bool,
    /// Write the truth to a file instead of standard output
    #[arg(long, value_name = "FILE")]
    truth: Option<PathBuf>,
}

fn key_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("write KEY=VALUE, for instance size=10M".to_owned()),
    }
}

fn time(text: &str) -> Result<Span, String> {
    text.parse().map_err(|e: crate::QuantityError| e.to_string())
}

/// Why the command ended badly.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The pattern is at fault.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The run is at fault.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The file for the truth cannot be written.
    #[error("cannot write {path}: {source}", path = path.display())]
    Truth {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        #[source]
        source: std::io::Error,
    },
    /// Standard output cannot be written.
    #[error("cannot write to standard output: {0}")]
    Stdout(#[source] std::io::Error),
    /// No handler for SIGINT and SIGTERM.
    #[error("cannot catch signals: {0}")]
    Signals(#[source] std::io::Error),
}

/// Does what `args` say; errors go to standard error as one sentence. The status is 0 also when a signal ended the
/// run: the truth is complete up to that moment.
pub fn main(args: &Args) -> ExitCode {
    match args.execute() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("isotherm-workload: {error}");
            match error {
                // As of arguments that cannot be parsed.
                CommandError::Pattern(error) if error.is_misuse() => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}

impl Args {
    /// The plan that the arguments ask for on this machine.
    ///
    /// # Errors
    /// When there is no such pattern or it cannot be carried out.
    pub fn plan(&self) -> Result<Plan, PatternError> {
        let pattern = Pattern::load(self.pattern.as_deref().unwrap_or_default(), &self.set)?;
        let page = self.page.map(|p| match p {
            PageArg::Base => Page::Base,
            PageArg::Huge => Page::Huge,
        });
        let over = Overrides { page, seed: self.seed, cycles: self.cycles, time_scale: self.scale_time };
        Plan::new(&pattern, &over, PageSizes::of_this_machine())
    }

    /// Lists, shows or runs, whichever the arguments ask for.
    ///
    /// # Errors
    /// Whatever keeps the workload from running to its end or from telling its truth.
    pub fn execute(&self) -> Result<(), CommandError> {
        let stdout = std::io::stdout();
        if self.list {
            return list(&mut stdout.lock());
        }
        if self.show {
            let name = self.pattern.as_deref().unwrap_or_default();
            // Loading also says what is wrong with the name or the file.
            Pattern::load(name, &self.set)?;
            let text = match BUILTIN.iter().find(|(n, _)| *n == name) {
                Some((_, text)) => (*text).to_owned(),
                None => std::fs::read_to_string(name)
                    .map_err(|source| PatternError::Read { path: name.to_owned(), source })?,
            };
            return stdout.lock().write_all(text.as_bytes()).map_err(CommandError::Stdout);
        }
        let plan = self.plan()?;
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
            signal_hook::flag::register(signal, Arc::clone(&stop)).map_err(CommandError::Signals)?;
        }
        let mut out: Box<dyn Write> = match &self.truth {
            None => Box::new(stdout),
            Some(path) => {
                let file = File::create(path)
                    .map_err(|source| CommandError::Truth { path: path.clone(), source })?;
                Box::new(BufWriter::new(file))
            }
        };
        let start = match (self.start_on_stdin, self.delay) {
            (true, _) => Start::When(&mut line_on_stdin),
            (false, Some(delay)) => Start::After(delay.0),
            (false, None) => Start::Now,
        };
        let outcome = run(&plan, start, &stop, &mut *out)?;
        for area in &outcome.backed_otherwise {
            let page = if plan.page == Page::Huge { "huge pages" } else { "order-0 pages" };
            eprintln!(
                "isotherm-workload: area {area} is not backed by {page} only; the truth says by what it is"
            );
        }
        if let Some(work) = outcome.work_summary() {
            eprintln!("isotherm-workload: {work}");
        }
        Ok(())
    }
}

/// Whether standard input has a line, or is over. Never blocks.
fn line_on_stdin() -> bool {
    let stdin = std::io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    match poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })) {
        Ok(0) | Err(rustix::io::Errno::INTR) => false,
        // Something to read, the end, or no usable standard input at all: nothing more to wait for.
        _ => {
            let _ = stdin.lock().read(&mut [0; 64]);
            true
        }
    }
}

fn list(out: &mut dyn Write) -> Result<(), CommandError> {
    for (name, text) in BUILTIN {
        let pattern = Pattern::parse(name, text, &[])?;
        let params: Vec<_> = pattern.params.iter().map(|(k, v)| format!("{k}={}", plain(v))).collect();
        writeln!(out, "{name:<10} {}\n{:<10} --set {}", pattern.summary, "", params.join(" "))
            .map_err(CommandError::Stdout)?;
    }
    Ok(())
}

fn plain(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
