//! User programs on `isotherm-mm`: processes at privilege level 3, or EL0, whose page faults it resolves, on all processors at once.
//!
//! | what | where |
//! |---|---|
//! | a program's registers, the way into it and back | [`context`], of each kind of processor |
//! | the programs, and the numbers of calls; their text, in assembly, of each kind of processor | [`programs`]; `text` |
//! | what else only one kind of processor has | [`machine`] |
//! | processes and threads, faults and calls | [`process`] |
//! | what the memory manager stands on: RCU, locks, files | [`platform`] |
//! | the threads that wait, in turn on two processors | [`world`] |
//! | DAMON on all processes | [`watcher`] |
//!
//! Memory for pages and tables is limited to less than the programs need, so that they are reclaimed: what was not used for longest
//! is swapped out, compressed. Meanwhile DAMON watches, pages age, and free memory is
//! reported to the host. At the end each program has found what it wrote, memory that they shared has been counted up
//! by all, nothing is in swap, and every frame is back.
//!
//! A processor runs a program until it traps 16 times or calls for a pause; nothing preempts it. Processes have this program in the first entry of
//! their root table, which users may not access.

#[cfg_attr(target_arch = "x86_64", path = "x86_64/context.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/context.rs")]
mod context;
#[cfg_attr(target_arch = "x86_64", path = "x86_64/machine.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/machine.rs")]
mod machine;
mod platform;
mod process;
mod programs;
#[cfg_attr(target_arch = "x86_64", path = "x86_64/text.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/text.rs")]
mod text;
mod watcher;
mod world;

#[cfg(target_arch = "x86_64")]
pub use context::SYSTEM_CALL;
#[cfg(target_arch = "aarch64")]
pub use context::is_running;
pub use context::trapped;

use crate::boot::MAX_CPUS;
use crate::mmu::hardware::HARDWARE;
use crate::{crew, memory};
use alloc::boxed::Box;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::sync::atomic::Ordering;
use isotherm_frames::FRAME_SIZE;
use isotherm_mm::{Compressed, SwapArea, System, SystemStats};
use isotherm_page::{Block, Frame, Order, OwnedBlock, Unique};
use isotherm_pagetable::{Format, Frames, Memory};
use platform::RCU;
use process::Thread;
use programs::{Program, SHARED_PAGES};
use watcher::Watcher;
use world::World;

/// How many of each program there are.
const EACH: u64 = 2;
/// Beside what pages take: swap compressed, tables, books.
const BESIDE: u64 = 24 << 20;

/// Runs all programs, so many rounds each, with `bytes` of memory for their pages, which need more than twice as much. `serve` is
/// called by this processor now and then, and returns the time in microseconds. Returns what was counted.
///
/// # Errors
/// What went wrong, in words.
pub fn run(seed: u64, rounds: u64, bytes: u64, serve: &mut dyn FnMut() -> u64) -> Result<String, String> {
    let needed = bytes + BESIDE + memory::RESERVE.min * FRAME_SIZE;
    let free = memory::zone().free_frames() * FRAME_SIZE;
    if free < needed {
        return Err(alloc::format!("{free} bytes are free, and {needed} are needed; free some"));
    }
    machine::measured(seed, rounds, bytes, serve)
}

/// All frames must be back at the end.
fn measured<F: Format + 'static>(
    seed: u64,
    rounds: u64,
    bytes: u64,
    serve: &mut dyn FnMut() -> u64,
) -> Result<String, String> {
    let zero = zeros();
    let before = memory::free_bytes();
    for cpu in 0..MAX_CPUS {
        // SAFETY: none is in a section: no processor works here.
        unsafe { RCU.offline(cpu) };
    }
    HARDWARE.set_most(bytes / FRAME_SIZE);
    let done = zero.and_then(|zero| experiment::<F>(zero, (seed, rounds, bytes), serve));
    HARDWARE.set_most(u64::MAX);
    HARDWARE.set_swap(None);
    RCU.online();
    RCU.barrier();
    let settled = HARDWARE.settle().map_err(|why| why.0);
    let done = done?;
    settled?;
    let after = memory::free_bytes();
    if after != before {
        return Err(alloc::format!("of {before} free bytes {after} are back"));
    }
    Ok(alloc::format!("seed={seed} {done}"))
}

