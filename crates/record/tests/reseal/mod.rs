//! Changes what stands behind checksums and compression, and closes it again.

use flate2::Compression;
use flate2::read::ZlibDecoder;
use flate2::write::ZlibEncoder;
use parquet::basic::Compression as Codec;
use parquet::column::reader::ColumnReader;
use parquet::column::writer::ColumnWriter;
use parquet::data_type::DataType;
use parquet::file::properties::WriterProperties;
use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::file::writer::SerializedFileWriter;
use std::io::{Read, Write};
use std::sync::Arc;

type Change<'a> = &'a mut dyn FnMut(&mut Vec<u8>);

/// The text within a zlib stream.
pub fn zlib(file: &[u8], change: Change<'_>) -> Vec<u8> {
    let mut text = Vec::new();
    ZlibDecoder::new(file).read_to_end(&mut text).unwrap();
    change(&mut text);
    let mut out = ZlibEncoder::new(Vec::new(), Compression::fast());
    out.write_all(&text).unwrap();
    out.finish().unwrap()
}

/// Payloads and summaries of a recording's blocks, under checksums that fit (see `isotherm_record::rec`).
pub fn rec(file: &[u8], change: Change<'_>) -> Vec<u8> {
    let mut out = file[..16].to_vec();
    let mut at = 16;
    let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let mut left = 3;
    while at + 28 <= file.len() {
        let summary_len = usize::from(u16::from_le_bytes([file[at + 6], file[at + 7]]));
        let (payload_len, raw_len) = (u32_at(at + 12), u32_at(at + 16));
        let mut summary = file[at + 28..at + 28 + summary_len].to_vec();
        let from = at + 28 + summary_len;
        let mut raw = zstd::bulk::decompress(&file[from..from + payload_len], raw_len).unwrap();
        // The first blocks are changed; the rest must survive it.
        if left > 0 {
            left -= 1;
            if left == 1 { change(&mut summary) } else { change(&mut raw) }
        }
        summary.truncate(usize::from(u16::MAX));
        let payload = zstd::bulk::compress(&raw, 1).unwrap();
        let mut head = file[at..at + 24].to_vec();
        head[6..8].copy_from_slice(&(summary.len() as u16).to_le_bytes());
        head[12..16].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[16..20].copy_from_slice(&(raw.len() as u32).to_le_bytes());
        head[20..24].copy_from_slice(&crc32fast::hash(&payload).to_le_bytes());
        let crc = crc32fast::hash(&[&head[..], &summary].concat());
        out.extend_from_slice(&head);
        out.extend_from_slice(&crc.to_le_bytes());
        out.extend_from_slice(&summary);
        out.extend_from_slice(&payload);
        at = from + payload_len;
    }
    out
}

/// The same rows, as the Parquet library writes them when left to itself, without compression.
pub fn parquet_uncompressed(file: &[u8]) -> Vec<u8> {
    let reader = SerializedFileReader::new(bytes::Bytes::copy_from_slice(file)).unwrap();
    let metadata = reader.metadata().file_metadata();
    let properties = WriterProperties::builder()
        .set_compression(Codec::UNCOMPRESSED)
        .set_key_value_metadata(metadata.key_value_metadata().cloned())
        .build();
    let schema = metadata.schema_descr().root_schema_ptr();
    let mut writer = SerializedFileWriter::new(Vec::new(), schema, Arc::new(properties)).unwrap();
    for index in 0..reader.num_row_groups() {
        let from = reader.get_row_group(index).unwrap();
        let rows = from.metadata().num_rows() as usize;
        let mut to = writer.next_row_group().unwrap();
        for column in 0..from.num_columns() {
            let mut out = to.next_column().unwrap().unwrap();
            match (from.get_column_reader(column).unwrap(), out.untyped()) {
                (ColumnReader::Int32ColumnReader(r), ColumnWriter::Int32ColumnWriter(w)) => copy(r, w, rows),
                (ColumnReader::Int64ColumnReader(r), ColumnWriter::Int64ColumnWriter(w)) => copy(r, w, rows),
                (ColumnReader::DoubleColumnReader(r), ColumnWriter::DoubleColumnWriter(w)) => {
                    copy(r, w, rows)
                }
                (ColumnReader::ByteArrayColumnReader(r), ColumnWriter::ByteArrayColumnWriter(w)) => {
                    copy(r, w, rows)
                }
                _ => panic!("a column of another type"),
            }
            out.close().unwrap();
        }
        to.close().unwrap();
    }
    writer.into_inner().unwrap()
}

fn copy<T: DataType>(
    mut from: parquet::column::reader::ColumnReaderImpl<T>,
    to: &mut parquet::column::writer::ColumnWriterImpl<'_, T>,
    rows: usize,
) {
    let (mut values, mut levels) = (Vec::new(), Vec::new());
    let (read, ..) = from.read_records(rows, Some(&mut levels), None, &mut values).unwrap();
    assert_eq!(read, rows);
    let levels = (!levels.is_empty()).then_some(&levels[..]);
    to.write_batch(&values, levels, None).unwrap();
}
