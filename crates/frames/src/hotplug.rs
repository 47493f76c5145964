//! Memory that goes and comes while the zone is in use.
//!
//! As in Linux' memory hotplug, by pageblocks: those to be removed are first *isolated*, so that what is free in them, or comes
//! free, is not handed out; once all of it is free, they go. What is still in use meanwhile is its owners' to move. The
//! metadata of memory that is to come is there from the start: a zone is made of all the ranges that it may have, and those that
//! are not there yet are removed first.

use core::fmt;

use crate::bits::{Bitfield, PAGEBLOCK};
use crate::lists::State;
use crate::sync::Ordering;
use crate::zone::Pressure;
use crate::{Block, Frame, FrameRange, Order, Zone};

/// Why memory was not removed or added.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HotplugError {
    /// The range does not begin and end with a pageblock.
    #[error("{0} does not consist of whole blocks of 2 MiB")]
    Misaligned(FrameRange),
    /// A pageblock of the range has no frame that the zone was made with, is being removed already, or is gone; or, to be added, is
    /// there.
    #[error(
        "{0}: to be removed, all of it must be in the zone, and not isolated already; to be added, all of it must have been removed"
    )]
    NotThere(FrameRange),
    /// A frame is allocated, or away at the host.
    #[error(
        "{0:?} is in use: have its owner free it, or wait for the host if it is being reported, and try again"
    )]
    InUse(Frame),
}

/// Memory that is not handed out, for it is to be removed. Dropped, it is as all other memory again.
///
/// While it lives nothing goes into the caches of CPUs, so allocation is slower.
#[must_use = "dropped, the memory is handed out again"]
pub struct Isolation<'z, 'm> {
    zone: &'z Zone<'m>,
    /// Pageblocks.
    first: usize,
    end: usize,
    _pressure: Pressure<'z>,
}

impl fmt::Debug for Isolation<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Isolation").field("pageblocks", &(self.first..self.end)).finish_non_exhaustive()
    }
}

impl<'z, 'm> Isolation<'z, 'm> {
    /// Removes the memory from the zone, if all of it is free: its frames are the caller's from here on, until they are
    /// [added](Zone::add) again.
    ///
    /// # Errors
    /// [`HotplugError::InUse`] with the first frame that is not free, and the isolation, to try again with.
    pub fn remove(self) -> Result<(), (HotplugError, Self)> {
        let zone = self.zone;
        zone.drain_all();
        let mut core = zone.core();
        let used = (self.first..self.end).find_map(|at| core.buddy.first_in_use(at, &zone.frames_of(at)));
        if let Some(local) = used {
            drop(core);
            return Err((HotplugError::InUse(zone.spans().frame(local)), self));
        }
        let mut gone = 0;
        for at in self.first..self.end {
            gone += zone.frames_of(at).words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            core.buddy.remove(at);
        }
        zone.frames.fetch_sub(gone, Ordering::Relaxed);
        Ok(())
    }
}

impl Drop for Isolation<'_, '_> {
    fn drop(&mut self) {
        let mut core = self.zone.core();
        // Those that were removed are that, and stay so.
        (self.first..self.end).for_each(|at| core.buddy.put_among(at));
    }
}

impl<'m> Zone<'m> {
    /// Isolates a range, of whole pageblocks of 2 MiB, to [remove](Isolation::remove) it.
    ///
    /// # Errors
    /// [`HotplugError::Misaligned`], [`HotplugError::NotThere`].
    pub fn isolate(&self, range: FrameRange) -> Result<Isolation<'_, 'm>, HotplugError> {
        let (first, end) = self.pageblocks_of(range)?;
        let pressure = self.press();
        let mut core = self.core();
        if (first..end).any(|at| core.buddy.state(at) != State::Normal) {
            return Err(HotplugError::NotThere(range));
        }
        (first..end).for_each(|at| core.buddy.set_apart(at));
        drop(core);
        Ok(Isolation { zone: self, first, end, _pressure: pressure })
    }

    /// Adds a range, of whole pageblocks, that was removed: all of it is free. Of the frames in it those come back that the zone was
    /// made with.
    ///
    /// # Errors
    /// [`HotplugError::Misaligned`], [`HotplugError::NotThere`].
    ///
    /// # Safety
    /// As for [`Zone::new`], of these frames: whoever had them since they were removed uses them no more.
    pub unsafe fn add(&self, range: FrameRange) -> Result<(), HotplugError> {
        let (first, end) = self.pageblocks_of(range)?;
        let mut core = self.core();
        if (first..end).any(|at| core.buddy.state(at) != State::Removed) {
            return Err(HotplugError::NotThere(range));
        }
        let mut come = 0;
        for at in first..end {
            let frames = self.frames_of(at);
            come += frames.words.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            core.buddy.add(at, &frames);
        }
        self.frames.fetch_add(come, Ordering::Relaxed);
        Ok(())
    }

    /// The pageblocks of a range, all of which have frames.
    fn pageblocks_of(&self, range: FrameRange) -> Result<(usize, usize), HotplugError> {
        let (start, end) = (range.start.0, range.end.0);
        let size = u64::from(PAGEBLOCK);
        if !start.is_multiple_of(size) || !end.is_multiple_of(size) || start >= end {
            return Err(HotplugError::Misaligned(range));
        }
        let pageblock = |frame: u64| {
            let any = (frame..frame + size)
                .find_map(|frame| self.spans().local(Block::new(Frame(frame), Order::BASE)))?;
            Some((any / PAGEBLOCK) as usize)
        };
        let first = pageblock(start).ok_or(HotplugError::NotThere(range))?;
        // Holes are left out of the count, so all must follow each other.
        for (n, frame) in (start..end).step_by(PAGEBLOCK as usize).enumerate() {
            if pageblock(frame) != Some(first + n) {
                return Err(HotplugError::NotThere(range));
            }
        }
        Ok((first, first + ((end - start) / size) as usize))
    }

    /// The frames of a pageblock that the zone was made with.
    fn frames_of(&self, at: usize) -> Bitfield {
        let (first, mut field) = (at as u64 * u64::from(PAGEBLOCK), Bitfield::default());
        for (start, end) in self.spans().locals() {
            for local in start.max(first)..end.min(first + u64::from(PAGEBLOCK)) {
                let bit = local - first;
                field.words[(bit / 64) as usize] |= 1 << (bit % 64);
            }
        }
        field
    }
}
