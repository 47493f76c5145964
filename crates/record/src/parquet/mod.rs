//! Apache Parquet: a row a region, for pandas, pyarrow, DuckDB and whatever else reads it, and for ourselves.
//!
//! # Rows
//! [`SCHEMA`] tells the columns. Rows come snapshot by snapshot, in order of time as the recording has them. A row group
//! ends between two snapshots, after [`GROUP_ROWS`] rows or, if it has [`SPAN_ROWS`] by then, a minute: so it is a stretch
//! of time, and since each column of each group says its least and greatest value, who filters by time reads only the
//! groups of that time.
//!
//! # What is no region
//! All that a recording holds comes back. The header is JSON in the file's key-value metadata (`isotherm.header`), and so
//! are, for people, the first targets (`isotherm.targets`). Any other item stands in the column `isotherm_items` of a row
//! of the first snapshot after it, as a line `kind JSON` with the kinds of the `.rec` format; elsewhere that column is
//! null, which costs nothing. What no snapshot follows is in the metadata (`isotherm.items`; `isotherm.crc32` has the checksums of
//! header, items, and of where columns lie). Where [`GROUP_ITEMS`] of text
//! gather before a row comes, as in a control group that stays empty for days, they are a row group without rows: the
//! dictionary of its `isotherm_items` is the text. Two kinds more:
//! ```text
//! s {"start_ns", "end_ns", "sample_ns", "max_nr_accesses", "targets": [id]}    a snapshot without any region
//! t {"bare": [[place, id]]}                 targets without a region of the snapshot that this row begins
//! ```
//!
//! # Why pages are encoded here
//! The `parquet` crate writes the file and its metadata; pages are encoded by the module `pages`, with their headers, since the crate's
//! have no checksums. In a recording ten columns of 22 change once a snapshot and not once a row, `nr_accesses`, its basis points
//! and the rate are one number in three units, and so are both ages. The crate's own column writers take each value by
//! itself: with them the same file takes several times as long.
//!
//! Reading is our own too (modules `thrift`, `chunk`), for what we write: no number in a file is trusted with memory there.

mod chunk;
mod columns;
mod footer;
mod group;
mod intern;
mod pages;
mod pool;
mod read;
mod rows;
mod thrift;
mod write;

pub(crate) use read::Reader;
pub(crate) use write::Writer;

/// Rows after which a group ends at the next snapshot.
const GROUP_ROWS: usize = 128 << 10;

/// A group that has so many rows ends after [`SPAN_NS`] too: fewer are not worth a group's metadata, some 4 KB.
const SPAN_ROWS: usize = 16 << 10;

/// Time after which a group ends.
const SPAN_NS: u64 = 60_000_000_000;

/// Bytes of text of other items after which a group ends.
const GROUP_ITEMS: usize = 8 << 20;

/// Longest text of other items in a row.
const MAX_CELL: usize = 32 << 20;

/// `start_time` and `end_time` are wall-clock times, null where the recording does not say when it was started; `start_ns`
/// and `end_ns` are the same on the clock of the recording. `nr_accesses_bp` is `nr_accesses` in basis points of an
/// access, with its fraction. `rate_hz` is null where the rate is unknown, as where the recording tells no intervals;
/// `seen` is the share of the region that could be observed, 0..=1; `exposure` is null where the backend counts accesses
/// and keeps no such account; `resident` is bytes; `idle` is the share of the region's pages that is known to be idle, of
/// which the rate is not, where pages that are accessed lie apart. Addresses and ids are unsigned: an address in the kernel's half must
/// not come out negative.
const SCHEMA: &str = "message regions {
    required int64 snapshot (integer(64, false));
    optional int64 start_time (timestamp(micros, true));
    optional int64 end_time (timestamp(micros, true));
    required int64 start_ns (integer(64, false));
    required int64 end_ns (integer(64, false));
    required int64 target_id (integer(64, false));
    required int32 pid (integer(32, false));
    optional binary comm (string);
    required int64 region_start (integer(64, false));
    required int64 region_end (integer(64, false));
    required int32 nr_accesses (integer(32, false));
    required int32 nr_accesses_bp (integer(32, false));
    required int32 max_nr_accesses (integer(32, false));
    optional double rate_hz;
    required int32 age (integer(32, false));
    required int64 age_ns (integer(64, false));
    optional binary mapping (string);
    required double seen;
    optional int64 exposure (integer(64, false));
    optional int64 resident (integer(64, false));
    required double idle;
    required int64 sample_ns (integer(64, false));
    optional binary isotherm_items (string);
}";

/// What a mapping without a name is called in the table.
const ANON: &str = "[anon]";

/// Keys of the metadata.
const KEY_HEADER: &str = "isotherm.header";
const KEY_TARGETS: &str = "isotherm.targets";
const KEY_ITEMS: &str = "isotherm.items";
/// Checksums of what header and items say, and of where the groups' columns lie, in that order: CRC-32, hexadecimal.
const KEY_CRC: &str = "isotherm.crc32";

fn hex(crc: u32) -> String {
    format!("{crc:08x}")
}

/// Most targets listed in the metadata.
const MAX_LISTED: usize = 4096;

/// A snapshot that has no row to stand in, or targets of one that have none.
#[derive(Debug, Default, serde::Serialize, serde::Deserialize)]
#[serde(default)]
struct Bare {
    #[serde(skip_serializing_if = "is_zero")]
    start_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    end_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    sample_ns: u64,
    #[serde(skip_serializing_if = "is_zero")]
    max_nr_accesses: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    targets: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    bare: Vec<(usize, u64)>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes it so")]
const fn is_zero(n: &u64) -> bool {
    *n == 0
}
