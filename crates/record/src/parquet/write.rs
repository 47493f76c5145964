//! Writing: gathers rows, has them encoded, puts them into the file.

use super::columns::Columns;
use super::footer::{GroupAt, Layout};
use super::group::{Group, Head, Names, Target, Who};
use super::pages::Chunk;
use super::pool::Pool;
use super::{Bare, GROUP_ITEMS, GROUP_ROWS, MAX_CELL, MAX_LISTED, SCHEMA, SPAN_NS, SPAN_ROWS};
use super::{KEY_CRC, KEY_HEADER, KEY_ITEMS, KEY_TARGETS, hex};
use crate::rec::Notes;
use crate::{Error, Header, Item, ItemWriter, TargetInfo};
use isotherm_damon::{Snapshot, append_regions};
use parquet::errors::ParquetError;
use parquet::file::metadata::{KeyValue, SortingColumn};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::SchemaDescPtr;
use serde::Serialize;
use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

/// Writes Parquet.
pub(crate) struct Writer<W: Write + Send> {
    output: Option<SerializedFileWriter<W>>,
    schema: SchemaDescPtr,
    pool: Option<Pool>,
    file: String,
    header: Header,
    /// The first targets, for the metadata.
    listed: Vec<TargetInfo>,
    who: HashMap<u64, Arc<Who>>,
    names: HashMap<u64, Arc<Names>>,
    notes: Notes,
    /// Items that wait for a row.
    pending: Vec<String>,
    pending_len: usize,
    index: u64,
    group: Group,
    layout: Layout,
}

impl<W: Write + Send> Writer<W> {
    pub(crate) fn new(output: W, file: String) -> Result<Self, Error> {
        let failed =
            |e: ParquetError| Error::Encode { file: file.clone(), what: "the schema", why: e.to_string() };
        let schema = Arc::new(parse_message_type(SCHEMA).map_err(failed)?);
        let properties = WriterProperties::builder()
            .set_created_by(concat!("isotherm ", env!("CARGO_PKG_VERSION")).to_owned())
            .set_sorting_columns(Some(vec![SortingColumn {
                column_idx: 0,
                descending: false,
                nulls_first: false,
            }]))
            .build();
        let output = SerializedFileWriter::new(output, schema, Arc::new(properties)).map_err(failed)?;
        Ok(Self {
            schema: output.schema_descr().clone().into(),
            output: Some(output),
            pool: None,
            file,
            header: Header::default(),
            listed: Vec::new(),
            who: HashMap::new(),
            names: HashMap::new(),
            notes: Notes::default(),
            pending: Vec::new(),
            pending_len: 0,
            index: 0,
            group: Group::default(),
            layout: Layout::default(),
        })
    }

    fn note(&mut self, item: &Item) -> Result<(), Error> {
        let (kind, json) = self.notes.encode(item).map_err(|e| self.unencoded("an item", &e))?;
        let mut line = format!("{kind} ");
        line.push_str(&String::from_utf8_lossy(&json));
        line.push('\n');
        self.pend(line);
        self.flush_pending()
    }

    fn bare(&mut self, kind: char, bare: &Bare) -> Result<(), Error> {
        let json = serde_json::to_string(bare).map_err(|e| self.unencoded("a snapshot", &e))?;
        self.pend(format!("{kind} {json}\n"));
        Ok(())
    }

    fn pend(&mut self, line: String) {
        self.pending_len += line.len();
        // A list of lines, not one text: where there are rows enough they share it.
        match self.pending.last_mut() {
            Some(last) if last.len() + line.len() < 64 << 10 => last.push_str(&line),
            _ => self.pending.push(line),
        }
    }

    /// Much text that no row follows becomes a group without rows: neither memory nor the footer holds days of it.
    fn flush_pending(&mut self) -> Result<(), Error> {
        if self.pending_len < GROUP_ITEMS {
            return Ok(());
        }
        if !self.group.heads.is_empty() {
            self.end_group()?;
        }
        self.pending_len = 0;
        self.group.lone = std::mem::take(&mut self.pending);
        if let Some(cell) = self.group.lone.iter().find(|cell| cell.len() > MAX_CELL) {
            return Err(self.too_long(cell));
        }
        self.end_group()
    }

    fn too_long(&self, cell: &str) -> Error {
        Error::Encode {
            file: self.file.clone(),
            what: "what precedes a snapshot",
            why: format!("{} bytes of names and mappings in a row", cell.len()),
        }
    }

    fn unencoded(&self, what: &'static str, why: &serde_json::Error) -> Error {
        Error::Encode { file: self.file.clone(), what, why: why.to_string() }
    }

    /// Puts the items that wait into the rows of the snapshot that is added next.
    fn place(&mut self, rows: usize) -> Result<(), Error> {
        let first = self.group.regions.len();
        self.group.items_len += std::mem::take(&mut self.pending_len);
        let mut lines = std::mem::take(&mut self.pending).into_iter();
        for row in 0..rows {
            let Some(mut cell) = lines.next() else { return Ok(()) };
            if row + 1 == rows {
                lines.by_ref().for_each(|more| cell.push_str(&more));
            }
            if cell.len() > MAX_CELL {
                return Err(self.too_long(&cell));
            }
            self.group.items.push((first + row, cell));
        }
        Ok(())
    }

