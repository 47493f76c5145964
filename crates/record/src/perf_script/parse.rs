//! Reading the text.

use super::NOTHING;
use super::event::{Event, Source, sample_interval};
use crate::spool::{Record, Spool, SpoolReader};
use crate::{Error, Format, ReadOptions, Warning, rec};
use isotherm_damon::{RegionSnapshot, TargetId, TargetSnapshot};
use std::collections::HashMap;
use std::io::{self, BufRead, BufReader, Read};
use std::ops::Range;

/// No line of this format is longer; what is, is passed over in pieces.
const MAX_LINE: u64 = 64 << 10;

/// Where the aggregation interval is not known: between regions of one application of a scheme no more time passes than
/// this, half of the default interval. A scheme goes through a target's regions in one go.
const APPLYING_NS: u64 = 50_000_000;

/// Reads a whole file.
pub(crate) fn read(input: impl Read, file: String, options: &ReadOptions) -> Result<SpoolReader, Error> {
    let mut spool = Spool::new(file.clone(), Format::PerfScript, options)?;
    let mut input = BufReader::with_capacity(256 << 10, input);
    let applying_ns = match options.intervals.aggr_us {
        0 => APPLYING_NS,
        us => us.saturating_mul(500),
    };
    let mut parser = Parser { applying_ns, ..Parser::default() };
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        let unfinished = match read {
            Ok(0) => break,
            Ok(_) => !line.ends_with(b"\n") && (line.len() as u64) < MAX_LINE,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Error::io("read", &file, e)),
        };
        parser.unfinished_line = unfinished;
        parser.at = parser.read..parser.read + line.len() as u64;
        parser.read = parser.at.end;
        if !parser.line(&line, &mut spool)? {
            let why = format!("it has too many targets or schemes, at line {}", parser.nr_lines);
            return spool.into_reader(Some(Warning::Stopped { why, last_ns: parser.end_ns }));
        }
    }
    let stopped = parser.conclude(&mut spool)?;
    spool.into_reader(stopped)
}

#[derive(Default)]
struct Parser {
    /// The snapshot of an aggregation that is not whole yet.
    regions: Vec<RegionSnapshot>,
    source: Source,
    end_ns: u64,
    nr_regions: usize,
    /// Of each target that a scheme is being applied to: what came so far.
    applied: HashMap<Source, Applied>,
    /// Regions in there.
    held: usize,
    applying_ns: u64,
    streams: HashMap<Source, TargetId>,
    sample_ns: u64,
    nr_lines: u64,
    nr_events: u64,
    nothing: bool,
    /// The line at hand is the last, and has no end.
    unfinished_line: bool,
    /// Bytes read, and where the line at hand stands.
    read: u64,
    at: Range<u64>,
    /// Where the snapshot begins that is not whole yet, or what else was cut off at the end.
    cut_at: Option<u64>,
    /// End of the last snapshot that was whole, ns.
    last_ns: u64,
}

/// The regions of a target that a scheme is being applied to.
#[derive(Default)]
struct Applied {
    end_ns: u64,
    latest_ns: u64,
    regions: Vec<RegionSnapshot>,
}

