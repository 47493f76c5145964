//! What is hard on `isotherm top`: many processes, many mappings, processes that change or end unnoticed, poor terminals.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;
mod tty;

use common::{Group, Running, isotherm, pte_works, skip, skip_but_in_ci, wait_until};
use isotherm_testing::{ManyMappings, Writes};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::tempdir;
use tty::{Tty, top, workload};

/// A shell that runs `script` in `dir`, in a group of its own if one is given.
fn shell(dir: &Path, group: Option<&Group>, script: &str) -> Running {
    let join =
        group.map_or_else(String::new, |group| format!("echo $$ > '{}/cgroup.procs'; ", group.0.display()));
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{join}{script}")]).current_dir(dir).stdin(Stdio::null());
    Running::start(command)
}

/// How many processes the head says there are.
fn processes(tty: &Tty) -> Option<usize> {
    let lines = tty.lines();
    let words: Vec<&str> = lines.first()?.split_whitespace().collect();
    let at = words.iter().position(|word| word.starts_with("process"))?;
    words[at.checked_sub(1)?].parse().ok()
}

/// Whether the list has the process of this pid under this name.
fn lists(tty: &Tty, pid: u32, name: &str) -> bool {
    tty.lines().iter().any(|line| {
        let mut words = line.split_whitespace();
        words.next() == Some(&pid.to_string()) && words.next() == Some(name)
    })
}

fn quits(mut tty: Tty) {
    tty.press("q");
    assert_eq!(tty.end().code(), Some(0));
    assert!(!String::from_utf8_lossy(&tty.raw).contains("panicked"));
}

#[test]
fn thousands_of_processes_come_and_go_and_the_list_is_of_those_there_are() {
    if !pte_works() {
        return;
    }
    let crowd = "i=0; while [ $i -lt 2000 ]; do /bin/true; i=$((i+1)); done; : > done; read x < fifo";
    for of_group in [true, false] {
        let dir = tempdir().unwrap();
        let group = of_group.then(|| Group::new("crowd")).flatten();
        if of_group && group.is_none() {
            skip("no cgroup hierarchy lets a group be made");
            continue;
        }
        assert!(Command::new("mkfifo").arg(dir.path().join("fifo")).status().unwrap().success());
        let script = format!("read x < fifo; {crowd}");
        let target = shell(dir.path(), group.as_ref(), &script);
        let path = group.as_ref().map(|group| group.0.to_str().unwrap().to_owned());
        if let Some(path) = &path {
            let procs = Path::new(path).join("cgroup.procs");
            wait_until("the shell in its group", || !fs::read_to_string(&procs).unwrap().trim().is_empty());
        }
        let args = path.as_ref().map_or(vec!["--all"], |path| vec!["--cgroup", path]);
        let mut tty = top(dir.path(), &args, (100, 30));
        tty.wait_for("q quit");
        // Of all processes of the machine, this one.
        tty.press(&format!("/{}\r", target.pid()));
        tty.wait_until("the shell", |tty| lists(tty, target.pid(), "sh"));
        fs::write(dir.path().join("fifo"), "go\n").unwrap();
        // It is watched all the while: the screen goes on.
        tty.wait_until("the end of the crowd", |_| dir.path().join("done").exists());
        tty.wait_until("those that are left", |tty| {
            let there = match of_group {
                true => 1,
                // Others come and go meanwhile.
                false => fs::read_dir("/proc").unwrap().count(),
            };
            lists(tty, target.pid(), "sh") && processes(tty).is_some_and(|shown| (1..=there).contains(&shown))
        });
        tty.wait_until("a list of no more than fits", |tty| tty.has("q quit") && tty.has("PID"));
        quits(tty);
        drop(target);
    }
}

/// The addresses that the list of mappings shows, from top to bottom.
fn addresses(tty: &Tty) -> Vec<u64> {
    let lines = tty.lines();
    let rows = lines.iter().skip_while(|line| !line.contains("ADDRESS")).skip(1);
    rows.filter_map(|line| {
        let word = line.split_whitespace().next()?;
        u64::from_str_radix(word.trim_start_matches("0x"), 16).ok()
    })
    .collect()
}

