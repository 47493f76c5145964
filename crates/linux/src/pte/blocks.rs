//! Operations on blocks: what one page table of the lowest level maps is read, and advised, at once.
//!
//! A sweep is a write to `/proc/PID/clear_refs`. It costs some 30 (clear already) to 75 ns a small page and 0.1 ms a GiB of
//! huge pages (`examples/block_costs.rs`). It clears by mapping, not by page: of memory mapped from a file also the private
//! copies count as mapped. From Linux 6.5 on it locks every mapping for writing until it is done, so that all page faults of
//! the target wait as long: 8 to 12 ms were measured where a sweep of 512 MiB took 5 to 14 ms, 0.1 ms without sweeps. It
//! flushes nothing; one clear does that, of a range from one page that was accessed since the sweep to another more than
//! 33 pages away, in one mapping (`examples/sweep_flush.rs`).

use super::Pte;
use super::clear::{Page, advise_cold, pieces};
use super::decode::{self, Bits};
use super::walk::{Entry, Found, MAX_PROCESSES, MAX_TABLES, bit};
use crate::clock::{boottime_ns, monotonic_ns};
use crate::process::raw;
use isotherm_damon::{
    AddrRange, BLOCK_PAGES, BLOCK_SIZE, BlockLook, BlockOperations, Cleared, Mapped, Ownership, PAGE_SIZE,
    Pages, Ran, RangeClear, Sweep, TargetId,
};
use std::io::Write;
use std::ops::Range;
use std::time::Duration;

/// With so many targets it may be cheaper to list all processes than to ask each target, ...
const WORTH_A_LIST: usize = 64;
/// ... which takes so many times as long as one in a list: 1.3 us against 0.22.
const CHEAPER_LISTED: usize = 5;
const GIB: u64 = 1 << 30;

/// Entries of the root table that map user space: the lower half.
const USER_ENTRIES: usize = 256;

/// A table to read in a survey: the first address it maps, and what is present in it.
struct Surveyed {
    start: u64,
    /// First addresses of what its entries map, and whether an entry points to a table.
    children: Vec<(u64, bool)>,
    read: bool,
}

impl Pte {
    /// The tables of `level` at the addresses `starts`. `None` when they cannot be had.
    fn survey_level(&mut self, id: TargetId, level: u32, starts: &[u64]) -> Option<Vec<Surveyed>> {
        let new = |start: &u64| Surveyed { start: *start, children: Vec::new(), read: false };
        let mut tables: Vec<Surveyed> = starts.iter().map(new).collect();
        let entries = if level == self.levels() { USER_ENTRIES } else { 512 };
        let size = PAGE_SIZE << (9 * (level - 1));
        for chunk in tables.chunks_mut(MAX_TABLES) {
            let visited = self.visit(id, |walker, pidfd| {
                walker.tables(
                    pidfd,
                    level,
                    chunk,
                    |table| table.start,
                    |table, found| {
                        table.read = !matches!(found, Found::Unknown);
                        match found {
                            Found::Table(raw) => {
                                let present = raw
                                    .iter()
                                    .zip(0u64..)
                                    .take(entries)
                                    .filter(|(e, _)| **e & bit::PRESENT != 0);
                                let child = |(entry, i): (&u64, u64)| {
                                    (table.start + i * size, entry & bit::HUGE == 0)
                                };
                                table.children.extend(present.map(child));
                            }
                            // It became a huge page since the level above was read.
                            Found::Leaf { .. } => table.children.push((table.start, false)),
                            Found::Absent | Found::Unknown => {}
                        }
                    },
                )
            });
            if !visited {
                return None;
            }
        }
        tables.iter().all(|table| table.read).then_some(tables)
    }

    fn look_at(&mut self, id: TargetId, blocks: &mut [BlockLook]) -> bool {
        self.visit(id, |walker, pidfd| {
            walker.tables(
                pidfd,
                1,
                blocks,
                |block| block.addr,
                |block, found| {
                    let all = |entry: u64, bit: u64| if entry & bit != 0 { Pages::ALL } else { Pages::NONE };
                    let (mapped, bits) = match found {
                        Found::Unknown => (Mapped::Unknown, Bits::default()),
                        Found::Absent => (Mapped::Absent, Bits::default()),
                        Found::Leaf { entry, .. } => {
                            let (young, writable) = (all(entry, bit::ACCESSED), all(entry, bit::WRITABLE));
                            // A huge page has a fault of its own.
                            (Mapped::Huge, Bits { present: Pages::ALL, young, writable, around: Pages::NONE })
                        }
                        Found::Table(table) => (Mapped::Table, decode::pages(table)),
                    };
                    let Bits { present, young, writable, around } = bits;
                    *block = BlockLook { addr: block.addr, mapped, present, young, writable, around };
                },
            )
        })
    }

