//! The thread that prints statistics, and reads the scheme file again.

use super::audit::Names;
use super::inputs::Inputs;
use super::notify::Notify;
use super::rules::{self, Changes};
use super::screen::Screen;
pub use super::table::Standing;
use super::table::{head, line, on_terminal};
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
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Of a shorter time the share of CPU time says nothing.
const LEAST_WALL_NS: u64 = 100_000_000;

/// What the session tells of its targets and costs.
#[derive(Clone, Default)]
pub struct Heard(Arc<Mutex<Told>>);

#[derive(Default)]
struct Told {
    standing: Standing,
    /// What is to be said, and was not yet: a screen is not to be written over.
    news: Vec<String>,
}

impl Heard {
    fn with<T>(&self, use_it: impl FnOnce(&mut Told) -> T) -> T {
        use_it(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How things stand.
    pub fn standing(&self) -> Standing {
        self.with(|told| told.standing)
    }

    /// What is to be said, once.
    pub fn news(&self) -> Vec<String> {
        self.with(|told| std::mem::take(&mut told.news))
    }
}

impl Observer for Heard {
    fn target(&mut self, _: TargetId, _: &Arc<Process>, _: Option<TargetId>, _is_copy: bool, _time_ns: u64) {
        self.with(|told| told.standing.targets += 1);
    }

    fn target_end(&mut self, _id: TargetId, _reason: EndReason, _time_ns: u64) {
        self.with(|told| told.standing.targets = told.standing.targets.saturating_sub(1));
    }

    fn refused(&mut self, refusals: &Refusals) {
        let count = counted(refusals.count, "process");
        self.with(|told| {
            told.news.push(format!("isotherm: not acted on: {count}; the first: {}", refusals.why))
        });
    }

    fn cost(&mut self, cost: &Cost) {
        self.with(|Told { standing, .. }| {
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

/// How often it is looked whether there is something to do. Each look takes some 40 us: at 50 ms it was a tenth of a budget of 1 %.
const STEP: Duration = Duration::from_millis(200);
/// How often the service manager hears how things stand.
const STATUS: Duration = Duration::from_secs(1);

impl Show {
    /// Until the session is over.
    pub fn run(self, stop: &Stop) {
        let to_stdout = self.args.targets.command.is_empty();
        let mut screen = self.screen(to_stdout);
        let step = self.step();
        let (mut changes, mut hangups) = (Changes::of(&self.args.schemes.schemes, step), 0);
        let mut next = self.started + self.args.stats_every;
        let mut watched = (Instant::now(), 0);
        let mut status = Instant::now();
        while !self.over.load(Ordering::Relaxed) {
            std::thread::park_timeout(step);
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
                    self.say(&mut screen, &self.read_again());
                }
                self.notify.ready();
            }
            let beats = self.beats.load(Ordering::Relaxed);
            if self.notify.alive_every().is_some_and(|every| watched.0.elapsed() + step >= every)
                && beats != watched.1
            {
                watched = (Instant::now(), beats);
                self.notify.alive();
            }
            if self.notify.is_heard() && status.elapsed() >= STATUS {
                status = Instant::now();
                self.notify.status(&head(&self.standing()));
            }
            self.say(&mut screen, &self.heard.news());
            if Instant::now() >= next && !self.args.quiet {
                next = Instant::now() + self.args.stats_every;
                let (standing, reports) = (self.standing(), lock(&self.engine).report());
                match &mut screen {
                    Some((drawn, out)) => {
                        let (width, rows) = terminal::size(out.as_fd());
                        let mut lines = on_terminal(&standing, &reports, width);
                        lines
                            .extend([String::new(), "Ctrl-C ends it; SIGHUP reads the schemes again".into()]);
                        out.write(&drawn.next(&lines, rows));
                    }
                    None => Out::new(to_stdout).write(&(line(&standing, &reports) + "\n")),
                }
            }
        }
        if let Some((drawn, out)) = screen.take() {
            // The last words say the same once more, as of the end.
            out.write(&drawn.clear());
        }
        self.say(&mut None, &self.heard.news());
    }

    /// How long to wait between two looks: no longer than something is to be done that often.
    fn step(&self) -> Duration {
        let stats = Some(self.args.stats_every).filter(|_| !self.args.quiet);
        let alive = self.notify.alive_every().map(|every| every / 2);
        [stats, alive].into_iter().flatten().fold(STEP, Duration::min)
    }

    /// A command's output is its own: where both would be on one terminal, statistics are lines.
    fn screen(&self, to_stdout: bool) -> Option<(Screen, Out)> {
        let is_terminal = match to_stdout {
            true => io::stdout().is_terminal(),
            false => io::stderr().is_terminal() && !io::stdout().is_terminal(),
        };
        (is_terminal && !self.args.quiet).then(|| (Screen::default(), Out::new(to_stdout)))
    }

    /// Says something, above the screen if there is one.
    fn say(&self, screen: &mut Option<(Screen, Out)>, news: &[String]) {
        if news.is_empty() {
            return;
        }
        if let Some((drawn, out)) = screen {
            out.write(&drawn.clear());
        }
        for text in news {
            say!("{text}");
        }
        if let Some((drawn, out)) = screen {
            out.write(&drawn.again());
        }
    }

    fn standing(&self) -> Standing {
        let acting = lock(&self.engine).cpu();
        let kernel = counted_since(self.counted);
        Standing { elapsed: self.started.elapsed(), acting, kernel, ..self.heard.standing() }
    }

    /// Exchanges the schemes for what the file says now, if it is valid. What is to be said of it.
    fn read_again(&self) -> Vec<String> {
        let source = &self.args.schemes.schemes;
        let mut news = Vec::new();
        let taken = rules::load(&self.args).and_then(|loaded| {
            let found = check(&loaded.rules, &self.attrs, &probe::probe(), &[], &[]);
            if let Some(refusal) = found.iter().find(|finding| finding.severity == Severity::Refusal) {
                anyhow::bail!("{refusal}");
            }
            news.extend(loaded.added.iter().chain(&found).map(|finding| format!("isotherm: {finding}")));
            let names = loaded.rules.iter().map(|rule| rule.name.clone()).collect();
            // While the engine is locked nothing is done, so that each action has the name that it is done under.
            let mut engine = lock(&self.engine);
            engine.commit(loaded.rules)?;
            *self.names.lock().unwrap_or_else(PoisonError::into_inner) = names;
            *self.inputs.lock().unwrap_or_else(PoisonError::into_inner) = loaded.inputs;
            Ok(())
        });
        match taken {
            Ok(()) => news.push(format!("isotherm: {source} was read again")),
            Err(error) => {
                news.push(format!("isotherm: {}", crate::words(&error)));
                news.push(format!("isotherm: {source} is not taken; the schemes go on as they were"));
            }
        }
        news
    }
}

/// Where statistics go.
struct Out {
    to_stdout: bool,
}

impl Out {
    const fn new(to_stdout: bool) -> Self {
        Self { to_stdout }
    }

    /// Nothing depends on their being read: a terminal that is gone ends nothing.
    fn write(&self, text: &str) {
        let _ = match self.to_stdout {
            true => written(io::stdout().lock(), text),
            false => written(io::stderr().lock(), text),
        };
    }

    fn as_fd(&self) -> BorrowedFd<'static> {
        if self.to_stdout { rustix::stdio::stdout() } else { rustix::stdio::stderr() }
    }
}

fn written(mut out: impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.flush()
}
