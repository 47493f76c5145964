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

/// Of a heap of 64 MiB 8 are there, half of them could be observed: the other half is unknown, and no more.
#[test]
fn what_is_there_and_was_seen_of_a_sparse_heap_is_not_unknown() {
    let half = |nr| RegionSnapshot { seen_bp: 5000, resident: Some(8 * MIB), ..region(0, 64 * MIB, nr) };
    let list = |nr| span(0, 20, &[half(nr)]);
    let busy = held(&list(20)).totals();
    assert_eq!((busy.resident, busy.unknown), (Some(8 * MIB), Some(4 * MIB)));
    assert_eq!((busy.ws_1s, busy.ws_10s, busy.hot), (4 * MIB, Some(4 * MIB), Some(4 * MIB)));
    let idle = held(&list(0)).totals();
    assert_eq!((idle.cold_10s, idle.unknown, idle.ws_10s), (Some(4 * MIB), Some(4 * MIB), Some(0)));
    let mut trend = TrendAnalysis::new(TrendOptions::new(Measure::WorkingSet(Definition::default())));
    list(20).iter().for_each(|s| trend.snapshot(s));
    let trend = trend.finish();
    assert_eq!((trend.percentile(50), trend.unknown_bytes[0].value), (Some(4 * MIB), 4 * MIB));
}

/// Of a target with very many regions few parts are kept, and the figures stay.
#[test]
fn a_million_regions_are_reduced_and_figures_stay() {
    let nr = 3 * MOST_PARTS as u64;
    // Neighbours that are alike in most places, with holes, and some that are not there.
    let regions: Vec<RegionSnapshot> = (0..nr)
        .filter(|i| !i.is_multiple_of(1000))
        .map(|i| {
            let block = i / 64;
            let nr = [0, 0, 0, 1, 20][(block % 5) as usize];
            let resident = if block.is_multiple_of(7) { 0 } else { 4096 };
            RegionSnapshot { resident: Some(resident), ..region(i << 12, (i + 1) << 12, nr) }
        })
        .collect();
    let figures = |regions: &[RegionSnapshot], seconds: u64| {
        let mut holdings = Holdings::new(Vec::new());
        for i in 0..seconds * 10 {
            holdings.snapshot(&snapshot(i, 1, regions.to_vec()));
        }
        let segments: usize = holdings.held.values().map(|held| held.layer.segments.len()).sum();
        (holdings.totals(), segments)
    };
    let (all, segments) = figures(&regions, 1);
    assert!(segments <= 2 * MOST_PARTS, "{segments}");
    // The same in pieces that need not be reduced.
    let mut sums = Figures::default();
    for piece in regions.chunks(MOST_PARTS / 2) {
        let (part, _) = figures(piece, 1);
        sums.mapped += part.mapped;
        sums.resident = Some(sums.resident.unwrap_or(0) + part.resident.unwrap());
        sums.ws_1s += part.ws_1s;
        sums.hot = Some(sums.hot.unwrap_or(0) + part.hot.unwrap());
    }
    let near = |what: &str, a: u64, b: u64| assert!(a.abs_diff(b) <= b / 1000, "{what}: {a} {b}");
    near("mapped", all.mapped, sums.mapped);
    near("resident", all.resident.unwrap(), sums.resident.unwrap());
    near("ws_1s", all.ws_1s, sums.ws_1s);
    near("hot", all.hot.unwrap(), sums.hot.unwrap());
}
