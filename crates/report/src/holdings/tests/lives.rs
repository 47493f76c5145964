//! What ended, what is forgotten, and how much is kept.

use super::*;

#[test]
fn what_ended_keeps_its_last_figures_and_leaves_the_totals() {
    let mut holdings = family();
    let end =
        |target| Item::TargetEnd(TargetEnd { target, reason: "killed".to_owned(), ..TargetEnd::default() });
    holdings.note(&end(2));
    assert_eq!(holdings.totals().mapped, 13 * MIB, "how things stood at the last snapshot");
    let mut next = snapshot(200, 1, vec![region(1 << 30, (1 << 30) + MIB, 0)]);
    next.targets.push(TargetSnapshot::new(TargetId(3), vec![region(3 << 30, (3 << 30) + MIB, 0)]));
    holdings.snapshot(&next);
    assert_eq!(holdings.totals().mapped, MIB);
    let processes: Vec<_> = holdings.processes_with_mappings().collect();
    assert_eq!(processes.len(), 3);
    let gone = processes.iter().find(|p| p.target == 2).unwrap();
    assert_eq!((gone.ended.as_deref(), gone.figures.mapped), (Some("killed"), 5 * MIB));
    assert_eq!(gone.mappings.len(), 4);
    // All gone, and nothing but empty snapshots after that.
    holdings.note(&end(1));
    holdings.note(&end(3));
    holdings.snapshot(&Snapshot { targets: Vec::new(), ..snapshot(201, 1, Vec::new()) });
    assert_eq!(holdings.totals().mapped, MIB);
    assert!(holdings.processes().iter().filter(|p| p.ended.is_none()).count() == 2);
}

#[test]
fn the_mappings_kept_of_what_ended_add_up_to_it() {
    let mut holdings = Holdings::default();
    let place = |i: u64| (i * 4 * MIB, i * 4 * MIB + MIB * (1 + i % 3));
    let map = |i| mapping(place(i).0, place(i).1, "rw-p", &format!("/lib/{i}.so"), 0, 0);
    holdings.note(&mappings(1, (0..20).map(map).collect()));
    let part =
        |i| RegionSnapshot { resident: Some(MIB / 2), ..region(place(i).0, place(i).1, (i % 5) as u32) };
    for i in 0..20 {
        holdings.snapshot(&snapshot(i, 1, (0..20).map(part).collect()));
    }
    holdings.note(&Item::TargetEnd(TargetEnd { target: 1, ..TargetEnd::default() }));
    holdings.snapshot(&snapshot(20, 2, vec![region(0, MIB, 0)]));
    let processes: Vec<_> = holdings.processes_with_mappings().collect();
    let gone = processes.iter().find(|p| p.target == 1).unwrap();
    assert_eq!(gone.mappings.len(), 9, "eight, and the rest");
    let rest = gone.mappings.last().unwrap();
    assert_eq!((&*rest.name, rest.ranges), ("other mappings", 12));
    let sum = |pick: fn(&Figures) -> u64| gone.mappings.iter().map(|m| pick(&m.figures)).sum::<u64>();
    assert_eq!(sum(|f| f.mapped), gone.figures.mapped);
    assert_eq!(sum(|f| f.resident.unwrap()), gone.figures.resident.unwrap());
    assert!(sum(|f| f.ws_1s).abs_diff(gone.figures.ws_1s) < 10, "but for rounding");
}

#[test]
fn memory_does_not_grow_with_the_recording_nor_with_targets_that_ended() {
    let mut holdings = Holdings::default();
    let mut at = 12345_u64;
    for i in 0..3000 {
        let mut regions = Vec::new();
        let mut start = 0;
        for _ in 0..20 {
            at = at.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let end = start + 4096 * (1 + (at >> 40) % 300);
            regions.push(region(start, end, ((at >> 20) % 21) as u32));
            start = end;
        }
        let mut snapshot = snapshot(i, 1, regions.clone());
        snapshot.targets.push(TargetSnapshot::new(TargetId(i + 10), regions));
        holdings.snapshot(&snapshot);
        holdings.note(&Item::TargetEnd(TargetEnd { target: i + 10, ..TargetEnd::default() }));
    }
    assert!(holdings.held[&1].layer.segments.len() <= 40 + 256);
    assert!(holdings.held.len() <= 2 && holdings.gone.len() == MAX_ENDED);
    assert_eq!(holdings.nr_ended(), 2999);
}

