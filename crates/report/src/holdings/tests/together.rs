//! What several targets map, beside what each of them says of it.

use super::*;
use crate::Accumulate;

/// Part of an object as one target has it: pages, what is seen of it, accesses (in 1/10000), what is there, and what is idle.
#[derive(Clone, Debug)]
struct Piece {
    pages: u64,
    seen: u16,
    bp: u32,
    there: u64,
    idle: u16,
}

fn piece() -> impl Strategy<Value = Piece> {
    let seen = prop_oneof![3 => Just(10_000_u16), 1 => Just(0), 2 => 1..10_000_u16];
    let bp = prop_oneof![1 => Just(0_u32), 2 => 1..200_000_u32, 2 => 1..2_000_u32, 1 => Just(200_000)];
    let there = prop_oneof![2 => Just(100_u64), 1 => 0..100_u64];
    let idle = prop_oneof![2 => Just(0_u16), 1 => 0..9_900_u16];
    (1..40_u64, seen, bp, there, idle).prop_map(|(pages, seen, bp, there, idle)| Piece {
        pages,
        seen,
        // Nobody knows a rate of what is not seen, and only what is not idle is accessed.
        bp: if seen == 0 || there == 0 { 0 } else { bp.min(20 * (10_000 - u32::from(idle))) },
        there,
        idle: if seen == 0 || bp == 0 { 0 } else { idle },
    })
}

/// The name of a window, and its working set.
type WorkingSet = (&'static str, fn(&Figures) -> Option<u64>);

const PAGE: u64 = 4096;

/// Regions one after the other from `at` on.
fn regions(mut at: u64, pieces: &[Piece]) -> Vec<RegionSnapshot> {
    let mut list = Vec::new();
    for piece in pieces {
        let size = piece.pages * PAGE;
        list.push(RegionSnapshot {
            nr_accesses: piece.bp / 10_000,
            nr_accesses_bp: piece.bp,
            seen_bp: piece.seen,
            idle_bp: piece.idle,
            resident: Some(size * piece.there / 100),
            ..region(at, at + size, 0)
        });
        at += size;
    }
    list
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Whatever each of them sees, accesses and has of it: what all of them use together is at least what any of them uses, and no
    /// more than the sum. One that sees all of it and uses nothing once made a tenth, which is all that another saw, the whole.
    #[test]
    fn an_object_is_in_use_as_far_as_those_who_map_it_use_it(
        // By target: from which page on it maps the object, and what it says of it in turn, for so many seconds each.
        targets in prop::collection::vec(
            (0..20_u64, prop::collection::vec((1..8_u64, prop::collection::vec(piece(), 1..4)), 1..4)), 1..5,
        ),
        seconds in 1..25_u64,
    ) {
        let mut holdings = Holdings::default();
        let base = |id: u64| id << 32;
        let most = |turns: &[(u64, Vec<Piece>)]| {
            turns.iter().map(|(_, pieces)| pieces.iter().map(|p| p.pages).sum::<u64>()).max().unwrap_or(0) * PAGE
        };
        let mut notes = Vec::new();
        for (i, (from, turns)) in targets.iter().enumerate() {
            let id = i as u64 + 1;
            let all = mapping(base(id), base(id) + most(turns), "rw-s", "/dev/shm/all", 9, from * PAGE);
            notes.push(mappings(id, vec![all]));
        }
        notes.iter().for_each(|note| holdings.note(note));
        let mut last = snapshot(0, 1, Vec::new());
        for i in 0..seconds * 2 {
            let mut all = snapshot(i * 5, 1, Vec::new());
            all.end_ns = all.start_ns + 500_000_000;
            all.targets = targets.iter().enumerate().map(|(t, (_, turns))| {
                let whole: u64 = turns.iter().map(|(seconds, _)| seconds).sum();
                let mut at = i / 2 % whole;
                let turn = turns.iter().find(|(seconds, _)| {
                    let here = at < *seconds;
                    at = at.saturating_sub(*seconds);
                    here
                });
                let id = t as u64 + 1;
                TargetSnapshot::new(TargetId(id), turn.map_or_else(Vec::new, |(_, p)| regions(base(id), p)))
            }).collect();
            holdings.snapshot(&all);
            last = all;
        }
        let each: Vec<Figures> = (1..=targets.len() as u64)
            .flat_map(|id| holdings.mappings(TargetId(id)))
            .map(|row| row.figures)
            .collect();
        let objects = holdings.objects();
        prop_assert_eq!(objects.len(), 1);
        let object = objects[0].figures;
        let windows: [WorkingSet; 3] =
            [("1 s", |f| Some(f.ws_1s)), ("10 s", |f| f.ws_10s), ("60 s", |f| f.ws_60s)];
        let rounding = targets.len() as u64 + 1;
        for (name, of) in windows {
            let Some(used) = of(&object) else { continue };
            let (sum, most) = each.iter().filter_map(of).fold((0, 0), |(s, m), ws| (s + ws, m.max(ws)));
            prop_assert!(used <= sum + rounding, "{name}: {used} of at most {sum}");
            prop_assert!(used + rounding >= most, "{name}: {used} of at least {most}");
            let unknown = object.unknown.unwrap_or(0);
            prop_assert!(used + unknown <= object.resident.unwrap_or(u64::MAX) + rounding, "{name}: {object:?}");
        }
        for (cold, ws) in [(object.cold_10s, object.ws_10s), (object.cold_1m, object.ws_60s)] {
            prop_assert!(cold.unwrap_or(0) + ws.unwrap_or(0) <= object.resident.unwrap_or(0) + rounding, "{object:?}");
        }
        // The report on working sets adds up one snapshot, by the same rule.
        let trend = |wanted: Vec<TargetId>| {
            let measure = Measure::WorkingSet(Definition::default());
            let mut trend = TrendAnalysis::new(TrendOptions { targets: wanted, ..TrendOptions::new(measure) });
            notes.iter().for_each(|note| trend.note(note));
            trend.snapshot(&last);
            let report = trend.finish();
            let unknown = report.unknown_bytes.iter().find(|p| p.percent == 50).map_or(0, |p| p.value);
            (report.percentile(50).unwrap_or(0), unknown)
        };
        let sum: u64 = (1..=targets.len() as u64).map(|id| trend(vec![TargetId(id)]).0).sum();
        let (all, unknown) = trend(Vec::new());
        prop_assert!(all <= sum + rounding, "{all} of at most {sum}");
        let there = object.resident.unwrap_or(u64::MAX);
        prop_assert!(all + unknown <= there + rounding, "{all} and {unknown} unknown of {there}");
        // Idle pages of a region have places there, which others use or not, and are a share of it here.
        let mut pieces = targets.iter().flat_map(|(_, turns)| turns).flat_map(|(_, pieces)| pieces);
        let steps = object.mapped / 1000 + rounding;
        if pieces.all(|piece| piece.idle == 0) {
            prop_assert!(all.abs_diff(object.ws_1s) <= steps, "{all} and {}", object.ws_1s);
        }
    }
}
