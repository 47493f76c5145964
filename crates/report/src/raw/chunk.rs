//! Text in pieces that change hands whole.
//!
//! A recording of millions of regions becomes gigabytes of text. A piece that is made in the memory from which it is written
//! is not copied on the way: whoever takes it gives an empty one back.

use std::io::{self, Write};

/// Bytes in which a chunk is handed on. So few stay in a processor's cache until another has written them.
pub(super) const CHUNK: usize = 256 << 10;
/// Room behind that, for what is put at once.
pub(super) const MORE: usize = 320;

/// A piece of text in the making.
#[derive(Clone, Debug)]
pub struct Chunk {
    /// All of its room; what stands behind `len` is nothing.
    pub(super) room: Box<[u8]>,
    pub(super) len: usize,
}

impl Default for Chunk {
    fn default() -> Self {
        Self { room: vec![0; CHUNK + MORE].into_boxed_slice(), len: 0 }
    }
}

impl Chunk {
    /// What it says.
    pub fn text(&self) -> &[u8] {
        &self.room[..self.len]
    }

    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
    }
}

/// Where chunks go.
pub trait TakeChunk {
    /// Takes the text of `chunk` and leaves an empty one.
    ///
    /// # Errors
    /// Those of the output.
    fn take_chunk(&mut self, chunk: &mut Chunk) -> io::Result<()>;
}

impl TakeChunk for Vec<u8> {
    fn take_chunk(&mut self, chunk: &mut Chunk) -> io::Result<()> {
        self.extend_from_slice(chunk.text());
        chunk.clear();
        Ok(())
    }
}

/// Puts text of any length into chunks.
pub(super) struct Text<'a, W>(pub &'a mut Chunk, pub &'a mut W);

impl<W: TakeChunk> Write for Text<'_, W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Self(chunk, out) = self;
        if chunk.len >= CHUNK {
            out.take_chunk(chunk)?;
        }
        let written = (&mut chunk.room[chunk.len..]).write(bytes)?;
        chunk.len += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_any_length_comes_out_as_it_went_in() {
        let (mut chunk, mut out, mut expected) = (Chunk::default(), Vec::new(), Vec::new());
        for (i, len) in [1, 0, MORE, CHUNK - 1, 3 * CHUNK, 7, CHUNK + MORE].into_iter().enumerate() {
            let text: Vec<u8> = (0..len).map(|at| ((at + i) % 251) as u8).collect();
            Text(&mut chunk, &mut out).write_all(&text).unwrap();
            expected.extend_from_slice(&text);
        }
        out.take_chunk(&mut chunk).unwrap();
        assert!(out == expected && chunk.text().is_empty());
    }
}
