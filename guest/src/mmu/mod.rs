//! The experiment with page tables: `isotherm-pagetable` on this machine, its tables walked by the processor.
//!
//! | what | where |
//! |---|---|
//! | memory, frames | [`hardware`] |
//! | TLB: INVLPG, CR3, interrupts to the other processors | [`tlb`] |
//! | RCU | [`readers`] |
//! | loads and stores that may fault, and the page fault handler | [`access`] |
//! | an address space with this program in it | [`process`] |
//! | a process beside a naive account of its pages | [`subject`], [`operations`], [`contents`] |
//! | what is looked at | [`accessed`], [`forks`], [`permissions`], [`beside`], [`changed`], [`harvested`], [`random`] |
//! | duties left out to show that it is noticed | [`lapse`] |
//! | walks that are slow on purpose | [`linger`] |
//!
//! Where the processor has 5 levels, `boot.s` has switched to them, and the experiment is about [`X86_64La57`], else about
//! [`X86_64`].
//!
//! A processor may set accessed bits for accesses that it only speculates on (Intel SDM vol. 3, 4.8). QEMU's translator
//! does not, and there every page that nobody accessed must stay old. With KVM the experiment may find one that did not.

mod access;
mod accessed;
mod beside;
mod changed;
mod contents;
mod contradiction;
mod figures;
mod forks;
mod hardware;
mod harvested;
mod lapse;
mod linger;
mod operations;
mod permissions;
mod process;
mod random;
mod readers;
mod subject;
mod tlb;

pub use access::page_fault;

use crate::memory;
use alloc::string::String;
use contradiction::{Checked, ensure};
use isotherm_frames::FRAME_SIZE;
use isotherm_guest::command::Lapse;
use isotherm_guest::stamp::Random;
use isotherm_pagetable::{Attributes, Format, X86_64, X86_64La57};
use x86_64::registers::control::{Cr0, Cr0Flags, Cr4, Cr4Flags};

/// Bytes of a page.
const PAGE: u64 = isotherm_pagetable::PAGE_SIZE;
/// Pages of a subject.
const PAGES: usize = 2048;
/// Pages of a huge leaf.
const PER_LEAF: usize = 512;
/// What the experiment needs: on two processors four processes
/// each with every page of their own, and tables.
const NEEDED: u64 = 80 << 20;

/// Anonymous memory that nobody has accessed yet.
const OLD: Attributes = Attributes { young: false, dirty: false, ..Attributes::anonymous() };

/// What the parts of the experiment have in common.
struct World {
    random: Random,
    generations: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        Self { random: Random::new(seed), generations: 0 }
    }

    /// Contents that no page had before.
    fn generation(&mut self) -> u64 {
        self.generations += 1;
        self.generations
    }
}

/// Does all of it: what does not depend on `operations`, and so many random operations. Returns what it counted.
///
/// # Errors
/// The first contradiction, or that the machine is not one it can be done on, in words.
pub fn run(seed: u64, operations: u64, lapse: Option<Lapse>) -> Result<String, String> {
    let flags = (Cr0::read(), Cr4::read());
    let levels = if flags.1.contains(Cr4Flags::L5_PAGING) { 5 } else { 4 };
    let refused = checked_machine(flags).and_then(|()| {
        figures::reset();
        lapse::set(lapse);
        let done = match levels {
            5 => measured::<X86_64La57>(seed, operations),
            _ => measured::<X86_64>(seed, operations),
        };
        lapse::set(None);
        done
    });
    match refused {
        Ok(()) => Ok(alloc::format!("levels={levels} seed={seed}{}", figures::tell())),
        Err(found) => Err(found.0),
    }
}

fn checked_machine((cr0, cr4): (Cr0Flags, Cr4Flags)) -> Checked {
    ensure!(
        cr0.contains(Cr0Flags::WRITE_PROTECT),
        "CR0.WP is clear: this program could write read-only pages"
    );
    let hidden = Cr4Flags::PCID
        | Cr4Flags::SUPERVISOR_MODE_ACCESS_PREVENTION
        | Cr4Flags::SUPERVISOR_MODE_EXECUTION_PROTECTION;
    ensure!(!cr4.intersects(hidden), "CR4 has more set than this program did: {cr4:?}");
    let needed = NEEDED + memory::RESERVE.min * FRAME_SIZE;
    let free = memory::zone().free_frames() * FRAME_SIZE;
    ensure!(free >= needed, "{free} bytes are free, and {needed} are needed; free some");
    Ok(())
}

/// All frames must be back at the end, of an experiment that finds a contradiction too, as far as it can tell.
fn measured<F: Format>(seed: u64, operations: u64) -> Checked {
    let before = memory::free_bytes();
    let running = hardware::Running;
    let done = parts::<F>(seed, operations);
    let settled = hardware::HARDWARE.settle();
    let lost = hardware::lost();
    drop(running);
    done?;
    settled?;
    let after = memory::free_bytes();
    ensure!(lost == 0 && after == before, "of {before} free bytes {} are back", after - lost);
    Ok(())
}

fn parts<F: Format>(seed: u64, operations: u64) -> Checked {
    let mut world = World::new(seed);
    accessed::run::<F>(&mut world)?;
    forks::run::<F>(&mut world)?;
    permissions::run::<F>(&mut world)?;
    beside::run::<F>(&mut world)?;
    random::run::<F>(&mut world, operations)
}
