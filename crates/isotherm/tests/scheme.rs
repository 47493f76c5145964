//! `isotherm scheme` as a user runs it.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{made_up, run};
use isotherm_record::Format;
use std::fs;
use std::path::Path;
use tempfile::tempdir;

const PRINTED: &str = "\
    2M null    5 null    null null    hugepage
    2M null    null 5    1s null      nohugepage
    4K null    null 5    5s null      pageout
";

#[test]
fn files_and_presets_are_explained_a_sentence_each() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("printed.txt"), PRINTED).unwrap();
    let said = run(dir.path(), &["scheme", "check", "printed.txt"]).ok();
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.contains("3 (pageout): Page out regions of at least 4 KiB"), "{said}");
    let json = run(dir.path(), &["scheme", "check", "reclaim:min_age=5m", "--json"]).json();
    assert_eq!((json[0]["name"].as_str(), json[0]["action"].as_str()), (Some("reclaim"), Some("pageout")));
    assert!(json[0]["toml"].as_str().unwrap().contains("min_age = \"5m\""), "{json}");
    assert!(run(dir.path(), &["scheme", "check", "--presets"]).ok().contains("min_age=2m"));
    let schema = run(dir.path(), &["scheme", "check", "--json-schema"]).json();
    assert_eq!(schema["title"], "Isotherm scheme file (TOML)");
}

#[test]
fn formats_convert_into_each_other_and_losses_are_told() {
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("printed.txt"), PRINTED).unwrap();
    run(dir.path(), &["scheme", "convert", "printed.txt", "--to", "toml", "-o", "a.toml"]).ok();
    run(dir.path(), &["scheme", "convert", "a.toml", "--to", "damo", "-o", "a.json"]).ok();
    let text = run(dir.path(), &["scheme", "convert", "a.json", "--to", "text", "--strict"]).ok();
    let words = |text: &str| -> Vec<Vec<String>> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    };
    assert_eq!(words(&text), words(PRINTED));
    let lossy = run(dir.path(), &["scheme", "convert", "reclaim", "--to", "text"]);
    assert!(
        lossy.err.contains("scheme reclaim, quota: left out") && lossy.err.contains("watermarks"),
        "{}",
        lossy.err
    );
    lossy.ok();
    let refused =
        run(dir.path(), &["scheme", "convert", "reclaim", "--to", "text", "--strict", "-o", "lost.txt"]);
    refused.fails(1, &["nothing was written", "--strict"]);
    assert!(!at("lost.txt").exists());
    fs::write(at("notes.txt"), "to do: buy milk\n").unwrap();
    run(dir.path(), &["scheme", "convert", "prcl", "--to", "toml", "-o", "notes.txt"])
        .fails(1, &["left as it is"]);
    assert_eq!(fs::read_to_string(at("notes.txt")).unwrap(), "to do: buy milk\n");
    run(dir.path(), &["scheme", "convert", "prcl", "--to", "toml", "-o", "a.toml"]).ok();
    assert!(fs::read_to_string(at("a.toml")).unwrap().contains("prcl"), "a scheme file is replaced");
}

#[test]
fn mistakes_are_named_with_file_line_and_field() {
    let dir = tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("a.toml"), "[[scheme]]\naction = \"pageout\"\nmin_szie = \"4K\"\nmin_age = \"5\"\n")
        .unwrap();
    let parts = [
        "a.toml is not valid",
        "line 3, scheme 1, min_szie",
        "did you mean min_size?",
        "line 4, scheme 1, min_age",
    ];
    run(dir.path(), &["scheme", "check", "a.toml"]).fails(1, &parts);
    run(dir.path(), &["scheme", "check", "recliam"]).fails(1, &["no scheme file recliam", "reclaim"]);
    run(dir.path(), &["scheme", "check", "reclaim:min_aeg=1s"]).fails(1, &["did you mean min_age?"]);
    run(dir.path(), &["scheme", "check"]).fails(2, &["<FILE|PRESET>"]);
    run(dir.path(), &["scheme", "check", "."]).fails(1, &["cannot read ."]);
    fs::write(at("bytes"), [0xff, 0xfe, 0x00]).unwrap();
    run(dir.path(), &["scheme", "check", "bytes"]).fails(1, &["not a text"]);
    run(dir.path(), &["scheme", "try", "prcl", "-i", "none.rec"]).fails(1, &["there is no recording"]);
    run(dir.path(), &["scheme", "try", "prcl", "-i", "none.rec", "--sweep", "min_aeg=1s..2s"])
        .fails(2, &["did you mean min_age?"]);
}

