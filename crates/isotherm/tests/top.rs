//! `isotherm top` in a pseudo-terminal, as a user sees it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;
mod tty;

use common::{ISOTHERM, isotherm, pte_works, read, run, snapshots, wait_until};
use rustix::process::Signal;
use rustix::termios::{LocalModes, tcgetattr};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use tempfile::tempdir;
use tty::{Tty, top, workload};

/// Of a size on the screen, `15.9 MiB`, the MiB.
fn mib(words: &[&str], at: usize) -> f64 {
    let value: f64 = words[at].parse().unwrap();
    match words[at + 1] {
        "KiB" => value / 1024.0,
        "MiB" => value,
        unit => panic!("{unit}"),
    }
}

#[test]
fn the_working_set_of_a_process_is_listed_and_its_memory_drawn() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = workload(dir.path());
    let pid = target.pid().to_string();
    let mut tty = top(dir.path(), &["--pid", &pid, "--color", "never"], (100, 30));
    let size = |tty: &Tty| {
        let line = tty.lines().into_iter().find(|line| line.trim_start().starts_with(&pid))?;
        let words: Vec<&str> = line.split_whitespace().collect();
        // PID, name, resident, working set.
        Some((mib(&words, 2), mib(&words, 4)))
    };
    tty.wait_until("its working set", |tty| {
        let ready =
            tty.lines().iter().any(|l| l.trim_start().starts_with(&pid) && l.matches("iB").count() > 2);
        ready && size(tty).is_some_and(|(resident, used)| resident > 60.0 && (6.0..16.0).contains(&used))
    });
    for part in ["1 process on", "WS 1sv", "UNKNOWN", "q quit", "0 lost"] {
        assert!(tty.has(part), "{part}: {:#?}", tty.lines());
    }
    tty.press("\r");
    tty.wait_until("a heatmap with hot and cold memory", |tty| {
        tty.has("time (s)") && tty.lines().iter().any(|line| line.contains("999"))
    });
    assert!(tty.has(&format!("(pid {pid})")));
    // The whole mapping: most of it is cold.
    tty.press("\r");
    tty.wait_until("the mapping", |tty| tty.lines().iter().filter(|line| line.contains("000")).count() > 3);
    tty.press("?");
    tty.wait_for("UNKNOWN     could not be observed: it is not cold");
    tty.press("x");
    tty.wait_until("no help", |tty| !tty.has("any key closes"));
    tty.resize(60, 16);
    tty.wait_until("the smaller screen", |tty| tty.has("time (s)") && tty.has("Esc back"));
    tty.resize(200, 50);
    tty.wait_until("the larger screen", |tty| {
        tty.lines()[49].contains("filter") && tty.lines().iter().any(|line| line.len() > 150)
    });
    tty.press("\x1b");
    tty.press("q");
    assert_eq!(tty.end().code(), Some(0));
    let text = String::from_utf8_lossy(&tty.raw).into_owned();
    for colour in ["[38;5;", "[38;2;", "[48;5;", "[48;2;"] {
        assert!(!text.contains(colour), "{colour:?}");
    }
}

#[test]
fn the_terminal_is_given_back_whatever_ends_it() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = workload(dir.path());
    let pid = target.pid().to_string();
    let begin = || {
        let mut tty = top(dir.path(), &["--pid", &pid], (80, 24));
        tty.wait_for(&pid);
        assert!(tty.screen.screen().alternate_screen());
        let modes = tcgetattr(&tty.slave).unwrap().local_modes;
        assert!(!modes.intersects(LocalModes::ICANON | LocalModes::ECHO));
        tty
    };
    for (signal, code) in [(Signal::TERM, 143), (Signal::HUP, 129), (Signal::INT, 130), (Signal::QUIT, 131)] {
        let mut tty = begin();
        tty.child.signal(signal);
        assert_eq!(tty.end().code(), Some(code));
    }
    // Those that nobody asks to end with: a failed allocation, a fault, a limit, a slip. They do what they did.
    for signal in [
        Signal::ABORT,
        Signal::USR1,
        Signal::USR2,
        Signal::ALARM,
        Signal::PIPE,
        Signal::XCPU,
        Signal::XFSZ,
        Signal::SYS,
        Signal::SEGV,
        Signal::BUS,
        Signal::FPE,
        Signal::ILL,
        Signal::TRAP,
        Signal::VTALARM,
    ] {
        let mut tty = begin();
        tty.child.signal(signal);
        assert_eq!(tty.end().signal(), Some(signal.as_raw()));
    }
    for keys in ["q", "\x03"] {
        let mut tty = begin();
        tty.press(keys);
        assert_eq!(tty.end().code(), Some(0), "{keys:?}");
    }
}

