//! Recordings that hold what nobody expects: whoever made them chose the names in them.
#![allow(clippy::unwrap_used, reason = "what fails here fails the test")]

mod common;

use common::{Done, run};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{
    Backend, Cost, End, Format, Header, Item, Mapping, Mappings, RecordedAttrs, SchemeAction, TargetEnd,
    TargetInfo, create,
};
use std::path::Path;
use tempfile::tempdir;

const SECOND: u64 = 1_000_000_000;

fn header() -> Header {
    Header {
        started_unix_ns: 1_000_000_000 * SECOND,
        started_ns: SECOND,
        page_size: 4096,
        attrs: RecordedAttrs { sample_us: 5_000, aggr_us: 100_000, ..RecordedAttrs::default() },
        backend: Backend { name: "pte".to_owned(), ..Backend::default() },
        ..Header::default()
    }
}

fn target(id: u64, comm: &str) -> Item {
    let comm = comm.to_owned();
    Item::Target(TargetInfo { id, pid: id as u32, comm, time_ns: SECOND, ..TargetInfo::default() })
}

fn mapping(start: u64, pages: u64, name: &str, inode: u64) -> Mapping {
    let (end, perms) = (start + pages * 4096, "rw-s".into());
    Mapping { start, end, perms, name: name.into(), device: (8, 1), inode, offset: 0 }
}

/// What these targets map, accessed in every interval, from the `nth` tenth of a second on.
fn taken(nth: u64, targets: &[(u64, &[Mapping])]) -> Item {
    let region = |m: &Mapping| RegionSnapshot {
        range: AddrRange::new(m.start, m.end),
        nr_accesses: 20,
        nr_accesses_bp: 200_000,
        ..RegionSnapshot::default()
    };
    let target = |(id, maps): &(u64, &[Mapping])| {
        TargetSnapshot::new(TargetId(*id), maps.iter().map(region).collect())
    };
    let start_ns = SECOND + nth * SECOND / 10;
    Item::Snapshot(Snapshot {
        start_ns,
        end_ns: start_ns + SECOND / 10,
        sample_ns: 5_000_000,
        max_nr_accesses: 20,
        targets: targets.iter().map(target).collect(),
    })
}

fn mappings(target: u64, maps: &[Mapping]) -> Item {
    Item::Mappings(Mappings { target, time_ns: SECOND, maps: maps.into(), partial: false })
}

fn write(dir: &Path, name: &str, items: impl IntoIterator<Item = Item>) {
    let mut writer = create(&dir.join(name), Format::Rec).unwrap();
    items.into_iter().for_each(|item| writer.write(&item).unwrap());
    writer.finish().unwrap();
}

/// Escape sequences (of one and of two bytes), a bell, and a character that turns the text around.
const EVIL: &str = "\u{1b}[31m\u{9b}2J\u{7}\u{7f}\u{202e}gnp";

fn disturbs(c: char) -> bool {
    c != '\n' && (c.is_control() || c == '\u{202e}')
}

#[test]
fn no_name_reaches_the_terminal_as_an_escape_sequence() {
    let dir = tempdir().unwrap();
    let evil = |what: &str| format!("{what}{EVIL}");
    let recording = |host: &str| {
        let maps = [mapping(0x20_0000, 256, &evil("/x/file"), 7)];
        let header = Header {
            host: host.to_owned(),
            kernel: evil("kernel"),
            producer: evil("producer"),
            command: vec![evil("command")],
            backend: Backend { blind_spots: vec![evil("spot")], ..header().backend },
            ..header()
        };
        let mut items = vec![Item::Header(header), target(5, &evil("comm")), mappings(5, &maps)];
        items.extend((0..20).map(|i| taken(i, &[(5, &maps)])));
        let (scheme, action, time_ns) = (evil("scheme"), evil("action"), 2 * SECOND);
        let (tried, applied) = (4096, 4096);
        items.push(Item::Action(SchemeAction {
            scheme,
            action,
            time_ns,
            tried,
            applied,
            ..SchemeAction::default()
        }));
        items.push(Item::TargetEnd(TargetEnd { target: 5, time_ns: 3 * SECOND, reason: evil("ended") }));
        items.push(taken(21, &[(6, &maps)]));
        items.push(Item::End(End { time_ns: 4 * SECOND, reason: evil("end"), blind_spots: Vec::new() }));
        items
    };
    write(dir.path(), "a.rec", recording(&evil("box")));
    write(dir.path(), "b.rec", recording(&evil("other")));
    let commands: &[&[&str]] = &[
        &["summary"],
        &["summary", "--json"],
        &["summary", "--csv"],
        &["summary", "--csv", "--by", "mapping"],
        &["summary", "--csv", "--by", "object"],
        &["summary", "--by", "object"],
        &["info", "--targets"],
        &["info", "--json"],
        &["heatmap", "--area", "all"],
        &["heatmap", "--json"],
        &["access"],
        &["access", "--json", "--by", "object"],
        &["access", "--target", "nobody"],
        &["wss"],
        &["wss", "--json"],
        &["raw"],
        &["raw", "--json"],
        &["summary", "-i", "a.rec", "b.rec"],
        &["diff", "a.rec", "b.rec"],
        &["diff", "a.rec", "b.rec", "--json"],
    ];
    for args in commands {
        let named = args[0] == "diff" || args.contains(&"-i");
        let input: &[&str] = if named { &[] } else { &["-i", "a.rec"] };
        let done: Done = run(dir.path(), &[&["report"], *args, input].concat());
        assert!(!done.out.is_empty() || !done.status.success(), "{args:?}");
        let found = |text: &str| text.lines().find(|line| line.contains(disturbs)).map(str::to_owned);
        assert_eq!((found(&done.out), found(&done.err)), (None, None), "{args:?}");
    }
    // What JSON escapes is there for whoever reads it.
    let info = run(dir.path(), &["report", "info", "-i", "a.rec", "--json"]).json();
    assert_eq!(info["provenance"]["kernel"], evil("kernel"));
}

