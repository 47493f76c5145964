//! The files that reports and `isotherm convert` read and write.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{isotherm, made_up, run};
use isotherm_record::Format;
use std::process::Stdio;
use tempfile::tempdir;

const DEFAULT: &str = "isotherm.rec";

#[test]
fn a_picture_replaces_nothing_but_a_picture_of_ones_own() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    made_up(dir, DEFAULT, Format::Rec);
    std::fs::copy(dir.join(DEFAULT), dir.join("rec.png")).unwrap();
    std::fs::write(dir.join("notes.svg"), "all my work").unwrap();
    std::fs::write(dir.join("page.svg"), "<!doctype html>").unwrap();
    std::fs::write(dir.join("empty.png"), "").unwrap();
    std::fs::write(dir.join("holiday.png"), b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR").unwrap();
    std::fs::write(dir.join("logo.svg"), "<svg xmlns=\"http://www.w3.org/2000/svg\"/>").unwrap();
    let cases = [
        ("rec.png", "a recording"),
        ("notes.svg", "a text"),
        ("page.svg", "another HTML page"),
        ("holiday.png", "another picture"),
        ("logo.svg", "another picture"),
    ];
    for report in ["heatmap", "wss", "regions"] {
        for (file, what) in cases {
            let before = std::fs::read(dir.join(file)).unwrap();
            let sentence = format!(
                "{file} exists and is not a picture made by isotherm but {what}; it is left as it is"
            );
            run(dir, &["report", report, "-o", file]).fails(1, &[&sentence, "choose another name"]);
            assert_eq!(std::fs::read(dir.join(file)).unwrap(), before);
        }
        for file in ["empty.png", "new.png", "new.png", "new.svg"] {
            run(dir, &["report", report, "-o", file]).ok();
        }
        // A picture of one kind over one of the other, under whatever name.
        std::fs::rename(dir.join("new.svg"), dir.join("new.png")).unwrap();
        run(dir, &["report", report, "-o", "new.png"]).ok();
        assert!(std::fs::read(dir.join("new.png")).unwrap().starts_with(b"\x89PNG"));
    }
    // Nor does a recording replace a picture.
    run(dir, &["convert", DEFAULT, "new.png"])
        .fails(1, &["is not a recording but a picture made by isotherm"]);
    let left = std::fs::read_dir(dir)
        .unwrap()
        .filter(|e| e.as_ref().unwrap().file_name().to_string_lossy().contains("partial"));
    assert_eq!(left.count(), 0, "no drafts are left");
}

#[test]
fn a_recording_comes_through_a_pipe_too() {
    let dir = tempdir().unwrap();
    let path = made_up(dir.path(), DEFAULT, Format::Rec);
    for report in ["access", "heatmap", "wss", "regions", "raw"] {
        let mut command = isotherm(dir.path(), &["report", report, "-i", "-"]);
        let done = command.stdin(std::fs::File::open(&path).unwrap()).output().unwrap();
        assert!(done.status.success(), "{report}: {}", String::from_utf8_lossy(&done.stderr));
        assert!(done.stdout.len() > 500, "{report}");
    }
}

