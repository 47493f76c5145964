use super::*;

const RULES: Rules =
    Rules { young_stays: false, no_swap: false, exclusive: true, whole_folios: true, keeps_large: true };

fn small(pfn: u64) -> Inspected {
    let folio = Some(Folio { head: pfn, order: 0, flags: 0 });
    Inspected { present: true, young: Some(false), exclusive: true, pfn, folio, ..Inspected::default() }
}

fn large(head: u64, order: u32) -> Vec<Inspected> {
    let folio = Some(Folio { head, order, flags: 0 });
    (head..head + (1 << order)).map(|pfn| Inspected { folio, ..small(pfn) }).collect()
}

fn flagged(page: Inspected, flags: u64) -> Inspected {
    Inspected { folio: page.folio.map(|folio| Folio { flags, ..folio }), ..page }
}

const ALONE: Around = Around { before: 0, behind: 0 };

fn selected(pages: &[Inspected], rules: Rules, around: Around) -> Selection {
    let everything = |_, _: &[Inspected], _: Option<&Folio>| true;
    select(0, pages, rules, around, everything, |_| Some(AddrRange::new(0, 1 << 40)))
}

#[test]
fn what_is_not_ours_alone_is_left_alone_and_counted() {
    let shared = Inspected { exclusive: false, ..small(5) };
    let unknown = Inspected { folio: None, ..small(6) };
    let pages = [
        small(1),
        Inspected::default(),
        small(2),
        flagged(small(3), flag::UNEVICTABLE),
        flagged(small(4), flag::MLOCKED),
        shared,
        unknown,
        flagged(small(7), flag::ZERO_PAGE),
        flagged(small(8), flag::HUGETLB),
        small(9),
    ];
    let found = selected(&pages, RULES, ALONE);
    assert_eq!(found.runs, [0..3, 9..10], "what is absent parts nothing");
    assert_eq!((found.present, found.passed), (3 * PAGE_SIZE, 9 * PAGE_SIZE));
    let left: Vec<(Reason, u64)> =
        found.left.iter().map(|(reason, bytes)| (reason, bytes / PAGE_SIZE)).collect();
    let want = [
        (Reason::Shared, 1),
        (Reason::Locked, 2),
        (Reason::Hugetlb, 1),
        (Reason::Device, 1),
        (Reason::UnknownFolio, 1),
    ];
    assert_eq!(left, want);
}

#[test]
fn what_is_in_use_stays_where_it_is_told_to() {
    let young = |pfn| Inspected { young: Some(true), ..small(pfn) };
    let unseen = Inspected { young: None, ..small(6) };
    let pages = [small(1), young(2), young(3), small(4), young(5), unseen];
    let found = selected(&pages, Rules { young_stays: true, ..RULES }, ALONE);
    assert_eq!((&found.runs[..], &found.young[..]), (&[0..1, 3..4, 5..6][..], &[1..3, 4..5][..]));
    assert_eq!((found.present, found.left.get(Reason::Young)), (3 * PAGE_SIZE, 3 * PAGE_SIZE));
    assert_eq!(selected(&pages, RULES, ALONE).runs, [0..6]);
    // What was accessed before its bit was cleared stays too, and is clear already.
    let lately = |pfn| Inspected { was_young: true, ..small(pfn) };
    let pages = [lately(1), young(2), lately(3), small(4)];
    let found = selected(&pages, Rules { young_stays: true, ..RULES }, ALONE);
    assert_eq!((&found.runs[..], &found.young[..]), (&[3..4][..], &[1..2][..]));
    assert_eq!(found.left.get(Reason::Young), 3 * PAGE_SIZE);
}

#[test]
fn a_large_folio_is_taken_whole_or_not_at_all() {
    let folio = large(16, 2);
    assert_eq!(selected(&folio, RULES, ALONE).runs, [0..4]);
    for part in [&folio[1..], &folio[..3]] {
        let found = selected(part, RULES, ALONE);
        assert_eq!((found.runs.len(), found.left.get(Reason::PartOfFolio)), (0, 3 * PAGE_SIZE));
    }
    let split = Rules { whole_folios: false, ..RULES };
    assert_eq!(selected(&folio[1..], split, ALONE).runs, [0..3], "unless asked");
    // Two entries that differ are two parts to the kernel; and kernels before 6.10 split any.
    let mut mapped_in_parts = folio.clone();
    mapped_in_parts[2].protection = 7;
    assert!(selected(&mapped_in_parts, RULES, ALONE).runs.is_empty());
    assert!(selected(&folio, Rules { keeps_large: false, ..RULES }, ALONE).runs.is_empty());
    let mut huge = folio.clone();
    huge.iter_mut().for_each(|page| page.huge = true);
    assert_eq!(selected(&huge, Rules { keeps_large: false, ..RULES }, ALONE).runs, [0..4]);
    // One page that somebody else maps too, and none of it is touched.
    let mut shared = folio;
    shared[3].exclusive = false;
    assert_eq!(selected(&shared, RULES, ALONE).left.get(Reason::Shared), 4 * PAGE_SIZE);
}

