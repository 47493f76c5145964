//! The mappings of a process: what lies where in its address space, under what name.
//!
//! A process may have hundreds of thousands of mappings, and the kernel takes about half a microsecond to print each
//! while it holds the process's mmap_lock for reading. [`Maps`] therefore reads into buffers it keeps, keeps one copy
//! of each name, and [`Maps::refresh`] leaves out readings that would tell nothing new or cost more than their share.

mod parse;

pub use parse::Perms;

pub(crate) use parse::{Line, line};

use crate::cpu_time;
use crate::process::{Process, ProcessError};
use isotherm_damon::AddrRange;
use std::collections::HashSet;
use std::fs::File;
use std::io::Read;
use std::path::Path;
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

/// The mappings of a process as last read, and the buffers to read them again.
#[derive(Debug, Default)]
pub struct Maps {
    mappings: Vec<Mapping>,
    incoming: Vec<Mapping>,
    names: HashSet<Arc<str>>,
    chunk: Vec<u8>,
    malformed: u64,
    /// Pages mapped when last read: what makes or removes mappings most often changes it.
    pages_mapped: Option<u64>,
    unchanged: u32,
    not_before_ns: u64,
    deferred: u64,
}

/// How often [`Maps::refresh`] takes an unchanged sum of mapped pages for unchanged mappings before it reads them all
/// the same: a mapping may go while another of the same size comes.
const MAX_UNCHANGED: u32 = 8;

/// The kernel gives out a page at a time, or a single line where that is longer.
const CHUNK: usize = 64 << 10;

impl Maps {
    /// No mappings yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Reads the mappings of `process`. Tells whether they changed.
    ///
    /// # Errors
    /// When it has exited or may not be read; what was read before then stays.
    pub fn read(&mut self, process: &Process) -> Result<bool, ProcessError> {
        let pages_mapped = process.pages()?.0;
        let result = self
            .read_path(&process.path("maps"))
            .and_then(|()| if self.incoming.is_empty() { self.read_from_thread(process) } else { Ok(()) });
        process.still_alive()?;
        result.map_err(|source| {
            ProcessError::from_io(process.pid(), "its mappings (/proc/PID/maps)", source)
        })?;
        self.pages_mapped = Some(pages_mapped);
        self.unchanged = 0;
        Ok(self.take_incoming())
    }

    /// Reads the mappings again if that promises news and keeps to `share` of one CPU (0.001 is 0.1 %; not above 0
    /// means no limit): after a reading that took 10 ms, at a share of 0.01, the next comes a second later at the
    /// earliest. `now_ns` is the time on any clock that does not go back. Tells whether they changed.
    ///
    /// # Errors
    /// When it has exited or may not be read; what was read before then stays.
    pub fn refresh(&mut self, process: &Process, now_ns: u64, share: f64) -> Result<bool, ProcessError> {
        if now_ns < self.not_before_ns {
            self.deferred += 1;
            return Ok(false);
        }
        if self.pages_mapped.is_some()
            && self.unchanged < MAX_UNCHANGED
            && self.pages_mapped == Some(process.pages()?.0)
        {
            self.unchanged += 1;
            return Ok(false);
        }
        let before = cpu_time::of_this_thread();
        let changed = self.read(process)?;
        if share > 0.0 {
            let cost = cpu_time::of_this_thread().saturating_sub(before).as_nanos() as f64;
            // A float too big for the integer becomes its maximum.
            self.not_before_ns = now_ns.saturating_add((cost / share) as u64);
        }
        Ok(changed)
    }

    /// Makes the next [`Maps::refresh`] read, whatever it cost last: after exec nothing is as it was.
    pub fn invalidate(&mut self) {
        self.pages_mapped = None;
        self.not_before_ns = 0;
    }

    /// The mappings, sorted by address.
    pub fn mappings(&self) -> &[Mapping] {
        &self.mappings
    }

    /// Readings that [`Maps::refresh`] put off because of their cost.
    pub fn deferred(&self) -> u64 {
        self.deferred
    }

    /// Lines that were none of the kernel's format, ever. 0 on any known kernel.
    pub fn malformed(&self) -> u64 {
        self.malformed
    }

