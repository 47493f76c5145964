//! Mappings as the kernel keeps them, rather than as it prints them.
//!
//! To print the list of a Python, 142 lines, takes the kernel 200 to 400 us, most of it for the paths of files, which are the same
//! in every other one. Where a BPF program may read its records (`pte/vmas.rs`), the numbers take a fraction of that, and a name is
//! asked for once: what it was made from (mount, directory entry, inode) is known again from then on, for a minute. That a directory
//! above was renamed since is not noticed until then; that the file itself was, or was deleted, is. Files on mounts that nobody can
//! see are asked for in each list: those below an overlay are printed by other names than their own.
//!
//! Loading the program takes as long as printing five such lists, so it waits for that. What cannot be had like this is printed: on
//! kernels before 6.1, where a list changes all the time, and, before 6.11, names that were in no list that was printed since.

use super::query::named_at;
use super::{MapList, Mapping, Perms};
use crate::process::Process;
use crate::pte::{Listed, Stamp, Vma, VmaLister, WalkError, kernel_is_at_least};
use isotherm_damon::AddrRange;
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// CPU time of printing from which on the program is loaded, which takes about as long.
const WORTH_LOADING: Duration = Duration::from_millis(2);

/// Names that are remembered; when there are more, or after so long, all are forgotten.
const MOST_NAMES: usize = 1 << 14;
const NAMES_LAST: Duration = Duration::from_secs(60);

/// Names that are asked for in one run, 1 us each: more wait for the next one.
const MOST_QUESTIONS: usize = 256;

/// Runs in which names of one list are learnt.
const MOST_RUNS: usize = 64;

/// What the printed list calls shared.
const VM_MAYSHARE: u32 = 0x80;

/// What a mapping is of.
#[derive(Clone, Debug)]
struct Of {
    device: (u32, u32),
    inode: u64,
    name: Arc<str>,
}

/// The way to the numbers.
#[derive(Default)]
enum Way {
    /// There is none.
    #[default]
    None,
    /// Not gone yet; so much was printed instead.
    Later {
        load: Loader,
        printed: Duration,
    },
    Ready(VmaLister),
}

type Loader = Box<dyn FnOnce() -> Result<VmaLister, WalkError> + Send>;

/// A way to read lists of mappings that is cheaper than `/proc`, and names for what is in them.
#[derive(Default)]
pub struct Numbers {
    way: Way,
    known: HashMap<[u64; 4], Of>,
    known_since: Option<Instant>,
    buffer: Vec<u8>,
    nameless: Arc<str>,
    heap: Arc<str>,
    stack: Arc<str>,
    /// What the printed list ends with: the kernel's gate, which is no VMA of any process.
    gate: Option<Mapping>,
    strict_heap: bool,
    /// Names cannot be asked for.
    is_mute: bool,
    /// Lists that were read without printing.
    lists: u64,
}

impl std::fmt::Debug for Numbers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let way = match self.way {
            Way::None => "none",
            Way::Later { .. } => "later",
            Way::Ready(_) => "ready",
        };
        f.debug_struct("Numbers")
            .field("way", &way)
            .field("known", &self.known.len())
            .field("lists", &self.lists)
            .finish_non_exhaustive()
    }
}

/// Why a list is printed instead.
#[derive(Debug)]
pub(super) enum Instead {
    /// It cannot be told otherwise.
    Printed,
    /// Names are unknown, which are learnt from it.
    Learnt,
}

impl Numbers {
    /// Numbers by what `load` makes once it is worth it.
    pub(crate) fn by(load: Loader) -> Self {
        Self { way: Way::Later { load, printed: Duration::ZERO }, ..Self::default() }
    }

    /// So much CPU time was taken by printing.
    pub(crate) fn printed(&mut self, cpu: Duration) {
        if let Way::Later { printed, .. } = &mut self.way {
            *printed += cpu;
        }
    }

