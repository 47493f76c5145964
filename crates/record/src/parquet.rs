//! Apache Parquet: a row a region, for pyarrow, pandas, DuckDB and whatever else reads it.
//!
//! The items other than snapshots that have a place in a table of regions go along: names of mappings in a column, the
//! header and the targets as JSON in the file's key-value metadata (`isotherm.header`, `isotherm.targets`). Rows are
//! gathered into groups of [`GROUP`]; that and the footer are all that is kept in memory.

use crate::{Error, Header, Item, ItemWriter, Mappings, TargetInfo};
use isotherm_damon::{RegionSnapshot, Snapshot};
use parquet::basic::{Compression, ZstdLevel};
use parquet::data_type::{ByteArray, ByteArrayType, DataType, DoubleType, Int32Type, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

/// Rows in a group.
const GROUP: usize = 128 << 10;

/// `rate_hz` is null where the rate is unknown, as where the recording tells no intervals; `seen` is the share of the
/// region that could be observed, 0..=1; `exposure` is null where the backend counts accesses and keeps no such account;
/// `resident` is bytes. Addresses and ids are unsigned: an address in the kernel's half must not come out negative. Columns of a group are
/// written in this order.
const SCHEMA: &str = "message regions {
    required int64 snapshot (integer(64, false));
    required int64 start_ns (integer(64, false));
    required int64 end_ns (integer(64, false));
    required int64 target_id (integer(64, false));
    required int32 pid (integer(32, false));
    required int64 region_start (integer(64, false));
    required int64 region_end (integer(64, false));
    required int32 nr_accesses (integer(32, false));
    required int32 max_nr_accesses (integer(32, false));
    optional double rate_hz;
    required int32 age (integer(32, false));
    required int64 age_ns (integer(64, false));
    optional binary mapping (string);
    required double seen;
    optional int64 exposure (integer(64, false));
    optional int64 resident (integer(64, false));
}";

/// Writes Parquet.
pub(crate) struct Writer<W: Write + Send> {
    output: Option<SerializedFileWriter<W>>,
    file: String,
    header: Header,
    targets: Vec<TargetInfo>,
    pids: HashMap<u64, u32>,
    names: HashMap<u64, Names>,
    snapshot: i64,
    rows: Rows,
}

/// A target's mappings, with names ready to be written.
struct Names {
    maps: Mappings,
    names: Vec<ByteArray>,
}

/// The rows of a group, by column.
#[derive(Default)]
struct Rows {
    snapshot: Vec<i64>,
    start_ns: Vec<i64>,
    end_ns: Vec<i64>,
    target_id: Vec<i64>,
    pid: Vec<i32>,
    region_start: Vec<i64>,
    region_end: Vec<i64>,
    nr_accesses: Vec<i32>,
    max_nr_accesses: Vec<i32>,
    rate_hz: Vec<f64>,
    rate_known: Vec<i16>,
    age: Vec<i32>,
    age_ns: Vec<i64>,
    mapping: Vec<ByteArray>,
    mapping_known: Vec<i16>,
    seen: Vec<f64>,
    exposure: Vec<i64>,
    exposure_known: Vec<i16>,
    resident: Vec<i64>,
    resident_known: Vec<i16>,
}

impl<W: Write + Send> Writer<W> {
    pub(crate) fn new(output: W, file: String) -> Result<Self, Error> {
        let failed =
            |e: ParquetError| Error::Encode { file: file.clone(), what: "the schema", why: e.to_string() };
        let schema = Arc::new(parse_message_type(SCHEMA).map_err(failed)?);
        let properties = WriterProperties::builder()
            .set_compression(Compression::ZSTD(ZstdLevel::default()))
            .set_created_by(concat!("isotherm ", env!("CARGO_PKG_VERSION")).to_owned())
            .build();
        let output = SerializedFileWriter::new(output, schema, Arc::new(properties)).map_err(failed)?;
        Ok(Self {
            output: Some(output),
            file,
            header: Header::default(),
            targets: Vec::new(),
            pids: HashMap::new(),
            names: HashMap::new(),
            snapshot: 0,
            rows: Rows::default(),
        })
    }

    fn write_group(&mut self) -> Result<(), Error> {
        let rows = std::mem::take(&mut self.rows);
        let Some(output) = &mut self.output else { return Ok(()) };
        if rows.snapshot.is_empty() {
            return Ok(());
        }
        output.next_row_group().and_then(|group| rows.write(group)).map_err(|e| failed(&self.file, e))
    }

    fn complete(&mut self) -> Result<(), Error> {
        self.write_group()?;
        let Some(mut output) = self.output.take() else { return Ok(()) };
        for (key, json) in [
            ("isotherm.header", serde_json::to_string(&self.header)),
            ("isotherm.targets", serde_json::to_string(&self.targets)),
        ] {
            let json = json.map_err(|e| Error::Encode {
                file: self.file.clone(),
                what: "the header",
                why: e.to_string(),
            })?;
            output.append_key_value_metadata(KeyValue::new(key.to_owned(), json));
        }
        let mut inner = output.into_inner().map_err(|e| failed(&self.file, e))?;
        inner.flush().map_err(|e| Error::io("write", &self.file, e))
    }
}

