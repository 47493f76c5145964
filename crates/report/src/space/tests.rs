use super::*;
use crate::synthetic::{mapping, mappings, region, snapshot, unknown};
use isotherm_damon::{Snapshot, TargetSnapshot};

fn space(partial: bool) -> Space {
    let mut space = Space::default();
    let mut item = mappings(
        1,
        vec![
            mapping(10, 20, "rw-p", "[heap]", 0, 0),
            mapping(20, 30, "rw-p", "", 0, 0),
            mapping(50, 60, "r-xp", "/usr/lib/libc.so.6", 7, 100),
            mapping(60, 70, "rw-p", "/usr/lib/libc.so.6", 7, 110),
            mapping(90, 100, "rw-s", "/dev/shm/x", 8, 0),
        ],
    );
    if let Item::Mappings(m) = &mut item {
        m.partial = partial;
    }
    space.note(&item);
    space
}

fn ranges(target: &TargetSnapshot) -> Vec<(u64, u64)> {
    target.regions.iter().map(|r| (r.range.start, r.range.end)).collect()
}

#[test]
fn gaps_are_no_memory() {
    let space = space(false);
    let mut whole = region(0, 95, 3);
    whole.resident = Some(36);
    let mut out = Snapshot::default();
    space.by_target(
        &snapshot(0, 1, vec![whole, region(95, 96, 1), region(200, 300, 0), unknown(300, 400)]),
        |_| true,
        &mut out,
    );
    assert_eq!(ranges(&out.targets[0]), [(10, 30), (50, 70), (90, 95), (95, 96)]);
    let resident: Vec<_> = out.targets[0].regions.iter().map(|r| r.resident).collect();
    assert_eq!(resident, [Some(16), Some(16), Some(4), None], "in proportion to what is mapped");
    assert_eq!(space.mapped(TargetId(1), &whole), Some((45, AddrRange::new(10, 95))));
    assert_eq!(space.mapped(TargetId(1), &region(30, 50, 0)), None);
}

#[test]
fn what_was_accessed_outside_of_all_mappings_is_memory() {
    let mut space = space(false);
    let mut there = region(300, 400, 0);
    there.resident = Some(100);
    let list = snapshot(0, 1, vec![region(10, 30, 1), region(200, 300, 1), there, region(400, 500, 0)]);
    let mut out = Snapshot::default();
    space.by_target(&list, |_| true, &mut out);
    assert_eq!(ranges(&out.targets[0]), [(10, 30), (200, 300), (300, 400)]);
    space.by_object(&list, |_| true, &mut out);
    assert_eq!(ranges(&out.targets[0]), [(10, 30), (200, 300), (300, 400)]);
    assert_eq!(space.mapped(TargetId(1), &there), Some((100, AddrRange::new(300, 400))));
}

/// A list that is read in parts names the beginning: what is there beyond is memory, and gaps are none.
#[test]
fn of_an_incomplete_list_what_is_resident_beyond_is_memory() {
    let with = |bytes, region| RegionSnapshot { resident: Some(bytes), ..region };
    let list = snapshot(
        0,
        1,
        vec![with(20, region(10, 30, 1)), with(100, region(300, 900, 0)), region(900, 950, 0)],
    );
    let mut out = Snapshot::default();
    for (partial, beyond) in [(true, vec![(300, 400), (900, 950)]), (false, vec![(300, 400)])] {
        space(partial).by_target(&list, |_| true, &mut out);
        assert_eq!(ranges(&out.targets[0]), [vec![(10, 30)], beyond].concat(), "{partial}");
    }
}

#[test]
fn a_region_over_the_end_of_an_incomplete_list_loses_nothing() {
    let over = RegionSnapshot { resident: Some(500), ..region(90, 900, 1) };
    let mut out = Snapshot::default();
    space(true).by_target(&snapshot(0, 1, vec![over]), |_| true, &mut out);
    // What lies in the last mapping and what is resident beyond it, joined as neighbours are.
    let found: Vec<_> =
        out.targets[0].regions.iter().map(|r| (r.range.start, r.range.end, r.resident)).collect();
    assert_eq!(found, [(90, 590, Some(500))]);
}

