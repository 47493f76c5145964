//! Contiguous blocks, which the processor may hold as one translation: folded, unfolded, and broken before they are made
//! anew, under another processor's hands.

use super::beside::Loop;
use super::contradiction::{Checked, ensure};
use super::figures::{Figure, counted};
use super::forks::check;
use super::hardware::HARDWARE;
use super::process::{Process, Rules};
use super::subject::Subject;
use super::{OLD, PAGE, World};
use crate::{crew, memory};
use isotherm_pagetable::{Folio, Format, Level, Mapping, PageRange, Slot, VirtAddr};

/// Times that a block is unfolded and folded while it is used.
const TIMES: u64 = 40;
/// The order of a folio that is a block.
const ORDER: u8 = 4;

/// All of it, where the format has such blocks.
pub fn run<F: Format>(world: &mut World) -> Checked {
    if F::CONTIGUOUS != 1 << ORDER {
        return Ok(());
    }
    alone::<F>(world)?;
    let before = (counted(Figure::Folds), counted(Figure::Unfolds));
    folded_while_used::<F>()?;
    let after = (counted(Figure::Folds), counted(Figure::Unfolds));
    let expected = if crew::present() < 2 { 0 } else { TIMES };
    ensure!(
        after.0 - before.0 >= expected && after.1 - before.1 >= expected,
        "{expected} times folded and unfolded: {before:?}, then {after:?}"
    );
    Ok(())
}

fn is_contiguous<F: Format>(subject: &Subject<F>, page: usize) -> bool {
    subject.leaf(page).is_some_and(|leaf| leaf.contiguous)
}

/// A block is accessed and written as one, and each page for itself once it is unfolded.
fn alone<F: Format>(world: &mut World) -> Checked {
    let mut subject = Subject::<F>::new()?;
    // Two blocks, and a folio that is aligned to none.
    subject.map(world, 32, ORDER + 1, Level::Pte, OLD)?;
    subject.map(world, 72, ORDER, Level::Pte, OLD)?;
    for page in 32..64 {
        ensure!(is_contiguous(&subject, page), "page {page} is in no block");
    }
    ensure!(!is_contiguous(&subject, 80), "a block begins where its frame may not");
    subject.process.run();
    subject.read(40)?;
    subject.write(50, world.generation(), false)?;
    check([&subject].into_iter())?;
    ensure!(subject.harvest(36..38)? == 2, "an access of one page is not one of its block");
    check([&subject].into_iter())?;
    subject.read(33)?;
    // Half of a block is unfolded, the other one is not.
    subject.protect(36..44, false)?;
    ensure!(!is_contiguous(&subject, 32) && is_contiguous(&subject, 48), "the wrong block was unfolded");
    check([&subject].into_iter())?;
    subject.harvest(32..64)?;
    subject.read(34)?;
    subject.write(35, world.generation(), false)?;
    ensure!(subject.harvest(32..48)? == 2, "a page is not by itself after its block was unfolded");
    check([&subject].into_iter())?;
    // All of a block is changed, which stays one: by protection, by a fork, by the faults after it.
    subject.protect(48..64, false)?;
    ensure!(is_contiguous(&subject, 63), "a block that changed as a whole was unfolded");
    subject.protect(48..64, true)?;
    let mut child = subject.fork()?;
    for side in [&subject, &child] {
        ensure!(is_contiguous(side, 63), "a block was unfolded by a fork");
    }
    child.write(49, world.generation(), false)?;
    ensure!(!is_contiguous(&child, 63) && is_contiguous(&subject, 63), "the wrong side's block was unfolded");
    subject.write(60, world.generation(), true)?;
    check([&subject, &child].into_iter())?;
    child.read(60)?;
    subject.zap(55..56, false)?;
    subject.read(54)?;
    check([&subject, &child].into_iter())?;
    child.process.exit();
    subject.process.exit();
    Ok(())
}

/// One processor stores and loads in fifteen pages of a block; the other takes the sixteenth out and puts it back, so that
/// the block is unfolded and folded, each time with its entries broken in between. No store is lost, no load sees another page.
fn folded_while_used<F: Format>() -> Checked {
    if crew::present() < 2 {
        return Ok(());
    }
    let process = Process::<F>::new(7)?;
    let pages = 1 << ORDER;
    let bounds = PageRange::with_pages(VirtAddr::of_page(Process::<F>::FIRST), pages)?;
    let rules = Rules { write: true, bounds, whole_folio: false };
    let folio = HARDWARE.folio(ORDER)?;
    for n in 0..pages {
        // SAFETY: the folio is this function's.
        unsafe { memory::write(folio.head().add(n).address(), 0) };
    }
    process.space.map(bounds, folio.head(), OLD, Level::Pte)?;
    let step = |turn| {
        for n in 0..pages - 1 {
            let address = bounds.start().0 + n * PAGE;
            let word = turn << 8 | n;
            let stored = process.store(address, word, rules)?;
            let loaded = process.load(address, rules)?;
            ensure!(
                !stored.refused && !loaded.refused && loaded.word == word,
                "{word:#x} was stored at {address:#x}: {stored:?}, then {loaded:?}"
            );
        }
        Ok(())
    };
    let user = Loop::new(&step);
    user.beside(&process, || {
        for n in 0..TIMES {
            let which = pages - 1;
            let at = PageRange::with_pages(VirtAddr(bounds.start().0 + which * PAGE), 1)?;
            process.space.zap(at, &mut process.space.gather(&mut [Slot::default(); 2]))?;
            is(&process, bounds, false)?;
            if n % 4 == 0 {
                user.turn()?;
            }
            // Dirty or not, young or not: that of a block is what any of its pages was.
            process.space.map(at, folio.head().add(which), OLD, Level::Pte)?;
            is(&process, bounds, true)?;
            user.turn()?;
        }
        Ok(())
    })?;
    match process.space.query(bounds.start()) {
        Mapping::Page { attributes, .. } => {
            ensure!(attributes.young && attributes.dirty, "stores that nobody knows of: {attributes:?}");
        }
        other => ensure!(false, "a block that was used is {other:?}"),
    }
    ended(process, folio)
}

fn is<F: Format>(process: &Process<F>, bounds: PageRange, folded: bool) -> Checked {
    let mapping = process.space.query(bounds.start());
    let right = matches!(mapping, Mapping::Page { contiguous, .. } if contiguous == folded);
    ensure!(right, "a block should be folded: {folded}, and is {mapping:?}");
    Ok(())
}

fn ended<F: Format>(process: Process<F>, folio: Folio<'_, super::hardware::Hardware>) -> Checked {
    process.exit();
    ensure!((folio.maps(), folio.refs()) == (0, 1), "a process that is gone maps {folio:?}");
    Ok(())
}
