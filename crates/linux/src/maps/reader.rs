//! Reading lists of mappings, one process after the other, each in as many steps as it takes.
//!
//! `/proc/PID/maps` goes on at the address where the last read stopped, whatever was mapped or unmapped meanwhile, and
//! holds mmap_lock for a page of text at a time. So a list read over seconds is one that the process could have had, but
//! for what changed below the place reached; the next reading mends that. The buffers are here, not in [`Maps`]: a
//! thousand targets share them, and the names too.

use super::lines::Lines;
use super::numbers::{Instead, Numbers};
use super::{Line, MapList, Mapping, MappingKind, Maps, line};
use crate::clock;
use crate::process::{Process, ProcessError};
use crate::pte::Stamp;
use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::time::Duration;

/// The kernel gives out a page of text at a time, or a single line where that is longer: room for both.
const BUFFER: usize = 16 << 10;

/// A mapping that is read as numbers takes as long as so many bytes of text: 0.2 us, three times that where each is of another file.
const BYTES_A_MAPPING: usize = 16;

/// Mappings of a list whose place is kept for the next one: 64 kB.
const SHORT: usize = 1000;

/// What one step may take. It ends when either is used up; a single read, about a page of text, it always does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StepLimit {
    /// Bytes of text.
    pub bytes: usize,
    /// CPU time of the calling thread.
    pub cpu: Duration,
}

impl StepLimit {
    /// No limit: to the end.
    pub const NONE: Self = Self { bytes: usize::MAX, cpu: Duration::MAX };
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Bytes of text read.
    pub bytes: usize,
    /// Once the end was reached: whether the new list differs from the old one.
    pub whole: Option<bool>,
}

/// Reads lists of mappings, one at a time.
#[derive(Debug)]
pub struct Reader {
    lines: Lines<Vec<u8>>,
    incoming: Incoming,
    file: Option<File>,
    by_numbers: Option<Progress>,
    /// The list is to be printed after all; and, if so, names are to be learnt from it.
    prints: bool,
    learns: bool,
    pages_mapped: Option<u64>,
    stamp: Option<Stamp>,
    steps: u32,
}

/// How far a list is read as numbers.
#[derive(Clone, Copy, Default)]
struct Progress {
    from: u64,
    mm: u64,
    listed: usize,
}

/// The list under construction.
#[derive(Debug, Default)]
struct Incoming {
    list: MapList,
    /// Whether every mapping so far is the old list's at the same place.
    same: bool,
    names: HashSet<Arc<str>>,
    /// Names when those that nobody bears any more were last dropped.
    names_kept: usize,
}

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Where the kernel keeps an address space is nobody's business.
        f.debug_struct("Progress")
            .field("from", &self.from)
            .field("listed", &self.listed)
            .finish_non_exhaustive()
    }
}

impl Default for Reader {
    fn default() -> Self {
        Self::new()
    }
}

impl Reader {
    /// A reader that reads nothing yet.
    pub fn new() -> Self {
        Self {
            lines: Lines::new(vec![0; BUFFER]),
            incoming: Incoming::default(),
            file: None,
            by_numbers: None,
            prints: false,
            learns: false,
            pages_mapped: None,
            stamp: None,
            steps: 0,
        }
    }

    /// Begins to read the mappings of `process`; what was read of another's is dropped.
    ///
    /// # Errors
    /// When it has exited or may not be read.
    pub fn begin(&mut self, process: &Process) -> Result<(), ProcessError> {
        self.abandon();
        self.begin_to_print(process)
    }

    /// The same by numbers if they can be had; `is_worth`: if at all, as the list is long or many wait.
    ///
    /// # Errors
    /// As [`Reader::begin`].
    pub(crate) fn begin_by(
        &mut self,
        process: &Process,
        numbers: &mut Numbers,
        is_worth: bool,
    ) -> Result<(), ProcessError> {
        if !numbers.are_ready(is_worth) {
            return self.begin(process);
        }
        self.abandon();
        self.by_numbers = Some(Progress::default());
        process.still_alive()
    }

