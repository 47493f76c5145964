//! The `pte` backend: DAMON's operations for the virtual memory of other processes, on a stock kernel.
//!
//! Looking is an eBPF program that reads page tables (`walk.rs`): the target never notices. Clearing Accessed bits is
//! process_madvise(MADV_COLD) (`clear.rs`): dear, since each range ends in a TLB shoot-down where the target runs. Hence
//! the monitor looks at whole page tables at once, and chooses with care what to clear ([`BlockOperations`]).
//!
//! # What it does not touch
//! A huge page is cleared as a whole. A large folio that is mapped page by page is cleared as a whole where the kernel
//! does that without splitting it (6.10), and is otherwise left alone. What cannot be watched (mapped by several
//! processes, locked, hugetlb) is told apart by its frame and its pagemap entry, reported as such, and counted.
//!
//! [`BlockOperations`]: isotherm_damon::BlockOperations

mod area;
mod blocks;
mod bpf;
mod clear;
mod decode;
mod frames;
mod inspect;
mod lives;
mod object;
mod pages;
mod shared;
mod sightings;
mod types;
mod vmas;
mod walk;

pub(crate) use inspect::{Inspected, of_pagemap};
pub use lives::{Lives, Seen};
pub(crate) use sightings::MOST_SIGHTINGS;
pub use sightings::Sightings;
pub(crate) use vmas::{Listed, Stamp, Vma, VmaLister};
pub use walk::WalkError;

use crate::clock::boottime_ns;
use crate::frames::Folio;
use crate::maps::Numbers;
use crate::pagemap::PagemapCache;
use crate::process::Process;
use crate::source::ListedProcess;
use area::Areas;
use frames::Frames;
use isotherm_damon::{AddrRange, Check, Operations, TargetId};
use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use types::Types;
use walk::{Walked, Walker};

/// What became of the pages it was asked to prepare, and what that took; only ever grows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prepared {
    /// Cleared; of a range that was cleared, all its pages.
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
    /// Ranges in those calls: each ends in a TLB flush where any of its bits was set.
    pub ranges: u64,
    /// Sweeps of whole address spaces.
    pub sweeps: u64,
}

struct Target {
    process: Arc<Process>,
    /// Its mappings, one range each.
    ranges: Vec<AddrRange>,
    /// How many it has; `None` while they are being read.
    mappings: Option<usize>,
    /// Identity of its mm at the last walk; 0 before the first.
    mm: u64,
    /// When that began at the earliest, in nanoseconds of CLOCK_BOOTTIME: its process did, or the one before was last walked.
    born_ns: u64,
    /// When it was last walked.
    walked_ns: Option<u64>,
    /// It died, or refused to be observed.
    lost: bool,
}

/// The operations.
pub struct Pte {
    walker: Walker,
    frames: Frames,
    targets: HashMap<TargetId, Target>,
    pagemaps: PagemapCache,
    prepared: Prepared,
    /// Whom to tell what clears found set.
    sightings: Option<Sightings>,
    /// Targets whose ranges were set since they were last asked for.
    changed: BTreeSet<TargetId>,
    /// What counting the processes that targets start takes to know of the kernel's types: reading those takes a millisecond.
    lives: Option<lives::Fields>,
    /// The same of listing their mappings; `None` where that cannot be had.
    vmas: Option<vmas::Fields>,
    /// Whether MADV_COLD leaves a fully covered, page-mapped large folio whole.
    keeps_large: bool,
    execed: Vec<TargetId>,
    refused: Vec<(TargetId, io::Error)>,
    /// The last list that was made to tell who ran, by pid, and whether it was told to nobody else yet.
    listed: Vec<ListedProcess>,
    listed_is_new: bool,
    /// How many processes the last list of all had.
    nr_listed: usize,
    error: Option<io::Error>,
}

/// Runs of a program tried before a look is given up: a table that goes away meanwhile spoils one.
const TRIES: usize = 3;

impl Pte {
    /// Loads the walker. Needs x86-64, Linux 5.17, BTF, and CAP_BPF, CAP_PERFMON, CAP_SYS_NICE and CAP_SYS_PTRACE or root.
    ///
    /// # Errors
    /// See [`WalkError`].
    pub fn load() -> Result<Self, WalkError> {
        let kernel = Types::of_kernel(&[&walk::TYPES[..], &frames::TYPES, &vmas::TYPES].concat())?;
        let mut walker = Walker::load(&kernel)?;
        let frames = Frames::open(&mut walker, &kernel);
        Ok(Self {
            // What cannot be had is missed when it is asked for.
            lives: lives::Fields::of(&kernel).ok(),
            vmas: vmas::Fields::of(&kernel),
            frames,
            walker,
            targets: HashMap::new(),
            pagemaps: PagemapCache::default(),
            prepared: Prepared::default(),
            sightings: None,
            changed: BTreeSet::new(),
            keeps_large: kernel_is_at_least(6, 10),
            execed: Vec::new(),
            refused: Vec::new(),
            listed: Vec::new(),
            listed_is_new: false,
            nr_listed: 0,
            error: None,
        })
    }

