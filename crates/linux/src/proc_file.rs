//! Reading the files of `/proc` and `/sys`: small, made on the fly, and gone at any moment.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// Longest text taken from a file that holds a few lines. A command line may be megabytes long; nobody reads them.
const SMALL_FILE_LIMIT: u64 = 64 << 10;

/// Room for what most of these files hold, so that it takes one call to read and one to find that there is no more.
const USUAL_SIZE: usize = 2048;

/// Reads `path` into `buf`, replacing what it held, at most 64 KiB of it.
pub(crate) fn read_into(path: impl AsRef<Path>, buf: &mut Vec<u8>) -> io::Result<()> {
    buf.clear();
    buf.reserve(USUAL_SIZE);
    File::open(path)?.take(SMALL_FILE_LIMIT).read_to_end(buf)?;
    Ok(())
}

/// Most taken from a list of pids: 4 Mi of them, more than a kernel gives out, take 32 MB.
const LIST_LIMIT: u64 = 32 << 20;

/// Reads a list at `path` into `buf`, replacing what it held, whole.
pub(crate) fn read_whole(path: impl AsRef<Path>, buf: &mut Vec<u8>) -> io::Result<()> {
    buf.clear();
    File::open(path)?.take(LIST_LIMIT).read_to_end(buf)?;
    Ok(())
}

/// Reads `path` as text, at most 64 KiB of it; what is not UTF-8 is replaced.
pub(crate) fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    let mut buf = Vec::new();
    read_into(path, &mut buf)?;
    Ok(String::from_utf8_lossy(&buf).into_owned())
}

/// Parses an unsigned decimal number that fills `text` but for white space.
pub(crate) fn parse_number(text: &[u8]) -> Option<u64> {
    std::str::from_utf8(text).ok()?.trim().parse().ok()
}

/// Like [`parse_number`], in base 16 without prefix. By hand, as it is called twice a line of `maps`.
pub(crate) fn parse_hex(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    text.iter().try_fold(0_u64, |value, &digit| {
        let digit = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            b'A'..=b'F' => digit - b'A' + 10,
            _ => return None,
        };
        Some(value << 4 | u64::from(digit))
    })
}

/// A file of `/proc` or `/sys` that is read again and again: opened once, read from its start each time.
#[derive(Debug)]
pub(crate) struct Reopened(OwnedFd);

impl Reopened {
    pub(crate) fn open(path: impl AsRef<Path>) -> io::Result<Self> {
        Ok(Self(File::open(path)?.into()))
    }

    /// The first `buf.len()` bytes, made anew by the kernel.
    pub(crate) fn read<'b>(&self, buf: &'b mut [u8]) -> io::Result<&'b [u8]> {
        let len = rustix::io::pread(self.0.as_fd(), &mut *buf, 0)?;
        Ok(buf.get(..len).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_taken_whole_or_not_at_all() {
        assert_eq!(parse_number(b" 42\n"), Some(42));
        assert_eq!(parse_number(b"42 kB"), None);
        assert_eq!(parse_number(b"\xff"), None);
        assert_eq!(parse_hex(b"7ffd0000f000"), Some(0x7ffd_0000_f000));
        assert_eq!(parse_hex(b"ffffffffffffffff"), Some(u64::MAX));
        assert_eq!(parse_hex(b"10000000000000000"), None);
        assert_eq!(parse_hex(b""), None);
        assert_eq!(parse_hex(b"0x10"), None);
    }

    proptest! {
        #[test]
        fn hex_agrees_with_the_standard_library(n: u64) {
            prop_assert_eq!(parse_hex(format!("{n:x}").as_bytes()), Some(n));
        }
    }
}
