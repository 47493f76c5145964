//! What processes that ended did in memory that is still there.

use super::*;

const BASE: u64 = 1 << 30;

/// Part of an object, all of which is in memory unless said otherwise.
fn part(from: u64, to: u64, nr: u32, resident: u64) -> RegionSnapshot {
    RegionSnapshot { resident: Some(resident * MIB), ..region(BASE + from * MIB, BASE + to * MIB, nr) }
}

fn end(target: u64) -> Item {
    Item::TargetEnd(TargetEnd { target, reason: "exited".to_owned(), ..TargetEnd::default() })
}

/// A server, which has a quarter of 8 MiB of buffers in its page tables and uses nothing, and for 20 s a worker that uses half of
/// them and has another program open; then the server alone, for so many seconds.
fn server_after(path: &str, seconds: u64) -> Holdings {
    let mut holdings = Holdings::default();
    let buffers = || mapping(BASE, BASE + 8 * MIB, "rw-s", path, 7, 0);
    holdings.note(&mappings(1, vec![buffers()]));
    let program = mapping(BASE + 8 * MIB, BASE + 9 * MIB, "r-xp", "/usr/bin/worker", 8, 0);
    holdings.note(&mappings(2, vec![buffers(), program]));
    for i in 0..200 + seconds * 10 {
        let mut next = snapshot(i, 1, vec![part(0, 8, 0, 2)]);
        if i < 200 {
            let regions = vec![part(0, 4, 20, 4), part(4, 8, 0, 2), part(8, 9, 2, 1)];
            next.targets.push(TargetSnapshot::new(TargetId(2), regions));
        } else if i == 200 {
            holdings.note(&end(2));
        }
        holdings.snapshot(&next);
    }
    holdings
}

#[test]
fn what_a_worker_did_in_buffers_counts_in_their_windows_after_it_ended() {
    let mib = |bytes: Option<u64>| bytes.map(|bytes| bytes as f64 / MIB as f64);
    for path in ["/dev/zero (deleted)", "/srv/buffers"] {
        let mut holdings = server_after(path, 3);
        let objects = holdings.objects();
        let buffers = objects.iter().find(|object| object.path == path).unwrap();
        assert_eq!((buffers.mappers, buffers.figures.mapped), (1, 8 * MIB));
        // Half as the worker had it, of the other half what either had.
        assert_eq!(buffers.figures.resident, Some(4 * MIB + 4 * MIB * 5 / 8));
        let [second, ten, minute] = buffers.figures.working_sets();
        assert_eq!((second, minute), (Some(0), None), "at the rates of now; nobody knows yet");
        assert!((mib(ten).unwrap() - 4.0).abs() < 0.01, "{ten:?}");
        let cold = mib(buffers.figures.cold_10s).unwrap();
        assert!((cold - 2.5).abs() < 0.02, "{cold} MiB that neither used");
        // A file is there also when nobody maps it any more.
        let program = objects.iter().find(|object| object.path == "/usr/bin/worker").unwrap();
        assert_eq!((program.mappers, program.figures.resident), (0, Some(MIB)));
        assert!(program.figures.ws_10s > Some(MIB / 2), "{program:?}");
        // The sum has the buffers once, with what the worker did there, and nothing of its own.
        let totals = holdings.totals();
        assert_eq!((totals.mapped, totals.resident), (8 * MIB, buffers.figures.resident));
        assert_eq!((totals.ws_10s, totals.cold_10s), (ten, buffers.figures.cold_10s));
        assert_eq!(holdings.stock().totals, totals);
    }
    // Beyond the window it is what is cold.
    let mut holdings = server_after("/srv/buffers", 11);
    let totals = holdings.totals();
    assert_eq!((totals.ws_10s, totals.cold_10s), (Some(0), Some(6 * MIB + MIB / 2)));
    assert_eq!(holdings.stock().totals, totals);
    let longest = server_after("/srv/buffers", 45).totals().ws_60s;
    assert!((mib(longest).unwrap() - 4.0).abs() < 0.01, "{longest:?}");
}

