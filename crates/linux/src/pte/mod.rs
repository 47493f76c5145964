//! The `pte` backend: DAMON's operations for the virtual memory of other processes, on a stock kernel.
//!
//! Looking is an eBPF program that reads page-table entries ([`walk`]): the target never notices. Preparing is
//! process_madvise(MADV_COLD) on single pages ([`clear`]): dear, since each range ends in a TLB shoot-down where the
//! target runs. Hence the monitor runs these operations with [`isotherm_damon::Watch`], and `prepare` here looks
//! first: what is clear already, or not there, is never cleared.
//!
//! # What it does not touch
//! A huge page is cleared as a whole. A large folio that is mapped page by page is cleared as a whole where the kernel
//! does that without splitting it (6.10), and is otherwise left alone. What cannot be watched (mapped by several
//! processes, locked, hugetlb) is told apart by its frame and its pagemap entry, reported as [`Seen::Blind`], and counted.

mod bpf;
pub mod clear;
pub mod walk;

use crate::pagemap::Pagemap;
use crate::process::Process;
use clear::{Folios, Frame, advise_cold};
use isotherm_damon::{AddrRange, Check, Operations, PAGE_SIZE, Seen, TargetId};
use std::io;
use std::sync::Arc;
use walk::{Entry, MAX_ADDRS, WalkError, Walked, Walker};

/// What became of the pages it was asked to prepare; only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Cleared.
    pub cleared: u64,
    /// Clear already.
    pub idle: u64,
    /// Nothing mapped.
    pub absent: u64,
    /// Mapped by several processes.
    pub shared: u64,
    /// Locked, hugetlb, or otherwise not subject to MADV_COLD.
    pub locked: u64,
    /// Part of a large folio that cannot be cleared without splitting it.
    pub split: u64,
    /// Calls of process_madvise.
    pub calls: u64,
}

struct Target {
    id: TargetId,
    process: Arc<Process>,
    /// Its mappings, one range each.
    ranges: Vec<AddrRange>,
    /// Without it, no page is known to be shared.
    pagemap: Option<Pagemap>,
    /// Identity of its mm at the last walk; 0 before the first.
    mm: u64,
    gone: bool,
}

/// The operations.
pub struct Pte {
    walker: Walker,
    folios: Folios,
    targets: Vec<Target>,
    prepared: Prepared,
    /// Whether MADV_COLD leaves a fully covered, page-mapped large folio whole.
    keeps_large: bool,
    execed: Vec<TargetId>,
    refused: Vec<(TargetId, io::Error)>,
    error: Option<io::Error>,
}

/// Pages between two to be cleared that are cleared with them: another range would cost a TLB flush of its own.
const JOIN: u64 = 4;

impl Pte {
    /// Loads the walker. Needs x86-64, Linux 5.17, BTF, and CAP_BPF, CAP_PERFMON, CAP_SYS_NICE and CAP_SYS_PTRACE or root.
    ///
    /// # Errors
    /// See [`WalkError`].
    pub fn load() -> Result<Self, WalkError> {
        Ok(Self {
            walker: Walker::load()?,
            folios: Folios::open(),
            targets: Vec::new(),
            prepared: Prepared::default(),
            keeps_large: kernel_is_at_least(6, 10),
            execed: Vec::new(),
            refused: Vec::new(),
            error: None,
        })
    }

    /// Adds a process, as yet without ranges.
    pub fn add(&mut self, id: TargetId, process: Arc<Process>) {
        let pagemap = Pagemap::open(&process).ok();
        self.targets.push(Target { id, process, ranges: Vec::new(), pagemap, mm: 0, gone: false });
    }

    /// Says what a process has mapped: sorted, disjoint, one range a mapping, as a folio must lie whole in one.
    pub fn set_ranges(&mut self, id: TargetId, ranges: &[AddrRange]) {
        if let Some(target) = self.targets.iter_mut().find(|t| t.id == id) {
            target.ranges = ranges.to_vec();
        }
    }

    /// A process runs another program: what was known of its address space goes.
    pub fn execed(&mut self, id: TargetId) {
        if let Some(target) = self.targets.iter_mut().find(|t| t.id == id) {
            target.ranges.clear();
            target.mm = 0;
            // A page map stays that of the address space it was opened on.
            target.pagemap = Pagemap::open(&target.process).ok();
        }
    }

    /// Removes a process.
    pub fn remove(&mut self, id: TargetId) {
        self.targets.retain(|t| t.id != id);
    }

    /// What became of the pages to prepare.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Targets seen to run another program since the last call.
    pub fn take_execed(&mut self) -> Vec<TargetId> {
        std::mem::take(&mut self.execed)
    }