/// A reader that could not keep a list says that there is one: what is resident counts, not all that could be.
#[test]
fn of_a_list_that_is_not_known_at_all_what_is_resident_is_memory() {
    let mut space = Space::default();
    space.note(&Item::Mappings(Mappings { target: 1, partial: true, ..Mappings::default() }));
    let there = RegionSnapshot { resident: Some(40), ..region(0, 1000, 0) };
    let empty = RegionSnapshot { resident: Some(0), ..region(1000, 9000, 0) };
    let list = snapshot(0, 1, vec![there, empty, region(9000, 9100, 0)]);
    let mut out = Snapshot::default();
    space.by_target(&list, |_| true, &mut out);
    assert_eq!(ranges(&out.targets[0]), [(0, 40), (9000, 9100)]);
    space.by_object(&list, |_| true, &mut out);
    assert_eq!(ranges(&out.targets[0]), [(0, 40), (9000, 9100)]);
}

/// JSON's readers (jq, JavaScript) hold numbers in 53 bits.
#[test]
fn ids_of_objects_are_numbers_that_json_can_hold() {
    let mut out = Snapshot::default();
    let mut space = space(false);
    let addresses = u64::MAX << 20;
    space.by_object(&snapshot(0, addresses, vec![region(0, 100, 3)]), |_| true, &mut out);
    assert!(
        !is_object(TargetId(addresses)) && !is_object(TargetId(u64::MAX)) && !is_object(TargetId(1 << 22))
    );
    space.by_object(&snapshot(0, 1, vec![region(0, 100, 3)]), |_| true, &mut out);
    let ids: Vec<u64> = out.targets.iter().map(|t| t.id.0).collect();
    let mut held: Vec<u64> = ids.iter().map(|id| (*id as f64) as u64).collect();
    held.dedup();
    assert!(held == ids && ids.iter().all(|id| *id < 1 << 53) && ids.len() == 3, "{ids:?}");
    assert_eq!(ids.iter().filter(|id| is_object(TargetId(**id))).count(), 2);
}

#[test]
fn a_gap_that_is_said_to_hold_a_page_counts_for_no_more_than_that() {
    let space = space(false);
    let gap = |start, end, nr_accesses| {
        let mut region = region(start, end, nr_accesses);
        region.resident = Some(8);
        region
    };
    let list = snapshot(0, 1, vec![gap(1000, 70_000, 0), gap(70_000, 140_000, 3)]);
    let mut out = Snapshot::default();
    space.by_target(&list, |_| true, &mut out);
    assert_eq!(ranges(&out.targets[0]), [(1000, 1008), (70_000, 70_008)]);
    let mut empty = region(1000, 70_000, 3);
    empty.resident = Some(0);
    assert_eq!(space.mapped(TargetId(1), &empty), Some((4096, AddrRange::new(1000, 5096))));
    (empty.nr_accesses, empty.nr_accesses_bp) = (0, 0);
    assert_eq!(space.mapped(TargetId(1), &empty), None);
}

#[test]
fn objects_are_what_nobody_can_write_privately() {
    let mut space = space(false);
    let mut out = Snapshot::default();
    space.by_object(&snapshot(0, 1, vec![region(0, 100, 3)]), |_| true, &mut out);
    assert_eq!(ranges(&out.targets[0]), [(10, 30), (60, 70)], "own: written privately");
    let names: Vec<_> = out.targets[1..].iter().map(|t| space.object(t.id).unwrap().name.clone()).collect();
    assert_eq!(names, ["libc.so.6", "x"]);
    assert_eq!((ranges(&out.targets[1]), ranges(&out.targets[2])), (vec![(100, 110)], vec![(0, 10)]));
    assert!(space.object(TargetId(1)).is_none());
    assert!(space.object(out.targets[2].id).unwrap().is_called("0:8:8"));
    space.note(&mappings(2, vec![mapping(0, 5, "r--s", "/x", 8, 0), mapping(6, 9, "r--s", "/x", 8, 8)]));
    let mappers = space.mappers(|_| true);
    assert_eq!((mappers.get(&out.targets[1].id), mappers.get(&out.targets[2].id)), (Some(&1), Some(&2)));
    assert_eq!(space.mappers(|id| id.0 != 1).get(&out.targets[1].id), None);
}