    fn take(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let rows = snapshot.nr_regions();
        let Snapshot { start_ns, end_ns, sample_ns, max_nr_accesses, ref targets } = *snapshot;
        if rows == 0 {
            let targets = targets.iter().map(|t| t.id.0).collect();
            let max_nr_accesses = u64::from(max_nr_accesses);
            let bare = Bare { start_ns, end_ns, sample_ns, max_nr_accesses, targets, bare: Vec::new() };
            self.bare('s', &bare)?;
            return self.flush_pending();
        }
        let bare = targets.iter().enumerate().filter(|(_, t)| t.regions.is_empty());
        let bare: Vec<(usize, u64)> = bare.map(|(at, t)| (at, t.id.0)).collect();
        if !bare.is_empty() {
            self.bare('t', &Bare { bare, ..Bare::default() })?;
        }
        self.place(rows)?;
        let wall_us = |ns: u64| self.header.wall_clock_ns(ns).and_then(|ns| i64::try_from(ns / 1000).ok());
        let wall_us = wall_us(start_ns).zip(wall_us(end_ns));
        let group = &mut self.group;
        group.heads.push(Head {
            index: self.index,
            start_ns,
            end_ns,
            wall_us,
            sample_ns,
            max_nr_accesses,
            rows,
        });
        for target in targets.iter().filter(|t| !t.regions.is_empty()) {
            group.targets.push(Target {
                id: target.id.0,
                who: self.who.get(&target.id.0).cloned(),
                names: self.names.get(&target.id.0).cloned(),
                rows: target.regions.len(),
            });
            append_regions(&target.regions, &mut group.regions);
        }
        let rows = group.regions.len();
        let span = group.heads.first().map_or(0, |first| end_ns.saturating_sub(first.start_ns));
        let ends =
            rows >= GROUP_ROWS || rows >= SPAN_ROWS && span >= SPAN_NS || group.items_len >= GROUP_ITEMS;
        if ends { self.end_group() } else { Ok(()) }
    }

    /// Has a group encoded beside.
    fn end_group(&mut self) -> Result<(), Error> {
        let group = std::mem::take(&mut self.group);
        let rows = group.regions.len();
        let pool = match &mut self.pool {
            Some(pool) => pool,
            None => self.pool.insert(Pool::new(&self.schema).map_err(|e| failed(&self.file, e))?),
        };
        let done = pool.submit(group);
        self.group.regions = pool.room(rows);
        done.into_iter().try_for_each(|chunks| self.append(chunks))
    }

    fn append(&mut self, chunks: parquet::errors::Result<Vec<Chunk>>) -> Result<(), Error> {
        let Some(output) = &mut self.output else { return Ok(()) };
        let layout = &mut self.layout;
        let append = |chunks: Vec<Chunk>| {
            let mut group = output.next_row_group()?;
            for Chunk { bytes, close } in chunks {
                group.append_column(&bytes, close)?;
            }
            let (group, kinds) = GroupAt::written(&*group.close()?);
            layout.add(&group, &kinds);
            Ok(())
        };
        chunks.and_then(append).map_err(|e| failed(&self.file, e))
    }

    fn complete(&mut self) -> Result<(), Error> {
        if self.output.is_none() {
            return Ok(());
        }
        if let Some(mut pool) = self.pool.take() {
            while let Some(chunks) = pool.next() {
                self.append(chunks)?;
            }
        }
        let group = std::mem::take(&mut self.group);
        if !group.heads.is_empty() {
            let columns = Columns::new(self.schema.clone()).map_err(|e| Error::io("write", &self.file, e))?;
            let chunks = { columns }.encode(&group);
            self.append(chunks)?;
        }
        let Some(mut output) = self.output.take() else { return Ok(()) };
        let items = std::mem::take(&mut self.pending).concat();
        let header = self.json(&self.header)?;
        let [of_header, of_items] = [&header, &items].map(|text| crc32fast::hash(text.as_bytes()));
        let crc = [of_header, of_items, std::mem::take(&mut self.layout).finish()].map(hex).join(" ");
        for (key, value) in [
            (KEY_CRC, crc),
            (KEY_HEADER, header),
            (KEY_TARGETS, self.json(&self.listed)?),
            (KEY_ITEMS, items),
        ] {
            output.append_key_value_metadata(KeyValue::new(key.to_owned(), value));
        }
        let mut inner = output.into_inner().map_err(|e| failed(&self.file, e))?;
        inner.flush().map_err(|e| Error::io("write", &self.file, e))
    }

    fn json(&self, value: &impl Serialize) -> Result<String, Error> {
        serde_json::to_string(value).map_err(|e| self.unencoded("the header", &e))
    }
}

impl<W: Write + Send> ItemWriter for Writer<W> {
    fn write_other(&mut self, item: &Item) -> Result<(), Error> {
        match item {
            Item::Header(header) => {
                self.header = header.clone();
                return Ok(());
            }
            Item::Target(target) => {
                let who = Who { pid: target.pid, comm: target.comm.clone() };
                self.who.insert(target.id, Arc::new(who));
                if self.listed.len() < MAX_LISTED {
                    self.listed.push(target.clone());
                }
            }
            Item::Mappings(maps) => {
                self.names.insert(maps.target, Arc::new(Names::new(maps)));
            }
            Item::TargetEnd(end) => {
                // What comes back under this id is announced again.
                self.names.remove(&end.target);
            }
            Item::Attrs { .. } | Item::Snapshot(_) | Item::Cost(_) | Item::Action(_) | Item::End(_) => {}
        }
        self.note(item)
    }

    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.take(snapshot)?;
        self.index += 1;
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.complete()
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
