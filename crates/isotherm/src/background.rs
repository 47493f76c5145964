//! An output that is written by a thread of its own, so that what makes it need not wait for the system.

use std::io::{self, Write};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes that are handed on at once.
const CHUNK: usize = 1 << 20;
/// Chunks that may wait to be written.
const WAITING: usize = 3;

/// Collects what is written, and has it written in the background. Ends with [`Self::finish`]; dropped before, what was
/// not handed on is lost.
pub struct Background {
    chunk: Vec<u8>,
    full: Option<SyncSender<Vec<u8>>>,
    /// Chunks to use again.
    empty: Receiver<Vec<u8>>,
    worker: Option<JoinHandle<io::Result<()>>>,
}

impl Background {
    /// A thread that writes to `out`.
    ///
    /// # Errors
    /// When the system grants no thread.
    pub fn new(mut out: impl Write + Send + 'static) -> io::Result<Self> {
        let (full, chunks) = sync_channel::<Vec<u8>>(WAITING);
        let (used, empty) = sync_channel(WAITING + 1);
        let work = move || {
            for mut chunk in chunks {
                out.write_all(&chunk)?;
                chunk.clear();
                // Nobody wants it when all is made.
                let _ = used.try_send(chunk);
            }
            out.flush()
        };
        let worker = std::thread::Builder::new().name("output".to_owned()).spawn(work)?;
        Ok(Self { chunk: Vec::with_capacity(CHUNK), full: Some(full), empty, worker: Some(worker) })
    }

    /// Waits until all is written.
    ///
    /// # Errors
    /// Those of the output.
    pub fn finish(mut self) -> io::Result<()> {
        self.hand_on()?;
        self.end()
    }

    fn hand_on(&mut self) -> io::Result<()> {
        let next = self.empty.try_recv().unwrap_or_else(|_| Vec::with_capacity(CHUNK));
        let chunk = std::mem::replace(&mut self.chunk, next);
        match &self.full {
            Some(full) if full.send(chunk).is_ok() => Ok(()),
            // It ended before its time: it knows why.
            _ => self.end().and(Err(io::ErrorKind::BrokenPipe.into())),
        }
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

impl Write for Background {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.chunk.len() + bytes.len() > CHUNK {
            self.hand_on()?;
        }
        self.chunk.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Nothing: only [`Background::finish`] waits.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let mut all = self.0.lock().unwrap();
            if all.len() > 3 * CHUNK {
                return Err(io::Error::other("full"));
            }
            all.extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn everything_arrives_in_order() {
        let shared = Shared::default();
        let mut out = Background::new(shared.clone()).unwrap();
        let mut expected = Vec::new();
        for i in 0..200_000_u32 {
            let line = format!("{i} {}\n", i % 7);
            out.write_all(line.as_bytes()).unwrap();
            expected.extend_from_slice(line.as_bytes());
        }
        out.finish().unwrap();
        assert!(*shared.0.lock().unwrap() == expected);
    }

    #[test]
    fn what_the_output_says_is_heard() {
        let mut out = Background::new(Shared::default()).unwrap();
        let line = [b'x'; 1000];
        let written = (0..20_000).try_for_each(|_| out.write_all(&line));
        let error = written.and_then(|()| out.finish()).unwrap_err();
        assert_eq!(error.to_string(), "full");
        let mut out = Background::new(Shared::default()).unwrap();
        (0..4).try_for_each(|_| out.write_all(&line)).unwrap();
        out.finish().unwrap();
    }
}