    /// Whether lists can be had. Loads what that takes once so much was printed that it is worth it, or if `is_worth` at once.
    pub(crate) fn are_ready(&mut self, is_worth: bool) -> bool {
        match &self.way {
            Way::None => false,
            Way::Ready(_) => true,
            Way::Later { printed, .. } if *printed < WORTH_LOADING && !is_worth => false,
            Way::Later { .. } => {
                // Where it is refused, lists are printed as before.
                if let Way::Later { load, .. } = std::mem::take(&mut self.way)
                    && let Ok(lister) = load()
                {
                    self.get_ready(lister);
                    return true;
                }
                false
            }
        }
    }

    fn get_ready(&mut self, lister: VmaLister) {
        self.way = Way::Ready(lister);
        (self.nameless, self.heap, self.stack) = ("".into(), "[heap]".into(), "[stack]".into());
        self.strict_heap = kernel_is_at_least(6, 6);
        let own = Process::open(rustix::process::getpid()).ok();
        let mut maps = super::Maps::new();
        if own.is_some_and(|own| maps.read(&own).is_ok()) {
            // Past all that a process can map.
            self.gate = maps.mappings().last().filter(|last| last.range.start >> 63 != 0).cloned();
        }
    }

    /// The state of what a process has mapped, where that can be had for less than a list.
    pub(crate) fn stamp(&mut self, process: &Process) -> Option<Stamp> {
        let Way::Ready(lister) = &mut self.way else { return None };
        lister.stamp(process.pidfd()).ok()?
    }

    /// Lists mappings of a process from `from` on, as many as `most` at most, into `take`. Returns what else was found.
    pub(super) fn list(
        &mut self,
        process: &Process,
        file: &mut Option<File>,
        from: u64,
        most: usize,
        mut take: impl FnMut(Mapping),
    ) -> Result<Found, Instead> {
        if self.known.len() > MOST_NAMES || self.known_since.is_none_or(|since| since.elapsed() > NAMES_LAST)
        {
            self.known.clear();
            self.known_since = Some(Instant::now());
        }
        let Self { way: Way::Ready(lister), known, buffer, nameless, heap, stack, .. } = self else {
            return Err(Instead::Printed);
        };
        let Ok(Some(listed)) = lister.list(process.pidfd(), from, most) else {
            return Err(Instead::Printed);
        };
        let Listed { vmas, mut next, mm, count, pages_mapped, stamp, .. } = listed;
        let (mut taken, mut questions, mut end) = (0, 0, from);
        let mut last: Option<([u64; 4], Of)> = None;
        for vma in vmas {
            let range = AddrRange::new(vma.start, vma.end);
            let of = match last.as_ref().filter(|(made_from, _)| *made_from == vma.made_from) {
                _ if vma.is_named() => None,
                Some((_, of)) => Some(of.clone()),
                None if vma.made_from == [0; 4] => {
                    let name = match () {
                        () if is_heap(vma, &listed, self.strict_heap) => &*heap,
                        () if vma.start <= listed.stack && vma.end >= listed.stack => &*stack,
                        () => &*nameless,
                    };
                    Some(Of { device: (0, 0), inode: 0, name: Arc::clone(name) })
                }
                None if vma.can_be_known() => known.get(&vma.made_from).cloned(),
                None => None,
            };
            let of = match of {
                Some(of) => of,
                // From what is printed nothing would be learnt of these.
                None if self.is_mute && !vma.can_be_known() => return Err(Instead::Printed),
                None if self.is_mute => return Err(Instead::Learnt),
                None if questions == MOST_QUESTIONS => {
                    next = Some(vma.start);
                    break;
                }
                None => match ask(process, file, range, buffer) {
                    Ok(Some(of)) => {
                        questions += 1;
                        // Meanwhile another file may have been mapped at the same place.
                        if vma.can_be_known() && of.inode == vma.inode() {
                            known.insert(vma.made_from, of.clone());
                        }
                        of
                    }
                    Err(error) if error.raw_os_error() == Some(libc::ENOTTY) => {
                        self.is_mute = true;
                        return Err(if vma.can_be_known() { Instead::Learnt } else { Instead::Printed });
                    }
                    Ok(None) | Err(_) => return Err(Instead::Printed),
                },
            };
            if !vma.is_named() && vma.made_from != [0; 4] {
                last = Some((vma.made_from, of.clone()));
            }
            let Of { device, inode, name } = of;
            let offset = if vma.has_file() { vma.pgoff << 12 } else { 0 };
            let perms = Perms::of(vma.flags, vma.flags & VM_MAYSHARE != 0);
            take(Mapping { range, perms, offset, device, inode, name });
            (taken, end) = (taken + 1, vma.end);
        }
        if next.is_none() {
            // Whose addresses are all of 32 bits has no gate.
            self.gate.iter().filter(|_| end > 1 << 32).cloned().for_each(&mut take);
            self.lists += 1;
        }
        Ok(Found { next, mm, count: count as usize, listed: taken, pages_mapped, stamp })
    }

