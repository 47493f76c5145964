//! The `idle` backend: `/sys/kernel/mm/page_idle/bitmap`, a bit a page frame, by root.
//!
//! The bit of a frame is set by writing it and gone once any process accessed the page through its page table. Reading
//! it makes the kernel look at the Accessed bits and remember what it found, so a look does not change what the next one
//! sees. What one bit stands for is a folio. It needs neither TLB flushes nor system calls on the target, and it counts
//! accesses of all processes that map a page.

mod frames;

use crate::monitor_source::LiveOperations;
use crate::pagemap::Pagemap;
use crate::process::Process;
use crate::source::SourceError;
use frames::{FRAMES_A_WORD, Folio, Frames, KernelFrames, folio_of};
use isotherm_damon::{AddrRange, Check, Operations, Seen, TargetId};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the kernel's files are.
#[derive(Clone, Debug)]
pub struct IdlePaths {
    /// The bitmap of idle frames.
    pub bitmap: PathBuf,
    /// The flags of frames.
    pub kpageflags: PathBuf,
}

impl Default for IdlePaths {
    fn default() -> Self {
        Self { bitmap: "/sys/kernel/mm/page_idle/bitmap".into(), kpageflags: "/proc/kpageflags".into() }
    }
}

/// Operations on live processes through the bitmap of idle frames.
#[derive(Debug)]
pub struct Idle {
    inner: Tracking<KernelFrames>,
}

#[derive(Debug)]
struct Tracking<F> {
    frames: F,
    targets: Vec<Target>,
    page_size: u64,
    cleared: u64,
    looked_at: u64,
    untracked: u64,
    large: u64,
    error: Option<io::Error>,
}

#[derive(Debug)]
struct Target {
    id: TargetId,
    process: Option<Arc<Process>>,
    pagemap: Pagemap,
    /// Its mappings, one range each.
    ranges: Vec<AddrRange>,
    /// They were set since they were last asked for.
    changed: bool,
    execed: bool,
}

/// A check whose folio is known: which one of the batch, and where its bit is.
struct Located {
    check: usize,
    folio: Folio,
}

impl Idle {
    /// Opens the kernel's files.
    ///
    /// # Errors
    /// When the kernel has no such bitmap or the user may not use it, each with the remedy.
    pub fn open(paths: &IdlePaths) -> Result<Self, SourceError> {
        let frames = KernelFrames::open(&paths.kpageflags, &paths.bitmap)
            .map_err(|error| unavailable(&paths.bitmap, &error))?;
        check_frames_shown()?;
        Ok(Self { inner: Tracking::new(frames) })
    }
}

/// Frame numbers are hidden without CAP_SYS_ADMIN: better told now than by seeing nothing.
fn check_frames_shown() -> Result<(), SourceError> {
    let here = 1_u8;
    let own = Pagemap::open(&Process::open(rustix::process::getpid())?)?;
    let entry = own.entry(std::ptr::from_ref(&here) as u64).filter(|entry| entry.present());
    if entry.is_some_and(|entry| entry.pfn() == 0) {
        return Err(SourceError::Unavailable {
            what: "idle".to_owned(),
            reason: "the kernel hides which frames back a process's pages".to_owned(),
            remedy: "run with CAP_SYS_ADMIN in the initial user namespace".to_owned(),
        });
    }
    Ok(())
}

fn unavailable(bitmap: &Path, error: &io::Error) -> SourceError {
    let (reason, remedy) = match error.kind() {
        io::ErrorKind::NotFound => (
            format!("the kernel has no {}", bitmap.display()),
            "boot a kernel with CONFIG_IDLE_PAGE_TRACKING (those of Ubuntu, Fedora, RHEL and Arch have it, Debian's \
             has not) or use another backend",
        ),
        io::ErrorKind::PermissionDenied => (
            format!("{} may be opened by root alone", bitmap.display()),
            "run as root, outside of containers",
        ),
        _ => (format!("{}: {error}", bitmap.display()), "use another backend"),
    };
    SourceError::Unavailable { what: "idle".to_owned(), reason, remedy: remedy.to_owned() }
}