#[test]
fn memory_without_a_name_goes_with_the_last_who_mapped_it() {
    let mut holdings = server_after("/memfd:cache (deleted)", 1);
    holdings.note(&end(1));
    let mut other = snapshot(211, 3, vec![region(0, MIB, 0)]);
    holdings.snapshot(&other);
    let paths = |holdings: &Holdings| holdings.objects().into_iter().map(|o| o.path).collect::<Vec<_>>();
    assert_eq!(paths(&holdings), ["/usr/bin/worker"]);
    assert_eq!(holdings.totals().mapped, MIB);
    assert_eq!(holdings.stock().totals, holdings.totals());
    // Nor is a file that nobody has used for a minute worth a line.
    other.targets[0].steady = true;
    for i in 212..900 {
        (other.start_ns, other.end_ns) = (i * AGGR_NS, (i + 1) * AGGR_NS);
        holdings.snapshot(&other);
    }
    assert!(paths(&holdings).is_empty());
}

/// A server that reads a file of 4 MiB for 20 s and unmaps it, as one does that goes from file to file.
#[test]
fn what_was_done_in_a_file_counts_in_it_after_it_was_unmapped() {
    for (path, has_a_line) in [("/srv/part", true), ("/memfd:part (deleted)", false)] {
        let mut holdings = Holdings::default();
        let heap = || mapping(BASE + 8 * MIB, BASE + 9 * MIB, "rw-p", "[heap]", 0, 0);
        let file = mapping(BASE, BASE + 4 * MIB, "r--s", path, 7, 0);
        holdings.note(&mappings(1, vec![file, heap()]));
        for i in 0..900 {
            if i == 200 {
                holdings.note(&mappings(1, vec![heap()]));
            }
            let mut regions = vec![part(0, 2, 20, 2), part(2, 4, 0, 1), part(8, 9, 0, 1)];
            if i >= 200 {
                regions.drain(..2);
            }
            holdings.snapshot(&snapshot(i, 1, regions));
            let objects = holdings.objects();
            let line = objects.iter().find(|object| object.path == path);
            match i {
                0..200 => assert_eq!(line.map(|o| o.mappers), Some(1)),
                // It is told for a minute after it was used last.
                230 if has_a_line => {
                    let line = line.unwrap();
                    assert_eq!((line.mappers, line.figures.resident), (0, Some(3 * MIB)));
                    assert_eq!((line.figures.ws_1s, line.figures.ws_10s), (0, Some(2 * MIB)));
                    // Nobody maps it: it is no part of the total.
                    assert_eq!((holdings.totals().mapped, holdings.totals().ws_10s), (MIB, Some(0)));
                    assert_eq!(holdings.stock().totals, holdings.totals());
                }
                200..230 | 231..790 => assert_eq!(line.is_some(), has_a_line, "{i}"),
                820.. => assert_eq!(line, None, "{i}"),
                _ => {}
            }
        }
    }
}

/// A compiler that was there in the middle.
#[test]
fn how_things_stood_when_most_was_in_use_is_told_with_what_has_ended() {
    let mut analysis = HoldingsAnalysis::new(HoldingsOptions::default());
    for i in 0..100 {
        let mut next = snapshot(i, 1, vec![region(0, MIB, 20)]);
        if (20..50).contains(&i) {
            let used = if i == 40 { 30 * MIB } else { 20 * MIB };
            let regions = vec![region(0, used, 20), region(used, 64 * MIB, 0)];
            next.targets.push(TargetSnapshot::new(TargetId(2), regions));
        } else if i == 50 {
            analysis.note(&end(2));
        }
        analysis.snapshot(&next);
    }
    let report = analysis.clone().finish();
    assert_eq!((report.totals.mapped, report.totals.ws_1s), (MIB, MIB));
    let highest = report.highest.unwrap();
    assert_eq!((highest.time_ns, highest.figures.ws_1s), (41 * AGGR_NS, 31 * MIB));
    assert_eq!(highest.figures.mapped, 65 * MIB);
    let mut text = Vec::new();
    write_table(&report, 100, &mut text).unwrap();
    let text = String::from_utf8(text).unwrap();
    let line = text.lines().find(|line| line.starts_with("highest, 4.100 s")).unwrap();
    assert!(line.contains(" 65M") && line.contains(" 31M"), "{text}");
    let mut csv = Vec::new();
    write_csv(&report, &mut csv).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    assert!(csv.lines().last().unwrap().starts_with("highest,"), "{csv}");
    // Nothing to tell where all of it still runs.
    let mut running = HoldingsAnalysis::new(HoldingsOptions::default());
    span(0, 2, &[region(0, MIB, 20)]).iter().for_each(|s| running.snapshot(s));
    span(2, 2, &[region(0, MIB, 0)]).iter().for_each(|s| running.snapshot(s));
    assert_eq!(running.finish().highest, None);
}

