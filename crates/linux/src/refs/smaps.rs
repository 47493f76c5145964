//! What `/proc/PID/smaps` (proc_pid_smaps(5)) says about the use of each mapping.

use crate::maps::{for_each_line, line};
use crate::proc_file::parse_number;
use isotherm_damon::AddrRange;
use std::io::{self, Read};

/// How much of a mapping is resident, and how much of that was referenced since the last clearing. In bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Use {
    pub range: AddrRange,
    pub resident: u64,
    pub referenced: u64,
    /// Resident pages of files that other processes map too. The kernel keeps one flag of use a page of the page cache,
    /// which is set, among others, when a process that used the page unmaps it or ends; Referenced counts such pages as
    /// this process's, whoever used them.
    pub others: u64,
}

/// The lines of an entry that tell which of its pages others map.
#[derive(Clone, Copy, Debug, Default)]
struct Sharing {
    shared: u64,
    anonymous: u64,
}

impl Sharing {
    /// Anonymous pages that are shared since a fork carry nobody else's use.
    fn of_files(self, resident: u64) -> u64 {
        self.shared.min(resident.saturating_sub(self.anonymous))
    }
}

/// Reads the mappings of user space from a file in the format of `smaps` into `into`, sorted by address. `chunk` is the
/// space to read into. Lines that are none of the kernel's are left out.
pub(super) fn read(mut file: impl Read, chunk: &mut [u8], into: &mut Vec<Use>) -> io::Result<()> {
    into.clear();
    // Set while the lines that follow belong to a mapping that counts.
    let mut counts = false;
    let mut sharing = Sharing::default();
    for_each_line(&mut file, chunk, |text| {
        // Only the first line of an entry starts with an address; keys start with a capital letter past 'F' or hold
        // no dash, and names of keys are tested first as there are some twenty of them to a mapping.
        if let Some(bytes) = field(text, b"Rss:") {
            if let Some(last) = into.last_mut().filter(|_| counts) {
                last.resident = bytes;
                last.referenced = last.referenced.min(bytes);
                last.others = last.others.min(bytes);
            }
        } else if let Some(bytes) = field(text, b"Referenced:") {
            if let Some(last) = into.last_mut().filter(|_| counts) {
                last.referenced = bytes.min(last.resident);
            }
        } else if let Some(bytes) = field(text, b"Shared_Clean:").or_else(|| field(text, b"Shared_Dirty:")) {
            sharing.shared = sharing.shared.saturating_add(bytes);
        } else if let Some(bytes) = field(text, b"Anonymous:") {
            sharing.anonymous = bytes;
            // The last of the lines that matter, on every kernel.
            if let Some(last) = into.last_mut().filter(|_| counts) {
                last.others = sharing.of_files(last.resident);
            }
        } else if let Some(header) = line(text) {
            sharing = Sharing::default();
            let kernels = header.name.starts_with(b"[v") || header.name == b"[uprobes]";
            let after = into.last().is_none_or(|last| last.range.end <= header.range.start);
            counts = !kernels && after;
            if counts {
                into.push(Use { range: header.range, ..Use::default() });
            }
        }
    })
}

/// The bytes in a line such as `Rss:                 132 kB`.
fn field(text: &[u8], key: &[u8]) -> Option<u64> {
    let kilobytes = text.strip_prefix(key)?.trim_ascii_end().strip_suffix(b"kB")?;
    parse_number(kilobytes)?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "\
00400000-00500000 r-xp 00000000 fd:01 77   /usr/bin/server
Size:               1024 kB
Rss:                 512 kB
Pss:                 256 kB
Shared_Clean:        400 kB
Shared_Dirty:          8 kB
Private_Clean:         4 kB
Private_Dirty:       100 kB
Referenced:          128 kB
Anonymous:           100 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000100000 rw-p 00000000 00:00 0 
Rss:                 100 kB
Shared_Clean:         60 kB
Shared_Dirty:          0 kB
Referenced:          200 kB
Anonymous:           100 kB
7ffc00034000-7ffc00036000 r-xp 00000000 00:00 0    [vdso]
Rss:                   8 kB
Referenced:            8 kB
";

    fn uses(text: &str) -> Vec<Use> {
        let mut into = Vec::new();
        read(text.as_bytes(), &mut [0; 256], &mut into).unwrap();
        into
    }

    #[test]
    fn each_mapping_has_its_use() {
        let server = Use {
            range: AddrRange::new(0x40_0000, 0x50_0000),
            resident: 512 << 10,
            referenced: 128 << 10,
            others: 408 << 10,
        };
        // Pages may come between the two counts: never more is referenced than resident.
        let anon = Use {
            range: AddrRange::new(0x7f00_0000_0000, 0x7f00_0010_0000),
            resident: 100 << 10,
            referenced: 100 << 10,
            // Shared since a fork, and anonymous.
            others: 0,
        };
        assert_eq!(uses(TEXT), [server, anon]);
    }

    proptest! {
        #[test]
        fn damaged_files_never_panic(at in 0..TEXT.len(), byte: u8, cut in 0..TEXT.len()) {
            let mut text = TEXT.as_bytes().to_vec();
            text[at] = byte;
            text.truncate(cut);
            let mut into = Vec::new();
            read(&text[..], &mut [0; 64], &mut into).unwrap();
            prop_assert!(into.is_sorted_by(|a, b| a.range.end <= b.range.start));
            prop_assert!(into.iter().all(|u| u.referenced <= u.resident && u.others <= u.resident));
        }
    }
}
