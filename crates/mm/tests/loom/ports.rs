//! A port's section against who takes its page away: the module itself, on a page table of one entry.

#[path = "../../src/port/tlb.rs"]
#[allow(dead_code, reason = "of the module, its sections are what is modelled")]
mod tlb;

use isotherm_page::Frame;
use isotherm_pagetable::{Access, SpaceId, Tlb};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::thread;

use tlb::{Entries, SoftTlbs};

const SPACE: SpaceId = SpaceId { root: Frame(7), context: 1 };

struct World {
    tlbs: SoftTlbs<1>,
    mapped: AtomicBool,
    page: UnsafeCell<u32>,
}

// SAFETY: loom reports accesses that are not ordered.
unsafe impl Sync for World {}
// SAFETY: as above.
unsafe impl Send for World {}

/// So many accesses, of which later ones may find the page in the TLB; how many did access it.
fn accesses(world: &World, count: u32) -> u32 {
    let place = world.tlbs.join(SPACE).expect("a place");
    let mut entries = Entries::new();
    let mut done = 0;
    for _ in 0..count {
        let section = place.enter(&mut entries);
        let hit = entries.get(1, Access::Read).is_some();
        if hit || world.mapped.load(Ordering::Relaxed) {
            entries.put(1, Frame(1), Access::Read);
            // SAFETY: loom checks that nobody writes.
            done += world.page.with(|page| u32::from(unsafe { *page } == 0));
        }
        drop(section);
    }
    done
}

fn model(count: u32, take_away: impl Fn(&World) + Copy + Send + Sync + 'static) {
    loom::model(move || {
        let tlbs = SoftTlbs::new(|_| thread::yield_now());
        let world = Arc::new(World { tlbs, mapped: AtomicBool::new(true), page: UnsafeCell::new(0) });
        let port = {
            let world = Arc::clone(&world);
            thread::spawn(move || accesses(&world, count))
        };
        take_away(&world);
        assert!(port.join().unwrap() <= count);
    });
}

#[test]
fn a_section_against_who_takes_the_page_away() {
    model(2, |world| {
        world.mapped.store(false, Ordering::Relaxed);
        world.tlbs.invalidate_page(SPACE, 1);
        world.tlbs.sync();
        // SAFETY: loom checks that nobody is at it.
        world.page.with_mut(|page| unsafe { *page = 1 });
    });
}

#[test]
fn a_place_that_was_given_back_is_no_section() {
    model(1, |world| {
        world.tlbs.sync();
        world.mapped.store(false, Ordering::Relaxed);
        world.tlbs.invalidate_space(SPACE);
        world.tlbs.sync();
        // SAFETY: as above.
        world.page.with_mut(|page| unsafe { *page = 1 });
    });
}
