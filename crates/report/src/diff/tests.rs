//! What differs, and what only seems to.

mod lives;
mod motion;
mod unseen;

use super::*;
use crate::Accumulate;
use crate::synthetic::{MIB, mapping, mappings, region, snapshot, unknown};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{Item, TargetInfo};

/// Noise without a generator: a different one for each seed.
struct Noise(u64);

impl Noise {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as f64) / f64::from(1_u32 << 31) * 2.0 - 1.0
    }
}

/// A process with a library, a heap, and 64 MiB of anonymous memory at addresses of its own, of which `hot` MiB are in use,
/// more or less: a recording is off by up to 0.5 %, and a snapshot by up to 3 %.
fn recording(seed: u64, hot: f64, heap_rate: u32) -> Profile {
    let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..5 {
        noise.next();
    }
    let base = 0x7f00_0000_0000 + (seed << 30);
    let run = 1.0 + noise.next() / 200.0;
    let mut profile = Profile::new(Vec::new());
    profile.note(&Item::Target(TargetInfo { id: seed, comm: "server".to_owned(), ..TargetInfo::default() }));
    let heap = 0x5500_0000_0000 + (seed << 24);
    profile.note(&mappings(
        seed,
        vec![
            mapping(heap, heap + 8 * MIB, "rw-p", "[heap]", 0, 0),
            mapping(base - 4 * MIB, base - 2 * MIB, "rw-p", "", 0, 0),
            mapping(base, base + 64 * MIB, "rw-p", "", 0, 0),
            mapping(base + 65 * MIB, base + 66 * MIB, "r-xp", "/usr/lib/libc.so.6", 0, 0),
        ],
    ));
    for i in 0..150 {
        let used = (hot * run * (1.0 + noise.next() * 0.03) * MIB as f64) as u64;
        let regions = vec![
            region(heap, heap + 8 * MIB, heap_rate),
            region(base - 4 * MIB, base - 2 * MIB, 1),
            region(base, base + used, 20),
            region(base + used, base + 64 * MIB, 0),
            region(base + 65 * MIB, base + 66 * MIB, 0),
        ];
        profile.snapshot(&snapshot(i, seed, regions));
    }
    profile
}

fn diff(a: Vec<Profile>, b: Vec<Profile>) -> DiffReport {
    let named = |list: Vec<Profile>| list.into_iter().map(|p| ("x.rec".to_owned(), p)).collect();
    compare(named(a), named(b), &DiffOptions::default())
}

/// A quarter of the memory is there, all of which is in use.
#[test]
fn what_is_not_there_is_in_no_working_set() {
    let mut profile = Profile::new(Vec::new());
    profile.note(&mappings(1, vec![mapping(0, 64 * MIB, "rw-p", "[heap]", 0, 0)]));
    for i in 0..100 {
        let part = RegionSnapshot { resident: Some(16 * MIB), ..region(0, 64 * MIB, 20) };
        profile.snapshot(&snapshot(i, 1, vec![part]));
    }
    let run = profile.finish(0.0);
    let most = run.areas.iter().flat_map(|area| &area.blocks).map(|block| block.ws).fold(0.0, f64::max);
    assert!((most / MIB as f64 - 16.0).abs() < 0.01, "{most}");
}

#[test]
fn a_program_does_not_differ_from_itself() {
    for seed in 1..40 {
        let report = diff(vec![recording(seed, 32.0, 2)], vec![recording(seed + 100, 32.0, 2)]);
        assert!(!report.significant, "{seed}: {}", report.verdict);
        assert_eq!(report.verdict, "no significant difference");
    }
}

#[test]
fn a_hot_set_that_grew_by_a_tenth_is_found_and_named() {
    for seed in 1..40 {
        let report = diff(vec![recording(seed, 32.0, 2)], vec![recording(seed + 100, 35.2, 2)]);
        let differing: Vec<&DiffRow> = report.rows.iter().filter(|r| r.working_set.significant).collect();
        assert_eq!(differing.len(), 1, "{seed}: {}", report.verdict);
        assert_eq!((differing[0].mapping.as_str(), differing[0].size_a), ("anon 2", 64 * MIB));
        let change = differing[0].working_set.change.unwrap();
        assert!((0.07..0.13).contains(&change) && differing[0].working_set.verdict.starts_with("grew by"));
        assert!(
            report.significant && report.verdict.contains("the working set of 1 mapping differs"),
            "{}",
            report.verdict
        );
    }
}

