//! Translations: which processor has which tables loaded, and how the others' TLBs are flushed.
//!
//! Without PCIDs a processor holds translations of the tables in its CR3 only, and loading CR3 drops them; no entry under
//! test is global. So a change concerns the processors that have the space loaded, which each says in `LOADED`. With PCIDs a
//! processor keeps translations of spaces that it had loaded before. It drops them when it loads the space again, unless nothing
//! was invalidated of that PCID since (`GENERATIONS`, `KEPT`; Linux' `tlb_gen`). A
//! processor that changed entries flushes its own TLB at once, and writes down what the others must flush; when it has
//! to be sure, it interrupts those that have the space loaded, and waits until each has answered (`sync`).
//!
//! A space that is being loaded meanwhile is no gap: the loader says so before it loads CR3, the flusher looks after the
//! entry is changed, both with a full barrier in between; so either the flusher sees it, or it sees the entry.
//!
//! A processor that waits, for an answer, a lock or the end of something, with interrupts or without, answers others
//! meanwhile: two processors may flush at the same time, and a fault handler may wait for a lock that a flusher holds.

use crate::arch::{SHOOTDOWN_VECTOR, interrupt};
use crate::boot::MAX_CPUS;
use crate::mmu::figures::{Figure, count};
use crate::mmu::hardware::Hardware;
use crate::mmu::lapse::{self, Lapse};
use crate::processor;
use core::arch::asm;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use isotherm_pagetable::{Flush, PAGE_SHIFT, SpaceId, Tlb};
use x86_64::instructions::interrupts::without_interrupts;
use x86_64::registers::control::{Cr4, Cr4Flags};

/// Above so many pages all of the TLB goes.
const MOST_SINGLE: u64 = 32;

/// What a processor wants flushed.
struct Request {
    wanted: AtomicBool,
    root: AtomicU64,
    first: AtomicU64,
    end: AtomicU64,
}

static REQUESTS: [Request; MAX_CPUS] = [const {
    Request {
        wanted: AtomicBool::new(false),
        root: AtomicU64::new(0),
        first: AtomicU64::new(0),
        end: AtomicU64::new(0),
    }
}; MAX_CPUS];

/// For each processor the set of those that wait for its answer.
static OWED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// For each processor the address of the root under test that it has loaded, 0 for none.
static LOADED: [AtomicU64; MAX_CPUS] = [const { AtomicU64::new(0) }; MAX_CPUS];

/// PCIDs that are told apart: those of spaces modulo so many. 0 is the identity map's.
const PCIDS: usize = 64;

/// How often translations of each PCID were invalidated.
static GENERATIONS: [AtomicU64; PCIDS] = [const { AtomicU64::new(0) }; PCIDS];

/// Of which root a processor has translations under a PCID, and as of which generation.
struct Kept {
    root: AtomicU64,
    generation: AtomicU64,
}

static KEPT: [[Kept; PCIDS]; MAX_CPUS] =
    [const { [const { Kept { root: AtomicU64::new(0), generation: AtomicU64::new(0) } }; PCIDS] }; MAX_CPUS];

/// In CR3: translations of the PCID stay.
const KEEP: u64 = 1 << 63;

/// Whether this processor was asked for PCIDs, and has them: both of the questions, and turning them on, leave a virtual machine.
static ASKED: [spin::Once<bool>; MAX_CPUS] = [const { spin::Once::new() }; MAX_CPUS];

/// Whether this processor has PCIDs; they are on then.
fn has_pcids() -> bool {
    *ASKED[processor::current()].call_once(|| {
        let has = core::arch::x86_64::__cpuid(1).ecx & 1 << 17 != 0;
        if has {
            // SAFETY: CR3 has the identity map, whose PCID is 0.
            unsafe { Cr4::update(|flags| flags.insert(Cr4Flags::PCID)) };
        }
        has
    })
}

/// The PCID of a space.
fn pcid(context: u16) -> usize {
    1 + usize::from(context) % (PCIDS - 1)
}

/// What CR3 is loaded with, once `LOADED` says that the space is: its PCID, and whether translations of it stay.
fn tagged(root: u64, pcid: usize) -> u64 {
    if !has_pcids() {
        return root;
    }
    let kept = &KEPT[processor::current()][pcid];
    let generation = GENERATIONS[pcid].load(Ordering::SeqCst);
    let same = kept.root.swap(root, Ordering::Relaxed) == root
        && kept.generation.swap(generation, Ordering::Relaxed) == generation;
    root | pcid as u64 | if same { KEEP } else { 0 }
}

/// CR3: the address of the root, and the PCID or two bits of caching that stay 0.
fn cr3() -> u64 {
    let root;
    // SAFETY: reading CR3 has no effect.
    unsafe { asm!("mov {}, cr3", out(reg) root, options(nomem, nostack, preserves_flags)) };
    root
}

/// The address of the root that this processor has loaded.
pub fn root() -> u64 {
    cr3() & !0xfff
}

/// # Safety
/// `root` is a root table that maps this program as before.
unsafe fn set_cr3(root: u64) {
    // SAFETY: the caller's duty.
    unsafe { asm!("mov cr3, {}", in(reg) root, options(nostack, preserves_flags)) };
}

