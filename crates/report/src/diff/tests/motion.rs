//! Programs whose memory is in motion, and memory that lies otherwise in each run.

use super::*;
use isotherm_record::{Cost, Header, RecordedAttrs};

/// A process that uses `mib` MiB of a heap of 512, at a place that `at` tells for each tenth of a second, MiB, for so many of these.
fn wandering_for(tenths: u64, mib: u64, at: impl Fn(u64) -> u64) -> Profile {
    let mut profile = Profile::new(Vec::new());
    let attrs = RecordedAttrs { sample_us: 5000, ..RecordedAttrs::default() };
    profile.note(&Item::Header(Header { attrs, ..Header::default() }));
    profile.note(&mappings(1, vec![mapping(0, 512 * MIB, "rw-p", "[heap]", 0, 0)]));
    for i in 0..tenths {
        profile.snapshot(&snapshot(i, 1, used(mib, at(i))));
    }
    profile
}

fn used(mib: u64, at: u64) -> Vec<RegionSnapshot> {
    let start = at * MIB;
    let end = start + mib * MIB;
    vec![region(0, start, 0), region(start, end, 20), region(end, 512 * MIB, 0)]
}

/// 12 s; `at`: for each second.
fn wandering(mib: u64, at: impl Fn(u64) -> u64) -> Profile {
    wandering_for(120, mib, |tenth| at(tenth / 10))
}

/// What is in motion.
fn motion(profile: Profile) -> Option<f64> {
    diff(vec![profile], vec![wandering(40, |_| 0)]).a[0].motion
}

