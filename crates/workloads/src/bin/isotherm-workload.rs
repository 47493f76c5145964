//! A program with a known memory access pattern; see `--help`.

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    isotherm_workloads::main(&isotherm_workloads::Args::parse())
}
