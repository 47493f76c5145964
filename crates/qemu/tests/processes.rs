//! User programs on isotherm-mm in the guest. Needs the guest program, so that `ci/guest.sh` runs these with `--ignored`.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{MIB, Speak, arm64, boot, machine};
use isotherm_qemu::{Machine, Reply};

/// What happened in a run of ten programs: each forks twice a round, or execs, or has two threads, and memory is short.
fn happened(found: &Reply, rounds: u64) {
    let figure = |name: &str| found.get(name).unwrap();
    // Two programs of each kind; two more threads, and a child of each family a round.
    assert_eq!((figure("forks"), figure("execs")), (2 * rounds, 2));
    assert_eq!(figure("threads"), 10 + 2 + 2 * rounds);
    // More faults than pages, since those that were swapped out came back.
    assert!(figure("evicted") > 100 && figure("refaults") > 100, "{}", found.text);
    assert!(figure("faults") > 8 * figure("pages") + figure("refaults"), "{}", found.text);
    assert!(figure("snapshots") > 0 && figure("seen") > 0, "{}", found.text);
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn programs_find_what_they_wrote_in_less_memory_than_they_need() {
    for five_levels in [false, true] {
        let mut guest = boot(&Machine { five_levels, ..machine(128 * MIB) });
        let reported = guest.stat("reported");
        happened(&guest.say("processes 1 2 4M"), 2);
        let free = guest.stat("free");
        happened(&guest.say("processes 7 1 4M"), 1);
        assert_eq!(guest.stat("free"), free, "frames are not back");
        assert!(guest.stat("reported") > reported, "free memory was reported meanwhile");
        guest.exit().unwrap();
    }
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn one_processor_lets_them_run_in_turn() {
    let mut guest = boot(&Machine { cpus: 1, ..machine(128 * MIB) });
    happened(&guest.say("processes 3 1 4M"), 1);
    let error = guest.refused("processes 1 1 1G");
    assert!(error.contains("are needed"), "{error}");
    guest.exit().unwrap();
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn programs_at_el0_of_arm64_find_what_they_wrote() {
    let mut guest = boot(&arm64(2));
    let reported = guest.stat("reported");
    happened(&guest.say("processes 1 2 4M"), 2);
    let free = guest.stat("free");
    happened(&guest.say("processes 7 1 4M"), 1);
    assert_eq!(guest.stat("free"), free, "frames are not back");
    assert!(guest.stat("reported") > reported, "free memory was reported meanwhile");
    // Page tables of programs and of the experiment come after each other.
    guest.say("paging 7 20");
    happened(&guest.say("processes 3 1 4M"), 1);
    guest.exit().unwrap();
    let mut guest = boot(&arm64(1));
    happened(&guest.say("processes 3 1 4M"), 1);
    guest.exit().unwrap();
}
