//! A guest that runs.

use crate::console::{Console, Silence};
use crate::{Error, Machine, Monitor, Reply, Resident};
use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Signal, set_parent_process_death_signal};
use std::fmt;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// How often a wait looks whether the caller wants to end.
const NAP: Duration = Duration::from_millis(100);
/// How long a guest may take to boot: a second without load.
const BOOT: Duration = Duration::from_secs(120);

/// How a run ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// As asked for.
    Done,
    /// The guest program found itself wrong.
    Panic,
    /// Its processor raised an exception.
    Fault,
    /// A page no longer held what was written to it.
    Lost,
    /// The machine is not one it can run on.
    Unfit,
    /// QEMU ended by itself, or was ended.
    Qemu(ExitStatus),
}

impl Ended {
    /// From QEMU's exit status: `isa-debug-exit`, and on arm64 the guest, makes it twice the guest's code plus one, so that 0 is never the
    /// guest's (but that of a reset, as after a triple fault).
    pub(crate) fn from_status(status: ExitStatus) -> Self {
        match status.code() {
            // 1 is also what QEMU ends with when it cannot start; the guest says so itself, and `Guest::exit` looks.
            Some(1) => Self::Done,
            Some(3) => Self::Panic,
            Some(5) => Self::Fault,
            Some(7) => Self::Lost,
            Some(9) => Self::Unfit,
            _ => Self::Qemu(status),
        }
    }
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Done => f.write_str("it came to its end (or QEMU could not start)"),
            Self::Panic => f.write_str("the program panicked"),
            Self::Fault => f.write_str("the processor raised an exception"),
            Self::Lost => f.write_str("a page lost what was written to it"),
            Self::Unfit => f.write_str("the machine is not one the program can run on"),
            Self::Qemu(status) if status.code() == Some(0) => {
                f.write_str("the machine was reset, as after a fault while a fault was handled")
            }
            Self::Qemu(status) => match status.signal() {
                Some(signal) => write!(f, "QEMU was killed by signal {signal}"),
                None => write!(f, "QEMU ended with {status}"),
            },
        }
    }
}

/// A guest that runs. Dropped, it is killed.
pub struct Guest {
    child: Child,
    stdin: ChildStdin,
    console: Console,
    monitor: Monitor,
    memory: u64,
    stop: Stop,
}

/// Tells whether the caller wants to end.
type Stop = std::sync::Arc<dyn Fn() -> bool + Send + Sync>;

impl fmt::Debug for Guest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guest")
            .field("pid", &self.child.id())
            .field("memory", &self.memory)
            .finish_non_exhaustive()
    }
}