#[test]
fn files_of_processes_that_came_and_went_are_forgotten() {
    let mut holdings = Holdings::default();
    let file = |inode: u64| mapping(MIB, 2 * MIB, "r--s", &format!("/tmp/job-{inode}"), inode, 0);
    holdings.note(&mappings(1, vec![file(1)]));
    for i in 2..20_000 {
        holdings.note(&mappings(i, vec![file(i)]));
        let mut both = snapshot(i - 2, 1, vec![region(MIB, 2 * MIB, 20)]);
        both.targets.push(TargetSnapshot::new(TargetId(i), vec![region(MIB, 2 * MIB, 1)]));
        holdings.snapshot(&both);
        holdings.note(&Item::TargetEnd(TargetEnd { target: i, ..TargetEnd::default() }));
    }
    assert!(holdings.space.nr_objects() < 4096, "{}", holdings.space.nr_objects());
    // What is mapped has its name, however long ago it was mapped.
    let objects = holdings.objects();
    assert!(objects.iter().any(|object| object.path == "/tmp/job-1" && object.mappers == 1), "{objects:?}");
    assert_eq!(objects.iter().filter(|object| object.mappers > 0).count(), 2);
    // The others are those of the last minute, at ten a second.
    assert!(objects.len() <= 2 + 601, "{}", objects.len());
    let nobodys = objects.iter().filter(|object| object.mappers == 0);
    assert!(nobodys.clone().count() > 100 && nobodys.clone().all(|o| o.figures.ws_60s > Some(0)));
}

#[test]
fn pages_of_a_file_here_and_there_take_no_more_memory_than_their_region() {
    const PAGE: u64 = 4096;
    let mut holdings = Holdings::default();
    for target in [1, 2] {
        let map = |i: u64| match i % 2 {
            0 => mapping(i * PAGE, (i + 1) * PAGE, "rw-p", "", 0, 0),
            _ => mapping(i * PAGE, (i + 1) * PAGE, "r--p", "/usr/lib/a", 1, i * PAGE),
        };
        holdings.note(&mappings(target, (0..1000).map(map).collect()));
    }
    for i in 0..120 {
        let mut both = snapshot(i, 1, vec![region(0, 400 * PAGE, 20), region(400 * PAGE, 1000 * PAGE, 0)]);
        both.targets.push(TargetSnapshot::new(TargetId(2), vec![region(0, 1000 * PAGE, 0)]));
        holdings.snapshot(&both);
    }
    assert!(holdings.held.values().all(|held| held.layer.segments.len() <= 2));
    let figures = |f: &Figures| (f.mapped / PAGE, f.ws_1s / PAGE, f.cold_10s.map(|cold| cold / PAGE));
    assert_eq!(figures(&holdings.objects()[0].figures), (500, 200, Some(300)));
    assert_eq!(figures(&holdings.totals()), (1500, 400, Some(1100)));
    assert_eq!(holdings.stock().totals, holdings.totals());
    let rows = holdings.mappings(TargetId(1));
    assert_eq!(rows.iter().filter(|row| row.shared).map(|row| row.ranges).collect::<Vec<_>>(), [500]);
    assert_eq!(rows.len(), 501, "each page of its own, and the file");
}

#[test]
fn however_many_end_together_what_they_shared_counts_once() {
    let mut holdings = Holdings::default();
    let all = 2..2 + 2 * MAX_ENDED as u64;
    let mut last = snapshot(0, 1, vec![region(0, MIB, 20)]);
    for target in all.clone() {
        holdings.note(&mappings(target, vec![mapping(0, MIB, "r--s", "/srv/data", 7, 0)]));
        last.targets.push(TargetSnapshot::new(TargetId(target), vec![region(0, MIB, 20)]));
    }
    holdings.note(&mappings(1, vec![mapping(0, MIB, "r--s", "/srv/data", 7, 0)]));
    holdings.snapshot(&last);
    all.for_each(|target| holdings.note(&Item::TargetEnd(TargetEnd { target, ..TargetEnd::default() })));
    assert_eq!(holdings.totals().mapped, MIB);
}

#[test]
fn other_memory_at_the_same_address_has_no_past() {
    let mut holdings = Holdings::default();
    holdings.note(&mappings(1, vec![mapping(0, MIB, "r--p", "/usr/lib/a", 1, 0)]));
    span(0, 20, &[region(0, MIB, 0)]).iter().for_each(|s| holdings.snapshot(s));
    assert_eq!(holdings.totals().cold_10s, Some(MIB));
    holdings.note(&mappings(1, vec![mapping(0, MIB, "r--p", "/usr/lib/b", 2, 0)]));
    span(20, 5, &[region(0, MIB, 0)]).iter().for_each(|s| holdings.snapshot(s));
    assert_eq!(holdings.totals().cold_10s, Some(0));
}
