//! Two processors: one has a process loaded and uses its pages without a pause, the other changes the page tables
//! meanwhile, and tells the first by interrupt what to forget.

use super::accessed::SHAPES;
use super::contradiction::{Checked, Contradiction, ensure};
use super::hardware::HARDWARE;
use super::process::{Process, Rules};
use super::{OLD, PAGE, World, changed, harvested, tlb};
use crate::arch::{interrupts, wake};
use crate::crew;
use alloc::vec::Vec;
use core::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use isotherm_pagetable::{Format, Level, Mapping, PageRange, Slot, VirtAddr};
use spin::Mutex;

/// Forks, protections and zaps of each shape.
const TIMES: u64 = 8;
/// Pages of folios that are smaller.
const PAGES: u64 = 64;

/// Something that processor 1 does again and again until it is told to stop, or finds a contradiction.
pub struct Loop<'a> {
    step: &'a (dyn Fn(u64) -> Checked + Sync),
    stop: AtomicBool,
    /// How often it was done.
    done: AtomicU64,
    /// The first turn that the other processor sleeps for.
    awaited: AtomicU64,
    failure: Mutex<Option<Contradiction>>,
}

impl<'a> Loop<'a> {
    /// `step` is told how often it was done, counting from 1.
    pub fn new(step: &'a (dyn Fn(u64) -> Checked + Sync)) -> Self {
        Self {
            step,
            stop: AtomicBool::new(false),
            done: AtomicU64::new(0),
            awaited: AtomicU64::new(u64::MAX),
            failure: Mutex::new(None),
        }
    }

    fn run(&self) {
        for turn in 1.. {
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            if let Err(found) = (self.step)(turn) {
                *self.failure.lock() = Some(found);
                wake(0);
                return;
            }
            self.done.store(turn, Ordering::SeqCst);
            if turn == self.awaited.load(Ordering::SeqCst) {
                wake(0);
            }
        }
    }

    /// How often it was done.
    pub fn done(&self) -> u64 {
        self.done.load(Ordering::SeqCst)
    }

    /// Whether it has found a contradiction.
    pub fn has_ended(&self) -> bool {
        self.failure.lock().is_some()
    }

    /// Waits until the loop has begun anew and come to its end once more. An error if it ended.
    pub fn turn(&self) -> Checked {
        let awaited = self.done() + 2;
        self.awaited.store(awaited, Ordering::SeqCst);
        // Asleep, since the host may have to run both processors on one of its own.
        interrupts::disable();
        while self.done() < awaited && !self.has_ended() {
            interrupts::enable_and_hlt();
            interrupts::disable();
        }
        interrupts::enable();
        match self.failure.lock().take() {
            Some(found) => Err(found),
            None => Ok(()),
        }
    }

    /// Runs it on processor 1, on which `process` is unloaded at last, while this one does `here`.
    pub fn beside<F: Format>(&self, process: &Process<F>, here: impl FnOnce() -> Checked) -> Checked {
        let aside = || {
            self.run();
            process.stop();
        };
        let result = crew::beside(&aside, || {
            let result = here();
            self.stop.store(true, Ordering::Release);
            result
        });
        match (result, self.failure.lock().take()) {
            (Some(Err(found)), _) | (_, Some(found)) => Err(found),
            (Some(Ok(())), None) => Ok(()),
            (None, None) => Err(Contradiction("there is no second processor".into())),
        }
    }
}

/// A process whose pages are of one shape, and what they permit.
pub struct Shaped<F: Format> {
    pub process: Process<F>,
    pub rules: Rules,
}

impl<F: Format> Shaped<F> {
    pub fn new(order: u8, largest: Level, whole_folio: bool) -> Checked<Self> {
        let process = Process::<F>::new(4)?;
        let first = Process::<F>::FIRST;
        let pages = PAGES.max(1 << order);
        let bounds = PageRange::with_pages(VirtAddr::of_page(first), pages)?;
        let shaped = Self { process, rules: Rules { write: true, bounds, whole_folio } };
        for at in (0..pages).step_by(1 << order) {
            shaped.map(at, order, largest)?;
        }
        Ok(shaped)
    }