    /// Targets whose bits may not be cleared any more, since the last call, each with the system's answer.
    pub fn take_refused(&mut self) -> Vec<(TargetId, io::Error)> {
        std::mem::take(&mut self.refused)
    }

    /// The first error that makes going on pointless.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Depth of the page tables.
    pub fn levels(&self) -> u32 {
        self.walker.levels()
    }

    /// Walks all `addrs` of one target. False when it is gone or was replaced meanwhile: nothing found counts then.
    fn walk(&mut self, index: usize, addrs: &[u64], entries: &mut Vec<Entry>) -> bool {
        entries.clear();
        let Some(target) = self.targets.get_mut(index) else { return false };
        for chunk in addrs.chunks(MAX_ADDRS) {
            let walked = self
                .walker
                .walk(target.process.pidfd(), chunk.iter().copied(), |_, entry| entries.push(entry));
            match walked {
                Ok(Walked::Done { mm }) => {
                    if target.mm != mm && target.mm != 0 {
                        self.execed.push(target.id);
                        // A page map stays that of the address space it was opened on.
                        target.pagemap = Pagemap::open(&target.process).ok();
                    }
                    target.mm = mm;
                }
                Ok(Walked::Changed) => return false,
                Ok(Walked::Gone) => {
                    target.gone = true;
                    return false;
                }
                Err(error) => {
                    self.error.get_or_insert(error);
                    return false;
                }
            }
        }
        // The pidfd proves that the process lived until now, so its tables were its own.
        let alive = target.process.is_alive();
        target.gone |= !alive;
        alive
    }

    /// Which range to clear for a page found accessed; `Err` with the reason why it cannot be.
    fn range_to_clear(&mut self, index: usize, addr: u64, size: u64, pfn: u64) -> Result<(u64, u64), Blind> {
        let page = addr & !(PAGE_SIZE - 1);
        let target = self.targets.get(index).ok_or(Blind::Locked)?;
        if target.pagemap.as_ref().is_some_and(|pagemap| pagemap.is_shared(page)) {
            return Err(Blind::Shared);
        }
        let large = match self.folios.frame(pfn) {
            Some(Frame::Unclearable) => return Err(Blind::Locked),
            Some(Frame::Large { .. }) => true,
            Some(Frame::Small) | None => false,
        };
        if size > PAGE_SIZE {
            // A 1 GiB leaf is hugetlb or device memory.
            let start = addr & !(size - 1);
            return if size == 2 << 20 { Ok((start, size)) } else { Err(Blind::Locked) };
        }
        if !large {
            return Ok((page, PAGE_SIZE));
        }
        if !self.keeps_large {
            return Err(Blind::Split);
        }
        let (head, frames) = self.folios.folio_of(pfn).ok_or(Blind::Split)?;
        let start = page.checked_sub((pfn - head) * PAGE_SIZE).ok_or(Blind::Split)?;
        let range = AddrRange::new(start, start + frames * PAGE_SIZE);
        // It must lie whole in one area, every page of it mapped here in order.
        let after = target.ranges.partition_point(|r| r.end <= start);
        let whole = target.ranges.get(after).is_some_and(|r| r.intersection(range) == range);
        if !whole {
            return Err(Blind::Split);
        }
        let addrs: Vec<u64> = (0..frames).map(|i| start + i * PAGE_SIZE).collect();
        let mut entries = Vec::new();
        let walked = self.walk(index, &addrs, &mut entries);
        let in_order = entries
            .iter()
            .zip(head..)
            .all(|(entry, want)| matches!(entry, Entry::Leaf { size: PAGE_SIZE, pfn, .. } if *pfn == want));
        if walked && in_order { Ok((start, range.size())) } else { Err(Blind::Split) }
    }

    /// Joins neighbouring pages to one range where what lies between are plain pages.
    fn join(&mut self, index: usize, ranges: &mut Vec<(u64, u64)>) {
        ranges.sort_unstable();
        ranges.dedup();
        let mut joined: Vec<(u64, u64)> = Vec::with_capacity(ranges.len());
        for &(start, len) in ranges.iter() {
            if let Some((last_start, last_len)) = joined.last().copied()
                && start <= last_start + last_len + JOIN * PAGE_SIZE
                && self.all_plain(index, last_start + last_len, start)
                && let Some(last) = joined.last_mut()
            {
                last.1 = (start + len).max(last_start + last_len) - last_start;
                continue;
            }
            joined.push((start, len));
        }
        *ranges = joined;
    }

