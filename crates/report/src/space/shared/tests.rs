//! Sums against their definition.

use super::*;
use crate::synthetic::region;
use proptest::prelude::*;

fn summed(shares: &[RegionSnapshot]) -> Vec<RegionSnapshot> {
    summed_as(false, shares)
}

/// The same where all have the same pages, or each its own.
fn summed_as(is_same: bool, shares: &[RegionSnapshot]) -> Vec<RegionSnapshot> {
    let mut all = Shares::default();
    all.begin(20, 5_000_000, 1.0);
    shares.iter().for_each(|r| all.add(3, r.range.start, r));
    let mut out = Vec::new();
    all.add_up(
        |_| is_same,
        |object, regions| {
            assert_eq!(object, 3);
            out = regions;
        },
    );
    out
}

proptest! {
    /// Against the definition, byte by byte.
    #[test]
    fn every_byte_has_the_accesses_of_all_who_map_it(
        parts in prop::collection::vec((0..100_u64, 1..40_u64, 0..=20_u32, 0..3_u16, 0..9_u32), 1..20),
    ) {
        let parts: Vec<RegionSnapshot> = parts
            .into_iter()
            .map(|(start, size, nr, seen, age)| RegionSnapshot {
                nr_accesses: if seen == 0 { 0 } else { nr },
                nr_accesses_bp: if seen == 0 { 0 } else { nr * 10_000 },
                seen_bp: seen * 5000,
                age,
                ..region(start, start + size, 0)
            })
            .collect();
        let out = summed(&parts);
        prop_assert!(out.windows(2).all(|w| w[0].range.end <= w[1].range.start));
        for at in 0..150 {
            let here: Vec<&RegionSnapshot> = parts.iter().filter(|r| r.range.contains(at)).collect();
            let Some(found) = out.iter().find(|r| r.range.contains(at)) else {
                prop_assert!(here.is_empty());
                continue;
            };
            let known = here.iter().filter(|r| !r.is_unknown());
            let missed: f64 = known.map(|r| 1.0 - f64::from(r.nr_accesses) / 20.0).product();
            let expected = (1.0 - missed) * 200_000.0;
            prop_assert!((f64::from(found.nr_accesses_bp) - expected).abs() <= 1.0, "{:?} {}", found, expected);
            let seen = here.iter().map(|r| f64::from(r.seen_bp) / 10_000.0);
            let least = seen.clone().fold(1.0, f64::min);
            let all: f64 = seen.product();
            let accessed = 1.0 - missed.powi(20);
            let accessing = here.iter().filter(|r| r.nr_accesses > 0);
            let hidden: f64 = accessing.map(|r| 1.0 - f64::from(r.seen_bp) / 10_000.0).product();
            let expected = all + (1.0 - hidden - all).max(0.0) * accessed;
            // No more than leaves their working sets of a second, of 200 intervals, at what they come to.
            let left: f64 = here
                .iter()
                .map(|r| {
                    let p = f64::from(r.nr_accesses) / 20.0;
                    1.0 - f64::from(r.seen_bp) / 10_000.0 * (1.0 - (1.0 - p).powi(200))
                })
                .product();
            let met = 1.0 - missed.powi(200);
            let most = if met > 0.0 { ((1.0 - left) / met).max(all) } else { 1.0 };
            let expected = expected.min(most) * 10_000.0;
            prop_assert!((f64::from(found.seen_bp) - expected).abs() <= 2.0, "{:?} {}", found, expected);
            if found.nr_accesses_bp == 0 {
                prop_assert!(f64::from(found.seen_bp) <= least * 10_000.0, "{:?} {}", found, least);
            }
            prop_assert_eq!(Some(found.age), here.iter().map(|r| r.age).min());
            prop_assert_eq!(found.nr_accesses > 0, here.iter().any(|r| r.nr_accesses > 0));
        }
    }
}

/// One who knows that it does not access a byte says nothing of the others, each of which may: a share of one in four
/// "known idle" would be cold memory that a backend not looked at yet may be reading.
#[test]
fn one_who_sees_no_access_does_not_speak_for_the_others() {
    let unknown = RegionSnapshot { seen_bp: 0, ..region(0, 10, 0) };
    for (idle, others) in [(1, 3), (9, 1)] {
        let all = [vec![region(0, 10, 0); idle], vec![unknown; others]].concat();
        let [found] = summed(&all)[..] else { panic!("one region") };
        assert!(found.is_unknown() && found.nr_accesses_bp == 0 && found.exposure == 0, "{found:?}");
    }
    let idle = summed(&[region(0, 10, 0); 9]);
    assert_eq!((idle[0].seen_bp, idle[0].nr_accesses_bp), (10_000, 0));
    let half = RegionSnapshot { seen_bp: 5000, ..region(0, 10, 0) };
    assert_eq!(summed(&[half, region(0, 10, 0)])[0].seen_bp, 5000);
    assert_eq!(summed(&[half, half])[0].seen_bp, 2500, "which halves these are is not known");
    let hot = summed(&[region(0, 10, 20), unknown, unknown, unknown]);
    assert_eq!((hot[0].seen_bp, hot[0].nr_accesses), (10_000, 20));
    let rare = RegionSnapshot { nr_accesses_bp: 1, ..region(0, 10, 0) };
    let rare = summed(&[rare, unknown]);
    assert!(!rare[0].is_unknown() && rare[0].nr_accesses_bp == 1, "{:?}", rare[0]);
}

