//! `cargo xtask`: work on this repository that cargo alone cannot do.

mod build;
mod guest;
mod steps;
mod table;

use clap::{Parser, Subcommand};
use std::process::ExitCode;

/// Work on this repository that cargo alone cannot do.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build the bare-metal guest, boot it under QEMU, and watch what it takes from the host and how its page tables fare
    Guest(guest::Args),
}

fn main() -> ExitCode {
    let Command::Guest(args) = Cli::parse().command;
    match guest::run(&args) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("cargo xtask guest: {error:#}");
            ExitCode::FAILURE
        }
    }
}
