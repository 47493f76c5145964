//! Page frames: what the kernel says of each, and which folio it is part of.
//!
//! The vocabulary is that of `/proc/kpageflags` (include/uapi/linux/kernel-page-flags.h), wherever the flags come from.
//! A folio of order `n` is aligned to its size of `2^n` frames; its first frame is a compound head, the others are tails.

/// Flags of a frame, numbered as in `/proc/kpageflags`.
pub(crate) mod flag {
    /// On a list of reclaim's.
    pub const LRU: u64 = 1 << 5;
    /// On one of those that are reclaimed last.
    pub const ACTIVE: u64 = 1 << 6;
    /// Can go nowhere but to swap: anonymous memory that is in use, shared memory.
    pub const SWAP_BACKED: u64 = 1 << 14;
    /// First frame of a large folio.
    pub const COMPOUND_HEAD: u64 = 1 << 15;
    /// Another frame of one.
    pub const COMPOUND_TAIL: u64 = 1 << 16;
    /// Of hugetlbfs.
    pub const HUGETLB: u64 = 1 << 17;
    /// Locked, or otherwise not to be reclaimed.
    pub const UNEVICTABLE: u64 = 1 << 18;
    /// Locked by mlock(2). It may not be marked as unevictable yet.
    pub const MLOCKED: u64 = 1 << 33;
    /// No page at all: a hole, or a device's memory.
    pub const NOPAGE: u64 = 1 << 20;
    /// The zero page, or the huge one.
    pub const ZERO_PAGE: u64 = 1 << 24;
}

/// Where flags of frames come from.
pub(crate) trait FrameFlags {
    /// The flags of each of `pfns`, replaced in `found`; `None` where they cannot be had.
    fn flags(&mut self, pfns: &[u64], found: &mut Vec<Option<u64>>);
}

/// The folio a frame is part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Folio {
    /// Its first frame.
    pub head: u64,
    /// Its size is 2^order frames.
    pub order: u32,
    /// Flags of its first frame.
    pub flags: u64,
}

impl Folio {
    /// Frames in it.
    pub const fn frames(&self) -> u64 {
        1 << self.order
    }

    /// Whether it has more than one frame.
    pub const fn is_large(&self) -> bool {
        self.order > 0
    }

    /// Whether `pfn` is one of its frames.
    pub const fn contains(&self, pfn: u64) -> bool {
        pfn >= self.head && pfn - self.head < self.frames()
    }

    /// Whether MADV_COLD does nothing to it: locked, hugetlb, the zero page, or no page.
    pub const fn is_unclearable(&self) -> bool {
        self.flags & (flag::HUGETLB | flag::UNEVICTABLE | flag::NOPAGE | flag::ZERO_PAGE) != 0
    }
}

/// Largest order looked for: a PMD-sized folio on arm64 with 64 KiB pages has 13.
pub(crate) const MAX_ORDER: u32 = 13;

