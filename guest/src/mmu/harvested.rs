//! Young harvest while another processor sets the bits: no access is lost, none invented, and no page that was written
//! for the first time meanwhile stays clean.
//!
//! Processor 1 accesses random pages, and counts for each page before and after each access. An access that began after
//! a harvest was flushed, and was over before the next began, must be in that next; a page in it must have been accessed
//! since the one before began.

use super::beside::Loop;
use super::contradiction::{Checked, Contradiction, ensure};
use super::figures::{Figure, count};
use super::hardware::HARDWARE;
use super::process::{Process, Rules};
use super::{OLD, PAGE, World};
use alloc::vec::Vec;
use core::ops::Range;
use core::sync::atomic::{AtomicU64, Ordering};
use isotherm_guest::stamp::Random;
use isotherm_pagetable::{Flush, Format, Level, Mapping, PageRange, Slot, Tlb, VirtAddr};
use spin::Mutex;

/// Pages: half of them in folios of order 0, half of order 4.
const PAGES: u64 = 256;
/// Times that the pages are mapped anew, old and clean.
const TIMES: u64 = 16;
/// Harvests of each.
const HARVESTS: u64 = 20;

fn counters() -> Vec<AtomicU64> {
    (0..PAGES).map(|_| AtomicU64::new(0)).collect()
}

fn seen(counters: &[AtomicU64]) -> Vec<u64> {
    counters.iter().map(|count| count.load(Ordering::SeqCst)).collect()
}

/// Whether the page is ever written.
fn is_written(page: u64) -> bool {
    page.is_multiple_of(3)
}

/// The pages that are young and dirty together with this one: of folios of order 4 a folded block, where there are any.
fn together<F: Format>(page: usize) -> Range<usize> {
    let size = if page < PAGES as usize / 2 { 1 } else { F::CONTIGUOUS };
    let first = page - page % size;
    first..first + size
}

/// All of it.
pub fn run<F: Format>(world: &mut World) -> Checked {
    let process = Process::<F>::new(6)?;
    let range = PageRange::with_pages(VirtAddr::of_page(Process::<F>::FIRST), PAGES)?;
    let rules = Rules { write: true, bounds: range, whole_folio: false };
    for _ in 0..TIMES {
        map(&process, range)?;
        watch(&process, rules, Random::new(world.random.draw()))?;
        let mut slots = [Slot::default(); 16];
        process.space.zap(range, &mut process.space.gather(&mut slots))?;
    }
    process.exit();
    Ok(())
}

fn map<F: Format>(process: &Process<F>, range: PageRange) -> Checked {
    let mut page = 0;
    while page < PAGES {
        let order = if page < PAGES / 2 { 0 } else { 4 };
        let folio = HARDWARE.folio(order)?;
        let pages = 1 << order;
        let at = PageRange::with_pages(VirtAddr(range.start().0 + page * PAGE), pages)?;
        process.space.map(at, folio.head(), OLD, Level::Pte)?;
        drop(folio);
        page += pages;
    }
    Ok(())
}

fn watch<F: Format>(process: &Process<F>, rules: Rules, random: Random) -> Checked {
    let (begun, over) = (counters(), counters());
    let random = Mutex::new(random);
    let written = counters();
    let step = |turn| {
        // The first turns read and write at random; a later one makes sure that all that is to be written is.
        let mut random = random.lock();
        for n in 0..PAGES {
            let all = turn % 16 == 15;
            let page = if all { n } else { random.below(PAGES) };
            let address = rules.bounds.start().0 + page * PAGE;
            // Once: a dirty bit that is lost would be set again by the next write.
            let first = written[page as usize].load(Ordering::SeqCst) == 0;
            let write = is_written(page) && first && (all || random.below(16) == 0);
            begun[page as usize].fetch_add(1, Ordering::SeqCst);
            let touched =
                if write { process.store(address, turn, rules)? } else { process.load(address, rules)? };
            over[page as usize].fetch_add(1, Ordering::SeqCst);
            written[page as usize].fetch_add(u64::from(write), Ordering::SeqCst);
            ensure!(touched.faults == 0, "page {page} may be written, and faults: {touched:?}");
        }
        Ok(())
    };
    let toucher = Loop::new(&step);
    toucher.beside(process, || {
        toucher.turn()?;
        let (mut begun_at_flush, mut over_at_harvest) =
            (alloc::vec![0; PAGES as usize], alloc::vec![0; PAGES as usize]);
        for _ in 0..HARVESTS {
            let over_before = seen(&over);
            let mut bitmap = [0; PAGES as usize / 64];
            let young = process.space.harvest_young(rules.bounds, &mut bitmap)?;
            let begun_after = seen(&begun);
            HARDWARE.invalidate_range(process.space.id(), Flush::of::<F>(Level::Pte, rules.bounds));
            HARDWARE.sync();
            count(Figure::Young, young);
            for page in 0..PAGES as usize {
                let found = bitmap[page / 64] >> (page % 64) & 1 == 1;
                ensure!(
                    found || over_before[page] <= begun_at_flush[page],
                    "an access of page {page} was lost"
                );
                let accessed = together::<F>(page).any(|page| begun_after[page] > over_at_harvest[page]);
                ensure!(!found || accessed, "page {page} is young unasked");
            }
            (begun_at_flush, over_at_harvest) = (seen(&begun), over_before);
        }
        while written.iter().zip(0..).any(|(n, page)| is_written(page) && n.load(Ordering::SeqCst) == 0) {
            toucher.turn()?;
        }
        Ok(())
    })?;
    for page in 0..PAGES {
        let written = together::<F>(page as usize).any(|page| is_written(page as u64));
        match process.space.query(VirtAddr(rules.bounds.start().0 + page * PAGE)) {
            Mapping::Page { attributes, .. } => ensure!(
                attributes.dirty == written,
                "page {page} was{} written, and its entry says {attributes:?}",
                if written { "" } else { " not" }
            ),
            other => {
                return Err(Contradiction(alloc::format!("page {page} is mapped to {other:?}")));
            }
        }
    }
    Ok(())
}
