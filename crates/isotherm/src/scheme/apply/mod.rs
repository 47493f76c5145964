//! `isotherm scheme apply`: schemes at work on live processes.

mod audit;
mod inputs;
mod marks;
mod notify;
mod rules;
mod screen;
mod show;
mod table;

use crate::args::{ApplyArgs, RecordArgs};
use crate::live::{self, joined, spawn};
use crate::output;
use crate::record::recorder::{Output, Recorder};
use crate::record::waiting::{self, Waited};
use crate::record::{Keep, code_of, is_gone, not_run};
use crate::stop::{self, Stop};
use crate::terminal;
use anyhow::{Context, bail};
use audit::Log;
use isotherm_damon::Attrs;
use isotherm_linux::actions::{Acting, Audit};
use isotherm_linux::probe;
use isotherm_linux::process::Process;
use isotherm_linux::schemes::preflight::{Severity, check};
use isotherm_linux::schemes::{Engine, KernelCounters, Rule, SharedEngine, lock};
use isotherm_linux::targets::{Cgroup, HeldCommand};
use isotherm_linux::{Ended, FeedLimits, Session, SessionOptions, monotonic_ns};
use isotherm_record::End;
use notify::Notify;
use rules::Loaded;
use show::{Heard, Show};
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Runs the command.
///
/// # Errors
/// What went wrong, in words for the person who asked.
pub fn run(args: ApplyArgs) -> anyhow::Result<ExitCode> {
    let attrs = args.monitor.attrs()?;
    if args.targets.is_empty() {
        misuse!(
            "nothing to act on: name a process (--pid), a control group (--cgroup), a command (after --), what processes are like (--comm, --cmdline, --user), or --all"
        );
    }
    if args.stats_every.is_zero() {
        misuse!("--stats-every 0 is too often; --quiet prints none");
    }
    check_files(&args)?;
    let loaded = rules::load(&args)?;
    look_before(&args, &loaded, &attrs)?;
    let tracker = live::targets(&args.targets)?;
    let mut stop = Stop::install_for_service().context("cannot catch Ctrl-C")?;
    if args.targets.command.is_empty() {
        stop.hear_reader();
    }
    if let Some(Err(error)) = args.targets.command.first().map(|program| stop::check_program(program)) {
        return Ok(not_run(error));
    }
    if let Some(path) = &args.output {
        if output::is_standard(path) {
            misuse!("statistics go to standard output; name a file with -o");
        }
        output::check_name(path)?;
        output::check_replaceable(path)?;
    }
    let source = live::open_source(&args.monitor, attrs, args.quiet)?;
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
    let recorder = match &args.output {
        Some(path) => {
            let output = Output::create(path)?;
            Some(Recorder::new(output, &recording(&args, path), &attrs, source.name(), source.is_coarse()))
        }
        None => None,
    };
    apply(args, attrs, loaded, source, tracker, held, recorder, stop)
}

/// The log is appended to, and would end what else is in the file.
fn check_files(args: &ApplyArgs) -> anyhow::Result<()> {
    let Some(log) = &args.log else { return Ok(()) };
    let whole = |path: &Path| path.canonicalize().or_else(|_| std::path::absolute(path)).ok();
    let is_log = |path: &Path| whole(path).is_some_and(|path| whole(log) == Some(path));
    if is_log(Path::new(&args.schemes.schemes)) {
        misuse!("{} holds the schemes: name another file with --log", log.display());
    }
    if args.output.as_deref().is_some_and(is_log) {
        misuse!("{} is to be the recording and the log: name two files", log.display());
    }
    Ok(())
}

/// What `record` would be asked for.
fn recording(args: &ApplyArgs, path: &Path) -> RecordArgs {
    RecordArgs {
        output: path.to_owned(),
        targets: args.targets.clone(),
        duration: args.duration,
        monitor: args.monitor.clone(),
        follow: None,
        every: None,
        keep: Keep::Files(u64::MAX),
        quiet: true,
    }
}

/// Says what would keep the schemes from doing what is meant.
fn look_before(args: &ApplyArgs, loaded: &Loaded, attrs: &Attrs) -> anyhow::Result<()> {
    let mut targets = args.targets.pid.clone();
    for name in &args.targets.cgroup {
        // What is wrong with it is said when it is opened.
        targets.extend(Cgroup::find(name).and_then(|group| group.members()).into_iter().flatten());
    }
    let found = check(&loaded.rules, attrs, &probe::probe(), &targets, &own_pids());
    for finding in loaded.added.iter().chain(&found) {
        say!("isotherm: {finding}");
    }
    if found.iter().any(|finding| finding.severity == Severity::Refusal) {
        bail!("the schemes are not applied, for the reason above");
    }
    Ok(())
}

