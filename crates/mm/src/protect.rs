//! What changes flags: `mprotect`, `madvise`, `mlock`.

use crate::contents::{Contents, HeldForRead};
use crate::error::Error;
use crate::flags::{Advice, PAGE_SIZE, Prot, VmFlags, is_page_aligned, page_align};
use crate::map::is_accountable;
use crate::mmap_lock::MmapLock;
use crate::space::{AddressSpace, Platform};
use crate::vma::{Desc, VmaPtr};
use crate::writing::Writing;

/// `start..end` of a system call: aligned, or `Invalid`; `None` if empty.
pub(crate) fn pages(address: u64, length: u64, overflow: Error) -> Result<Option<(u64, u64)>, Error> {
    if !is_page_aligned(address) {
        return Err(Error::Invalid);
    }
    if length == 0 {
        return Ok(None);
    }
    let length = page_align(length).filter(|&length| length > 0).ok_or(overflow)?;
    let end = address.checked_add(length).ok_or(overflow)?;
    Ok(Some((address, end)))
}

impl<P: Platform> AddressSpace<P> {
    /// Changes what is permitted in a range.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Hole`] and [`Error::Access`] at the first address where they apply, what lies before has
    /// changed then; [`Error::Limit`], [`Error::NoMemory`].
    pub fn mprotect(&self, address: u64, length: u64, prot: Prot) -> Result<(), Error> {
        let Some((start, end)) = pages(address, length, Error::Hole)? else { return Ok(()) };
        let mut writing = self.write();
        writing.each_part(start, end, |writing, vma, from, to| writing.protect(vma, from, to, prot))
    }

    /// Gives advice that changes VMAs.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Hole`] if a part of the range is not mapped: the rest has the advice then.
    pub fn madvise(&self, address: u64, length: u64, advice: Advice) -> Result<(), Error> {
        let Some((start, end)) = pages(address, length, Error::Invalid)? else { return Ok(()) };
        let mut writing = self.write();
        writing.madvise(start, end, |vma: &Desc| {
            let anonymous = vma.object.is_none() && !vma.flags.contains(VmFlags::SHARED);
            advice.apply(vma.flags, anonymous).ok_or(Error::Invalid)
        })
    }

    /// `MADV_DONTNEED`: the pages of the range go, and are found empty again.
    ///
    /// # Errors
    /// [`Error::Invalid`], also for locked memory; [`Error::Hole`] if a part of the range is not mapped: the pages of the rest
    /// are gone then; [`Error::NoMemory`] if a huge page is to go in part.
    pub fn discard(&self, address: u64, length: u64) -> Result<(), Error> {
        let Some((start, end)) = pages(address, length, Error::Invalid)? else { return Ok(()) };
        let writing = self.write();
        let (mut at, mut done) = (start, Ok(()));
        while let Some(vma) = writing.first_in(at, end) {
            if vma.start() > at {
                done = Err(Error::Hole);
            }
            if vma.flags().contains(VmFlags::LOCKED) {
                return Err(Error::Invalid);
            }
            // The seed leaves faults be while pages are zapped; here the pages are counted, exactly, by a second walk.
            writing.split_contents(vma, start, end)?;
            let this = vma.desc();
            self.contents.zap(&writing.held, &this.part(at.max(this.start), this.end.min(end)).info());
            at = this.end;
        }
        if at < end { Err(Error::Hole) } else { done }
    }

    /// `MADV_FREE`: the pages of the range are given up until they are written to. Until then each is what it was, or zeros, as
    /// [reclaim](crate::System::reclaim) may drop it without writing it to swap; from a write on it is kept. What is in swap is
    /// dropped at once. Pages that other spaces map too are not given up. It waits for no fault, nor does a fault for it.
    ///
    /// # Errors
    /// [`Error::Invalid`], also for locked memory, and for what is not private anonymous memory: what lies before is given up then;
    /// [`Error::Hole`] if a part of the range is not mapped: the rest is given up.
    pub fn lazy_free(&self, address: u64, length: u64) -> Result<(), Error> {
        let Some((start, end)) = pages(address, length, Error::Invalid)? else { return Ok(()) };
        let _lock = self.lock.read();
        let (held, mut at, mut done) = (HeldForRead::new(), start, Ok(()));
        while at < end {
            let found = self.tree.read().find(at..=end - 1).map(|found| found.value.desc());
            let Some(vma) = found else { return Err(Error::Hole) };
            if vma.start > at {
                done = Err(Error::Hole);
            }
            if vma.flags.intersects(VmFlags::LOCKED | VmFlags::SHARED) || vma.object.is_some() {
                return Err(Error::Invalid);
            }
            let part = vma.part(at.max(vma.start), vma.end.min(end));
            self.contents.lazy_free(&held, &part.info());
            at = part.end;
        }
        done
    }

    /// Sets that the pages of a range stay in memory: all of them, or with `on_fault` those that are faulted in, as they are.
    /// Counts them; to fault them in is the caller's.
    ///
    /// # Errors
    /// [`Error::Invalid`], [`Error::Hole`], [`Error::Limit`] (also of locked memory), [`Error::NoMemory`].
    pub fn mlock(&self, address: u64, length: u64, on_fault: bool) -> Result<(), Error> {
        let flags = if on_fault { VmFlags::LOCKED_MASK } else { VmFlags::LOCKED };
        self.lock_pages(address, length, flags)
    }