#[test]
fn accesses_add_up_where_their_fine_count_is_too_small() {
    let often = |nr| RegionSnapshot { nr_accesses: nr, nr_accesses_bp: u32::MAX, ..region(0, 10, 0) };
    let mut shares = Shares::default();
    shares.begin(1_000_000, 100, 1.0);
    [500_000, 600_000].iter().for_each(|nr| shares.add(1, 0, &often(*nr)));
    let mut found = Vec::new();
    shares.add_up(|_| false, |_, regions| found = regions);
    assert!(found[0].nr_accesses.abs_diff(800_000) <= 1 && found[0].nr_accesses_bp == u32::MAX, "{found:?}");
}

/// Ten who have a tenth each may have all of it between them, and two who have none have none.
#[test]
fn pages_that_lie_apart_are_the_same_ones_for_all_who_use_them() {
    let apart = |idle_bp| RegionSnapshot { nr_accesses_bp: 5000, idle_bp, ..region(0, 10, 0) };
    let idle = |shares: &[RegionSnapshot]| summed(shares)[0].idle_bp;
    assert_eq!(idle(&[apart(8750), apart(8750)]), 8750);
    assert_eq!(idle(&[apart(8750), region(0, 10, 0)]), 8750, "who does not use it says nothing of which");
    assert_eq!(idle(&[apart(8750), RegionSnapshot { seen_bp: 0, ..region(0, 10, 0) }]), 8750);
    assert_eq!(idle(&[apart(8750), apart(2000)]), 2000, "at least as many as of any");
    assert_eq!(idle(&[apart(8750), region(0, 10, 1)]), 0);
    assert_eq!(idle(&[region(0, 10, 0), region(0, 10, 0)]), 0, "all of it is idle, and that is its rate");
    // Together they access more than an eighth of it in each interval.
    let often = RegionSnapshot { nr_accesses: 2, nr_accesses_bp: 20_000, idle_bp: 8750, ..region(0, 10, 0) };
    assert!((8000..=8200).contains(&idle(&[often, often])), "{}", idle(&[often, often]));
}

#[test]
fn who_has_which_bytes_is_independent() {
    let has = |bytes| RegionSnapshot { resident: Some(bytes), ..region(0, 1000, 20) };
    let resident = |shares: &[RegionSnapshot]| summed(shares)[0].resident;
    assert_eq!(resident(&[has(500), has(500)]), Some(750));
    assert_eq!(resident(&[has(100); 10]), Some(651));
    assert_eq!(resident(&[has(1000), has(10)]), Some(1000));
    assert_eq!(resident(&[has(0), has(300)]), Some(300));
    assert_eq!(resident(&[has(0), has(0)]), Some(0));
    assert_eq!(resident(&[has(500), region(0, 1000, 20)]), None, "one may have any");
}

/// As a library that sixteen processes map.
#[test]
fn of_the_same_pages_many_have_no_more_than_one() {
    let has = |bytes| RegionSnapshot { resident: Some(bytes), ..region(0, 1000, 20) };
    let resident = |shares: &[RegionSnapshot]| summed_as(true, shares)[0].resident;
    assert_eq!(resident(&[has(100); 16]), Some(100));
    assert_eq!(resident(&[has(100), has(300), has(0)]), Some(300));
    assert_eq!(resident(&[has(1000), has(10)]), Some(1000));
    let shifted = RegionSnapshot { resident: Some(50), ..region(500, 1500, 20) };
    let parts: u64 = summed_as(true, &[has(500), shifted]).iter().filter_map(|r| r.resident).sum();
    assert_eq!(parts, 250 + 250 + 25);
    // What is there is accessed by any of them, and never more often than in each interval.
    let often = RegionSnapshot { resident: Some(10), ..region(0, 1000, 10) };
    let accesses = summed_as(true, &[often; 16])[0].nr_accesses_bp;
    assert!((199_000..=200_000).contains(&accesses), "{accesses}");
    let half = RegionSnapshot { seen_bp: 5000, ..region(0, 1000, 0) };
    assert_eq!(
        summed_as(true, &[half, half])[0].seen_bp,
        5000,
        "what one could not see the others could not"
    );
    // The working set of all is that of the one that uses most.
    let uses = RegionSnapshot { nr_accesses_bp: 1000, ..region(0, 1000, 0) };
    let met = |is_same| {
        let mut all = Shares::default();
        all.begin(20, 5_000_000, 1.0);
        [uses; 4].iter().for_each(|r| all.add(3, 0, r));
        let mut found = 0.0;
        all.each(|_| is_same, |_, _, share| found = share);
        found
    };
    let one = 1.0 - (1.0_f64 - 0.005).powi(200);
    assert!((met(true) - one).abs() < 1e-3, "{}", met(true));
    assert!((met(false) - (1.0 - (1.0 - one).powi(4))).abs() < 1e-3, "{}", met(false));
}

#[test]
fn what_all_map_alike_stays_one_region() {
    let alike = [region(0, 50, 10), region(50, 90, 10), region(0, 90, 0)];
    let out = summed(&alike);
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].range, out[0].nr_accesses), (AddrRange::new(0, 90), 10));
}
