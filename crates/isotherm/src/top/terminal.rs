//! The terminal: taking it over, and giving it back as it was however the program ends.
//!
//! Nothing here waits for a line that is slow or takes nothing any more: what is to be drawn lies in memory, and is written
//! as far as there is room ([`Terminal::flush`]). To that end the terminal is opened anew, so that writing does not block.
//! Where that is not possible, it is written to byte by byte: of the room that poll(2) reports, one byte is certain. What
//! has to be undone stands in one place ([`TAKEN`]), which the panic hook and the normal way out share; a signal that ends the program at once finds it in
//! another ([`fatal`]). After that nothing is written any more.

use super::fatal;
use anyhow::{Context, bail};
use crossterm::terminal::{EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{Command, cursor};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::getsid;
use rustix::termios::{
    OptionalActions, QueueSelector, Termios, tcflush, tcgetattr, tcgetsid, tcgetwinsize, tcsetattr,
};
use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What was taken over and must be given back.
struct Taken {
    tty: Tty,
    before: Termios,
}

static TAKEN: Mutex<Option<Taken>> = Mutex::new(None);

/// How long giving back may wait for a terminal that takes nothing, before what it did not take is thrown away and after.
const PATIENCE: Duration = Duration::from_millis(250);

/// Bytes that are written at most before keys are heeded again, where they go one by one.
const ONE_BY_ONE: usize = 1024;

/// A terminal, and whether writing to it may block.
struct Tty {
    fd: OwnedFd,
    blocks: bool,
}

impl Tty {
    fn try_clone(&self) -> anyhow::Result<Self> {
        Ok(Self { fd: self.fd.try_clone().context("cannot use the terminal")?, blocks: self.blocks })
    }

    /// Writes as much as there is room for, and does not wait.
    fn write(&self, bytes: &[u8]) -> Result<usize, Errno> {
        let mut written = 0;
        while written < bytes.len() {
            let piece = match self.blocks {
                true if written == ONE_BY_ONE || !self.has_room(Timespec::default()) => break,
                true => &bytes[written..=written],
                false => &bytes[written..],
            };
            match rustix::io::write(&self.fd, piece) {
                Ok(n) => written += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(written)
    }

    fn has_room(&self, timeout: Timespec) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::OUT)];
        // Of a terminal that is gone the next write finds out.
        poll(&mut fds, Some(&timeout)).is_ok_and(|ready| ready > 0)
    }

    /// Writes all of it, if the terminal takes it within [`PATIENCE`].
    fn write_within_patience(&self, bytes: &[u8]) -> bool {
        let (mut rest, start) = (bytes, Instant::now());
        while !rest.is_empty() && start.elapsed() < PATIENCE {
            match self.write(rest) {
                Ok(n) => rest = &rest[n..],
                // Nobody is there to see anything.
                Err(_) => return true,
            }
            if !rest.is_empty() {
                self.has_room(Timespec { tv_sec: 0, tv_nsec: 50_000_000 });
            }
        }
        rest.is_empty()
    }
}

/// A terminal that is drawn on.
pub struct Terminal {
    tty: Tty,
    /// What it has not taken yet.
    pending: Vec<u8>,
    sent: usize,
    /// How much of that takes the terminal over.
    begins: usize,
}

/// Refuses a terminal that cannot be drawn on, or of which nobody says that it can be.
fn check_kind(term: Option<&OsStr>) -> anyhow::Result<()> {
    match term.map(OsStr::as_bytes) {
        None | Some(b"") => bail!(
            "TERM does not say what kind of terminal this is; `TERM=xterm isotherm top` takes it for one that can be drawn on, as \
             most can, and `isotherm record` and `isotherm report` need none"
        ),
        Some(b"dumb" | b"unknown") => bail!(
            "this terminal (TERM={}) cannot be drawn on; use `isotherm record` and `isotherm report`",
            term.unwrap_or_default().display()
        ),
        Some(_) => Ok(()),
    }
}

impl Terminal {
    /// Opens the terminal of standard output, or the one that controls this process.
    ///
    /// # Errors
    /// There is none.
    pub fn open() -> anyhow::Result<Self> {
        let flags = OFlags::RDWR | OFlags::NOCTTY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let open = |path: &str| rustix::fs::open(path, flags, Mode::empty());
        let controls = || tcgetsid(io::stdout()).is_ok_and(|sid| getsid(None) == Ok(sid));
        let tty = if io::stdout().is_terminal() {
            // After su it may be another user's. Then it can still be opened as the one that controls this process; if it
            // is not that one, what is open already serves, and may block.
            let opened = open("/proc/self/fd/1");
            let opened = opened.or_else(|errno| if controls() { open("/dev/tty") } else { Err(errno) });
            match opened {
                Ok(fd) => Ok(Tty { fd, blocks: false }),
                Err(_) => rustix::io::fcntl_dupfd_cloexec(io::stdout(), 3).map(|fd| Tty { fd, blocks: true }),
            }
        } else {
            open("/dev/tty").map(|fd| Tty { fd, blocks: false })
        };
        let none = "no terminal to draw on; run `isotherm top` in one, or use `isotherm record` and `isotherm report`";
        let tty = tty.map_err(|errno| match errno {
            // These say no more than that.
            Errno::NXIO | Errno::NOENT => anyhow::anyhow!(none),
            errno => anyhow::Error::new(errno).context(none),
        })?;
        check_kind(std::env::var_os("TERM").as_deref())?;
        Ok(Self { tty, pending: Vec::new(), sent: 0, begins: 0 })
    }

    /// A way to find out whether there still is a terminal.
    ///
    /// # Errors
    /// The system refuses.
    pub fn line(&self) -> anyhow::Result<Line> {
        Ok(Line(self.tty.try_clone()?.fd))
    }