    /// Clears ranges within one block each, sorted.
    pub(super) fn clear_ranges(&mut self, id: TargetId, ranges: &mut [RangeClear]) {
        ranges.iter_mut().for_each(|range| range.cleared = Cleared::NotDone);
        let block = |range: &RangeClear| range.range.start / BLOCK_SIZE;
        let mut rest = ranges;
        while !rest.is_empty() {
            let ends = rest.chunk_by(|a, b| block(a) == block(b)).take(MAX_TABLES).map(<[RangeClear]>::len);
            let (now, later) = rest.split_at_mut(ends.sum());
            if !self.clear_some(id, now) {
                return;
            }
            rest = later;
        }
    }

    /// Clears ranges in no more blocks than one run reads. False if the target cannot be reached.
    fn clear_some(&mut self, id: TargetId, ranges: &mut [RangeClear]) -> bool {
        let Some((plans, mut entries)) = self.plan(id, ranges) else { return false };
        let accessed =
            if self.sightings.is_some() { accessed_of(ranges, &plans, &entries) } else { Vec::new() };
        let mapped: Vec<u64> = entries.iter().filter(|e| is_mapped(**e)).copied().collect();
        let pfns: Vec<u64> = mapped.iter().map(|entry| self.walker.pfn(*entry, PAGE_SIZE)).collect();
        let folios = self.folios(&pfns);
        let mut known = pfns.iter().zip(&folios);
        let pages: Vec<Page> = entries
            .drain(..)
            .map(|entry| match is_mapped(entry).then(|| known.next()).flatten() {
                None => Page::Absent,
                Some((_, None)) => Page::Unknown,
                Some((pfn, Some(folio))) => {
                    Page::Present { pfn: *pfn, folio: *folio, protection: protection(entry) }
                }
            })
            .collect();

        let (mut advised, mut owners) = (Vec::new(), Vec::new());
        for (i, (range, plan)) in ranges.iter_mut().zip(plans).enumerate() {
            let before = advised.len();
            match plan {
                Plan::Unknown => {}
                Plan::Absent => range.cleared = Cleared::Done,
                Plan::Unclearable => range.cleared = Cleared::Refused,
                Plan::Huge(_) if range.range.size() == BLOCK_SIZE => {
                    advised.push((range.range.start, BLOCK_SIZE))
                }
                Plan::Huge(_) => range.cleared = Cleared::WouldSplit,
                Plan::Pages(at) => {
                    let pages = pages.get(at).unwrap_or_default();
                    self.cut(id, range.range.start, pages, &mut advised);
                    let absent = pages.iter().all(|page| *page == Page::Absent);
                    let left_alone = if absent { Cleared::Done } else { Cleared::WouldSplit };
                    range.cleared = if advised.len() == before { left_alone } else { Cleared::NotDone };
                }
            }
            owners.resize(advised.len(), i);
        }
        let reached = self.advise(id, &advised, &owners, ranges);
        if let Some(sightings) = &self.sightings {
            let is_done = |at: usize| ranges.get(at).is_some_and(|range| range.cleared == Cleared::Done);
            let seen = accessed.iter().filter(|(at, _)| is_done(*at)).map(|(_, range)| *range);
            sightings.add(id, monotonic_ns(), seen);
        }
        reached
    }

    fn advise(
        &mut self,
        id: TargetId,
        advised: &[(u64, u64)],
        owners: &[usize],
        ranges: &mut [RangeClear],
    ) -> bool {
        let Some(target) = self.targets.get(&id) else { return false };
        if advised.is_empty() {
            return true;
        }
        self.prepared.calls += 1;
        self.prepared.ranges += advised.len() as u64;
        let mut outcome = Vec::with_capacity(advised.len());
        let mut result = advise_cold(target.process.pidfd(), advised, &mut outcome);
        let is_unreachable = |error: &std::io::Error| error.raw_os_error() == Some(libc::ESRCH);
        if result.as_ref().is_err_and(is_unreachable) && target.process.is_out_of_reach() {
            // As what others map too: it is left alone, and sweeps show it.
            outcome.resize(advised.len(), Cleared::Done);
            result = Ok(());
        }
        for (cleared, owner) in outcome.iter().zip(owners) {
            let Some(range) = ranges.get_mut(*owner) else { continue };
            // Of several pieces one that was cleared counts.
            if range.cleared == Cleared::NotDone || *cleared == Cleared::Done {
                range.cleared = *cleared;
            }
        }
        result.map_err(|error| self.lose(id, error)).is_ok()
    }

