//! An address space with `mmap_lock` held for writing, and the steps that operations are made of.

use core::ops::Range;

use isotherm_maple::{Reserve, Writer};
use isotherm_rcu::Reclaim;

use crate::config::VmaLocking;
use crate::contents::{Contents, Held};
use crate::error::Error;
use crate::flags::{PAGE_SHIFT, VmFlags};
use crate::merge::{self, Merge};
use crate::mmap_lock::MmapLock;
use crate::space::{AddressSpace, Platform};
use crate::usage::is_data;
use crate::vma::{Desc, ObjectId, VmaPtr};

/// `mmap_lock` held for writing. When it is dropped, all VMAs are unlocked at once, and those that were taken out are freed
/// after a grace period.
pub(crate) struct Writing<'a, P: Platform + 'a> {
    pub(crate) space: &'a AddressSpace<P>,
    pub(crate) tree: Writer<'a, VmaPtr, P::Rcu, P::Alloc>,
    /// For the contents, of VMAs that are write-locked.
    pub(crate) held: Held<'a>,
    detached: Option<VmaPtr>,
    /// Released last.
    _lock: <P::Lock as MmapLock>::Write<'a>,
}

/// What an insertion or an [`unmap`](Writing::unmap_with) needs, put aside so that it cannot fail.
pub(crate) struct Spare<P: Platform> {
    pub(crate) vma: VmaPtr,
    pub(crate) nodes: Reserve<P::Alloc>,
}

impl<'a, P: Platform> Writing<'a, P> {
    pub(crate) const fn new(
        space: &'a AddressSpace<P>,
        tree: Writer<'a, VmaPtr, P::Rcu, P::Alloc>,
        lock: <P::Lock as MmapLock>::Write<'a>,
    ) -> Self {
        Self { space, tree, held: Held::new(&space.lock.0), detached: None, _lock: lock }
    }

    /// The VMA that an address lies in.
    pub(crate) fn at(&self, address: u64) -> Option<VmaPtr> {
        self.tree.get(address)
    }

    /// The first VMA that has an address in the range.
    pub(crate) fn first_in(&self, start: u64, end: u64) -> Option<VmaPtr> {
        if start >= end {
            return None;
        }
        self.tree.find(start..=end - 1).map(|found| found.value)
    }

    /// The last VMA that begins below an address.
    pub(crate) fn before(&self, address: u64) -> Option<VmaPtr> {
        self.tree.find_back(0..=address.checked_sub(1)?).map(|found| found.value)
    }

    /// The VMA that ends just at an address.
    pub(crate) fn ending_at(&self, address: u64) -> Option<VmaPtr> {
        self.at(address.checked_sub(1)?).filter(|vma| vma.end() == address)
    }

    /// The VMA that begins just at an address.
    pub(crate) fn starting_at(&self, address: u64) -> Option<VmaPtr> {
        self.at(address).filter(|vma| vma.start() == address)
    }

    /// `vma_start_write`.
    pub(crate) fn start_write(&self, vma: VmaPtr) {
        vma.start_write(&self.space.seq, &self.space.slots, |tries| self.space.lock.relax(tries));
    }

    /// Whether memory of VMAs is used again without a grace period.
    fn reuses(&self) -> bool {
        self.space.config.vma_lock == VmaLocking::Counted
    }

    /// Gives a VMA back that was made under this hold of the lock, and is in no tree.
    pub(crate) fn free(&self, vma: VmaPtr) {
        if self.reuses() {
            vma.mark_detached();
            self.retire(vma);
        } else {
            // SAFETY: nobody has ever found it.
            unsafe { vma.free::<P::Alloc>() };
        }
    }

    /// The memory of a VMA that is in no tree any more is kept for the next one, or given back after a grace period.
    fn retire(&self, vma: VmaPtr) {
        let relax = |tries| self.space.lock.relax(tries);
        self.space.stats.add_success(vma.all_entries(relax));
        if self.reuses() {
            vma.drop_reference(relax);
            // SAFETY: `mmap_lock` is held for writing, and nobody refers to the VMA.
            if unsafe { self.space.pool.put(vma) } {
                return;
            }
        }
        // SAFETY: it is in no tree, and comes here once, so no new reader finds it; its memory is the allocator's.
        unsafe { self.space.tree.rcu().defer(vma.head(), VmaPtr::free_head::<P::Alloc>) };
    }

    /// Changes a VMA that is write-locked.
    pub(crate) fn set(&self, vma: VmaPtr, desc: &Desc) {
        debug_assert!(vma.is_write_locked(&self.space.seq), "a VMA is changed that is not write-locked");
        vma.set(desc);
    }

