//! What `isotherm record` ends with. It goes to standard error, since standard output belongs to the command.

use super::recorder::Finished;
use super::rolling::Done;
use crate::args::RecordArgs;
use crate::reading::Recording;
use crate::stop::Stop;
use crate::terminal;
use isotherm_report::Accumulate;
use isotherm_report::colour::ColourChoice;
use isotherm_report::heatmap::{Scale, TerminalOptions};
use isotherm_report::summary::{SummaryAnalysis, write_text};
use isotherm_report::units::{counted, format_size, format_time_exactly};
use std::cell::Cell;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::time::{Duration, Instant};

/// Lines of the heatmap.
const LINES: usize = 12;

/// After so long it is said what is waited for. Usually the summary is made by then, since it is made while recording.
const PATIENCE: Duration = Duration::from_secs(1);

/// The recording is not where it was to be.
pub fn tell_elsewhere(output: &Path, path: &Path, why: &str) {
    say!("isotherm: {} could not be replaced ({why}); the recording is {}", output.display(), path.display());
}

/// Tells the gist of what was written, as it was read back: that it can be is part of the message. Who presses Ctrl-C
/// meanwhile, or ends the program otherwise, wants no more than to know where it is: more signals than `before`.
pub fn tell(args: &RecordArgs, mut finished: Finished, stop: &Stop, before: usize) {
    if let Some(done) = &finished.series {
        return tell_series(args, &finished, done);
    }
    let digest = finished.digest.take();
    let Some(placement) = &finished.placement else { return };
    let path = placement.instead.as_ref().map_or(&args.output, |(path, _)| path);
    let file = path.display();
    let wrote = format!("isotherm: wrote {file}: {}", format_size(finished.bytes));
    if Recording::just_written(path).is_stream() {
        say!("{wrote}, {}", counted(finished.snapshots, "snapshot"));
        return;
    }
    let began = Instant::now();
    let has_said = Cell::new(false);
    let is_interrupted = || {
        if began.elapsed() > PATIENCE && !has_said.replace(true) {
            say!("isotherm: {file} is complete; reading it back for a summary, which Ctrl-C leaves out");
        }
        stop.count() > before
    };
    let read = match digest {
        Some(digest) => digest.finish(is_interrupted),
        None => read(path, is_interrupted),
    };
    match read {
        Some(Ok(analysis)) => {
            let options = TerminalOptions {
                width: terminal::size(io::stderr()).0,
                lines: LINES,
                mode: terminal::colours(&io::stderr(), ColourChoice::Auto),
                scale: Scale::Auto,
            };
            let mut out = BufWriter::new(io::stderr().lock());
            // Nobody is left to tell when standard error is gone.
            let _ = write_text(&analysis.finish(&options), &options, &mut out).and_then(|()| out.flush());
            drop(out);
            say!("{wrote}; look closer with `isotherm report heatmap -i {file}`");
        }
        None => say!("{wrote}, {}", counted(finished.snapshots, "snapshot")),
        Some(Err(error)) => {
            say!("{wrote}, but it cannot be read back:");
            crate::tell(&error);
        }
    }
    if let Some((path, why)) = &placement.instead {
        tell_elsewhere(&args.output, path, why);
    }
    if let Some(old) = &placement.old {
        say!("isotherm: the recording that was there is now {}", old.display());
    }
}

/// Reads the file; `None` when the user interrupts that.
fn read(path: &Path, is_interrupted: impl Fn() -> bool) -> Option<anyhow::Result<SummaryAnalysis>> {
    let mut analysis = SummaryAnalysis::default();
    let read = Recording::just_written(path).read(&mut |item| {
        if is_interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        analysis.item(item);
        Ok(())
    });
    (read.is_ok() || !is_interrupted()).then(|| read.map(|_| analysis))
}

/// Says which files there are. They may be too many and too large to read them all for a summary.
fn tell_series(args: &RecordArgs, finished: &Finished, done: &Done) {
    let bytes = format_size(finished.bytes);
    let (first, last) = (done.first.display(), done.last.display());
    match done.files {
        1 => say!("isotherm: wrote {last}: {bytes}, {}", counted(finished.snapshots, "snapshot")),
        files => {
            say!(
                "isotherm: wrote {files} files, {first} to {last}: {bytes}, {}",
                counted(finished.snapshots, "snapshot")
            );
        }
    }
    if done.removed > 0 {
        let were = if done.removed == 1 { "was" } else { "were" };
        let removed = counted(done.removed as u64, "older file");
        say!("isotherm: {removed} {were} removed, to keep {}; --keep keeps more", args.keep);
    }
    say!(
        "isotherm: look closer with `isotherm report heatmap -i FILE...`: several files are read as one recording"
    );
}

/// Says that nothing was recorded, why, what helps, and what became of the file.
pub fn tell_nothing(args: &RecordArgs, finished: &Finished) {
    let aggr = format_time_exactly(args.monitor.aggr);
    let why = match (finished.snapshots, finished.on_request) {
        (0, false) => format!(
            "the target ended within the first aggregation interval ({aggr}); give it more to do, or make --aggr (and \
             --sample) shorter"
        ),
        (0, true) => format!("it was ended within the first aggregation interval ({aggr})"),
        (snapshots, _) => {
            let what = if args.targets.cgroup.is_empty() {
                "no memory of any target was known"
            } else {
                "no process was in the control group"
            };
            format!("{what} in any of {snapshots} aggregations ({aggr} each)")
        }
    };
    let file = args.output.display();
    match &finished.placement {
        None if finished.series.is_some() => say!("isotherm: nothing was recorded: {why}"),
        None => say!("isotherm: nothing was recorded: {why}. {file} is the recording that it was before"),
        Some(_) => say!("isotherm: nothing was recorded: {why}"),
    }
}
