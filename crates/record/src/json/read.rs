//! Reading: a recursive descent by serde visitors that keep one region list at a time.

use super::filters::Filters;
use super::limited::Limited;
use super::number::Number;
use super::snapshot::Snapshots;
use crate::spool::{Record, Spool, SpoolReader};
use crate::{Error, Format, ReadOptions, RecordedAttrs, Warning};
use flate2::bufread::ZlibDecoder;
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;
use std::io::{self, BufReader, Read};
use std::rc::Rc;

/// Objects that wrap the records in newer files.
const WRAPPERS: [&str; 4] = ["damo_record", "damo_records", "damon_records", "record_list"];

/// Longest string that is read. Keys are short and numbers shorter; what damo writes of filters is a path at most.
const MAX_STRING: usize = 256 << 10;

/// Reads a whole file.
pub(crate) fn read(
    input: impl Read,
    file: String,
    format: Format,
    options: &ReadOptions,
) -> Result<SpoolReader, Error> {
    let mut spool = Spool::new(file.clone(), format, options)?;
    let failed = Rc::new(Cell::new(None));
    let count = Rc::new(Cell::new(0));
    let raw = Watched { input, failed: Rc::clone(&failed), count: Rc::clone(&count) };
    let raw = BufReader::with_capacity(256 << 10, raw);
    let json: Box<dyn Read> =
        if format == Format::JsonCompressed { Box::new(ZlibDecoder::new(raw)) } else { Box::new(raw) };
    let json = BufReader::with_capacity(256 << 10, Limited::new(json, MAX_STRING));
    let mut deserializer = serde_json::Deserializer::from_reader(json);
    let mut state = State { spool: &mut spool, error: None, last_ns: 0, seen: Seen::default() };
    let parsed = Records(&mut state).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    let State { error, last_ns, seen, .. } = state;
    // The reason behind what serde_json reports, where it is not the file's content.
    if let Some(error) = error {
        return Err(error);
    }
    if let Some(error) = failed.take() {
        return Err(Error::io("read", &file, error));
    }
    seen.tell(&mut spool);
    let stopped = parsed.err().map(|e| {
        let cut = e.is_eof() || e.io_error_kind() == Some(io::ErrorKind::UnexpectedEof);
        if cut {
            Warning::Truncated { offset: count.get(), lost_bytes: 0, last_ns }
        } else {
            Warning::Stopped { why: e.to_string(), last_ns }
        }
    });
    spool.into_reader(stopped)
}

/// Tells errors of the disk from those of the content, and counts.
struct Watched<R> {
    input: R,
    failed: Rc<Cell<Option<io::Error>>>,
    count: Rc<Cell<u64>>,
}

impl<R: Read> Read for Watched<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.input.read(buffer) {
            Ok(len) => {
                self.count.set(self.count.get() + len as u64);
                Ok(len)
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => Err(e),
            Err(e) => {
                let kind = e.kind();
                self.failed.set(Some(e));
                Err(kind.into())
            }
        }
    }
}

pub(super) struct State<'a> {
    pub(super) spool: &'a mut Spool,
    /// The spool's own error, which serde cannot carry.
    error: Option<Error>,
    pub(super) last_ns: u64,
    pub(super) seen: Seen,
}

impl State<'_> {
    pub(super) fn keep<E: serde::de::Error>(&mut self, result: Result<(), Error>) -> Result<(), E> {
        result.map_err(|e| {
            self.error = Some(e);
            E::custom("the temporary file cannot be written")
        })
    }
}

/// What a file holds and a recording has no place for.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) passed: u64,
    pub(super) probes: u64,
    pub(super) stats: u64,
    pub(super) filters: u64,
    pub(super) bad_regions: u64,
    pub(super) too_large: u64,
}

impl Seen {
    fn tell(&self, spool: &mut Spool) {
        for (count, what) in [
            (self.bad_regions, "regions without addresses, or without accesses"),
            (self.too_large, "snapshots with more regions than a recording holds (1048576)"),
            (self.passed, "sizes of what of a region passed a scheme's filters (sz_filter_passed)"),
            (self.probes, "counts of probe hits (probe_hits)"),
            (self.stats, "statistics of schemes (damos_stats)"),
            (self.filters, "filters of schemes, but for their names (scheme_filters)"),
        ] {
            spool.skip_many(count, what);
        }
    }
}

/// The array of records, or an object around it.
struct Records<'a, 'b>(&'a mut State<'b>);

impl<'de> DeserializeSeed<'de> for Records<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Records<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("damo's array of records")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while seq.next_element_seed(OneRecord(&mut *self.0))?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let mut found = false;
        while let Some(key) = map.next_key::<String>()? {
            if WRAPPERS.contains(&key.as_str()) {
                map.next_value_seed(Records(&mut *self.0))?;
                found = true;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        if found { Ok(()) } else { Err(A::Error::custom("an object without damo's records")) }
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        Ok(())
    }
}

/// A record: the snapshots of one target.
struct OneRecord<'a, 'b>(&'a mut State<'b>);

#[derive(Default, Deserialize)]
#[serde(default)]
struct Intervals {
    sample_us: Number,
    aggr_us: Number,
    ops_update_us: Number,
}

impl From<Intervals> for RecordedAttrs {
    fn from(intervals: Intervals) -> Self {
        let us = |n: &Number| n.time_ns(1000).unwrap_or(0) / 1000;
        Self {
            sample_us: us(&intervals.sample_us),
            aggr_us: us(&intervals.aggr_us),
            update_us: us(&intervals.ops_update_us),
            ..Self::default()
        }
    }
}

impl<'de> DeserializeSeed<'de> for OneRecord<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for OneRecord<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record of a target")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        let mut record = Record::default();
        let mut target = 0;
        let mut intervals = state.spool.completed(RecordedAttrs::default());
        let mut stream = None;
        while let Some(key) = map.next_key::<Key>()? {
            match key {
                Key::Intervals => {
                    let own = map.next_value::<Option<Intervals>>()?;
                    intervals = state.spool.completed(own.unwrap_or_default().into());
                }
                Key::TargetId => target = map.next_value::<Number>()?.bytes().unwrap_or(0),
                Key::KdamondIdx => record.kdamond = map.next_value::<Number>()?.bytes().unwrap_or(0),
                Key::ContextIdx => record.context = map.next_value::<Number>()?.bytes().unwrap_or(0),
                Key::SchemeIdx => record.scheme = map.next_value::<Number>()?.bytes(),
                Key::SchemeFilters => {
                    let Filters { words, count } = map.next_value()?;
                    state.seen.filters += count;
                    record.filters = words;
                }
                Key::Snapshots => {
                    let id = match stream {
                        Some(id) => id,
                        None => {
                            state.spool.new_stream().ok_or_else(|| A::Error::custom("too many records"))?
                        }
                    };
                    stream = Some(id);
                    let identified = state.spool.identify(id, target, record.clone(), intervals);
                    identified.ok_or_else(|| A::Error::custom("too many different records"))?;
                    map.next_value_seed(Snapshots { state: &mut *state, stream: id, intervals })?;
                }
                Key::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        // Some of it may stand behind the snapshots.
        if let Some(id) = stream {
            let identified = state.spool.identify(id, target, record, intervals);
            identified.ok_or_else(|| A::Error::custom("too many different records"))?;
        }
        Ok(())
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Key {
    Intervals,
    TargetId,
    KdamondIdx,
    ContextIdx,
    SchemeIdx,
    SchemeFilters,
    Snapshots,
    #[serde(other)]
    Other,
}
