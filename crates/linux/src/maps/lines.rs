//! Cutting what a file of `/proc` gives out into lines, piece by piece.

use std::io::{self, Read};

/// The pieces so far. `B` is the space to read into; lines longer than it are left out (the kernel prints none).
#[derive(Debug)]
pub(super) struct Lines<B> {
    buffer: B,
    /// Bytes at its start that are the beginning of a line.
    held: usize,
    too_long: bool,
}

impl<B: AsMut<[u8]>> Lines<B> {
    pub(super) const fn new(buffer: B) -> Self {
        Self { buffer, held: 0, too_long: false }
    }

    /// Forgets the beginning of a line.
    pub(super) fn restart(&mut self) {
        (self.held, self.too_long) = (0, false);
    }

    /// Reads once and calls `each` with every line that is whole now, without its newline. Returns the bytes read, 0 at
    /// the end, when what is left passes for a line.
    pub(super) fn read(&mut self, file: &mut impl Read, mut each: impl FnMut(&[u8])) -> io::Result<usize> {
        let buffer = self.buffer.as_mut();
        if self.held >= buffer.len() {
            (self.held, self.too_long) = (0, true);
        }
        let read = loop {
            match file.read(buffer.get_mut(self.held..).unwrap_or_default()) {
                Ok(read) => break read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        };
        if read == 0 {
            let rest = buffer.get(..self.held).filter(|rest| !rest.is_empty() && !self.too_long);
            rest.into_iter().for_each(each);
            self.restart();
            return Ok(0);
        }
        let filled = self.held + read;
        let mut start = 0;
        while let Some(rest) = buffer.get(start..filled) {
            let Some(len) = rest.iter().position(|&b| b == b'\n') else { break };
            if !std::mem::take(&mut self.too_long) {
                each(rest.get(..len).unwrap_or_default());
            }
            start += len + 1;
        }
        buffer.copy_within(start..filled, 0);
        self.held = filled - start;
        Ok(read)
    }
}

/// Calls `each` with every line of `file`, without its newline; `chunk` is the space to read into.
pub(crate) fn for_each_line(
    file: &mut impl Read,
    chunk: &mut [u8],
    mut each: impl FnMut(&[u8]),
) -> io::Result<()> {
    let mut lines = Lines::new(chunk);
    while lines.read(file, &mut each)? > 0 {}
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_longer_than_the_buffer_is_left_out_alone() {
        let mut lines = Vec::new();
        let text = format!("a\n{}\nb\n{}", "x".repeat(100), "y".repeat(20));
        for_each_line(&mut text.as_bytes(), &mut [0; 16], |line| lines.push(line.to_vec())).unwrap();
        assert_eq!(lines, [b"a", b"b"]);
    }
}
