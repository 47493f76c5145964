//! The mappings of a process: what lies where in its address space, under what name.
//!
//! A process may have hundreds of thousands of mappings, and the kernel takes half a microsecond to two to print each,
//! up to 6.16 holding the process's mmap_lock for reading. So a list is read in pieces ([`Reader`]), only when something
//! promises news ([`Maps::is_stale`]), as numbers where the kernel lets us (`numbers.rs`), and is handed on by reference
//! ([`MapList`]).

mod lines;
mod numbers;
mod parse;
mod query;
mod reader;

pub use numbers::Numbers;
pub use parse::Perms;
pub use reader::{Reader, Step, StepLimit};

pub(crate) use lines::for_each_line;
pub(crate) use parse::{Line, line};
pub(crate) use query::range_at;

use crate::process::{Process, ProcessError};
use crate::pte::Stamp;
use isotherm_damon::AddrRange;
use std::sync::Arc;

/// What kind of memory a mapping is, told from its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MappingKind {
    /// The brk(2) heap.
    Heap,
    /// The stack of the main thread (`[stack]`); of any thread where the program named it so.
    Stack,
    /// Private memory without a file, named by the program (`[anon:...]`) or not.
    Anonymous,
    /// Memory shared between processes without a file on disk: memfd, POSIX or System V shared memory.
    SharedMemory,
    /// A file.
    File,
    /// A file that is deleted or replaced by now.
    DeletedFile,
    /// The kernel's own: `[vdso]`, `[vvar]`, `[vsyscall]`, `[uprobes]`.
    Kernel,
}

/// One mapping (VMA) of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// Its addresses.
    pub range: AddrRange,
    /// What may be done with it.
    pub perms: Perms,
    /// Where in the file it begins, bytes.
    pub offset: u64,
    /// Device of the file, major and minor number; 0:0 if there is none.
    pub device: (u32, u32),
    /// Inode of the file; 0 if there is none.
    pub inode: u64,
    /// Name as in `/proc/PID/maps`: a path, a name in brackets, or empty. What is not UTF-8 is replaced.
    pub name: Arc<str>,
}

impl Mapping {
    /// What kind of memory it is.
    pub fn kind(&self) -> MappingKind {
        let name = &*self.name;
        match name {
            "" => MappingKind::Anonymous,
            "[heap]" => MappingKind::Heap,
            _ if name.starts_with("[stack") || name.starts_with("[anon:stack") => MappingKind::Stack,
            _ if name.starts_with("[anon_shmem") => MappingKind::SharedMemory,
            _ if name.starts_with("[anon") => MappingKind::Anonymous,
            _ if name.starts_with('[') => MappingKind::Kernel,
            _ if ["/memfd:", "/SYSV", "/dev/shm/", "/dev/zero"].iter().any(|p| name.starts_with(p)) => {
                MappingKind::SharedMemory
            }
            _ if name.ends_with(" (deleted)") => MappingKind::DeletedFile,
            // Some drivers and file systems name inodes that have no path: `anon_inode:[io_uring]`.
            _ => MappingKind::File,
        }
    }
}

/// The mappings of a process as they were read. A list is never changed, so that whoever needs it shares it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapList {
    mappings: Vec<Mapping>,
    /// Those to monitor.
    ranges: Vec<AddrRange>,
    complete: bool,
    malformed: u64,
}

impl MapList {
    /// The mappings, sorted by address.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// The ranges to monitor: every mapping but the kernel's own, one each, as whoever advises the kernel needs their
    /// borders. As for DAMON, a mapping counts whatever its permissions: a PROT_NONE reservation is made accessible
    /// piece by piece.
    pub fn ranges(&self) -> &[AddrRange] {
        &self.ranges
    }

    /// Whether the list was read to its end. Otherwise there are more mappings above its last, or above the place reached it is
    /// as it was read before ([`Reader::with_rest_of`]).
    pub const fn is_complete(&self) -> bool {
        self.complete
    }

    /// Lines that were none of the kernel's format. 0 on any known kernel.
    pub const fn malformed(&self) -> u64 {
        self.malformed
    }

