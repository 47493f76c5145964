//! A recording as Parquet: a row a region, read back by the Parquet library.
#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml allows it in the tests only

mod common;

use common::{items_of, small, snapshots};
use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use isotherm_record::synthetic::{Shape, Synthetic};
use isotherm_record::{Format, Header, Item, ItemReader, TargetInfo, Warning, create, open};
use parquet::file::metadata::{FileMetaData, ParquetMetaData, ParquetMetaDataWriter, RowGroupMetaData};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::statistics::Statistics;
use parquet::file::writer::TrackedWrite;
use parquet::record::Field;
use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};

/// A made-up recording of so many regions.
fn made_up(dir: &Path, nr_regions: u64) -> PathBuf {
    let path = dir.join("x.parquet");
    let mut made_up = Synthetic::new(Shape { nr_regions, ..Shape::default() });
    let mut writer = create(&path, Format::Parquet).unwrap();
    while let Some(item) = made_up.next_ref().unwrap() {
        writer.write(item).unwrap();
    }
    writer.finish().unwrap();
    path
}

/// The file up to where its end says what it holds.
fn without_footer(file: &[u8]) -> &[u8] {
    let at = file.len() - 8;
    &file[..at - u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize]
}

#[test]
fn every_region_is_a_row() {
    let mut items = small();
    // Every third region is unknown, every other one estimated.
    let list = items.iter_mut().filter_map(|i| match i {
        Item::Snapshot(s) => Some(s),
        _ => None,
    });
    let regions = list.flat_map(|s| &mut s.targets).flat_map(|t| &mut t.regions);
    for (i, region) in regions.enumerate() {
        match i % 3 {
            0 => (region.seen_bp, region.exposure) = (0, 0),
            1 => (region.seen_bp, region.exposure, region.resident) = (2500, 40, Some(8192)),
            _ => {}
        }
    }
    if let Item::Header(header) = &mut items[0] {
        header.started_unix_ns = 999_996_400_000_000_000;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let mut writer = create(&path, Format::Parquet).unwrap();
    items.iter().for_each(|item| writer.write(item).unwrap());
    writer.finish().unwrap();

    let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    let mut rows = reader.get_row_iter(None).unwrap();
    for (index, snapshot) in snapshots(&items).iter().enumerate() {
        for target in &snapshot.targets {
            for region in &target.regions {
                let row = rows.next().unwrap().unwrap();
                let row: HashMap<&str, Field> =
                    row.get_column_iter().map(|(n, f)| (n.as_str(), f.clone())).collect();
                assert_eq!(row["snapshot"], Field::ULong(index as u64));
                assert_eq!(row["start_ns"], Field::ULong(snapshot.start_ns));
                assert_eq!(row["end_ns"], Field::ULong(snapshot.end_ns));
                assert_eq!(row["target_id"], Field::ULong(target.id.0));
                assert_eq!(row["pid"], Field::UInt(target.id.0 as u32));
                assert_eq!(row["region_start"], Field::ULong(region.range.start));
                assert_eq!(row["region_end"], Field::ULong(region.range.end));
                assert_eq!(row["nr_accesses"], Field::UInt(region.nr_accesses));
                assert_eq!(row["nr_accesses_bp"], Field::UInt(region.nr_accesses_bp));
                assert_eq!(row["max_nr_accesses"], Field::UInt(20));
                assert_eq!(row["comm"], Field::Str(format!("synthetic-{}", target.id.0)));
                // An hour before the epoch's billionth second, and the recording's clock at 1000 s then.
                let wall_us = 999_996_400_000_000 + (snapshot.end_ns - 1_000_000_000_000) / 1000;
                assert_eq!(row["end_time"], Field::TimestampMicros(wall_us as i64));
                let rate = match region.is_unknown() {
                    true => Field::Null,
                    false => Field::Double(f64::from(region.nr_accesses) * 10.0),
                };
                assert_eq!(row["rate_hz"], rate);
                assert_eq!(row["seen"], Field::Double(f64::from(region.seen_bp) / 10_000.0));
                let known = |v: Option<u64>| v.map_or(Field::Null, Field::ULong);
                let exposure = (region.exposure != RegionSnapshot::COUNTED).then_some(region.exposure);
                assert_eq!(row["exposure"], known(exposure.map(u64::from)));
                assert_eq!(row["resident"], known(region.resident));
                assert_eq!(row["idle"], Field::Double(f64::from(region.idle_bp) / 10_000.0));
                assert_eq!(row["age"], Field::UInt(region.age));
                assert_eq!(row["age_ns"], Field::ULong(u64::from(region.age) * 100_000_000));
                let name = match region.range.start >> 40 {
                    0x55 => "[heap]",
                    _ if region.range.end > 0x7fff_fff0_0000 => "[stack]",
                    _ => "[anon]",
                };
                assert_eq!(row["mapping"], Field::Str(name.to_owned()), "{region:x?}");
            }
        }
    }
    assert!(rows.next().is_none());

    let metadata = reader.metadata().file_metadata().key_value_metadata().unwrap();
    let value = |key: &str| metadata.iter().find(|m| m.key == key).and_then(|m| m.value.clone()).unwrap();
    let header: Header = serde_json::from_str(&value("isotherm.header")).unwrap();
    assert_eq!(Item::Header(header), items[0]);
    let targets: Vec<TargetInfo> = serde_json::from_str(&value("isotherm.targets")).unwrap();
    assert_eq!(targets.iter().map(|t| t.id).collect::<Vec<_>>(), [4001, 4002]);
}

/// What is no row stands neither in the footer nor in memory, however much of it there is.
#[test]
fn snapshots_without_regions_come_back_however_many() {
    let mut items = small();
    let at = items.iter().position(|item| matches!(item, Item::Snapshot(_))).unwrap() + 1;
    let Item::Snapshot(first) = items[at - 1].clone() else { unreachable!() };
    let targets = (0..1000).map(|id| TargetSnapshot::new(TargetId(1_000_000_000_000 + id), Vec::new()));
    let empty = Snapshot { targets: targets.collect(), ..first };
    let many = || std::iter::repeat_n(Item::Snapshot(empty.clone()), 3000);
    items.splice(at..at, many());
    items.extend(many());
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let mut writer = create(&path, Format::Parquet).unwrap();
    items.iter().for_each(|item| writer.write(item).unwrap());
    writer.finish().unwrap();
    let mut reader = open(&path).unwrap();
    assert!(items_of(&mut *reader) == items, "{:?}", reader.warnings());
    assert!(reader.warnings().is_empty(), "{:?}", reader.warnings());

    let others = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    let rows: usize = snapshots(&items).iter().map(Snapshot::nr_regions).sum();
    assert_eq!(others.get_row_iter(None).unwrap().count(), rows, "others see rows alone");
    let groups = others.metadata().row_groups();
    assert!(groups.iter().filter(|group| group.num_rows() == 0).count() >= 8, "{}", groups.len());
    let metadata = others.metadata().file_metadata().key_value_metadata().unwrap();
    let rest = metadata.iter().find(|m| m.key == "isotherm.items").unwrap().value.as_ref().unwrap();
    assert!(rest.len() < 9 << 20, "{}", rest.len());
}

/// A few bytes that many groups share would be read as often, and their regions counted as often.
#[test]
fn row_groups_that_share_bytes_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let mut writer = create(&path, Format::Parquet).unwrap();
    small().iter().for_each(|item| writer.write(item).unwrap());
    writer.finish().unwrap();
    let file = std::fs::read(&path).unwrap();
    let data = without_footer(&file);
    let rewritten = |metadata: ParquetMetaData| {
        let mut bytes = data.to_vec();
        let writer = TrackedWrite::new(&mut bytes);
        ParquetMetaDataWriter::new_with_tracked(writer, &metadata).finish().unwrap();
        std::fs::write(&path, &bytes).unwrap();
        open(&path).map(|mut reader| snapshots(&items_of(&mut *reader)).len()).map_err(|e| e.to_string())
    };
    let metadata = || SerializedFileReader::new(bytes::Bytes::from(file.clone())).unwrap().metadata().clone();
    let nr_snapshots = snapshots(&small()).len();
    assert_eq!(rewritten(metadata()), Ok(nr_snapshots), "the end as it was, written by another");

    // The same group a thousand times.
    let group = metadata().row_group(0).clone();
    let again = metadata().into_builder().set_row_groups(vec![group.clone(); 1000]).build();
    let error = rewritten(again).unwrap_err();
    assert!(error.contains("row group 2 claims bytes that belong to another"), "{error}");

    // Two columns of one group.
    let mut columns = group.columns().to_vec();
    let starts = columns.iter().position(|c| c.column_path().string() == "start_ns").unwrap();
    let ends = columns.iter().position(|c| c.column_path().string() == "end_ns").unwrap();
    columns[ends] = columns[ends]
        .clone()
        .into_builder()
        .set_data_page_offset(columns[starts].data_page_offset())
        .set_dictionary_page_offset(columns[starts].dictionary_page_offset())
        .build()
        .unwrap();
    let shared = group.into_builder().set_column_metadata(columns).build().unwrap();
    let error = rewritten(metadata().into_builder().set_row_groups(vec![shared]).build()).unwrap_err();
    assert!(error.contains("row group 1 claims bytes that belong to another"), "{error}");
}

