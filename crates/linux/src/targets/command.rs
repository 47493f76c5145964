//! A command started by the monitor, held until observation has begun.
//!
//! The child waits on a pipe between fork and exec. [`std::process::Command::spawn`] returns only after exec, so it
//! runs in a thread of its own, and the child tells its pid through a second pipe. If the monitor dies meanwhile, the
//! pipe closes and the child exits without ever having been the program.
//!
//! A child is a copy of the monitor until exec, with the ends of other held commands' pipes and sockets in it, those of
//! `spawn` among them, which the monitor's other threads may be about to close. It closes them ([`inherited`]): two that
//! are dropped or released together would otherwise wait for each other for ever.
//!
//! The command stays in the monitor's process group: Ctrl-C reaches both. Standard input and output are passed on.

use crate::process::{ExitStatus, Process, ProcessError};
use rustix::fs::fstat;
use rustix::io::{Errno, FdFlags, fcntl_getfd, read, write};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, Signal};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Mutex, PoisonError};
use std::thread::JoinHandle;

/// Why a command did not run.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// There was nothing to run.
    #[error("no command given; put the program and its arguments after `--`")]
    Empty,
    /// There is no such program.
    #[error("{program}: no such program; check the name, or give its path")]
    NotFound {
        /// What was to be run.
        program: String,
    },
    /// It may not be run.
    #[error("{program}: not allowed to run it; is it a program, with its execute bit set?")]
    NotPermitted {
        /// What was to be run.
        program: String,
    },
    /// Anything else the system said.
    #[error("{program}: cannot be started: {source}")]
    Io {
        /// What was to be run.
        program: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// It runs, or did, but how it fares cannot be told.
    #[error("{program}: cannot be waited for: {source}")]
    Wait {
        /// What runs.
        program: String,
        /// The system's answer.
        #[source]
        source: io::Error,
    },
    /// It started, but cannot be observed.
    #[error(transparent)]
    Process(#[from] ProcessError),
}

impl CommandError {
    fn from_io(program: &str, source: io::Error) -> Self {
        let program = program.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => Self::NotFound { program },
            io::ErrorKind::PermissionDenied => Self::NotPermitted { program },
            _ => Self::Io { program, source },
        }
    }

    /// The status a shell reports for a command that did not run: 127 if it was not found, 126 otherwise.
    pub const fn shell_code(&self) -> i32 {
        match self {
            Self::NotFound { .. } => 127,
            _ => 126,
        }
    }
}

/// A command that has its process already but does not run yet. Dropped, it never will.
#[derive(Debug)]
pub struct HeldCommand {
    program: String,
    process: Process,
    // Dropped in this order: first the child is told to exit, then it is waited for.
    go: Go,
    spawner: Spawner,
}

/// The thread that is in `spawn` until the child runs its program or exits.
#[derive(Debug)]
struct Spawner(Option<JoinHandle<io::Result<Child>>>);

impl Spawner {
    fn join(&mut self) -> Option<std::thread::Result<io::Result<Child>>> {
        self.0.take().map(JoinHandle::join)
    }
}

impl Drop for Spawner {
    fn drop(&mut self) {
        if let Some(Ok(Ok(mut child))) = self.join() {
            // It was told to exit, so this takes no time; that it has no status to give is nothing to tell.
            let _ = child.wait();
        }
    }
}

/// Held while a command is made, from its first pipe until its child is there: what other commands have is open by then
/// and seen by [`inherited`], or made later.
static MAKING: Mutex<()> = Mutex::new(());

/// The monitor's end of the pipe a child waits on: a byte lets it run, its closing lets it exit.
#[derive(Debug)]
struct Go(File);

/// A descriptor, and the pipe or socket that it stood for when it was looked at.
#[derive(Clone, Copy)]
struct Inherited {
    fd: RawFd,
    device: u64,
    inode: u64,
}

/// The pipes and sockets that are open now, which a child would have as well.
fn inherited() -> io::Result<Vec<Inherited>> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir("/proc/self/fd")? {
        let entry = entry?;
        let Some(fd) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
        // Another thread may have closed it by now.
        let Ok(of) = std::fs::metadata(entry.path()) else { continue };
        if of.file_type().is_fifo() || of.file_type().is_socket() {
            all.push(Inherited { fd, device: of.dev(), inode: of.ino() });
        }
    }
    Ok(all)
}