#[test]
fn what_was_done_and_spent_at_other_times_is_not_in_a_report_on_some_seconds() {
    let dir = tempdir().unwrap();
    let maps = [mapping(0x20_0000, 256, "/x/file", 7)];
    let mut items = vec![Item::Header(header()), target(5, "sh"), mappings(5, &maps)];
    items.extend((0..60).map(|i| taken(i, &[(5, &maps)])));
    let time_ns = SECOND + 59 * SECOND / 10;
    let (scheme, action) = ("prcl".to_owned(), "pageout".to_owned());
    let (start, end, tried, applied) = (0x20_0000, 0x21_0000, 0x1_0000, 0x1_0000);
    items.push(Item::Action(SchemeAction { time_ns, target: 5, start, end, scheme, action, tried, applied }));
    items.push(Item::Cost(Cost { time_ns, wall_ns: SECOND, samples_missed: 77, ..Cost::default() }));
    items.push(Item::End(End { time_ns: 7 * SECOND, reason: "enough".to_owned(), blind_spots: Vec::new() }));
    write(dir.path(), "isotherm.rec", items);
    let reports: [(&[&str], &[&str]); 5] = [
        (&["heatmap", "--area", "all"], &["--time", "..2s"]),
        (&["wss"], &["--time", "..2s"]),
        (&["access"], &["--time", "..2s"]),
        (&["access"], &["--time", "2s"]),
        (&["summary"], &["--at", "2s"]),
    ];
    for (report, part) in reports {
        let said = |more: &[&str]| run(dir.path(), &[&["report"], report, more].concat()).ok();
        assert!(said(&[]).contains("77 of"), "{report:?}: {}", said(&[]));
        assert!(!said(part).contains("missed"), "{report:?}: {}", said(part));
    }
    let page = |file: &str, more: &[&str]| {
        run(dir.path(), &[&["report", "html", "-o", file], more].concat()).ok();
        std::fs::read_to_string(dir.path().join(file)).unwrap()
    };
    let whole = page("whole.html", &[]);
    assert!(whole.contains("77 of") && whole.contains("pageout"));
    let part = page("part.html", &["--time", "..2s"]);
    assert!(!part.contains("77 of") && !part.contains("pageout"));
}

#[test]
fn comma_separated_values_hold_no_formula_and_tell_objects_of_one_name_apart() {
    let dir = tempdir().unwrap();
    let maps = [
        mapping(0x20_0000, 256, "/x/=cmd|calc,\"q\"", 7),
        mapping(0x40_0000, 256, "/y/same", 8),
        mapping(0x60_0000, 256, "/z/same", 9),
    ];
    let mut items = vec![Item::Header(header()), target(5, "=1+1"), mappings(5, &maps)];
    items.extend((0..20).map(|i| taken(i, &[(5, &maps)])));
    write(dir.path(), "isotherm.rec", items);
    let csv = |by: &str| run(dir.path(), &["report", "summary", "--csv", "--by", by]).ok();
    for by in ["process", "mapping", "object"] {
        let text = csv(by);
        assert!(text.contains("'=1+1") && text.contains("\"'=cmd|calc,\"\"q\"\"\""), "{by}: {text}");
        assert!(!text.contains(",=") && !text.contains(",\"="), "{by}: {text}");
    }
    let objects = csv("object");
    let ids = |name: &str| {
        let lines = objects.lines().filter(|line| line.contains(name));
        lines.map(|line| line.rsplit(',').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert!(objects.lines().next().unwrap().ends_with(",unknown,shared_out,id"), "{objects}");
    assert_eq!(ids(",same,"), ["8:1:8", "8:1:9"]);
}

#[test]
fn names_in_wide_characters_leave_columns_where_they_are() {
    let dir = tempdir().unwrap();
    let maps = |at: u64, name: &str| [mapping(at, 256, name, 0)];
    let (wide, narrow) = (maps(0x20_0000, "/x/日本語日本語日本語"), maps(0x20_0000, "/x/plain"));
    let mut items = vec![Item::Header(header())];
    items.extend([target(5, "日本語日本"), mappings(5, &wide), target(6, "sh"), mappings(6, &narrow)]);
    items.extend((0..20).map(|i| taken(i, &[(5, &wide), (6, &narrow)])));
    write(dir.path(), "isotherm.rec", items);
    for columns in ["40", "80", "160"] {
        let text = run(dir.path(), &["report", "summary", "--width", columns]).ok();
        let lines: Vec<&str> =
            text.lines().filter(|l| l.contains('日') || l.contains("sh 6") || l.contains("plain")).collect();
        // Characters of two columns are one of these each: where they end is where they end for the others.
        let ends = |line: &&str| {
            let figures = line.find("1.0M").or_else(|| line.find("1.0 MiB")).unwrap();
            let wide = line.split_at(figures).0.chars().map(|c| if c.is_ascii() { 1 } else { 2 });
            wide.sum::<usize>()
        };
        let places: Vec<usize> = lines.iter().skip_while(|l| l.contains("pid")).map(ends).collect();
        assert!(places.len() == 4 && places.iter().all(|at| *at == places[0]), "{places:?} {text}");
    }
}
