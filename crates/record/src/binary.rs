//! damo's former binary `record` format, versions 0, 1 and 2.
//!
//! Little-endian, unpadded: `damon_recfmt_ver` (16 bytes, no NUL) and an i32 version, both absent in version 0; then
//! snapshots to the end of the file. A snapshot: end time as i64 seconds and i64 nanoseconds, u32 number of targets; a
//! target: its id (version 1: i32, a pid; else u64), u32 number of regions; a region: u64 start, u64 end, u32
//! nr_accesses. Start times, ages and intervals are not in it.

use crate::spool::{Record, Spool, SpoolReader, counted};
use crate::whole::whole_accesses;
use crate::{Error, Format, ItemWriter, ReadOptions, Warning, rec};
use isotherm_damon::{Snapshot, TargetId, TargetSnapshot};
use std::io::{self, BufReader, BufWriter, Read, Write};

/// What versions 1 and 2 begin with; there is no terminating NUL.
pub(crate) const MAGIC: &[u8; 16] = b"damon_recfmt_ver";

/// Most targets in a snapshot.
const MAX_TARGETS: u32 = rec::MAX_REGIONS as u32;

/// What version 0 holds when there is nothing to hold: a snapshot of no target at the time 0. An empty file says nothing.
const EMPTY_V0: [u8; 20] = [0; 20];

/// Seconds of the latest time that can be told in nanoseconds.
const MAX_SECS: i64 = (u64::MAX / 1_000_000_000) as i64;

/// Whether `head` can be the beginning of a version 0 file, which has no mark: a sensible time, and counts and addresses
/// that agree with it.
pub(crate) fn looks_like_v0(head: &[u8]) -> bool {
    if head == EMPTY_V0 {
        return true;
    }
    let mut input = Counted { input: head, offset: 0 };
    let mut snapshot = || -> io::Result<Looks> {
        let secs = i64::from_le_bytes(input.array()?);
        let nanos = i64::from_le_bytes(input.array()?);
        let targets = u32::from_le_bytes(input.array()?);
        let sensible = (0..=MAX_SECS).contains(&secs)
            && (0..1_000_000_000).contains(&nanos)
            && (0..=MAX_TARGETS).contains(&targets);
        if !sensible || targets == 0 && (secs, nanos) == (0, 0) {
            return Ok(Looks::Wrong);
        }
        if targets == 0 {
            return Ok(Looks::Empty);
        }
        input.array::<8>()?;
        let regions = u32::from_le_bytes(input.array()?);
        if regions as usize > rec::MAX_REGIONS {
            return Ok(Looks::Wrong);
        }
        for _ in 0..regions.min(4) {
            let (start, end) = (u64::from_le_bytes(input.array()?), u64::from_le_bytes(input.array()?));
            input.array::<4>()?;
            if start > end {
                return Ok(Looks::Wrong);
            }
        }
        Ok(Looks::Right)
    };
    let mut empty = false;
    loop {
        match snapshot() {
            Ok(Looks::Right) => return true,
            Ok(Looks::Wrong) => return false,
            // It says little; what follows says more.
            Ok(Looks::Empty) => empty = true,
            // A file shorter than a snapshot with one region says too little to be taken for anything, unless it ends with
            // a snapshot.
            Err(_) => return empty && (head.len().is_multiple_of(EMPTY_V0.len()) || head.len() > 8 << 10),
        }
    }
}

/// What the beginning of a file may be.
enum Looks {
    Right,
    Wrong,
    /// A snapshot of no target.
    Empty,
}

/// Reads with the number of bytes read.
struct Counted<R> {
    input: R,
    offset: u64,
}

impl<R: Read> Counted<R> {
    fn array<const N: usize>(&mut self) -> io::Result<[u8; N]> {
        let mut bytes = [0; N];
        self.input.read_exact(&mut bytes)?;
        self.offset += N as u64;
        Ok(bytes)
    }
}