    /// Columns and lines; 80 x 24 where the terminal does not say.
    pub fn size(&self) -> (u16, u16) {
        match tcgetwinsize(&self.tty.fd) {
            Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col, size.ws_row),
            _ => (80, 24),
        }
    }

    /// Takes it over: no echo, no lines, keys one by one, another screen than the shell's.
    ///
    /// # Errors
    /// The system refuses.
    pub fn take(&mut self, mouse: bool) -> anyhow::Result<()> {
        let before = tcgetattr(&self.tty.fd).context("cannot read the modes of the terminal")?;
        let mut raw = before.clone();
        raw.make_raw();
        let tty = self.tty.try_clone()?;
        fatal::arm(tty.fd.as_raw_fd(), tty.blocks, end());
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) = Some(Taken { tty, before });
        tcsetattr(&self.tty.fd, OptionalActions::Now, &raw)
            .context("cannot set the modes of the terminal")?;
        let mouse = if mouse { MOUSE_ON } else { "" };
        let begin = format!("{}{}{mouse}", ansi(EnterAlternateScreen), ansi(cursor::Hide));
        (self.pending, self.sent, self.begins) = (begin.into_bytes(), 0, 0);
        self.begins = self.pending.len();
        Ok(())
    }

    /// Whether it has not taken yet all that was sent.
    pub fn is_busy(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Has `bytes` written after what was sent before, as soon as there is room ([`Self::flush`]).
    pub fn send(&mut self, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
    }

    /// Forgets the frames it has not taken yet. What is sent next must not rely on anything that was sent before.
    pub fn forget(&mut self) {
        if self.sent < self.begins {
            self.pending.truncate(self.begins);
        } else if self.sent > 0 {
            // It may have ended in the middle of a sequence.
            (self.pending, self.sent, self.begins) = (CANCEL.to_vec(), 0, 0);
        } else {
            self.pending.clear();
        }
    }

    /// Writes what the terminal takes now, and drops all once the terminal was given back, by whomever: what was to be drawn
    /// has no screen any more. Returns whether anything was written.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn flush(&mut self) -> io::Result<bool> {
        let rest = &self.pending[self.sent..];
        let written = {
            let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
            if taken.is_none() || !fatal::is_armed() {
                rest.len()
            } else if self.tty.blocks {
                // Another program may write in between, and fill what room there was: that is not to be waited for under
                // the lock.
                drop(taken);
                self.tty.write(rest)?
            } else {
                self.tty.write(rest)?
            }
        };
        self.sent += written;
        if self.sent == self.pending.len() {
            self.pending.clear();
            (self.sent, self.begins) = (0, 0);
        }
        Ok(written > 0)
    }
}

/// Ends a sequence that was cut short, so that it does not swallow what follows.
const CANCEL: &[u8] = b"\x18";

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

/// What undoes what [`Terminal::take`] wrote.
fn end() -> Vec<u8> {
    let end = format!("\x1b[0m{MOUSE_OFF}{}{}", ansi(cursor::Show), ansi(LeaveAlternateScreen));
    [CANCEL, end.as_bytes()].concat()
}

/// Gives the terminal back, if it is taken. May be called from any thread, any number of times.
pub fn give_back() {
    let taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(Taken { tty, before }) = taken {
        let end = end();
        if !tty.write_within_patience(&end) {
            // It stands still, full of frames. Without them there is room for what gives it back, once it goes on.
            let _ = tcflush(&tty.fd, QueueSelector::OFlush);
            tty.write_within_patience(&end);
        }
        let _ = tcsetattr(&tty.fd, OptionalActions::Now, &before);
        fatal::disarm();
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::FromRawFd;

    #[test]
    fn a_line_that_takes_nothing_is_not_waited_for_though_writing_to_it_blocks() {
        let (mut master, mut slave) = (-1, -1);
        let null = std::ptr::null_mut();
        // SAFETY: the first two are live integers to be written to, the others are not used.
        let opened = unsafe { libc::openpty(&mut master, &mut slave, null, null.cast(), null.cast()) };
        assert_eq!(opened, 0);
        // SAFETY: openpty made both, and nobody else has them.
        let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        let before = tcgetattr(&slave).unwrap();
        let tty = Tty { fd: slave, blocks: true };
        let mut terminal = Terminal { tty, pending: Vec::new(), sent: 0, begins: 0 };
        terminal.take(true).unwrap();
        terminal.send(&vec![b'x'; 1 << 20]);
        while terminal.flush().unwrap() {}
        assert!(terminal.is_busy(), "nobody read it");
        let mut piece = [0; 4096];
        let mut read = rustix::io::read(&master, &mut piece).unwrap();
        assert!(piece[..read].starts_with(b"\x1b[?1049h"));
        while !terminal.flush().unwrap() {
            read += rustix::io::read(&master, &mut piece).unwrap();
        }
        assert!(read < 1 << 20, "it goes on as soon as there is room");
        // What is sent instead begins with the end of what was cut.
        terminal.forget();
        assert_eq!(terminal.pending, CANCEL);
        while terminal.flush().unwrap() || terminal.is_busy() {
            rustix::io::read(&master, &mut piece).unwrap();
        }
        terminal.send(&vec![b'x'; 1 << 20]);
        while terminal.flush().unwrap() {}
        give_back();
        assert_eq!(tcgetattr(&terminal.tty.fd).unwrap().local_modes, before.local_modes);
        terminal.flush().unwrap();
        assert!(!terminal.is_busy(), "nothing is drawn after that");
        let mut last = Vec::new();
        while !last.ends_with(b"\x1b[?1049l") {
            let n = rustix::io::read(&master, &mut piece).unwrap();
            last.extend_from_slice(&piece[..n]);
        }
        assert!(last.len() < 1 << 20);
    }
}