    pub fn map(&self, at: u64, order: u8, largest: Level) -> Checked {
        let start = VirtAddr::of_page(self.rules.bounds.start().page() + at);
        let folio = HARDWARE.folio(order)?;
        for n in 0..1 << order {
            // SAFETY: the folio is this function's.
            unsafe { crate::memory::write(folio.head().add(n).address(), 0) };
        }
        self.process.space.map(PageRange::with_pages(start, 1 << order)?, folio.head(), OLD, largest)?;
        drop(folio);
        Ok(())
    }

    /// Addresses of the pages that are used: some of a folio of order 9, lest a turn take long.
    pub fn addresses(&self) -> impl Iterator<Item = u64> + '_ {
        let step = self.rules.bounds.pages() / PAGES;
        (0..PAGES).map(move |n| self.rules.bounds.start().0 + n * step * PAGE)
    }

    pub fn store(&self, address: u64, word: u64) -> Checked {
        let touched = self.process.store(address, word, self.rules)?;
        ensure!(!touched.refused, "a store at {address:#x} was refused: {touched:?}");
        Ok(())
    }

    /// What the pages hold, as the processor reads it.
    fn words(&self) -> Checked<Vec<u64>> {
        self.addresses()
            .map(|address| {
                let touched = self.process.load(address, self.rules)?;
                ensure!(!touched.refused, "a load at {address:#x} was refused: {touched:?}");
                Ok(touched.word)
            })
            .collect()
    }

    /// What they hold, past the page tables.
    fn words_in_memory(&self) -> Checked<Vec<u64>> {
        self.addresses()
            .map(|address| match self.process.space.query(VirtAddr(address)) {
                // SAFETY: RAM that is only looked at.
                Mapping::Page { frame, .. } => Ok(unsafe { crate::memory::read(frame.address()) }),
                other => Err(Contradiction(alloc::format!("{address:#x} is mapped to {other:?}"))),
            })
            .collect()
    }

    fn fork(&self) -> Checked<Self> {
        let process = self.process.fork(self.rules.bounds, 5)?;
        Ok(Self { process, rules: self.rules })
    }
}

fn same(expected: &[u64], found: &[u64], what: &str) -> Checked {
    match (0..).zip(expected.iter().zip(found)).find(|(_, (expected, found))| expected != found) {
        None => Ok(()),
        Some((n, (expected, found))) => {
            Err(Contradiction(alloc::format!("{what}: {found} instead of {expected} in page {n}")))
        }
    }
}

/// All of it, if there are two processors.
pub fn run<F: Format>(world: &mut World) -> Checked {
    if crew::present() < 2 {
        return Ok(());
    }
    for (order, largest) in SHAPES {
        for whole_folio in [false, true] {
            forked_while_written::<F>(order, largest, whole_folio)?;
            written_on_both_sides::<F>(order, largest, whole_folio)?;
        }
        protected_while_written::<F>(order, largest)?;
        zapped_while_read::<F>(order, largest)?;
        changed::resized_while_written::<F>(order, largest)?;
    }
    changed::looked_up_while_unmapped::<F>()?;
    harvested::run::<F>(world)
}

/// Processor 1 writes 1 to all pages in a row, then 2, and so on. Whatever moment a fork takes, its child sees: the pages
/// up to some one hold a number, those behind it the number before; and ever after it sees the same.
fn forked_while_written<F: Format>(order: u8, largest: Level, whole_folio: bool) -> Checked {
    let parent = Shaped::<F>::new(order, largest, whole_folio)?;
    let step = |turn| parent.addresses().try_for_each(|address| parent.store(address, turn));
    let writer = Loop::new(&step);
    writer.beside(&parent.process, || {
        for _ in 0..TIMES {
            writer.turn()?;
            let child = parent.fork()?;
            let seen = child.words()?;
            let first = seen.first().copied().unwrap_or_default();
            let wrong = seen.iter().zip(&seen[1..]).position(|(word, next)| next > word || next + 1 < first);
            if let Some(n) = wrong {
                let (here, next) = (seen[n], seen[n + 1]);
                ensure!(
                    false,
                    "no moment of its parent: a child has {first} first, then {here}, {next} in page {n} on"
                );
            }
            writer.turn()?;
            same(&seen, &child.words()?, "a child sees what its parent writes after the fork")?;
            for address in child.addresses().step_by(3) {
                child.store(address, u64::MAX)?;
            }
            writer.turn()?;
            let expected: Vec<u64> =
                (0..).zip(seen).map(|(n, word)| if n % 3 == 0 { u64::MAX } else { word }).collect();
            same(&expected, &child.words()?, "a child does not have its own writes")?;
            child.process.exit();
        }
        Ok(())
    })?;
    parent.process.exit();
    Ok(())
}

