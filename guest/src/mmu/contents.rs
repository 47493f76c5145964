//! What pages hold: stamps of the page's last write, its *generation*. Generation 0 is a page of zeros.

use super::contradiction::{Checked, ensure};
use super::process::{Process, Rules, Touched};
use crate::memory;
use isotherm_guest::stamp::{places, stamp};
use isotherm_pagetable::{Format, Frame};

fn word(generation: u64, place: u64) -> u64 {
    if generation == 0 { 0 } else { stamp(place, generation) }
}

/// Fills a frame that is mapped nowhere yet.
pub fn fill(frame: Frame, generation: u64) {
    for place in places(generation) {
        // SAFETY: the caller's own frame.
        unsafe { memory::write(frame.address() + place, word(generation, place)) };
    }
}

/// What a frame holds, read past the page tables.
///
/// # Errors
/// Something else.
pub fn check_frame(frame: Frame, generation: u64) -> Checked {
    for place in places(generation) {
        // SAFETY: RAM that is only looked at.
        let found = unsafe { memory::read(frame.address() + place) };
        let expected = word(generation, place);
        ensure!(found == expected, "{frame:?} holds {found:#x} at {place:#x} instead of {expected:#x}");
    }
    Ok(())
}

/// Reads a page through the processor's page tables. Tells of the first load, which decides: if it was refused, there are
/// no others.
///
/// # Errors
/// The page holds something else, or a later load faulted.
pub fn read<F: Format>(process: &Process<F>, page: u64, generation: u64, rules: Rules) -> Checked<Touched> {
    through(page, generation, |address, expected| {
        let touched = process.load(address, rules)?;
        let found = touched.word;
        let right = touched.refused || found == expected;
        ensure!(right, "the processor reads {found:#x} at {address:#x} instead of {expected:#x}");
        Ok(touched)
    })
}

/// Writes a page.
///
/// # Errors
/// A store but the first faulted.
pub fn write<F: Format>(process: &Process<F>, page: u64, generation: u64, rules: Rules) -> Checked<Touched> {
    through(page, generation, |address, word| process.store(address, word, rules))
}

fn through(page: u64, generation: u64, access: impl Fn(u64, u64) -> Checked<Touched>) -> Checked<Touched> {
    let mut first = None;
    for place in places(generation) {
        let address = page * crate::mmu::PAGE + place;
        let touched = access(address, word(generation, place))?;
        let Some(before) = first else {
            if touched.refused {
                return Ok(touched);
            }
            first = Some(touched);
            continue;
        };
        let Touched { faults, code, .. } = touched;
        ensure!(
            faults == 0,
            "{address:#x} faults (code {code:#x}) after the page's first word was accessed: {before:?}"
        );
    }
    match first {
        Some(touched) => Ok(touched),
        None => Err(super::contradiction::Contradiction("a page without words".into())),
    }
}