#[test]
fn without_its_terminal_it_ends() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = workload(dir.path());
    // The window is closed: with a signal, and under nohup without one.
    for (ignore, code) in [("", 129), ("trap '' HUP; ", 1)] {
        let mut command = Command::new("sh");
        command
            .current_dir(dir.path())
            .arg("-c")
            .arg(format!("{ignore}exec \"$0\" top --pid {}", target.pid()));
        command.arg(ISOTHERM);
        let mut tty = Tty::start(command, 80, 24);
        tty.wait_for(&target.pid().to_string());
        let Tty { master, slave, mut child, .. } = tty;
        drop((master, slave));
        let mut status = None;
        wait_until("its end", || {
            status = child.0.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(code), "{ignore:?}");
    }
}

/// Fills the line until it takes nothing any more.
fn fill(tty: &mut Tty) {
    wait_until("a line that is full", || {
        // Each draws all of the screen anew.
        tty.press("\x0c");
        let mut fds = [rustix::event::PollFd::new(&tty.slave, rustix::event::PollFlags::OUT)];
        let timeout = rustix::event::Timespec { tv_sec: 0, tv_nsec: 60_000_000 };
        std::thread::sleep(std::time::Duration::from_millis(60));
        rustix::event::poll(&mut fds, Some(&timeout)).unwrap() == 0
    });
}

#[test]
fn on_a_line_that_stands_still_keys_end_it_and_watching_goes_on() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = workload(dir.path());
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--color", "always", "--refresh", "50ms"];
    let begin = || {
        let mut tty = top(dir.path(), &args, (200, 60));
        tty.wait_until("its figures", |tty| tty.lines().iter().any(|l| l.matches("iB").count() > 3));
        tty.press("\r");
        tty.wait_for("time (s)");
        tty
    };
    for keys in ["q", "\x03"] {
        let mut tty = begin();
        fill(&mut tty);
        tty.press(keys);
        // Nobody reads what it writes.
        let mut status = None;
        wait_until("its end", || {
            status = tty.child.0.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(0), "{keys:?}");
        let modes = tcgetattr(&tty.slave).unwrap().local_modes;
        assert!(modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG), "{modes:?}");
        // Once it goes on, the shell has its screen again.
        tty.is_given_back();
    }
    let mut tty = begin();
    fill(&mut tty);
    std::thread::sleep(std::time::Duration::from_secs(2));
    // It goes on: with the picture of now, as a whole, and not with those that were due meanwhile.
    tty.press("\x1b");
    tty.wait_until("the list", |tty| tty.has("1 process on") && tty.has("WS 1sv") && tty.has("q quit"));
    assert!(tty.has(", 0 lost"), "{:#?}", tty.lines());
    tty.press("q");
    assert_eq!(tty.end().code(), Some(0));
}

#[test]
fn on_a_slow_line_frames_are_left_out_and_keys_heeded_meanwhile() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = workload(dir.path());
    let pid = target.pid().to_string();
    let args = ["--pid", &pid, "--color", "always", "--refresh", "50ms"];
    let mut tty = top(dir.path(), &args, (200, 60));
    // 10 kB/s.
    let read_slowly = |tty: &mut Tty| {
        std::thread::sleep(std::time::Duration::from_millis(10));
        let mut piece = [0; 100];
        let mut waiting = 0;
        // SAFETY: FIONREAD writes an int.
        let asked = unsafe { libc::ioctl(tty.master.as_raw_fd(), libc::FIONREAD, &mut waiting) };
        assert_eq!(asked, 0);
        if waiting > 0 {
            let n = tty.master.read(&mut piece).unwrap();
            tty.screen.process(&piece[..n]);
            tty.raw.extend_from_slice(&piece[..n]);
        }
    };
    let slowly = |tty: &mut Tty, what: &str, so: &dyn Fn(&Tty) -> bool| {
        wait_until(what, || {
            // A check of the whole screen is dear beside a hundred bytes.
            (0..10).for_each(|_| read_slowly(tty));
            so(tty)
        });
    };
    slowly(&mut tty, "the list", &|tty| tty.lines().iter().any(|l| l.matches("iB").count() > 3));
    tty.press("\r");
    slowly(&mut tty, "the heatmap", &|tty| tty.has("time (s)"));
    // Each of these frames is kilobytes. None of them waits: what is asked for last is seen soon.
    for _ in 0..50 {
        tty.press("\x0c");
        (0..6).for_each(|_| read_slowly(&mut tty));
    }
    let before = tty.raw.len();
    tty.press("?");
    slowly(&mut tty, "help", &|tty| tty.has("any key closes"));
    let passed = tty.raw.len() - before;
    assert!(passed < 80_000, "{passed} bytes were on the way");
    tty.press("x");
    tty.press("q");
    let mut status = None;
    wait_until("its end", || {
        read_slowly(&mut tty);
        status = tty.child.0.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(0));
    tty.is_given_back();
}