    /// What of a target's memory was accessed since its bits were cleared: a look at all of it.
    fn accessed(&mut self, id: TargetId) -> Vec<AddrRange> {
        let (mut blocks, mut found) = (Vec::new(), Vec::<AddrRange>::new());
        self.survey(id, &mut blocks);
        let mut looks: Vec<BlockLook> = blocks.into_iter().map(BlockLook::at).collect();
        self.look(id, &mut looks);
        let young = looks.iter().flat_map(|look| {
            let pages = (0..BLOCK_PAGES).filter(|page| look.young.contains(*page));
            pages.map(|page| look.addr + page as u64 * PAGE_SIZE)
        });
        for addr in young {
            match found.last_mut() {
                Some(last) if last.end == addr => last.end += PAGE_SIZE,
                _ => found.push(AddrRange::new(addr, addr + PAGE_SIZE)),
            }
        }
        found
    }

    /// Reads the entries of all ranges anew. What a plan says of pages are indices into the entries.
    fn plan(&mut self, id: TargetId, ranges: &[RangeClear]) -> Option<(Vec<Plan>, Vec<u64>)> {
        let block = |range: &RangeClear| range.range.start & !(BLOCK_SIZE - 1);
        let mut blocks: Vec<&[RangeClear]> = ranges.chunk_by(|a, b| block(a) == block(b)).collect();
        let (mut plans, mut entries) = (Vec::with_capacity(ranges.len()), Vec::new());
        let addr = |ranges: &&[RangeClear]| ranges.first().map_or(0, block);
        let visited = self.visit(id, |walker, pidfd| {
            walker.tables(pidfd, 1, &mut blocks, addr, |ranges, found| match found {
                Found::Table(table) => plans.extend(ranges.iter().map(|range| {
                    let first = entries.len();
                    entries.extend_from_slice(table.get(pages_of(range.range)).unwrap_or_default());
                    Plan::Pages(first..entries.len())
                })),
                Found::Leaf { size: BLOCK_SIZE, entry } => {
                    plans.extend(ranges.iter().map(|_| Plan::Huge(entry & bit::ACCESSED != 0)));
                }
                Found::Leaf { .. } => plans.extend(ranges.iter().map(|_| Plan::Unclearable)),
                Found::Absent => plans.extend(ranges.iter().map(|_| Plan::Absent)),
                Found::Unknown => plans.extend(ranges.iter().map(|_| Plan::Unknown)),
            })
        });
        visited.then_some((plans, entries))
    }

    /// Cuts the range of `pages` that begins at `start` to what can be advised without splitting a folio.
    fn cut(&self, id: TargetId, start: u64, pages: &[Page], advised: &mut Vec<(u64, u64)>) {
        let before = advised.len();
        let mut add = |first: usize, pieces: Vec<Range<usize>>| {
            for piece in pieces {
                let (addr, len) =
                    (start + (first + piece.start) as u64 * PAGE_SIZE, piece.len() as u64 * PAGE_SIZE);
                // Pieces that meet where two mappings do need one flush only.
                let meets = advised.len() > before;
                match advised.last_mut() {
                    Some(last) if meets && last.0 + last.1 == addr => last.1 += len,
                    _ => advised.push((addr, len)),
                }
            }
        };
        let (whole, large) = pieces(pages, self.keeps_large);
        if !large {
            return add(0, whole);
        }
        // A folio must lie whole in one mapping as well.
        let Some(mut areas) = self.areas(id) else { return };
        let mut at = 0;
        while at < pages.len() {
            let addr = start + at as u64 * PAGE_SIZE;
            let area = areas.at(addr);
            let end = area.map_or(at + 1, |area| ((area.end - start) / PAGE_SIZE) as usize).min(pages.len());
            if area.is_some() {
                add(at, pieces(pages.get(at..end).unwrap_or_default(), self.keeps_large).0);
            }
            at = end;
        }
    }
}

