//! `isotherm convert`.

use crate::args::ConvertArgs;
use crate::output::{self, Draft};
use crate::reading::{self, Recording};
use crate::stop::Stop;
use anyhow::{Context, anyhow, bail};
use isotherm_record::{
    End, Error, Format, Item, ItemReader, ItemWriter, Warning, create, create_on, nr_snapshots,
};
use isotherm_report::units::{counted, format_size, significant};
use std::fs::File;
use std::io::{ErrorKind, IsTerminal};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// How often it is looked whether the user has it end.
const LOOK: Duration = Duration::from_millis(20);

/// Of a series named by a pattern the last file is easily taken for the output, and would be lost. Returns whether what is there
/// was made of these files before, so that it can be made again.
fn refuse_one_of_the_series(files: &[PathBuf], output: &Path) -> anyhow::Result<bool> {
    let is_there = !output::is_standard(output)
        && output.metadata().is_ok_and(|there| there.is_file() && there.len() > 0);
    if !is_there {
        return Ok(false);
    }
    let parts: Vec<(String, u64)> =
        files.iter().filter(|file| !output::is_standard(file)).filter_map(|file| part_of(file)).collect();
    let name = output.display();
    match part_of(output) {
        // What was made of them begins as one of them does.
        Some(there) if parts.contains(&there) => return Ok(true),
        Some(there) if parts.iter().any(|(run, _)| *run == there.0) => misuse!(
            "{name}: it is another part of the recording that is to be converted, and would be lost; name last what is to be \
             written, a file that is not there yet"
        ),
        _ if files.len() > 1 => misuse!(
            "{name}: it is there already, and may be one of the recordings; name last what is to be written, a file that is not \
             there yet"
        ),
        _ => {}
    }
    Ok(false)
}

/// Which run of the recorder a file is of, and which part of that. A pipe is not opened: that would wait for its other end.
fn part_of(path: &Path) -> Option<(String, u64)> {
    path.metadata().ok().filter(|metadata| metadata.is_file())?;
    let mut reader = isotherm_record::open(path).ok()?;
    match reader.next_ref() {
        Ok(Some(Item::Header(header))) if !header.run.is_empty() => Some((header.run.clone(), header.part)),
        _ => None,
    }
}

