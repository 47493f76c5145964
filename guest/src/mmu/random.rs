//! Random operations on up to four processes that fork from one another, on each of two processors.

use super::contradiction::Checked;
use super::figures::{Figure, count};
use super::forks::check;
use super::operations::split_folio;
use super::subject::{Subject, around};
use super::{OLD, PAGES, PER_LEAF, World};
use crate::crew;
use core::ops::Range;
use isotherm_pagetable::{Attributes, Format, Level, Order};
use spin::Mutex;

/// Processes at the most.
const MOST: u64 = 4;
/// Of 16 and of 64 KiB.
const FEW: Order = order(2);
const MORE: Order = order(4);
/// Operations between two comparisons of everything.
const STRIDE: u64 = 16;

const fn order(order: u8) -> Order {
    match Order::new(order) {
        Some(order) => order,
        None => Order::BASE,
    }
}

/// `operations` of them, half on each of two processors, if there are two: these have nothing in common but the zone and
/// the tables that wait for readers.
pub fn run<F: Format>(world: &mut World, operations: u64) -> Checked {
    let second = Mutex::new((World::new(world.random.draw()), Ok(())));
    let aside = || {
        let (world, result) = &mut *second.lock();
        *result = some::<F>(world, operations / 2);
    };
    match crew::beside(&aside, || some::<F>(world, operations - operations / 2)) {
        Some(first) => first.and(second.into_inner().1),
        None => some::<F>(world, operations),
    }
}

fn some<F: Format>(world: &mut World, operations: u64) -> Checked {
    let mut subjects = alloc::vec![Subject::<F>::new()?];
    for n in 1..=operations {
        // Most often the one that is loaded, whose translations are still in the TLB.
        let which =
            if world.random.below(4) == 0 { world.random.below(subjects.len() as u64) as usize } else { 0 };
        subjects.swap(0, which);
        match world.random.below(64) {
            0 if (subjects.len() as u64) < MOST => {
                let child = subjects[0].fork()?;
                subjects.push(child);
            }
            1 if subjects.len() > 1 => subjects.swap_remove(0).process.exit(),
            2..=4 => {
                let order = [Order::BASE, Order::BASE, FEW, MORE][any(world, 4)];
                split_folio(&mut subjects, any(world, PAGES), order)?;
            }
            _ => step(&mut subjects[0], world)?,
        }
        count(Figure::Operations, 1);
        if n % STRIDE == 0 || n == operations {
            check(subjects.iter())?;
        }
    }
    subjects.into_iter().for_each(|subject| subject.process.exit());
    Ok(())
}

fn any(world: &mut World, below: usize) -> usize {
    world.random.below(below as u64) as usize
}

/// A range: a few pages, some, or a whole table.
fn range(world: &mut World) -> Range<usize> {
    let first = any(world, PAGES);
    let pages = match world.random.below(4) {
        0 => return around(first),
        1 => 1 + any(world, 300),
        _ => 1 + any(world, 20),
    };
    first..(first + pages).min(PAGES)
}

fn step<F: Format>(subject: &mut Subject<F>, world: &mut World) -> Checked {
    match world.random.below(20) {
        0..=2 => map(subject, world),
        3..=9 => touch(subject, world),
        10 => subject.protect(range(world), false),
        11..=12 => subject.protect(range(world), true),
        13 => subject.write_protect(range(world)),
        14 => {
            let tables = world.random.below(2) == 0;
            subject.zap(range(world), tables)
        }
        15 => subject.harvest(range(world)).map(|_| ()),
        16 => subject.split(any(world, PAGES)),
        17..=18 => collapse(subject, world),
        _ => remap(subject, world),
    }
}

fn map<F: Format>(subject: &mut Subject<F>, world: &mut World) -> Checked {
    let order = [0, 0, 2, 4, 4, 9, 9][any(world, 7)];
    let largest = if world.random.below(2) == 0 { Level::Pmd } else { Level::Pte };
    let mut first = any(world, PAGES);
    if world.random.below(4) != 0 {
        first &= !((1 << order) - 1);
    }
    let pages = first..(first + (1 << order)).min(PAGES);
    if subject.pages[pages.clone()].iter().any(|page| page.mapped) {
        let tables = world.random.below(2) == 0;
        subject.zap(pages, tables)?;
    }
    let state = if world.random.below(2) == 0 { OLD } else { Attributes::anonymous() };
    subject.map(world, first, order, largest, state)
}

/// A few pages, near one another.
fn touch<F: Format>(subject: &mut Subject<F>, world: &mut World) -> Checked {
    let near = any(world, PAGES);
    for _ in 0..1 + any(world, 24) {
        let page = (near + any(world, 40)) % PAGES;
        let whole_folio = world.random.below(2) == 0;
        match world.random.below(2) {
            0 => subject.write(page, world.generation(), whole_folio)?,
            _ => subject.read(page)?,
        };
    }
    Ok(())
}

fn collapse<F: Format>(subject: &mut Subject<F>, world: &mut World) -> Checked {
    let page = any(world, PAGES);
    let pages = around(page);
    // Within one mapping, as a kernel would.
    let permitted = subject.pages[pages.start].write;
    if subject.pages[pages].iter().all(|page| page.write == permitted) {
        subject.collapse(page)?;
    }
    Ok(())
}

fn remap<F: Format>(subject: &mut Subject<F>, world: &mut World) -> Checked {
    let from = range(world);
    let mut to = any(world, PAGES);
    if world.random.below(2) == 0 {
        to = to / PER_LEAF * PER_LEAF + from.start % PER_LEAF;
    }
    let target = to..to + from.len();
    if target.end > PAGES || (from.start < target.end && target.start < from.end) {
        return Ok(());
    }
    subject.zap(target, world.random.below(2) == 0)?;
    subject.remap(from, to)
}
