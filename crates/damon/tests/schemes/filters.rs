//! Filters against a naive evaluator, page by page.

use crate::*;
use proptest::prelude::*;

fn filter<K>(kind: K, matching: bool, allow: bool) -> Filter<K> {
    Filter { kind, matching, allow }
}

/// The kernel document's rule: the first that matches decides, else the opposite of the last.
fn naive(filters: &[(bool, bool, bool)]) -> bool {
    for (is, matching, allow) in filters {
        if is == matching {
            return *allow;
        }
    }
    filters.is_empty() || !filters[filters.len() - 1].2
}

#[test]
fn page_filters_follow_the_truth_table() {
    let kinds = [PageKind::Anon, PageKind::Young];
    let mut one: Vec<OpsFilter> = Vec::new();
    for kind in &kinds {
        for bits in 0..4 {
            one.push(filter(kind.clone(), bits & 1 != 0, bits & 2 != 0));
        }
    }
    let mut lists: Vec<Vec<OpsFilter>> = vec![Vec::new()];
    let mut from = 0;
    for _ in 0..3 {
        let to = lists.len();
        for i in from..to {
            for next in &one {
                let mut list = lists[i].clone();
                list.push(next.clone());
                lists.push(list);
            }
        }
        from = to;
    }
    assert_eq!(lists.len(), 1 + 8 + 64 + 512);
    for list in &lists {
        for (anon, young) in [(false, false), (false, true), (true, false), (true, true)] {
            let is = |kind: &PageKind| if *kind == PageKind::Anon { anon } else { young };
            let table: Vec<_> = list.iter().map(|f| (is(&f.kind), f.matching, f.allow)).collect();
            assert_eq!(passes(list, is), naive(&table), "{list:?}, anon {anon}, young {young}");
        }
    }
}

#[test]
fn what_the_core_excludes_is_not_tried() {
    // 100 pages, of which 20 to 30 are rejected, and one target.
    let mut scheme = Scheme::new(AccessPattern::ANY.size(100 * PAGE, u64::MAX), Action::Cold);
    scheme.filters.core.push(Filter::reject(CoreKind::Addr(AddrRange::new(20 * PAGE, 30 * PAGE))));
    scheme.filters.core.push(Filter::reject(CoreKind::Target(TargetId(2))));
    let (mut all, mut recorder) = (schemes(vec![scheme]), Recorder::default());
    let mut targets = [target(1, vec![region(0, 100, 0, 9)]), target(2, vec![region(0, 100, 0, 9)])];
    pass(&mut all, &mut targets, 0, &mut recorder);
    let stats = all.stats(0).unwrap();
    assert_eq!((stats.nr_tried, stats.sz_tried), (2, 90 * PAGE));
    let ages: Vec<_> = targets[0].regions.iter().map(|r| (r.range.start / PAGE, r.age)).collect();
    assert_eq!(ages, [(0, 0), (20, 9), (30, 0)], "only what was acted on is young");
    assert_eq!(targets[1].regions.len(), 1);
}

#[test]
fn borders_within_a_page_never_let_more_through() {
    let inner = AddrRange::new(10 * PAGE + 1, 20 * PAGE - 1);
    let tried = |matching, allow| {
        let mut scheme = Scheme::new(AccessPattern::ANY, Action::Cold);
        scheme.filters.core.push(filter(CoreKind::Addr(inner), matching, allow));
        let (mut all, mut recorder) = (schemes(vec![scheme]), Recorder::default());
        pass(&mut all, &mut [target(1, vec![region(0, 30, 0, 9)])], 0, &mut recorder);
        let pages = recorder.calls.iter().map(|c| (c.range.start / PAGE, c.range.end / PAGE));
        pages.collect::<Vec<_>>()
    };
    assert_eq!(tried(true, true), [(11, 19)]);
    assert_eq!(tried(true, false), [(0, 10), (20, 30)]);
    assert_eq!(tried(false, true), [(0, 10), (20, 30)]);
    assert_eq!(tried(false, false), [(11, 19)]);
}

fn core_filters() -> impl Strategy<Value = Vec<CoreFilter>> {
    let addr = (0u64..120 * 4096, 0u64..60 * 4096)
        .prop_map(|(start, size)| CoreKind::Addr(AddrRange::new(start, start + size)));
    let kind = prop_oneof![3 => addr, 1 => (1u64..3).prop_map(|id| CoreKind::Target(TargetId(id)))];
    prop::collection::vec((kind, any::<bool>(), any::<bool>()), 0..5)
        .prop_map(|list| list.into_iter().map(|(kind, m, a)| filter(kind, m, a)).collect())
}

proptest! {
    #[test]
    fn core_filters_follow_a_naive_evaluator(
        core in core_filters(),
        ops in any::<bool>(),
        sizes in prop::collection::vec(1u64..40, 1..6),
    ) {
        let mut regions = Vec::new();
        let mut at = 0;
        for size in sizes {
            regions.push(region(at, size, 0, 9));
            at += size;
        }
        let mut scheme = Scheme::new(AccessPattern::ANY, Action::Pageout);
        scheme.filters.core = core.clone();
        if ops {
            scheme.filters.ops.push(Filter::allow(PageKind::Anon));
        }
        let (mut all, mut recorder) = (schemes(vec![scheme]), Recorder::default());
        let mut targets = [target(1, regions.clone()), target(2, regions)];
        pass(&mut all, &mut targets, 0, &mut recorder);
        for id in 1..=2u64 {
            for page in 0..at {
                let mut decided = None;
                for f in &core {
                    let is = match f.kind {
                        CoreKind::Target(other) => other.0 == id,
                        CoreKind::Addr(range) => {
                            let mut bytes = page * PAGE..(page + 1) * PAGE;
                            // A page on a border goes to the side that lets less through.
                            if range.is_empty() {
                                false
                            } else if f.matching == f.allow {
                                bytes.all(|byte| range.contains(byte))
                            } else {
                                bytes.any(|byte| range.contains(byte))
                            }
                        }
                        _ => unreachable!(),
                    };
                    if is == f.matching {
                        decided = Some(f.allow);
                        break;
                    }
                }
                let last_allows = core.last().is_some_and(|f| f.allow);
                let want = decided.unwrap_or(ops || !last_allows);
                let calls: Vec<_> = recorder
                    .calls
                    .iter()
                    .filter(|c| c.target.0 == id && c.range.contains(page * PAGE))
                    .collect();
                prop_assert_eq!(calls.len(), usize::from(want), "page {} of target {}", page, id);
                // What the core allows passes the filters of the operations.
                let asked = usize::from(ops && decided.is_none());
                prop_assert!(calls.iter().all(|c| c.filters == asked));
            }
        }
    }
}
