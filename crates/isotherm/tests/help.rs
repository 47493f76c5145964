//! `--help` and manual pages as people read them.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Done, LONG_ENOUGH, isotherm, run, skip, sleeper};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::tempdir;

/// Ten seconds are for people.
const LONG_ENOUGH_TO_SEE: &str = "2s";

#[test]
fn help_fits_the_terminal_and_its_paragraphs_fill_it() {
    let dir = tempdir().unwrap();
    for width in [80, 100] {
        for command in [
            &[][..],
            &["record"],
            &["convert"],
            &["doctor"],
            &["report", "access"],
            &["report", "heatmap"],
            &["report", "wss"],
            &["scheme", "check"],
            &["scheme", "convert"],
            &["scheme", "try"],
            &["scheme", "apply"],
            &["lab", "accuracy"],
            &["lab", "fork"],
            &["workload"],
        ] {
            let mut help = isotherm(dir.path(), &[command, &["--help"]].concat());
            let help = Done::from(help.env("COLUMNS", width.to_string()).output().unwrap()).ok();
            let lines: Vec<&str> = help.lines().collect();
            for line in &lines {
                let len = line.chars().count();
                assert!(len <= width || line.starts_with("  isotherm"), "{command:?} at {width}: {line}");
            }
            // A line of prose that is followed by another has no room for that one's first word.
            let prose = |line: &str| !line.is_empty() && !line.starts_with(' ') && !line.ends_with(':');
            for pair in lines.windows(2).filter(|pair| prose(pair[0]) && prose(pair[1])) {
                let word = pair[1].split(' ').next().unwrap_or_default().chars().count();
                assert!(pair[0].chars().count() + 1 + word > width, "{command:?} at {width}: {pair:?}");
            }
        }
    }
}

#[test]
fn only_what_is_for_foreign_formats_stands_under_that_heading() {
    let dir = tempdir().unwrap();
    let heading = "Input of other programs:";
    for report in ["summary", "info", "diff", "access", "heatmap", "wss", "regions", "raw", "html"] {
        let help = run(dir.path(), &["report", report, "--help"]).ok();
        let (_, below) = help.split_once(heading).unwrap_or_else(|| panic!("{report}: {help}"));
        let section = below.split("Examples:").next().unwrap();
        let options: Vec<&str> = section
            .lines()
            .filter_map(|line| line.trim_start().strip_prefix("--")?.split(' ').next())
            .collect();
        assert_eq!(options, ["from", "sample", "aggr", "record"], "{report}: {help}");
    }
}

#[test]
fn the_first_steps_work_as_they_stand_in_the_help() {
    let dir = tempdir().unwrap();
    let mut help = isotherm(dir.path(), &["--help"]);
    let help = Done::from(help.env("COLUMNS", "80").output().unwrap()).ok();
    let steps =
        help.lines().skip_while(|line| *line != "First steps:").skip(1).take_while(|line| !line.is_empty());
    let target = sleeper();
    let mut names = Vec::new();
    for step in steps {
        assert!(step.chars().count() <= 80, "{step}");
        let (command, _) =
            step.trim().split_once("  ").unwrap_or_else(|| panic!("{step} says nothing of it"));
        let pid = target.pid().to_string();
        let words: Vec<&str> = command
            .split(' ')
            .skip(1)
            .map(|word| match word {
                "PID" => pid.as_str(),
                "COMMAND" => "sleep",
                "10s" => LONG_ENOUGH_TO_SEE,
                word => word,
            })
            .collect();
        match words[..] {
            // It draws on a terminal until somebody has seen enough.
            ["top"] => run(dir.path(), &["top", "--help"]).ok(),
            // How well it can be watched depends on who runs this.
            ["record", .., "sleep"] => run(dir.path(), &[&words[..], &[LONG_ENOUGH]].concat()).ok(),
            _ => run(dir.path(), &words).ok(),
        };
        names.push(words[0].to_owned());
    }
    assert_eq!(names, ["doctor", "record", "record", "report", "report", "top"], "{help}");
}

#[test]
fn manual_pages_have_arguments_and_examples_line_by_line() {
    let dir = tempdir().unwrap();
    run(dir.path(), &["man", "pages"]).ok();
    let page = |name: &str| fs::read_to_string(dir.path().join("pages").join(name)).unwrap();
    let record = page("isotherm-record.1");
    assert!(record.contains("isotherm record\\fR") && record.contains("COMMAND"), "{record}");
    assert!(record.contains(".SH EXAMPLES\n.TP\n\\fBisotherm record"), "{record}");
    let convert = page("isotherm-convert.1");
    assert!(convert.contains("<IN>") && convert.contains("<OUT>"), "{convert}");
    assert!(page("isotherm-report-heatmap.1").contains("\\-\\-area"));
    let pages = || fs::read_dir(dir.path().join("pages")).unwrap().map(|entry| entry.unwrap().path());
    assert!(pages().count() > 15);
    for path in pages() {
        let Ok(groff) = Command::new("groff").args(["-man", "-Tutf8", "-ww", "-P-c"]).arg(&path).output()
        else {
            return skip("groff is not installed: pages are not set");
        };
        let complaints = String::from_utf8_lossy(&groff.stderr).into_owned();
        assert!(groff.status.success() && complaints.is_empty(), "{}: {complaints}", path.display());
        let text = String::from_utf8_lossy(&groff.stdout).into_owned();
        for line in text.lines().filter(|line| line.trim_start().starts_with("isotherm ")) {
            assert_eq!(line.matches("isotherm record ").count().max(1), 1, "{}: {line}", path.display());
        }
    }
}

#[test]
fn completions_and_manual_pages_are_there() {
    let dir = tempdir().unwrap();
    let dir = dir.path();
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run(dir, &["completions", shell]).ok();
        assert!(script.contains("heatmap") && script.contains("max-regions"), "{shell}");
    }
    run(dir, &["man", "pages"]).ok();
    for page in ["isotherm.1", "isotherm-record.1", "isotherm-report-heatmap.1", "isotherm-convert.1"] {
        let text = fs::read_to_string(dir.join("pages").join(page)).unwrap();
        assert!(text.contains(".TH"), "{page}");
    }
    assert!(run(dir, &["man"]).ok().contains(".TH"));
    run(Path::new("/"), &["man", "/proc/no"]).fails(1, &["/proc/no"]);
}