/// One that has just begun does not say yet what it has; the others do.
#[test]
fn a_newborn_process_leaves_the_sum_known() {
    let mut holdings = Holdings::default();
    for i in 0..20 {
        let mut next = snapshot(i, 1, vec![part(0, 8, 0, 3)]);
        if i == 19 {
            next.targets.push(TargetSnapshot::new(TargetId(2), vec![unknown(0, MIB)]));
        }
        holdings.snapshot(&next);
    }
    let totals = holdings.totals();
    assert_eq!((totals.resident, totals.resident_at_least()), (None, Some(3 * MIB)));
    assert_eq!(totals.unknown, Some(MIB));
    assert_eq!(totals.working_sets()[0], Some(0), "of most of it it is known");
    assert_eq!(serde_json::to_value(totals).unwrap()["resident_at_least"], 3 * MIB);
    let newborn = holdings.figures(TargetId(2)).unwrap();
    assert_eq!((newborn.working_sets()[0], newborn.known_hot()), (None, None));
}

/// Nine tenths of it nobody has looked at: that nothing is hot is not known.
#[test]
fn nothing_hot_in_what_little_is_known_is_unknown() {
    let there = |start, end| RegionSnapshot { resident: Some(end - start), ..region(start, end, 0) };
    let unseen = |start, end| RegionSnapshot { resident: Some(end - start), ..unknown(start, end) };
    let figures = |known: u64, nr| {
        let used = RegionSnapshot { resident: Some(4096), ..region(0, 4096, nr) };
        held(&span(0, 1, &[used, there(4096, known * MIB), unseen(known * MIB, 10 * MIB)])).totals()
    };
    assert_eq!((figures(1, 0).known_hot(), figures(1, 0).working_sets()[0]), (None, None));
    assert_eq!((figures(1, 1).known_hot(), figures(1, 1).working_sets()[0]), (None, Some(4096)));
    assert_eq!(figures(1, 20).known_hot(), Some(4096));
    assert_eq!((figures(6, 0).known_hot(), figures(6, 0).working_sets()[0]), (Some(0), Some(0)));
}

/// A file that one process maps anew every two seconds, here and there: it has as much of it in memory and in use as it has, not as
/// several processes might. So it is while another maps it as well, and after the first has ended.
#[test]
fn what_one_process_maps_again_and_again_is_its_own_only_once() {
    let (base, other) = (1 << 30, 2 << 30);
    let file = |at: u64| mapping(at, at + 8 * MIB, "r--s", "/srv/a", 9, 0);
    let part = |at: u64| RegionSnapshot { resident: Some(2 * MIB), ..region(at, at + 8 * MIB, 20) };
    for others in [false, true] {
        let mut holdings = Holdings::default();
        if others {
            holdings.note(&mappings(2, vec![file(other)]));
        }
        let take = |holdings: &mut Holdings, i: u64, first: Option<u64>| {
            let mut all = snapshot(i, 1, Vec::new());
            all.targets =
                first.map(|at| TargetSnapshot::new(TargetId(1), vec![part(at)])).into_iter().collect();
            if others {
                all.targets.push(TargetSnapshot::new(TargetId(2), vec![part(other)]));
            }
            holdings.snapshot(&all);
        };
        let near = |a: Option<u64>, b: u64| a.is_some_and(|a| a.abs_diff(b) < 64 << 10);
        // A quarter of it, or what two independent quarters come to.
        let expected = if others { 7 * MIB / 2 } else { 2 * MIB };
        for i in 0..400_u64 {
            let at = base + (i / 20 % 2) * 64 * MIB;
            if i % 20 == 0 {
                holdings.note(&mappings(1, vec![file(at)]));
            }
            take(&mut holdings, i, Some(at));
            if i % 20 == 5 && i > 100 {
                let object = holdings.objects()[0].figures;
                assert!(near(object.resident, expected), "{others} {i}: {object:?}");
                assert!(near(object.ws_10s, expected), "{others} {i}: {object:?}");
                assert_eq!(holdings.totals(), holdings.stock().totals);
                assert!(near(holdings.totals().resident, expected), "{others} {i}");
            }
        }
        let reason = "exited".to_owned();
        holdings.note(&Item::TargetEnd(TargetEnd { target: 1, time_ns: 0, reason }));
        take(&mut holdings, 400, None);
        if others {
            let object = holdings.objects()[0].figures;
            assert!(near(object.resident, expected) && near(object.ws_10s, expected), "{object:?}");
        }
    }
}