/// Who filters by time reads only the groups of that time.
#[test]
fn a_row_group_is_a_stretch_of_time() {
    let dir = tempfile::tempdir().unwrap();
    let path = made_up(dir.path(), 500_000);
    let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    let groups = reader.metadata().row_groups();
    assert!((3..=5).contains(&groups.len()), "{}", groups.len());
    for column in ["snapshot", "start_ns", "end_ns"] {
        let mut last = None;
        for group in groups {
            let chunk = group.columns().iter().find(|c| c.column_path().string() == column).unwrap();
            let Some(Statistics::Int64(range)) = chunk.statistics() else { panic!("{column}") };
            let (min, max) = (*range.min_opt().unwrap(), *range.max_opt().unwrap());
            assert!(min < max && last.is_none_or(|last| last < min), "{column}: {last:?} {min} {max}");
            last = Some(max);
        }
    }
}

/// Whatever bit is flipped: what is read is what was written, or it is said that something is wrong.
#[test]
fn no_flipped_bit_is_read_as_another_recording() {
    let mut items = Vec::new();
    let mut made_up =
        Synthetic::new(Shape { nr_regions: 400, max_nr_regions: 20, nr_targets: 2, ..Shape::default() });
    while let Some(item) = made_up.next_item().unwrap() {
        items.push(item);
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let mut writer = create(&path, Format::Parquet).unwrap();
    items.iter().for_each(|item| writer.write(item).unwrap());
    writer.finish().unwrap();
    let whole = items_of(&mut *open(&path).unwrap());
    let bytes = std::fs::read(&path).unwrap();
    let (mut noticed, mut harmless) = (0, 0);
    let mut random = 1_u64;
    for _ in 0..6000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let bit = (random >> 20) as usize % (bytes.len() * 8);
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &flipped).unwrap();
        let Ok(mut reader) = open(&path) else {
            noticed += 1;
            continue;
        };
        let mut read = Vec::new();
        while let Ok(Some(item)) = reader.next_ref() {
            read.push(item.clone());
        }
        if reader.warnings().is_empty() {
            assert!(read == whole, "bit {bit} of {}", bytes.len() * 8);
            harmless += 1;
        } else {
            noticed += 1;
        }
    }
    // The footer has what is for other programs: statistics, sizes.
    assert!(noticed > 1000 && harmless > 0, "{noticed} {harmless}");
}