impl<W: Write + Send> ItemWriter for Writer<W> {
    fn write_other(&mut self, item: &Item) -> Result<(), Error> {
        match item {
            Item::Header(header) => self.header = header.clone(),
            Item::Target(target) => {
                self.pids.insert(target.id, target.pid);
                self.targets.push(target.clone());
            }
            Item::Mappings(maps) => {
                let names = maps.maps.iter().map(|m| ByteArray::from(&*m.name)).collect();
                self.names.insert(maps.target, Names { maps: maps.clone(), names });
            }
            Item::End(end) => {
                if !end.blind_spots.is_empty() {
                    self.header.backend.blind_spots.clone_from(&end.blind_spots);
                }
            }
            Item::Attrs { .. } | Item::Snapshot(_) | Item::Cost(_) | Item::TargetEnd(_) => {}
        }
        Ok(())
    }

    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let aggr_ns = snapshot.sample_ns.saturating_mul(u64::from(snapshot.max_nr_accesses));
        let aggr_ns = match aggr_ns {
            0 => snapshot.end_ns.saturating_sub(snapshot.start_ns),
            known => known,
        };
        let rates_known = snapshot.sample_ns > 0 && snapshot.max_nr_accesses > 0;
        for target in &snapshot.targets {
            let pid = self.pids.get(&target.id.0).copied().unwrap_or(0);
            let names = self.names.get(&target.id.0);
            for region in &target.regions {
                let rows = &mut self.rows;
                rows.snapshot.push(self.snapshot);
                // The columns are unsigned; the type below them is not.
                rows.start_ns.push(snapshot.start_ns as i64);
                rows.end_ns.push(snapshot.end_ns as i64);
                rows.target_id.push(target.id.0 as i64);
                rows.pid.push(pid as i32);
                rows.region_start.push(region.range.start as i64);
                rows.region_end.push(region.range.end as i64);
                rows.nr_accesses.push(region.nr_accesses as i32);
                rows.max_nr_accesses.push(snapshot.max_nr_accesses as i32);
                let rate_known = rates_known && !region.is_unknown();
                rows.rate_known.push(i16::from(rate_known));
                if rate_known {
                    rows.rate_hz.push(region.rate_hz(snapshot.sample_ns, snapshot.max_nr_accesses));
                }
                rows.age.push(region.age as i32);
                rows.age_ns.push(aggr_ns.saturating_mul(u64::from(region.age)) as i64);
                let name = names.and_then(|n| n.names.get(n.maps.main_mapping(region.range)?));
                rows.mapping_known.push(i16::from(name.is_some()));
                rows.mapping.extend(name.cloned());
                rows.seen.push(f64::from(region.seen_bp) / 10_000.0);
                let exposure = (region.exposure != RegionSnapshot::COUNTED).then_some(region.exposure);
                rows.exposure_known.push(i16::from(exposure.is_some()));
                rows.exposure.extend(exposure.map(i64::from));
                rows.resident_known.push(i16::from(region.resident.is_some()));
                rows.resident.extend(region.resident.map(|bytes| bytes as i64));
            }
            if self.rows.snapshot.len() >= GROUP {
                self.write_group()?;
            }
        }
        self.snapshot += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.complete()
    }
}

impl Rows {
    fn write<W: Write + Send>(
        self,
        mut group: SerializedRowGroupWriter<'_, W>,
    ) -> parquet::errors::Result<()> {
        column::<Int64Type, W>(&mut group, &self.snapshot, None)?;
        column::<Int64Type, W>(&mut group, &self.start_ns, None)?;
        column::<Int64Type, W>(&mut group, &self.end_ns, None)?;
        column::<Int64Type, W>(&mut group, &self.target_id, None)?;
        column::<Int32Type, W>(&mut group, &self.pid, None)?;
        column::<Int64Type, W>(&mut group, &self.region_start, None)?;
        column::<Int64Type, W>(&mut group, &self.region_end, None)?;
        column::<Int32Type, W>(&mut group, &self.nr_accesses, None)?;
        column::<Int32Type, W>(&mut group, &self.max_nr_accesses, None)?;
        column::<DoubleType, W>(&mut group, &self.rate_hz, Some(&self.rate_known))?;
        column::<Int32Type, W>(&mut group, &self.age, None)?;
        column::<Int64Type, W>(&mut group, &self.age_ns, None)?;
        column::<ByteArrayType, W>(&mut group, &self.mapping, Some(&self.mapping_known))?;
        column::<DoubleType, W>(&mut group, &self.seen, None)?;
        column::<Int64Type, W>(&mut group, &self.exposure, Some(&self.exposure_known))?;
        column::<Int64Type, W>(&mut group, &self.resident, Some(&self.resident_known))?;
        group.close().map(|_| ())
    }
}

/// The system's own reason where there is one: it decides the remedy.
fn failed(file: &str, error: ParquetError) -> Error {
    let source = match error {
        ParquetError::External(cause) => match cause.downcast::<io::Error>() {
            Ok(cause) => *cause,
            Err(cause) => io::Error::other(cause),
        },
        other => io::Error::other(other),
    };
    Error::io("write", file, source)
}

/// Writes a column; `known` says of each row whether it has a value, where that is not always so.
fn column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    values: &[T::T],
    known: Option<&[i16]>,
) -> parquet::errors::Result<()> {
    let Some(mut column) = group.next_column()? else { return Ok(()) };
    column.typed::<T>().write_batch(values, known, None)?;
    column.close()
}