fn words(why: impl ToString) -> String {
    why.to_string()
}

fn experiment<F: Format + 'static>(
    zero: Frame,
    (seed, rounds, bytes): (u64, u64, u64),
    serve: &mut dyn FnMut() -> u64,
) -> Result<Figures, String> {
    // All that programs can have in swap at once: they fork.
    let slots = u32::try_from(8 * bytes / FRAME_SIZE).unwrap_or(u32::MAX);
    let store = Box::new(Compressed::new(slots, u64::MAX).map_err(words)?);
    let swap = Arc::new(SwapArea::new(store).map_err(words)?);
    HARDWARE.set_swap(Some(Arc::clone(&swap) as _));
    let frames = memory::end_of_ram() / FRAME_SIZE;
    let system = System::new(&HARDWARE, frames, Some(Arc::clone(&swap))).map_err(words)?;
    let world = World::<F>::new(system, zero);
    let mut watcher = Watcher::new(seed).ok_or("DAMON's attributes are refused")?;

    let kinds = Program::ALL.len() as u64;
    // Together twice as much as there is, and more with forks.
    let pages = (2 * bytes / FRAME_SIZE / (kinds * EACH)).max(8);
    let mut counts = 0;
    for n in 0..kinds * EACH {
        let program = Program::ALL[(n % kinds) as usize];
        // Odd, so that no page's stamp is zeros.
        let arguments = [pages, rounds, (seed ^ n << 32) | 1];
        let thread = Thread::start(&world, program, arguments).map_err(words)?;
        counts += program.shared_counts(rounds);
        world.add(thread);
    }
    let mut between = || watcher.run(&world, serve());
    if crew::beside(&|| world.work(|| {}), || world.work(&mut between)).is_none() {
        world.work(&mut between);
    }
    world.clear();
    let stats = world.system.stats();
    let shared: Vec<u64> = (0..SHARED_PAGES).map_while(|page| shared_word(&world, page)).collect();
    let (snapshots, seen) = watcher.finish();
    if let Some(failure) = world.failure() {
        return Err(failure);
    }
    if shared.len() as u64 != SHARED_PAGES || shared.iter().any(|&word| word != counts) {
        return Err(alloc::format!("shared memory holds {shared:?} instead of {counts}"));
    }
    if swap.used() != 0 {
        return Err(alloc::format!("{} pages are in swap that nobody has", swap.used()));
    }
    let figure = |count: &core::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
    Ok(Figures {
        pages,
        threads: figure(&world.threads),
        faults: figure(&world.faults),
        forks: figure(&world.forks),
        execs: figure(&world.execs),
        stats,
        snapshots,
        seen,
    })
}

/// What was counted.
struct Figures {
    pages: u64,
    threads: u64,
    faults: u64,
    forks: u64,
    execs: u64,
    stats: SystemStats,
    snapshots: u64,
    seen: u64,
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { pages, threads, faults, forks, execs, stats, snapshots, seen } = self;
        let SystemStats { evicted, refaults_anon, refaults_file, .. } = stats;
        write!(
            f,
            "pages={pages} threads={threads} faults={faults} forks={forks} execs={execs} evicted={evicted} "
        )?;
        write!(f, "refaults={refaults_anon} text={refaults_file} snapshots={snapshots} seen={seen}")
    }
}

/// The page of zeros, which stays allocated.
fn zeros() -> Result<Frame, String> {
    static ZEROS: spin::Once<Frame> = spin::Once::new();
    let new = || {
        let frame = HARDWARE.alloc_folio(Order::BASE).ok_or("no frame for the page of zeros")?;
        // SAFETY: the frame was given to this just now.
        let block = unsafe {
            HARDWARE.clear(frame);
            Unique::new(&HARDWARE, OwnedBlock::new(Block::new(frame, Order::BASE)))
        };
        block.into_reserved().map(|_| frame).map_err(|(why, _)| words(why))
    };
    ZEROS.try_call_once(new).copied()
}

/// The first word of a page of shared memory.
fn shared_word<F: Format + 'static>(world: &World<F>, page: u64) -> Option<u64> {
    // SAFETY: the lock of the file keeps the frame what it is; programs have ended.
    let read = |frame: Frame| unsafe { memory::read(frame.address()) };
    world.files.shared.with_page(page, false, read).ok()
}
