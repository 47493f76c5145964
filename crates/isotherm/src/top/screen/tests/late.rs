//! What the head says of a busy machine.

use super::*;
use isotherm_linux::Counters;

/// A second of which so many sampling intervals of 5 ms were missed.
fn second(made: &mut Made, samples_missed: u64) {
    made.pass(10);
    let mut model = made.model.lock();
    model.header.attrs.sample_us = 5000;
    if let Some(last) = model.costs.back_mut() {
        last.counters = Counters { samples_missed, ..Counters::default() };
    }
}

#[test]
fn a_monitor_that_comes_late_says_so_as_long_as_it_does() {
    let mut made = Made::new(2, 1);
    let mut screen = made.screen(ColourMode::Plain);
    let head = |screen: &mut Screen| shown(screen, 80, 24).remove(0);
    (0..10).for_each(|_| second(&mut made, 2));
    assert!(!head(&mut screen).contains("LATE"), "one in a hundred: {}", head(&mut screen));
    (0..10).for_each(|_| second(&mut made, 70));
    assert!(head(&mut screen).contains("LATE 35 %"), "{}", head(&mut screen));
    press(&mut screen, KeyCode::Char('?'));
    find(&shown(&mut screen, 80, 24), "sampling intervals were missed");
    press(&mut screen, KeyCode::Char('?'));
    (0..10).for_each(|_| second(&mut made, 0));
    assert!(!head(&mut screen).contains("LATE"), "{}", head(&mut screen));
}

/// Of one that has just begun it is not known yet what it has, nor whether it uses it.
#[test]
fn a_newborn_process_leaves_the_head_known() {
    let made = Made::new(1, 2);
    {
        let mut model = made.model.lock();
        let (id, pid) = (9, 900);
        model.target(rec::TargetInfo { id, pid, comm: "newborn".into(), ..rec::TargetInfo::default() });
        let fresh = RegionSnapshot { resident: None, seen_bp: 0, ..region(HEAP, HEAP + MIB, 0) };
        model.snapshot(&Snapshot {
            start_ns: 2 * SECOND,
            end_ns: 2 * SECOND + SECOND / 10,
            sample_ns: 5_000_000,
            max_nr_accesses: 20,
            targets: vec![
                TargetSnapshot { id: TargetId(1), regions: Vec::new(), steady: true },
                TargetSnapshot::new(TargetId(id), vec![fresh]),
            ],
        });
        model.add_up();
    }
    let lines = shown(&mut made.screen(ColourMode::Plain), 120, 24);
    let head = find(&lines, "WS 1s ");
    assert!(head.contains("WS 1s 4.0 MiB, hot 4.0 MiB") && head.contains("resident 16.0 MiB+"), "{lines:#?}");
    let row = find(&lines, "newborn");
    assert!(row.matches('?').count() >= 3, "{row}");
}