#[test]
fn that_the_sides_are_of_other_programs_is_said() {
    let of = |programs: &[&str]| {
        let mut profile = recording(1, 20.0, 1);
        for (id, comm) in programs.iter().enumerate() {
            let info = TargetInfo { id: 100 + id as u64, comm: (*comm).to_owned(), ..TargetInfo::default() };
            profile.note(&Item::Target(info));
        }
        profile
    };
    // All have the server.
    assert_eq!(diff(vec![of(&["perl"])], vec![of(&["sleep"])]).unlike, None);
    let alone = |comm: &str| {
        let mut profile = Profile::new(Vec::new());
        profile.note(&Item::Target(TargetInfo { id: 1, comm: comm.to_owned(), ..TargetInfo::default() }));
        (0..50).for_each(|i| profile.snapshot(&snapshot(i, 1, vec![region(0, 8 * MIB, 20)])));
        profile
    };
    let said = diff(vec![alone("sleep")], vec![alone("perl"), alone("awk")]).unlike.unwrap();
    assert_eq!(said, "A is of sleep, B of awk, perl, which are other programs");
}

#[test]
fn what_got_colder_is_said_also_where_the_working_set_stays() {
    let report = diff(vec![recording(1, 32.0, 15)], vec![recording(2, 32.0, 5)]);
    let heap = report.rows.iter().find(|r| r.mapping == "[heap]").unwrap();
    assert!(heap.rate_hz.significant && !heap.working_set.significant, "{heap:?}");
    assert!(heap.rate_hz.verdict.starts_with("got colder by 66.7 %, 150 Hz to 50 Hz"), "{heap:?}");
    assert!(
        report.significant && report.verdict.contains("1 mapping got hotter or colder"),
        "{}",
        report.verdict
    );
}

#[test]
fn several_recordings_find_less_and_say_when_they_scatter() {
    let four = |from: u64, hot: f64| (from..from + 4).map(|s| recording(s, hot, 2)).collect::<Vec<_>>();
    assert!(diff(four(1, 32.0), four(11, 34.0)).significant);
    assert!(!diff(four(1, 32.0), four(11, 32.0)).significant);
    // Recordings of one side that differ among each other.
    let wild = vec![recording(1, 24.0, 2), recording(2, 32.0, 2), recording(3, 40.0, 2)];
    let other = vec![recording(4, 27.0, 2), recording(5, 36.0, 2), recording(6, 44.0, 2)];
    assert!(!diff(wild, other).significant);
}

/// 32 MiB in use, and 8 MiB of which it is known or not.
fn partly(known: bool) -> Profile {
    let mut profile = Profile::new(Vec::new());
    for i in 0..150 {
        let rest = if known { region(32 * MIB, 40 * MIB, 20) } else { unknown(32 * MIB, 40 * MIB) };
        profile.snapshot(&snapshot(i, 1, vec![region(0, 32 * MIB, 20), rest]));
    }
    profile
}

#[test]
fn what_is_unknown_explains_a_difference() {
    let report = diff(vec![partly(false)], vec![partly(true)]);
    assert!(!report.significant);
    assert!(report.total.working_set.verdict.starts_with("unclear: 8.0 MiB more unknown"), "{report:?}");
}

/// 32 MiB in use for 15 s by the clock, in snapshots of so many seconds, of which those are missing that begin within `gaps`.
fn with_gaps(length_s: f64, gaps: &[std::ops::Range<f64>]) -> Profile {
    let mut profile = Profile::new(Vec::new());
    let length = (length_s * 10.0).round() as u64;
    for i in (0..150).step_by(length as usize) {
        if !gaps.iter().any(|gap| gap.contains(&(i as f64 / 10.0))) {
            let taken = snapshot(i, 1, vec![region(0, 32 * MIB, 20)]);
            profile.snapshot(&Snapshot { end_ns: taken.start_ns + length * 100_000_000, ..taken });
        }
    }
    profile
}

