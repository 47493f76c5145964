//! What passes a window, and what does not.

use super::*;
use isotherm_damon::{Snapshot, TargetId};
use isotherm_record::Header;

fn when(text: &str) -> When {
    When::selected(crate::args::parse_selection(text).unwrap())
}

fn passed(window: &str, started_ns: u64) -> (u64, Vec<u64>) {
    let mut window = Window::new(when(window));
    let mut items = vec![Item::Header(Header { started_ns, ..Header::default() })];
    items.extend((10..20).map(|second| {
        let ns = second * 1_000_000_000;
        Item::Snapshot(Snapshot { start_ns: ns, end_ns: ns + 1_000_000_000, ..Snapshot::default() })
    }));
    let (mut started, mut seconds) = (0, Vec::new());
    for item in &items {
        window
            .item(item, &mut |item| {
                match item {
                    Item::Header(h) => started = h.started_ns,
                    Item::Snapshot(s) => seconds.push(s.start_ns / 1_000_000_000),
                    _ => {}
                }
                Ok(())
            })
            .unwrap();
    }
    let mut rest = |item: &Item| {
        if let Item::Snapshot(s) = item {
            seconds.push(s.start_ns / 1_000_000_000);
        }
        Ok(())
    };
    window.release(&mut rest).unwrap();
    (started, seconds)
}

#[test]
fn a_window_counts_from_the_recordings_start() {
    assert_eq!(passed("2s..4s", 9_000_000_000), (9_000_000_000, vec![11, 12]));
    assert_eq!(passed("8500ms..", 9_000_000_000).1, [17, 18, 19]);
    assert_eq!(passed("..1ns", 10_000_000_000).1, [10]);
}

#[test]
fn a_moment_has_one_snapshot() {
    for (moment, second) in
        [("0", 10), ("1ns", 10), ("1s", 10), ("2s", 11), ("2500ms", 12), ("10s", 19), ("11s", 19)]
    {
        for moment in [moment.to_owned(), format!("{moment}..{moment}")] {
            assert_eq!(passed(&moment, 10_000_000_000).1, [second], "{moment}");
        }
    }
    assert_eq!(passed("0", 0).1, [10], "of a recording that does not say when it began");
    assert_eq!(passed("last", 10_000_000_000).1, [19]);
    assert_eq!(passed("last", 0).1, [19]);
}

/// What was known then comes with it, in its order, and nothing else.
#[test]
fn a_moment_has_all_targets_that_were_told_apart() {
    let second = 1_000_000_000;
    let taken = |target: u64, s: u64| {
        let targets = vec![isotherm_damon::TargetSnapshot::new(TargetId(target), Vec::new())];
        Item::Snapshot(Snapshot {
            start_ns: s * second,
            end_ns: (s + 1) * second,
            targets,
            ..Snapshot::default()
        })
    };
    let end = |s: u64| {
        Item::TargetEnd(isotherm_record::TargetEnd { target: 1, time_ns: s * second, ..Default::default() })
    };
    let items = [
        Item::Header(Header { started_ns: 10 * second, ..Header::default() }),
        taken(1, 10),
        taken(2, 10),
        end(10),
        taken(1, 11),
        end(11),
        taken(2, 11),
        end(12),
        taken(1, 12),
    ];
    let mut passed = Vec::new();
    let mut window = Window::new(when("1500ms"));
    let mut sink = |item: &Item| {
        passed.push(match item {
            Item::Snapshot(s) => format!("{} {}", s.start_ns / second, s.targets[0].id.0),
            Item::TargetEnd(end) => format!("end {}", end.time_ns / second),
            _ => return Ok(()),
        });
        Ok(())
    };
    items.iter().for_each(|item| window.item(item, &mut sink).unwrap());
    window.release(&mut sink).unwrap();
    assert_eq!(passed, ["end 10", "11 1", "end 11", "11 2"]);
    assert_eq!(window.nothing(true), None);
}

#[test]
fn names_mappings_and_ends_are_those_of_the_window() {
    let second = 1_000_000_000;
    let named = |comm: &str, at_s: f64| {
        let time_ns = (at_s * 1e9) as u64;
        Item::Target(isotherm_record::TargetInfo {
            id: 1,
            comm: comm.to_owned(),
            time_ns,
            ..Default::default()
        })
    };
    let taken = |s: u64| {
        Item::Snapshot(Snapshot { start_ns: s * second, end_ns: (s + 1) * second, ..Snapshot::default() })
    };
    let end = isotherm_record::TargetEnd { target: 1, time_ns: 14 * second, ..Default::default() };
    let items = [
        Item::Header(Header { started_ns: 10 * second, ..Header::default() }),
        named("sh", 10.0),
        taken(10),
        taken(11),
        named("env", 12.5),
        taken(12),
        named("sleep", 13.2),
        taken(13),
        Item::TargetEnd(end),
        // Of a recording that does not say when.
        named("dateless", 0.0),
    ];
    let passed = |when: When| {
        let (mut window, mut passed) = (Window::new(when), Vec::new());
        let mut sink = |item: &Item| {
            passed.push(match item {
                Item::Target(target) => target.comm.clone(),
                Item::TargetEnd(_) => "end".to_owned(),
                Item::Snapshot(snapshot) => (snapshot.start_ns / second).to_string(),
                _ => return Ok(()),
            });
            Ok(())
        };
        items.iter().for_each(|item| window.item(item, &mut sink).unwrap());
        window.release(&mut sink).unwrap();
        passed.join(" ")
    };
    let within = |text: &str| passed(when(text));
    assert_eq!(within("..2s"), "sh 10 11");
    // The aggregation that goes on at that moment is shown, with what was known at its end.
    assert_eq!(within("..2100ms"), "sh 10 11 env 12");
    assert_eq!(within("2s..3s"), "sh env 12");
    assert_eq!(within("2s"), "sh 11");
    assert_eq!(within("2600ms"), "sh env 12");
    assert_eq!(within("last"), "sh env sleep 13 end dateless");
    assert_eq!(within("1s.."), "sh 11 env 12 sleep 13 end dateless");
    assert_eq!(passed(When::Until(Duration::from_millis(2100))), within("..2100ms"));
    assert_eq!(within("..9s"), "sh 10 11 env 12 sleep 13 end dateless");
    assert_eq!(passed(When::Always), within("..9s"));
    // Which of the snapshots is that of the moment, others decide.
    assert_eq!(passed(When::At(Duration::from_millis(2100))), "sh 10 11 env 12 13");
    assert_eq!(passed(When::At(Duration::ZERO)), "sh 10 11 12 13");
}

