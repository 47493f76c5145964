//! Looks at whole page tables, for the sampler that plans what to clear.

use alloc::vec::Vec;
use core::ops::Deref;

use isotherm_damon::{
    BLOCK_PAGES, BLOCK_SIZE, BlockLook, BlockOperations, Cleared, Mapped, Ownership, Pages, RangeClear,
    Sweep, TargetId,
};
use isotherm_pagetable::{Format, Level, Machine, Mapping, PageRange, Slot, VirtAddr};

use super::Spaces;
use crate::object::Objects;
use crate::paged::Paged;
use crate::space::{AddressSpace, Platform};

impl<'m, S, P, F, M, O> BlockOperations for Spaces<S>
where
    S: Deref<Target = AddressSpace<P>>,
    P: Platform<Contents = Paged<'m, F, M, O>>,
    F: Format + 'm,
    M: Machine + 'm,
    O: Objects<'m, F, M>,
{
    fn survey(&mut self, target: TargetId, blocks: &mut Vec<u64>) -> bool {
        blocks.clear();
        let Some(watched) = self.get(target) else { return false };
        let contents = watched.space.contents();
        let Some(all) = contents.mm().all() else { return false };
        let done = contents.mm().tables.runs(all, |run| {
            if let Mapping::Page { .. } = run.mapping {
                let end = run.at.0 + run.pages * crate::PAGE_SIZE;
                for block in (run.at.0 & !(BLOCK_SIZE - 1)..end).step_by(BLOCK_SIZE as usize) {
                    if blocks.last() != Some(&block) {
                        blocks.push(block);
                    }
                }
            }
        });
        done.is_ok()
    }

    fn look(&mut self, target: TargetId, blocks: &mut [BlockLook]) -> bool {
        let Some(watched) = self.get(target) else { return false };
        let tables = &watched.space.contents().mm().tables;
        for look in blocks {
            *look = BlockLook::at(look.addr);
            let Ok(range) = PageRange::with_pages(VirtAddr(look.addr), BLOCK_PAGES as u64) else { continue };
            look.mapped = Mapped::Absent;
            let done = tables.runs(range, |run| {
                let Mapping::Page { level, attributes, .. } = run.mapping else { return };
                look.mapped = if level == Level::Pte { Mapped::Table } else { Mapped::Huge };
                let first = (run.at.page() - range.start().page()) as usize;
                for page in first..first + run.pages as usize {
                    look.present.insert(page);
                    if attributes.young {
                        look.young.insert(page);
                    }
                    if attributes.write {
                        look.writable.insert(page);
                    }
                }
            });
            if done.is_err() {
                *look = BlockLook::at(look.addr);
            }
            debug_assert!(look.mapped != Mapped::Huge || look.present == Pages::ALL);
        }
        true
    }

    fn clear(&mut self, target: TargetId, ranges: &mut [RangeClear]) {
        let Some(watched) = self.get(target) else { return };
        let tables = &watched.space.contents().mm().tables;
        let mut slots = [Slot::default(); 1];
        // Dropped, it flushes.
        let mut gather = tables.gather(&mut slots);
        for clear in ranges {
            if let Ok(range) = PageRange::new(clear.range.start, clear.range.end)
                && tables.clear_flush_young(range, &mut [], &mut gather).is_ok()
            {
                clear.cleared = Cleared::Done;
            }
        }
    }

    /// Each space has bits of its own, so all can be cleared alone.
    fn ownership(&mut self, target: TargetId, addrs: &[u64], found: &mut Vec<Ownership>) {
        found.clear();
        let watched = self.get(target);
        found.extend(addrs.iter().map(|&at| {
            let mapping = watched.map(|one| one.space.contents().mm().tables.read().lookup(VirtAddr(at)));
            match mapping {
                Some(Mapping::Page { .. }) => Ownership::Exclusive,
                _ => Ownership::Unknown,
            }
        }));
    }

    fn sweep(&mut self, target: TargetId, kind: Sweep) -> bool {
        let Some(watched) = self.get(target) else { return false };
        let mut done = true;
        watched.space.for_each(0..u64::MAX, |vma| {
            let wanted = match kind {
                Sweep::Anonymous => vma.object.is_none(),
                Sweep::Mapped => vma.object.is_some(),
                Sweep::All => true,
            };
            if let Ok(range) = PageRange::new(vma.start, vma.end)
                && wanted
            {
                done &= watched.space.contents().mm().tables.clear_young(range).is_ok();
            }
        });
        done
    }

    fn mappings(&mut self, target: TargetId) -> Option<usize> {
        let maps = self.get(target)?.space.usage().maps;
        Some(usize::try_from(maps).unwrap_or(usize::MAX))
    }
}
