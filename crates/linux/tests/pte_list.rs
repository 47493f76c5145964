//! The list of all processes that the walker gives: against `/proc`, and against asking each process by itself.
#![allow(clippy::unwrap_used, reason = "a test that cannot set up has failed")]

mod live;

use isotherm_damon::{BlockOperations, Ran, TargetId};
use isotherm_linux::ListedProcess;
use isotherm_linux::process::Process;
use isotherm_linux::pte::Pte;
use live::operations;
use rustix::process::Pid;
use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

/// A child that is ended when dropped.
struct Ended(Child);

impl Ended {
    fn start(script: &str) -> Self {
        let mut command = Command::new("sh");
        Self(command.args(["-c", script]).stdin(Stdio::piped()).spawn().unwrap())
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

/// The list, by pid. Processes that come and go meanwhile cut it short: then it is asked for again.
fn list(pte: &mut Pte) -> BTreeMap<u32, ListedProcess> {
    let mut found = Vec::new();
    for _ in 0..100 {
        if pte.list_processes(&mut found) {
            return found.into_iter().map(|process| (process.pid, process)).collect();
        }
    }
    panic!("a hundred lists, and none was whole");
}

/// In a pid namespace of its own the caller's numbers are not the kernel's, and there are no lists.
fn is_in_namespace(pte: &mut Pte) -> bool {
    // The number of the first one is fixed (PROC_PID_INIT_INO).
    let inside = std::fs::read_link("/proc/self/ns/pid").unwrap().as_os_str() != "pid:[4026531836]";
    if inside {
        assert!(!pte.list_processes(&mut Vec::new()), "numbers of another namespace");
        println!("skipped: there are no lists in a pid namespace");
    }
    inside
}

#[test]
fn all_processes_are_listed_with_their_parents_and_no_kernel_thread() {
    let Some(mut pte) = operations() else { return };
    if is_in_namespace(&mut pte) {
        return;
    }
    let child = Ended::start("read line");
    let listed = list(&mut pte);
    assert_eq!(listed[&child.0.id()].parent, std::process::id());
    assert_eq!(listed[&std::process::id()].parent, rustix::process::getppid().unwrap().as_raw_pid() as u32);
    assert!(!listed[&std::process::id()].is_whole, "a test has several threads");
    assert!(!listed.contains_key(&2), "kthreadd has no memory");
    // The child may still be loading its libraries: once it waits, both say the same.
    let statm = format!("/proc/{}/statm", child.0.id());
    let says_the_same = (0..1000).any(|_| {
        std::thread::sleep(Duration::from_millis(1));
        let mapped = std::fs::read_to_string(&statm).unwrap();
        let mapped = mapped.split(' ').next().and_then(|pages| pages.parse().ok());
        mapped == Some(list(&mut pte)[&child.0.id()].pages_mapped)
    });
    assert!(says_the_same, "pages mapped, as in {statm}");
    // All that `/proc` knows before and after: those with a command line, as kernel threads have none.
    let in_proc = || -> Vec<u32> {
        let entries = std::fs::read_dir("/proc").unwrap().flatten();
        let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
        let has_memory = |pid: &u32| {
            std::fs::read_to_string(format!("/proc/{pid}/statm")).is_ok_and(|text| !text.starts_with("0 "))
        };
        pids.filter(has_memory).collect()
    };
    let before = in_proc();
    let listed = list(&mut pte);
    let after = in_proc();
    for pid in before.iter().filter(|pid| after.contains(pid)) {
        assert!(listed.contains_key(pid), "process {pid} is in /proc and not listed");
    }
}

#[test]
fn a_list_tells_of_running_what_asking_each_tells() {
    let Some(mut pte) = operations() else { return };
    if is_in_namespace(&mut pte) {
        return;
    }
    let (idle, busy) = (Ended::start("read line"), Ended::start("while :; do :; done"));
    let pid = |child: &Ended| Pid::from_child(&child.0);
    let (of_idle, of_busy) = (Process::open(pid(&idle)).unwrap(), Process::open(pid(&busy)).unwrap());
    let (of_idle, of_busy) = (Arc::new(of_idle), Arc::new(of_busy));
    // So many that a list is cheaper than asking each, the two by turns.
    let ids: Vec<TargetId> = (0..200).map(TargetId).collect();
    for id in &ids {
        pte.add(*id, Arc::clone(if id.0 % 2 == 0 { &of_idle } else { &of_busy }));
    }
    let ask = |pte: &mut Pte, ids: &[TargetId]| -> Vec<Option<Ran>> {
        let mut found = Vec::new();
        pte.ran(ids, &mut found);
        found
    };
    // Until it waits for its input.
    let mut mark = ask(&mut pte, &ids[..1])[0];
    for _ in 0..1000 {
        std::thread::sleep(Duration::from_millis(10));
        let now = ask(&mut pte, &ids[..1])[0];
        if now == mark && now.is_some_and(|ran| !ran.now) {
            break;
        }
        mark = now;
    }
    let before = ask(&mut pte, &ids);
    std::thread::sleep(Duration::from_millis(50));
    let after = ask(&mut pte, &ids);
    assert!(before.iter().chain(&after).all(Option::is_some));
    for (id, (before, after)) in ids.iter().zip(before.iter().zip(&after)) {
        if id.0 % 2 == 0 {
            assert_eq!((*before, *after), (mark, mark), "one that waits, asked by itself and in a list");
        } else {
            assert_ne!(before, after, "one that runs");
        }
    }
}