impl<F: Frames> Tracking<F> {
    fn new(frames: F) -> Self {
        Self {
            frames,
            targets: Vec::new(),
            page_size: rustix::param::page_size() as u64,
            cleared: 0,
            looked_at: 0,
            untracked: 0,
            large: 0,
            error: None,
        }
    }

    /// Finds the folio of each check, and marks those that have none. Sorted by where their bits are.
    fn locate(&mut self, checks: &mut [Check]) -> Vec<Located> {
        let mut located = Vec::with_capacity(checks.len());
        for (index, check) in checks.iter_mut().enumerate() {
            check.unit = self.page_size;
            let Some(target) = self.targets.iter_mut().find(|t| t.id == check.target) else {
                check.seen = Seen::Absent;
                continue;
            };
            let Some(entry) = target.entry(check.addr).filter(|entry| entry.present()) else {
                check.seen = Seen::Absent;
                continue;
            };
            if entry.pfn() == 0 {
                // The kernel hides frame numbers from those without CAP_SYS_ADMIN.
                self.error.get_or_insert_with(|| io::ErrorKind::PermissionDenied.into());
                check.seen = Seen::Blind;
                continue;
            }
            self.looked_at += 1;
            match folio_of(&mut self.frames, entry.pfn()) {
                Some(folio) => {
                    check.unit = unit(check.addr / self.page_size, entry.pfn(), folio) * self.page_size;
                    self.large += u64::from(folio.order > 0);
                    located.push(Located { check: index, folio });
                }
                None => {
                    self.untracked += 1;
                    check.seen = Seen::Blind;
                }
            }
        }
        located.sort_unstable_by_key(|l| l.folio.head);
        located
    }

    fn prepare(&mut self, checks: &mut [Check]) {
        let located = self.locate(checks);
        for run in located.chunk_by(|a, b| word(b) - word(a) <= 1) {
            let Some(first) = run.first().map(word) else { continue };
            let mut words = vec![0; (run.last().map_or(first, word) - first + 1) as usize];
            let mut bits = 0;
            for l in run {
                if let Some(word) = words.get_mut((word(l) - first) as usize) {
                    bits += u64::from(*word & bit(l) == 0);
                    *word |= bit(l);
                }
            }
            let seen = match self.frames.mark_idle(first, &words) {
                Ok(()) => {
                    self.cleared += bits;
                    Seen::Idle
                }
                // Memory may be taken offline meanwhile: these frames cannot be seen, the others can.
                Err(_) => Seen::Blind,
            };
            for located in run {
                if let Some(check) = checks.get_mut(located.check) {
                    check.seen = seen;
                }
            }
        }
    }

    fn check(&mut self, checks: &mut [Check]) {
        let located = self.locate(checks);
        for run in located.chunk_by(|a, b| word(b) - word(a) <= 1) {
            let Some(first) = run.first().map(word) else { continue };
            let mut words = vec![0; (run.last().map_or(first, word) - first + 1) as usize];
            let read = self.frames.read_idle(first, &mut words);
            for l in run {
                let Some(check) = checks.get_mut(l.check) else { continue };
                let idle = words.get((word(l) - first) as usize).is_some_and(|word| word & bit(l) != 0);
                check.seen = match (&read, idle) {
                    (Err(_), _) => Seen::Blind,
                    (Ok(()), true) => Seen::Idle,
                    (Ok(()), false) => Seen::Accessed,
                };
            }
        }
    }

    fn ranges(&mut self, id: TargetId) -> Vec<AddrRange> {
        let target = self.targets.iter().find(|t| t.id == id);
        target.map(|t| t.ranges.clone()).unwrap_or_default()
    }
}

fn word(located: &Located) -> u64 {
    located.folio.head / FRAMES_A_WORD
}

fn bit(located: &Located) -> u64 {
    1 << (located.folio.head % FRAMES_A_WORD)
}

/// Pages in the aligned block around page `vpn` that share the folio's flag. A folio is mapped at addresses aligned as
/// its frames are; where it is not, as after mremap, blocks share it only as far as both alignments agree.
fn unit(vpn: u64, pfn: u64, folio: Folio) -> u64 {
    1 << (vpn ^ pfn).trailing_zeros().min(folio.order)
}