impl BlockOperations for Pte {
    fn survey(&mut self, id: TargetId, blocks: &mut Vec<u64>) -> bool {
        blocks.clear();
        let mut starts = vec![0];
        for level in (2..=self.levels()).rev() {
            let Some(tables) = self.survey_level(id, level, &starts) else { return false };
            let size = PAGE_SIZE << (9 * (level - 1));
            starts.clear();
            for (start, is_table) in tables.into_iter().flat_map(|table| table.children) {
                if level > 2 && is_table {
                    starts.push(start);
                } else {
                    // Of a huge page of 1 GiB all blocks.
                    blocks.extend((start..start + size.min(GIB)).step_by(BLOCK_SIZE as usize));
                }
            }
        }
        if !blocks.is_sorted() {
            blocks.sort_unstable();
        }
        self.proved(id)
    }

    fn look(&mut self, id: TargetId, blocks: &mut [BlockLook]) -> bool {
        let reset = |block: &mut BlockLook| *block = BlockLook::at(block.addr);
        blocks.iter_mut().for_each(reset);
        let mut read = false;
        for chunk in blocks.chunks_mut(MAX_TABLES) {
            if self.look_at(id, chunk) {
                read = true;
            } else if self.execed.last() == Some(&id) {
                read = false;
                break;
            }
        }
        // That the target lives, and in this address space, was proved by each read.
        if !read {
            blocks.iter_mut().for_each(reset);
        }
        read
    }

    fn clear(&mut self, id: TargetId, ranges: &mut [RangeClear]) {
        self.clear_ranges(id, ranges);
        let done = ranges.iter().filter(|range| range.cleared == Cleared::Done);
        self.prepared.cleared += done.map(|range| range.range.size() / PAGE_SIZE).sum::<u64>();
    }

    fn ownership(&mut self, id: TargetId, addrs: &[u64], found: &mut Vec<Ownership>) {
        found.clear();
        found.resize(addrs.len(), Ownership::Unknown);
        let mut entries = Vec::with_capacity(addrs.len());
        if !self.walk(id, addrs, &mut entries) {
            return;
        }
        let pfns: Vec<u64> = entries
            .iter()
            .filter_map(|entry| if let Entry::Leaf { pfn, .. } = entry { Some(*pfn) } else { None })
            .collect();
        let mut folios = self.folios(&pfns).into_iter();
        let Some(target) = self.targets.get(&id) else { return };
        let is_headless = target.process.is_headless();
        let mut mapped = Vec::with_capacity(addrs.len());
        if let Some(pagemap) = self.pagemaps.of(id, &target.process) {
            pagemap.entries(addrs, &mut mapped);
        }
        for ((owned, entry), mapped) in found.iter_mut().zip(&entries).zip(mapped) {
            let Entry::Leaf { size, .. } = entry else { continue };
            let unclearable = folios.next().flatten().is_some_and(|folio| folio.is_unclearable());
            *owned = match mapped {
                // A 1 GiB leaf is hugetlb or device memory.
                _ if unclearable || *size > BLOCK_SIZE => Ownership::Unclearable,
                Some(mapped) if mapped.exclusive() && !is_headless => Ownership::Exclusive,
                Some(mapped) if mapped.present() => Ownership::Shared,
                _ => Ownership::Unknown,
            };
        }
    }

    fn ran(&mut self, ids: &[TargetId], found: &mut Vec<Option<Ran>>) {
        found.clear();
        if !self.walker.knows_running() {
            return;
        }
        found.resize(ids.len(), None);
        let mut listed = core::mem::take(&mut self.listed);
        listed.clear();
        self.listed_is_new = false;
        if ids.len() >= WORTH_A_LIST
            && ids.len() * CHEAPER_LISTED >= self.nr_listed
            && self.list_processes(&mut listed)
        {
            listed.sort_unstable_by_key(|process| process.pid);
            self.listed_is_new = true;
        }
        self.listed = listed;
        let Self { targets, walker, listed, error, .. } = self;
        let listed = |pid: u32| {
            let process = listed.get(listed.binary_search_by_key(&pid, |process| process.pid).ok()?)?;
            process.is_whole.then_some(process.ran)
        };
        // A pidfd names its process also once that has ended, and then nothing can be told. A pid that was listed may by then be
        // another's: the end of the target is told in time.
        let mut known: Vec<(usize, &super::Target)> = Vec::new();
        for (i, (id, found)) in ids.iter().zip(&mut *found).enumerate() {
            let Some(target) = targets.get(id) else { continue };
            *found = listed(raw(target.process.pid()));
            if found.is_none() {
                known.push((i, target));
            }
        }
        for known in known.chunks(MAX_PROCESSES) {
            let pidfds = known.iter().map(|(_, target)| target.process.pidfd());
            let asked = walker.ran(pidfds, |i, ran| {
                if let Some(found) = known.get(i).and_then(|(at, _)| found.get_mut(*at)) {
                    *found = ran;
                }
            });
            if let Err(failed) = asked {
                error.get_or_insert(failed);
                return;
            }
        }
    }

