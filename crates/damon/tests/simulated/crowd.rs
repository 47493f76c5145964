//! Many targets at a time: each gets its turn.

use isotherm_damon::*;
use isotherm_simulated::{Keep, Purse, Simulated, areas, tick};
use std::collections::BTreeSet;

/// The sweeps of the first seconds over so many processes of which 4 MiB are their own and 6 MiB a library's, and of how many of
/// them the library is known in the end.
fn sweeps(targets: u64) -> (Vec<(TargetId, Sweep)>, usize) {
    let pattern = areas(&[(8, 4096, 20.0), (8, 6144, 0.0)]);
    let mut ops = Simulated::new(pattern.clone());
    ops.files = vec![pattern.areas[1].0];
    let mut monitor = Monitor::new(Attrs::default(), ops, Watch::new(), 5).unwrap();
    for id in 1..=targets {
        monitor.add_target(TargetId(id)).unwrap();
    }
    let (mut now, mut purse, mut keep) = (0, Purse::full(targets), Keep::default());
    while now < 20 * 100 {
        tick(&mut monitor, &mut now, &mut purse, &mut keep);
    }
    let library = pattern.areas[1].0;
    let is_known = |t: &&TargetSnapshot| {
        let known =
            t.regions.iter().filter(|r| !r.is_unknown()).map(|r| r.range.intersection(library).size());
        2 * known.sum::<u64>() > library.size()
    };
    let known = keep.0.last().unwrap().targets.iter().filter(is_known).count();
    (monitor.ops().swept.clone(), known)
}

#[test]
fn of_many_each_is_swept_once_without_its_files_before_any_is_swept_again() {
    let (all, known) = sweeps(24);
    let first: Vec<_> = all.iter().take(24).collect();
    let different: BTreeSet<u64> = first.iter().map(|(id, _)| id.0).collect();
    assert_eq!(different.len(), 24, "{all:?}");
    assert!(first.iter().all(|(_, kind)| *kind == Sweep::Anonymous), "{all:?}");
    // What they share is seen too, in its turn.
    assert!(known > 20, "of {known}");
}

#[test]
fn of_few_all_is_swept_at_once() {
    let (all, _) = sweeps(2);
    assert!(!all.is_empty() && all.iter().all(|(_, kind)| *kind == Sweep::All), "{all:?}");
}
