//! Writing `.rec`.

use super::block::{self, Summary};
use super::decode::SNAPSHOT;
use super::mappings::Known;
use super::regions::Columns;
use super::steady::Targets;
use super::varint::{put, put_signed};
use super::{BLOCK_BYTES, BLOCK_NS, MAX_PAYLOAD, MAX_REGIONS, items};
use crate::{Error, Item, ItemWriter};
use isotherm_damon::Snapshot;
use std::io::Write;
use zstd::bulk::Compressor;
use zstd::zstd_safe::CParameter;

/// Writes a recording as it comes: a block as soon as it covers a second.
///
/// A snapshot may be whole, or hold the regions of those targets only that changed
/// ([`isotherm_damon::Snapshot::changes`]).
///
/// Every block goes out in one `write_all`; give it a file, not a buffer around one, so that what was written survives
/// the death of the process. After an error the writer stays in it: what stands in the file up to then is readable.
pub struct Writer<W: Write> {
    output: W,
    file: String,
    compressor: Compressor<'static>,
    columns: Columns,
    summary: Summary,
    targets: Targets,
    /// A snapshot's entry in `meta`, before its length is known.
    entry: Vec<u8>,
    mappings: Known,
    last: Last,
    sequence: u32,
    raw: Vec<u8>,
    block: Vec<u8>,
    failed: bool,
    bytes: u64,
}

/// What the next snapshot's header is told by its difference from.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Last {
    pub(super) end_ns: u64,
    pub(super) sample_ns: u64,
    pub(super) max_nr_accesses: u32,
}

/// At level 3, but with smaller tables: they are cleared for each block, and where memory is touched for the first time that may take
/// longer than to compress what there is.
fn compressor() -> std::io::Result<Compressor<'static>> {
    let mut compressor = Compressor::new(3)?;
    compressor.set_parameter(CParameter::HashLog(TABLES_LOG))?;
    compressor.set_parameter(CParameter::ChainLog(TABLES_LOG))?;
    Ok(compressor)
}

/// Entries of each table, of 4 bytes: 2^15. Recordings of 2 to 129 processes were no smaller with as many as the level has.
const TABLES_LOG: u32 = 15;

impl<W: Write> Writer<W> {
    /// A writer to `output`, called `file` in error messages. Nothing is written before the first block.
    ///
    /// # Errors
    /// [`Error::Io`] when zstd cannot have its memory.
    pub fn new(output: W, file: impl Into<String>) -> Result<Self, Error> {
        let file = file.into();
        let compressor = compressor().map_err(|e| Error::io("prepare to write", &file, e))?;
        Ok(Self {
            output,
            file,
            compressor,
            columns: Columns::default(),
            summary: Summary::default(),
            targets: Targets::default(),
            entry: Vec::new(),
            mappings: Known::default(),
            last: Last::default(),
            sequence: 0,
            raw: Vec::new(),
            block: Vec::new(),
            failed: false,
            bytes: 0,
        })
    }

    /// Bytes written so far.
    pub const fn bytes_written(&self) -> u64 {
        self.bytes
    }

    /// Whether nothing was written or has gathered.
    pub(crate) const fn is_empty(&self) -> bool {
        self.bytes == 0 && self.columns.meta.is_empty()
    }