    /// The ranges to monitor: every mapping but the kernel's own, one each, as whoever advises the kernel needs their
    /// borders. As for DAMON, a mapping counts whatever its permissions: a PROT_NONE reservation is made accessible
    /// piece by piece.
    pub fn ranges(&self) -> Vec<AddrRange> {
        let monitored = self.mappings.iter().filter(|m| m.kind() != MappingKind::Kernel);
        monitored.map(|m| m.range).collect()
    }

    /// The mapping that `addr` lies in.
    pub fn find(&self, addr: u64) -> Option<&Mapping> {
        let after = self.mappings.partition_point(|m| m.range.end <= addr);
        self.mappings.get(after).filter(|m| m.range.contains(addr))
    }

    /// The main thread may end before its process does, and then shows no mappings; the other threads do.
    fn read_from_thread(&mut self, process: &Process) -> std::io::Result<()> {
        const MOST_THREADS_TRIED: usize = 64;
        for thread in std::fs::read_dir(process.path("task"))?.take(MOST_THREADS_TRIED) {
            self.read_path(&thread?.path().join("maps"))?;
            if !self.incoming.is_empty() {
                break;
            }
        }
        Ok(())
    }

    fn read_path(&mut self, path: &Path) -> std::io::Result<()> {
        self.read_lines(File::open(path)?)
    }

    fn read_lines(&mut self, mut file: impl Read) -> std::io::Result<()> {
        let mut chunk = std::mem::take(&mut self.chunk);
        chunk.resize(CHUNK, 0);
        self.incoming.clear();
        let result = for_each_line(&mut file, &mut chunk, |text| self.take_line(text));
        self.chunk = chunk;
        result
    }

    fn take_line(&mut self, text: &[u8]) {
        let Some(line) = line(text) else {
            self.malformed += 1;
            return;
        };
        // A line that lies before its predecessor's end cannot be the kernel's.
        if self.incoming.last().is_some_and(|last| last.range.end > line.range.start) {
            self.malformed += 1;
            return;
        }
        let name = self.intern(line.name);
        let Line { range, perms, offset, device, inode, .. } = line;
        self.incoming.push(Mapping { range, perms, offset, device, inode, name });
    }

    fn intern(&mut self, name: &[u8]) -> Arc<str> {
        // Neighbours often share their name: the segments of a library, the pieces of an arena.
        if let Some(last) = self.incoming.last().filter(|last| last.name.as_bytes() == name) {
            return Arc::clone(&last.name);
        }
        let name = String::from_utf8_lossy(name);
        if let Some(known) = self.names.get(&*name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        self.names.insert(Arc::clone(&name));
        name
    }

    fn take_incoming(&mut self) -> bool {
        let changed = self.mappings != self.incoming;
        std::mem::swap(&mut self.mappings, &mut self.incoming);
        self.incoming.clear();
        if changed {
            // Names no mapping bears any more are held by this set alone.
            self.names.retain(|name| Arc::strong_count(name) > 1);
        }
        changed
    }
}

/// Calls `each` with every line of `file`, without its newline; `chunk` is the space to read into. Lines longer than
/// that are left out (the kernel prints none).
pub(crate) fn for_each_line(
    file: &mut impl Read,
    chunk: &mut [u8],
    mut each: impl FnMut(&[u8]),
) -> std::io::Result<()> {
    let mut held = 0;
    let mut too_long = false;
    loop {
        let Some(space) = chunk.get_mut(held..).filter(|space| !space.is_empty()) else {
            too_long = true;
            held = 0;
            continue;
        };
        let read = match file.read(space) {
            Ok(0) => break,
            Ok(read) => read,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        };
        let filled = held + read;
        let mut start = 0;
        while let Some(rest) = chunk.get(start..filled) {
            let Some(len) = rest.iter().position(|&b| b == b'\n') else { break };
            if !std::mem::take(&mut too_long) {
                each(&rest[..len]);
            }
            start += len + 1;
        }
        chunk.copy_within(start..filled, 0);
        held = filled - start;
    }
    match chunk.get(..held) {
        Some(last) if !last.is_empty() && !too_long => each(last),
        _ => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests;
