//! Reading: a recursive descent by serde visitors that keep one region list at a time.

use super::number::Number;
use crate::spool::{RunInfo, Spool, SpoolReader, counted};
use crate::{Error, Format, RecordedAttrs, Warning};
use flate2::bufread::ZlibDecoder;
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead, BufReader, Read};
use std::rc::Rc;

/// Objects that wrap the records in newer files.
const WRAPPERS: [&str; 4] = ["damo_record", "damo_records", "damon_records", "record_list"];

/// Reads a whole file.
pub(crate) fn read(input: impl Read, file: String, format: Format) -> Result<SpoolReader, Error> {
    let mut spool = Spool::new(file.clone(), format, RunInfo::default())?;
    let failed = Rc::new(Cell::new(None));
    let count = Rc::new(Cell::new(0));
    let raw = Watched { input, failed: Rc::clone(&failed), count: Rc::clone(&count) };
    let raw = BufReader::with_capacity(256 << 10, raw);
    let json: Box<dyn BufRead> = if format == Format::JsonCompressed {
        Box::new(BufReader::with_capacity(256 << 10, ZlibDecoder::new(raw)))
    } else {
        Box::new(raw)
    };
    let mut deserializer = serde_json::Deserializer::from_reader(json);
    let mut state = State { spool: &mut spool, error: None, last_ns: 0 };
    let parsed = Records(&mut state).deserialize(&mut deserializer).and_then(|()| deserializer.end());
    let State { error, last_ns, .. } = state;
    // The reason behind what serde_json reports, where it is not the file's content.
    if let Some(error) = error {
        return Err(error);
    }
    if let Some(error) = failed.take() {
        return Err(Error::io("read", &file, error));
    }
    let stopped = parsed.err().map(|e| {
        let cut = e.is_eof() || e.io_error_kind() == Some(io::ErrorKind::UnexpectedEof);
        if cut {
            Warning::Truncated { offset: count.get(), lost_bytes: 0, last_ns }
        } else {
            Warning::Stopped { why: e.to_string() }
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

struct State<'a> {
    spool: &'a mut Spool,
    /// The spool's own error, which serde cannot carry.
    error: Option<Error>,
    last_ns: u64,
}

impl State<'_> {
    fn keep<E: serde::de::Error>(&mut self, result: Result<(), Error>) -> Result<(), E> {
        result.map_err(|e| {
            self.error = Some(e);
            E::custom("the temporary file cannot be written")
        })
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
        while seq.next_element_seed(Record(&mut *self.0))?.is_some() {}
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
struct Record<'a, 'b>(&'a mut State<'b>);

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

impl<'de> DeserializeSeed<'de> for Record<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for Record<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a record of a target")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let state = self.0;
        while let Some(key) = map.next_key::<String>()? {
            match key.as_str() {
                "intervals" => {
                    let intervals = map.next_value::<Option<Intervals>>()?;
                    state.spool.section.intervals = intervals.unwrap_or_default().into();
                }
                "target_id" => {
                    let id = map.next_value::<Number>()?.bytes().unwrap_or(0);
                    state.spool.section.target = Some(id);
                    state.spool.note_target(id);
                }
                "snapshots" => map.next_value_seed(Snapshots(&mut *state))?,
                _ => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        let ended = state.spool.end_section();
        state.keep(ended)
    }
}

struct Snapshots<'a, 'b>(&'a mut State<'b>);

impl<'de> DeserializeSeed<'de> for Snapshots<'_, '_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for Snapshots<'_, '_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of snapshots")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        let state = self.0;
        while let Some(snapshot) = seq.next_element::<JsonSnapshot>()? {
            let Some(end_ns) = snapshot.end_time.time_ns(1) else {
                state.spool.skip("snapshots without a time");
                continue;
            };
            let target = state.spool.section.target.unwrap_or(0);
            let start_ns = snapshot.start_time.time_ns(1).unwrap_or(end_ns);
            let intervals = state.spool.section.intervals;
            let mut regions = Vec::with_capacity(snapshot.regions.len());
            for region in &snapshot.regions {
                match region.region(intervals) {
                    Some(region) => regions.push(region),
                    None => state.spool.skip("regions without addresses, or without accesses"),
                }
            }
            let whole = Snapshot {
                start_ns,
                end_ns,
                sample_ns: snapshot.sample_ns(end_ns.saturating_sub(start_ns)),
                max_nr_accesses: 0,
                targets: vec![TargetSnapshot::new(TargetId(target), regions)],
            };
            state.last_ns = end_ns;
            let pushed = state.spool.push(&whole);
            state.keep(pushed)?;
        }
        Ok(())
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonSnapshot {
    start_time: Number,
    end_time: Number,
    regions: Vec<JsonRegion>,
    sample_interval_us: Number,
}

impl JsonSnapshot {
    /// Sampling interval of a snapshot of this length; 0 when it does not say.
    fn sample_ns(&self, length_ns: u64) -> u64 {
        let sample_ns = self.sample_interval_us.time_ns(1000).unwrap_or(0);
        // damo (3.4.3) itself writes nanoseconds into this field when it writes plain numbers. An interval longer than
        // the whole snapshot gives it away.
        if length_ns > 0 && sample_ns > length_ns && sample_ns / 1000 <= length_ns {
            sample_ns / 1000
        } else {
            sample_ns
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct JsonRegion {
    start: Number,
    end: Number,
    nr_accesses: Measure,
    age: Measure,
}

/// Accesses or age: an object that tells it in one of two units, or a bare number.
///
/// By hand, since serde's untagged enums copy everything first, and this is most of a file.
#[derive(Default)]
struct Measure {
    /// Samples, or aggregation intervals.
    counted: Number,
    /// Percent, or microseconds.
    scaled: Number,
}

impl<'de> Deserialize<'de> for Measure {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(MeasureVisitor)
    }
}

struct MeasureVisitor;

#[derive(Deserialize)]
#[serde(rename_all = "snake_case")]
enum Unit {
    Samples,
    AggrIntervals,
    Percent,
    Usec,
    #[serde(other)]
    Other,
}

impl<'de> Visitor<'de> for MeasureVisitor {
    type Value = Measure;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a number, or an object of units")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Measure, A::Error> {
        let mut measure = Measure::default();
        while let Some(unit) = map.next_key()? {
            match unit {
                Unit::Samples | Unit::AggrIntervals => measure.counted = map.next_value()?,
                Unit::Percent | Unit::Usec => measure.scaled = map.next_value()?,
                Unit::Other => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(measure)
    }

    fn visit_u64<E: serde::de::Error>(self, n: u64) -> Result<Measure, E> {
        Ok(Measure { counted: Number::Int(n.into()), ..Measure::default() })
    }

    fn visit_i64<E: serde::de::Error>(self, n: i64) -> Result<Measure, E> {
        Ok(Measure { counted: Number::Int(n.into()), ..Measure::default() })
    }

    fn visit_f64<E: serde::de::Error>(self, n: f64) -> Result<Measure, E> {
        Ok(Measure { counted: Number::Float(n), ..Measure::default() })
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Measure, E> {
        Ok(Measure { counted: Number::Text(text.to_owned()), ..Measure::default() })
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Measure, E> {
        Ok(Measure::default())
    }
}

impl JsonRegion {
    fn region(&self, intervals: RecordedAttrs) -> Option<RegionSnapshot> {
        let samples = match &self.nr_accesses {
            Measure { counted: Number::Missing, scaled } if intervals.sample_us > 0 => {
                scaled.count()? / 100.0 * intervals.aggr_us as f64 / intervals.sample_us as f64
            }
            Measure { counted, .. } => counted.count()?,
        };
        let age = match &self.age {
            Measure { counted: Number::Missing, scaled } => {
                let aggr_ns = intervals.aggr_us.saturating_mul(1000).max(1);
                scaled.time_ns(1000).map(|ns| ns as f64 / aggr_ns as f64)
            }
            Measure { counted, .. } => counted.count(),
        };
        if samples < 0.0 {
            return None;
        }
        // Casts from float saturate.
        let age = age.unwrap_or(0.0).round() as u32;
        Some(counted(self.start.bytes()?, self.end.bytes()?, samples.round() as u32, age))
    }
}
