//! Programs whose memory is in motion, and memory that lies otherwise in each run.

use super::*;

/// 12 s of a process that uses `mib` MiB of a heap of 512, at a place that `at` tells for each second, MiB.
fn wandering(mib: u64, at: impl Fn(u64) -> u64) -> Profile {
    let mut profile = Profile::new(Vec::new());
    profile.note(&mappings(1, vec![mapping(0, 512 * MIB, "rw-p", "[heap]", 0, 0)]));
    for i in 0..120 {
        let start = at(i / 10) * MIB;
        let regions = vec![
            region(0, start, 0),
            region(start, start + mib * MIB, 20),
            region(start + mib * MIB, 512 * MIB, 0),
        ];
        profile.snapshot(&snapshot(i, 1, regions));
    }
    profile
}

#[test]
fn of_memory_in_motion_a_run_says_little_of_the_next() {
    // Within each run the working set is the same all the time, so that its blocks show nothing.
    let moving = |mib| wandering(mib, |second| 16 * second);
    let report = diff(vec![moving(40)], vec![moving(52)]);
    assert_eq!(report.outcome, Outcome::Unclear, "{}", report.verdict);
    // 32 of 40 MiB lie elsewhere after two seconds, on the mean of the two 16 of 40.
    assert!((0.2..0.9).contains(&report.a[0].motion), "{}", report.a[0].motion);
    let mut text = Vec::new();
    write_text(&report, 120, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap().replace('\n', " ");
    assert!(text.contains("memory in motion: "), "{text}");
    // What stays where it is is known as well as ever.
    let steady = |mib| wandering(mib, |_| 100);
    let report = diff(vec![steady(40)], vec![steady(44)]);
    assert_eq!((report.outcome, report.a[0].motion), (Outcome::Different, 0.0), "{}", report.verdict);
    // A change that is larger than what moves is one all the same.
    let little = |mib| wandering(mib, |second| second);
    let report = diff(vec![little(40)], vec![little(80)]);
    assert_eq!(report.outcome, Outcome::Different, "{}", report.verdict);
    assert!(report.a[0].motion > 0.0);
}

#[test]
fn several_runs_of_memory_in_motion_tell_what_they_have_in_common() {
    let side =
        |mib| -> Vec<Profile> { (0..3).map(|run| wandering(mib, move |second| 16 * second + run)).collect() };
    let report = diff(side(40), side(60));
    assert_eq!(report.outcome, Outcome::Different, "{}", report.verdict);
}

#[test]
fn processes_that_come_and_go_are_memory_in_motion() {
    let compiling = |mib: u64| {
        let mut profile = Profile::new(Vec::new());
        for i in 0..120 {
            let id = 1 + i / 10;
            if i % 10 == 0 {
                let comm = "cc1".to_owned();
                profile.note(&Item::Target(TargetInfo { id, comm, ..TargetInfo::default() }));
                profile
                    .note(&mappings(id, vec![mapping(id << 32, (id << 32) + 512 * MIB, "rw-p", "", 0, 0)]));
            }
            profile.snapshot(&snapshot(i, id, vec![region(id << 32, (id << 32) + mib * MIB, 20)]));
        }
        profile
    };
    let report = diff(vec![compiling(40)], vec![compiling(60)]);
    assert_eq!(report.outcome, Outcome::Unclear, "{}", report.verdict);
}

/// 30 MiB in use of three pieces of anonymous memory, of which nobody knows which is which.
fn cut(sizes: [u64; 3], used: [u64; 3]) -> Profile {
    let mut profile = Profile::new(Vec::new());
    let pieces: Vec<(u64, u64, u64)> =
        (0..3).map(|i| (i as u64 * 1024 * MIB, sizes[i] * MIB, used[i] * MIB)).collect();
    let maps = pieces.iter().map(|(start, size, _)| mapping(*start, start + size, "rw-p", "", 0, 0));
    profile.note(&mappings(1, maps.collect()));
    for i in 0..120 {
        let regions = pieces.iter().flat_map(|(start, size, used)| {
            [region(*start, start + used, 20), region(start + used, start + size, 0)]
        });
        profile.snapshot(&snapshot(i, 1, regions.collect()));
    }
    profile
}

#[test]
fn memory_that_is_cut_otherwise_is_no_difference() {
    let report = diff(vec![cut([12, 16, 20], [8, 10, 12])], vec![cut([14, 13, 21], [11, 7, 12])]);
    assert!(!report.significant, "{}", report.verdict);
    // All of it may still differ, and is told.
    let report = diff(vec![cut([12, 16, 20], [8, 10, 12])], vec![cut([12, 17, 22], [8, 12, 14])]);
    assert!(report.total.working_set.significant, "{}", report.verdict);
}

#[test]
fn pieces_that_are_as_large_in_each_run_are_told_apart() {
    let report = diff(vec![cut([40, 80, 160], [10, 10, 10])], vec![cut([40, 80, 160], [10, 5, 15])]);
    let differ: Vec<&str> =
        report.rows.iter().filter(|row| row.working_set.significant).map(|row| &*row.mapping).collect();
    assert_eq!(differ, ["anon 3", "anon 2"], "{}", report.verdict);
    // Of twins nobody knows which is which.
    let report = diff(vec![cut([80, 80, 160], [10, 5, 10])], vec![cut([80, 80, 160], [5, 10, 10])]);
    assert!(!report.significant, "{}", report.verdict);
}
