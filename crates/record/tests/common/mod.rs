//! What several test files need.
#![allow(dead_code, reason = "each test file uses its share")]

use isotherm_damon::Snapshot;
use isotherm_record::synthetic::{Shape, Synthetic};
use isotherm_record::{Item, ItemReader};

/// Everything a reader hands out.
pub fn items_of(reader: &mut dyn ItemReader) -> Vec<Item> {
    let mut items = Vec::new();
    while let Some(item) = reader.next_item().unwrap() {
        items.push(item);
    }
    items
}

/// A small recording of two targets.
pub fn small() -> Vec<Item> {
    let shape = Shape { nr_targets: 2, nr_regions: 3000, max_nr_regions: 60, ..Shape::default() };
    items_of(&mut Synthetic::new(shape))
}

/// The snapshots among some items.
pub fn snapshots(items: &[Item]) -> Vec<Snapshot> {
    let snapshot = |i: &Item| match i {
        Item::Snapshot(s) => Some(s.clone()),
        _ => None,
    };
    items.iter().filter_map(snapshot).collect()
}
