//! The thread of the screen: keys in, frames out.

use super::model::Shared;
use super::output::Keeper;
use super::pace::Pace;
use super::paint::paint;
use super::save::{self, Kept, What};
use super::saving::{Saving, Unwanted};
use super::screen::Screen;
use super::state::Effect;
use super::style::Look;
use super::suspend::Signals;
use super::terminal::{self, Terminal};
use crate::args::TopArgs;
use anyhow::Context;
use crossterm::event::{Event, poll, read};
use isotherm_linux::thread_cpu;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
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
    /// The file that is being written; it may outlast the screen.
    pub saving: Saving,
    /// What the command prints, to be kept small.
    pub output: Option<Keeper>,
}

/// How long a signal, or the end of the session, may go unnoticed.
const LISTEN: Duration = Duration::from_millis(200);

/// How soon a terminal that has no room is tried again: at first, and after it had none for a while.
const TRY_AGAIN: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(100));

/// How often what the command printed is cut to what is kept of it.
const TRIM_PERIOD: Duration = Duration::from_secs(1);

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
        let (mut asked, mut trim_at) = (false, Instant::now());
        let (mut bytes, mut frame_cpu) = (Vec::new(), thread_cpu());
        let mut meter = Meter::new(Instant::now(), frame_cpu);
        let mut try_again = TRY_AGAIN.0;
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
            if let Some(message) = self.saving.result() {
                screen.state.message = Some(message);
                asked = true;
            }
            let now = Instant::now();
            if let Some(output) = self.output.as_mut().filter(|_| now >= trim_at) {
                output.trim();
                trim_at = now + TRIM_PERIOD;
            }
            let (width, height) = self.terminal.size();
            let resized = (before.area.width, before.area.height) != (width, height);
            if resized && before.area.area() > 0 {
                // What is on the way is of the wrong size.
                self.terminal.forget();
                before = Buffer::empty(Rect::default());
            }
            let due = pace.due(asked || resized);
            let wrote = self.terminal.flush().context("the terminal cannot be written to")?;
            // A line that is slower than what is drawn gets fewer frames, each of its time, and none that wait.
            if now >= due && !self.terminal.is_busy() {
                bytes.clear();
                if resized {
                    before = Buffer::empty(Rect::new(0, 0, width, height));
                    bytes.extend_from_slice(b"\x1b[0m\x1b[2J");
                }
                screen.cost = meter.share(now, thread_cpu());
                let (next, scrolls) = screen.frame(width, height);
                paint(&mut before, &next, &scrolls, &mut bytes)?;
                self.terminal.send(&bytes);
                let spent = thread_cpu();
                pace.drawn(bytes.len() as u64, spent.saturating_sub(frame_cpu), Instant::now());
                frame_cpu = spent;
                asked = false;
                continue;
            }
            let mut wait = due.saturating_duration_since(now).min(LISTEN);
            if self.terminal.is_busy() {
                try_again = if wrote { TRY_AGAIN.0 } else { (try_again * 2).min(TRY_AGAIN.1) };
                wait = try_again;
            }
            if !poll(wait).context("the terminal cannot be read")? {
                continue;
            }
            // All that was typed is heeded before anything is drawn.
            loop {
                let event = read().context("the terminal cannot be read")?;
                if matches!(event, Event::Resize(..)) {
                    // What it showed may be cut off or moved, also where it has its former size again by now.
                    self.terminal.forget();
                    (before, asked) = (Buffer::empty(Rect::default()), true);
                }
                match screen.event(&event) {
                    None => {}
                    Some(effect) => {
                        asked = true;
                        match effect {
                            Effect::None => {}
                            Effect::Quit => return Ok(()),
                            Effect::Suspend => signals.ask_group(),
                            Effect::Redraw => before = Buffer::empty(Rect::default()),
                            Effect::Save(name) => self.save(&name, &mut screen),
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
    fn save(&mut self, name: &str, screen: &mut Screen) {
        let path = PathBuf::from(name);
        let said = match What::of(&path) {
            Ok(What::Screen) => {
                let (width, height) = self.terminal.size();
                let lines = lines(&screen.without_colours(width, height));
                save::write_text(&path, &lines).unwrap_or_else(|error| crate::words(&error))
            }
            Ok(What::Recording) => {
                let kept = Kept::of(&screen.known().lock());
                let write = move |unwanted: &Unwanted| kept.write(&path, unwanted);
                self.saving
                    .start(name, move |unwanted| write(unwanted).unwrap_or_else(|error| crate::words(&error)))
            }
            Err(error) => crate::words(&error),
        };
        screen.state.message = Some(said);
    }
}

/// The lines of a screen, but for the bottom line, in which the name of the file was typed.
fn lines(shown: &Buffer) -> Vec<String> {
    let width = usize::from(shown.area.width).max(1);
    let lines = shown.content.chunks(width).take(usize::from(shown.area.height).saturating_sub(1));
    lines.map(|line| line.iter().map(|cell| cell.symbol()).collect()).collect()
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
