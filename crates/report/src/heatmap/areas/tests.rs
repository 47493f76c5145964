//! What is chosen to be shown.

use super::*;
use crate::Accumulate;
use crate::heatmap::{Survey, SurveyOptions};
use crate::synthetic::{MIB, mapping, mappings, region, snapshot};
use isotherm_damon::{RegionSnapshot, TargetSnapshot};
use isotherm_record::{Item, Mapping, Mappings};

const HEAP: u64 = 0x5555_0000_0000;
const MMAP: u64 = 0x7f00_0000_0000;
const STACK: u64 = 0x7ffc_0000_0000;

fn survey(regions: &[RegionSnapshot]) -> Survey {
    let mut survey = Survey::new(SurveyOptions::default());
    let map = |start, end, name: &str| Mapping { start, end, name: name.into(), ..Mapping::default() };
    survey.note(&Item::Mappings(Mappings {
        target: 1,
        time_ns: 0,
        maps: [
            map(HEAP, HEAP + 8 * MIB, "[heap]"),
            map(MMAP, MMAP + 1024 * MIB, ""),
            map(STACK, STACK + MIB, "[stack]"),
        ]
        .into(),
        ..Mappings::default()
    }));
    for i in 0..20 {
        survey.snapshot(&snapshot(i, 1, regions.to_vec()));
    }
    survey
}

fn process(mmap: &[RegionSnapshot]) -> Survey {
    let mut regions = vec![region(HEAP, HEAP + 8 * MIB, 0)];
    regions.extend_from_slice(mmap);
    regions.push(region(STACK, STACK + MIB, 0));
    survey(&regions)
}

#[test]
fn the_three_areas_are_what_the_two_largest_gaps_leave() {
    let survey = process(&[region(MMAP, MMAP + 1024 * MIB, 1)]);
    let all = survey.areas(&AreaChoice::All, 9).unwrap();
    let expected = [("heap", HEAP, 8 * MIB), ("mmap", MMAP, 1024 * MIB), ("stack", STACK, MIB)];
    let found: Vec<_> = all.iter().map(|a| (a.name.as_str(), a.start, a.range().size())).collect();
    assert_eq!(found, expected);
    assert_eq!(survey.areas(&AreaChoice::Stack, 9).unwrap()[0].start, STACK);
}

#[test]
fn a_2_mib_hot_spot_in_1_gib_fills_its_panel() {
    let (hot, end) = (MMAP + 700 * MIB, MMAP + 1024 * MIB);
    let survey =
        process(&[region(MMAP, hot, 0), region(hot, hot + 2 * MIB, 20), region(hot + 2 * MIB, end, 0)]);
    let areas = survey.areas(&AreaChoice::Hot, 4).unwrap();
    assert_eq!(areas.len(), 1);
    let range = areas[0].range();
    assert!(range.contains(hot) && range.contains(hot + 2 * MIB - 1) && range.size() < 3 * MIB, "{range:?}");
    assert_eq!((areas[0].name.as_str(), areas[0].heat_share), ("mmap: anon", Some(1.0)));
}

#[test]
fn hot_spots_far_apart_have_a_panel_each_and_never_more_than_asked_for() {
    let spots: Vec<u64> = (0..8).map(|i| MMAP + i * 100 * MIB).collect();
    let regions: Vec<RegionSnapshot> = spots
        .iter()
        .flat_map(|at| [region(*at, at + MIB, 20), region(at + MIB, at + 100 * MIB, 0)])
        .collect();
    let survey = process(&regions);
    assert_eq!(survey.areas(&AreaChoice::Hot, 8).unwrap().len(), 8);
    let few = survey.areas(&AreaChoice::Hot, 3).unwrap();
    assert_eq!(few.len(), 3);
    let shown: f64 = few.iter().filter_map(|a| a.heat_share).sum();
    assert!((shown - 1.0).abs() < 1e-9, "{shown}");
}

#[test]
fn without_any_heat_everything_is_shown() {
    let survey = process(&[region(MMAP, MMAP + 1024 * MIB, 0)]);
    assert_eq!(survey.areas(&AreaChoice::Hot, 9).unwrap().len(), 3);
}

