//! What a guest takes from the host, read from `/proc/PID/smaps`.

use crate::Error;
use std::io::{BufRead, BufReader};

/// Resident memory of a QEMU process, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Resident {
    /// Of the guest's RAM.
    pub ram: u64,
    /// Of the whole process, QEMU's own code, heap and translations among it.
    pub whole: u64,
}

impl Resident {
    /// What process `pid` has resident; its guest's RAM is the mapping of `memory` bytes.
    pub(crate) fn of(pid: u32, memory: u64) -> Result<Self, Error> {
        let path = format!("/proc/{pid}/smaps");
        let file = std::fs::File::open(&path).map_err(Error::io(format!("open {path}")))?;
        Self::read(BufReader::new(file), memory).map_err(Error::io(format!("read {path}")))
    }

    fn read(smaps: impl BufRead, memory: u64) -> std::io::Result<Self> {
        let mut resident = Self::default();
        let mut size = 0;
        for line in smaps.lines() {
            let line = line?;
            let mut words = line.split_ascii_whitespace();
            match (words.next(), words.next()) {
                (Some("Rss:"), Some(kib)) => {
                    let bytes = kib.parse::<u64>().unwrap_or(0) << 10;
                    resident.whole += bytes;
                    // An anonymous neighbour of the same kind may have been joined to it, never another guest's RAM.
                    if size >= memory {
                        resident.ram += bytes;
                    }
                }
                (Some(range), Some(_)) if !range.ends_with(':') => {
                    let bounds = range.split_once('-').and_then(|(start, end)| {
                        Some((u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?))
                    });
                    size = bounds.map_or(0, |(start, end)| end.saturating_sub(start));
                }
                _ => {}
            }
        }
        Ok(resident)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_ram_is_told_from_the_rest() {
        let smaps = "\
55d5c0000000-55d5c0100000 r-xp 00000000 08:01 42 /usr/bin/qemu-system-x86_64
Size:               1024 kB
Rss:                 900 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0040000000 rw-p 00000000 00:00 0
Size:            1048576 kB
Rss:              204800 kB
Pss:              204800 kB
7f0050000000-7f0050400000 rw-p 00000000 00:00 0 [heap: odd name]
Rss:                 100 kB
";
        let resident = Resident::read(smaps.as_bytes(), 1 << 30).unwrap();
        assert_eq!(resident, Resident { ram: 200 << 20, whole: (900 + 204_800 + 100) << 10 });
    }

    #[test]
    fn this_process_has_something_resident_and_no_guest() {
        let resident = Resident::of(std::process::id(), 1 << 46).unwrap();
        assert!(resident.whole > 100 << 10);
        assert_eq!(resident.ram, 0);
    }
}
