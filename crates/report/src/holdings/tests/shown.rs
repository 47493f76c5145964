//! What a reader sees of it.

use super::*;
use crate::holdings::{By, HoldingsAnalysis, HoldingsOptions, Sort, write_csv, write_table};
use isotherm_record::{Backend, Header, TargetInfo};

/// Of three processes: one in use, one of which nothing is known, one that is idle.
fn report(backend: &str, sort: Sort) -> HoldingsReport {
    report_of(12, backend, sort)
}

/// The same of so many seconds.
fn report_of(seconds: u64, backend: &str, sort: Sort) -> HoldingsReport {
    let mut analysis =
        HoldingsAnalysis::new(HoldingsOptions { sort, by: By::Process, ..HoldingsOptions::default() });
    let backend = Backend { name: backend.to_owned(), ..Backend::default() };
    analysis.item(&Item::Header(Header { backend, ..Header::default() }));
    for (id, comm) in [(1, "busy"), (2, "dark"), (3, "idle")] {
        let comm = comm.to_owned();
        analysis.item(&Item::Target(TargetInfo { id, pid: id as u32, comm, ..TargetInfo::default() }));
    }
    for i in 0..seconds * 10 {
        let mut all = snapshot(i, 1, vec![region(0, MIB, 20)]);
        all.targets.extend(snapshot(i, 2, vec![unknown(0, 2 * MIB)]).targets);
        all.targets.extend(snapshot(i, 3, vec![region(0, 3 * MIB, 0)]).targets);
        analysis.item(&Item::Snapshot(all));
    }
    analysis.finish()
}

fn table(report: &HoldingsReport, width: usize) -> String {
    let mut out = Vec::new();
    write_table(report, width, &mut out).unwrap();
    String::from_utf8(out).unwrap()
}

fn line<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    text.lines().find(|line| line.starts_with(name)).unwrap().split_whitespace().collect()
}

#[test]
fn of_what_nothing_is_known_no_working_set_is_known_and_it_comes_last() {
    for sort in [Sort::Ws1s, Sort::Ws10s, Sort::Hot] {
        let report = report("pte", sort);
        let names: Vec<&str> = report.processes.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["busy", "idle", "dark"], "{sort:?}");
        let text = table(&report, 100);
        // Name, pid, mapped, resident; then three working sets and what is hot.
        assert_eq!(line(&text, "dark")[4..8], ["?"; 4], "{text}");
        assert_eq!(line(&text, "idle")[4..8], ["0", "0", "-", "0"], "{text}");
        assert_eq!(line(&text, "dark").last(), Some(&"2.0M"), "{text}");
        assert!(text.contains("?: nothing of it could be observed"), "{text}");
    }
}

#[test]
fn formats_that_do_not_tell_what_is_unknown_do_not_say_that_nothing_is() {
    let text = table(&report("imported from json", Sort::Ws1s), 100);
    assert_eq!(line(&text, "idle").last(), Some(&"?"), "{text}");
    assert!(text.contains("does not tell memory that could not be observed"), "{text}");
    let mut csv = Vec::new();
    write_csv(&report("imported from json", Sort::Ws1s), &mut csv).unwrap();
    assert!(String::from_utf8(csv).unwrap().lines().skip(1).all(|line| line.ends_with(',')));
    assert!(!table(&report("pte", Sort::Ws1s), 100).contains("does not tell"));
}

#[test]
fn a_narrow_table_keeps_what_is_unknown_and_drops_columns_of_nothing_first() {
    // Too short for a working set of 10 s: that of 1 s has its place.
    let text = table(&report_of(5, "pte", Sort::Ws1s), 40);
    let head = text.lines().next().unwrap();
    assert!(head.ends_with("unkn.") && head.contains("ws 1s") && !head.contains("ws10s"), "{text}");
    assert!(text.lines().take(5).all(|line| line.chars().count() <= 40), "{text}");
    for width in 40..100 {
        let text = table(&report("pte", Sort::Ws1s), width);
        assert!(text.lines().take(2).any(|line| line.ends_with("unkn.")), "{width}: {text}");
    }
}

#[test]
fn values_are_called_as_in_json_and_are_the_same() {
    for backend in ["pte", "imported from json"] {
        let report = report(backend, Sort::Ws1s);
        let mut csv = Vec::new();
        write_csv(&report, &mut csv).unwrap();
        let csv = String::from_utf8(csv).unwrap();
        let mut lines = csv.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let names = lines.next().unwrap();
        let json = serde_json::to_value(&report).unwrap();
        let processes = json["processes"].as_array().unwrap();
        let mut figures: Vec<&serde_json::Value> = Vec::new();
        for process in processes {
            figures.push(&process["figures"]);
            figures.extend(process["mappings"].as_array().unwrap().iter().map(|m| &m["figures"]));
        }
        figures.push(&json["totals"]);
        assert_eq!(lines.clone().count(), figures.len(), "{csv}");
        for (cells, figures) in lines.zip(figures) {
            for (name, value) in figures.as_object().unwrap() {
                let at = names.iter().position(|n| n == name).unwrap();
                let told = value.as_u64().map_or_else(String::new, |bytes| bytes.to_string());
                assert_eq!(cells[at], told, "{backend}: {name} of {cells:?}, {figures}");
            }
        }
        if backend == "pte" {
            let dark = processes.iter().find(|p| p["name"] == "dark").unwrap();
            assert!(dark["figures"]["ws_1s"].is_null() && dark["figures"]["hot"].is_null(), "{dark}");
        } else {
            assert!(json["totals"]["unknown"].is_null(), "{json}");
        }
    }
}