    /// Sets the flags of a whole VMA.
    fn set_flags(&self, vma: VmaPtr, flags: VmFlags) {
        self.start_write(vma);
        self.set(vma, &Desc { flags, ..vma.desc() });
    }

    /// A VMA that was taken out of the tree, or is about to be, under this hold of the lock.
    pub(crate) fn detach(&mut self, vma: VmaPtr) {
        self.start_write(vma);
        vma.mark_detached();
        vma.push(&mut self.detached);
        self.space.usage.maps(-1);
    }

    fn new_vma(&self, desc: &Desc) -> Result<VmaPtr, Error> {
        // SAFETY: `mmap_lock` is held for writing.
        if let Some(vma) = unsafe { self.space.pool.take() } {
            vma.renew(desc, &self.space.seq);
            return Ok(vma);
        }
        let vma = VmaPtr::new::<P::Alloc>(desc).ok_or(Error::NoMemory)?;
        // Nobody else knows it; but what follows its insertion is to come before the first fault.
        self.start_write(vma);
        Ok(vma)
    }

    /// Puts aside what so many stores need, also after the tree has grown by a store or two, and a VMA.
    pub(crate) fn spare(&self, desc: &Desc, stores: usize) -> Result<Spare<P>, Error> {
        Ok(Spare { nodes: self.nodes(stores)?, vma: self.new_vma(desc)? })
    }

    /// Puts aside what so many stores need.
    pub(crate) fn nodes(&self, stores: usize) -> Result<Reserve<P::Alloc>, Error> {
        let mut nodes = Reserve::new();
        nodes.fill(self.space.tree.levels() + 2, stores)?;
        Ok(nodes)
    }

    fn store(
        &mut self,
        range: Range<u64>,
        vma: VmaPtr,
        nodes: Option<Reserve<P::Alloc>>,
    ) -> Result<(), Error> {
        let range = range.start..=range.end - 1;
        if let Some(nodes) = nodes
            && let Ok(mut reserved) = self.tree.reserve_from(nodes, 1)
        {
            reserved.store(range, vma);
            return Ok(());
        }
        Ok(self.tree.store(range, vma)?)
    }

    /// Whether so many pages more of these flags are within the limits (`may_expand_vm`).
    pub(crate) fn may_expand(&self, flags: VmFlags, pages: i64) -> bool {
        let (usage, limits) = (self.space.usage(), &self.space.config.limits);
        usage.total.saturating_add_signed(pages) <= limits.address_space >> PAGE_SHIFT
            && !(is_data(flags) && usage.data.saturating_add_signed(pages) > limits.data >> PAGE_SHIFT)
    }

    /// Whether so many pages more may be locked (`mlock_future_ok`).
    pub(crate) fn may_lock(&self, flags: VmFlags, pages: u64) -> bool {
        let limit = self.space.config.limits.locked >> PAGE_SHIFT;
        !flags.contains(VmFlags::LOCKED) || self.space.usage().locked.saturating_add(pages) <= limit
    }

    /// Puts a new mapping into the gap that is there for it: a neighbour grows over it, or it becomes a VMA of its own. The
    /// counts of pages are the caller's.
    pub(crate) fn insert(&mut self, new: &Desc, mut spare: Option<Spare<P>>) -> Result<VmaPtr, Error> {
        let (prev, next) = (self.ending_at(new.start), self.starting_at(new.end));
        let merge = merge::of_range(new, prev.map(|vma| vma.desc()), next.map(|vma| vma.desc()));
        let done = self.insert_as(new, merge, prev, next, &mut spare);
        if let Some(left) = spare.filter(|spare| done != Ok(spare.vma)) {
            self.free(left.vma);
        }
        done
    }

    fn insert_as(
        &mut self,
        new: &Desc,
        merge: Merge,
        prev: Option<VmaPtr>,
        next: Option<VmaPtr>,
        spare: &mut Option<Spare<P>>,
    ) -> Result<VmaPtr, Error> {
        let nodes = spare.as_mut().map(|spare| core::mem::take(&mut spare.nodes));
        match (merge, prev, next) {
            (Merge::Both, Some(prev), Some(next)) => {
                self.start_write(prev);
                self.start_write(next);
                let (before, after) = (prev.desc(), next.desc());
                self.store(before.start..after.end, prev, nodes)?;
                let anon = before.anon.or(after.anon).or(new.anon);
                self.set(prev, &Desc { end: after.end, anon, ..before });
                self.detach(next);
                Ok(prev)
            }
            (Merge::Prev | Merge::Both, Some(prev), _) => {
                self.start_write(prev);
                let before = prev.desc();
                self.store(before.start..new.end, prev, nodes)?;
                self.set(prev, &Desc { end: new.end, anon: before.anon.or(new.anon), ..before });
                Ok(prev)
            }
            (Merge::Next, _, Some(next)) => {
                self.start_write(next);
                let after = next.desc();
                self.store(new.start..after.end, next, nodes)?;
                let anon = after.anon.or(new.anon);
                self.set(next, &Desc { start: new.start, pgoff: new.pgoff, anon, ..after });
                Ok(next)
            }
            _ => {
                let vma = match spare {
                    Some(spare) => spare.vma,
                    None => self.new_vma(new)?,
                };
                self.set(vma, new);
                if let Err(error) = self.store(new.start..new.end, vma, nodes) {
                    if spare.is_none() {
                        self.free(vma);
                    }
                    return Err(error);
                }
                self.space.usage.maps(1);
                Ok(vma)
            }
        }
    }

