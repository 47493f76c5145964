//! `isotherm record`.

mod clearers;
mod digest;
mod follow;
pub mod recorder;
mod rolling;
mod series;
mod summary;
mod teller;
mod utc;
pub mod waiting;

pub use series::Keep;

use crate::Misuse;
use crate::args::RecordArgs;
use crate::live::{self, joined, spawn};
use crate::output;
use crate::stop::{self, Stop};
use anyhow::Context;
use follow::Follower;
use isotherm_linux::process::ExitStatus;
use isotherm_linux::targets::{CommandError, HeldCommand, RunningCommand, Tracker};
use isotherm_linux::{Ended, FeedLimits, Session, SessionOptions, Source};
use isotherm_record::End;
use isotherm_report::units::format_time_exactly;
use recorder::{Finished, Output, Recorder, Unsampled};
use series::Series;
use std::io::IsTerminal;
use std::process::ExitCode;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use teller::Teller;
use waiting::Waited;

/// Runs the command.
///
/// # Errors
/// What went wrong, in words for the person who asked; what was recorded by then is in the file.
pub fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    let attrs = args.monitor.attrs()?;
    check_sense(args)?;
    output::check_name(&args.output)?;
    let series = args.every.map(|_| series(args)).transpose()?;
    let tracker = live::targets(&args.targets)?;
    let stop = Stop::install().context("cannot catch Ctrl-C")?;
    if let Some(Err(error)) = args.targets.command.first().map(|program| stop::check_program(program)) {
        return Ok(not_run(error));
    }
    if series.is_none() {
        output::check_replaceable(&args.output)?;
    }
    let _reader = output::wait_for_reader(&args.output, || stop.asked())?;
    if let Some(code) = stop.code().filter(|_| stop.asked()) {
        return Ok(ExitCode::from(code));
    }
    let source = live::open_source(&args.monitor, attrs, args.quiet)?;
    // Held before it runs, so that nothing has happened yet when the file cannot be written.
    let held = match args.targets.command.is_empty() {
        true => None,
        false => match HeldCommand::start(&args.targets.command) {
            Ok(held) => Some(held),
            // The same signal may have ended it.
            Err(error) => return Ok(stop.code().map_or_else(|| not_run(error), ExitCode::from)),
        },
    };
    if let Some(code) = live::asked_before(held.as_ref(), &stop) {
        return Ok(code);
    }
    let output = match &series {
        None => Output::create(&args.output)?,
        Some(series) => Output::create_new(&series.at(live::wall_at(isotherm_linux::monotonic_ns())))?,
    };
    let mut recorder = Recorder::new(output, args, &attrs, source.name(), source.is_coarse());
    if let (Some(series), Some(every)) = (series, args.every) {
        recorder.roll_every(every, series);
    }
    let (recorded, running) = match observe(args, source, tracker, held, recorder, &stop) {
        Ok(done) => done,
        Err(error) => return Ok(not_run(error)),
    };
    // Of a recording that nobody reads to its end nothing is to be said.
    let is_unread = output::is_standard(&args.output) && crate::reader::has_left();
    // Why it failed is said at once: the command may run for hours.
    let recorded = match is_unread {
        true => None,
        false => recorded.inspect_err(crate::tell).ok(),
    };
    let over = if recorded.is_some() { "the recording is finished" } else { "nothing is recorded any more" };
    // A command must not be left without its parent because the disk is full: it is still waited for.
    let over = (!args.quiet && !is_unread).then_some(over);
    let waited = running.map(|running| waiting::wait_for(running, &stop, over, || {})).transpose();
    let Some(mut finished) = recorded else {
        return Ok(match waited.ok().flatten() {
            Some(Waited::Ended(status)) if !status.success() => code_of(status),
            None if is_unread => ExitCode::from(crate::reader::LEFT),
            waited => failed_at(waited),
        });
    };
    // The recording is complete, however the command fared.
    let nothing = !finished.holds_something;
    let lost_line = finished.lost_line.take();
    let elsewhere = finished.placement.as_ref().and_then(|placement| placement.instead.clone());
    if let Some((path, why)) = &elsewhere
        && args.quiet
    {
        summary::tell_elsewhere(&args.output, path, why);
    }
    if nothing {
        summary::tell_nothing(args, &finished);
    } else if !args.quiet {
        // A command is waited for, and gets the signals that come meanwhile: those are not meant for the summary.
        let before = if args.targets.command.is_empty() { finished.signals } else { stop.count() };
        summary::tell(args, finished, &stop, before);
    }
    if let Some(error) = lost_line {
        let error = anyhow::Error::new(error)
            .context("the lines of --follow could not be written to standard output");
        crate::tell(&error);
        return Ok(failed_at(waited.ok().flatten()));
    }
    Ok(match waited? {
        Some(Waited::Left) => ExitCode::from(stop.code().unwrap_or(130)),
        Some(Waited::Ended(status)) if !status.success() => code_of(status),
        _ if nothing || elsewhere.is_some() => ExitCode::FAILURE,
        Some(Waited::Ended(_)) => ExitCode::SUCCESS,
        None => stop.code_but_ctrl_c().map_or(ExitCode::SUCCESS, ExitCode::from),
    })
}

