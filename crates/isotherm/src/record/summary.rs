//! What `isotherm record` ends with. It goes to standard error, since standard output belongs to the command.

use super::recorder::Finished;
use crate::args::RecordArgs;
use crate::reading::Recording;
use crate::terminal;
use isotherm_report::Accumulate;
use isotherm_report::colour::ColourChoice;
use isotherm_report::heatmap::{Scale, TerminalOptions};
use isotherm_report::summary::{SummaryAnalysis, write_text};
use isotherm_report::units::format_size;
use std::io::{self, BufWriter, Write};

/// Lines of the heatmap.
const LINES: usize = 12;

/// Reads what was written and tells the gist of it: that it can be read is part of the message.
pub fn tell(args: &RecordArgs, finished: &Finished) {
    let file = args.output.display();
    let wrote = format!("isotherm: wrote {file}: {}", format_size(finished.bytes));
    let mut recording = Recording::just_written(&args.output);
    if recording.is_stream() || finished.snapshots == 0 {
        say!("{wrote}, {} snapshots", finished.snapshots);
        return;
    }
    let mut analysis = SummaryAnalysis::default();
    let read = recording.read(&mut |item| {
        analysis.item(item);
        Ok(())
    });
    if let Err(error) = read {
        say!("{wrote}, but it cannot be read back:");
        crate::tell(&error);
        return;
    }
    let options = TerminalOptions {
        width: terminal::size(io::stderr()).0,
        lines: LINES,
        mode: terminal::colours(&io::stderr(), ColourChoice::Auto),
        scale: Scale::Auto,
    };
    let mut out = BufWriter::new(io::stderr().lock());
    // Nobody is left to tell when standard error is gone.
    let _ = write_text(&analysis.finish(&options), &options, &mut out)
        .and_then(|()| writeln!(out, "{wrote}; look closer with `isotherm report heatmap -i {file}`"))
        .and_then(|()| out.flush());
}
