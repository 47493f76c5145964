//! Of which folios memory of this process is: `/proc/self/pagemap` and `/proc/kpageflags` (pagemap.rst), and what of it
//! is mapped by PMDs: `/proc/self/smaps` (proc_pid_smaps(5)).

use super::PAGE;
use std::fs::File;
use std::io::{ErrorKind, Result};
use std::ops::Range;
use std::os::unix::fs::FileExt;

/// Pages that are looked at together: 2 MiB, which no folio here is larger than.
const AREA: usize = 512;
const PRESENT: u64 = 1 << 63;
const PFN: u64 = (1 << 55) - 1;
const COMPOUND_HEAD: u64 = 1 << 15;
const COMPOUND_TAIL: u64 = 1 << 16;

/// Looks at folios. Needs root.
pub(super) struct Folios {
    pagemap: File,
    flags: File,
}

/// A page that is present, as Linux describes its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Present {
    pfn: u64,
    /// Its flags.
    flags: u64,
    /// Whether its folio ends with it.
    last: bool,
}

impl Folios {
    /// # Errors
    /// Whoever runs it may not know about frames.
    pub(super) fn open() -> Result<Folios> {
        let folios =
            Folios { pagemap: File::open("/proc/self/pagemap")?, flags: File::open("/proc/kpageflags")? };
        // Without CAP_SYS_ADMIN all frames are 0. The page of a local variable is there.
        let here = 0u8;
        let entry = read_words(&folios.pagemap, (&raw const here as usize / PAGE) as u64, 1)?;
        match entry.first() {
            Some(entry) if entry & PFN != 0 => Ok(folios),
            _ => Err(ErrorKind::PermissionDenied.into()),
        }
    }

    /// The order of each page's folio, of `pages` pages at the address `start`, which is a multiple of 2 MiB; `None` of
    /// what is not there, or part of no whole folio.
    pub(super) fn orders(&self, start: usize, pages: usize) -> Result<Vec<Option<u8>>> {
        let mut orders = Vec::with_capacity(pages);
        for first in (0..pages).step_by(AREA) {
            let frames = self.area(start / PAGE + first)?;
            orders.extend(whole_folios(&frames).into_iter().take(pages - first));
        }
        Ok(orders)
    }

    fn area(&self, page: usize) -> Result<Vec<Option<Present>>> {
        let entries = read_words(&self.pagemap, page as u64, AREA)?;
        let mut frames = Vec::with_capacity(AREA);
        // Runs of frames that follow each other: a read of many flags costs about as much as one of a few.
        for run in entries.chunk_by(|one, next| one & next & PRESENT != 0 && (one & PFN) + 1 == next & PFN) {
            let Some(first) = run.first().filter(|first| *first & PRESENT != 0) else {
                frames.push(None);
                continue;
            };
            let pfn = first & PFN;
            // One more, to see where the last folio ends; memory may end there as well.
            let mut flags = read_words(&self.flags, pfn, run.len() + 1)?;
            flags.resize(run.len() + 1, 0);
            frames.extend((pfn..).zip(flags.windows(2)).map(|(pfn, pair)| match pair {
                [flags, next] => Some(Present { pfn, flags: *flags, last: next & COMPOUND_TAIL == 0 }),
                _ => None,
            }));
        }
        Ok(frames)
    }
}

/// `count` words of a file of words, from the `first`th on; fewer where the file ends.
fn read_words(file: &File, first: u64, count: usize) -> Result<Vec<u64>> {
    let mut bytes = vec![0; count * 8];
    let mut read = 0;
    while let Some(rest) = bytes.get_mut(read..).filter(|rest| !rest.is_empty()) {
        match file.read_at(rest, first * 8 + read as u64) {
            Ok(0) => break,
            Ok(more) => read += more,
            Err(why) if why.kind() == ErrorKind::Interrupted => {}
            Err(why) => return Err(why),
        }
    }
    bytes.truncate(read);
    Ok(bytes.as_chunks::<8>().0.iter().map(|word| u64::from_ne_bytes(*word)).collect())
}

