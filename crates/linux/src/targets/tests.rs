mod crowd;

use super::candidates::Candidate;
use super::tracker::{EXEC_LOOKS_A_LOOK, Origin};
use super::*;
use crate::process::raw;
use crate::source::ListedProcess;
use rustix::process::Pid;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// A shell that does what it is told line by line and answers. Killed on drop, with its children.
struct Shell {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Shell {
    fn start() -> Self {
        let mut command = Command::new("sh");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
        let mut child = command.spawn().unwrap();
        let (input, output) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut shell = Self { child, input, output };
        // Once it answers, exec and the loader are done.
        assert_eq!(shell.ask("echo up"), "up");
        shell
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").unwrap();
    }

    fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        let mut answer = String::new();
        self.output.read_line(&mut answer).unwrap();
        answer.trim().to_owned()
    }

    fn ask_pid(&mut self, line: &str) -> u32 {
        self.ask(line).parse().unwrap()
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        // Its children too: they are in the group it leads.
        let group = Pid::from_raw(self.pid() as i32).unwrap();
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let _ = self.child.wait();
    }
}

fn open(pid: u32) -> Process {
    Process::open(Pid::from_raw(pid as i32).unwrap()).unwrap()
}

fn tracker(follow_children: bool) -> Tracker {
    Tracker::new(TrackerOptions { follow_children, ..TrackerOptions::default() })
}

fn told(events: &[Event]) -> Vec<String> {
    let name = |event: &Event| match event {
        Event::Appeared { process, parent, .. } => format!("{} of {parent:?}", process.pid()),
        Event::Execed { pid } => format!("{pid} execed"),
        Event::Ended { pid, reason } => format!("{pid} {reason:?}"),
        Event::Refused { pid, error } => format!("{pid} refused: {error}"),
    };
    events.iter().map(name).collect()
}

fn kill(pid: u32) {
    rustix::process::kill_process(Pid::from_raw(pid as i32).unwrap(), rustix::process::Signal::KILL).unwrap();
}

/// Polls until something is told: a process may take a moment to end or to come back from exec.
fn until_told(tracker: &mut Tracker) -> Vec<String> {
    loop {
        let events = tracker.poll();
        if !events.is_empty() {
            return told(&events);
        }
        std::thread::yield_now();
    }
}

#[test]
fn a_named_process_appears_with_its_children_and_grandchildren() {
    let mut shell = Shell::start();
    let child = shell.ask_pid("sh -c 'sleep 1000 & echo $$; wait' & ");
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    tracker.add(open(shell.pid())).unwrap();
    let mut seen = told(&tracker.poll());
    // The grandchild may have been between fork and listing.
    while seen.len() < 3 {
        seen.extend(told(&tracker.poll()));
    }
    assert_eq!(seen[0], format!("{} of None", shell.pid()));
    assert_eq!(seen[1], format!("{child} of Some({})", shell.pid()));
    assert!(seen[2].ends_with(&format!("of Some({child})")), "{seen:?}");
    assert_eq!(tracker.processes().len(), 3);
    let pids: Vec<u32> = tracker.processes().map(|p| raw(p.pid())).collect();
    pids.into_iter().filter(|&pid| pid != shell.pid()).for_each(kill);
}

#[test]
fn children_born_later_are_followed_and_their_end_is_told() {
    let mut shell = Shell::start();
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    assert_eq!(tracker.poll().len(), 1);
    assert!(tracker.poll().is_empty());
    let child = shell.ask_pid("sleep 1000 & echo $!");
    assert_eq!(until_told(&mut tracker)[0], format!("{child} of Some({})", shell.pid()));
    // It may have been seen before its exec.
    kill(child);
    let mut seen = until_told(&mut tracker);
    while seen.last().is_some_and(|event| event.ends_with("execed")) {
        seen = until_told(&mut tracker);
    }
    assert!(seen.last().unwrap().starts_with(&format!("{child} Exited(")), "{seen:?}");
    assert!(!tracker.is_finished());
}

#[test]
fn children_are_left_alone_when_told_so() {
    let mut shell = Shell::start();
    let mut tracker = tracker(false);
    tracker.add(open(shell.pid())).unwrap();
    let child = shell.ask_pid("sleep 1000 & echo $!");
    assert_eq!(told(&tracker.poll()), [format!("{} of None", shell.pid())]);
    assert!(tracker.poll().is_empty());
    kill(child);
}

#[test]
fn exec_keeps_the_target_but_is_told_and_its_status_comes_with_its_end() {
    let mut shell = Shell::start();
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    tracker.poll();
    assert_eq!(shell.ask("exec sh -c 'echo again; read line; exit 5'"), "again");
    assert_eq!(told(&tracker.poll()), [format!("{} execed", shell.pid())]);
    assert!(tracker.poll().is_empty());
    shell.tell("go");
    let end = until_told(&mut tracker);
    assert_eq!(end, [format!("{} Exited(Some(Exited(5)))", shell.pid())]);
    assert!(tracker.is_finished());
}

