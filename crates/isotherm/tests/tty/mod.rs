//! Programs in a pseudo-terminal of their own.
#![allow(dead_code, reason = "each test file uses its share")]

use crate::common::{Running, isotherm, wait_until};
use rustix::termios::{LocalModes, Winsize, tcgetattr, tcsetwinsize};
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};

/// A program in a terminal of its own.
pub struct Tty {
    pub master: std::fs::File,
    /// Kept open, so that what was written last can be read when the program is gone.
    pub slave: OwnedFd,
    pub screen: vt100::Parser,
    /// All that was ever written.
    pub raw: Vec<u8>,
    pub child: Running,
}

fn parser(rows: u16, columns: u16) -> vt100::Parser {
    vt100::Parser::new(rows.try_into().unwrap(), columns.try_into().unwrap(), 0)
}

impl Tty {
    pub fn start(mut command: Command, columns: u16, rows: u16) -> Self {
        let (mut master, mut slave) = (-1, -1);
        let null = std::ptr::null_mut();
        // SAFETY: the first two are live integers to be written to, the others are not used.
        let opened = unsafe { libc::openpty(&mut master, &mut slave, null, null.cast(), null.cast()) };
        assert_eq!(opened, 0, "{}", std::io::Error::last_os_error());
        // SAFETY: openpty made both, and nobody else has them.
        let (master, slave) = unsafe { (OwnedFd::from_raw_fd(master), OwnedFd::from_raw_fd(slave)) };
        rustix::io::fcntl_setfd(&master, rustix::io::FdFlags::CLOEXEC).unwrap();
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&slave, size).unwrap();
        let stdio = || Stdio::from(slave.try_clone().unwrap());
        command.stdin(stdio()).stdout(stdio()).stderr(stdio());
        if !command.get_envs().any(|(name, _)| name == "TERM") {
            command.env("TERM", "xterm-256color");
        }
        // Whoever runs the tests under nohup does not mean their programs.
        // SAFETY: signal, setsid and ioctl are async-signal-safe; descriptor 0 is the terminal by then.
        unsafe {
            command.pre_exec(|| {
                libc::signal(libc::SIGHUP, libc::SIG_DFL);
                libc::setsid();
                match libc::ioctl(0, libc::TIOCSCTTY, 0) {
                    0 => Ok(()),
                    _ => Err(std::io::Error::last_os_error()),
                }
            });
        }
        let child = Running::start(command);
        let mut tty =
            Self { master: master.into(), slave, screen: parser(rows, columns), raw: Vec::new(), child };
        tty.read();
        tty
    }

    /// Takes what was written so far.
    pub fn read(&mut self) {
        loop {
            let mut waiting = 0;
            // SAFETY: FIONREAD writes an int.
            let asked = unsafe { libc::ioctl(self.master.as_raw_fd(), libc::FIONREAD, &mut waiting) };
            assert_eq!(asked, 0);
            if waiting == 0 {
                return;
            }
            let mut piece = [0; 4096];
            let n = self.master.read(&mut piece).unwrap();
            self.screen.process(&piece[..n]);
            self.raw.extend_from_slice(&piece[..n]);
        }
    }

    pub fn lines(&self) -> Vec<String> {
        let (_, columns) = self.screen.screen().size();
        let columns = columns.get();
        self.screen.screen().rows(0, columns).map(|line| line.trim_end().to_owned()).collect()
    }

    pub fn has(&self, part: &str) -> bool {
        self.lines().iter().any(|line| line.contains(part))
    }

    /// Waits until the screen shows it.
    #[track_caller]
    pub fn wait_for(&mut self, part: &str) {
        self.wait_until(part, |tty| tty.has(part));
    }

    #[track_caller]
    pub fn wait_until(&mut self, what: &str, mut so: impl FnMut(&mut Self) -> bool) {
        let mut lines = Vec::new();
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait_until(what, || {
                self.read();
                lines = self.lines();
                so(self)
            });
        }));
        assert!(waited.is_ok(), "never: {what}: {lines:#?}");
    }

    pub fn press(&mut self, keys: &str) {
        self.master.write_all(keys.as_bytes()).unwrap();
    }

    pub fn resize(&mut self, columns: u16, rows: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        self.screen = parser(rows, columns);
        tcsetwinsize(&self.slave, size).unwrap();
    }

    /// Waits for the end of the program; what a shell would find then.
    pub fn end(&mut self) -> ExitStatus {
        let mut status = None;
        self.wait_until("its end", |tty| {
            status = tty.child.0.try_wait().unwrap();
            status.is_some()
        });
        self.is_given_back();
        status.unwrap()
    }

    /// What a program wrote last may still be on its way through the kernel when it has ended.
    #[track_caller]
    pub fn is_given_back(&mut self) {
        self.wait_until("the terminal is given back", |tty| !tty.screen.screen().alternate_screen());
        self.is_restored();
    }

    /// The terminal is as a shell wants it.
    pub fn is_restored(&self) {
        let modes = tcgetattr(&self.slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
        let screen = self.screen.screen();
        assert!(!screen.alternate_screen(), "{:#?}", self.lines());
        assert!(!screen.hide_cursor());
        assert_eq!(screen.mouse_protocol_mode(), vt100::MouseProtocolMode::None);
    }
}

/// 64 MiB, 8 of them in use, for as long as the test takes.
pub fn workload(dir: &Path) -> Running {
    let mut command = isotherm(dir, &["workload", "hotspot", "--set", "total=64M", "--set", "spot=8M"]);
    command.args(["--set", "phase=3600s"]).stdout(Stdio::null()).stderr(Stdio::null());
    Running::start(command)
}

pub fn top(dir: &Path, args: &[&str], size: (u16, u16)) -> Tty {
    let mut command = isotherm(dir, &["top"]);
    command.args(args);
    Tty::start(command, size.0, size.1)
}