#[test]
fn of_memory_in_motion_a_run_says_little_of_the_next() {
    // Within each run the working set is the same all the time, so that its blocks show nothing.
    let moving = |mib| wandering(mib, |second| 16 * second);
    let report = diff(vec![moving(40)], vec![moving(52)]);
    assert_eq!(report.outcome, Outcome::Unclear, "{}", report.verdict);
    let share = report.a[0].motion.unwrap();
    // After two seconds 32 of 40 MiB are elsewhere.
    assert!((0.5..0.9).contains(&share), "{share}");
    let mut text = Vec::new();
    write_text(&report, 120, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap().replace('\n', " ");
    assert!(text.contains("memory in motion: "), "{text}");
    // What stays where it is is known as well as ever.
    let steady = |mib| wandering(mib, |_| 100);
    let report = diff(vec![steady(40)], vec![steady(44)]);
    assert_eq!((report.outcome, report.a[0].motion), (Outcome::Different, Some(0.0)), "{}", report.verdict);
    // A change that is larger than what moves is one all the same.
    let little = |mib| wandering(mib, |second| second);
    let report = diff(vec![little(40)], vec![little(80)]);
    assert_eq!(report.outcome, Outcome::Different, "{}", report.verdict);
    assert!(report.a[0].motion.unwrap() > 0.0);
}

#[test]
fn rates_of_memory_in_motion_are_uncertain() {
    let side = |rate, speed| {
        let mut profile = Profile::new(Vec::new());
        profile.note(&mappings(1, vec![mapping(0, 512 * MIB, "rw-p", "[heap]", 0, 0)]));
        for i in 0..120 {
            let at = i / 10 * speed * MIB;
            profile.snapshot(&snapshot(i, 1, vec![region(at, at + 40 * MIB, rate)]));
        }
        profile
    };
    let found = |speed| diff(vec![side(5, speed)], vec![side(9, speed)]).total.rate_hz.significant;
    assert!(found(0) && !found(16));
}

#[test]
fn several_runs_of_memory_in_motion_tell_what_they_have_in_common() {
    let side =
        |mib| -> Vec<Profile> { (0..3).map(|run| wandering(mib, move |second| 16 * second + run)).collect() };
    let report = diff(side(40), side(60));
    assert_eq!(report.outcome, Outcome::Different, "{}", report.verdict);
    let mut text = Vec::new();
    write_text(&report, 120, &mut text).unwrap();
    assert!(!String::from_utf8(text).unwrap().contains("in motion"), "it counts for nothing there");
}

#[test]
fn what_only_grows_and_shrinks_is_not_in_motion() {
    // In place, every two seconds: also where a recording is long, and many of these fall together.
    for tenths in [120, 3000, 12_000] {
        let breathing = |profile: u64| {
            let mut one = Profile::new(Vec::new());
            one.note(&mappings(1, vec![mapping(0, 512 * MIB, "rw-p", "[heap]", 0, 0)]));
            for i in 0..tenths {
                let mib = if i / 20 % 2 == 0 { 40 } else { 80 };
                one.snapshot(&snapshot(i, 1, used(mib, profile)));
            }
            one
        };
        assert_eq!(motion(breathing(0)), Some(0.0), "{tenths}");
    }
}

#[test]
fn motion_is_the_same_however_long_is_recorded() {
    let of = |tenths| motion(wandering_for(tenths, 40, |tenth| tenth / 10 * 8 % 400)).unwrap();
    let all: Vec<f64> = [60, 120, 1200, 6000].map(of).to_vec();
    assert!(all.iter().all(|share| (0.3..0.5).contains(share)), "{all:?}");
}

#[test]
fn snapshots_of_seconds_show_motion_too() {
    for length in [3, 4, 6, 20] {
        let mut profile = Profile::new(Vec::new());
        profile.note(&mappings(1, vec![mapping(0, 512 * MIB, "rw-p", "[heap]", 0, 0)]));
        for i in 0..10 {
            let one = snapshot(i, 1, used(40, i * 20));
            let (start_ns, end_ns) = (i * length * 1_000_000_000, (i + 1) * length * 1_000_000_000);
            profile.snapshot(&Snapshot { start_ns, end_ns, max_nr_accesses: 0, ..one });
        }
        let share = motion(profile).unwrap();
        assert!((0.4..0.6).contains(&share), "{length} s: {share}");
    }
}

#[test]
fn what_is_too_short_to_tell_is_not_taken_to_stand_still() {
    let moving = |tenths, mib| wandering_for(tenths, mib, |tenth| tenth * 2);
    for tenths in [10, 30, 40, 50] {
        let report = diff(vec![moving(tenths, 40)], vec![moving(tenths, 48)]);
        assert_ne!(report.outcome, Outcome::Different, "{tenths}: {}", report.verdict);
    }
    let report = diff(vec![moving(10, 40)], vec![moving(10, 48)]);
    assert_eq!(report.a[0].motion, None);
    let mut text = Vec::new();
    write_text(&report, 120, &mut text).unwrap();
    assert!(String::from_utf8(text).unwrap().contains("too short"));
}

#[test]
fn time_without_snapshots_is_no_motion() {
    // It is at one place before the gap, and at another behind it: who knows when it moved.
    let mut profile = Profile::new(Vec::new());
    profile.note(&mappings(1, vec![mapping(0, 512 * MIB, "rw-p", "[heap]", 0, 0)]));
    for i in (0..60).chain(200..260) {
        profile.snapshot(&snapshot(i, 1, used(40, if i < 100 { 0 } else { 200 })));
    }
    assert_eq!(motion(profile), Some(0.0));
}

#[test]
fn where_others_had_the_processors_nothing_is_learned_of_motion() {
    let side = |starved: &[u64]| {
        let mut profile = wandering_for(0, 40, |_| 0);
        for i in 0..150 {
            let is_starved = starved.contains(&(i / 10));
            profile.snapshot(&snapshot(i, 1, used(40, if is_starved { 200 } else { 0 })));
            if i % 10 == 9 {
                let (time_ns, wall_ns) = ((i + 1) * 100_000_000, 1_000_000_000);
                let samples_missed = if is_starved { 80 } else { 1 };
                profile.note(&Item::Cost(Cost { time_ns, wall_ns, samples_missed, ..Cost::default() }));
            }
        }
        profile
    };
    assert_eq!(motion(side(&[10, 11])), Some(0.0));
    // Without these there would be nothing to learn from.
    assert!(motion(side(&[4, 5, 8, 9, 12, 13])).unwrap() > 0.1);
}

#[test]
fn the_start_is_left_out() {
    // Its first seconds all over, then still.
    let settling = wandering(40, |second| if second < 3 { 100 * second } else { 0 });
    assert_eq!(motion(settling), Some(0.0));
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
                profile.note(&mappings(
                    id,
                    vec![
                        mapping(id << 32, (id << 32) + 512 * MIB, "rw-p", "", 0, 0),
                        mapping(
                            (id << 32) + 1024 * MIB,
                            (id << 32) + 1036 * MIB,
                            "r-xp",
                            "/usr/bin/cc1",
                            8,
                            7,
                        ),
                    ],
                ));
            }
            let [heap, code] = [id << 32, (id << 32) + 1024 * MIB];
            // The compiler's code is used by each in its turn.
            let regions = vec![region(heap, heap + mib * MIB, 20), region(code, code + mib / 4 * MIB, 20)];
            profile.snapshot(&snapshot(i, id, regions));
        }
        profile
    };
    let report = diff(vec![compiling(24)], vec![compiling(40)]);
    assert_eq!(report.outcome, Outcome::Unclear, "{}", report.verdict);
    let differ: Vec<&DiffRow> = report.rows.iter().filter(|row| row.working_set.significant).collect();
    assert!(report.rows.iter().any(|row| row.object) && differ.is_empty(), "{differ:?}");
}

