//! Running the program as its users do.
#![allow(dead_code, reason = "each test file uses its share")]

use isotherm_linux::backend::{self, Backend};
use isotherm_record::synthetic::{Shape, Synthetic};
use isotherm_record::{Format, Item, ItemReader, create, open};
use isotherm_testing::ProgramCopy;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

/// The program under test.
pub const ISOTHERM: &str = env!("CARGO_BIN_EXE_isotherm");

/// How long anything may take before a test gives up on it; far above what it takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(120);

/// How long a command lives that is to be recorded, seconds: twenty aggregations, of which a busy machine leaves one.
pub const LONG_ENOUGH: &str = "2";

/// The program with these arguments, in `dir`, without the environment's wishes about colours.
pub fn isotherm(dir: &Path, args: &[impl AsRef<OsStr>]) -> Command {
    let mut command = Command::new(ISOTHERM);
    command.args(args).current_dir(dir).env_remove("NO_COLOR").env_remove("COLUMNS").stdin(Stdio::null());
    // Whoever runs the tests under nohup, or from Python, which ignores the other, does not mean their programs.
    // SAFETY: signal(2) is async-signal-safe, and SIG_DFL a valid disposition.
    unsafe {
        command.pre_exec(|| {
            libc::signal(libc::SIGHUP, libc::SIG_DFL);
            libc::signal(libc::SIGXFSZ, libc::SIG_DFL);
            Ok(())
        });
    }
    command
}

/// Runs it to its end.
pub fn run(dir: &Path, args: &[impl AsRef<OsStr>]) -> Done {
    isotherm(dir, args).output().unwrap().into()
}

/// Runs it to its end as a user without privileges, in `dir`, which that user may write to from then on; `None`, said aloud,
/// where this user may not become another.
pub fn as_nobody(dir: &Path) -> Option<impl Fn(&[&str]) -> Done> {
    use std::os::unix::fs::PermissionsExt;
    if !rustix::process::geteuid().is_root() {
        skip("only root can become another user");
        return None;
    }
    std::fs::set_permissions(dir, std::fs::Permissions::from_mode(0o777)).unwrap();
    let program = ProgramCopy::make(Path::new(ISOTHERM), dir).unwrap();
    let dir = dir.to_owned();
    Some(move |args: &[&str]| {
        let mut command = program.as_nobody();
        command.args(args).current_dir(&dir).stdin(Stdio::null());
        command.output().unwrap().into()
    })
}

/// How a run ended.
#[derive(Debug)]
pub struct Done {
    pub status: ExitStatus,
    pub out: String,
    pub err: String,
}

