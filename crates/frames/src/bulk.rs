//! Single frames, many at a time.

use crate::bits::PAGEBLOCK;
use crate::error::{GetError, PutBulkError, PutError};
use crate::tag::Home;
use crate::zone::put_blocks;
use crate::{Block, Frame, Mobility, Order, Zone};

/// Frames taken in bulk while the zone's lock is held once: a pageblock's worth, some microseconds.
const HOLD: usize = PAGEBLOCK as usize;
/// Frames freed while it is held once: a word of a bitfield.
const BATCH: usize = 64;

impl Zone<'_> {
    /// Allocates single frames, as many as there are, up to the length of `frames`, and returns how many. They are the
    /// caller's from then on, though there are but their numbers to say so.
    ///
    /// # Errors
    /// As [`Zone::get`], if not even one was to be had.
    pub fn get_bulk(&self, mobility: Mobility, frames: &mut [Frame]) -> Result<usize, GetError> {
        let mut filled = self.take_bulk(mobility, frames);
        // If the caches cannot help, they are left alone.
        let min = self.watermarks().min;
        if filled < frames.len() && self.all_free().is_none_or(|(free, _)| free > min) {
            let _pressure = self.press();
            self.drain_all();
            filled += self.take_bulk(mobility, &mut frames[filled..]);
        }
        if filled == 0
            && let Some(first) = frames.first_mut()
        {
            *first = self.get(usize::MAX, Order::BASE, mobility)?.into_block().frame;
            filled = 1;
        }
        Ok(filled)
    }

    /// Frees single frames. Those that lie beside each other cost least if they are beside each other in `frames`.
    ///
    /// # Errors
    /// One of them is no allocated block of order 0; those before it are freed, it and those behind it are not.
    ///
    /// # Safety
    /// The caller owns the frames, each of which is named once, and nobody uses them any more.
    pub unsafe fn put_bulk(&self, frames: &[Frame]) -> Result<(), PutBulkError> {
        let mut index = 0;
        while let Some(&first) = frames.get(index) {
            let fail = |reason| PutBulkError { index, reason };
            let (_, tag) = self.allocated(Block::new(first, Order::BASE)).map_err(fail)?;
            let mut locals = [0; BATCH];
            let rest = frames.get(index..).unwrap_or_default();
            // Those of one home are claimed under its lock together.
            let count = match tag.home() {
                Home::Zone => {
                    let mut core = self.core();
                    let count = self.claim_run(rest, Home::Zone, &mut locals);
                    put_blocks(&mut core, Order::BASE, locals.into_iter().take(count));
                    count
                }
                Home::Cache(home) => {
                    let cache = self.lock_cache(home);
                    let count = self.claim_run(rest, Home::Cache(home), &mut locals);
                    drop(cache);
                    put_blocks(&mut self.core(), Order::BASE, locals.into_iter().take(count));
                    count
                }
            };
            if count == 0 {
                // Another CPU has freed it since its tag was read.
                return Err(fail(PutError::NotAllocated(Block::new(first, Order::BASE))));
            }
            index += count;
        }
        Ok(())
    }

    /// Claims the first frames of `frames`, as many as are allocated and of this home, whose lock the caller holds.
    fn claim_run(&self, frames: &[Frame], home: Home, locals: &mut [u32; BATCH]) -> usize {
        let mut count = 0;
        for (&frame, slot) in frames.iter().zip(locals) {
            let block = Block::new(frame, Order::BASE);
            let Ok((local, tag)) = self.allocated(block) else { break };
            if tag.home() != home || self.clear(local, tag, block).is_err() {
                break;
            }
            *slot = local;
            count += 1;
        }
        count
    }

    fn take_bulk(&self, mobility: Mobility, frames: &mut [Frame]) -> usize {
        let mut filled = 0;
        for chunk in frames.chunks_mut(HOLD) {
            let mut core = self.core();
            let spare = core.buddy.free().saturating_sub(self.watermarks().min);
            let want = chunk.len().min(usize::try_from(spare).unwrap_or(usize::MAX));
            let mut slots = chunk.iter_mut();
            let taken = core.buddy.take_blocks(Order::BASE, want, mobility, true, |local| {
                if let Some(slot) = slots.next() {
                    *slot = self.spans().frame(local);
                    self.tag(local, Order::BASE, mobility, Home::Zone);
                }
            });
            filled += taken;
            if taken < chunk.len() {
                break;
            }
        }
        filled
    }
}