impl Parser {
    /// Takes a line. False when the file has more targets than can be told apart.
    fn line(&mut self, line: &[u8], spool: &mut Spool) -> Result<bool, Error> {
        self.nr_lines += 1;
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            self.nothing |= text == NOTHING;
            return Ok(true);
        }
        if let Some(us) = sample_interval(text) {
            self.sample_ns = us.saturating_mul(1000);
            return Ok(true);
        }
        if !Event::is_one(text) {
            if self.unfinished_line {
                self.cut_at.get_or_insert(self.at.start);
                return Ok(true);
            }
            spool.skip("lines that are no damon_aggregated or damos_before_apply event");
            return Ok(true);
        }
        let sensible = |e: &Event| (1..=rec::MAX_REGIONS).contains(&e.nr_regions);
        // The last line may be cut in the middle of a number: without its end it says nothing. Where an age follows, what is
        // cut is at most that: a text without a line break at its end is none that was cut.
        let Some(event) = Event::parse(text).filter(sensible).filter(|e| e.has_age || !self.unfinished_line)
        else {
            if self.unfinished_line {
                self.cut_at.get_or_insert(self.at.start);
            } else {
                spool.skip("events of DAMON that cannot be read");
            }
            return Ok(true);
        };
        self.nr_events += 1;
        let Some(stream) = self.stream(event.source, spool) else { return Ok(false) };
        match (event.source.scheme, event.region) {
            (_, None) => {
                spool.note_end(stream, event.end_ns);
                Ok(true)
            }
            (Some(_), Some(region)) => self.apply(&event, region, stream, spool),
            (None, Some(region)) => self.aggregate(&event, region, stream, spool),
        }
    }

    fn stream(&mut self, source: Source, spool: &mut Spool) -> Option<TargetId> {
        if let Some(&known) = self.streams.get(&source) {
            return Some(known);
        }
        let record = match source.scheme {
            Some((context, scheme)) => Record { context, scheme: Some(scheme), ..Record::default() },
            None => Record::default(),
        };
        let stream = spool.stream(&record, source.target)?;
        self.streams.insert(source, stream);
        Some(stream)
    }

    fn aggregate(
        &mut self,
        event: &Event,
        region: RegionSnapshot,
        stream: TargetId,
        spool: &mut Spool,
    ) -> Result<bool, Error> {
        let same = (event.source, event.nr_regions) == (self.source, self.nr_regions);
        if !self.regions.is_empty() && !same {
            // Events were lost while tracing: the kernel's buffer was full.
            self.regions.clear();
            spool.skip("snapshots of which events are missing");
        }
        self.source = event.source;
        self.nr_regions = event.nr_regions;
        // The events of a snapshot follow each other within microseconds; the first says when it was taken.
        if self.regions.is_empty() {
            self.end_ns = event.end_ns;
            self.cut_at = Some(self.at.start);
        }
        self.regions.push(region);
        if self.regions.len() == event.nr_regions {
            (self.cut_at, self.last_ns) = (None, self.end_ns);
            let whole = TargetSnapshot::new(stream, std::mem::take(&mut self.regions));
            spool.push_ended(self.end_ns, self.sample_ns, vec![whole])?;
        }
        Ok(true)
    }

    fn apply(
        &mut self,
        event: &Event,
        region: RegionSnapshot,
        stream: TargetId,
        spool: &mut Spool,
    ) -> Result<bool, Error> {
        let applied = self.applied.entry(event.source).or_default();
        // Regions come in order of address; a new application begins where that starts over, or after a pause.
        let behind = applied.regions.last().is_none_or(|last| last.range.end <= region.range.start);
        let pause = event.end_ns.saturating_sub(applied.latest_ns) > self.applying_ns;
        if !applied.regions.is_empty() && (!behind || pause || applied.regions.len() >= event.nr_regions) {
            self.held -= applied.regions.len();
            let whole = TargetSnapshot::new(stream, std::mem::take(&mut applied.regions));
            spool.push_ended(applied.end_ns, self.sample_ns, vec![whole])?;
        }
        if applied.regions.is_empty() {
            applied.end_ns = event.end_ns;
        }
        applied.latest_ns = event.end_ns;
        self.last_ns = event.end_ns;
        applied.regions.push(region);
        self.held += 1;
        if self.held > rec::MAX_REGIONS {
            self.flush(spool)?;
        }
        Ok(true)
    }

    /// Ends all applications, in order of time.
    fn flush(&mut self, spool: &mut Spool) -> Result<(), Error> {
        let mut all: Vec<(Source, Applied)> = self.applied.drain().collect();
        all.sort_by_key(|(source, applied)| (applied.end_ns, source.scheme, source.target));
        self.held = 0;
        for (source, applied) in all {
            if let Some(&stream) = self.streams.get(&source).filter(|_| !applied.regions.is_empty()) {
                let whole = TargetSnapshot::new(stream, applied.regions);
                spool.push_ended(applied.end_ns, self.sample_ns, vec![whole])?;
            }
        }
        Ok(())
    }

    fn conclude(mut self, spool: &mut Spool) -> Result<Option<Warning>, Error> {
        self.flush(spool)?;
        if self.nr_events == 0 && !self.nothing {
            let why = format!("no damon_aggregated or damos_before_apply event in {} lines", self.nr_lines);
            return Ok(Some(Warning::Stopped { why, last_ns: 0 }));
        }
        Ok(self.cut_at.map(|offset| Warning::Truncated {
            offset,
            lost_bytes: self.read - offset,
            last_ns: self.last_ns,
        }))
    }
}