/// This process and its ancestors.
fn own_pids() -> Vec<u32> {
    let mut pids = vec![std::process::id()];
    while let Some(pid) = pids.last().and_then(|pid| i32::try_from(*pid).ok()) {
        let process = rustix::process::Pid::from_raw(pid).and_then(|pid| Process::open(pid).ok());
        match process.and_then(|process| process.info().ok()).map(|info| info.parent) {
            // The first process is everybody's.
            Some(parent) if parent > 1 && !pids.contains(&parent) => pids.push(parent),
            _ => break,
        }
    }
    pids
}

#[allow(clippy::too_many_arguments, reason = "all that was opened before anything happens")]
fn apply(
    args: ApplyArgs,
    attrs: Attrs,
    loaded: Loaded,
    mut source: Box<dyn isotherm_linux::Source>,
    mut tracker: isotherm_linux::targets::Tracker,
    held: Option<HeldCommand>,
    mut recorder: Option<Recorder>,
    stop: Stop,
) -> anyhow::Result<ExitCode> {
    let names: audit::Names =
        Arc::new(Mutex::new(loaded.rules.iter().map(|rule: &Rule| rule.name.clone()).collect()));
    let mut acting = Acting::new(args.split_folios);
    acting.spare_young();
    let mut audits: Vec<Audit> = Vec::new();
    let log = match &args.log {
        Some(path) => {
            let opened = Log::open(path, Arc::clone(&names));
            let (log, audit) = opened.with_context(|| format!("cannot write to {}", path.display()))?;
            audits.push(audit);
            Some(log)
        }
        None => None,
    };
    let mut unrecorded = marks::Lost::default();
    if let Some(recorder) = &mut recorder {
        let (audit, actions, lost) = marks::channel(Arc::clone(&names));
        recorder.take_actions(actions);
        audits.push(audit);
        unrecorded = lost;
    }
    if !audits.is_empty() {
        acting.set_audit(Box::new(move |applied| audits.iter_mut().for_each(|audit| audit(applied))));
    }
    let engine: SharedEngine = Arc::new(Mutex::new(Engine::new(loaded.rules, attrs, acting)?));
    let inputs: inputs::Inputs = Arc::new(Mutex::new(loaded.inputs));
    inputs::start(&inputs, &engine).context("cannot start a thread")?;
    if tracker.follows()
        && let Some(lives) = source.count_lives(tracker.is_of_everything())
    {
        tracker.count_lives(lives);
        if let Some(held) = &held {
            tracker.expect(held.process());
        }
    }
    let backend = source.name();
    let options = SessionOptions {
        duration: args.duration,
        update: args.monitor.update,
        overhead: args.monitor.overhead,
        cpu_before: isotherm_linux::process_cpu(),
        // The screen, the log, the values of goals.
        alone: true,
    };
    // Dropped before it is released, a held command never runs.
    if !source.set_schemes(&engine) {
        bail!("the backend {backend} has no regions that schemes can act on; take --backend pte or idle");
    }
    let mut lost = None;
    let running = match held.map(HeldCommand::release).transpose() {
        Ok(Some((process, running))) => {
            lost = tracker.add(process).err();
            Some(running)
        }
        Ok(None) => None,
        Err(error) => return Ok(not_run(error)),
    };
    let mut session = Session::new(source, tracker, options);
    session.set_schemes(&engine);
    let failed = recorder.as_ref().map(Recorder::failed).unwrap_or_default();
    let recorder = recorder
        .map(|recorder| spawn(&mut session, "recorder", FeedLimits::default(), recorder))
        .transpose()
        .context("cannot start a thread to write the recording")?;
    let heard = Heard::default();
    let limits = FeedLimits { snapshots: 0, bytes: 0, ..FeedLimits::default() };
    let listener = spawn(&mut session, "listener", limits, heard.clone()).context("cannot start a thread")?;
    let over = Arc::new(AtomicBool::new(false));
    let (notify, beats) = (Arc::new(Notify::from_env()), Arc::<AtomicU64>::default());
    let (args, stop) = (Arc::new(args), Arc::new(stop));
    let show = Show {
        args: Arc::clone(&args),
        engine: Arc::clone(&engine),
        heard: heard.clone(),
        attrs,
        names,
        inputs: Arc::clone(&inputs),
        log: log.as_ref().map(Log::reopener),
        over: Arc::clone(&over),
        notify: Arc::clone(&notify),
        beats: Arc::clone(&beats),
        started: Instant::now(),
        counted: KernelCounters::read(),
    };
    let (counted, started, hears) = (show.counted, show.started, Arc::clone(&stop));
    let show = std::thread::Builder::new().name("isotherm-show".into()).spawn(move || show.run(&hears))?;

    let ends = || {
        // The watchdog hears of a session that goes on, not of a thread that does nothing else.
        beats.fetch_add(1, Ordering::Relaxed);
        stop.asked() || failed.is_set()
    };
    let ended = session.start().and_then(|()| {
        crate::live::tell_of_isotherms(&mut session);
        notify.ready();
        session.run(&mut { ends })
    });
    notify.stopping();
    let mut blind_spots = session.blind_spots();
    blind_spots.extend(crate::live::clearers_beside(&mut session).blind_spot());
    drop(session);
    over.store(true, Ordering::Relaxed);
    show.thread().unpark();
    joined(show);
    joined(listener);
    let standing = show::Standing {
        elapsed: started.elapsed(),
        acting: lock(&engine).cpu(),
        kernel: show::counted_since(counted),
        ..heard.standing()
    };
    let told_all = last_words(&args, &standing, &engine);
    drop((engine, inputs));
    if let Some(log) = log {
        log.finish();
    }
    let reason = match &ended {
        Ok(Ended::Duration) => "duration reached".to_owned(),
        Ok(Ended::Stopped) if failed.is_set() => "the recording could not be written".to_owned(),
        Ok(Ended::Stopped) if stop.count() == 0 => "nobody reads standard output any more".to_owned(),
        Ok(Ended::Stopped) => "interrupted".to_owned(),
        Ok(Ended::NoTargets) => "all targets ended".to_owned(),
        Err(error) => format!("failed: {error}"),
    };
    match unrecorded.load(Ordering::Relaxed) {
        0 => {}
        lost => blind_spots
            .push(format!("{lost} actions are not recorded: they came faster than they could be written")),
    }
    let written =
        recorder.map(|thread| joined(thread).finish(End { time_ns: monotonic_ns(), reason, blind_spots }));
    let written = written.transpose();
    // A command is not left without its parent whatever went wrong.
    let told = (!args.quiet).then_some("the schemes have ended");
    let waited = running.map(|running| waiting::wait_for(running, &stop, told, || {})).transpose();
    let ended = ended?;
    if let (Some(_), Some(path)) = (written?, &args.output) {
        say!("isotherm: wrote {}", path.display());
    }
    if ended == Ended::NoTargets && args.targets.command.is_empty() && !args.quiet {
        say!("isotherm: {}", why_none(&args.targets.cgroup));
    }
    if ended == Ended::NoTargets
        && let Some(error) = lost.filter(|error| !is_gone(error))
    {
        return Err(error.into());
    }
    let waited = waited?;
    if let Err(error) = told_all
        && !crate::reader::has_left()
    {
        return Err(anyhow::Error::new(error).context("the table at the end could not be printed"));
    }
    Ok(match waited {
        Some(Waited::Left) => ExitCode::from(stop.code().unwrap_or(130)),
        Some(Waited::Ended(status)) if !status.success() => code_of(status),
        Some(Waited::Ended(_)) => ExitCode::SUCCESS,
        None => stop.code_but_ctrl_c().map_or(ExitCode::SUCCESS, ExitCode::from),
    })
}