    fn mappings(&mut self, id: TargetId) -> Option<usize> {
        self.targets.get(&id)?.mappings
    }

    fn age(&mut self, id: TargetId) -> Option<Duration> {
        let born_ns = self.targets.get(&id)?.born_ns;
        Some(Duration::from_nanos(boottime_ns().saturating_sub(born_ns)))
    }

    fn sweep(&mut self, id: TargetId, kind: Sweep) -> bool {
        if self.targets.get(&id).is_none_or(|t| t.lost) {
            return false;
        }
        let accessed = if self.sightings.is_some() { self.accessed(id) } else { Vec::new() };
        let Some(target) = self.targets.get(&id) else { return false };
        let path = target.process.memory_path("clear_refs");
        let opened = std::fs::File::options().write(true).open(path);
        // What was opened is the target's own if it lives still; it stays so for as long as it is open.
        if !self.proved(id) {
            return false;
        }
        let command: &[u8] = match kind {
            Sweep::All => b"1",
            Sweep::Anonymous => b"2",
            Sweep::Mapped => b"3",
        };
        match opened.and_then(|mut file| file.write_all(command)) {
            Ok(()) => {
                self.prepared.sweeps += 1;
                if let Some(sightings) = &self.sightings {
                    sightings.add(id, monotonic_ns(), accessed);
                }
                true
            }
            Err(error) => {
                // Without CONFIG_PROC_PAGE_MONITOR there is no such file, and another user's takes CAP_DAC_OVERRIDE: no fault
                // of the target.
                let cannot = [std::io::ErrorKind::NotFound, std::io::ErrorKind::PermissionDenied];
                if !cannot.contains(&error.kind()) {
                    self.lose(id, error);
                }
                false
            }
        }
    }
}

/// What is to be done for a range.
enum Plan {
    Unknown,
    Absent,
    Unclearable,
    /// A huge page, accessed or not.
    Huge(bool),
    Pages(Range<usize>),
}

/// What of these ranges was accessed, each with the index of its range.
fn accessed_of(ranges: &[RangeClear], plans: &[Plan], entries: &[u64]) -> Vec<(usize, AddrRange)> {
    let mut found: Vec<(usize, AddrRange)> = Vec::new();
    for (at, (range, plan)) in ranges.iter().zip(plans).enumerate() {
        let range = range.range;
        match plan {
            Plan::Huge(true) => found.push((at, range)),
            Plan::Pages(indices) => {
                let entries = entries.get(indices.clone()).unwrap_or_default();
                let is_young = |entry: &u64| is_mapped(*entry) && entry & bit::ACCESSED != 0;
                let addrs = (range.start..).step_by(PAGE_SIZE as usize);
                for (addr, _) in addrs.zip(entries).filter(|(_, entry)| is_young(entry)) {
                    match found.last_mut() {
                        Some((of, last)) if *of == at && last.end == addr => last.end += PAGE_SIZE,
                        _ => found.push((at, AddrRange::new(addr, addr + PAGE_SIZE))),
                    }
                }
            }
            Plan::Unknown | Plan::Absent | Plan::Unclearable | Plan::Huge(false) => {}
        }
    }
    found
}

/// The entries of a block's page table for a range within it.
fn pages_of(range: AddrRange) -> Range<usize> {
    let page = |bytes: u64| (bytes / PAGE_SIZE) as usize;
    let start = range.start % BLOCK_SIZE;
    page(start)..page((start + range.size()).min(BLOCK_SIZE))
}

/// Whether MADV_COLD takes the entry for a page: present, or made inaccessible for a while (PROT_NONE, NUMA hinting). In
/// entries of swap that bit is clear.
pub(super) const fn is_mapped(entry: u64) -> bool {
    const PROTNONE: u64 = 1 << 8;
    entry & (bit::PRESENT | PROTNONE) != 0
}

/// What entries of one folio must agree on: all but the frame and what the kernel leaves out of account (writable,
/// accessed, dirty, soft-dirty, and dirty in its second place).
pub(super) const fn protection(entry: u64) -> u64 {
    const FRAME: u64 = ((1 << 52) - 1) & !0xfff;
    entry & !(FRAME | 1 << 1 | 1 << 5 | 1 << 6 | 1 << 11 | 1 << 58)
}