    fn all_plain(&mut self, index: usize, from: u64, to: u64) -> bool {
        let addrs: Vec<u64> = (from..to.max(from)).step_by(PAGE_SIZE as usize).collect();
        let mut entries = Vec::new();
        addrs.is_empty()
            || self.walk(index, &addrs, &mut entries)
                && entries.iter().all(|entry| match entry {
                    Entry::Leaf { size: PAGE_SIZE, pfn, .. } => self.folios.frame(*pfn) == Some(Frame::Small),
                    _ => false,
                })
    }

    fn prepare_target(&mut self, index: usize, checks: &mut [Check]) {
        let addrs: Vec<u64> = checks.iter().map(|c| c.addr).collect();
        let mut entries = Vec::with_capacity(addrs.len());
        if !self.walk(index, &addrs, &mut entries) {
            return;
        }
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for (check, entry) in checks.iter_mut().zip(&entries) {
            apply(check, *entry);
            match (check.seen, entry) {
                (Seen::Accessed, Entry::Leaf { size, pfn, .. }) => {
                    match self.range_to_clear(index, check.addr, *size, *pfn) {
                        Ok(range) => ranges.push(range),
                        Err(why) => {
                            check.seen = Seen::Blind;
                            match why {
                                Blind::Shared => self.prepared.shared += 1,
                                Blind::Locked => self.prepared.locked += 1,
                                Blind::Split => self.prepared.split += 1,
                            }
                        }
                    }
                }
                (Seen::Idle, _) => self.prepared.idle += 1,
                (Seen::Absent, _) => self.prepared.absent += 1,
                _ => {}
            }
        }
        self.join(index, &mut ranges);
        let Some(target) = self.targets.get_mut(index) else { return };
        let mut taken = Vec::with_capacity(ranges.len());
        if !ranges.is_empty() {
            self.prepared.calls += 1;
            match advise_cold(target.process.pidfd(), &ranges, &mut taken) {
                Ok(()) => {}
                Err(error) if error.raw_os_error() == Some(libc::ESRCH) => return,
                // One target that became another user's says nothing of the others.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    target.gone = true;
                    self.refused.push((target.id, error));
                    return;
                }
                Err(error) => {
                    self.error.get_or_insert(error);
                    return;
                }
            }
        }
        for check in checks.iter_mut().filter(|c| c.seen == Seen::Accessed) {
            let range = ranges.iter().position(|(start, len)| (*start..start + len).contains(&check.addr));
            if range.and_then(|i| taken.get(i)).copied().unwrap_or(false) {
                self.prepared.cleared += 1;
                check.seen = Seen::Idle;
            } else {
                self.prepared.locked += 1;
                check.seen = Seen::Blind;
            }
        }
    }
}

/// Why a page cannot be watched.
enum Blind {
    Shared,
    Locked,
    Split,
}

fn apply(check: &mut Check, entry: Entry) {
    (check.seen, check.unit) = match entry {
        Entry::Unknown => (Seen::Unchecked, 0),
        Entry::Absent { size } => (Seen::Absent, size),
        Entry::Leaf { size, young: true, .. } => (Seen::Accessed, size),
        Entry::Leaf { size, young: false, .. } => (Seen::Idle, size),
    };
}

impl Operations for Pte {
    fn ranges(&mut self, target: TargetId) -> Vec<AddrRange> {
        let target = self.targets.iter().find(|t| t.id == target);
        target.map(|t| t.ranges.clone()).unwrap_or_default()
    }

    fn prepare(&mut self, checks: &mut [Check]) {
        for group in checks.chunk_by_mut(|a, b| a.target == b.target) {
            let id = group.first().map(|c| c.target);
            if let Some(index) = self.targets.iter().position(|t| Some(t.id) == id && !t.gone) {
                self.prepare_target(index, group);
            }
        }
    }

    fn check(&mut self, checks: &mut [Check]) {
        let mut entries = Vec::new();
        for group in checks.chunk_by_mut(|a, b| a.target == b.target) {
            let id = group.first().map(|c| c.target);
            let Some(index) = self.targets.iter().position(|t| Some(t.id) == id && !t.gone) else { continue };
            let addrs: Vec<u64> = group.iter().map(|c| c.addr).collect();
            if self.walk(index, &addrs, &mut entries) {
                for (check, entry) in group.iter_mut().zip(&entries) {
                    apply(check, *entry);
                }
            }
        }
    }

    fn is_alive(&mut self, target: TargetId) -> bool {
        self.targets.iter().any(|t| t.id == target && !t.gone && t.process.is_alive())
    }
}

fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
}
