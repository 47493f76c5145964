//! Shell completions and manual pages.

use crate::args::Cli;
use anyhow::Context;
use clap::CommandFactory;
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::Path;

/// Prints the completions for `shell`.
///
/// # Errors
/// Those of standard output.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "isotherm", &mut script);
    io::stdout().write_all(&script).context("cannot write to standard output")
}

/// Writes a manual page a command into the directory; without one, prints the page of `isotherm` itself.
///
/// # Errors
/// When the directory cannot be made or written to.
pub fn man(dir: Option<&Path>) -> anyhow::Result<()> {
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(Cli::command()).render(&mut page)?;
        return io::stdout().write_all(&page).context("cannot write to standard output");
    };
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    clap_mangen::generate_to(Cli::command(), dir)
        .with_context(|| format!("cannot write manual pages to {}", dir.display()))
}
