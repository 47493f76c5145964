use super::*;
use std::process::{Child, Command, Stdio};

fn sh(script: &str) -> Child {
    Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap()
}

/// Waits till the process has ended, without waiting for it in the sense of wait(2).
fn until_dead(process: &Process) {
    poll(&mut [PollFd::new(&process.pidfd, PollFlags::IN)], None).unwrap();
}

fn no_such_pid() -> Pid {
    // Past the highest pid the kernel gives out on any machine (PID_MAX_LIMIT, 4 Mi).
    Pid::from_raw(5_000_000).unwrap()
}

#[test]
fn a_live_process_tells_who_it_is() {
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let process = Process::open(pid_of(&child)).unwrap();
    process.wait_for_exec();
    let info = process.info().unwrap();
    assert_eq!(info.pid, child.id());
    assert_eq!(info.parent, std::process::id());
    assert_eq!(info.comm, "sleep");
    assert_eq!(info.cmdline, ["sleep", "1000"]);
    assert!(info.exe.unwrap().is_absolute());
    assert!(process.is_alive());
    assert_eq!(process.exit_status(), None);
    assert!(process.check_readable().is_ok());
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(!process.is_alive());
    assert!(matches!(process.info(), Err(ProcessError::Exited { pid }) if pid == child.id()));
    assert!(matches!(process.memory(), Err(ProcessError::Exited { .. })));
}

#[test]
fn what_a_title_leaves_empty_is_no_arguments() {
    for (text, words) in [
        (&b"sleep\x001000\0"[..], &["sleep", "1000"][..]),
        (b"redis-server *:6379\0\0\0\0\0\0", &["redis-server *:6379"]),
        (b"nginx: master process", &["nginx: master process"]),
        (b"sh\0-c\0\0x\0", &["sh", "-c", "", "x"]),
        (b"\0\0\0", &[]),
        (b"", &[]),
    ] {
        assert_eq!(arguments(text), words);
    }
}

#[test]
fn memory_is_what_the_process_holds() {
    let process = Process::open(rustix::process::getpid()).unwrap();
    let before = process.resident_pages().unwrap();
    let held = std::hint::black_box(vec![1_u8; 64 << 20]);
    let after = process.resident_pages().unwrap();
    assert!(after >= before + (32 << 20) / 4096, "64 MiB written, {before} -> {after} pages resident");
    assert!(process.memory().unwrap().rss >= held.len() as u64);
}

#[test]
fn memory_is_found_where_the_first_thread_has_ended() {
    const SIZE: usize = 8 << 20;
    let target = isotherm_testing::Headless::start(SIZE).unwrap();
    let process = Process::open(Pid::from_raw(target.pid() as i32).unwrap()).unwrap();
    assert!(process.pages().unwrap().0 > (SIZE / 4096) as u64);
    let (start, size) = target.memory();
    let pagemap = crate::pagemap::Pagemap::open(&process).unwrap();
    while !pagemap.entry(start + size - 4096).unwrap().present() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    assert!(process.memory().unwrap().rss >= SIZE as u64);
    let mut maps = crate::maps::Maps::new();
    maps.read(&process).unwrap();
    assert!(maps.find(start + size / 2).is_some());
    drop(target);
    assert!(matches!(process.pages(), Err(ProcessError::Exited { .. })));
}

#[test]
fn the_status_of_an_own_child_is_known_before_it_is_waited_for() {
    for (script, expected) in [
        ("exit 7", ExitStatus::Exited(7)),
        ("kill -TERM $$", ExitStatus::Killed { signal: 15, core_dumped: false }),
    ] {
        let mut child = sh(&format!("read line; {script}"));
        let process = Process::open(pid_of(&child)).unwrap();
        drop(child.stdin.take());
        until_dead(&process);
        assert_eq!(process.exit_status(), Some(expected));
        assert_eq!(ExitStatus::from(child.wait().unwrap()), expected);
    }
}

#[test]
fn the_status_of_a_grandchild_is_known_while_it_is_a_zombie() {
    // The shell starts a child, tells its pid, and never waits for it.
    let mut child = sh("exec 3<&0; sh -c 'read line <&3; exit 9' & echo $!; exec sleep 1000");
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.take().unwrap()), &mut line)
        .unwrap();
    let process = Process::open(Pid::from_raw(line.trim().parse().unwrap()).unwrap()).unwrap();
    drop(child.stdin.take());
    until_dead(&process);
    assert_eq!(process.exit_status(), Some(ExitStatus::Exited(9)));
    child.kill().unwrap();
    child.wait().unwrap();
}

#[test]
fn the_pid_of_a_thread_stands_for_its_process() {
    let (send, receive) = std::sync::mpsc::channel();
    let (done, wait) = std::sync::mpsc::channel::<()>();
    let thread = std::thread::spawn(move || {
        send.send(rustix::thread::gettid()).unwrap();
        let _ = wait.recv();
    });
    let process = Process::open(receive.recv().unwrap()).unwrap();
    assert_eq!(process.pid(), rustix::process::getpid());
    drop(done);
    thread.join().unwrap();
}

#[test]
fn what_cannot_be_observed_says_why() {
    let error = Process::open(no_such_pid()).unwrap_err();
    assert!(error.is_gone());
    assert_eq!(error.to_string(), "process 5000000: no such process; see `ps -e` for those there are");

    let mut child = sh("exit 0");
    let pid = pid_of(&child);
    // A zombie is still there for pidfd_open, but there is nothing in it to observe.
    rustix::process::waitid(
        rustix::process::WaitId::Pid(pid),
        rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT,
    )
    .unwrap();
    assert!(matches!(Process::open(pid), Err(ProcessError::Exited { .. })));
    child.wait().unwrap();
    assert!(matches!(Process::open(pid), Err(ProcessError::NoSuchProcess { .. })));

    // Process 2 is kthreadd, unless a container hides it.
    match Process::open(Pid::from_raw(2).unwrap()) {
        Err(ProcessError::KernelThread { comm, .. }) => assert_eq!(comm, "kthreadd"),
        Ok(_) | Err(ProcessError::NoSuchProcess { .. }) => {
            println!("skipped: process 2 is no kernel thread here (a pid namespace)");
        }
        Err(other) => panic!("{other}"),
    }
}