    fn begin_to_print(&mut self, process: &Process) -> Result<(), ProcessError> {
        self.pages_mapped = Some(process.pages()?.0);
        let opened = File::open(process.memory_path("maps"));
        process.still_alive()?;
        self.file = Some(opened.map_err(|source| failed(process, source))?);
        Ok(())
    }

    /// Drops what was read of a list.
    pub fn abandon(&mut self) {
        self.file = None;
        (self.by_numbers, self.prints, self.learns, self.stamp) = (None, false, false, None);
        self.lines.restart();
        self.incoming.restart();
        self.steps = 0;
    }

    /// Reads on in the list that [`Reader::begin`] began, for the same `process`; `maps` gets it once it is whole.
    ///
    /// # Errors
    /// When the process has exited, may not be read, or runs another program than at the beginning. The list is dropped
    /// then, and `maps` stays as it was.
    pub fn step(
        &mut self,
        process: &Process,
        maps: &mut Maps,
        limit: StepLimit,
    ) -> Result<Step, ProcessError> {
        self.step_by(process, maps, limit, &mut Numbers::default())
    }

    /// The same of a list that was begun by [`Reader::begin_by`].
    ///
    /// # Errors
    /// As [`Reader::step`].
    pub(crate) fn step_by(
        &mut self,
        process: &Process,
        maps: &mut Maps,
        limit: StepLimit,
        numbers: &mut Numbers,
    ) -> Result<Step, ProcessError> {
        let mut result = self.read_on(process, maps, limit, numbers);
        if self.prints {
            // What the numbers do not hold is printed, from its beginning. It counts as of now: what changes meanwhile shows at the next
            // look.
            (self.prints, self.stamp) = (false, numbers.stamp(process));
            self.incoming.restart();
            self.begin_to_print(process).inspect_err(|_| self.abandon())?;
            result = self.read_on(process, maps, limit, numbers);
        }
        process.still_alive().inspect_err(|_| self.abandon())?;
        result.map_err(|source| {
            self.abandon();
            failed(process, source)
        })
    }

    /// Reads the whole list at once. Returns whether it changed.
    ///
    /// # Errors
    /// As [`Reader::begin`] and [`Reader::step`].
    pub fn read(&mut self, process: &Process, maps: &mut Maps) -> Result<bool, ProcessError> {
        self.begin(process)?;
        Ok(self.step(process, maps, StepLimit::NONE)?.whole.unwrap_or(false))
    }

    /// What is known of the list under construction.
    pub fn so_far(&self) -> &MapList {
        &self.incoming.list
    }

    /// The list under construction, and above the place reached what `known` has there, if they differ up to there: as much as
    /// can be said of a list that has changed and takes long to read. `known` is what the [`Maps`] hold that the steps are given.
    pub fn with_rest_of(&self, known: &MapList) -> Option<MapList> {
        if self.incoming.same {
            return None;
        }
        let MapList { mut mappings, mut ranges, malformed, .. } = self.incoming.list.clone();
        let reached = mappings.last().map_or(0, |last| last.range.end);
        mappings.extend(known.mappings.iter().filter(|old| old.range.start >= reached).cloned());
        ranges.extend(known.ranges.iter().filter(|old| old.start >= reached));
        Some(MapList { mappings, ranges, complete: false, malformed })
    }

    fn read_on(
        &mut self,
        process: &Process,
        maps: &mut Maps,
        limit: StepLimit,
        numbers: &mut Numbers,
    ) -> io::Result<Step> {
        let start = clock::of_this_thread();
        let spent = || clock::of_this_thread().saturating_sub(start);
        self.steps += 1;
        let mut bytes = 0;
        while self.by_numbers.is_some() && bytes < limit.bytes {
            if bytes > 0 && spent() >= limit.cpu {
                break;
            }
            let most = ((limit.bytes - bytes) / BYTES_A_MAPPING).max(1);
            let Some((listed, is_whole)) = self.list(process, maps, most, numbers)? else {
                (self.by_numbers, self.prints) = (None, true);
                return Ok(Step { bytes, whole: None });
            };
            bytes += listed * BYTES_A_MAPPING;
            if is_whole {
                let changed = self.take(maps);
                return Ok(Step { bytes, whole: Some(changed) });
            }
        }
        if self.by_numbers.is_some() {
            return Ok(Step { bytes, whole: None });
        }
        let read = self.read_printed(maps, limit, bytes);
        numbers.printed(spent());
        let Ok(Step { whole: Some(_), .. }) = &read else { return read };
        if self.learns {
            numbers.learn(process, &self.incoming.list);
        }
        let changed = self.take(maps);
        read.map(|step| Step { whole: Some(changed), ..step })
    }