#[test]
fn an_object_is_called_as_it_was_last() {
    let mut space = Space::default();
    let mut name = |path: &str| {
        space.note(&mappings(1, vec![mapping(0, 5, "r--s", path, 8, 0)]));
        let object = space.object_at(0).unwrap();
        (object.name.clone(), object.path().to_owned())
    };
    assert_eq!(name("/srv/new.tmp"), ("new.tmp".to_owned(), "/srv/new.tmp".to_owned()));
    assert_eq!(name("/srv/data"), ("data".to_owned(), "/srv/data".to_owned()));
    assert_eq!(name("/srv/data (deleted)").1, "/srv/data (deleted)");
}

#[test]
fn without_all_mappings_a_region_counts_whole() {
    let mut out = Snapshot::default();
    let list = snapshot(0, 1, vec![region(0, 100, 3)]);
    for mut space in [Space::default(), space(true)] {
        space.by_target(&list, |_| true, &mut out);
        assert_eq!(ranges(&out.targets[0]), [(0, 100)]);
        space.by_object(&list, |_| true, &mut out);
        let bytes: u64 = out.targets.iter().flat_map(|t| &t.regions).map(|r| r.range.size()).sum();
        assert_eq!(bytes, 100);
    }
}

/// What is copied piece by piece is what is copied at once.
#[test]
fn pieces_of_a_wide_snapshot_are_all_of_it() {
    let mut space = Space::default();
    let nr = 2 * WIDE as u64 + 77;
    let page = 4096;
    for target in [1, 2] {
        let maps = vec![
            mapping(0, nr / 2 * page, "rw-p", "", 0, 0),
            mapping(nr / 2 * page, nr * page, "rw-s", "/dev/shm/all", 7, 0),
        ];
        space.note(&mappings(target, maps));
    }
    let regions: Vec<RegionSnapshot> =
        (0..nr).map(|i| region(i * page, (i + 1) * page, (i % 7) as u32)).collect();
    let mut wide = snapshot(0, 1, regions.clone());
    wide.targets.push(TargetSnapshot::new(TargetId(2), regions));
    let all = |snapshot: &Snapshot, into: &mut Vec<(TargetId, RegionSnapshot)>| {
        into.extend(snapshot.targets.iter().flat_map(|t| t.regions.iter().map(|r| (t.id, *r))));
    };
    let (mut whole, mut pieces, mut out) = (Vec::new(), Vec::new(), Snapshot::default());
    space.by_target(&wide, |_| true, &mut out);
    all(&out, &mut whole);
    let mut most = 0;
    space.each_by_target(
        &wide,
        |_| true,
        &mut out,
        |piece| {
            most = most.max(piece.nr_regions());
            all(piece, &mut pieces);
        },
    );
    assert!(whole == pieces && most <= WIDE, "{most}");
    let (mut whole, mut pieces) = (Vec::new(), Vec::new());
    space.by_object(&wide, |_| true, &mut out);
    assert_eq!(out.targets.len(), 3);
    all(&out, &mut whole);
    let mut count = 0;
    space.each_by_object(
        &wide,
        |_| true,
        &mut out,
        |piece| {
            count += 1;
            all(piece, &mut pieces);
        },
    );
    assert!(whole == pieces && count > 3, "{count}");
}
