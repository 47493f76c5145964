//! A line of `/proc/PID/maps` (proc_pid_maps(5)) as values. Pure: no file is touched here.
//!
//! ```text
//! 7f1c2a000000-7f1c2a021000 rw-p 00000000 00:00 0      [heap]
//! start        end          perm offset   dev   inode  name
//! ```

use crate::proc_file::{parse_hex, parse_number};
use isotherm_damon::AddrRange;
use std::fmt;

/// What may be done with a mapping's memory.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Perms(u8);

impl Perms {
    const READ: u8 = 1;
    const WRITE: u8 = 2;
    const EXEC: u8 = 4;
    const SHARED: u8 = 8;

    /// Whether it can be read.
    pub const fn read(self) -> bool {
        self.0 & Self::READ != 0
    }

    /// Whether it can be written.
    pub const fn write(self) -> bool {
        self.0 & Self::WRITE != 0
    }

    /// Whether it can be executed.
    pub const fn exec(self) -> bool {
        self.0 & Self::EXEC != 0
    }

    /// Whether writes go to the file or to other processes (MAP_SHARED).
    pub const fn shared(self) -> bool {
        self.0 & Self::SHARED != 0
    }

    /// By what the kernel knows of it: VM_READ, VM_WRITE and VM_EXEC have these places among its flags.
    pub(super) fn of(flags: u32, shared: bool) -> Self {
        Self((flags & 7) as u8 | if shared { Self::SHARED } else { 0 })
    }

    /// As the kernel prints them: `rw-p`.
    pub fn as_str(self) -> &'static str {
        TEXTS.get(usize::from(self.0)).copied().unwrap_or_default()
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let &[r, w, x, s] = text else { return None };
        let bit = |byte, set, flag| match byte {
            b if b == set => Some(flag),
            b'-' => Some(0),
            _ => None,
        };
        let shared = match s {
            b's' => Self::SHARED,
            b'p' => 0,
            _ => return None,
        };
        Some(Self(
            bit(r, b'r', Self::READ)? | bit(w, b'w', Self::WRITE)? | bit(x, b'x', Self::EXEC)? | shared,
        ))
    }
}

/// As the kernel prints them, by the flags.
const TEXTS: [&str; 16] = [
    "---p", "r--p", "-w-p", "rw-p", "--xp", "r-xp", "-wxp", "rwxp", "---s", "r--s", "-w-s", "rw-s", "--xs",
    "r-xs", "-wxs", "rwxs",
];

impl fmt::Display for Perms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for Perms {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One line of `maps`, its name still in the text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line<'a> {
    pub range: AddrRange,
    pub perms: Perms,
    pub offset: u64,
    pub device: (u32, u32),
    pub inode: u64,
    pub name: &'a [u8],
}

/// Parses a line without its newline; `None` if it is not one of the kernel's. Also takes the first line of an
/// entry of `smaps`, which is the same.
pub(crate) fn line(text: &[u8]) -> Option<Line<'_>> {
    let (range, rest) = split_at_blank(text)?;
    let (perms, rest) = split_at_blank(rest)?;
    let (offset, rest) = split_at_blank(rest)?;
    let (device, rest) = split_at_blank(rest)?;
    // The line of a mapping without a name may end after the inode.
    let (inode, name) = split_at_blank(rest).unwrap_or((rest, b""));

    let dash = range.iter().position(|&b| b == b'-')?;
    let range = AddrRange::new(parse_hex(range.get(..dash)?)?, parse_hex(range.get(dash + 1..)?)?);
    let colon = device.iter().position(|&b| b == b':')?;
    let (major, minor) = (parse_hex(device.get(..colon)?)?, parse_hex(device.get(colon + 1..)?)?);
    if range.is_empty() {
        return None;
    }
    Some(Line {
        range,
        perms: Perms::parse(perms)?,
        offset: parse_hex(offset)?,
        device: (u32::try_from(major).ok()?, u32::try_from(minor).ok()?),
        inode: parse_number(inode)?,
        name: name.trim_ascii_start(),
    })
}

fn split_at_blank(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = text.iter().position(|&b| b == b' ')?;
    Some((text.get(..blank)?, text.get(blank + 1..)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn lines_of_the_kernel_are_understood() {
        let heap = line(b"55d0c8f3e000-55d0c8f5f000 rw-p 00000000 00:00 0                          [heap]");
        let heap = heap.unwrap();
        assert_eq!(heap.range, AddrRange::new(0x55d0_c8f3_e000, 0x55d0_c8f5_f000));
        assert_eq!((heap.perms.to_string().as_str(), heap.name), ("rw-p", &b"[heap]"[..]));

        let anon = line(b"7f0000000000-7f0000001000 ---p 00000000 00:00 0 ").unwrap();
        assert_eq!((anon.name, anon.perms.read()), (&b""[..], false));
        assert_eq!(line(b"7f0000000000-7f0000001000 ---p 00000000 00:00 0"), Some(anon));

        let file = line(b"7f00-8f00 r-xs 00001000 fd:0a 1234567   /tmp/with a blank (deleted)").unwrap();
        assert_eq!((file.offset, file.device, file.inode), (0x1000, (0xfd, 0x0a), 1_234_567));
        assert_eq!(file.name, b"/tmp/with a blank (deleted)");
        assert!(file.perms.shared() && file.perms.exec() && !file.perms.write());

        let top = line(b"ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0    [vsyscall]").unwrap();
        assert_eq!(top.range.end, 0xffff_ffff_ff60_1000);
    }

    #[test]
    fn other_lines_are_refused() {
        for text in [
            "",
            "Rss:                   4 kB",
            "VmFlags: rd wr mr mw me ac",
            "2000-1000 rw-p 00000000 00:00 0",
            "1000-1000 rw-p 00000000 00:00 0",
            "1000-2000 rw-q 00000000 00:00 0",
            "1000-2000 rwxpp 00000000 00:00 0",
            "1000-2000 rw-p 00000000 0000 0",
            "1000-2000 rw-p 00000000 00:00 x",
            "1000 rw-p 00000000 00:00 0",
            "11111111111111111-22222222222222222 rw-p 00000000 00:00 0",
        ] {
            assert_eq!(line(text.as_bytes()), None, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn every_mapping_is_read_as_it_was_written(
            start in 0_u64..u64::MAX, size in 1_u64.., bits in 0_u8..16, offset: u64, major in 0_u32..4096,
            minor: u32, inode: u64, name in "(/[ -~]{1,40}[!-~]|\\[[a-z:]{1,20}\\]|)",
        ) {
            let range = AddrRange::new(start, start.saturating_add(size));
            let perms = Perms(bits);
            let text = format!(
                "{:08x}-{:08x} {perms} {offset:08x} {major:02x}:{minor:02x} {inode}       {name}",
                range.start, range.end
            );
            let expected = Line { range, perms, offset, device: (major, minor), inode, name: name.as_bytes() };
            prop_assert_eq!(line(text.as_bytes()), Some(expected));
        }

        #[test]
        fn rubbish_never_panics(text in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = line(&text);
        }

        #[test]
        fn damaged_lines_never_panic(at in 0_usize..60, byte: u8, cut in 0_usize..70) {
            let mut text = b"7f1c2a000000-7f1c2a021000 rw-p 00000000 00:00 0      [heap]".to_vec();
            if let Some(b) = text.get_mut(at) {
                *b = byte;
            }
            text.truncate(cut);
            let _ = line(&text);
        }
    }
}
