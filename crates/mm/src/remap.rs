//! `mremap`.

use crate::contents::Contents;
use crate::error::Error;
use crate::flags::{PAGE_SHIFT, RemapFlags, VmFlags, is_page_aligned, page_align};
use crate::place::Place;
use crate::space::{AddressSpace, Platform};
use crate::vma::{Anon, Desc, VmaPtr};
use crate::writing::Writing;

/// What is asked for, in whole pages.
#[derive(Clone, Copy)]
struct Remap {
    address: u64,
    old_len: u64,
    new_len: u64,
    flags: RemapFlags,
    to: u64,
}

impl Remap {
    fn is_placed(&self) -> bool {
        self.flags.intersects(RemapFlags::FIXED | RemapFlags::DONTUNMAP)
    }

    fn grows(&self) -> bool {
        self.new_len > self.old_len
    }
}

impl<P: Platform> AddressSpace<P> {
    /// Grows, shrinks or moves a mapping, and returns where it is then.
    ///
    /// `to` is an address with [`RemapFlags::FIXED`], a hint with [`RemapFlags::DONTUNMAP`], and otherwise ignored. With
    /// `FIXED` and without a change of length the range may hold several VMAs, which are moved one by one with the gaps
    /// between them, as since Linux 6.17; an error may come after some have been moved.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::BadAddress`], [`Error::NoSpace`], [`Error::TooLow`], [`Error::Limit`],
    /// [`Error::LockedLimit`], [`Error::NoMemory`]. With `FIXED`, what is mapped at the target may be gone then, and with a smaller length the rest of
    /// the source, as in Linux.
    pub fn mremap(
        &self,
        address: u64,
        old_len: u64,
        new_len: u64,
        flags: RemapFlags,
        to: u64,
    ) -> Result<u64, Error> {
        if !is_page_aligned(address) {
            return Err(Error::Invalid);
        }
        let new_len = page_align(new_len).filter(|&len| len > 0).ok_or(Error::Invalid)?;
        // One that has no whole pages is 0, as in Linux.
        let old_len = page_align(old_len).unwrap_or(0);
        let remap = Remap { address, old_len, new_len, flags, to };
        self.write().mremap(remap)
    }
}

