//! The records of targets whose turn has not come: text that gathers by target and comes out target by target, in time
//! and memory that do not depend on how the two are interleaved.

use crate::Error;
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;

/// Text held in memory, bytes; beyond, it goes into a temporary file.
const HELD: usize = 16 << 20;

/// The records that wait.
#[derive(Default)]
pub(super) struct Waiting {
    index: HashMap<u64, usize>,
    records: Vec<Kept>,
    held: usize,
    file: Option<File>,
    end: u64,
}

/// A record.
#[derive(Default)]
pub(super) struct Kept {
    /// Snapshots in it.
    pub(super) nr_snapshots: usize,
    /// What is not in the file yet.
    text: Vec<u8>,
    /// Where the rest is: offset, length, and length of the text.
    pieces: Vec<(u64, usize, usize)>,
}

impl Waiting {
    /// The record of a target, made when there is none.
    pub(super) fn record(&mut self, target: u64) -> &mut Kept {
        let next = self.records.len();
        let at = *self.index.entry(target).or_insert(next);
        if at == next {
            self.records.push(Kept::default());
        }
        &mut self.records[at]
    }

    /// Appends to the record of a target what `print` writes.
    pub(super) fn append(
        &mut self,
        target: u64,
        file: &str,
        print: impl FnOnce(&mut Vec<u8>, usize) -> io::Result<()>,
    ) -> Result<(), Error> {
        let record = self.record(target);
        let before = record.text.len();
        let nr_snapshots = record.nr_snapshots;
        record.nr_snapshots += 1;
        print(&mut record.text, nr_snapshots).map_err(|e| Error::io("write", file, e))?;
        self.held += record.text.len() - before;
        if self.held > HELD { self.spill(file) } else { Ok(()) }
    }

    fn spill(&mut self, file: &str) -> Result<(), Error> {
        let name = format!("a temporary file in {} (for {file})", std::env::temp_dir().display());
        let io = |e| Error::io("write", &name, e);
        let output = match &self.file {
            Some(output) => output,
            None => self.file.insert(tempfile::tempfile().map_err(|e| Error::io("create", &name, e))?),
        };
        let mut compressor = zstd::bulk::Compressor::new(1).map_err(io)?;
        for record in self.records.iter_mut().filter(|r| !r.text.is_empty()) {
            let text = std::mem::take(&mut record.text);
            let packed = compressor.compress(&text).map_err(io)?;
            output.write_all_at(&packed, self.end).map_err(io)?;
            record.pieces.push((self.end, packed.len(), text.len()));
            self.end += packed.len() as u64;
        }
        self.held = 0;
        Ok(())
    }

    /// Writes the records, in the order their targets came, each by `each`.
    pub(super) fn drain(
        &mut self,
        mut each: impl FnMut(&mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> io::Result<()>,
    ) -> io::Result<()> {
        for record in std::mem::take(&mut self.records) {
            let file = &self.file;
            each(&mut |out| {
                for &(offset, len, text_len) in &record.pieces {
                    let mut packed = vec![0; len];
                    if let Some(file) = file {
                        file.read_exact_at(&mut packed, offset)?;
                    }
                    out.write_all(&zstd::bulk::decompress(&packed, text_len)?)?;
                }
                out.write_all(&record.text)
            })?;
        }
        Ok(())
    }
}
