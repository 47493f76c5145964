//! `isotherm convert`.

use crate::args::ConvertArgs;
use crate::output::{self, Draft};
use crate::reading;
use crate::stop::Stop;
use anyhow::{Context, anyhow, bail};
use isotherm_record::{Error, Format, Item, ItemReader, ItemWriter, create, open_with};
use isotherm_report::units::{counted, format_size, significant};
use std::io::{ErrorKind, IsTerminal};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Runs the command.
///
/// # Errors
/// What went wrong, in words for the person who asked. No output is left then.
pub fn run(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let format = args.to.or_else(|| Format::from_path(&args.output)).unwrap_or(Format::Rec);
    if !output::is_standard(&args.input)
        && let (Ok(from), Ok(to)) = (args.input.canonicalize(), args.output.canonicalize())
        && from == to
    {
        misuse!("{}: input and output are the same file; write to another one", args.input.display());
    }
    let mut reader = open_with(&args.input, &args.foreign.read_options())?;
    let stop = Stop::install().context("cannot catch Ctrl-C")?;
    let draft = Draft::new(&args.output)?;
    let no_space = |error| told_of_no_space(error, args);
    let mut writer = create(draft.path(), format).map_err(|error| no_space(error.into()))?;
    let Some(done) = copy(&mut *reader, &mut *writer, &stop, !args.quiet).map_err(no_space)? else {
        say!("isotherm: interrupted; {} was not written", args.output.display());
        return Ok(ExitCode::from(stop.code().unwrap_or(130)));
    };
    reading::check_content(&args.input, done.snapshots, reader.warnings())?;
    drop(writer);
    let is_file = args.output.metadata().is_ok_and(|metadata| metadata.is_file());
    if done.snapshots == 0 && is_file && output::holds_snapshot(&args.output) {
        bail!(
            "{}: there is no snapshot in it, and {} holds some; it stays as it is (remove it first, or write to another file)",
            args.input.display(),
            args.output.display()
        );
    }
    draft.keep()?;
    reading::tell(&args.input, reader.warnings());
    if !args.quiet {
        tell(&done, reader.format(), format, &args.output);
    }
    Ok(ExitCode::SUCCESS)
}

/// Of an output that has no room: that nothing of it is left. The writer's own words are those of a recorder, which keeps
/// what fitted.
fn told_of_no_space(error: anyhow::Error, args: &ConvertArgs) -> anyhow::Error {
    let Some(Error::Io { source, file, .. }) = error.downcast_ref() else { return error };
    let full = matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    if !full || *file == args.input.display().to_string() {
        return error;
    }
    let what_is_left = match args.output.metadata() {
        _ if output::is_standard(&args.output) => "what was written so far is incomplete",
        Ok(metadata) if metadata.is_file() => "the file that was there is as it was",
        Ok(_) => "what was written so far is incomplete",
        Err(_) => "nothing is left of it",
    };
    anyhow!("cannot write {}: {source} (free some space; {what_is_left})", args.output.display())
}

struct Done {
    snapshots: u64,
    regions: u64,
}

/// Copies every item; `None` when it was told to stop.
fn copy(
    reader: &mut dyn ItemReader,
    writer: &mut dyn ItemWriter,
    stop: &Stop,
    talk: bool,
) -> anyhow::Result<Option<Done>> {
    let mut progress = Progress::new(talk && std::io::stderr().is_terminal());
    let mut done = Done { snapshots: 0, regions: 0 };
    while let Some(item) = reader.next_ref()? {
        if let Item::Snapshot(snapshot) = item {
            done.snapshots += 1;
            done.regions += snapshot.nr_regions() as u64;
            progress.tell(&done);
        }
        writer.write(item)?;
        if stop.asked() {
            return Ok(None);
        }
    }
    writer.finish()?;
    Ok(Some(done))
}

fn tell(done: &Done, from: Format, to: Format, output: &Path) {
    let size = output.metadata().ok().filter(std::fs::Metadata::is_file).map(|m| format_size(m.len()));
    let size = size.map(|size| format!(", {size}")).unwrap_or_default();
    say!(
        "isotherm: {from} to {to}: {}, {}{size}",
        counted(done.snapshots, "snapshot"),
        counted(done.regions, "region")
    );
    let losses = to.losses();
    // What the input did not hold is not lost; damo's formats know nothing of ours.
    if !losses.is_empty() && matches!(from, Format::Rec | Format::Parquet) {
        say!("isotherm: {to} has no place for: {}", losses.join("; "));
    }
}

/// How far it is, on a terminal, once it takes long enough for people to wonder.
struct Progress {
    shown: bool,
    next: Option<Instant>,
}

impl Progress {
    fn new(wanted: bool) -> Self {
        Self { shown: false, next: wanted.then(|| Instant::now() + Duration::from_secs(1)) }
    }

    fn tell(&mut self, done: &Done) {
        let Some(next) = self.next else { return };
        // The clock is cheap, but not for each of a million snapshots.
        if !done.snapshots.is_multiple_of(64) || Instant::now() < next {
            return;
        }
        self.next = Some(Instant::now() + Duration::from_millis(200));
        self.shown = true;
        let millions = significant(done.regions as f64 / 1e6, 3);
        say_on_the_line!(
            "\r\x1b[Kconverted {} snapshots, {millions} million regions (Ctrl-C ends it)",
            done.snapshots
        );
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            say_on_the_line!("\r\x1b[K");
        }
    }
}
