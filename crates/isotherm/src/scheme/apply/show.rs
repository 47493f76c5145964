//! The thread that prints statistics, and reads the scheme file again.

use super::audit::Names;
use super::inputs::Inputs;
use super::notify::Notify;
use super::rules::{self, Changes};
pub use super::table::Standing;
use super::table::{head, lines, machine, table};
use crate::args::ApplyArgs;
use crate::stop::Stop;
use crate::terminal;
use isotherm_damon::{Attrs, TargetId};
use isotherm_linux::process::Process;
use isotherm_linux::schemes::preflight::{Severity, check};
use isotherm_linux::schemes::{KernelCounters, SharedEngine, lock};
use isotherm_linux::targets::EndReason;
use isotherm_linux::{Cost, Observer, Refusals, probe};
use isotherm_report::units::counted;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Of a shorter time the share of CPU time says nothing.
const LEAST_WALL_NS: u64 = 100_000_000;

/// What the session tells of its targets and costs.
#[derive(Clone, Default)]
pub struct Heard(Arc<Mutex<Standing>>);

impl Heard {
    fn with<T>(&self, use_it: impl FnOnce(&mut Standing) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How things stand.
    pub fn standing(&self) -> Standing {
        self.with(|standing| *standing)
    }
}

impl Observer for Heard {
    fn target(&mut self, _: TargetId, _: &Arc<Process>, _: Option<TargetId>, _is_copy: bool, _time_ns: u64) {
        self.with(|standing| standing.targets += 1);
    }

    fn target_end(&mut self, _id: TargetId, _reason: EndReason, _time_ns: u64) {
        self.with(|standing| standing.targets = standing.targets.saturating_sub(1));
    }

    fn refused(&mut self, refusals: &Refusals) {
        say!("isotherm: not acted on: {}; the first: {}", counted(refusals.count, "process"), refusals.why);
    }

    fn cost(&mut self, cost: &Cost) {
        self.with(|standing| {
            // What starting took is no share of the moment that a session of no targets lasts.
            if cost.wall_ns >= LEAST_WALL_NS {
                standing.monitor = Some(cost.cpu_ns as f64 / cost.wall_ns as f64);
            }
            // Of targets that are all gone nothing is known.
            if standing.targets > 0 && cost.resident_pages > 0 {
                let now = cost.resident_pages * rustix::param::page_size() as u64;
                let most = standing.resident.map_or(now, |(most, _)| most.max(now));
                standing.resident = Some((most, now));
            }
        });
    }
}

/// What the thread works with.
pub struct Show {
    pub args: Arc<ApplyArgs>,
    pub engine: SharedEngine,
    pub heard: Heard,
    pub attrs: Attrs,
    pub names: Names,
    pub inputs: Inputs,
    /// Set to have the log opened anew.
    pub log: Option<Arc<AtomicBool>>,
    /// The session is over.
    pub over: Arc<AtomicBool>,
    pub notify: Arc<Notify>,
    /// Goes on as long as the session does.
    pub beats: Arc<AtomicU64>,
    pub started: Instant,
    /// The kernel's counters at the start.
    pub counted: Option<KernelCounters>,
}

/// What the kernel counted since `before`.
pub fn counted_since(before: Option<KernelCounters>) -> Option<KernelCounters> {
    Some(KernelCounters::read()?.since(before?))
}

/// How often it is looked whether there is something to do.
const STEP: Duration = Duration::from_millis(50);
/// How often the service manager hears how things stand.
const STATUS: Duration = Duration::from_secs(1);

impl Show {
    /// Until the session is over.
    pub fn run(self, stop: &Stop) {
        let to_stdout = self.args.targets.command.is_empty();
        let screen = to_stdout && !self.args.quiet && io::stdout().is_terminal();
        let (mut changes, mut hangups) = (Changes::of(&self.args.schemes.schemes), 0);
        let mut next = self.started + self.args.stats_every;
        let mut first = true;
        let mut watched = (Instant::now(), 0);
        let mut status = Instant::now();
        while !self.over.load(Ordering::Relaxed) {
            std::thread::sleep(STEP);
            let asked = stop.hangups() > hangups;
            if asked {
                hangups = stop.hangups();
                if let Some(log) = &self.log {
                    log.store(true, Ordering::Relaxed);
                }
            }
            if asked {
                changes.take();
            }
            if asked || changes.take_changed() {
                self.notify.reloading();
                if changes.is_file() {
                    self.read_again();
                }
                self.notify.ready();
            }
            let beats = self.beats.load(Ordering::Relaxed);
            if self.notify.alive_every().is_some_and(|every| watched.0.elapsed() + STEP >= every)
                && beats != watched.1
            {
                watched = (Instant::now(), beats);
                self.notify.alive();
            }
            if self.notify.is_heard() && status.elapsed() >= STATUS {
                status = Instant::now();
                self.notify.status(&head(&self.standing()));
            }
            if Instant::now() >= next && !self.args.quiet {
                next = Instant::now() + self.args.stats_every;
                if screen {
                    self.draw(std::mem::take(&mut first));
                } else {
                    self.tell(to_stdout);
                }
            }
        }
    }