/// After a fork both sides write all pages at the same time: each has its own then.
fn written_on_both_sides<F: Format>(order: u8, largest: Level, whole_folio: bool) -> Checked {
    let parent = Shaped::<F>::new(order, largest, whole_folio)?;
    for n in 0..TIMES {
        let child = parent.fork()?;
        let (ours, theirs) = (2 * n + 1, 2 * n + 2);
        let step = |_| parent.addresses().try_for_each(|address| parent.store(address, theirs));
        let writer = Loop::new(&step);
        writer.beside(&parent.process, || {
            child.addresses().try_for_each(|address| child.store(address, ours))?;
            writer.turn()
        })?;
        for (side, word) in [(&child, ours), (&parent, theirs)] {
            let words = side.words()?;
            same(&alloc::vec![word; words.len()], &words, "not what this side wrote after a fork")?;
        }
        child.process.exit();
    }
    parent.process.exit();
    Ok(())
}

/// While the pages are write-protected and faults have to wait, nothing in them changes.
fn protected_while_written<F: Format>(order: u8, largest: Level) -> Checked {
    let shaped = Shaped::<F>::new(order, largest, false)?;
    let step = |turn| shaped.addresses().try_for_each(|address| shaped.store(address, turn));
    let writer = Loop::new(&step);
    writer.beside(&shaped.process, || {
        for _ in 0..TIMES {
            writer.turn()?;
            let lock = shaped.process.lock();
            let mut slots = [Slot::default(); 1];
            let mut gather = shaped.process.space.gather(&mut slots);
            shaped.process.space.write_protect(shaped.rules.bounds, &mut gather)?;
            gather.flush();
            let before = shaped.words_in_memory()?;
            for _ in 0..2000 {
                tlb::answer();
            }
            let after = shaped.words_in_memory()?;
            drop(lock);
            same(&before, &after, "write-protected pages were written")?;
        }
        Ok(())
    })?;
    shaped.process.exit();
    Ok(())
}

/// A reader sees pages or faults. Once a zap is flushed it faults, and never reads what became of the memory.
fn zapped_while_read<F: Format>(order: u8, largest: Level) -> Checked {
    let shaped = Shaped::<F>::new(order, largest, false)?;
    // Odd while the pages are there for sure, even while they are not, a number between while they come or go.
    let (there, sure) = (AtomicU64::new(1), AtomicU64::new(1));
    let step = |_| {
        for address in shaped.addresses() {
            let before = (there.load(Ordering::SeqCst), sure.load(Ordering::SeqCst));
            let touched = shaped.process.load(address, shaped.rules)?;
            let after = (there.load(Ordering::SeqCst), sure.load(Ordering::SeqCst));
            ensure!(
                touched.refused || touched.word == 0,
                "freed memory was read at {address:#x}: {:#x}",
                touched.word
            );
            if before == after && before.0 == before.1 {
                let expected = before.0.is_multiple_of(2);
                ensure!(
                    touched.refused == expected,
                    "a load at {address:#x} while the pages are{} there: {touched:?}",
                    if expected { " not" } else { "" }
                );
            }
        }
        Ok(())
    };
    let reader = Loop::new(&step);
    reader.beside(&shaped.process, || {
        for _ in 0..TIMES {
            reader.turn()?;
            there.fetch_add(1, Ordering::SeqCst);
            let mut slots = [Slot::default(); 8];
            let mut gather = shaped.process.space.gather(&mut slots);
            shaped.process.space.unmap(shaped.rules.bounds, &mut gather)?;
            drop(gather);
            sure.fetch_add(1, Ordering::SeqCst);
            reader.turn()?;
            there.fetch_add(1, Ordering::SeqCst);
            for at in (0..shaped.rules.bounds.pages()).step_by(1 << order) {
                shaped.map(at, order, largest)?;
            }
            sure.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    })?;
    shaped.process.exit();
    Ok(())
}