    /// Writes what has gathered, however little.
    ///
    /// # Errors
    /// [`Error::Io`] from the output.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.failed || (self.columns.meta.is_empty() && self.sequence > 0) {
            return Ok(());
        }
        self.write_block().inspect_err(|_| self.failed = true)
    }

    /// The output: what has gathered is not in it yet.
    pub const fn output_mut(&mut self) -> &mut W {
        &mut self.output
    }

    /// Flushes, and hands back the output.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn into_inner(mut self) -> Result<W, Error> {
        self.flush()?;
        Ok(self.output)
    }

    fn write_block(&mut self) -> Result<(), Error> {
        self.raw.clear();
        let columns = self.columns.all();
        let (first, further) = columns.split_at(Columns::FIRST);
        for column in first {
            put(&mut self.raw, column.len() as u64);
        }
        for column in first {
            self.raw.extend_from_slice(column);
        }
        for column in further {
            put(&mut self.raw, column.len() as u64);
            self.raw.extend_from_slice(column);
        }
        if self.raw.len() > MAX_PAYLOAD {
            return Err(Error::Encode {
                file: self.file.clone(),
                what: "a block",
                why: format!("it takes {} bytes, more than {MAX_PAYLOAD}", self.raw.len()),
            });
        }
        let io = |e| Error::io("write", &self.file, e);
        let payload = self.compressor.compress(&self.raw).map_err(io)?;
        self.block.clear();
        if self.sequence == 0 {
            self.block.extend_from_slice(&block::preamble());
        }
        block::write(&mut self.block, self.sequence, &self.summary, &payload, self.raw.len());
        self.output.write_all(&self.block).and_then(|()| self.output.flush()).map_err(io)?;
        self.bytes += self.block.len() as u64;
        self.sequence = self.sequence.wrapping_add(1);
        self.columns.clear();
        self.summary = Summary::default();
        self.targets.end_block();
        self.last = Last::default();
        Ok(())
    }

    fn encode_snapshot(&mut self, snapshot: &Snapshot) {
        let mut entry = std::mem::take(&mut self.entry);
        entry.clear();
        put_signed(&mut entry, snapshot.start_ns.wrapping_sub(self.last.end_ns) as i64);
        put_signed(&mut entry, snapshot.end_ns.wrapping_sub(snapshot.start_ns) as i64);
        put_signed(&mut entry, snapshot.sample_ns.wrapping_sub(self.last.sample_ns) as i64);
        put_signed(&mut entry, i64::from(snapshot.max_nr_accesses) - i64::from(self.last.max_nr_accesses));
        put(&mut entry, snapshot.targets.len() as u64);
        self.last = Last {
            end_ns: snapshot.end_ns,
            sample_ns: snapshot.sample_ns,
            max_nr_accesses: snapshot.max_nr_accesses,
        };
        self.summary.add(snapshot);
        self.targets.encode(&snapshot.targets, &mut entry, &mut self.columns, &mut self.summary);
        let meta = &mut self.columns.meta;
        put(meta, SNAPSHOT);
        put(meta, entry.len() as u64);
        meta.extend_from_slice(&entry);
        self.entry = entry;
    }

    fn gathered(&self) -> usize {
        self.columns.all().iter().map(|c| c.len()).sum()
    }
}

impl<W: Write + Send> ItemWriter for Writer<W> {
    fn write_other(&mut self, item: &Item) -> Result<(), Error> {
        if self.failed {
            return Ok(());
        }
        items::encode(&mut self.columns.meta, item, &mut self.mappings).map_err(|e| Error::Encode {
            file: self.file.clone(),
            what: "an item",
            why: e.to_string(),
        })?;
        self.summary.add_other(items::time_of(item));
        let now = items::time_of(item).unwrap_or(0);
        // The header goes out at once so that whatever is left of the file says what it is.
        let must = matches!(item, Item::Header(_) | Item::End(_));
        if must || now.saturating_sub(self.summary.first_ns) >= BLOCK_NS || self.gathered() >= BLOCK_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let regions = self.targets.begin(&snapshot.targets).max(snapshot.targets.len());
        if regions > MAX_REGIONS {
            return Err(Error::TooManyRegions { file: self.file.clone(), regions, max: MAX_REGIONS });
        }
        if self.failed {
            return Ok(());
        }
        self.encode_snapshot(snapshot);
        // Half a snapshot's length early rather than late: ends jitter around the whole second.
        let covered = self.summary.last_ns.saturating_sub(self.summary.first_ns);
        let half = snapshot.end_ns.saturating_sub(snapshot.start_ns) / 2;
        if covered.saturating_add(half) >= BLOCK_NS || self.gathered() >= BLOCK_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.flush()
    }
}