impl Inherited {
    /// Closes it, if it is to be closed on exec anyway and stands for what it did. Makes system calls only.
    ///
    /// # Safety
    /// Nothing in this process uses the descriptor or will close it.
    unsafe fn close(self) {
        // SAFETY: it is used for these calls only, which report it if it is not open.
        let fd = unsafe { BorrowedFd::borrow_raw(self.fd) };
        let same = fstat(fd).is_ok_and(|of| (of.st_dev, of.st_ino) == (self.device, self.inode));
        if same && fcntl_getfd(fd).is_ok_and(|flags| flags.contains(FdFlags::CLOEXEC)) {
            // SAFETY: the caller promises that it is nobody's.
            unsafe { rustix::io::close(self.fd) };
        }
    }
}

/// A command that runs.
#[derive(Debug)]
pub struct RunningCommand {
    program: String,
    child: Child,
}

impl HeldCommand {
    /// Makes the process of the command `argv` (program and arguments) and holds it before exec.
    ///
    /// # Errors
    /// When `argv` is empty or the system makes no process. That the program does not exist is found out on
    /// [`HeldCommand::release`].
    pub fn start(argv: &[OsString]) -> Result<Self, CommandError> {
        let (program, args) = argv.split_first().ok_or(CommandError::Empty)?;
        let name = program.to_string_lossy().into_owned();
        let failed = |source: io::Error| CommandError::from_io(&name, source);

        let making = MAKING.lock().unwrap_or_else(PoisonError::into_inner);
        let others = inherited().map_err(failed)?;
        let (go_read, go_write) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let (pid_read, pid_write) = pipe_with(PipeFlags::CLOEXEC).map_err(|e| failed(e.into()))?;
        let mut command = Command::new(program);
        command.args(args);
        let go_write_in_child = go_write.as_raw_fd();
        let go = Go(go_write.into());
        let hold = move || {
            be_ended_by_signals();
            tell_pid(&pid_write)?;
            for other in &others {
                // SAFETY: these are the child's copies of descriptors that others made before; the child ends in exec or
                // _exit and never drops their owners.
                unsafe { other.close() };
            }
            // SAFETY: as above; the child would never see its own pipe close.
            unsafe { rustix::io::close(go_write_in_child) };
            wait_for_go(&go_read)
        };
        // SAFETY: between fork and exec `hold` makes system calls only (libc's `sigaction` is async-signal-safe); it neither
        // allocates nor takes locks.
        unsafe { command.pre_exec(hold) };

        let spawned =
            std::thread::Builder::new().name("isotherm-spawn".to_owned()).spawn(move || command.spawn());
        let mut pid = [0; 4];
        let told = if spawned.is_ok() { File::from(pid_read).read_exact(&mut pid).is_ok() } else { false };
        // The child is made, or never will be.
        drop(making);
        let mut spawner = Spawner(Some(spawned.map_err(&failed)?));
        if !told {
            // The child never came to tell it: spawn has failed and says why.
            drop(go);
            let source = match spawner.join() {
                Some(Ok(Err(source))) => source,
                Some(Ok(Ok(mut child))) => {
                    let _ = child.wait();
                    io::Error::other("a signal ended the process before it told its pid")
                }
                _ => io::Error::other("the process ended before it told its pid"),
            };
            return Err(failed(source));
        }
        let pid = Pid::from_raw(i32::from_ne_bytes(pid))
            .ok_or_else(|| failed(io::Error::other("the process told no pid")))?;
        match Process::open(pid) {
            Ok(process) => Ok(Self { process, program: name, go, spawner }),
            Err(error) => {
                // In this order, or the child would wait for the one, and the other for the child.
                drop(go);
                drop(spawner);
                Err(error.into())
            }
        }
    }

    /// Its process: as yet a copy of the caller's, which exec will replace under the same pid.
    pub const fn process(&self) -> &Process {
        &self.process
    }

