//! Every file that a writer here writes is read by the reader here, and what the format can carry comes back.

#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml allows it in the tests only

mod common;

use common::{items_of, snapshots};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::{
    Backend, Cost, End, Format, Header, Item, Mapping, Mappings, ReadOptions, RecordedAttrs, SchemeAction,
    TargetEnd, TargetInfo, create, open_with,
};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// What a recording is made of: each snapshot with the targets it has.
fn recordings() -> impl Strategy<Value = Vec<Item>> {
    let edge = prop_oneof![3 => 0..1000_u64, 1 => Just(1 << 62), 1 => Just(u64::MAX - (1 << 40))];
    let id = prop_oneof![4 => 1..6_u64, 1 => Just(u64::from(u32::MAX)), 1 => Just(u64::MAX - 1)];
    let region = (0..3_u64, 1..9_u64, 0..30_u32, 0..5_u32, 0..4_u8);
    let target = (id, prop::collection::vec(region, 0..6));
    let targets = prop::collection::vec(target, 0..4);
    // What ends less than 10 ms apart passes for one moment in formats that tell of targets one after the other.
    let snapshot = (targets, 11..400_u64, any::<bool>());
    (edge, prop::collection::vec(snapshot, 0..12), 1..20_u64, any::<bool>()).prop_map(
        |(origin, list, sample_us, known)| {
            let sample_ns = if known { sample_us * 1000 } else { 0 };
            let attrs = RecordedAttrs {
                sample_us: sample_ns / 1000,
                aggr_us: sample_ns / 1000 * 20,
                ..RecordedAttrs::default()
            };
            let mut now = origin;
            let mut items = vec![Item::Header(Header {
                host: "a \"host\"".to_owned(),
                started_unix_ns: 1_700_000_000_000_000_000,
                started_ns: origin,
                attrs,
                ..Header::default()
            })];
            for (number, (targets, step, note)) in list.into_iter().enumerate() {
                let start_ns = now;
                // Times come back to the microsecond at least.
                now = (start_ns / 1000 + step * 1000) * 1000;
                if note {
                    items.extend(notes(number as u64, start_ns));
                }
                let mut seen = Vec::new();
                let mut of = Vec::new();
                for (id, regions) in targets {
                    if !seen.contains(&id) {
                        seen.push(id);
                        of.push(TargetSnapshot::new(TargetId(id), made(&regions, id)));
                    }
                }
                of.sort_by_key(|t| t.id);
                let max_nr_accesses = if known { 30 } else { 0 };
                items.push(Item::Snapshot(Snapshot {
                    start_ns,
                    end_ns: now,
                    sample_ns,
                    max_nr_accesses,
                    targets: of,
                }));
            }
            items.push(Item::End(End { time_ns: now, reason: "over".to_owned(), ..End::default() }));
            items
        },
    )
}

fn made(regions: &[(u64, u64, u32, u32, u8)], id: u64) -> Vec<RegionSnapshot> {
    let mut at = if id > 1 << 40 { 0xffff_8000_0000_0000 } else { 0x1000 };
    let region = |&(gap, size, nr, age, kind): &(u64, u64, u32, u32, u8)| {
        let start = at + gap * 4096;
        at = start + size * 4096;
        let (seen_bp, exposure, resident) = match kind {
            0 => (0, 0, None),
            1 => (10_000, RegionSnapshot::COUNTED, None),
            2 => (10_000, 64, Some(4096)),
            _ => (10_000, 64, Some(0)),
        };
        let nr_accesses = if seen_bp == 0 { 0 } else { nr };
        RegionSnapshot {
            range: AddrRange::new(start, at),
            nr_accesses,
            nr_accesses_bp: nr_accesses * 10_000,
            age,
            seen_bp,
            exposure,
            resident,
            idle_bp: if kind == 2 { 7000 } else { 0 },
        }
    };
    regions.iter().map(region).collect()
}

fn notes(number: u64, time_ns: u64) -> Vec<Item> {
    let id = number % 3 + 1;
    let mapping = Mapping {
        start: 0x1000,
        end: 0x1000 + (number + 1) * 4096,
        name: "[heap]".into(),
        ..Mapping::default()
    };
    vec![
        Item::Target(TargetInfo { id, pid: 7, comm: "née\n".to_owned(), time_ns, ..TargetInfo::default() }),
        Item::Mappings(Mappings { target: id, time_ns, maps: [mapping].into(), partial: false }),
        Item::Cost(Cost { time_ns, checks: number, ..Cost::default() }),
        Item::Action(SchemeAction {
            time_ns,
            target: id,
            applied: number,
            scheme: "idle".to_owned(),
            ..SchemeAction::default()
        }),
        Item::Attrs { time_ns, attrs: RecordedAttrs { sample_us: number, ..RecordedAttrs::default() } },
        Item::TargetEnd(TargetEnd { target: id, time_ns, reason: "left".to_owned() }),
    ]
}

