//! Writing: the first target's record streams; other targets wait in temporary files until it is complete.

use crate::rec;
use crate::{Error, Format, Header, Item, ItemReader, ItemWriter};
use flate2::Compression;
use flate2::write::ZlibEncoder;
use isotherm_damon::{Snapshot, TargetSnapshot};
use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};

/// Writes damo's JSON.
pub(crate) struct Writer<W: Write> {
    output: Output<W>,
    file: String,
    header: Header,
    /// The target whose record is being written.
    current: Option<u64>,
    /// Snapshots of all other targets, to be written behind it; and which targets those are, in order.
    others: Option<rec::Writer<File>>,
    waiting: Vec<u64>,
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
            others: None,
            waiting: Vec::new(),
            nr_records: 0,
            nr_snapshots: 0,
            finished: false,
        }
    }

    fn io(&self) -> impl Fn(io::Error) -> Error + use<W> {
        let file = self.file.clone();
        move |e| Error::io("write", &file, e)
    }

    /// Opens a target's record; its intervals are those of its first snapshot.
    fn begin_record(&mut self, id: u64, snapshot: &Snapshot) -> io::Result<()> {
        let attrs = self.header.attrs;
        let sample_us = match attrs.sample_us {
            0 => snapshot.sample_ns / 1000,
            us => us,
        };
        let aggr_us = match attrs.aggr_us {
            0 => sample_us.saturating_mul(u64::from(snapshot.max_nr_accesses)),
            us => us,
        };
        let out = self.output.write();
        out.write_all(if self.nr_records == 0 { b"[" } else { b",\n" })?;
        out.write_all(br#"{"kdamond_idx":0,"context_idx":0,"intervals":"#)?;
        if sample_us == 0 {
            out.write_all(b"null")?;
        } else {
            let update_us = if attrs.update_us == 0 { 1_000_000 } else { attrs.update_us };
            write!(out, r#"{{"sample_us":{sample_us},"aggr_us":{aggr_us},"ops_update_us":{update_us},"#)?;
            out.write_all(
                br#""intervals_goal":{"access_bp":0,"aggrs":0,"min_sample_us":0,"max_sample_us":0}}"#,
            )?;
        }
        write!(out, r#","scheme_idx":null,"target_id":{id},"scheme_filters":[],"snapshots":["#)?;
        self.nr_records += 1;
        self.nr_snapshots = 0;
        Ok(())
    }

    fn end_record(&mut self) -> io::Result<()> {
        self.output.write().write_all(br#"],"data_source":"isotherm"}"#)
    }

    fn print(&mut self, snapshot: &Snapshot, target: &TargetSnapshot) -> io::Result<()> {
        let out = self.output.write();
        out.write_all(if self.nr_snapshots == 0 { b"\n" } else { b",\n" })?;
        self.nr_snapshots += 1;
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
                region.range.start, region.range.end, region.nr_accesses
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

    /// Keeps what belongs to targets other than the current one.
    fn keep(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        let targets: Vec<TargetSnapshot> =
            snapshot.targets.iter().filter(|t| Some(t.id.0) != self.current).cloned().collect();
        if targets.is_empty() {
            return Ok(());
        }
        for target in &targets {
            if !self.waiting.contains(&target.id.0) {
                self.waiting.push(target.id.0);
            }
        }
        if self.others.is_none() {
            let name = format!("a temporary file in {} (for {})", std::env::temp_dir().display(), self.file);
            let file = tempfile::tempfile().map_err(|e| Error::io("create", &name, e))?;
            self.others = Some(rec::Writer::new(file, name)?);
        }
        match &mut self.others {
            Some(others) => others.write_snapshot(&Snapshot { targets, ..*snapshot }),
            None => Ok(()),
        }
    }

    /// Writes the records of the targets that waited, one after another.
    fn write_waiting(&mut self) -> Result<(), Error> {
        let Some(others) = self.others.take() else { return Ok(()) };
        let io = self.io();
        let mut kept = others.into_inner()?;
        for id in std::mem::take(&mut self.waiting) {
            kept.rewind().map_err(&io)?;
            let mut reader = rec::Reader::new(&kept, "a temporary file")?;
            let mut begun = false;
            while let Some(item) = reader.next_ref()? {
                let Item::Snapshot(snapshot) = item else { continue };
                for target in snapshot.targets.iter().filter(|t| t.id.0 == id) {
                    if !std::mem::replace(&mut begun, true) {
                        self.begin_record(id, snapshot).map_err(&io)?;
                    }
                    self.print(snapshot, target).map_err(&io)?;
                }
            }
            self.end_record().map_err(&io)?;
        }
        Ok(())
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
            self.begin_record(first.id.0, snapshot).map_err(&io)?;
            self.current = Some(first.id.0);
        }
        let current = self.current;
        for target in snapshot.targets.iter().filter(|t| Some(t.id.0) == current) {
            self.print(snapshot, target).map_err(&io)?;
        }
        self.keep(snapshot)
    }

    fn finish(&mut self) -> Result<(), Error> {
        if std::mem::replace(&mut self.finished, true) {
            return Ok(());
        }
        let io = self.io();
        if self.current.is_some() {
            self.end_record().map_err(&io)?;
        }
        self.write_waiting()?;
        let end: &[u8] = if self.nr_records == 0 { b"[]\n" } else { b"]\n" };
        self.output.write().write_all(end).and_then(|()| self.output.finish()).map_err(&io)
    }
}
