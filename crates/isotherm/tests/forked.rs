//! A process that forks a child, as a redis that saves, and what its recording says of memory in use meanwhile: on a real one.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{pte_works, run, skip_but_in_ci};

/// Share of the hot memory that may read cold in a snapshot. Regions begin and end at multiples of 256 KiB, those of the workload
/// at any page, so a piece of up to 256 KiB at each of three borders of 16 MiB of hot memory may be told as its neighbour; half
/// of each, on average.
const COLD: f64 = 0.02;

/// The same once two seconds have passed since the child's end, with what is unknown.
const UNSEEN: f64 = 0.05;

/// Two seconds in snapshots of 100 ms, which a monitor that is held up makes later: then they are longer.
const SNAPSHOTS: u64 = 20;

/// Tries. Now and then rates go astray for a while without any fork (a loop over memory takes a stretch of it apart into two, one of
/// which reads 0 Hz); that is for `lab accuracy` to judge. What a fork does it does each time.
const TRIES: usize = 3;

#[test]
fn memory_in_use_never_reads_cold_around_a_fork_and_all_is_seen_again_soon() {
    if !pte_works() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let sets =
        "size=64M written=8M read=8M read_at=8M seldom=8M seldom_at=16M speed=32M saves=1 before=6s after=6s";
    let sets = sets.split(' ').flat_map(|set| ["--set", set]);
    // What a program that was not built for speed can see within the usual budget is not the question.
    let args = ["lab", "accuracy", "bgsave", "--pages", "4k", "--overhead", "5%", "--json"];
    let args: Vec<&str> = args.into_iter().chain(sets).collect();
    let (mut wrong, mut busy) = (Vec::new(), None);
    for _ in 0..TRIES {
        let report = run(dir.path(), &args).json();
        let forked = &report[0]["forked"][0];
        assert_eq!(forked["child"], "child");
        let seconds = forked["seconds"].as_array().unwrap();
        // A machine that lets the workload do nothing for seconds leaves nothing to judge.
        let idle = ["before", "during", "after"]
            .into_iter()
            .find(|when| !seconds.iter().any(|s| s["when"] == *when));
        if let Some(when) = idle {
            busy = Some(format!("the machine is too busy: nothing was in use {when} the fork"));
            continue;
        }
        let right = forked["seen_before"] == true
            && forked["worst_cold_share"].as_f64().unwrap() <= COLD
            && forked["seen_after_snapshots"].as_u64().is_some_and(|n| n <= SNAPSHOTS)
            && forked["worst_unseen_later"].as_f64().is_none_or(|share| share <= UNSEEN);
        if right {
            return;
        }
        wrong.push(forked.clone());
    }
    if let Some(busy) = busy.filter(|_| wrong.is_empty()) {
        return skip_but_in_ci(&busy);
    }
    panic!("each time: {wrong:#?}");
}