/// End and target of a snapshot, and of its regions addresses, accesses and age.
type Carried = (u64, u64, Vec<(AddrRange, u32, u32)>);

/// What is left of a recording in a format: of each snapshot its end, and of each target its regions. A list that damo's
/// formats have one target after another, so it is sorted.
fn carried(format: Format, items: &[Item]) -> Vec<Carried> {
    let mut list = Vec::new();
    for snapshot in snapshots(items) {
        for target in &snapshot.targets {
            // The text has a line a region, and so nothing for a target without.
            if target.regions.is_empty() && format == Format::PerfScript {
                continue;
            }
            let aged = !matches!(format, Format::RecordV0 | Format::RecordV1 | Format::RecordV2);
            let region = |r: &RegionSnapshot| (r.range, r.nr_accesses, if aged { r.age } else { 0 });
            list.push((snapshot.end_ns, target.id.0, target.regions.iter().map(region).collect()));
        }
    }
    list.sort();
    list
}

fn through(format: Format, items: &[Item]) -> Option<Vec<Item>> {
    let dir = tempfile::tempdir().unwrap();
    // Of no ending: what it is must show in its content.
    let path = dir.path().join("recording");
    let mut writer = create(&path, format).unwrap();
    for item in items {
        match writer.write(item) {
            Ok(()) => {}
            Err(e) if format == Format::RecordV1 && e.to_string().contains("use record-v2") => return None,
            Err(e) => panic!("{format}: {e}"),
        }
    }
    writer.finish().unwrap();
    drop(writer);
    let mut reader = open_with(&path, &ReadOptions::default()).unwrap_or_else(|e| panic!("{format}: {e}"));
    assert_eq!(reader.format(), format);
    let read = items_of(&mut *reader);
    let flaws: Vec<String> = reader.warnings().iter().map(ToString::to_string).collect();
    // Where no target was seen at two moments, nothing tells their length in a format that has none of its own.
    let mut moments: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
    for snapshot in snapshots(items) {
        for target in snapshot.targets.iter().filter(|target| !target.regions.is_empty()) {
            moments.entry(target.id.0).or_default().insert(snapshot.end_ns);
        }
    }
    let is_lone = moments.values().all(|ends| ends.len() <= 1)
        && matches!(flaws.as_slice(), [one] if one.contains("100 ms is assumed"));
    assert!(flaws.is_empty() || is_lone, "{format}: {flaws:?}");
    Some(read)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_written_is_read(items in recordings()) {
        for format in Format::ALL {
            let Some(read) = through(format, &items) else { continue };
            match format {
                // All of it.
                Format::Rec | Format::Parquet => {
                    let mut read = read;
                    for item in &mut read {
                        if let Item::Snapshot(s) = item {
                            s.targets.iter_mut().for_each(|t| t.steady = false);
                        }
                    }
                    prop_assert_eq!(&read, &items, "{}", format);
                }
                format => prop_assert_eq!(carried(format, &read), carried(format, &items), "{}", format),
            }
        }
    }
}

#[test]
fn a_recording_of_nothing_is_one_in_every_format() {
    let header = Item::Header(Header {
        backend: Backend { name: "pte".to_owned(), ..Backend::default() },
        ..Header::default()
    });
    let end = Item::End(End::default());
    let nobody = Item::Snapshot(Snapshot { start_ns: 1_000_000, end_ns: 2_000_000, ..Snapshot::default() });
    let idle = Item::Snapshot(Snapshot {
        start_ns: 2_000_000,
        end_ns: 3_000_000,
        targets: vec![TargetSnapshot::new(TargetId(7), Vec::new())],
        ..Snapshot::default()
    });
    for format in Format::ALL {
        for items in [
            vec![header.clone(), end.clone()],
            vec![header.clone(), nobody.clone(), idle.clone(), end.clone()],
        ] {
            let read = through(format, &items).unwrap();
            assert_eq!(carried(format, &read), carried(format, &items), "{format}");
        }
    }
}

/// One after another in the JSON, their snapshots are one in time: also of more targets than are merged at a time.
#[test]
fn hundreds_of_targets_come_back_in_order_of_time() {
    let snapshot = |n: u64| {
        let regions = |id: u64| {
            let age = n as u32;
            vec![RegionSnapshot {
                range: AddrRange::new(id << 20, (id + 1) << 20),
                age,
                ..RegionSnapshot::default()
            }]
        };
        let targets = (1..=700).map(|id| TargetSnapshot::new(TargetId(id), regions(id)));
        // Seconds apart, so that few fit into what is sorted in memory.
        Snapshot {
            start_ns: n * 2_000_000_000,
            end_ns: (n + 1) * 2_000_000_000,
            sample_ns: 100_000_000,
            max_nr_accesses: 20,
            targets: targets.collect(),
        }
    };
    let mut items = vec![Item::Header(Header::default())];
    items.extend((0..300).map(|n| Item::Snapshot(snapshot(n))));
    let read = through(Format::JsonCompressed, &items).unwrap();
    assert_eq!(snapshots(&read), snapshots(&items));
}
