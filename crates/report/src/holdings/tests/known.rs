//! What is not known is no figure.

use super::*;

#[test]
fn working_sets_of_windows_longer_than_observed_are_not_known() {
    let at = |tenths: u64| {
        let mut holdings = Holdings::default();
        (0..tenths).for_each(|i| holdings.snapshot(&snapshot(31 + i, 1, vec![region(0, MIB, 20)])));
        let (stock, totals) = (holdings.clone().stock(), holdings.totals());
        assert_eq!((stock.totals, stock.processes[0].1), (totals, totals));
        assert_eq!(holdings.mappings(TargetId(1))[0].figures, totals);
        totals.working_sets().map(|ws| ws.is_some())
    };
    assert_eq!(at(1), [true, false, false]);
    assert_eq!(at(97), [true, false, false]);
    assert_eq!(at(98), [true, true, false], "recordings end with an aggregation, not with the second");
    assert_eq!(at(597), [true, true, false]);
    assert_eq!(at(598), [true; 3]);
    // One that began later: its own is not known; before it began there was none.
    let mut holdings = Holdings::default();
    for i in 0..300 {
        let mut next = snapshot(i, 1, vec![region(0, MIB, 20)]);
        if i >= 250 {
            next.targets.push(TargetSnapshot::new(TargetId(2), vec![region(0, 2 * MIB, 20)]));
        }
        holdings.snapshot(&next);
    }
    assert_eq!(holdings.processes()[1].figures.working_sets(), [Some(2 * MIB), None, None]);
    assert_eq!(holdings.totals().working_sets(), [Some(3 * MIB), Some(3 * MIB), None]);
}

#[test]
fn what_is_not_known_is_sorted_last_whichever_is_first() {
    for reverse in [false, true] {
        let options = HoldingsOptions { sort: Sort::Ws10s, reverse, ..HoldingsOptions::default() };
        let mut analysis = HoldingsAnalysis::new(options);
        for i in 0..200 {
            let mut next = snapshot(i, 1, vec![region(0, MIB, 20)]);
            next.targets.push(TargetSnapshot::new(TargetId(2), vec![region(0, MIB, 0)]));
            if i >= 150 {
                next.targets.push(TargetSnapshot::new(TargetId(3), vec![region(0, 2 * MIB, 20)]));
            }
            analysis.snapshot(&next);
        }
        let order: Vec<u64> = analysis.finish().processes.iter().map(|p| p.target).collect();
        assert_eq!(order, if reverse { [2, 1, 3] } else { [1, 2, 3] });
    }
}

#[test]
fn a_pid_that_nobody_knows_is_empty_in_comma_separated_values() {
    let mut analysis = HoldingsAnalysis::new(HoldingsOptions::default());
    analysis.note(&mappings(5, vec![mapping(0, MIB, "rw-p", "[heap]", 0, 0)]));
    span(0, 2, &[region(0, MIB, 20)]).into_iter().for_each(|mut s| {
        s.targets[0].id = TargetId(5);
        analysis.snapshot(&s);
    });
    let mut csv = Vec::new();
    write_csv(&analysis.finish(), &mut csv).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    let kinds: Vec<&str> = csv.lines().skip(1).map(|line| line.get(..12).unwrap_or(line)).collect();
    assert_eq!(
        kinds,
        ["process,5,,,", "mapping,5,,,", "total,,,,,,,"].map(|k| k.get(..12).unwrap()),
        "{csv}"
    );
}
