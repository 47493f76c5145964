//! What `isotherm record` ends with. It goes to standard error, since standard output belongs to the command.

use super::recorder::{Finished, Unsampled};
use super::rolling::Done;
use crate::args::{MonitorArgs, RecordArgs};
use crate::reading::Recording;
use crate::stop::Stop;
use crate::terminal;
use isotherm_record::shell_word;
use isotherm_report::Accumulate;
use isotherm_report::colour::ColourChoice;
use isotherm_report::heatmap::{Scale, TerminalOptions};
use isotherm_report::summary::{SummaryAnalysis, write_text};
use isotherm_report::units::{counted, format_share, format_size, format_time, format_time_exactly};
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
    let (output, path) = (output.display(), shell_word(&path.to_string_lossy()).into_owned());
    say!(
        "isotherm: {output} could not be replaced ({why}); the recording is complete, but in another file, {path}: read it with \
         `isotherm report heatmap -i {path}`, or give it a name of its own, like `mv {path} NAME.rec`"
    );
}

/// A series of so many bytes at most is read for a summary at its end, in a second or two: a million regions take 1.5 MB.
const SHORT_SERIES: u64 = 8 << 20;

/// Tells the gist of what was written, as it was read back: that it can be is part of the message. Who presses Ctrl-C
/// meanwhile, or ends the program otherwise, wants no more than to know where it is: more signals than `before`.
pub fn tell(args: &RecordArgs, mut finished: Finished, stop: &Stop, before: usize) {
    if let Some(done) = &finished.series {
        return tell_series(args, &finished, done, stop, before);
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
    let what = format!("{file} is complete");
    let is_interrupted = impatience(&what, stop, before);
    let read = match digest {
        Some(digest) => digest.finish(is_interrupted),
        None => read(Recording::just_written(path), is_interrupted),
    };
    match read {
        Some(Ok(analysis)) => {
            show(analysis);
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

/// Whether the user wants to wait no longer, who is told what for when it takes long.
fn impatience(what: &str, stop: &Stop, before: usize) -> impl Fn() -> bool {
    let began = Instant::now();
    let has_said = Cell::new(false);
    move || {
        if began.elapsed() > PATIENCE && !has_said.replace(true) {
            say!("isotherm: {what}; reading it back for a summary, which Ctrl-C leaves out");
        }
        stop.count() > before
    }
}

/// Prints the summary.
fn show(analysis: SummaryAnalysis) {
    let options = TerminalOptions {
        width: terminal::size(io::stderr()).0,
        lines: LINES,
        mode: terminal::colours(&io::stderr(), ColourChoice::Auto),
        scale: Scale::Auto,
    };
    let mut out = BufWriter::new(io::stderr().lock());
    // Nobody is left to tell when standard error is gone.
    let _ = write_text(&analysis.finish(&options), &options, &mut out).and_then(|()| out.flush());
}

/// Reads a recording; `None` when the user interrupts that.
fn read(
    mut recording: Recording,
    is_interrupted: impl Fn() -> bool,
) -> Option<anyhow::Result<SummaryAnalysis>> {
    let mut analysis = SummaryAnalysis::default();
    let read = recording.read(&mut |item| {
        if is_interrupted() {
            return Err(io::ErrorKind::Interrupted.into());
        }
        analysis.item(item);
        Ok(())
    });
    (read.is_ok() || !is_interrupted()).then(|| read.map(|_| analysis))
}

/// Says which files there are, below the summary of those that are kept, where these are not too large to read them all for it.
fn tell_series(args: &RecordArgs, finished: &Finished, done: &Done, stop: &Stop, before: usize) {
    if finished.bytes <= SHORT_SERIES {
        let is_interrupted = impatience("all files are complete", stop, before);
        match read(Recording::of_these(done.kept.clone()), is_interrupted) {
            Some(Ok(analysis)) => show(analysis),
            Some(Err(error)) => {
                say!("isotherm: what was written cannot be read back:");
                crate::tell(&error);
            }
            None => {}
        }
    }
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
    let why = match finished.snapshots {
        0 => no_snapshot(&args.monitor, finished.on_request, finished.length, finished.unsampled),
        _ if finished.waiting > 0 => format!(
            "{} waited to be observed, and none was reached in {}; record for longer",
            counted(finished.waiting, "process"),
            format_time(u64::try_from(finished.length.as_nanos()).unwrap_or(u64::MAX))
        ),
        snapshots => {
            let what = match &args.targets {
                targets if !targets.cgroup.is_empty() => "no process was in the control group",
                targets if targets.has_rule() => &format!("no process matched {}", targets.rule()),
                _ => "no memory of any target was known",
            };
            let aggr = format_time_exactly(args.monitor.aggr);
            format!("{what} in any of {snapshots} aggregations ({aggr} each)")
        }
    };
    let file = args.output.display();
    match &finished.placement {
        None if finished.series.is_some() => say!("isotherm: nothing was recorded: {why}"),
        None => say!("isotherm: nothing was recorded: {why}. {file} is the recording that it was before"),
        Some(placement)
            if placement.instead.is_none() && args.output.metadata().is_ok_and(|m| m.is_file()) =>
        {
            say!(
                "isotherm: nothing was recorded: {why}. {file} only says what happened to the targets and what recording cost; \
                 the next recording takes its place"
            );
        }
        Some(_) => say!("isotherm: nothing was recorded: {why}"),
    }
}

/// Why there is no snapshot, and what helps: of a recording of this length.
fn no_snapshot(monitor: &MonitorArgs, on_request: bool, length: Duration, unsampled: Unsampled) -> String {
    let aggr = format_time_exactly(monitor.aggr);
    let after = format_time(u64::try_from(length.as_nanos()).unwrap_or(u64::MAX));
    let Unsampled { waited, late } = unsampled;
    // One of them is to blame where the rest of the time would not have been enough.
    let too_short_without = |lost: Duration| !lost.is_zero() && length.saturating_sub(lost) < monitor.aggr;
    match (length >= monitor.aggr, on_request) {
        (true, _) if waited >= late && too_short_without(waited) => format!(
            "in {after} --overhead {} did not pay for the first aggregation ({aggr}); make it higher, or record for longer",
            format_share(monitor.overhead)
        ),
        (true, _) if too_short_without(late) => format!(
            "in {after} the recorder came too late, too often, to complete the first aggregation ({aggr}): the machine was busy, \
             or it was stopped; record for longer"
        ),
        (true, false) => format!(
            "the target ended {after} after the start, and the first aggregation ({aggr} from the first look at its memory on) \
             was not complete; give it more to do, or make --aggr (and --sample) shorter"
        ),
        (true, true) => format!(
            "it was ended {after} after the start, and the first aggregation ({aggr} from the first look at memory on) was not \
             complete; record for longer, or make --aggr (and --sample) shorter"
        ),
        (false, false) => format!(
            "the target ended within the first aggregation interval ({aggr}); give it more to do, or make --aggr (and \
             --sample) shorter"
        ),
        (false, true) => {
            format!("it was ended within the first aggregation interval ({aggr}); record for longer")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        monitor: MonitorArgs,
    }

    #[test]
    fn why_there_is_no_snapshot_is_what_really_kept_it_from_being_taken() {
        let ms = Duration::from_millis;
        let of = |on_request, length, waited, late| {
            let monitor = Line::parse_from(["record", "--overhead", "0.001%"]).monitor;
            no_snapshot(&monitor, on_request, ms(length), Unsampled { waited: ms(waited), late: ms(late) })
        };
        let said = |on_request, length, waited| of(on_request, length, waited, 0);
        for on_request in [false, true] {
            for waited in [901, 5000] {
                let ceiling = said(on_request, 1000, waited);
                assert!(ceiling.starts_with("in 1 s --overhead 0.001 % did not pay"), "{ceiling}");
                assert!(!ceiling.contains("within the first"), "{ceiling}");
            }
            // One short wait, which left more than it takes.
            for (length, waited) in [(130, 5), (1000, 900)] {
                assert!(!said(on_request, length, waited).contains("--overhead"), "{length} {waited}");
            }
            let busy = of(on_request, 300, 5, 250);
            assert!(busy.contains("came too late") && !busy.contains("--overhead"), "{busy}");
        }
        assert!(
            said(false, 60, 0).contains("the target ended within the first aggregation interval (100 ms)")
        );
        assert!(said(true, 60, 50).contains("it was ended within the first aggregation interval (100 ms)"));
        // Also of the very time that an aggregation takes this is no contradiction.
        for (ms, first) in [(100, "100 ms"), (120, "120 ms")] {
            let rest =
                format!("{first} after the start, and the first aggregation (100 ms from the first look");
            assert!(said(true, ms, 0).contains(&format!("it was ended {rest}")));
            assert!(said(false, ms, 0).contains(&format!("the target ended {rest}")));
        }
    }
}