#[test]
fn time_without_a_snapshot_is_not_a_working_set_of_nothing() {
    for (length_s, gaps) in [
        (0.1, vec![5.0..9.0]),
        // A monitor that comes to look now and then.
        (0.1, vec![0.5..4.5, 5.0..9.5, 10.0..14.5]),
        (0.1, vec![0.2..13.0]),
        // Aggregations that are longer than what is told apart of time.
        (1.0, vec![]),
        (2.5, vec![5.0..10.0]),
        (5.0, vec![]),
    ] {
        let report = diff(vec![with_gaps(0.1, &[])], vec![with_gaps(length_s, &gaps)]);
        let figures = &report.total.working_set;
        assert_eq!((figures.a, figures.b), ((32 * MIB) as f64, (32 * MIB) as f64), "{length_s} {gaps:?}");
        assert_eq!(report.outcome, Outcome::Same, "{length_s} {gaps:?}: {}", report.verdict);
        let blocks = &report.b[0].blocks_s;
        assert!(blocks.iter().all(|seconds| *seconds > 0.0), "{length_s} {gaps:?}: {blocks:?}");
    }
}

#[test]
fn what_a_late_monitor_lost_sight_of_is_no_difference() {
    let side = |lost: u64| {
        let mut profile = Profile::new(Vec::new());
        for i in 0..150 {
            // For some seconds a third of what is in use is not known to be.
            let gone = (60..60 + lost).contains(&i);
            let rest = if gone { unknown(32 * MIB, 48 * MIB) } else { region(32 * MIB, 48 * MIB, 20) };
            profile.snapshot(&snapshot(i, 1, vec![region(0, 32 * MIB, 20), rest]));
        }
        profile
    };
    for lost in [10, 30, 45, 70] {
        let report = diff(vec![side(0)], vec![side(lost)]);
        assert!(!report.significant, "{lost}: {}", report.verdict);
        assert!((report.total.working_set.b - (48 * MIB) as f64).abs() < 1.0, "{lost}");
    }
}

/// Seconds in which others had the processors: what the program did then says nothing of it.
#[test]
fn seconds_in_which_the_machine_was_busy_hide_no_difference_and_make_none() {
    let side = |hot: u64, starved: &[u64]| {
        let mut profile = Profile::new(Vec::new());
        let attrs = isotherm_record::RecordedAttrs { sample_us: 5000, ..Default::default() };
        profile.note(&Item::Header(isotherm_record::Header { attrs, ..Default::default() }));
        for i in 0..150 {
            let is_starved = starved.contains(&(i / 10));
            let used = if is_starved { hot / 2 } else { hot };
            profile.snapshot(&snapshot(
                i,
                1,
                vec![region(0, used * MIB, 20), region(used * MIB, 128 * MIB, 0)],
            ));
            if i % 10 == 9 {
                let (time_ns, wall_ns) = ((i + 1) * 100_000_000, 1_000_000_000);
                let samples_missed = if is_starved { 80 } else { 1 };
                profile.note(&Item::Cost(isotherm_record::Cost {
                    time_ns,
                    wall_ns,
                    samples_missed,
                    ..Default::default()
                }));
            }
        }
        profile
    };
    let busy = [4, 6, 9, 10, 12];
    let report = diff(vec![side(64, &[])], vec![side(64, &busy)]);
    assert_eq!(report.outcome, Outcome::Same, "{}", report.verdict);
    assert!((report.total.working_set.b - (64 * MIB) as f64).abs() < 1.0);
    let report = diff(vec![side(64, &busy)], vec![side(71, &[5, 11])]);
    assert!(report.total.working_set.verdict.starts_with("grew by"), "{}", report.verdict);
    assert!(report.b[0].missed > 0.05, "it is said all the same");
}

