use super::*;
use isotherm_damon::{TargetId, TargetSnapshot};
use proptest::prelude::*;

const S: u64 = 1_000_000_000;

fn mapping(start: u64, end: u64, name: &str, object: Option<u64>) -> SeenMapping {
    let object = object.map(|offset| ((1, 2), 3, offset));
    SeenMapping { range: AddrRange::new(start, end), name: name.into(), object }
}

fn region(start: u64, end: u64, share: f64) -> RegionSnapshot {
    RegionSnapshot {
        range: AddrRange::new(start, end),
        nr_accesses: (share * 20.0) as u32,
        nr_accesses_bp: (share * 200_000.0).round() as u32,
        ..RegionSnapshot::default()
    }
}

fn snapshot(targets: Vec<(u32, Vec<RegionSnapshot>)>) -> Snapshot {
    let target = |(pid, regions)| TargetSnapshot::new(TargetId(u64::from(pid)), regions);
    Snapshot {
        start_ns: 900_000_000,
        end_ns: S,
        sample_ns: 5_000_000,
        max_nr_accesses: 20,
        targets: targets.into_iter().map(target).collect(),
    }
}

fn pass(processes: Vec<Seen>) -> Pass {
    Pass { start_ns: 0, end_ns: S, processes }
}

fn compare(processes: Vec<Seen>, targets: Vec<(u32, Vec<RegionSnapshot>)>) -> Against {
    let mut comparison = Comparison::default();
    comparison.add(&pass(processes), Some(&snapshot(targets)));
    comparison.finish()
}

#[test]
fn what_two_processes_map_counts_once_wherever_they_map_it() {
    let seen = |pid, start: u64, accessed: &[(u64, u64)]| Seen {
        pid,
        mappings: vec![mapping(start, start + 100, "segment", Some(1000)), mapping(5000, 5050, "heap", None)],
        accessed: accessed.iter().map(|&(a, b)| AddrRange::new(a, b)).collect(),
    };
    // Offsets 0..60 by the one, 40..80 by the other; a heap of one's own each, of which the one's is accessed.
    let processes = vec![seen(1, 200, &[(200, 260), (5000, 5010)]), seen(2, 700, &[(740, 780)])];
    let targets =
        vec![(1, vec![region(200, 250, 1.0), region(5000, 5050, 0.0)]), (2, vec![region(700, 740, 1.0)])];
    let got = compare(processes, targets);
    let segment = got.objects.iter().find(|o| o.name == "segment").unwrap();
    assert_eq!((segment.mapped, segment.scanned, segment.recorded), (100.0, 80.0, 50.0));
    // All that is recorded was accessed by either.
    assert!((segment.f1.unwrap() - 100.0 / 130.0).abs() < 1e-9);
    assert!((segment.scanned_hz - 0.8).abs() < 1e-9 && (segment.recorded_hz - 0.5).abs() < 1e-9);
    let heap = got.objects.iter().find(|o| o.name == "heap").unwrap();
    assert_eq!((heap.mapped, heap.scanned, heap.recorded, heap.ratio), (100.0, 10.0, 0.0, Some(0.0)));
    assert_eq!((got.total.mapped, got.total.scanned, got.processes), (200.0, 90.0, 2));
}

#[test]
fn passes_without_a_snapshot_are_counted_and_means_are_of_the_others() {
    let seen =
        Seen { pid: 1, mappings: vec![mapping(0, 100, "heap", None)], accessed: vec![AddrRange::new(0, 50)] };
    let mut comparison = Comparison::default();
    comparison.add(&pass(vec![seen.clone()]), None);
    comparison.add(&pass(vec![seen.clone()]), Some(&snapshot(vec![(1, vec![region(0, 100, 0.005)])])));
    comparison.add(&pass(vec![seen]), Some(&snapshot(vec![(1, vec![region(0, 50, 1.0)])])));
    let got = comparison.finish();
    assert_eq!((got.passes, got.without_snapshot, got.pass_seconds), (2, 1, 1.0));
    let once = 100.0 * (1.0 - 0.995f64.powi(200));
    assert!((got.total.recorded - (once + 50.0) / 2.0).abs() < 1e-9);
    assert_eq!(got.total.scanned, 50.0);
}

proptest! {
    /// Byte by byte, for private memory.
    #[test]
    fn comparing_by_runs_is_comparing_byte_by_byte(
        maps in proptest::collection::vec((0..5u64, 1..20u64), 1..5),
        runs in proptest::collection::vec((0..9u64, 1..9u64), 0..6),
        regions in proptest::collection::vec((0..9u64, 1..20u64, 0.0..0.02f64), 0..6),
    ) {
        let mut at = 0;
        let mut next = |gap: u64, size: u64| {
            at += gap + size;
            AddrRange::new(at - size, at)
        };
        let mappings: Vec<_> = maps.iter().map(|&(g, n)| next(g, n)).collect();
        at = 0;
        let mut next = |gap: u64, size: u64| {
            at += gap + size;
            AddrRange::new(at - size, at)
        };
        let accessed: Vec<_> = runs.iter().map(|&(g, n)| next(g + 1, n)).collect();
        at = 0;
        let mut next = |gap: u64, size: u64| {
            at += gap + size;
            AddrRange::new(at - size, at)
        };
        let regions: Vec<_> = regions
            .iter()
            .map(|&(g, n, share)| {
                let range = next(g, n);
                region(range.start, range.end, share)
            })
            .collect();
        let shot = snapshot(vec![(1, regions.clone())]);
        let (mut scanned, mut recorded, mut common, mut mapped) = (0.0, 0.0, 0.0, 0.0);
        for byte in mappings.iter().flat_map(|m| m.start..m.end) {
            let q = if accessed.iter().any(|a| a.contains(byte)) { 1.0 } else { 0.0 };
            let p = regions.iter().find(|r| r.range.contains(byte)).map_or(0.0, |r| accessed_within(r, S, &shot));
            mapped += 1.0;
            scanned += q;
            recorded += p;
            common += f64::min(q, p);
        }
        let mappings = mappings
            .iter()
            .map(|r| SeenMapping { range: *r, name: "a".into(), object: None })
            .collect();
        let got = compare(vec![Seen { pid: 1, mappings, accessed }], vec![(1, regions)]).total;
        prop_assert!((got.mapped - mapped).abs() < 1e-9 && (got.scanned - scanned).abs() < 1e-9);
        prop_assert!((got.recorded - recorded).abs() < 1e-6);
        let f1 = (scanned + recorded > 0.0).then(|| 2.0 * common / (scanned + recorded));
        prop_assert_eq!(got.f1.is_some(), f1.is_some());
        prop_assert!((got.f1.unwrap_or(0.0) - f1.unwrap_or(0.0)).abs() < 1e-6);
    }
}
