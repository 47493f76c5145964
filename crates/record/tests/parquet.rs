//! A recording as Parquet: a row a region, read back by the Parquet library.
#![allow(clippy::unwrap_used)] // helpers of tests; clippy.toml allows it in the tests only

mod common;

use common::{small, snapshots};
use isotherm_record::{Format, Header, Item, TargetInfo, create};
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;
use std::collections::HashMap;
use std::fs::File;

#[test]
fn every_region_is_a_row() {
    let items = small();
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
                assert_eq!(row["max_nr_accesses"], Field::UInt(20));
                assert_eq!(row["rate_hz"], Field::Double(f64::from(region.nr_accesses) * 10.0));
                assert_eq!(row["age"], Field::UInt(region.age));
                assert_eq!(row["age_ns"], Field::ULong(u64::from(region.age) * 100_000_000));
                let name = match region.range.start >> 40 {
                    0x55 => "[heap]",
                    _ if region.range.end > 0x7fff_fff0_0000 => "[stack]",
                    _ => "",
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