#[test]
fn a_reader_that_leaves_early_is_no_error_to_talk_about() {
    let dir = tempdir().unwrap();
    made_up(dir.path(), DEFAULT, Format::Rec);
    let mut command = isotherm(dir.path(), &["report", "raw"]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!(String::from_utf8_lossy(&done.stderr), "");
    assert!(!done.status.success());
}

/// What the formats can carry comes back: the regions of every snapshot.
#[test]
fn a_recording_survives_the_way_there_and_back() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    made_up(dir, DEFAULT, Format::Rec);
    let regions = |file: &str, options: &[&str]| {
        let raw = run(dir, &[&["report", "raw", "-i", file], options].concat()).ok();
        // Target, addresses, size and count; times may be rounded, and ages are not everywhere.
        let row = |l: &str| l.split(' ').skip(2).take(5).collect::<Vec<_>>().join(" ");
        raw.lines().filter(|l| !l.starts_with('#')).map(row).collect::<Vec<_>>()
    };
    let original = regions(DEFAULT, &[]);
    for (name, options) in [
        ("damon.data", &[][..]),
        ("plain.json", &[]),
        ("out.perf.txt", &["--sample", "5ms", "--aggr", "100ms"]),
        ("out.damon", &["--sample", "5ms", "--aggr", "100ms"]),
    ] {
        let done = run(dir, &["convert", DEFAULT, name]);
        assert!(done.err.contains("has no place for"), "{name}: {}", done.err);
        done.ok();
        assert_eq!(regions(name, options), original, "{name}");
        let back = format!("back-from-{name}.rec");
        run(dir, &[&["convert", name, &back][..], options].concat()).ok();
        assert_eq!(regions(&back, &[]), original, "back from {name}");
    }
    run(dir, &["convert", DEFAULT, "copy.rec"]).ok();
    let whole = |file: &str| run(dir, &["report", "raw", "--json", "-i", file]).ok();
    assert_eq!(whole("copy.rec"), whole(DEFAULT));
    run(dir, &["convert", DEFAULT, "out.parquet"]).ok();
    assert!(std::fs::read(dir.join("out.parquet")).unwrap().starts_with(b"PAR1"));
    run(dir, &["convert", "out.parquet", "back.rec"]).ok();
    for report in ["raw", "wss", "access", "heatmap"] {
        let shown = |file: &str| run(dir, &["report", report, "--json", "-i", file]).ok();
        assert_eq!(shown("out.parquet"), shown(DEFAULT), "{report}");
        assert_eq!(shown("back.rec"), shown(DEFAULT), "{report}");
    }
    // Options stand anywhere.
    for words in [
        ["convert", DEFAULT, "named-otherwise", "--to", "record-v1"],
        ["convert", DEFAULT, "--to", "record-v1", "named-otherwise"],
        ["convert", "--to", "record-v1", DEFAULT, "named-otherwise"],
    ] {
        run(dir, &words).ok();
        assert_eq!(regions("named-otherwise", &["--sample", "5ms", "--aggr", "100ms"]), original);
        std::fs::remove_file(dir.join("named-otherwise")).unwrap();
    }
}

#[test]
fn convert_destroys_nothing() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    made_up(dir, DEFAULT, Format::Rec);
    std::fs::write(dir.join("thesis.txt"), "all my work").unwrap();
    std::fs::write(dir.join("package.json"), "{\"name\": \"mine\"}").unwrap();
    for mine in ["thesis.txt", "package.json"] {
        let before = std::fs::read(dir.join(mine)).unwrap();
        run(dir, &["convert", DEFAULT, mine]).fails(1, &[mine, "is not a recording", "choose another name"]);
        assert_eq!(std::fs::read(dir.join(mine)).unwrap(), before);
    }
    std::os::unix::fs::symlink(DEFAULT, dir.join("link.rec")).unwrap();
    let before = std::fs::read(dir.join(DEFAULT)).unwrap();
    for same in [DEFAULT, "./isotherm.rec", "link.rec"] {
        run(dir, &["convert", DEFAULT, same]).fails(2, &["same file"]);
    }
    assert_eq!(std::fs::read(dir.join(DEFAULT)).unwrap(), before);
    // A failure halfway leaves the recording that was there, and no fragments.
    run(dir, &["convert", DEFAULT, "good.rec"]).ok();
    let good = std::fs::read(dir.join("good.rec")).unwrap();
    run(dir, &["convert", "thesis.txt", "good.rec"]).fails(1, &["thesis.txt"]);
    assert_eq!(std::fs::read(dir.join("good.rec")).unwrap(), good);
    run(dir, &["convert", DEFAULT, "/dev/full"]).fails(1, &["/dev/full", "No space left", "free some space"]);
    run(dir, &["convert", DEFAULT, "no/such/dir.rec"]).fails(1, &["no/such/dir.rec", "check the path"]);
    let mut names: Vec<_> =
        std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(names, ["good.rec", DEFAULT, "link.rec", "package.json", "thesis.txt"]);
}

