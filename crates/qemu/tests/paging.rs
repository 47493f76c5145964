//! Page tables that the guest's processors walk. Needs the program, so that `ci/guest.sh` runs these with `--ignored`.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{MIB, Speak, arm64, boot, machine};
use isotherm_qemu::{Accel, Machine};

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn the_processor_and_the_page_tables_agree() {
    // The third never had 5 levels. The processor it is a model of has PCIDs, but QEMU's translator has them in no model
    // (`-cpu max,+pcid,enforce` is refused, 7.2): they need KVM, below.
    let models = [(None, false), (None, true), (Some("Broadwell-noTSX"), false)];
    for (model, five_levels) in models {
        let model = model.map(str::to_owned);
        let mut guest = boot(&Machine { model, five_levels, ..machine(256 * MIB) });
        guest.say("alloc 16M 3");
        guest.say("touch");
        let free = guest.stat("free");
        let found = guest.say("paging 7 3000");
        assert_eq!(found.get("levels").unwrap(), if five_levels { 5 } else { 4 });
        assert_eq!(found.get("operations").unwrap(), 3000);
        // Everything that is counted happened, and not only once.
        let counted = found.text.split(' ').filter_map(|word| word.split_once('='));
        for (figure, _) in counted.filter(|(name, _)| !["levels", "seed"].contains(name)) {
            assert!(found.get(figure).unwrap() > 10, "{figure} of {}", found.text);
        }
        assert_eq!(guest.stat("free"), free, "frames are not back");
        guest.say("check");
        guest.exit().unwrap();
    }
}

/// On the host's own processors, most of which have PCIDs. Only where that is asked for: where KVM has no hardware to walk a guest's
/// page tables, in most virtual machines, it shadows them, and what this test changes is shadowed anew each time. A single
/// operation had not ended there after 40 s.
#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn the_host_s_processor_and_the_page_tables_agree() {
    if std::env::var_os("ISOTHERM_KVM").is_none() {
        eprintln!("skipped: needs KVM on hardware, and ISOTHERM_KVM to say that this is it");
        return;
    }
    let mut guest = boot(&Machine { accel: Accel::Kvm, ..machine(256 * MIB) });
    let free = guest.stat("free");
    for seed in [7, 8] {
        let found = guest.say(&format!("paging {seed} 3000"));
        assert_eq!(found.get("operations").unwrap(), 3000);
    }
    assert_eq!(guest.stat("free"), free, "frames are not back");
    guest.exit().unwrap();
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn what_a_kernel_leaves_out_is_noticed() {
    let mut guest = boot(&machine(256 * MIB));
    let free = guest.stat("free");
    for (lapse, told) in [
        ("flush", "its entry says old"),
        ("copy", "holds"),
        ("shootdown", "after the fork|no moment of its parent|was read|were written|after a fork"),
        ("grace", "a lookup of"),
        ("free", "free bytes"),
    ] {
        let error = guest.refused(&format!("paging 7 100 without {lapse}"));
        assert!(told.split('|').any(|told| error.contains(told)), "without {lapse}: {error}");
    }
    // None of that has lost a frame, or stays.
    assert_eq!(guest.stat("free"), free);
    guest.say("paging 7 100");
    guest.exit().unwrap();
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn with_a_single_processor_there_is_nobody_to_tell() {
    let mut guest = boot(&Machine { cpus: 1, ..machine(128 * MIB) });
    let found = guest.say("paging 7 500");
    assert_eq!(found.get("shootdowns").unwrap(), 0);
    assert!(found.get("faults").unwrap() > 0);
    guest.exit().unwrap();
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn without_room_it_says_how_much_it_needs() {
    let mut guest = boot(&machine(128 * MIB));
    guest.say("alloc 100M");
    let error = guest.refused("paging");
    assert!(error.contains("are needed"), "{error}");
    guest.say("free all");
    guest.say("paging 1 10");
    guest.exit().unwrap();
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn an_arm64_processor_and_the_page_tables_agree() {
    let mut guest = boot(&arm64(2));
    guest.say("alloc 16M 3");
    guest.say("touch");
    let free = guest.stat("free");
    let found = guest.say("paging 7 600");
    assert_eq!((found.get("levels").unwrap(), found.get("operations").unwrap()), (4, 600));
    for figure in
        ["touches", "faults", "refused", "copied", "reused", "forks", "young", "splits", "shootdowns"]
    {
        assert!(found.get(figure).unwrap() > 10, "{figure} of {}", found.text);
    }
    assert!(found.get("folios").unwrap() > 3, "few folios were split: {}", found.text);
    assert!(found.get("folds").unwrap() >= 40 && found.get("unfolds").unwrap() >= 40, "{}", found.text);
    assert_eq!(guest.stat("free"), free, "frames are not back");
    guest.say("check");
    guest.exit().unwrap();
}

#[test]
#[ignore = "needs the guest program: ci/guest.sh"]
fn what_an_arm64_kernel_leaves_out_is_noticed() {
    let mut guest = boot(&arm64(2));
    let free = guest.stat("free");
    for (lapse, told) in [
        ("flush", "its entry says old"),
        ("copy", "holds"),
        ("shootdown", "after the fork|no moment of its parent|was read|were written|after a fork|was stored"),
        ("free", "free bytes"),
    ] {
        let error = guest.refused(&format!("paging 7 20 without {lapse}"));
        assert!(told.split('|').any(|told| error.contains(told)), "without {lapse}: {error}");
    }
    assert_eq!(guest.stat("free"), free);
    guest.exit().unwrap();
}