    /// Begins to count the processes that targets start. See [`Lives::start`].
    ///
    /// # Errors
    /// See [`WalkError`].
    pub fn start_lives(&self, everything: bool) -> Result<Lives, WalkError> {
        match self.lives {
            Some(fields) => Lives::start_with(fields, everything),
            None => Lives::start(everything),
        }
    }

    /// Whether mappings can be had as numbers, or why not: then they are printed, which is dearer.
    pub(crate) fn check_numbers(&self) -> Result<(), String> {
        let fields = self.vmas.ok_or("this kernel keeps them in no tree that is known here")?;
        VmaLister::load(fields).map(drop).map_err(|error| error.to_string())
    }

    /// Mappings as numbers, loaded once that is worth it.
    pub(crate) fn numbers(&self) -> Option<Numbers> {
        let fields = self.vmas?;
        Some(Numbers::by(Box::new(move || VmaLister::load(fields))))
    }

    /// From now on, pages that were accessed before a clear ([`isotherm_damon::BlockOperations::clear`]) are told there.
    pub fn set_sightings(&mut self, sightings: Sightings) {
        self.sightings = Some(sightings);
    }

    /// Adds a process, as yet without ranges.
    pub fn add(&mut self, id: TargetId, process: Arc<Process>) {
        let born_ns = process.start_ns();
        let (ranges, mappings, walked_ns) = (Vec::new(), None, None);
        self.targets.insert(id, Target { process, ranges, mappings, mm: 0, born_ns, walked_ns, lost: false });
    }

    /// Lists all processes of the machine but kernel threads, in the order of their birth, some 0.2 us each. False where that
    /// cannot be told: the list changed meanwhile, there are more than 32,768, or the caller lives in a pid namespace.
    pub fn list_processes(&mut self, found: &mut Vec<ListedProcess>) -> bool {
        match self.walker.list(found) {
            Ok(listed) => {
                if listed {
                    self.nr_listed = found.len();
                }
                listed
            }
            Err(failed) => {
                self.error.get_or_insert(failed);
                false
            }
        }
    }

    /// The last list that was made to tell which targets ran, unless it was told before.
    pub fn latest_list(&mut self, found: &mut Vec<ListedProcess>) -> bool {
        let is_new = core::mem::take(&mut self.listed_is_new);
        if is_new {
            found.clone_from(&self.listed);
        }
        is_new
    }

    /// Pids of all processes, the kernel's threads too, whose names begin with one of `beginnings`, as cheaply. `None` where
    /// that cannot be told.
    pub fn named(&mut self, beginnings: &[[u8; 8]]) -> Option<Vec<u32>> {
        self.walker.named(beginnings).unwrap_or_else(|failed| {
            self.error.get_or_insert(failed);
            None
        })
    }

    /// Says what a process has mapped: sorted, disjoint, one range a mapping, as a folio must lie whole in one.
    pub fn set_ranges(&mut self, id: TargetId, ranges: &[AddrRange]) {
        if let Some(target) = self.targets.get_mut(&id) {
            target.ranges.clear();
            target.ranges.extend_from_slice(ranges);
            self.changed.insert(id);
        }
    }

    /// Says how many mappings a process has: a sweep goes through each. `None`, as at first: they are being read.
    pub fn set_mappings(&mut self, id: TargetId, count: Option<usize>) {
        if let Some(target) = self.targets.get_mut(&id) {
            target.mappings = count;
        }
    }

    /// A process runs another program: what was known of its address space goes.
    pub fn execed(&mut self, id: TargetId) {
        if let Some(target) = self.targets.get_mut(&id) {
            target.ranges.clear();
            (target.mappings, target.mm) = (None, 0);
            target.born_ns = target.walked_ns.take().unwrap_or(target.born_ns);
            self.changed.insert(id);
            // A page map stays that of the address space it was opened on.
            self.pagemaps.remove(id);
        }
    }

    /// Removes a process.
    pub fn remove(&mut self, id: TargetId) {
        self.targets.remove(&id);
        self.pagemaps.remove(id);
    }

    /// What became of the pages to prepare.
    pub fn prepared(&self) -> &Prepared {
        &self.prepared
    }

