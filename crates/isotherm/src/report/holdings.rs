//! `isotherm report summary` and `isotherm report info`.

use super::{print, print_json};
use crate::args::{InfoArgs, InputArgs, SummaryArgs};
use crate::reading::{NoRecording, Recording};
use crate::terminal;
use anyhow::Context;
use isotherm_record::rec::version_of;
use isotherm_report::holdings::{self, HoldingsAnalysis, HoldingsOptions};
use isotherm_report::info::{self, FileInfo, InfoAnalysis, InfoReport};
use isotherm_report::units::counted;
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::{Path, PathBuf};

/// Lines on a terminal unless asked otherwise: what fits on a screen.
const LINES: usize = 20;
/// Mappings below a process there.
const MAPPINGS: usize = 4;

/// `isotherm report summary`.
pub fn summary(args: &SummaryArgs) -> anyhow::Result<()> {
    let mut recording = Recording::new(&args.input).until(args.at.0);
    let targets = recording.targets(&args.input.target)?;
    let everything = args.json || args.csv;
    let at_most = |given: Option<usize>, default: usize| match given {
        Some(0) => usize::MAX,
        Some(n) => n,
        None if everything => usize::MAX,
        None => default,
    };
    let mut analysis = HoldingsAnalysis::new(HoldingsOptions {
        targets,
        by: args.by.into(),
        sort: args.sort.into(),
        reverse: args.reverse,
        mapping: args.mapping.clone(),
        min_size: args.min_size,
        limit: at_most(args.limit, LINES),
        mappings: if args.mappings == Some(0) { 0 } else { at_most(args.mappings, MAPPINGS) },
    });
    let ended = recording.read_into(&mut analysis)?;
    let mut report = analysis.finish();
    report.provenance.set_reading(ended.reading);
    if let Some(missing) = report.missing {
        return Err(missing.into());
    }
    if args.json {
        return print_json(&report, true);
    }
    if args.csv {
        return print(|out| holdings::write_csv(&report, out));
    }
    let (width, _) = terminal::size(io::stdout());
    let width = args.width.map_or(width, usize::from);
    print(|out| holdings::write_text(&report, width, out))
}

/// Columns for facts: a line each where no terminal breaks them, for programs that look for one.
fn info_width() -> usize {
    let stdout = io::stdout();
    if stdout.is_terminal() { terminal::size(stdout).0 } else { usize::MAX }
}

/// `isotherm report info`.
pub fn info(args: &InfoArgs) -> anyhow::Result<()> {
    let all = Recording::new(&input(args, args.input.clone()));
    let files = all.files();
    if let [file] = files {
        let report = info_of(args, vec![file.clone()], file.display().to_string(), false)?;
        return match args.json {
            true => print_json(&report, true),
            false => print(|out| info::write_text(&report, args.targets, info_width(), out)),
        };
    }
    if all.is_stream() {
        misuse!("a stream can be read once: give it alone, or save it to a file first");
    }
    let read = files.iter().map(|file| info_of(args, vec![file.clone()], file.display().to_string(), false));
    // What a recorder that was killed at once has left in a directory makes the others no worse. What was named is to be read.
    let is_named = |report: &Path| args.input.iter().any(|named| named == report);
    let (mut each, mut unreadable) = (Vec::new(), Vec::new());
    for (file, report) in files.iter().zip(read) {
        match report {
            Ok(report) => each.push(report),
            Err(error) if is_named(file) || !error.is::<NoRecording>() => return Err(error),
            Err(error) => unreadable.push(error),
        }
    }
    if each.is_empty() {
        return Err(unreadable.swap_remove(0));
    }
    unreadable.iter().for_each(crate::tell);
    each.sort_by_key(|report| report.provenance.started_unix_ns);
    let ordered = each.iter().map(|report| PathBuf::from(&report.file.path)).collect();
    // What is wrong with each was told.
    let name = format!("{}, read as one", counted(each.len() as u64, "file"));
    let together = info_of(args, ordered, name, true);
    if args.json {
        let why = together.as_ref().err().map(|error| format!("{error:#}"));
        let report = serde_json::json!({
            "files": each,
            "unreadable": unreadable.iter().map(|error| format!("{error:#}")).collect::<Vec<_>>(),
            "together": together.as_ref().ok(),
            "not_one": why,
        });
        print_json(&report, true)?;
        return together.map(|_| ());
    }
    print(|out| {
        info::write_list(&each, out)?;
        writeln!(out)?;
        match &together {
            Ok(together) => info::write_text(together, args.targets, info_width(), out),
            Err(why) => writeln!(out, "not one recording: {why:#}"),
        }
    })?;
    // Reports refuse them too, so a script must not take them for one.
    together.map(|_| ()).context("these files are not one recording")
}

fn input(args: &InfoArgs, input: Vec<PathBuf>) -> InputArgs {
    InputArgs { input, target: Vec::new(), foreign: args.foreign.clone() }
}

/// What these files hold, read as one.
fn info_of(args: &InfoArgs, files: Vec<PathBuf>, name: String, silent: bool) -> anyhow::Result<InfoReport> {
    let mut recording = Recording::new(&input(args, files.clone())).or_empty();
    if silent {
        recording = recording.silent();
    }
    let mut analysis = InfoAnalysis::default();
    let ended = recording.read_into(&mut analysis)?;
    let bytes = |file: &PathBuf| file.metadata().ok().map(|m| m.len());
    let mut report = analysis.finish(FileInfo {
        path: name,
        format: ended.format.to_string(),
        version: files.first().and_then(|file| version(file)),
        bytes: (!recording.is_stream()).then(|| files.iter().map(bytes).sum()).flatten(),
        complete: ended.reading.truncated.is_none(),
        remarks: ended.remarks,
    });
    report.provenance.set_reading(ended.reading);
    Ok(report)
}

/// The version of the format, where the file says it.
fn version(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    // A stream was read to its end by now, a file can be opened again.
    let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|m| m.is_file()))?;
    file.take(12).read_to_end(&mut head).ok()?;
    version_of(&head)
}
