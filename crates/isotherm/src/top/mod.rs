//! `isotherm top`: live, which memory is in use.
//!
//! | thread | does |
//! |---|---|
//! | main | the session: samples, and never waits for the others |
//! | model | folds what the session tells into the [`model`] |
//! | screen | heeds keys, draws frames ([`screen`]), sends what differs ([`paint`]) |
//!
//! [`state`] and [`keys`] know nothing of terminals, [`terminal`] nothing of what is drawn.

mod chrome;
mod explained;
mod fatal;
mod gather;
mod heat;
mod keys;
mod list;
mod model;
mod output;
mod pace;
mod paint;
mod process;
mod rows;
mod save;
mod saving;
mod screen;
mod state;
mod style;
mod suspend;
mod table;
mod terminal;
mod timeline;
mod ui;

use crate::args::TopArgs;
use crate::live::{self, joined, spawn};
use crate::record::waiting::{self, Waited};
use crate::stop::{self, Stop};
use anyhow::Context;
use isotherm_linux::targets::{CommandError, HeldCommand, RunningCommand, TargetError, Tracker};
use isotherm_linux::{Ended, FeedLimits, Session, SessionOptions, Source};
use model::{Folder, Keep, Model, Shared};
use output::Output;
use saving::Saving;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use style::Look;
use terminal::{GiveBack, Terminal};

/// How long the screen may take to end.
const ENDS_WITHIN: Duration = Duration::from_secs(1);

/// How long the signal of a terminal that is gone may take (a guess): whoever closed it sends it, and may have to wait for a
/// processor in between.
const SIGNAL_WITHIN: Duration = Duration::from_secs(2);

/// Runs the command.
///
/// # Errors
/// What went wrong, in words for the person who asked; the terminal is as it was by then.
pub fn run(args: &TopArgs) -> anyhow::Result<ExitCode> {
    let attrs = args.monitor.attrs()?;
    let mut targets = args.targets.clone();
    targets.all |= targets.is_empty();
    let tracker = live::targets(&targets)?;
    let stop = Stop::install().context("cannot catch Ctrl-C")?;
    stop.hear_quit().context("cannot catch SIGQUIT")?;
    if let Some(Err(error)) = targets.command.first().map(|program| stop::check_program(program)) {
        return Ok(not_run(&error));
    }
    let terminal = Terminal::open()?;
    let look = Look(crate::terminal::colours(&std::io::stdout(), args.color));
    let source = live::open_source(&args.monitor, attrs, false)?;
    let header = live::header(&targets, &args.monitor, &attrs, source.name(), source.is_coarse());
    let model = Shared::new(Model::new(header, Keep::default()));
    // What the command prints must not get between what is drawn.
    let mut output = if targets.command.is_empty() { None } else { Some(Output::divert()?) };
    let held = match targets.command.is_empty() {
        true => None,
        false => match HeldCommand::start(&targets.command) {
            Ok(held) => Some(held),
            Err(error) => {
                // It is said where it can be seen.
                drop(output);
                // The same signal may have ended it.
                return Ok(stop.code().map_or_else(|| not_run(&error), ExitCode::from));
            }
        },
    };
    if let Some(code) = live::asked_before(held.as_ref(), &stop) {
        return Ok(code);
    }
    let saving = Saving::default();
    let ui = ui::Ui {
        terminal,
        look,
        args: ui::Options::of(args),
        model: model.clone(),
        saving: saving.clone(),
        output: output.as_ref().and_then(Output::keeper),
    };
    let watched = watch(args, source, tracker, held, ui, &model, &stop);
    terminal::give_back();
    if let Some(output) = &mut output {
        output.show();
    }
    saving.finish(&stop);
    let (ended, running) = match watched {
        Ok(watched) => watched,
        Err(error) => return Ok(not_run(&error)),
    };
    let waited = running.map(|running| {
        // What it still prints leads to where it led before.
        let show = || output.iter_mut().for_each(Output::show);
        waiting::wait_for(running, &stop, Some("top is over"), show)
    });
    let waited = waited.transpose();
    drop(output);
    ended?;
    Ok(match waited? {
        Some(Waited::Left) => ExitCode::from(stop.code().unwrap_or(130)),
        Some(Waited::Ended(status)) => ExitCode::from(u8::try_from(status.shell_code()).unwrap_or(1)),
        None => stop.code().map_or(ExitCode::SUCCESS, ExitCode::from),
    })
}

