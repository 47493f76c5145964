//! How fast this machine pages out: measured with a little memory of this process's own.

use crate::clock::monotonic_ns;
use crate::pagemap::{Entry, Pagemap};
use crate::process::Process;
use isotherm_damon::{AddrRange, PAGE_SIZE};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use rustix::process::getpid;
use std::ffi::c_void;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory that is paged out for it. At 20 us a page, as with zram on a virtual machine, that takes 160 ms.
const BYTES: usize = 32 << 20;
/// ... in calls of so much, as schemes do ...
const CALL: usize = 256 << 10;
/// ... and for no longer than this.
const MOST_NS: u64 = 500_000_000;
/// Swap must have room for so many times as much, or the measurement would be what fills it.
const ROOM: u64 = 4;

/// Own memory, unmapped in the end.
struct Memory(*mut c_void);

impl Memory {
    /// Small pages, half of each of which can be compressed.
    fn new() -> Option<Self> {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory in use.
        let at = unsafe { mmap_anonymous(std::ptr::null_mut(), BYTES, prot, flags) }.ok()?;
        let memory = Self(at);
        // SAFETY: all of the mapping just made; the advice changes no contents.
        unsafe { madvise(at, BYTES, Advice::LinuxNoHugepage) }.ok()?;
        let words = PAGE_SIZE as usize / 8;
        let mut random = 0x9e37_79b9_7f4a_7c15u64;
        for index in (0..BYTES / 8).filter(|index| index % words < words / 2) {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            // SAFETY: inside the mapping just made, aligned, and nobody else knows of it.
            unsafe { at.cast::<u64>().add(index).write_volatile(random) };
        }
        Some(memory)
    }

    fn range(&self) -> AddrRange {
        AddrRange::new(self.0 as u64, self.0 as u64 + BYTES as u64)
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping that this value owns; nothing refers to it any more.
        let _ = unsafe { munmap(self.0, BYTES) };
    }
}

/// Bytes a second of anonymous memory that MADV_PAGEOUT gets to swap, by the clock, while another thread of the process runs, as
/// far as there is a CPU for it: the flushes of its TLB are most of what it takes on some machines. Pages out 32 MiB of this
/// process, some 0.2 s. `None` when swap has no room for four times as much, or what was advised stayed.
pub fn pageout_throughput() -> Option<u64> {
    let system = rustix::system::sysinfo();
    if system.freeswap as u64 * u64::from(system.mem_unit) < ROOM * BYTES as u64 {
        return None;
    }
    let memory = Memory::new()?;
    let several = std::thread::available_parallelism().is_ok_and(|cpus| cpus > NonZeroUsize::MIN);
    let done = AtomicBool::new(false);
    let (advised, took_ns) = std::thread::scope(|scope| {
        if several {
            scope.spawn(|| {
                while !done.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let (began, mut advised) = (monotonic_ns(), 0);
        let mut took = 0;
        while advised < BYTES && took < MOST_NS {
            // SAFETY: within the mapping, of which `advised` bytes are done with; the advice changes no contents.
            let call = unsafe { madvise(memory.0.byte_add(advised), CALL, Advice::LinuxPageOut) };
            if call.is_err() {
                break;
            }
            advised += CALL;
            took = monotonic_ns().saturating_sub(began);
        }
        done.store(true, Ordering::Relaxed);
        (advised as u64, took)
    });
    let mut pages = Vec::new();
    Pagemap::open(&Process::open(getpid()).ok()?).ok()?.read(memory.range(), &mut pages);
    let gone = pages.iter().filter(|page| Entry::swapped(**page)).count() as u64 * PAGE_SIZE;
    (gone >= advised / 2 && gone > 0 && took_ns > 0)
        .then(|| u64::try_from(u128::from(gone) * 1_000_000_000 / u128::from(took_ns)).unwrap_or(u64::MAX))
}