#[test]
fn a_process_of_65000_mappings_is_entered_and_its_mappings_scroll() {
    if !pte_works() {
        return;
    }
    if ManyMappings::most().unwrap() < 65_500 {
        return skip_but_in_ci("a process may not have so many mappings here (vm.max_map_count)");
    }
    let dir = tempdir().unwrap();
    let target = ManyMappings::start(65_000, Writes::FirstOften(2000)).unwrap();
    wait_until("its mappings", || target.count().unwrap() >= 65_000);
    let pid = target.pid().to_string();
    let mut tty = top(dir.path(), &["--pid", &pid], (100, 40));
    tty.wait_until("its figures", |tty| {
        tty.lines().iter().any(|line| line.trim_start().starts_with(&pid) && line.contains("iB"))
    });
    tty.press("\r");
    tty.wait_until("heatmap and mappings", |tty| tty.has("time (s)") && !addresses(tty).is_empty());
    // Mappings alone, by address.
    tty.press("\t\t");
    tty.wait_until("mappings alone", |tty| !tty.has("time (s)") && addresses(tty).len() > 30);
    tty.press("SSS");
    tty.wait_for("ADDRESS^");
    let sorted = |tty: &Tty| addresses(tty).is_sorted() && addresses(tty).len() > 30;
    tty.press("g");
    let lowest = fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let lowest = u64::from_str_radix(lowest.split('-').next().unwrap(), 16).unwrap();
    tty.wait_until("the first mappings", |tty| sorted(tty) && addresses(tty)[0] == lowest);
    let first = addresses(&tty);
    tty.press("\x1b[6~\x1b[6~");
    tty.wait_until("the next mappings", |tty| sorted(tty) && addresses(tty)[0] > lowest);
    tty.press("G");
    tty.wait_until("the last mappings", |tty| sorted(tty) && addresses(tty)[0] > *first.last().unwrap());
    // Line by line from the end.
    let end = addresses(&tty);
    tty.press(&"k".repeat(end.len() + 3));
    tty.wait_until("those before", |tty| sorted(tty) && addresses(tty)[0] < end[0]);
    tty.press("\t");
    tty.wait_for("time (s)");
    tty.press("\x1b");
    tty.wait_for("q quit");
    quits(tty);
}

#[test]
fn a_process_that_runs_another_program_has_its_name_from_then_on() {
    if !pte_works() {
        return;
    }
    for entered in [false, true] {
        let dir = tempdir().unwrap();
        let target = shell(dir.path(), None, "while ! [ -e go ]; do sleep 0.1; done; exec sleep 4321");
        let pid = target.pid();
        let args = ["--no-children", "--pid", &pid.to_string()];
        let mut tty = top(dir.path(), &args, (100, 24));
        tty.wait_until("the shell", |tty| lists(tty, pid, "sh"));
        if entered {
            tty.press("\r");
            tty.wait_for(&format!("sh (pid {pid})"));
        }
        fs::write(dir.path().join("go"), "").unwrap();
        if entered {
            tty.wait_for(&format!("sleep (pid {pid}): sleep 4321"));
            // The mappings are the new program's.
            tty.press("\t\t");
            tty.wait_until("the new program's mappings", |tty| {
                let name = |line: &String| line.split_whitespace().nth(1).map(str::to_owned);
                let names: Vec<String> = tty.lines().iter().filter_map(name).collect();
                // One program may be all of them.
                ["sleep", "coreutils", "busybox"]
                    .iter()
                    .any(|program| names.iter().any(|name| name == program))
            });
        } else {
            tty.wait_until("its new name", |tty| lists(tty, pid, "sleep"));
            assert_eq!(processes(&tty), Some(1), "{:#?}", tty.lines());
        }
        quits(tty);
    }
}

/// The state of a process in /proc, `Z` of a zombie.
fn state(pid: u32) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

