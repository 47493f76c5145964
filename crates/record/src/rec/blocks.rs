//! The blocks of a file, in order: past damage, up to wherever it was cut, and each of them once.

use super::MAX_PAYLOAD;
use super::block::{self, HEADER_LEN, PREAMBLE_LEN, Parsed, Preamble, Summary};
use super::numbers::{Numbers, Place};
use crate::{Error, Warning};
use std::io::{self, Read};
use std::ops::Range;

/// Most warnings kept; a file with more stretches of damage than that is only counted on.
const MAX_WARNINGS: usize = 64;

/// How many times a file may be read over in looking for blocks.
const IN_VAIN: u64 = 8;

/// The blocks of a file whose checksums fit.
pub(super) struct Blocks<R: Read> {
    input: R,
    file: String,
    /// Bytes read; those before `at` are done with.
    buffer: Vec<u8>,
    at: usize,
    /// Offset in the file of `buffer[0]`.
    base: u64,
    eof: bool,
    numbers: Numbers,
    last_number: Option<u32>,
    /// Where a preamble stands that no block followed yet.
    preamble: Option<u64>,
    /// Where the first recording behind another begins, and how many there are.
    joints: Option<(u64, u64)>,
    /// Where one begins of which no block with a time was met yet.
    begins_at: Option<u64>,
    /// One of the recordings before the last had no end.
    was_cut: bool,
    /// Numbers that were reported as missing, and in which warning.
    holes: Vec<(Range<u32>, usize)>,
    /// Damage was reported since the last block that was read.
    is_reported: bool,
    /// Something is missing before the block at hand.
    pub(super) gap: bool,
    /// Where damage began that is not reported yet.
    damage: Option<u64>,
    /// It is no block that was cut off.
    is_wrong: bool,
    /// Bytes looked at that turned out to be no block.
    in_vain: u64,
    /// The block's payload, and what its header says of it.
    pub(super) payload: Vec<u8>,
    pub(super) raw_len: usize,
    pub(super) payload_offset: u64,
    pub(super) last_ns: u64,
    pub(super) warnings: Vec<Warning>,
    more_warnings: u64,
    /// Parts of a type this version does not know.
    pub(super) skipped: u64,
    /// Changes of mappings whose beginning was lost.
    pub(super) orphans: u64,
    /// Lists of mappings beyond those that are kept.
    pub(super) crowded: u64,
    /// Blocks that were read before, and those that later ones came before.
    again: u64,
    late: u64,
    /// An end item was read.
    pub(super) finished: bool,
}

impl<R: Read> Blocks<R> {
    pub(super) fn new(input: R, file: String) -> Result<Self, Error> {
        let mut blocks = Self {
            input,
            file,
            buffer: Vec::new(),
            at: 0,
            base: 0,
            eof: false,
            numbers: Numbers::default(),
            last_number: None,
            preamble: None,
            joints: None,
            begins_at: None,
            was_cut: false,
            holes: Vec::new(),
            is_reported: false,
            gap: true,
            damage: None,
            is_wrong: false,
            in_vain: 0,
            payload: Vec::new(),
            raw_len: 0,
            payload_offset: 0,
            last_ns: 0,
            warnings: Vec::new(),
            more_warnings: 0,
            skipped: 0,
            orphans: 0,
            crowded: 0,
            again: 0,
            late: 0,
            finished: false,
        };
        blocks.fill(PREAMBLE_LEN)?;
        if blocks.rest().is_empty() {
            return Err(Error::Empty { file: blocks.file });
        }
        if let Some(preamble) = blocks.rest().first_chunk() {
            match block::read_preamble(preamble) {
                Preamble::Readable => blocks.at += PREAMBLE_LEN,
                Preamble::Newer(version) => {
                    return Err(Error::Unsupported {
                        file: blocks.file,
                        why: format!("written in version {version} of the format; use a newer isotherm"),
                    });
                }
                // Anything may be damaged, also the first bytes; the blocks speak for themselves.
                Preamble::Damaged => {}
            }
        }
        Ok(blocks)
    }

    /// The next block; its payload is then in `payload`. Passes over damage.
    pub(super) fn next(&mut self) -> Result<Option<Summary>, Error> {
        loop {
            self.fill(HEADER_LEN)?;
            let mut parsed = block::Header::parse(self.rest());
            if let Parsed::NeedsBytes(len) = parsed {
                self.fill(len)?;
                parsed = block::Header::parse(self.rest());
            }
            match parsed {
                Parsed::Header(header) => {
                    if let Some(summary) = self.take_block(header)? {
                        return Ok(Some(summary));
                    }
                }
                _ if self.rest().is_empty() => return Ok(None),
                Parsed::NoBlock(_) if self.pass_preamble() => {}
                Parsed::NoBlock(looked_at) => self.resynchronise(looked_at, true)?,
                Parsed::NeedsBytes(_) => self.resynchronise(0, false)?,
            }
        }
    }