/// Reads a whole file.
pub(crate) fn read(
    input: impl Read,
    file: String,
    format: Format,
    options: &ReadOptions,
) -> Result<SpoolReader, Error> {
    let mut spool = Spool::new(file.clone(), format, options)?;
    let mut input = Counted { input: BufReader::with_capacity(256 << 10, input), offset: 0 };
    let stopped = parse(&mut input, format, &mut spool, &file)?;
    spool.into_reader(stopped)
}

/// Why a snapshot could not be read.
enum Stop {
    /// The file ends within it.
    Cut,
    Io(io::Error),
    /// It makes no sense.
    Nonsense(String),
}

impl From<io::Error> for Stop {
    fn from(e: io::Error) -> Self {
        if e.kind() == io::ErrorKind::UnexpectedEof { Self::Cut } else { Self::Io(e) }
    }
}

fn parse<R: Read>(
    input: &mut Counted<R>,
    format: Format,
    spool: &mut Spool,
    file: &str,
) -> Result<Option<Warning>, Error> {
    let narrow = match version(input, format) {
        Ok(version) => version == 1,
        Err(Stop::Io(e)) => return Err(Error::io("read", file, e)),
        Err(Stop::Cut) => return Ok(Some(Warning::Truncated { offset: 0, lost_bytes: 0, last_ns: 0 })),
        Err(Stop::Nonsense(why)) => return Ok(Some(Warning::Stopped { why, last_ns: 0 })),
    };
    let mut targets: Vec<TargetSnapshot> = Vec::new();
    let mut last_ns = 0;
    let record = Record::default();
    loop {
        let offset = input.offset;
        match snapshot(input, narrow, &mut targets) {
            Ok(None) => return Ok(None),
            Ok(Some(0)) if targets.is_empty() => {}
            Ok(Some(end_ns)) => {
                let nothing = targets.is_empty();
                for target in &mut targets {
                    let Some(stream) = spool.stream(&record, target.id.0) else {
                        let why = "it has too many targets".to_owned();
                        return Ok(Some(Warning::Stopped { why, last_ns }));
                    };
                    target.id = stream;
                }
                last_ns = end_ns;
                // damo marks the end of a lone snapshot with one of the region 0-0.
                targets.retain(|target| {
                    let marker = matches!(target.regions[..], [r] if r.range.end == 0);
                    if marker {
                        spool.note_end(target.id, end_ns);
                    }
                    !marker
                });
                if nothing || !targets.is_empty() {
                    spool.push_ended(end_ns, 0, std::mem::take(&mut targets))?;
                }
            }
            Err(Stop::Cut) => {
                let lost_bytes = input.offset - offset;
                return Ok(Some(Warning::Truncated { offset, lost_bytes, last_ns }));
            }
            Err(Stop::Io(e)) => return Err(Error::io("read", file, e)),
            Err(Stop::Nonsense(why)) => {
                let why = format!("the snapshot at byte {offset} {why}");
                return Ok(Some(Warning::Stopped { why, last_ns }));
            }
        }
    }
}

/// Reads the header, if the format has one.
fn version<R: Read>(input: &mut Counted<R>, format: Format) -> Result<i32, Stop> {
    if format == Format::RecordV0 {
        return Ok(0);
    }
    if input.array::<16>()? != *MAGIC {
        return Err(Stop::Nonsense("it does not begin with damon_recfmt_ver".to_owned()));
    }
    match i32::from_le_bytes(input.array()?) {
        version @ 0..=2 => Ok(version),
        other => Err(Stop::Nonsense(format!("version {other} of the format is not known"))),
    }
}

