//! Counting the processes that targets start, exactly, however short they live: by two small programs that the kernel runs
//! when a process is made and when one ends (`bpf/lives.bpf.c`). They take some 0.2 us each of whoever makes or ends a process
//! or thread on the machine, change nothing, and go with this value.

use super::bpf;
use super::object;
use super::shared::{Plain, SharedArray};
use super::types::Types;
use super::walk::WalkError;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// `MAX_PIDS` and `PIDS_A_WORD` of the program.
const MAX_PIDS: usize = 1 << 22;
const PIDS_A_WORD: usize = 16;

/// The bits of a pid.
const TRACKED: u64 = 1;
const SEEN: u64 = 2;
const ENDED: u64 = 4;
const ALL: u64 = 15;

/// The fields that the programs read, in the order of their `struct offsets`.
const FIELDS: [(&str, &str); 5] = [
    ("task_struct", "pid"),
    ("task_struct", "tgid"),
    ("task_struct", "mm"),
    ("task_struct", "signal"),
    ("signal_struct", "live"),
];

/// Where those fields are.
#[derive(Clone, Copy, Debug)]
pub(super) struct Fields([u32; FIELDS.len()]);

impl Fields {
    /// As `kernel` has them, which knows the two structs.
    pub(super) fn of(kernel: &Types) -> Result<Self, WalkError> {
        let mut found = [0; FIELDS.len()];
        for (at, (of, field)) in found.iter_mut().zip(FIELDS) {
            let missing = || WalkError::Object(format!("no field {field} in its struct {of}"));
            *at = kernel.offset(of, field).ok_or_else(missing)?;
        }
        Ok(Self(found))
    }
}

/// `struct shared` of the programs, which run at any time: all of it is atomic.
#[repr(C)]
struct Shared {
    forked: AtomicU64,
    unseen: AtomicU64,
    everything: AtomicU64,
    offset: [AtomicU32; 6],
    state: [AtomicU64; MAX_PIDS / PIDS_A_WORD],
}

// SAFETY: atomic integers have the layout of integers; the offsets are 24 bytes, so there is no padding.
unsafe impl Plain for Shared {}

/// The initial pid namespace (PROC_PID_INIT_INO): the programs know processes by their numbers there.
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// The programs at work.
pub struct Lives {
    shared: SharedArray<Shared>,
    /// Programs, and what attaches them; closed when this goes.
    _attached: [OwnedFd; 4],
}

/// What became of a process that is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// It was tracked, and not seen until now.
    First,
    /// The same, but it has just ended, and was counted as unseen.
    Late,
    /// It was not tracked, or is seen again.
    Uncounted,
}

impl Seen {
    /// From the bits of a pid before it was marked.
    fn after(before: u64) -> Self {
        match before {
            TRACKED => Self::First,
            _ if before == TRACKED | ENDED => Self::Late,
            _ => Self::Uncounted,
        }
    }
}

impl std::fmt::Debug for Lives {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (forked, unseen) = self.counts();
        f.debug_struct("Lives").field("forked", &forked).field("unseen", &unseen).finish_non_exhaustive()
    }
}

impl Lives {
    /// Begins to count; `everything`: whoever makes a process counts. Needs what the walker needs, in the initial pid namespace.
    ///
    /// # Errors
    /// See [`WalkError`].
    pub fn start(everything: bool) -> Result<Self, WalkError> {
        let kernel = Types::of_kernel(&["task_struct", "signal_struct"])?;
        Self::start_with(Fields::of(&kernel)?, everything)
    }

    /// The same, where the kernel's types are known already.
    pub(super) fn start_with(fields: Fields, everything: bool) -> Result<Self, WalkError> {
        let refused = |what, source: io::Error| WalkError::Refused { what, source, log: String::new() };
        let namespace =
            std::fs::read_link("/proc/self/ns/pid").map_err(|e| refused("a look at namespaces", e))?;
        if namespace.as_os_str() != INITIAL_NAMESPACE {
            return Err(WalkError::Object("processes have other numbers in this pid namespace".to_owned()));
        }
        let shared: SharedArray<Shared> = SharedArray::new()?;
        for (offset, found) in shared.get().offset.iter().zip(fields.0) {
            offset.store(found, Ordering::Relaxed);
        }
        shared.get().everything.store(u64::from(everything), Ordering::Relaxed);
        let object = include_bytes!("../../bpf/lives.bpf.o");
        let load = |name| object::load_tracepoint(object, name, shared.fd());
        // Ends first: what is made from then on cannot end uncounted.
        let (ended, born) = (load("ended")?, load("born")?);
        let attach = |program: &OwnedFd, tracepoint| {
            bpf::attach_raw_tracepoint(program.as_fd(), tracepoint)
                .map_err(|e| refused("to attach to a tracepoint", e))
        };
        let at_end = attach(&ended, c"sched_process_exit")?;
        let at_birth = attach(&born, c"sched_process_fork")?;
        Ok(Self { shared, _attached: [at_birth, at_end, born, ended] })
    }

