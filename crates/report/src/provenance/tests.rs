use super::*;
use isotherm_damon::TargetId;
use isotherm_record::{End, TargetEnd};

fn recorded() -> Provenance {
    let mut provenance = Provenance::default();
    provenance.note(&Item::Header(Header {
        host: "box".to_owned(),
        kernel: "6.1.0".to_owned(),
        machine: "x86_64".to_owned(),
        command: vec!["redis-server".to_owned(), "--save\u{7}".to_owned()],
        started_ns: 1_000,
        attrs: RecordedAttrs { sample_us: 5_000, aggr_us: 100_000, ..RecordedAttrs::default() },
        backend: Backend { name: "refs".to_owned(), coarse: true, blind_spots: vec!["guess".to_owned()] },
        overhead_limit: 0.01,
        ..Header::default()
    }));
    provenance
}

#[test]
fn head_and_foot_say_who_saw_it_and_what_it_could_not_see() {
    let mut provenance = recorded();
    provenance.note(&Item::Cost(Cost { clears_cut: 7, wall_ns: 1_000_000_000, ..Cost::default() }));
    provenance.truncated = Some("cut after 3 s".to_owned());
    let head = provenance.head().join("\n");
    assert!(head.contains("refs: whole mappings only") && head.contains("sampling 5 ms"), "{head}");
    assert!(head.contains("redis-server '--save?'"), "{head}");
    let foot = provenance.foot().join("\n");
    for part in ["coarse", "blind spot: guess", "1 % of a CPU", "7 clears", "cut after 3 s"] {
        assert!(foot.contains(part), "{part} in {foot}");
    }
}

#[test]
fn the_head_shows_where_an_argument_ends() {
    let mut provenance = Provenance::default();
    let command = ["sh", "-c", "sleep 1; echo a"].map(str::to_owned).into();
    provenance.note(&Item::Header(Header { command, ..Header::default() }));
    let title = provenance.title(100);
    assert!(title.starts_with("sh -c 'sleep 1; echo a': "), "{title}");
}

#[test]
fn the_end_replaces_blind_spots_only_when_it_knows_better() {
    let mut provenance = recorded();
    provenance.note(&Item::End(End { reason: "interrupted".to_owned(), ..End::default() }));
    assert_eq!(provenance.backend.blind_spots, ["guess"]);
    provenance.note(&Item::End(End { blind_spots: vec!["measured".to_owned()], ..End::default() }));
    assert_eq!(provenance.backend.blind_spots, ["measured"]);
}

#[test]
fn lists_of_mappings_that_were_not_read_to_their_end_are_told() {
    let list = |target, partial| {
        Item::Mappings(Mappings {
            target,
            partial,
            maps: [isotherm_record::Mapping::default()].into(),
            time_ns: 0,
        })
    };
    let mut provenance = recorded();
    provenance.note(&list(1, true));
    provenance.note(&list(2, true));
    provenance.note(&list(3, false));
    let foot = provenance.foot().join("\n");
    assert!(foot.contains("the mappings of 2 processes are not known"), "{foot}");
    assert!(foot.contains("longer recording") && foot.contains("--overhead"), "{foot}");
    provenance.note(&list(2, false));
    assert!(provenance.foot().join("\n").contains("the mappings of one process are not known"));
    provenance.note(&list(1, false));
    assert!(!provenance.foot().join("\n").contains("the mappings of"), "it was read on");
}

#[test]
fn a_target_that_runs_another_program_is_still_one() {
    let mut provenance = recorded();
    for comm in ["sh", "sleep"] {
        let info = TargetInfo { id: 7, pid: 7, comm: comm.to_owned(), ..TargetInfo::default() };
        provenance.note(&Item::Target(info));
    }
    assert_eq!(provenance.nr_targets, 1);
    assert_eq!(provenance.target_name(TargetId(7)), "sleep (pid 7)");
}