    /// Lets it run. Returns after exec. Gives back the process too, which may be handed to a tracker.
    ///
    /// # Errors
    /// When the program does not exist or cannot be run.
    pub fn release(self) -> Result<(Process, RunningCommand), CommandError> {
        let Self { program, mut process, mut go, mut spawner } = self;
        // If the child is dead already, spawn says why.
        let _ = go.0.write_all(b"!");
        drop(go);
        let child = match spawner.join() {
            Some(Ok(Ok(child))) => child,
            Some(Ok(Err(source))) => return Err(CommandError::from_io(&program, source)),
            Some(Err(_)) | None => {
                return Err(CommandError::from_io(&program, io::Error::other("the starting thread died")));
            }
        };
        process.wait_for_exec();
        // Until now it had the name of the thread that made it. It may have ended by the time anyone asks.
        process.name_anew();
        Ok((process, RunningCommand { program, child }))
    }
}

/// Has signals that ask to end do so from now on, as after exec, unless they are ignored. What the caller catches, its copy would
/// catch in vain until then: Ctrl-C would be lost to the command.
fn be_ended_by_signals() {
    for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM] {
        let mut is = std::mem::MaybeUninit::<libc::sigaction>::uninit();
        // SAFETY: `is` has room for what is written there.
        if unsafe { libc::sigaction(signal, std::ptr::null(), is.as_mut_ptr()) } != 0 {
            continue;
        }
        // SAFETY: the call has filled it.
        let mut action = unsafe { is.assume_init() };
        if action.sa_sigaction != libc::SIG_IGN {
            action.sa_sigaction = libc::SIG_DFL;
            action.sa_flags = 0;
            // SAFETY: the action is that of the kernel, which calls nothing here.
            unsafe { libc::sigaction(signal, &raw const action, std::ptr::null_mut()) };
        }
    }
}

fn tell_pid(to: &OwnedFd) -> io::Result<()> {
    let pid = rustix::process::getpid().as_raw_nonzero().get().to_ne_bytes();
    // Four bytes go into an empty pipe at once or not at all.
    write(to, &pid)?;
    Ok(())
}

