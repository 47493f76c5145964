//! `isotherm report diff`.

use super::{print, print_json};
use crate::args::{DiffArgs, InputArgs};
use crate::reading::{Recording, is_lost};
use crate::terminal;
use anyhow::{Context, bail};
use isotherm_report::diff::{DiffOptions, Outcome, Profile, compare, write_text};
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Status of an error when the status is asked for a difference.
const TROUBLE: u8 = 2;

/// Status of a comparison that cannot say whether there is one.
const UNCLEAR: u8 = 3;

/// Runs the command.
///
/// # Errors
/// What went wrong, in words for the person who asked.
pub fn run(args: &DiffArgs) -> anyhow::Result<ExitCode> {
    match diff(args) {
        Ok(Outcome::Different) if args.exit_code => Ok(ExitCode::FAILURE),
        Ok(Outcome::Unclear) if args.exit_code => Ok(ExitCode::from(UNCLEAR)),
        // What was lost may have been the difference.
        Ok(Outcome::Same) if args.exit_code && is_lost() => Ok(ExitCode::from(UNCLEAR)),
        Ok(_) => Ok(ExitCode::SUCCESS),
        Err(error) if args.exit_code => {
            crate::tell(&error);
            Ok(ExitCode::from(TROUBLE))
        }
        Err(error) => Err(error),
    }
}

/// Whether there is a difference.
fn diff(args: &DiffArgs) -> anyhow::Result<Outcome> {
    // Both are looked through first: a slip in the second must not be found after the first was read for minutes.
    let (a, b) = (files(&args.a)?, files(&args.b)?);
    let side =
        |files: &[PathBuf]| files.iter().map(|file| profile(file, args)).collect::<anyhow::Result<Vec<_>>>();
    let (a, b) = (side(&a)?, side(&b)?);
    for side in [&a, &b] {
        for (nth, (file, one)) in side.iter().enumerate() {
            if let Some((other, _)) = side[..nth].iter().find(|(_, before)| before.is_same(one)) {
                misuse!(
                    "{file} is the same recording as {other}: name each once; what shows how much recordings of a program differ \
                     is that they were made apart"
                );
            }
        }
    }
    let options =
        DiffOptions { settle_s: args.settle.as_secs_f64(), min_change: args.min_change, level: args.level };
    let report = compare(a, b, &options);
    if args.json {
        print_json(&report, true)?;
    } else {
        let (width, _) = terminal::size(io::stdout());
        print(|out| write_text(&report, args.width.map_or(width, usize::from), out))?;
    }
    Ok(report.outcome)
}

fn profile(file: &Path, args: &DiffArgs) -> anyhow::Result<(String, Profile)> {
    let input = InputArgs {
        input: vec![file.to_owned()],
        target: args.target.clone(),
        foreign: args.foreign.clone(),
    };
    let mut recording = Recording::new(&input);
    let targets = recording.targets(&args.target).with_context(|| format!("{}", file.display()))?;
    let mut profile = Profile::new(targets);
    let ended = recording.read_into(&mut profile)?;
    profile.close();
    profile.set_reading(ended.reading);
    if profile.is_empty() {
        bail!("{} holds no snapshot: there is nothing to compare", file.display());
    }
    Ok((file.display().to_string(), profile))
}

/// The files of a side. A name with commas that is a file is one.
///
/// # Errors
/// There is nothing before, between or after commas: what the user meant to compare is not known.
fn files(list: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let names = match list.to_str() {
        Some(names) if names.is_empty() || (names.contains(',') && !list.exists()) => names,
        _ => return Ok(vec![list.to_owned()]),
    };
    if names.split(',').all(str::is_empty) {
        misuse!("{names:?}: no file named; a side is a recording, or several with a comma between any two");
    }
    if names.split(',').any(str::is_empty) {
        misuse!(
            "{names:?}: no file named before, between or after its commas; leave out the comma, or name the file"
        );
    }
    Ok(names.split(',').map(PathBuf::from).collect())
}
