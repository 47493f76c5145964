//! What all targets do: read to the end, and look at everything.

use isotherm_record::{Format, Item, ReadOptions, RecordChoice, open_from};
use std::io::Cursor;

/// Reads `bytes` as a recording in `format`, all of its records.
pub fn read(format: Format, bytes: &[u8]) {
    let options = ReadOptions { format: Some(format), record: RecordChoice::All, ..ReadOptions::default() };
    let Ok(mut reader) = open_from(Cursor::new(bytes.to_vec()), "fuzzed", &options) else { return };
    while let Ok(Some(item)) = reader.next_ref() {
        if let Item::Snapshot(snapshot) = item {
            std::hint::black_box(snapshot.nr_regions());
        }
    }
    std::hint::black_box(reader.warnings().len());
}
