//! Child processes that never outlive the measurement, with what they cost.

use crate::Interrupted;
use anyhow::{Context, bail};
use isotherm_workloads::now_ns;
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use std::fs::File;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// Longest sleep between two looks whether to stop.
const NAP: Duration = Duration::from_millis(50);
/// How long a program may take to end after SIGTERM: a monitor finishes its recording, a workload gives memory back.
const GRACE: Duration = Duration::from_secs(30);

/// A running program. Dropped, it is ended, by its pid.
pub(crate) struct Running {
    pid: Pid,
    name: &'static str,
    errors: PathBuf,
    started_ns: u64,
    ended: Option<(ExitStatus, u64)>,
}

/// How a program ended, and what it cost from its start to its end.
#[derive(Clone, Debug)]
pub struct Ended {
    name: &'static str,
    status: ExitStatus,
    /// It was asked to by SIGTERM.
    asked: bool,
    said: String,
    /// CPU time of the whole process, ns.
    pub cpu_ns: u64,
    /// How long it lived, ns.
    pub wall_ns: u64,
}

impl Ended {
    /// Makes an error of an unhappy end.
    ///
    /// # Errors
    /// When the status is not 0, nor that of a program that did its work to the end as it was asked to; with what it said.
    pub fn succeed(&self) -> anyhow::Result<()> {
        const ENDED_BY_TERM: i32 = 128 + 15;
        if self.status.success() || (self.asked && self.status.code() == Some(ENDED_BY_TERM)) {
            return Ok(());
        }
        bail!("{} ended with {}: {}", self.name, self.status, self.said.trim_end())
    }

    #[cfg(test)]
    pub(crate) fn ok(cpu_ns: u64, wall_ns: u64) -> Self {
        let (name, status, said) = ("a program", ExitStatus::from_raw(0), String::new());
        Self { name, status, asked: false, said, cpu_ns, wall_ns }
    }
}