    /// Sets that the pages of a range need not stay in memory. Those of a large folio that is not unlocked as a whole stay until
    /// the space has no locked memory.
    ///
    /// # Errors
    /// As [`mlock`](Self::mlock).
    pub fn munlock(&self, address: u64, length: u64) -> Result<(), Error> {
        self.lock_pages(address, length, VmFlags::empty())
    }

    fn lock_pages(&self, address: u64, length: u64, set: VmFlags) -> Result<(), Error> {
        let start = address & !(PAGE_SIZE - 1);
        // A length that has no whole pages is 0, as in Linux.
        let length = page_align(length.wrapping_add(address - start)).unwrap_or(0);
        let end = start.checked_add(length).ok_or(Error::Invalid)?;
        if start == end {
            return Ok(());
        }
        let mut writing = self.write();
        if set.contains(VmFlags::LOCKED) {
            let limit = self.config.limits.locked >> 12;
            let more = (length >> 12) - writing.locked_in(start, end).min(length >> 12);
            if self.usage().locked.saturating_add(more) > limit {
                return Err(Error::Limit);
            }
        }
        writing.each_part(start, end, |writing, vma, from, to| {
            let old = vma.desc();
            let flags = (old.flags - VmFlags::LOCKED_MASK) | set;
            writing.change(vma, from, to, flags)?;
            if (old.flags ^ flags).contains(VmFlags::LOCKED) {
                writing.space.contents.lock(&writing.held, &Desc { flags, ..old.part(from, to) }.info());
            }
            Ok(())
        })
    }
}

impl<P: Platform> Writing<'_, P> {
    /// Does it for each part of a VMA that lies in the range, which has no holes.
    pub(crate) fn each_part(
        &mut self,
        start: u64,
        end: u64,
        change: impl Fn(&mut Self, VmaPtr, u64, u64) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let mut at = start;
        while at < end {
            let vma = self.at(at).ok_or(Error::Hole)?;
            let to = vma.end().min(end);
            change(self, vma, at, to)?;
            at = to;
        }
        Ok(())
    }

    /// Sets the flags of a part of a VMA, and what is counted by flags.
    pub(crate) fn change(&mut self, vma: VmaPtr, start: u64, end: u64, flags: VmFlags) -> Result<(), Error> {
        let old = vma.flags();
        if old == flags {
            return Ok(());
        }
        self.modify(vma, start, end, flags)?;
        let pages = ((end - start) >> 12) as i64;
        self.space.usage.pages(old, -pages);
        self.space.usage.pages(flags, pages);
        Ok(())
    }

    /// `mprotect_fixup`.
    fn protect(&mut self, vma: VmaPtr, start: u64, end: u64, prot: Prot) -> Result<(), Error> {
        let old = vma.desc();
        let mut flags = (old.flags - VmFlags::ACCESS) | VmFlags::of_prot(prot);
        if !flags.forbidden().is_empty() {
            return Err(Error::Access);
        }
        if flags == old.flags {
            return Ok(());
        }
        if flags.contains(VmFlags::WRITE) {
            let pages = ((end - start) >> 12) as i64;
            if !self.may_expand(flags, pages) && self.may_expand(old.flags, pages) {
                return Err(Error::Limit);
            }
            if is_accountable(flags) && !old.flags.intersects(VmFlags::ACCOUNT | VmFlags::WRITE) {
                flags |= VmFlags::ACCOUNT;
            }
        } else if old.object.is_none() && !old.anon.is_some() {
            // Nothing was written, so nothing is committed.
            flags -= VmFlags::ACCOUNT;
        }
        self.change(vma, start, end, flags)?;
        let part = Desc { flags, ..old.part(start, end) };
        self.space.contents.protect(&self.held, &part.info());
        self.protect_marked(&part);
        Ok(())
    }

    /// How many pages of the range are locked already (`count_mm_mlocked_page_nr`).
    fn locked_in(&self, start: u64, end: u64) -> u64 {
        let vmas = self.tree.range(start..=end - 1).map(|found| found.value);
        let locked = vmas.filter(|vma| vma.flags().contains(VmFlags::LOCKED));
        locked.map(|vma| (vma.end().min(end) - vma.start().max(start)) >> 12).sum()
    }

    fn madvise(
        &mut self,
        start: u64,
        end: u64,
        advise: impl Fn(&Desc) -> Result<VmFlags, Error>,
    ) -> Result<(), Error> {
        let (mut at, mut done) = (start, Ok(()));
        while let Some(vma) = self.first_in(at, end) {
            if vma.start() > at {
                done = Err(Error::Hole);
            }
            let (from, to) = (at.max(vma.start()), vma.end().min(end));
            let flags = advise(&vma.desc())?;
            self.change(vma, from, to, flags)?;
            at = to;
        }
        if at < end { Err(Error::Hole) } else { done }
    }
}