#[test]
fn without_swap_what_is_backed_by_it_stays() {
    let pages = [small(1), flagged(small(2), flag::SWAP_BACKED), small(3)];
    assert_eq!(selected(&pages, RULES, ALONE).runs, [0..3]);
    let found = selected(&pages, Rules { no_swap: true, ..RULES }, ALONE);
    assert_eq!((found.runs, found.left.get(Reason::NoSwap)), (vec![0..1, 2..3], PAGE_SIZE));
}

#[test]
fn a_folio_that_reaches_into_what_matches_belongs_to_where_it_begins() {
    let folio = large(16, 3);
    let around = |before, behind| Around { before, behind };
    let head = [vec![small(1)], folio[..2].to_vec()].concat();
    let found = selected(&head, RULES, around(0, 6));
    assert_eq!((found.runs.clone(), found.cut, found.left.total()), (vec![0..1], Some(1..9), 0));
    assert_eq!(selected(&head, RULES, around(0, 5)).left.get(Reason::PartOfFolio), 2 * PAGE_SIZE, "too far");

    let rest = [folio[2..].to_vec(), vec![small(1)]].concat();
    let found = selected(&rest, RULES, around(2, 0));
    assert_eq!((found.runs.clone(), found.rest, found.left.total()), (vec![6..7], 6 * PAGE_SIZE, 0));
    assert_eq!(selected(&rest, RULES, around(1, 9)).left.get(Reason::PartOfFolio), 6 * PAGE_SIZE);
    // What lies inside of it goes with it, but only if all of it matches.
    assert_eq!(selected(&folio[2..4], RULES, around(2, 4)).rest, 2 * PAGE_SIZE);
    assert_eq!(selected(&folio[2..4], RULES, around(2, 3)).left.get(Reason::PartOfFolio), 2 * PAGE_SIZE);
    // Mapped in part only, it will never be whole.
    let torn = [folio[..2].to_vec(), vec![small(1)]].concat();
    assert_eq!(selected(&torn, RULES, around(9, 9)).left.get(Reason::PartOfFolio), 2 * PAGE_SIZE);
    let split = Rules { whole_folios: false, ..RULES };
    assert_eq!(selected(&head, split, around(0, 6)).runs, [0..3], "nothing waits where folios may be split");
}

#[test]
fn a_run_ends_where_its_mapping_does() {
    let pages: Vec<Inspected> = [vec![small(1), small(2)], large(16, 2)].concat();
    let everything = |_, _: &[Inspected], _: Option<&Folio>| true;
    let border = |at: u64| {
        let border = at * PAGE_SIZE;
        select(0, &pages, RULES, ALONE, everything, move |addr| {
            Some(if addr < border { AddrRange::new(0, border) } else { AddrRange::new(border, 1 << 30) })
        })
    };
    assert_eq!(border(1).runs, [0..1, 1..6]);
    let cut = border(4);
    assert_eq!((cut.runs, cut.left.get(Reason::PartOfFolio)), (vec![0..2], 4 * PAGE_SIZE));
    let nowhere = select(0, &pages, RULES, ALONE, everything, |_| None);
    assert_eq!((nowhere.runs.len(), nowhere.left.get(Reason::NewMapping)), (0, 6 * PAGE_SIZE));
}

#[test]
fn what_filters_exclude_is_no_obstacle_but_parts_runs() {
    let pages = [small(1), small(2), small(3)];
    let odd = |addr: u64, _: &[Inspected], _: Option<&Folio>| addr != PAGE_SIZE;
    let found = select(0, &pages, RULES, ALONE, odd, |_| Some(AddrRange::new(0, 1 << 30)));
    assert_eq!((found.runs, found.passed, found.left.total()), (vec![0..1, 2..3], 2 * PAGE_SIZE, 0));
}

#[test]
fn blocks_are_those_that_lie_within_whole() {
    let at = BLOCK_SIZE - 3 * PAGE_SIZE;
    assert_eq!(blocks(at, 514).collect::<Vec<_>>(), Vec::<Range<usize>>::new());
    assert_eq!(blocks(at, 515).collect::<Vec<_>>(), [3..515]);
    assert_eq!(blocks(0, 1024).collect::<Vec<_>>(), [0..512, 512..1024]);
}
