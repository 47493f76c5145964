//! What is left out of ends, and what is not.

use super::*;
use crate::synthetic::{MIB, mapping, mappings, region};
use isotherm_damon::{RegionSnapshot, TargetId};
use isotherm_record::{TargetEnd, TargetInfo};

fn target(id: u64, mib: u64) -> TargetSnapshot {
    TargetSnapshot::new(TargetId(id), vec![region(MIB, (1 + mib) * MIB, 1)])
}

fn at(tenths: u64, targets: Vec<TargetSnapshot>) -> Item {
    let (start_ns, end_ns) = (tenths * 100_000_000, (tenths + 1) * 100_000_000);
    Item::Snapshot(Snapshot { start_ns, end_ns, sample_ns: 5_000_000, max_nr_accesses: 20, targets })
}

fn end(target: u64) -> Item {
    Item::TargetEnd(TargetEnd { target, time_ns: 0, reason: "exited".to_owned() })
}

/// What comes out, and who gave up.
fn through(items: &[Item]) -> (Vec<Item>, Vec<GaveUp>) {
    all_through(Ends::Each, items)
}

fn all_through(ends: Ends, items: &[Item]) -> (Vec<Item>, Vec<GaveUp>) {
    let (mut before, mut out) = (BeforeEnd { ends, ..BeforeEnd::default() }, Vec::new());
    let mut due = |due: Due<'_>| {
        out.push(match due {
            Due::Snapshot(snapshot) => Item::Snapshot(snapshot.clone()),
            Due::Note(item) => item.clone(),
        });
    };
    for item in items {
        match item {
            Item::Snapshot(snapshot) => before.snapshot(snapshot, &mut due),
            other => before.note(other, &mut due),
        }
    }
    let gave_up = before.finish(&mut due);
    (out, gave_up)
}

#[test]
fn what_nobody_ends_in_comes_out_as_it_went_in() {
    let mut items = vec![mappings(1, vec![mapping(MIB, 300 * MIB, "rw-p", "", 0, 0)])];
    for tenth in 0..60 {
        items.push(at(tenth, vec![target(1, 1 + tenth % 7 * 40)]));
        items.push(mappings(1, vec![mapping(MIB, (300 + tenth) * MIB, "rw-p", "", 0, 0)]));
    }
    assert_eq!(through(&items), (items, vec![]));
}

#[test]
fn of_a_target_that_gave_up_its_memory_the_last_whole_snapshot_is_the_last() {
    let names = mappings(1, vec![mapping(MIB, 2 * MIB, "rw-p", "", 0, 0)]);
    let mut items: Vec<Item> = (0..40).map(|tenth| at(tenth, vec![target(1, 100), target(2, 50)])).collect();
    items.push(at(40, vec![target(1, 95), target(2, 50)]));
    items.push(names.clone());
    items.push(at(41, vec![target(1, 60), target(2, 10)]));
    items.push(at(42, vec![target(1, 2), target(2, 10)]));
    items.extend([end(1), at(43, vec![target(2, 50)])]);
    let (out, gave_up) = through(&items);
    assert_eq!(gave_up, [GaveUp { target: 1, time_ns: 4_100_000_000, left: 0.02 }]);
    let mut expected = items;
    expected[42] = at(41, vec![target(2, 10)]);
    expected[43] = at(42, vec![target(2, 10)]);
    // Its end is told where it is left, instead of which mappings it had by then.
    expected[41] = expected.remove(44);
    assert_eq!(out, expected);
    assert_eq!(
        remark(&gave_up, 0, |id| format!("sort {id}")).as_deref(),
        Some("sort 1 as of 4.100 s: then it gave up memory, and ended with 2 % of it")
    );
}

#[test]
fn what_was_given_up_earlier_is_gone() {
    let mut items: Vec<Item> = (0..20).map(|tenth| at(tenth, vec![target(1, 100)])).collect();
    items.extend((20..45).map(|tenth| at(tenth, vec![target(1, 20)])));
    items.push(end(1));
    assert_eq!(through(&items), (items, vec![]));
}

#[test]
fn who_comes_back_keeps_what_it_came_back_with() {
    let names = |mib| mappings(1, vec![mapping(MIB, mib * MIB, "rw-p", "", 0, 0)]);
    let items = [
        at(0, vec![target(1, 100)]),
        names(2),
        at(1, vec![target(1, 1)]),
        end(1),
        names(9),
        at(2, vec![target(1, 8)]),
    ];
    let (out, gave_up) = through(&items);
    assert_eq!(gave_up, [GaveUp { target: 1, time_ns: 100_000_000, left: 0.01 }]);
    let expected = [items[0].clone(), items[3].clone(), at(1, vec![]), items[4].clone(), items[5].clone()];
    assert_eq!(out, expected);
}

#[test]
fn a_second_life_is_judged_by_itself() {
    let items =
        [at(0, vec![target(1, 100)]), end(1), at(1, vec![target(1, 8)]), at(2, vec![target(1, 8)]), end(1)];
    assert_eq!(through(&items), (items.to_vec(), vec![]));
}