#[test]
fn exec_is_noticed_in_each_of_many_targets() {
    // More than a poll looks at.
    let mut shells: Vec<Shell> = (0..EXEC_LOOKS_A_LOOK + 3).map(|_| Shell::start()).collect();
    let mut tracker = tracker(false);
    for shell in &shells {
        tracker.add(open(shell.pid())).unwrap();
    }
    tracker.poll();
    for shell in &mut shells {
        assert_eq!(shell.ask("exec sh -c 'echo again; read line'"), "again");
    }
    let mut seen: Vec<String> = (0..2).flat_map(|_| told(&tracker.poll())).collect();
    seen.sort();
    let mut expected: Vec<String> = shells.iter().map(|shell| format!("{} execed", shell.pid())).collect();
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn threads_are_part_of_their_process() {
    let mut tracker = tracker(true);
    tracker.add(open(std::process::id())).unwrap();
    tracker.poll();
    std::thread::scope(|scope| {
        let (done, wait) = std::sync::mpsc::channel::<()>();
        let tid = scope.spawn(move || {
            let _ = wait.recv();
        });
        for _ in 0..3 {
            // Tests of other threads may start children of this very process; a thread is none.
            for event in tracker.poll() {
                if let Event::Appeared { process, .. } = event {
                    assert!(
                        Process::open_leader(process.pid()).is_ok_and(|o| o.is_some()) || !process.is_alive()
                    );
                }
            }
        }
        drop(done);
        tid.join().unwrap();
    });
}

#[test]
fn one_target_too_many_is_refused() {
    let (first, second) = (Shell::start(), Shell::start());
    let mut tracker = Tracker::new(TrackerOptions { max_targets: 1, ..TrackerOptions::default() });
    tracker.add(open(first.pid())).unwrap();
    let error = tracker.add(open(second.pid())).unwrap_err();
    assert!(matches!(error, TargetError::TooMany { pid, limit: 1 } if pid == second.pid()));
}

#[test]
fn a_command_is_followed_from_before_it_runs_to_its_status() {
    let argv: Vec<OsString> = ["sh", "-c", "exit 3"].iter().map(OsString::from).collect();
    let held = HeldCommand::start(&argv).unwrap();
    let pid = raw(held.process().pid());
    let mut tracker = tracker(true);
    tracker.add(open(pid)).unwrap();
    assert_eq!(told(&tracker.poll()), [format!("{pid} of None")]);
    let (_, mut running) = held.release().unwrap();
    let mut seen = Vec::new();
    while !seen.iter().any(|event: &String| event.contains("Exited")) {
        seen.extend(told(&tracker.poll()));
    }
    assert_eq!(seen.last().unwrap(), &format!("{pid} Exited(Some(Exited(3)))"));
    assert_eq!(running.wait().unwrap(), ExitStatus::Exited(3));
}

/// A control group of this test's own below the one it runs in; removed on drop.
struct TestGroup(PathBuf);

impl TestGroup {
    fn make(name: &str) -> Result<Self, String> {
        for line in fs::read_to_string("/proc/self/cgroup").map_err(|e| e.to_string())?.lines() {
            // A group without controllers: version 2, or a named hierarchy of version 1.
            if !(line.starts_with("0::") || line.contains("name=")) {
                continue;
            }
            let Ok(own) = Cgroup::find(line) else { continue };
            let path = own.directory().join(format!("isotherm-test-{name}-{}", std::process::id()));
            if fs::create_dir(&path).is_ok() {
                return Ok(Self(path));
            }
        }
        Err("no cgroup may be made here (not root, or a read-only cgroup file system)".to_owned())
    }

    fn below(&self, name: &str) -> Self {
        let path = self.0.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn put(&self, pid: u32) {
        fs::write(self.0.join("cgroup.procs"), pid.to_string()).unwrap();
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        // Processes that are just ending hold it for a moment.
        for _ in 0..1000 {
            if fs::remove_dir(&self.0).is_ok() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

#[test]
fn members_of_a_cgroup_come_and_go() {
    let group = match TestGroup::make("members") {
        Ok(group) => group,
        Err(reason) => {
            let must = std::env::var_os("CI").is_some() && rustix::process::geteuid().is_root();
            assert!(!must, "{reason}");
            println!("skipped: {reason}");
            return;
        }
    };
    let nested = group.below("nested");
    let (first, mut second) = (Shell::start(), Shell::start());
    group.put(first.pid());
    let mut tracker = tracker(true);
    tracker.add_cgroup(Cgroup::find(group.0.to_str().unwrap()).unwrap()).unwrap();
    assert_eq!(told(&tracker.poll()), [format!("{} of None", first.pid())]);
    assert!(tracker.poll().is_empty());

    nested.put(second.pid());
    assert_eq!(told(&tracker.poll()), [format!("{} of None", second.pid())]);
    let child = second.ask_pid("sleep 1000 & echo $!");
    assert!(until_told(&mut tracker)[0].starts_with(&format!("{child} of")));
    kill(child);
    while !until_told(&mut tracker).iter().any(|event| event.starts_with(&format!("{child} Exited"))) {}

    // Out of the group into the one above the test's.
    fs::write(group.0.parent().unwrap().join("cgroup.procs"), first.pid().to_string()).unwrap();
    assert_eq!(told(&tracker.poll()), [format!("{} LeftCgroup", first.pid())]);
    drop(second);
    until_told(&mut tracker);
    assert!(!tracker.is_finished(), "more may come while the group is there");
    drop(nested);
    drop(group);
    assert!(tracker.is_finished());
}

#[test]
fn everything_is_followed_but_kernel_threads_and_this_process() {
    let (before, mut tracker) = (Shell::start(), tracker(true));
    tracker.add_all();
    let mut seen: Vec<Event> = Vec::new();
    // A step at a time: none takes in more than a process past its budget.
    for _ in 0..1_000_000 {
        let events = tracker.look(std::time::Duration::from_micros(1));
        assert!(events.len() <= 64, "{}", events.len());
        seen.extend(events);
        if !tracker.has_work() {
            break;
        }
    }
    let after = Shell::start();
    let pids = |events: &[Event]| -> Vec<u32> {
        let appeared = |event: &Event| match event {
            Event::Appeared { process, .. } => Some(raw(process.pid())),
            _ => None,
        };
        events.iter().filter_map(appeared).collect()
    };
    while !pids(&seen).contains(&after.pid()) {
        seen.extend(tracker.poll());
    }
    let pids = pids(&seen);
    assert!(pids.contains(&before.pid()));
    assert!(!pids.contains(&std::process::id()) && !pids.contains(&2), "{pids:?}");
    assert!(tracker.counts().seen >= pids.len() as u64);
    assert!(!tracker.is_finished(), "there may always be more");
}

#[test]
fn deaths_are_named_at_once_and_how_they_ended_within_the_budget() {
    let mut shells: Vec<Shell> = (0..3).map(|_| Shell::start()).collect();
    let mut tracker = tracker(false);
    for shell in &shells {
        tracker.add(open(shell.pid())).unwrap();
    }
    assert_eq!(tracker.poll().len(), 3);
    assert!(tracker.take_deaths().is_empty());
    let dying: Vec<u32> = shells[..2].iter().map(Shell::pid).collect();
    for shell in &mut shells[..2] {
        let process = open(shell.pid());
        shell.tell("exit 6");
        while process.is_alive() {
            std::thread::yield_now();
        }
    }
    let mut named = tracker.take_deaths();
    named.sort_unstable();
    let mut expected = dying.clone();
    expected.sort_unstable();
    assert_eq!(named, expected, "whether or not their parent has waited");
    assert!(tracker.take_deaths().is_empty(), "once");
    // One is told without any budget at all, so that a session always ends.
    let mut ends = told(&tracker.work(std::time::Duration::ZERO));
    assert!(ends.len() == 1 && tracker.has_work());
    ends.extend(told(&tracker.work(std::time::Duration::MAX)));
    ends.sort();
    let mut expected: Vec<String> =
        dying.iter().map(|pid| format!("{pid} Exited(Some(Exited(6)))")).collect();
    expected.sort();
    assert_eq!(ends, expected);
    assert_eq!(tracker.processes().len(), 1);
}

#[test]
fn what_is_gone_before_it_was_seen_is_counted() {
    let mut tracker = tracker(true);
    tracker.add(open(std::process::id())).unwrap();
    tracker.poll();
    let before = tracker.counts().at_most;
    for _ in 0..3 {
        Command::new("true").status().unwrap();
    }
    tracker.poll();
    let counts = tracker.counts();
    assert!(counts.at_most >= before + 3, "{counts:?}");
    assert_eq!(counts.too_short, None, "they may have been anybody's");
}

#[test]
fn where_lives_are_counted_it_is_known_how_many_were_not_seen() {
    let lives = match crate::pte::Lives::start(false) {
        Ok(lives) => lives,
        Err(error) => return println!("skipped: {error}"),
    };
    let mut shell = Shell::start();
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    tracker.count_lives(lives);
    tracker.poll();
    // Others come and go as well.
    Command::new("true").status().unwrap();
    assert_eq!(shell.ask("for i in 1 2 3 4 5 6 7 8 9 10; do /bin/true; done; echo done"), "done");
    let child = shell.ask_pid("sleep 1000 & echo $!");
    let counts = tracker.counts();
    assert_eq!((counts.seen, counts.too_short, counts.waiting), (1, Some(10), 1), "{counts:?}");
    until_told(&mut tracker);
    let counts = tracker.counts();
    assert_eq!((counts.seen, counts.too_short, counts.waiting), (2, Some(10), 0), "{counts:?}");
    kill(child);
    while !until_told(&mut tracker).iter().any(|event| event.starts_with(&format!("{child} Exited"))) {}
    let counts = tracker.counts();
    assert_eq!((counts.seen, counts.too_short, counts.waiting), (2, Some(10), 0), "{counts:?}");
}

#[test]
fn what_was_found_and_turns_out_to_be_no_target_waits_no_more_nor_does_what_it_starts() {
    let lives = match crate::pte::Lives::start(false) {
        Ok(lives) => lives,
        Err(error) => return println!("skipped: {error}"),
    };
    let (mut shell, mut stranger) = (Shell::start(), Shell::start());
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    tracker.count_lives(lives);
    tracker.poll();
    // As one whose parent died after it was found: it is another's child by now.
    let parent = Some(shell.pid());
    tracker.queue(Candidate { pid: stranger.pid(), origin: Origin::Child, parent, listed: true });
    assert_eq!(tracker.counts().waiting, 1);
    tracker.poll();
    let counts = tracker.counts();
    assert_eq!((counts.seen, counts.too_short, counts.waiting), (1, Some(0), 0), "{counts:?}");
    assert_eq!(stranger.ask("/bin/true; (/bin/true; :); echo done"), "done");
    // Nor does what an orphan starts whose parent ended before it was looked at.
    let orphan = shell.ask_pid("pid=$(sleep 1000 >/dev/null & echo $!); echo $pid");
    assert_eq!(tracker.counts().waiting, 1, "the orphan; its parent ended unseen");
    tracker.poll();
    let counts = tracker.counts();
    assert_eq!((counts.seen, counts.too_short, counts.waiting), (1, Some(1), 0), "{counts:?}");
    kill(orphan);
    drop(stranger);
    tracker.poll();
    let counts = tracker.counts();
    assert_eq!((counts.seen, counts.too_short, counts.waiting), (1, Some(1), 0), "{counts:?}");
}

/// All processes, as `/proc` tells of them; of `busy` that they run now.
fn list_of_proc(busy: &[u32]) -> Vec<ListedProcess> {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let mut pids: Vec<u32> = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let listed = |pid: u32| {
        let (_, stat) = Process::open_leader(Pid::from_raw(pid as i32).unwrap()).ok()??;
        let ran = isotherm_damon::Ran { mark: 0, now: busy.contains(&pid) };
        Some(ListedProcess { pid, parent: stat.parent, ran, is_whole: true, pages_mapped: 0 })
    };
    pids.into_iter().filter_map(listed).collect()
}

#[test]
fn a_list_finds_the_children_and_those_that_run_come_first() {
    let mut shell = Shell::start();
    let children: Vec<u32> = (0..40).map(|_| shell.ask_pid("sleep 1000 & echo $!")).collect();
    let last = children[39];
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    assert_eq!(tracker.look(std::time::Duration::ZERO).len(), 1, "the shell alone");
    tracker.take_list(&list_of_proc(&[]));
    assert!(!tracker.has_work() && tracker.wants_list(), "who runs is told by a second list");
    assert!(tracker.work(std::time::Duration::MAX).is_empty());
    // One born meanwhile is found by its pid, as ever, though the shell's children are looked up no more.
    let late = shell.ask_pid("sleep 1000 & echo $!");
    tracker.take_list(&list_of_proc(&[last]));
    let mut seen = told(&tracker.work(std::time::Duration::MAX));
    assert_eq!(
        seen,
        [format!("{last} of Some({})", shell.pid())],
        "the one that runs, and the third list is waited for"
    );
    tracker.take_list(&list_of_proc(&[last]));
    seen.extend(told(&tracker.poll()));
    let mut pids: Vec<u32> = seen.iter().filter_map(|line| line.split(' ').next()?.parse().ok()).collect();
    pids.sort_unstable();
    pids.dedup();
    let mut expected: Vec<u32> = children.iter().copied().chain([late]).collect();
    expected.sort_unstable();
    assert_eq!(pids, expected);
}

#[test]
fn without_lists_all_is_found_as_well() {
    let mut shell = Shell::start();
    let children: Vec<u32> = (0..40).map(|_| shell.ask_pid("sleep 1000 & echo $!")).collect();
    let mut tracker = tracker(true);
    tracker.add(open(shell.pid())).unwrap();
    tracker.look(std::time::Duration::ZERO);
    tracker.take_list(&list_of_proc(&[]));
    // The second never comes.
    tracker.has_no_list();
    assert_eq!(tracker.work(std::time::Duration::MAX).len(), children.len());
}