    /// Reads on by numbers, at most so many mappings. Returns how many it were, and whether they are all; `None` if they are to be
    /// printed instead.
    fn list(
        &mut self,
        process: &Process,
        maps: &Maps,
        most: usize,
        numbers: &mut Numbers,
    ) -> io::Result<Option<(usize, bool)>> {
        let Some(mut progress) = self.by_numbers else { return Ok(None) };
        let incoming = &mut self.incoming;
        let take = |mapping| incoming.take_number(mapping, maps.mappings());
        let found = match numbers.list(process, &mut self.file, progress.from, most, take) {
            Ok(found) => found,
            Err(instead) => {
                self.learns = matches!(instead, Instead::Learnt);
                return Ok(None);
            }
        };
        if progress.mm == 0 {
            (self.pages_mapped, self.stamp) = (Some(found.pages_mapped), found.stamp);
            // To grow by and by would touch more memory than to read the list. The kernel's gate comes on top.
            let more = (found.count + 1).saturating_sub(found.listed);
            self.incoming.list.mappings.reserve_exact(more);
            self.incoming.list.ranges.reserve_exact(more);
        } else if progress.mm != found.mm {
            return Err(io::Error::other("it runs another program by now"));
        }
        (progress.mm, progress.listed) = (found.mm, progress.listed + found.listed);
        if let Some(next) = found.next {
            progress.from = next;
            self.by_numbers = Some(progress);
            return Ok(Some((found.listed, false)));
        }
        // Of a list that is read in one step it is known how long it is. One that is read over seconds may have changed meanwhile.
        let is_whole = progress.listed > 0 && (progress.listed == found.count || self.steps > 1);
        Ok(is_whole.then_some((found.listed, true)))
    }

    /// Reads on in what is printed; once that is whole, it is still to be taken.
    fn read_printed(&mut self, maps: &Maps, limit: StepLimit, mut bytes: usize) -> io::Result<Step> {
        let start = clock::of_this_thread();
        while bytes < limit.bytes {
            if bytes > 0 && clock::of_this_thread().saturating_sub(start) >= limit.cpu {
                break;
            }
            let Some(file) = &mut self.file else { return Err(io::ErrorKind::NotConnected.into()) };
            let read = self.incoming.read(&mut self.lines, file, maps.mappings())?;
            bytes += read;
            if read > 0 {
                continue;
            }
            // No process is without mappings but one that is ending, and what it had is not what it has at that moment.
            if self.incoming.list.mappings.is_empty() && !maps.mappings().is_empty() {
                return Err(io::Error::other("its address space is gone"));
            }
            // The file of an address space that is gone ends early, too.
            if self.steps > 1 && file.read_at(&mut [0], 0)? == 0 {
                return Err(io::Error::other("it runs another program by now"));
            }
            return Ok(Step { bytes, whole: Some(true) });
        }
        Ok(Step { bytes, whole: None })
    }

    fn take(&mut self, maps: &mut Maps) -> bool {
        let changed = !self.incoming.is_same(&maps.list);
        if changed {
            maps.replace(self.incoming.take(), self.pages_mapped, self.stamp);
        } else {
            maps.read_again(self.pages_mapped, self.stamp);
        }
        self.abandon();
        self.incoming.drop_unused_names();
        changed
    }

    #[cfg(test)]
    pub(super) fn read_text(&mut self, mut text: impl Read, maps: &mut Maps) -> bool {
        while self.incoming.read(&mut self.lines, &mut text, maps.mappings()).unwrap() > 0 {}
        self.take(maps)
    }

