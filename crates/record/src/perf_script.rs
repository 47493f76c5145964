//! What `perf script` prints of the tracepoint `damon:damon_aggregated`.
//!
//! A line a region: `comm pid [cpu] sec.usec: damon:damon_aggregated: target_id=T nr_regions=N S-E: nr [age]`. `[cpu]` and
//! the age are missing in some; other events, comments and blank lines are passed over. A snapshot of a target is whole
//! when N lines of it were read. Start times are not in it; intervals only if `damon_monitor_intervals_tune` was
//! recorded too, which tells the sampling interval in force.

use crate::spool::{RunInfo, Spool, SpoolReader, counted};
use crate::{Error, Format, ItemWriter, RecordedAttrs, Warning, rec};
use isotherm_damon::{RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

/// No line of this format is longer; what is, is passed over in pieces.
const MAX_LINE: u64 = 64 << 10;

/// Reads a whole file.
pub(crate) fn read(input: impl Read, file: String, intervals: RecordedAttrs) -> Result<SpoolReader, Error> {
    let mut spool = Spool::new(file.clone(), Format::PerfScript, RunInfo { target: None, intervals })?;
    let mut input = BufReader::with_capacity(256 << 10, input);
    let mut parser = Parser::default();
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = input.by_ref().take(MAX_LINE).read_until(b'\n', &mut line);
        match read {
            Ok(0) => break,
            // The last line may be cut in the middle of a number: without its end it says nothing.
            Ok(_) if !line.ends_with(b"\n") && (line.len() as u64) < MAX_LINE => {
                parser.unfinished_line = true;
                parser.line(&line, &mut spool)?;
            }
            Ok(_) => parser.line(&line, &mut spool)?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Error::io("read", &file, e)),
        }
    }
    let stopped = parser.conclude(&mut spool)?;
    spool.into_reader(stopped)
}

#[derive(Default)]
struct Parser {
    /// The snapshot that is not whole yet.
    regions: Vec<RegionSnapshot>,
    target: u64,
    end_ns: u64,
    nr_regions: usize,
    sample_ns: u64,
    nr_lines: u64,
    nr_events: u64,
    unfinished_line: bool,
}

/// What a line of the right event says.
struct Event {
    end_ns: u64,
    target: u64,
    nr_regions: usize,
    /// `None`: damo's mark of the end of a lone snapshot, the region 0-0 with -1 accesses.
    region: Option<RegionSnapshot>,
}

impl Parser {
    fn line(&mut self, line: &[u8], spool: &mut Spool) -> Result<(), Error> {
        self.nr_lines += 1;
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        if text.is_empty() || text.starts_with('#') {
            return Ok(());
        }
        if let Some(us) = sample_interval(text) {
            self.sample_ns = us.saturating_mul(1000);
            return Ok(());
        }
        if !text.contains("damon_aggregated:") {
            spool.skip("lines that are no damon_aggregated event");
            return Ok(());
        }
        let Some(event) = Event::parse(text) else {
            if !self.unfinished_line {
                spool.skip("damon_aggregated events that cannot be read");
            }
            return Ok(());
        };
        self.nr_events += 1;
        self.take(event, spool)
    }

    fn take(&mut self, event: Event, spool: &mut Spool) -> Result<(), Error> {
        let Event { end_ns, target, nr_regions, region } = event;
        let same = (target, nr_regions) == (self.target, self.nr_regions);
        if !self.regions.is_empty() && !same {
            // Events were lost while tracing: the kernel's buffer was full.
            self.regions.clear();
            spool.skip("snapshots of which events are missing");
        }
        let Some(region) = region else {
            spool.note_end(target, end_ns);
            return Ok(());
        };
        if nr_regions > rec::MAX_REGIONS || nr_regions == 0 {
            spool.skip("damon_aggregated events that cannot be read");
            return Ok(());
        }
        spool.note_target(target);
        self.target = target;
        self.nr_regions = nr_regions;
        // The events of a snapshot follow each other within microseconds; the first says when it was taken.
        if self.regions.is_empty() {
            self.end_ns = end_ns;
        }
        self.regions.push(region);
        if self.regions.len() == nr_regions {
            let regions = std::mem::take(&mut self.regions);
            let mut whole = [TargetSnapshot::new(TargetId(target), regions)];
            spool.push_ended(self.end_ns, self.sample_ns, &whole)?;
            self.regions = std::mem::take(&mut whole[0].regions);
            self.regions.clear();
        }
        Ok(())
    }

