//! Shell completions and manual pages.

use crate::args::Cli;
use crate::help;
use anyhow::Context;
use clap::{Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use std::io::{self, Write};
use std::path::Path;

/// Prints the completions for `shell`.
///
/// # Errors
/// Those of standard output.
pub fn completions(shell: Shell) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "isotherm", &mut script);
    crate::report::print(|out| out.write_all(&script))
}

/// Writes a manual page a command into the directory; without one, prints the page of `isotherm` itself.
///
/// # Errors
/// When the directory cannot be made or written to.
pub fn man(dir: Option<&Path>) -> anyhow::Result<()> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let Some(dir) = dir else {
        let page = page(&command)?;
        return crate::report::print(|out| out.write_all(&page));
    };
    std::fs::create_dir_all(dir).with_context(|| format!("cannot make the directory {}", dir.display()))?;
    write_pages(&command, dir)
}

fn write_pages(command: &Command, dir: &Path) -> anyhow::Result<()> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let path = dir.join(format!("{name}.1"));
    std::fs::write(&path, page(command)?).with_context(|| format!("cannot write {}", path.display()))?;
    command.get_subcommands().try_for_each(|subcommand| write_pages(subcommand, dir))
}

/// The page of one command: usage as `--help` has it, what each option takes, and examples a line each.
fn page(command: &Command) -> io::Result<Vec<u8>> {
    let usage = command.clone().render_usage().to_string();
    let usage = usage.trim_start_matches("Usage:").trim().to_owned();
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let man = Man::new(command.clone().override_usage(usage)).title(name);
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|arg| !arg.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    if let Some(text) = command.get_after_help() {
        page.extend_from_slice(help::as_roff(&help::blocks(&text.to_string())).as_bytes());
    }
    man.render_version_section(&mut page)?;
    Ok(page)
}
