//! Accessed and dirty bits as the processor sets them, page by page, in folios of several orders mapped in either way.

use super::contradiction::{Checked, ensure};
use super::subject::Subject;
use super::{OLD, World};
use alloc::vec::Vec;
use isotherm_pagetable::{Format, Level};

/// Orders of folios, and the largest leaf they are mapped by.
pub const SHAPES: [(u8, Level); 5] =
    [(0, Level::Pte), (2, Level::Pte), (4, Level::Pte), (9, Level::Pte), (9, Level::Pmd)];

/// Reads some pages, writes others, leaves others alone; looks; harvests; and again.
pub fn run<F: Format>(world: &mut World) -> Checked {
    for (order, largest) in SHAPES {
        let mut subject = Subject::<F>::new()?;
        let pages = 64.max(1 << order);
        for first in (0..pages).step_by(1 << order) {
            subject.map(world, first, order, largest, OLD)?;
            ensure!(subject.pages[first].huge == (largest == Level::Pmd), "page {first} has the wrong leaf");
        }
        subject.process.run();
        subject.check(&mut Vec::new())?;
        ensure!(
            subject.harvest(0..pages)? == 0,
            "pages of order {order} are young before anybody accessed them"
        );
        for part in [2, 8, 64] {
            for page in 0..pages {
                match world.random.below(part) {
                    0 => subject.write(page, world.generation(), false).map(|_| ())?,
                    1 => subject.read(page).map(|_| ())?,
                    _ => {}
                }
            }
            subject.check(&mut Vec::new())?;
            subject.harvest(0..pages)?;
            subject.check(&mut Vec::new())?;
        }
        subject.process.exit();
    }
    Ok(())
}
