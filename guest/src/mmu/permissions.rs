//! What pages permit, and what becomes of them when they move or change their size: protect, zap, collapse, split, remap;
//! the user and the no-execute bit.

use super::access::code;
use super::contradiction::{Checked, ensure};
use super::forks::check;
use super::process::Process;
use super::subject::Subject;
use super::{OLD, PER_LEAF, World, hardware::HARDWARE, machine};
use crate::memory;
use isotherm_pagetable::{
    Attributes, Collapsed, Format, Level, PageRange, Protection, Sharing, Slot, VirtAddr,
};

/// All of it.
pub fn run<F: Format>(world: &mut World) -> Checked {
    protected::<F>(world)?;
    resized::<F>(world)?;
    moved::<F>(world)?;
    executed::<F>()?;
    kept_from_all::<F>()
}

/// Pages that may not be written, may be again, are write-protected, and go.
fn protected<F: Format>(world: &mut World) -> Checked {
    let mut subject = Subject::<F>::new()?;
    for first in (0..64).step_by(4) {
        subject.map(world, first, 2, Level::Pte, OLD)?;
    }
    subject.map(world, 512, 9, Level::Pmd, OLD)?;
    // Before and after each change: so the TLB holds what was permitted before.
    let touch = |subject: &mut Subject<F>, world: &mut World| -> Checked {
        for page in [0, 9, 17, 18, 19, 40, 63, 100, 512, 700, 1023] {
            subject.write(page, world.generation(), page % 2 == 0)?;
            subject.read(page)?;
        }
        check([&*subject].into_iter())
    };
    touch(&mut subject, world)?;
    subject.protect(9..600, false)?;
    touch(&mut subject, world)?;
    subject.protect(18..700, true)?;
    touch(&mut subject, world)?;
    subject.write_protect(0..1024)?;
    touch(&mut subject, world)?;
    subject.zap(17..40, false)?;
    touch(&mut subject, world)?;
    subject.zap(0..1024, true)?;
    touch(&mut subject, world)?;
    subject.process.exit();
    Ok(())
}

/// Small pages become a huge leaf, and a huge leaf small pages.
fn resized<F: Format>(world: &mut World) -> Checked {
    let mut subject = Subject::<F>::new()?;
    let some = |subject: &mut Subject<F>, world: &mut World| -> Checked {
        for page in (0..2 * PER_LEAF).step_by(37) {
            subject.write(page, world.generation(), false)?;
            subject.read(page + 1)?;
        }
        check([&*subject].into_iter())
    };
    // Single pages with holes, and one folio.
    for page in (0..PER_LEAF).filter(|page| page % 5 != 0) {
        subject.map(world, page, 0, Level::Pte, OLD)?;
    }
    subject.map(world, PER_LEAF, 9, Level::Pte, OLD)?;
    some(&mut subject, world)?;
    let copied = subject.collapse(3)?;
    ensure!(matches!(copied, Some(Collapsed::Copied { .. })), "single pages were collapsed as {copied:?}");
    let in_place = subject.collapse(PER_LEAF)?;
    ensure!(in_place == Some(Collapsed::InPlace), "a folio was collapsed as {in_place:?}");
    check([&subject].into_iter())?;
    some(&mut subject, world)?;
    subject.harvest(0..2 * PER_LEAF)?;
    subject.split(7)?;
    subject.split(PER_LEAF + 7)?;
    check([&subject].into_iter())?;
    some(&mut subject, world)?;
    let in_place = subject.collapse(PER_LEAF)?;
    ensure!(in_place == Some(Collapsed::InPlace), "what was split was collapsed as {in_place:?}");
    some(&mut subject, world)?;
    subject.process.exit();
    Ok(())
}

