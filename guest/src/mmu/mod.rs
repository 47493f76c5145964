//! The experiment with page tables: `isotherm-pagetable` on this machine, its tables walked by the processor.
//!
//! | what | where |
//! |---|---|
//! | memory, frames | [`hardware`] |
//! | TLB: on x86-64 INVLPG, CR3, interrupts to the other processors; on arm64 TLBI | [`tlb`] |
//! | RCU | [`readers`] |
//! | loads and stores that may fault, and the page fault handler | [`access`] |
//! | an address space with this program in it | [`process`] |
//! | a process beside a naive account of its pages | [`subject`], [`operations`], [`contents`] |
//! | what is looked at | [`accessed`], [`forks`], [`permissions`], [`beside`], [`changed`], [`harvested`], [`random`] |
//! | contiguous blocks, folded and unfolded | [`contiguous`] |
//! | what only one kind of processor has | [`machine`] |
//! | duties left out to show that it is noticed | [`lapse`] |
//! | walks that are slow on purpose | [`linger`] |
//!
//! On x86-64 with 5 levels `boot.s` has switched to them, and the experiment is about `X86_64La57`, else about `X86_64`; on
//! arm64 it is about `Arm64Hafdbs`, whose processors set access flag and dirty state, and hold contiguous blocks as one.
//!
//! A processor may set accessed bits for accesses that it only speculates on (Intel SDM vol. 3, 4.8). QEMU's translator
//! does not, and there every page that nobody accessed must stay old. With KVM the experiment may find one that did not.

#[cfg_attr(target_arch = "x86_64", path = "x86_64/access.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/access.rs")]
mod access;
mod accessed;
mod beside;
mod changed;
mod contents;
mod contiguous;
pub mod contradiction;
mod figures;
mod forks;
pub mod hardware;
mod harvested;
mod lapse;
mod linger;
#[cfg_attr(target_arch = "x86_64", path = "x86_64/machine.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/machine.rs")]
mod machine;
mod operations;
mod permissions;
pub mod process;
mod random;
mod readers;
mod subject;
#[cfg_attr(target_arch = "x86_64", path = "x86_64/tlb.rs")]
#[cfg_attr(target_arch = "aarch64", path = "aarch64/tlb.rs")]
pub mod tlb;

pub use access::page_fault;

use crate::memory;
use alloc::string::String;
use contradiction::{Checked, ensure};
use isotherm_frames::FRAME_SIZE;
use isotherm_guest::command::Lapse;
use isotherm_guest::stamp::Random;
use isotherm_pagetable::{Attributes, Format};

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
    let done = checked_machine().and_then(|()| {
        figures::reset();
        lapse::set(lapse);
        let done = machine::measured(seed, operations);
        lapse::set(None);
        done
    });
    match done {
        Ok(levels) => Ok(alloc::format!("levels={levels} seed={seed}{}", figures::tell())),
        Err(found) => Err(found.0),
    }
}

fn checked_machine() -> Checked {
    machine::check()?;
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
    contiguous::run::<F>(&mut world)?;
    beside::run::<F>(&mut world)?;
    random::run::<F>(&mut world, operations)
}