type Watched = (anyhow::Result<()>, Option<RunningCommand>);

/// Lets the command run, watches, and shows it until the user has seen enough.
///
/// # Errors
/// The command could not be run.
fn watch(
    args: &TopArgs,
    source: Box<dyn Source>,
    mut tracker: Tracker,
    held: Option<HeldCommand>,
    ui: ui::Ui,
    model: &Shared,
    stop: &Stop,
) -> Result<Watched, CommandError> {
    let mut lost = None;
    let running = match held.map(HeldCommand::release).transpose()? {
        Some((process, running)) => {
            lost = tracker.add(process).err();
            Some(running)
        }
        None => None,
    };
    let options = SessionOptions {
        duration: None,
        update: args.monitor.update,
        overhead: args.monitor.overhead,
        cpu_before: isotherm_linux::process_cpu(),
        ..SessionOptions::default()
    };
    let mut session = Session::new(source, tracker, options);
    Ok((session_and_screen(&mut session, ui, model, stop, lost.as_ref()), running))
}

fn session_and_screen(
    session: &mut Session,
    ui: ui::Ui,
    model: &Shared,
    stop: &Stop,
    lost: Option<&TargetError>,
) -> anyhow::Result<()> {
    let folder = spawn(session, "model", FeedLimits::default(), Folder::new(model.clone()))
        .context("cannot start a thread")?;
    session.start()?;
    let (over, quit) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    // However this ends, the terminal is given back, and nothing is drawn after that.
    let _give_back = GiveBack;
    terminal::give_back_on_panic();
    let line = ui.terminal.line()?;
    let screen = {
        let (over, quit) = (Arc::clone(&over), Arc::clone(&quit));
        std::thread::Builder::new().name("isotherm-screen".into()).spawn(move || {
            // Also when it panics: nobody could end the session by keys any more.
            let _quit = Raise(&quit);
            ui.run(&over)
        })
    };
    let screen = screen.context("cannot start a thread")?;
    let mut is_over = || stop.asked() || quit.load(Ordering::Relaxed) || line.is_cut();
    let ended = session.run(&mut is_over);
    let blind_spots = session.blind_spots();
    {
        let mut model = model.lock();
        model.blind_spots = blind_spots;
        model.over = match &ended {
            Ok(Ended::NoTargets) => Some("all targets ended".into()),
            _ => None,
        };
        model.version += 1;
    }
    // There is still to see what there was.
    while matches!(ended, Ok(Ended::NoTargets)) && !is_over() {
        std::thread::park_timeout(Duration::from_millis(50));
    }
    let was_gone = line.is_cut();
    over.store(true, Ordering::Relaxed);
    terminal::give_back();
    let patience = Instant::now();
    while !screen.is_finished() && patience.elapsed() < ENDS_WITHIN {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    let drawn = match screen.is_finished() {
        true => joined(screen),
        // What hangs in a terminal that is gone ends with the program.
        false => Err(anyhow::anyhow!("the terminal is gone")),
    };
    drop(folder);
    ended?;
    // With a terminal that goes comes, a moment later, a signal that says so; where it is ignored, none.
    let patience = Instant::now();
    // The screen may have met with an error before the line was seen to be cut.
    let gone = was_gone || drawn.is_err() && line.is_cut();
    while gone && stop.hears_hangups() && !stop.asked() && patience.elapsed() < SIGNAL_WITHIN {
        std::thread::park_timeout(Duration::from_millis(5));
    }
    if !stop.asked() {
        anyhow::ensure!(!gone, "the terminal is gone");
        drawn?;
    }
    match lost {
        Some(error) if model.lock().snapshots == 0 => Err(anyhow::anyhow!("{error}")),
        _ => Ok(()),
    }
}

/// Sets a flag when dropped.
struct Raise<'a>(&'a AtomicBool);

impl Drop for Raise<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The command did not run: the statuses of a shell.
fn not_run(error: &CommandError) -> ExitCode {
    say!("isotherm: {error}");
    ExitCode::from(u8::try_from(error.shell_code()).unwrap_or(1))
}