#[test]
fn a_zombie_is_not_shown_as_living() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    // What runs in place of the shell never waits for the child that it thereby has.
    let script = "sh -c 'echo $$ > pid; read x < fifo' & exec sleep 4323";
    assert!(Command::new("mkfifo").arg(dir.path().join("fifo")).status().unwrap().success());
    let target = shell(dir.path(), None, script);
    let mut child = 0;
    wait_until("the child", || {
        let pid = fs::read_to_string(dir.path().join("pid")).unwrap_or_default();
        child = pid.trim().parse().unwrap_or(0);
        child > 0 && fs::read_to_string(format!("/proc/{}/comm", target.pid())).unwrap().trim() == "sleep"
    });
    let pid = target.pid().to_string();
    let mut tty = top(dir.path(), &["--pid", &pid], (100, 24));
    tty.wait_until("both", |tty| processes(tty) == Some(2) && lists(tty, child, "sh"));
    fs::write(dir.path().join("fifo"), "go\n").unwrap();
    wait_until("a zombie", || state(child) == Some('Z'));
    tty.wait_until("one", |tty| processes(tty) == Some(1) && !lists(tty, child, "sh"));
    assert!(lists(&tty, target.pid(), "sleep"), "{:#?}", tty.lines());
    quits(tty);
    // Nor one that was there before.
    let mut tty = top(dir.path(), &["--pid", &pid], (100, 24));
    tty.wait_until("the other", |tty| lists(tty, target.pid(), "sleep"));
    assert_eq!(processes(&tty), Some(1), "{:#?}", tty.lines());
    quits(tty);
    assert_eq!(state(child), Some('Z'));
    let mut command = isotherm(dir.path(), &["top", "--pid", &child.to_string()]);
    command.env("TERM", "xterm");
    let mut tty = Tty::start(command, 100, 24);
    assert_eq!(tty.end().code(), Some(1));
    tty.wait_until("it names the process", |tty| tty.has(&child.to_string()));
}

#[test]
fn a_terminal_that_cannot_be_drawn_on_or_is_unknown_is_refused() {
    let dir = tempdir().unwrap();
    let kinds =
        [(Some("dumb"), "TERM=dumb"), (Some("unknown"), "TERM=unknown"), (Some(""), "TERM does not say")];
    for (kind, told) in kinds.into_iter().chain([(None, "`TERM=xterm isotherm top`")]) {
        let mut command = isotherm(dir.path(), &["top"]);
        match kind {
            Some(kind) => command.env("TERM", kind),
            None => command.env_remove("TERM"),
        };
        command.args(["--pid", &std::process::id().to_string()]);
        let mut tty = Tty::start(command, 200, 24);
        assert_eq!(tty.end().code(), Some(1), "{kind:?}");
        // What it wrote last may still be on its way when it has ended.
        tty.wait_until("it says why", |tty| tty.has(told) && tty.has("isotherm record"));
        assert!(
            !tty.raw.contains(&0x1b),
            "{kind:?}: nothing but words: {:?}",
            String::from_utf8_lossy(&tty.raw)
        );
    }
}

#[test]
fn a_small_window_shows_what_fits_and_any_size_may_follow() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = workload(dir.path());
    let pid = target.pid().to_string();
    let is_listed = |tty: &Tty| tty.lines().iter().any(|line| line.trim_start().starts_with(&pid));
    let mut tty = top(dir.path(), &["--pid", &pid], (20, 5));
    tty.wait_until("the process", |tty| is_listed(tty));
    for entered in [false, true] {
        if entered {
            tty.press("\r");
            tty.wait_for("time (s)");
        }
        for (columns, rows) in [(1, 1), (2, 30), (300, 2), (20, 5), (19, 4), (200, 60), (20, 5), (80, 24)] {
            let before = tty.raw.len();
            tty.resize(columns, rows);
            // It is cleared and drawn anew at each size.
            tty.wait_until("a frame", |tty| {
                let new = &tty.raw[before..];
                new.windows(4).any(|bytes| bytes == b"\x1b[2J") && new.len() > 8
            });
            if !entered && columns == 20 {
                tty.wait_until("the process", |tty| is_listed(tty));
            }
        }
        let whole = if entered { "time (s)" } else { "q quit" };
        tty.wait_until("all of it again", |tty| tty.has(whole) && tty.has("WS 1s"));
    }
    // Faster than it draws.
    for n in 0..200 {
        tty.resize(1 + n % 90, 1 + n % 37);
    }
    tty.resize(80, 24);
    tty.wait_for("time (s)");
    quits(tty);
}