#[test]
fn suspended_it_leaves_the_terminal_to_the_shell_and_comes_back() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = workload(dir.path());
    let script = format!(
        "set -m; {ISOTHERM} top --pid {0}; echo stopped-it; read x; fg >/dev/null; echo over-$?; read x",
        target.pid()
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script]).current_dir(dir.path());
    let mut tty = Tty::start(command, 80, 24);
    tty.wait_for("q quit");
    tty.press("\x1a");
    tty.wait_for("stopped-it");
    tty.is_restored();
    tty.press("\n");
    tty.wait_until("top again", |tty| tty.screen.screen().alternate_screen() && tty.has("q quit"));
    tty.press("q");
    tty.wait_for("over-0");
    tty.is_restored();
    tty.press("\n");
    tty.end();
}

#[test]
fn what_is_kept_is_written_to_a_recording_and_the_screen_to_text() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let target = workload(dir.path());
    let pid = target.pid().to_string();
    let mut tty = top(dir.path(), &["--pid", &pid], (80, 24));
    // Before anything was seen there is nothing to write.
    tty.wait_until("its figures", |tty| {
        tty.lines().iter().any(|line| line.trim_start().starts_with(&pid) && line.contains("MiB"))
    });
    tty.press("w\r");
    tty.wait_for("wrote isotherm-top.rec");
    assert!(snapshots(&read(&dir.path().join("isotherm-top.rec")).unwrap()) > 0);
    tty.press("w\r");
    tty.wait_for("is there already");
    // No picture: nothing is written, and it is said what can be.
    tty.press("w\x15x.png\r");
    tty.wait_for("x.png: end the name in .rec (a recording) or .txt (this screen)");
    assert!(!dir.path().join("x.png").exists());
    let name = "screen.txt";
    tty.press("w");
    // Ctrl-U: another name altogether.
    tty.press("\x15");
    tty.press(&format!("{name}\r"));
    tty.wait_for("wrote screen.txt");
    tty.press("q");
    assert_eq!(tty.end().code(), Some(0));
    let text = std::fs::read_to_string(dir.path().join(name)).unwrap();
    assert!(text.contains("WS 1sv") && text.contains(&pid), "{text}");
    assert!(!text.contains("write to FILE"), "what was typed is no part of it: {text}");
    let report = run(dir.path(), &["report", "wss", "-i", "isotherm-top.rec"]).ok();
    assert!(report.contains("working set") || report.contains("working-set"), "{report}");
}

#[test]
fn a_command_is_watched_to_its_end_and_then_shows_what_it_printed() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let script = "echo printed-by-it; sleep 2; exit 3";
    let mut tty = top(dir.path(), &["--", "sh", "-c", script], (80, 24));
    tty.wait_for("OVER: all targets ended");
    assert!(!tty.has("printed-by-it"));
    tty.press("q");
    assert_eq!(tty.end().code(), Some(3));
    tty.wait_until("its last words", |tty| tty.has("printed-by-it"));
}

#[test]
fn what_a_command_prints_after_top_is_over_is_shown_too() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    let script = "echo early-word; while ! [ -e go ]; do sleep 0.1; done; echo late-word; exit 4";
    let mut tty = top(dir.path(), &["--", "sh", "-c", script], (100, 24));
    tty.wait_for("q quit");
    tty.press("q");
    tty.wait_for("top is over; waiting for the command");
    tty.wait_for("early-word");
    std::fs::write(dir.path().join("go"), "").unwrap();
    assert_eq!(tty.end().code(), Some(4));
    tty.wait_until("its last words", |tty| tty.has("late-word"));
}

#[test]
fn that_a_command_cannot_be_run_is_seen() {
    if !pte_works() {
        return;
    }
    let dir = tempdir().unwrap();
    std::fs::write(dir.path().join("no-program"), "").unwrap();
    let mut tty = top(dir.path(), &["--", "./no-program"], (100, 24));
    assert_eq!(tty.end().code(), Some(126));
    tty.wait_until("its last words", |tty| tty.has("isotherm: ") && tty.has("no-program"));
}

#[test]
fn without_a_terminal_it_says_so() {
    let dir = tempdir().unwrap();
    let mut command = isotherm(dir.path(), &["top"]);
    // Without one that controls it, either.
    // SAFETY: setsid is async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            Ok(())
        });
    }
    let done: common::Done = command.output().unwrap().into();
    done.fails(1, &["no terminal to draw on", "isotherm record"]);
    run(dir.path(), &["top", "--refresh", "1ms"]).fails(2, &["50ms"]);
}