    /// The mapping that `addr` lies in.
    pub fn find(&self, addr: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.range.end <= addr);
        self.mappings.get(after).filter(|m| m.range.contains(addr))
    }

    /// Bytes of memory it takes, without the names, which lists share.
    pub fn memory(&self) -> usize {
        size_of_val(self.mappings.as_slice()) + size_of_val(self.ranges.as_slice())
    }
}

/// What is known of the mappings of one process, and whether it is worth reading them again.
#[derive(Debug, Default)]
pub struct Maps {
    list: Arc<MapList>,
    /// Pages mapped when the list was read: what makes or removes mappings most often changes it.
    pages_mapped: Option<u64>,
    /// The state that the list is of, where that is known.
    stamp: Option<Stamp>,
    unchanged: u32,
}

/// How often an unchanged sum of mapped pages is taken for unchanged mappings before they are read all the same: a
/// mapping may go while another of the same size comes. A guess: the price is an eighth of reading at each look.
const MAX_UNCHANGED: u32 = 8;

impl Maps {
    /// No mappings yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads all mappings of `process` at once. Returns whether they changed.
    ///
    /// # Errors
    /// When it has exited or may not be read; what was read before then stays.
    pub fn read(&mut self, process: &Process) -> Result<bool, ProcessError> {
        Reader::new().read(process, self)
    }

    /// Whether the list should be read again, given the pages mapped now (the first field of `statm`). Counts the
    /// looks: each call is one.
    pub fn is_stale(&mut self, pages_mapped: u64) -> bool {
        if self.pages_mapped == Some(pages_mapped) && self.unchanged < MAX_UNCHANGED {
            self.unchanged += 1;
            return false;
        }
        true
    }

    /// Whether so many pages were mapped when the list was read. False as long as it was not.
    pub fn is_of(&self, pages_mapped: u64) -> bool {
        self.pages_mapped == Some(pages_mapped)
    }

    /// Whether it is known that the list is of this state, or that it is of another.
    pub(crate) fn is_as_of(&self, stamp: Stamp) -> Option<bool> {
        self.stamp.map(|of| of == stamp)
    }

    /// The mappings of a process that was forked from this one.
    pub fn inherited(&self) -> Self {
        Self { list: Arc::clone(&self.list), pages_mapped: self.pages_mapped, stamp: None, unchanged: 0 }
    }

    /// Forgets the list: after exec nothing is as it was.
    pub fn invalidate(&mut self) {
        *self = Self::default();
    }

    /// The list, to keep.
    pub fn list(&self) -> &Arc<MapList> {
        &self.list
    }

    /// The mappings, sorted by address.
    pub fn mappings(&self) -> &[Mapping] {
        self.list.mappings()
    }

    /// The ranges to monitor. See [`MapList::ranges`].
    pub fn ranges(&self) -> &[AddrRange] {
        self.list.ranges()
    }

    /// The mapping that `addr` lies in.
    pub fn find(&self, addr: u64) -> Option<&Mapping> {
        self.list.find(addr)
    }

    /// Lines of the list that were none of the kernel's format. 0 on any known kernel.
    pub fn malformed(&self) -> u64 {
        self.list.malformed()
    }

    fn replace(&mut self, list: MapList, pages_mapped: Option<u64>, stamp: Option<Stamp>) {
        let is_first = self.pages_mapped.is_none();
        self.list = Arc::new(list);
        self.read_again(pages_mapped, stamp);
        if is_first {
            // A program maps most of what it will at its start: it is looked once more when that is over.
            self.unchanged = MAX_UNCHANGED - 1;
        }
    }

    fn read_again(&mut self, pages_mapped: Option<u64>, stamp: Option<Stamp>) {
        (self.pages_mapped, self.stamp) = (pages_mapped, stamp);
        self.unchanged = 0;
    }
}

#[cfg(test)]
pub(crate) use numbers::tests as numbers_tests;

#[cfg(test)]
pub(crate) mod tests;