/// Damage costs the row group it lies in, and of that only the regions, where the rest can be read.
#[test]
fn damage_costs_only_the_row_group_it_hits() {
    let mut made_up = Synthetic::new(Shape { nr_regions: 300_000, ..Shape::default() });
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let mut writer = create(&path, Format::Parquet).unwrap();
    let mut items = Vec::new();
    while let Some(item) = made_up.next_item().unwrap() {
        // Something else in the middle of each group.
        if snapshots(&items).len() % 100 == 50 {
            let Item::Target(info) = items.iter().find(|i| matches!(i, Item::Target(_))).cloned().unwrap()
            else {
                unreachable!("it was looked for")
            };
            items.push(Item::Target(TargetInfo { comm: format!("at {}", items.len()), ..info }));
        }
        items.push(item);
    }
    items.iter().for_each(|item| writer.write(item).unwrap());
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    let groups = reader.metadata().row_groups();
    assert_eq!(groups.len(), 3);
    let times = |group: usize, column: &str| {
        let chunk = groups[group].columns().iter().find(|c| c.column_path().string() == column).unwrap();
        let Some(Statistics::Int64(range)) = chunk.statistics() else { panic!("{column}") };
        (*range.min_opt().unwrap() as u64, *range.max_opt().unwrap() as u64)
    };
    let damaged = |columns: &[(usize, &str)]| {
        let mut bytes = bytes.clone();
        for (group, column) in columns {
            let chunk =
                groups[*group].columns().iter().find(|c| c.column_path().string() == *column).unwrap();
            let (start, len) = chunk.byte_range();
            bytes[(start + len) as usize - 1] ^= 1;
        }
        std::fs::write(&path, bytes).unwrap();
        let mut reader = open(&path).unwrap();
        let items = items_of(&mut *reader);
        (items, reader.warnings().to_vec())
    };
    let without = |lost: &[usize]| -> Vec<Item> {
        let is_lost = |s: &Snapshot| {
            lost.iter().any(|group| {
                (times(*group, "start_ns").0..=times(*group, "start_ns").1).contains(&s.start_ns)
            })
        };
        items.iter().filter(|i| !matches!(i, Item::Snapshot(s) if is_lost(s))).cloned().collect()
    };

    for column in ["age", "snapshot", "region_end", "resident"] {
        let (read, warnings) = damaged(&[(1, column)]);
        assert!(read == without(&[1]), "{column}");
        let [Warning::Damaged { from_ns, to_ns, .. }] = warnings[..] else {
            panic!("{column}: {warnings:?}")
        };
        assert_eq!((from_ns, to_ns), (times(0, "end_ns").1, times(2, "start_ns").0), "{column}");
    }
    for lost in [&[0][..], &[2], &[0, 1], &[1, 2], &[0, 2]] {
        let columns: Vec<(usize, &str)> = lost.iter().map(|group| (*group, "start_ns")).collect();
        let (read, warnings) = damaged(&columns);
        assert!(read == without(lost), "{lost:?}");
        assert_eq!(warnings.len(), if lost == [0, 2] { 2 } else { 1 }, "{lost:?}: {warnings:?}");
        assert!(warnings.iter().all(|w| matches!(w, Warning::Damaged { .. })), "{lost:?}: {warnings:?}");
    }
    // Names and the like go alone: those that stand before a snapshot of the group.
    let (read, warnings) = damaged(&[(1, "isotherm_items")]);
    let (first, last) = times(1, "start_ns");
    let mut next_ns = u64::MAX;
    let mut expected: Vec<Item> = Vec::new();
    for item in items.iter().rev() {
        if let Item::Snapshot(snapshot) = item {
            next_ns = snapshot.start_ns;
        } else if (first..=last).contains(&next_ns) {
            continue;
        }
        expected.push(item.clone());
    }
    expected.reverse();
    assert!(expected.len() < items.len() && read == expected);
    assert!(matches!(warnings[..], [Warning::Damaged { lost_bytes: 1.., .. }]), "{warnings:?}");
    // Both together are reported once each, and apart.
    let (_, warnings) = damaged(&[(1, "isotherm_items"), (1, "age")]);
    let stretches: Vec<(u64, u64)> = warnings
        .iter()
        .map(|w| match w {
            Warning::Damaged { offset, lost_bytes, .. } => (*offset, offset + lost_bytes),
            other => panic!("{other}"),
        })
        .collect();
    let [(start, end), (other_start, other_end)] = stretches[..] else { panic!("{stretches:?}") };
    assert!(end <= other_start || other_end <= start, "{stretches:?}");
    // Nothing is left of it.
    let (read, warnings) = damaged(&[(0, "age"), (1, "age"), (2, "age")]);
    assert!(snapshots(&read).is_empty());
    assert!(
        matches!(&warnings[..], [Warning::Stopped { why, .. }] if why.contains("checksum")),
        "{warnings:?}"
    );
}

