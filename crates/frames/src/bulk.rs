//! Single frames, many at a time.

use crate::bits::PAGEBLOCK;
use crate::cache::BATCH;
use crate::error::{GetError, PutBulkError};
use crate::zone::put_frames;
use crate::{Block, Frame, Mobility, Order, Zone};

/// Frames taken in bulk while the zone's lock is held once: a pageblock's worth, some microseconds.
const HOLD: usize = PAGEBLOCK as usize;

impl Zone<'_> {
    /// Allocates single frames, as many as there are, up to the length of `frames`, and returns how many.
    ///
    /// # Errors
    /// As [`Zone::get`], if not even one was to be had.
    pub fn get_bulk(&self, mobility: Mobility, frames: &mut [Frame]) -> Result<usize, GetError> {
        let mut filled = self.take_bulk(mobility, frames);
        if filled < frames.len() {
            let _pressure = self.press();
            self.drain_all();
            filled += self.take_bulk(mobility, &mut frames[filled..]);
        }
        if filled == 0
            && let Some(first) = frames.first_mut()
        {
            *first = self.get(usize::MAX, Order::BASE, mobility)?.frame;
            filled = 1;
        }
        Ok(filled)
    }

    /// Frees single frames. Those that lie beside each other cost least if they are beside each other in `frames`.
    ///
    /// # Errors
    /// One of them is no allocated block of order 0; those before it are freed, it and those behind it are not.
    pub fn put_bulk(&self, frames: &[Frame]) -> Result<(), PutBulkError> {
        for (chunk, index) in frames.chunks(BATCH).zip((0..).step_by(BATCH)) {
            let mut locals = [0; BATCH];
            let mut failed = None;
            let mut count = 0;
            for (&frame, slot) in chunk.iter().zip(&mut locals) {
                match self.claim(Block::new(frame, Order::BASE)) {
                    Ok((local, _)) => *slot = local,
                    Err(reason) => {
                        failed = Some(PutBulkError { index: index + count, reason });
                        break;
                    }
                }
                count += 1;
            }
            put_frames(&mut self.core(), locals.into_iter().take(count));
            if let Some(error) = failed {
                return Err(error);
            }
        }
        Ok(())
    }

    fn take_bulk(&self, mobility: Mobility, frames: &mut [Frame]) -> usize {
        let mut filled = 0;
        for chunk in frames.chunks_mut(HOLD) {
            let mut core = self.core();
            let spare = core.buddy.free().saturating_sub(self.watermarks().min);
            let want = chunk.len().min(usize::try_from(spare).unwrap_or(usize::MAX));
            let mut slots = chunk.iter_mut();
            let taken = core.buddy.take_frames(want, mobility, |local| {
                if let Some(slot) = slots.next() {
                    *slot = self.spans().frame(local);
                    self.tag(local, Order::BASE, mobility);
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