#[test]
fn mappings_are_found_by_a_part_of_their_name() {
    let survey = process(&[region(MMAP, MMAP + 1024 * MIB, 1)]);
    let stack = survey.areas(&"sta".parse().unwrap(), 9).unwrap();
    assert_eq!((stack[0].start, stack[0].name.as_str()), (STACK, "[stack]"));
    let error = survey.areas(&AreaChoice::Named("libfoo".to_owned()), 9).unwrap_err().to_string();
    assert!(error.contains("libfoo") && error.contains("[heap], anon, [stack]"), "{error}");
    let error = survey.areas(&"0x1000+4K".parse().unwrap(), 9).unwrap_err().to_string();
    assert!(error.contains("0x1000-0x2000") && error.contains("heap 0x555500000000"), "{error}");
}

#[test]
fn nothing_recorded_and_no_such_target_are_errors() {
    assert_eq!(Survey::new(SurveyOptions::default()).areas(&AreaChoice::Hot, 1), Err(AreaError::Empty));
    let mut survey = Survey::new(SurveyOptions { targets: vec![TargetId(7)], ..SurveyOptions::default() });
    survey.snapshot(&snapshot(0, 1, vec![region(0, 10, 1)]));
    assert_eq!(survey.areas(&AreaChoice::Hot, 1), Err(AreaError::NoTarget));
}

/// A process that runs another program: both layouts have their own areas, of their own size.
#[test]
fn areas_are_of_memory_that_existed_at_one_time() {
    let map = |start, end, name: &str| Mapping { start, end, name: name.into(), ..Mapping::default() };
    let mut survey = Survey::new(SurveyOptions::default());
    let moved = 500 << 30;
    for (i, base) in [0, moved].into_iter().enumerate() {
        let parts = [(HEAP + base, 8 * MIB), (MMAP + base / 2, 64 * MIB), (STACK + base / 8, MIB)];
        let names = ["[heap]", "", "[stack]"];
        let maps = parts.iter().zip(names).map(|((at, size), name)| map(*at, at + size, name)).collect();
        survey.note(&Item::Mappings(Mappings { target: 1, maps, ..Mappings::default() }));
        let regions: Vec<RegionSnapshot> =
            parts.iter().map(|(at, size)| region(*at, at + size, 1 + i as u32)).collect();
        (0..20).for_each(|j| survey.snapshot(&snapshot(20 * i as u64 + j, 1, regions.clone())));
    }
    let sizes = |choice: AreaChoice| {
        let areas = survey.areas(&choice, 64).unwrap();
        areas.iter().map(|a| (a.name.clone(), a.range().size())).collect::<Vec<_>>()
    };
    let both = |name: &str, size| vec![(name.to_owned(), size); 2];
    assert_eq!(sizes(AreaChoice::Heap), both("heap", 8 * MIB));
    assert_eq!(sizes(AreaChoice::Stack), both("stack", MIB));
    assert_eq!(sizes(AreaChoice::Mmap), both("mmap", 64 * MIB));
    assert_eq!(sizes(AreaChoice::All).len(), 6);
    assert!(sizes(AreaChoice::Hot).iter().all(|(_, size)| *size <= 64 * MIB));
}

#[test]
fn a_gap_larger_than_all_that_is_mapped_is_in_no_area() {
    let program = HEAP - 300 * MIB;
    let mut survey = Survey::new(SurveyOptions::default());
    let regions = vec![
        region(program, program + 10 * MIB, 1),
        region(HEAP, HEAP + 8 * MIB, 1),
        region(MMAP, MMAP + 40 * MIB, 1),
        region(MMAP + 70 * MIB, MMAP + 80 * MIB, 1),
        region(STACK, STACK + MIB, 1),
    ];
    survey.snapshot(&snapshot(0, 1, regions));
    let sizes: Vec<u64> =
        survey.areas(&AreaChoice::All, 9).unwrap().iter().map(|a| a.range().size() / MIB).collect();
    assert_eq!(sizes, [10, 8, 80, 1]);
}

/// More processes than segments: none of them grows an area over the terabytes between its heap and its libraries.
#[test]
fn many_forked_children_keep_their_sizes() {
    let mut survey = Survey::new(SurveyOptions::default());
    for i in 0..30 {
        let mut all = snapshot(i, 1, Vec::new());
        all.targets = (1..=1000)
            .map(|id| {
                let at = |base: u64, pages: u64, nr| region(base, base + pages * 4096, nr);
                let regions = vec![at(HEAP, 33, 1), at(MMAP, 500, (id % 20) as u32), at(STACK, 33, 0)];
                isotherm_damon::TargetSnapshot::new(TargetId(id), regions)
            })
            .collect();
        survey.snapshot(&all);
    }
    for choice in [AreaChoice::All, AreaChoice::Hot] {
        let areas = survey.areas(&choice, 64).unwrap();
        assert_eq!(areas.len(), 64);
        assert!(areas.iter().all(|a| a.range().size() <= 500 * 4096), "{choice:?}: {areas:?}");
        let map = survey.draw(&crate::heatmap::GridSpec::new(areas, (0, 3_000_000_000), 10, 128, 1, 2));
        let hottest = map.panels.iter().filter(|p| p.area.name.contains("mmap") || p.area.name == "memory");
        assert!(hottest.count() > 0 && map.highest_hz > 150.0);
    }
}