impl<P: Platform> Writing<'_, P> {
    fn mremap(&mut self, remap: Remap) -> Result<u64, Error> {
        let config = &self.space.config;
        if remap.new_len > config.end {
            return Err(Error::Invalid);
        }
        if remap.is_placed() {
            if !is_page_aligned(remap.to) || remap.to > config.end - remap.new_len {
                return Err(Error::Invalid);
            }
            // Before anything is unmapped to make room.
            if remap.flags.contains(RemapFlags::FIXED) && remap.to < config.lowest {
                return Err(Error::TooLow);
            }
            let moves = remap.flags.contains(RemapFlags::MAYMOVE);
            let resizes = remap.old_len != remap.new_len;
            if !moves || remap.flags.contains(RemapFlags::DONTUNMAP) && resizes {
                return Err(Error::Invalid);
            }
            let old_end = remap.address.wrapping_add(remap.old_len);
            if old_end > remap.to && remap.to + remap.new_len > remap.address {
                return Err(Error::Invalid);
            }
            // A move may split VMAs at both places; who is near the limit is refused before anything is unmapped.
            if self.space.usage().maps + 2 >= config.limits.maps.saturating_sub(3) {
                return Err(Error::Limit);
            }
        }
        if remap.flags.contains(RemapFlags::FIXED) && remap.old_len == remap.new_len {
            return self.move_all(remap);
        }
        let vma = self.at(remap.address).ok_or(Error::BadAddress)?;
        self.check(vma, &remap)?;
        if remap.is_placed() {
            return self.move_to(remap);
        }
        if !remap.grows() {
            if remap.new_len < remap.old_len {
                self.munmap(remap.address + remap.new_len, remap.old_len - remap.new_len)?;
            }
            return Ok(remap.address);
        }
        self.expand(vma, remap)
    }

    /// Whether the VMA can be resized or moved like this.
    fn check(&self, vma: VmaPtr, remap: &Remap) -> Result<(), Error> {
        if !remap.grows() && !remap.is_placed() {
            return Ok(());
        }
        let this = vma.desc();
        if remap.old_len == 0 && !this.flags.intersects(VmFlags::SHARED | VmFlags::MAY_SHARE) {
            // A copy of what is private makes no sense.
            return Err(Error::Invalid);
        }
        let (dont_unmap, fixed_size) =
            (remap.flags.contains(RemapFlags::DONTUNMAP), this.flags.contains(VmFlags::DONTEXPAND));
        if dont_unmap && fixed_size {
            return Err(Error::Invalid);
        }
        if remap.old_len.min(remap.new_len) > this.end - remap.address {
            return Err(Error::BadAddress);
        }
        if !remap.grows() {
            return Ok(());
        }
        let pgoff = this.part(remap.address, this.end).pgoff;
        if pgoff.checked_add(remap.new_len >> PAGE_SHIFT).is_none() {
            return Err(Error::Invalid);
        }
        if fixed_size {
            return Err(Error::BadAddress);
        }
        let more = (remap.new_len - remap.old_len) >> PAGE_SHIFT;
        if !self.may_lock(this.flags, more) {
            return Err(Error::LockedLimit);
        }
        if self.may_expand(this.flags, more as i64) { Ok(()) } else { Err(Error::Limit) }
    }

    /// Grows in place if there is room, else moves if that is permitted.
    fn expand(&mut self, vma: VmaPtr, remap: Remap) -> Result<u64, Error> {
        let delta = remap.new_len - remap.old_len;
        let this = vma.desc();
        let at_end = this.end - remap.address == remap.old_len;
        let end = this.end.checked_add(delta).filter(|&end| end <= self.space.config.end);
        if let Some(end) = end.filter(|&end| at_end && self.first_in(this.end, end).is_none()) {
            self.extend(vma, end)?;
            self.space.usage.pages(this.flags, (delta >> PAGE_SHIFT) as i64);
            return Ok(remap.address);
        }
        if !remap.flags.contains(RemapFlags::MAYMOVE) {
            return Err(Error::NoSpace);
        }
        let to = self.place_for(&this, 0, remap.new_len, false)?;
        self.move_vma(Remap { to, ..remap })
    }

    fn place_for(&self, vma: &Desc, address: u64, length: u64, fixed: bool) -> Result<u64, Error> {
        let anonymous = vma.object.is_none();
        self.place(Place { address, length, fixed, anonymous })
    }

    /// Moves all VMAs of a range, which must begin with one, with the gaps between them.
    fn move_all(&mut self, remap: Remap) -> Result<u64, Error> {
        let end = remap.address.checked_add(remap.old_len).ok_or(Error::Invalid)?;
        if remap.old_len == 0 {
            let vma = self.at(remap.address).ok_or(Error::BadAddress)?;
            self.check(vma, &remap)?;
            return self.move_to(remap);
        }
        self.at(remap.address).ok_or(Error::BadAddress)?;
        let mut at = remap.address;
        while let Some(vma) = self.first_in(at, end) {
            let (start, stop) = (vma.start().max(at), vma.end().min(end));
            let to = remap.to + (start - remap.address);
            let length = stop - start;
            let part = Remap { address: start, old_len: length, new_len: length, to, ..remap };
            self.check(vma, &part)?;
            self.move_to(part)?;
            at = stop;
        }
        Ok(remap.to)
    }

    /// `mremap_to`.
    fn move_to(&mut self, mut remap: Remap) -> Result<u64, Error> {
        let fixed = remap.flags.contains(RemapFlags::FIXED);
        if fixed {
            self.munmap(remap.to, remap.new_len)?;
            self.at(remap.address).ok_or(Error::BadAddress)?;
        }
        if remap.new_len < remap.old_len {
            self.munmap(remap.address + remap.new_len, remap.old_len - remap.new_len)?;
            remap.old_len = remap.new_len;
        }
        let this = self.at(remap.address).ok_or(Error::BadAddress)?.desc();
        if remap.flags.contains(RemapFlags::DONTUNMAP)
            && !self.may_expand(this.flags, (remap.old_len >> PAGE_SHIFT) as i64)
        {
            return Err(Error::Limit);
        }
        let to = self.place_for(&this, remap.to, remap.new_len, fixed)?;
        self.move_vma(Remap { to, ..remap })
    }

    /// Moves a part of a VMA, or all, to a gap (`move_vma`).
    fn move_vma(&mut self, remap: Remap) -> Result<u64, Error> {
        if self.space.usage().maps >= self.space.config.limits.maps.saturating_sub(3) {
            return Err(Error::Limit);
        }
        let vma = self.at(remap.address).ok_or(Error::BadAddress)?;
        // No fault may come in between.
        self.split_contents(vma, remap.address, remap.address + remap.old_len)?;
        let this = vma.desc();
        let mut new = this.part(remap.address, this.end);
        (new.start, new.end) = (remap.to, remap.to + remap.new_len);
        // Nobody has registered the new place, so its faults are nobody else's.
        new.flags -= VmFlags::USER;
        if new.object.is_none() && !new.anon.is_some() {
            // Nothing ties it to where it was: so it is as if it were mapped here.
            new.pgoff = remap.to >> PAGE_SHIFT;
        }
        // One place for the new mapping, one if the source, or the new one again, leaves a hole in what is mapped.
        self.reserve(this.object, 2)?;
        let done = self.move_part(remap, &this, &new);
        self.unreserve(this.object, 2);
        done
    }

    /// Maps what is moved, moves its pages, and unmaps where it was.
    fn move_part(&mut self, remap: Remap, this: &Desc, new: &Desc) -> Result<u64, Error> {
        // The source must go when its pages are gone.
        let spare = self.spare(this, 2)?;
        let beside =
            [self.ending_at(new.start), self.starting_at(new.end)].map(|vma| vma.map(|vma| vma.anon()));
        if let Err(error) = self.insert(new, None) {
            self.give_back(Some(spare));
            return Err(error);
        }
        self.attach(new);
        self.space.usage.pages(new.flags, new.pages() as i64);
        let source = remap.address..remap.address + remap.old_len;
        let moved = this.part(source.start, source.end).info();
        if let Err(error) = self.space.contents.relocate(&self.held, &moved, remap.to) {
            self.unmap_with(new.start, new.end, Some(spare))?;
            // A neighbour that it was merged with has the anonymous state that it had.
            let now = [self.ending_at(new.start), self.starting_at(new.end)];
            for (vma, anon) in now.into_iter().zip(beside) {
                if let (Some(vma), Some(anon)) = (vma, anon)
                    && vma.anon() != anon
                {
                    self.set(vma, &Desc { anon, ..vma.desc() });
                }
            }
            return Err(error);
        }
        if remap.flags.contains(RemapFlags::DONTUNMAP) || remap.old_len == 0 {
            self.give_back(Some(spare));
            if remap.old_len > 0 {
                self.leave_behind(remap, this);
            }
        } else {
            self.unmap_with(source.start, source.end, Some(spare))?;
        }
        Ok(remap.to)
    }

    /// What `MREMAP_DONTUNMAP` leaves: a VMA without pages, which is locked no more.
    fn leave_behind(&mut self, remap: Remap, moved: &Desc) {
        // It may have been merged with the new one.
        let Some(vma) = self.at(remap.address) else { return };
        let now = vma.desc();
        self.start_write(vma);
        let flags = now.flags - VmFlags::LOCKED_MASK;
        let whole = now.start == remap.address && now.end == remap.address + remap.old_len;
        let anon = if whole && moved.anon.is_some() { Anon::NONE } else { now.anon };
        vma.set(&Desc { flags, anon, ..now });
        self.space.usage.pages(now.flags, -(now.pages() as i64));
        self.space.usage.pages(flags, now.pages() as i64);
    }
}
