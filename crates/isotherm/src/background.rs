//! An output that is written by a thread of its own, so that what makes it need not wait for the system.

use isotherm_report::raw::{Chunk, TakeChunk};
use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Chunks that may wait to be written.
const WAITING: usize = 3;

/// Has chunks written in the background. Ends with [`Self::finish`]; dropped before, what was
/// not handed on is lost.
pub struct Background {
    full: Option<SyncSender<Chunk>>,
    /// Chunks to use again.
    empty: Receiver<Chunk>,
    worker: Option<JoinHandle<io::Result<()>>>,
}

impl Background {
    /// A thread that writes to `out`.
    ///
    /// # Errors
    /// When the system grants no thread.
    pub fn new(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (full, chunks) = sync_channel::<Chunk>(WAITING);
        let (used, empty) = sync_channel(WAITING + 1);
        let work = move || {
            for mut chunk in chunks {
                out.write_all(chunk.text())?;
                chunk.clear();
                // Nobody wants it when all is made.
                let _ = used.try_send(chunk);
            }
            out.flush()
        };
        let worker = std::thread::Builder::new().name("output".to_owned()).spawn(work)?;
        Ok(Self { full: Some(full), empty, worker: Some(worker) })
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<()> {
        self.end()
    }

    fn end(&mut self) -> io::Result<()> {
        self.full = None;
        match self.worker.take().map(JoinHandle::join) {
            Some(Ok(result)) => result,
            Some(Err(_)) => Err(io::Error::other("the thread that writes it failed")),
            None => Ok(()),
        }
    }
}

impl TakeChunk for Background {
    fn take_chunk(&mut self, chunk: &mut Chunk) -> io::Result<()> {
        let next = self.empty.try_recv().unwrap_or_default();
        let chunk = std::mem::replace(chunk, next);
        match &self.full {
            Some(full) if full.send(chunk).is_ok() => Ok(()),
            // It ended before its time: it knows why.
            _ => self.end().and(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use isotherm_damon::{AddrRange, RegionSnapshot, Snapshot, TargetId, TargetSnapshot};
    use isotherm_report::raw::{RawFormat, RawWriter};
    use std::sync::{Arc, Mutex};

    /// What it takes until it is full.
    const ROOM: usize = 4 << 20;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock().unwrap();
            if all.len() > ROOM {
                return Err(io::Error::other("full"));
            }
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Writes so many regions, a snapshot for each hundred.
    fn write<W: TakeChunk>(out: W, regions: u64) -> io::Result<W> {
        let mut raw = RawWriter::new(out, RawFormat::Text, Vec::new());
        for first in (0..regions).step_by(100) {
            let region = |i: u64| RegionSnapshot {
                range: AddrRange::new((first + i) << 12, (first + i + 1) << 12),
                ..RegionSnapshot::default()
            };
            let targets = vec![TargetSnapshot::new(TargetId(1), (0..100).map(region).collect())];
            raw.snapshot(&Snapshot { end_ns: 1_000_000, targets, ..Snapshot::default() })?;
        }
        raw.finish(isotherm_report::provenance::Reading::default())
    }

    #[test]
    fn everything_arrives_in_order() {
        let shared = Shared::default();
        let out = write(Background::new(shared.clone()).unwrap(), 30_000).unwrap();
        out.finish().unwrap();
        let expected = write(Vec::new(), 30_000).unwrap();
        assert!(expected.len() > 1 << 20 && *shared.0.lock().unwrap() == expected);
    }

    #[test]
    fn what_the_output_says_is_heard() {
        let background = || Background::new(Shared::default()).unwrap();
        let written = write(background(), 200_000).and_then(Background::finish);
        assert_eq!(written.unwrap_err().to_string(), "full");
        write(background(), 400).and_then(Background::finish).unwrap();
    }
}
