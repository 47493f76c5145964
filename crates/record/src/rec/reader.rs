//! Reading `.rec`: blocks in order, past damage, up to wherever the file was cut.

use super::blocks::Blocks;
use super::decode::{BlockDecoder, Step};
use crate::{Error, Format, Header, Item, ItemReader, Warning};
use isotherm_damon::Snapshot;
use std::io::Read;

/// Reads a recording in Isotherm's own format.
///
/// Damage never ends in an error: what can be read is read, and [`ItemReader::warnings`] says what could not. The first
/// item is always a [`Header`], an empty one when the file's own is lost.
pub struct Reader<R: Read> {
    blocks: Blocks<R>,
    decoder: BlockDecoder,
    /// The snapshot slot is reused for every snapshot; the other one holds any other item.
    snapshot: Item,
    other: Item,
    pending: Option<Step>,
    began: bool,
    ended: bool,
    skip_snapshots: bool,
}

impl<R: Read> Reader<R> {
    /// Reads the preamble of `input`, called `file` in messages.
    ///
    /// # Errors
    /// [`Error::Io`]; [`Error::Empty`]; [`Error::Unsupported`] for a newer major version of the format.
    pub fn new(input: R, file: impl Into<String>) -> Result<Self, Error> {
        Ok(Self {
            blocks: Blocks::new(input, file.into())?,
            decoder: BlockDecoder::new()?,
            snapshot: Item::Snapshot(Default::default()),
            other: Item::Header(Header::default()),
            pending: None,
            began: false,
            ended: false,
            skip_snapshots: false,
        })
    }

    /// Hands out only the items other than snapshots, several times as fast.
    #[must_use]
    pub const fn without_snapshots(mut self) -> Self {
        self.skip_snapshots = true;
        self
    }

    /// Takes the snapshot that was handed out last; `other` takes its place, so that its memory is used again.
    pub(crate) fn swap_snapshot(&mut self, other: &mut Snapshot) {
        if let Item::Snapshot(snapshot) = &mut self.snapshot {
            std::mem::swap(snapshot, other);
        }
    }

    fn step(&mut self) -> Result<Step, Error> {
        loop {
            let Item::Snapshot(snapshot) = &mut self.snapshot else { return Ok(Step::BlockEnd) };
            match self.decoder.next(snapshot, self.skip_snapshots) {
                Step::BlockEnd => {}
                Step::Corrupt => {
                    // The checksum fitted, so this was written so: another program's mistake.
                    let lost_bytes = self.blocks.payload.len() as u64;
                    self.blocks.damaged(self.blocks.payload_offset, lost_bytes);
                    self.decoder.drop_block();
                }
                Step::Unknown => {
                    self.blocks.skipped += 1;
                    continue;
                }
                Step::Orphan => {
                    self.blocks.orphans += 1;
                    continue;
                }
                Step::Crowded(instead) => {
                    self.blocks.crowded += 1;
                    match instead {
                        Some(item) => return Ok(Step::Other(item)),
                        None => continue,
                    }
                }
                step => {
                    if let Step::Snapshot = step {
                        self.blocks.last_ns = snapshot.end_ns;
                    }
                    return Ok(step);
                }
            }
            if self.blocks.next()?.is_none() {
                return Ok(Step::BlockEnd);
            }
            let after_gap = std::mem::take(&mut self.blocks.gap);
            if !self.decoder.load(&self.blocks.payload, self.blocks.raw_len, after_gap) {
                let lost_bytes = self.blocks.payload.len() as u64;
                self.blocks.damaged(self.blocks.payload_offset, lost_bytes);
            }
        }
    }
}

impl<R: Read + Send> ItemReader for Reader<R> {
    fn next_ref(&mut self) -> Result<Option<&Item>, Error> {
        if !self.began {
            self.began = true;
            let first = self.step()?;
            let has_header = matches!(&first, Step::Other(item) if matches!(**item, Item::Header(_)));
            self.pending = Some(first);
            if !has_header {
                self.blocks.warn(Warning::HeaderLost);
                return Ok(Some(&self.other));
            }
        }
        if self.ended {
            return Ok(None);
        }
        let step = match self.pending.take() {
            Some(step) => step,
            None => self.step()?,
        };
        match step {
            Step::Snapshot => Ok(Some(&self.snapshot)),
            Step::Other(item) => {
                self.blocks.finished |= matches!(*item, Item::End(_));
                self.other = *item;
                Ok(Some(&self.other))
            }
            _ => {
                self.ended = true;
                self.blocks.conclude();
                Ok(None)
            }
        }
    }

    fn format(&self) -> Format {
        Format::Rec
    }

    fn warnings(&self) -> &[Warning] {
        &self.blocks.warnings
    }
}
