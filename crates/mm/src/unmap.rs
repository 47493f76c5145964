//! What takes VMAs out of the tree.

use isotherm_maple::Reserve;

use crate::contents::Contents;
use crate::error::Error;
use crate::flags::{PAGE_SIZE, VmFlags};
use crate::space::Platform;
use crate::vma::{Desc, VmaPtr};
use crate::writing::{Spare, Writing};

impl<P: Platform> Writing<'_, P> {
    /// Takes everything out of a range (`do_vmi_align_munmap`).
    pub(crate) fn unmap(&mut self, start: u64, end: u64) -> Result<(), Error> {
        self.unmap_with(start, end, None)
    }

    /// The same; with what was put aside for two stores, and room for a place more in the reverse map of the first VMA's object,
    /// it does not fail for want of memory.
    pub(crate) fn unmap_with(
        &mut self,
        start: u64,
        end: u64,
        mut spare: Option<Spare<P>>,
    ) -> Result<(), Error> {
        // Only what reaches out at both ends is split in a reverse map: one object's.
        let object = self.first_in(start, end).and_then(|vma| vma.object()).filter(|_| spare.is_none());
        let reserved = self.reserve(object, 1);
        let done = reserved.and_then(|()| {
            let done = self.try_unmap(start, end, &mut spare);
            self.unreserve(object, 1);
            done
        });
        self.give_back(spare);
        done
    }

    fn try_unmap(&mut self, start: u64, end: u64, spare: &mut Option<Spare<P>>) -> Result<(), Error> {
        let Some(first) = self.first_in(start, end) else { return Ok(()) };
        let hole = first.start() < start && first.end() > end;
        if hole && self.space.usage().maps >= self.space.config.limits.maps {
            return Err(Error::Limit);
        }
        let mut at = start;
        while let Some(vma) = self.first_in(at, end) {
            self.split_contents(vma, start, end)?;
            at = vma.end();
        }
        // A stack above must not grow into the range while its tables are freed (patch 20 of the seed).
        if let Some(above) = self.first_in(end, self.space.config.end)
            && above.flags().contains(VmFlags::GROWSDOWN)
        {
            self.start_write(above);
        }
        if hole {
            let whole = first.desc();
            let Spare { vma: above, nodes } = match spare.take() {
                Some(spare) => spare,
                None => self.spare(&whole, 2)?,
            };
            let Ok(mut reserved) = self.tree.reserve_from(nodes, 2) else {
                self.free(above);
                return Err(Error::NoMemory);
            };
            reserved.store(end..=whole.end - 1, above);
            reserved.erase_range(start..=end - 1);
            drop(reserved);
            self.set(above, &whole.part(end, whole.end));
            self.set(first, &whole.part(whole.start, start));
            self.space.usage.maps(1);
            let gone = whole.part(start, end);
            self.space.usage.pages(whole.flags, -(gone.pages() as i64));
            self.unmap_contents(start, end, &mut core::iter::once(gone));
        } else {
            let nodes = spare.as_mut().map(|spare| core::mem::take(&mut spare.nodes));
            self.take_out(start, end, nodes)?;
        }
        Ok(())
    }

    /// What lies behind VMAs, or parts of them, goes, which have been taken out of the range.
    fn unmap_contents(&mut self, start: u64, end: u64, gone: &mut dyn Iterator<Item = Desc>) {
        // Without memory for it marks stay, which harms nobody: see `src/userfault.rs`.
        let _ = self.unmark(&(start..end));
        // Tables are shared with what lies beside, up to which all is free (`free_pgtables`).
        let below = self.before(start).map_or(0, |vma| vma.end());
        let above = self.first_in(end, u64::MAX).map_or(!(PAGE_SIZE - 1), |vma| vma.start());
        let mut gone = gone.map(|desc| desc.info());
        self.space.contents.unmap(&self.held, &mut gone, start..end, below..above);
    }

    /// Takes out VMAs, the first and last perhaps in part, but none at both ends.
    fn take_out(&mut self, start: u64, end: u64, nodes: Option<Reserve<P::Alloc>>) -> Result<(), Error> {
        let low = self.at(start).filter(|vma| vma.start() < start);
        let high = self.at(end - 1).filter(|vma| vma.end() > end);
        let mut whole = None;
        let mut at = start;
        while let Some(vma) = self.first_in(at, end) {
            at = vma.end();
            if vma.start() >= start && at <= end {
                vma.push(&mut whole);
            }
        }
        match nodes.map(|nodes| self.tree.reserve_from(nodes, 1)) {
            Some(Ok(mut reserved)) => reserved.erase_range(start..=end - 1),
            _ => self.tree.erase_range(start..=end - 1)?,
        }
        let low = low.map(|vma| {
            self.shrink(vma, |whole| (whole.part(whole.start, start), whole.part(start, whole.end)))
        });
        let high = high
            .map(|vma| self.shrink(vma, |whole| (whole.part(end, whole.end), whole.part(whole.start, end))));
        let all = VmaPtr::each(whole).map(|vma| vma.desc());
        self.unmap_contents(start, end, &mut low.into_iter().chain(all).chain(high));
        while let Some(vma) = VmaPtr::pop(&mut whole) {
            self.space.usage.pages(vma.flags(), -(vma.pages() as i64));
            self.detach(vma);
        }
        Ok(())
    }

    /// Cuts a VMA into what is left and what goes; the latter.
    fn shrink(&self, vma: VmaPtr, cut: impl Fn(&Desc) -> (Desc, Desc)) -> Desc {
        let (rest, gone) = cut(&vma.desc());
        self.space.usage.pages(gone.flags, -(gone.pages() as i64));
        self.set(vma, &rest);
        gone
    }
}
