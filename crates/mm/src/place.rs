//! Where a mapping goes whose address is not fixed: hints, top-down and bottom-up (x86-64's `arch_get_unmapped_area`).

use crate::error::Error;
use crate::flags::{PAGE_SIZE, VmFlags, is_page_aligned};
use crate::space::Platform;
use crate::vma::Vma;
use crate::writing::Writing;

/// What is to be placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// The address if `fixed`, else a hint, and none if 0.
    pub(crate) address: u64,
    /// Whole pages, not 0.
    pub(crate) length: u64,
    pub(crate) fixed: bool,
    /// Private anonymous memory, which is aligned to huge pages if its length is.
    pub(crate) anonymous: bool,
}

impl<P: Platform> Writing<'_, P> {
    /// Where the first address of a VMA would be with the guard gap below it (`vm_start_gap`).
    pub(crate) fn start_gap(&self, vma: &Vma) -> u64 {
        let guard = if vma.flags().contains(VmFlags::GROWSDOWN) { self.space.config.stack_guard } else { 0 };
        vma.start().saturating_sub(guard)
    }

    /// `get_unmapped_area`.
    pub(crate) fn place(&self, place: Place) -> Result<u64, Error> {
        let config = &self.space.config;
        let Place { address, length, .. } = place;
        if length > config.end {
            return Err(Error::NoSpace);
        }
        let huge = config.huge_page;
        let aligns = place.anonymous && address == 0 && huge != 0 && length.is_multiple_of(huge);
        let found = if place.fixed {
            address
        } else if let Some(aligned) = aligns.then(|| self.place_huge(length, huge)).flatten() {
            aligned
        } else {
            self.place_small(address, length)?
        };
        if found > config.end - length {
            return Err(Error::NoSpace);
        }
        if !is_page_aligned(found) {
            return Err(Error::Invalid);
        }
        // `security_mmap_addr`: nothing is mapped at null pointers, by whatever call.
        if found < config.lowest {
            return Err(Error::TooLow);
        }
        Ok(found)
    }

    /// A place that begins at a huge page: in a gap that has room for one huge page more
    /// (`thp_get_unmapped_area`).
    fn place_huge(&self, length: u64, huge: u64) -> Option<u64> {
        let found = self.place_small(0, length.checked_add(huge)?).ok()?;
        let beyond = found.wrapping_neg() & (huge - 1);
        // Top-down the upper end of the gap is the better one.
        if beyond == 0 && !self.space.config.bottom_up { Some(found + huge) } else { Some(found + beyond) }
    }

    fn place_small(&self, address: u64, length: u64) -> Result<u64, Error> {
        let config = &self.space.config;
        if length > config.end {
            return Err(Error::NoSpace);
        }
        // A hint below the lowest is none.
        if address >= config.lowest {
            let hint = address & !(PAGE_SIZE - 1);
            let free = |hint: u64| {
                let next = self.first_in(hint, config.end);
                hint <= config.end - length && next.is_none_or(|next| hint + length <= self.start_gap(&next))
            };
            if free(hint) {
                return Ok(hint);
            }
        }
        if !config.bottom_up
            && let Some(found) = self.highest(length, config.top_down_base)
        {
            return Ok(found);
        }
        self.lowest(length, config.bottom_up_base).ok_or(Error::NoSpace)
    }

    /// `unmapped_area_topdown`.
    fn highest(&self, length: u64, mut limit: u64) -> Option<u64> {
        let low = self.space.config.lowest.max(PAGE_SIZE);
        loop {
            let found = self.tree.highest_gap(length, PAGE_SIZE, low..=limit.checked_sub(1)?)?;
            let next = self.first_in(found + length, self.space.config.end);
            match next.map(|next| self.start_gap(&next)) {
                Some(guard) if guard < found + length => limit = guard,
                _ => return Some(found),
            }
        }
    }

    /// `unmapped_area`.
    fn lowest(&self, length: u64, mut limit: u64) -> Option<u64> {
        limit = limit.max(self.space.config.lowest);
        loop {
            let found = self.tree.lowest_gap(length, PAGE_SIZE, limit..=self.space.config.end - 1)?;
            let next = self.first_in(found + length, self.space.config.end);
            match next {
                Some(next) if self.start_gap(&next) < found + length => limit = next.end(),
                _ => return Some(found),
            }
        }
    }
}