    fn conclude(self, spool: &mut Spool) -> Result<Option<Warning>, Error> {
        if self.nr_events == 0 {
            let why = format!("no damon_aggregated event in {} lines", self.nr_lines);
            return Ok(Some(Warning::Stopped { why }));
        }
        if self.regions.is_empty() {
            return Ok(None);
        }
        let what = format!(
            "the last snapshot has {} of its {} regions only; it was left out",
            self.regions.len(),
            self.nr_regions
        );
        spool.warnings.push(Warning::Assumed { what });
        Ok(None)
    }
}

/// The sampling interval that a `damon_monitor_intervals_tune` event tells, us.
fn sample_interval(text: &str) -> Option<u64> {
    let (_, fields) = text.split_once("damon_monitor_intervals_tune:")?;
    fields.split_whitespace().find_map(|f| f.strip_prefix("sample_us="))?.parse().ok()
}

impl Event {
    fn parse(text: &str) -> Option<Self> {
        let (before, fields) = text.split_once("damon_aggregated:")?;
        // "... 82877.315633: damon:"; the command's name may hold spaces and colons, the time is the last field.
        let before = before.trim_end().strip_suffix("damon:").unwrap_or(before);
        let time = before.split_whitespace().next_back()?.strip_suffix(':')?;
        let mut fields = fields.split_whitespace();
        let target = fields.next()?.strip_prefix("target_id=")?.parse().ok()?;
        let nr_regions = fields.next()?.strip_prefix("nr_regions=")?.parse().ok()?;
        let (start, end) = fields.next()?.strip_suffix(':')?.split_once('-')?;
        let (start, end): (u64, u64) = (start.parse().ok()?, end.parse().ok()?);
        let nr: i64 = fields.next()?.parse().ok()?;
        let age: i64 = fields.next().map_or(Some(0), |age| age.parse().ok())?;
        let marker = (start, end, nr) == (0, 0, -1);
        let region = match (u32::try_from(nr), u32::try_from(age)) {
            (Ok(nr), Ok(age)) => Some(counted(start, end, nr, age)),
            _ if marker => None,
            _ => return None,
        };
        Some(Self { end_ns: nanoseconds(time)?, target, nr_regions, region })
    }
}

/// `seconds[.fraction]` in nanoseconds, exactly; digits past the ninth are dropped.
fn nanoseconds(text: &str) -> Option<u64> {
    let (secs, fraction) = text.split_once('.').unwrap_or((text, ""));
    let digits = fraction.get(..9).unwrap_or(fraction);
    let fraction: u64 = if digits.is_empty() { 0 } else { digits.parse().ok()? };
    let scale = 10_u64.checked_pow(9 - u32::try_from(digits.len()).ok()?)?;
    secs.parse::<u64>().ok()?.checked_mul(1_000_000_000)?.checked_add(fraction * scale)
}

/// Writes the text.
pub(crate) struct Writer<W: Write> {
    output: BufWriter<W>,
    file: String,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(output: W, file: String) -> Self {
        Self { output: BufWriter::with_capacity(256 << 10, output), file }
    }

    fn print(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        let end_us = snapshot.end_ns.saturating_add(500) / 1000;
        for target in &snapshot.targets {
            for region in &target.regions {
                writeln!(
                    self.output,
                    "kdamond.0 0 [000] {}.{:06}: damon:damon_aggregated: target_id={} nr_regions={} {}-{}: {} {}",
                    end_us / 1_000_000,
                    end_us % 1_000_000,
                    target.id.0,
                    target.regions.len(),
                    region.range.start,
                    region.range.end,
                    region.nr_accesses,
                    region.age,
                )?;
            }
        }
        Ok(())
    }
}

impl<W: Write + Send> ItemWriter for Writer<W> {
    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        self.print(snapshot).map_err(|e| Error::io("write", &self.file, e))
    }

    fn finish(&mut self) -> Result<(), Error> {
        self.output.flush().map_err(|e| Error::io("write", &self.file, e))
    }
}