    /// How many processes were started by what is tracked, and how many of what was tracked ended unseen.
    pub fn counts(&self) -> (u64, u64) {
        let shared = self.shared.get();
        (shared.forked.load(Ordering::Relaxed), shared.unseen.load(Ordering::Relaxed))
    }

    /// What `pid` starts counts from now on. Whether it did not before, and has not ended either: one that ended untracked
    /// was not counted, and must not look as if it had been.
    pub fn track(&self, pid: u32) -> bool {
        self.change(pid, |bits| if bits & ENDED == 0 { bits | TRACKED } else { bits }) == 0
    }

    /// It is a target. What that says of the count.
    pub fn see(&self, pid: u32) -> Seen {
        Seen::after(self.change(pid, |bits| bits | TRACKED | SEEN))
    }

    /// It was looked at and is no target, or no longer one: neither it nor what it starts from now on counts. What that says
    /// of the count.
    pub fn decline(&self, pid: u32) -> Seen {
        Seen::after(self.change(pid, |bits| bits & ENDED))
    }

    /// Whether `pid` has ended since the counting began. A look at memory.
    pub fn has_ended(&self, pid: u32) -> bool {
        self.place(pid).is_some_and(|(word, shift)| word.load(Ordering::Relaxed) >> shift & ENDED != 0)
    }

    /// Changes the bits of `pid`, and returns what they were. The programs may change them, or their neighbours, meanwhile.
    fn change(&self, pid: u32, new: impl Fn(u64) -> u64) -> u64 {
        let Some((word, shift)) = self.place(pid) else { return ALL };
        let changed = |old: u64| old & !(ALL << shift) | new(old >> shift & ALL) << shift;
        let mut old = word.load(Ordering::Relaxed);
        while let Err(now) =
            word.compare_exchange_weak(old, changed(old), Ordering::Relaxed, Ordering::Relaxed)
        {
            old = now;
        }
        old >> shift & ALL
    }