/// Refuses what makes no sense together.
fn check_sense(args: &RecordArgs) -> anyhow::Result<()> {
    if args.targets.is_empty() {
        misuse!(
            "nothing to record: name a process (--pid), a control group (--cgroup), a command (after --), what processes are like (--comm, --cmdline, --user), or --all"
        );
    }
    if args.duration.is_some_and(|d| d < args.monitor.aggr) {
        misuse!(
            "--duration {} is shorter than one aggregation interval ({}), so nothing would be recorded",
            format_time_exactly(args.duration.unwrap_or_default()),
            format_time_exactly(args.monitor.aggr)
        );
    }
    check_series_and_follow(args)?;
    if output::is_standard(&args.output) {
        if !args.targets.command.is_empty() {
            misuse!(
                "the recording and the command would both write to standard output; name a file with -o, or start the \
                 command elsewhere and record it by --pid"
            );
        }
        if std::io::stdout().is_terminal() {
            misuse!("a recording is nothing for a terminal; pipe it to a program, or name a file with -o");
        }
    }
    Ok(())
}

type Recorded = anyhow::Result<Finished>;

fn check_series_and_follow(args: &RecordArgs) -> anyhow::Result<()> {
    for (option, time, least) in
        [("--every", args.every, Duration::from_secs(1)), ("--follow", args.follow, Duration::ZERO)]
    {
        let least = least.max(args.monitor.aggr);
        if let Some(time) = time.filter(|time| *time < least) {
            let (time, least) = (format_time_exactly(time), format_time_exactly(least));
            misuse!("{option} {time} is too short; the least is {least}, in which something is recorded");
        }
    }
    if args.follow.is_some() && !args.targets.command.is_empty() {
        misuse!(
            "the lines of --follow and the command would both write to standard output; start the command elsewhere and record \
             it by --pid"
        );
    }
    if args.follow.is_some() && output::is_standard(&args.output) {
        misuse!(
            "the recording and the lines of --follow would both write to standard output; name a file with -o"
        );
    }
    Ok(())
}

/// The series of files that is asked for.
fn series(args: &RecordArgs) -> anyhow::Result<Series> {
    let is_special = args.output.metadata().is_ok_and(|m| !m.is_file() && !m.is_dir());
    if output::is_standard(&args.output) || is_special {
        misuse!("--every writes files; name them with -o, for instance -o isotherm.rec");
    }
    Series::new(&args.output, args.keep).map_err(|why| Misuse(why).into())
}