    /// Takes the block whose header stands here; `None` when it is damaged or unknown.
    fn take_block(&mut self, header: block::Header) -> Result<Option<Summary>, Error> {
        let len = header.header_len + header.payload_len;
        self.fill(len)?;
        self.payload.clear();
        let payload = self.buffer.get(self.at + header.header_len..self.at + len);
        let is_there = payload.is_some();
        let Some(payload) = payload.filter(|p| header.fits(p)) else {
            let looked_at = len.min(self.rest().len());
            self.resynchronise(looked_at, is_there)?;
            return Ok(None);
        };
        self.payload.extend_from_slice(payload);
        self.payload_offset = self.base + (self.at + header.header_len) as u64;
        self.raw_len = header.raw_len;

        let here = self.base + self.at as u64;
        let (number, to_ns) = (header.sequence, header.summary.first_ns);
        let mut place = self.numbers.take(number, header.checksum);
        if self.preamble.take().is_some() && !matches!(place, Place::Again | Place::Another) {
            self.numbers.begin(0);
            self.numbers.take(number, header.checksum);
            place = Place::Another;
        }
        if let Some(offset) = self.damage.take() {
            self.report_damage(offset, here - offset, if place == Place::Another { 0 } else { to_ns });
            self.is_reported = true;
        }
        // What damage took is not missing once more.
        let is_reported = self.is_reported;
        self.is_reported &= place == Place::Again;
        match place {
            // Counted twice, it would be more than there was.
            Place::Again => {
                self.again += 1;
                self.at += len;
                return Ok(None);
            }
            // Whole blocks are gone without a trace but in the numbering.
            Place::After(blocks) if !is_reported => {
                if self.warnings.len() < MAX_WARNINGS {
                    self.holes.push((number - blocks..number, self.warnings.len()));
                }
                let from_ns = self.last_ns;
                self.warn(Warning::Missing { offset: here, blocks: u64::from(blocks), from_ns, to_ns });
            }
            Place::Next | Place::After(_) => {}
            Place::Late => {
                self.late += 1;
                self.is_not_missing(number);
            }
            Place::Another => self.another_begins(here),
        }
        // Figures over both would be of nothing. A header alone has no time.
        if let Some(offset) = self.begins_at.filter(|_| to_ns > 0) {
            self.begins_at = None;
            if to_ns < self.last_ns {
                return Ok(self.stop(offset));
            }
        }
        self.gap |= self.last_number.replace(number).is_none_or(|last| last.wrapping_add(1) != number);
        self.at += len;
        if !header.known {
            self.gap = true;
            self.skipped += 1;
            return Ok(None);
        }
        Ok(Some(header.summary))
    }

    /// Passes over a preamble, if one stands here: another recording may begin, or the same one again.
    fn pass_preamble(&mut self) -> bool {
        let is_preamble =
            |head: &[u8; PREAMBLE_LEN]| matches!(block::read_preamble(head), Preamble::Readable);
        if !self.rest().first_chunk().is_some_and(is_preamble) {
            return false;
        }
        let here = self.base + self.at as u64;
        if let Some(offset) = self.damage.take() {
            self.report_damage(offset, here - offset, 0);
            self.is_reported = true;
        }
        self.preamble = Some(here);
        self.at += PREAMBLE_LEN;
        true
    }

    /// From `offset` on the blocks are those of another recording.
    fn another_begins(&mut self, offset: u64) {
        let (first, count) = self.joints.unwrap_or((offset, 0));
        self.joints = Some((first, count + 1));
        self.begins_at = Some(offset);
        self.was_cut |= !std::mem::take(&mut self.finished);
        self.holes.clear();
        self.gap = true;
    }

    /// Reads no further: another recording begins, which is of an earlier time.
    fn stop(&mut self, offset: u64) -> Option<Summary> {
        let why = format!(
            "at byte {offset} another recording begins, of an earlier time: reports on several take each as a file of its own"
        );
        self.warnings.push(Warning::Stopped { why, last_ns: self.last_ns });
        // Nothing of it was read but a header.
        self.joints = self.joints.filter(|(_, count)| *count > 1).map(|(first, count)| (first, count - 1));
        (self.finished, self.eof) = (true, true);
        self.buffer.truncate(self.at);
        None
    }

    /// A block that was reported as missing is there.
    fn is_not_missing(&mut self, number: u32) {
        let hole = self.holes.iter().find(|(numbers, _)| numbers.contains(&number));
        if let Some(Warning::Missing { blocks, .. }) = hole.and_then(|(_, at)| self.warnings.get_mut(*at)) {
            *blocks -= 1;
        }
    }

