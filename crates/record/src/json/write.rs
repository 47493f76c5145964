//! Writing: the first target's record streams; those of other targets wait until it is complete.
//!
//! What is written is what damo's own reader takes. That takes plain JSON only if `file -b` prints exactly "JSON data" for
//! it, which `file` did before version 5.44, of files of up to a mebibyte; json_compressed it takes anywhere.

use super::waiting::Waiting;
use crate::whole::whole_accesses;
use crate::{Error, Format, Header, Item, ItemWriter};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use isotherm_damon::{Snapshot, TargetSnapshot};
use std::io::{self, BufWriter, Write};

/// Writes damo's JSON.
pub(crate) struct Writer<W: Write> {
    output: Output<W>,
    file: String,
    header: Header,
    /// The target whose record is being written.
    current: Option<u64>,
    /// The records of all other targets, to be written behind it.
    others: Waiting,
    nr_records: usize,
    nr_snapshots: usize,
    finished: bool,
}

enum Output<W: Write> {
    Plain(BufWriter<W>),
    Compressed(BufWriter<ZlibEncoder<W>>),
}

impl<W: Write> Output<W> {
    fn write(&mut self) -> &mut dyn Write {
        match self {
            Self::Plain(out) => out,
            Self::Compressed(out) => out,
        }
    }

    /// Completes the zlib stream.
    fn finish(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(out) => out.flush(),
            Self::Compressed(out) => {
                out.flush()?;
                out.get_mut().try_finish()?;
                out.get_mut().get_mut().flush()
            }
        }
    }
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(output: W, file: String, format: Format) -> Self {
        let output = if format == Format::JsonCompressed {
            Output::Compressed(BufWriter::with_capacity(
                64 << 10,
                ZlibEncoder::new(output, Compression::fast()),
            ))
        } else {
            Output::Plain(BufWriter::with_capacity(64 << 10, output))
        };
        Self {
            output,
            file,
            header: Header::default(),
            current: None,
            others: Waiting::default(),
            nr_records: 0,
            nr_snapshots: 0,
            finished: false,
        }
    }

    fn io(&self) -> impl Fn(io::Error) -> Error + use<W> {
        let file = self.file.clone();
        move |e| Error::io("write", &file, e)
    }

    /// Writes what stands between two records.
    fn separate(&mut self) -> io::Result<()> {
        let separator: &[u8] = if self.nr_records == 0 { b"[" } else { b",\n" };
        self.nr_records += 1;
        self.output.write().write_all(separator)
    }

    fn end_record(&mut self) -> io::Result<()> {
        self.output.write().write_all(br#"],"data_source":"isotherm"}"#)
    }
}

/// Opens a target's record; its intervals are those of its first snapshot.
fn begin_record(out: &mut dyn Write, header: &Header, id: u64, snapshot: &Snapshot) -> io::Result<()> {
    let attrs = header.attrs;
    let sample_us = match attrs.sample_us {
        0 => snapshot.sample_ns / 1000,
        us => us,
    };
    let aggr_us = match attrs.aggr_us {
        0 => sample_us.saturating_mul(u64::from(snapshot.max_nr_accesses)),
        us => us,
    };
    out.write_all(br#"{"kdamond_idx":0,"context_idx":0,"intervals":"#)?;
    if sample_us == 0 {
        out.write_all(b"null")?;
    } else {
        let update_us = if attrs.update_us == 0 { 1_000_000 } else { attrs.update_us };
        write!(out, r#"{{"sample_us":{sample_us},"aggr_us":{aggr_us},"ops_update_us":{update_us},"#)?;
        out.write_all(br#""intervals_goal":{"access_bp":0,"aggrs":0,"min_sample_us":0,"max_sample_us":0}}"#)?;
    }
    write!(out, r#","scheme_idx":null,"target_id":{id},"scheme_filters":[],"snapshots":["#)
}

/// Prints what a snapshot says of a target; `nth`: which of its record it is, from 0.
fn print(out: &mut dyn Write, snapshot: &Snapshot, target: &TargetSnapshot, nth: usize) -> io::Result<()> {
    out.write_all(if nth == 0 { b"\n" } else { b",\n" })?;
    write!(out, r#"{{"start_time":{},"end_time":{},"regions":["#, snapshot.start_ns, snapshot.end_ns)?;
    let mut total = 0_u64;
    for (i, region) in target.regions.iter().enumerate() {
        total = total.saturating_add(region.range.size());
        if i > 0 {
            out.write_all(b",")?;
        }
        write!(
            out,
            r#"{{"start":{},"end":{},"nr_accesses":{{"samples":{},"percent":null}},"#,
            region.range.start,
            region.range.end,
            whole_accesses(region, nth)
        )?;
        let age = region.age;
        write!(out, r#""age":{{"usec":null,"aggr_intervals":{age}}}}}"#)?;
    }
    write!(out, r#"],"total_bytes":{total},"damos_stats":null,"sample_interval_us":"#)?;
    match snapshot.sample_ns / 1000 {
        0 => out.write_all(b"null}"),
        us => write!(out, "{us}}}"),
    }
}

impl<W: Write + Send> ItemWriter for Writer<W> {
    fn write_other(&mut self, item: &Item) -> Result<(), Error> {
        if let Item::Header(header) = item {
            self.header = header.clone();
        }
        Ok(())
    }

    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let io = self.io();
        if let (None, Some(first)) = (self.current, snapshot.targets.first()) {
            self.separate().map_err(&io)?;
            begin_record(self.output.write(), &self.header, first.id.0, snapshot).map_err(&io)?;
            self.current = Some(first.id.0);
        }
        for target in &snapshot.targets {
            if Some(target.id.0) == self.current {
                print(self.output.write(), snapshot, target, self.nr_snapshots).map_err(&io)?;
                self.nr_snapshots += 1;
                continue;
            }
            let header = &self.header;
            self.others.append(target.id.0, &self.file, |out, nth| {
                if nth == 0 {
                    begin_record(out, header, target.id.0, snapshot)?;
                }
                print(out, snapshot, target, nth)
            })?;
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        let io = self.io();
        if self.current.is_some() {
            self.end_record().map_err(&io)?;
        }
        let mut others = std::mem::take(&mut self.others);
        let drained = others.drain(|record| {
            self.separate()?;
            record(self.output.write())?;
            self.end_record()
        });
        drained.map_err(&io)?;
        let end: &[u8] = if self.nr_records == 0 { b"[]\n" } else { b"]\n" };
        self.output.write().write_all(end).and_then(|()| self.output.finish()).map_err(&io)
    }
}