/// Lets the command run, observes, and finishes the file.
///
/// # Errors
/// The command could not be run.
fn observe(
    args: &RecordArgs,
    mut source: Box<dyn Source>,
    mut tracker: Tracker,
    held: Option<HeldCommand>,
    recorder: Recorder,
    stop: &Stop,
) -> Result<(Recorded, Option<RunningCommand>), CommandError> {
    // Of the kernel's kdamonds one would be ours.
    let own_kdamond = source.name() == "kernel";
    if tracker.follows()
        && let Some(lives) = source.count_lives(tracker.is_of_everything())
    {
        tracker.count_lives(lives);
        if let Some(held) = &held {
            tracker.expect(held.process());
        }
    }
    let mut lost = None;
    let running = match held.map(HeldCommand::release).transpose()? {
        Some((process, running)) => {
            // It may have ended by now: there is nothing to observe, but a status to pass on.
            lost = tracker.add(process).err();
            Some(running)
        }
        None => None,
    };
    let options = SessionOptions {
        duration: args.duration,
        update: args.monitor.update,
        overhead: args.monitor.overhead,
        // Loading the walker and finding the targets is part of what recording costs.
        cpu_before: isotherm_linux::process_cpu(),
        ..SessionOptions::default()
    };
    let failed = recorder.failed();
    let mut session = Session::new(source, tracker, options);
    let shares_terminal = args.follow.is_some() && std::io::stdout().is_terminal();
    let alone = args.targets.command.is_empty() && !shares_terminal;
    let progress = !args.quiet && alone && std::io::stderr().is_terminal();
    let teller = Teller::new(progress);
    let limits = teller.limits();
    let recorder = spawn(&mut session, "recorder", FeedLimits::default(), recorder);
    let follower = args.follow.map(Follower::new);
    let lost_lines = follower.as_ref().map(Follower::lost).unwrap_or_default();
    let unread = follower.as_ref().map(Follower::gone).unwrap_or_default();
    let follower = follower.map(|follower| follow::start(&mut session, follower)).transpose();
    let recorder = follower.and_then(|follower| Ok((recorder?, follower)));
    let observers = recorder.and_then(|(recorder, follower)| {
        Ok((recorder, follower, spawn(&mut session, "teller", limits, teller)?))
    });
    let (recorder, follower, teller) = match observers {
        Ok(observers) => observers,
        Err(error) => {
            return Ok((Err(error).context("cannot start a thread to write the recording"), running));
        }
    };
    let mut began = Instant::now();
    let to_stdout = args.follow.is_some() || output::is_standard(&args.output);
    let is_unread = || unread.load(Ordering::Relaxed) || (to_stdout && crate::reader::has_left());
    let ends = || stop.asked() || failed.is_set() || is_unread();
    let ended = session.start().and_then(|()| {
        if !args.quiet {
            crate::live::tell_of_isotherms(&mut session);
        }
        began = Instant::now();
        session.run(&mut { ends })
    });
    let length = began.elapsed();
    let missed = u32::try_from(session.counters().samples_missed).unwrap_or(u32::MAX);
    let waited = session.waited();
    let late = args.monitor.sample.saturating_mul(missed).saturating_sub(waited);
    let unsampled = Unsampled { waited, late };
    let signals = stop.count();
    let mut blind_spots = session.blind_spots();
    let pids = session.pids().clone();
    let suspects = session.suspects();
    // The queues end with it.
    drop(session);
    let mut recorder = joined(recorder);
    if !own_kdamond {
        blind_spots.extend(recorder.clearers_at_end(&pids, suspects.as_deref()).blind_spot());
    }
    joined(teller).finish();
    follower.iter().for_each(|thread| follow::finish(thread, &lost_lines));
    let reason = match &ended {
        Ok(Ended::Duration) => "duration reached".to_owned(),
        Ok(Ended::Stopped) if failed.is_set() => "the recording could not be written".to_owned(),
        Ok(Ended::Stopped) if !stop.asked() => "nobody reads standard output any more".to_owned(),
        Ok(Ended::Stopped) => "interrupted".to_owned(),
        Ok(Ended::NoTargets) => "all targets ended".to_owned(),
        Err(error) => format!("failed: {error}"),
    };
    let written = recorder.finish(End { time_ns: isotherm_linux::monotonic_ns(), reason, blind_spots });
    let lost_line = lost_lines.lock().unwrap_or_else(PoisonError::into_inner).take();
    let recorded = match (written, ended) {
        (Err(error), _) => Err(error.into()),
        (_, Err(error)) => Err(error.into()),
        (Ok(_), Ok(Ended::NoTargets)) if lost.as_ref().is_some_and(|e| !is_gone(e)) => {
            Err(lost.map_or_else(|| anyhow::anyhow!("the command cannot be observed"), Into::into))
        }
        (Ok(finished), Ok(ended)) => {
            let on_request = ended != Ended::NoTargets;
            Ok(Finished { on_request, length, unsampled, lost_line, signals, ..finished })
        }
    };
    Ok((recorded, running))
}

pub fn is_gone(error: &isotherm_linux::targets::TargetError) -> bool {
    matches!(error, isotherm_linux::targets::TargetError::Process(error) if error.is_gone())
}

/// The command did not run: the statuses of a shell.
pub fn not_run(error: CommandError) -> ExitCode {
    let code = ExitCode::from(u8::try_from(error.shell_code()).unwrap_or(1));
    crate::tell(&error.into());
    code
}

/// The status when recording failed: the command's, unless that would say that all is well.
pub fn failed_at(waited: Option<Waited>) -> ExitCode {
    match waited {
        Some(Waited::Ended(status)) if !status.success() => code_of(status),
        _ => ExitCode::FAILURE,
    }
}

pub fn code_of(status: ExitStatus) -> ExitCode {
    // 0..=255 and 128 + signal: both fit.
    ExitCode::from(u8::try_from(status.shell_code()).unwrap_or(1))
}