#[test]
fn what_cannot_be_read_says_why_and_what_to_do() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    run(dir, &["report", "heatmap"]).fails(1, &["isotherm.rec", "isotherm record"]);
    run(dir, &["report", "wss", "-i", "other.rec"]).fails(1, &["other.rec", "isotherm record"]);
    std::fs::write(dir.join("empty.rec"), "").unwrap();
    std::fs::write(dir.join("random.rec"), [0x5au8; 4000]).unwrap();
    std::fs::create_dir(dir.join("folder")).unwrap();
    for report in ["access", "heatmap", "wss", "regions", "raw"] {
        run(dir, &["report", report, "-i", "empty.rec"]).fails(1, &["empty.rec", "empty"]);
        run(dir, &["report", report, "-i", "random.rec"]).fails(1, &["random.rec", "not a recording"]);
        run(dir, &["report", report, "-i", "folder"]).fails(1, &["folder"]);
    }
    run(dir, &["convert", "random.rec", "out.rec"]).fails(1, &["random.rec", "not a recording"]);
    assert!(!dir.join("out.rec").exists());
    made_up(dir, DEFAULT, Format::Rec);
    std::fs::write(dir.join("perf.data"), "PERFILE2 and what follows it").unwrap();
    run(dir, &["report", "wss", "-i", "perf.data"]).fails(1, &["perf.data", "perf script -i FILE"]);
    std::fs::write(dir.join("cut.json"), "[{\"target_id\":1,\"snapshots\":[{\"start_time\"").unwrap();
    let cut = run(dir, &["report", "wss", "-i", "cut.json"]);
    assert!(!cut.err.contains("is used"), "{}", cut.err);
    cut.fails(1, &["cut.json", "cut off at byte 42, before the end of its first snapshot"]);
    run(dir, &["report", "wss", "--target", "nobody"]).fails(1, &["nobody", "there are"]);
    for (args, part) in [
        (&["report", "wss", "--time", "5"][..], "unit"),
        (&["report", "access", "--rate", "5"], "no unit"),
        (&["report", "access", "--sort", "colour"], "address, size, resident, rate"),
        (&["report", "heatmap", "--scale", "cube"], "linear"),
        (&["convert", "a", "b", "--to", "csv"], "json_compressed"),
    ] {
        run(dir, args).fails(2, &[part]);
    }
}