    /// Targets seen to run another program since the last call.
    pub fn take_execed(&mut self) -> Vec<TargetId> {
        std::mem::take(&mut self.execed)
    }

    /// Targets that the kernel refused to act on since the last call, and its answer: most often EPERM, of a process that
    /// changed its user. Nothing more is found out about them.
    pub fn take_refused(&mut self) -> Vec<(TargetId, io::Error)> {
        std::mem::take(&mut self.refused)
    }

    /// The first error that makes going on pointless.
    pub fn take_error(&mut self) -> Option<io::Error> {
        self.error.take()
    }

    /// Whether it can be found out here which pages are parts of large folios. If not, no page is cleared.
    pub fn knows_folios(&self) -> bool {
        self.frames.are_known()
    }

    /// Depth of the page tables.
    pub fn levels(&self) -> u32 {
        self.walker.levels()
    }

    /// Runs `read` on a target. False when nothing that it found counts: the target is gone, was replaced meanwhile, or its
    /// tables keep changing.
    fn visit(
        &mut self,
        id: TargetId,
        mut read: impl FnMut(&mut Walker, BorrowedFd<'_>) -> io::Result<Walked>,
    ) -> bool {
        let Some(target) = self.targets.get_mut(&id).filter(|t| !t.lost) else { return false };
        for _ in 0..TRIES {
            match read(&mut self.walker, target.process.pidfd()) {
                Ok(Walked::Done { mm }) if target.mm == mm || target.mm == 0 => {
                    (target.mm, target.walked_ns) = (mm, Some(boottime_ns()));
                    return true;
                }
                Ok(Walked::Done { mm }) => {
                    target.mm = mm;
                    self.execed.push(id);
                    // A page map stays that of the address space it was opened on.
                    self.pagemaps.remove(id);
                    return false;
                }
                Ok(Walked::Changed) => {}
                // Or it is on the way from one program to the next.
                Ok(Walked::Gone) => {
                    target.lost = !target.process.is_alive();
                    return false;
                }
                Err(error) => {
                    self.error.get_or_insert(error);
                    return false;
                }
            }
        }
        false
    }

    /// Whether the target lives: what was read of it before then was its own.
    fn proved(&mut self, id: TargetId) -> bool {
        let Some(target) = self.targets.get_mut(&id) else { return false };
        target.lost |= !target.process.is_alive();
        !target.lost
    }

    /// The folios of frames, one answer each; `None` where it cannot be told.
    fn folios(&mut self, pfns: &[u64]) -> Vec<Option<Folio>> {
        let mut found = Vec::with_capacity(pfns.len());
        self.frames.folios(pfns, &mut found);
        found
    }

    /// The target cannot be acted on. That it is gone is no error.
    fn lose(&mut self, id: TargetId, error: io::Error) {
        match (error.raw_os_error(), self.targets.get_mut(&id)) {
            (Some(libc::ESRCH | libc::ENOENT), _) | (_, None) => {}
            (Some(libc::EPERM | libc::EACCES), Some(target)) => {
                target.lost = true;
                self.refused.push((id, error));
            }
            _ => {
                self.error.get_or_insert(error);
            }
        }
    }

    /// The mappings of a target, looked up one by one.
    fn areas(&self, id: TargetId) -> Option<Areas<'_>> {
        self.targets.get(&id).map(|target| Areas::new(&target.process, &target.ranges))
    }
}

impl Operations for Pte {
    fn ranges(&mut self, target: TargetId) -> Vec<AddrRange> {
        self.targets.get(&target).map(|t| t.ranges.clone()).unwrap_or_default()
    }

    fn take_changed(&mut self) -> Vec<TargetId> {
        std::mem::take(&mut self.changed).into_iter().collect()
    }

    fn prepare(&mut self, checks: &mut [Check]) {
        for group in checks.chunk_by_mut(|a, b| a.target == b.target) {
            self.prepare_pages(group);
        }
    }

    fn check(&mut self, checks: &mut [Check]) {
        for group in checks.chunk_by_mut(|a, b| a.target == b.target) {
            self.check_pages(group);
        }
    }

    fn is_alive(&mut self, target: TargetId) -> bool {
        self.targets.get(&target).is_some_and(|t| !t.lost && t.process.is_alive())
    }
}

pub(crate) fn kernel_is_at_least(major: u32, minor: u32) -> bool {
    let uname = rustix::system::uname();
    let release = uname.release().to_string_lossy();
    let mut parts = release.split(|c: char| !c.is_ascii_digit()).map(|p| p.parse::<u32>().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= (major, minor)
}