impl Guest {
    /// Boots `machine` and waits until it takes commands. Whatever waits from now on ends soon after `stop` says so.
    ///
    /// # Errors
    /// There is no QEMU or no program, or the guest does not come up within two minutes.
    pub fn boot(machine: &Machine, stop: impl Fn() -> bool + Send + Sync + 'static) -> Result<Self, Error> {
        machine.check_program()?;
        let (ours, theirs) = UnixStream::pair().map_err(Error::io("make a socket for QEMU's monitor"))?;
        let mut command = Command::new(&machine.qemu);
        command.args(machine.arguments(Some(theirs.as_raw_fd())));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C is for the caller, who then ends the guest.
        command.process_group(0);
        let inherited = theirs.try_clone().map_err(Error::io("hand a socket to QEMU"))?;
        let fd = theirs.as_raw_fd();
        // SAFETY: both are system calls that do not allocate; `theirs` is open until the child runs.
        unsafe {
            command.pre_exec(move || {
                set_parent_process_death_signal(Some(Signal::KILL))?;
                let borrowed = std::os::fd::BorrowedFd::borrow_raw(fd);
                Ok(fcntl_setfd(borrowed, FdFlags::empty())?)
            });
        }
        let mut child =
            command.spawn().map_err(|source| Error::NoQemu { program: machine.qemu.clone(), source })?;
        drop((theirs, inherited));
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            let _ = child.kill();
            return Err(Error::Odd { what: "starting QEMU".into(), answer: "no pipes".into() });
        };
        let complaints = std::thread::spawn(move || std::io::read_to_string(stderr).unwrap_or_default());
        let console = Console::new(stdout);
        let monitor = match Monitor::open(ours) {
            Ok(monitor) => monitor,
            Err(error) => {
                // QEMU says on its standard error what it did not like.
                let _ = child.kill();
                let status = child.wait();
                let said = complaints.join().unwrap_or_default();
                return Err(match status {
                    Ok(status) if !said.is_empty() => Error::Ended {
                        during: "QEMU was starting".into(),
                        how: Ended::from_status(status),
                        said: said.trim_end().lines().flat_map(|line| ["\n  ", line]).collect(),
                    },
                    _ => error,
                });
            }
        };
        let mut guest =
            Self { child, stdin, console, monitor, memory: machine.memory, stop: std::sync::Arc::new(stop) };
        guest.answer("boot", BOOT)?;
        Ok(guest)
    }

    /// QEMU's process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// QEMU's monitor.
    pub fn monitor(&mut self) -> &mut Monitor {
        &mut self.monitor
    }

    /// What it takes from the host now.
    ///
    /// # Errors
    /// `/proc` cannot be read.
    pub fn resident(&self) -> Result<Resident, Error> {
        Resident::of(self.child.id(), self.memory)
    }

    /// Gives the guest a command and waits for its answer.
    ///
    /// # Errors
    /// The guest refuses, ends instead, or says nothing for `patience`; or the caller wants to end.
    pub fn ask(&mut self, command: &str, patience: Duration) -> Result<Reply, Error> {
        let sent = self.stdin.write_all(format!("{command}\n").as_bytes()).and_then(|()| self.stdin.flush());
        if sent.is_err() {
            return Err(self.end_of(command));
        }
        self.answer(command, patience)
    }

    fn answer(&mut self, command: &str, patience: Duration) -> Result<Reply, Error> {
        let mut last = Instant::now();
        loop {
            match self.console.next(NAP) {
                Ok(Some(line)) => {
                    if line == "ok" || line.starts_with("ok ") {
                        return Ok(Reply::parse(&line));
                    }
                    if let Some(reason) = line.strip_prefix("error: ") {
                        return Err(Error::Refused {
                            command: command.to_owned(),
                            reason: reason.to_owned(),
                        });
                    }
                    // Progress is a sign of life.
                    last = Instant::now();
                }
                Ok(None) => return Err(self.end_of(command)),
                Err(Silence) if (self.stop)() => return Err(Error::Interrupted),
                Err(Silence) if last.elapsed() > patience => {
                    return Err(Error::Silent {
                        what: format!("{command:?} from the guest"),
                        waited: patience,
                        said: self.console.said(),
                    });
                }
                Err(Silence) => {}
            }
        }
    }

    /// The console has ended, so QEMU is about to.
    fn end_of(&mut self, command: &str) -> Error {
        match self.child.wait() {
            Ok(status) => Error::Ended {
                during: format!("it was to {command}"),
                how: Ended::from_status(status),
                said: self.console.said(),
            },
            Err(source) => Error::Io { doing: "wait for QEMU".into(), source },
        }
    }

    /// Tells the guest to end, and waits for it.
    ///
    /// # Errors
    /// It ends in another way than as asked, or not within 30 s.
    pub fn exit(mut self) -> Result<(), Error> {
        match self.ask("exit", Duration::from_secs(30)) {
            Err(Error::Ended { how: Ended::Done, .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(reply) => Err(Error::Odd { what: "exit".into(), answer: reply.text }),
        }
    }

    /// Waits for `time`, unless the caller wants to end before.
    ///
    /// # Errors
    /// The caller wants to end.
    pub fn wait(&self, time: Duration) -> Result<(), Error> {
        let until = Instant::now() + time;
        loop {
            if (self.stop)() {
                return Err(Error::Interrupted);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left.min(NAP));
        }
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        // By its own handle, never by a pid that may be another's by now.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