impl Target {
    fn entry(&mut self, addr: u64) -> Option<crate::pagemap::Entry> {
        if let Some(entry) = self.pagemap.entry(addr) {
            return Some(entry);
        }
        // The page map of an address space that is gone: the process ended, or runs another program.
        self.pagemap = Pagemap::open(self.process.as_ref()?).ok()?;
        let entry = self.pagemap.entry(addr);
        self.execed |= entry.is_some();
        entry
    }
}

impl Operations for Idle {
    fn ranges(&mut self, target: TargetId) -> Vec<AddrRange> {
        self.inner.ranges(target)
    }

    fn take_changed(&mut self) -> Vec<TargetId> {
        let targets = self.inner.targets.iter_mut();
        targets.filter_map(|t| std::mem::take(&mut t.changed).then_some(t.id)).collect()
    }

    fn prepare(&mut self, checks: &mut [Check]) {
        self.inner.prepare(checks);
    }

    fn check(&mut self, checks: &mut [Check]) {
        self.inner.check(checks);
    }

    fn is_alive(&mut self, id: TargetId) -> bool {
        let target = self.inner.targets.iter().find(|t| t.id == id);
        target.and_then(|t| t.process.as_ref()).is_some_and(|process| process.is_alive())
    }
}

impl LiveOperations for Idle {
    fn name(&self) -> &'static str {
        "idle"
    }

    fn add(&mut self, id: TargetId, process: Arc<Process>) -> Result<(), SourceError> {
        let pagemap = Pagemap::open(&process)?;
        let target =
            Target { id, process: Some(process), pagemap, ranges: Vec::new(), changed: false, execed: false };
        self.inner.targets.push(target);
        Ok(())
    }

    fn set_ranges(&mut self, id: TargetId, ranges: &[AddrRange]) {
        if let Some(target) = self.inner.targets.iter_mut().find(|t| t.id == id) {
            (target.ranges, target.changed) = (ranges.to_vec(), true);
        }
    }

    fn execed(&mut self, id: TargetId) {
        if let Some(target) = self.inner.targets.iter_mut().find(|t| t.id == id) {
            target.ranges.clear();
            if let Some(pagemap) = target.process.as_ref().and_then(|p| Pagemap::open(p).ok()) {
                target.pagemap = pagemap;
            }
        }
    }

    fn remove(&mut self, id: TargetId) {
        self.inner.targets.retain(|target| target.id != id);
    }

    fn take_execed(&mut self) -> Vec<TargetId> {
        let execed = self.inner.targets.iter_mut().filter(|t| t.execed);
        execed.filter_map(|target| std::mem::take(&mut target.execed).then_some(target.id)).collect()
    }

    fn take_lost(&mut self) -> Vec<(TargetId, SourceError)> {
        // The bitmap is the machine's: a process cannot be refused, only all be.
        Vec::new()
    }

    fn take_error(&mut self) -> Option<SourceError> {
        let source = self.inner.error.take()?;
        Some(SourceError::Io {
            what: "to track idle pages (/sys/kernel/mm/page_idle/bitmap)".to_owned(),
            source,
        })
    }

    fn cleared(&self) -> u64 {
        self.inner.cleared
    }

    fn blind_spots(&mut self) -> Vec<String> {
        let tracking = &self.inner;
        let percent = |n: u64| n as f64 / tracking.looked_at.max(1) as f64 * 100.0;
        let mut spots = vec![
            "accesses of every process that maps a page count, not the target's alone".to_owned(),
            "pages whose translation stays in a CPU's TLB seem idle: marking flushes no TLB".to_owned(),
        ];
        if tracking.untracked > 0 {
            spots.push(format!(
                "hugetlb pages and pages on no LRU list are not seen: {:.1} % of the pages looked at",
                percent(tracking.untracked)
            ));
        }
        if tracking.large > 0 {
            spots.push(format!(
                "large folios count as one page: {:.1} % of the pages looked at lie in one",
                percent(tracking.large)
            ));
        }
        spots
    }
}

#[cfg(test)]
mod tests;