/// Runs the command.
///
/// # Errors
/// What went wrong, in words for the person who asked. No output is left then.
pub fn run(args: &ConvertArgs) -> anyhow::Result<ExitCode> {
    let Some((output, inputs)) = args.sides() else {
        misuse!(
            "convert takes the recording to read and, after it, the file to write; see isotherm convert --help"
        );
    };
    let recording = Recording::of(inputs, args.foreign.read_options());
    let input = recording.name();
    for file in recording.files().iter().filter(|file| !output::is_standard(file)) {
        if let (Ok(from), Ok(to)) = (file.canonicalize(), output.canonicalize())
            && from == to
        {
            misuse!("{}: input and output are the same file; write to another one", file.display());
        }
    }
    let is_made_anew = refuse_one_of_the_series(recording.files(), output)?;
    let reader = recording.open()?;
    let stop = Stop::install().context("cannot catch Ctrl-C")?;
    let draft = Draft::new(output)?;
    let format = format_of(args.to, output)?;
    let no_space = |error| told_of_no_space(error, recording.files(), output);
    let (done, name) = (Done::default(), output.display().to_string());
    let file = draft.is_file().then(|| draft.open()).transpose()?;
    // On a thread of its own: the last step of some formats takes as long as all before it, a pipe waits for its reader, and
    // either may stand still. What hangs ends with the program.
    let (sender, finished) = channel();
    let work = {
        let (done, output) = (done.clone(), output.to_owned());
        move || {
            let copied = match file {
                Some(file) => copy_to_file(reader, file, name, format, &done),
                None => create(&output, format).map_err(Into::into).and_then(|to| copy(reader, to, &done)),
            };
            // Whoever waited may have left.
            let _ = sender.send(copied);
        }
    };
    std::thread::Builder::new()
        .name("isotherm-convert".into())
        .spawn(work)
        .context("cannot start a thread")?;
    let Some(copied) = wait(&finished, &stop, &done, !args.quiet) else {
        match draft.is_file() {
            true => say!("isotherm: interrupted; {} was not written", output.display()),
            false => say!("isotherm: interrupted; what {} got is incomplete", output.display()),
        }
        return Ok(ExitCode::from(stop.code().unwrap_or(130)));
    };
    let reader = copied.map_err(no_space)?;
    let snapshots = done.snapshots();
    reading::check_content(input, snapshots, reader.warnings())?;
    let is_file = output.metadata().is_ok_and(|metadata| metadata.is_file());
    if snapshots == 0 && is_file && nr_snapshots(output, 1) > 0 {
        bail!(
            "{}: there is no snapshot in it, and {} holds some; it stays as it is (remove it first, or write to another file)",
            input.display(),
            output.display()
        );
    }
    // Of what comes to less than what is there both are kept: a file that was cut off since, fewer files than before.
    let is_made_anew = is_made_anew
        && !reader.warnings().iter().any(reading::is_flaw)
        && nr_snapshots(output, snapshots + 1) <= snapshots;
    let old = if is_made_anew { draft.keep().map(|()| None) } else { draft.keep_both() }?;
    reading::tell(input, reader.warnings());
    if let Some(old) = old.filter(|_| !args.quiet) {
        // Where links lead to is not what was asked for.
        let old = old.file_name().map_or_else(|| old.clone(), |name| output.with_file_name(name));
        say!("isotherm: what was in {} is kept as {}", output.display(), old.display());
    }
    if !args.quiet {
        tell(&done, reader.format(), format, output);
        if let Some(named) = Format::from_path(output).filter(|named| !named.shares_names_with(format)) {
            say!(
                "isotherm: {} holds {format}, as --to says, though its name stands for {named}: programs that go by names take it for \
                 that",
                output.display()
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The format to write: the one asked for, or by the name of the output.
///
/// # Errors
/// The name has an ending that stands for none: who writes `out.csv` does not want a file that only Isotherm reads.
fn format_of(to: Option<Format>, output: &Path) -> anyhow::Result<Format> {
    if let Some(format) = to.or_else(|| Format::from_path(output)) {
        return Ok(format);
    }
    let is_special = output.metadata().is_ok_and(|m| !m.is_file());
    match output.extension() {
        Some(ending) if !is_special && !output::is_standard(output) => misuse!(
            "{}: no format has the ending .{}; end the name with .rec, .parquet, .json_compressed, .json, .txt or .damon, or \
             name the format with --to",
            output.display(),
            ending.display()
        ),
        _ => Ok(Format::Rec),
    }
}

/// Of an output that has no room: that nothing of it is left. The writer's own words are those of a recorder, which keeps
/// what fitted.
fn told_of_no_space(error: anyhow::Error, input: &[PathBuf], output: &Path) -> anyhow::Error {
    let Some(Error::Io { source, file, .. }) = error.downcast_ref() else { return error };
    let full = matches!(source.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded);
    if !full || input.iter().any(|input| *file == input.display().to_string()) {
        return error;
    }
    let what_is_left = match output.metadata() {
        _ if output::is_standard(output) => "what was written so far is incomplete",
        Ok(metadata) if metadata.is_file() => "the file that was there is as it was",
        Ok(_) => "what was written so far is incomplete",
        Err(_) => "nothing is left of it",
    };
    anyhow!("cannot write {}: {source} (free some space; {what_is_left})", output.display())
}

/// How far it is.
#[derive(Clone, Default)]
struct Done(Arc<(AtomicU64, AtomicU64)>);

impl Done {
    fn add(&self, regions: usize) {
        self.0.0.fetch_add(1, Ordering::Relaxed);
        self.0.1.fetch_add(regions as u64, Ordering::Relaxed);
    }

    fn snapshots(&self) -> u64 {
        self.0.0.load(Ordering::Relaxed)
    }

    fn regions(&self) -> u64 {
        self.0.1.load(Ordering::Relaxed)
    }
}

type Copied = anyhow::Result<Box<dyn ItemReader>>;

/// Why a recording ended that was not read to its end.
const NO_END: &str = "not known: the recording that was converted was not read to its end";

/// Copies every item; returns the reader, for its warnings. What reading left out, chose or assumed is among what the
/// copy says that could not be seen: who reads the copy does not see the original.
fn copy(mut reader: Box<dyn ItemReader>, mut writer: Box<dyn ItemWriter>, done: &Done) -> Copied {
    let (mut spots, mut end, mut last_ns) = (Vec::new(), None, 0);
    while let Some(item) = reader.next_ref()? {
        match item {
            Item::Snapshot(snapshot) => {
                done.add(snapshot.nr_regions());
                last_ns = snapshot.end_ns;
            }
            Item::Header(header) => spots.clone_from(&header.backend.blind_spots),
            // Only when all is read it is known what was left out. It comes last.
            Item::End(item) => {
                end = Some(item.clone());
                continue;
            }
            _ => {}
        }
        writer.write(item)?;
    }
    // A recording without an end has nowhere to say it, so the copy gets one. Not for having none alone: that the copy shows as well.
    let says_more = reader.warnings().iter().any(|warning| !matches!(warning, Warning::Unfinished { .. }));
    let end = end
        .or_else(|| says_more.then(|| End { time_ns: last_ns, reason: NO_END.to_owned(), ..End::default() }));
    if let Some(mut end) = end {
        if !reader.warnings().is_empty() {
            if end.blind_spots.is_empty() {
                end.blind_spots = spots;
            }
            let remarks = reader.warnings().iter().map(|warning| format!("when it was converted: {warning}"));
            end.blind_spots.extend(remarks);
        }
        writer.write(&Item::End(end))?;
    }
    writer.finish()?;
    Ok(reader)
}

/// How often what was written is sent to the disk meanwhile. A guess: some 10 MB each time.
const SYNC: Duration = Duration::from_millis(200);

/// The same, to the disk.
fn copy_to_file(
    reader: Box<dyn ItemReader>,
    file: File,
    name: String,
    format: Format,
    done: &Done,
) -> Copied {
    let written = file.try_clone().with_context(|| format!("cannot write {name}"))?;
    let writer = create_on(file, name.clone(), format)?;
    let (copied, went) = std::thread::scope(|scope| {
        let (copying, is_copied) = channel::<()>();
        let written = &written;
        // So that little is left for the end, which would wait for all of it. An error is told to one of those who sync: to it, maybe.
        let beside = std::thread::Builder::new().name("to-disk".to_owned()).spawn_scoped(scope, move || {
            while is_copied.recv_timeout(SYNC) == Err(RecvTimeoutError::Timeout) {
                written.sync_data()?;
            }
            Ok(())
        });
        let copied = copy(reader, writer, done);
        drop(copying);
        let went = beside.map(|thread| thread.join().unwrap_or_else(|_| Err(ErrorKind::Other.into())));
        // Where no thread is to be had, all is done at the end.
        (copied, went.unwrap_or(Ok(())))
    });
    let reader = copied?;
    went.and_then(|()| written.sync_all()).with_context(|| format!("cannot write {name}"))?;
    Ok(reader)
}

/// Waits until all is copied, and says how far it is; `None` when the user has it end before.
fn wait(finished: &Receiver<Copied>, stop: &Stop, done: &Done, talk: bool) -> Option<Copied> {
    let mut progress = Progress::new(talk && std::io::stderr().is_terminal());
    loop {
        match finished.recv_timeout(LOOK) {
            Ok(copied) => return Some(copied),
            Err(RecvTimeoutError::Disconnected) => {
                return Some(Err(anyhow!("the thread that converts failed")));
            }
            Err(RecvTimeoutError::Timeout) if stop.asked() => return None,
            Err(RecvTimeoutError::Timeout) => progress.tell(done),
        }
    }
}

fn tell(done: &Done, from: Format, to: Format, output: &Path) {
    let size = output.metadata().ok().filter(std::fs::Metadata::is_file).map(|m| format_size(m.len()));
    let size = size.map(|size| format!(", {size}")).unwrap_or_default();
    say!(
        "isotherm: {from} to {to}: {}, {}{size}",
        counted(done.snapshots(), "snapshot"),
        counted(done.regions(), "region")
    );
    // What the input could not hold is not lost.
    let losses = to.losses_from(from);
    if !losses.is_empty() {
        say!("isotherm: {to} has no place for: {}", losses.join("; "));
    }
    if from.keeps_rates() && !to.keeps_rates() {
        say!(
            "isotherm: so reports on {} may say several times other working sets than those on what it was made of; convert to rec or \
             parquet to keep them",
            output.display()
        );
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
        if Instant::now() < next {
            return;
        }
        self.next = Some(Instant::now() + Duration::from_millis(200));
        self.shown = true;
        let millions = significant(done.regions() as f64 / 1e6, 3);
        let parts =
            [format!("converted {} snapshots", done.snapshots()), format!("{millions} million regions")];
        say_on_the_line!("\r\x1b[K{}", crate::terminal::progress(&parts, "(Ctrl-C ends it)"));
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.shown {
            say_on_the_line!("\r\x1b[K");
        }
    }
}
