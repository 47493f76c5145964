//! What QEMU's device tree says of the machine: RAM, and how many processors there are (Devicetree Specification, chapter 5).

use super::boot::RAM;
use super::power::{End, end};
use isotherm_guest::ram::RamMap;

const MAGIC: u32 = 0xd00d_feed;
const BEGIN_NODE: u32 = 1;
const END_NODE: u32 = 2;
const PROPERTY: u32 = 3;
const NOTHING: u32 = 4;
/// No tree of QEMU's is as large, in bytes.
const MOST: u64 = 2 << 20;

/// What is read of it.
pub struct Tree {
    pub ram: RamMap,
    pub cpus: usize,
}

fn word(at: u64) -> u32 {
    // SAFETY: RAM below this program, which QEMU has filled and nobody writes to.
    u32::from_be(unsafe { (at as *const u32).read_volatile() })
}

fn starts_with(at: u64, text: &str) -> bool {
    // SAFETY: as in `word`.
    text.bytes().zip(at..).all(|(byte, at)| unsafe { (at as *const u8).read_volatile() } == byte)
}

fn length(at: u64) -> u64 {
    // SAFETY: as in `word`.
    (at..at + MOST).take_while(|&at| unsafe { (at as *const u8).read_volatile() } != 0).count() as u64
}

/// The tree at the start of RAM, of which addresses and sizes are two cells each, as QEMU makes them.
pub fn read() -> Tree {
    let mut tree = Tree { ram: RamMap::new(), cpus: 0 };
    if word(RAM) != MAGIC {
        crate::line!("unfit: no device tree at {RAM:#x}; boot with QEMU's -machine virt and -kernel");
        end(End::Unfit);
    }
    let (structure, strings) = (RAM + u64::from(word(RAM + 8)), RAM + u64::from(word(RAM + 12)));
    let (mut at, mut depth, mut memory) = (structure, 0, false);
    while at < structure + MOST {
        let token = word(at);
        at += 4;
        match token {
            BEGIN_NODE => {
                depth += 1;
                memory = depth == 2 && starts_with(at, "memory@");
                tree.cpus += usize::from(depth == 3 && starts_with(at, "cpu@"));
                at = (at + length(at) + 1).next_multiple_of(4);
            }
            END_NODE => {
                depth -= 1;
                memory = false;
            }
            PROPERTY => {
                let (bytes, name) = (u64::from(word(at)), strings + u64::from(word(at + 4)));
                at += 8;
                if memory && starts_with(name, "reg\0") {
                    let cell = |n: u64| u64::from(word(at + 8 * n)) << 32 | u64::from(word(at + 8 * n + 4));
                    (0..bytes / 16).for_each(|n| tree.ram.add(cell(2 * n), cell(2 * n + 1)));
                }
                at = (at + bytes).next_multiple_of(4);
            }
            NOTHING => {}
            _ => break,
        }
    }
    tree
}
