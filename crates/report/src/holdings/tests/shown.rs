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
        assert!(text.contains("?: most of it could not be observed"), "{text}");
    }
}

#[test]
fn formats_that_do_not_tell_what_is_unknown_do_not_say_that_nothing_is() {
    let text = table(&report("imported from json", Sort::Ws1s), 100);
    assert_eq!(line(&text, "idle").last(), Some(&"?"), "{text}");
    let mut csv = Vec::new();
    write_csv(&report("imported from json", Sort::Ws1s), &mut csv).unwrap();
    assert!(String::from_utf8(csv).unwrap().lines().skip(1).all(|line| line.ends_with(',')));
    assert_eq!(line(&table(&report("pte", Sort::Ws1s), 100), "idle").last(), Some(&"0"));
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

/// One file, mapped twice by one process: its line and the total are the same.
#[test]
fn the_total_of_one_process_is_its_line() {
    let mut analysis = HoldingsAnalysis::new(HoldingsOptions::default());
    let maps = vec![
        mapping(0, 2 * MIB, "r--p", "/lib/a.so", 7, 0),
        mapping(4 * MIB, 6 * MIB, "rw-p", "/lib/a.so", 7, 0),
        mapping(8 * MIB, 9 * MIB, "rw-p", "[heap]", 0, 0),
    ];
    analysis.item(&mappings(1, maps));
    let mut live = Holdings::new(Vec::new());
    for i in 0..20 {
        let regions = vec![
            region(0, 2 * MIB, 3),
            region(4 * MIB, 6 * MIB, 1),
            RegionSnapshot { nr_accesses_bp: 777, ..region(8 * MIB, 9 * MIB, 0) },
        ];
        analysis.item(&Item::Snapshot(snapshot(i, 1, regions.clone())));
        live.item(&Item::Snapshot(snapshot(i, 1, regions)));
    }
    let report = analysis.finish();
    assert_eq!(report.totals, report.processes[0].figures);
    assert_eq!(report.totals.mapped, 5 * MIB);
    let stock = live.stock();
    assert_eq!((stock.processes.len(), stock.processes[0].1), (1, stock.totals));
    assert_eq!(stock.totals, live.totals());
}

/// All that came and went is in a line, or counted in one.
#[test]
fn short_lived_processes_are_counted() {
    use isotherm_record::TargetEnd;
    let mut analysis = HoldingsAnalysis::new(HoldingsOptions { limit: 20, ..HoldingsOptions::default() });
    let second = 1_000_000_000;
    analysis.item(&Item::Snapshot(snapshot(0, 1, vec![region(0, MIB, 1)])));
    let mut tenths = 1;
    for id in 2..1002 {
        let time_ns = tenths * second / 10;
        analysis.item(&Item::Target(TargetInfo { id, pid: id as u32, time_ns, ..TargetInfo::default() }));
        // Of every third a snapshot is taken.
        if id % 3 == 0 {
            analysis.item(&Item::Snapshot(snapshot(tenths, id, vec![region(0, MIB, 1)])));
            tenths += 1;
        }
        let end = TargetEnd { target: id, time_ns: time_ns + id * 20_000, ..TargetEnd::default() };
        analysis.item(&Item::TargetEnd(end));
    }
    analysis.item(&Item::Snapshot(snapshot(tenths, 1, vec![region(0, MIB, 1)])));
    let report = analysis.finish();
    assert_eq!((report.nr_processes, report.nr_ended), (334, 333));
    assert_eq!(report.nr_unseen, 667);
    assert_eq!(report.processes.len() as u64 + report.hidden, 334);
    let text = table(&report, 100);
    assert!(text.contains("314 processes are not listed"), "{text}");
    let text = text.replace('\n', " ");
    let unseen = "667 more processes ended before a snapshot of them was taken, within 20 ms of being found: nothing is known of them";
    assert!(text.contains(unseen), "{text}");
}

/// Of a list that was not read to its end no more is known to be mapped than it says.
#[test]
fn what_is_mapped_of_a_list_without_an_end_is_said_to_be_a_part() {
    let text = |partial: bool, mapping: &str| {
        let mut analysis =
            HoldingsAnalysis::new(HoldingsOptions { mapping: mapping.to_owned(), ..Default::default() });
        let mut list = mappings(1, vec![mapping_of(0, MIB, "/srv/a"), mapping_of(MIB, 2 * MIB, "/srv/b")]);
        if let Item::Mappings(list) = &mut list {
            list.partial = partial;
        }
        analysis.note(&list);
        span(0, 1, &[region(0, 2 * MIB, 0)]).iter().for_each(|s| analysis.snapshot(s));
        let report = analysis.finish();
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["processes"][0]["is_partial"].as_bool(), partial.then_some(true));
        assert_eq!(json["nr_partial"].as_u64(), partial.then_some(1));
        assert_eq!(json["totals_are_of_more"].as_bool(), (!mapping.is_empty()).then_some(true));
        table(&report, 100)
    };
    let said = "of 1 process the list of mappings was not read to its end";
    assert!(text(true, "").contains(said) && !text(false, "").contains(said), "{}", text(true, ""));
    // Nor is the total that of the lines that were asked for.
    let one = text(false, "srv/a");
    let total = line(&one, "total of all");
    assert!(one.contains("  a ") && !one.contains("  b ") && total.contains(&"2.0M"), "{one}");
    assert!(!text(false, "").contains("of all"));
}

fn mapping_of(start: u64, end: u64, path: &str) -> isotherm_record::Mapping {
    mapping(start, end, "r--s", path, 1 + start, 0)
}
