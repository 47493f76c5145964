//! What stands in the pages of a column: dictionaries, and numbers into them in the format's hybrid of runs and packed bits
//! (Parquet format, "Encodings": PLAIN, RLE_DICTIONARY, RLE).

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;
use parquet::schema::types::ColumnDescPtr;
use zstd::bulk::Compressor;

/// A column of a group, ready to be put into the file.
pub(super) struct Chunk {
    pub(super) bytes: Bytes,
    pub(super) close: ColumnCloseResult,
}

/// The values that occur in a column.
pub(super) enum Values<'a> {
    U32(&'a [u32]),
    U64(&'a [u64]),
    /// Wall-clock times, which are signed.
    I64(&'a [i64]),
    F64(&'a [f64]),
    Text(&'a [&'a [u8]]),
}

/// Bytes that are compressed, and how many they were.
#[derive(Clone)]
pub(super) struct Packed {
    bytes: Bytes,
    plain_len: usize,
}

/// The data of a column.
pub(super) struct Data<'a> {
    /// One of the dictionary, or none: then the pages hold values themselves.
    pub(super) dictionary: Option<&'a Packed>,
    /// Pages, each with its number of rows.
    pub(super) pages: &'a [(Packed, usize)],
    pub(super) statistics: Option<Statistics>,
    /// Values in the dictionary.
    pub(super) distinct: usize,
}

/// Compresses and frames.
pub(super) struct Encoder {
    compressor: Compressor<'static>,
    scratch: Vec<u8>,
}

impl Encoder {
    pub(super) fn new() -> std::io::Result<Self> {
        Ok(Self { compressor: Compressor::new(1)?, scratch: Vec::new() })
    }

    fn pack(&mut self) -> Result<Packed> {
        let packed =
            self.compressor.compress(&self.scratch).map_err(|e| ParquetError::External(Box::new(e)))?;
        Ok(Packed { bytes: packed.into(), plain_len: self.scratch.len() })
    }

    /// A dictionary page, or a page of values that stand for themselves.
    pub(super) fn plain(&mut self, values: &Values<'_>, known: Option<&[bool]>) -> Result<Packed> {
        self.scratch.clear();
        put_levels(&mut self.scratch, known);
        let out = &mut self.scratch;
        match values {
            Values::U32(list) => list.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
            Values::U64(list) => list.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
            Values::I64(list) => list.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
            Values::F64(list) => list.iter().for_each(|v| out.extend_from_slice(&v.to_le_bytes())),
            Values::Text(list) => {
                for text in *list {
                    // No text is longer than a cell may be.
                    out.extend_from_slice(&(text.len() as u32).to_le_bytes());
                    out.extend_from_slice(text);
                }
            }
        }
        self.pack()
    }

    /// A page of numbers into a dictionary of `distinct` values. `known` says of each row whether it has one.
    pub(super) fn numbers(
        &mut self,
        numbers: &[u32],
        distinct: usize,
        known: Option<&[bool]>,
    ) -> Result<Packed> {
        self.scratch.clear();
        put_levels(&mut self.scratch, known);
        let width = width(distinct);
        self.scratch.push(width);
        put_varint(&mut self.scratch, (numbers.len().div_ceil(8) as u64) << 1 | 1);
        put_bits(&mut self.scratch, numbers, width);
        self.pack()
    }

    /// The same of a column that changes seldom: `(number, rows)` each; the number is `None` in rows without a value.
    pub(super) fn runs(
        &mut self,
        runs: &[(Option<u32>, usize)],
        distinct: usize,
        nullable: bool,
    ) -> Result<Packed> {
        self.scratch.clear();
        let out = &mut self.scratch;
        if nullable {
            let start = out.len();
            out.extend_from_slice(&[0; 4]);
            for &(number, rows) in runs {
                put_run(out, u32::from(number.is_some()), rows, 1);
            }
            let len = (out.len() - start - 4) as u32;
            out[start..start + 4].copy_from_slice(&len.to_le_bytes());
        }
        let width = width(distinct);
        out.push(width);
        for &(number, rows) in runs {
            if let Some(number) = number {
                put_run(out, number, rows, width);
            }
        }
        self.pack()
    }

    /// A column from its pages.
    pub(super) fn chunk(&self, column: &ColumnDescPtr, data: &Data<'_>) -> Result<Chunk> {
        let mut bytes = Vec::new();
        let mut plain_len = 0;
        if let Some(dictionary) = data.dictionary {
            plain_len += put_page(&mut bytes, PageKind::Dictionary, dictionary, data.distinct);
        }
        let first = bytes.len();
        let kind = PageKind::Data(match data.dictionary {
            Some(_) => Encoding::RLE_DICTIONARY,
            None => Encoding::PLAIN,
        });
        let mut total_rows = 0;
        for (packed, rows) in data.pages {
            plain_len += put_page(&mut bytes, kind, packed, *rows);
            total_rows += rows;
        }
        let first = if data.pages.is_empty() { 0 } else { first };
        let mut metadata = ColumnChunkMetaData::builder(column.clone())
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_encodings(if data.dictionary.is_some() {
                vec![Encoding::PLAIN, Encoding::RLE, Encoding::RLE_DICTIONARY]
            } else {
                vec![Encoding::PLAIN, Encoding::RLE]
            })
            .set_num_values(total_rows as i64)
            .set_total_compressed_size(bytes.len() as i64)
            .set_total_uncompressed_size(plain_len as i64)
            .set_data_page_offset(first as i64)
            .set_dictionary_page_offset(data.dictionary.map(|_| 0));
        if let Some(statistics) = &data.statistics {
            metadata = metadata.set_statistics(statistics.clone());
        }
        let close = ColumnCloseResult {
            bytes_written: bytes.len() as u64,
            rows_written: total_rows as u64,
            metadata: metadata.build()?,
            bloom_filter: None,
            column_index: None,
            offset_index: None,
        };
        Ok(Chunk { bytes: bytes.into(), close })
    }
}

/// What a page holds.
#[derive(Clone, Copy)]
enum PageKind {
    /// Values, and how they are encoded.
    Data(Encoding),
    Dictionary,
}

/// Appends a page of `values` values behind its header: `PageHeader` of the format's `parquet.thrift`, in Thrift's compact protocol.
/// Returns how long both are before compression.
///
/// The `parquet` crate writes no checksums; so a flipped bit in a page would be read as another value. They are CRC-32 of what is
/// in the file, as the format wants it.
fn put_page(out: &mut Vec<u8>, kind: PageKind, packed: &Packed, values: usize) -> usize {
    /// Type codes of the protocol, below the distance from the number of the field before.
    const FALSE: u8 = 2;
    const I32: u8 = 5;
    const STRUCT: u8 = 12;
    fn put_i32(out: &mut Vec<u8>, value: i32) {
        out.push(1 << 4 | I32);
        put_varint(out, u64::from((value << 1 ^ value >> 31) as u32));
    }
    let start = out.len();
    // Neither is above 2^31: pages have a limit far below that.
    let (plain_len, len) = (packed.plain_len as i32, packed.bytes.len() as i32);
    put_i32(out, if matches!(kind, PageKind::Dictionary) { 2 } else { 0 });
    put_i32(out, plain_len);
    put_i32(out, len);
    put_i32(out, crc32fast::hash(&packed.bytes) as i32);
    match kind {
        PageKind::Data(encoding) => {
            out.push(1 << 4 | STRUCT);
            put_i32(out, values as i32);
            put_i32(out, encoding as i32);
            // Definition and repetition levels.
            put_i32(out, Encoding::RLE as i32);
            put_i32(out, Encoding::RLE as i32);
        }
        PageKind::Dictionary => {
            out.push(3 << 4 | STRUCT);
            put_i32(out, values as i32);
            put_i32(out, Encoding::PLAIN as i32);
            // Not sorted.
            out.push(1 << 4 | FALSE);
        }
    }
    // Two ends of structures.
    out.extend_from_slice(&[0, 0]);
    let header_len = out.len() - start;
    out.extend_from_slice(&packed.bytes);
    header_len + packed.plain_len
}

/// The least and the greatest of some values, as the format wants them told: `nulls` are counted beside.
pub(super) fn statistics(values: &Values<'_>, nulls: usize) -> Option<Statistics> {
    let nulls = Some(nulls as u64);
    Some(match values {
        // The order is that of the logical type, which is unsigned; the type below is not.
        Values::U32(list) => {
            let (min, max) = (list.iter().min()?, list.iter().max()?);
            Statistics::int32(Some(*min as i32), Some(*max as i32), None, nulls, false)
        }
        Values::U64(list) => {
            let (min, max) = (list.iter().min()?, list.iter().max()?);
            Statistics::int64(Some(*min as i64), Some(*max as i64), None, nulls, false)
        }
        Values::I64(list) => {
            let (min, max) = (list.iter().min()?, list.iter().max()?);
            Statistics::int64(Some(*min), Some(*max), None, nulls, false)
        }
        Values::F64(list) => {
            let fold = |pick: fn(f64, f64) -> f64| list.iter().copied().reduce(pick);
            Statistics::double(Some(fold(f64::min)?), Some(fold(f64::max)?), None, nulls, false)
        }
        Values::Text(_) => return None,
    })
}

/// Bits of a number into a dictionary of so many values.
const fn width(distinct: usize) -> u8 {
    // One at least: not every reader knows what to make of none.
    let bits = (distinct.saturating_sub(1) | 1).ilog2() + 1;
    bits as u8
}

/// Which rows have a value: runs of ones and zeros, behind their length.
fn put_levels(out: &mut Vec<u8>, known: Option<&[bool]>) {
    let Some(known) = known else { return };
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    for run in known.chunk_by(|a, b| a == b) {
        put_run(out, u32::from(run[0]), run.len(), 1);
    }
    let len = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
}

fn put_run(out: &mut Vec<u8>, number: u32, rows: usize, width: u8) {
    put_varint(out, (rows as u64) << 1);
    out.extend_from_slice(&number.to_le_bytes()[..usize::from(width.div_ceil(8))]);
}

fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Packs numbers of `width` bits, 1 to 32, low bits first, in whole groups of eight.
fn put_bits(out: &mut Vec<u8>, numbers: &[u32], width: u8) {
    let end = out.len() + numbers.len().div_ceil(8) * usize::from(width);
    out.reserve(end - out.len() + 8);
    let (mut held, mut bits) = (0_u64, 0);
    for &number in numbers {
        held |= u64::from(number) << bits;
        bits += width;
        if bits >= 32 {
            out.extend_from_slice(&(held as u32).to_le_bytes());
            held >>= 32;
            bits -= 32;
        }
    }
    out.extend_from_slice(&held.to_le_bytes());
    out.resize(end, 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_are_packed_low_first_in_groups_of_eight() {
        let mut out = Vec::new();
        // The example of the format's specification: 0 to 7 in three bits.
        put_bits(&mut out, &[0, 1, 2, 3, 4, 5, 6, 7], 3);
        assert_eq!(out, [0b1000_1000, 0b1100_0110, 0b1111_1010]);
        out.clear();
        put_bits(&mut out, &[1; 9], 17);
        assert_eq!(out.len(), 34);
        assert_eq!([width(0), width(1), width(2), width(3), width(256), width(257)], [1, 1, 1, 2, 8, 9]);
    }
}
