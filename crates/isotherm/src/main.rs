//! The command line of Isotherm.

mod args;
mod commands;
mod convert;
mod lab;
mod manual;
mod output;
mod reading;
mod record;
mod report;
mod stop;
mod terminal;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    // A closed pipe (`isotherm report raw | head`) ends the program quietly, as it does others.
    // SAFETY: before any thread is started; SIG_DFL is a valid disposition.
    unsafe { libc::signal(libc::SIGPIPE, libc::SIG_DFL) };
    let cli = args::Cli::parse();
    match commands::run(cli) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("isotherm: {error:#}");
            ExitCode::from(1)
        }
    }
}
