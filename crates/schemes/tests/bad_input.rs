//! What is wrong with a file is said with its line, scheme and field; nothing panics, whatever it is given.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::entry;
use isotherm_schemes::presets::preset;
use isotherm_schemes::{Format, parse, write};
use proptest::prelude::*;

fn wrong(text: &str) -> String {
    parse(text, None).unwrap_err().to_string()
}

#[test]
fn mistakes_in_toml_are_named() {
    let scheme = |lines: &str| format!("[[scheme]]\nname = \"x\"\naction = \"pageout\"\n{lines}\n");
    for (lines, parts) in [
        ("min_szie = \"4K\"", &["line 4, scheme x, min_szie", "did you mean min_size?"][..]),
        ("min_age = \"5\"", &["line 4, scheme x, min_age", "no unit"]),
        ("min_age = 5", &["min_age", "no unit"]),
        ("age = \"5s\"", &["age", "\"5s..\" for at least"]),
        ("size = \"8M..4M\"", &["line 4, scheme x, size", "is above the maximum"]),
        ("access = \"..120%\"", &["access", "more than 100 %"]),
        ("access = \"5\"", &["access", "no unit"]),
        ("access = \"1 sample..5%\"", &["one unit"]),
        ("min_size = \"4K\"\nsize = \"4K..\"", &["line 4, scheme x, min_size", "size says that already"]),
        ("quota.size = \"0\"", &["line 4, scheme x, quota.size", "a quota of zero"]),
        ("[scheme.quota]\nsize = \"0\"", &["line 5, scheme x, quota.size", "a quota of zero"]),
        ("min_size = -4", &["line 4, scheme x, min_size", "it is negative"]),
        ("nodes = [0]", &["line 4, scheme x, nodes", "only migrate_hot and migrate_cold"]),
        (
            "quota.size = \"1M/s\"\nquota.reset_interval = \"2s\"",
            &["line 5, scheme x, quota.reset_interval", "one reset interval"],
        ),
        ("quota = 5", &["quota", "must be a table"]),
        (
            "quota.goals = [{ metric = \"node_mem_free_bp\", target = \"5%\" }]",
            &["quota.goals[0].node", "missing"],
        ),
        (
            "quota.goals = [{ metric = \"psi\", target = \"5%\" }]",
            &["quota.goals[0].metric", "some_mem_psi_us"],
        ),
        ("quota.goals = [{ metric = \"user_input\", target = 0 }]", &["quota.goals[0]", "more than zero"]),
        (
            "watermarks = { high = \"20%\", mid = \"40%\", low = \"10%\" }",
            &["watermarks", "high >= mid >= low"],
        ),
        ("filters = [{ allow = \"annon\" }]", &["filters[0].allow", "did you mean anon?"]),
        ("filters = [{ allow = \"memcg\" }]", &["filters[0].path", "missing"]),
        (
            "filters = [{ allow = \"anon\" }, { allow = \"target\", pid = 1 }]",
            &["filters[1].allow", "come first"],
        ),
        ("unknown = \"yes\"", &["line 4, scheme x, unknown", "true or false"]),
        (
            "min_size = \"2M\"\nmax_size = \"4K\"",
            &["line 5, scheme x, size: the minimum, 2.0 MiB, is above the maximum, 4.0 KiB"],
        ),
        (
            "min_access = \"50%\"\nmax_access = \"5%\"",
            &["access: the minimum, 50 %, is above the maximum, 5 %"],
        ),
        ("access = \"9..2 samples\"", &["access: the minimum, 9 samples, is above the maximum, 2 samples"]),
        (
            "age = \"9..2 aggregations\"",
            &["age: the minimum, 9 aggregations, is above the maximum, 2 aggregations"],
        ),
        ("max_nr_snapshots = 0", &["max_nr_snapshots", "more than zero"]),
        ("nodes = [-1]", &["nodes[0]"]),
        ("[other]", &["line 4, other", "there is no such key"]),
        ("min_age = ", &["line 4", "not TOML"]),
    ] {
        let error = wrong(&scheme(lines));
        for part in parts {
            assert!(error.contains(part), "{lines}: {part:?} in {error}");
        }
    }
    assert!(wrong("[[scheme]]\naction = \"page_out\"").contains("line 2, scheme 1, action: \"page_out\""));
    assert!(wrong("[[scheme]]\nmin_age = \"1s\"").contains("action: it is missing"));
    assert!(wrong("[scheme]\naction = \"stat\"").contains("two brackets"));
    assert!(wrong("[[scheme]]\naction = \"migrate_hot\"").contains("nodes = [1]"));
    assert!(
        wrong("[[scheme]]\nname = \"a\"\naction = \"stat\"\n[[scheme]]\nname = \"a\"\naction = \"cold\"")
            .contains("has this name in line 1")
    );
    assert!(wrong("").starts_with("there is no scheme"), "{}", wrong(""));
    let twice = wrong("[[scheme]]\naction = \"migrate_hot\"\nnodes = [1, { id = 1, weight = 2 }]");
    assert!(twice.contains("line 3, scheme 1, nodes[1]: node 1 was named before"), "{twice}");
    // All at once, in their order.
    let all = |text: &str| {
        let all = wrong(text);
        all.lines().map(|line| line.split([',', ':']).next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(
        all("[[scheme]]\naction = \"stat\"\nmin_age = \"1x\"\nmin_size = \"1x\""),
        ["line 3", "line 4"]
    );
    let reversed = "[[scheme]]\naction = \"stat\"\nage = \"2s..1s\"\naccess = \"9%..5%\"\nsize = \"2M..4K\"";
    assert_eq!(all(reversed), ["line 3", "line 4", "line 5"]);
}

#[test]
fn mistakes_in_the_other_formats_are_named() {
    assert!(
        preset("prcl:min_age=1s,min_age=2s").unwrap_err().to_string().contains("min_age: it is given twice")
    );
    for (text, parts) in [
        ("4K null null 5 5s null", &["line 1, scheme 1", "7 columns", "here are 6"][..]),
        ("# x\n4K null null 5 5s null pageout now", &["line 2", "here are more"]),
        ("4K null null 5 5s null page_out", &["line 1, scheme 1, action", "did you mean pageout?"]),
        ("4K null null 500 5s null pageout", &["max frequency", "more than 100 %"]),
        ("4K null null 5 5 null pageout", &["min age", "no unit", "or null"]),
        ("4M 4K null 5 5s null pageout", &["size", "is above the maximum"]),
        ("{\"kdamonds\": []}", &["no scheme"]),
        ("[{\"action\": \"pageout\",}]", &["line 1", "not JSON"]),
        ("[{\"action\": \"page_out\"}]", &["scheme 1, action", "did you mean pageout?"]),
        (
            "[{\"action\": \"stat\", \"access_pattern\": {\"nr_accesses\": {\"max\": \"200 %\"}}}]",
            &["access_pattern.nr_accesses.max", "100 %"],
        ),
        (
            "[{\"action\": \"stat\", \"filters\": [{\"filter_type\": \"target\", \"matching\": true, \"damon_target_idx\": 0}]}]",
            &["filters[0].damon_target_idx", "pids"],
        ),
        // Memory that is meant must not become all memory.
        (
            "[{\"action\": \"pageout\", \"access_pattern\": {\"nr_acceses\": {\"max\": \"0 %\"}}}]",
            &["scheme 1, access_pattern.nr_acceses", "did you mean nr_accesses?"],
        ),
        (
            "[{\"action\": \"pageout\", \"access_pattern\": {\"min_age_us\": 5}}]",
            &["scheme 1, access_pattern.min_age_us", "there are sz_bytes, nr_accesses, age"],
        ),
        (
            "[{\"action\": \"pageout\", \"acess_pattern\": {}}]",
            &["scheme 1, acess_pattern", "did you mean access_pattern?"],
        ),
        (
            "[{\"action\": \"stat\", \"access_pattern\": {\"sz_bytes\": {\"mim\": 1}}}]",
            &["access_pattern.sz_bytes.mim"],
        ),
        (
            "[{\"action\": \"stat\", \"quotas\": {\"goals\": [{\"metric\": \"x\"}]}}]",
            &["quotas.goals[0].metric"],
        ),
    ] {
        let error = wrong(text);
        for part in parts {
            assert!(error.contains(part), "{text}: {part:?} in {error}");
        }
    }
}

#[test]
fn schemes_that_undo_each_other_are_refused() {
    let both = |a: &str, b: &str| parse(&format!("{a}\n{b}"), None);
    let error = both("2M null 5 null null null hugepage", "2M null null 10 1s null nohugepage")
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("line 2, scheme 2 (nohugepage), action") && error.contains("1 (hugepage)"),
        "{error}"
    );
    // A bound in common is none; nor is other memory, or an action that does not mind.
    assert!(both("2M null 5 null null null hugepage", "2M null null 5 1s null nohugepage").is_ok());
    assert!(both("4M null 5 null null null hugepage", "2M 4M null 50 1s null nohugepage").is_ok());
    assert!(both("4K null null 5 1s null pageout", "4K null null 5 1s null stat").is_ok());
    // Nothing but idle memory, on both sides.
    assert!(both("4K null 0 0 1s null pageout", "4K null null 5 5s null willneed").is_err());
}

#[test]
fn length_alone_does_no_harm() {
    let long = "x".repeat(1 << 20);
    for text in [
        long.clone(),
        format!("[[scheme]]\naction = \"{long}\""),
        format!("[[scheme]]\n{long} = 1"),
        format!("[{{\"action\": \"{long}\", \"{long}\": 1}}]"),
        "4K null null 5 1s null pageout\n".repeat(100_000),
        "[".repeat(100_000),
        "{\"a\":".repeat(100_000),
        "a = [".repeat(100_000),
        format!("a = {}", "[".repeat(100_000)),
        "4K null null 5 1s null nothing\n".repeat(100_000),
        "[[scheme]]\naction = \"nothing\"\n".repeat(20_000),
    ] {
        let error = wrong(&text);
        assert!(error.len() < 100_000, "{} bytes", error.len());
    }
}

/// A valid file of a format, changed in places.
fn mutants() -> impl Strategy<Value = (Format, String)> {
    let change = (
        any::<prop::sample::Index>(),
        0usize..4,
        prop_oneof!["[\\x00-\\x7f]{0,3}", "[0-9]{1,25}", "(max|null|\\.\\.|%|\\[\\[|\\{)"],
    );
    (entry(), 0usize..3, prop::collection::vec(change, 0..8)).prop_map(|(entry, format, changes)| {
        let format = Format::ALL[format];
        let mut text: Vec<char> = write(&[entry], format).0.chars().collect();
        for (at, cut, new) in changes {
            let at = at.index(text.len() + 1);
            let end = (at + cut).min(text.len());
            text.splice(at..end, new.chars());
        }
        (format, text.into_iter().collect())
    })
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: std::env::var("ISOTHERM_MUTANTS").ok().and_then(|n| n.parse().ok()).unwrap_or(1000),
        ..ProptestConfig::default()
    })]

    #[test]
    fn changed_files_are_read_or_refused((format, text) in mutants()) {
        for given in [None, Some(format)] {
            match parse(&text, given) {
                // What is valid can be written in every format.
                Ok(file) => {
                    Format::ALL.into_iter().for_each(|to| drop(write(&file.entries, to)));
                    let again = parse(&write(&file.entries, Format::Toml).0, Some(Format::Toml));
                    prop_assert!(again.is_ok(), "{again:?}");
                }
                Err(errors) => prop_assert!(!errors.0.is_empty() && !errors.to_string().is_empty()),
            }
        }
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>(), format in 0usize..3) {
        let _ = parse(&text, None);
        let _ = parse(&text, Some(Format::ALL[format]));
    }
}