#[test]
fn words_become_choices() {
    assert_eq!("heap".parse(), Ok(AreaChoice::Heap));
    assert_eq!("libc".parse(), Ok(AreaChoice::Named("libc".to_owned())));
    assert_eq!("0x10-0x20".parse(), Ok(AreaChoice::Address(AddrRange::new(16, 32))));
    assert!("0x10".parse::<AreaChoice>().is_err() && "".parse::<AreaChoice>().is_err());
}

/// Two targets with a heap of 18 MiB each and 4 MiB of shared memory, all of it as hot, which the first one alone accesses.
fn two_with_an_object(options: SurveyOptions) -> Survey {
    let mut survey = Survey::new(options);
    for target in [1, 2] {
        let maps = vec![
            mapping(MIB, 19 * MIB, "rw-p", "[heap]", 0, 0),
            mapping(1 << 30, (1 << 30) + 4 * MIB, "rw-s", "/dev/shm/pool", 5, 0),
        ];
        survey.note(&mappings(target, maps));
    }
    for i in 0..10 {
        let of = |nr| vec![region(MIB, 19 * MIB, 10), region(1 << 30, (1 << 30) + 4 * MIB, nr)];
        let mut all = snapshot(i, 1, of(10));
        all.targets.push(TargetSnapshot::new(TargetId(2), of(0)));
        survey.snapshot(&all);
    }
    survey
}

#[test]
fn the_share_is_of_all_recorded_heat_whatever_is_looked_at() {
    let near = |survey: &Survey, choice: &AreaChoice, share: f64| {
        let areas = survey.areas(choice, 9).unwrap();
        let found: f64 = areas.iter().filter_map(|a| a.heat_share).sum();
        assert!((found - share).abs() < 1e-9, "{choice:?}: {found} and not {share}: {areas:?}");
    };
    for targets in [vec![], vec![TargetId(1)]] {
        let options = SurveyOptions { targets, by_object: true, ..SurveyOptions::default() };
        near(&two_with_an_object(options), &AreaChoice::Object("pool".to_owned()), 0.1);
    }
    for (targets, shares) in
        [(vec![], (0.9, 1.0)), (vec![TargetId(1)], (0.45, 0.55)), (vec![TargetId(2)], (0.45, 0.45))]
    {
        let survey = two_with_an_object(SurveyOptions { targets, ..SurveyOptions::default() });
        near(&survey, &AreaChoice::Named("[heap]".to_owned()), shares.0);
        near(&survey, &AreaChoice::All, shares.1);
        near(&survey, &AreaChoice::Hot, shares.1);
    }
}

#[test]
fn gaps_are_no_memory_and_a_title_says_how_much_is() {
    let (first, second, end) = (HEAP, HEAP + 762 * MIB, HEAP + 764 * MIB);
    let mut survey = Survey::new(SurveyOptions::default());
    let heap = |start, end| mapping(start, end, "rw-p", "[heap]", 0, 0);
    survey.note(&mappings(1, vec![heap(first, first + MIB), heap(second, end)]));
    survey.snapshot(&snapshot(0, 1, vec![region(first, end, 10)]));
    let everything = AddrRange::new(0, u64::MAX);
    for (range, extent) in [
        (AddrRange::new(first, end), "3.0 MiB in 764.0 MiB of addresses"),
        (everything, "3.0 MiB in 16.0 EiB of addresses"),
        // What is as good as all of it is not worth a word.
        (AddrRange::new(second - 4096, end), "2.0 MiB"),
        (AddrRange::new(second, end), "2.0 MiB"),
    ] {
        let areas = survey.areas(&AreaChoice::Address(range), 9).unwrap();
        assert_eq!((areas.len(), areas[0].extent().as_str()), (1, extent));
    }
    // Of an object, offsets.
    let options = SurveyOptions { by_object: true, ..SurveyOptions::default() };
    let mut survey = Survey::new(options);
    let pool = |at, offset| mapping(at, at + MIB, "rw-s", "/dev/shm/pool", 5, offset);
    survey.note(&mappings(1, vec![pool(MIB, 0), pool(8 * MIB, 99 * MIB)]));
    survey.snapshot(&snapshot(0, 1, vec![region(MIB, 9 * MIB, 10)]));
    let areas = survey.areas(&AreaChoice::Object("pool".to_owned()), 9).unwrap();
    assert_eq!(areas[0].extent(), "2.0 MiB in 100.0 MiB of offsets");
}

