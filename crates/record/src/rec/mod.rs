//! Isotherm's own recording format (`.rec`): append-only, self-describing, readable wherever it was cut.
//!
//! # What it is for
//! A monitor writes it while it runs and may be killed at any moment; a disk may fill up; a file may be cut while it is
//! copied. Whatever remains is read up to its last whole block, and a block is written at least once a second. A report
//! reads it in one pass with memory that does not depend on its length, or plans its axes from the block headers alone.
//!
//! # The file
//! All numbers are little-endian.
//! ```text
//! file   := preamble block*
//! preamble (16 bytes)
//!   0  8  magic   89 49 54 48 0d 0a 1a 0a   (not text; broken by line-end conversion)
//!   8  2  major version: a reader refuses a newer one
//!  10  2  minor version: readers of this major version can read every minor one
//!  12  4  CRC-32 of bytes 0..12
//! block
//!   0  4  sync    f1 42 4c 4b
//!   4  1  type    1: items; a reader skips types it does not know
//!   5  1  0
//!   6  2  length of the summary
//!   8  4  sequence number of the block, from 0
//!  12  4  length of the payload
//!  16  4  length of the payload, decompressed
//!  20  4  CRC-32 of the payload
//!  24  4  CRC-32 of bytes 0..24 and the summary
//!  28     summary, payload
//! ```
//! A block is written in one call, the first one together with the preamble, so a file never holds half a preamble
//! unless it was cut. A block whose checksums do not fit is passed over: the reader looks for the next sync bytes
//! followed by a header whose checksum fits, and reports the gap. A block refers to nothing outside itself, but for changes
//! of mappings; the module `mappings` tells why, and what damage costs there.
//!
//! # The summary
//! What a report needs to plan: varints (seven bits a byte, low first; `s` marks zigzag-signed ones)
//! ```text
//! first_ns, s last_ns - first_ns, nr_snapshots, nr_regions, nr_others, max_nr_accesses, sample_ns,
//! nr_targets, { id, nr_regions, nr_areas, { s start - previous end, s end - start }* }*
//! ```
//! `first_ns` and `last_ns` span the block's snapshots (or its other items when it has none). An *area* is a stretch of
//! addresses covered by regions without a gap in some snapshot of the block; past eight, those with the smallest gaps
//! are joined.
//!
//! # The payload
//! One zstd frame: the lengths of six columns as varints, those columns (`meta`, `flags`, `addr`, `nr`, `fine`, `age`),
//! then further columns, each behind its length (`evidence`, since 1.3 `idle`). `meta` holds the items in order:
//! ```text
//! item     := 9 length snapshot | kind length JSON      kind 1 header, 2 target, 3 mappings, 4 attrs, 5 cost,
//!           | kind length packed                        6 target end, 7 end, 8 change of mappings, 10 action;
//!                                                       packed 11 mappings, 12 change of mappings;
//!                                                       unknown kinds are skipped
//! packed   := length JSON list
//! snapshot := s start_ns - previous end_ns, s end_ns - start_ns, s change of sample_ns,
//!             s change of max_nr_accesses, nr_targets, target*
//! ```
//! A target takes the next free *slot* where the block first mentions it; the module `steady` tells how a snapshot names
//! its targets, and why one that stands still costs next to nothing. The other columns hold the regions; the module
//! `regions` tells how, and the module `quantise` how finely.
//!
//! # Versions
//! | version | differs |
//! |---|---|
//! | 1.4 | as above |
//! | 1.3 | mappings are JSON as a whole (kinds 3 and 8), which is read still |
//! | 1.2 | no `idle` column |
//! | 1.1 | no actions; a forked target's first mappings may be a change of its parent's |
//! | 1.0 | no `evidence` column; snapshots are `0 snapshot`, without a length, and name a target by `s slot - (previous slot + 1), [id], shift, nr_regions`; no target is steady; rates in 1/100 of an access |
//!
//! An item's JSON may gain members within a version (`processes` of a cost did): who does not know a member passes over it,
//! and one that is absent was not recorded.
//!
//! This reader reads them all. A reader of version 1.3 finds no mappings in a file of 1.4, and says that it left parts out; a
//! reader of version 1.0 finds everything but the snapshots in a file of 1.1.
//!
//! # Limits
//! 2^20 regions and as many targets a snapshot, 64 MiB a payload (either side of compression). They bound what a reader allocates for a file
//! made to harm it.

mod ahead;
mod block;
mod blocks;
mod decode;
mod items;
mod mappings;
mod numbers;
mod packed;
mod quantise;
mod reader;
mod regions;
mod scan;
mod steady;
mod varint;
mod writer;

pub(crate) use ahead::Ahead;
pub(crate) use block::MAGIC;
pub use block::{Summary, TargetSummary};
pub(crate) use items::{Notes, Undecoded};
pub use reader::Reader;
pub use scan::{Scan, scan_summaries, version_of};
pub use writer::Writer;

/// Most regions a snapshot may have, and most targets.
pub const MAX_REGIONS: usize = 1 << 20;

/// Longest payload, compressed or not.
const MAX_PAYLOAD: usize = 64 << 20;

/// How much recorded time a block covers at most, when snapshots come more often than that.
const BLOCK_NS: u64 = 1_000_000_000;

/// A block is closed early past this many bytes, so that readers need not hold more.
const BLOCK_BYTES: usize = 1 << 20;
