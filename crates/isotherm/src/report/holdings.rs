//! `isotherm report summary` and `isotherm report info`.

use super::{print, print_json};
use crate::args::{InfoArgs, InputArgs, SummaryArgs};
use crate::reading::Recording;
use crate::terminal;
use isotherm_record::rec::version_of;
use isotherm_report::holdings::{self, HoldingsAnalysis, HoldingsOptions};
use isotherm_report::info::{self, FileInfo, InfoAnalysis};
use isotherm_report::units::Bounds;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

/// Lines on a terminal unless asked otherwise: what fits on a screen.
const LINES: usize = 20;
/// Mappings below a process there.
const MAPPINGS: usize = 4;

/// `isotherm report summary`.
pub fn summary(args: &SummaryArgs) -> anyhow::Result<()> {
    let until = args.at.map(|at| Bounds { min: None, max: Some(at) });
    let mut recording = Recording::new(&args.input).within(until);
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
    if let Some(how) = ended.truncated {
        analysis.set_truncated(how);
    }
    let report = analysis.finish();
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

/// `isotherm report info`.
pub fn info(args: &InfoArgs) -> anyhow::Result<()> {
    let input =
        InputArgs { input: vec![args.input.clone()], target: Vec::new(), foreign: args.foreign.clone() };
    let mut recording = Recording::new(&input).or_empty();
    let mut analysis = InfoAnalysis::default();
    let ended = recording.read_into(&mut analysis)?;
    let file = FileInfo {
        path: args.input.display().to_string(),
        format: ended.format.to_string(),
        version: version(&args.input),
        bytes: (!recording.is_stream()).then(|| args.input.metadata().map(|m| m.len()).ok()).flatten(),
        complete: ended.truncated.is_none(),
        remarks: ended.remarks,
    };
    let report = analysis.finish(file);
    if args.json {
        print_json(&report, true)
    } else {
        print(|out| info::write_text(&report, args.targets, out))
    }
}

/// The version of the format, where the file says it.
fn version(path: &Path) -> Option<String> {
    let mut head = Vec::new();
    // A stream was read to its end by now, a file can be opened again.
    let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|m| m.is_file()))?;
    file.take(12).read_to_end(&mut head).ok()?;
    version_of(&head)
}