    /// Gives back what was put aside.
    pub(crate) fn give_back(&self, spare: Option<Spare<P>>) {
        if let Some(spare) = spare {
            self.free(spare.vma);
        }
    }

    /// The heap grows: over what ends where it begins if that is alike, else it is a VMA of its own. It does not merge with
    /// what lies behind.
    pub(crate) fn insert_heap(&mut self, new: &Desc) -> Result<(), Error> {
        let prev = self.ending_at(new.start);
        let merge = merge::of_range(new, prev.map(|vma| vma.desc()), None);
        self.insert_as(new, merge, prev, None, &mut None).map(drop)
    }

    /// Makes room in an object's reverse map, if it is one's.
    pub(crate) fn reserve(&self, object: Option<ObjectId>, more: usize) -> Result<(), Error> {
        object.map_or(Ok(()), |object| self.space.contents.reserve(&self.held, object, more))
    }

    pub(crate) fn unreserve(&self, object: Option<ObjectId>, more: usize) {
        if let Some(object) = object {
            self.space.contents.unreserve(&self.held, object, more);
        }
    }

    /// What was mapped is in its object's reverse map, if it is one's. Room is reserved.
    pub(crate) fn attach(&self, new: &Desc) {
        if new.object.is_some() {
            self.space.contents.attach(&self.held, &new.info());
        }
    }

    /// Grows a VMA over the gap behind it (`vma_merge_extend`), and over the next VMA if they adjoin and are alike
    /// then.
    pub(crate) fn extend(&mut self, vma: VmaPtr, end: u64) -> Result<(), Error> {
        let this = vma.desc();
        let new = Desc { start: this.end, end, pgoff: this.pgoff + this.pages(), ..this };
        let next = self.starting_at(end);
        let merge = match merge::of_range(&new, Some(this), next.map(|vma| vma.desc())) {
            Merge::Both => Merge::Both,
            _ => Merge::Prev,
        };
        self.reserve(new.object, 1)?;
        let done = self.insert_as(&new, merge, Some(vma), next, &mut None);
        if done.is_ok() {
            self.attach(&new);
        }
        self.unreserve(new.object, 1);
        done.map(drop)
    }

    /// Grows a stack over the gap below it, with what was put aside for a store.
    pub(crate) fn extend_down(
        &mut self,
        vma: VmaPtr,
        start: u64,
        nodes: Reserve<P::Alloc>,
    ) -> Result<(), Error> {
        self.start_write(vma);
        let this = vma.desc();
        self.store(start..this.end, vma, Some(nodes))?;
        let grown = (this.start - start) >> PAGE_SHIFT;
        self.set(vma, &Desc { start, pgoff: this.pgoff.wrapping_sub(grown), ..this });
        Ok(())
    }

    /// Splits a VMA at an address within it. Its own object keeps the part above if `new_below`, else the one below
    /// (`split_vma`).
    fn split(&mut self, vma: VmaPtr, at: u64, new_below: bool) -> Result<(), Error> {
        if self.space.usage().maps >= self.space.config.limits.maps {
            return Err(Error::Limit);
        }
        self.start_write(vma);
        let whole = vma.desc();
        let (low, high) = (whole.part(whole.start, at), whole.part(at, whole.end));
        let (ours, others) = if new_below { (high, low) } else { (low, high) };
        let new = self.new_vma(&others)?;
        if let Err(error) = self.store(others.start..others.end, new, None) {
            self.free(new);
            return Err(error);
        }
        self.set(vma, &ours);
        self.space.usage.maps(1);
        Ok(())
    }