/// Why there are no targets any more.
fn why_none(cgroups: &[String]) -> String {
    let removed: Vec<&str> =
        cgroups.iter().filter(|name| Cgroup::find(name).is_err()).map(String::as_str).collect();
    match removed.as_slice() {
        [] => "all targets have ended".to_owned(),
        [one] => format!("all targets have ended, and cgroup {one} was removed"),
        several => format!("all targets have ended, and cgroups {} were removed", several.join(", ")),
    }
}

/// The table at the end. Nothing depends on standard error being read.
fn last_words(args: &ApplyArgs, standing: &table::Standing, engine: &SharedEngine) -> io::Result<()> {
    let reports = lock(engine).report();
    let to_stdout = args.targets.command.is_empty();
    let lines = match (to_stdout, io::stdout().is_terminal()) {
        (true, true) => table::on_terminal(standing, &reports, terminal::size(io::stdout()).0),
        _ => std::iter::once(table::head(standing))
            .chain(table::table(&reports))
            .chain(table::machine(standing, &reports))
            .collect(),
    };
    let text: String = lines.iter().flat_map(|line| [line.as_str(), "\n"]).collect();
    // A command's output is its own.
    if to_stdout {
        let mut out = io::stdout().lock();
        return out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
    let _ = io::stderr().lock().write_all(text.as_bytes());
    Ok(())
}
