//! Freeing: whoever has a block gives it up, once.

use crate::bits::PAGEBLOCK;
use crate::cache::Cache;
use crate::error::PutError;
use crate::lock::Guard;
use crate::padded::Padded;
use crate::sync::Ordering;
use crate::tag::{Home, Tag};
use crate::zone::put_blocks;
use crate::{Block, Frame, Mobility, Order, OwnedBlock, Zone};

impl<'m> Zone<'m> {
    /// Frees a block that [`Zone::get`] or one of its kind gave. Any CPU may.
    ///
    /// # Errors
    /// No such block is allocated, which only a block that `unsafe` code made up can be. It is found out by the block's tag,
    /// also when two CPUs free the same block at the very same time.
    #[inline]
    pub fn put(&self, cpu: usize, block: OwnedBlock) -> Result<(), PutError> {
        let block = block.into_block();
        let local = self.spans.local(block).ok_or(PutError::Foreign(block))?;
        if Cache::holds(block.order)
            && let Some(Padded(own)) = self.caches.get(cpu)
            && let Some(mut cache) = own.cache.try_lock()
        {
            let slot = &self.tags[local as usize];
            // Nearly always a block goes back to the cache it came from. Relaxed: that cache's lock orders all that clear
            // this tag.
            let tag = Tag(slot.load(Ordering::Relaxed));
            if tag.is_of_cache(block.order, cpu) && own.filled.load(Ordering::Relaxed) && !self.is_pressed() {
                slot.store(Tag::NONE.0, Ordering::Relaxed);
                if !cache.push(block.order, tag.mobility(), local) {
                    self.put_cached(&mut cache, local, block.order, tag.mobility());
                }
                return Ok(());
            }
        }
        self.put_elsewhere(cpu, block)
    }

    /// [`Zone::put`] of a block that does not go back to the cache it came from.
    #[inline(never)]
    fn put_elsewhere(&self, cpu: usize, block: Block) -> Result<(), PutError> {
        let (local, tag) = self.allocated(block)?;
        match tag.home() {
            Home::Zone => {
                let mut core = self.core();
                self.clear(local, tag, block)?;
                put_blocks(&mut core, block.order, core::iter::once(local));
                return Ok(());
            }
            Home::Cache(home) => {
                let _home = self.lock_cache(home);
                self.clear(local, tag, block)?;
            }
        }
        // A block of a cache's is of an order that is cached.
        if let Some(Padded(own)) = self.caches.get(cpu)
            && let Some(mut cache) = own.cache.try_lock()
            && self.may_fill(own)
        {
            self.put_cached(&mut cache, local, block.order, tag.mobility());
            return Ok(());
        }
        put_blocks(&mut self.core(), block.order, core::iter::once(local));
        Ok(())
    }

    /// Makes an allocated block several of a smaller order. An `order` that is not smaller changes nothing.
    ///
    /// # Errors
    /// No such block is allocated, as in [`Zone::put`].
    pub fn split(&self, block: OwnedBlock, order: Order) -> Result<Parts, PutError> {
        let block = block.into_block();
        let (local, mobility) = self.claim(block)?;
        let order = order.min(block.order);
        if block.order >= Order::HUGE {
            // As it was whole, nobody looked at whom its pageblocks are for; a cache may have handed it out anew since.
            let mut core = self.core();
            let pageblocks = 1 << (block.order.get() - Order::HUGE.get());
            for at in (local..).step_by(PAGEBLOCK as usize).take(pageblocks) {
                core.buddy.assign(at, mobility);
            }
        }
        for part in (local..).step_by(1 << order.get()).take(1 << (block.order.get() - order.get())) {
            self.tag(part, order, mobility, Home::Zone);
        }
        Ok(Parts { next: block.frame, left: 1 << (block.order.get() - order.get()), order })
    }

    /// The lock of the cache that a tag names, once it is free.
    #[inline]
    pub(crate) fn lock_cache(&self, cache: usize) -> Guard<'m, Cache<'m>> {
        self.caches[cache].0.cache.lock(self.relax)
    }

    /// The tag of a block, if the block is allocated just now.
    #[inline]
    pub(crate) fn allocated(&self, block: Block) -> Result<(u32, Tag), PutError> {
        let local = self.spans.local(block).ok_or(PutError::Foreign(block))?;
        let tag = Tag(self.tags[local as usize].load(Ordering::Relaxed));
        if tag.order() == Some(block.order) { Ok((local, tag)) } else { Err(refusal(block, tag)) }
    }

    /// Clears a tag under the lock that it names, unless another CPU has done so since it was read.
    #[inline]
    pub(crate) fn clear(&self, local: u32, tag: Tag, block: Block) -> Result<(), PutError> {
        let slot = &self.tags[local as usize];
        // Relaxed: the lock orders all that clear this tag.
        if slot.load(Ordering::Relaxed) != tag.0 {
            return Err(PutError::NotAllocated(block));
        }
        slot.store(Tag::NONE.0, Ordering::Relaxed);
        Ok(())
    }

    /// Takes the allocated block out of its owner's hand: checks its tag, and clears it.
    pub(crate) fn claim(&self, block: Block) -> Result<(u32, Mobility), PutError> {
        let (local, tag) = self.allocated(block)?;
        match tag.home() {
            Home::Zone => {
                let _core = self.core();
                self.clear(local, tag, block)?;
            }
            Home::Cache(home) => {
                let _home = self.lock_cache(home);
                self.clear(local, tag, block)?;
            }
        }
        Ok((local, tag.mobility()))
    }

    /// Puts a block into a cache. If it is full, a pageblock of it goes to the stack of order 9 first, or a part to the zone.
    #[inline(never)]
    fn put_cached(&self, cache: &mut Cache<'_>, local: u32, order: Order, mobility: Mobility) {
        if !cache.push(order, mobility, local) {
            if !cache.join_pageblock(order, mobility) {
                self.spill(cache, order, mobility, cache.batch(order, mobility));
            }
            cache.push(order, mobility, local);
        }
    }
}

/// What is wrong with freeing a block of which the tag says something else.
#[cold]
fn refusal(block: Block, tag: Tag) -> PutError {
    match tag.order() {
        _ if !block.is_aligned() => PutError::Misaligned(block),
        Some(allocated) => PutError::WrongOrder { block, allocated },
        None => PutError::NotAllocated(block),
    }
}

/// The parts of a block that was [split](Zone::split), the lowest first. Those not taken out stay allocated.
#[derive(Debug)]
#[must_use = "parts that are not taken out stay allocated"]
pub struct Parts {
    next: Frame,
    left: u64,
    order: Order,
}

impl Iterator for Parts {
    type Item = OwnedBlock;

    fn next(&mut self) -> Option<OwnedBlock> {
        self.left = self.left.checked_sub(1)?;
        let block = Block::new(self.next, self.order);
        self.next = self.next.add(self.order.frames());
        // SAFETY: the zone has made this block of one that was consumed, and it is given out once.
        Some(unsafe { OwnedBlock::new(block) })
    }
}