/// A busy machine slows the program down. What is accessed many times a second is in use all the same; of what it comes to about
/// once a second nobody knows how much that was.
#[test]
fn a_late_monitor_hides_what_moves_with_the_speed_of_the_program() {
    let side = |hot: u64, rate: u32| {
        let mut profile = Profile::new(Vec::new());
        let attrs = isotherm_record::RecordedAttrs { sample_us: 5000, ..Default::default() };
        profile.note(&Item::Header(isotherm_record::Header { attrs, ..Default::default() }));
        // 10 s, of 2,000 sampling intervals 200 were missed.
        profile.note(&Item::Cost(isotherm_record::Cost { samples_missed: 200, ..Default::default() }));
        for i in 0..100 {
            let mut used = region(0, hot * MIB, rate);
            if rate == 0 {
                used.nr_accesses_bp = 1000;
            }
            let mut one = snapshot(i, 1, vec![used, region(hot * MIB, 128 * MIB, 0)]);
            one.sample_ns = 5_000_000;
            profile.snapshot(&one);
        }
        profile
    };
    let report = diff(vec![side(64, 10)], vec![side(71, 10)]);
    assert!(report.total.working_set.verdict.starts_with("grew by"), "{}", report.verdict);
    // Once a second.
    let report = diff(vec![side(64, 0)], vec![side(71, 0)]);
    assert_eq!(report.outcome, Outcome::Unclear, "{}", report.verdict);
}

#[test]
fn a_mapping_of_one_side_only_is_one() {
    let side = |name: &str| {
        let mut profile = Profile::new(Vec::new());
        profile.note(&mappings(1, vec![mapping(0, 32 * MIB, "rw-p", name, 0, 0)]));
        (0..150).for_each(|i| profile.snapshot(&snapshot(i, 1, vec![region(0, 32 * MIB, 20)])));
        profile
    };
    let report = diff(vec![side("/a/old")], vec![side("/a/new")]);
    let verdict = |name: &str| {
        let row = report.rows.iter().find(|r| r.mapping == name).unwrap();
        row.working_set.verdict.clone()
    };
    assert!(verdict("new").starts_with("only in B"), "{}", verdict("new"));
    assert!(verdict("old").starts_with("shrank by 100 %"), "{}", verdict("old"));
    assert!(!report.total.working_set.significant);
}

#[test]
fn workers_of_one_program_are_one_and_what_they_share_counts_once() {
    let side = |workers: u64| {
        let mut profile = Profile::new(Vec::new());
        let mut all = Snapshot::default();
        for id in 1..=workers {
            profile.note(&Item::Target(TargetInfo {
                id,
                comm: "worker".to_owned(),
                ..TargetInfo::default()
            }));
            let at = id << 32;
            profile.note(&mappings(
                id,
                vec![
                    mapping(at, at + 16 * MIB, "rw-s", "/dev/shm/cache", 9, 0),
                    mapping(at + 32 * MIB, at + 40 * MIB, "rw-p", "", 0, 0),
                ],
            ));
            let regions = vec![region(at, at + 16 * MIB, 20), region(at + 32 * MIB, at + 40 * MIB, 20)];
            all.targets.push(TargetSnapshot::new(TargetId(id), regions));
        }
        for i in 0..150 {
            profile.snapshot(&Snapshot { targets: all.targets.clone(), ..snapshot(i, 1, Vec::new()) });
        }
        profile
    };
    let report = diff(vec![side(2)], vec![side(4)]);
    let row = |name: &str| report.rows.iter().find(|r| r.mapping == name).unwrap();
    assert!(!row("cache").working_set.significant && row("cache").working_set.a == (16 * MIB) as f64);
    let anon = row("anon");
    assert_eq!((anon.program.as_str(), anon.working_set.change), ("worker", Some(1.0)));
    assert!(anon.working_set.significant);
}