    fn place(&self, pid: u32) -> Option<(&AtomicU64, usize)> {
        let pid = pid as usize;
        Some((self.shared.get().state.get(pid / PIDS_A_WORD)?, pid % PIDS_A_WORD * 4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Pid, Signal, kill_process};
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    /// A child that is killed when its test ends, however it does.
    struct Killed(Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            // Fails where it has ended.
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// A process by its number, killed in the same way.
    struct KilledPid(Pid);

    impl KilledPid {
        fn new(pid: u32) -> Self {
            Self(Pid::from_raw(pid as i32).unwrap())
        }
    }

    impl Drop for KilledPid {
        fn drop(&mut self) {
            let _ = kill_process(self.0, Signal::KILL);
        }
    }

    fn spawn(script: &str) -> Killed {
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        Killed(shell.spawn().unwrap())
    }

    /// Waits until so many ended unseen. What ends is counted at once; the minute is for a busy machine.
    fn wait_for_unseen(lives: &Lives, unseen: u64) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while lives.counts().1 < unseen {
            assert!(Instant::now() < deadline, "{:?} and not {unseen} ended unseen", lives.counts());
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn lives(everything: bool) -> Option<Lives> {
        match Lives::start(everything) {
            Ok(lives) => Some(lives),
            Err(error) => {
                let must = std::env::var("CI").is_ok_and(|ci| ci == "true")
                    && rustix::process::geteuid().is_root()
                    && std::fs::read_link("/proc/self/ns/pid")
                        .is_ok_and(|ns| ns.as_os_str() == INITIAL_NAMESPACE);
                assert!(!must, "skipped, as root in CI: {error}");
                println!("skipped: {error}");
                None
            }
        }
    }

    #[test]
    fn every_process_of_a_tracked_one_is_counted_and_no_other() {
        let Some(lives) = lives(false) else { return };
        // Whose number is known before it starts others.
        let mut shell =
            spawn("read go; for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; (/bin/true; :); done; read go");
        assert_eq!(lives.counts(), (0, 0));
        assert_eq!(lives.see(shell.0.id()), Seen::Uncounted, "it was not tracked before");
        let mut input = shell.0.stdin.take().unwrap();
        input.write_all(b"go\n").unwrap();
        // Others come and go meanwhile.
        Command::new("true").status().unwrap();
        wait_for_unseen(&lives, 30);
        assert_eq!(lives.counts(), (30, 30), "ten, and twenty in sub-shells");
        drop(input);
        shell.0.wait().unwrap();
        assert_eq!(lives.counts(), (30, 30), "it was seen itself");
    }

    #[test]
    fn what_is_seen_is_not_counted_as_unseen_and_threads_are_no_processes() {
        let Some(lives) = lives(false) else { return };
        let mut shell = spawn("read go; sleep 1000 & echo $!; wait");
        lives.see(shell.0.id());
        assert!(!lives.track(shell.0.id()));
        shell.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mut line = String::new();
        BufReader::new(shell.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        let sleeper = KilledPid::new(child);
        assert_eq!(lives.counts(), (1, 0));
        assert_eq!((lives.see(child), lives.see(child)), (Seen::First, Seen::Uncounted));
        drop(sleeper);
        shell.0.wait().unwrap();
        assert_eq!(lives.counts(), (1, 0));
        assert_eq!(lives.see(child), Seen::Uncounted);
    }

    #[test]
    fn what_is_seen_just_after_its_end_is_known_to_be_counted() {
        let Some(lives) = lives(false) else { return };
        // A zombie: its parent does not wait for it.
        let mut shell = spawn("read go; sh -c 'echo $$' & exec sleep 1000");
        lives.see(shell.0.id());
        shell.0.stdin.take().unwrap().write_all(b"go\n").unwrap();
        let mut line = String::new();
        BufReader::new(shell.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        wait_for_unseen(&lives, 1);
        assert_eq!((lives.see(child), lives.see(child)), (Seen::Late, Seen::Uncounted));
        shell.0.kill().unwrap();
        shell.0.wait().unwrap();
        assert_eq!(lives.counts(), (1, 1));
    }

    #[test]
    fn what_ended_before_it_was_tracked_is_not_taken_for_counted() {
        let Some(lives) = lives(false) else { return };
        // A zombie of a process that nobody tracks: its end is seen by the programs, but not counted.
        let mut shell = spawn("sh -c 'echo $$' & exec sleep 1000");
        let mut line = String::new();
        BufReader::new(shell.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let child: u32 = line.trim().parse().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while lives.change(child, |bits| bits) & ENDED == 0 {
            assert!(Instant::now() < deadline, "its end was not seen");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(!lives.track(child), "it is not there any more");
        assert_eq!(lives.see(child), Seen::Uncounted);
        assert_eq!(lives.counts(), (0, 0));
        shell.0.kill().unwrap();
        shell.0.wait().unwrap();
    }

    #[test]
    fn what_was_declined_counts_no_more_nor_does_what_it_starts() {
        let Some(lives) = lives(false) else { return };
        let mut shell = spawn("read go; /bin/true; (/bin/true; :); echo done; read go");
        assert!(lives.track(shell.0.id()));
        assert_eq!(lives.decline(shell.0.id()), Seen::First);
        assert_eq!(lives.decline(shell.0.id()), Seen::Uncounted);
        let mut input = shell.0.stdin.take().unwrap();
        input.write_all(b"go\n").unwrap();
        let mut line = String::new();
        BufReader::new(shell.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!((line.trim(), lives.counts()), ("done", (0, 0)));
        drop(input);
        shell.0.wait().unwrap();
        assert_eq!(lives.counts(), (0, 0));
    }

    #[test]
    fn of_everything_all_count() {
        let Some(lives) = lives(true) else { return };
        std::thread::spawn(|| ()).join().unwrap();
        for _ in 0..5 {
            Command::new("true").status().unwrap();
        }
        let (forked, unseen) = lives.counts();
        assert!(forked >= 5 && unseen >= 5 && unseen <= forked, "{forked} {unseen}");
    }
}