impl Running {
    /// Starts `command`; what it says goes to the file `errors`.
    pub(crate) fn start(mut command: Command, name: &'static str, errors: PathBuf) -> anyhow::Result<Self> {
        let file = File::create(&errors).with_context(|| format!("cannot write {}", errors.display()))?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(file);
        // SAFETY: between fork and exec only prctl(2) is called, which is async-signal-safe and allocates nothing.
        unsafe {
            command.pre_exec(|| {
                // Killed with -9, this program cannot end its children; the kernel does.
                Ok(set_parent_process_death_signal(Some(Signal::TERM))?)
            });
        }
        let started_ns = now_ns();
        let program = command.get_program().to_string_lossy().into_owned();
        let child = command.spawn().with_context(|| format!("cannot run {program}"))?;
        // Not waited for by the library from here on: only wait4 tells what a child cost.
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).context("a child without a pid")?;
        Ok(Self { pid, name, errors, started_ns, ended: None })
    }

    pub(crate) fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    /// Waits until `so` holds.
    pub(crate) fn wait_until(
        &mut self,
        what: &str,
        patience: Duration,
        stop: &dyn Fn() -> bool,
        so: impl Fn() -> bool,
    ) -> anyhow::Result<()> {
        let since = Instant::now();
        while !so() {
            if stop() {
                bail!(Interrupted);
            }
            self.must_run()?;
            if since.elapsed() > patience {
                bail!("{} was not {what} within {} s", self.name, patience.as_secs());
            }
            std::thread::sleep(NAP / 5);
        }
        Ok(())
    }

    /// Waits for its end. When `stop` says so it is asked to end before.
    pub(crate) fn finish(mut self, stop: &dyn Fn() -> bool) -> anyhow::Result<Ended> {
        while self.reap()?.is_none() && !stop() {
            std::thread::sleep(NAP / 5);
        }
        if stop() {
            self.end()?;
            bail!(Interrupted);
        }
        self.end()
    }

    /// # Errors
    /// When it has ended by itself; with what it said.
    pub(crate) fn must_run(&mut self) -> anyhow::Result<()> {
        match self.reap()? {
            None => Ok(()),
            Some((status, _)) => {
                bail!("{} ended too early, with {status}: {}", self.name, self.said().trim_end())
            }
        }
    }

    /// Asks it to end and waits for it.
    pub(crate) fn end(&mut self) -> anyhow::Result<Ended> {
        let wall_ns = now_ns().saturating_sub(self.started_ns);
        let asked = self.reap()?.is_none();
        if asked {
            // Not reaped, so the pid is still the child's, alive or not.
            kill_process(self.pid, Signal::TERM).with_context(|| format!("cannot end {}", self.name))?;
        }
        let since = Instant::now();
        loop {
            if let Some((status, cpu_ns)) = self.reap()? {
                let (name, said) = (self.name, self.said());
                return Ok(Ended { name, status, asked, said, cpu_ns, wall_ns });
            }
            if since.elapsed() > GRACE {
                bail!("{} did not end within {} s of SIGTERM; it is killed", self.name, GRACE.as_secs());
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(&self.errors).unwrap_or_default()
    }

    /// Its status and CPU time in ns, if it has ended. Never waits.
    fn reap(&mut self) -> anyhow::Result<Option<(ExitStatus, u64)>> {
        if self.ended.is_some() {
            return Ok(self.ended);
        }
        let mut status = 0;
        let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
        // SAFETY: both pointers are valid for writing for the call; an all-zero rusage is a valid value.
        let (pid, usage) = unsafe {
            let pid = libc::wait4(self.pid(), &raw mut status, libc::WNOHANG, usage.as_mut_ptr());
            (pid, usage.assume_init())
        };
        match pid {
            0 => Ok(None),
            p if p == self.pid() => {
                let ns = |t: libc::timeval| {
                    let (s, us) = (u64::try_from(t.tv_sec), u64::try_from(t.tv_usec));
                    s.unwrap_or(0) * 1_000_000_000 + us.unwrap_or(0) * 1000
                };
                self.ended = Some((ExitStatus::from_raw(status), ns(usage.ru_utime) + ns(usage.ru_stime)));
                Ok(self.ended)
            }
            _ => {
                Err(std::io::Error::last_os_error()).with_context(|| format!("cannot wait for {}", self.name))
            }
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Properly first, so that a recording is finished and nothing stays set in the kernel.
        if self.ended.is_none() && self.end().is_err() && self.ended.is_none() {
            let _ = kill_process(self.pid, Signal::KILL);
            let _ = rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty());
        }
    }
}

/// Sleeps, unless the user wants to stop.
pub(crate) fn nap(duration: Duration, stop: &dyn Fn() -> bool) -> anyhow::Result<()> {
    let until = now_ns().saturating_add(u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX));
    loop {
        if stop() {
            bail!(Interrupted);
        }
        let left = Duration::from_nanos(until.saturating_sub(now_ns()));
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(NAP));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Running) {
        let dir = tempfile::tempdir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let running = Running::start(command, "the script", dir.path().join("err")).unwrap();
        (dir, running)
    }

    #[test]
    fn what_ends_by_itself_is_told_with_its_words() {
        let (_dir, mut running) = shell("echo out of luck >&2; exit 3");
        let error = running.wait_until("ready", GRACE, &|| false, || false).unwrap_err().to_string();
        assert!(
            error.contains("too early") && error.contains("out of luck") && error.contains('3'),
            "{error}"
        );
        assert!(running.end().unwrap().succeed().is_err());
    }

    #[test]
    fn an_end_comes_with_its_cost() {
        // Burns CPU time until it is asked to end.
        let (_dir, mut running) = shell("trap 'exit 0' TERM; while :; do :; done");
        std::thread::sleep(Duration::from_millis(200));
        let ended = running.end().unwrap();
        assert!(ended.cpu_ns > 0 && ended.wall_ns >= 200_000_000, "{ended:?}");
    }

    #[test]
    fn who_ends_properly_when_asked_to_has_not_failed() {
        let (_dir, mut running) = shell("trap 'exit 143' TERM; while :; do :; done");
        std::thread::sleep(Duration::from_millis(200));
        running.end().unwrap().succeed().unwrap();
        let (_dir, mut running) = shell("exit 143");
        while running.reap().unwrap().is_none() {
            std::thread::yield_now();
        }
        assert!(running.end().unwrap().succeed().is_err(), "nobody asked it to");
    }

    #[test]
    fn nothing_outlives_its_owner() {
        let (_dir, running) = shell("exec sleep 1000");
        let pid = running.pid;
        drop(running);
        assert!(rustix::process::test_kill_process(pid).is_err());
    }

    #[test]
    fn waiting_ends_when_the_user_wants() {
        let (_dir, mut running) = shell("exec sleep 1000");
        let error = running.wait_until("ready", GRACE, &|| true, || false).unwrap_err();
        assert!(error.downcast_ref::<Interrupted>().is_some());
    }
}