#[test]
fn nothing_is_held_back_without_bound() {
    let mut before = BeforeEnd::default();
    let Item::Snapshot(first) = at(0, vec![target(1, 100)]) else { unreachable!() };
    before.snapshot(&first, |_| {});
    let mut given = 0;
    for _ in 0..3 * MOST_NOTES {
        before.note(&end(2), |_| given += 1);
        assert!(before.queue.len() <= MOST_NOTES + 1);
    }
    assert!(given > MOST_NOTES);
    let many = mappings(1, (0..1000).map(|i| mapping(i * MIB, (i + 1) * MIB, "rw-p", "", 0, 0)).collect());
    before.snapshot(&first, |_| {});
    for _ in 0..500 {
        before.note(&many, |_| {});
        assert!(before.regions <= MOST_REGIONS);
    }
}

#[test]
fn who_stands_still_has_what_it_had() {
    let mut still = target(1, 0);
    still.regions.clear();
    still.steady = true;
    let items = [at(0, vec![target(1, 100)]), at(1, vec![still.clone()]), at(2, vec![target(1, 1)]), end(1)];
    let (out, gave_up) = through(&items);
    assert_eq!(gave_up, [GaveUp { target: 1, time_ns: 200_000_000, left: 0.01 }]);
    assert_eq!(out, [at(0, vec![target(1, 100)]), at(1, vec![still]), end(1), at(2, vec![])]);
}

#[test]
fn who_executes_another_program_or_goes_elsewhere_gave_up_nothing() {
    // In the aggregation in which it did, it has what it had before.
    let time_ns = 150_000_000;
    let exec = Item::Target(TargetInfo { id: 1, time_ns, ..TargetInfo::default() });
    let mut items = vec![
        Item::Target(TargetInfo { id: 1, time_ns: 50_000_000, ..TargetInfo::default() }),
        at(0, vec![target(1, 100)]),
        exec,
        at(1, vec![target(1, 100)]),
        at(2, vec![target(1, 1)]),
        at(3, vec![target(1, 1)]),
        end(1),
    ];
    for ends in [Ends::Each, Ends::Together] {
        assert_eq!(all_through(ends, &items), (items.clone(), vec![]));
    }
    items.remove(2);
    assert_eq!(through(&items).1.len(), 1, "but for that it did");
    let reason = "left the control group".to_owned();
    items[5] = Item::TargetEnd(TargetEnd { target: 1, time_ns: 0, reason });
    assert_eq!(through(&items), (items.clone(), vec![]));
    assert_eq!(all_through(Ends::Together, &items), (items, vec![]));
}

#[test]
fn of_all_together_the_last_moment_in_which_they_had_most_is_the_last() {
    let names = mappings(1, vec![mapping(MIB, 2 * MIB, "rw-p", "", 0, 0)]);
    let mut items = vec![
        at(0, vec![target(1, 100), target(2, 2)]),
        at(1, vec![target(1, 98), target(2, 2)]),
        names,
        at(2, vec![target(1, 9), target(2, 2)]),
        end(1),
        at(3, vec![target(2, 2)]),
        end(2),
    ];
    let (out, gave_up) = all_through(Ends::Together, &items);
    assert_eq!(out, [items[0].clone(), items[1].clone(), items[4].clone(), items[6].clone()]);
    assert_eq!(gave_up, [GaveUp { target: 1, time_ns: 200_000_000, left: 0.09 }]);
    // As long as one runs, the last moment is one like any other.
    items.pop();
    assert_eq!(all_through(Ends::Together, &items), (items, vec![]));
}

#[test]
fn what_is_mapped_is_not_compared_with_what_is_resident() {
    let told = |tenth, resident| {
        let region = RegionSnapshot { resident, ..region(MIB, 101 * MIB, 0) };
        at(tenth, vec![TargetSnapshot::new(TargetId(1), vec![region])])
    };
    // Of a new program nobody knows yet what it has.
    let items = [told(0, None), told(1, Some(20 * MIB)), told(2, None), told(3, Some(20 * MIB)), end(1)];
    for ends in [Ends::Each, Ends::Together] {
        assert_eq!(all_through(ends, &items), (items.to_vec(), vec![]));
    }
}

#[test]
fn snapshots_of_one_moment_are_one() {
    let items = [
        at(0, vec![target(1, 100)]),
        at(0, vec![target(2, 10)]),
        at(1, vec![target(1, 100)]),
        at(1, vec![target(2, 1)]),
        end(1),
        end(2),
    ];
    assert_eq!(all_through(Ends::Together, &items), (items.to_vec(), vec![]), "99 of 110 are most");
}

#[test]
fn large_snapshots_are_not_held_back() {
    let many = |tenth, regions| {
        let list = (0..regions).map(|i| region(i * MIB, (i + 1) * MIB, 0)).collect();
        at(tenth, vec![TargetSnapshot::new(TargetId(1), list)])
    };
    let mut before = BeforeEnd::default();
    for tenth in 0..8 {
        let Item::Snapshot(snapshot) = many(tenth, MOST_REGIONS as u64 / 3) else { unreachable!() };
        before.snapshot(&snapshot, |_| {});
        assert!(before.regions <= MOST_REGIONS && before.queue.len() <= 3);
    }
    let Item::Snapshot(snapshot) = many(9, MOST_REGIONS as u64 + 1) else { unreachable!() };
    before.snapshot(&snapshot, |_| {});
    assert!(before.regions == 0 && before.queue.is_empty());
}
