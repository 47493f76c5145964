//! `isotherm record`.

mod recorder;

use crate::args::{BackendName, RecordArgs};
use crate::stop::{self, Stop};
use anyhow::{Context, bail};
use isotherm_damon::Attrs;
use isotherm_linux::process::{ExitStatus, Process};
use isotherm_linux::targets::{Cgroup, HeldCommand, RunningCommand, Tracker, TrackerOptions};
use isotherm_linux::{Ended, MonitorSource, Session, SessionOptions, Source};
use isotherm_record::{End, ThreadedWriter};
use recorder::Recorder;
use std::io::IsTerminal;
use std::process::ExitCode;

/// Runs the command.
///
/// # Errors
/// What went wrong, in words for the person who asked; what was recorded by then is in the file.
pub fn run(args: &RecordArgs) -> anyhow::Result<ExitCode> {
    let attrs = args.monitor.attrs()?;
    if args.pid.is_empty() && args.cgroup.is_empty() && args.command.is_empty() {
        bail!(
            "nothing to record: name a process (--pid), a control group (--cgroup) or a command (after --)"
        );
    }
    let mut tracker = Tracker::new(TrackerOptions {
        follow_children: !args.no_children,
        // Orphans of a command that daemonises itself would otherwise be lost; with pids and cgroups nothing is.
        adopt_orphans: !args.no_children && !args.command.is_empty(),
        ..TrackerOptions::default()
    });
    for &pid in &args.pid {
        tracker.add(open_process(pid)?)?;
    }
    for name in &args.cgroup {
        tracker.add_cgroup(Cgroup::find(name)?)?;
    }
    let stop = Stop::install().context("cannot catch Ctrl-C")?;
    let source = open_source(args.monitor.backend, attrs, args.monitor.overhead)?;
    // Held before it runs, so that nothing has happened yet when the file cannot be written.
    let held = if args.command.is_empty() { None } else { Some(HeldCommand::start(&args.command)?) };
    if let Some(program) = args.command.first() {
        stop::check_program(program)?;
    }
    let writer = ThreadedWriter::create(&args.output)?;
    let progress = !args.quiet && args.command.is_empty() && std::io::stderr().is_terminal();
    let mut recorder = Recorder::new(writer, args, &attrs, source.name(), source.is_coarse(), progress);
    let mut running = match held.map(HeldCommand::release).transpose()? {
        Some((process, running)) => {
            tracker.add(process)?;
            Some(running)
        }
        None => None,
    };

    let options = SessionOptions {
        duration: args.duration,
        update: args.monitor.update,
        overhead: args.monitor.overhead,
    };
    let failed = recorder.failed();
    let mut session = Session::new(source, tracker, options, &mut recorder);
    let ended = session.start().and_then(|()| session.run(&mut || stop.asked() || failed.is_set()));
    let blind_spots = session.blind_spots();
    let reason = match &ended {
        Ok(Ended::Duration) => "duration reached".to_owned(),
        Ok(Ended::Stopped) if failed.is_set() => "the recording could not be written".to_owned(),
        Ok(Ended::Stopped) => "interrupted".to_owned(),
        Ok(Ended::NoTargets) => "all targets ended".to_owned(),
        Err(error) => format!("failed: {error}"),
    };
    let end = End { time_ns: isotherm_linux::monotonic_ns(), reason, blind_spots };
    let written = recorder.finish(end);
    // A command must not be left without its parent because the disk is full: its status is still passed on.
    let status = running.as_mut().map(|running| wait_for(running, &stop)).transpose()?;
    let written = written?;
    ended?;
    if written.snapshots == 0 && !args.quiet {
        eprintln!(
            "isotherm: {} holds no snapshot: the target ended within the first aggregation interval ({:?})",
            args.output.display(),
            args.monitor.aggr
        );
    }
    Ok(status.map_or(ExitCode::SUCCESS, |s: ExitStatus| ExitCode::from(s.shell_code() as u8)))
}

fn open_process(pid: u32) -> anyhow::Result<Process> {
    let raw = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    let raw = raw.with_context(|| format!("process {pid}: no process has this pid"))?;
    let process = Process::open(raw)?;
    process.check_readable()?;
    Ok(process)
}

fn open_source(backend: BackendName, attrs: Attrs, overhead: f64) -> anyhow::Result<Box<dyn Source>> {
    match backend {
        BackendName::Auto | BackendName::Pte => {
            let pte = isotherm_linux::pte::Pte::load()?;
            Ok(Box::new(MonitorSource::pte(pte, attrs, overhead, isotherm_linux::monotonic_ns())?))
        }
        _ => bail!("backend not wired"),
    }
}

/// Waits for the command; a signal to stop is passed on to it.
fn wait_for(running: &mut RunningCommand, stop: &Stop) -> anyhow::Result<ExitStatus> {
    let mut passed_on = 0;
    loop {
        if let Some(status) = running.try_wait()? {
            return Ok(status);
        }
        // Ctrl-C reaches the whole foreground group; other signals only us.
        while passed_on < stop.terminations() {
            passed_on += 1;
            running.signal(rustix::process::Signal::TERM)?;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
}