/// The folios that `pfns` are part of, one answer each, replaced in `found`; `None` where it cannot be told. Frames of one
/// folio that stand next to each other cost no more than one of them.
pub(crate) fn folios(source: &mut impl FrameFlags, pfns: &[u64], found: &mut Vec<Option<Folio>>) {
    let (mut flags, mut answers) = (Vec::new(), Vec::new());
    source.flags(pfns, &mut flags);
    // Tails that follow no frame of their folio: heads are aligned to their folio's size, and all frames between head
    // and tail are tails, so the first head on the way down through ever coarser alignments is the right one.
    let candidate = |pfn: u64, order: u32| pfn & !((1 << order) - 1);
    let is = |flags: Option<u64>, bit| flags.is_some_and(|flags| flags & bit != 0);
    let follows = |i: usize| {
        let before = i.checked_sub(1).and_then(|before| pfns.get(before).zip(flags.get(before)));
        before.is_some_and(|(pfn, flags)| {
            pfns.get(i) == Some(&(pfn + 1)) && is(*flags, flag::COMPOUND_HEAD | flag::COMPOUND_TAIL)
        })
    };
    let tail = |i: usize| is(flags.get(i).copied().flatten(), flag::COMPOUND_TAIL);
    let lone: Vec<u64> =
        (0..pfns.len()).filter(|&i| tail(i) && !follows(i)).filter_map(|i| pfns.get(i).copied()).collect();
    let probes: Vec<u64> = lone.iter().flat_map(|pfn| (1..=MAX_ORDER).map(|o| candidate(*pfn, o))).collect();
    source.flags(&probes, &mut answers);
    let of_lone = probes.chunks(MAX_ORDER as usize).zip(answers.chunks(MAX_ORDER as usize));
    let mut of_lone = of_lone.map(|(probes, answers)| {
        let at = answers.iter().position(|flags| is(*flags, flag::COMPOUND_HEAD))?;
        Some((*probes.get(at)?, answers.get(at).copied().flatten()?))
    });

    found.clear();
    let mut heads: Vec<(usize, Folio)> = Vec::new();
    for (i, (&pfn, &own)) in pfns.iter().zip(&flags).enumerate() {
        let folio = match own {
            None => None,
            Some(_) if tail(i) && follows(i) => found.last().copied().flatten(),
            Some(_) if tail(i) => {
                of_lone.next().flatten().map(|(head, flags)| Folio { head, order: 1, flags })
            }
            Some(own) => {
                let order = u32::from(own & flag::COMPOUND_HEAD != 0);
                Some(Folio { head: pfn, order, flags: own })
            }
        };
        if let Some(folio) = folio.filter(|f| f.is_large())
            && heads.last().is_none_or(|(_, last)| last.head != folio.head)
        {
            heads.push((i, folio));
        }
        found.push(folio);
    }
    // What lies 2^n past the head of a folio of order n is another's head, or no compound.
    let probes: Vec<u64> =
        heads.iter().flat_map(|(_, f)| (1..MAX_ORDER).map(|o| f.head + (1 << o))).collect();
    source.flags(&probes, &mut answers);
    let mut sizes = heads.iter().zip(answers.chunks(MAX_ORDER as usize - 1)).map(|((_, folio), answers)| {
        let inside = answers.iter().take_while(|flags| is(**flags, flag::COMPOUND_TAIL)).count();
        (folio.head, 1 + inside as u32)
    });
    let mut size = sizes.next();
    for folio in found.iter_mut() {
        let Some(large) = folio.as_mut().filter(|f| f.is_large()) else { continue };
        if size.is_some_and(|(head, _)| head != large.head) {
            size = sizes.next();
        }
        match size {
            Some((head, order)) if head == large.head => large.order = order,
            _ => *folio = None,
        }
    }
}

/// Flags from a file like `/proc/kpageflags`, which needs CAP_SYS_ADMIN.
#[derive(Debug)]
pub(crate) struct PageFlagsFile(pub std::fs::File);

impl FrameFlags for PageFlagsFile {
    fn flags(&mut self, pfns: &[u64], found: &mut Vec<Option<u64>>) {
        use std::os::unix::fs::FileExt;
        found.clear();
        let mut bytes = Vec::new();
        // A call reads any number of frames that follow each other.
        for run in pfns.chunk_by(|a, b| a.checked_add(1) == Some(*b)) {
            bytes.resize(run.len() * 8, 0);
            let at = run.first().and_then(|pfn| pfn.checked_mul(8));
            let read = at.and_then(|at| self.0.read_exact_at(&mut bytes, at).ok());
            match read {
                Some(()) => {
                    found.extend(bytes.as_chunks::<8>().0.iter().map(|w| Some(u64::from_ne_bytes(*w))))
                }
                // Past the end of memory the file ends.
                None => found.extend(run.iter().map(|pfn| crate::pagemap::read_word(&self.0, *pfn))),
            }
        }
    }
}

#[cfg(test)]
mod tests;