/// The order of the folio of each page. A large folio counts if all of its frames are mapped, one after the other.
fn whole_folios(frames: &[Option<Present>]) -> Vec<Option<u8>> {
    let mut orders = Vec::with_capacity(frames.len());
    while let Some(&frame) = frames.get(orders.len()) {
        let at = orders.len();
        let Some(Present { pfn, flags, last }) = frame else {
            orders.push(None);
            continue;
        };
        if flags & (COMPOUND_HEAD | COMPOUND_TAIL) == 0 {
            orders.push(Some(0));
            continue;
        }
        let following = frames.iter().skip(at + 1).zip(pfn + 1..);
        let tails = following.map_while(|(frame, next)| {
            frame.filter(|frame| frame.pfn == next && frame.flags & COMPOUND_TAIL != 0)
        });
        let (pages, last) = tails.fold((1usize, last), |(pages, _), tail| (pages + 1, tail.last));
        let whole = flags & COMPOUND_HEAD != 0 && last && pages.is_power_of_two();
        orders.resize(at + pages, whole.then_some(pages.trailing_zeros() as u8));
    }
    orders
}

/// Bytes of our memory at these addresses that are mapped by PMDs.
pub(super) fn mapped_by_pmds(addresses: &Range<usize>) -> Result<usize> {
    Ok(anonymous_huge(&std::fs::read_to_string("/proc/self/smaps")?, addresses))
}

/// The sum of AnonHugePages of the mappings that begin in the range.
fn anonymous_huge(smaps: &str, addresses: &Range<usize>) -> usize {
    let mut within = false;
    let mut kib = 0;
    for line in smaps.lines() {
        if let Some(huge) = line.strip_prefix("AnonHugePages:") {
            let size = huge.trim().strip_suffix(" kB").and_then(|size| size.trim().parse::<usize>().ok());
            kib += size.filter(|_| within).unwrap_or(0);
        } else if let Some(start) = line.split_once('-').and_then(|(start, _)| hex(start)) {
            within = addresses.contains(&start);
        }
    }
    kib * 1024
}

fn hex(text: &str) -> Option<usize> {
    usize::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folios_count_where_they_are_mapped_as_a_whole() {
        let frame = |pfn, flags, last| Some(Present { pfn, flags, last });
        let folio = |first: u64, pages: u64| {
            (first..first + pages).map(move |pfn| {
                let flags = if pfn == first { COMPOUND_HEAD } else { COMPOUND_TAIL };
                frame(pfn, flags, pfn + 1 == first + pages)
            })
        };
        // Two folios that follow each other in memory, a page, nothing.
        let mut frames: Vec<_> = folio(64, 4).chain(folio(68, 16)).collect();
        frames.extend([frame(84, 0, true), None]);
        let mut expected = vec![Some(2); 4];
        expected.extend([Some(4); 16]);
        expected.extend([Some(0), None]);
        assert_eq!(whole_folios(&frames), expected);
        // Of one a page is missing; of one the head; one is in two places, and one ends beyond what is mapped.
        let mut holed: Vec<_> = folio(64, 4).collect();
        holed[3] = None;
        assert_eq!(whole_folios(&holed), [None; 4]);
        assert_eq!(whole_folios(&folio(64, 4).skip(1).collect::<Vec<_>>()), [None; 3]);
        let two = folio(64, 4).take(2).chain(folio(98, 4).skip(2)).collect::<Vec<_>>();
        assert_eq!(whole_folios(&two), [None; 4]);
        assert_eq!(whole_folios(&folio(64, 4).take(2).collect::<Vec<_>>()), [None; 2]);
    }

    #[test]
    fn huge_pages_are_those_of_the_range() {
        let smaps = "00400000-00600000 rw-p 00000000 00:00 0\nAnonHugePages:      2048 kB\nVmFlags: rd wr mr\n\
                     00600000-00a00000 rw-p 00000000 00:00 0\nAnonHugePages:      4096 kB\n\
                     00a00000-00c00000 rw-p 00000000 00:00 0 [heap]\nAnonHugePages:      2048 kB\n";
        assert_eq!(anonymous_huge(smaps, &(0x60_0000..0xa0_0000)), 4 << 20);
        assert_eq!(anonymous_huge(smaps, &(0..0x40_0000)), 0);
        assert_eq!(anonymous_huge("", &(0..usize::MAX)), 0);
    }
}