/// A terabyte was reserved, and of that two islands are in use: they get the rows, not what lies between them.
#[test]
fn what_was_reserved_and_never_touched_takes_no_rows() {
    const TIB: u64 = 1 << 40;
    let at = |start: u64, end: u64, there: u64, nr| RegionSnapshot {
        resident: Some(there),
        ..region(MMAP + start, MMAP + end, nr)
    };
    let half = TIB / 2;
    let recorded = |nr: u32, known: bool| {
        let mut survey = Survey::new(SurveyOptions::default());
        survey.note(&mappings(1, vec![mapping(MMAP, MMAP + TIB, "rw-p", "", 0, 0)]));
        let mut regions = vec![
            at(0, 16 * MIB, 16 * MIB, 0),
            // A page or two of what could not be told apart.
            at(16 * MIB, half, 8192, 0),
            at(half, half + 64 * MIB, 60 * MIB, nr),
            at(half + 64 * MIB, TIB, 0, 0),
        ];
        if !known {
            regions.iter_mut().for_each(|region| region.resident = None);
        }
        // At first nothing is known of it.
        let unknown = vec![crate::synthetic::unknown(MMAP, MMAP + TIB)];
        survey.snapshot(&snapshot(0, 1, unknown));
        (1..20).for_each(|i| survey.snapshot(&snapshot(i, 1, regions.clone())));
        survey
    };
    let shown = |survey: &Survey, choice: &AreaChoice| {
        let mut areas: Vec<(u64, u64)> = survey
            .areas(choice, 9)
            .unwrap()
            .iter()
            .map(|a| ((a.start - MMAP) / MIB, a.range().size() / MIB))
            .collect();
        areas.sort_unstable();
        areas
    };
    for choice in [AreaChoice::Hot, AreaChoice::All, AreaChoice::Named("anon".to_owned())] {
        assert_eq!(shown(&recorded(0, true), &choice), [(0, 16), (half / MIB, 64)], "{choice:?}");
    }
    // Of one that is left out, it is the smaller.
    assert_eq!(recorded(0, true).areas(&AreaChoice::All, 1).unwrap()[0].start, MMAP + half);
    assert_eq!(shown(&recorded(3, true), &AreaChoice::All), [(0, 16), (half / MIB, 64)]);
    // Whoever asks for addresses gets them; and what is there is not always known.
    let range = AddrRange::new(MMAP, MMAP + TIB);
    assert_eq!(shown(&recorded(0, true), &AreaChoice::Address(range)), [(0, TIB / MIB)]);
    assert_eq!(shown(&recorded(0, false), &AreaChoice::All), [(0, TIB / MIB)]);
    // In a sparse stretch may be most of what is there, and no row would show it: it is said how much that is.
    let of = |nr: u32| {
        let mut survey = Survey::new(SurveyOptions::default());
        let regions = vec![at(0, MIB, MIB, 1), at(MIB, half, 100 * MIB, nr)];
        (0..20).for_each(|i| survey.snapshot(&snapshot(i, 1, regions.clone())));
        survey
    };
    assert_eq!(shown(&of(0), &AreaChoice::All), [(0, 1)]);
    let areas = of(0).areas(&AreaChoice::All, 9).unwrap();
    assert_eq!(areas[0].left_out, Some(LeftOut { size: half - MIB, resident: 100 * MIB }));
    let mut text = Vec::new();
    let options = crate::heatmap::TerminalOptions::default();
    crate::heatmap::write_terminal(
        &of(0).draw(&options.grid(areas, (0, 1_000_000_000))),
        &options,
        &mut text,
    )
    .unwrap();
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("not shown: 512.0 GiB of addresses in which no more than 100.0 MiB are in memory"),
        "{text}"
    );
    // Most of the heat may lie there, and is not left out.
    assert_eq!(shown(&of(1), &AreaChoice::All), [(0, half / MIB)]);
}
