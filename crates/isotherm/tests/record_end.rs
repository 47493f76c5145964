//! What `record` does when the recording is over: its summary, and who does not want to wait for that.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Running, isotherm, pte_works, read, skip_but_in_ci, sleeper, wait_for_snapshots, wait_until};
use isotherm_record::Item;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::fs::{self, File};
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::ExitStatus;
use std::time::Duration;
use tempfile::tempdir;

/// A thread of another process, stopped for as long as this is there. To be used by the thread that made it.
struct Stopped(libc::pid_t);

impl Stopped {
    fn new(thread: libc::pid_t) -> io::Result<Self> {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        for request in [libc::PTRACE_SEIZE, libc::PTRACE_INTERRUPT] {
            // SAFETY: neither request reads or writes memory of this process.
            if unsafe { libc::ptrace(request, thread, nothing, nothing) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let stopped = Self(thread);
        // SAFETY: a null status is allowed.
        let waited = unsafe { libc::waitpid(thread, std::ptr::null_mut(), libc::__WALL) };
        if waited == thread { Ok(stopped) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes note of its end, without which its process does not end either.
    fn reap(&self) {
        // SAFETY: a null status is allowed.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), libc::__WALL | libc::WNOHANG) };
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let nothing = std::ptr::null_mut::<libc::c_void>();
        // SAFETY: as above; of a thread that is gone it fails.
        unsafe { libc::ptrace(libc::PTRACE_DETACH, self.0, nothing, nothing) };
    }
}

/// The thread of the process that has this name.
fn thread_of(pid: u32, name: &str) -> Option<libc::pid_t> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    threads.flatten().find_map(|thread| {
        let comm = fs::read_to_string(thread.path().join("comm")).ok()?;
        (comm.trim() == name).then(|| thread.file_name().to_str()?.parse().ok()).flatten()
    })
}

/// Lets a recording end whose summary is never made, and sends `signal` while it waits for that. Its status, and what it said.
fn ended_while_it_reads_back(dir: &Path, signal: Signal) -> Option<(ExitStatus, String)> {
    let target = sleeper();
    let told = dir.join("told");
    let mut command = isotherm(dir, &["record", "--pid", &target.pid().to_string()]);
    command.stderr(File::create(&told).unwrap());
    let mut recorder = Running::start(command);
    let file = dir.join("isotherm.rec");
    wait_for_snapshots(&file, 1);
    let mut thread = None;
    wait_until("a thread for the summary", || {
        thread = thread_of(recorder.pid(), "isotherm-digest");
        thread.is_some()
    });
    let stopped = match Stopped::new(thread.unwrap()) {
        Ok(stopped) => stopped,
        Err(error) => {
            skip_but_in_ci(&format!("no thread of a child can be stopped: {error}"));
            return None;
        }
    };
    recorder.signal(Signal::INT);
    let said = || fs::read_to_string(&told).unwrap();
    wait_until("what is waited for", || said().contains("isotherm.rec is complete; reading it back"));
    assert!(recorder.0.try_wait().unwrap().is_none(), "{}", said());
    assert!(matches!(read(&file).unwrap().last(), Some(Item::End(_))), "it is complete by then");
    recorder.signal(signal);
    let mut status = None;
    wait_until("its end", || {
        stopped.reap();
        status = recorder.0.try_wait().unwrap();
        status.is_some()
    });
    Some((status.unwrap(), said()))
}

#[test]
fn who_does_not_wait_for_the_summary_has_the_recording_and_is_told_where_it_is() {
    if !pte_works() {
        return;
    }
    for (signal, code) in [(Signal::INT, 0), (Signal::TERM, 143)] {
        let dir = tempdir().unwrap();
        let Some((status, said)) = ended_while_it_reads_back(dir.path(), signal) else { return };
        assert_eq!(status.code(), Some(code), "{said}");
        let last = said.lines().last().unwrap();
        assert!(last.contains("wrote isotherm.rec: ") && last.contains(" snapshot"), "{said}");
        assert!(!said.contains("cannot be read back"), "{said}");
        let items = read(&dir.path().join("isotherm.rec")).unwrap();
        assert!(matches!(items.last(), Some(Item::End(_))));
    }
}

/// Whenever it comes: before the command has a process, while it is held, or when it runs.
#[test]
fn ctrl_c_while_a_recording_starts_ends_the_command_too() {
    if !pte_works() {
        return;
    }
    let mut caught = 0;
    // The last ones come when it surely catches them.
    for delay in (0..120).step_by(4).chain([500, 2000]) {
        let dir = tempdir().unwrap();
        let mut command = isotherm(dir.path(), &["record", "-q", "--", "sleep", "300"]);
        command.stderr(File::create(dir.path().join("told")).unwrap()).process_group(0);
        let mut running = Running::start(command);
        let group = Pid::from_raw(running.pid() as i32).unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        kill_process_group(group, Signal::INT).unwrap();
        let mut status = None;
        wait_until(&format!("an end after a Ctrl-C at {delay} ms"), || {
            status = running.0.try_wait().unwrap();
            status.is_some()
        });
        let status = status.unwrap();
        // Before it catches signals it is ended by this one.
        caught += u32::from(status.code() == Some(130));
        assert!(status.code() == Some(130) || status.signal() == Some(2), "{delay} ms: {status}");
        wait_until("the end of the command", || test_kill_process_group(group).is_err());
    }
    assert!(caught > 0, "no signal was caught");
}