/// Pages move, with their bits; what was at the old place is gone.
fn moved<F: Format>(world: &mut World) -> Checked {
    let mut subject = Subject::<F>::new()?;
    for first in (0..32).step_by(16) {
        subject.map(world, first, 4, Level::Pte, OLD)?;
    }
    subject.map(world, 512, 9, Level::Pmd, OLD)?;
    for page in [1, 5, 20, 31] {
        subject.write(page, world.generation(), false)?;
        subject.read(page - 1)?;
    }
    subject.read(600)?;
    // Far, and by a distance that is no multiple of the folio; the huge leaf whole, then as pages.
    for (from, to) in
        [(0..32, 1100usize), (1100..1132, 9), (512..1024, 1536), (1536..2048, 600), (600..700, 1300)]
    {
        let huge = subject.pages[from.start].huge && to.is_multiple_of(PER_LEAF);
        subject.remap(from.clone(), to)?;
        ensure!(subject.pages[to].huge == huge, "{from:?} were moved to {to} by other leaves");
        check([&subject].into_iter())?;
        for page in [from.start, from.start + 31] {
            subject.read(page)?;
            subject.write(page, world.generation(), false)?;
        }
        subject.read(to + 3)?;
        subject.write(to + 4, world.generation(), false)?;
        check([&subject].into_iter())?;
    }
    subject.process.exit();
    Ok(())
}

/// A process with one page at its first address, for what the account does not know.
fn single<F: Format>(state: Attributes) -> Checked<(Process<F>, PageRange)> {
    let process = Process::<F>::new(3)?;
    let page = PageRange::with_pages(VirtAddr::of_page(Process::<F>::FIRST), 1)?;
    let folio = HARDWARE.folio(0)?;
    // SAFETY: the folio is this function's. A page that begins with what ends a call.
    unsafe { memory::write(folio.head().address(), machine::RETURN) };
    process.space.map(page, folio.head(), state, Level::Pte)?;
    drop(folio);
    Ok((process, page))
}

fn permit<F: Format>(process: &Process<F>, page: PageRange, protection: Protection) -> Checked {
    let mut slots = [Slot::default(); 1];
    let mut gather = process.space.gather(&mut slots);
    process.space.protect(page, protection, Sharing::Private, &mut gather)?;
    Ok(())
}

/// Code is fetched only from pages that may be executed.
fn executed<F: Format>() -> Checked {
    let (process, page) = single::<F>(OLD)?;
    let rules = super::process::Rules { write: true, bounds: page, whole_folio: false };
    let at = page.start().0;
    for execute in [false, true, false] {
        permit(&process, page, Protection { execute, ..Protection::READ })?;
        // SAFETY: what ends a call stands there.
        let touched = unsafe { process.call(at, rules) }?;
        let expected = if execute { (false, 0) } else { (true, code::PRESENT | code::FETCH) };
        ensure!(
            (touched.refused, touched.code) == expected,
            "a page that may{} be executed was: {touched:?}",
            if execute { "" } else { " not" }
        );
    }
    process.exit();
    Ok(())
}

/// A page that nobody may access is not present, for the kernel neither: this program cannot read it. And the user bit, seen
/// the other way round: where the processor can refuse users' pages, this program may access only what users may not.
fn kept_from_all<F: Format>() -> Checked {
    let (process, page) = single::<F>(OLD)?;
    let rules = super::process::Rules { write: true, bounds: page, whole_folio: false };
    let load = |user, (refused, code)| {
        permit(&process, page, Protection { user, ..Protection::READ })?;
        let touched = process.load(page.start().0, rules)?;
        ensure!(
            touched.refused == refused && (!refused || touched.code == code),
            "a page whose user permission is {user} was read: {touched:?}"
        );
        Ok(())
    };
    for user in [true, false, true] {
        load(user, (!user, 0))?;
    }
    let seen = machine::without_users_pages(|| {
        [true, false, true]
            .into_iter()
            .try_for_each(|user| load(user, (true, if user { code::PRESENT } else { 0 })))
    });
    match seen {
        Some(result) => result?,
        None => crate::line!(
            "note: this processor cannot refuse users' pages, so the user bit was not looked at so"
        ),
    }
    process.exit();
    Ok(())
}