impl From<Output> for Done {
    fn from(output: Output) -> Self {
        Self {
            status: output.status,
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

impl Done {
    /// Asserts that all went well; gives what was printed.
    pub fn ok(self) -> String {
        assert!(self.status.success(), "{}: {}{}", self.status, self.out, self.err);
        self.out
    }

    /// Asserts that it failed with `code` and said each of `parts`, without panicking.
    pub fn fails(self, code: i32, parts: &[&str]) {
        assert_eq!(self.status.code(), Some(code), "{}{}", self.out, self.err);
        for part in parts {
            assert!(self.err.contains(part), "{part:?} in {:?}", self.err);
        }
        assert!(!self.err.contains("panicked"), "{}", self.err);
    }

    pub fn json(self) -> serde_json::Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

/// A child that is ended when the test is, however it ends.
pub struct Running(pub Child);

impl Running {
    pub fn start(mut command: Command) -> Self {
        Self(command.spawn().unwrap())
    }

    pub fn pid(&self) -> u32 {
        self.0.id()
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_raw(self.pid() as i32).unwrap(), signal).unwrap();
    }

    /// Waits until it ends by itself; what it printed must have been piped, if it is wanted.
    pub fn end(mut self) -> Done {
        let mut texts = [String::new(), String::new()];
        std::thread::scope(|scope| {
            let [out, err] = &mut texts;
            let (stdout, stderr) = (self.0.stdout.take(), self.0.stderr.take());
            scope.spawn(move || stdout.map(|mut pipe| pipe.read_to_string(out)));
            scope.spawn(move || stderr.map(|mut pipe| pipe.read_to_string(err)));
        });
        let status = self.0.wait().unwrap();
        let [out, err] = texts;
        Done { status, out, err }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Ends the program by Ctrl-C, which all processes of a terminal get, once it says `when`; what it said and printed. Before
/// it has said anything it may not yet heed the signal.
pub fn interrupted(dir: &Path, args: &[&str], when: &str) -> Done {
    let told = dir.join("told");
    let mut command = isotherm(dir, args);
    command.stdout(Stdio::piped()).stderr(File::create(&told).unwrap()).process_group(0);
    let running = Running::start(command);
    let group = Pid::from_raw(running.pid() as i32).unwrap();
    wait_until(when, || std::fs::read_to_string(&told).unwrap().contains(when));
    kill_process_group(group, Signal::INT).unwrap();
    let done = running.end();
    // Of a group without processes there is nobody left.
    assert!(kill_process_group(group, Signal::INT).is_err(), "a process was left behind");
    Done { err: std::fs::read_to_string(&told).unwrap(), ..done }
}

/// A process that sleeps for longer than any test takes.
pub fn sleeper() -> Running {
    let mut command = Command::new("sleep");
    command.arg("300");
    Running::start(command)
}

/// Runs a shell's `script` as root in `dir`, in a mount namespace of its own, `$0` being the program under test. It makes
/// its mounts first, and exits with 99 where it may not. `None`, said aloud, where it cannot be run.
pub fn with_own_mounts(dir: &Path, script: &str) -> Option<Done> {
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script, ISOTHERM]).current_dir(dir).stdin(Stdio::null());
    let done: Done = match command.output() {
        Ok(output) => output.into(),
        Err(error) => {
            skip_but_in_ci(&format!("unshare: {error}"));
            return None;
        }
    };
    if matches!(done.status.code(), Some(99 | 1)) && !done.out.contains("status") {
        skip_but_in_ci(&format!("no mount namespace: {}", done.err.trim()));
        return None;
    }
    Some(done)
}

/// `isotherm scheme apply FILE` on a process, with `log`, what it prints in `out` and its errors in `errors`, all in `dir`.
pub fn applying(dir: &Path, file: &str, pid: u32, more: &[&str]) -> Running {
    let pid = pid.to_string();
    let mut command =
        isotherm(dir, &[&["scheme", "apply", file, "--pid", &pid, "--log", "log"], more].concat());
    command.stdout(File::create(dir.join("out")).unwrap());
    command.stderr(File::create(dir.join("errors")).unwrap());
    Running::start(command)
}

/// Ends it as Ctrl-C does.
pub fn ended(running: Running) -> Done {
    running.signal(Signal::INT);
    running.end()
}

/// Waits until `what` is so.
pub fn wait_until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Waits until a recording under way holds at least `least` bytes more than its header takes: it has begun for good.
pub fn wait_for_snapshots(path: &Path, least: usize) {
    wait_until("snapshots in the recording", || {
        path.exists() && read(path).is_some_and(|items| snapshots(&items) >= least)
    });
}

/// All items of a recording, if it can be read.
pub fn read(path: &Path) -> Option<Vec<Item>> {
    let mut reader = open(path).ok()?;
    let mut items = Vec::new();
    while let Some(item) = reader.next_item().ok()? {
        items.push(item);
    }
    Some(items)
}

pub fn snapshots(items: &[Item]) -> usize {
    items.iter().filter(|item| matches!(item, Item::Snapshot(_))).count()
}

/// Whether the pte backend works here. As root in CI it must: most tests rest on it.
pub fn pte_works() -> bool {
    let Err(error) = backend::open(
        Some(Backend::Pte),
        isotherm_damon::Attrs::default(),
        &backend::MonitorOptions::default(),
        0.01,
        1,
    ) else {
        return true;
    };
    skip_but_in_ci(&error.to_string());
    false
}

/// As [`skip`]; as root in CI, where it must run, the test fails.
pub fn skip_but_in_ci(reason: &str) {
    let must = std::env::var("CI").is_ok_and(|ci| ci == "true") && rustix::process::geteuid().is_root();
    assert!(!must, "skipped, as root in CI: {reason}");
    skip(reason);
}

/// Tells that a test cannot run here, and why.
pub fn skip(reason: &str) {
    println!("skipped: {reason}");
}

/// A made-up recording of two targets, ten seconds and more.
pub fn made_up(dir: &Path, name: &str, format: Format) -> PathBuf {
    let path = dir.join(name);
    let mut reader = Synthetic::new(Shape { nr_regions: 20_000, nr_targets: 2, ..Shape::default() });
    let mut writer = create(&path, format).unwrap();
    while let Some(item) = reader.next_ref().unwrap() {
        writer.write(item).unwrap();
    }
    writer.finish().unwrap();
    path
}

/// A control group of one's own, removed with its processes' help.
pub struct Group(pub PathBuf);

impl Group {
    /// Below the first hierarchy that allows it.
    pub fn new(test: &str) -> Option<Self> {
        let name = format!("isotherm-test-{test}-{}", std::process::id());
        ["/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/pids", "/sys/fs/cgroup/memory"]
            .iter()
            .map(|mount| Path::new(mount).join(&name))
            .filter(|dir| dir.parent().is_some_and(|mount| mount.join("cgroup.procs").exists()))
            .find(|dir| std::fs::create_dir(dir).is_ok())
            .map(Self)
    }

    pub fn add(&self, pid: u32) {
        std::fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Its members have been ended before, but the kernel may take a moment to notice.
        for _ in 0..100 {
            if std::fs::remove_dir(&self.0).is_ok() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }
}