    /// Learns names from a list that was just printed.
    pub(super) fn learn(&mut self, process: &Process, list: &MapList) {
        let Self { way: Way::Ready(lister), known, .. } = self else { return };
        let mut from = 0;
        for _ in 0..MOST_RUNS {
            // What has no file has its name from elsewhere, but for the kernel's own.
            let wanted = |m: &&Mapping| m.range.start >= from && (m.inode != 0 || m.name.starts_with("[v"));
            let Some(first) = list.mappings().iter().find(wanted) else { return };
            let Ok(Some(listed)) = lister.list(process.pidfd(), first.range.start, LEARNT_AT_ONCE) else {
                return;
            };
            for vma in listed.vmas.iter().filter(|vma| vma.made_from != [0; 4] && vma.can_be_known()) {
                let range = AddrRange::new(vma.start, vma.end);
                let printed = list.find(vma.start).filter(|m| m.range == range && m.inode == vma.inode());
                if let Some(Mapping { device, inode, name, .. }) = printed {
                    let of = || Of { device: *device, inode: *inode, name: Arc::clone(name) };
                    known.entry(vma.made_from).or_insert_with(of);
                }
            }
            match listed.next {
                Some(next) => from = next.max(first.range.end),
                None => return,
            }
        }
    }
}

/// VMAs of a run in which names are learnt: a library has five.
const LEARNT_AT_ONCE: usize = 64;

/// What a run of [`Numbers::list`] found beside the mappings.
pub(super) struct Found {
    /// Where to go on, if there are more.
    pub next: Option<u64>,
    pub mm: u64,
    /// Mappings of the process, the gate not counted, and how many of them were listed.
    pub count: usize,
    pub listed: usize,
    pub pages_mapped: u64,
    pub stamp: Option<Stamp>,
}

fn is_heap(vma: &Vma, listed: &Listed<'_>, strict: bool) -> bool {
    let [first, end] = listed.heap;
    // What only touches it is not it, since Linux 6.6.
    if strict { vma.start < end && vma.end > first } else { vma.start <= end && vma.end >= first }
}

/// What the mapping at `range` is of; `None` if there is none any more that lies like that, or its name is printed otherwise.
fn ask(
    process: &Process,
    file: &mut Option<File>,
    range: AddrRange,
    buffer: &mut Vec<u8>,
) -> io::Result<Option<Of>> {
    let file = match file {
        Some(file) => file,
        none => none.insert(File::open(process.memory_path("maps"))?),
    };
    let found = named_at(file, range.start, buffer)?;
    let name = String::from_utf8_lossy(found.name);
    let of = || Of { device: found.device, inode: found.inode, name: (*name).into() };
    // A line feed in a path is printed as an escape.
    Ok((found.range == range && !name.contains('\n')).then(of))
}

#[cfg(test)]
pub(crate) mod tests;
