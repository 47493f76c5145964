//! Where physical memory is mapped.
//!
//! Page tables hold physical addresses; the kernel reads them through its direct map, whose base is randomised at
//! boot and exported nowhere. It can be found, and it must be *proved*: with a wrong base the program reads some other
//! memory as if it were page tables.
//!
//! Candidates are all multiples of 1 GiB at or below the address `P` of this process's own page table. One is taken if it
//! passes two tests:
//! 1. The direct map is itself mapped by the page table: looked up through the candidate `B`, `P` must be found at the
//!    physical address `P - B`. Almost every wrong candidate fails here. Yet it is no proof: where a wrong one leads to memory
//!    that holds, say, the number 0xff, that reads as a leaf of 1 GiB at physical address 0, and `P` is found in it where it
//!    is expected. What lies there changes by the minute.
//! 2. A page of this process is filled with numbers made for the occasion. Its own address is looked up through the candidate,
//!    and what lies at the frame found is read, through the candidate again. Only the right base leads to those very 4096
//!    bytes.
//!
//! The depth of the tables (4 or 5 levels) is proved by the same tests.

use super::{Entry, Read, Request, Slot, WalkError, Walked, Walker};
use std::hash::{BuildHasher, RandomState};
use std::io;

const GIB: u64 = 1 << 30;

/// So often a page is looked for that the kernel may move to another frame between two runs (compaction).
const TRIES: u32 = 8;

/// A page of numbers that no other page holds. None has bit 0, so that none is taken for a present entry.
#[repr(C, align(4096))]
struct Known([u64; 512]);

impl Known {
    fn new() -> Box<Self> {
        let random = RandomState::new();
        let mut page = Box::new(Self([0; 512]));
        for (word, index) in page.0.iter_mut().zip(0u64..) {
            *word = random.hash_one(index) & !1;
        }
        page
    }

    fn addr(&self) -> u64 {
        std::ptr::from_ref(self) as u64
    }
}

impl Walker {
    /// Finds the base of the direct map and the depth of the tables.
    pub(super) fn prove_direct_map(&mut self) -> Result<(), WalkError> {
        let refused = |source| WalkError::Refused { what: "to run the program", source, log: String::new() };
        let pgd = self.run(Read::Nothing, -1, 0).map_err(refused)?.pgd;
        let known = Known::new();
        // Physical addresses start at 0 and end, holes included, at no more than the processor's address bits.
        let candidates = (self.phys_mask + 1).div_ceil(GIB).min(1 << 17);
        let top = pgd & !(GIB - 1);
        for levels in [4, 5] {
            self.levels = levels;
            for candidate in 0..candidates {
                let Some(base) = top.checked_sub(candidate * GIB).filter(|b| b >> 63 == 1) else { break };
                self.page_offset = base;
                if self.physical(pgd, pgd).map_err(refused)? == Some(pgd - base)
                    && self.finds(&known, pgd).map_err(refused)?
                {
                    return Ok(());
                }
            }
        }
        Err(WalkError::NoDirectMap(2 * candidates))
    }

    /// The physical address that the table at `pgd` maps `addr` to.
    fn physical(&mut self, pgd: u64, addr: u64) -> io::Result<Option<u64>> {
        let shared = self.shared.get_mut();
        shared.addr[0] = addr;
        shared.slot[0] = Slot::default();
        self.run(Read::Entries(1), -1, pgd)?;
        Ok(match self.shared.get().slot[0].decode(self.phys_mask) {
            Entry::Leaf { size, pfn, .. } => Some((pfn << 12) + (addr & (size - 1))),
            _ => None,
        })
    }

    /// Whether the page is found at the frame that the tables name for it.
    fn finds(&mut self, known: &Known, pgd: u64) -> io::Result<bool> {
        for _ in 0..TRIES {
            // While the kernel moves it there is none: also with the right base.
            let Some(frame) = self.physical(pgd, known.addr())? else {
                std::thread::yield_now();
                continue;
            };
            let page = self.page_offset.wrapping_add(frame);
            // Read as if it were a root table: that one is copied whole, whatever it holds.
            let request = Request { addr: 0, entry: 0, want: self.levels, found: 0 };
            self.shared.get_mut().request[0] = request;
            let walked = self.run(Read::Tables(1), -1, page)?.walked();
            let shared = self.shared.get();
            let copied = shared.request[0].found == 32 + self.levels;
            if matches!(walked, Walked::Done { .. }) && copied && shared.table[0] == known.0 {
                return Ok(true);
            }
            std::thread::yield_now();
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::types::Types;
    use super::super::TYPES;
    use super::*;

    #[test]
    fn at_every_other_base_the_page_is_not_found() {
        let loaded = Types::of_kernel(&TYPES).and_then(|kernel| Walker::load(&kernel));
        let Ok(mut walker) = loaded else {
            println!("skipped: needs root and BPF");
            return;
        };
        let pgd = walker.run(Read::Nothing, -1, 0).expect("a run").pgd;
        let known = Known::new();
        let right = walker.page_offset;
        assert!(walker.finds(&known, pgd).expect("a run"), "at the base that was proved");
        // From behind the end of physical memory down to where it begins, and as far below.
        for distance in (-64..64_i64).filter(|distance| *distance != 0) {
            walker.page_offset = right.wrapping_add_signed(distance * GIB as i64);
            assert!(!walker.finds(&known, pgd).expect("a run"), "{distance} GiB from the base");
        }
    }
}
