//! What stands in the pages of a column: dictionaries, and numbers into them in the format's hybrid of runs and packed bits
//! (Parquet format, "Encodings": PLAIN, RLE_DICTIONARY, RLE).

use bytes::Bytes;
use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::column::page::{CompressedPage, Page, PageWriter};
use parquet::column::writer::ColumnCloseResult;
use parquet::errors::{ParquetError, Result};
use parquet::file::metadata::ColumnChunkMetaData;
use parquet::file::statistics::Statistics;
use parquet::file::writer::{SerializedPageWriter, TrackedWrite};
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
        let mut sink = TrackedWrite::new(Vec::new());
        let mut writer = SerializedPageWriter::new(&mut sink);
        let mut plain_len = 0;
        if let Some(dictionary) = data.dictionary {
            let page = Page::DictionaryPage {
                buf: dictionary.bytes.clone(),
                num_values: data.distinct as u32,
                encoding: Encoding::PLAIN,
                is_sorted: false,
            };
            plain_len +=
                writer.write_page(CompressedPage::new(page, dictionary.plain_len))?.uncompressed_size;
        }
        let encoding = if data.dictionary.is_some() { Encoding::RLE_DICTIONARY } else { Encoding::PLAIN };
        let mut first = None;
        let mut total_rows = 0;
        for (packed, rows) in data.pages {
            let page = Page::DataPage {
                buf: packed.bytes.clone(),
                num_values: *rows as u32,
                encoding,
                def_level_encoding: Encoding::RLE,
                rep_level_encoding: Encoding::RLE,
                statistics: None,
            };
            let written = writer.write_page(CompressedPage::new(page, packed.plain_len))?;
            first.get_or_insert(written.offset);
            plain_len += written.uncompressed_size;
            total_rows += rows;
        }
        writer.close()?;
        let bytes = sink.into_inner()?;
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
            .set_data_page_offset(first.unwrap_or(0) as i64)
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
