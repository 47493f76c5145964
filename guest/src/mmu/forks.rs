//! Fork: children see their parents' pages, writes fault and are seen by the writer alone, three generations deep.

use super::contradiction::{Checked, ensure};
use super::hardware::HARDWARE;
use super::subject::Subject;
use super::{OLD, World};
use alloc::vec::Vec;
use isotherm_pagetable::{FolioView, Format, Frame, Level, Resolved};

/// Where folios of each shape lie: the first page, the page behind the last, order, largest leaf.
const LAYOUT: [(usize, usize, u8, Level); 5] = [
    (0, 64, 0, Level::Pte),
    (64, 128, 2, Level::Pte),
    (128, 256, 4, Level::Pte),
    (512, 1024, 9, Level::Pte),
    (1024, 1536, 9, Level::Pmd),
];
/// Pages of folios of order 0: each fares alone.
const SMALL: core::ops::Range<usize> = 0..64;

fn mapped() -> impl Iterator<Item = usize> {
    LAYOUT.into_iter().flat_map(|(first, end, ..)| first..end)
}

/// Compares all, and what they have in common: a frame that somebody can write is mapped once, and the folios' counts are
/// the number of mappings.
///
/// # Errors
/// What differs.
pub fn check<'a, F: Format>(subjects: impl Iterator<Item = &'a Subject<F>>) -> Checked {
    let mut frames = Vec::new();
    for subject in subjects {
        subject.check(&mut frames)?;
    }
    frames.sort_unstable();
    let mut heads: Vec<Frame> = Vec::with_capacity(frames.len());
    for alike in frames.chunk_by(|one, other| one.0 == other.0) {
        let shared = alike.len() > 1 && alike.iter().any(|&(_, write)| write);
        ensure!(!shared, "{:?} is mapped {} times, and can be written", alike[0].0, alike.len());
        let head = FolioView::of(&HARDWARE, alike[0].0)?.head();
        heads.extend(alike.iter().map(|_| head));
    }
    heads.sort_unstable();
    for alike in heads.chunk_by(|one, other| one == other) {
        let folio = FolioView::of(&HARDWARE, alike[0])?;
        let (maps, refs, found) = (folio.maps(), folio.refs(), alike.len() as u32);
        ensure!(
            maps == found && refs == found,
            "{:?} is mapped {found} times, and counts {maps} mappings and {refs} references",
            folio.head()
        );
    }
    Ok(())
}

/// Reads every page.
fn read_all<F: Format>(subject: &mut Subject<F>) -> Checked {
    mapped().try_for_each(|page| subject.read(page).map(|_| ()))
}

/// Writes every `step`th page, the fault now for the page, now for the folio; which of the small ones were copied.
fn write_some<F: Format>(subject: &mut Subject<F>, world: &mut World, step: usize) -> Checked<Vec<bool>> {
    let mut copied = alloc::vec![false; SMALL.end];
    for page in mapped().step_by(step) {
        let touched = subject.write(page, world.generation(), page % 2 == 0)?;
        if let Some(copied) = copied.get_mut(page) {
            *copied = matches!(touched.resolved, Some(Resolved::Copied(_)));
        }
    }
    Ok(copied)
}

/// Parent, child and grandchild.
pub fn run<F: Format>(world: &mut World) -> Checked {
    let mut parent = Subject::<F>::new()?;
    for (first, end, order, largest) in LAYOUT {
        for first in (first..end).step_by(1 << order) {
            parent.map(world, first, order, largest, OLD)?;
        }
    }
    write_some(&mut parent, world, 3)?;
    let mut child = parent.fork()?;
    check([&parent, &child].into_iter())?;
    read_all(&mut child)?;
    check([&parent, &child].into_iter())?;

    let by_child = write_some(&mut child, world, 5)?;
    check([&parent, &child].into_iter())?;
    read_all(&mut parent)?;
    let by_parent = write_some(&mut parent, world, 1)?;
    for page in SMALL {
        let expected = page % 5 == 0;
        ensure!(by_child[page] == expected, "page {page}: copied for the child is {}", !expected);
        // Where the child has a copy already, the parent is the last to have the page.
        ensure!(by_parent[page] != expected, "page {page}: copied for the parent is {expected}");
    }
    check([&parent, &child].into_iter())?;

    let mut grandchild = child.fork()?;
    write_some(&mut child, world, 2)?;
    write_some(&mut grandchild, world, 7)?;
    check([&parent, &child, &grandchild].into_iter())?;
    read_all(&mut grandchild)?;
    child.process.exit();
    read_all(&mut parent)?;
    parent.process.exit();
    let copied = write_some(&mut grandchild, world, 1)?;
    ensure!(!copied.contains(&true), "a page was copied though nobody else was left");
    check([&grandchild].into_iter())?;
    grandchild.process.exit();
    Ok(())
}