#[test]
fn a_damaged_recording_is_used_as_far_as_it_goes_and_the_report_says_so() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    let path = made_up(dir, DEFAULT, Format::Rec);
    let whole = std::fs::read(&path).unwrap();
    std::fs::write(dir.join("cut.rec"), &whole[..whole.len() * 2 / 3]).unwrap();
    for report in ["access", "heatmap", "wss", "regions", "raw"] {
        let done = run(dir, &["report", report, "-i", "cut.rec"]);
        assert!(done.err.contains("cut.rec") && done.err.contains("cut off"), "{}", done.err);
        assert!(done.ok().contains("incomplete recording"), "{report}");
    }
    let json = run(dir, &["report", "wss", "-i", "cut.rec", "--json"]).json();
    assert!(json["provenance"]["truncated"].as_str().unwrap().contains("cut off"), "{json}");
    // Converted, what is left is a proper recording of it.
    run(dir, &["convert", "cut.rec", "rest.rec"]).ok();
    let count = |file: &str| {
        run(dir, &["report", "raw", "-i", file]).ok().lines().filter(|l| !l.starts_with('#')).count()
    };
    assert_eq!(count("rest.rec"), count("cut.rec"));
    assert!(count("cut.rec") > 1000);
    // What is lost in the middle was recorded, and is missed: all that is left is shown, and a script is told.
    let mut damaged = whole.clone();
    damaged[whole.len() / 2..whole.len() / 2 + 64].iter_mut().for_each(|byte| *byte ^= 0x5a);
    std::fs::write(dir.join("bad.rec"), &damaged).unwrap();
    for args in [
        &["report", "access", "-i", "bad.rec"][..],
        &["report", "heatmap", "-i", "bad.rec"],
        &["report", "wss", "-i", "bad.rec"],
        &["report", "raw", "-i", "bad.rec"],
        &["report", "summary", "-i", "bad.rec"],
        &["report", "info", "-i", "bad.rec"],
        &["report", "html", "-i", "bad.rec", "-o", "bad.html"],
        &["convert", "bad.rec", "left.rec"],
        &["report", "diff", "bad.rec", "rest.rec"],
    ] {
        let done = run(dir, args);
        assert!(done.err.contains("are damaged"), "{args:?}: {}", done.err);
        assert_eq!(done.status.code(), Some(1), "{args:?}: {}", done.err);
    }
    assert!(run(dir, &["report", "raw", "-i", "left.rec"]).ok().lines().count() > 1000);
    // Who gets the copy is told too, also where the end that would say it is what is missing.
    std::fs::write(dir.join("both.rec"), &damaged[..whole.len() * 3 / 4]).unwrap();
    for (from, words) in
        [("bad", &["are damaged"][..]), ("both", &["are damaged", "cut off"]), ("cut", &["cut off"])]
    {
        for to in ["copy.rec", "copy.parquet"] {
            run(dir, &["convert", &format!("{from}.rec"), to]);
            let copy = run(dir, &["report", "wss", "-i", to]).ok().replace('\n', " ");
            assert!(words.iter().all(|word| copy.contains(word)), "{from}, {to}: {copy}");
            std::fs::remove_file(dir.join(to)).unwrap();
        }
    }
    let same = run(dir, &["report", "diff", "--exit-code", "bad.rec", "left.rec"]);
    assert_ne!(same.status.code(), Some(0), "{}{}", same.out, same.err);
}

/// A directory stands for the recordings in it: it is said which these are.
#[test]
fn of_a_directory_it_is_said_what_is_read() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    std::fs::create_dir(dir.join("run")).unwrap();
    made_up(&dir.join("run"), "b.rec", Format::Rec);
    std::fs::write(dir.join("run/notes.txt"), "of that day").unwrap();
    for report in ["wss", "access", "heatmap", "summary"] {
        let done = run(dir, &["report", report, "-i", "run"]);
        assert_eq!(done.err.matches("isotherm: run: b.rec is read").count(), 1, "{report}: {}", done.err);
    }
    made_up(&dir.join("run"), "a.rec", Format::Rec);
    let done = run(dir, &["report", "raw", "-i", "run"]);
    assert!(
        done.err.contains("isotherm: run: 2 files, a.rec to b.rec, are read as one recording"),
        "{}",
        done.err
    );
    assert!(run(dir, &["report", "wss", "-i", "run/b.rec"]).err.is_empty());
    // What was emptied, or is damaged from its first byte on, is missed.
    std::fs::write(dir.join("run/c.rec"), "").unwrap();
    std::fs::write(dir.join("run/d.rec"), [0x5a; 4096]).unwrap();
    let said = run(dir, &["report", "wss", "-i", "run"]).err;
    assert!(said.contains("c.rec is empty and is left out"), "{said}");
    assert!(said.contains("d.rec does not begin as") && !said.contains("notes.txt"), "{said}");
    for i in 0..20 {
        std::fs::write(dir.join(format!("run/e{i:02}.rec")), "").unwrap();
    }
    let said = run(dir, &["report", "wss", "-i", "run"]).err;
    assert!(said.contains("17 more are left out") && said.lines().count() < 12, "{said}");
}