#[test]
fn costs_and_actions_are_those_of_the_window() {
    let second = 1_000_000_000;
    let mut items = vec![Item::Header(Header { started_ns: 10 * second, ..Header::default() })];
    for s in 10..20 {
        let (start_ns, end_ns) = (s * second, (s + 1) * second);
        items.push(Item::Snapshot(Snapshot { start_ns, end_ns, ..Snapshot::default() }));
        // Written later than they happened.
        let (time_ns, wall_ns) = (end_ns, second);
        items.push(Item::Cost(isotherm_record::Cost { time_ns, wall_ns, ..Default::default() }));
        let time_ns = start_ns + second / 2;
        items.push(Item::Action(isotherm_record::SchemeAction { time_ns, ..Default::default() }));
    }
    let passed = |when: When, items: &[Item]| {
        let (mut window, mut passed) = (Window::new(when), Vec::new());
        let mut sink = |item: &Item| {
            match item {
                Item::Cost(cost) => passed.push(format!("c{}", cost.time_ns / second - 11)),
                Item::Action(action) => passed.push(format!("a{}", action.time_ns / second - 10)),
                _ => {}
            }
            Ok(())
        };
        items.iter().for_each(|item| window.item(item, &mut sink).unwrap());
        window.release(&mut sink).unwrap();
        passed.join(" ")
    };
    let within = |text: &str, items: &[Item]| passed(when(text), items);
    assert_eq!(within("2s..4s", &items), "c2 a2 c3 a3");
    assert_eq!(within("..1400ms", &items), "c0 a0 c1");
    assert_eq!(within("8600ms..", &items), "c8 c9 a9");
    assert_eq!(within("last", &items), "c9 a9");
    assert_eq!(passed(When::Until(Duration::from_secs(2)), &items), "c0 a0 c1 a1");
    assert_eq!(passed(When::At(Duration::from_millis(1200)), &items), "c0 a0 c1");
    assert_eq!(passed(When::Always, &items).split(' ').count(), 20);
    // One that does not say when it began holds them back until it is known.
    let mut dateless = items.clone();
    dateless[0] = Item::Header(Header::default());
    dateless.swap(1, 2);
    dateless.swap(2, 3);
    assert_eq!(within("2s..3s", &dateless), "c2 a2");
}

#[test]
fn a_recording_that_does_not_say_when_it_began_began_with_its_first_snapshot() {
    assert_eq!(passed("2s..4s", 0), (10_000_000_000, vec![12, 13]));
}

/// 0 is a time like any other.
#[test]
fn a_recording_may_begin_at_zero() {
    let mut window = Window::new(when("30s..35s"));
    let mut started = None;
    let mut sink = |item: &Item| {
        if let Item::Header(header) = item {
            started = Some(header.started_ns);
        }
        Ok(())
    };
    window.item(&Item::Header(Header::default()), &mut sink).unwrap();
    for second in 0..40 {
        let (start_ns, end_ns) = (second * 1_000_000_000, (second + 1) * 1_000_000_000);
        let snapshot = Snapshot { start_ns, end_ns, ..Snapshot::default() };
        window.item(&Item::Snapshot(snapshot), &mut sink).unwrap();
    }
    // Else who reports would count from the window's start.
    assert_eq!(started, Some(1));
}

#[test]
fn nothing_was_recorded_at_a_moment_in_a_gap() {
    let nothing = |when: When| {
        let mut window = Window::new(when);
        for second in (10..20).chain(100..110) {
            let (start_ns, end_ns) = (second * 1_000_000_000, (second + 1) * 1_000_000_000);
            let snapshot = Snapshot { start_ns, end_ns, ..Snapshot::default() };
            window.item(&Item::Snapshot(snapshot), &mut |_| Ok(())).unwrap();
        }
        window.nothing(true)
    };
    for when in [When::At, When::Until, When::Moment] {
        for second in [1, 5, 10, 11, 89, 95, 100] {
            assert_eq!(nothing(when(Duration::from_secs(second))), None, "{second}");
        }
        for second in [12, 50, 88, 200] {
            let why = nothing(when(Duration::from_secs(second))).unwrap();
            assert!(why.starts_with("nothing was recorded at "), "{why}");
            assert_eq!(why.contains("stood still"), second != 200, "{why}");
        }
    }
}
