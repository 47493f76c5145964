//! Advice on what lies behind VMAs.

use isotherm_pagetable::{Access, Format, Machine};

use crate::error::Error;
use crate::fault::FaultError;
use crate::flags::{PAGE_SHIFT, PAGE_SIZE, VmFlags};
use crate::mmap_lock::MmapLock;
use crate::object::Objects;
use crate::paged::{HUGE, Paged, Wanted};
use crate::protect::pages;
use crate::space::{AddressSpace, Platform};
use crate::vma::VmaInfo;

/// Where the aligned 2 MiB begin that lie in a VMA.
fn blocks_of(vma: &VmaInfo) -> impl Iterator<Item = u64> {
    let first = vma.start.checked_next_multiple_of(HUGE).unwrap_or(vma.end);
    let end = vma.end;
    (first..end).step_by(HUGE as usize).filter(move |at| end - at >= HUGE)
}

impl<'m, P, F, M, O> AddressSpace<P>
where
    P: Platform<Contents = Paged<'m, F, M, O>>,
    F: Format + 'm,
    M: Machine + 'm,
    O: Objects<'m, F, M>,
{
    /// `MADV_PAGEOUT`: the pages of the range leave memory. Anonymous ones go to swap, if the space is in a
    /// [`System`](crate::System) that has it; those of files are written back, and evicted. Pages that other spaces map, or
    /// that somebody refers to, stay. Returns how many bytes have left.
    ///
    /// # Errors
    /// [`Error::Invalid`], also for locked memory: what lies before has left then; [`Error::Hole`] if a part of the range is not
    /// mapped: the pages of the rest have left; [`Error::Io`] of a file's storage.
    pub fn page_out(&self, address: u64, length: u64) -> Result<u64, Error> {
        let Some((start, end)) = pages(address, length, Error::Invalid)? else { return Ok(0) };
        let (left, done) = self.page_out_range(start, end);
        done.map(|()| left)
    }

    /// The same; how many bytes have left also if there is an error.
    pub(crate) fn page_out_range(&self, start: u64, end: u64) -> (u64, Result<(), Error>) {
        let (mut at, mut left, mut done) = (start, 0, Ok(()));
        while at < end {
            let (part, gone, object) = {
                let _lock = self.lock.read();
                let found = self.tree.read().find(at..=end - 1).map(|found| found.value.desc());
                let Some(vma) = found else { break };
                if vma.flags.contains(VmFlags::LOCKED) {
                    return (left << PAGE_SHIFT, Err(Error::Invalid));
                }
                let part = vma.part(at.max(vma.start), vma.end.min(end));
                let (gone, object) = self.contents.page_out(&part.info());
                (part, gone, object)
            };
            left += gone;
            if part.start > at {
                done = Err(Error::Hole);
            }
            if let (Some(id), Some(range)) = (part.object, object) {
                let index = |address: u64| part.pgoff + ((address - part.start) >> PAGE_SHIFT);
                match self.contents.page_out_object(id, index(range.start)..index(range.end)) {
                    Ok(gone) => left += gone,
                    Err(why) => done = Err(why.into()),
                }
            }
            at = part.end;
        }
        (left << PAGE_SHIFT, if at < end { Err(Error::Hole) } else { done })
    }

    /// `MADV_COLD`: the pages of the range count as not used for the longest time, so that they leave first when memory is short.
    /// Returns how many bytes are there.
    ///
    /// # Errors
    /// [`Error::Invalid`], also for locked memory: what lies before is cold then; [`Error::Hole`] if a part of the range is not
    /// mapped.
    pub fn cold(&self, address: u64, length: u64) -> Result<u64, Error> {
        let Some((start, end)) = pages(address, length, Error::Invalid)? else { return Ok(0) };
        let mut locked = false;
        let (pages, done) = self.each_vma(start, end, |part| {
            locked |= part.flags.contains(VmFlags::LOCKED);
            if locked { 0 } else { self.contents.set_age(part, false) }
        });
        if locked {
            return Err(Error::Invalid);
        }
        done.map(|()| pages << PAGE_SHIFT)
    }

    /// `MADV_WILLNEED`: brings in what is in swap, and pages of objects that are not in memory. Returns how many bytes. That some
    /// could not be brought in is no error.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Hole`] if a part of the range is not mapped.
    pub fn will_need(&self, address: u64, length: u64) -> Result<u64, Error> {
        let Some((start, end)) = pages(address, length, Error::Invalid)? else { return Ok(0) };
        let mut at = start;
        let mut brought = 0;
        while at < end {
            // Some at a time, as they come in without locks.
            let mut wanted = Wanted::new(at, end);
            let (_, done) = self.each_vma(at, end, |part| {
                self.contents.find_absent(part, &mut wanted);
                0
            });
            for &at in wanted.swapped() {
                brought += u64::from(self.fault(at, Access::Read).is_ok());
            }
            for (id, range) in wanted.cached() {
                brought += self.contents.read_ahead(id, range);
            }
            at = wanted.next();
            if at >= end {
                done?;
            }
        }
        Ok(brought << PAGE_SHIFT)
    }

    /// `mincore`: which pages of the range a program would find without waiting for storage. Bit `i` of the bitmap is page `i` of the
    /// range: set if it is mapped, the zero page too, or if its object has it in memory. Returns how many are. Pages come and go
    /// meanwhile.
    ///
    /// # Errors
    /// [`Error::Invalid`], also if the bitmap is too short; [`Error::Hole`] if a part of the range is not mapped: the bits of the rest
    /// are set.
    pub fn resident(&self, address: u64, length: u64, bitmap: &mut [u64]) -> Result<u64, Error> {
        let Some((start, end)) = pages(address, length, Error::Invalid)? else { return Ok(0) };
        let words = ((end - start) >> PAGE_SHIFT).div_ceil(64);
        let bitmap = usize::try_from(words).ok().and_then(|words| bitmap.get_mut(..words));
        let bitmap = bitmap.ok_or(Error::Invalid)?;
        bitmap.fill(0);
        let (_, done) = self.each_vma(start, end, |part| {
            self.contents.find_resident(part, start, bitmap);
            0
        });
        done.map(|()| bitmap.iter().map(|word| u64::from(word.count_ones())).sum())
    }

    /// `MADV_COLLAPSE`: maps each aligned 2 MiB of private anonymous memory in the range by a huge leaf, where its pages allow it:
    /// all are this space's alone, none is in swap, and at most `max_none` are missing (Linux' `max_ptes_none`), which become
    /// zeros. Unless they are one folio already they are copied into one. Where faults are somebody else's none may be missing, nor
    /// marked. Returns how many bytes are mapped so.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Hole`] if a part of the range is not mapped; [`Error::NoMemory`] if there was no folio for
    /// one: those before are done.
    pub fn collapse(&self, address: u64, length: u64, max_none: u64) -> Result<u64, Error> {
        let Some((start, end)) = pages(address, length, Error::Invalid)? else { return Ok(0) };
        let mut failed = Ok(());
        let (blocks, done) = self.each_vma(start, end, |part| {
            let mut collapsed = 0;
            for at in blocks_of(part) {
                match self.collapse_block(part, at, max_none) {
                    Ok(done) => collapsed += u64::from(done),
                    Err(why) => failed = Err(why),
                }
            }
            collapsed
        });
        failed.and(done).map(|()| blocks * HUGE)
    }

    fn collapse_block(&self, part: &VmaInfo, at: u64, max_none: u64) -> Result<bool, Error> {
        if !part.flags.intersects(VmFlags::USER) {
            return self.contents.collapse(part, at, max_none);
        }
        // Zeros would be a page that nobody has brought.
        if self.marks.read().range(at..=at + HUGE - 1).next().is_some() {
            return Ok(false);
        }
        self.contents.collapse(part, at, 0)
    }

    /// Splits large folios of anonymous memory in the range into pages, wherever they are mapped, so that what nobody maps of them is
    /// free, and parts can leave: as when huge pages are not wanted any more. Of a space in a [`System`](crate::System). Returns
    /// how many.
    ///
    /// # Errors
    /// [`Error::Invalid`]; [`Error::Hole`] if a part of the range is not mapped.
    pub fn split(&self, address: u64, length: u64) -> Result<u64, Error> {
        let Some((start, end)) = pages(address, length, Error::Invalid)? else { return Ok(0) };
        let (folios, done) = self.each_vma(start, end, |part| self.contents.split_folios(part));
        done.map(|()| folios)
    }

    /// A step of a scanner that the caller drives (`khugepaged`): looks at so many aligned 2 MiB of memory at most for which
    /// [`Folios`](crate::Folios) wants huge pages, from an address on, and collapses those it can, as
    /// [`collapse`](Self::collapse) does. Returns where the next step begins, 0 after the last VMA, and how many bytes were
    /// collapsed or were huge already.
    ///
    /// # Errors
    /// [`Error::NoMemory`] if there was no folio.
    pub fn collapse_step(&self, from: u64, blocks: usize, max_none: u64) -> Result<(u64, u64), Error> {
        let (mut left, mut next, mut failed) = (blocks, 0, Ok(()));
        let (done, _) = self.each_vma(from & !(PAGE_SIZE - 1), self.config.end, |part| {
            let mut collapsed = 0;
            if !self.contents.wants_huge(part) || next != 0 || failed.is_err() {
                return 0;
            }
            for at in blocks_of(part) {
                if left == 0 {
                    next = at;
                    break;
                }
                left -= 1;
                match self.collapse_block(part, at, max_none) {
                    Ok(done) => collapsed += u64::from(done),
                    Err(why) => failed = Err(why),
                }
            }
            collapsed
        });
        failed.map(|()| (next, done * HUGE))
    }

    /// `MADV_POPULATE_READ` and `MADV_POPULATE_WRITE`: what faults on each page of the range would do. No stack grows for it, and
    /// memory is not read that only some processors let programs read, as what may be written alone.
    ///
    /// # Errors
    /// [`FaultError`]: the pages before are there.
    pub fn populate(&self, address: u64, length: u64, access: Access) -> Result<(), FaultError> {
        let range = pages(address, length, Error::Invalid).map_err(|_| FaultError::NotMapped)?;
        let Some((start, end)) = range else { return Ok(()) };
        let mut at = start;
        while at < end {
            let vma = self.find(at).ok_or(FaultError::NotMapped)?;
            if access == Access::Read && !vma.flags.contains(VmFlags::READ) {
                return Err(FaultError::NotPermitted);
            }
            let part = at..vma.end.min(end);
            at = part.end;
            part.step_by(PAGE_SIZE as usize).try_for_each(|at| self.fault(at, access))?;
        }
        Ok(())
    }

    /// Calls `act` for each part of a VMA in the range, with `mmap_lock` held for reading; the sum of what it returns, and
    /// whether there was a hole.
    pub(crate) fn each_vma(
        &self,
        start: u64,
        end: u64,
        mut act: impl FnMut(&VmaInfo) -> u64,
    ) -> (u64, Result<(), Error>) {
        let _lock = self.lock.read();
        let (mut at, mut sum, mut done) = (start, 0, Ok(()));
        while at < end {
            let found = self.tree.read().find(at..=end - 1).map(|found| found.value.desc());
            let Some(vma) = found else { return (sum, Err(Error::Hole)) };
            let part = vma.part(at.max(vma.start), vma.end.min(end));
            if part.start > at {
                done = Err(Error::Hole);
            }
            sum += act(&part.info());
            at = part.end;
        }
        (sum, done)
    }
}