#[test]
fn a_long_recording_takes_no_more_memory_and_few_blocks() {
    let mut profile = Profile::new(Vec::new());
    for i in 0..20_000 {
        let nr = if i % 2 == 0 { 20 } else { 0 };
        profile.snapshot(&snapshot(
            i,
            1,
            vec![region(0, MIB, nr), RegionSnapshot { nr_accesses_bp: 0, ..region(MIB, 2 * MIB, 0) }],
        ));
    }
    let run = profile.finish(3.0);
    assert_eq!(run.blocks_s.len(), 16);
    assert!((run.blocks_s.iter().sum::<f64>() + run.settled_s - 2000.0).abs() < 0.1);
    let mean = run.areas[0].blocks.iter().map(|b| b.ws).sum::<f64>() / 16.0;
    assert!((mean - MIB as f64 / 2.0).abs() < 1.0, "{mean}");
}

#[test]
fn an_outlier_among_many_recordings_does_not_turn_the_direction() {
    let side = |hot: [f64; 4], from: u64| (0..4).map(|i| recording(from + i, hot[i as usize], 2)).collect();
    let report = diff(side([32.0; 4], 1), side([36.0, 36.0, 6.0, 36.0], 11));
    let grown = report.rows.iter().find(|r| r.working_set.significant).unwrap();
    // A plain mean would be 28.5 MiB.
    assert!(grown.working_set.verdict.starts_with("grew by"), "{grown:?}");
    assert!(grown.working_set.b > grown.working_set.a && grown.working_set.change.unwrap() > 0.08);
}

#[test]
fn what_noise_or_the_unknown_hides_is_unclear_and_not_the_same() {
    let report = diff(vec![partly(false)], vec![partly(true)]);
    assert_eq!((report.outcome, report.significant), (Outcome::Unclear, false));
    assert_eq!(report.verdict, "unclear whether the working set differs: 8.0 MiB more unknown on one side");
    // Runs of one side that are 24 and 40 MiB cannot show a change of a tenth.
    let wild = diff(
        vec![recording(1, 24.0, 2), recording(2, 40.0, 2)],
        vec![recording(4, 27.0, 2), recording(5, 45.0, 2)],
    );
    assert_eq!(wild.outcome, Outcome::Unclear, "{}", wild.verdict);
    let said =
        wild.verdict.strip_prefix("unclear whether the working set differs: noise hides what is below ");
    assert!(said.is_some_and(|rest| rest.ends_with(" %") && !rest.contains("unclear")), "{}", wild.verdict);
    assert!(wild.total.working_set.detectable.unwrap() > 0.3);
    // Where they have the same mean by chance, that says no more.
    let pairs = |by: f64| {
        let pair = |from| vec![recording(from, 32.0 - by, 2), recording(from + 1, 32.0 + by, 2)];
        diff(pair(1), pair(4))
    };
    let chance = pairs(2.0);
    assert_eq!(chance.outcome, Outcome::Same, "{}", chance.verdict);
    assert!(chance.verdict.starts_with("no significant difference (noise hides"), "{}", chance.verdict);
    let mut text = Vec::new();
    write_text(&chance, 80, &mut text).unwrap();
    assert!(String::from_utf8(text).unwrap().matches("noise hides what is below").count() >= 2);
    // Where one might be twice the other nothing was compared.
    let hopeless = pairs(12.0);
    assert_eq!(hopeless.outcome, Outcome::Unclear, "{}", hopeless.verdict);
    let same = diff(vec![recording(1, 32.0, 2)], vec![recording(2, 32.0, 2)]);
    assert_eq!((same.outcome, &*same.verdict), (Outcome::Same, "no significant difference"));
    assert_eq!(serde_json::to_value(&same).unwrap()["outcome"], "same");
}

/// What noise hides is measured as what changed is: nobody hides 380 % from +5570 %.
#[test]
fn what_noise_hides_is_on_the_scale_of_the_change() {
    for (a, b) in [(1.0, 56.0), (56.0, 1.0), (8.0, 60.0)] {
        let wild = |hot: f64, seed| vec![recording(seed, hot * 0.2, 0), recording(seed + 1, hot * 1.8, 0)];
        let report = diff(wild(a, 1), wild(b, 4));
        for row in report.rows.iter().chain([&report.total]) {
            let ws = &row.working_set;
            if let (Outcome::Unclear, Some(change), Some(hidden)) = (ws.outcome, ws.change, ws.detectable) {
                assert!(change.abs() <= hidden, "{}: {change} and {hidden}: {}", row.mapping, ws.verdict);
            }
        }
        assert_eq!(report.total.working_set.outcome, Outcome::Unclear, "{}", report.verdict);
    }
}