/// A snapshot of a group of its own ends the damage before it.
#[test]
fn damage_on_both_sides_of_a_snapshot_is_two_stretches() {
    let regions = |n: u64| {
        let at = move |i: u64| 4096 * (2 * i + n % 2);
        (0..140_000).map(move |i| RegionSnapshot {
            range: AddrRange::new(at(i), at(i) + 4096),
            ..RegionSnapshot::default()
        })
    };
    let snapshot = |n: u64| Snapshot {
        start_ns: (n + 1) * 1_000_000_000,
        end_ns: (n + 2) * 1_000_000_000,
        sample_ns: 5_000_000,
        max_nr_accesses: 200,
        targets: vec![TargetSnapshot::new(TargetId(1), regions(n).collect())],
    };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let mut writer = create(&path, Format::Parquet).unwrap();
    writer.write(&Item::Header(Header::default())).unwrap();
    (0..5).for_each(|n| writer.write(&Item::Snapshot(snapshot(n))).unwrap());
    writer.finish().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    for group in [1, 3] {
        let chunk = reader.metadata().row_group(group).column(8).byte_range();
        bytes[(chunk.0 + chunk.1) as usize - 1] ^= 1;
    }
    std::fs::write(&path, &bytes).unwrap();
    let mut reader = open(&path).unwrap();
    let starts: Vec<u64> =
        snapshots(&items_of(&mut *reader)).iter().map(|s| s.start_ns / 1_000_000_000).collect();
    assert_eq!(starts, [1, 3, 5]);
    let gaps: Vec<(u64, u64)> = reader
        .warnings()
        .iter()
        .map(|w| match w {
            Warning::Damaged { from_ns, to_ns, .. } => (from_ns / 1_000_000_000, to_ns / 1_000_000_000),
            other => panic!("{other}"),
        })
        .collect();
    assert_eq!(gaps, [(2, 3), (4, 5)]);
}