    /// Whether the list is read as numbers.
    pub(crate) fn reads_numbers(&self) -> bool {
        self.by_numbers.is_some()
    }

    #[cfg(test)]
    pub(super) fn nr_names(&self) -> usize {
        self.incoming.names.len()
    }
}

/// All of a list in as much memory as it takes; what it had stays there.
fn moved<T>(list: &mut Vec<T>) -> Vec<T> {
    let mut moved = Vec::with_capacity(list.len());
    moved.append(list);
    moved
}

fn failed(process: &Process, source: io::Error) -> ProcessError {
    ProcessError::from_io(process.pid(), "its mappings (/proc/PID/maps)", source)
}

impl Incoming {
    fn restart(&mut self) {
        self.list.mappings.clear();
        self.list.ranges.clear();
        (self.list.malformed, self.same) = (0, true);
    }

    fn read(
        &mut self,
        lines: &mut Lines<Vec<u8>>,
        file: &mut impl Read,
        old: &[Mapping],
    ) -> io::Result<usize> {
        lines.read(file, |text| self.take_line(text, old))
    }

    fn take_line(&mut self, text: &[u8], old: &[Mapping]) {
        // A line that lies before its predecessor's end cannot be the kernel's, unless what lay there grew meanwhile.
        let end = self.list.mappings.last().map_or(0, |last| last.range.end);
        let Some(line) = line(text).filter(|line| line.range.start >= end) else {
            self.list.malformed += 1;
            return;
        };
        let name = self.intern(line.name);
        let Line { range, perms, offset, device, inode, .. } = line;
        self.take_mapping(Mapping { range, perms, offset, device, inode, name }, old);
    }

    /// Takes one by numbers. Between two runs it may have been joined with those before it, which are known.
    fn take_number(&mut self, mut mapping: Mapping, old: &[Mapping]) {
        let end = self.list.mappings.last().map_or(0, |last| last.range.end);
        if mapping.range.start < end {
            mapping.offset += if mapping.inode == 0 { 0 } else { end - mapping.range.start };
            mapping.range.start = end;
        }
        if !mapping.range.is_empty() && mapping.range.start < mapping.range.end {
            self.take_mapping(mapping, old);
        }
    }

    fn take_mapping(&mut self, mapping: Mapping, old: &[Mapping]) {
        let range = mapping.range;
        self.same &= old.get(self.list.mappings.len()) == Some(&mapping);
        if mapping.kind() != MappingKind::Kernel {
            self.list.ranges.push(range);
        }
        self.list.mappings.push(mapping);
    }

    fn intern(&mut self, name: &[u8]) -> Arc<str> {
        // Neighbours often share their name: the segments of a library, the pieces of an arena.
        if let Some(last) = self.list.mappings.last().filter(|last| last.name.as_bytes() == name) {
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

    fn is_same(&self, old: &MapList) -> bool {
        self.same
            && old.complete
            && old.mappings.len() == self.list.mappings.len()
            && old.malformed == self.list.malformed
    }

    fn take(&mut self) -> MapList {
        let MapList { mappings, ranges, malformed, .. } = &mut self.list;
        // Most lists are short, and the next one is gathered in the same place: memory that grows is touched several times.
        let (mappings, ranges) = if mappings.len() <= SHORT {
            (moved(mappings), moved(ranges))
        } else {
            let (mut mappings, mut ranges) = (std::mem::take(mappings), std::mem::take(ranges));
            mappings.shrink_to_fit();
            ranges.shrink_to_fit();
            (mappings, ranges)
        };
        MapList { mappings, ranges, complete: true, malformed: *malformed }
    }

    /// Names that no mapping bears any more are held by this set alone. Looked at when it has doubled, so that the cost
    /// is that of making them.
    fn drop_unused_names(&mut self) {
        if self.names.len() > 2 * self.names_kept + 64 {
            self.names.retain(|name| Arc::strong_count(name) > 1);
            self.names_kept = self.names.len();
        }
    }
}
