//! Two processors, while tables come and go: one writes to pages that the other splits and collapses, or looks pages up
//! without a lock while the other maps and unmaps them.

use super::beside::{Loop, Shaped};
use super::contradiction::{Checked, Contradiction, ensure};
use super::{linger, tlb};
use core::sync::atomic::{AtomicU64, Ordering};
use isotherm_pagetable::{Error, Format, Level, Mapping, PageRange, Slot};

/// Times that pages are split, collapsed and so on.
const RESIZED: u64 = 40;
/// Times that pages are mapped and unmapped.
const UNMAPPED: u64 = 100;
/// More tables than a lookup goes through.
const LEVELS: u64 = 6;

/// A writer reads back what it wrote, whatever size the page has meanwhile, and finds every page mapped.
pub fn resized_while_written<F: Format>(order: u8, largest: Level) -> Checked {
    let shaped = Shaped::<F>::new(order, largest, false)?;
    let step = |turn| {
        for address in shaped.addresses() {
            shaped.store(address, turn)?;
            let touched = shaped.process.load(address, shaped.rules)?;
            ensure!(
                !touched.refused && touched.word == turn,
                "{turn} was written at {address:#x}, and {touched:?} read"
            );
        }
        Ok(())
    };
    let writer = Loop::new(&step);
    let (space, start) = (&shaped.process.space, shaped.rules.bounds.start());
    writer.beside(&shaped.process, || {
        for n in 0..RESIZED {
            let lock = shaped.process.lock();
            let mut slots = [Slot::default(); 8];
            let mut gather = space.gather(&mut slots);
            match n % 4 {
                0 => space.split(start)?,
                1 => drop(space.harvest_young(shaped.rules.bounds, &mut [0; 8])?),
                2 => match space.collapse(start, 0, &mut gather) {
                    Ok(_) => {}
                    Err(Error::NotCollapsible(_)) if order < 9 => {}
                    Err(why) => return Err(why.into()),
                },
                _ => {
                    space.write_protect(shaped.rules.bounds, &mut gather)?;
                }
            }
            drop(gather);
            drop(lock);
            writer.turn()?;
        }
        Ok(())
    })?;
    shaped.process.exit();
    Ok(())
}

/// A lookup finds nothing, or the page; never what a table holds that was given back.
pub fn looked_up_while_unmapped<F: Format>() -> Checked {
    let shaped = Shaped::<F>::new(0, Level::Pte, false)?;
    let (space, start, found) = (&shaped.process.space, shaped.rules.bounds.start(), AtomicU64::new(0));
    let step = |_| {
        let mapping = space.read().lookup(start);
        match mapping {
            Mapping::None => Ok(()),
            Mapping::Page { level: Level::Pte, attributes, .. }
                if attributes.user && attributes.exclusive =>
            {
                found.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
            other => Err(Contradiction(alloc::format!("a lookup of {start} found {other:?}"))),
        }
    };
    let walker = Loop::new(&step);
    // All that the root's entry reaches, so that the tables of each level go.
    let all = PageRange::with_pages(start, F::pages(F::ROOT))?;
    linger::on(space.id().root);
    let result = walker.beside(&shaped.process, || {
        let done = (0..UNMAPPED).try_for_each(|n| {
            // Whichever table a lookup has come to, all tables below the root go then. It ends before there are others.
            for _ in 0..n % LEVELS {
                tlb::wait_until(|| linger::waits() || walker.has_ended());
                linger::pass();
            }
            tlb::wait_until(|| linger::waits() || walker.has_ended());
            space.unmap(all, &mut space.gather(&mut [Slot::default(); 80]))?;
            let done = walker.done();
            linger::pass();
            tlb::wait_until(|| walker.done() != done || walker.has_ended());
            if !walker.has_ended() {
                shaped.map(0, 0, Level::Pte)?;
            }
            Ok(())
        });
        linger::off();
        done
    });
    result?;
    ensure!(found.load(Ordering::Relaxed) > 0, "no lookup ever found the page");
    shaped.process.exit();
    Ok(())
}