/// Of a file that another program laid out anew nobody knows where snapshots end, and what is not read here is not damage.
#[test]
fn of_copies_only_whole_snapshots_are_read_and_what_is_not_known_ends_reading() {
    let dir = tempfile::tempdir().unwrap();
    let path = made_up(dir.path(), 300_000);
    let file = std::fs::read(&path).unwrap();
    let metadata = SerializedFileReader::new(bytes::Bytes::from(file.clone())).unwrap().metadata().clone();
    let of = metadata.file_metadata();
    let copied = |change: &dyn Fn(&mut Vec<u8>), groups: Vec<RowGroupMetaData>| {
        let of = FileMetaData::new(
            of.version(),
            of.num_rows(),
            Some("another program".to_owned()),
            of.key_value_metadata().cloned(),
            of.schema_descr_ptr(),
            of.column_orders().cloned(),
        );
        let mut bytes = without_footer(&file).to_vec();
        change(&mut bytes);
        let metadata = ParquetMetaData::new(of, groups);
        ParquetMetaDataWriter::new_with_tracked(TrackedWrite::new(&mut bytes), &metadata).finish().unwrap();
        std::fs::write(&path, &bytes).unwrap();
        let mut reader = open(&path).unwrap();
        let items = items_of(&mut *reader);
        (snapshots(&items), reader.warnings().to_vec())
    };
    let groups = metadata.row_groups();
    let (all, warnings) = copied(&|_| {}, groups.to_vec());
    assert!(warnings.is_empty() && groups.len() == 3, "{warnings:?}");

    let starts = |group: usize| {
        let chunk = groups[group].columns().iter().find(|c| c.column_path().string() == "start_ns").unwrap();
        let Some(Statistics::Int64(range)) = chunk.statistics() else { panic!("no statistics") };
        (*range.min_opt().unwrap() as u64, *range.max_opt().unwrap() as u64)
    };
    let age = groups[1].columns().iter().find(|c| c.column_path().string() == "age").unwrap().byte_range();
    let flip = |bytes: &mut Vec<u8>| bytes[(age.0 + age.1) as usize - 1] ^= 1;
    let (read, warnings) = copied(&flip, groups.to_vec());
    let expected: Vec<Snapshot> =
        all.iter().filter(|s| s.start_ns < starts(0).1 || s.start_ns > starts(2).0).cloned().collect();
    assert!(read == expected, "{} of {}", read.len(), expected.len());
    let before = expected.iter().filter(|s| s.start_ns < starts(0).1).map(|s| s.end_ns).max().unwrap();
    let after = expected.iter().map(|s| s.start_ns).find(|start| *start > starts(2).0).unwrap();
    let [Warning::Damaged { from_ns, to_ns, .. }] = warnings[..] else { panic!("{warnings:?}") };
    assert_eq!((from_ns, to_ns), (before, after));

    // More rows than are read here.
    let mut many = groups.to_vec();
    many[1] = many[1].clone().into_builder().set_num_rows(1 << 40).build().unwrap();
    let (read, warnings) = copied(&|_| {}, many);
    assert!(read.len() < all.len());
    assert!(
        matches!(&warnings[..], [Warning::Stopped { why, .. }] if why.contains("more rows than those that are written here")),
        "{warnings:?}"
    );
}

