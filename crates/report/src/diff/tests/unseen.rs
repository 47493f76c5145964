//! What could not be observed, and how much it hides.

use super::*;

/// 64 MiB of which `hot` are in use, and `unseen` MiB more of which nothing is known.
fn side(seed: u64, hot: f64, unseen: f64) -> Profile {
    let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..5 {
        noise.next();
    }
    let run = 1.0 + noise.next() / 200.0;
    let mut profile = Profile::new(Vec::new());
    profile.note(&mappings(1, vec![mapping(0, 256 * MIB, "rw-p", "[heap]", 0, 0)]));
    for i in 0..150 {
        let used = (hot * run * (1.0 + noise.next() * 0.03) * MIB as f64) as u64;
        let mut regions = vec![region(0, used, 20), region(used, 128 * MIB, 0)];
        if unseen > 0.0 {
            regions.push(unknown(128 * MIB, 128 * MIB + (unseen * MIB as f64) as u64));
        }
        profile.snapshot(&snapshot(i, 1, regions));
    }
    profile
}

/// Of 80 MiB in use another 40 are unknown: whether the program uses a tenth more nobody can tell, nor that it does not.
#[test]
fn much_that_is_unknown_on_both_sides_hides_a_difference_and_its_absence() {
    for (hot, seed) in [(80.0, 1), (88.0, 2), (73.0, 3)] {
        let report = diff(vec![side(seed, 80.0, 40.0)], vec![side(seed + 10, hot, 41.0)]);
        assert_eq!(report.outcome, Outcome::Unclear, "{hot}: {}", report.verdict);
        assert!(report.verdict.contains("41.0 MiB unknown hide what is below "), "{hot}: {}", report.verdict);
        assert!(report.total.working_set.detectable.unwrap() > 0.4, "{hot}");
    }
    let report = diff(vec![side(1, 80.0, 40.0)], vec![side(2, 112.0, 40.0)]);
    assert_eq!(report.outcome, Outcome::Unclear, "two fifths may be what is not seen: {}", report.verdict);
    // What is far beyond is so whatever the rest does.
    let report = diff(vec![side(1, 40.0, 20.0)], vec![side(2, 100.0, 20.0)]);
    assert!(report.total.working_set.verdict.starts_with("grew by 1"), "{}", report.verdict);
}

#[test]
fn a_little_that_is_unknown_hides_nothing() {
    for seed in 1..20 {
        let report = diff(vec![side(seed, 80.0, 2.0)], vec![side(seed + 100, 80.0, 2.4)]);
        assert_eq!(report.outcome, Outcome::Same, "{seed}: {}", report.verdict);
        assert_eq!(report.verdict, "no significant difference");
        let report = diff(vec![side(seed, 80.0, 2.0)], vec![side(seed + 100, 88.0, 2.4)]);
        assert!(report.total.working_set.verdict.starts_with("grew by"), "{seed}: {}", report.verdict);
    }
}

/// What is unknown may be in use, so it can make the side larger on which it is, and never smaller.
#[test]
fn what_is_unknown_explains_only_what_its_side_lacks() {
    let report = diff(vec![side(1, 64.0, 0.0)], vec![side(2, 96.0, 18.0)]);
    assert!(report.total.working_set.verdict.starts_with("grew by"), "{}", report.verdict);
    let report = diff(vec![side(1, 64.0, 18.0)], vec![side(2, 96.0, 0.0)]);
    assert_eq!(report.outcome, Outcome::Unclear, "{}", report.verdict);
    assert!(report.verdict.contains("18.0 MiB more unknown on one side"), "{}", report.verdict);
}

/// Of a mapping that is a small part of all, half is unknown on both sides. That is said of it; the program is the same.
#[test]
fn what_is_unknown_of_a_small_mapping_is_said_of_it_alone() {
    let side = |seed: u64| {
        let mut noise = Noise(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let mut profile = Profile::new(Vec::new());
        profile.note(&mappings(
            1,
            vec![
                mapping(0, 64 * MIB, "rw-p", "[heap]", 0, 0),
                mapping(1 << 40, (1 << 40) + 8 * MIB, "r-xp", "/usr/lib/libbig.so", 0, 0),
            ],
        ));
        for i in 0..150 {
            let used = (60.0 * (1.0 + noise.next() * 0.01) * MIB as f64) as u64;
            profile.snapshot(&snapshot(
                i,
                1,
                vec![
                    region(0, used, 20),
                    region(1 << 40, (1 << 40) + 4 * MIB, 20),
                    unknown((1 << 40) + 4 * MIB, (1 << 40) + 6 * MIB),
                ],
            ));
        }
        profile
    };
    let report = diff(vec![side(1)], vec![side(2)]);
    let row = report.rows.iter().find(|row| row.mapping == "libbig.so").unwrap();
    assert_eq!(row.working_set.outcome, Outcome::Unclear, "{row:?}");
    assert!(row.working_set.verdict.contains("2.0 MiB unknown hide what is below"), "{row:?}");
    assert_eq!((report.outcome, &*report.verdict), (Outcome::Same, "no significant difference"));
}
