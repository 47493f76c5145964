//! The thread of the screen: keys in, frames out.

use super::model::Shared;
use super::pace::Pace;
use super::paint::paint;
use super::save::{self, Kept};
use super::screen::Screen;
use super::state::Effect;
use super::style::Look;
use super::suspend::Signals;
use super::terminal::{self, Terminal};
use crate::args::TopArgs;
use anyhow::Context;
use crossterm::event::{Event, poll, read};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use rustix::time::{ClockId, clock_gettime};
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

/// What was asked for on the command line.
pub struct Options {
    refresh: Option<Duration>,
    mouse: bool,
}

impl Options {
    pub fn of(args: &TopArgs) -> Self {
        Self { refresh: args.refresh, mouse: !args.no_mouse }
    }
}

/// All that the thread needs.
pub struct Ui {
    pub terminal: Terminal,
    pub look: Look,
    pub args: Options,
    pub model: Shared,
}

/// How long a signal, or the end of the session, may go unnoticed.
const LISTEN: Duration = Duration::from_millis(200);

/// CPU time of this thread.
fn cpu() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(now.tv_sec).unwrap_or(0), u32::try_from(now.tv_nsec).unwrap_or(0))
}

impl Ui {
    /// Draws until the user has seen enough, or `over` is set.
    ///
    /// # Errors
    /// The terminal is gone or refuses.
    pub fn run(mut self, over: &AtomicBool) -> anyhow::Result<()> {
        let signals = Signals::catch().context("cannot catch Ctrl-Z")?;
        self.terminal.take(self.args.mouse)?;
        if over.load(Ordering::Relaxed) {
            terminal::give_back();
            return Ok(());
        }
        let done = self.show(over, &signals);
        terminal::give_back();
        done
    }

    fn show(&mut self, over: &AtomicBool, signals: &Signals) -> anyhow::Result<()> {
        let mut screen = Screen::new(self.model.clone(), self.look);
        let mut before = Buffer::empty(Rect::default());
        let mut pace = Pace::new(self.args.refresh, Instant::now());
        let (saved, results): (Sender<String>, Receiver<String>) = channel();
        let mut asked = false;
        let (mut bytes, mut frame_cpu) = (Vec::new(), cpu());
        let mut meter = Meter::new(Instant::now(), frame_cpu);
        while !over.load(Ordering::Relaxed) {
            if signals.suspend() {
                self.suspend(signals)?;
                (before, asked) = (Buffer::empty(Rect::default()), true);
            }
            if signals.continued() {
                // Whoever stopped it may have used the terminal.
                terminal::give_back();
                self.terminal.take(self.args.mouse)?;
                (before, asked) = (Buffer::empty(Rect::default()), true);
            }
            while let Ok(message) = results.try_recv() {
                screen.state.message = Some(message);
                asked = true;
            }
            let now = Instant::now();
            let due = pace.due(asked || self.terminal.size() != (before.area.width, before.area.height));
            if now >= due {
                let (width, height) = self.terminal.size();
                bytes.clear();
                if (before.area.width, before.area.height) != (width, height) {
                    before = Buffer::empty(Rect::new(0, 0, width, height));
                    bytes.extend_from_slice(b"\x1b[0m\x1b[2J");
                }
                screen.cost = meter.share(now, cpu());
                let (next, scrolls) = screen.frame(width, height);
                paint(&mut before, &next, &scrolls, &mut bytes)?;
                self.terminal.write_all(&bytes).context("the terminal cannot be written to")?;
                let spent = cpu();
                pace.drawn(bytes.len() as u64, spent.saturating_sub(frame_cpu), Instant::now());
                frame_cpu = spent;
                asked = false;
                continue;
            }
            if !poll((due - now).min(LISTEN)).context("the terminal cannot be read")? {
                continue;
            }
            // All that was typed is heeded before anything is drawn.
            loop {
                let event = read().context("the terminal cannot be read")?;
                asked |= matches!(event, Event::Resize(..));
                match screen.event(&event) {
                    None => {}
                    Some(effect) => {
                        asked = true;
                        match effect {
                            Effect::None => {}
                            Effect::Quit => return Ok(()),
                            Effect::Suspend => signals.ask_group(),
                            Effect::Redraw => before = Buffer::empty(Rect::default()),
                            Effect::Save(name) => self.save(&name, &before, &mut screen, &saved),
                        }
                    }
                }
                if !poll(Duration::ZERO).context("the terminal cannot be read")? {
                    break;
                }
            }
        }
        Ok(())
    }

    fn suspend(&mut self, signals: &Signals) -> anyhow::Result<()> {
        terminal::give_back();
        signals.stop_here();
        self.terminal.take(self.args.mouse)
    }

    /// Writes a file. A recording takes a while, so it is written beside.
    fn save(&self, name: &str, shown: &Buffer, screen: &mut Screen, saved: &Sender<String>) {
        let path = PathBuf::from(name);
        if path.extension().is_some_and(|e| e == "txt") {
            let lines: Vec<String> = lines(shown);
            let said = save::write_text(&path, &lines);
            screen.state.message = Some(said.unwrap_or_else(|error| format!("{error:#}")));
            return;
        }
        let kept = Kept::of(&self.model.lock());
        let to = saved.clone();
        let write = move || {
            let said = kept.write(&path).unwrap_or_else(|error| format!("{error:#}"));
            // Nobody listens when the screen is gone by now.
            let _ = to.send(said);
        };
        screen.state.message = Some(format!("writing {name} ..."));
        if let Err(error) = std::thread::Builder::new().name("isotherm-save".into()).spawn(write) {
            screen.state.message = Some(format!("cannot start a thread: {error}"));
        }
    }
}

/// The lines of a screen.
fn lines(shown: &Buffer) -> Vec<String> {
    let width = usize::from(shown.area.width).max(1);
    shown.content.chunks(width).map(|line| line.iter().map(|cell| cell.symbol()).collect()).collect()
}

/// Which share of a CPU a thread takes, on the mean of some seconds.
struct Meter {
    at: Instant,
    cpu: Duration,
    share: f64,
}

impl Meter {
    const PERIOD: Duration = Duration::from_secs(3);

    fn new(at: Instant, cpu: Duration) -> Self {
        Self { at, cpu, share: 0.0 }
    }

    fn share(&mut self, now: Instant, cpu: Duration) -> f64 {
        let wall = now.saturating_duration_since(self.at);
        if wall >= Self::PERIOD {
            self.share = cpu.saturating_sub(self.cpu).as_secs_f64() / wall.as_secs_f64();
            (self.at, self.cpu) = (now, cpu);
        }
        self.share
    }
}