/// As other programs check them.
#[test]
fn every_page_has_its_checksum() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x.parquet");
    let mut writer = create(&path, Format::Parquet).unwrap();
    small().iter().for_each(|item| writer.write(item).unwrap());
    writer.finish().unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let reader = SerializedFileReader::new(File::open(&path).unwrap()).unwrap();
    let chunks = reader.metadata().row_groups().iter().flat_map(|group| group.columns());
    let mut pages = 0;
    for chunk in chunks {
        let (start, len) = chunk.byte_range();
        let (mut at, end) = (start as usize, (start + len) as usize);
        while at < end {
            // Type, sizes before and after compression, checksum: each a byte for the field and a zigzag varint.
            let mut numbers = [0_i64; 4];
            for number in &mut numbers {
                assert_eq!(bytes[at], 0x15);
                at += 1;
                let (mut value, mut shift) = (0_u64, 0);
                loop {
                    value |= u64::from(bytes[at] & 0x7f) << shift;
                    shift += 7;
                    at += 1;
                    if bytes[at - 1] < 0x80 {
                        break;
                    }
                }
                *number = (value >> 1) as i64 ^ -((value & 1) as i64);
            }
            // Behind the rest of the header, which is short, come the bytes.
            let len = numbers[2] as usize;
            let body = (at..at + 24).find(|from| {
                bytes
                    .get(*from..from + len)
                    .is_some_and(|page| crc32fast::hash(page) as i32 == numbers[3] as i32)
            });
            at = body.expect("its checksum fits") + len;
            pages += 1;
        }
    }
    assert!(pages > 20, "{pages}");
}
