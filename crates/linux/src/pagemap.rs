//! `/proc/PID/pagemap` (kernel document admin-guide/mm/pagemap.rst): one 64-bit entry a page.

use crate::process::{Process, ProcessError};
use isotherm_damon::{AddrRange, TargetId};
use std::fs::File;
use std::os::fd::AsFd;

/// An entry: what is at a page's address.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Entry(pub u64);

impl Entry {
    pub const PRESENT: u64 = 1 << 63;
    /// Mapped here and nowhere else (bit 56, Linux 4.2).
    pub const EXCLUSIVE: u64 = 1 << 56;
    /// Of a file or shared memory, if it is present (bit 61, Linux 3.5).
    pub const FILE: u64 = 1 << 61;
    pub const SWAPPED: u64 = 1 << 62;
    const PFN: u64 = (1 << 55) - 1;

    pub const fn present(self) -> bool {
        self.0 & Self::PRESENT != 0
    }

    pub const fn exclusive(self) -> bool {
        self.0 & Self::EXCLUSIVE != 0
    }

    pub const fn of_file(self) -> bool {
        self.0 & Self::FILE != 0
    }

    pub const fn swapped(self) -> bool {
        self.0 & Self::SWAPPED != 0
    }

    /// Number of the page frame; 0 without CAP_SYS_ADMIN.
    pub const fn pfn(self) -> u64 {
        self.0 & Self::PFN
    }
}

/// A process's page map. It stays that of the address space it was opened on: after exec it has no entries any more.
#[derive(Debug)]
pub(crate) struct Pagemap(File);

impl Pagemap {
    pub(crate) fn open(process: &Process) -> Result<Self, ProcessError> {
        let opened = File::open(process.memory_path("pagemap"));
        process.still_alive()?;
        let what = "its page map (/proc/PID/pagemap)";
        opened.map(Self).map_err(|source| ProcessError::from_io(process.pid(), what, source))
    }

    #[cfg(test)]
    pub(crate) const fn of_file(file: File) -> Self {
        Self(file)
    }

    /// The entry of the page at `addr`; `None` if the address space is gone, or was never that large.
    pub(crate) fn entry(&self, addr: u64) -> Option<Entry> {
        read_word(&self.0, addr / rustix::param::page_size() as u64).map(Entry)
    }

    /// The entries of the pages at `addrs`, one answer each, replaced in `found`. Best in order of addresses: neighbours
    /// are read with one call.
    pub(crate) fn entries(&self, addrs: &[u64], found: &mut Vec<Option<Entry>>) {
        /// Entries between two that are read with them: cheaper than another call.
        const GAP: u64 = 16;
        let page = |addr: &u64| addr / rustix::param::page_size() as u64;
        found.clear();
        let mut bytes = Vec::new();
        for run in addrs.chunk_by(|a, b| (page(a)..=page(a) + GAP).contains(&page(b))) {
            let (first, last) = (run.first().map_or(0, page), run.last().map_or(0, page));
            bytes.resize((last - first + 1) as usize * 8, 0);
            let read = rustix::io::pread(&self.0, &mut bytes, first.saturating_mul(8)).unwrap_or(0);
            let (words, _) = bytes.get(..read).unwrap_or_default().as_chunks::<8>();
            let word = |addr| words.get((page(addr) - first) as usize);
            found.extend(run.iter().map(|addr| word(addr).map(|word| Entry(u64::from_ne_bytes(*word)))));
        }
    }

    /// The entries of all pages of `range`, replaced in `found`; less where the address space ends before, or is gone.
    pub(crate) fn read(&self, range: AddrRange, found: &mut Vec<Entry>) {
        let page = rustix::param::page_size() as u64;
        let mut bytes = vec![0; (range.size() / page) as usize * 8];
        let mut filled = 0;
        let first = range.start / page * 8;
        while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
            match rustix::io::pread(&self.0, rest, first + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(rustix::io::Errno::INTR) => {}
                Err(_) => break,
            }
        }
        found.clear();
        let (words, _) = bytes.get(..filled).unwrap_or_default().as_chunks::<8>();
        found.extend(words.iter().map(|word| Entry(u64::from_ne_bytes(*word))));
    }

    /// Whether another process maps the page at `addr` too.
    pub(crate) fn is_shared(&self, addr: u64) -> bool {
        self.entry(addr).is_some_and(|entry| entry.present() && !entry.exclusive())
    }
}

/// Page maps kept open, of the targets last asked for: with one a target, a thousand targets exhaust the descriptors.
#[derive(Debug, Default)]
pub(crate) struct PagemapCache {
    /// The one used last stands last.
    open: Vec<(TargetId, Pagemap)>,
}

impl PagemapCache {
    /// A guess: more than the targets whose pages are asked for within one sampling interval.
    const CAPACITY: usize = 16;

    /// The page map of a target, opened if need be. `None` if it cannot be.
    pub(crate) fn of(&mut self, id: TargetId, process: &Process) -> Option<&Pagemap> {
        let kept = self.open.iter().position(|(kept, _)| *kept == id).map(|at| self.open.remove(at));
        let entry = kept.or_else(|| Pagemap::open(process).ok().map(|pagemap| (id, pagemap)))?;
        if self.open.len() >= Self::CAPACITY {
            self.open.remove(0);
        }
        self.open.push(entry);
        self.open.last().map(|(_, pagemap)| pagemap)
    }

    /// Forgets a target, or the address space it had before it called exec.
    pub(crate) fn remove(&mut self, id: TargetId) {
        self.open.retain(|(kept, _)| *kept != id);
    }
}

/// The `index`th 64-bit word of a file of such words.
pub(crate) fn read_word(file: &impl AsFd, index: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    let read = rustix::io::pread(file, &mut bytes, index.checked_mul(8)?).ok()?;
    (read == bytes.len()).then(|| u64::from_ne_bytes(bytes))
}