#[test]
fn what_this_machine_lacks_is_said_and_makes_no_file_invalid() {
    let dir = tempdir().unwrap();
    let text = "[[scheme]]\naction = \"migrate_cold\"\nnodes = [4000000]\n\
                [[scheme]]\nname = \"group\"\naction = \"cold\"\nfilters = [{ reject = \"memcg\", path = \"/no/such\" }]\n\
                [[scheme]]\nname = \"sound\"\naction = \"stat\"\n";
    fs::write(dir.path().join("a.toml"), text).unwrap();
    let told = run(dir.path(), &["scheme", "check", "a.toml"]);
    for part in [
        "scheme 1 (migrate_cold): there is no NUMA node 4000000 with memory here, but 0",
        "scheme group: no memory is of cgroup /no/such, which a filter names",
    ] {
        assert!(told.err.contains(part), "{part}: {}", told.err);
    }
    assert_eq!(told.err.lines().count(), 2, "{}", told.err);
    assert_eq!(told.ok().lines().count(), 3);
    let json = run(dir.path(), &["scheme", "check", "a.toml", "--json"]).json();
    let warnings = |at: usize| json[at]["warnings"].as_array().unwrap().len();
    assert_eq!([warnings(0), warnings(1), warnings(2)], [1, 1, 0], "{json}");
}

#[test]
fn the_log_is_no_file_that_is_used_otherwise() {
    let dir = tempdir().unwrap();
    fs::write(dir.path().join("a.toml"), "[[scheme]]\naction = \"stat\"\n").unwrap();
    let pid = std::process::id().to_string();
    let apply = |more: &[&str]| {
        run(dir.path(), &[&["scheme", "apply", "./a.toml", "--pid", &pid, "--duration", "1s"], more].concat())
    };
    apply(&["--log", "a.toml"]).fails(2, &["a.toml holds the schemes"]);
    apply(&["--log", "x", "-o", "./x"]).fails(2, &["x is to be the recording and the log"]);
    assert!(!dir.path().join("x").exists());
}

#[test]
fn a_trial_says_what_is_saved_and_what_comes_back() {
    let dir = tempdir().unwrap();
    let record = made_up(dir.path(), "a.rec", Format::Rec);
    let before = fs::read(&record).unwrap();
    let text = run(dir.path(), &["scheme", "try", "prcl:min_age=200ms", "-i", "a.rec"]).ok();
    for part in ["paged out", "refaulted", "Memory kept out", "GiB-seconds"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // Measured on the machine it would be another one each time.
    let speed = ["--throughput", "300M"];
    let one = ["scheme", "try", "prcl:min_age=200ms", "-i", "a.rec", "--json"];
    let json = run(dir.path(), &[&one[..], &speed].concat()).json();
    let scheme = &json["schemes"][0];
    let (out, back) =
        (scheme["applied_bytes"].as_u64().unwrap(), scheme["accessed_again_bytes"].as_u64().unwrap());
    assert!(out > 0 && back < out, "{json}");
    assert!(json["out_bytes"].as_f64().unwrap() <= json["resident_bytes"].as_f64().unwrap());
    // The longer memory must be idle, the less is taken.
    let sweep = ["scheme", "try", "prcl", "-i", "a.rec", "--sweep", "min_age=200ms,1s,3s"];
    let rows = run(dir.path(), &[&sweep[..], &speed, &["--json"]].concat()).json();
    let taken: Vec<u64> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["schemes"][0]["applied_bytes"].as_u64().unwrap())
        .collect();
    assert!(taken.len() == 3 && taken.is_sorted_by(|a, b| a >= b), "{taken:?}");
    assert_eq!(taken[0], out);
    let table = run(dir.path(), &sweep).ok();
    assert!(table.lines().count() >= 4 && table.contains("kept out"), "{table}");
    run(dir.path(), &[&sweep[..], &["-o", "t.svg"]].concat()).ok();
    // What gets less done in its quota's time takes less; what was taken for it is said.
    let slow = ["scheme", "try", "prcl:min_age=200ms", "-i", "a.rec", "--throughput", "pageout=100K"];
    let less = run(dir.path(), &[&slow[..], &["--json"]].concat()).json();
    assert!(less["schemes"][0]["applied_bytes"].as_u64().unwrap() < out, "{less}");
    let text = run(dir.path(), &slow).ok();
    for part in ["it gets the quota of `scheme apply`", "100.0 KiB", "as --throughput says"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let wrong = ["scheme", "try", "prcl", "-i", "a.rec", "--throughput"];
    run(dir.path(), &[&wrong[..], &["pagout=1M"]].concat()).fails(2, &["no action \"pagout\""]);
    run(dir.path(), &[&wrong[..], &["0"]].concat()).fails(2, &["nothing would ever be done"]);
    let picture = fs::read_to_string(dir.path().join("t.svg")).unwrap();
    assert!(picture.contains("resident memory kept out"));
    assert!(!picture.contains("in 0 snapshots"), "the title is that of the recording");
    run(dir.path(), &[&sweep[..], &["-o", "t.png"]].concat()).ok();
    assert!(is_png(&dir.path().join("t.png")));
    assert_eq!(fs::read(&record).unwrap(), before);
}

fn is_png(path: &Path) -> bool {
    fs::read(path).unwrap().starts_with(b"\x89PNG")
}
