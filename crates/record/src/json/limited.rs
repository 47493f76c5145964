//! A limit to the strings of a JSON text: whoever parses one keeps it whole, and a few bytes of zlib hold a string of
//! gigabytes.

use std::io::{self, Read};

/// Reads JSON as long as no string in it is longer than the limit.
pub(super) struct Limited<R> {
    input: R,
    limit: usize,
    /// Bytes of the string at hand; none between strings.
    length: Option<usize>,
    /// The byte before was the backslash of an escape.
    escaped: bool,
}

impl<R: Read> Limited<R> {
    /// `limit` in bytes, as they are written.
    pub(super) const fn new(input: R, limit: usize) -> Self {
        Self { input, limit, length: None, escaped: false }
    }

    fn look(&mut self, mut bytes: &[u8]) -> bool {
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.escaped) {
                bytes = &bytes[1..];
                continue;
            }
            let Some(length) = self.length else {
                // Between strings only a quote counts.
                let Some(quote) = bytes.iter().position(|&b| b == b'"') else { return true };
                self.length = Some(0);
                bytes = &bytes[quote + 1..];
                continue;
            };
            match first {
                b'"' => self.length = None,
                b'\\' => {
                    self.escaped = true;
                    self.length = Some(length + 2);
                }
                _ => {
                    let end = bytes.iter().position(|&b| b == b'"' || b == b'\\').unwrap_or(bytes.len());
                    if length + end > self.limit {
                        return false;
                    }
                    self.length = Some(length + end);
                    bytes = &bytes[end..];
                    continue;
                }
            }
            if self.length.is_some_and(|length| length > self.limit) {
                return false;
            }
            bytes = &bytes[1..];
        }
        true
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(buffer)?;
        if self.look(buffer.get(..len).unwrap_or_default()) {
            return Ok(len);
        }
        let why = format!("a string longer than {} bytes", self.limit);
        Err(io::Error::new(io::ErrorKind::InvalidData, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads in pieces of this size; how much came.
    fn read(text: &[u8], piece: usize, limit: usize) -> Result<usize, ()> {
        let mut limited = Limited::new(text, limit);
        let mut buffer = vec![0; piece];
        let mut total = 0;
        loop {
            match limited.read(&mut buffer).map_err(|_| ())? {
                0 => return Ok(total),
                len => total += len,
            }
        }
    }

    #[test]
    fn only_what_stands_in_quotes_is_limited() {
        for (text, fine) in [
            ("\"12345\"", true),
            ("\"123456\"", false),
            ("123456789, \"1\", 123456789", true),
            (r#""\"\"" "\"\"12" "#, false),
            (r#""\"\"1" 2345678"#, true),
            ("\"123456", false),
        ] {
            for piece in 1..8 {
                assert_eq!(read(text.as_bytes(), piece, 5).is_ok(), fine, "{text} in pieces of {piece}");
            }
        }
    }

    proptest! {
        #[test]
        fn strings_within_the_limit_pass(strings in prop::collection::vec(".{0,20}", 0..10), piece in 1..30_usize) {
            let text = serde_json::to_vec(&strings).unwrap();
            // An escape takes six bytes at most, and a character four.
            prop_assert_eq!(read(&text, piece, 120), Ok(text.len()));
        }
    }
}