#[test]
fn each_of_many_targets_counts_once_however_often_it_runs_another_program() {
    let mut provenance = recorded();
    for comm in ["sh", "make", "cc"] {
        for id in 0..3_000 {
            let info = TargetInfo { id, comm: comm.to_owned(), ..TargetInfo::default() };
            provenance.note(&Item::Target(info));
        }
    }
    assert_eq!((provenance.nr_targets, provenance.targets.len()), (3_000, MAX_TARGETS));
    // One that leaves a control group and comes back is the same, and what ended long ago takes no memory.
    let end = |target| Item::TargetEnd(TargetEnd { target, ..TargetEnd::default() });
    provenance.note(&end(2_999));
    provenance.note(&Item::Target(TargetInfo { id: 2_999, ..TargetInfo::default() }));
    assert_eq!(provenance.nr_targets, 3_000);
    for id in 3_000..3_000 + 2 * counted::MAX_ENDED as u64 {
        provenance.note(&Item::Target(TargetInfo { id, ..TargetInfo::default() }));
        provenance.note(&end(id));
    }
    assert_eq!(provenance.nr_targets, 3_000 + 2 * counted::MAX_ENDED as u64);
    assert!(provenance.counted.len() < 3_000 + counted::MAX_ENDED);
}

#[test]
fn processes_that_were_not_seen_are_told_and_unknown_is_not_none() {
    let foot = |costs: &[(u64, Option<u64>, u64)]| {
        let mut provenance = recorded();
        for &(seen, too_short, waiting) in costs {
            let at_most = too_short.unwrap_or(50);
            let processes = Some(Processes { seen, too_short, at_most, waiting, ..Processes::default() });
            provenance.note(&Item::Cost(Cost { processes, ..Cost::default() }));
        }
        provenance.foot().into_iter().find(|line| line.starts_with("processes"))
    };
    assert_eq!(foot(&[]), None, "a recording that does not say");
    assert_eq!(foot(&[(3, Some(0), 2), (1, Some(0), 0)]), None);
    let said = foot(&[(3, Some(1900), 7), (1, Some(98), 2)]).unwrap();
    assert!(said.contains("4 were targets, 1998 more") && said.contains("2 more still waited"), "{said}");
    let said = foot(&[(3, Some(1), 0), (1, None, 0)]).unwrap();
    assert!(said.contains("not known with refs: at most 51"), "{said}");
    let mut provenance = recorded();
    let too_short = Some(2);
    let late = Processes {
        seen: 9,
        too_short,
        unreached: 148,
        longest_wait_ns: 2_900_000_000,
        ..Processes::default()
    };
    provenance.note(&Item::Cost(Cost { processes: Some(late), ..Cost::default() }));
    let said = provenance.foot().join("\n");
    for part in [
        "2 more ended too soon to be",
        "148 more ended while they waited for it, for up to 2.9 s",
        "--overhead",
    ] {
        assert!(said.contains(part), "{part} in {said}");
    }
}

#[test]
fn many_missed_intervals_come_with_advice_and_few_without() {
    let foot = |missed| {
        let mut provenance = recorded();
        provenance.note(&Item::Cost(Cost {
            wall_ns: 13_000_000_000,
            samples_missed: missed,
            snapshots_lost: 1,
            ..Cost::default()
        }));
        provenance.foot().join("\n")
    };
    let many = foot(1952);
    for part in ["1952 of 2600 sampling intervals missed", "--sample", "--overhead", "1 snapshot"] {
        assert!(many.contains(part) && !many.contains("1 snapshots"), "{part} in {many}");
    }
    assert!(foot(26).contains("26 of 2600") && !foot(26).contains("--sample"), "{}", foot(26));
}

#[test]
fn costs_add_up() {
    let mut provenance = recorded();
    let cost = Cost {
        wall_ns: 1_000_000_000,
        cpu_ns: 5_000_000,
        checks: 10,
        resident_pages: 100,
        ..Cost::default()
    };
    provenance.note(&Item::Cost(cost));
    provenance.note(&Item::Cost(Cost { max_checks_per_sample: 9, ..cost }));
    assert_eq!(provenance.cost.cpu_share(), Some(0.005));
    assert_eq!(provenance.cost.max_checks_per_sample, 9);
    // 100 pages, 200 samples a second, 2 s.
    assert!((provenance.cost.full_scan_checks - 40_000.0).abs() < 1e-6);
}