/// Memory in use of pieces of anonymous memory, of which nobody knows which is which.
fn cut<const N: usize>(sizes: [u64; N], used: [u64; N]) -> Profile {
    cut_at(sizes.map(|size| size * MIB), used.map(|used| (used * MIB, 20)), |_| 0)
}

/// `used`: bytes, and accesses; `at`: where in a piece, by the second.
fn cut_at<const N: usize>(sizes: [u64; N], used: [(u64, u32); N], at: impl Fn(u64) -> u64) -> Profile {
    let mut profile = Profile::new(Vec::new());
    let pieces: Vec<(u64, u64, (u64, u32))> =
        (0..N).map(|i| (i as u64 * (1 << 40), sizes[i], used[i])).collect();
    let maps = pieces.iter().map(|(start, size, _)| mapping(*start, start + size, "rw-p", "", 0, 0));
    profile.note(&mappings(1, maps.collect()));
    for i in 0..120 {
        let regions = pieces.iter().flat_map(|(start, size, (used, rate))| {
            let first = start + at(i / 10).min(size - used);
            [
                region(*start, first, 0),
                region(first, first + used, *rate),
                region(first + used, start + size, 0),
            ]
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
    // Where it is much, nobody knows whether it is the same memory or other: that is not to be the same.
    let report =
        diff(vec![cut([1000, 2000, 3000], [900, 100, 50])], vec![cut([1030, 2060, 3090], [100, 900, 50])]);
    assert_eq!(report.outcome, Outcome::Unclear, "{}", report.verdict);
    assert!(report.rows.iter().any(|row| row.working_set.verdict.contains("make up for it")));
}

#[test]
fn a_page_more_elsewhere_hides_no_change_of_rate() {
    let side = |sizes: [u64; 3], rate, more: u64| {
        let used = [(20 * MIB, 20), (40 * MIB, rate), (20 * MIB + more, 20)];
        cut_at(sizes.map(|size| size * MIB), used, |_| 0)
    };
    for more in [0, 4096, 12 << 12] {
        let report = diff(vec![side([100, 200, 400], 20, 0)], vec![side([104, 208, 416], 3, more)]);
        let colder: Vec<&str> =
            report.rows.iter().filter(|row| row.rate_hz.significant).map(|row| &*row.mapping).collect();
        assert_eq!(colder, ["anon 2"], "{more}: {}", report.verdict);
    }
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

#[test]
fn what_one_anonymous_mapping_has_in_motion_may_be_in_any_other() {
    // One that moves, and one that stands still and differs: by less than moves.
    let side = |still: u64| {
        let mut profile = Profile::new(Vec::new());
        let other = 1 << 40;
        profile.note(&mappings(
            1,
            vec![mapping(0, 512 * MIB, "rw-p", "", 0, 0), mapping(other, other + 64 * MIB, "rw-p", "", 0, 0)],
        ));
        for i in 0..120 {
            let at = i / 10 * 16 * MIB;
            let regions = vec![region(at, at + 40 * MIB, 20), region(other, other + still * MIB, 20)];
            profile.snapshot(&snapshot(i, 1, regions));
        }
        profile
    };
    let report = diff(vec![side(10)], vec![side(20)]);
    assert!(!report.significant, "{}", report.verdict);
}
