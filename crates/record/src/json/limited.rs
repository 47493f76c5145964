//! Limits to the strings and the nesting of a JSON text: whoever parses one keeps a string whole, and `serde_json` keeps a
//! byte for each open bracket of a value that it passes over, at any depth. A few bytes of zlib hold gigabytes of either.

use std::io::{self, Read};

/// Deepest nesting that is read: `serde_json`'s own limit for the values that it does not pass over.
const MAX_DEPTH: usize = 128;

/// Reads JSON as long as no string in it is longer than the limit, nor anything nested deeper than [`MAX_DEPTH`].
pub(super) struct Limited<R> {
    input: R,
    limit: usize,
    /// Bytes of the string at hand; none between strings.
    length: Option<usize>,
    /// The byte before was the backslash of an escape.
    escaped: bool,
    /// Arrays and objects that are open.
    depth: usize,
}

impl<R: Read> Limited<R> {
    /// `limit` in bytes, as they are written.
    pub(super) const fn new(input: R, limit: usize) -> Self {
        Self { input, limit, length: None, escaped: false, depth: 0 }
    }

    /// What is wrong with these bytes, if anything is.
    fn look(&mut self, mut bytes: &[u8]) -> Result<(), String> {
        let limit = self.limit;
        let too_long = || Err(format!("a string longer than {limit} bytes"));
        while let Some(&first) = bytes.first() {
            if std::mem::take(&mut self.escaped) {
                bytes = &bytes[1..];
                continue;
            }
            let Some(length) = self.length else {
                // Between strings only quotes and brackets count.
                let quote = bytes.iter().position(|&b| b == b'"');
                for byte in &bytes[..quote.unwrap_or(bytes.len())] {
                    match byte {
                        b'[' | b'{' => self.depth += 1,
                        // One too many is for the parser to find.
                        b']' | b'}' => self.depth = self.depth.saturating_sub(1),
                        _ => {}
                    }
                    if self.depth > MAX_DEPTH {
                        return Err(format!("arrays and objects nested deeper than {MAX_DEPTH}"));
                    }
                }
                let Some(quote) = quote else { return Ok(()) };
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
                    if length + end > limit {
                        return too_long();
                    }
                    self.length = Some(length + end);
                    bytes = &bytes[end..];
                    continue;
                }
            }
            if self.length.is_some_and(|length| length > limit) {
                return too_long();
            }
            bytes = &bytes[1..];
        }
        Ok(())
    }
}

impl<R: Read> Read for Limited<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.input.read(buffer)?;
        let looked = self.look(buffer.get(..len).unwrap_or_default());
        looked.map(|()| len).map_err(|why| io::Error::new(io::ErrorKind::InvalidData, why))
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

    #[test]
    fn what_is_nested_too_deep_is_refused_but_brackets_in_strings_are_text() {
        let fine = format!("{}{}", "[".repeat(MAX_DEPTH), "]".repeat(MAX_DEPTH));
        let objects = r#"{"a":"#.repeat(MAX_DEPTH + 1);
        let text = format!("\"{}\"", "[{".repeat(MAX_DEPTH));
        for (text, is_fine) in [
            (fine.repeat(3), true),
            (format!("[{fine}"), false),
            ("[".repeat(MAX_DEPTH + 1), false),
            (objects, false),
            (text, true),
        ] {
            for piece in [1, 7, 1000] {
                assert_eq!(
                    read(text.as_bytes(), piece, 1000).is_ok(),
                    is_fine,
                    "{text} in pieces of {piece}"
                );
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
