//! `cargo xtask guest` when it is ended, or not given what it needs.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

fn xtask(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_xtask"));
    command.arg("guest").args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn guest_program() -> String {
    std::env::var("ISOTHERM_GUEST").expect("ISOTHERM_GUEST names the guest program")
}

/// Starts it and waits for QEMU; tells QEMU's process.
fn started() -> (Child, String) {
    let running = xtask(&["--guest", &guest_program(), "--memory", "256"]).spawn().unwrap();
    let children = format!("/proc/{0}/task/{0}/children", running.id());
    let mut qemu = String::new();
    wait_until("QEMU", || {
        qemu = std::fs::read_to_string(&children).unwrap_or_default().trim().to_owned();
        let command = std::fs::read(format!("/proc/{qemu}/cmdline")).unwrap_or_default();
        command.starts_with(b"qemu-system")
    });
    (running, format!("/proc/{qemu}"))
}

fn wait_until(what: &str, mut seen: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(60);
    while !seen() {
        assert!(Instant::now() < until, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn signal(name: &str, pid: u32) {
    assert!(Command::new("kill").args([name, &pid.to_string()]).status().unwrap().success());
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn ctrl_c_ends_it_and_qemu() {
    let (running, qemu) = started();
    signal("-INT", running.id());
    let ended = running.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(130), "{}", String::from_utf8_lossy(&ended.stderr));
    assert!(!std::path::Path::new(&qemu).exists(), "QEMU was left behind");
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn killed_it_takes_qemu_along() {
    let (mut running, qemu) = started();
    signal("-KILL", running.id());
    running.wait().unwrap();
    wait_until("QEMU's end", || !std::path::Path::new(&qemu).exists());
}

fn fails(output: Output, told: &[&str]) {
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    for words in told {
        assert!(said.contains(words), "{words:?} is not in {said}");
    }
}

#[test]
fn what_is_missing_is_named_with_the_remedy() {
    // Below a file there is nothing, whatever a machine holds; a folder is no guest program either.
    for program in ["/dev/null/guest", "/dev"] {
        fails(xtask(&["--guest", program]).output().unwrap(), &[program, "cargo xtask guest --build"]);
    }
    let no_qemu = xtask(&["--guest", "/dev/null", "--qemu", "/dev/null/qemu"]).output().unwrap();
    fails(no_qemu, &["/dev/null/qemu", "qemu-system-x86"]);
}

#[test]
#[ignore = "needs QEMU: ci/guest.sh"]
fn a_file_that_is_no_guest_program_is_told_in_qemus_words() {
    let output = xtask(&["--guest", "/dev/null"]).output().unwrap();
    fails(output, &["QEMU was starting", "kernel"]);
}