    /// Splits a VMA at two addresses within it, or not at all; its own object keeps the part in the middle.
    fn split_twice(&mut self, vma: VmaPtr, start: u64, end: u64) -> Result<(), Error> {
        if self.space.usage().maps.saturating_add(1) >= self.space.config.limits.maps {
            return Err(Error::Limit);
        }
        self.start_write(vma);
        let whole = vma.desc();
        let (low, high) = (whole.part(whole.start, start), whole.part(end, whole.end));
        let Spare { vma: above, nodes } = self.spare(&high, 2)?;
        let below = self.new_vma(&low);
        match (below, self.tree.reserve_from(nodes, 2)) {
            (Ok(below), Ok(mut reserved)) => {
                reserved.store(low.start..=low.end - 1, below);
                reserved.store(high.start..=high.end - 1, above);
            }
            (below, _) => {
                for vma in below.into_iter().chain([above]) {
                    self.free(vma);
                }
                return Err(Error::NoMemory);
            }
        }
        self.set(vma, &whole.part(start, end));
        self.space.usage.maps(2);
        Ok(())
    }

    /// Nothing that is mapped as one reaches across the borders of a part of a VMA (`vma_adjust_trans_huge`).
    pub(crate) fn split_contents(&self, vma: VmaPtr, start: u64, end: u64) -> Result<(), Error> {
        self.start_write(vma);
        let contents = &self.space.contents;
        if start > vma.start() {
            contents.split(&self.held, start)?;
        }
        if end < vma.end() { contents.split(&self.held, end) } else { Ok(()) }
    }

    /// Gives the part of a VMA other flags (`vma_modify_flags`): neighbours that are alike then grow over it, else it is
    /// split off. All that is written is write-locked before.
    pub(crate) fn modify(&mut self, vma: VmaPtr, start: u64, end: u64, flags: VmFlags) -> Result<(), Error> {
        self.split_contents(vma, start, end)?;
        let whole = vma.desc();
        let part = Desc { flags, ..whole.part(start, end) };
        let prev = self.ending_at(start).filter(|_| start == whole.start);
        let next = self.starting_at(end).filter(|_| end == whole.end);
        let merge = merge::of_range(&part, prev.map(|vma| vma.desc()), next.map(|vma| vma.desc()));
        let rest_below = whole.part(whole.start, start);
        let rest_above = whole.part(end, whole.end);
        match (merge, prev, next) {
            (Merge::Both, Some(prev), Some(next)) => {
                self.start_write(prev);
                self.start_write(vma);
                self.start_write(next);
                let (before, after) = (prev.desc(), next.desc());
                self.store(before.start..after.end, prev, None)?;
                let anon = before.anon.or(after.anon).or(whole.anon);
                self.set(prev, &Desc { end: after.end, anon, ..before });
                self.detach(vma);
                self.detach(next);
            }
            (Merge::Prev, Some(prev), _) => {
                self.start_write(prev);
                self.start_write(vma);
                let before = prev.desc();
                self.store(before.start..end, prev, None)?;
                self.set(prev, &Desc { end, anon: before.anon.or(whole.anon), ..before });
                self.shrink_or_detach(vma, &rest_above);
            }
            (Merge::Next, _, Some(next)) => {
                self.start_write(vma);
                self.start_write(next);
                let after = next.desc();
                self.store(start..after.end, next, None)?;
                let anon = after.anon.or(whole.anon);
                self.set(next, &Desc { start, pgoff: part.pgoff, anon, ..after });
                self.shrink_or_detach(vma, &rest_below);
            }
            _ => {
                match (whole.start < start, end < whole.end) {
                    (true, true) => self.split_twice(vma, start, end)?,
                    (true, false) => self.split(vma, start, true)?,
                    (false, true) => self.split(vma, end, false)?,
                    (false, false) => {}
                }
                self.set_flags(vma, flags);
            }
        }
        Ok(())
    }

    fn shrink_or_detach(&mut self, vma: VmaPtr, rest: &Desc) {
        if rest.start == rest.end {
            self.detach(vma);
        } else {
            self.set(vma, rest);
        }
    }

    /// How many pages of the range are mapped (`count_vma_pages_range`).
    pub(crate) fn pages_in(&self, start: u64, end: u64) -> u64 {
        if start >= end {
            return 0;
        }
        let vmas = self.tree.range(start..=end - 1).map(|found| found.value);
        vmas.map(|vma| (vma.end().min(end) - vma.start().max(start)) >> PAGE_SHIFT).sum()
    }
}

impl<P: Platform> Drop for Writing<'_, P> {
    fn drop(&mut self) {
        self.space.contents.count_locked(&self.held, self.space.usage.locked());
        self.space.seq.end_write_all();
        while let Some(vma) = VmaPtr::pop(&mut self.detached) {
            self.retire(vma);
        }
    }
}
