//! The terminal: taking it over, and giving it back as it was however the program ends.
//!
//! It is opened anew where that is possible, so that writing need not block: a line that takes nothing any more must not
//! keep the program from ending. What has to be undone stands in one place ([`TAKEN`]), which the panic hook and the normal
//! way out share; after that nothing is written any more.

use anyhow::{Context, bail};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{Command, cursor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What was taken over and must be given back.
struct Taken {
    tty: OwnedFd,
    before: Termios,
}

static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);

/// How long giving back may wait for a terminal that takes nothing.
const PATIENCE: Duration = Duration::from_millis(500);

/// A terminal that is drawn on.
pub struct Terminal {
    tty: OwnedFd,
}

impl Terminal {
    /// Opens the terminal of standard output, or the one that controls this process.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> anyhow::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |path: &str| rustix::fs::open(path, flags, Mode::empty());
        let tty = if io::stdout().is_terminal() {
            // After su it may be another user's; then what is open already serves, and may block.
            open("/proc/self/fd/1").or_else(|_| rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3))
        } else {
            open("/dev/tty")
        };
        let tty = tty.context(
            "no terminal to draw on; run `isotherm top` in one, or use `isotherm record` and `isotherm report`",
        )?;
        if std::env::var("TERM").is_ok_and(|term| term == "dumb") {
            bail!(
                "this terminal (TERM=dumb) cannot be drawn on; use `isotherm record` and `isotherm report`"
            );
        }
        Ok(Self { tty })
    }

    /// A way to find out whether there still is a terminal.
    ///
    /// # Errors
    /// The system refuses.
    pub fn line(&self) -> anyhow::Result<Line> {
        Ok(Line(self.tty.try_clone().context("cannot use the terminal")?))
    }

    /// Columns and lines; 80 x 24 where the terminal does not say.
    pub fn size(&self) -> (u16, u16) {
        match tcgetwinsize(&self.tty) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => (80, 24),
        }
    }

    /// Takes it over: no echo, no lines, keys one by one, another screen than the shell's.
    ///
    /// # Errors
    /// The system refuses.
    pub fn take(&mut self, mouse: bool) -> anyhow::Result<()> {
        let before = tcgetattr(&self.tty).context("cannot read the modes of the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        let tty = self.tty.try_clone().context("cannot use the terminal")?;
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Taken { tty, before });
        tcsetattr(&self.tty, OptionalActions::Now, &raw).context("cannot set the modes of the terminal")?;
        let mouse = if mouse { MOUSE_ON } else { "" };
        let begin = format!("{}{}{mouse}", ansi(EnterAlternateScreen), ansi(cursor::Hide));
        self.write_all(begin.as_bytes()).context("cannot write to the terminal")?;
        Ok(())
    }
}

/// The line to a terminal.
pub struct Line(OwnedFd);

impl Line {
    /// Whether the terminal is gone: its window was closed. Who reads keys then with crossterm tries for ever, so this is not
    /// for the thread of the screen to find out.
    pub fn is_cut(&self) -> bool {
        let mut fds = [PollFd::new(&self.0, PollFlags::empty())];
        let cut = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
        poll(&mut fds, Some(&Timespec::default())).is_ok() && fds[0].revents().intersects(cut)
    }
}

fn ansi(command: impl Command) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = command.write_ansi(&mut text);
    text
}

/// Clicks, the wheel and dragging, but no mere motion, which would keep a slow line busy; in the form that knows no limits.
const MOUSE_ON: &str = "\x1b[?1002h\x1b[?1006h";
const MOUSE_OFF: &str = "\x1b[?1006l\x1b[?1002l";

/// Waits until the terminal takes more; a while at most.
fn wait_for_room(tty: BorrowedFd<'_>) {
    let timeout = Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
    // Whatever ends it, the next write finds out.
    let _ = poll(&mut [PollFd::new(&tty, PollFlags::OUT)], Some(&timeout));
}

impl Write for Terminal {
    /// Takes all bytes, and drops them once the terminal was given back, by whomever: what was to be drawn has no screen
    /// any more.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let written = {
                let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
                if taken.is_none() {
                    break;
                }
                rustix::io::write(&self.tty, rest)
            };
            match written {
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for_room(self.tty.as_fd()),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Gives the terminal back, if it is taken. May be called from any thread, any number of times.
pub fn give_back() {
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Taken { tty, before }) = taken {
        // A half-written sequence of a frame that was cut short must not swallow what follows: CAN ends it.
        let end = format!("\x18\x1b[0m{MOUSE_OFF}{}{}", ansi(cursor::Show), ansi(LeaveAlternateScreen));
        let (mut rest, start) = (end.as_bytes(), Instant::now());
        while !rest.is_empty() && start.elapsed() < PATIENCE {
            match rustix::io::write(&tty, rest) {
                Ok(n) => rest = &rest[n..],
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => wait_for_room(tty.as_fd()),
                Err(_) => break,
            }
        }
        let _ = tcsetattr(&tty, OptionalActions::Now, &before);
    }
}

/// Gives the terminal back when dropped.
pub struct GiveBack;

impl Drop for GiveBack {
    fn drop(&mut self) {
        give_back();
    }
}

/// From now on a panic, of whatever thread, is told on the shell's screen.
pub fn give_back_on_panic() {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        give_back();
        super::output::restore();
        before(info);
    }));
}