/// Reads a snapshot into `targets`; its end time, or `None` at the end of the file.
fn snapshot<R: Read>(
    input: &mut Counted<R>,
    narrow: bool,
    targets: &mut Vec<TargetSnapshot>,
) -> Result<Option<u64>, Stop> {
    let first = match input.array::<1>() {
        Ok([first]) => first,
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let [b, c, d, e, f, g, h] = input.array()?;
    let secs = i64::from_le_bytes([first, b, c, d, e, f, g, h]);
    let nanos = i64::from_le_bytes(input.array()?);
    // The sum of two of them fits, whatever they are.
    let end_ns = u64::try_from(i128::from(secs) * 1_000_000_000 + i128::from(nanos))
        .ok()
        .ok_or_else(|| Stop::Nonsense(format!("has an impossible time, {secs} s {nanos} ns")))?;
    let nr_targets = u32::from_le_bytes(input.array()?);
    if nr_targets > MAX_TARGETS {
        return Err(Stop::Nonsense(format!("claims {nr_targets} targets")));
    }
    targets.clear();
    let mut total = 0;
    for _ in 0..nr_targets {
        let id = if narrow {
            // A negative pid is no pid, but may still tell targets apart.
            i32::from_le_bytes(input.array()?) as u32 as u64
        } else {
            u64::from_le_bytes(input.array()?)
        };
        let nr_regions = u32::from_le_bytes(input.array()?) as usize;
        total += nr_regions;
        if total > rec::MAX_REGIONS {
            return Err(Stop::Nonsense(format!("claims {total} regions")));
        }
        let mut target = TargetSnapshot::new(TargetId(id), Vec::new());
        for _ in 0..nr_regions {
            let start = u64::from_le_bytes(input.array()?);
            let end = u64::from_le_bytes(input.array()?);
            target.regions.push(counted(start, end, u32::from_le_bytes(input.array()?), 0));
        }
        targets.push(target);
    }
    Ok(Some(end_ns))
}

/// Writes the binary format.
pub(crate) struct Writer<W: Write> {
    output: BufWriter<W>,
    file: String,
    version: i32,
    begun: bool,
    nr_snapshots: usize,
}

impl<W: Write> Writer<W> {
    pub(crate) fn new(output: W, file: String, format: Format) -> Self {
        let version = match format {
            Format::RecordV0 => 0,
            Format::RecordV1 => 1,
            _ => 2,
        };
        Self {
            output: BufWriter::with_capacity(256 << 10, output),
            file,
            version,
            begun: false,
            nr_snapshots: 0,
        }
    }

    fn encode(&mut self, snapshot: &Snapshot) -> io::Result<()> {
        self.begin()?;
        let out = &mut self.output;
        let (secs, nanos) = (snapshot.end_ns / 1_000_000_000, snapshot.end_ns % 1_000_000_000);
        out.write_all(&secs.to_le_bytes())?;
        out.write_all(&nanos.to_le_bytes())?;
        out.write_all(&(snapshot.targets.len() as u32).to_le_bytes())?;
        for target in &snapshot.targets {
            if self.version == 1 {
                // Checked by `write_snapshot`.
                out.write_all(&(target.id.0 as u32).to_le_bytes())?;
            } else {
                out.write_all(&target.id.0.to_le_bytes())?;
            }
            out.write_all(&(target.regions.len() as u32).to_le_bytes())?;
            for region in &target.regions {
                out.write_all(&region.range.start.to_le_bytes())?;
                out.write_all(&region.range.end.to_le_bytes())?;
                out.write_all(&whole_accesses(region, self.nr_snapshots).to_le_bytes())?;
            }
        }
        self.nr_snapshots += 1;
        Ok(())
    }

    fn begin(&mut self) -> io::Result<()> {
        if !std::mem::replace(&mut self.begun, true) && self.version > 0 {
            self.output.write_all(MAGIC)?;
            self.output.write_all(&self.version.to_le_bytes())?;
        }
        Ok(())
    }
}

impl<W: Write + Send> ItemWriter for Writer<W> {
    fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Error> {
        if self.version == 1
            && let Some(target) = snapshot.targets.iter().find(|t| u32::try_from(t.id.0).is_err())
        {
            return Err(Error::Encode {
                file: self.file.clone(),
                what: "a snapshot",
                why: format!(
                    "target id {} does not fit the 32 bits of record-v1; use record-v2",
                    target.id.0
                ),
            });
        }
        self.encode(snapshot).map_err(|e| Error::io("write", &self.file, e))
    }

    fn finish(&mut self) -> Result<(), Error> {
        let empty = !self.begun && self.version == 0;
        let marked =
            self.begin().and_then(|()| if empty { self.output.write_all(&EMPTY_V0) } else { Ok(()) });
        marked.and_then(|()| self.output.flush()).map_err(|e| Error::io("write", &self.file, e))
    }
}