fn wait_for_go(from: &OwnedFd) -> io::Result<()> {
    let mut byte = [0];
    loop {
        match read(from, &mut byte) {
            // SAFETY: ends this child, which has nothing to clean up. An error given back to `spawn` would be written to
            // a monitor that may be gone, and abort with a message that helps nobody.
            Ok(0) => unsafe { libc::_exit(126) },
            Ok(_) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

impl RunningCommand {
    /// How it ended, if it has.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn try_wait(&mut self) -> Result<Option<ExitStatus>, CommandError> {
        let status = self.child.try_wait();
        let status = status.map_err(|source| CommandError::Wait { program: self.program.clone(), source })?;
        Ok(status.map(ExitStatus::from))
    }

    /// Waits until it ends.
    ///
    /// # Errors
    /// When the system does not tell.
    pub fn wait(&mut self) -> Result<ExitStatus, CommandError> {
        let status = self.child.wait();
        let status = status.map_err(|source| CommandError::Wait { program: self.program.clone(), source })?;
        Ok(status.into())
    }

    /// Sends it a signal: what the monitor got alone, as SIGTERM from a service manager, should reach it too.
    ///
    /// # Errors
    /// When the system refuses. That it has ended already is no error.
    pub fn signal(&mut self, signal: Signal) -> Result<(), CommandError> {
        // Not waited for yet, so the pid is still its own.
        if self.try_wait()?.is_some() {
            return Ok(());
        }
        let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) else { return Ok(()) };
        match rustix::process::kill_process(pid, signal) {
            Ok(()) | Err(Errno::SRCH) => Ok(()),
            Err(errno) => Err(CommandError::Wait { program: self.program.clone(), source: errno.into() }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::event::Timespec;
    use std::os::fd::AsFd;

    /// Two threads are in `spawn` at once when the second child is made: its copy of what the first one's `spawn` has not
    /// closed yet must not keep that waiting.
    #[test]
    fn commands_of_several_threads_do_not_wait_for_each_other() {
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for round in 0..100 {
                        let [first, second] =
                            [(), ()].map(|()| HeldCommand::start(&argv(&["true"])).unwrap());
                        if round % 2 == 0 {
                            let (_, mut running) = first.release().unwrap();
                            assert_eq!(running.wait().unwrap(), ExitStatus::Exited(0));
                        } else {
                            drop(first);
                        }
                        drop(second);
                    }
                });
            }
        });
    }

    fn argv(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_program_does_not_run_before_it_is_released() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("ran");
        let held = HeldCommand::start(&argv(&["touch", mark.to_str().unwrap()])).unwrap();
        let pid = held.process().pid();
        assert!(held.process().is_alive());
        assert_ne!(held.process().info().unwrap().comm, "touch");
        assert!(!mark.exists());
        let (process, mut running) = held.release().unwrap();
        assert_eq!(process.pid(), pid);
        assert_eq!(running.wait().unwrap(), ExitStatus::Exited(0));
        assert!(mark.exists());
    }

    #[test]
    fn after_release_the_process_is_the_program() {
        let (process, mut running) =
            HeldCommand::start(&argv(&["sleep", "1000"])).unwrap().release().unwrap();
        assert_eq!(process.info().unwrap().cmdline, ["sleep", "1000"]);
        assert_eq!(process.first_comm(), "sleep", "also once it has ended, and nobody can be asked");
        assert_eq!(running.try_wait().unwrap(), None);
        running.signal(Signal::TERM).unwrap();
        assert_eq!(running.wait().unwrap(), ExitStatus::Killed { signal: 15, core_dumped: false });
        running.signal(Signal::TERM).unwrap();
    }

    #[test]
    fn its_status_is_passed_on() {
        let (_, mut running) =
            HeldCommand::start(&argv(&["sh", "-c", "exit 42"])).unwrap().release().unwrap();
        assert_eq!(running.wait().unwrap().shell_code(), 42);
    }

    #[test]
    fn it_stays_in_the_group_that_ctrl_c_reaches() {
        let held = HeldCommand::start(&argv(&["sleep", "1000"])).unwrap();
        let pid = held.process().pid();
        assert_eq!(rustix::process::getpgid(Some(pid)).unwrap(), rustix::process::getpgrp());
    }

    #[test]
    fn a_signal_ends_it_while_it_is_held() {
        extern "C" fn caught(_: libc::c_int) {}
        // SAFETY: the handler does nothing.
        unsafe { libc::signal(libc::SIGHUP, caught as *const () as libc::sighandler_t) };
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("ran");
        let held = HeldCommand::start(&argv(&["touch", mark.to_str().unwrap()])).unwrap();
        rustix::process::kill_process(held.process().pid(), Signal::HUP).unwrap();
        let (_, mut running) = held.release().unwrap();
        assert_eq!(running.wait().unwrap(), ExitStatus::Killed { signal: 1, core_dumped: false });
        assert!(!mark.exists());
    }

    #[test]
    fn dropped_while_held_it_never_runs() {
        let dir = tempfile::tempdir().unwrap();
        let mark = dir.path().join("ran");
        let held = HeldCommand::start(&argv(&["touch", mark.to_str().unwrap()])).unwrap();
        let pidfd = held.process().as_fd().try_clone_to_owned().unwrap();
        drop(held);
        let mut fds = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
        assert_eq!(rustix::event::poll(&mut fds, Some(&Timespec::default())), Ok(1), "it has ended by then");
        assert!(!mark.exists());
    }

    #[test]
    fn several_dropped_together_do_not_wait_for_each_other() {
        let all: Vec<HeldCommand> = (0..3).map(|_| HeldCommand::start(&argv(&["true"])).unwrap()).collect();
        let pidfds: Vec<OwnedFd> =
            all.iter().map(|held| held.process().as_fd().try_clone_to_owned().unwrap()).collect();
        drop(all);
        for pidfd in pidfds {
            let mut ended = [rustix::event::PollFd::new(&pidfd, rustix::event::PollFlags::IN)];
            rustix::event::poll(&mut ended, None).unwrap();
        }
    }

    #[test]
    fn what_cannot_run_says_why() {
        assert!(matches!(HeldCommand::start(&[]), Err(CommandError::Empty)));
        let missing =
            HeldCommand::start(&argv(&["no-such-program-anywhere"])).unwrap().release().unwrap_err();
        assert_eq!(
            missing.to_string(),
            "no-such-program-anywhere: no such program; check the name, or give its path"
        );
        assert_eq!(missing.shell_code(), 127);
        let directory = HeldCommand::start(&argv(&["/"])).unwrap().release().unwrap_err();
        assert!(matches!(directory, CommandError::NotPermitted { .. }), "{directory}");
        assert_eq!(directory.shell_code(), 126);
        let nul = HeldCommand::start(&argv(&["a\0b"])).unwrap_err();
        assert!(matches!(nul, CommandError::Io { .. }), "{nul}");
    }
}