    fn standing(&self) -> Standing {
        let acting = lock(&self.engine).cpu();
        let kernel = counted_since(self.counted);
        Standing { elapsed: self.started.elapsed(), acting, kernel, ..self.heard.standing() }
    }

    fn draw(&self, first: bool) {
        let (width, rows) = terminal::size(io::stdout());
        let standing = self.standing();
        let reports = lock(&self.engine).report();
        let mut lines = vec![head(&standing), String::new()];
        lines.extend(table(&reports));
        lines.extend(machine(&standing, &reports));
        lines.push(String::new());
        lines.push("Ctrl-C ends it; SIGHUP reads the schemes again".into());
        lines.truncate(rows.unwrap_or(usize::MAX).saturating_sub(1));
        let mut text = String::from(if first { "\x1b[2J\x1b[H" } else { "\x1b[H" });
        for line in lines {
            text.extend(line.chars().take(width));
            text.push_str("\x1b[K\r\n");
        }
        text.push_str("\x1b[J");
        let mut out = io::stdout().lock();
        // A terminal that is gone ends nothing.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }

    fn tell(&self, to_stdout: bool) {
        let (standing, reports) = (self.standing(), lock(&self.engine).report());
        let mut text = head(&standing) + "\n";
        for line in lines(&reports).into_iter().chain(machine(&standing, &reports)) {
            text.push_str("  ");
            text.push_str(&line);
            text.push('\n');
        }
        if to_stdout {
            let _ = io::stdout().lock().write_all(text.as_bytes());
        } else {
            let _ = io::stderr().lock().write_all(text.as_bytes());
        }
    }

    /// Exchanges the schemes for what the file says now, if it is valid.
    fn read_again(&self) {
        let source = &self.args.schemes.schemes;
        let taken = rules::load(&self.args).and_then(|loaded| {
            let found = check(&loaded.rules, &self.attrs, &probe::probe(), &[], &[]);
            if let Some(refusal) = found.iter().find(|finding| finding.severity == Severity::Refusal) {
                anyhow::bail!("{refusal}");
            }
            for finding in loaded.added.iter().chain(&found) {
                say!("isotherm: {finding}");
            }
            let names = loaded.rules.iter().map(|rule| rule.name.clone()).collect();
            // While the engine is locked nothing is done, so that each action has the name that it is done under.
            let mut engine = lock(&self.engine);
            engine.commit(loaded.rules)?;
            *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
            *self.inputs.lock().unwrap_or_else(PoisonError::into_inner) = loaded.inputs;
            Ok(())
        });
        match taken {
            Ok(()) => say!("isotherm: {source} was read again"),
            Err(error) => {
                crate::tell(&error);
                say!("isotherm: {source} is not taken; the schemes go on as they were");
            }
        }
    }
}