    /// Moves on by at least a byte, to where a block may begin. `looked_at`: bytes that were read in vain from here on; `wrong`: they
    /// are not those with which a block begins that was cut.
    fn resynchronise(&mut self, looked_at: usize, wrong: bool) -> Result<(), Error> {
        let here = self.base + self.at as u64;
        if self.damage.is_none() {
            (self.damage, self.is_wrong) = (Some(here), wrong);
        }
        self.in_vain += looked_at as u64;
        // A block may begin within what was taken for one. But headers that each claim all that follows would have it
        // read as often as there are of them; damage never comes near that.
        let made_to_harm = self.in_vain / IN_VAIN > here + MAX_PAYLOAD as u64;
        self.at += if made_to_harm { looked_at.max(1) } else { 1 };
        loop {
            match self.rest().iter().position(|&b| b == block::SYNC[0] || b == block::MAGIC[0]) {
                Some(skip) => {
                    self.at += skip;
                    return Ok(());
                }
                None => {
                    self.at = self.buffer.len();
                    self.fill(HEADER_LEN)?;
                    if self.rest().is_empty() {
                        return Ok(());
                    }
                }
            }
        }
    }

    /// A stretch of the file that cannot be used although its checksum fits.
    pub(super) fn damaged(&mut self, offset: u64, lost_bytes: u64) {
        self.report_damage(offset, lost_bytes, self.last_ns);
    }

    fn report_damage(&mut self, offset: u64, lost_bytes: u64, to_ns: u64) {
        self.gap = true;
        self.warn(Warning::Damaged { offset, lost_bytes, from_ns: self.last_ns, to_ns });
    }

    pub(super) fn warn(&mut self, warning: Warning) {
        if self.warnings.len() < MAX_WARNINGS {
            self.warnings.push(warning);
        } else {
            self.more_warnings += 1;
        }
    }

    /// The warnings that only the end of the file tells.
    pub(super) fn conclude(&mut self) {
        for (count, what) in [
            (std::mem::take(&mut self.skipped), "parts of a kind this version does not know"),
            (std::mem::take(&mut self.orphans), "changes of mappings that rest on a lost part"),
            (
                std::mem::take(&mut self.crowded),
                "lists of mappings beyond those that are kept at a time (half a million mappings of all targets)",
            ),
            (std::mem::take(&mut self.again), "blocks that come again"),
            (std::mem::take(&mut self.more_warnings), "further stretches of damage"),
        ] {
            if count > 0 {
                self.warnings.push(Warning::Skipped { count, what });
            }
        }
        self.warnings.retain(|warning| !matches!(warning, Warning::Missing { blocks: 0, .. }));
        if let Some((offset, count)) = self.joints.take() {
            let what = match count {
                1 => format!(
                    "another recording begins at byte {offset}; it is read on as if it were the same one"
                ),
                _ => format!(
                    "{count} other recordings follow, from byte {offset} on; they are read as if they were the same one"
                ),
            };
            self.warnings.push(Warning::Assumed { what });
        }
        if std::mem::take(&mut self.late) > 0 {
            let what =
                "its blocks are not in the order in which they were written; they are read as they stand";
            self.warnings.push(Warning::Assumed { what: what.to_owned() });
        }
        let last_ns = self.last_ns;
        if let Some(offset) = self.damage.take() {
            let lost_bytes = self.base + self.buffer.len() as u64 - offset;
            if self.is_wrong {
                self.warnings.push(Warning::Damaged { offset, lost_bytes, from_ns: 0, to_ns: 0 });
            } else {
                self.warnings.push(Warning::Truncated { offset, lost_bytes, last_ns });
            }
        }
        let is_cut = self.warnings.iter().any(|warning| matches!(warning, Warning::Truncated { .. }));
        if !is_cut && (!self.finished || self.was_cut) {
            self.warnings.push(Warning::Unfinished { last_ns });
        }
    }

    fn rest(&self) -> &[u8] {
        self.buffer.get(self.at..).unwrap_or_default()
    }

    /// Reads on until `len` bytes stand behind `at`, or the input ends.
    fn fill(&mut self, len: usize) -> Result<(), Error> {
        const CHUNK: usize = 256 << 10;
        if self.eof || self.rest().len() >= len {
            return Ok(());
        }
        self.buffer.drain(..self.at);
        self.base += self.at as u64;
        self.at = 0;
        while self.buffer.len() < len {
            let old = self.buffer.len();
            // In steps, so that a length field alone allocates nothing.
            self.buffer.resize(old + CHUNK, 0);
            let read = self.input.read(&mut self.buffer[old..]);
            self.buffer.truncate(old + read.as_ref().copied().unwrap_or(0).min(CHUNK));
            match read {
                Ok(0) => {
                    self.eof = true;
                    break;
                }
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::io("read", &self.file, e)),
            }
        }
        Ok(())
    }
}
