//! From the command line to what does the work.

use crate::args::{Cli, Command, LabCommand};
use crate::{convert, doctor, lab, manual, record, report, scheme, top};
use std::process::ExitCode;

/// Runs what was asked for; gives the status to exit with.
///
/// # Errors
/// What went wrong, in words for the person who asked.
pub fn run(cli: Cli) -> anyhow::Result<ExitCode> {
    match cli.command {
        Command::Record(args) => record::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Lab(LabCommand::Accuracy(args)) => lab::accuracy(&args),
        Command::Lab(LabCommand::Overhead(args)) => lab::overhead(&args),
        Command::Lab(LabCommand::Overcommit(args)) => lab::overcommit::run(&args),
        Command::Lab(LabCommand::Frames(args)) => lab::frames::run(&args),
        Command::Lab(LabCommand::Fork(args)) => lab::fork::run(&args),
        Command::Lab(LabCommand::Tree(args)) => lab::tree::run(&args),
        Command::Lab(LabCommand::Faults(args)) => lab::faults::run(&args),
        Command::Lab(LabCommand::Sim(args)) => lab::sim::run(&args),
        Command::Lab(LabCommand::Ablate(args)) => lab::ablate::run(&args),
        Command::Lab(LabCommand::Schemes(args)) => lab::saving::run(&args),
        Command::Report(command) => report::run(&command),
        Command::Scheme(command) => scheme::run(command),
        Command::Convert(args) => convert::run(&args),
        Command::Doctor { json } => doctor::run(json),
        Command::Completions { shell } => manual::completions(shell).map(|()| ExitCode::SUCCESS),
        Command::Man { dir } => manual::man(dir.as_deref()).map(|()| ExitCode::SUCCESS),
        Command::Workload(args) => Ok(isotherm_workloads::main(&args)),
    }
}
