//! The guest program on QEMU, in what `cargo xtask guest` does not show. Needs the program, so that `ci/guest.sh` runs
//! these with `--ignored`, `ISOTHERM_GUEST` naming it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{MIB, PATIENCE, Speak, boot, machine};
use isotherm_qemu::{Backing, Ended, Error, Guest, Kind, Machine};
use serde_json::json;
use std::time::{Duration, Instant};

fn wait_until(what: &str, mut seen: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !seen() {
        assert!(Instant::now() < until, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A way to crash, how the run must end, and what must be said.
fn crashes(crash: &str, how: Ended, told: &[&str]) {
    let mut guest = boot(&machine(128 * MIB));
    guest.say("alloc 8M 3");
    let error = guest.ask(&format!("crash {crash}"), PATIENCE).unwrap_err();
    let Error::Ended { how: ended, said, .. } = &error else { panic!("{crash}: {error}") };
    assert_eq!(*ended, how, "{error}");
    for words in told {
        assert!(said.contains(words), "{crash}: {words:?} is not in {said}");
    }
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn bugs_end_the_run_with_a_code_and_words() {
    crashes("panic", Ended::Panic, &["panic: as was asked for at src/main.rs"]);
    crashes("fault", Ended::Fault, &["fault: page fault (vector 14", "address 0x0"]);
    crashes("stack", Ended::Fault, &["fault: page fault"]);
    crashes("lost", Ended::Lost, &["lost: 0x", "holds 0x0 instead of 0x"]);
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn what_it_cannot_do_it_refuses_and_lives_on() {
    let mut guest = boot(&machine(128 * MIB));
    assert!(guest.refused("allocate 5M").contains("unknown command"));
    assert!(guest.refused("alloc 5X").contains("not a size"));
    assert!(guest.refused(&"x".repeat(5000)).contains("more than 256 bytes"));
    assert!(guest.refused("crash lost").contains("nothing is live"));
    let free = guest.stat("free");
    for order in [0, 3, 9, 10] {
        guest.refused(&format!("alloc 10G {order}"));
        guest.say("touch");
        guest.say("check");
        guest.say("free all");
        // All but a page or two that each ledger keeps, and its directory.
        let lost = free.saturating_sub(guest.stat("free"));
        assert!(lost <= 2 * (64 + 2) * 4096, "{lost} bytes are gone after filling up with order {order}");
    }
    guest.exit().unwrap();
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn every_number_of_processors_and_either_kind_of_machine_comes_up() {
    for (kind, cpus) in [(Kind::Microvm, 1), (Kind::Microvm, 8), (Kind::Q35, 3)] {
        let mut guest = boot(&Machine { kind, cpus, ..machine(192 * MIB) });
        let bytes = guest.say("alloc 64M 4").get("bytes").unwrap();
        // Each processor's share is whole blocks of 64 KiB.
        assert!((64 * MIB..=64 * MIB + u64::from(cpus) * 65_536).contains(&bytes), "{bytes}");
        guest.say("rounds 3 16M");
        guest.say("check");
        guest.exit().unwrap();
    }
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn memory_above_4_gib_is_used_too() {
    let mut guest = boot(&Machine { kind: Kind::Q35, ..machine(6 << 30) });
    // Reported at once after booting, so that none of it stays with the host for long.
    assert!(guest.stat("ram") > 6 * 1024 * MIB - 16 * MIB);
    guest.say("alloc 5G 10");
    guest.say("free 4900M");
    guest.say("touch");
    guest.say("check");
    guest.exit().unwrap();
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn a_guest_that_runs_out_takes_memory_out_of_its_balloon() {
    let mut guest = boot(&machine(256 * MIB));
    guest.monitor().set_balloon(96 * MIB).unwrap();
    wait_until("the inflation", || guest.monitor().balloon().unwrap() == 96 * MIB);
    guest.say("alloc 160M");
    guest.say("touch");
    guest.say("check");
    assert!(guest.stat("balloon") < 96 * MIB, "{} bytes are in the balloon", guest.stat("balloon"));
    let left = guest.monitor().balloon().unwrap();
    assert!(left > 160 * MIB, "QEMU was told of {left} bytes only");
    guest.exit().unwrap();
}

/// Bytes of pages that QEMU had to send to migrate a guest that freed most of what it had touched.
fn migrated(hinting: bool) -> u64 {
    let mut guest =
        boot(&Machine { reporting: false, hinting, backing: Backing::Anonymous, ..machine(512 * MIB) });
    guest.say("alloc 64M 0");
    guest.say("touch");
    guest.say("alloc 256M");
    guest.say("touch");
    guest.say("free 256M");
    let monitor = guest.monitor();
    // Slowly until the guest has answered, so that a busy machine does not decide what is sent before.
    monitor.execute("migrate-set-parameters", json!({ "max-bandwidth": 2 * MIB })).unwrap();
    monitor.execute("migrate", json!({ "uri": "exec:cat > /dev/null" })).unwrap();
    if hinting {
        wait_until("the hints", || guest.stat("hinted") > 0);
    }
    guest.monitor().execute("migrate-set-parameters", json!({ "max-bandwidth": 256 * MIB })).unwrap();
    let mut state = json!(null);
    wait_until("the migration", || {
        state = guest.monitor().execute("query-migrate", json!({})).unwrap();
        assert_ne!(state["status"], "failed", "{state}");
        state["status"] == "completed"
    });
    // The source is stopped then. It goes on here, and must have kept everything that was live.
    guest.monitor().execute("cont", json!({})).unwrap();
    guest.say("check");
    guest.say("rounds 3 32M");
    guest.exit().unwrap();
    state["ram"]["normal-bytes"].as_u64().unwrap()
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn hints_spare_a_migration_what_is_free() {
    let (without, with) = (migrated(false), migrated(true));
    println!("sent without hints: {} MiB, with: {} MiB", without / MIB, with / MIB);
    assert!(without > 300 * MIB, "touched pages are sent, free or not: {} MiB", without / MIB);
    assert!(
        with < 160 * MIB && with > 64 * MIB,
        "what is live is sent, but not what is free: {} MiB",
        with / MIB
    );
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn a_guest_that_is_dropped_leaves_no_process() {
    let guest = boot(&machine(128 * MIB));
    let process = format!("/proc/{}", guest.pid());
    assert!(std::path::Path::new(&process).exists());
    drop(guest);
    assert!(!std::path::Path::new(&process).exists());
}

#[test]
fn what_cannot_be_booted_says_what_would_help() {
    let no_program = Machine::new("/dev/null/guest", 128 * MIB);
    let error = Guest::boot(&no_program, || false).unwrap_err().to_string();
    assert!(error.contains("/dev/null/guest") && error.contains("cargo xtask guest --build"), "{error}");
    let no_qemu = Machine { qemu: "/dev/null/qemu".into(), program: "/dev/null".into(), ..no_program };
    let error = Guest::boot(&no_qemu, || false).unwrap_err().to_string();
    assert!(error.contains("/dev/null/qemu") && error.contains("qemu-system-x86"), "{error}");
}