#[test]
fn where_nothing_is_in_use_nothing_was_compared() {
    let idle = || {
        let mut profile = Profile::new(Vec::new());
        (0..150).for_each(|i| profile.snapshot(&snapshot(i, 1, vec![region(0, 64 * MIB, 0)])));
        profile
    };
    let report = diff(vec![idle()], vec![idle()]);
    assert_eq!((report.outcome, report.significant), (Outcome::Unclear, false), "{}", report.verdict);
    assert!(report.verdict.ends_with("too little to be compared"), "{}", report.verdict);
}

#[test]
fn a_target_with_the_number_0_is_a_target() {
    let side = || {
        let mut profile = Profile::new(Vec::new());
        profile.note(&mappings(0, vec![mapping(0, 32 * MIB, "rw-p", "[heap]", 0, 0)]));
        (0..150).for_each(|i| profile.snapshot(&snapshot(i, 0, vec![region(0, 32 * MIB, 20)])));
        profile
    };
    let report = diff(vec![side()], vec![side()]);
    let heap = report.rows.iter().find(|r| r.mapping == "[heap]").unwrap();
    assert!(!heap.object && heap.working_set.a == (32 * MIB) as f64, "{heap:?}");
}

#[test]
fn runs_of_anonymous_memory_that_grow_together_are_one() {
    let mut profile = Profile::new(Vec::new());
    let layout = |holes: bool| {
        let run = |i: u64| mapping(i * MIB, (i + 1) * MIB - if holes { 4096 } else { 0 }, "rw-p", "", 0, 0);
        mappings(1, (0..3000).map(run).collect())
    };
    for i in 0..150 {
        // A stretch of many runs, which the program fills up.
        if i % 50 == 0 {
            profile.note(&layout(i < 100));
        }
        profile.snapshot(&snapshot(i, 1, vec![region(0, 3000 * MIB, 20)]));
    }
    let run = profile.finish(3.0);
    let anonymous: Vec<_> = run.areas.iter().filter(|a| a.anonymous).collect();
    assert_eq!((anonymous.len(), anonymous[0].size), (1, 3000 * MIB));
}

#[test]
fn no_line_is_wider_than_the_screen() {
    let busy = |seed| {
        let mut profile = recording(seed, 32.0 + seed as f64 * 8.0, seed as u32 * 9);
        let comm = "a-program-with-quite-a-long-name".to_owned();
        profile.note(&Item::Target(TargetInfo { id: seed, comm, ..TargetInfo::default() }));
        // A second process, so that rows have the names of programs; and a monitor that was late.
        profile.note(&mappings(50, vec![mapping(0, 64 * MIB, "rw-p", &"long/".repeat(20), 0, 0)]));
        let second = |i| snapshot(i, 50, vec![region(0, 16 * MIB * seed, 20)]);
        (150..300).for_each(|i| profile.snapshot(&second(i)));
        let attrs = isotherm_record::RecordedAttrs { sample_us: 5000, ..Default::default() };
        profile.note(&Item::Header(isotherm_record::Header { attrs, ..Default::default() }));
        profile.note(&Item::Cost(isotherm_record::Cost { samples_missed: 2000, ..Default::default() }));
        profile
    };
    let report = diff(vec![busy(1)], vec![busy(2)]);
    let text = |width| {
        let mut out = Vec::new();
        write_text(&report, width, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    };
    for width in [40, 60, 79, 80, 100] {
        let text = text(width);
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= width, "{width}: {widest:?} in {text}");
        for part in ["a-program", "change", "the machine was busy", "unclear"] {
            assert!(text.contains(part), "{width}: {part} in {text}");
        }
    }
    assert_eq!(text(1), text(40));
}