/// Loads the space of the table at `root` on this processor.
///
/// # Safety
/// `root` is a root table that maps this program as `kernel`, the identity map's root, does, as long as it is loaded.
pub unsafe fn load(kernel: u64, root: u64, context: u16) {
    unload(kernel);
    // Whoever asks for a flush in between would have it done under another PCID.
    without_interrupts(|| {
        LOADED[processor::current()].store(root, Ordering::SeqCst);
        fence(Ordering::SeqCst);
        let tagged = tagged(root, pcid(context));
        // SAFETY: the caller's duty.
        unsafe { set_cr3(tagged) };
    });
}

/// Loads the identity map alone.
pub fn unload(kernel: u64) {
    // SAFETY: the identity map is what this program was started with.
    unsafe { set_cr3(kernel) };
    LOADED[processor::current()].store(0, Ordering::SeqCst);
}

/// Whether this processor has the space loaded.
pub fn is_loaded(root: u64) -> bool {
    LOADED[processor::current()].load(Ordering::Relaxed) == root
}

/// Whether any processor has.
pub fn is_loaded_anywhere(root: u64) -> bool {
    LOADED.iter().any(|loaded| loaded.load(Ordering::SeqCst) == root)
}

fn flush_here(root: u64, first: u64, end: u64) {
    if !is_loaded(root) {
        return;
    }
    if end - first > MOST_SINGLE {
        // SAFETY: what is loaded already.
        unsafe { set_cr3(cr3()) };
        return;
    }
    for page in first..end {
        // SAFETY: forgetting a translation is always allowed. Those of upper levels go with it.
        unsafe { asm!("invlpg [{}]", in(reg) page << PAGE_SHIFT, options(nostack, preserves_flags)) };
    }
}

/// Does what other processors wait for.
pub fn answer() {
    // Interrupted in the middle, it could clear the mark of a request that came after the one it carried out.
    without_interrupts(|| {
        let me = processor::current();
        let mut owed = OWED[me].load(Ordering::Acquire);
        while owed != 0 {
            let from = owed.trailing_zeros() as usize;
            let request = &REQUESTS[from];
            flush_here(
                request.root.load(Ordering::Relaxed),
                request.first.load(Ordering::Relaxed),
                request.end.load(Ordering::Relaxed),
            );
            OWED[me].fetch_and(!(1 << from), Ordering::Release);
            owed &= owed - 1;
        }
    });
}

#[unsafe(no_mangle)]
extern "C" fn answer_shootdowns() {
    answer();
}

/// Waits until `done`, answering others.
pub fn wait_until(mut done: impl FnMut() -> bool) {
    while !done() {
        answer();
        core::hint::spin_loop();
    }
}

fn invalidate(space: SpaceId, first: u64, end: u64) {
    let root = space.root.address();
    // Before others are looked for that have it loaded: who loads it after this drops what it has kept.
    GENERATIONS[pcid(space.context)].fetch_add(1, Ordering::SeqCst);
    if !lapse::is(Lapse::Flush) {
        flush_here(root, first, end);
    }
    let own = &REQUESTS[processor::current()];
    if own.wanted.load(Ordering::Relaxed) && own.root.load(Ordering::Relaxed) != root {
        flush_others();
    }
    let hull = if own.wanted.swap(true, Ordering::Relaxed) {
        (own.first.load(Ordering::Relaxed).min(first), own.end.load(Ordering::Relaxed).max(end))
    } else {
        (first, end)
    };
    own.root.store(root, Ordering::Relaxed);
    own.first.store(hull.0, Ordering::Relaxed);
    own.end.store(hull.1, Ordering::Relaxed);
}

fn flush_others() {
    let me = processor::current();
    if !REQUESTS[me].wanted.swap(false, Ordering::Relaxed) || lapse::is(Lapse::Shootdown) {
        return;
    }
    let root = REQUESTS[me].root.load(Ordering::Relaxed);
    fence(Ordering::SeqCst);
    for (cpu, loaded) in LOADED.iter().enumerate().filter(|&(cpu, _)| cpu != me) {
        if loaded.load(Ordering::SeqCst) == root {
            OWED[cpu].fetch_or(1 << me, Ordering::Release);
            interrupt(cpu, SHOOTDOWN_VECTOR);
            count(Figure::Shootdowns, 1);
        }
    }
    wait_until(|| OWED.iter().all(|owed| owed.load(Ordering::Acquire) & 1 << me == 0));
}

// SAFETY: see the essay above.
unsafe impl Tlb for Hardware {
    type Context = u16;

    fn invalidate_page(&self, space: SpaceId, page: u64) {
        invalidate(space, page, page + 1);
    }

    fn invalidate_range(&self, space: SpaceId, flush: Flush) {
        let first = flush.range.start().page();
        invalidate(space, first, first + flush.range.pages());
    }

    fn invalidate_space(&self, space: SpaceId) {
        invalidate(space, 0, u64::MAX);
    }

    fn sync(&self) {
        flush_others();
    }
}
